//! The byte channels the host may reach us on. All of them carry HTTP/2 cleartext.

mod hail;
mod port;
mod vsock;

use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use tokio::net::UnixListener;

use crate::agent::Agent;
use crate::http::serve_connection;

pub enum Channel {
    Unix(PathBuf),
    VirtioSerial {
        /// With which the host makes itself heard.
        key: String,
    },
    Vsock,
}

impl Channel {
    pub fn from_args(mut args: impl Iterator<Item = String>) -> Option<Channel> {
        match (args.next()?.as_str(), args.next()?.strip_prefix("unix:")) {
            ("--listen", Some(path)) => Some(Channel::Unix(path.into())),
            _ => None,
        }
    }
}

/// Returns only with an error: a guest without a channel is of no use to anyone.
pub async fn serve(agent: Rc<Agent>, channel: Channel) -> io::Result<()> {
    match channel {
        Channel::VirtioSerial { key } => port::serve(agent, &key).await,
        Channel::Vsock => vsock::serve(agent).await,
        Channel::Unix(path) => {
            let listener = UnixListener::bind(path)?;
            loop {
                let (stream, _) = listener.accept().await?;
                tokio::task::spawn_local(serve_connection(agent.clone(), stream));
            }
        }
    }
}
