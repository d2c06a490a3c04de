//! Executable files the image brings along, run in lexical order at a named moment.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::agent::Agent;
use crate::http::Fault;
use crate::process::launch::{self, Launch};
use crate::process::signal_group;

const LIMIT: Duration = Duration::from_secs(10);

pub struct Ran {
    pub name: String,
    pub exit_code: i32,
}

/// Stops at the first hook that fails; its code is the last of the list.
pub async fn run(agent: &Agent, folder: &Path, extra: &BTreeMap<String, String>) -> Result<Vec<Ran>, Fault> {
    let mut ran = Vec::new();
    for file in executables(folder) {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let exit_code = run_program(agent, &file.to_string_lossy(), &[], extra).await?;
        ran.push(Ran { name, exit_code });
        if exit_code != 0 {
            break;
        }
    }
    Ok(ran)
}

/// Runs a program as root, silently; -1 stands for a signal, 124 for running out of time.
pub async fn run_program(
    agent: &Agent,
    program: &str,
    args: &[String],
    extra: &BTreeMap<String, String>,
) -> Result<i32, Fault> {
    let user = crate::users::User::named("root")?;
    let mut env = agent.environment(&user);
    env.extend(extra.clone());
    let launch = Launch { program, args, env, cwd: "/", user: &user };
    let launched = launch::start(agent, launch.command()?)?;
    match tokio::time::timeout(LIMIT, launched.exiting).await {
        Ok(exit) => Ok(exit.ok().and_then(|exit| exit.code()).unwrap_or(-1)),
        Err(_) => {
            signal_group(launched.pid, libc::SIGKILL);
            Ok(124)
        }
    }
}

fn executables(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0))
        .collect();
    files.sort();
    files
}
