//! A frozen copy of a VMM's memory: the kernel's own fork(), called by the sleeping main thread of the VMM. The copy never runs
//! anything of the VMM; it is only there to be read, at leisure, while the original goes on.

use crate::fork_vmm::{gone_or, kill_strays};
use crate::guest_ram::{self, Region};
use crate::process;
use crate::protocol::{Failure, Twin};
use crate::script::Script;
use crate::spawn::Spawned;
use crate::tracee::{self, Tracee};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_micros(200);

/// By VMM, the page in it that the fork is called from.
pub type Pages = HashMap<(i32, u64), u64>;

/// `known` are processes that the helper keeps, which are not to be taken for what a failure has left.
pub fn twin(request: &Twin, pages: &mut Pages, known: &dyn Fn(i32) -> bool) -> Result<Spawned, Failure> {
    let original = (request.pid, request.start_time);
    let frozen = process::check(request.pid, request.start_time).and_then(|()| {
        let regions = guest_ram::regions(request.pid, &request.memory)?;
        let copy = fork(request.pid, &regions, pages.entry(original).or_default())?;
        freeze(copy, &request.memory, &regions)
    });
    frozen.map_err(|e| {
        kill_strays(request.pid, known);
        Failure::io("freeze the VM", &gone_or(request.pid, e))
    })
}

/// Makes the main thread fork, and lets it go on. From the moment it starts until it sleeps again it needs nobody: the code it
/// runs restores its registers, so that a VMM whose tracer dies half-way goes on all the same.
fn fork(pid: i32, regions: &[Region], page: &mut u64) -> Result<i32, Error> {
    let thread = main_thread(pid)?;
    if *page == 0 {
        *page = Script::map_page(&thread)?;
    }
    let memory = File::options().write(true).open(format!("/proc/{pid}/mem"))?;
    memory.write_all_at(&code(regions, &thread.restarted()), *page)?;
    let copy = thread.run_until_fork(*page..*page + crate::script::SIZE);
    match copy {
        Ok(_) => thread.detach()?,
        Err(_) => drop(thread),
    }
    copy
}

/// The main thread, which nearly always sleeps in a poll. It takes waking up without a reason, as a tracer that dies may cause.
fn main_thread(pid: i32) -> Result<Tracee, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let thread = Tracee::seize(pid)?;
        if thread.is_idle() {
            return Ok(thread);
        }
        drop(thread);
        if Instant::now() > deadline {
            return Err(Error::new(ErrorKind::TimedOut, "it does not get idle"));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Closes what the copy shares with the original, so that nobody's connection stays open for its sake, and leaves it standing.
/// It dies with the helper.
fn freeze(copy: i32, memory: &str, regions: &[Region]) -> Result<Spawned, Error> {
    let frozen = Tracee::stopped(copy).and_then(|thread| {
        thread.bind()?;
        thread.run_on_until_trap()?;
        thread.keep();
        // A host short of memory takes the copy before the original.
        std::fs::write(format!("/proc/{copy}/oom_score_adj"), "1000")?;
        if guest_ram::regions(copy, memory)? != regions {
            return Err(Error::other("the copy does not have the whole RAM"));
        }
        Ok(Spawned::new(copy, process::start_time(copy)?, process::open(copy)?))
    });
    if frozen.is_err() {
        // SAFETY: traced and not collected, it keeps its pid.
        unsafe { libc::kill(copy, libc::SIGKILL) };
        tracee::collect(copy);
    }
    frozen
}

/// Lets children have guest RAM, which QEMU keeps from them; forks; in the original goes back to the sleep it was in. The copy
/// closes its descriptors and traps: traced it stands there for ever, and without a tracer it dies of it.
fn code(regions: &[Region], back: &libc::user_regs_struct) -> Vec<u8> {
    let mut code = Code(Vec::new());
    for region in regions {
        code.call(libc::SYS_madvise, &[region.start, region.end - region.start, libc::MADV_DOFORK as u64]);
    }
    // With CLONE_PARENT the copy is a child of whoever started the original, who can wait for it.
    code.call(libc::SYS_clone, &[(libc::CLONE_PARENT | libc::SIGCHLD) as u64, 0, 0, 0, 0]);
    let mut original = Code(Vec::new());
    original.load(&[back.rdi, back.rsi, back.rdx, back.r10, back.r8]);
    original.mov(RAX, back.rax);
    original.jump(back.rip);
    code.skip_if_zero(original);
    code.call(libc::SYS_close_range, &[0, u64::from(u32::MAX), 0]);
    code.trap();
    code.0
}

type Register = u8;
const RAX: Register = 0;
const R11: Register = 11;
/// rdi, rsi, rdx, r10, r8.
const ARGUMENTS: [Register; 5] = [7, 6, 2, 10, 8];

struct Code(Vec<u8>);

impl Code {
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
