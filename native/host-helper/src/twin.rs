//! A frozen copy of a VMM: it runs nothing of the VMM, and is there to be read, at leisure, while the original goes on. One that
//! was copied whole can be woken later and is then a VM that stands where the original stood.

use crate::copy_process::{copy, discard, gone_or, kill_strays, Copy, Extent, Pages};
use crate::guest_ram;
use crate::process;
use crate::protocol::{Failure, Twin};
use crate::spawn::Spawned;
use crate::tracee::ThreadState;
use std::collections::HashMap;
use std::io::Error;
use std::time::Duration;

/// The VM stands still meanwhile. One that is not idle as a whole can be copied without its threads.
const PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_FOR_ALL: Duration = Duration::from_millis(10);

/// What it takes to wake a twin.
pub struct Asleep {
    pub page: u64,
    pub threads: Vec<ThreadState>,
    /// How willingly the host ended the original.
    pub oom_score_adj: String,
}

/// By pid.
pub type Sleepers = HashMap<i32, Asleep>;

/// `known` are processes that the helper keeps, which are not to be taken for what a failure has left.
pub fn twin(
    request: &Twin,
    pages: &mut Pages,
    sleepers: &mut Sleepers,
    known: &dyn Fn(i32) -> bool,
) -> Result<Spawned, Failure> {
    let original = (request.pid, request.start_time);
    let (extent, patience) = match &request.wakes {
        Some(wakes) => (Extent::Whole { jailed: wakes.jailed }, PATIENCE_FOR_ALL),
        None => (Extent::Memory, PATIENCE),
    };
    let frozen = process::check(request.pid, request.start_time).and_then(|()| {
        if request.wakes.is_none() {
            // One whose RAM is the image itself cannot be frozen.
            guest_ram::regions(request.pid, &request.memory)?;
        }
        let copy = copy(request.pid, extent, patience, pages.entry(original).or_default())?;
        freeze(copy, request, sleepers)
    });
    frozen.map_err(|e| {
        kill_strays(request.pid, known);
        Failure::io("freeze the VM", &gone_or(request.pid, e))
    })
}

/// Leaves it standing. It dies with the helper.
fn freeze(Copy { process, page, threads }: Copy, request: &Twin, sleepers: &mut Sleepers) -> Result<Spawned, Error> {
    let pid = process.tid;
    process.keep();
    let frozen = || {
        let oom_score_adj = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", request.pid))?;
        // A host short of memory takes the copy before the original.
        std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000")?;
        Ok((oom_score_adj, Spawned::new(pid, process::start_time(pid)?, process::open(pid)?)))
    };
    match frozen() {
        Ok((oom_score_adj, spawned)) => {
            if request.wakes.is_some() {
                sleepers.insert(pid, Asleep { page, threads, oom_score_adj });
            }
            Ok(spawned)
        }
        Err(error) => {
            discard(pid, Vec::new());
            Err(error)
        }
    }
}
