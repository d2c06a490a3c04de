//! GET /files: bytes of a regular file, read as the client takes them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::{HeaderValue, ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use hyper::{Request, Response, StatusCode};

use super::upload::Query;
use crate::agent::Agent;
use crate::http::{stream, Body, Fault};

const CHUNK: u64 = 64 << 10;

pub fn get(agent: &Agent, request: Request<Incoming>) -> Result<Response<Body>, Fault> {
    let query = Query::of(agent, &request)?;
    let path = query.path.ok_or_else(|| Fault::invalid("path is required"))?;
    let failed = |error: io::Error| Fault::io(&path.to_string_lossy(), &error);
    // Looked at before it is opened: opening a FIFO would block the only thread there is.
    let meta = std::fs::metadata(&path).map_err(failed)?;
    if !meta.is_file() {
        return Err(Fault::invalid(format!("{} is not a regular file", path.display())));
    }
    let mut file = File::open(&path).map_err(failed)?;
    let size = meta.len();
    let range = request.headers().get(RANGE).and_then(|value| value.to_str().ok());
    let (from, to) = range.and_then(|range| parse_range(range, size)).unwrap_or((0, size));
    file.seek(SeekFrom::Start(from)).map_err(failed)?;
    // Files of /proc say they are empty and are not; only a real size is a promise.
    let left = if size == 0 { None } else { Some(to - from) };
    let mut response = stream("application/octet-stream", FileBody { file, left });
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some(left) = left {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(left));
    }
    if (from, to) != (0, size) {
        let range = format!("bytes {from}-{}/{size}", to - 1);
        headers.insert(CONTENT_RANGE, HeaderValue::from_str(&range).expect("digits"));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// One range as (first, past the last). What is not one plain satisfiable range is ignored, as HTTP allows.
fn parse_range(header: &str, size: u64) -> Option<(u64, u64)> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first, last) {
        ("", suffix) => (size.saturating_sub(suffix.parse().ok()?), size),
        (first, "") => (first.parse().ok()?, size),
        (first, last) => (first.parse().ok()?, last.parse::<u64>().ok()?.checked_add(1)?.min(size)),
    };
    (range.0 < range.1).then_some(range)
}

struct FileBody {
    file: File,
    /// Bytes still promised, or `None` for "until the end".
    left: Option<u64>,
}

impl HttpBody for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let wanted = self.left.unwrap_or(CHUNK).min(CHUNK) as usize;
        if wanted == 0 {
            return Poll::Ready(None);
        }
        let mut chunk = vec![0; wanted];
        match self.file.read(&mut chunk) {
            Ok(0) if self.left.is_none() => Poll::Ready(None),
            Ok(0) => Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
            Ok(count) => {
                chunk.truncate(count);
                self.left = self.left.map(|left| left - count as u64);
                Poll::Ready(Some(Ok(Frame::data(chunk.into()))))
            }
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use super::parse_range;

    #[test]
    fn ranges() {
        assert_eq!(parse_range("bytes=0-3", 10), Some((0, 4)));
        assert_eq!(parse_range("bytes=4-", 10), Some((4, 10)));
        assert_eq!(parse_range("bytes=-3", 10), Some((7, 10)));
        assert_eq!(parse_range("bytes=5-99", 10), Some((5, 10)));
        for bad in ["bytes=10-", "bytes=3-2", "bytes=0-1,3-4", "lines=1-2", "bytes=-"] {
            assert_eq!(parse_range(bad, 10), None, "{bad}");
        }
    }
}
