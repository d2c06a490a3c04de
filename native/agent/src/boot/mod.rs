//! What PID 1 does before it serves: drivers, root file system, kernel settings.

mod console;
mod modules;
mod network;
mod pit;
mod root;
mod settings;

use crate::agent::DEFAULT_PATH;
use crate::channel::Channel;

pub use console::{fatal, restart};

pub fn run() -> Result<Channel, String> {
    console::print("init");
    // SAFETY: there is one thread.
    unsafe {
        std::env::set_var("PATH", DEFAULT_PATH);
        std::env::set_var("HOME", "/root");
        libc::umask(0o022);
    }
    root::mount_kernel_views()?;
    modules::load("/modules");
    let command_line = std::fs::read_to_string("/proc/cmdline").map_err(|error| format!("/proc/cmdline: {error}"))?;
    if let Some(base) = parameter(&command_line, "forkd.base") {
        let upper = parameter(&command_line, "forkd.upper").ok_or("forkd.base needs forkd.upper")?;
        root::switch(base, upper)?;
    }
    root::mount_runtime();
    settings::apply();
    if let Err(error) = pit::silence() {
        console::print(&format!("timer: {error}"));
    }
    if let Err(error) = crate::guest_command::install() {
        console::print(&format!("forkd-guest: {error}"));
    }
    if let Some(addresses) = parameter(&command_line, "forkd.network") {
        network::configure(addresses);
    }
    // Without the cover a child would still get a fresh machine-id, only at a higher price; so it is not fatal here.
    if let Err(error) = crate::machine::cover_ids() {
        console::print(&format!("machine ids: {error}"));
    }
    Ok(match parameter(&command_line, "forkd.channel") {
        Some("vsock") => Channel::Vsock,
        _ => Channel::VirtioSerial { key: parameter(&command_line, "forkd.hail").unwrap_or_default().into() },
    })
}

fn parameter<'a>(command_line: &'a str, name: &str) -> Option<&'a str> {
    command_line
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
        .find_map(|(key, value)| (key == name).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::parameter;

    #[test]
    fn finds_parameters() {
        let line = "console=ttyS0 forkd.base=/dev/vda forkd.basement=x ro\n";
        assert_eq!(parameter(line, "forkd.base"), Some("/dev/vda"));
        assert_eq!(parameter(line, "forkd.upper"), None);
        assert_eq!(parameter(line, "ro"), None);
    }
}
