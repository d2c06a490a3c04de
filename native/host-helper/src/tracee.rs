//! A thread of another process, stopped by ptrace, in which system calls can be made.

use crate::process;
use std::cell::Cell;
use std::io::{Error, ErrorKind};

/// Stops for these are how the tracer learns the id of a process or thread the tracee makes.
const MAKES: i32 = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEVFORK;
/// With the last one a stop at a system call bears no real signal: if the tracer dies during it, the tracee is sent none.
/// For the same reason nothing is single-stepped: a tracee that loses its tracer would go on stepping, and die of the first trap.
const OPTIONS: i32 = MAKES | libc::PTRACE_O_TRACESYSGOOD;
const AT_SYSCALL: i32 = libc::SIGTRAP | 0x80;
const NT_X86_XSTATE: usize = 0x202;
const PTRACE_GETSIGMASK: u32 = 0x420a;
const PTRACE_SETSIGMASK: u32 = 0x420b;
/// Calls that mean the same when they are made again from the start. Those that only let time pass are short: QEMU's thread that
/// frees memory naps a few times before it sleeps.
const SLEEPS: [i64; 5] =
    [libc::SYS_futex, libc::SYS_ppoll, libc::SYS_poll, libc::SYS_nanosleep, libc::SYS_clock_nanosleep];
/// What the kernel leaves in rax of a system call it means to restart: ERESTARTSYS to ERESTART_RESTARTBLOCK.
const RESTARTS: std::ops::RangeInclusive<i64> = -516..=-512;

pub struct Tracee {
    pub tid: i32,
    /// As they were when it was stopped.
    pub registers: libc::user_regs_struct,
    changed: Cell<bool>,
}

/// Everything a thread is besides the memory it shares.
pub struct ThreadState {
    pub tid: i32,
    pub registers: libc::user_regs_struct,
    xstate: Vec<u8>,
    signal_mask: u64,
}

impl Tracee {
    /// Stops a running thread.
    pub fn seize(tid: i32) -> Result<Self, Error> {
        trace_with(libc::PTRACE_SEIZE, tid, OPTIONS)?;
        trace(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
        Self::stopped(tid)
    }

    /// Takes over a thread that ptrace attached by itself when it was made.
    pub fn stopped(tid: i32) -> Result<Self, Error> {
        wait(tid)?;
        Self::standing(tid)
    }

    /// One that was stopped earlier.
    pub fn standing(tid: i32) -> Result<Self, Error> {
        let mut tracee = Tracee { tid, registers: unsafe { std::mem::zeroed() }, changed: Cell::new(false) };
        trace(libc::PTRACE_GETREGS, tid, 0, &mut tracee.registers as *mut _ as usize)?;
        Ok(tracee)
    }

    /// From here on the thread dies with the tracer: half a copy must not run.
    pub fn bind(&self) -> Result<(), Error> {
        trace_with(libc::PTRACE_SETOPTIONS, self.tid, OPTIONS | libc::PTRACE_O_EXITKILL)
    }

    /// Whether it sleeps in a call that another thread could make in its place.
    pub fn is_idle(&self) -> bool {
        SLEEPS.contains(&(self.registers.orig_rax as i64)) && RESTARTS.contains(&(self.registers.rax as i64))
    }

    pub fn state(&self) -> Result<ThreadState, Error> {
        let mut xstate = vec![0u8; 16 << 10];
        let mut part = libc::iovec { iov_base: xstate.as_mut_ptr().cast(), iov_len: xstate.len() };
        trace(libc::PTRACE_GETREGSET, self.tid, NT_X86_XSTATE, &mut part as *mut _ as usize)?;
        xstate.truncate(part.iov_len);
        let mut signal_mask = 0u64;
        trace(PTRACE_GETSIGMASK, self.tid, 8, &mut signal_mask as *mut _ as usize)?;
        Ok(ThreadState { tid: self.tid, registers: self.registers, xstate, signal_mask })
    }

    /// Makes this thread continue where another stood. A system call that was interrupted is made again.
    pub fn become_thread(&self, state: &ThreadState) -> Result<(), Error> {
        let mut part = libc::iovec { iov_base: state.xstate.as_ptr() as *mut _, iov_len: state.xstate.len() };
        trace(libc::PTRACE_SETREGSET, self.tid, NT_X86_XSTATE, &mut part as *mut _ as usize)?;
        let mask = state.signal_mask;
        trace(PTRACE_SETSIGMASK, self.tid, 8, &mask as *const _ as usize)?;
        self.set_registers(&restarted(state.registers))
    }

    /// Makes a system call in the thread. It must sleep in one, so that the instruction before its rip is `syscall`.
    pub fn call(&self, number: i64, arguments: [u64; 5]) -> Result<i64, Error> {
        self.call_making(number, arguments).map(|(result, _)| result)
    }

    /// As `call`, for those that make a process or thread: also returns its id.
    pub fn call_making(&self, number: i64, arguments: [u64; 5]) -> Result<(i64, Option<i32>), Error> {
        let mut registers = self.registers;
        registers.rip -= 2;
        registers.rax = number as u64;
        registers.orig_rax = u64::MAX;
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8] = arguments;
        registers.r9 = 0;
        let mut made = None;
        let result = self.run_call(registers, &mut made);
        if let (Err(_), Some(id)) = (&result, made) {
            // SAFETY: traced and not collected, it keeps its id. Nobody else knows of it.
            unsafe { libc::kill(id, libc::SIGKILL) };
            collect(id);
        }
        Ok((result?, made))
    }

