//! Requests to one endpoint for one repository: authentication, redirects, time limits and retries.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::https::{self, Https, Reach};
use client::{Body, Transport};
use http::header::{ACCEPT, AUTHORIZATION, HeaderName, HeaderValue, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use runtime::image::Credentials;

use crate::auth::{Challenge, Token, basic, bearer};
use crate::error::{Error, brief, known_code};
use crate::puller::Limits;
use crate::registries::{Endpoint, parse_url};

const MAX_REDIRECTS: usize = 5;
/// Maximum bytes of an error or a token.
const MAX_MESSAGE: u64 = 1 << 20;
/// The longest delay that a registry may request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// KiB of all documents in memory together, less `FREE` of each, so that only unusually large ones wait for others.
static LARGE_DOCUMENTS: Semaphore = Semaphore::const_new(32 << 10);
const FREE: usize = 64 << 10;

/// A document in memory, which counts until it is dropped.
pub(crate) struct Text {
    bytes: Vec<u8>,
    budget: &'static Semaphore,
    taken: Option<SemaphorePermit<'static>>,
}

impl Text {
    fn new(budget: &'static Semaphore) -> Self {
        Self { bytes: Vec::new(), budget, taken: None }
    }

    /// Appends bytes. Returns whether there was room for them.
    fn append(&mut self, data: &[u8]) -> bool {
        self.bytes.extend_from_slice(data);
        let counted = self.taken.as_ref().map_or(0, SemaphorePermit::num_permits);
        let needed = self.bytes.len().saturating_sub(FREE).div_ceil(1 << 10).saturating_sub(counted);
        if needed == 0 {
            return true;
        }
        let Some(more) = u32::try_from(needed).ok().and_then(|n| self.budget.try_acquire_many(n).ok()) else {
            return false;
        };
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        true
    }
}

impl std::ops::Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A server and a path on it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    scheme: &'static str,
    authority: String,
    path: String,
}

impl Target {
    /// The target of an absolute URL, or of a path on the same server. `None` if it is neither.
    fn resolve(&self, url: &str) -> Option<Target> {
        let url = url.split('#').next().unwrap_or_default();
        if url.starts_with('/') && !url.starts_with("//") {
            return Some(Target { path: url.to_owned(), ..self.clone() });
        }
        let absolute = if url.starts_with("//") { format!("{}:{url}", self.scheme) } else { url.to_owned() };
        let (base, query) = absolute.split_once('?').map_or((absolute.as_str(), None), |(b, q)| (b, Some(q)));
        let (scheme, authority, _) = parse_url(base)?;
        let start = base.find("://").map_or(0, |i| i + 3 + authority.len());
        let path = Some(&base[start..]).filter(|p| !p.is_empty()).unwrap_or("/");
        let path = query.map_or_else(|| path.to_owned(), |q| format!("{path}?{q}"));
        Some(Target { scheme, authority: authority.to_owned(), path })
    }

    fn is_same_server(&self, other: &Target) -> bool {
        self.scheme == other.scheme && self.authority == other.authority
    }
}

/// One pull's connection to an endpoint.
pub(crate) struct Session<'a> {
    endpoint: &'a Endpoint,
    repository: &'a str,
    credentials: Option<&'a Credentials>,
    limits: &'a Limits,
    /// Transports by scheme and authority.
    transports: Mutex<HashMap<String, Arc<Https>>>,
    authorization: Mutex<Option<HeaderValue>>,
}

impl<'a> Session<'a> {
    /// `credentials` are those of the pull, which a mirror does not get.
    pub fn new(
        endpoint: &'a Endpoint,
        repository: &'a str,
        credentials: Option<&'a Credentials>,
        limits: &'a Limits,
    ) -> Self {
        let credentials = credentials.filter(|_| endpoint.mirror_of.is_none()).or(endpoint.credentials.as_ref());
        let (transports, authorization) = (Mutex::default(), Mutex::default());
        Session { endpoint, repository, credentials, limits, transports, authorization }
    }

    /// The host in messages.
    pub fn host(&self) -> &str {
        &self.endpoint.authority
    }

    /// Gets a path below the repository, and tries again if that may help.
    pub async fn get(&self, path: &str, headers: &HeaderMap) -> Result<Response<Body>, Error> {
        let mut delay = self.limits.retry_delay;
        for _ in 1..self.limits.tries {
            match self.get_once(path, headers).await {
                Err(e) if e.is_transient() => {
                    let retry_after = match e {
                        Error::Unavailable { retry_after, .. } => retry_after,
                        _ => None,
                    };
                    sleep(retry_after.unwrap_or(delay).min(MAX_RETRY_AFTER)).await;
                    delay *= 2;
                }
                other => return other,
            }
        }
        self.get_once(path, headers).await
    }

