//! An API server without a disk, a socket or a clock of its own, for tests: the real stack over a store in memory.
//!
//! Time stands at a fixed moment until a test moves it (or runs in tokio's virtual time, which it follows), and randomness comes
//! from a seed, so that a run can be repeated exactly.

use admission::{Chain, default_plugins};
use apiserver::as_identity;
use apiserver::{Authenticators, Body, BootstrapTokens, Certificates, FrontProxy, Server};
use auth::jwt::PrivateKey;
use auth::union::Union;
use auth::{Authorizer, TokenAuthenticator, Tokens, User};
use auth::{NodeAuthorizer, RbacCache};
use bytes::Bytes;
use http::{Method, Request, Response};
use meta::{Clock, Rng, Value};
use parking_lot::Mutex;
use registry::Registry;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use store::{Memory, Options, Retention, Store, Transform};
use stored::encode;
use strategies::authentication::service_account::{ServiceAccountTokens, Settings};

/// The wall clock of a test: a fixed moment plus tokio's time, which a paused runtime moves. It can jump, as clocks do that are set.
pub struct VirtualClock {
    start: jiff::Timestamp,
    zero: tokio::time::Instant,
    /// The sum of all jumps, in milliseconds.
    offset: AtomicI64,
}

impl VirtualClock {
    /// Must be made inside a tokio runtime.
    pub fn new() -> Arc<Self> {
        let start = meta::time::parse("2026-01-01T00:00:00Z").unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        Arc::new(Self { start, zero: tokio::time::Instant::now(), offset: AtomicI64::new(0) })
    }

    /// Another clock that shows the same time now, and jumps by itself.
    pub fn fork(&self) -> Arc<Self> {
        let offset = AtomicI64::new(self.offset.load(Ordering::SeqCst));
        Arc::new(Self { start: self.start, zero: self.zero, offset })
    }

    /// Sets the clock forward, or back.
    pub fn jump(&self, by: jiff::SignedDuration) {
        self.offset.fetch_add(i64::try_from(by.as_millis()).unwrap_or_default(), Ordering::SeqCst);
    }

    /// Sets the clock to a moment.
    pub fn set(&self, to: jiff::Timestamp) {
        self.jump(to.duration_since(self.now()));
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> jiff::Timestamp {
        let passed = self.zero.elapsed();
        let offset = jiff::SignedDuration::from_millis(self.offset.load(Ordering::SeqCst));
        let passed = jiff::SignedDuration::try_from(passed).unwrap_or_default();
        self.start.saturating_add(passed + offset).unwrap_or(self.start)
    }
}

/// Random numbers from a seed (SplitMix64).
pub struct SeededRng(Mutex<u64>);

impl SeededRng {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(seed)))
    }
}