    fn run_call(&self, mut registers: libc::user_regs_struct, made: &mut Option<i32>) -> Result<i64, Error> {
        self.set_registers(&registers)?;
        let mut entered = false;
        loop {
            trace(libc::PTRACE_SYSCALL, self.tid, 0, 0)?;
            let status = wait(self.tid)?;
            let event = status >> 16;
            if event == libc::PTRACE_EVENT_FORK
                || event == libc::PTRACE_EVENT_CLONE
                || event == libc::PTRACE_EVENT_VFORK
            {
                let mut message = 0usize;
                trace(libc::PTRACE_GETEVENTMSG, self.tid, 0, &mut message as *mut _ as usize)?;
                *made = Some(message as i32);
            } else if libc::WSTOPSIG(status) != AT_SYSCALL {
                return Err(Error::new(ErrorKind::Interrupted, "a signal arrived during an injected system call"));
            } else if std::mem::replace(&mut entered, true) {
                break;
            }
        }
        trace(libc::PTRACE_GETREGS, self.tid, 0, &mut registers as *mut _ as usize)?;
        match registers.rax as i64 {
            errno @ -4095..0 => Err(Error::from_raw_os_error(-errno as i32)),
            result => Ok(result),
        }
    }

    /// Lets the thread run code that ends in a trap, with rbx as its one argument.
    pub fn run_until_trap(&self, code: u64, argument: u64) -> Result<(), Error> {
        let mut registers = self.registers;
        (registers.rip, registers.rbx, registers.orig_rax) = (code, argument, u64::MAX);
        self.set_registers(&registers)?;
        trace(libc::PTRACE_CONT, self.tid, 0, 0)?;
        self.trapped()
    }

    fn trapped(&self) -> Result<(), Error> {
        match libc::WSTOPSIG(wait(self.tid)?) {
            libc::SIGTRAP => Ok(()),
            signal => Err(Error::new(ErrorKind::Interrupted, format!("signal {signal} arrived in injected code"))),
        }
    }

    /// Lets the thread run code that forks; returns the id of the copy as soon as there is one, with both standing. The code
    /// must leave its place when it is done.
    pub fn run_until_fork(&self, place: std::ops::Range<u64>) -> Result<i32, Error> {
        let mut registers = self.restarted();
        registers.rip = place.start;
        self.set_registers(&registers)?;
        let mut why = Error::from(ErrorKind::Other);
        loop {
            trace(libc::PTRACE_SYSCALL, self.tid, 0, 0)?;
            let status = wait(self.tid)?;
            if status >> 16 == libc::PTRACE_EVENT_FORK {
                let mut copy = 0usize;
                trace(libc::PTRACE_GETEVENTMSG, self.tid, 0, &mut copy as *mut _ as usize)?;
                return Ok(copy as i32);
            }
            if libc::WSTOPSIG(status) != AT_SYSCALL {
                return Err(Error::new(ErrorKind::Interrupted, "a signal arrived during an injected fork"));
            }
            trace(libc::PTRACE_GETREGS, self.tid, 0, &mut registers as *mut _ as usize)?;
            if !place.contains(&registers.rip) {
                return Err(why);
            }
            if registers.orig_rax as i64 == libc::SYS_clone {
                why = Error::from_raw_os_error(-(registers.rax as i32));
            }
        }
    }

