//! Messages between agent and kernel: one type byte, a 32-bit big-endian length, the payload.
//! No JSON here on purpose: in a freshly restored guest every line of code that runs for the first time costs time.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

pub const EVAL: u8 = b'E';
pub const RESEED: u8 = b'S';
pub const FREEZE: u8 = b'F';

pub const READY: u8 = b'K';
pub const RESULT: u8 = b'R';
pub const MIME: u8 = b'M';
pub const ERROR: u8 = b'X';
pub const DONE: u8 = b'D';

const LIMIT: usize = 32 << 20;

pub struct Wire {
    stream: UnixStream,
    buffer: BytesMut,
}

impl Wire {
    pub fn new(stream: UnixStream) -> Wire {
        Wire { stream, buffer: BytesMut::new() }
    }

    pub async fn send(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(5 + payload.len());
        message.push(kind);
        message.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        message.extend_from_slice(payload);
        self.stream.write_all(&message).await
    }

    /// The next message, or `None` once the kernel is gone or talks nonsense. Safe to cancel.
    pub async fn next(&mut self) -> Option<(u8, Bytes)> {
        loop {
            if let Some((&[kind, a, b, c, d], rest)) = self.buffer.split_first_chunk::<5>() {
                let length = u32::from_be_bytes([a, b, c, d]) as usize;
                if length > LIMIT {
                    return None;
                }
                if rest.len() >= length {
                    self.buffer.advance(5);
                    return Some((kind, self.buffer.split_to(length).freeze()));
                }
            }
            self.buffer.reserve(4096);
            if !matches!(self.stream.read_buf(&mut self.buffer).await, Ok(1..)) {
                return None;
            }
        }
    }
}
