//! Starts one interpreter and runs its jobs, one after the other, until it dies.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::job::{self, Job};
use super::slots::Language;
use super::wire::{Wire, READY};
use crate::agent::Agent;
use crate::http::{Code, Fault};
use crate::process::launch::{self, Exiting, Launch};
use crate::process::output::Output;
use crate::process::signal_group;

/// Generous, because a loaded host that emulates the CPU starts an interpreter in seconds.
const START_LIMIT: Duration = Duration::from_secs(120);

pub struct Kernel {
    pub pid: i32,
    pub wire: Wire,
    pub stdout: Output,
    pub stderr: Output,
    pub exiting: Exiting,
}

impl Kernel {
    pub async fn start(agent: &Agent, language: Language) -> Result<Kernel, Fault> {
        let user = agent.default_user()?;
        let env = agent.environment(&user);
        let interpreter = find_program(language.program(), &env["PATH"]).ok_or_else(|| {
            let message = format!("{} is not installed in this guest", language.program());
            Fault::new(Code::NotFound, message)
        })?;
        let broken = |error: std::io::Error| Fault::internal(format!("starting {}: {error}", language.program()));
        let source = agent.runtime_dir.join(language.source_name());
        std::fs::write(&source, language.source()).map_err(broken)?;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(broken)?;
        ours.set_nonblocking(true).map_err(broken)?;

        let mut args: Vec<String> = language.flags().iter().map(|flag| flag.to_string()).collect();
        args.push(source.to_string_lossy().into_owned());
        let workdir = agent.workdir(&user);
        let cwd = if Path::new(&workdir).is_dir() { workdir } else { "/".to_owned() };
        let launch = Launch { program: &interpreter.to_string_lossy(), args: &args, env, cwd: &cwd, user: &user };
        let mut command = launch.command()?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        launch::pass_fd(&mut command, theirs.into());
        let launched = launch::start(agent, command)?;
        let output = |pipe: Option<OwnedFd>| Output::new(pipe.expect("piped above")).map_err(broken);
        let mut kernel = Kernel {
            pid: launched.pid,
            wire: Wire::new(UnixStream::from_std(ours).map_err(broken)?),
            stdout: output(launched.stdout)?,
            stderr: output(launched.stderr)?,
            exiting: launched.exiting,
        };
        match tokio::time::timeout(START_LIMIT, kernel.wire.next()).await {
            Ok(Some((READY, _))) => Ok(kernel),
            _ => {
                let mut said = [0; 2048];
                let count = kernel.stderr.try_read(&mut said).unwrap_or(0);
                signal_group(kernel.pid, libc::SIGKILL);
                let said = String::from_utf8_lossy(&said[..count]);
                Err(Fault::internal(format!("{} did not start: {said}", language.program())))
            }
        }
    }

    /// Between jobs, output is read and dropped: a background thread that prints must not block for ever.
    pub async fn run(mut self, mut jobs: mpsc::Receiver<Job>, busy: Rc<Cell<bool>>) {
        let (mut from_stdout, mut from_stderr) = (Vec::new(), Vec::new());
        loop {
            tokio::select! {
                biased;
                next = jobs.recv() => {
                    let Some(job) = next else { break };
                    busy.set(true);
                    let alive = job::run(&mut self, job).await;
                    busy.set(false);
                    if !alive {
                        break;
                    }
                }
                count = self.stdout.read(&mut from_stdout, 1024) => if count == 0 { break },
                count = self.stderr.read(&mut from_stderr, 1024) => if count == 0 { break },
                _ = self.wire.next() => break,
                _ = &mut self.exiting => break,
            }
        }
        signal_group(self.pid, libc::SIGKILL);
    }
}

fn find_program(name: &str, path: &str) -> Option<PathBuf> {
    path.split(':').map(|folder| Path::new(folder).join(name)).find(|file| file.is_file())
}
