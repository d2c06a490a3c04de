use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::json;

use super::entry::Entry;
use super::paths::resolve;
use super::walk::{list, make_dirs};
use super::watch::{Watch, WatchStream};
use crate::agent::Agent;
use crate::http::{json as json_reply, read_json, stream, Body, Code, Fault, Frames, STREAM_TYPE};
use crate::process::duration_header;
use crate::users::User;

type Answer = Result<Response<Body>, Fault>;

#[derive(Deserialize)]
struct PathRequest {
    #[serde(default)]
    path: String,
    #[serde(default)]
    depth: u32,
}

#[derive(Deserialize)]
struct MoveRequest {
    source: String,
    destination: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatchRequest {
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    include_entry: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatcherRequest {
    watcher_id: String,
}

struct Call<T> {
    user: User,
    workdir: String,
    message: T,
}

impl<T: DeserializeOwned> Call<T> {
    async fn read(agent: &Agent, request: Request<Incoming>) -> Result<Call<T>, Fault> {
        let (parts, body) = request.into_parts();
        Call::with(agent, &parts.headers, read_json(body).await?)
    }

    fn with(agent: &Agent, headers: &HeaderMap, message: T) -> Result<Call<T>, Fault> {
        let user = User::of_request(agent, headers)?;
        let workdir = agent.workdir(&user);
        Ok(Call { user, workdir, message })
    }

    fn path(&self, path: &str) -> Result<PathBuf, Fault> {
        resolve(path, &self.user, &self.workdir)
    }
}

fn entry_reply(path: &std::path::Path) -> Answer {
    Ok(json_reply(StatusCode::OK, &json!({ "entry": Entry::of(path)? })))
}

fn fault(path: &std::path::Path) -> impl Fn(std::io::Error) -> Fault + '_ {
    |error| Fault::io(&path.to_string_lossy(), &error)
}

pub async fn stat(agent: &Agent, request: Request<Incoming>) -> Answer {
    let call = Call::<PathRequest>::read(agent, request).await?;
    entry_reply(&call.path(&call.message.path)?)
}

pub async fn make_dir(agent: &Agent, request: Request<Incoming>) -> Answer {
    let call = Call::<PathRequest>::read(agent, request).await?;
    let path = call.path(&call.message.path)?;
    match fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => {
            return Err(Fault::new(Code::AlreadyExists, format!("{} already exists", path.display())));
        }
        Ok(_) => return Err(Fault::invalid(format!("{} is not a directory", path.display()))),
        Err(_) => make_dirs(&path, call.user.uid, call.user.gid).map_err(fault(&path))?,
    }
    entry_reply(&path)
}

pub async fn rename(agent: &Agent, request: Request<Incoming>) -> Answer {
    let call = Call::<MoveRequest>::read(agent, request).await?;
    let source = call.path(&call.message.source)?;
    let destination = call.path(&call.message.destination)?;
    fs::symlink_metadata(&source).map_err(fault(&source))?;
    if let Some(parent) = destination.parent() {
        make_dirs(parent, call.user.uid, call.user.gid).map_err(fault(parent))?;
    }
    fs::rename(&source, &destination).map_err(fault(&destination))?;
    entry_reply(&destination)
}

pub async fn list_dir(agent: &Agent, request: Request<Incoming>) -> Answer {
    let call = Call::<PathRequest>::read(agent, request).await?;
    let path = call.path(&call.message.path)?;
    let meta = fs::metadata(&path).map_err(fault(&path))?;
    if !meta.is_dir() {
        return Err(Fault::invalid(format!("{} is not a directory", path.display())));
    }
    Ok(json_reply(StatusCode::OK, &json!({ "entries": list(&path, call.message.depth)? })))
}

pub async fn remove(agent: &Agent, request: Request<Incoming>) -> Answer {
    let call = Call::<PathRequest>::read(agent, request).await?;
    let path = call.path(&call.message.path)?;
    let outcome = match fs::symlink_metadata(&path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(&path),
        Ok(_) => fs::remove_file(&path),
        Err(error) => Err(error),
    };
    match outcome {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(fault(&path)(error)),
        _ => Ok(json_reply(StatusCode::OK, &json!({}))),
    }
}

fn open_watch(call: &Call<WatchRequest>) -> Result<Watch, Fault> {
    let path = call.path(&call.message.path)?;
    let meta = fs::metadata(&path).map_err(fault(&path))?;
    if !meta.is_dir() {
        return Err(Fault::invalid(format!("{} is not a directory", path.display())));
    }
    let watch = Watch::open(&path, call.message.recursive, call.message.include_entry);
    watch.map_err(fault(&path))
}

pub async fn watch_dir(agent: &Agent, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let call = Call::<WatchRequest>::with(agent, &parts.headers, Frames::new(body).only().await?)?;
    let silence = duration_header(&parts.headers, "keepalive-ping-interval", Duration::from_secs(1));
    let limit = duration_header(&parts.headers, "connect-timeout-ms", Duration::from_millis(1));
    Ok(stream(STREAM_TYPE, WatchStream::new(open_watch(&call)?, silence, limit)))
}

pub async fn create_watcher(agent: &Agent, request: Request<Incoming>) -> Answer {
    let call = Call::<WatchRequest>::read(agent, request).await?;
    let id = agent.watchers.add(open_watch(&call)?)?;
    Ok(json_reply(StatusCode::OK, &json!({ "watcherId": id })))
}

pub async fn watcher_events(agent: &Agent, request: Request<Incoming>) -> Answer {
    let call = Call::<WatcherRequest>::read(agent, request).await?;
    let events = agent.watchers.take_events(&call.message.watcher_id)?;
    Ok(json_reply(StatusCode::OK, &json!({ "events": events })))
}

pub async fn remove_watcher(agent: &Agent, request: Request<Incoming>) -> Answer {
    let call = Call::<WatcherRequest>::read(agent, request).await?;
    agent.watchers.remove(&call.message.watcher_id)?;
    Ok(json_reply(StatusCode::OK, &json!({})))
}
