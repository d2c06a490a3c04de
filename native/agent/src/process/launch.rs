//! How every process of the guest is started: its own session, the right user, a clean environment.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::agent::Agent;
use crate::http::Fault;
use crate::users::User;

/// The descriptor on which a language kernel talks to us. See `reserve_low_fds`.
pub const KERNEL_FD: i32 = 3;

pub struct Launch<'a> {
    pub program: &'a str,
    pub args: &'a [String],
    pub env: BTreeMap<String, String>,
    pub cwd: &'a str,
    pub user: &'a User,
}

impl Launch<'_> {
    /// A command ready for its stdio and `start`.
    pub fn command(&self) -> Result<Command, Fault> {
        if !std::path::Path::new(self.cwd).is_dir() {
            return Err(Fault::invalid(format!("cwd {:?} does not exist", self.cwd)));
        }
        let mut command = Command::new(self.program);
        command.args(self.args).env_clear().envs(&self.env).current_dir(self.cwd);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Becoming the user we already are needs no rights, so tests may run as anyone.
        // SAFETY: getuid has no preconditions.
        let switch = (self.user.uid != unsafe { libc::getuid() }).then(|| (self.user.groups(), self.user.clone()));
        // SAFETY: the closure runs between fork and exec and makes only async-signal-safe calls.
        unsafe {
            command.pre_exec(move || {
                // Ours are blocked for the signal descriptor; a child must start with none blocked.
                let mut none = std::mem::zeroed();
                libc::sigemptyset(&mut none);
                libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
                check(libc::setsid())?;
                if let Some((groups, user)) = &switch {
                    check(libc::setgroups(groups.len(), groups.as_ptr()))?;
                    check(libc::setgid(user.gid))?;
                    check(libc::setuid(user.uid))?;
                }
                Ok(())
            });
        }
        Ok(command)
    }
}

/// Gives the child `fd` under a fixed number.
pub fn pass_fd(command: &mut Command, fd: OwnedFd) {
    // SAFETY: dup2 is async-signal-safe.
    unsafe {
        command.pre_exec(move || check(libc::dup2(fd.as_raw_fd(), KERNEL_FD)));
    }
}

/// A started process. The reaper, not std, waits for it.
pub struct Launched {
    pub pid: i32,
    pub exiting: Exiting,
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

pub fn start(agent: &Agent, mut command: Command) -> Result<Launched, Fault> {
    let child = command.spawn().map_err(|error| {
        let program = command.get_program().to_string_lossy().into_owned();
        Fault::invalid(format!("cannot start {program:?}: {error}"))
    })?;
    let pid = child.id() as i32;
    Ok(Launched {
        pid,
        exiting: agent.reaper.watch(pid),
        stdin: child.stdin.map(OwnedFd::from),
        stdout: child.stdout.map(OwnedFd::from),
        stderr: child.stderr.map(OwnedFd::from),
    })
}

pub type Exiting = tokio::sync::oneshot::Receiver<crate::reaper::Exit>;

/// Fills descriptors 0 to 3, so that nothing the runtime opens later can sit where a child's fixed descriptors go.
pub fn reserve_low_fds() {
    // SAFETY: opens a constant path; the descriptors are kept for the life of the process on purpose.
    while (0..KERNEL_FD).contains(&unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }) {}
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
