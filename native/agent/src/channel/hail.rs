//! How a host makes itself heard on a byte stream that may still carry another connection.
//!
//! A copied VM keeps the connection of its parent, and the guest may never see that the host side was replaced. So the host says a
//! line that nobody can say who only sends data through a connection: it holds a key from the kernel's command line. What the
//! guest says until it repeats the number in that line belongs to others.

const WORD: &str = "FORKD/1 ";
const NUMBER: usize = 16;

pub struct Hail {
    line_start: String,
}

impl Hail {
    pub fn new(key: &str) -> Self {
        Hail { line_start: format!("{WORD}{key} ") }
    }

    /// The answer to the last hail at the start of a chunk, and where what follows it begins. A hail is one write, and so one chunk.
    pub fn in_chunk(&self, chunk: &[u8]) -> Option<(String, usize)> {
        let mut found = None;
        let mut at = 0;
        while let Some(number) = self.number(&chunk[at..]) {
            at += self.line_start.len() + NUMBER + 1;
            found = Some((format!("{WORD}{number}\n"), at));
        }
        found
    }

    fn number<'a>(&self, chunk: &'a [u8]) -> Option<&'a str> {
        let line = chunk.strip_prefix(self.line_start.as_bytes())?.get(..=NUMBER)?;
        let number = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
        number.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = b"FORKD/1 secret 0123456789abcdef\n";

    fn answer(chunk: &[u8]) -> Option<(String, usize)> {
        Hail::new("secret").in_chunk(chunk)
    }

    #[test]
    fn a_hail_is_answered_with_its_number() {
        assert_eq!(answer(LINE), Some(("FORKD/1 0123456789abcdef\n".into(), LINE.len())));
        assert_eq!(answer(&[LINE, b"PRI *"].concat()).unwrap().1, LINE.len());
    }

    #[test]
    fn of_several_the_last_counts() {
        let both = [LINE, b"FORKD/1 secret fedcba9876543210\n"].concat();
        assert_eq!(answer(&both), Some(("FORKD/1 fedcba9876543210\n".into(), both.len())));
    }

    #[test]
    fn without_the_key_it_is_data() {
        assert_eq!(answer(b"FORKD/1 guessed 0123456789abcdef\n"), None);
        assert_eq!(answer(b"FORKD/1 secret 0123456789abcdeX\n"), None);
        assert_eq!(answer(&LINE[..20]), None);
        assert_eq!(answer(&[b"x", LINE].concat()), None);
    }
}
