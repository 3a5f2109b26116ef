//! Runs a credential provider: a `CredentialProviderRequest` on its standard input, a `CredentialProviderResponse` on its output.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use distribution::Credentials;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::configuration::Provider;
use crate::configuration::GoDuration;

/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The most bytes of its output, and of its errors that are logged.
const MOST_OUTPUT: u64 = 1 << 20;
const MOST_ERRORS: u64 = 4 << 10;

/// The content of a `CredentialProviderRequest`.
pub struct Request<'a> {
    pub image: &'a str,
    /// Empty: it gets no token.
    pub token: &'a str,
    pub annotations: &'a BTreeMap<String, String>,
}

/// The images for which a response may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum CacheKeyType {
    Image,
    Registry,
    Global,
}

/// What a program returned.
#[derive(Debug)]
pub struct Response {
    pub cache_key_type: CacheKeyType,
    /// None: the default of the configuration.
    pub cache_duration: Option<GoDuration>,
    /// Credentials by the registries and paths that they are for.
    pub auth: BTreeMap<String, Credentials>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawResponse {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    cache_key_type: String,
    cache_duration: Option<GoDuration>,
    #[serde(default)]
    auth: Option<BTreeMap<String, RawCredentials>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCredentials {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// Runs a program. Errors if it fails, takes too long, or returns anything else.
pub async fn run(program: &Path, provider: &Provider, request: &Request<'_>) -> Result<Response, String> {
    let mut document =
        json!({"kind": "CredentialProviderRequest", "apiVersion": provider.api_version, "image": request.image});
    if !request.token.is_empty() {
        document["serviceAccountToken"] = request.token.into();
    }
    if !request.annotations.is_empty() {
        document["serviceAccountAnnotations"] = json!(request.annotations);
    }
    let mut command = Command::new(program);
    command.args(&provider.args).envs(provider.env.iter().map(|v| (&v.name, &v.value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let failed = |why: &dyn std::fmt::Display| {
        format!("failed to get credential from external registry credential provider: {why}")
    };
    let mut child = command.spawn().map_err(|e| failed(&e))?;
    let (Some(mut input), Some(output), Some(errors)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(failed(&"the program has no standard streams"));
    };
    let talk = async {
        let write = async move {
            // A program may answer without reading its input.
            let _ = input.write_all(document.to_string().as_bytes()).await;
        };
        let (_, output, errors) = tokio::join!(write, read(output, MOST_OUTPUT), read(errors, MOST_ERRORS));
        (output, errors, child.wait().await)
    };
    let talked = tokio::time::timeout(LIMIT, talk).await;
    let (output, errors, status) = talked.map_err(|_| failed(&"the program did not end within 1 minute"))?;
    let status = status.map_err(|e| failed(&e))?;
    if !status.success() {
        let errors = String::from_utf8_lossy(&errors);
        return Err(failed(&format!(
            "error execing credential provider plugin {}: {status}: {}",
            provider.name,
            errors.trim()
        )));
    }
    if output.len() as u64 > MOST_OUTPUT {
        return Err(failed(&format!("its response has more than {MOST_OUTPUT} bytes")));
    }
    decode(&output, &provider.api_version).map_err(|why| failed(&why))
}

/// All of a stream, and one byte more than `most` if it is longer, so that the program is not stopped by a full pipe.
async fn read(mut from: impl AsyncRead + Unpin, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = (&mut from).take(most + 1).read_to_end(&mut bytes).await;
    let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    bytes
}

/// Decodes a response strictly.
fn decode(output: &[u8], version: &str) -> Result<Response, String> {
    let response: RawResponse = serde_json::from_slice(output)
        .map_err(|e| format!("error decoding credential provider plugin response from stdout: {e}"))?;
    if response.kind != "CredentialProviderResponse" {
        return Err(format!("failed to decode CredentialProviderResponse, unexpected Kind: {:?}", response.kind));
    }
    if response.api_version != version {
        return Err(format!(
            "apiVersion from credential plugin response did not match expected apiVersion:{version}, actual apiVersion:{}",
            response.api_version
        ));
    }
    let cache_key_type = match response.cache_key_type.as_str() {
        "Image" => CacheKeyType::Image,
        "Registry" => CacheKeyType::Registry,
        "Global" => CacheKeyType::Global,
        other => return Err(format!("credential provider plugin did not return a valid cacheKeyType: {other}")),
    };
    let auth = response.auth.unwrap_or_default().into_iter();
    let auth = auth.map(|(at, c)| (at, Credentials { username: c.username, password: c.password })).collect();
    Ok(Response { cache_key_type, cache_duration: response.cache_duration, auth })
}
