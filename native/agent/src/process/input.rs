use std::io;

use base64::prelude::{Engine, BASE64_STANDARD};
use serde::Deserialize;

use super::table::{Input, Process};
use crate::http::Fault;

/// Base64 text of what to feed the process.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputData {
    Stdin(String),
    Pty(String),
}

/// Returns when the process (or its pipe) has taken everything.
pub async fn write(process: &Process, data: &InputData) -> Result<(), Fault> {
    let (InputData::Stdin(encoded) | InputData::Pty(encoded)) = data;
    let bytes =
        BASE64_STANDARD.decode(encoded).map_err(|error| Fault::invalid(format!("input is not base64: {error}")))?;
    let outcome = match (&mut *process.input.lock().await, data) {
        (Input::Pipe(pipe), InputData::Stdin(_)) => tokio::io::AsyncWriteExt::write_all(pipe, &bytes).await,
        (Input::Terminal(terminal), InputData::Pty(_)) => write_terminal(terminal, &bytes).await,
        (Input::Closed, _) => return Err(Fault::internal("stdin is closed")),
        (Input::Pipe(_), _) => return Err(Fault::internal("the process has no terminal, only stdin")),
        (Input::Terminal(_), _) => return Err(Fault::internal("the process has a terminal, not stdin")),
    };
    outcome.map_err(|error| Fault::internal(format!("writing to process {}: {error}", process.pid)))
}

pub async fn close(process: &Process) -> Result<(), Fault> {
    let mut input = process.input.lock().await;
    if matches!(*input, Input::Terminal(_)) {
        return Err(Fault::internal("a terminal cannot be closed; send Ctrl-D"));
    }
    *input = Input::Closed;
    Ok(())
}

async fn write_terminal(terminal: &tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut ready = terminal.writable().await?;
        if let Ok(written) = ready.try_io(|fd| Ok(nix::unistd::write(fd.get_ref(), bytes)?)) {
            bytes = &bytes[written?..];
        }
    }
    Ok(())
}
