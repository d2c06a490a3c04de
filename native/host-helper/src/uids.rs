//! A user of its own for every VMM: one that nobody on the host is at this moment. The kernel knows who is, so nothing has to be
//! remembered, by this program or the next.

use crate::protocol::Uids;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Held from the choice of a user until there is a process of it, against other helpers that choose at the same time.
const LOCK: &str = "/run/forkd-uids.lock";

/// Where to look first: those that were used a short while ago come last.
#[derive(Default)]
pub struct Cursor(Option<u32>);

pub struct Chosen {
    pub uid: u32,
    _lock: File,
}

pub fn choose(Uids { first, last }: &Uids, cursor: &mut Cursor) -> Result<Chosen, Error> {
    // Those below belong to the host.
    if *first < 1000 || last < first || *last == u32::MAX {
        return Err(Error::new(ErrorKind::InvalidInput, format!("{first} to {last} are no users for VMMs")));
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let lock = options.open(LOCK)?;
    // SAFETY: the descriptor is open.
    if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) } < 0 {
        return Err(Error::last_os_error());
    }
    let count = last - first + 1;
    // Several programs start at different places.
    let start = cursor.0.unwrap_or_else(|| std::process::id().wrapping_mul(2_654_435_761)) % count;
    let uid = (0..count)
        .map(|step| first + (start as u64 + step as u64).rem_euclid(count as u64) as u32)
        .find(|uid| !is_somebody(*uid))
        .ok_or_else(|| Error::new(ErrorKind::WouldBlock, format!("all users from {first} to {last} are in use")))?;
    cursor.0 = Some(uid - first + 1);
    Ok(Chosen { uid, _lock: lock })
}

/// Whether a process of this user exists.
fn is_somebody(uid: u32) -> bool {
    // SAFETY: plain integers. The raw call returns an error as a negative number, and a priority as a positive one.
    unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_USER, uid) >= 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lives_is_somebody() {
        assert!(is_somebody(unsafe { libc::getuid() }));
        assert!(!is_somebody(4_000_000_000));
    }

    #[test]
    fn users_of_the_host_are_never_taken() {
        for (first, last) in [(0, 10), (999, 2000), (3000, 2000), (3000, u32::MAX)] {
            assert!(choose(&Uids { first, last }, &mut Cursor::default()).is_err());
        }
    }
}
