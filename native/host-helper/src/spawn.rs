//! Starts a program in its own session, with its limits, cgroup and listening sockets in place before its first instruction.

use crate::jail::{self, Cell};
use crate::process;
use crate::protocol::{Failure, Named, Spawn};
use crate::tracee;
use crate::uids::Cursor;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

pub struct Spawned {
    pub pid: i32,
    pub start_time: u64,
    pub pidfd: OwnedFd,
    /// Under which number it has each descriptor that it was given by name.
    pub fds: BTreeMap<String, RawFd>,
}

impl Spawned {
    pub fn new(pid: i32, start_time: u64, pidfd: OwnedFd) -> Self {
        Spawned { pid, start_time, pidfd, fds: BTreeMap::new() }
    }
}

pub fn spawn(request: &Spawn, tap: Option<OwnedFd>, cursor: &mut Cursor) -> Result<Spawned, Failure> {
    let (program, arguments) = request.argv.split_first().ok_or_else(|| Failure::new("argv is empty"))?;
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(&request.log)
        .map_err(|e| Failure::io("open the log", &e))?;
    let log_too = log.try_clone().map_err(|e| Failure::io("open the log", &e))?;
    let mut inherited = Inherited::prepare(request)?;
    inherited.fds.extend(tap.map(|tap| ("tap", tap)));
    let limits = limits(request)?;
    let cgroups = cgroups(request)?;
    let cell =
        request.jail.as_ref().map(|jail| Cell::prepare(jail, cursor)).transpose().map_err(|e| jail::failure(&e))?;
    let cell = cell.map(Arc::new);
    let inner = cell.clone();
    let oom = request.oom_score_adj.map(|value| value.to_string());
    let (tied, helper) = (request.tied, std::process::id());
    let descriptors = inherited.numbers();
    let signals = tracee::news_of_children();

    let mut command = Command::new(program);
    command
        .args(arguments.iter().map(|argument| inherited.name_fds(argument)))
        .env_clear()
        .envs(&request.env)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too);
    // SAFETY: the closure runs between fork and exec and makes only system calls on values prepared before the fork.
    unsafe {
        command.pre_exec(move || {
            libc::setsid();
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &signals, std::ptr::null_mut());
            for file in &cgroups {
                check(libc::write(file.as_raw_fd(), b"0".as_ptr().cast(), 1) as i32)?;
            }
            if let Some(value) = &oom {
                let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                check(file)?;
                check(libc::write(file, value.as_ptr().cast(), value.len()) as i32)?;
            }
            for (resource, value) in &limits {
                let limit = libc::rlimit { rlim_cur: *value, rlim_max: *value };
                check(libc::setrlimit(*resource, &limit))?;
            }
            for fd in &descriptors {
                check(libc::fcntl(*fd, libc::F_SETFD, 0))?;
            }
            if let Some(cell) = &inner {
                cell.enter()?;
            }
            // After the change of user, which takes it back.
            if tied {
                check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
                // The helper may have died before the line above took effect.
                if libc::getppid() as u32 != helper {
                    return Err(Error::from_raw_os_error(libc::ESRCH));
                }
            }
            inner.as_ref().map_or(Ok(()), |cell| cell.seal())
        });
    }
    let mut child = command.spawn().map_err(|e| match cell {
        Some(cell) if cell.is_to_blame() => jail::failure(&e),
        _ => Failure::io(&format!("start {program}"), &e),
    })?;
    let pid = child.id() as i32;
    let started = process::open(pid).and_then(|pidfd| Ok((pidfd, process::start_time(pid)?)));
    match started {
        Ok((pidfd, start_time)) => {
            let fds = inherited.keep();
            Ok(Spawned { pid, start_time, pidfd, fds })
        }
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(Failure::io("watch the new process", &error))
        }
    }
}

fn check(result: i32) -> Result<(), Error> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Descriptors the program finds open. Dropped before `keep`, the paths of the sockets vanish again.
struct Inherited<'a> {
    fds: Vec<(&'a str, OwnedFd)>,
    sockets: Vec<&'a str>,
}

impl<'a> Inherited<'a> {
    fn prepare(request: &'a Spawn) -> Result<Self, Failure> {
        let mut inherited = Inherited { fds: Vec::new(), sockets: Vec::new() };
        for Named { name, path } in &request.listen {
            let socket = UnixListener::bind(path).map_err(|e| Failure::io(&format!("listen on {path}"), &e))?;
            inherited.sockets.push(path);
            inherited.fds.push((name, socket.into()));
        }
        for Named { name, path } in &request.open {
            let file = File::open(path).map_err(|e| Failure::io(&format!("open {path}"), &e))?;
            inherited.fds.push((name, file.into()));
        }
        Ok(inherited)
    }

    fn numbers(&self) -> Vec<RawFd> {
        self.fds.iter().map(|(_, fd)| fd.as_raw_fd()).collect()
    }

    /// The program keeps the number a descriptor has here: moving it could overwrite one the runtime needs until exec.
    fn name_fds(&self, argument: &str) -> String {
        self.fds.iter().fold(argument.to_string(), |text, (name, fd)| {
            text.replace(&format!("{{fd:{name}}}"), &fd.as_raw_fd().to_string())
        })
    }

    fn keep(mut self) -> BTreeMap<String, RawFd> {
        self.sockets.clear();
        self.fds.iter().map(|(name, fd)| (name.to_string(), fd.as_raw_fd())).collect()
    }
}

impl Drop for Inherited<'_> {
    fn drop(&mut self) {
        for path in &self.sockets {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn limits(request: &Spawn) -> Result<Vec<(libc::__rlimit_resource_t, u64)>, Failure> {
    request
        .rlimits
        .iter()
        .map(|(name, value)| {
            let resource = match name.as_str() {
                "nofile" => libc::RLIMIT_NOFILE,
                "nproc" => libc::RLIMIT_NPROC,
                "core" => libc::RLIMIT_CORE,
                "fsize" => libc::RLIMIT_FSIZE,
                "as" => libc::RLIMIT_AS,
                "memlock" => libc::RLIMIT_MEMLOCK,
                other => return Err(Failure::new(format!("unknown rlimit {other}"))),
            };
            Ok((resource, *value))
        })
        .collect()
}

fn cgroups(request: &Spawn) -> Result<Vec<File>, Failure> {
    request
        .cgroups
        .iter()
        .map(|dir| {
            let path = format!("{dir}/cgroup.procs");
            OpenOptions::new().write(true).open(&path).map_err(|e| Failure::io(&format!("open {path}"), &e))
        })
        .collect()
}
