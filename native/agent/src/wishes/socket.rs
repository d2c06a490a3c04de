//! The socket on which processes of the guest ask: a line of JSON in, a line of JSON out.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::{refusal, Wish};
use crate::agent::Agent;
use crate::process::Process;

pub const NAME: &str = "guest.sock";

const LINE_LIMIT: usize = 4 << 10;
const LINE_TIME: Duration = Duration::from_secs(10);
/// Longer than a busy host takes for many children. Who waits is told something in any case.
const PATIENCE: Duration = Duration::from_secs(300);
const AFTER_FAILURE: Duration = Duration::from_secs(1);

pub async fn serve(agent: Rc<Agent>) -> io::Result<()> {
    let path = agent.runtime_dir.join(NAME);
    let listener = UnixListener::bind(&path)?;
    // Whoever may not ask is told so.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::task::spawn_local(converse(agent.clone(), stream))),
            Err(_) => tokio::time::sleep(AFTER_FAILURE).await,
        }
    }
}

async fn converse(agent: Rc<Agent>, mut stream: UnixStream) {
    let answer = match heard(&agent, &mut stream).await {
        Ok(wish) => fulfilled(&agent, &mut stream, &wish).await,
        Err(refused) => Some(refused),
    };
    if let Some(answer) = answer {
        let _ = stream.write_all(format!("{answer}\n").as_bytes()).await;
    }
}

async fn heard(agent: &Agent, stream: &mut UnixStream) -> Result<Wish, Value> {
    let line = tokio::time::timeout(LINE_TIME, line(stream)).await.ok().flatten().unwrap_or_default();
    let wish = serde_json::from_slice(&line)
        .map_err(|error| refusal("invalid_request", &format!("not a wish: {error}"), "See `forkd-guest --help`."))?;
    let uid = stream.peer_cred().map_or(u32::MAX, |peer| peer.uid());
    if uid != 0 && agent.default_user().map_or(true, |user| user.uid != uid) {
        let message = format!("user {uid} may not branch this sandbox");
        return Err(refusal("not_permitted", &message, "Ask as root, or as the default user of the sandbox."));
    }
    if !agent.identity.borrow().as_ref().is_some_and(|identity| identity.guest_branch) {
        let message = "this sandbox may not be branched from inside";
        return Err(refusal(
            "not_permitted",
            message,
            "Create it with guest_branch: true (`forkd spawn --guest-branch`).",
        ));
    }
    Ok(wish)
}

/// `None` if nobody is there any more to be told.
async fn fulfilled(agent: &Agent, stream: &mut UnixStream, wish: &Wish) -> Option<Value> {
    let (id, answer) = match agent.wishes.make(wish, asking(agent, stream)) {
        Ok(made) => made,
        Err(refused) => return Some(refused),
    };
    let mut byte = [0];
    let answer = tokio::select! {
        answer = answer => return answer.ok(),
        () = tokio::time::sleep(PATIENCE) => {
            let message = format!("the host has not answered within {} s", PATIENCE.as_secs());
            Some(refusal("timeout", &message, "Is the daemon running? Try again."))
        }
        _ = stream.read(&mut byte) => None,
    };
    agent.wishes.answer(id, Value::Null);
    answer
}

/// Every process that a client of ours has started leads a session.
fn asking(agent: &Agent, stream: &UnixStream) -> Option<Rc<Process>> {
    let pid = stream.peer_cred().ok()?.pid()?;
    // SAFETY: getsid takes no pointers.
    let leader = unsafe { libc::getsid(pid) };
    agent.processes.running().into_iter().find(|process| process.pid == leader)
}

async fn line(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') && line.len() < LINE_LIMIT {
        if stream.read_buf(&mut line).await.ok()? == 0 {
            return None;
        }
    }
    Some(line)
}
