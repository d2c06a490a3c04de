//! The event stream of one subscriber of a process.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::prelude::{Engine, BASE64_STANDARD};
use bytes::Bytes;
use hyper::body::{Body, Frame};
use hyper::HeaderMap;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

use super::signal_group;
use super::table::Process;
use crate::http::{data_frame, end_frame, Code, Fault};
use crate::reaper::Exit;

const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(90);

pub fn start_event(pid: i32) -> Bytes {
    data_frame(format!("{{\"event\":{{\"start\":{{\"pid\":{pid}}}}}}}").as_bytes())
}

pub fn data_event(kind: &str, bytes: &[u8]) -> Bytes {
    let mut text = String::with_capacity(40 + bytes.len() * 4 / 3);
    text.push_str("{\"event\":{\"data\":{\"");
    text.push_str(kind);
    text.push_str("\":\"");
    BASE64_STANDARD.encode_string(bytes, &mut text);
    text.push_str("\"}}}");
    data_frame(text.as_bytes())
}

/// The end event and the end of the stream in one piece.
pub fn end_events(exit: Exit) -> Bytes {
    let status = exit.describe();
    let mut end = json!({ "exitCode": exit.code().unwrap_or(-1), "exited": exit.code().is_some(), "status": status });
    if exit.code() != Some(0) {
        end["error"] = status.into();
    }
    let event = data_frame(json!({ "event": { "end": end } }).to_string().as_bytes());
    [event, end_frame(None)].concat().into()
}

pub fn timed_out() -> Bytes {
    end_frame(Some(&Fault::new(Code::DeadlineExceeded, "the process ran out of time")))
}

/// The whole seconds or milliseconds of a header, if it is there and positive.
pub fn duration_header(headers: &HeaderMap, name: &str, unit: Duration) -> Option<Duration> {
    let value: u32 = headers.get(name)?.to_str().ok()?.parse().ok()?;
    (value > 0).then(|| unit * value)
}

pub struct Events {
    process: Rc<Process>,
    frames: mpsc::Receiver<Bytes>,
    silence: Duration,
    keepalive: Pin<Box<Sleep>>,
    deadline: Option<Pin<Box<Sleep>>>,
    kill_when_dropped: bool,
    finished: bool,
}

impl Events {
    /// Subscribes to a process. `deadline` only ends this stream, never the process.
    pub fn subscribe(process: Rc<Process>, headers: &HeaderMap, deadline: Option<Duration>) -> Events {
        let (sender, frames) = mpsc::channel(4);
        let _ = sender.try_send(start_event(process.pid));
        match process.ended.borrow().as_ref() {
            Some((_, end)) => drop(sender.try_send(end.clone())),
            None => process.subscribers.borrow_mut().push(sender),
        }
        let silence = duration_header(headers, "keepalive-ping-interval", Duration::from_secs(1));
        let silence = silence.unwrap_or(DEFAULT_KEEPALIVE);
        Events {
            process,
            frames,
            silence,
            keepalive: Box::pin(tokio::time::sleep(silence)),
            deadline: deadline.map(|left| Box::pin(tokio::time::sleep(left))),
            kill_when_dropped: headers.get("forkd-cancel").is_some_and(|value| value == "kill"),
            finished: false,
        }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        if this.finished {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = this.frames.poll_recv(cx) {
            this.finished = frame.is_none();
            let next = Instant::now() + this.silence;
            this.keepalive.as_mut().reset(next);
            return Poll::Ready(frame.map(|frame| Ok(Frame::data(frame))));
        }
        if let Some(deadline) = &mut this.deadline {
            if deadline.as_mut().poll(cx).is_ready() {
                this.finished = true;
                return Poll::Ready(Some(Ok(Frame::data(timed_out()))));
            }
        }
        if this.keepalive.as_mut().poll(cx).is_ready() {
            let next = Instant::now() + this.silence;
            this.keepalive.as_mut().reset(next);
            // The timer must be polled again to be armed; the caller polls once more after every frame.
            return Poll::Ready(Some(Ok(Frame::data(data_frame(b"{\"event\":{\"keepalive\":{}}}")))));
        }
        Poll::Pending
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if !self.kill_when_dropped || !self.process.is_running() {
            return;
        }
        match self.process.waits.get() {
            true => self.process.abandoned.set(true),
            false => signal_group(self.process.pid, libc::SIGKILL),
        }
    }
}
