//! fork() for a whole emulator. A VMM without KVM is nothing but memory, threads and descriptors, so a copy that runs can be
//! made of it from outside: its main thread is made to fork, the other threads are made again in the copy with the registers
//! they had, and every descriptor that belongs to the one VM alone is replaced by its counterpart. The copy shares all
//! memory with the original, also the guest code that the emulator has already translated.

use crate::descriptors;
use crate::jail::{self, Inmate};
use crate::process;
use crate::protocol::{Failure, ForkVmm};
use crate::script::Script;
use crate::spawn::Spawned;
use crate::tap;
use crate::tracee::{self, ThreadState, Tracee};
use crate::uids::Cursor;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Offset of the thread id in glibc's thread descriptor, to which fs_base points. Checked before it is relied on.
const TID_OFFSET: u64 = 0x2d0;
const PATIENCE: Duration = Duration::from_secs(2);

/// VMMs whose memory has been told to take part in a fork, because asking the kernel about all their mappings is slow; and the
/// page that their copies run scripts from.
pub type Prepared = HashMap<(i32, u64), u64>;

/// `known` are processes that the helper keeps, which are not to be taken for what a failure has left.
pub fn fork_vmm(
    request: &ForkVmm,
    tap: Option<OwnedFd>,
    prepared: &mut Prepared,
    cursor: &mut Cursor,
    known: &dyn Fn(i32) -> bool,
) -> Result<Spawned, Failure> {
    let original = (request.pid, request.start_time);
    process::check(request.pid, request.start_time).map_err(|e| Failure::io("fork the VMM", &e))?;
    let mut page = prepared.get(&original).copied();
    let (copy, threads) = copy_process(request, &mut page).map_err(|e| {
        kill_strays(request.pid, known);
        Failure::io("fork the VMM", &gone_or(request.pid, e))
    })?;
    let page = *prepared.entry(original).or_insert(page.unwrap_or_default());
    finish(request, page, tap, copy, &threads, cursor).map_err(|e| Failure::io("set up the forked VMM", &e))
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

/// Stops the VMM for as long as fork() takes; returns the copy, stopped, and how the original's threads stood.
fn copy_process(request: &ForkVmm, page: &mut Option<u64>) -> Result<(Tracee, Vec<ThreadState>), Error> {
    let pid = request.pid;
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(500);
    loop {
        let mut stopped = Vec::new();
        let forked = fork_if_idle(request, &mut stopped, page);
        release(pid, stopped);
        match forked? {
            Some((copy, threads)) => return Ok((take_over(copy)?, threads)),
            None if Instant::now() > deadline => return Err(Error::new(ErrorKind::TimedOut, "it does not get idle")),
            None => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(8));
    }
}

fn fork_if_idle(
    request: &ForkVmm,
    stopped: &mut Vec<Tracee>,
    page: &mut Option<u64>,
) -> Result<Option<(i32, Vec<ThreadState>)>, Error> {
    stop_all(request.pid, stopped)?;
    // A thread that is not idle is doing something that a copy would do a second time.
    if !stopped.iter().all(Tracee::is_idle) {
        return Ok(None);
    }
    fork_stopped(request, stopped, page).map(Some)
}

/// Lets threads go on. If the process was killed meanwhile, those but the first end with nobody but us to notice.
fn release(pid: i32, stopped: Vec<Tracee>) {
    let others: Vec<i32> = stopped.iter().map(|t| t.tid).filter(|tid| *tid != pid).collect();
    drop(stopped);
    others.into_iter().for_each(tracee::collect);
}

fn take_over(copy: i32) -> Result<Tracee, Error> {
    let taken = Tracee::stopped(copy).and_then(|tracee| tracee.bind().map(|()| tracee));
    if taken.is_err() {
        discard(copy, Vec::new());
    }
    taken
}

/// Ends a copy that came to nothing, before it runs at all.
fn discard(pid: i32, traced: Vec<Tracee>) {
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

fn fork_stopped(
    request: &ForkVmm,
    stopped: &[Tracee],
    page: &mut Option<u64>,
) -> Result<(i32, Vec<ThreadState>), Error> {
    let pid = request.pid;
    let main = stopped.iter().find(|t| t.tid == pid).ok_or(ErrorKind::NotFound)?;
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let threads = stopped.iter().map(Tracee::state).collect::<Result<Vec<_>, _>>()?;
    for thread in &threads {
        let mut tid = [0; 4];
        memory.read_exact_at(&mut tid, thread.registers.fs_base + TID_OFFSET)?;
        if i32::from_ne_bytes(tid) != thread.tid {
            return Err(Error::new(ErrorKind::Unsupported, "its C library keeps thread ids elsewhere"));
        }
    }
    if page.is_none() {
        let mapped = Script::map_page(main)?;
        *page = Some(mapped);
        if request.jail.is_some() {
            jail::lift_limit(main, mapped, &memory)?;
        }
        for (start, end) in not_forked(pid)? {
            main.call(libc::SYS_madvise, [start, end - start, libc::MADV_DOFORK as u64, 0, 0])?;
        }
    }
    // With CLONE_PARENT the copy is a child of whoever started the original, who can wait for it.
    let flags = libc::CLONE_PARENT | libc::SIGCHLD | request.jail.as_ref().map_or(0, |_| jail::COPY_NAMESPACES);
    let flags = u64::from(flags as u32);
    let (_, copy) = main.call_making(libc::SYS_clone, [flags, 0, 0, 0, 0])?;
    Ok((copy.ok_or(ErrorKind::NotFound)?, threads))
}

/// Ranges that QEMU keeps out of its children: guest RAM above all.
fn not_forked(pid: i32) -> Result<Vec<(u64, u64)>, Error> {
    let mut ranges = Vec::new();
    let mut range = (0, 0);
    for line in std::fs::read_to_string(format!("/proc/{pid}/smaps"))?.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if flags.split_whitespace().any(|flag| flag == "dc") {
                ranges.push(range);
            }
        } else if let Some((start, rest)) = line.split_once('-') {
            let end = rest.split(' ').next().unwrap_or_default();
            if let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)) {
                range = (start, end);
            }
        }
    }
    Ok(ranges)
}

