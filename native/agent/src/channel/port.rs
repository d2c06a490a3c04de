//! A virtio-serial port as a sequence of connections.
//!
//! The port reports a permanent hang-up while no host is attached, and tokio takes a hang-up as final. So the port sits in
//! an epoll set of its own, edge-triggered, and tokio only watches that set: it wakes once per change and never spins.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use super::restart::Position;
use crate::agent::Agent;
use crate::http::serve_connection;
use crate::watched::watched;

const NAME: &str = "forkd.agent";
/// The driver copies a write into one kernel buffer and takes no more than this of it anyway.
const WRITE_LIMIT: usize = 32 << 10;

pub async fn serve(agent: Rc<Agent>) -> io::Result<()> {
    let port = Rc::new(Port::open(&find().await?)?);
    loop {
        port.connected().await?;
        let connection = Connection { port: port.clone(), position: Position::default(), ended: false };
        serve_connection(agent.clone(), connection).await;
    }
}

async fn find() -> io::Result<String> {
    for _ in 0..500 {
        for entry in std::fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
            let name = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            let device = format!("/dev/{}", entry.file_name().to_string_lossy());
            if name.trim_end() == NAME && std::path::Path::new(&device).exists() {
                return Ok(device);
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(io::Error::other(format!("no virtio-serial port named {NAME}")))
}

struct Port {
    port: OwnedFd,
    changes: AsyncFd<OwnedFd>,
    read_blocked: Cell<bool>,
    write_blocked: Cell<bool>,
    /// The first bytes of a connection, found while its predecessor was still being served.
    carried: RefCell<Vec<u8>>,
}

impl Port {
    fn open(path: &str) -> io::Result<Port> {
        use nix::fcntl::OFlag;
        let flags = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let port = nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty())?;
        // SAFETY: the event outlives the call; the new descriptor has no other owner.
        let set = unsafe {
            let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if set < 0 {
                return Err(io::Error::last_os_error());
            }
            let set = OwnedFd::from_raw_fd(set);
            let mut event = libc::epoll_event {
                events: (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32,
                u64: 0,
            };
            if libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, port.as_raw_fd(), &mut event) < 0 {
                return Err(io::Error::last_os_error());
            }
            set
        };
        Ok(Port {
            port,
            changes: watched(set, Interest::READABLE)?,
            read_blocked: Cell::new(false),
            write_blocked: Cell::new(false),
            carried: RefCell::default(),
        })
    }

    async fn connected(&self) -> io::Result<()> {
        while self.carried.borrow().is_empty() && self.is_hung_up() {
            let mut ready = self.changes.readable().await?;
            self.take_changes();
            ready.clear_ready();
        }
        Ok(())
    }

    fn is_hung_up(&self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout};
        let mut query = [PollFd::new(self.port.as_fd(), PollFlags::POLLIN)];
        let _ = nix::poll::poll(&mut query, PollTimeout::ZERO);
        query[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }

    fn take_changes(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event, and the set holds one descriptor.
        unsafe { libc::epoll_wait(self.changes.as_raw_fd(), &mut event, 1, 0) };
    }

    /// Waits for the next change. Reading and writing share the one notice, so the half that takes it wakes the other.
    fn poll_change(&self, cx: &mut Context, other_blocked: &Cell<bool>) -> Poll<io::Result<()>> {
        let mut ready = std::task::ready!(self.changes.poll_read_ready(cx))?;
        self.take_changes();
        ready.clear_ready();
        if other_blocked.replace(false) {
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }
}

struct Connection {
    port: Rc<Port>,
    position: Position,
    ended: bool,
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context, buf: &mut ReadBuf) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(Ok(()));
        }
        let carried = std::mem::take(&mut *this.port.carried.borrow_mut());
        if !carried.is_empty() {
            let taken = carried.len().min(buf.remaining());
            buf.put_slice(&carried[..taken]);
            this.position.advance(&carried[..taken]);
            *this.port.carried.borrow_mut() = carried[taken..].to_vec();
            return Poll::Ready(Ok(()));
        }
        loop {
            match nix::unistd::read(&this.port.port, buf.initialize_unfilled()) {
                Ok(0) => {
                    this.ended = true;
                    return Poll::Ready(Ok(()));
                }
                Ok(count) => {
                    let chunk = &buf.initialize_unfilled()[..count];
                    if this.position.is_restart(chunk) {
                        *this.port.carried.borrow_mut() = chunk.to_vec();
                        this.ended = true;
                        return Poll::Ready(Ok(()));
                    }
                    this.position.advance(chunk);
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(nix::Error::EAGAIN) => {
                    this.port.read_blocked.set(true);
                    std::task::ready!(this.port.poll_change(cx, &this.port.write_blocked))?;
                }
                Err(nix::Error::EINTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // What a dead connection still has to say must not reach the client of the next one.
        if self.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        loop {
            match nix::unistd::write(&self.port.port, &bytes[..bytes.len().min(WRITE_LIMIT)]) {
                Ok(count) => return Poll::Ready(Ok(count)),
                Err(nix::Error::EAGAIN) if self.port.is_hung_up() => {
                    return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                }
                Err(nix::Error::EAGAIN) => {
                    self.port.write_blocked.set(true);
                    std::task::ready!(self.port.poll_change(cx, &self.port.read_blocked))?;
                }
                Err(nix::Error::EINTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
