//! Just enough of netlink to set up a network namespace: messages with nested attributes, sent together, all of them acknowledged.

use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

const HEADER: usize = 16;
/// The kernel answers before `send` returns; a host that is swapping may take a moment longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// One message, or what is in a nested attribute of it.
#[derive(Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// In the order of bytes that this host uses: routing takes it so.
    pub fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// In network order: the packet filter takes it so.
    pub fn big(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn text(self, kind: u16, value: &str) -> Self {
        self.bytes(kind, &[value.as_bytes(), b"\0"].concat())
    }

    pub fn nest(self, kind: u16, inner: Attributes) -> Self {
        self.bytes(kind | libc::NLA_F_NESTED as u16, &inner.0)
    }
}

/// Messages that are sent in one go.
#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    messages: u32,
}

impl Batch {
    /// `head` is the fixed part that every kind of message begins with.
    pub fn add(&mut self, kind: u16, flags: i32, head: &[u8], attributes: Attributes) {
        let flags = (flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let body = [head, &attributes.0].concat();
        self.bytes.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&self.messages.to_ne_bytes());
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(&body);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.messages += 1;
    }

    /// In the namespace of this thread. The first message that is refused is the error.
    pub fn send(self, protocol: i32) -> Result<(), Error> {
        let socket = Socket::open(protocol)?;
        socket.send(&self.bytes)?;
        let mut left = self.messages;
        while left > 0 {
            left = left.saturating_sub(acknowledged(&socket.receive()?)?);
        }
        Ok(())
    }
}

/// One question in the namespace of this thread; the attributes of the answer, whose fixed part is as long as the question's.
pub fn ask(protocol: i32, kind: u16, head: &[u8], attributes: Attributes) -> Result<Vec<u8>, Error> {
    let socket = Socket::open(protocol)?;
    let mut batch = Batch::default();
    batch.add(kind, 0, head, attributes);
    socket.send(&batch.bytes)?;
    let answer = socket.receive()?;
    match answer.get(HEADER + head.len()..) {
        Some(rest) if u16::from_ne_bytes([answer[4], answer[5]]) != libc::NLMSG_ERROR as u16 => Ok(rest.to_vec()),
        _ => Err(acknowledged(&answer).err().unwrap_or_else(|| ErrorKind::InvalidData.into())),
    }
}

/// What an attribute of that kind holds.
pub fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let found = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?) & !(libc::NLA_F_NESTED as u16);
        let value = attributes.get(4..length)?;
        if found == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

struct Socket(OwnedFd);

impl Socket {
    fn open(protocol: i32) -> Result<Self, Error> {
        // SAFETY: plain integers; the new descriptor has no other owner.
        let socket = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
        if socket < 0 {
            return Err(Error::last_os_error());
        }
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let patience = libc::timeval { tv_sec: PATIENCE.as_secs() as i64, tv_usec: 0 };
        let size = size_of_val(&patience) as u32;
        // SAFETY: the structure is live and its size is passed along.
        unsafe {
            let value = (&raw const patience).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, value, size);
        }
        Ok(Socket(socket))
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: the bytes are live and their length is passed along.
        match unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) } {
            -1 => Err(Error::last_os_error()),
            _ => Ok(()),
        }
    }

    fn receive(&self) -> Result<Vec<u8>, Error> {
        let mut buffer = vec![0u8; 32 << 10];
        // SAFETY: the buffer is live and its length is passed along.
        let n = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if n < 0 {
            return Err(Error::last_os_error());
        }
        buffer.truncate(n as usize);
        Ok(buffer)
    }
}

/// How many messages these answers acknowledge.
fn acknowledged(mut answers: &[u8]) -> Result<u32, Error> {
    let mut count = 0;
    while answers.len() >= HEADER + 4 {
        let word = |at: usize| u32::from_ne_bytes(answers[at..at + 4].try_into().expect("four bytes"));
        let length = word(0) as usize;
        let kind = u16::from_ne_bytes([answers[4], answers[5]]);
        if length < HEADER || kind != libc::NLMSG_ERROR as u16 {
            return Err(ErrorKind::InvalidData.into());
        }
        match word(HEADER) as i32 {
            0 => count += 1,
            errno => {
                let error = Error::from_raw_os_error(-errno);
                return Err(Error::new(error.kind(), format!("message {}: {error}", word(8))));
            }
        }
        answers = answers.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(count)
}
