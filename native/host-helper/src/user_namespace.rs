//! Who is who in the user namespace of a copy. All users of VMMs are in it, under the numbers they have on the host: a copy of the
//! copy gets a namespace within it and is another of them. That none of them can become another is up to what else holds them.

use crate::jail_root::{check, text};
use crate::process;
use crate::protocol::Uids;
use std::ffi::CString;
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const NS_GET_PARENT: libc::Ioctl = 0xb702;

pub fn map(pid: i32, Uids { first, last }: &Uids) -> Result<(), Error> {
    let users = format!("{first} {first} {}", last - first + 1);
    let files = ["gid_map", "uid_map"].map(|name| format!("/proc/{pid}/{name}"));
    match files.iter().try_for_each(|file| std::fs::write(file, &users)) {
        // The kernel takes it only from a process in the namespace above, and that need not be ours.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => write_from_above(pid, &files, &users),
        written => written,
    }
}

fn write_from_above(pid: i32, files: &[String], users: &str) -> Result<(), Error> {
    let own = File::open(format!("/proc/{pid}/ns/user"))?;
    // SAFETY: returns a new descriptor, which is ours.
    let above = unsafe { OwnedFd::from_raw_fd(check(libc::ioctl(own.as_raw_fd(), NS_GET_PARENT))?) };
    let files = files.iter().map(|file| text(file)).collect::<Result<Vec<_>, _>>()?;
    // Only a process with a single thread can enter a user namespace.
    // SAFETY: the child makes nothing but system calls on what was prepared before.
    match check(unsafe { libc::fork() })? {
        0 => unsafe { libc::_exit(write_in(&above, &files, users.as_bytes())) },
        child => match process::outcome(child)? {
            0 => Ok(()),
            errno => Err(Error::from_raw_os_error(errno)),
        },
    }
}

/// The error number, or 0.
fn write_in(namespace: &OwnedFd, files: &[CString], bytes: &[u8]) -> i32 {
    // SAFETY: live strings and buffers.
    unsafe {
        if libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWUSER) < 0 {
            return *libc::__errno_location();
        }
        for path in files {
            let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file < 0 || libc::write(file, bytes.as_ptr().cast(), bytes.len()) < 0 {
                return *libc::__errno_location();
            }
        }
    }
    0
}
