//! What a process of the guest asks of the host: to be branched, and forked. One at a time.

pub mod routes;
pub mod socket;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use tokio::sync::{mpsc, oneshot};

use crate::identity::Identity;
use crate::process::{signal_group, Process};

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// How many children; none: it is only saved.
    #[serde(default)]
    pub fork: u32,
    #[serde(default)]
    pub tag: Option<String>,
}

struct Waiting {
    id: u64,
    line: Bytes,
    /// Whether a host has been told. It cannot be told twice: there might be children already.
    told: bool,
    answer: oneshot::Sender<Value>,
    process: Option<Rc<Process>>,
}

#[derive(Default)]
pub struct Wishes {
    waiting: RefCell<Option<Waiting>>,
    listener: RefCell<Option<mpsc::Sender<Bytes>>>,
    made: Cell<u64>,
}

impl Wishes {
    /// `process`: the one started by a client of ours that this belongs to.
    pub fn make(&self, wish: &Wish, process: Option<Rc<Process>>) -> Result<(u64, oneshot::Receiver<Value>), Value> {
        if self.waiting.borrow().is_some() {
            let message = "another process of this sandbox is waiting for its branch";
            return Err(refusal("state_conflict", message, "Wait until that is done and try again."));
        }
        let id = self.made.get() + 1;
        self.made.set(id);
        let mut line = json!({ "id": id, "fork": wish.fork, "tag": wish.tag }).to_string();
        line.push('\n');
        let (answer, answered) = oneshot::channel();
        if let Some(process) = &process {
            process.waits.set(true);
        }
        let mut waiting = Waiting { id, line: line.into(), told: false, answer, process };
        self.tell(&mut waiting);
        *self.waiting.borrow_mut() = Some(waiting);
        Ok((id, answered))
    }

    fn tell(&self, waiting: &mut Waiting) {
        if let Some(listener) = self.listener.borrow().as_ref() {
            waiting.told = listener.try_send(waiting.line.clone()).is_ok();
        }
    }

    /// A host that is there from now on; the one before is not any more.
    pub fn listen(&self) -> mpsc::Receiver<Bytes> {
        let (listener, wishes) = mpsc::channel(1);
        *self.listener.borrow_mut() = Some(listener);
        let told = self.waiting.borrow().as_ref().is_some_and(|waiting| waiting.told);
        if told {
            let message = "forkd was restarted while this branch was made: it may be there, with children, or not";
            self.settle(refusal("cancelled", message, "Look for it with `forkd lineage` on the host, or try again."));
        } else if let Some(waiting) = self.waiting.borrow_mut().as_mut() {
            self.tell(waiting);
        }
        wishes
    }

    /// False if nobody waits for this answer any more.
    pub fn answer(&self, id: u64, answer: Value) -> bool {
        let is_waiting = self.waiting.borrow().as_ref().is_some_and(|waiting| waiting.id == id);
        if is_waiting {
            self.settle(answer);
        }
        is_waiting
    }

    /// This is a copy, made while somebody waited: whoever asked, here they are the child.
    pub fn copied(&self, identity: &Identity) {
        let Identity { id, parent, index, count, .. } = identity;
        if let Some(process) = self.waiting.borrow().as_ref().and_then(|waiting| waiting.process.as_ref()) {
            // Its client talks to the source, and not to this one.
            process.abandoned.set(false);
        }
        let child = json!({ "role": "child", "index": index + 1, "count": count, "id": id, "tag": parent });
        self.settle(child);
    }

    fn settle(&self, answer: Value) {
        let Some(waiting) = self.waiting.borrow_mut().take() else { return };
        let _ = waiting.answer.send(answer);
        let Some(process) = waiting.process else { return };
        process.waits.set(false);
        if process.abandoned.get() && process.is_running() {
            signal_group(process.pid, libc::SIGKILL);
        }
    }
}

pub fn refusal(code: &str, message: &str, hint: &str) -> Value {
    json!({ "error": { "code": code, "message": message, "hint": hint } })
}
