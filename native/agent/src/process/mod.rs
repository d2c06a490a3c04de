mod events;
mod input;
pub mod launch;
pub mod output;
mod pty;
mod pump;
pub mod routes;
mod start;
mod table;

pub use events::duration_header;
pub use launch::reserve_low_fds;
pub use table::{Process, Processes};

/// Signals the whole process group that `pid` leads; processes we start always lead one.
pub fn signal_group(pid: i32, signal: i32) {
    // SAFETY: kill takes no pointers.
    unsafe { libc::kill(-pid, signal) };
}
