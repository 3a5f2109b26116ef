//! `--raw`: sends a request to a URI of the server and prints the response.

use crate::error::{Error, Result, os_message, text};
use crate::flags::FileFlags;
use crate::kube::Kube;
use client::client::{JSON, request};
use http::Method;
use http_body_util::BodyExt as _;
use std::io::Read as _;

/// Checks the URI and that a single file is the body.
pub fn check(path: &str, files: &FileFlags, exclusive: &[(&str, bool)]) -> Result {
    let [file] = files.filename.as_slice() else { return text("--raw can only use a single local file or stdin") };
    if file.starts_with("http://") || file.starts_with("https://") {
        return text("--raw cannot read from a url");
    }
    if files.recursive {
        return text("--raw and --recursive are mutually exclusive");
    }
    if let Some((flag, _)) = exclusive.iter().find(|(_, given)| *given) {
        return text(format!("--raw and {flag} are mutually exclusive"));
    }
    valid(path)
}

fn valid(path: &str) -> Result {
    request_uri(path).map(drop)
}

/// Returns path and query. The host of a full URL is ignored.
fn request_uri(path: &str) -> Result<String> {
    let uri = path.parse::<http::Uri>().ok().filter(|u| path.starts_with('/') || u.scheme().is_some());
    match uri.as_ref().map(http::Uri::path_and_query) {
        Some(Some(path)) => Ok(path.to_string()),
        Some(None) => Ok("/".into()),
        None => text(format!("--raw must be a valid URL path: parse {path:?}: invalid URI for request")),
    }
}

/// Sends the file and prints the response as it arrives.
pub async fn send(k: &mut Kube, method: Method, path: &str, files: &FileFlags) -> Result {
    let path = &request_uri(path)?;
    let body = match files.filename.first().map(String::as_str) {
        None => None,
        Some("-") => {
            let mut all = Vec::new();
            k.shell.input.read_to_end(&mut all).map_err(|e| Error::Text(format!("reading standard input: {e}")))?;
            Some(all)
        }
        Some(f) => Some(std::fs::read(f).map_err(|e| Error::Text(format!("open {f}: {}", os_message(&e))))?),
    };
    let request = request(method, path, "application/json, */*", body.map(|b| (JSON, b)))?;
    let mut answer = k.client().await?.checked(request).await?.into_body();
    while let Some(frame) = answer.frame().await {
        if let Ok(data) = frame?.into_data() {
            k.out.write(&data);
            k.out.flush();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn sends_bodies_unchanged() {
        let s = Server::new()
            .on_bytes("POST /api/v1/namespaces", 201, b"made".to_vec())
            .on_bytes("PUT /api/v1/namespaces/a", 200, b"put".to_vec())
            .on_bytes("DELETE /api/v1/namespaces/a", 200, b"gone".to_vec());
        for (line, expected) in [
            ("create --raw /api/v1/namespaces -f -", "made"),
            ("replace --raw /api/v1/namespaces/a -f -", "put"),
            ("delete --raw /api/v1/namespaces/a", "gone"),
            ("delete --raw /api/v1/namespaces/a -f -", "gone"),
            (
                "create --raw /api/v1/namespaces -f a -f b",
                "! error: --raw can only use a single local file or stdin\nexit 1\n",
            ),
            ("create --raw /a -f http://x", "! error: --raw cannot read from a url\nexit 1\n"),
            ("create --raw /a -f - -o yaml", "! error: --raw and --output are mutually exclusive\nexit 1\n"),
            (
                "replace --raw a -f -",
                "! error: --raw must be a valid URL path: parse \"a\": invalid URI for request\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, "{\"a\":1}").await, expected, "{line}");
        }
        assert_eq!(s.body_of("PUT /api/v1/namespaces/a"), json!({"a": 1}));
    }
}
