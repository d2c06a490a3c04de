//! What is said for a caller that has gone away: a VM it had paused for a moment is told to go on.

use crate::process;
use crate::protocol::Guard;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Error, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

pub type Guards = HashMap<(i32, u64), Guard>;

/// For all of it: whoever waits for the helper to end waits for this too.
const PATIENCE: Duration = Duration::from_secs(3);
/// Far more than a greeting or an answer.
const MAX_ANSWER: u64 = 64 << 10;

/// Speaks for all guards at the same time.
pub fn speak(guards: &Guards) {
    thread::scope(|scope| {
        for guard in guards.values() {
            scope.spawn(|| {
                if let Err(error) = say(guard) {
                    eprintln!("forkd-host-helper: cannot let process {} go on: {error}", guard.pid);
                }
            });
        }
    });
}

fn say(guard: &Guard) -> Result<(), Error> {
    process::check(guard.pid, guard.start_time)?;
    let deadline = Instant::now() + PATIENCE;
    let mut socket = UnixStream::connect(&guard.socket)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut answers = BufReader::new(socket.try_clone()?);
    // It serves one at a time: it greets us when it has noticed that the caller is gone.
    next(&mut answers, deadline)?;
    for line in &guard.lines {
        socket.write_all(format!("{line}\n").as_bytes())?;
        while next(&mut answers, deadline)?.contains("\"event\":") {}
    }
    Ok(())
}

fn next(answers: &mut BufReader<UnixStream>, deadline: Instant) -> Result<String, Error> {
    // A timeout of zero would mean none.
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    answers.get_ref().set_read_timeout(Some(left))?;
    let mut line = String::new();
    match answers.by_ref().take(MAX_ANSWER).read_line(&mut line)? {
        0 => Err(Error::from_raw_os_error(libc::ECONNRESET)),
        _ => Ok(line),
    }
}
