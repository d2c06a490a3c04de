//! What the agent knows. One thread, so plain cells are enough.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use crate::eval::Kernels;
use crate::files::Watchers;
use crate::http::Fault;
use crate::identity::Identity;
use crate::process::Processes;
use crate::reaper::Reaper;
use crate::users::User;
use crate::wishes::Wishes;

pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub struct Agent {
    /// Only PID 1 owns the machine; the same binary under test must not touch its host's clock, name or RNG.
    pub is_init: bool,
    pub started: Instant,
    pub runtime_dir: PathBuf,
    pub reaper: Reaper,
    pub defaults: RefCell<Defaults>,
    pub identity: RefCell<Option<Identity>>,
    pub processes: Processes,
    pub kernels: Kernels,
    pub watchers: Watchers,
    pub wishes: Wishes,
    pub cpu_ticks: Cell<(u64, u64)>,
}

pub struct Defaults {
    pub user: String,
    pub workdir: Option<String>,
    pub env: BTreeMap<String, String>,
}

impl Agent {
    pub fn new(is_init: bool) -> io::Result<Agent> {
        let runtime_dir = if is_init {
            PathBuf::from("/run/forkd")
        } else {
            std::env::temp_dir().join(format!("forkd-agent-{}", std::process::id()))
        };
        std::fs::create_dir_all(&runtime_dir)?;
        Ok(Agent {
            is_init,
            started: Instant::now(),
            runtime_dir,
            reaper: Reaper::default(),
            defaults: RefCell::new(Defaults { user: "root".to_owned(), workdir: None, env: BTreeMap::new() }),
            identity: RefCell::new(None),
            processes: Processes::default(),
            kernels: Kernels::default(),
            watchers: Watchers::default(),
            wishes: Wishes::default(),
            cpu_ticks: Cell::new((0, 0)),
        })
    }

    pub fn default_user(&self) -> Result<User, Fault> {
        User::named(&self.defaults.borrow().user)
    }

    /// Where relative paths start and processes run when the caller names no directory.
    pub fn workdir(&self, user: &User) -> String {
        let defaults = self.defaults.borrow();
        defaults.workdir.clone().unwrap_or_else(|| user.home.clone())
    }

    /// The environment every process of `user` starts from, before what the caller adds.
    pub fn environment(&self, user: &User) -> BTreeMap<String, String> {
        let path = std::env::var("PATH").unwrap_or_else(|_| DEFAULT_PATH.to_owned());
        let mut env = BTreeMap::from([
            ("PATH".to_owned(), path),
            ("HOME".to_owned(), user.home.clone()),
            ("USER".to_owned(), user.name.clone()),
            ("LOGNAME".to_owned(), user.name.clone()),
        ]);
        let defaults = self.defaults.borrow();
        env.extend(defaults.env.iter().map(|(k, v)| (k.clone(), v.clone())));
        if let Some(identity) = self.identity.borrow().as_ref() {
            env.extend(identity.env.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
        env
    }
}
