//! Processes are named by pid and start time, and held by pidfd: a recycled pid is never mistaken for the old process.

use crate::protocol::{Adopt, Failure, Kill, Reply};
use crate::spawn::Spawned;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub fn open(pid: i32) -> Result<OwnedFd, Error> {
    // SAFETY: pidfd_open takes two integers and returns a new descriptor that we own.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A descriptor of another process, as one of our own.
pub fn descriptor(pidfd: &OwnedFd, number: i32) -> Result<OwnedFd, Error> {
    // SAFETY: plain integers; the new descriptor has no other owner.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub fn start_time(pid: i32) -> Result<u64, Error> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command name may hold spaces and parentheses, so fields are counted from the last ')'.
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19))
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| Error::new(ErrorKind::InvalidData, "unreadable /proc/PID/stat"))
}

/// An error unless the pid is still that of the process that started then.
pub fn check(pid: i32, started: u64) -> Result<(), Error> {
    match start_time(pid) {
        Ok(time) if time == started => Ok(()),
        _ => Err(Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// Whether it runs no more, collected by its parent or not.
pub fn ended(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Whether it has ended, or has been killed and is about to.
pub fn ending(pid: i32) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    ended(pid) || ["SigPnd:", "ShdPnd:"].iter().any(|name| mask(name).is_some_and(|set| set & KILL != 0))
}

/// Whether it is a child that nobody has waited for yet: only then is the pid certain to be its own.
pub fn is_ours(pid: i32) -> bool {
    // SAFETY: the kernel fills the structure it is given.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    unsafe { libc::waitid(libc::P_PID, pid as u32, &mut info, options) == 0 }
}

pub fn tracer(pid: i32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("TracerPid:")?.trim().parse().ok())
}

/// Waits for a child that only does a few system calls; what it exited with.
pub fn outcome(child: i32) -> Result<i32, Error> {
    let mut status = 0;
    // SAFETY: the status is a live local.
    match unsafe { libc::waitpid(child, &mut status, 0) } {
        -1 => Err(Error::last_os_error()),
        _ if libc::WIFEXITED(status) => Ok(libc::WEXITSTATUS(status)),
        _ => Err(Error::other("it was killed")),
    }
}

/// How a process ended; `None` while it lives. One that is not our child is only known to be gone.
pub fn exit(pidfd: &OwnedFd) -> Option<(Option<i32>, Option<i32>)> {
    // SAFETY: the kernel fills the structure it is given.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::__WALL;
    let waited = unsafe { libc::waitid(libc::P_PIDFD, pidfd.as_raw_fd() as u32, &mut info, options) };
    if waited != 0 {
        let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live entry, no waiting.
        return (unsafe { libc::poll(&mut poll, 1, 0) } > 0).then_some((None, None));
    }
    // SAFETY: after a successful waitid the fields of SIGCHLD are the valid ones.
    match unsafe { (info.si_pid(), info.si_code, info.si_status()) } {
        (0, _, _) => None,
        (_, libc::CLD_EXITED, code) => Some((Some(code), None)),
        (_, _, signal) => Some((None, Some(signal))),
    }
}

/// Takes hold of a process that somebody else started.
pub fn adopt(request: &Adopt) -> Result<Spawned, Failure> {
    let pidfd = open(request.pid).map_err(|_| Failure::io("adopt", &Error::from_raw_os_error(libc::ESRCH)))?;
    // Compared after the pidfd pins it, so that it cannot be another process by then.
    check(request.pid, request.start_time).map_err(|e| Failure::io("adopt", &e))?;
    Ok(Spawned::new(request.pid, request.start_time, pidfd))
}

/// A process that is already gone is not an error: `delivered` says so.
pub fn kill(request: &Kill) -> Result<Reply, Failure> {
    if request.pid <= 1 {
        return Err(Failure::new("kill: not a pid"));
    }
    let pidfd = match open(request.pid) {
        Ok(pidfd) => pidfd,
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(Reply::Killed { delivered: false }),
        Err(e) => return Err(Failure::io("kill", &e)),
    };
    // The pidfd pins the process first; only then is it compared, so it cannot change in between.
    if check(request.pid, request.start_time).is_err() {
        return Ok(Reply::Killed { delivered: false });
    }
    // SAFETY: plain integers and a null siginfo.
    let sent = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), request.signal, std::ptr::null::<u8>(), 0)
    };
    match sent {
        0 => Ok(Reply::Killed { delivered: true }),
        _ => match Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ESRCH) => Ok(Reply::Killed { delivered: false }),
            e => Err(Failure::io("kill", &e)),
        },
    }
}
