//! The kernels of this guest, at most one per language.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::{mpsc, oneshot, Mutex};

use super::job::Job;
use super::kernel::Kernel;
use crate::agent::Agent;
use crate::http::{Code, Fault};
use crate::process::signal_group;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    Python,
    Node,
}

impl Language {
    pub const ALL: [Language; 2] = [Language::Python, Language::Node];

    pub fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Node => "node",
        }
    }

    pub fn program(self) -> &'static str {
        match self {
            Language::Python => "python3",
            Language::Node => "node",
        }
    }

    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Language::Python => &[],
            Language::Node => &["--no-warnings"],
        }
    }

    pub fn source_name(self) -> &'static str {
        match self {
            Language::Python => "kernel.py",
            Language::Node => "kernel.cjs",
        }
    }

    pub fn source(self) -> &'static str {
        match self {
            Language::Python => include_str!("../../kernels/python.py"),
            Language::Node => include_str!("../../kernels/node.cjs"),
        }
    }
}

#[derive(Default)]
struct Slot {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    pid: Cell<i32>,
    busy: Rc<Cell<bool>>,
}

#[derive(Default)]
pub struct Kernels {
    python: Slot,
    node: Slot,
}

impl Kernels {
    fn slot(&self, language: Language) -> &Slot {
        match language {
            Language::Python => &self.python,
            Language::Node => &self.node,
        }
    }

    /// The queue of a living kernel, started if need be.
    pub async fn queue(&self, agent: &Agent, language: Language) -> Result<mpsc::Sender<Job>, Fault> {
        let slot = self.slot(language);
        let mut jobs = slot.jobs.lock().await;
        if let Some(living) = jobs.as_ref().filter(|jobs| !jobs.is_closed()) {
            return Ok(living.clone());
        }
        let kernel = Kernel::start(agent, language).await?;
        slot.pid.set(kernel.pid);
        let (sender, receiver) = mpsc::channel(1);
        tokio::task::spawn_local(kernel.run(receiver, slot.busy.clone()));
        *jobs = Some(sender.clone());
        Ok(sender)
    }

    fn living(&self, language: Language) -> Option<mpsc::Sender<Job>> {
        let jobs = self.slot(language).jobs.try_lock().ok()?;
        jobs.as_ref().filter(|jobs| !jobs.is_closed()).cloned()
    }

    pub fn states(&self) -> BTreeMap<&'static str, &'static str> {
        let state = |language| match (self.living(language), self.slot(language).busy.get()) {
            (None, _) => "absent",
            (_, true) => "busy",
            (_, false) => "idle",
        };
        Language::ALL.map(|language| (language.name(), state(language))).into()
    }

    /// False if there was nothing to interrupt.
    pub fn interrupt(&self, language: Language) -> bool {
        let slot = self.slot(language);
        let running = self.living(language).is_some() && slot.busy.get();
        if running {
            // SAFETY: kill takes no pointers.
            unsafe { libc::kill(slot.pid.get(), libc::SIGINT) };
        }
        running
    }

    pub fn signal_all(&self, signal: i32) {
        for language in Language::ALL.into_iter().filter(|&language| self.living(language).is_some()) {
            signal_group(self.slot(language).pid.get(), signal);
        }
    }

    /// Node's OpenSSL seeds itself again when the clock stands before the moment at which it last did, or long after; asked, it does not.
    pub fn goes_by_the_clock(&self) -> bool {
        self.living(Language::Node).is_some()
    }

    /// Sends every living kernel an order and waits for all of them; returns their names.
    pub async fn order(
        &self,
        kind: u8,
        mut payload: impl FnMut(Language) -> Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<&'static str>, Fault> {
        let mut waiting = Vec::new();
        for language in Language::ALL {
            let Some(jobs) = self.living(language) else { continue };
            let (done, acknowledged) = oneshot::channel();
            let payload = payload(language);
            let delivered = async move {
                let _ = jobs.send(Job::Order { kind, payload, done }).await;
                acknowledged.await.is_ok()
            };
            waiting.push((language.name(), tokio::task::spawn_local(delivered)));
        }
        let deadline = tokio::time::Instant::now() + limit;
        let mut names = Vec::new();
        for (name, delivered) in waiting {
            match tokio::time::timeout_at(deadline, delivered).await {
                Ok(Ok(true)) => names.push(name),
                Ok(_) => return Err(Fault::internal(format!("the {name} kernel died"))),
                Err(_) => return Err(Fault::new(Code::DeadlineExceeded, format!("the {name} kernel did not answer"))),
            }
        }
        Ok(names)
    }
}
