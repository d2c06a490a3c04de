//! One output of a process: a pipe or the master side of a terminal.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

use crate::watched::watched;

pub struct Output {
    fd: AsyncFd<OwnedFd>,
}

impl Output {
    pub fn new(fd: OwnedFd) -> io::Result<Output> {
        set_nonblocking(&fd)?;
        Ok(Output { fd: watched(fd, Interest::READABLE)? })
    }

    /// What is there now: `None` when there is nothing yet, 0 at the end.
    pub fn try_read(&self, buffer: &mut [u8]) -> Option<usize> {
        match nix::unistd::read(self.fd.get_ref(), buffer) {
            Ok(count) => Some(count),
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => None,
            // A terminal reports EIO once its last user is gone.
            Err(_) => Some(0),
        }
    }

    /// The next bytes, at most `limit`; 0 at the end. The buffer takes up memory only once there is something to read:
    /// in a restored child every page written is a page of its own.
    pub async fn read(&self, buffer: &mut Vec<u8>, limit: usize) -> usize {
        loop {
            let Ok(mut ready) = self.fd.readable().await else {
                return 0;
            };
            buffer.resize(limit, 0);
            match self.try_read(buffer) {
                Some(count) => return count,
                None => ready.clear_ready(),
            }
        }
    }

    /// Reads and forgets until the end, so that a writer nobody listens to never blocks.
    pub async fn discard(self) {
        let mut buffer = Vec::new();
        while self.read(&mut buffer, 4096).await > 0 {}
    }
}

pub fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: fcntl on a descriptor we own.
    let result = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
