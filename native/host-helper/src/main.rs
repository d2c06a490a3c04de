//! The privileged helper: one caller, on the socket it inherits as descriptor 3. It decides nothing; TypeScript does.

mod capture;
mod cgroups;
mod compare;
mod copy;
mod copy_process;
mod descriptors;
mod fork_vmm;
mod guard;
mod guest_ram;
mod handles;
mod inject;
mod jail;
mod jail_root;
mod netlink;
mod network;
mod paths;
mod process;
mod protocol;
mod rules;
mod script;
mod seccomp;
mod spawn;
mod tap;
mod tracee;
mod tsc;
mod twin;
mod udp;
mod uids;
mod user_namespace;

use protocol::{Envelope, Failure, Line, Reply, Request, MAX_LINE};
use serde::Deserialize;
use spawn::Spawned;
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::exit;
use std::sync::{Arc, Mutex};
use std::thread;

const CALLER: i32 = 3;

struct Watched {
    pidfd: OwnedFd,
    tied: bool,
}

struct Helper {
    answers: Arc<Mutex<File>>,
    children: HashMap<i32, Watched>,
    pages: copy_process::Pages,
    sleepers: twin::Sleepers,
    guards: guard::Guards,
    taps: Arc<network::Taps>,
    handles: Arc<handles::Handles>,
    listeners: Arc<udp::Listeners>,
    uids: uids::Cursor,
    /// Until it is said, nothing is served.
    reach: Option<paths::Reach>,
}

