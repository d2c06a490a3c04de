//! Language kernels: long-lived interpreters that keep their state between evals.

mod job;
mod kernel;
mod output;
pub mod routes;
mod slots;
mod wire;

pub use slots::Kernels;
pub use wire::{FREEZE, RESEED};
