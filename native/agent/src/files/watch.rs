//! Watching a folder with inotify. The kernel's queue is the buffer: nobody runs between two events.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use serde::Serialize;
use serde_json::json;
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::time::{Instant, Sleep};

use super::entry::Entry;
use crate::http::{data_frame, end_frame, Code, Fault};
use crate::machine::random_hex;
use crate::watched::watched;

const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(90);
const WATCHERS: usize = 64;
const KINDS: [(AddWatchFlags, &str); 7] = [
    (AddWatchFlags::IN_CREATE, "EVENT_TYPE_CREATE"),
    (AddWatchFlags::IN_MOVED_TO, "EVENT_TYPE_CREATE"),
    (AddWatchFlags::IN_MODIFY, "EVENT_TYPE_WRITE"),
    (AddWatchFlags::IN_DELETE, "EVENT_TYPE_REMOVE"),
    (AddWatchFlags::IN_MOVED_FROM, "EVENT_TYPE_RENAME"),
    (AddWatchFlags::IN_ATTRIB, "EVENT_TYPE_CHMOD"),
    (AddWatchFlags::IN_DELETE_SELF, "EVENT_TYPE_REMOVE"),
];

#[derive(Serialize)]
pub struct Event {
    name: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<Entry>,
}

pub struct Watch {
    inotify: Inotify,
    root: PathBuf,
    recursive: bool,
    include_entry: bool,
    folders: HashMap<WatchDescriptor, PathBuf>,
}

impl Watch {
    pub fn open(root: &Path, recursive: bool, include_entry: bool) -> io::Result<Watch> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let mut watch = Watch { inotify, root: root.to_owned(), recursive, include_entry, folders: HashMap::new() };
        watch.add(root, &mut Vec::new())?;
        Ok(watch)
    }

    /// Watches a folder; in a recursive watch also what is below it, reporting what was there before we looked.
    fn add(&mut self, folder: &Path, found: &mut Vec<Event>) -> io::Result<()> {
        let mask = KINDS.iter().fold(AddWatchFlags::IN_ONLYDIR, |mask, (flag, _)| mask | *flag);
        let descriptor = self.inotify.add_watch(folder, mask)?;
        self.folders.insert(descriptor, folder.to_owned());
        if !self.recursive {
            return Ok(());
        }
        for entry in std::fs::read_dir(folder)?.flatten() {
            if found.len() < 10_000 {
                found.push(self.event(&entry.path(), "EVENT_TYPE_CREATE"));
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                // It may be gone again already.
                let _ = self.add(&entry.path(), found);
            }
        }
        Ok(())
    }

    fn event(&self, path: &Path, kind: &'static str) -> Event {
        let lasting = !matches!(kind, "EVENT_TYPE_REMOVE" | "EVENT_TYPE_RENAME");
        Event {
            name: path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy().into_owned(),
            r#type: kind,
            entry: (self.include_entry && lasting).then(|| Entry::of(path).ok()).flatten(),
        }
    }

    /// Everything that happened since the last call.
    pub fn take(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Ok(raw) = self.inotify.read_events() {
            for one in raw {
                let Some(folder) = self.folders.get(&one.wd).cloned() else { continue };
                if one.mask.contains(AddWatchFlags::IN_IGNORED) {
                    self.folders.remove(&one.wd);
                    continue;
                }
                // The end of a subfolder is already told by its parent.
                if one.name.is_none() && folder != self.root {
                    continue;
                }
                let path = one.name.map_or(folder.clone(), |name| folder.join(name));
                for (flag, kind) in KINDS {
                    if one.mask.contains(flag) {
                        events.push(self.event(&path, kind));
                    }
                }
                let appeared = one.mask.intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO);
                if self.recursive && appeared && one.mask.contains(AddWatchFlags::IN_ISDIR) {
                    let mut found = Vec::new();
                    let _ = self.add(&path, &mut found);
                    events.append(&mut found);
                }
            }
        }
        events
    }
}

pub struct WatchStream {
    watch: Watch,
    ready: io::Result<AsyncFd<OwnedFd>>,
    queue: VecDeque<Bytes>,
    silence: Duration,
    keepalive: Pin<Box<Sleep>>,
    deadline: Option<Pin<Box<Sleep>>>,
    finished: bool,
}

impl WatchStream {
    pub fn new(watch: Watch, silence: Option<Duration>, limit: Option<Duration>) -> WatchStream {
        let silence = silence.unwrap_or(DEFAULT_KEEPALIVE);
        let ready = watch.inotify.as_fd().try_clone_to_owned().and_then(|fd| watched(fd, Interest::READABLE));
        WatchStream {
            watch,
            ready,
            queue: VecDeque::from([data_frame(b"{\"start\":{}}")]),
            silence,
            keepalive: Box::pin(tokio::time::sleep(silence)),
            deadline: limit.map(|limit| Box::pin(tokio::time::sleep(limit))),
            finished: false,
        }
    }

    fn finish(&mut self, code: Code, message: &str) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.finished = true;
        Poll::Ready(Some(Ok(Frame::data(end_frame(Some(&Fault::new(code, message)))))))
    }
}

impl Body for WatchStream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        loop {
            if let Some(frame) = this.queue.pop_front() {
                this.keepalive.as_mut().reset(Instant::now() + this.silence);
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
            if this.finished {
                return Poll::Ready(None);
            }
            let Ok(ready) = &this.ready else {
                return this.finish(Code::Internal, "inotify cannot be polled");
            };
            if let Poll::Ready(Ok(mut guard)) = ready.poll_read_ready(cx) {
                let events = this.watch.take();
                guard.clear_ready();
                let frames =
                    events.iter().map(|event| data_frame(json!({ "filesystem": event }).to_string().as_bytes()));
                this.queue.extend(frames);
                continue;
            }
            if this.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready()) {
                return this.finish(Code::DeadlineExceeded, "the watch ran out of time");
            }
            if this.keepalive.as_mut().poll(cx).is_ready() {
                this.queue.push_back(data_frame(b"{\"keepalive\":{}}"));
                continue;
            }
            return Poll::Pending;
        }
    }
}

/// Watches that clients poll. Each waits in the kernel; past its queue limit the kernel drops events.
#[derive(Default)]
pub struct Watchers {
    open: RefCell<HashMap<String, Watch>>,
}

impl Watchers {
    pub fn add(&self, watch: Watch) -> Result<String, Fault> {
        let mut open = self.open.borrow_mut();
        if open.len() >= WATCHERS {
            return Err(Fault::new(Code::ResourceExhausted, format!("more than {WATCHERS} watchers")));
        }
        let id = random_hex::<8>();
        open.insert(id.clone(), watch);
        Ok(id)
    }

    pub fn take_events(&self, id: &str) -> Result<Vec<Event>, Fault> {
        let mut open = self.open.borrow_mut();
        open.get_mut(id).map(Watch::take).ok_or_else(|| unknown(id))
    }

    pub fn remove(&self, id: &str) -> Result<(), Fault> {
        self.open.borrow_mut().remove(id).map(drop).ok_or_else(|| unknown(id))
    }
}

fn unknown(id: &str) -> Fault {
    Fault::new(Code::NotFound, format!("no watcher {id:?}"))
}
