//! The one network device: its addresses never change, also not in children, whose wire ends in a namespace of their own each.

use std::ffi::c_void;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::str::FromStr;
use std::time::Duration;

use super::console;

const DEVICE: &str = "eth0";
const DEVICE_ATTEMPTS: u32 = 400;
const STEP: Duration = Duration::from_millis(5);
const PREFIX4: u32 = 30;
const PREFIX6: u32 = 64;

/// Nothing is negotiated on the wire: the addresses are known, and there is nobody to ask.
const SETTINGS: &[(&str, &str)] = &[
    ("accept_dad", "0"),
    ("dad_transmits", "0"),
    ("accept_ra", "0"),
    ("addr_gen_mode", "1"),
    ("router_solicitations", "0"),
];

/// What `forkd.network=` says: own address and gateway, of IPv4 and of IPv6.
struct Addresses {
    own4: Ipv4Addr,
    gateway4: Ipv4Addr,
    own6: Ipv6Addr,
    gateway6: Ipv6Addr,
}

/// The kernel's struct in6_ifreq.
#[repr(C)]
struct Address6 {
    address: [u8; 16],
    prefix: u32,
    index: i32,
}

/// The kernel's struct in6_rtmsg.
#[repr(C)]
#[derive(Default)]
struct Route6 {
    to: [u8; 16],
    from: [u8; 16],
    gateway: [u8; 16],
    kind: u32,
    to_prefix: u16,
    from_prefix: u16,
    metric: u32,
    info: usize,
    flags: u32,
    index: i32,
}

/// A guest without a network is worth more than none, so nothing of this is fatal.
pub fn configure(text: &str) {
    let outcome = parse(text).ok_or("not four addresses".to_string()).and_then(|addresses| {
        wait_for_device()?;
        configure4(&addresses).map_err(|error| format!("IPv4: {error}"))?;
        // A kernel may have been built without it.
        if let Err(error) = configure6(&addresses) {
            console::print(&format!("network: IPv6: {error}"));
        }
        name_server(addresses.gateway4).map_err(|error| format!("resolv.conf: {error}"))
    });
    if let Err(reason) = outcome {
        console::print(&format!("network: {reason}"));
    }
}

fn parse(text: &str) -> Option<Addresses> {
    fn next<T: FromStr>(parts: &mut std::str::Split<'_, char>) -> Option<T> {
        parts.next()?.parse().ok()
    }
    let mut parts = text.split(',');
    Some(Addresses {
        own4: next(&mut parts)?,
        gateway4: next(&mut parts)?,
        own6: next(&mut parts)?,
        gateway6: next(&mut parts)?,
    })
}

fn wait_for_device() -> Result<(), String> {
    for _ in 0..DEVICE_ATTEMPTS {
        if fs::exists(format!("/sys/class/net/{DEVICE}")).unwrap_or(false) {
            return Ok(());
        }
        std::thread::sleep(STEP);
    }
    Err(format!("{DEVICE} did not appear"))
}

fn configure4(addresses: &Addresses) -> io::Result<()> {
    for (name, value) in SETTINGS {
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{DEVICE}/{name}"), value);
    }
    let socket = socket(libc::AF_INET)?;
    let mut request = named();
    for (call, address) in
        [(libc::SIOCSIFADDR, addresses.own4), (libc::SIOCSIFNETMASK, Ipv4Addr::from(u32::MAX << (32 - PREFIX4)))]
    {
        request.ifr_ifru.ifru_addr = address4(address);
        order(&socket, call, &request)?;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    order(&socket, libc::SIOCSIFFLAGS, &request)?;
    // SAFETY: all zero is a route with nothing in it.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = address4(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = address4(Ipv4Addr::UNSPECIFIED);
    route.rt_gateway = address4(addresses.gateway4);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    order(&socket, libc::SIOCADDRT, &route)
}

fn configure6(addresses: &Addresses) -> io::Result<()> {
    let socket = socket(libc::AF_INET6)?;
    let mut request = named();
    // SAFETY: the kernel fills in the number of the device.
    let index = unsafe {
        order(&socket, libc::SIOCGIFINDEX, &mut request)?;
        request.ifr_ifru.ifru_ifindex
    };
    let address = Address6 { address: addresses.own6.octets(), prefix: PREFIX6, index };
    order(&socket, libc::SIOCSIFADDR, &address)?;
    let route = Route6 {
        gateway: addresses.gateway6.octets(),
        metric: 1,
        flags: u32::from(libc::RTF_UP | libc::RTF_GATEWAY),
        index,
        ..Default::default()
    };
    order(&socket, libc::SIOCADDRT, &route)
}

/// In place of a link too, which would lead to a resolver that does not run.
fn name_server(address: Ipv4Addr) -> io::Result<()> {
    let file = "/etc/resolv.conf";
    let text = format!("nameserver {address}\n");
    if fs::read_to_string(file).is_ok_and(|present| present == text) {
        return Ok(());
    }
    let _ = fs::remove_file(file);
    fs::create_dir_all("/etc")?;
    fs::write(file, text)
}

fn socket(family: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain integers; the new descriptor has no other owner.
    match unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) } {
        -1 => Err(io::Error::last_os_error()),
        socket => Ok(unsafe { OwnedFd::from_raw_fd(socket) }),
    }
}

fn named() -> libc::ifreq {
    // SAFETY: all zero is a request with nothing in it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(DEVICE.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn address4(address: Ipv4Addr) -> libc::sockaddr {
    // SAFETY: all zero is an address; both structures have the same size and begin with the family.
    unsafe {
        let mut place: libc::sockaddr_in = std::mem::zeroed();
        place.sin_family = libc::AF_INET as u16;
        place.sin_addr.s_addr = u32::from(address).to_be();
        std::mem::transmute(place)
    }
}

/// The kernel reads, and may write, a structure of the kind that belongs to the call.
fn order<T>(socket: &OwnedFd, call: impl Into<u64>, what: *const T) -> io::Result<()> {
    // SAFETY: the callers pass the structure that the call is documented with, and it outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), call.into() as libc::Ioctl, what.cast::<c_void>()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn reads_addresses() {
        let addresses = parse("10.107.0.2,10.107.0.1,fd66::2,fd66::1").expect("four addresses");
        assert_eq!(addresses.gateway4.octets(), [10, 107, 0, 1]);
        assert_eq!(addresses.own6.segments()[7], 2);
        assert!(parse("10.107.0.2,10.107.0.1,fd66::2").is_none());
        assert!(parse("a,b,c,d").is_none());
    }
}
