//! What a VMM may do on the host if its guest has taken it over: next to nothing. It is a user of its own without capabilities, sees
//! only its own files, has no network, and makes no other system calls than those it needs. ARCHITECTURE.md has the whole.

use crate::jail_root::{check, text, Access, Root};
use crate::protocol::{Failure, Jail, Uids};
use crate::script::Script;
use crate::seccomp::Filter;
use crate::uids::{choose, Chosen, Cursor};
use crate::user_namespace;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

const NAMESPACES: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWNET;
/// For a copy, which has no capabilities to make the others with but in a user namespace of its own.
pub const COPY_NAMESPACES: i32 = NAMESPACES | libc::CLONE_NEWUSER;

const DEVICES: [&str; 2] = ["/dev/null", "/dev/urandom"];

/// QEMU has up to 64 threads for its disks, one for each vCPU, and a few more.
const THREADS: u64 = 128;
const CAPABILITY_VERSION: u32 = 0x2008_0522;

pub fn failure(error: &Error) -> Failure {
    Failure { errno: Some("EJAIL"), ..Failure::io("make the jail", error) }
}

/// For a VMM that is started: all that can be done before it exists.
pub struct Cell {
    root: Root,
    filter: Filter,
    chosen: Chosen,
    capabilities: i32,
    threads: libc::rlimit,
    /// Takes a byte from a child that fails in here: a program that does not start is another matter.
    trouble: (OwnedFd, OwnedFd),
}

impl Cell {
    pub fn prepare(jail: &Jail, cursor: &mut Cursor) -> Result<Self, Error> {
        let chosen = choose(&jail.uids, cursor)?;
        let mut root = Root::new(chosen.uid);
        for path in &jail.read {
            root.add(path, Access::Read).map_err(|e| naming(path, e))?;
        }
        own(&jail.directory, chosen.uid)?;
        for path in &jail.write {
            root.add(path, Access::Write).map_err(|e| naming(path, e))?;
            own(path, chosen.uid)?;
        }
        for path in DEVICES.into_iter().chain(jail.devices.iter().map(String::as_str)) {
            root.add_device(path).map_err(|e| naming(path, e))?;
        }
        let mut threads = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel fills what it is given.
        check(unsafe { libc::getrlimit(libc::RLIMIT_NPROC, &mut threads) })?;
        // The upper bound stays: the one who forks the VMM has to lift it again, and the filter keeps others from that.
        threads.rlim_cur = THREADS.min(threads.rlim_max);
        Ok(Cell { root, filter: Filter::new(), chosen, capabilities: last_capability()?, threads, trouble: pipe()? })
    }

    /// Between fork and exec, as the last of what is done there but for `seal`.
    pub fn enter(&self) -> Result<(), Error> {
        self.told(self.imprison())
    }

    /// From here on only what the filter allows.
    pub fn seal(&self) -> Result<(), Error> {
        self.told(self.filter.install())
    }

    pub fn is_to_blame(&self) -> bool {
        let mut byte = 0u8;
        // SAFETY: one byte for one byte, without waiting.
        unsafe { libc::read(self.trouble.0.as_raw_fd(), (&raw mut byte).cast(), 1) == 1 }
    }

    fn told(&self, result: Result<(), Error>) -> Result<(), Error> {
        if result.is_err() {
            // SAFETY: one byte of a literal.
            unsafe { libc::write(self.trouble.1.as_raw_fd(), b"!".as_ptr().cast(), 1) };
        }
        result
    }

    fn imprison(&self) -> Result<(), Error> {
        let uid = self.chosen.uid;
        // SAFETY: system calls on integers. Raw ones: the C library would look after threads that are not there.
        unsafe {
            check(libc::unshare(NAMESPACES))?;
            self.root.enter()?;
            check(libc::setrlimit(libc::RLIMIT_NPROC, &self.threads))?;
            for capability in 0..=self.capabilities {
                check(libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0))?;
            }
            check(libc::syscall(libc::SYS_setgroups, 0, 0))?;
            check(libc::syscall(libc::SYS_setresgid, uid, uid, uid))?;
            // With root goes every capability.
            check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        }
        Ok(())
    }
}

/// How many threads a jailed VMM can have at all. Its limit would count for all its copies together, and for theirs, because their
/// user namespaces are within its own: it lifts it before the first, and its cgroup still holds it.
pub fn no_limit(pid: i32) -> Result<libc::rlimit, Error> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max processes")).ok_or(ErrorKind::InvalidData)?;
    let most = line.split_whitespace().nth(1).ok_or(ErrorKind::InvalidData)?;
    let most = most.parse().unwrap_or(libc::RLIM_INFINITY);
    Ok(libc::rlimit { rlim_cur: most, rlim_max: most })
}

