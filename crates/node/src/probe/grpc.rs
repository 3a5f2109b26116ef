//! `grpc`: the health checking protocol (`grpc.health.v1.Health/Check`) over plain HTTP/2, encoded by hand: the request is one
//! string, the answer one enum.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::GRPCAction;
use tokio::io::{AsyncRead, AsyncWrite};

use super::target::Target;

const SERVING: u64 = 1;
/// Maximum length of the answer, which needs seven bytes, of data before it is read, and of its headers.
const ANSWER: usize = 4 << 10;
const WINDOW: u32 = 64 << 10;
const HEADERS: u32 = 16 << 10;

pub(super) async fn check(target: &Target<'_>, a: &GRPCAction, timeout: Duration) -> Result<(), String> {
    let host = target.host(None)?;
    let port = u16::try_from(a.port).map_err(|_| format!("invalid port number: {}", a.port))?;
    let service = a.service.clone().unwrap_or_default();
    let late = || format!("timeout: failed to connect service \"{host}:{port}\" within {}s", timeout.as_secs());
    let work = async {
        let stream = target
            .connect(&host, port)
            .await
            .map_err(|e| format!("error: connection error: desc = \"transport: Error while dialing: {e}\""))?;
        let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        call(stream, &authority, &service).await
    };
    match tokio::time::timeout(timeout, work).await.map_err(|_| late())?? {
        SERVING => Ok(()),
        n => {
            let name = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"].get(n as usize).unwrap_or(&"UNKNOWN");
            Err(format!("service unhealthy (responded with \"{name}\")"))
        }
    }
}

/// Sends the request over a connection and returns the status in the answer.
async fn call<S>(stream: S, authority: &str, service: &str) -> Result<u64, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let error = |e: hyper::Error| format!("error: health rpc probe failed: {e}");
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(error)?;
    let request = http::Request::post(format!("http://{authority}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", super::http::USER_AGENT)
        .body(Full::new(encode(service)))
        .map_err(|e| e.to_string())?;
    let call = async {
        let response = sender.send_request(request).await.map_err(error)?;
        let head = response.headers().clone();
        let body = Limited::new(response.into_body(), ANSWER).collect().await;
        let body = body.map_err(|e| format!("error: health rpc probe failed: {e}"))?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        let code = |h: &http::HeaderMap| h.get("grpc-status").and_then(|v| v.to_str().ok()?.parse::<u32>().ok());
        match code(&trailers).or_else(|| code(&head)) {
            Some(0) | None => Ok(decode(&body.to_bytes())),
            Some(12) => Err("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): \
                             unknown service"
                .to_owned()),
            Some(5) => Err("error: health rpc probe failed: service unknown".to_owned()),
            Some(n) => Err(format!("error: health rpc probe failed with gRPC status {n}")),
        }
    };
    tokio::pin!(call, connection);
    tokio::select! {
        biased;
        answer = &mut call => answer,
        _ = &mut connection => call.await,
    }
}

/// A gRPC frame with a `HealthCheckRequest`: field 1, the service's name.
fn encode(service: &str) -> Bytes {
    let mut message = BytesMut::new();
    if !service.is_empty() {
        message.put_u8(0x0a);
        let mut n = service.len();
        while n >= 0x80 {
            message.put_u8((n as u8 & 0x7f) | 0x80);
            n >>= 7;
        }
        message.put_u8(n as u8);
        message.put_slice(service.as_bytes());
    }
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.put_slice(&message);
    frame.freeze()
}

/// The status in a frame with a `HealthCheckResponse`: field 1, a varint.
fn decode(frame: &[u8]) -> u64 {
    match frame.get(5..) {
        Some([0x08, value, ..]) if *value < 0x80 => u64::from(*value),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use std::convert::Infallible;

    /// A server in a pod may answer for ever.
    #[tokio::test]
    async fn an_answer_without_end_is_not_read_to_its_end() {
        let (client, server) = tokio::io::duplex(64 << 10);
        let answer = hyper::service::service_fn(|_| async {
            let piece = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[0; 1024])));
            Ok::<_, Infallible>(http::Response::new(StreamBody::new(stream::repeat_with(piece).boxed())))
        });
        tokio::spawn(
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(server), answer),
        );
        let why = call(client, "pod", "").await.unwrap_err();
        assert_eq!(why, "error: health rpc probe failed: length limit exceeded");
    }

    #[test]
    fn frames_are_those_of_grpc() {
        assert_eq!(&encode("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&encode("ab")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(encode(&"x".repeat(200))[5..8], [0x0a, 0xc8, 0x01]);
        assert_eq!(decode(&[0, 0, 0, 0, 2, 8, 1]), 1);
        assert_eq!(decode(&[0, 0, 0, 0, 0]), 0);
    }
}
