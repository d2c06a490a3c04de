//! Called just before a snapshot: everything that can be tidied once, so that children need not do it each.

use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::agent::Agent;
use crate::eval::FREEZE;
use crate::http::{json as json_reply, read_json, Body, Fault};
use crate::machine;

const LIMIT: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Settle {
    #[serde(default)]
    drop_caches: bool,
}

/// Freezes the kernels while the clock is ahead: what they seed meanwhile counts as stale in a child, whose clock is right.
async fn frozen_ahead_of_time(agent: &Agent) -> Result<Vec<&'static str>, Fault> {
    let moved = |seconds: i64| match agent.is_init {
        true => machine::move_clock(seconds).map_err(|error| Fault::internal(format!("clock: {error}"))),
        false => Ok(()),
    };
    moved(machine::AGES_SECS)?;
    let kernels = agent.kernels.order(FREEZE, |_| Vec::new(), LIMIT).await;
    moved(-machine::AGES_SECS)?;
    kernels
}

pub async fn settle(agent: &Agent, request: Request<Incoming>) -> Result<Response<Body>, Fault> {
    let message: Settle = read_json(request.into_body()).await?;
    let kernels = frozen_ahead_of_time(agent).await?;
    if agent.is_init {
        // The warm-up may have brought a machine-id that did not exist at boot.
        machine::cover_ids().map_err(|error| Fault::internal(format!("machine-id: {error}")))?;
        // SAFETY: sync has no arguments and no failure.
        unsafe { libc::sync() };
        if message.drop_caches {
            std::fs::write("/proc/sys/vm/drop_caches", "1")
                .map_err(|error| Fault::internal(format!("drop_caches: {error}")))?;
        }
    }
    // SAFETY: malloc_trim only touches the allocator, and nothing allocates meanwhile on our one thread.
    unsafe { libc::malloc_trim(0) };
    Ok(json_reply(StatusCode::OK, &json!({ "kernels": kernels })))
}
