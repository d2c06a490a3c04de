//! UDP of a guest to anywhere but its resolver, which is taken as long as somebody listens for it. The first datagram of a flow makes a
//! socket where the guest wants to go, and the caller gets both. When the caller wants that flow, its socket is connected to the guest,
//! and the kernel gives it the rest; what comes before then still arrives here, and is passed on as well. It is connected only then,
//! because Node sends nothing on one that was connected before it came.

use crate::handles::Handles;
use crate::network::{self, check, UDP_PORT};
use crate::protocol::{Failure, OfVmm, Reply};
use std::collections::HashMap;
use std::io::Error;
use std::net::{Ipv4Addr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// New flows of one guest: so many at once, and so many a second after that. What comes beyond is lost.
const BURST: f64 = 100.0;
const RATE: f64 = 50.0;
/// What comes here of a flow that is not older belongs to it; who is refused is not asked about again before.
const SAME_FLOW: Duration = Duration::from_secs(1);
/// No wire carries a larger datagram in one piece; those are lost at the start of a flow.
const LARGEST: usize = 2048;
/// How often it is looked whether the guest is still there.
const LOOK_MS: i32 = 30_000;
const AT_ONCE: usize = 64;
const STACK: usize = 256 << 10;

type Ends = (SocketAddrV6, SocketAddrV6);

/// What has just begun, with its socket until it is connected.
type Begun = Arc<Mutex<HashMap<Ends, (Instant, Option<OwnedFd>)>>>;

/// By number: what ends the thread when it is closed, and what is new there.
#[derive(Default)]
pub struct Listeners(Mutex<HashMap<u64, (UnixStream, Begun)>>);

impl Listeners {
    pub fn close(&self, number: u64) {
        self.0.lock().expect("listeners").remove(&number);
    }

    /// Gives the rest of a flow to its socket.
    pub fn connect(&self, number: u64, ends: Ends) -> Result<Reply, Failure> {
        let listeners = self.0.lock().expect("listeners");
        let mut begun = listeners.get(&number).map(|(_, begun)| begun.lock().expect("flows"));
        let socket = begun.as_mut().and_then(|begun| begun.get_mut(&ends)?.1.take());
        let socket = socket.ok_or_else(|| Failure::new("there is no such flow"))?;
        network::connect_to(&socket, ends.0).map_err(|e| Failure::io("connect a flow", &e))?;
        Ok(Reply::Done {})
    }
}

/// Listens in the network of a VMM, under the number of the request. The thread that does it stays in that namespace.
pub fn listen(number: u64, vmm: &OfVmm, listeners: &Listeners, handles: &Arc<Handles>) -> Result<Reply, Failure> {
    network::enter_of(vmm)?;
    let open = || -> Result<(), Error> {
        let socket = listener()?;
        let (stop, stopped) = UnixStream::pair()?;
        let begun = Begun::default();
        let mine = Listener { number, socket, begun: begun.clone(), left: BURST, at: Instant::now() };
        let handles = handles.clone();
        thread::Builder::new().stack_size(STACK).spawn(move || mine.serve(&stopped, &handles))?;
        listeners.0.lock().expect("listeners").insert(number, (stop, begun));
        Ok(())
    };
    open().map_err(|e| Failure::io("listen for UDP", &e))?;
    Ok(Reply::Network { network: number })
}

struct Datagram {
    from: SocketAddrV6,
    to: SocketAddrV6,
    bytes: Vec<u8>,
}

struct Listener {
    number: u64,
    socket: OwnedFd,
    begun: Begun,
    left: f64,
    at: Instant,
}

impl Listener {
    fn serve(mut self, stopped: &UnixStream, handles: &Handles) {
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        loop {
            let mut polls = [watch(self.socket.as_raw_fd()), watch(stopped.as_raw_fd())];
            // SAFETY: the array outlives the call and its length is passed along.
            let ready = unsafe { libc::poll(polls.as_mut_ptr(), 2, LOOK_MS) };
            if polls[1].revents != 0 || (ready == 0 && !network::has_tap()) {
                return;
            }
            // Who never stops sending does not keep it from being closed.
            for _ in 0..AT_ONCE {
                let Some(received) = receive(&self.socket) else { break };
                if let Some(datagram) = received {
                    self.take(&datagram, handles);
                }
            }
        }
    }

    fn take(&mut self, datagram: &Datagram, handles: &Handles) {
        let now = Instant::now();
        self.left = BURST.min(self.left + now.duration_since(self.at).as_secs_f64() * RATE);
        self.at = now;
        if self.left < 1.0 {
            return;
        }
        self.left -= 1.0;
        let ends = (datagram.from, datagram.to);
        let Ok(socket) = self.begin(ends, now) else { return };
        // Whoever is gone needs none.
        let _ = handles.send_datagram(self.number, ends, &datagram.bytes, socket.as_ref());
    }

    /// The socket of a flow that is new.
    fn begin(&self, ends: Ends, now: Instant) -> Result<Option<OwnedFd>, Error> {
        let mut begun = self.begun.lock().expect("flows");
        begun.retain(|_, (since, _)| now.duration_since(*since) < SAME_FLOW);
        if begun.contains_key(&ends) {
            return Ok(None);
        }
        let socket = network::socket(libc::SOCK_DGRAM, ends.1)?;
        begun.insert(ends, (now, Some(socket.try_clone()?)));
        Ok(Some(socket))
    }
}

fn listener() -> Result<OwnedFd, Error> {
    let socket = network::socket(libc::SOCK_DGRAM, network::anywhere(UDP_PORT))?;
    for (level, option) in [(libc::SOL_IP, libc::IP_RECVORIGDSTADDR), (libc::SOL_IPV6, libc::IPV6_RECVORIGDSTADDR)] {
        let on = 1i32;
        // SAFETY: the integer is live and its size is passed along.
        check(unsafe {
            libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), size_of_val(&on) as u32)
        })?;
    }
    Ok(socket)
}

