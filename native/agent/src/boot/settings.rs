use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A hundred idle guests share a host: every periodic wake-up in here is paid a hundred times.
const SETTINGS: &[(&str, &str)] = &[
    ("/proc/sys/vm/stat_interval", "120"),
    ("/proc/sys/vm/dirty_writeback_centisecs", "6000"),
    ("/proc/sys/vm/dirty_expire_centisecs", "6000"),
    ("/proc/sys/kernel/watchdog", "0"),
    ("/proc/sys/kernel/timer_migration", "0"),
    ("/proc/sys/vm/compaction_proactiveness", "0"),
    ("/sys/kernel/mm/ksm/run", "0"),
    ("/sys/kernel/mm/transparent_hugepage/enabled", "never"),
];

pub fn apply() {
    for (file, value) in SETTINGS {
        // A kernel built without the knob has nothing to be stopped.
        let _ = fs::write(file, value);
    }
    raise_loopback();
}

fn raise_loopback() {
    // SAFETY: the request outlives the calls; the new descriptor has no other owner.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return;
        }
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request);
    }
}
