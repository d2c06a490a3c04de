//! What may pass in the network namespace of a VM, as nftables rules. All of it is decided before anything of the host's own sees it:
//! frames that do not come from the guest's own addresses are dropped on arrival at the tap; of the rest, what is for the gateway
//! (DNS, echo) is let through, every TCP connection goes to our listener whatever its destination, so does UDP where somebody listens
//! for it, and all else is dropped.

use crate::netlink::{self, Attributes, Batch};
use crate::network::{Wiring, PROXY_PORT, TAP, UDP_PORT};
use crate::protocol::Drops;
use std::io::{Error, ErrorKind};

const TABLE: &str = "forkd";
/// Counters: frames with a sender that is not the guest's, and packets for which there is no way out.
const SPOOFED: &str = "spoofed";
const UDP: &str = "udp";
const OTHER: &str = "other";

const NETDEV: u8 = 5;
const INET: u8 = 1;
/// Before all that looks at connections, as the documentation of tproxy asks.
const MANGLE: i32 = -150;

const REGISTER: u32 = 1;
const LINK: u32 = 0;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const DNS: [u8; 2] = 53u16.to_be_bytes();

/// Ethernet and IPv4, 6 and 4 bytes, a request.
const ARP_REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];

pub fn install(wiring: &Wiring) -> Result<(), Error> {
    let mut batch = Batch::default();
    batch.add(libc::NFNL_MSG_BATCH_BEGIN as u16, 0, &subsystem(), Attributes::default());
    ingress(&mut batch, wiring);
    prerouting(&mut batch, wiring);
    batch.add(libc::NFNL_MSG_BATCH_END as u16, 0, &subsystem(), Attributes::default());
    batch.send(libc::NETLINK_NETFILTER)
}

/// How many frames and packets were dropped so far, in the namespace of this thread.
pub fn drops() -> Result<Drops, Error> {
    Ok(Drops { spoofed: count(NETDEV, SPOOFED)?, udp: count(INET, UDP)?, other: count(INET, OTHER)? })
}

fn count(family: u8, counter: &str) -> Result<u64, Error> {
    let name = Attributes::default().text(1, TABLE).text(2, counter).big(3, 1);
    let object = netlink::ask(libc::NETLINK_NETFILTER, kind(libc::NFT_MSG_GETOBJ), &head(family), name)?;
    let packets = netlink::find(&object, 4).and_then(|data| netlink::find(data, 2));
    packets.and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes).ok_or_else(|| ErrorKind::InvalidData.into())
}

fn ingress(batch: &mut Batch, wiring: &Wiring) {
    let hook = Attributes::default().big(1, 0).big(2, 0).text(3, TAP);
    table(batch, NETDEV, &[SPOOFED], "ingress", hook);
    let from_guest = |kind: u16| Rule::default().meta(1, &kind.to_be_bytes()).payload(LINK, 6, &wiring.guest_mac);
    let arp = from_guest(ARP).payload(NETWORK, 0, &ARP_REQUEST).payload(NETWORK, 8, &wiring.guest_mac);
    let rules = [
        arp.payload(NETWORK, 14, &wiring.guest4.octets()).accept(),
        from_guest(IPV4).payload(NETWORK, 12, &wiring.guest4.octets()).accept(),
        from_guest(IPV6).payload(NETWORK, 8, &wiring.guest6.octets()).accept(),
        Rule::default().count(SPOOFED).drop(),
    ];
    for rule in rules {
        rule.add(batch, NETDEV, "ingress");
    }
}

