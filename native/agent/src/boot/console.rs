use std::fs::OpenOptions;
use std::io::Write;

/// The console may not exist yet, and nobody may listen; both are fine.
pub fn print(message: &str) {
    let line = format!("forkd-agent: {message}\n");
    match OpenOptions::new().write(true).open("/dev/console") {
        Ok(mut console) => drop(console.write_all(line.as_bytes())),
        // In an initramfs without device nodes the kernel may still have given us a descriptor.
        Err(_) => drop(std::io::stderr().write_all(line.as_bytes())),
    }
}

pub fn fatal(reason: &str) -> ! {
    print(&format!("fatal: {reason}"));
    restart()
}

/// Ends the VM: the VMM is told not to reboot, and a reset is the one exit every machine type has.
pub fn restart() -> ! {
    // SAFETY: sync has no arguments and no failure.
    unsafe { libc::sync() };
    let _ = nix::sys::reboot::reboot(nix::sys::reboot::RebootMode::RB_AUTOBOOT);
    loop {
        // PID 1 must never return: that would be a kernel panic instead of a clean end.
        std::thread::park();
    }
}