    /// Gets a path below the repository: follows redirects, and answers a challenge once.
    pub async fn get_once(&self, path: &str, headers: &HeaderMap) -> Result<Response<Body>, Error> {
        let namespace = self.endpoint.mirror_of.as_ref().map(|of| format!("?ns={of}")).unwrap_or_default();
        let own = Target {
            scheme: self.endpoint.scheme,
            authority: self.endpoint.authority.clone(),
            path: format!("{}/v2/{}/{path}{namespace}", self.endpoint.prefix, self.repository),
        };
        let (mut target, mut redirects, mut challenged) = (own.clone(), 0, false);
        loop {
            let is_own = target.is_same_server(&own);
            let authorization = self.authorization.lock().clone().filter(|_| is_own);
            let response = self.send(&target, headers, authorization).await?;
            match response.status() {
                StatusCode::OK | StatusCode::PARTIAL_CONTENT => return Ok(response),
                StatusCode::UNAUTHORIZED if is_own && !challenged => {
                    challenged = true;
                    let authorization = self.authorize(response.headers(), &own).await?;
                    *self.authorization.lock() = Some(authorization);
                }
                status if status.is_redirection() && redirects < MAX_REDIRECTS => {
                    redirects += 1;
                    target = self.redirected(&target, response.headers())?;
                }
                _ => return Err(self.failure(path, response).await),
            }
        }
    }

    fn redirected(&self, from: &Target, headers: &HeaderMap) -> Result<Target, Error> {
        let location = headers.get(LOCATION).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let target = from.resolve(location);
        let target = target.ok_or_else(|| self.bad("redirects to what is no URL of a server".into()))?;
        if from.scheme == "https" && target.scheme == "http" {
            return Err(self.bad(format!("redirects to {} without TLS", target.authority)));
        }
        Ok(target)
    }

    async fn send(
        &self,
        target: &Target,
        headers: &HeaderMap,
        authorization: Option<HeaderValue>,
    ) -> Result<Response<Body>, Error> {
        let transport = self.transport(target)?;
        let mut request = Request::get(&target.path)
            .body(Bytes::new())
            .map_err(|_| self.bad("redirects to an invalid path".into()))?;
        *request.headers_mut() = headers.clone();
        if let Some(authorization) = authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization);
        }
        let limit = self.limits.connect * 2 + self.limits.response;
        let host = || target.authority.clone();
        match timeout(limit, transport.send(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(source @ client::Error::Send(_))) => Err(Error::Broken { host: host(), source }),
            Ok(Err(source)) => Err(Error::Connect { host: host(), source }),
            Err(_) => Err(Error::Stalled { host: host(), what: "waiting for a response", limit }),
        }
    }

    fn transport(&self, target: &Target) -> Result<Arc<Https>, Error> {
        let server = format!("{}://{}", target.scheme, target.authority);
        if let Some(transport) = self.transports.lock().get(&server) {
            return Ok(transport.clone());
        }
        let endpoint = self.endpoint;
        let config = https::Config {
            roots: endpoint.roots.clone(),
            identity: endpoint.identity.clone().filter(|_| target.authority == endpoint.authority),
            insecure: endpoint.insecure,
            // The name comes from a pod, and redirects from the server.
            reach: if endpoint.may_be_anywhere(&target.authority) { Reach::Anywhere } else { Reach::Network },
            proxy: client::kubeconfig::proxy_from_environment(&server).map_err(|e| self.bad(e.to_string()))?,
            connect_timeout: self.limits.connect,
            disable_http2: true,
            ..https::Config::new(&server)
        };
        let transport =
            Https::new(&config).map_err(|source| Error::Connect { host: target.authority.clone(), source })?;
        let transport = Arc::new(transport);
        self.transports.lock().insert(server, transport.clone());
        Ok(transport)
    }

    /// Answers a challenge. Returns the header of further requests.
    async fn authorize(&self, headers: &HeaderMap, own: &Target) -> Result<HeaderValue, Error> {
        let values = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|v| v.to_str().ok());
        let unauthorized =
            |message: &str| Error::Unauthorized { host: self.host().to_owned(), message: message.to_owned() };
        let (realm, service, scope) = match Challenge::choose(values) {
            None => return Err(unauthorized("no known method of authentication is offered")),
            Some(Challenge::Basic) => {
                let credentials = self.credentials.ok_or_else(|| unauthorized("no basic auth credentials"))?;
                return basic(credentials).ok_or_else(|| unauthorized("the credentials cannot be sent in a header"));
            }
            Some(Challenge::Bearer { realm, service, scope }) => (realm, service, scope),
        };
        let target = own.resolve(&realm);
        let target = target.ok_or_else(|| self.bad("has a token server without a URL".into()))?;
        if own.scheme == "https" && target.scheme == "http" {
            return Err(self.bad(format!("has the token server {} without TLS", target.authority)));
        }
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.repository));
        let parameters = service.map(|service| ("service", service)).into_iter().chain([("scope", scope)]);
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
        let separator = if target.path.contains('?') { '&' } else { '?' };
        let target = Target { path: format!("{}{separator}{query}", target.path), ..target };
        let response = self.send(&target, &HeaderMap::new(), self.credentials.and_then(basic)).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let status = response.status().to_string();
                let message = self.message(response).await.map_or(status, str::to_owned);
                return Err(unauthorized(&format!("failed to fetch a token: {message}")));
            }
            _ => return Err(self.failure("token", response).await),
        }
        let text = self.read(response, "token", MAX_MESSAGE).await?;
        let token: Option<Token> = serde_json::from_slice(&text).ok();
        let header = token.and_then(Token::value).and_then(|token| bearer(&token));
        header.ok_or_else(|| self.bad("the token server sent no token".into()))
    }

    /// Reads a document into memory, within the time limit of a response.
    pub async fn read(&self, response: Response<Body>, what: &str, limit: u64) -> Result<Text, Error> {
        let (mut body, mut text) = (response.into_body(), Text::new(&LARGE_DOCUMENTS));
        let deadline = Instant::now() + self.limits.response;
        loop {
            let Ok(frame) = timeout_at(deadline, body.frame()).await else {
                let limit = self.limits.response;
                return Err(Error::Stalled { host: self.host().to_owned(), what: "reading a document", limit });
            };
            match frame {
                None => return Ok(text),
                Some(Err(source)) => return Err(Error::Broken { host: self.host().to_owned(), source }),
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if (text.len() + data.len()) as u64 > limit {
                        return Err(Error::TooLarge { what: what.to_owned(), limit });
                    }
                    if !text.append(&data) {
                        return Err(Error::TooManyDocuments);
                    }
                }
            }
        }
    }

    /// The error of a response with another status than success.
    async fn failure(&self, path: &str, response: Response<Body>) -> Error {
        let status = response.status();
        let retry_after =
            response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
        let (host, message) = (self.host().to_owned(), self.message(response).await);
        match status {
            StatusCode::NOT_FOUND => {
                let what = format!("{host}/{}/{path}", self.repository);
                Error::NotFound { what, message: message.unwrap_or_default() }
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Error::Unauthorized { host, message: message.map_or_else(|| status.to_string(), str::to_owned) }
            }
            status if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => {
                let (message, retry_after) = (message.unwrap_or_default(), retry_after.map(Duration::from_secs));
                Error::Unavailable { host, status, message, retry_after }
            }
            status => {
                let message = message.unwrap_or_default();
                self.bad(format!("unexpected status {status} {message}").trim_end().to_owned())
            }
        }
    }

    /// The meaning of the first error of a response in the form of the specification. The log has its message, which pod authors do
    /// not read.
    async fn message(&self, response: Response<Body>) -> Option<&'static str> {
        let text = self.read(response, "error", MAX_MESSAGE).await.ok()?;
        let document: serde_json::Value = serde_json::from_slice(&text).ok()?;
        let error = &document["errors"][0];
        let part = |name: &str| brief(error[name].as_str().unwrap_or_default());
        tracing::info!(
            host = self.host(),
            code = part("code"),
            message = part("message"),
            "a registry refused a request"
        );
        error["code"].as_str().and_then(known_code)
    }

    fn bad(&self, message: String) -> Error {
        Error::Response { host: self.host().to_owned(), message }
    }
}

