//! Hands sockets to the caller. Node takes descriptors only on the channel that it makes for its child processes, and only in the
//! words in which two Node processes speak there.

use serde_json::{json, Value};
use std::fs::File;
use std::io::{Error, ErrorKind, Write};
use std::net::SocketAddrV6;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Where Node puts the channel, after the caller's socket; it says so in the environment.
pub const CHANNEL: RawFd = 4;

#[derive(Clone, Copy)]
pub enum Kind {
    Tcp,
    Dns,
    DnsTcp,
}

pub struct Handles(Option<OwnedFd>);

impl Handles {
    pub fn inherited() -> Self {
        let given = std::env::var("NODE_CHANNEL_FD").is_ok_and(|number| number == CHANNEL.to_string());
        // SAFETY: fcntl only inspects the number; nobody else in this process owns it.
        let usable = given && unsafe { libc::fcntl(CHANNEL, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
        Handles(usable.then(|| unsafe { OwnedFd::from_raw_fd(CHANNEL) }))
    }

    /// One message per descriptor: Node takes no more than one from each.
    pub fn send(&self, network: u64, kind: Kind, socket: &OwnedFd) -> Result<(), Error> {
        let message = match kind {
            Kind::Tcp => json!({ "type": "net.Server", "msg": { "network": network, "kind": "tcp" } }),
            Kind::DnsTcp => json!({ "type": "net.Server", "msg": { "network": network, "kind": "dnsTcp" } }),
            Kind::Dns => {
                json!({ "type": "dgram.Socket", "dgramType": "udp6", "msg": { "network": network, "kind": "dns" } })
            }
        };
        self.send_message(message, socket)
    }

    /// The first datagram of a flow comes with its socket.
    pub fn send_datagram(
        &self,
        network: u64,
        (from, to): (SocketAddrV6, SocketAddrV6),
        bytes: &[u8],
        socket: Option<&OwnedFd>,
    ) -> Result<(), Error> {
        let end = |of: SocketAddrV6| json!({ "address": of.ip().to_string(), "port": of.port() });
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let told = json!({ "network": network, "kind": "udp", "from": end(from), "to": end(to), "bytes": hex });
        match socket {
            Some(socket) => {
                self.send_message(json!({ "type": "dgram.Socket", "dgramType": "udp6", "msg": told }), socket)
            }
            None => Write::write_all(&mut &File::from(self.channel()?.try_clone()?), format!("{told}\n").as_bytes()),
        }
    }

    fn send_message(&self, mut message: Value, socket: &OwnedFd) -> Result<(), Error> {
        message["cmd"] = json!("NODE_HANDLE");
        send_with(self.channel()?, format!("{message}\n").as_bytes(), socket)
    }

    fn channel(&self) -> Result<&OwnedFd, Error> {
        self.0.as_ref().ok_or_else(|| Error::new(ErrorKind::NotConnected, "the caller takes no sockets"))
    }

    /// For every descriptor Node says that it has it.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.0.as_ref().map(AsRawFd::as_raw_fd)
    }

    pub fn discard(&self) {
        let mut buffer = [0u8; 4 << 10];
        if let Some(channel) = &self.0 {
            // SAFETY: the buffer is live and its length is passed along.
            unsafe { libc::recv(channel.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
        }
    }
}

/// Sends bytes with a descriptor; they are few, and arrive as one piece.
pub fn send_with(socket: &OwnedFd, bytes: &[u8], descriptor: &OwnedFd) -> Result<(), Error> {
    let mut control = [0u64; 3];
    let mut part = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // SAFETY: every pointer is to a live local that is as long as it is said to be.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(descriptor.as_raw_fd());
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
    };
    match sent {
        -1 => Err(Error::last_os_error()),
        n if n as usize == bytes.len() => Ok(()),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}
