use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::rc::Rc;

use serde::Deserialize;
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::sync::Mutex;

use super::launch::{self, Exiting, Launch, Launched};
use super::output::{set_nonblocking, Output};
use super::pty;
use super::pump::Outputs;
use super::routes::Terminal;
use super::table::{Config, Input, Process};
use crate::agent::Agent;
use crate::files::resolve;
use crate::http::Fault;
use crate::users::User;
use crate::watched::watched;

#[derive(Deserialize)]
pub struct StartRequest {
    process: Config,
    pty: Option<Terminal>,
    tag: Option<String>,
    stdin: Option<bool>,
}

pub struct Started {
    pub process: Rc<Process>,
    pub outputs: Outputs,
    pub exiting: Exiting,
}

pub fn start(agent: &Agent, user: &User, request: StartRequest) -> Result<Started, Fault> {
    let config = request.process;
    let mut env = agent.environment(user);
    env.extend(config.envs.clone());
    let workdir = agent.workdir(user);
    let cwd = match &config.cwd {
        Some(cwd) if !cwd.is_empty() => resolve(cwd, user, &workdir)?,
        _ => workdir.into(),
    };
    let launch = Launch { program: &config.cmd, args: &config.args, env, cwd: &cwd.to_string_lossy(), user };
    let mut command = launch.command()?;
    let broken = |error: io::Error| Fault::internal(format!("setting up stdio: {error}"));
    let mut master = None;
    if let Some(terminal) = &request.pty {
        master = Some(pty::attach(&mut command, terminal.size).map_err(broken)?);
    } else {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if request.stdin != Some(false) {
            command.stdin(Stdio::piped());
        }
    }
    let mut launched = launch::start(agent, command)?;
    let ends = ends(&mut launched, master).map_err(broken)?;
    let process = Rc::new(Process {
        pid: launched.pid,
        config,
        tag: request.tag,
        input: Mutex::new(ends.input),
        terminal: ends.terminal,
        subscribers: Default::default(),
        ended: Default::default(),
        waits: Default::default(),
        abandoned: Default::default(),
    });
    agent.processes.add(process.clone());
    Ok(Started { process, outputs: ends.outputs, exiting: launched.exiting })
}

struct Ends {
    input: Input,
    terminal: Option<OwnedFd>,
    outputs: Outputs,
}

fn ends(launched: &mut Launched, master: Option<OwnedFd>) -> io::Result<Ends> {
    let Some(master) = master else {
        return Ok(Ends {
            input: match launched.stdin.take() {
                Some(stdin) => Input::Pipe(pipe::Sender::from_owned_fd(stdin)?),
                None => Input::Closed,
            },
            terminal: None,
            outputs: Outputs {
                stdout: launched.stdout.take().map(Output::new).transpose()?,
                stderr: launched.stderr.take().map(Output::new).transpose()?,
                is_terminal: false,
            },
        });
    };
    set_nonblocking(&master)?;
    Ok(Ends {
        input: Input::Terminal(watched(master.try_clone()?, Interest::WRITABLE)?),
        terminal: Some(master.try_clone()?),
        outputs: Outputs { stdout: Some(Output::new(master)?), stderr: None, is_terminal: true },
    })
}
