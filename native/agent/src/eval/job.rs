//! One piece of work for a kernel.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{json, Value};
use tokio::sync::oneshot;

use super::kernel::Kernel;
use super::output::{line, Decoder, Reply};
use super::wire::{DONE, ERROR, EVAL, MIME, RESULT};
use crate::process::output::Output;
use crate::process::signal_group;

/// How long an interrupted kernel may take to come back before it is killed.
const PATIENCE: Duration = Duration::from_secs(2);
const CHUNK: usize = 32 << 10;

pub enum Job {
    Eval {
        code: String,
        limit: Option<Duration>,
        reply: Reply,
    },
    /// A request that only wants an acknowledgement.
    Order {
        kind: u8,
        payload: Vec<u8>,
        done: oneshot::Sender<()>,
    },
}

/// False once the kernel is of no further use.
pub async fn run(kernel: &mut Kernel, job: Job) -> bool {
    match job {
        // Its caller gave up while it waited its turn.
        Job::Eval { reply, .. } if reply.is_abandoned() => true,
        Job::Eval { code, limit, reply } => eval(kernel, code, limit, reply).await,
        Job::Order { kind, payload, done } => {
            if kernel.wire.send(kind, &payload).await.is_err() {
                return false;
            }
            let acknowledged = matches!(kernel.wire.next().await, Some((DONE, _)));
            if acknowledged {
                let _ = done.send(());
            }
            acknowledged
        }
    }
}

#[derive(Default)]
struct Outcome {
    result: Option<Bytes>,
    mime: Option<Bytes>,
    error: Option<Bytes>,
    died: bool,
}

enum Why {
    TimedOut(Duration),
    Abandoned,
}

async fn eval(kernel: &mut Kernel, code: String, limit: Option<Duration>, mut reply: Reply) -> bool {
    let started = Instant::now();
    let mut outcome = Outcome::default();
    let mut stopping: Option<Why> = None;
    let mut alarm = limit.map(|limit| Box::pin(tokio::time::sleep(limit)));
    let (mut out_text, mut err_text) = (Decoder::default(), Decoder::default());
    let (mut out_bytes, mut err_bytes) = (Vec::new(), Vec::new());
    outcome.died = kernel.wire.send(EVAL, code.as_bytes()).await.is_err();
    drop(code);
    while !outcome.died {
        tokio::select! {
            biased;
            // First, so that a flood of output cannot keep the alarm from ringing.
            () = ring(&mut alarm) => {
                if stopping.is_some() {
                    signal_group(kernel.pid, libc::SIGKILL);
                    alarm = None;
                } else {
                    stopping = Some(Why::TimedOut(limit.unwrap_or_default()));
                    interrupt(kernel.pid);
                    alarm = Some(Box::pin(tokio::time::sleep(PATIENCE)));
                }
            }
            () = reply.abandoned(), if stopping.is_none() => {
                stopping = Some(Why::Abandoned);
                interrupt(kernel.pid);
                alarm = Some(Box::pin(tokio::time::sleep(PATIENCE)));
            }
            count @ 1.. = kernel.stdout.read(&mut out_bytes, CHUNK) => {
                forward(&mut reply, "stdout", out_text.push(&out_bytes[..count]), &alarm).await;
            }
            count @ 1.. = kernel.stderr.read(&mut err_bytes, CHUNK) => {
                forward(&mut reply, "stderr", err_text.push(&err_bytes[..count]), &alarm).await;
            }
            message = kernel.wire.next() => match message {
                Some((RESULT, text)) => outcome.result = Some(text),
                Some((MIME, json)) => outcome.mime = Some(json),
                Some((ERROR, json)) => outcome.error = Some(json),
                Some((DONE, _)) => break,
                _ => outcome.died = true,
            },
            _ = &mut kernel.exiting => outcome.died = true,
        }
    }
    for (output, decoder, name) in
        [(&kernel.stdout, &mut out_text, "stdout"), (&kernel.stderr, &mut err_text, "stderr")]
    {
        let rest = drain(output, decoder);
        forward(&mut reply, name, rest, &alarm).await;
    }
    let alive = !outcome.died;
    reply.finish(last_lines(outcome, stopping, started.elapsed())).await;
    alive
}

fn interrupt(pid: i32) {
    // SAFETY: kill takes no pointers.
    unsafe { libc::kill(pid, libc::SIGINT) };
}

type Alarm = Option<std::pin::Pin<Box<tokio::time::Sleep>>>;

async fn ring(alarm: &mut Alarm) {
    match alarm {
        Some(sleep) => sleep.as_mut().await,
        None => std::future::pending().await,
    }
}

/// A reader that does not read must not stop the clock: past the alarm the text is dropped instead.
async fn forward(reply: &mut Reply, stream: &str, text: String, alarm: &Alarm) {
    match alarm.as_ref().map(|sleep| sleep.deadline()) {
        None => reply.text(stream, &text).await,
        Some(deadline) => drop(tokio::time::timeout_at(deadline, reply.text(stream, &text)).await),
    }
}

/// What is in the pipe right now: everything the kernel wrote before it said it was done.
fn drain(output: &Output, decoder: &mut Decoder) -> String {
    let mut buffer = [0; 2 << 10];
    let mut text = String::new();
    while let Some(count @ 1..) = output.try_read(&mut buffer) {
        text += &decoder.push(&buffer[..count]);
        if text.len() > 1 << 20 {
            break;
        }
    }
    text + &decoder.finish()
}

fn last_lines(outcome: Outcome, stopping: Option<Why>, took: Duration) -> Vec<u8> {
    let mut lines = Vec::new();
    let error = match (stopping, outcome.died, outcome.error) {
        (Some(Why::TimedOut(limit)), _, _) => Some(failure(
            "TimeoutError",
            &format!("the code ran longer than {} ms and was interrupted", limit.as_millis()),
        )),
        (_, true, _) => Some(failure("KernelDied", "the interpreter ended while it ran the code; its state is lost")),
        (_, _, Some(json)) => Some(parsed(&json)),
        _ => None,
    };
    if let Some(mut error) = error {
        error["type"] = "error".into();
        lines.extend(line(&error));
    } else if let Some(text) = outcome.result {
        let mime = outcome.mime.map_or_else(|| json!({}), |json| parsed(&json));
        let text = String::from_utf8_lossy(&text);
        lines.extend(line(&json!({ "type": "result", "text": text, "mime": mime })));
    }
    lines.extend(line(&json!({ "type": "end", "took_us": took.as_micros() as u64 })));
    lines
}

fn failure(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value, "traceback": "" })
}

/// User code can reach the kernel's descriptor, so even its JSON may be anything; only objects go on.
fn parsed(json: &[u8]) -> Value {
    match serde_json::from_slice(json) {
        Ok(value @ Value::Object(_)) => value,
        _ => json!({}),
    }
}
