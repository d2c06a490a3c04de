//! fork() for a whole emulator. A VMM without KVM is nothing but memory, threads and descriptors, so a copy that runs can be
//! made of it from outside: its main thread is made to fork, the other threads are made again in the copy with the registers
//! they had, and every descriptor that belongs to the one VM alone is replaced by its counterpart. The copy shares all
//! memory with the original, also the guest code that the emulator has already translated.

use crate::cgroups;
use crate::copy_process::{copy, discard, gone_or, kill_strays, Copy, Extent, Pages, TID_OFFSET};
use crate::descriptors;
use crate::jail::Inmate;
use crate::process;
use crate::protocol::{Failure, ForkVmm, Reply};
use crate::script::Script;
use crate::spawn::Spawned;
use crate::tap;
use crate::tracee::{ThreadState, Tracee};
use crate::twin::Asleep;
use crate::uids::Cursor;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(2);

/// `known` are processes that the helper keeps, which are not to be taken for what a failure has left.
pub fn fork_vmm(
    request: &ForkVmm,
    tap: Option<OwnedFd>,
    pages: &mut Pages,
    cursor: &mut Cursor,
    known: &dyn Fn(i32) -> bool,
) -> Result<Spawned, Failure> {
    let original = (request.pid, request.start_time);
    process::check(request.pid, request.start_time).map_err(|e| Failure::io("fork the VMM", &e))?;
    let extent = Extent::Whole { jailed: request.jail.is_some() };
    let copied = copy(request.pid, extent, PATIENCE, pages.entry(original).or_default()).map_err(|e| {
        kill_strays(request.pid, known);
        Failure::io("fork the VMM", &gone_or(request.pid, e))
    })?;
    let pid = copied.process.tid;
    let spawned = finish(request, tap, copied, cursor)
        .and_then(|()| Ok(Spawned::new(pid, process::start_time(pid)?, process::open(pid)?)));
    spawned.map_err(|e| Failure::io("set up the forked VMM", &e))
}

/// Makes a VM of a twin that was copied whole, also if the original is no more.
pub fn wake(
    request: &ForkVmm,
    tap: Option<OwnedFd>,
    asleep: Option<Asleep>,
    pages: &mut Pages,
    cursor: &mut Cursor,
) -> Result<Reply, Failure> {
    let failed = |e: Error| Failure::io("wake the twin", &e);
    let pid = request.pid;
    process::check(pid, request.start_time).map_err(failed)?;
    let Asleep { page, threads, oom_score_adj } = asleep.ok_or_else(|| Failure::new("it is no twin that sleeps"))?;
    let process = Tracee::standing(pid).map_err(failed)?;
    let placed =
        std::fs::write(format!("/proc/{pid}/oom_score_adj"), oom_score_adj).and_then(|()| cgroups::take_in(pid));
    if let Err(error) = placed {
        discard(pid, vec![process]);
        return Err(failed(error));
    }
    finish(request, tap, Copy { process, page, threads }, cursor).map_err(failed)?;
    pages.insert((pid, request.start_time), page);
    Ok(Reply::Done {})
}

/// Turns the stopped copy into a VMM of its own and lets it run; on failure nothing is left of it.
fn finish(request: &ForkVmm, tap: Option<OwnedFd>, copied: Copy, cursor: &mut Cursor) -> Result<(), Error> {
    let Copy { mut process, page, threads } = copied;
    let pid = process.tid;
    let mut traced = Vec::new();
    let built = build(request, page, tap, &mut process, &threads, cursor, &mut traced);
    traced.push(process);
    let running = built.and_then(|()| traced.drain(..).try_for_each(Tracee::detach));
    running.map_err(|error| {
        let why = gone_or(pid, error);
        discard(pid, traced);
        why
    })
}

fn build(
    request: &ForkVmm,
    page: u64,
    own_tap: Option<OwnedFd>,
    copy: &mut Tracee,
    threads: &[ThreadState],
    cursor: &mut Cursor,
    others: &mut Vec<Tracee>,
) -> Result<(), Error> {
    let pid = copy.tid;
    let (main, rest) = threads.split_first().ok_or(ErrorKind::NotFound)?;
    // The copy stands in code of ours; system calls are made from where the original stood.
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
    for state in rest {
        others.push(make_thread(copy, state)?);
    }
    for dir in &request.cgroups {
        std::fs::write(format!("{dir}/cgroup.procs"), pid.to_string())?;
    }
    copy.become_thread(main)
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
