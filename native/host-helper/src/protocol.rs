//! One JSON request per line in, one JSON line out for each, plus `exit` events. Unknown fields are refused.

use crate::network::Wiring;
use crate::paths::Reach;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddrV6};

/// No honest request comes near this; a longer line means the caller is broken, and the helper stops.
pub const MAX_LINE: usize = 1 << 20;

#[derive(Deserialize)]
pub struct Envelope {
    pub id: u64,
    /// Parsed in a second step, so that a bad request can be answered under its id.
    #[serde(flatten)]
    pub request: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    Reach(Reach),
    Spawn(Spawn),
    Adopt(Adopt),
    Kill(Kill),
    CloneFile(CloneFile),
    ForkVmm(ForkVmm),
    Twin(Twin),
    Wake(ForkVmm),
    Capture(Capture),
    Inject(Inject),
    Compare(Compare),
    Guard(Guard),
    Unguard(Unguard),
    MeasureTsc(MeasureTsc),
    MakeNetwork(MakeNetwork),
    OpenNetwork(OfVmm),
    NetworkDrops(OfVmm),
    DropNetwork(DropNetwork),
    ListenUdp(OfVmm),
    ConnectUdp(ConnectUdp),
    CloseUdp(CloseUdp),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spawn {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Receives stdout and stderr; created, never followed if it is a link.
    pub log: String,
    /// Unix sockets that listen before the program runs, so that nobody has to poll for them.
    pub listen: Vec<Named>,
    /// Files opened read-only for the program.
    pub open: Vec<Named>,
    /// `true`: the process dies with this helper. `false`: it outlives helper and caller.
    pub tied: bool,
    pub rlimits: BTreeMap<String, u64>,
    /// Directories whose `cgroup.procs` takes the process in before it runs.
    pub cgroups: Vec<String>,
    pub oom_score_adj: Option<i32>,
    /// Its tap becomes the descriptor `tap` of the program.
    pub network: Option<u64>,
    pub jail: Option<Jail>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jail {
    pub uids: Uids,
    /// Becomes the user's, with what is to be written.
    pub directory: String,
    /// All the files that the program sees, in their places on the host.
    pub read: Vec<String>,
    pub write: Vec<String>,
    pub devices: Vec<String>,
}

/// The range that users for VMMs are taken from.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uids {
    pub first: u32,
    pub last: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// `{fd:NAME}` in an argument becomes the number under which the program finds the file.
    pub name: String,
    pub path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kill {
    pub pid: i32,
    /// Field 22 of /proc/PID/stat: a recycled pid has another one.
    pub start_time: u64,
    pub signal: i32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adopt {
    pub pid: i32,
    pub start_time: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloneFile {
    pub from: String,
    pub to: String,
}

/// Also what it takes to wake a twin: that is the copy of such a fork, made earlier.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkVmm {
    pub pid: i32,
    pub start_time: u64,
    /// The directory of the original, and that of the copy: its files must be there already, its sockets must not.
    pub from: String,
    pub to: String,
    /// What the copy finds to read, before the end, on a connection to a socket of that name which the original has open.
    pub orders: BTreeMap<String, String>,
    pub tied: bool,
    pub cgroups: Vec<String>,
    /// Of the copy, if the original has one.
    pub network: Option<u64>,
    /// The original is jailed, and the copy will be.
    pub jail: Option<Uids>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Twin {
    pub pid: i32,
    pub start_time: u64,
    /// The image that the VM's RAM is a private mapping of.
    pub memory: String,
    /// It is copied whole, so that it can be woken.
    pub wakes: Option<Wakes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wakes {
    /// The original is, and what wakes will be.
    pub jailed: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    pub pid: i32,
    pub start_time: u64,
    pub memory: String,
    /// Must not exist.
    pub to: String,
    /// `true`: an image that stands for itself. `false`: only what differs from `memory`; all else is a hole.
    pub full: bool,
    /// Nobody stands still for it: those who run come first.
    pub background: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inject {
    pub pid: i32,
    pub start_time: u64,
    pub memory: String,
    /// What `Capture` wrote.
    pub from: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compare {
    pub a: SavedRam,
    pub b: SavedRam,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedRam {
    pub memory: String,
    /// What `Capture` wrote, to be read over the memory.
    pub diff: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    pub pid: i32,
    pub start_time: u64,
    pub socket: String,
    /// Said one after the other on the socket, should the caller go away.
    pub lines: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unguard {
    pub pid: i32,
    pub start_time: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasureTsc {}

/// The network has the number of the request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MakeNetwork {
    pub wiring: Wiring,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfVmm {
    pub pid: i32,
    pub start_time: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectUdp {
    pub listener: u64,
    pub from: End,
    pub to: End,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    pub address: Ipv6Addr,
    pub port: u16,
}

impl End {
    pub fn address(&self) -> SocketAddrV6 {
        SocketAddrV6::new(self.address, self.port, 0, 0)
    }
}

/// Of the request that has opened it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloseUdp {
    pub listener: u64,
}

/// One whose tap no program has been given.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropNetwork {
    pub network: u64,
}

/// What a guest has sent in vain.
#[derive(Serialize)]
pub struct Drops {
    pub spoofed: u64,
    pub udp: u64,
    pub other: u64,
}

#[derive(Serialize)]
#[serde(untagged)]
pub enum Reply {
    Spawned { pid: i32, start_time: u64, fds: BTreeMap<String, i32> },
    Killed { delivered: bool },
    Cloned { method: &'static str, bytes: u64 },
    Tsc { khz: u64 },
    Captured { dirty_bytes: u64, written_bytes: u64, physical_bytes: u64 },
    Injected { bytes: u64 },
    Network { network: u64 },
    Drops(Drops),
    Compared { pages: u64, changed: u64 },
    Done {},
}

#[derive(Serialize)]
#[serde(untagged)]
pub enum Line {
    Ok { id: u64, ok: Reply },
    Error { id: u64, error: Failure },
    Exit { event: &'static str, pid: i32, code: Option<i32>, signal: Option<i32> },
}

#[derive(Serialize, Debug)]
pub struct Failure {
    pub message: String,
    /// The symbolic errno where there is one (`ENOSPC`), so that the caller need not parse text.
    pub errno: Option<&'static str>,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), errno: None }
    }

    pub fn io(what: &str, error: &std::io::Error) -> Self {
        let errno = match error.raw_os_error() {
            Some(libc::ENOSPC) => Some("ENOSPC"),
            Some(libc::EDQUOT) => Some("EDQUOT"),
            Some(libc::ENOENT) => Some("ENOENT"),
            Some(libc::EACCES) => Some("EACCES"),
            Some(libc::EPERM) => Some("EPERM"),
            Some(libc::EEXIST) => Some("EEXIST"),
            Some(libc::ESRCH) => Some("ESRCH"),
            _ => None,
        };
        Failure { message: format!("{what}: {error}"), errno }
    }
}
