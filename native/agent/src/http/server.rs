use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::router::route;
use crate::agent::Agent;

#[derive(Clone)]
struct OnThisThread;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for OnThisThread {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

/// Serves one HTTP/2 connection until it ends, whatever the reason.
pub async fn serve_connection(agent: Rc<Agent>, io: impl AsyncRead + AsyncWrite + Unpin + 'static) {
    let service = service_fn(move |request| {
        let agent = agent.clone();
        async move { Ok::<_, Infallible>(route(agent, request).await) }
    });
    let _ = http2::Builder::new(OnThisThread)
        .auto_date_header(false)
        .initial_connection_window_size(1 << 20)
        .initial_stream_window_size(256 << 10)
        .max_send_buf_size(128 << 10)
        .max_concurrent_streams(256)
        .serve_connection(TokioIo::new(io), service)
        .await;
}
