//! The kernel's own fork(), called by the sleeping main thread of a VMM from outside. The copy has all its memory and all its
//! descriptors, and stands still.

use crate::jail;
use crate::process;
use crate::script::{Script, SIZE};
use crate::tracee::{self, ThreadState, Tracee};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Offset of the thread id in glibc's thread descriptor, to which fs_base points. Checked before it is relied on.
pub const TID_OFFSET: u64 = 0x2d0;
/// After how long one that is not idle is looked at again, at first and at last.
const PAUSES: RangeInclusive<Duration> = Duration::from_micros(50)..=Duration::from_millis(8);
/// All addresses that a process can have.
const EVERYWHERE: (u64, u64) = (0x1000, 0x7fff_ffff_e000);

/// By VMM, the page in it that code of ours is run from. Copies inherit it.
pub type Pages = HashMap<(i32, u64), u64>;

/// What is copied.
#[derive(Clone, Copy)]
pub enum Extent {
    /// Memory, at a time at which the main thread sleeps. The copy has no descriptors.
    Memory,
    /// All of it, at a time at which every thread sleeps; in namespaces of its own if the VMM is jailed.
    Whole { jailed: bool },
}

pub struct Copy {
    pub process: Tracee,
    pub page: u64,
    /// How the threads of the original stood, where they all did; the main thread comes first.
    pub threads: Vec<ThreadState>,
}

/// Makes the VMM fork, and lets it go on. From the moment its main thread starts until it sleeps again it needs nobody: the code
/// it runs restores its registers, so that a VMM whose tracer dies half-way goes on all the same.
pub fn copy(pid: i32, extent: Extent, patience: Duration, page: &mut u64) -> Result<Copy, Error> {
    let mut stopped = stop(pid, extent, patience)?;
    let forked = fork(pid, &mut stopped, extent, page);
    release(pid, stopped);
    let (copy, threads) = forked?;
    let standing = Tracee::stopped(copy).and_then(|process| {
        process.bind()?;
        process.run_on_until_trap()?;
        Ok(process)
    });
    match standing {
        Ok(process) => Ok(Copy { process, page: *page, threads }),
        Err(error) => {
            discard(copy, Vec::new());
            Err(error)
        }
    }
}

/// The main thread, or all of them, in a sleep that they can be made to sleep again. They take waking up without a reason, as a
/// tracer that dies may cause.
fn stop(pid: i32, extent: Extent, patience: Duration) -> Result<Vec<Tracee>, Error> {
    let deadline = Instant::now() + patience;
    let mut pause = *PAUSES.start();
    loop {
        let mut stopped = Vec::new();
        let outcome = match extent {
            Extent::Memory => Tracee::seize(pid).map(|thread| stopped.push(thread)),
            Extent::Whole { .. } => stop_all(pid, &mut stopped),
        };
        // A thread that is not idle is doing something that a copy would do a second time.
        if outcome.is_ok() && stopped.iter().all(Tracee::is_idle) {
            return Ok(stopped);
        }
        release(pid, stopped);
        outcome?;
        if Instant::now() > deadline {
            return Err(Error::new(ErrorKind::TimedOut, "it does not get idle"));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(*PAUSES.end());
    }
}

fn stop_all(pid: i32, stopped: &mut Vec<Tracee>) -> Result<(), Error> {
    // A thread may be born between reading the list and stopping its maker: read again until nothing is new.
    loop {
        let mut news = 0;
        for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let tid: i32 = entry?.file_name().to_string_lossy().parse().map_err(|_| ErrorKind::InvalidData)?;
            if stopped.iter().all(|t| t.tid != tid) {
                match Tracee::seize(tid) {
                    Ok(thread) => stopped.push(thread),
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => continue,
                    Err(e) => return Err(e),
                }
                news += 1;
            }
        }
        if news == 0 {
            return Ok(());
        }
    }
}

/// Lets threads go on. If the process was killed meanwhile, those but the first end with nobody but us to notice.
fn release(pid: i32, stopped: Vec<Tracee>) {
    let others: Vec<i32> = stopped.iter().map(|t| t.tid).filter(|tid| *tid != pid).collect();
    drop(stopped);
    others.into_iter().for_each(tracee::collect);
}

fn fork(pid: i32, stopped: &mut Vec<Tracee>, extent: Extent, page: &mut u64) -> Result<(i32, Vec<ThreadState>), Error> {
    let main = stopped.iter().position(|thread| thread.tid == pid).ok_or(ErrorKind::NotFound)?;
    stopped.swap(0, main);
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let threads = match extent {
        Extent::Memory => Vec::new(),
        Extent::Whole { .. } => states(stopped, &memory)?,
    };
    let thread = stopped.swap_remove(0);
    if *page == 0 {
        *page = Script::map_page(&thread)?;
    }
    let mut code = Code(Vec::new());
    if let Extent::Whole { jailed: true } = extent {
        let limit = jail::no_limit(pid)?;
        let place = *page + SIZE - 16;
        memory.write_all_at(&[limit.rlim_cur, limit.rlim_max].map(u64::to_ne_bytes).concat(), place)?;
        code.call(libc::SYS_prlimit64, &[0, libc::RLIMIT_NPROC as u64, place, 0]);
    }
    code.fork(extent, &thread.restarted());
    memory.write_all_at(&code.0, *page)?;
    let copy = thread.run_until_fork(*page..*page + SIZE)?;
    thread.detach()?;
    Ok((copy, threads))
}

