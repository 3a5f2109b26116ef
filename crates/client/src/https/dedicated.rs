//! A single connection outside the pool, for measurements or where connections must not be shared.

use super::{Https, chain};
use crate::error::Error;
use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue};
use http::uri::{PathAndQuery, Uri};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use tower_service::Service;

/// An HTTP/1.1 connection for one request at a time: the next can be sent after the body of the last response was read to its end.
/// It is not reopened when it closes.
pub struct Dedicated {
    sender: http1::SendRequest<Full<Bytes>>,
    headers: HeaderMap,
    prefix: String,
}

impl Https {
    /// Opens a connection outside the pool. `headers` go with every request.
    pub async fn dedicated(&self, mut headers: HeaderMap) -> Result<Dedicated, Error> {
        let connect = |source| Error::Connect { to: self.authority.to_string(), source };
        let to = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query("/")
            .build()
            .map_err(|e| Error::Request(e.to_string()))?;
        let stream = self.connector.clone().call(to).await.map_err(connect)?;
        let (sender, connection) = http1::handshake(stream).await.map_err(|e| Error::Send(chain(&e).into()))?;
        // Its errors reach the caller that waits for a response.
        tokio::spawn(connection);
        let host = HeaderValue::from_str(self.authority.as_str()).map_err(|e| Error::Request(e.to_string()))?;
        headers.insert(HOST, host);
        if let Some(v) = self.authorization().await? {
            headers.insert(AUTHORIZATION, v);
        }
        Ok(Dedicated { sender, headers, prefix: self.prefix.clone() })
    }
}

impl Dedicated {
    /// Sends a request with a path and no host, as [`crate::Transport::send`] does.
    pub async fn send(&mut self, request: Request<Bytes>) -> Result<Response<Incoming>, Error> {
        let (mut parts, body) = request.into_parts();
        for (name, value) in &self.headers {
            parts.headers.append(name.clone(), value.clone());
        }
        if !self.prefix.is_empty() {
            let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
            parts.uri = format!("{}{path}", self.prefix).parse().map_err(|e| Error::Request(format!("{path}: {e}")))?;
        }
        let failed = |e: hyper::Error| Error::Send(chain(&e).into());
        self.sender.ready().await.map_err(failed)?;
        self.sender.send_request(Request::from_parts(parts, Full::new(body))).await.map_err(failed)
    }
}