    /// Lets a copy that stands where it was forked run on to the next trap.
    pub fn run_on_until_trap(&self) -> Result<(), Error> {
        trace(libc::PTRACE_CONT, self.tid, 0, 0)?;
        self.trapped()
    }

    /// Leaves it standing for as long as the tracer lives.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// Lets a thread go on with what `become_thread` gave it.
    pub fn detach(self) -> Result<(), Error> {
        let detached = trace(libc::PTRACE_DETACH, self.tid, 0, 0);
        std::mem::forget(self);
        detached
    }

    /// Registers with which it makes the system call again that it was stopped in.
    pub fn restarted(&self) -> libc::user_regs_struct {
        restarted(self.registers)
    }

    fn set_registers(&self, registers: &libc::user_regs_struct) -> Result<(), Error> {
        self.changed.set(true);
        trace(libc::PTRACE_SETREGS, self.tid, 0, registers as *const _ as usize)
    }
}

/// Whatever happens to the tracer, the thread goes on as if it had never been stopped.
impl Drop for Tracee {
    fn drop(&mut self) {
        // Left alone, the kernel lets a sleep go on for the rest of its time; made again, it would begin anew, and never end
        // under a tracer that comes back again and again. But then it no longer shows which call it was.
        if self.changed.get() || self.is_idle() {
            let _ = self.set_registers(&restarted(self.registers));
        }
        let _ = trace(libc::PTRACE_DETACH, self.tid, 0, 0);
    }
}

fn restarted(mut registers: libc::user_regs_struct) -> libc::user_regs_struct {
    if registers.orig_rax as i64 >= 0 && RESTARTS.contains(&(registers.rax as i64)) {
        registers.rip -= 2;
        registers.rax = registers.orig_rax;
        registers.orig_rax = u64::MAX;
    }
    registers
}

/// A call that is made for a tracee is not one that its filter is there to keep it from: while it is traced it has none. Where the
/// kernel does not grant that (to a helper that has a filter itself, say), only what the filter allows can be done.
fn trace_with(request: u32, tid: i32, options: i32) -> Result<(), Error> {
    match trace(request, tid, 0, (options | libc::PTRACE_O_SUSPEND_SECCOMP) as usize) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EINVAL)) => {
            trace(request, tid, 0, options as usize)
        }
        result => result,
    }
}

fn trace(request: u32, tid: i32, address: usize, data: usize) -> Result<(), Error> {
    // SAFETY: every request here reads or writes only the buffer its caller passes as `data`, which outlives the call.
    match unsafe { libc::ptrace(request, tid, address, data) } {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Waits for a stop. That the first thread of a process has died is not reported before all others are collected, so after a
/// while without news its state is looked at.
fn wait(tid: i32) -> Result<i32, Error> {
    const PATIENCE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    let mut status = 0;
    let mut news = true;
    loop {
        // SAFETY: the status is a live local.
        match unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG) } {
            0 if !news && process::ended(tid) => return Err(Error::from_raw_os_error(libc::ESRCH)),
            0 => {}
            -1 => return Err(Error::last_os_error()),
            _ => break,
        }
        // SAFETY: the set and the time are live; `main` keeps the signal blocked.
        news = unsafe { libc::sigtimedwait(&news_of_children(), std::ptr::null_mut(), &PATIENCE) } > 0;
    }
    if !libc::WIFSTOPPED(status) {
        return Err(Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(status)
}

/// The signal that comes with every stop and every end.
pub fn news_of_children() -> libc::sigset_t {
    // SAFETY: an empty set is what the kernel is told to make of it before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        set
    }
}

/// Collects a thread that died while it was traced, which nobody else can do; returns at once for one that is not traced.
pub fn collect(tid: i32) {
    let mut status = 0;
    // SAFETY: the status is a live local.
    while unsafe { libc::waitpid(tid, &mut status, libc::__WALL) } == tid && libc::WIFSTOPPED(status) {}
}
