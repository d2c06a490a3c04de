//! The program inside a forkd VM: PID 1, and the server of everything the host may ask of the guest.

mod agent;
mod boot;
mod channel;
mod eval;
mod files;
mod guest_command;
mod hooks;
mod http;
mod identity;
mod init_route;
mod machine;
mod metrics;
mod ports;
mod process;
mod reaper;
mod settle;
mod shutdown;
mod time;
mod tunnel;
mod users;
mod watched;
mod wishes;

use std::rc::Rc;

use agent::Agent;
use channel::Channel;

fn main() {
    if guest_command::is_called() {
        std::process::exit(guest_command::run(std::env::args().skip(1)));
    }
    let is_init = std::process::id() == 1;
    let channel = if is_init {
        boot::run().unwrap_or_else(|reason| boot::fatal(&reason))
    } else {
        match Channel::from_args(std::env::args().skip(1)) {
            Some(channel) => channel,
            None => {
                eprintln!("usage: forkd-agent --listen unix:PATH");
                std::process::exit(2);
            }
        }
    };
    process::reserve_low_fds();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("epoll is part of every Linux");
    let tasks = tokio::task::LocalSet::new();
    let outcome = tasks.block_on(&runtime, async move {
        let agent = Rc::new(Agent::new(is_init)?);
        tokio::task::spawn_local(reaper::run(agent.clone(), reaper::signals()?));
        tokio::task::spawn_local(wishes::socket::serve(agent.clone()));
        channel::serve(agent, channel).await
    });
    if let Err(error) = outcome {
        let reason = format!("serving failed: {error}");
        if is_init {
            boot::fatal(&reason);
        }
        eprintln!("forkd-agent: {reason}");
        std::process::exit(1);
    }
}
