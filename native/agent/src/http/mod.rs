mod connect;
mod fault;
mod reply;
mod router;
mod server;

pub use connect::{data_frame, end_frame, Frames, STREAM_TYPE};
pub use fault::{Code, Fault};
pub use reply::{empty, full, json, read_json, stream, Body, ChannelBody};
pub use server::serve_connection;
