//! filesystem.Filesystem and /files, as E2B's clients call them.

mod arriving;
pub mod download;
mod entry;
mod form;
mod paths;
pub mod routes;
pub mod upload;
mod walk;
mod watch;

pub use paths::resolve;
pub use watch::Watchers;
