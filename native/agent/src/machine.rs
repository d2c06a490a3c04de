//! The parts of a machine that two copies of it must not share.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::mount::{mount, MsFlags};

const RNDADDENTROPY: libc::Ioctl = 0x4008_5203;
const RNDRESEEDCRNG: libc::Ioctl = 0x5207;

/// Longer than a snapshot lives: once a child's own clock has caught up with what was seeded ahead of time, that is worth nothing.
pub const AGES_SECS: i64 = 3650 * 86_400;

const MACHINE_ID: (&str, &str) = ("/run/forkd/machine-id", "/etc/machine-id");
const BOOT_ID: (&str, &str) = ("/run/forkd/boot_id", "/proc/sys/kernel/random/boot_id");

/// The kernel's struct rand_pool_info.
#[repr(C)]
struct PoolInput {
    bits: i32,
    size: i32,
    bytes: [u8; 64],
}

/// Mixes the entropy in and makes the generator start from it at once.
pub fn feed_random(entropy: &[u8; 64]) -> io::Result<()> {
    let device = OpenOptions::new().write(true).open("/dev/urandom")?;
    let input = PoolInput { bits: 512, size: 64, bytes: *entropy };
    // SAFETY: the structure is laid out as the kernel reads it and outlives the call.
    let failed = unsafe {
        libc::ioctl(device.as_raw_fd(), RNDADDENTROPY, &input) < 0 || libc::ioctl(device.as_raw_fd(), RNDRESEEDCRNG) < 0
    };
    if failed {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

pub fn random_hex<const BYTES: usize>() -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut bytes = [0u8; BYTES];
    // SAFETY: the buffer is as long as stated; up to 256 bytes getrandom neither fails nor returns less.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), BYTES, 0) };
    let digit = |value: u8| DIGITS[usize::from(value)] as char;
    bytes.iter().flat_map(|&byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

pub fn set_clock(unix_ns: i64) -> io::Result<()> {
    let time = nix::sys::time::TimeSpec::new(unix_ns / 1_000_000_000, unix_ns % 1_000_000_000);
    Ok(nix::time::clock_settime(nix::time::ClockId::CLOCK_REALTIME, time)?)
}

pub fn move_clock(seconds: i64) -> io::Result<()> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME)?;
    set_clock((now.tv_sec() + seconds) * 1_000_000_000 + now.tv_nsec())
}

/// Lays files of ours over the two ids, so that a child renews them in memory instead of dirtying its disk.
pub fn cover_ids() -> io::Result<()> {
    fs::create_dir_all("/run/forkd")?;
    for (ours, shown) in [MACHINE_ID, BOOT_ID] {
        // A cover stays over the branches of a machine; a second one on top would only hide it.
        let is_covered = Path::new(ours).exists();
        if !Path::new(shown).exists() || is_covered {
            continue;
        }
        fs::copy(shown, ours)?;
        let covered = mount(Some(ours), shown, None::<&str>, MsFlags::MS_BIND, None::<&str>);
        if let Err(error) = covered {
            fs::remove_file(ours)?;
            return Err(error.into());
        }
    }
    Ok(())
}

pub fn renew_ids() -> io::Result<()> {
    cover_ids()?;
    if Path::new(MACHINE_ID.0).exists() {
        overwrite(MACHINE_ID.0, &format!("{}\n", random_hex::<16>()))?;
    }
    if Path::new(BOOT_ID.0).exists() {
        let id = random_hex::<16>();
        // The shape of a version 4 UUID, which is what the kernel shows there.
        let id = format!("{}-{}-4{}-a{}-{}\n", &id[..8], &id[8..12], &id[13..16], &id[17..20], &id[20..]);
        overwrite(BOOT_ID.0, &id)?;
    }
    Ok(())
}

/// In place, because the bind mount holds on to the inode.
fn overwrite(path: &str, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    file.write_all(text.as_bytes())
}
