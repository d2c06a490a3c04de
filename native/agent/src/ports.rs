//! Which TCP ports are listened on in this guest, and by whom.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use crate::http::{json as json_reply, Body};

const LISTEN: &str = "0A";

#[derive(Debug, PartialEq, Serialize)]
struct Listener {
    port: u16,
    address: String,
    pid: Option<u32>,
    process: Option<String>,
}

pub fn list() -> Response<Body> {
    let mut found = BTreeMap::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        // A kernel without IPv6 has no second table.
        for line in fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            if let Some((address, port, inode)) = listener(line) {
                found.insert((port, address.to_string()), inode);
            }
        }
    }
    let owners = if found.is_empty() { HashMap::new() } else { socket_owners() };
    let listeners: Vec<Listener> = found
        .into_iter()
        .map(|((port, address), inode)| {
            let pid = owners.get(&inode).copied();
            Listener { port, address, pid, process: pid.and_then(name_of) }
        })
        .collect();
    json_reply(StatusCode::OK, &json!({ "ports": listeners }))
}

/// Address, port and inode of a line about a listening socket.
fn listener(line: &str) -> Option<(IpAddr, u16, u64)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    if fields.get(3) != Some(&LISTEN) {
        return None;
    }
    let (address, port) = fields[1].split_once(':')?;
    Some((parse_address(address)?, u16::from_str_radix(port, 16).ok()?, fields.get(9)?.parse().ok()?))
}

/// The kernel prints 32-bit words as this machine has them in memory.
fn parse_address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hex.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    if hex.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?).into());
    }
    let mut bytes = [0; 16];
    for (index, part) in bytes.chunks_mut(4).enumerate() {
        part.copy_from_slice(&word(index * 8)?);
    }
    Some(Ipv6Addr::from(bytes).into())
}

/// By inode: the first process that has the socket open.
fn socket_owners() -> HashMap<u64, u32> {
    let mut owners = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    for pid in pids {
        for open in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(open.path()).unwrap_or_default();
            let inode = target.to_str().and_then(|name| name.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            if let Some(inode) = inode {
                owners.entry(inode).or_insert(pid);
            }
        }
    }
    owners
}

fn name_of(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_listening_sockets_only() {
        let line =
            "   0: 0100007F:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 4711 1 0 100 0 0 10 0";
        assert_eq!(listener(line), Some((Ipv4Addr::LOCALHOST.into(), 3000, 4711)));
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        let six = line.replace("0100007F", "00000000000000000000000001000000");
        assert_eq!(listener(&six), Some((Ipv6Addr::LOCALHOST.into(), 3000, 4711)));
        for bad in ["", "0: x 0 0A", "0: 01:02 0 0A 1 2 3 4 5 x"] {
            assert_eq!(listener(bad), None, "{bad}");
        }
    }
}
