//! The system calls a jailed VMM may make: those that QEMU needs to emulate a machine on descriptors it already has. It can make
//! no process, no socket, no namespace, and reach into nobody else. The rest fails, and kills nobody: a VMM that loses its
//! tracer in the middle of a call made for it must go on.

use std::io::Error;

/// In the order of their numbers.
#[rustfmt::skip]
const ALLOWED: &[i64] = &[
    libc::SYS_read, libc::SYS_write, libc::SYS_open, libc::SYS_close, libc::SYS_stat, libc::SYS_fstat, libc::SYS_lstat,
    libc::SYS_poll, libc::SYS_lseek, libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_brk,
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_ioctl, libc::SYS_pread64,
    libc::SYS_pwrite64, libc::SYS_readv, libc::SYS_writev, libc::SYS_access, libc::SYS_pipe, libc::SYS_select,
    libc::SYS_sched_yield, libc::SYS_mremap, libc::SYS_msync, libc::SYS_mincore, libc::SYS_madvise, libc::SYS_dup,
    libc::SYS_dup2, libc::SYS_nanosleep, libc::SYS_getpid, libc::SYS_accept, libc::SYS_sendto, libc::SYS_recvfrom,
    libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_shutdown, libc::SYS_listen, libc::SYS_getsockname,
    libc::SYS_getpeername, libc::SYS_setsockopt, libc::SYS_getsockopt,
    // Only before the first instruction of the VMM; the jail holds no other program.
    libc::SYS_execve,
    libc::SYS_exit, libc::SYS_wait4, libc::SYS_kill, libc::SYS_uname, libc::SYS_fcntl, libc::SYS_flock, libc::SYS_fsync,
    libc::SYS_fdatasync, libc::SYS_ftruncate, libc::SYS_getdents, libc::SYS_getcwd, libc::SYS_chdir, libc::SYS_fchdir,
    libc::SYS_readlink, libc::SYS_umask, libc::SYS_gettimeofday, libc::SYS_getrlimit, libc::SYS_getrusage,
    libc::SYS_sysinfo, libc::SYS_times, libc::SYS_getuid, libc::SYS_getgid, libc::SYS_geteuid, libc::SYS_getegid,
    libc::SYS_getppid, libc::SYS_getpgrp, libc::SYS_rt_sigpending, libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigsuspend,
    libc::SYS_sigaltstack, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_sched_getparam, libc::SYS_sched_getscheduler,
    libc::SYS_arch_prctl, libc::SYS_gettid, libc::SYS_tkill, libc::SYS_time, libc::SYS_futex,
    libc::SYS_sched_getaffinity, libc::SYS_epoll_create, libc::SYS_getdents64, libc::SYS_set_tid_address,
    libc::SYS_restart_syscall, libc::SYS_fadvise64, libc::SYS_timer_create, libc::SYS_timer_settime,
    libc::SYS_timer_gettime, libc::SYS_timer_getoverrun, libc::SYS_timer_delete, libc::SYS_clock_gettime,
    libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_exit_group, libc::SYS_epoll_wait, libc::SYS_epoll_ctl,
    libc::SYS_tgkill, libc::SYS_get_mempolicy, libc::SYS_openat, libc::SYS_newfstatat, libc::SYS_readlinkat,
    libc::SYS_faccessat, libc::SYS_pselect6, libc::SYS_ppoll, libc::SYS_set_robust_list, libc::SYS_get_robust_list,
    libc::SYS_sync_file_range, libc::SYS_epoll_pwait, libc::SYS_signalfd, libc::SYS_timerfd_create, libc::SYS_eventfd,
    libc::SYS_fallocate, libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime, libc::SYS_accept4, libc::SYS_signalfd4,
    libc::SYS_eventfd2, libc::SYS_epoll_create1, libc::SYS_dup3, libc::SYS_pipe2, libc::SYS_preadv, libc::SYS_pwritev,
    libc::SYS_getcpu, libc::SYS_getrandom, libc::SYS_membarrier, libc::SYS_preadv2,
    libc::SYS_pwritev2, libc::SYS_statx, libc::SYS_rseq,
];

/// Calls that are younger than this are said not to exist, so that a library that tries them makes do with older ones.
const YOUNG: i64 = libc::SYS_rseq + 1;

const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
const ARCHITECTURE: u32 = 0xc000_003e;
const X32: u32 = 0x4000_0000;
/// Offsets in what the kernel shows the filter: the number, the architecture, the arguments, each with its lower half first.
const NUMBER: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

pub struct Filter(Vec<libc::sock_filter>);

impl Filter {
    pub fn new() -> Self {
        let mut filter = Filter(Vec::new());
        filter.load(ARCHITECTURE_AT);
        filter.unless(libc::BPF_JEQ, ARCHITECTURE, KILL);
        filter.load(NUMBER);
        filter.when(libc::BPF_JGE, X32, refuse(libc::EPERM));
        for number in ALLOWED {
            filter.when(libc::BPF_JEQ, *number as u32, ALLOW);
        }
        filter.inspected(libc::SYS_clone, |call| {
            // Threads, but no processes, and nothing in a namespace of its own.
            call.load(argument(0));
            call.when(libc::BPF_JSET, NAMESPACES as u32, refuse(libc::EPERM));
            call.when(libc::BPF_JSET, libc::CLONE_THREAD as u32, ALLOW);
        });
        filter.inspected(libc::SYS_prlimit64, |call| {
            // Limits are read, not changed: there is no new one.
            for half in [argument(2), argument(2) + 4] {
                call.load(half);
                call.unless(libc::BPF_JEQ, 0, refuse(libc::EPERM));
            }
            call.end(ALLOW);
        });
        filter.inspected(libc::SYS_prctl, |call| {
            // Not its name: by that it is known for a VMM.
            call.load(argument(0));
            for option in [libc::PR_SET_TIMERSLACK, libc::PR_MCE_KILL] {
                call.when(libc::BPF_JEQ, option as u32, ALLOW);
            }
        });
        filter.when(libc::BPF_JGE, YOUNG as u32, refuse(libc::ENOSYS));
        filter.end(refuse(libc::EPERM));
        filter
    }

