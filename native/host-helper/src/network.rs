//! A network namespace for each VM, with a tap and nothing else in it: no way leads out, so it needs no address of the host's. What the
//! guest sends ends at sockets of ours in there, which the caller gets. There is nothing to clean up: the tap in the hands of the VMM
//! keeps the namespace alive, and a later helper finds its way back in through it.

use crate::handles::{Handles, Kind};
use crate::netlink::{Attributes, Batch};
use crate::process;
use crate::protocol::{Failure, OfVmm, Reply};
use crate::rules;
use serde::Deserialize;
use std::collections::HashMap;
use std::ffi::CString;
use std::io::{Error, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;

pub const TAP: &str = "tap0";
pub const PROXY_PORT: u16 = 15001;
pub const UDP_PORT: u16 = 15002;
const DNS_PORT: u16 = 53;
const LOOPBACK: u32 = 1;
const PREFIX4: u8 = 30;
const PREFIX6: u8 = 64;

/// The addresses of both ends; the same in every namespace.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wiring {
    pub guest_mac: [u8; 6],
    pub gateway_mac: [u8; 6],
    pub guest4: Ipv4Addr,
    pub gateway4: Ipv4Addr,
    pub guest6: Ipv6Addr,
    pub gateway6: Ipv6Addr,
}

/// Taps that no VMM has yet, by the number of their network.
#[derive(Default)]
pub struct Taps(Mutex<HashMap<u64, OwnedFd>>);

impl Taps {
    pub fn take(&self, network: Option<u64>) -> Result<Option<OwnedFd>, Failure> {
        let Some(number) = network else { return Ok(None) };
        let tap = self.0.lock().expect("taps").remove(&number);
        tap.map(Some).ok_or_else(|| Failure::new(format!("there is no network {number}")))
    }

    pub fn forget(&self, network: u64) {
        self.0.lock().expect("taps").remove(&network);
    }
}

/// Makes a namespace under the number of the request. Runs on a thread of its own, which goes away with its namespace.
pub fn make(number: u64, wiring: &Wiring, taps: &Taps, handles: &Handles) -> Result<Reply, Failure> {
    let made = || -> Result<OwnedFd, Error> {
        // SAFETY: concerns this thread alone.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map_err(during("namespace"))?;
        let tap = tap().map_err(during("/dev/net/tun"))?;
        connect(wiring).map_err(during("addresses"))?;
        rules::install(wiring).map_err(during("packet filter"))?;
        Ok(tap)
    };
    let tap = made().map_err(|e| Failure::io("make a network", &e))?;
    taps.0.lock().expect("taps").insert(number, tap);
    hand_over(number, handles).inspect_err(|_| taps.forget(number))
}

/// The sockets in the namespace of a VMM that an earlier helper has started.
pub fn open(number: u64, vmm: &OfVmm, handles: &Handles) -> Result<Reply, Failure> {
    enter_of(vmm)?;
    hand_over(number, handles)
}

/// What was dropped in the namespace of a VMM.
pub fn drops(vmm: &OfVmm) -> Result<Reply, Failure> {
    enter_of(vmm)?;
    rules::drops().map(Reply::Drops).map_err(|e| Failure::io("read the counters", &e))
}

pub fn enter_of(vmm: &OfVmm) -> Result<(), Failure> {
    let entered = || -> Result<(), Error> {
        let pidfd = process::open(vmm.pid)?;
        process::check(vmm.pid, vmm.start_time)?;
        let tap = tap_of(vmm.pid)?.ok_or_else(|| Error::new(ErrorKind::NotFound, "it has none"))?;
        enter(&process::descriptor(&pidfd, tap)?)
    };
    entered().map_err(|e| Failure::io("enter the network of the VM", &e))
}

/// Under which number a process has its tap.
pub fn tap_of(pid: i32) -> Result<Option<i32>, Error> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let number = entry.file_name().to_string_lossy().into_owned();
        if !std::fs::read_link(entry.path()).is_ok_and(|target| target.ends_with("net/tun")) {
            continue;
        }
        // Only a tun device says which interface it is.
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"))?;
        if info.contains("\niff:") {
            return Ok(number.parse().ok());
        }
    }
    Ok(None)
}

/// Moves this thread into the namespace that a tap is in.
fn enter(tap: &OwnedFd) -> Result<(), Error> {
    const SIOCGSKNS: libc::Ioctl = 0x894c;
    // SAFETY: the call takes no argument and returns a new descriptor that we own.
    unsafe {
        let namespace = libc::ioctl(tap.as_raw_fd(), SIOCGSKNS);
        check(namespace)?;
        let namespace = OwnedFd::from_raw_fd(namespace);
        check(libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET))
    }
}

/// Header and offloads are those that QEMU finds a new tap with, and never changes: all taps are the same to a guest.
fn tap() -> Result<OwnedFd, Error> {
    const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
    // SAFETY: the request outlives the call; the new descriptor has no other owner.
    unsafe {
        let tap = libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK);
        check(tap)?;
        let tap = OwnedFd::from_raw_fd(tap);
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(TAP.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        check(libc::ioctl(tap.as_raw_fd(), TUNSETIFF, &request))?;
        Ok(tap)
    }
}

