//! POST /files: raw bytes or a form with several files, written as they arrive.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE};
use hyper::{HeaderMap, Request, Response, StatusCode};
use serde_json::{json, Value};

use super::arriving::Arriving;
use super::form::{boundary, Form, Piece};
use super::paths::resolve;
use super::walk::make_dirs;
use crate::agent::Agent;
use crate::http::{json as json_reply, Body, Code, Fault};
use crate::users::User;

/// The parts of the query string, with the path made absolute.
pub struct Query {
    pub path: Option<PathBuf>,
    user: User,
    workdir: String,
}

impl Query {
    pub fn of(agent: &Agent, request: &Request<Incoming>) -> Result<Query, Fault> {
        let (mut path, mut name) = (None, None);
        for pair in request.uri().query().unwrap_or_default().split('&') {
            match pair.split_once('=') {
                Some(("path", value)) => path = Some(decode(value)?),
                Some(("username", value)) => name = Some(decode(value)?),
                _ => {}
            }
        }
        let user = match name.filter(|name| !name.is_empty()) {
            Some(name) => User::named(&name)?,
            None => User::of_request(agent, request.headers())?,
        };
        let workdir = agent.workdir(&user);
        let path = path.filter(|path| !path.is_empty());
        Ok(Query { path: path.map(|path| resolve(&path, &user, &workdir)).transpose()?, user, workdir })
    }
}

fn decode(text: &str) -> Result<String, Fault> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, tail) {
            (b'+', _) => bytes.push(b' '),
            (b'%', [high, low, tail @ ..]) => {
                let digit = |byte: &u8| (*byte as char).to_digit(16);
                let (Some(high), Some(low)) = (digit(high), digit(low)) else {
                    return Err(Fault::invalid("bad percent-encoding"));
                };
                bytes.push((high * 16 + low) as u8);
                rest = tail;
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8(bytes).map_err(|_| Fault::invalid("the query is not UTF-8"))
}

pub async fn post(agent: &Agent, request: Request<Incoming>) -> Result<Response<Body>, Fault> {
    let query = Query::of(agent, &request)?;
    let (parts, body) = request.into_parts();
    if header(&parts.headers, CONTENT_ENCODING.as_str()).is_some_and(|encoding| encoding != "identity") {
        return Err(Fault::new(Code::Unimplemented, "compressed uploads are not supported"));
    }
    let content_type = header(&parts.headers, CONTENT_TYPE.as_str()).unwrap_or_default();
    let written = match boundary(content_type) {
        Some(boundary) => write_form(&query, body, boundary).await?,
        None => {
            let path = query.path.clone().ok_or_else(|| Fault::invalid("path is required"))?;
            // E2B's clients expect to see a file being written; ours ask for all of it or nothing.
            let whole = header(&parts.headers, "forkd-upload") == Some("whole");
            vec![write_raw(&query, &path, body, whole).await?]
        }
    };
    Ok(json_reply(StatusCode::OK, &written))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

async fn write_raw(query: &Query, path: &Path, body: Incoming, whole: bool) -> Result<Value, Fault> {
    prepare(query, path)?;
    if whole {
        let (uid, gid) = (query.user.uid, query.user.gid);
        let mut file = Arriving::create(path, uid, gid).map_err(|error| named(path, &error))?;
        write_body(&mut file, path, body).await?;
        file.finish().map_err(|error| named(path, &error))?;
    } else {
        write_body(&mut open(query, path)?, path, body).await?;
    }
    Ok(info(path))
}

async fn write_body(file: &mut impl Write, path: &Path, mut body: Incoming) -> Result<(), Fault> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Fault::invalid(format!("the upload broke off: {error}")))?;
        if let Ok(data) = frame.into_data() {
            file.write_all(&data).map_err(|error| named(path, &error))?;
        }
    }
    Ok(())
}

async fn write_form(query: &Query, mut body: Incoming, boundary: &str) -> Result<Vec<Value>, Fault> {
    let mut form = Form::new(boundary);
    let mut current: Option<(PathBuf, File)> = None;
    let mut seen = HashSet::new();
    let mut written = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Fault::invalid(format!("the upload broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        form.push(&data);
        while let Some(piece) = form.next()? {
            match piece {
                Piece::Begin(None) => current = None,
                Piece::Begin(Some(name)) => {
                    let path = match &query.path {
                        Some(path) => path.clone(),
                        None => resolve(&name, &query.user, &query.workdir)?,
                    };
                    if !seen.insert(path.clone()) {
                        return Err(Fault::invalid(format!("{} appears twice in one upload", path.display())));
                    }
                    written.push(info(&path));
                    prepare(query, &path)?;
                    let file = open(query, &path)?;
                    current = Some((path, file));
                }
                Piece::Data(data) => {
                    if let Some((path, file)) = &mut current {
                        file.write_all(&data).map_err(|error| named(path, &error))?;
                    }
                }
            }
        }
    }
    if !form.is_complete() {
        return Err(Fault::invalid("the form ended in the middle of a part"));
    }
    Ok(written)
}

/// Refuses what is no file, and makes the folders above it.
fn prepare(query: &Query, path: &Path) -> Result<(), Fault> {
    // Opening a FIFO for writing would block the only thread there is.
    if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(Fault::invalid(format!("{} is not a regular file", path.display())));
    }
    match path.parent() {
        Some(parent) => make_dirs(parent, query.user.uid, query.user.gid).map_err(|error| named(path, &error)),
        None => Ok(()),
    }
}

fn open(query: &Query, path: &Path) -> Result<File, Fault> {
    let open = || -> io::Result<File> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        fchown(&file, Some(query.user.uid), Some(query.user.gid))?;
        Ok(file)
    };
    open().map_err(|error| named(path, &error))
}

fn named(path: &Path, error: &io::Error) -> Fault {
    Fault::io(&path.to_string_lossy(), error)
}

fn info(path: &Path) -> Value {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    json!({ "path": path.to_string_lossy(), "name": name, "type": "file" })
}
