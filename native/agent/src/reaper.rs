//! Collects every dead child (as PID 1: every orphan of the machine) and tells whoever waits for that pid.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::sync::{oneshot, Notify};

use crate::agent::Agent;
use crate::shutdown;
use crate::watched::watched;

/// A raw wait status.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exit(pub i32);

impl Exit {
    pub fn code(self) -> Option<i32> {
        libc::WIFEXITED(self.0).then(|| libc::WEXITSTATUS(self.0))
    }

    pub fn signal(self) -> Option<i32> {
        libc::WIFSIGNALED(self.0).then(|| libc::WTERMSIG(self.0))
    }

    /// In the words of Go's os package, which is what E2B clients expect to read.
    pub fn describe(self) -> String {
        match (self.code(), self.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (_, Some(signal)) => format!("signal: {}", signal_words(signal)),
            _ => format!("wait status {}", self.0),
        }
    }
}

fn signal_words(signal: i32) -> String {
    let words = match signal {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGTRAP => "trace/breakpoint trap",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "killed",
        libc::SIGUSR1 => "user defined signal 1",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGUSR2 => "user defined signal 2",
        libc::SIGPIPE => "broken pipe",
        libc::SIGALRM => "alarm clock",
        libc::SIGTERM => "terminated",
        other => return format!("signal {other}"),
    };
    words.to_owned()
}

#[derive(Default)]
pub struct Reaper {
    waiting: RefCell<HashMap<i32, oneshot::Sender<Exit>>>,
    changed: Notify,
}

impl Reaper {
    /// Call it right after the spawn, before the next await: only then can no exit be missed.
    pub fn watch(&self, pid: i32) -> oneshot::Receiver<Exit> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.borrow_mut().insert(pid, sender);
        receiver
    }

    /// Resolves when nothing we started lives any more.
    pub async fn all_gone(&self) {
        while !self.waiting.borrow().is_empty() {
            self.changed.notified().await;
        }
    }

    fn collect(&self) {
        self.changed.notify_one();
        loop {
            let mut status = 0;
            // SAFETY: `status` outlives the call.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
            if pid <= 0 {
                return;
            }
            if let Some(waiter) = self.waiting.borrow_mut().remove(&pid) {
                let _ = waiter.send(Exit(status));
            }
        }
    }
}

/// A descriptor that becomes readable on the signals we handle, which are blocked from now on.
pub fn signals() -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: plain libc calls on a local set; the new descriptor has no other owner.
    let fd = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT] {
            libc::sigaddset(&mut set, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        let fd = libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    watched(fd, Interest::READABLE)
}

pub async fn run(agent: Rc<Agent>, signals: AsyncFd<OwnedFd>) {
    loop {
        let Ok(mut ready) = signals.readable().await else { return };
        // SAFETY: signalfd_siginfo is plain data and the read is bounded by its size.
        let (read, info) = unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let size = std::mem::size_of_val(&info);
            (libc::read(signals.as_raw_fd(), (&raw mut info).cast(), size), info)
        };
        if read <= 0 {
            ready.clear_ready();
        } else if info.ssi_signo as i32 == libc::SIGCHLD {
            agent.reaper.collect();
        } else {
            tokio::task::spawn_local(shutdown::run(agent.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_exits() {
        assert_eq!(Exit(3 << 8).describe(), "exit status 3");
        assert_eq!(Exit(9).describe(), "signal: killed");
        assert_eq!((Exit(0).code(), Exit(0).signal()), (Some(0), None));
        assert_eq!((Exit(15).code(), Exit(15).signal()), (None, Some(15)));
    }
}
