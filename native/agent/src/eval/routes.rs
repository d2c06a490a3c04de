use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;

use super::job::Job;
use super::output::Reply;
use super::slots::Language;
use crate::agent::Agent;
use crate::http::{full, json as json_reply, read_json, stream, Body, ChannelBody, Fault};

const LINES: &str = "application/x-ndjson";
/// The reply of an eval whose kernel died before it even took the job.
const DIED: &[u8] = b"{\"type\":\"error\",\"name\":\"KernelDied\",\"value\":\"the interpreter ended before it could run the code\",\"traceback\":\"\"}\n{\"type\":\"end\",\"took_us\":0}\n";

type Answer = Result<Response<Body>, Fault>;

#[derive(Deserialize)]
struct EvalRequest {
    language: Language,
    code: String,
    timeout_ms: Option<u64>,
}

#[derive(Deserialize)]
struct KernelRequest {
    language: Language,
}

pub async fn eval(agent: Rc<Agent>, request: Request<Incoming>) -> Answer {
    let message: EvalRequest = read_json(request.into_body()).await?;
    let queue = agent.kernels.queue(&agent, message.language).await?;
    let (lines, mut reply) = mpsc::channel(4);
    let job = Job::Eval {
        code: message.code,
        limit: message.timeout_ms.map(Duration::from_millis),
        reply: Reply::new(lines),
    };
    let _ = queue.send(job).await;
    let Some(first) = reply.recv().await else {
        return Ok(full(StatusCode::OK, LINES, DIED));
    };
    // An eval that printed nothing is complete by now, and goes out as one piece.
    if reply.is_closed() && reply.is_empty() {
        return Ok(full(StatusCode::OK, LINES, first));
    }
    Ok(stream(LINES, FirstThen(Some(first), ChannelBody(reply))))
}

pub async fn interrupt(agent: &Agent, request: Request<Incoming>) -> Answer {
    let message: KernelRequest = read_json(request.into_body()).await?;
    let interrupted = agent.kernels.interrupt(message.language);
    Ok(json_reply(StatusCode::OK, &json!({ "interrupted": interrupted })))
}

pub async fn start(agent: &Agent, request: Request<Incoming>) -> Answer {
    let message: KernelRequest = read_json(request.into_body()).await?;
    agent.kernels.queue(agent, message.language).await?;
    Ok(json_reply(StatusCode::OK, &json!({ "language": message.language.name() })))
}

struct FirstThen(Option<Bytes>, ChannelBody);

impl hyper::body::Body for FirstThen {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context,
    ) -> std::task::Poll<Option<std::io::Result<hyper::body::Frame<Bytes>>>> {
        match self.0.take() {
            Some(first) => std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data(first)))),
            None => std::pin::Pin::new(&mut self.1).poll_frame(cx),
        }
    }
}
