//! What the machine is doing, read from /proc only when asked.

use std::fs;

use hyper::{Response, StatusCode};
use serde_json::json;

use crate::agent::Agent;
use crate::http::{json as json_reply, Body, Fault};
use crate::time::now_ns;

pub fn health(agent: &Agent) -> Response<Body> {
    let health = json!({
        "protocol": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_ms": agent.started.elapsed().as_millis() as u64,
        "identity": agent.identity.borrow().as_ref().map(|identity| identity.id.clone()),
        "kernels": agent.kernels.states(),
    });
    json_reply(StatusCode::OK, &health)
}

pub fn environment(agent: &Agent) -> Response<Body> {
    let defaults = agent.defaults.borrow();
    let mut env = defaults.env.clone();
    if let Some(identity) = agent.identity.borrow().as_ref() {
        env.extend(identity.env.clone());
    }
    json_reply(StatusCode::OK, &env)
}

pub fn metrics(agent: &Agent) -> Result<Response<Body>, Fault> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| Fault::internal(format!("{path}: {error}")));
    let stat = read("/proc/stat")?;
    let memory = read("/proc/meminfo")?;
    let disk = nix::sys::statvfs::statvfs("/").map_err(|error| Fault::internal(format!("statvfs: {error}")))?;
    let (busy, total) = cpu_ticks(&stat);
    let (busy_before, total_before) = agent.cpu_ticks.replace((busy, total));
    let elapsed = total.saturating_sub(total_before).max(1);
    let used_pct = 100.0 * busy.saturating_sub(busy_before) as f64 / elapsed as f64;
    let cpu_count = stat.lines().filter(|line| line.starts_with("cpu")).count().saturating_sub(1);
    let mem_total = field(&memory, "MemTotal:");
    let mem_cache = field(&memory, "Cached:");
    let mem_used = mem_total.saturating_sub(field(&memory, "MemAvailable:"));
    let block = disk.fragment_size() as u64;
    let metrics = json!({
        "ts": now_ns() / 1_000_000_000,
        "cpu_count": cpu_count,
        "cpu_used_pct": (used_pct * 100.0).round() / 100.0,
        "mem_total": mem_total,
        "mem_used": mem_used,
        "mem_cache": mem_cache,
        "mem_total_mib": mem_total >> 20,
        "mem_used_mib": mem_used >> 20,
        "disk_total": disk.blocks() as u64 * block,
        "disk_used": (disk.blocks() as u64).saturating_sub(disk.blocks_free() as u64) * block,
    });
    Ok(json_reply(StatusCode::OK, &metrics))
}

/// Busy and total time of all CPUs since boot.
fn cpu_ticks(stat: &str) -> (u64, u64) {
    let first = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = first.split_whitespace().skip(1).take(8).filter_map(|tick| tick.parse().ok()).collect();
    let total: u64 = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (total - idle, total)
}

/// Bytes of a line of /proc/meminfo.
fn field(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_proc() {
        assert_eq!(cpu_ticks("cpu  10 0 5 80 5 0 0 0 0 0\ncpu0 1\n"), (15, 100));
        assert_eq!(field("MemTotal:  4 kB\nCached: 2 kB\n", "Cached:"), 2048);
        assert_eq!(field("", "Cached:"), 0);
    }
}
