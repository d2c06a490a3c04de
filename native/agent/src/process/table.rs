//! The processes started through the API, and those that ended a moment ago.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, Mutex};

use crate::http::{Code, Fault};

/// How long the exit of a finished process can still be asked for.
const REMEMBERED: Duration = Duration::from_secs(30);

#[derive(Clone, Serialize, Deserialize)]
pub struct Config {
    pub cmd: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub envs: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

pub enum Input {
    Closed,
    Pipe(pipe::Sender),
    Terminal(AsyncFd<OwnedFd>),
}

pub struct Process {
    pub pid: i32,
    pub config: Config,
    pub tag: Option<String>,
    pub input: Mutex<Input>,
    /// A second handle on the terminal: a resize must not queue behind blocked input.
    pub terminal: Option<OwnedFd>,
    pub subscribers: RefCell<Vec<mpsc::Sender<Bytes>>>,
    /// When it ended, and the frames that tell.
    pub ended: RefCell<Option<(Instant, Bytes)>>,
    /// For a branch. In a child its client is gone for good reason, so its end is put off until it is clear who this is.
    pub waits: Cell<bool>,
    pub abandoned: Cell<bool>,
}

impl Process {
    pub fn is_running(&self) -> bool {
        self.ended.borrow().is_none()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Selector {
    Pid(i32),
    Tag(String),
}

#[derive(Default)]
pub struct Processes {
    known: RefCell<Vec<Rc<Process>>>,
}

impl Processes {
    pub fn add(&self, process: Rc<Process>) {
        let mut known = self.known.borrow_mut();
        // Forgetting happens here and not on a timer, because an idle guest must not wake up.
        known.retain(|process| process.ended.borrow().as_ref().is_none_or(|(at, _)| at.elapsed() < REMEMBERED));
        known.push(process);
    }

    pub fn running(&self) -> Vec<Rc<Process>> {
        let known = self.known.borrow();
        known.iter().filter(|process| process.is_running()).cloned().collect()
    }

    pub fn find(&self, selector: &Selector) -> Result<Rc<Process>, Fault> {
        let known = self.known.borrow();
        let found = known.iter().rev().find(|process| match selector {
            Selector::Pid(pid) => process.pid == *pid,
            Selector::Tag(tag) => process.tag.as_ref() == Some(tag),
        });
        let recent =
            found.filter(|process| process.ended.borrow().as_ref().is_none_or(|(at, _)| at.elapsed() < REMEMBERED));
        recent.cloned().ok_or_else(|| {
            let name = match selector {
                Selector::Pid(pid) => format!("pid {pid}"),
                Selector::Tag(tag) => format!("tag {tag:?}"),
            };
            Fault::new(Code::NotFound, format!("no process with {name}"))
        })
    }

    pub fn find_running(&self, selector: &Selector) -> Result<Rc<Process>, Fault> {
        let process = self.find(selector)?;
        if !process.is_running() {
            return Err(Fault::new(Code::NotFound, format!("process {} has ended", process.pid)));
        }
        Ok(process)
    }
}
