//! Notices a new HTTP/2 client on a byte stream that still carries an old one.
//!
//! A restored VM keeps the connection state of its parent, and the guest may never see that the host side was replaced:
//! it only finds a client preface where a frame should start. That preface belongs to the next connection.

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADER: usize = 9;

/// Where in the frames of the current connection the next byte falls.
#[derive(Default)]
pub struct Position {
    greeted: bool,
    header: [u8; HEADER],
    header_len: usize,
    payload_left: usize,
    payload_begun: bool,
}

impl Position {
    /// True if `chunk` opens another connection. The preface always starts a chunk: it is the first write of a client.
    /// The very start of a payload may hold a preface as data (HTTP/2 in a tunnel) and is let through.
    pub fn is_restart(&self, chunk: &[u8]) -> bool {
        let payload_start = self.payload_left > 0 && !self.payload_begun;
        self.greeted && !payload_start && chunk.starts_with(PREFACE)
    }

    pub fn advance(&mut self, mut chunk: &[u8]) {
        if !self.greeted {
            self.greeted = true;
            chunk = chunk.strip_prefix(PREFACE).unwrap_or(chunk);
        }
        while !chunk.is_empty() {
            if self.payload_left > 0 {
                let taken = self.payload_left.min(chunk.len());
                self.payload_left -= taken;
                self.payload_begun = true;
                chunk = &chunk[taken..];
                continue;
            }
            let taken = (HEADER - self.header_len).min(chunk.len());
            self.header[self.header_len..self.header_len + taken].copy_from_slice(&chunk[..taken]);
            self.header_len += taken;
            chunk = &chunk[taken..];
            if self.header_len == HEADER {
                let [a, b, c, ..] = self.header;
                self.payload_left = u32::from_be_bytes([0, a, b, c]) as usize;
                self.payload_begun = false;
                self.header_len = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeted() -> Position {
        let mut position = Position::default();
        assert!(!position.is_restart(PREFACE));
        position.advance(PREFACE);
        position.advance(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
        position
    }

    #[test]
    fn a_preface_between_frames_restarts() {
        let position = greeted();
        assert!(position.is_restart(PREFACE));
        assert!(!position.is_restart(&PREFACE[..20]));
    }

    #[test]
    fn a_preface_inside_a_cut_frame_restarts() {
        let mut position = greeted();
        position.advance(&[0, 0, 100, 0, 0, 0, 0, 0, 1, b'x']);
        assert!(position.is_restart(PREFACE));
    }

    #[test]
    fn a_preface_as_the_start_of_a_payload_is_data() {
        let mut position = greeted();
        position.advance(&[0, 0, 100, 0, 0, 0, 0, 0, 1]);
        assert!(!position.is_restart(PREFACE));
    }
}
