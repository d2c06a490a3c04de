use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::agent::Agent;
use crate::http::serve_connection;
use crate::watched::watched;

const PORT: u32 = 1024;

pub async fn serve(agent: Rc<Agent>) -> io::Result<()> {
    let listener = watched(listen()?, Interest::READABLE)?;
    loop {
        let mut ready = listener.readable().await?;
        match ready.try_io(|listener| accept(listener.get_ref())) {
            Ok(stream) => {
                tokio::task::spawn_local(serve_connection(agent.clone(), stream?));
            }
            Err(_not_ready) => continue,
        }
    }
}

fn listen() -> io::Result<OwnedFd> {
    // SAFETY: the address is plain data that outlives the calls; the new descriptor has no other owner.
    unsafe {
        let flags = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let fd = libc::socket(libc::AF_VSOCK, flags, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_vm = std::mem::zeroed();
        address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
        address.svm_port = PORT;
        address.svm_cid = libc::VMADDR_CID_ANY;
        let size = std::mem::size_of_val(&address) as libc::socklen_t;
        if libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) < 0 || libc::listen(fd.as_raw_fd(), 64) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(fd)
    }
}

/// A connected stream socket behaves the same in every family, so tokio's Unix stream can drive a vsock one.
fn accept(listener: &OwnedFd) -> io::Result<UnixStream> {
    // SAFETY: no address is asked for; the new descriptor has no other owner.
    let stream = unsafe {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let fd = libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        std::os::unix::net::UnixStream::from_raw_fd(fd)
    };
    UnixStream::from_std(stream)
}