/// Addresses, neighbours, and a route that makes every address there is the namespace's own.
fn connect(wiring: &Wiring) -> Result<(), Error> {
    let index = index_of_tap();
    let mut batch = Batch::default();
    link(&mut batch, LOOPBACK, Attributes::default());
    // IPv6 gives it no address that nobody asked for.
    let modes = Attributes::default().nest(libc::AF_INET6 as u16, Attributes::default().bytes(8, &[1]));
    link(&mut batch, index, Attributes::default().bytes(libc::IFLA_ADDRESS, &wiring.gateway_mac).nest(26, modes));
    for (family, prefix, gateway, guest) in [
        (libc::AF_INET, PREFIX4, wiring.gateway4.octets().to_vec(), wiring.guest4.octets().to_vec()),
        (libc::AF_INET6, PREFIX6, wiring.gateway6.octets().to_vec(), wiring.guest6.octets().to_vec()),
    ] {
        let create = libc::NLM_F_CREATE;
        let head = [&[family as u8, prefix, libc::IFA_F_NODAD as u8, 0], &index.to_ne_bytes()[..]].concat();
        let address = Attributes::default().bytes(libc::IFA_LOCAL, &gateway).bytes(libc::IFA_ADDRESS, &gateway);
        batch.add(libc::RTM_NEWADDR, create, &head, address);
        // The only one there can be: whatever the guest says of itself changes nothing.
        let head = [&[family as u8, 0, 0, 0], &index.to_ne_bytes()[..], &[libc::NUD_PERMANENT as u8, 0, 0, 0]].concat();
        let neighbour = Attributes::default().bytes(libc::NDA_DST, &guest).bytes(libc::NDA_LLADDR, &wiring.guest_mac);
        batch.add(libc::RTM_NEWNEIGH, create, &head, neighbour);
        let (table, scope) = (libc::RT_TABLE_MAIN, libc::RT_SCOPE_HOST);
        let head = [family as u8, 0, 0, 0, table, libc::RTPROT_STATIC, scope, libc::RTN_LOCAL, 0, 0, 0, 0];
        batch.add(libc::RTM_NEWROUTE, create, &head, Attributes::default().number(libc::RTA_OIF, LOOPBACK));
    }
    batch.send(libc::NETLINK_ROUTE)
}

fn link(batch: &mut Batch, index: u32, attributes: Attributes) {
    let up = (libc::IFF_UP as u32).to_ne_bytes();
    let head = [&[0u8; 4][..], &index.to_ne_bytes(), &up, &up].concat();
    batch.add(libc::RTM_NEWLINK, 0, &head, attributes);
}

fn hand_over(number: u64, handles: &Handles) -> Result<Reply, Failure> {
    let opened = || -> Result<Reply, Error> {
        let sockets = [
            (Kind::Tcp, socket(libc::SOCK_STREAM, anywhere(PROXY_PORT))?),
            (Kind::Dns, socket(libc::SOCK_DGRAM, anywhere(DNS_PORT))?),
            (Kind::DnsTcp, socket(libc::SOCK_STREAM, anywhere(DNS_PORT))?),
        ];
        for (kind, socket) in sockets {
            handles.send(number, kind, &socket)?;
        }
        Ok(Reply::Network { network: number })
    };
    opened().map_err(|e| Failure::io("open the sockets of a network", &e))
}

/// At every address there is.
pub fn anywhere(port: u16) -> SocketAddrV6 {
    SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0)
}

/// One for both families.
pub fn socket(kind: i32, at: SocketAddrV6) -> Result<OwnedFd, Error> {
    const BACKLOG: i32 = 511;
    // SAFETY: the structures are live and their sizes are passed along; the new descriptor has no other owner.
    unsafe {
        let socket = libc::socket(libc::AF_INET6, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
        check(socket)?;
        let socket = OwnedFd::from_raw_fd(socket);
        let (on, off) = (1i32, 0i32);
        for (level, option, value) in [
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &off),
            (libc::SOL_SOCKET, libc::SO_REUSEADDR, &on),
            (libc::SOL_IP, libc::IP_TRANSPARENT, &on),
            (libc::SOL_IPV6, libc::IPV6_TRANSPARENT, &on),
        ] {
            let size = size_of_val(value) as u32;
            check(libc::setsockopt(socket.as_raw_fd(), level, option, (value as *const i32).cast(), size))?;
        }
        let address = address(at);
        let size = size_of_val(&address) as u32;
        check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size))?;
        if kind == libc::SOCK_STREAM {
            check(libc::listen(socket.as_raw_fd(), BACKLOG))?;
        }
        Ok(socket)
    }
}

fn address(of: SocketAddrV6) -> libc::sockaddr_in6 {
    // SAFETY: all zeros is an address.
    let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    address.sin6_family = libc::AF_INET6 as u16;
    address.sin6_port = of.port().to_be();
    address.sin6_addr.s6_addr = of.ip().octets();
    address
}

pub fn connect_to(socket: &OwnedFd, peer: SocketAddrV6) -> Result<(), Error> {
    let address = address(peer);
    // SAFETY: the address is live and its size is passed along.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) })
}

/// Whether the namespace of this thread still has its VM.
pub fn has_tap() -> bool {
    index_of_tap() != 0
}

fn index_of_tap() -> u32 {
    let name = CString::new(TAP).expect("no zero in it");
    // SAFETY: a live string.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

fn during(what: &str) -> impl Fn(Error) -> Error + '_ {
    move |error| Error::new(error.kind(), format!("{what}: {error}"))
}

pub fn check(result: i32) -> Result<(), Error> {
    match result {
        -1 => Err(Error::last_os_error()),
        _ => Ok(()),
    }
}