/// Turns the stopped copy into a VMM of its own and lets it run; on failure nothing is left of it.
fn finish(
    request: &ForkVmm,
    page: u64,
    tap: Option<OwnedFd>,
    mut copy: Tracee,
    threads: &[ThreadState],
    cursor: &mut Cursor,
) -> Result<Spawned, Error> {
    let pid = copy.tid;
    let mut traced = Vec::new();
    let built = build(request, page, tap, &mut copy, threads, cursor, &mut traced);
    traced.push(copy);
    let running = built.and_then(|spawned| {
        traced.drain(..).try_for_each(Tracee::detach)?;
        Ok(spawned)
    });
    running.map_err(|error| {
        let why = gone_or(pid, error);
        discard(pid, traced);
        why
    })
}

/// A process that is killed under our hands fails one call or another; that it is gone says more than which one.
pub fn gone_or(pid: i32, error: Error) -> Error {
    if process::ending(pid) {
        Error::from_raw_os_error(libc::ESRCH)
    } else {
        error
    }
}

fn build(
    request: &ForkVmm,
    page: u64,
    own_tap: Option<OwnedFd>,
    copy: &mut Tracee,
    threads: &[ThreadState],
    cursor: &mut Cursor,
    others: &mut Vec<Tracee>,
) -> Result<Spawned, Error> {
    let pid = copy.tid;
    let main = threads.iter().find(|t| t.tid == request.pid).ok_or(ErrorKind::NotFound)?;
    // The copy stands at the return of clone; system calls are made from where the original stood.
    copy.registers = main.registers;
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    memory.write_all_at(&pid.to_ne_bytes(), main.registers.fs_base + TID_OFFSET)?;
    let mut script = Script::new(page);
    let inmate = request.jail.as_ref().map(|uids| Inmate::place(pid, &request.to, uids, cursor)).transpose()?;
    if let Some(inmate) = &inmate {
        inmate.begin(&mut script);
    }
    script.call(libc::SYS_setsid, [0; 5]);
    if request.tied {
        script.call(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as u64, libc::SIGKILL as u64, 0, 0, 0]);
    }
    descriptors::replace(request, pid, &mut script)?;
    let tap = tap::prepare(pid, own_tap.as_ref(), &mut script)?;
    if let Some(inmate) = &inmate {
        inmate.end(&mut script)?;
    }
    script.run(copy, &memory)?;
    if let Some(tap) = tap {
        tap.put(copy, &memory, page)?;
    }
    for state in threads.iter().filter(|t| t.tid != request.pid) {
        others.push(make_thread(copy, state)?);
    }
    for dir in &request.cgroups {
        std::fs::write(format!("{dir}/cgroup.procs"), pid.to_string())?;
    }
    let spawned = Spawned::new(pid, process::start_time(pid)?, process::open(pid)?);
    copy.become_thread(main)?;
    Ok(spawned)
}

fn make_thread(copy: &Tracee, state: &ThreadState) -> Result<Tracee, Error> {
    let shared = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    let flags = shared | libc::CLONE_SYSVSEM | libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID;
    let tid_field = state.registers.fs_base + TID_OFFSET;
    let (_, tid) = copy.call_making(libc::SYS_clone, [flags as u64, 0, 0, tid_field, 0])?;
    let thread = Tracee::stopped(tid.ok_or(ErrorKind::NotFound)?)?;
    thread.become_thread(state)?;
    Ok(thread)
}
