//! Fetches manifests by URL, as `curl -L` does.

use crate::error::{Error, Result, text};
use bytes::Bytes;
use client::https::{Config, Https};
use client::transport::Transport;
use http::{Request, Uri, header};
use http_body_util::BodyExt;
use std::time::Duration;

/// How many times a request is sent while the server fails.
const ATTEMPTS: usize = 3;
const REDIRECTS: usize = 10;
const PAUSE: Duration = Duration::from_secs(1);

/// Fetches a URL and follows redirects.
pub async fn fetch(url: &str) -> Result<Vec<u8>> {
    let mut at = url.to_owned();
    for _ in 0..=REDIRECTS {
        match request(&at).await? {
            Fetched::Body(b) => return Ok(b),
            Fetched::Redirect(to) => at = to,
        }
    }
    text(format!("unable to read URL {url:?}, more than {REDIRECTS} redirects"))
}

enum Fetched {
    Body(Vec<u8>),
    Redirect(String),
}

async fn request(url: &str) -> Result<Fetched> {
    let failed = |why: String| Error::Text(format!("unable to read URL {url:?}, {why}"));
    let uri: Uri = url.parse().map_err(|e| failed(format!("{e}")))?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(failed("it names no server".into()));
    };
    let https = Https::new(&Config::new(format!("{scheme}://{authority}"))).map_err(|e| failed(e.to_string()))?;
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let request = Request::get(path).body(Bytes::new()).map_err(|e| failed(e.to_string()))?;
        let response = https.send(request).await?;
        let status = response.status();
        if status.is_redirection() {
            let to = response.headers().get(header::LOCATION).and_then(|l| l.to_str().ok());
            let to = to.ok_or_else(|| failed("a redirect leads nowhere".into()))?;
            let absolute = if to.contains("://") { to.to_owned() } else { format!("{scheme}://{authority}{to}") };
            return Ok(Fetched::Redirect(absolute));
        }
        if status.is_success() {
            let body = response.into_body().collect().await.map_err(|e| failed(e.to_string()))?;
            return Ok(Fetched::Body(body.to_bytes().to_vec()));
        }
        last = format!("server reported {status}, status code={}", status.as_u16());
        if !status.is_server_error() {
            break;
        }
    }
    Err(failed(last))
}
