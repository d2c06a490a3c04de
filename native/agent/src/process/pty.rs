use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde::Deserialize;

#[derive(Clone, Copy, Deserialize)]
pub struct Size {
    pub cols: u16,
    pub rows: u16,
}

/// Makes a terminal the stdio and controlling terminal of the command; returns its master side.
pub fn attach(command: &mut Command, size: Size) -> io::Result<OwnedFd> {
    let window = window(size);
    let (mut master, mut slave) = (-1, -1);
    // SAFETY: both results and the window outlive the call; the new descriptors have no other owner.
    let (master, slave) = unsafe {
        if libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null(), &window) < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::fcntl(slave, libc::F_SETFD, libc::FD_CLOEXEC);
        (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    };
    command.stdin(Stdio::from(slave.try_clone()?));
    command.stdout(Stdio::from(slave.try_clone()?));
    command.stderr(Stdio::from(slave));
    // SAFETY: one async-signal-safe ioctl on the child's stdin, which is the terminal by then.
    unsafe {
        command.pre_exec(|| match libc::ioctl(0, libc::TIOCSCTTY, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    Ok(master)
}

pub fn resize(master: &OwnedFd, size: Size) -> io::Result<()> {
    let window = window(size);
    // SAFETY: the window outlives the call.
    if unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &window) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn window(size: Size) -> libc::winsize {
    libc::winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 }
}