    /// For the calling thread and whatever it becomes. It must have given up new privileges before.
    pub fn install(&self) -> Result<(), Error> {
        let program = libc::sock_fprog { len: self.0.len() as u16, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: the kernel copies the program before it returns.
        match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    }

    /// A call whose arguments decide; what they do not allow is refused.
    fn inspected(&mut self, number: i64, decide: impl Fn(&mut Filter)) {
        let mut call = Filter(Vec::new());
        decide(&mut call);
        call.end(refuse(libc::EPERM));
        self.op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number as u32, 0, call.0.len() as u8);
        self.0.append(&mut call.0);
    }

    fn load(&mut self, offset: u32) {
        self.op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    }

    fn when(&mut self, comparison: u32, value: u32, then: u32) {
        self.op(libc::BPF_JMP | comparison | libc::BPF_K, value, 0, 1);
        self.end(then);
    }

    fn unless(&mut self, comparison: u32, value: u32, then: u32) {
        self.op(libc::BPF_JMP | comparison | libc::BPF_K, value, 1, 0);
        self.end(then);
    }

    fn end(&mut self, result: u32) {
        self.op(libc::BPF_RET | libc::BPF_K, result, 0, 0);
    }

    fn op(&mut self, code: u32, k: u32, jt: u8, jf: u8) {
        self.0.push(libc::sock_filter { code: code as u16, jt, jf, k });
    }
}

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

const fn refuse(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter answers, by running it as the kernel would.
    fn answer(number: i64, arguments: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend((number as u32).to_le_bytes());
        data.extend(ARCHITECTURE.to_le_bytes());
        data.extend([0; 8]);
        arguments.iter().for_each(|argument| data.extend(argument.to_le_bytes()));
        let program = Filter::new().0;
        let (mut at, mut word) = (0, 0u32);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let holds = match u32::from(code) & 0xf0 {
                libc::BPF_JEQ => word == k,
                libc::BPF_JGE => word >= k,
                _ => word & k != 0,
            };
            match u32::from(code) & 7 {
                libc::BPF_RET => return k,
                libc::BPF_LD => word = u32::from_le_bytes(data[k as usize..][..4].try_into().unwrap()),
                _ => at += usize::from(if holds { jt } else { jf }),
            }
        }
    }

    #[test]
    fn what_reaches_beyond_the_vmm_is_refused() {
        for number in [
            libc::SYS_socket,
            libc::SYS_socketpair,
            libc::SYS_connect,
            libc::SYS_bind,
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_mount,
            libc::SYS_pivot_root,
            libc::SYS_chroot,
            libc::SYS_setns,
            libc::SYS_unshare,
            libc::SYS_setuid,
            libc::SYS_setresuid,
            libc::SYS_capset,
            libc::SYS_bpf,
            libc::SYS_userfaultfd,
            libc::SYS_perf_event_open,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_kexec_load,
            libc::SYS_init_module,
            libc::SYS_open_by_handle_at,
            libc::SYS_setrlimit,
            libc::SYS_memfd_create,
            libc::SYS_mknod,
            libc::SYS_unlink,
            libc::SYS_rename,
            libc::SYS_personality,
            libc::SYS_reboot,
            libc::SYS_swapon,
            libc::SYS_seccomp,
            libc::SYS_sched_setscheduler,
        ] {
            assert_eq!(answer(number, [0; 6]), refuse(libc::EPERM), "{number}");
        }
        for number in
            [libc::SYS_io_uring_setup, libc::SYS_pidfd_getfd, libc::SYS_pidfd_open, libc::SYS_clone3, 435, 1000]
        {
            assert_eq!(answer(number, [0; 6]), refuse(libc::ENOSYS), "{number}");
        }
        assert_eq!(answer(libc::SYS_read | X32 as i64, [0; 6]), refuse(libc::EPERM));
    }

    #[test]
    fn arguments_decide_where_a_call_can_be_both() {
        let thread = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64;
        assert_eq!(answer(libc::SYS_clone, [thread, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(answer(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]), refuse(libc::EPERM));
        assert_eq!(answer(libc::SYS_clone, [thread | libc::CLONE_NEWNS as u64, 0, 0, 0, 0, 0]), refuse(libc::EPERM));
        assert_eq!(answer(libc::SYS_prlimit64, [0, 7, 0, 0x1000, 0, 0]), ALLOW);
        // A limit at an address whose lower half is zero.
        assert_eq!(answer(libc::SYS_prlimit64, [0, 7, 1 << 32, 0, 0, 0]), refuse(libc::EPERM));
        assert_eq!(answer(libc::SYS_prctl, [libc::PR_SET_TIMERSLACK as u64, 1, 0, 0, 0, 0]), ALLOW);
        assert_eq!(answer(libc::SYS_prctl, [libc::PR_SET_NAME as u64, 0, 0, 0, 0, 0]), refuse(libc::EPERM));
        assert_eq!(answer(libc::SYS_futex, [0; 6]), ALLOW);
    }
}