fn states(stopped: &[Tracee], memory: &File) -> Result<Vec<ThreadState>, Error> {
    let threads = stopped.iter().map(Tracee::state).collect::<Result<Vec<_>, _>>()?;
    for thread in &threads {
        let mut tid = [0; 4];
        memory.read_exact_at(&mut tid, thread.registers.fs_base + TID_OFFSET)?;
        if i32::from_ne_bytes(tid) != thread.tid {
            return Err(Error::new(ErrorKind::Unsupported, "its C library keeps thread ids elsewhere"));
        }
    }
    Ok(threads)
}

/// Ends a copy that came to nothing, before it runs at all.
pub fn discard(pid: i32, traced: Vec<Tracee>) {
    if !process::is_ours(pid) {
        return;
    }
    // SAFETY: not collected yet, it keeps its pid.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    drop(traced);
    // The first thread of a process can only be collected after all others.
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        if let Some(tid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).filter(|tid| *tid != pid) {
            tracee::collect(tid);
        }
    }
    tracee::collect(pid);
}

/// A VMM that is killed just as it forks takes the id of its copy with it. A child of ours that we trace, and that is neither the
/// original nor known, can only be such a copy: it must not run.
pub fn kill_strays(original: i32, known: &dyn Fn(i32) -> bool) {
    let me = std::process::id();
    let children = std::fs::read_to_string(format!("/proc/self/task/{me}/children")).unwrap_or_default();
    for pid in children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()) {
        if pid != original && !known(pid) && process::tracer(pid) == Some(me) {
            // SAFETY: our own child, not waited for yet, so the pid is its own.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL);
            }
        }
    }
}

/// A process that is killed under our hands fails one call or another; that it is gone says more than which one.
pub fn gone_or(pid: i32, error: Error) -> Error {
    if process::ending(pid) {
        Error::from_raw_os_error(libc::ESRCH)
    } else {
        error
    }
}

type Register = u8;
const RAX: Register = 0;
const R11: Register = 11;
/// rdi, rsi, rdx, r10, r8.
const ARGUMENTS: [Register; 5] = [7, 6, 2, 10, 8];

struct Code(Vec<u8>);

impl Code {
    /// Lets children have what QEMU keeps from them, guest RAM above all; forks; in the original goes back to the sleep it was in.
    /// The copy traps: traced it stands there for ever, and without a tracer it dies of it.
    fn fork(&mut self, extent: Extent, back: &libc::user_regs_struct) {
        // What lies between mappings is an error that comes last, and the kernel's own pages come after all others.
        self.call(libc::SYS_madvise, &[EVERYWHERE.0, EVERYWHERE.1 - EVERYWHERE.0, libc::MADV_DOFORK as u64]);
        // With CLONE_PARENT the copy is a child of whoever started the original, who can wait for it.
        let namespaces = if let Extent::Whole { jailed: true } = extent { jail::COPY_NAMESPACES } else { 0 };
        let flags = (libc::CLONE_PARENT | libc::SIGCHLD | namespaces) as u32;
        self.call(libc::SYS_clone, &[u64::from(flags), 0, 0, 0, 0]);
        let mut original = Code(Vec::new());
        original.load(&[back.rdi, back.rsi, back.rdx, back.r10, back.r8]);
        original.mov(RAX, back.rax);
        original.jump(back.rip);
        self.skip_if_zero(original);
        if let Extent::Memory = extent {
            // So that nobody's connection stays open for its sake.
            self.call(libc::SYS_close_range, &[0, u64::from(u32::MAX), 0]);
        }
        self.trap();
    }

    fn mov(&mut self, register: Register, value: u64) {
        self.0.extend([0x48 | register >> 3, 0xb8 | register & 7]);
        self.0.extend(value.to_le_bytes());
    }

    fn load(&mut self, arguments: &[u64]) {
        for (register, value) in ARGUMENTS.iter().zip(arguments) {
            self.mov(*register, *value);
        }
    }

    fn call(&mut self, number: i64, arguments: &[u64]) {
        self.load(arguments);
        self.mov(RAX, number as u64);
        self.0.extend([0x0f, 0x05]);
    }

    /// By way of r11, which a system call overwrites anyway.
    fn jump(&mut self, address: u64) {
        self.mov(R11, address);
        self.0.extend([0x41, 0xff, 0xe3]);
    }

    fn skip_if_zero(&mut self, skipped: Code) {
        self.0.extend([0x48, 0x85, 0xc0, 0x0f, 0x84]);
        self.0.extend((skipped.0.len() as u32).to_le_bytes());
        self.0.extend(skipped.0);
    }

    fn trap(&mut self) {
        self.0.push(0xcc);
    }
}
