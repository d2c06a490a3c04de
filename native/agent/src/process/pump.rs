//! Moves the output of one process to its subscribers and tells them how it ended.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::events::{data_event, end_events, timed_out};
use super::launch::Exiting;
use super::output::Output;
use super::signal_group;
use super::table::{Input, Process};
use crate::reaper::Exit;

const PIPE_CHUNK: usize = 32 << 10;
const TERMINAL_CHUNK: usize = 16 << 10;
/// What is still read after the process itself ended; a grandchild may hold the pipe and write for ever.
const LAST_WORDS: usize = 1 << 20;
const LAST_CHUNK: usize = 2 << 10;

pub struct Outputs {
    pub stdout: Option<Output>,
    pub stderr: Option<Output>,
    pub is_terminal: bool,
}

/// `time_limit` covers the life of the process and holds even when no client reads.
pub async fn run(process: Rc<Process>, outputs: Outputs, exiting: Exiting, time_limit: Option<Duration>) {
    let killer = time_limit.map(|limit| kill_after(process.pid, limit));
    let (first, second) = if outputs.is_terminal { ("pty", "") } else { ("stdout", "stderr") };
    let chunk = if outputs.is_terminal { TERMINAL_CHUNK } else { PIPE_CHUNK };
    let (mut stdout, mut stderr) = (outputs.stdout, outputs.stderr);
    let (mut buffer, mut other) = (Vec::new(), Vec::new());
    tokio::pin!(exiting);
    let exit = loop {
        tokio::select! {
            exit = &mut exiting => break exit.unwrap_or(Exit(0)),
            count = read(&stdout, &mut buffer, chunk) => match count {
                0 => stdout = None,
                count => publish(&process, data_event(first, &buffer[..count])).await,
            },
            count = read(&stderr, &mut other, chunk) => match count {
                0 => stderr = None,
                count => publish(&process, data_event(second, &other[..count])).await,
            },
        }
    };
    let mut buffer = [0; LAST_CHUNK];
    for (output, kind) in [(&stdout, first), (&stderr, second)] {
        let mut left = LAST_WORDS;
        while let Some(count @ 1..) = output.as_ref().and_then(|output| output.try_read(&mut buffer)) {
            publish(&process, data_event(kind, &buffer[..count])).await;
            left = left.saturating_sub(count);
            if left == 0 {
                break;
            }
        }
    }
    let ran_out_of_time = killer.is_some_and(|killer| {
        let has_killed = killer.is_finished();
        killer.abort();
        has_killed
    });
    let end = if ran_out_of_time { timed_out() } else { end_events(exit) };
    *process.ended.borrow_mut() = Some((Instant::now(), end.clone()));
    let subscribers = std::mem::take(&mut *process.subscribers.borrow_mut());
    send_all(&subscribers, end).await;
    drop(subscribers);
    *process.input.lock().await = Input::Closed;
    for output in [stdout, stderr].into_iter().flatten() {
        output.discard().await;
    }
}

fn kill_after(pid: i32, limit: Duration) -> JoinHandle<()> {
    tokio::task::spawn_local(async move {
        tokio::time::sleep(limit).await;
        signal_group(pid, libc::SIGKILL);
    })
}

async fn read(output: &Option<Output>, buffer: &mut Vec<u8>, limit: usize) -> usize {
    match output {
        Some(output) => output.read(buffer, limit).await,
        None => std::future::pending().await,
    }
}

/// Waits for the slowest subscriber: not reading the pipe meanwhile is what bounds memory. With none, output is dropped.
async fn publish(process: &Process, frame: Bytes) {
    let subscribers = process.subscribers.borrow().clone();
    if send_all(&subscribers, frame).await {
        process.subscribers.borrow_mut().retain(|subscriber| !subscriber.is_closed());
    }
}

async fn send_all(subscribers: &[mpsc::Sender<Bytes>], frame: Bytes) -> bool {
    let mut someone_left = false;
    for subscriber in subscribers {
        someone_left |= subscriber.send(frame.clone()).await.is_err();
    }
    someone_left
}