fn prerouting(batch: &mut Batch, wiring: &Wiring) {
    let hook = Attributes::default().big(1, 0).big(2, MANGLE as u32);
    table(batch, INET, &[UDP, OTHER], "prerouting", hook);
    let (gateway4, gateway6) = (wiring.gateway4.octets(), wiring.gateway6.octets());
    let to_gateway = |family: i32, protocol: i32| {
        let rule = Rule::default().meta(15, &[family as u8]);
        let rule = match family {
            libc::AF_INET => rule.payload(NETWORK, 16, &gateway4),
            _ => rule.payload(NETWORK, 24, &gateway6),
        };
        rule.meta(16, &[protocol as u8])
    };
    let echo = |family, protocol, kind: u8| to_gateway(family, protocol).payload(TRANSPORT, 0, &[kind]).accept();
    let dns = |family, protocol| to_gateway(family, protocol).payload(TRANSPORT, 2, &DNS).accept();
    let tcp = || Rule::default().meta(16, &[libc::IPPROTO_TCP as u8]);
    let udp = || Rule::default().meta(16, &[libc::IPPROTO_UDP as u8]);
    let solicitation = Rule::default().meta(16, &[libc::IPPROTO_ICMPV6 as u8]).payload(TRANSPORT, 0, &[135]);
    let rules = [
        dns(libc::AF_INET, libc::IPPROTO_UDP),
        dns(libc::AF_INET6, libc::IPPROTO_UDP),
        dns(libc::AF_INET, libc::IPPROTO_TCP),
        dns(libc::AF_INET6, libc::IPPROTO_TCP),
        echo(libc::AF_INET, libc::IPPROTO_ICMP, 8),
        echo(libc::AF_INET6, libc::IPPROTO_ICMPV6, 128),
        solicitation.accept(),
        tcp().to_socket(PROXY_PORT).accept(),
        // Nobody listens: every address is the namespace's own, so the kernel refuses the connection.
        tcp().accept(),
        udp().to_socket(UDP_PORT).accept(),
        udp().count(UDP).drop(),
        Rule::default().count(OTHER).drop(),
    ];
    for rule in rules {
        rule.add(batch, INET, "prerouting");
    }
}

fn table(batch: &mut Batch, family: u8, counters: &[&str], chain: &str, hook: Attributes) {
    let create = libc::NLM_F_CREATE;
    batch.add(kind(libc::NFT_MSG_NEWTABLE), create, &head(family), Attributes::default().text(1, TABLE));
    for counter in counters {
        let object = Attributes::default().text(1, TABLE).text(2, counter).big(3, 1).nest(4, Attributes::default());
        batch.add(kind(libc::NFT_MSG_NEWOBJ), create, &head(family), object);
    }
    // Policy 0: what no rule accepts is dropped.
    let base = Attributes::default().text(1, TABLE).text(3, chain).nest(4, hook).big(5, 0).text(7, "filter");
    batch.add(kind(libc::NFT_MSG_NEWCHAIN), create, &head(family), base);
}

/// Expressions that are true one after the other, and what then becomes of the packet.
#[derive(Default)]
struct Rule(Attributes);

impl Rule {
    fn expression(self, name: &str, data: Attributes) -> Self {
        Rule(self.0.nest(1, Attributes::default().text(1, name).nest(2, data)))
    }

    fn meta(self, key: u32, value: &[u8]) -> Self {
        self.expression("meta", Attributes::default().big(1, REGISTER).big(2, key)).equals(value)
    }

    fn payload(self, base: u32, offset: u32, value: &[u8]) -> Self {
        let field = Attributes::default().big(1, REGISTER).big(2, base).big(3, offset).big(4, value.len() as u32);
        self.expression("payload", field).equals(value)
    }

    fn equals(self, value: &[u8]) -> Self {
        let value = Attributes::default().bytes(1, value);
        self.expression("cmp", Attributes::default().big(1, REGISTER).big(2, 0).nest(3, value))
    }

    /// False where nobody listens there.
    fn to_socket(self, port: u16) -> Self {
        let port = Attributes::default().bytes(1, &port.to_be_bytes());
        self.expression("immediate", Attributes::default().big(1, REGISTER).nest(2, port))
            .expression("tproxy", Attributes::default().big(1, 0).big(3, REGISTER))
    }

    fn count(self, counter: &str) -> Self {
        self.expression("objref", Attributes::default().big(1, 1).text(2, counter))
    }

    fn accept(self) -> Self {
        self.verdict(libc::NF_ACCEPT)
    }

    fn drop(self) -> Self {
        self.verdict(libc::NF_DROP)
    }

    fn verdict(self, code: i32) -> Self {
        let verdict = Attributes::default().nest(2, Attributes::default().big(1, code as u32));
        self.expression("immediate", Attributes::default().big(1, 0).nest(2, verdict))
    }

    fn add(self, batch: &mut Batch, family: u8, chain: &str) {
        let rule = Attributes::default().text(1, TABLE).text(2, chain).nest(4, self.0);
        let flags = libc::NLM_F_CREATE | libc::NLM_F_APPEND;
        batch.add(kind(libc::NFT_MSG_NEWRULE), flags, &head(family), rule);
    }
}

fn kind(message: i32) -> u16 {
    ((libc::NFNL_SUBSYS_NFTABLES << 8) | message) as u16
}

fn head(family: u8) -> [u8; 4] {
    [family, libc::NFNETLINK_V0 as u8, 0, 0]
}

fn subsystem() -> [u8; 4] {
    let [high, low] = (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes();
    [libc::AF_UNSPEC as u8, libc::NFNETLINK_V0 as u8, high, low]
}
