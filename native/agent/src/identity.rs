//! Makes a restored child a machine of its own. Whatever fails here fails the child: nobody may use a half-copied identity.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::prelude::{Engine, BASE64_STANDARD};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use crate::agent::Agent;
use crate::eval::RESEED;
use crate::hooks;
use crate::http::{json as json_reply, read_json, Body, Fault};
use crate::machine;

const HOOKS: &str = "/etc/forkd/after-spawn.d";
const KERNEL_LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    pub id: String,
    pub parent: String,
    pub index: u32,
    pub count: u32,
    pub time_unix_ns: String,
    pub hostname: String,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Whether its processes may ask for branches. The host asks itself as well; this only says so sooner.
    #[serde(default)]
    pub guest_branch: bool,
}

#[derive(Deserialize)]
struct Adopt {
    entropy: String,
    /// It has just been made, and does not only get another name.
    #[serde(default)]
    born: bool,
    #[serde(flatten)]
    identity: Identity,
}

pub async fn adopt(agent: &Agent, request: Request<Incoming>) -> Result<Response<Body>, Fault> {
    let started = Instant::now();
    let Adopt { entropy, born, identity } = read_json(request.into_body()).await?;
    let entropy: [u8; 64] = BASE64_STANDARD
        .decode(&entropy)
        .ok()
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| Fault::invalid("entropy must be the base64 of 64 bytes"))?;
    let time: i64 =
        identity.time_unix_ns.parse().map_err(|_| Fault::invalid("time_unix_ns must be a decimal string"))?;
    if agent.is_init {
        step("rng", machine::feed_random(&entropy))?;
        step("clock", machine::set_clock(time))?;
        step("hostname", nix::unistd::sethostname(&identity.hostname).map_err(io::Error::from))?;
        step("machine-id", machine::renew_ids())?;
        renew_host_keys(agent).await?;
    }
    // A generator that goes by the clock takes itself for fresh: for this moment it was seeded in the future.
    let aged = agent.is_init && born && agent.kernels.goes_by_the_clock();
    if aged {
        step("clock", machine::move_clock(-machine::AGES_SECS))?;
    }
    let kernels = agent.kernels.order(RESEED, |_| order(&identity.env), KERNEL_LIMIT).await;
    if aged {
        step("clock", machine::move_clock(machine::AGES_SECS))?;
    }
    let kernels = kernels.map_err(|fault| Fault::new(fault.code, format!("kernels: {}", fault.message)))?;
    let file = agent.runtime_dir.join("identity.json");
    step("identity.json", std::fs::write(file, json!(identity).to_string()))?;
    let hook_env = hook_environment(&identity);
    *agent.identity.borrow_mut() = Some(identity);
    let hooks = if agent.is_init { hooks::run(agent, Path::new(HOOKS), &hook_env).await? } else { Vec::new() };
    if let Some(failed) = hooks.iter().find(|hook| hook.exit_code != 0) {
        let message = format!("hooks: {} ended with {}", failed.name, failed.exit_code);
        return Err(Fault::internal(message));
    }
    if let Some(identity) = agent.identity.borrow().as_ref().filter(|_| born) {
        agent.wishes.copied(identity);
    }
    let hooks: Vec<Value> =
        hooks.iter().map(|hook| json!({ "name": hook.name, "exit_code": hook.exit_code })).collect();
    let reply = json!({
        "id": agent.identity.borrow().as_ref().map(|identity| identity.id.clone()),
        "hooks": hooks,
        "kernels": kernels,
        "took_us": started.elapsed().as_micros() as u64,
    });
    Ok(json_reply(StatusCode::OK, &reply))
}

fn step(name: &str, outcome: io::Result<()>) -> Result<(), Fault> {
    outcome.map_err(|error| Fault::internal(format!("{name}: {error}")))
}

/// Each kernel draws its own seed from the generator that was just fed.
fn order(env: &BTreeMap<String, String>) -> Vec<u8> {
    json!({ "seed": machine::random_hex::<32>(), "env": env }).to_string().into_bytes()
}

async fn renew_host_keys(agent: &Agent) -> Result<(), Fault> {
    let Ok(entries) = std::fs::read_dir("/etc/ssh") else {
        return Ok(());
    };
    let mut found = false;
    for entry in entries.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b"ssh_host_") {
            found = true;
            step("ssh host keys", std::fs::remove_file(entry.path()))?;
        }
    }
    if found {
        let code = hooks::run_program(agent, "ssh-keygen", &["-A".to_owned()], &BTreeMap::new()).await?;
        if code != 0 {
            return Err(Fault::internal(format!("ssh host keys: ssh-keygen ended with {code}")));
        }
    }
    Ok(())
}

fn hook_environment(identity: &Identity) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("FORKD_ID".to_owned(), identity.id.clone()),
        ("FORKD_PARENT".to_owned(), identity.parent.clone()),
        ("FORKD_INDEX".to_owned(), identity.index.to_string()),
        ("FORKD_COUNT".to_owned(), identity.count.to_string()),
    ])
}
