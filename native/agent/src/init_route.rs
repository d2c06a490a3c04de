//! POST /init of E2B's envd: what every later process starts from.

use std::collections::BTreeMap;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;

use crate::agent::Agent;
use crate::http::{empty, read_json, Body, Fault};
use crate::machine;
use crate::time::parse_rfc3339;
use crate::users::User;

/// Clocks this close are left alone; a step back is only worth it when the clock is far ahead.
const BEHIND_NS: i64 = 50_000_000;
const AHEAD_NS: i64 = 5_000_000_000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Init {
    env_vars: Option<BTreeMap<String, String>>,
    default_user: Option<String>,
    default_workdir: Option<String>,
    timestamp: Option<String>,
}

pub async fn init(agent: &Agent, request: Request<Incoming>) -> Result<Response<Body>, Fault> {
    let message: Init = read_json(request.into_body()).await?;
    if let Some(timestamp) = &message.timestamp {
        let wanted = parse_rfc3339(timestamp).ok_or_else(|| Fault::invalid("timestamp is not RFC 3339"))?;
        let offset = crate::time::now_ns() - wanted;
        if agent.is_init && !(-BEHIND_NS..=AHEAD_NS).contains(&offset) {
            machine::set_clock(wanted).map_err(|error| Fault::internal(format!("clock: {error}")))?;
        }
    }
    if let Some(user) = &message.default_user {
        User::named(user)?;
    }
    let mut defaults = agent.defaults.borrow_mut();
    if let Some(env) = message.env_vars {
        defaults.env = env;
    }
    if let Some(user) = message.default_user {
        defaults.user = user;
    }
    if let Some(workdir) = message.default_workdir {
        defaults.workdir = Some(workdir).filter(|workdir| !workdir.is_empty());
    }
    Ok(empty(StatusCode::NO_CONTENT))
}
