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

use bytes::BytesMut;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use super::hail::Hail;
use crate::agent::Agent;
use crate::http::serve_connection;
use crate::watched::watched;

const NAME: &str = "forkd.agent";
/// The driver copies a write into one kernel buffer and takes no more than this of it anyway.
const WRITE_LIMIT: usize = 32 << 10;
/// What the driver gives at a time.
const CHUNK: usize = 4 << 10;

pub async fn serve(agent: Rc<Agent>, key: &str) -> io::Result<()> {
    let port = Rc::new(Port::open(&find().await?, Hail::new(key))?);
    loop {
        port.connected().await?;
        match port.answer.take() {
            Some(answer) => {
                port.say(answer.as_bytes()).await?;
                // HTTP/2 would have the guest speak first, and the host takes the answer for the last word.
                port.addressed().await?;
            }
            None => port.carried.borrow_mut().clear(),
        }
        let connection = Connection { port: port.clone(), ended: false };
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
    hail: Hail,
    /// To the host that hailed us while its predecessor was still being served.
    answer: RefCell<Option<String>>,
    /// What was read and nobody has taken yet.
    carried: RefCell<BytesMut>,
}

impl Port {
    fn open(path: &str, hail: Hail) -> io::Result<Port> {
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
            hail,
            answer: RefCell::default(),
            carried: RefCell::default(),
        })
    }

    async fn connected(&self) -> io::Result<()> {
        while self.is_hung_up() {
            self.change().await?;
        }
        Ok(())
    }

    /// If nobody is there any more, the next host hears it, and knows that it was not meant.
    async fn say(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match nix::unistd::write(&self.port, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(nix::Error::EAGAIN) => self.change().await?,
                Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn change(&self) -> io::Result<()> {
        let mut ready = self.changes.readable().await?;
        self.take_changes();
        ready.clear_ready();
        Ok(())
    }

    async fn addressed(&self) -> io::Result<()> {
        while !self.polled().intersects(PollFlags::POLLIN | PollFlags::POLLHUP) {
            self.change().await?;
        }
        Ok(())
    }

    fn is_hung_up(&self) -> bool {
        self.polled().contains(PollFlags::POLLHUP)
    }

    fn polled(&self) -> PollFlags {
        let mut query = [PollFd::new(self.port.as_fd(), PollFlags::POLLIN)];
        let _ = nix::poll::poll(&mut query, PollTimeout::ZERO);
        query[0].revents().unwrap_or(PollFlags::empty())
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
    ended: bool,
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context, buf: &mut ReadBuf) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(Ok(()));
        }
        loop {
            let mut carried = this.port.carried.borrow_mut();
            if !carried.is_empty() {
                let taken = carried.len().min(buf.remaining());
                buf.put_slice(&carried.split_to(taken));
                return Poll::Ready(Ok(()));
            }
            // Not into the reader's own buffer, which may be too small for a hail.
            let mut chunk = [0; CHUNK];
            match nix::unistd::read(&this.port.port, &mut chunk) {
                // That the host went away may be learnt when the next one is already there and has spoken.
                Ok(0) if !this.port.is_hung_up() => {}
                Ok(0) => {
                    this.ended = true;
                    return Poll::Ready(Ok(()));
                }
                Ok(count) => {
                    let chunk = &chunk[..count];
                    let Some((answer, end)) = this.port.hail.in_chunk(chunk) else {
                        carried.extend_from_slice(chunk);
                        continue;
                    };
                    carried.extend_from_slice(&chunk[end..]);
                    *this.port.answer.borrow_mut() = Some(answer);
                    this.ended = true;
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