/// `None`: there is nothing more. `Some(None)`: one that cannot be read whole.
fn receive(socket: &OwnedFd) -> Option<Option<Datagram>> {
    let mut bytes = vec![0u8; LARGEST];
    let mut control = [0u64; 16];
    // SAFETY: every pointer is to a live local that is as long as it is said to be; what is read of the control data is in its bounds.
    unsafe {
        let mut from: libc::sockaddr_in6 = std::mem::zeroed();
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = size_of_val(&from) as u32;
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let n = libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT);
        if n < 0 {
            return None;
        }
        let is_whole = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0;
        let to = if is_whole { destination(&message) } else { None };
        bytes.truncate(n as usize);
        let from = SocketAddrV6::new(from.sin6_addr.s6_addr.into(), u16::from_be(from.sin6_port), 0, 0);
        Some(to.map(|to| Datagram { from, to, bytes }))
    }
}

unsafe fn destination(message: &libc::msghdr) -> Option<SocketAddrV6> {
    let mut header = libc::CMSG_FIRSTHDR(message);
    while !header.is_null() {
        let data = libc::CMSG_DATA(header);
        match ((*header).cmsg_level, (*header).cmsg_type) {
            (libc::SOL_IP, libc::IP_ORIGDSTADDR) => {
                let to = data.cast::<libc::sockaddr_in>().read_unaligned();
                let address = Ipv4Addr::from(u32::from_be(to.sin_addr.s_addr)).to_ipv6_mapped();
                return Some(SocketAddrV6::new(address, u16::from_be(to.sin_port), 0, 0));
            }
            (libc::SOL_IPV6, libc::IPV6_ORIGDSTADDR) => {
                let to = data.cast::<libc::sockaddr_in6>().read_unaligned();
                return Some(SocketAddrV6::new(to.sin6_addr.s6_addr.into(), u16::from_be(to.sin6_port), 0, 0));
            }
            _ => header = libc::CMSG_NXTHDR(message, header),
        }
    }
    None
}
