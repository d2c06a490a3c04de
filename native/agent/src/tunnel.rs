//! CONNECT: a byte stream to a port of this guest, and to nowhere else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::http::{empty, Body, Code, Fault};

pub async fn open(request: Request<Incoming>) -> Result<Response<Body>, Fault> {
    let authority = request.uri().authority().ok_or_else(|| Fault::invalid("CONNECT needs an authority"))?;
    let port = authority.port_u16().ok_or_else(|| Fault::invalid("CONNECT needs a port"))?;
    let hosts = loopback(authority.host())
        .ok_or_else(|| Fault::invalid(format!("{} is not a loopback address", authority.host())))?;
    let places: Vec<SocketAddr> = hosts.into_iter().map(|host| (host, port).into()).collect();
    let mut target = TcpStream::connect(&places[..])
        .await
        .map_err(|error| Fault::new(Code::Unavailable, format!("port {port}: {error}")))?;
    tokio::task::spawn_local(async move {
        if let Ok(stream) = hyper::upgrade::on(request).await {
            let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(stream), &mut target).await;
        }
    });
    Ok(empty(StatusCode::OK))
}

/// The addresses to try, in this order.
fn loopback(host: &str) -> Option<Vec<IpAddr>> {
    if host == "localhost" {
        return Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let address: IpAddr = host.trim_matches(['[', ']']).parse().ok()?;
    address.is_loopback().then_some(vec![address])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback() {
        for good in ["localhost", "127.0.0.1", "127.8.8.8", "[::1]"] {
            assert!(loopback(good).is_some(), "{good}");
        }
        for bad in ["10.0.0.1", "example.com", "0.0.0.0", "[::]", "[::ffff:127.0.0.1]", ""] {
            assert!(loopback(bad).is_none(), "{bad}");
        }
    }
}
