//! Gives the copy of a VMM a tap of its own in place of the one it shares with the original. A process can only take a descriptor
//! itself: the copy makes a pair of sockets, of which we borrow one to send it the tap.

use crate::handles::send_with;
use crate::network::{check, tap_of};
use crate::process;
use crate::script::Script;
use crate::tracee::Tracee;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

pub struct Replacement<'a> {
    /// The number of the inherited one.
    old: i32,
    tap: &'a OwnedFd,
    pidfd: OwnedFd,
    /// Where the copy finds the numbers of its sockets.
    pair: u64,
}

/// Adds what the copy does first to the script it runs; `None` where there is no tap and none is to be.
pub fn prepare<'a>(pid: i32, tap: Option<&'a OwnedFd>, script: &mut Script) -> Result<Option<Replacement<'a>>, Error> {
    let (old, tap) = match (tap_of(pid)?, tap) {
        (Some(old), Some(tap)) => (old, tap),
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(Error::new(ErrorKind::InvalidInput, "the VM needs a network")),
        (None, Some(_)) => return Err(Error::new(ErrorKind::InvalidInput, "the VM has no use for a network")),
    };
    let pidfd = process::open(pid)?;
    copy_header(&process::descriptor(&pidfd, old)?, tap)?;
    let pair = script.data(&[0; 8]);
    script.call(libc::SYS_socketpair, [libc::AF_UNIX as u64, libc::SOCK_STREAM as u64, 0, pair, 0]);
    Ok(Some(Replacement { old, tap, pidfd, pair }))
}

impl Replacement<'_> {
    /// After the script has run.
    pub fn put(&self, copy: &Tracee, memory: &File, page: u64) -> Result<(), Error> {
        let mut ends = [0u8; 8];
        memory.read_exact_at(&mut ends, self.pair)?;
        let [near, far] = [0, 4].map(|at| i32::from_ne_bytes(ends[at..at + 4].try_into().expect("four bytes")));
        send_with(&process::descriptor(&self.pidfd, far)?, b"t", self.tap)?;
        // The kernel takes the lowest free number.
        let new = (0..).find(|fd| !std::path::Path::new(&format!("/proc/{}/fd/{fd}", copy.tid)).is_symlink());
        let new: u64 = new.unwrap_or_default();
        let mut script = Script::new(page);
        let message = message(&mut script);
        script.call_returning(1, libc::SYS_recvmsg, [near as u64, message, libc::MSG_CMSG_CLOEXEC as u64, 0, 0]);
        script.call(libc::SYS_dup3, [new, self.old as u64, libc::O_CLOEXEC as u64, 0, 0]);
        for fd in [new, near as u64, far as u64] {
            script.call(libc::SYS_close, [fd, 0, 0, 0, 0]);
        }
        script.run(copy, memory)
    }
}

/// Room for one byte and one descriptor.
fn message(script: &mut Script) -> u64 {
    let byte = script.data(&[0; 8]);
    let part = script.data(&[byte.to_ne_bytes(), 1u64.to_ne_bytes()].concat());
    let control = script.data(&[0; 24]);
    let words = [0, 0, part, 1, control, 24, 0];
    script.data(&words.map(u64::to_ne_bytes).concat())
}

/// How long a header the guest's driver expects before a frame.
fn copy_header(from: &OwnedFd, to: &OwnedFd) -> Result<(), Error> {
    const TUNGETVNETHDRSZ: libc::Ioctl = 0x8004_54d7;
    const TUNSETVNETHDRSZ: libc::Ioctl = 0x4004_54d8;
    let mut length = 0i32;
    // SAFETY: both read or write the one live integer.
    unsafe {
        check(libc::ioctl(from.as_raw_fd(), TUNGETVNETHDRSZ, &mut length))?;
        check(libc::ioctl(to.as_raw_fd(), TUNSETVNETHDRSZ, &length))
    }
}