impl Rng for SeededRng {
    fn next_u64(&self) -> u64 {
        let mut state = self.0.lock();
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Who the server of a test is.
pub const AUDIENCE: &str = "https://test.local";

/// A server in memory.
pub struct Cluster {
    pub server: Arc<Server>,
    pub clock: Arc<VirtualClock>,
    pub rng: Arc<SeededRng>,
    /// Follows the definitions of custom resources; a test that wants to be the only writer aborts it.
    pub definitions: tokio::task::JoinHandle<()>,
    /// Has no rules until [`RbacCache::load`] is called.
    pub rbac: Arc<RbacCache>,
    pub accounts: Arc<ServiceAccountTokens>,
}

/// Who may come in besides service accounts and new nodes, and who decides after the others.
#[derive(Default)]
pub struct Access {
    pub tokens: Vec<Arc<dyn TokenAuthenticator>>,
    pub authorizer: Option<Arc<dyn Authorizer>>,
    pub certificates: Certificates,
    pub front_proxy: Option<FrontProxy>,
    /// What nodes and pods use.
    pub usage: Arc<usage::Usage>,
    /// Which kinds are served.
    pub runtime: strategies::RuntimeConfig,
    /// The ranges of services' addresses; none: one of IPv4.
    pub ranges: Vec<strategies::networking::Cidr>,
    /// Where large requests are worked on.
    pub workers: Option<tokio::runtime::Handle>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub body: Value,
    pub warned: bool,
}

impl Cluster {
    /// A server with the namespaces and service accounts that tests write into.
    pub async fn start(seed: u64) -> Self {
        Self::admitting(seed, default_plugins()).await
    }

    /// The same with other admission plugins.
    pub async fn admitting(seed: u64, admission: Chain) -> Self {
        Self::with(seed, Memory::new(), None, Retention::default(), admission, Access::default()).await
    }

    /// The same with other kinds and plugins.
    pub async fn serving(seed: u64, runtime: &str, admission: Chain) -> Self {
        let runtime = match strategies::RuntimeConfig::parse(runtime.split(',')) {
            Ok(r) => r,
            Err(e) => unreachable!("a test says what there is: {e}"),
        };
        let access = Access { runtime, ..Access::default() };
        Self::with(seed, Memory::new(), None, Retention::default(), admission, access).await
    }

    /// The same with others that come in or decide.
    pub async fn with_access(seed: u64, access: Access) -> Self {
        Self::with(seed, Memory::new(), None, Retention::default(), default_plugins(), access).await
    }

    /// The same, with another share of history that is kept.
    pub async fn start_keeping(seed: u64, retention: Retention) -> Self {
        Self::with(seed, Memory::new(), None, retention, default_plugins(), Access::default()).await
    }

    /// The same on data that may be there already, sealed by a transform.
    pub async fn start_on(seed: u64, memory: Arc<Memory>, transform: Option<Arc<dyn Transform>>) -> Self {
        Self::with(seed, memory, transform, Retention::default(), default_plugins(), Access::default()).await
    }

    async fn with(
        seed: u64,
        memory: Arc<Memory>,
        transform: Option<Arc<dyn Transform>>,
        retention: Retention,
        admission: Chain,
        access: Access,
    ) -> Self {
        let (clock, rng) = (VirtualClock::new(), SeededRng::new(seed));
        let wall = clock.clone();
        let options = Options {
            index: encode::index_fn(strategies::selectable_fields()),
            transform,
            retention,
            clock: Arc::new(move || wall.now().as_millisecond().unsigned_abs()),
        };
        let store = match Store::open(memory, options).await {
            Ok(s) => s,
            Err(e) => unreachable!("a store in memory opens: {e}"),
        };
        let rbac = RbacCache::new();
        let node = NodeAuthorizer::new(rbac.clone());
        let mut deciders: Vec<Arc<dyn Authorizer>> = vec![node.clone(), rbac.clone()];
        deciders.extend(access.authorizer);
        let authorizer = Arc::new(Union(deciders));
        let audiences = vec![AUDIENCE.to_owned()];
        let settings =
            Settings { issuers: audiences.clone(), audiences: audiences.clone(), extend: true, ..Settings::default() };
        let made = PrivateKey::generate()
            .and_then(|(key, _)| ServiceAccountTokens::new(key, Vec::new(), settings, clock.clone(), rng.clone()));
        let accounts = match made {
            Ok(a) => a,
            Err(e) => unreachable!("a key is made: {e}"),
        };
        let bootstrap = BootstrapTokens::new(clock.clone(), audiences.clone());
        let mut all: Vec<Arc<dyn TokenAuthenticator>> = vec![accounts.clone(), bootstrap.clone()];
        all.extend(access.tokens);
        let tokens = Arc::new(Tokens { all, audiences });
        let mut service_cidrs = access.ranges;
        if service_cidrs.is_empty() {
            service_cidrs.extend("10.96.0.0/16".parse::<strategies::networking::Cidr>());
        }
        let rows = strategies::builtin_rows(&strategies::Config {
            service_cidrs,
            node_ports: 30000..=32767,
            authorizer: authorizer.clone(),
            accounts: accounts.clone(),
            tokens: tokens.clone(),
            event_ttl: Some(Duration::from_secs(3600)),
            usage: access.usage,
            runtime: access.runtime,
        });
        let registry = Arc::new(Registry::new(store, clock.clone(), rng.clone(), rows));
        node.attach(&registry.store);
        accounts.attach(&registry);
        bootstrap.attach(&registry);
        let definitions = strategies::apiextensions::Definitions::load(&registry);
        let definitions = tokio::spawn(definitions.run());
        tokio::spawn(registry::expiry::run(registry.clone()));
        let authenticators = Authenticators {
            tokens,
            certificates: access.certificates,
            front_proxy: access.front_proxy,
            issuer: Some(accounts.documents("https://test.local/openid/v1/jwks")),
            ..Authenticators::default()
        };
        // Tests talk to loopback only.
        let endpoints = client::https::Reach::Anywhere;
        let options = apiserver::Options { endpoints, workers: access.workers, ..apiserver::Options::default() };
        let server = Server::with(registry, authenticators, authorizer, admission, options);
        let cluster = Self { server, clock, rng, definitions, rbac, accounts };
        for ns in ["default", "kube-system", "golden"] {
            cluster.call("POST", "/api/v1/namespaces", json!({"metadata": {"name": ns}})).await;
            let path = format!("/api/v1/namespaces/{ns}/serviceaccounts");
            cluster.call("POST", &path, json!({"metadata": {"name": "default"}})).await;
        }
        cluster
    }

    /// A client of the server under an identity.
    pub fn client(&self, user: User) -> client::Client {
        let server = self.server.clone();
        let handler = move |request: Request<Bytes>| {
            let (server, user) = (server.clone(), user.clone());
            async move { server.handle(as_identity(request, user)).await }
        };
        client::Client::new(client::InProcess(handler), "testkit")
    }

    /// Sends JSON as an administrator.
    pub async fn call(&self, method: &str, path: &str, body: Value) -> Answer {
        let bytes = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        self.send(method, path, Some("application/json"), "application/json", bytes).await
    }

    /// Sends anything as an administrator, and reads the answer to its end.
    pub async fn send(&self, method: &str, path: &str, media: Option<&str>, accept: &str, body: Bytes) -> Answer {
        let mut headers = vec![("accept", accept)];
        headers.extend(media.map(|m| ("content-type", m)));
        let response = self.request(method, path, &headers, body).await;
        let (code, warned) = (response.status().as_u16(), response.headers().contains_key("warning"));
        let bytes = response.into_body().collect().await.unwrap_or_default();
        let body =
            serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into());
        Answer { code, body, warned }
    }

    /// Sends anything as an administrator. The body of the answer is still to be read.
    pub async fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Bytes) -> Response<Body> {
        let mut request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap_or(Method::GET))
            .uri(path)
            .header("user-agent", "corpus/1");
        for (k, v) in headers {
            request = request.header(*k, *v);
        }
        let request = match request.body(body) {
            Ok(r) => r,
            Err(e) => unreachable!("a test sends what HTTP can say: {e}"),
        };
        self.server.handle(as_administrator(request)).await
    }
}

/// Adds the identity of an administrator, who may do everything, to a request.
pub fn as_administrator(request: Request<Bytes>) -> Request<Bytes> {
    as_identity(request, User::new("admin", &[auth::user::GROUP_MASTERS]))
}
