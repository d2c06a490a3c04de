//! Which function answers which request, and how its failure is worded.

use std::rc::Rc;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;

use super::connect::stream_error;
use super::fault::Fault;
use super::reply::{empty, json, Body};
use crate::agent::Agent;
use crate::{eval, files, identity, init_route, metrics, ports, process, settle, shutdown, tunnel, wishes};

type Answer = Result<Response<Body>, Fault>;

pub async fn route(agent: Rc<Agent>, request: Request<Incoming>) -> Response<Body> {
    let method = request.method().clone();
    if method == Method::CONNECT {
        return tunnel::open(request).await.unwrap_or_else(plain_error);
    }
    let path = request.uri().path().to_owned();
    if method == Method::POST {
        if let Some(procedure) = path.strip_prefix("/process.Process/") {
            return process_call(agent, procedure, request).await;
        }
        if let Some(procedure) = path.strip_prefix("/filesystem.Filesystem/") {
            return filesystem_call(agent, procedure, request).await;
        }
    }
    let answer = match (method.as_str(), path.as_str()) {
        ("POST", "/forkd/identity") => identity::adopt(&agent, request).await,
        ("POST", "/forkd/eval") => eval::routes::eval(agent, request).await,
        ("POST", "/forkd/interrupt") => eval::routes::interrupt(&agent, request).await,
        ("POST", "/forkd/kernels") => eval::routes::start(&agent, request).await,
        ("POST", "/forkd/settle") => settle::settle(&agent, request).await,
        ("POST", "/forkd/shutdown") => shutdown::requested(agent),
        ("GET", "/forkd/wishes") => Ok(wishes::routes::listen(&agent)),
        ("POST", "/forkd/wishes") => wishes::routes::answer(&agent, request).await,
        ("GET", "/forkd/health") => Ok(metrics::health(&agent)),
        ("GET", "/forkd/ports") => Ok(ports::list()),
        ("GET", "/health") => Ok(empty(StatusCode::NO_CONTENT)),
        ("GET", "/metrics") => metrics::metrics(&agent),
        ("GET", "/envs") => Ok(metrics::environment(&agent)),
        ("GET", "/files") => files::download::get(&agent, request),
        ("POST", "/files") => files::upload::post(&agent, request).await,
        ("POST", "/init") => init_route::init(&agent, request).await,
        _ => return no_such_route(&method, &path),
    };
    answer.unwrap_or_else(plain_error)
}

async fn process_call(agent: Rc<Agent>, procedure: &str, request: Request<Incoming>) -> Response<Body> {
    use process::routes;
    let answer = match procedure {
        "Start" => return streamed(routes::start(agent, request).await),
        "Connect" => return streamed(routes::connect(&agent, request).await),
        "StreamInput" => return streamed(routes::stream_input(&agent, request).await),
        "List" => routes::list(&agent),
        "SendInput" => routes::send_input(&agent, request).await,
        "CloseStdin" => routes::close_stdin(&agent, request).await,
        "SendSignal" => routes::send_signal(&agent, request).await,
        "Update" => routes::update(&agent, request).await,
        _ => return no_such_route(request.method(), request.uri().path()),
    };
    answer.unwrap_or_else(unary_error)
}

async fn filesystem_call(agent: Rc<Agent>, procedure: &str, request: Request<Incoming>) -> Response<Body> {
    use files::routes;
    let answer = match procedure {
        "WatchDir" => return streamed(routes::watch_dir(&agent, request).await),
        "Stat" => routes::stat(&agent, request).await,
        "MakeDir" => routes::make_dir(&agent, request).await,
        "Move" => routes::rename(&agent, request).await,
        "ListDir" => routes::list_dir(&agent, request).await,
        "Remove" => routes::remove(&agent, request).await,
        "CreateWatcher" => routes::create_watcher(&agent, request).await,
        "GetWatcherEvents" => routes::watcher_events(&agent, request).await,
        "RemoveWatcher" => routes::remove_watcher(&agent, request).await,
        _ => return no_such_route(request.method(), request.uri().path()),
    };
    answer.unwrap_or_else(unary_error)
}

fn streamed(answer: Answer) -> Response<Body> {
    answer.unwrap_or_else(|fault| stream_error(&fault))
}

fn unary_error(fault: Fault) -> Response<Body> {
    json(fault.code.status(), &json!({ "code": fault.code.name(), "message": fault.message }))
}

fn plain_error(fault: Fault) -> Response<Body> {
    let status = fault.code.status();
    json(status, &json!({ "code": status.as_u16(), "message": fault.message }))
}

fn no_such_route(method: &Method, path: &str) -> Response<Body> {
    let message = format!("no route {method} {path}");
    json(StatusCode::NOT_FOUND, &json!({ "code": 404, "message": message }))
}
