//! The envelopes of Connect streams: one flag byte, a 32-bit big-endian length, JSON.

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use serde::de::DeserializeOwned;

use super::fault::{Code, Fault};
use super::reply::{full, Body, JSON_LIMIT};

pub const STREAM_TYPE: &str = "application/connect+json";

const END_OF_STREAM: u8 = 2;

fn frame(flags: u8, payload: &[u8]) -> Bytes {
    let mut bytes = Vec::with_capacity(5 + payload.len());
    bytes.push(flags);
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes.into()
}

pub fn data_frame(payload: &[u8]) -> Bytes {
    frame(0, payload)
}

pub fn end_frame(fault: Option<&Fault>) -> Bytes {
    match fault {
        None => frame(END_OF_STREAM, b"{}"),
        Some(fault) => {
            let error = serde_json::json!({ "error": { "code": fault.code.name(), "message": fault.message } });
            frame(END_OF_STREAM, error.to_string().as_bytes())
        }
    }
}

/// Clients ignore the body of a streaming call that is not 200, so a failure is a stream of one end frame.
pub fn stream_error(fault: &Fault) -> Response<Body> {
    full(StatusCode::OK, STREAM_TYPE, end_frame(Some(fault)))
}

/// The messages of a request stream.
pub struct Frames {
    body: Incoming,
    buffer: BytesMut,
}

impl Frames {
    pub fn new(body: Incoming) -> Frames {
        Frames { body, buffer: BytesMut::new() }
    }

    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Fault> {
        loop {
            if let Some((flags, payload)) = take_frame(&mut self.buffer)? {
                if flags & END_OF_STREAM != 0 {
                    return Ok(None);
                }
                return serde_json::from_slice(&payload)
                    .map(Some)
                    .map_err(|error| Fault::invalid(format!("bad JSON: {error}")));
            }
            match self.body.frame().await {
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Fault::invalid("the stream ended inside an envelope")),
                Some(Err(error)) => return Err(Fault::invalid(format!("the request body broke off: {error}"))),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    pub async fn only<T: DeserializeOwned>(mut self) -> Result<T, Fault> {
        self.next().await?.ok_or_else(|| Fault::invalid("the request holds no message"))
    }
}

fn take_frame(buffer: &mut BytesMut) -> Result<Option<(u8, Bytes)>, Fault> {
    let Some((header, rest)) = buffer.split_first_chunk::<5>() else {
        return Ok(None);
    };
    let [flags, a, b, c, d] = *header;
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if flags & 1 != 0 {
        return Err(Fault::new(Code::Unimplemented, "compressed envelopes are not supported"));
    }
    if length > JSON_LIMIT {
        return Err(Fault::new(Code::ResourceExhausted, format!("an envelope of {length} bytes is too large")));
    }
    if rest.len() < length {
        return Ok(None);
    }
    buffer.advance(5);
    Ok(Some((flags, buffer.split_to(length).freeze())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_whole_frames_only() {
        let mut buffer = BytesMut::from(&data_frame(b"{}")[..]);
        buffer.extend_from_slice(&end_frame(None)[..4]);
        assert_eq!(take_frame(&mut buffer).unwrap(), Some((0, Bytes::from_static(b"{}"))));
        assert_eq!(take_frame(&mut buffer).unwrap(), None);
        buffer.extend_from_slice(&end_frame(None)[4..]);
        assert_eq!(take_frame(&mut buffer).unwrap(), Some((2, Bytes::from_static(b"{}"))));
        assert!(buffer.is_empty());
    }

    #[test]
    fn refuses_compressed_and_huge_frames() {
        assert!(take_frame(&mut BytesMut::from(&[1u8, 0, 0, 0, 0][..])).is_err());
        assert!(take_frame(&mut BytesMut::from(&[0u8, 255, 0, 0, 0][..])).is_err());
    }
}
