//! `forkd-guest`: this same program, called by that name by processes of the guest.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::mount::{mount, MsFlags};
use serde_json::{json, Value};

use crate::wishes::{refusal, Wish};

const NAME: &str = "forkd-guest";
const INSTALLED: &str = "/run/forkd/forkd-guest";
/// So that it is found in the usual PATH.
const LINK: &str = "/usr/local/bin/forkd-guest";
const SOCKET: &str = "/run/forkd/guest.sock";

const USAGE: &str = "usage: forkd-guest branch [--fork N] [--tag TAG] [--json]

Saves this sandbox as it is now, and starts N children of it that go on from here.
Prints `source TAG ID...` where it was called, and `child K ID` in child K of N.
";

struct Call {
    wish: Wish,
    json: bool,
}

pub fn is_called() -> bool {
    std::env::args_os().next().is_some_and(|name| Path::new(&name).file_name().is_some_and(|name| name == NAME))
}

/// Shows this program in the file system of the guest, where nothing of it lies otherwise.
pub fn install() -> io::Result<()> {
    fs::create_dir_all("/run/forkd")?;
    fs::File::create(INSTALLED)?;
    mount(Some("/proc/self/exe"), INSTALLED, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    // An image may have no such folder, or a program of its own there.
    let _ = symlink(INSTALLED, LINK);
    Ok(())
}

/// The exit code: 0 done, 1 refused, 2 called wrongly.
pub fn run(args: impl Iterator<Item = String>) -> i32 {
    let call = match parse(args) {
        Ok(Some(call)) => call,
        Ok(None) => {
            print!("{USAGE}");
            return 0;
        }
        Err(problem) => {
            eprint!("{NAME}: {problem}\n{USAGE}");
            return 2;
        }
    };
    let answer = ask(&call.wish).unwrap_or_else(|error| {
        refusal("guest_error", &format!("the agent cannot be asked: {error}"), "Is this a forkd sandbox?")
    });
    let refused = answer.get("error");
    if call.json {
        println!("{answer}");
    } else if let Some(error) = refused {
        eprintln!("{NAME}: {}\nhint: {}", text(error, "message"), text(error, "hint"));
    } else {
        println!("{}", words(&answer));
        for failure in answer["failed"].as_array().into_iter().flatten() {
            eprintln!("{NAME}: a child failed: {}", failure.as_str().unwrap_or_default());
        }
    }
    i32::from(refused.is_some())
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Call>, String> {
    match args.next().as_deref() {
        Some("branch") => {}
        Some("--help") => return Ok(None),
        Some(other) => return Err(format!("no command {other:?}")),
        None => return Err("say what to do".to_owned()),
    }
    let mut call = Call { wish: Wish { fork: 0, tag: None }, json: false };
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--fork" => {
                let count = value()?;
                call.wish.fork = count.parse().map_err(|_| format!("not a number of children: {count:?}"))?;
            }
            "--tag" => call.wish.tag = Some(value()?),
            "--json" => call.json = true,
            "--help" => return Ok(None),
            _ => return Err(format!("no flag {flag:?}")),
        }
    }
    Ok(Some(call))
}

fn ask(wish: &Wish) -> io::Result<Value> {
    let path = std::env::var("FORKD_GUEST_SOCKET").unwrap_or_else(|_| SOCKET.to_owned());
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(format!("{}\n", json!(wish)).as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

fn words(answer: &Value) -> String {
    if answer["role"] == "child" {
        return format!("child {} {}", answer["index"], text(answer, "id"));
    }
    let children = answer["children"].as_array().into_iter().flatten().filter_map(Value::as_str);
    ["source", text(answer, "tag")].into_iter().chain(children).collect::<Vec<_>>().join(" ")
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<Call>, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn reads_its_arguments() {
        let call = parsed("branch --fork 2 --tag half-way --json").unwrap().unwrap();
        assert_eq!((call.wish.fork, call.wish.tag.as_deref(), call.json), (2, Some("half-way"), true));
        assert!(parsed("branch --help").unwrap().is_none());
        for wrong in ["", "fork", "branch --fork", "branch --fork -1", "branch --fork two", "branch now"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn says_who_it_is() {
        let source = json!({ "role": "source", "tag": "t", "children": ["sb-1", "sb-2"] });
        assert_eq!(words(&source), "source t sb-1 sb-2");
        assert_eq!(words(&json!({ "role": "child", "index": 2, "count": 3, "id": "sb-2" })), "child 2 sb-2");
    }
}