fn main() {
    // SAFETY: fcntl only inspects the number; the descriptor is ours from here on.
    if unsafe { libc::fcntl(CALLER, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        eprintln!(
            "forkd-host-helper: expects its caller's socket as descriptor 3; it is started by forkd, not by hand"
        );
        exit(2);
    }
    let handles = Arc::new(handles::Handles::inherited());
    let first = handles.descriptor().unwrap_or(CALLER) + 1;
    // SAFETY: nothing of ours is open yet above these; what leaked in must not leak on into a VMM.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    // The caller decides when to stop, by closing the socket: Ctrl-C in a terminal must not end the helper first.
    unsafe {
        libc::setsid();
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        // Waited for where it matters; a pidfd tells of all else.
        libc::pthread_sigmask(libc::SIG_BLOCK, &tracee::news_of_children(), std::ptr::null_mut());
    }
    let mut requests = unsafe { File::from_raw_fd(CALLER) };
    let answers = requests.try_clone().expect("duplicate the caller's socket");
    let mut helper = Helper {
        answers: Arc::new(Mutex::new(answers)),
        children: HashMap::new(),
        pages: Default::default(),
        sleepers: Default::default(),
        guards: Default::default(),
        taps: Default::default(),
        handles,
        listeners: Default::default(),
        uids: Default::default(),
        reach: None,
    };
    let mut pending = Vec::new();
    loop {
        if helper.wait(requests.as_raw_fd()) && !helper.read(&mut requests, &mut pending) {
            break;
        }
        helper.reap();
    }
    guard::speak(&helper.guards);
    helper.end_tied();
}

impl Helper {
    /// Sleeps until the caller speaks or a child ends; `true` if the caller did.
    fn wait(&self, caller: i32) -> bool {
        let mut polls = vec![libc::pollfd { fd: caller, events: libc::POLLIN, revents: 0 }];
        // Without a channel the number is -1, which is passed over.
        polls.push(libc::pollfd { fd: self.handles.descriptor().unwrap_or(-1), events: libc::POLLIN, revents: 0 });
        polls.extend(self.children.values().map(|c| libc::pollfd {
            fd: c.pidfd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }));
        // SAFETY: the vector outlives the call and its length is passed along.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, -1) };
        if polls[1].revents != 0 {
            self.handles.discard();
        }
        polls[0].revents != 0
    }

    /// Reads what is there and serves whole lines; `false` when the caller is gone or talks nonsense.
    fn read(&mut self, requests: &mut File, pending: &mut Vec<u8>) -> bool {
        let mut chunk = [0; 64 << 10];
        match requests.read(&mut chunk) {
            Ok(0) => return false,
            Ok(n) => pending.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => return true,
            Err(_) => return false,
        }
        while let Some(end) = pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            if !self.serve(&line) {
                return false;
            }
        }
        pending.len() <= MAX_LINE
    }

    fn serve(&mut self, line: &[u8]) -> bool {
        let Ok(Envelope { id, request }) = serde_json::from_slice(line) else {
            eprintln!("forkd-host-helper: a line that is not a request");
            return false;
        };
        let request = match Request::deserialize(request) {
            Ok(request) => request,
            Err(error) => {
                answer(&self.answers, id, Err(Failure::new(error.to_string())));
                return true;
            }
        };
        let allowed = match &self.reach {
            Some(reach) => reach.check(&request),
            None if matches!(request, Request::Reach(_)) => Ok(()),
            None => Err(Failure::new("which files it may use was not said")),
        };
        if let Err(failure) = allowed {
            answer(&self.answers, id, Err(failure));
            return true;
        }
        match request {
            Request::Reach(_) if self.reach.is_some() => {
                answer(&self.answers, id, Err(Failure::new("which files it may use is said once")));
            }
            Request::Reach(reach) => {
                self.reach = Some(reach);
                answer(&self.answers, id, Ok(Reply::Done {}));
            }
            // These stay on this thread: the kernel ties a parent-death signal, and a tracee, to the thread that made it.
            Request::Spawn(spawn) => {
                let uids = &mut self.uids;
                let spawned = self.taps.take(spawn.network).and_then(|tap| spawn::spawn(&spawn, tap, uids));
                self.watch(id, spawn.tied, spawned);
            }
            Request::ForkVmm(fork) => {
                let known = |pid| self.children.contains_key(&pid);
                let tap = self.taps.take(fork.network);
                let (pages, uids) = (&mut self.pages, &mut self.uids);
                let forked = tap.and_then(|tap| fork_vmm::fork_vmm(&fork, tap, pages, uids, &known));
                self.watch(id, fork.tied, forked);
            }
            Request::Twin(twin) => {
                let known = |pid| self.children.contains_key(&pid);
                let frozen = twin::twin(&twin, &mut self.pages, &mut self.sleepers, &known);
                self.watch(id, true, frozen);
            }
            Request::Wake(wake) => {
                let (asleep, pages, uids) = (self.sleepers.remove(&wake.pid), &mut self.pages, &mut self.uids);
                let tap = self.taps.take(wake.network);
                let woken = tap.and_then(|tap| fork_vmm::wake(&wake, tap, asleep, pages, uids));
                answer(&self.answers, id, woken);
            }
            Request::Adopt(adopt) => self.watch(id, false, process::adopt(&adopt)),
            Request::Kill(kill) => answer(&self.answers, id, process::kill(&kill)),
            Request::MeasureTsc(_) => answer(&self.answers, id, tsc::measure()),
            Request::Guard(guard) => {
                self.guards.insert((guard.pid, guard.start_time), guard);
                answer(&self.answers, id, Ok(Reply::Done {}));
            }
            Request::Unguard(guard) => {
                self.guards.remove(&(guard.pid, guard.start_time));
                answer(&self.answers, id, Ok(Reply::Done {}));
            }
            Request::MakeNetwork(make) => {
                let (taps, handles) = (self.taps.clone(), self.handles.clone());
                self.aside(id, move || network::make(id, &make.wiring, &taps, &handles));
            }
            Request::OpenNetwork(open) => {
                let handles = self.handles.clone();
                self.aside(id, move || network::open(id, &open, &handles));
            }
            Request::NetworkDrops(vmm) => self.aside(id, move || network::drops(&vmm)),
            Request::DropNetwork(unused) => {
                self.taps.forget(unused.network);
                answer(&self.answers, id, Ok(Reply::Done {}));
            }
            Request::ListenUdp(vmm) => {
                let (listeners, handles) = (self.listeners.clone(), self.handles.clone());
                self.aside(id, move || udp::listen(id, &vmm, &listeners, &handles));
            }
            Request::ConnectUdp(flow) => {
                let ends = (flow.from.address(), flow.to.address());
                answer(&self.answers, id, self.listeners.connect(flow.listener, ends));
            }
            Request::CloseUdp(close) => {
                self.listeners.close(close.listener);
                answer(&self.answers, id, Ok(Reply::Done {}));
            }
            Request::CloneFile(clone) => self.aside(id, move || copy::clone_file(&clone)),
            Request::Capture(capture) => self.aside(id, move || capture::capture(&capture)),
            Request::Compare(compare) => self.aside(id, move || compare::compare(&compare)),
            Request::Inject(inject) => self.aside(id, move || inject::inject(&inject)),
        }
        true
    }

    /// For what may take seconds: nobody else waits for it.
    fn aside(&self, id: u64, work: impl FnOnce() -> Result<Reply, Failure> + Send + 'static) {
        let answers = self.answers.clone();
        thread::spawn(move || answer(&answers, id, work()));
    }

    fn watch(&mut self, id: u64, tied: bool, started: Result<Spawned, Failure>) {
        let outcome = started.map(|Spawned { pid, start_time, pidfd, fds }| {
            self.children.insert(pid, Watched { pidfd, tied });
            Reply::Spawned { pid, start_time, fds }
        });
        answer(&self.answers, id, outcome);
    }

    fn reap(&mut self) {
        let (answers, sleepers) = (&self.answers, &mut self.sleepers);
        self.children.retain(|pid, watched| match process::exit(&watched.pidfd) {
            None => true,
            Some((code, signal)) => {
                sleepers.remove(pid);
                send(answers, &Line::Exit { event: "exit", pid: *pid, code, signal });
                false
            }
        });
    }

    fn end_tied(&self) {
        for (pid, _) in self.children.iter().filter(|(_, watched)| watched.tied) {
            // SAFETY: the pidfd, still open and not waited for, keeps the pid from being reused.
            unsafe {
                libc::kill(*pid, libc::SIGKILL);
                libc::waitpid(*pid, std::ptr::null_mut(), libc::__WALL);
            }
        }
    }
}

fn answer(answers: &Mutex<File>, id: u64, outcome: Result<Reply, Failure>) {
    let line = match outcome {
        Ok(ok) => Line::Ok { id, ok },
        Err(error) => Line::Error { id, error },
    };
    send(answers, &line);
}

/// A caller that is gone is noticed by `read`; a failed write needs no other handling.
fn send(answers: &Mutex<File>, line: &Line) {
    let mut text = serde_json::to_vec(line).expect("serialise a reply");
    text.push(b'\n');
    let _ = answers.lock().expect("answers").write_all(&text);
}
