//! The reply of one eval: lines of JSON, bounded.

use bytes::Bytes;
use serde_json::json;
use tokio::sync::mpsc;

/// What an eval may print before the rest is dropped.
const LIMIT: usize = 16 << 20;

pub struct Reply {
    lines: mpsc::Sender<Bytes>,
    forwarded: usize,
}

impl Reply {
    pub fn new(lines: mpsc::Sender<Bytes>) -> Reply {
        Reply { lines, forwarded: 0 }
    }

    /// Resolves when nobody wants the reply any more.
    pub async fn abandoned(&self) {
        self.lines.closed().await;
    }

    pub fn is_abandoned(&self) -> bool {
        self.lines.is_closed()
    }

    /// Forwards output and waits for a slow reader.
    pub async fn text(&mut self, stream: &str, text: &str) {
        if text.is_empty() || self.forwarded > LIMIT {
            return;
        }
        self.forwarded += text.len();
        let mut line = line(&json!({ "type": stream, "text": text }));
        if self.forwarded > LIMIT {
            line.extend_from_slice(b"{\"type\":\"truncated\"}\n");
        }
        let _ = self.lines.send(line.into()).await;
    }

    pub async fn finish(self, last_lines: Vec<u8>) {
        let _ = self.lines.send(last_lines.into()).await;
    }
}

pub fn line(value: &serde_json::Value) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).expect("JSON values serialise");
    bytes.push(b'\n');
    bytes
}

/// Turns a byte stream into text without tearing characters that straddle two reads.
#[derive(Default)]
pub struct Decoder {
    tail: Vec<u8>,
}

impl Decoder {
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.tail.extend_from_slice(bytes);
        let whole = self.tail.len() - torn_suffix(&self.tail);
        let text = String::from_utf8_lossy(&self.tail[..whole]).into_owned();
        self.tail.drain(..whole);
        text
    }

    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.tail).into_owned();
        self.tail.clear();
        text
    }
}

/// How many bytes at the end are the beginning of a character.
fn torn_suffix(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let needed = match bytes[bytes.len() - back] {
            0b1100_0000..=0b1101_1111 => 2,
            0b1110_0000..=0b1110_1111 => 3,
            0b1111_0000..=0b1111_0111 => 4,
            0b1000_0000..=0b1011_1111 => continue,
            _ => return 0,
        };
        return if back < needed { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_survive_any_cut() {
        let text = "aé€𝄞z";
        for cut in 0..=text.len() {
            let mut decoder = Decoder::default();
            let mut joined = decoder.push(&text.as_bytes()[..cut]);
            joined += &decoder.push(&text.as_bytes()[cut..]);
            joined += &decoder.finish();
            assert_eq!(joined, text);
        }
    }

    #[test]
    fn broken_bytes_do_not_get_stuck() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push(b"\xff\x80ok"), "\u{fffd}\u{fffd}ok");
        assert_eq!(decoder.push(b"\xe2\x82"), "");
        assert_eq!(decoder.finish(), "\u{fffd}");
    }
}
