//! The oldest timer of a PC goes on with what it was set to at power-on, though Linux may never have used it. An emulator then
//! wakes up 36 times a second for nothing: nine tenths of what an idle guest costs its host.

use std::arch::asm;
use std::io;

const NAME: &str = "pit";
const CLOCKS: &str = "/sys/devices/system/clockevents";
const CHANNEL_0: u16 = 0x40;
const CONTROL: u16 = 0x43;
const PORTS: u64 = 4;
/// Channel 0, both bytes, mode 0: counts down once, and that is that.
const ONCE: u8 = 0x30;

pub fn silence() -> io::Result<()> {
    if is_used()? {
        return Ok(());
    }
    // SAFETY: nobody else uses the ports, as Linux has just said; they are given back.
    unsafe {
        if libc::ioperm(CHANNEL_0.into(), PORTS, 1) < 0 {
            return Err(io::Error::last_os_error());
        }
        write(CONTROL, ONCE);
        write(CHANNEL_0, 0);
        write(CHANNEL_0, 0);
        libc::ioperm(CHANNEL_0.into(), PORTS, 0);
    }
    Ok(())
}

/// Whether a processor, or what wakes those that sleep, gets its time from it.
fn is_used() -> io::Result<bool> {
    for entry in std::fs::read_dir(CLOCKS)? {
        let device = std::fs::read_to_string(entry?.path().join("current_device")).unwrap_or_default();
        if device.trim() == NAME {
            return Ok(true);
        }
    }
    Ok(false)
}

unsafe fn write(port: u16, byte: u8) {
    asm!("out dx, al", in("dx") port, in("al") byte, options(nomem, nostack, preserves_flags));
}
