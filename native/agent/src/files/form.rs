//! multipart/form-data, taken apart as it streams in. Only what /files needs: the file parts and their full names.

use bytes::{Buf, Bytes, BytesMut};

use crate::http::Fault;

const HEADER_LIMIT: usize = 16 << 10;

pub enum Piece {
    /// A part starts; only a part with a file name is kept.
    Begin(Option<String>),
    Data(Bytes),
}

enum State {
    Preamble,
    Headers,
    Content,
    Done,
}

pub struct Form {
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
}

pub fn boundary(content_type: &str) -> Option<&str> {
    let rest = content_type.strip_prefix("multipart/form-data")?;
    let value = rest.split(';').find_map(|part| part.trim().strip_prefix("boundary="))?;
    Some(value.trim_matches('"')).filter(|value| !value.is_empty())
}

impl Form {
    pub fn new(boundary: &str) -> Form {
        Form {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            // The first delimiter has no line before it; giving it one makes all delimiters alike.
            buffer: BytesMut::from(&b"\r\n"[..]),
            state: State::Preamble,
        }
    }

    pub fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    pub fn is_complete(&self) -> bool {
        matches!(self.state, State::Done)
    }

    pub fn next(&mut self) -> Result<Option<Piece>, Fault> {
        loop {
            match self.state {
                State::Done => {
                    self.buffer.clear();
                    return Ok(None);
                }
                State::Preamble => match find(&self.buffer, &self.delimiter) {
                    Some(at) => {
                        if !self.pass_delimiter(at) {
                            return Ok(None);
                        }
                    }
                    None => {
                        let keep = self.delimiter.len().min(self.buffer.len());
                        self.buffer.advance(self.buffer.len() - keep);
                        return Ok(None);
                    }
                },
                State::Headers => {
                    let Some(at) = find(&self.buffer, b"\r\n\r\n") else {
                        if self.buffer.len() > HEADER_LIMIT {
                            return Err(Fault::invalid("the headers of a form part are too long"));
                        }
                        return Ok(None);
                    };
                    let headers = self.buffer.split_to(at);
                    self.buffer.advance(4);
                    self.state = State::Content;
                    return Ok(Some(Piece::Begin(file_name(&headers))));
                }
                State::Content => match find(&self.buffer, &self.delimiter) {
                    Some(0) => {
                        if !self.pass_delimiter(0) {
                            return Ok(None);
                        }
                    }
                    Some(at) => return Ok(Some(Piece::Data(self.buffer.split_to(at).freeze()))),
                    None => {
                        // The tail may be the start of a delimiter.
                        let safe = (self.buffer.len() + 1).saturating_sub(self.delimiter.len());
                        if safe == 0 {
                            return Ok(None);
                        }
                        return Ok(Some(Piece::Data(self.buffer.split_to(safe).freeze())));
                    }
                },
            }
        }
    }

    /// Moves past a delimiter and the two bytes that tell whether another part follows; false if they are not here yet.
    fn pass_delimiter(&mut self, at: usize) -> bool {
        let after = at + self.delimiter.len();
        if self.buffer.len() < after + 2 {
            return false;
        }
        let last = &self.buffer[after..after + 2] == b"--";
        self.buffer.advance(after);
        self.state = if last { State::Done } else { State::Headers };
        true
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// The file name of a part's Content-Disposition, path and all.
fn file_name(headers: &[u8]) -> Option<String> {
    let headers = String::from_utf8_lossy(headers);
    let line = headers.lines().find(|line| line.to_ascii_lowercase().starts_with("content-disposition:"))?;
    let start = line.find("filename=\"")? + "filename=\"".len();
    let mut name = String::new();
    let mut letters = line[start..].chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => return Some(unescape(&name)),
            '\\' => name.push(letters.next()?),
            _ => name.push(letter),
        }
    }
    None
}

/// Browsers and Node write a quote or a line break in a file name as a percent escape.
fn unescape(name: &str) -> String {
    name.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/a/b.txt\"\r\n\r\nhello\r\n--not\r\n--b\r\ncontent-disposition: form-data; name=\"x\"\r\n\r\n1\r\n--b--\r\n";

    fn parse(cut: usize) -> Vec<(Option<String>, Vec<u8>)> {
        let mut form = Form::new("b");
        let mut parts: Vec<(Option<String>, Vec<u8>)> = Vec::new();
        for chunk in [&BODY[..cut], &BODY[cut..]] {
            form.push(chunk);
            while let Some(piece) = form.next().unwrap() {
                match piece {
                    Piece::Begin(name) => parts.push((name, Vec::new())),
                    Piece::Data(data) => parts.last_mut().unwrap().1.extend_from_slice(&data),
                }
            }
        }
        assert!(form.is_complete());
        parts
    }

    #[test]
    fn any_cut_gives_the_same_parts() {
        for cut in 0..=BODY.len() {
            let parts = parse(cut);
            assert_eq!(parts[0], (Some("/a/b.txt".to_owned()), b"hello\r\n--not".to_vec()), "cut at {cut}");
            assert_eq!(parts[1], (None, b"1".to_vec()));
        }
    }

    #[test]
    fn boundaries() {
        assert_eq!(boundary("multipart/form-data; boundary=\"x y\""), Some("x y"));
        assert_eq!(boundary("application/octet-stream"), None);
    }
}
