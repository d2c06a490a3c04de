//! The frequency of the time-stamp counter, which an emulated guest sees but cannot measure on a busy host.

use crate::protocol::{Failure, Reply};
use std::time::{Duration, Instant};

/// Long enough that reading the two clocks one after the other (under a microsecond) changes the result by less than 20 ppm.
const SAMPLE: Duration = Duration::from_millis(50);

pub fn measure() -> Result<Reply, Failure> {
    let (start, ticks) = (Instant::now(), now());
    std::thread::sleep(SAMPLE);
    let (elapsed, ticks) = (start.elapsed(), now() - ticks);
    Ok(Reply::Tsc { khz: (ticks as f64 / elapsed.as_secs_f64() / 1e3).round() as u64 })
}

fn now() -> u64 {
    // SAFETY: reads a register.
    unsafe { core::arch::x86_64::_rdtsc() }
}
