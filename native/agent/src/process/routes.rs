//! process.Process, as E2B's clients call it.

use std::rc::Rc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::{json, Value};

use super::events::{duration_header, Events};
use super::input::{self, InputData};
use super::pty::{self, Size};
use super::pump;
use super::start::{self, StartRequest};
use super::table::Selector;
use crate::agent::Agent;
use crate::http::{
    data_frame, end_frame, full, json as json_reply, read_json, stream, Body, Fault, Frames, STREAM_TYPE,
};
use crate::users::User;

type Answer = Result<Response<Body>, Fault>;

#[derive(Deserialize)]
struct Target {
    process: Selector,
}

#[derive(Deserialize)]
struct InputRequest {
    process: Selector,
    input: InputData,
}

#[derive(Deserialize)]
struct SignalRequest {
    process: Selector,
    signal: String,
}

#[derive(Deserialize)]
struct UpdateRequest {
    process: Selector,
    pty: Terminal,
}

#[derive(Deserialize)]
pub struct Terminal {
    pub size: Size,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum InputMessage {
    Start(Target),
    Data { input: InputData },
    Keepalive {},
}

pub async fn start(agent: Rc<Agent>, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let user = User::of_request(&agent, &parts.headers)?;
    let message: StartRequest = Frames::new(body).only().await?;
    let limit = duration_header(&parts.headers, "connect-timeout-ms", Duration::from_millis(1));
    let started = start::start(&agent, &user, message)?;
    let events = Events::subscribe(started.process.clone(), &parts.headers, None);
    tokio::task::spawn_local(pump::run(started.process, started.outputs, started.exiting, limit));
    Ok(stream(STREAM_TYPE, events))
}

pub async fn connect(agent: &Agent, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let target: Target = Frames::new(body).only().await?;
    let process = agent.processes.find(&target.process)?;
    let deadline = duration_header(&parts.headers, "connect-timeout-ms", Duration::from_millis(1));
    Ok(stream(STREAM_TYPE, Events::subscribe(process, &parts.headers, deadline)))
}

pub fn list(agent: &Agent) -> Answer {
    let describe = |process: &Rc<super::table::Process>| {
        let mut info = json!({ "config": process.config, "pid": process.pid });
        if let Some(tag) = &process.tag {
            info["tag"] = tag.as_str().into();
        }
        info
    };
    let processes: Vec<Value> = agent.processes.running().iter().map(describe).collect();
    Ok(json_reply(StatusCode::OK, &json!({ "processes": processes })))
}

pub async fn send_input(agent: &Agent, request: Request<Incoming>) -> Answer {
    let message: InputRequest = read_json(request.into_body()).await?;
    let process = agent.processes.find_running(&message.process)?;
    input::write(&process, &message.input).await?;
    Ok(done())
}

pub async fn stream_input(agent: &Agent, request: Request<Incoming>) -> Answer {
    let mut messages = Frames::new(request.into_body());
    let Some(InputMessage::Start(target)) = messages.next().await? else {
        return Err(Fault::invalid("the first message must be start"));
    };
    let process = agent.processes.find_running(&target.process)?;
    while let Some(message) = messages.next().await? {
        match message {
            InputMessage::Data { input } => input::write(&process, &input).await?,
            InputMessage::Keepalive {} => {}
            InputMessage::Start(_) => return Err(Fault::invalid("start comes only once")),
        }
    }
    let reply = [data_frame(b"{}"), end_frame(None)].concat();
    Ok(full(StatusCode::OK, STREAM_TYPE, reply))
}

pub async fn close_stdin(agent: &Agent, request: Request<Incoming>) -> Answer {
    let message: Target = read_json(request.into_body()).await?;
    let process = agent.processes.find_running(&message.process)?;
    input::close(&process).await?;
    Ok(done())
}

pub async fn send_signal(agent: &Agent, request: Request<Incoming>) -> Answer {
    let message: SignalRequest = read_json(request.into_body()).await?;
    let process = agent.processes.find_running(&message.process)?;
    let signal = match message.signal.as_str() {
        "SIGNAL_SIGKILL" => libc::SIGKILL,
        "SIGNAL_SIGTERM" => libc::SIGTERM,
        "SIGNAL_SIGINT" => libc::SIGINT,
        "SIGNAL_SIGHUP" => libc::SIGHUP,
        "SIGNAL_SIGQUIT" => libc::SIGQUIT,
        "SIGNAL_SIGUSR1" => libc::SIGUSR1,
        "SIGNAL_SIGUSR2" => libc::SIGUSR2,
        other => return Err(Fault::invalid(format!("unknown signal {other:?}"))),
    };
    super::signal_group(process.pid, signal);
    Ok(done())
}

pub async fn update(agent: &Agent, request: Request<Incoming>) -> Answer {
    let message: UpdateRequest = read_json(request.into_body()).await?;
    let process = agent.processes.find_running(&message.process)?;
    let terminal = process.terminal.as_ref().ok_or_else(|| Fault::invalid("the process has no terminal"))?;
    pty::resize(terminal, message.pty.size).map_err(|error| Fault::internal(format!("resize: {error}")))?;
    Ok(done())
}

fn done() -> Response<Body> {
    json_reply(StatusCode::OK, &json!({}))
}
