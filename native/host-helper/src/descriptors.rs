//! Gives a forked VMM descriptors of its own for everything that must not be shared with the original.

use crate::jail_root::check;
use crate::process;
use crate::protocol::ForkVmm;
use crate::script::Script;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io::{Error, ErrorKind};
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

struct Socket {
    path: Option<String>,
    listening: bool,
}

struct Replacer<'a> {
    request: &'a ForkVmm,
    pid: i32,
    /// The two lowest free numbers: where the next new descriptors will appear.
    free: [u64; 2],
    script: &'a mut Script,
}

/// Writes a script that, run in the copy, replaces what it shares with the original: sockets and files in the original's
/// directory become their namesakes in the copy's, counters are made anew, connections are cut. What is not known to be safe
/// to share is an error.
pub fn replace(request: &ForkVmm, pid: i32, script: &mut Script) -> Result<(), Error> {
    let mut open = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let fd: u64 = entry.file_name().to_string_lossy().parse().map_err(|_| ErrorKind::InvalidData)?;
        open.insert(fd, std::fs::read_link(entry.path())?.to_string_lossy().into_owned());
    }
    let mut free = (0..).filter(|fd| !open.contains_key(fd));
    let free = [free.next(), free.next()].map(Option::unwrap_or_default);
    let pidfd = process::open(pid)?;
    let mut replacer = Replacer { request, pid, free, script };
    for (fd, target) in &open {
        if target.starts_with("socket:[") {
            replacer.socket(*fd, Socket::of(&process::descriptor(&pidfd, *fd as i32)?)?)?;
        } else if target == "anon_inode:[eventfd]" {
            replacer.counter(*fd)?;
        } else if let Some(path) = replacer.counterpart(target) {
            replacer.file(*fd, &path)?;
        } else if !(target.starts_with('/') || target == "anon_inode:[signalfd]" || unused_epoll(pid, *fd, target)?) {
            return Err(Error::new(ErrorKind::Unsupported, format!("descriptor {fd} is {target}")));
        }
    }
    Ok(())
}

impl Replacer<'_> {
    fn counterpart(&self, path: &str) -> Option<String> {
        let rest = path.strip_prefix(&self.request.from)?;
        rest.starts_with('/').then(|| format!("{}{rest}", self.request.to))
    }

    fn counter(&mut self, fd: u64) -> Result<(), Error> {
        let flags = self.flags(fd, libc::O_NONBLOCK | libc::O_CLOEXEC)?;
        self.make(libc::SYS_eventfd2, [0, flags, 0, 0, 0]);
        self.put(fd);
        Ok(())
    }

    fn file(&mut self, fd: u64, path: &str) -> Result<(), Error> {
        let flags = self.flags(fd, libc::O_ACCMODE | libc::O_APPEND | libc::O_CLOEXEC)?;
        let path = self.script.data(&[path.as_bytes(), b"\0"].concat());
        self.make(libc::SYS_open, [path, flags | libc::O_NOFOLLOW as u64, 0, 0, 0]);
        self.put(fd);
        Ok(())
    }

    fn socket(&mut self, fd: u64, known: Socket) -> Result<(), Error> {
        let kind = libc::SOCK_STREAM as u64 | self.flags(fd, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)?;
        match known {
            Socket { path: Some(path), listening: true } => self.listener(fd, kind, &path)?,
            Socket { path, .. } => self.cut(fd, kind, path.as_deref()),
        }
        Ok(())
    }

    fn listener(&mut self, fd: u64, kind: u64, path: &str) -> Result<(), Error> {
        let path = self.counterpart(path).ok_or_else(|| Error::other(format!("{path} is shared")))?;
        let address = [&(libc::AF_UNIX as u16).to_ne_bytes(), path.as_bytes(), b"\0"].concat();
        let place = self.script.data(&address);
        let new = self.free[0];
        self.make(libc::SYS_socket, [libc::AF_UNIX as u64, kind, 0, 0, 0]);
        self.script.call(libc::SYS_bind, [new, place, address.len() as u64, 0, 0]);
        self.script.call(libc::SYS_listen, [new, 8, 0, 0, 0]);
        self.put(fd);
        Ok(())
    }

    /// In place of a connection that belongs to the original, the copy reads its first orders, if any, and then the end.
    fn cut(&mut self, fd: u64, kind: u64, path: Option<&str>) {
        let other = self.free[1];
        let pair = self.script.data(&[0; 8]);
        self.script.call(libc::SYS_socketpair, [libc::AF_UNIX as u64, kind, 0, pair, 0]);
        match path.and_then(|path| self.request.orders.iter().find(|(name, _)| path.ends_with(name.as_str()))) {
            Some((_, text)) => {
                let place = self.script.data(text.as_bytes());
                let length = text.len() as u64;
                self.script.call_returning(length as i64, libc::SYS_write, [other, place, length, 0, 0]);
                // A closed peer would be noticed before the orders are read; a half-closed one is not. It stays open.
                self.script.call(libc::SYS_shutdown, [other, libc::SHUT_WR as u64, 0, 0, 0]);
                self.put(fd);
                self.free[1] = (other + 1..).find(|fd| !self.is_open(*fd)).unwrap_or_default();
            }
            None => {
                self.script.call(libc::SYS_close, [other, 0, 0, 0, 0]);
                self.put(fd);
            }
        }
    }

    fn is_open(&self, fd: u64) -> bool {
        std::path::Path::new(&format!("/proc/{}/fd/{fd}", self.pid)).is_symlink()
    }

    /// A call that returns a new descriptor: the kernel takes the lowest free number.
    fn make(&mut self, number: i64, arguments: [u64; 5]) {
        self.script.call_returning(self.free[0] as i64, number, arguments);
    }

    /// Moves the new descriptor to where the old one was.
    fn put(&mut self, fd: u64) {
        self.script.call(libc::SYS_dup3, [self.free[0], fd, libc::O_CLOEXEC as u64, 0, 0]);
        self.script.call(libc::SYS_close, [self.free[0], 0, 0, 0, 0]);
    }

    fn flags(&self, fd: u64, mask: i32) -> Result<u64, Error> {
        fdinfo(self.pid, fd)?
            .lines()
            .find_map(|line| u64::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok())
            .map(|flags| flags & mask as u64)
            .ok_or_else(|| ErrorKind::InvalidData.into())
    }
}

/// QEMU makes an epoll descriptor that it uses only with very many others; one that watches something is not shareable.
fn unused_epoll(pid: i32, fd: u64, target: &str) -> Result<bool, Error> {
    Ok(target == "anon_inode:[eventpoll]" && !fdinfo(pid, fd)?.contains("tfd:"))
}

fn fdinfo(pid: i32, fd: u64) -> Result<String, Error> {
    std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}"))
}

impl Socket {
    fn of(descriptor: &OwnedFd) -> Result<Self, Error> {
        let number = descriptor.as_raw_fd();
        let (mut listening, mut length) = (0i32, size_of::<i32>() as u32);
        // SAFETY: the structures are live, and as long as their lengths say.
        unsafe {
            let option = (&raw mut listening).cast();
            check(libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, option, &mut length))?;
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            length = size_of::<libc::sockaddr_un>() as u32;
            check(libc::getsockname(number, (&raw mut address).cast(), &mut length))?;
            let named = i32::from(address.sun_family) == libc::AF_UNIX && address.sun_path[0] != 0;
            let path = named.then(|| CStr::from_ptr(address.sun_path.as_ptr()).to_string_lossy().into_owned());
            Ok(Socket { path, listening: listening != 0 })
        }
    }
}
