use std::rc::Rc;
use std::time::Duration;

use hyper::{Response, StatusCode};
use nix::mount::{mount, MsFlags};

use crate::agent::Agent;
use crate::http::{empty, Body, Fault};
use crate::process::signal_group;

const GRACE: Duration = Duration::from_secs(2);
/// Enough for the reply of the request that asked for the end to leave the machine.
const FAREWELL: Duration = Duration::from_millis(50);

pub fn requested(agent: Rc<Agent>) -> Result<Response<Body>, Fault> {
    tokio::task::spawn_local(async move {
        tokio::time::sleep(FAREWELL).await;
        run(agent).await;
    });
    Ok(empty(StatusCode::NO_CONTENT))
}

/// Ends everything that runs here, then the machine itself (or, under test, this process).
pub async fn run(agent: Rc<Agent>) {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        if agent.is_init {
            // SAFETY: kill takes no pointers; -1 spares PID 1.
            unsafe { libc::kill(-1, signal) };
        } else {
            for process in agent.processes.running() {
                signal_group(process.pid, signal);
            }
            agent.kernels.signal_all(signal);
        }
        if signal == libc::SIGTERM {
            let _ = tokio::time::timeout(GRACE, agent.reaper.all_gone()).await;
        }
    }
    if !agent.is_init {
        let _ = std::fs::remove_dir_all(&agent.runtime_dir);
        std::process::exit(0);
    }
    // SAFETY: sync has no arguments and no failure.
    unsafe { libc::sync() };
    let remount = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    let _ = mount(None::<&str>, "/", None::<&str>, remount, None::<&str>);
    crate::boot::restart();
}