/// The header `Accept` with media types.
pub(crate) fn accept(types: &[&str]) -> HeaderMap {
    single(ACCEPT, &types.join(", "))
}

/// One header.
pub(crate) fn single(name: HeaderName, value: &str) -> HeaderMap {
    let value = HeaderValue::from_str(value);
    value.map(|v| HeaderMap::from_iter([(name, v)])).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_documents_have_a_budget() {
        static BUDGET: Semaphore = Semaphore::const_new(1024);
        let mut small = Text::new(&BUDGET);
        assert!(small.append(&vec![0; FREE]) && small.taken.is_none());
        let mut large = Text::new(&BUDGET);
        for _ in 0..4 {
            assert!(large.append(&vec![0; 256 << 10]));
        }
        let mut other = Text::new(&BUDGET);
        assert!(!other.append(&vec![0; FREE + (128 << 10)]));
        drop(large);
        assert!(other.append(&[0]));
        drop(other);
        assert_eq!(BUDGET.available_permits(), 1024);
    }

    #[test]
    fn resolves_locations() {
        let from = Target { scheme: "https", authority: "a.example".into(), path: "/v2/x".into() };
        let resolve = |url: &str| from.resolve(url).map(|t| format!("{} {} {}", t.scheme, t.authority, t.path));
        for (url, expect) in [
            ("/y?z=1", "https a.example /y?z=1"),
            ("https://b.example:444/p/q?u=http://c#f", "https b.example:444 /p/q?u=http://c"),
            ("http://b.example", "http b.example /"),
            ("https://b.example?x=/y", "https b.example /?x=/y"),
            ("//b.example/p/", "https b.example /p/"),
        ] {
            assert_eq!(resolve(url).as_deref(), Some(expect), "{url}");
        }
        for url in ["", "y", "ftp://b.example/", "https://", "https://user@b.example/", "https:///p"] {
            assert_eq!(resolve(url), None, "{url}");
        }
    }
}
