use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

/// Puts a descriptor under the watch of the runtime.
pub fn watched(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd always returns the same open descriptor and is never swapped out of its AsyncFd.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}
