//! Bodies: bounded on the way in, lazily produced on the way out.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as HttpBody, Frame, Incoming};
use hyper::header::{HeaderValue, CONTENT_TYPE};
use hyper::{Response, StatusCode};
use serde::de::DeserializeOwned;
use serde::Serialize;
use tokio::sync::mpsc;

use super::fault::{Code, Fault};

pub const JSON_LIMIT: usize = 4 << 20;

pub type Body = Pin<Box<dyn HttpBody<Data = Bytes, Error = io::Error>>>;

/// A body that is already complete.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Box::pin(Full::new(bytes.into()).map_err(|never: Infallible| -> io::Error { match never {} }))
}

pub fn full(status: StatusCode, content_type: &'static str, bytes: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(whole(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let bytes = serde_json::to_vec(value).expect("replies are plain data");
    full(status, "application/json", bytes)
}

pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(whole(Bytes::new()));
    *response.status_mut() = status;
    response
}

pub fn stream(
    content_type: &'static str,
    body: impl HttpBody<Data = Bytes, Error = io::Error> + 'static,
) -> Response<Body> {
    let mut response = Response::new(Box::pin(body) as Body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The receiving end of a bounded channel as a body: a slow client slows the sender down, a gone client closes it.
pub struct ChannelBody(pub mpsc::Receiver<Bytes>);

impl HttpBody for ChannelBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

pub async fn read_body(mut body: Incoming, limit: usize) -> Result<Bytes, Fault> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Fault::invalid(format!("the request body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + rest.len() + data.len() > limit {
            return Err(Fault::new(Code::ResourceExhausted, format!("the request body is larger than {limit} bytes")));
        }
        if first.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&data);
        }
    }
    if rest.is_empty() {
        return Ok(first);
    }
    let mut whole = BytesMut::from(first);
    whole.extend_from_slice(&rest);
    Ok(whole.freeze())
}

pub async fn read_json<T: DeserializeOwned>(body: Incoming) -> Result<T, Fault> {
    let bytes = read_body(body, JSON_LIMIT).await?;
    let bytes = if bytes.is_empty() { &b"{}"[..] } else { &bytes[..] };
    serde_json::from_slice(bytes).map_err(|error| Fault::invalid(format!("bad JSON: {error}")))
}