/// A copy of a jailed VMM, in its new namespaces but still in the place and with the rights of the original.
pub struct Inmate {
    chosen: Chosen,
    directory: String,
    most_threads: u64,
}

impl Inmate {
    /// Gives it a user, and a root with nothing but its own directory and the files that are there.
    pub fn place(pid: i32, directory: &str, uids: &Uids, cursor: &mut Cursor) -> Result<Self, Error> {
        let chosen = choose(uids, cursor)?;
        let uid = chosen.uid;
        let mut root = Root::new(uid);
        own(directory, uid)?;
        root.add(directory, Access::Write)?;
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                let path = entry.path();
                let path = path.to_str().ok_or(ErrorKind::InvalidInput)?;
                own(path, uid)?;
                // Mounted over itself: what is open for writing in it does not keep the directory from being sealed.
                root.add(path, Access::Write)?;
            }
        }
        user_namespace::map(pid, uids)?;
        enter_for(pid, &root)?;
        Ok(Inmate { chosen, directory: directory.to_string(), most_threads: no_limit(pid)?.rlim_max })
    }

    /// The first calls the copy makes.
    pub fn begin(&self, script: &mut Script) {
        let uid = u64::from(self.chosen.uid);
        script.call(libc::SYS_setresgid, [uid, uid, uid, 0, 0]);
        script.call(libc::SYS_setresuid, [uid, uid, uid, 0, 0]);
    }

    /// The last ones: nothing can be made in its directory any more, and it has no capabilities in its namespaces either.
    pub fn end(&self, script: &mut Script) -> Result<(), Error> {
        let directory = script.data(text(&self.directory)?.as_bytes_with_nul());
        let flags = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY;
        let flags = flags | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        script.call(libc::SYS_mount, [0, directory, 0, flags, 0]);
        let threads = script.data(&[THREADS.min(self.most_threads), self.most_threads].map(u64::to_ne_bytes).concat());
        script.call(libc::SYS_prlimit64, [0, libc::RLIMIT_NPROC as u64, threads, 0, 0]);
        for capability in 0..=last_capability()? {
            script.call(libc::SYS_prctl, [libc::PR_CAPBSET_DROP as u64, capability as u64, 0, 0, 0]);
        }
        let header = script.data(&[CAPABILITY_VERSION, 0].map(u32::to_ne_bytes).concat());
        let none = script.data(&[0; 24]);
        script.call(libc::SYS_capset, [header, none, 0, 0, 0]);
        Ok(())
    }
}

/// Makes the root from inside the mount namespace of another process, on a thread that ends there.
fn enter_for(pid: i32, root: &Root) -> Result<(), Error> {
    let namespace = File::open(format!("/proc/{pid}/ns/mnt"))?;
    std::thread::scope(|scope| {
        let entered = scope.spawn(|| {
            // SAFETY: concerns this thread alone, once it shares its root with no other.
            unsafe {
                check(libc::unshare(libc::CLONE_FS))?;
                check(libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS))?;
            }
            root.enter()
        });
        entered.join().unwrap_or_else(|_| Err(Error::other("the thread that makes the root panicked")))
    })
}

/// Gives a file to its user; a link is not followed. A helper that works for a directory gives away nothing outside of it.
fn own(path: &str, uid: u32) -> Result<(), Error> {
    let owner = std::env::args().nth(1).filter(|owner| !owner.is_empty());
    let above = Path::new(path).parent().ok_or(ErrorKind::InvalidInput)?.canonicalize().map_err(|e| naming(path, e))?;
    if owner.is_some_and(|owner| !Path::new(&owner).canonicalize().is_ok_and(|owner| above.starts_with(owner))) {
        return Err(Error::new(ErrorKind::PermissionDenied, format!("{path} is no file of a VM")));
    }
    let file = text(path)?;
    // SAFETY: the path is a live string.
    check(unsafe { libc::lchown(file.as_ptr(), uid, uid) }).map_err(|e| naming(path, e))?;
    Ok(())
}

fn naming(path: &str, error: Error) -> Error {
    Error::new(error.kind(), format!("{path}: {error}"))
}

fn last_capability() -> Result<i32, Error> {
    let text = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap")?;
    text.trim().parse().map_err(|_| ErrorKind::InvalidData.into())
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    let mut ends = [0; 2];
    // SAFETY: two new descriptors, which are ours.
    unsafe {
        check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK))?;
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}
