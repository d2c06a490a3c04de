//! Where the host hears of wishes, and answers them.

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use crate::agent::Agent;
use crate::http::{empty, read_json, stream, Body, ChannelBody, Code, Fault};

#[derive(Deserialize)]
struct Answer {
    id: u64,
    answer: Value,
}

pub fn listen(agent: &Agent) -> Response<Body> {
    stream("application/x-ndjson", ChannelBody(agent.wishes.listen()))
}

pub async fn answer(agent: &Agent, request: Request<Incoming>) -> Result<Response<Body>, Fault> {
    let Answer { id, answer } = read_json(request.into_body()).await?;
    match agent.wishes.answer(id, answer) {
        true => Ok(empty(StatusCode::NO_CONTENT)),
        false => Err(Fault::new(Code::NotFound, format!("nobody waits for the answer to wish {id}"))),
    }
}
