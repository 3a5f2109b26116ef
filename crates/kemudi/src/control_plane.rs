//! The control plane of one process: store, registry, API server, and its listeners.

use crate::access::{self, Access};
use crate::authorities::Authorities;
use crate::bootstrap::{self, ClusterInfo};
use crate::cluster_keys;
use crate::pki::{self, Pki};
use crate::system::{SystemClock, SystemRng};
use apiserver::{Authenticators, Certificates, NodeDialer, Server};
use encryption::Encryption;
use meta::{Clock, Rng, Status};
use parking_lot::Mutex;
use registry::Registry;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::{EngineError, Lmdb, LmdbOptions, Options, Retention, Store};
use stored::encode;
use strategies::apiextensions::Definitions;
use strategies::authentication::service_account::ServiceAccountTokens;
use strategies::networking::Cidr;
use supervisor::{Component, OnEnd, Supervisor};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Interval of checks for a changed encryption configuration.
const KEYS_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("another kemudi runs on {0}; stop it with `kemudi down --data-dir {0}`")]
    InUse(String),
    #[error("opening the store in {path}: {source}")]
    Store { path: PathBuf, source: store::Error },
    #[error("opening the store in {path}: {}", .source.whole())]
    Engine { path: PathBuf, source: EngineError },
    #[error("encryption: {0}")]
    Encryption(#[from] encryption::Error),
    #[error(transparent)]
    Pki(#[from] pki::Error),
    #[error("creating the client of kubelets: {0}")]
    Dialer(#[from] client::Error),
    #[error(transparent)]
    Access(#[from] access::Error),
    #[error("the port {0} cannot be used: {1}")]
    Port(SocketAddr, std::io::Error),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Etcd(String),
    #[error("{0}")]
    Backup(String),
    #[error("creating bootstrap objects: {0}")]
    Bootstrap(Status),
}

pub struct Config {
    pub data_dir: PathBuf,
    pub bind: IpAddr,
    /// The advertised address; the bind address, unless that is unspecified.
    pub advertise: IpAddr,
    /// The address for pods: an address of the node, on which the server listens too.
    pub inside: Vec<IpAddr>,
    /// One range, or one of each family.
    pub service_cidrs: Vec<Cidr>,
    /// How long events are kept; none for ever.
    pub event_ttl: Option<Duration>,
    /// Which built-in APIs are served.
    pub runtime: strategies::RuntimeConfig,
    /// Authentication and authorization flags.
    pub access: access::Options,
    /// The feature gates of fields that are enabled.
    pub features: BTreeSet<String>,
}

pub struct ControlPlane {
    /// The listeners. They end when the last request has been answered after the shutdown.
    pub listeners: Component,
    pub server: Arc<Server>,
    pub address: SocketAddr,
    /// The names and addresses in the server's certificate.
    pub hosts: Vec<String>,
    pub pki: Arc<Pki>,
    /// Authenticates client certificates.
    pub certificates: Certificates,
    /// CAs of client certificates, PEM.
    pub client_ca: String,
    pub admin_token: String,
    /// Issues service account tokens.
    pub accounts: Arc<ServiceAccountTokens>,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

impl ControlPlane {
    /// Starts serving. Returns when the server is ready, except for readiness checks of other components.
    pub async fn start(
        config: &Config,
        listener: TcpListener,
        store: Store,
        plugins: admission::Chain,
        mut options: apiserver::Options,
        component: &Component,
        supervisor: &Supervisor,
    ) -> Result<Self, Error> {
        let dir = &config.data_dir;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let rng: Arc<dyn Rng> = Arc::new(SystemRng);
        let address = listener.local_addr().map_err(|e| Error::Port(SocketAddr::new(config.bind, 0), e))?;
        let pki = Arc::new(Pki::open(&dir.join("pki"), clock.clone())?);
        let admin_token = admin_token(dir, &*rng)?;
        let access = Access::new(&config.access, &pki, &admin_token, &clock, &rng, component).await?;
        let usage = Arc::new(usage::Usage::default());
        let rows = strategies::builtin_rows(&strategies::Config {
            service_cidrs: config.service_cidrs.clone(),
            node_ports: 30000..=32767,
            authorizer: access.authorizer.clone(),
            accounts: access.accounts.clone(),
            tokens: access.tokens.clone(),
            event_ttl: config.event_ttl,
            usage: usage.clone(),
            runtime: config.runtime.clone(),
        });
        let mut registry = Registry::new(store, clock.clone(), rng.clone(), rows);
        registry.supervisor = supervisor.clone();
        registry.features = config.features.clone().into();
        let registry = Arc::new(registry);
        access.attach(&registry);
        let cluster_ip = config.service_cidrs.first().map_or(config.advertise, |r| r.nth(1));
        let cluster = Arc::new(ClusterInfo {
            cluster_ip,
            address: config.inside.first().copied().unwrap_or(config.advertise),
            port: address.port(),
            service_cidrs: config.service_cidrs.iter().map(Cidr::to_string).collect(),
            ca: pki.ca_pem.clone(),
            trust: trust(&access),
            has_node: !config.inside.is_empty(),
        });
        bootstrap::run(&registry, &cluster).await.map_err(Error::Bootstrap)?;
        options.proxy_client.get_or_insert_with(|| pki.proxy_client.clone());
        access.rbac.load(&registry.store);
        let first = Mutex::new(Some(Definitions::load(&registry)));
        // Schemas and rules are compiled on the threads for large requests.
        let threads = options.workers.clone().unwrap_or_else(Handle::current);
        let on = registry.clone();
        component.on(&threads).spawn("custom-resource-definitions", OnEnd::Restart, move || {
            first.lock().take().unwrap_or_else(|| Definitions::load(&on)).run()
        });
        let on = registry.clone();
        component.spawn("system-objects", OnEnd::Restart, move || {
            let (registry, cluster) = (on.clone(), cluster.clone());
            async move { bootstrap::keep(&registry, &cluster).await }
        });
        let on = registry.clone();
        component.spawn("expiry", OnEnd::Complete, move || registry::expiry::run(on.clone()));
        let (rbac, store) = (access.rbac.clone(), registry.store.clone());
        component.spawn("rbac-rules", OnEnd::Restart, move || rbac.clone().run(store.clone()));
        let trusted = trust(&access);
        let keys_at = config.access.service_account_jwks_uri.clone();
        // Pods read the keys too, and cannot reach a loopback address.
        let inside = config.inside.first().copied().filter(|_| config.advertise.is_loopback());
        let reached = inside.unwrap_or(config.advertise);
        let keys_at =
            keys_at.unwrap_or_else(|| format!("https://{}/openid/v1/jwks", SocketAddr::new(reached, address.port())));
        let documents = access.accounts.documents(&keys_at);
        let accounts = access.accounts.clone();
        let authenticators = Authenticators {
            tokens: access.tokens,
            certificates: access.certificates.clone(),
            front_proxy: Some(access.front_proxy),
            anonymous: access.anonymous,
            issuer: Some(documents),
        };
        for (plugin, group, resource) in plugins.needs() {
            let is_it = |k: &kinds::Kind| *k.group == *group && *k.plural == *resource;
            if !registry.rows().iter().any(|r| is_it(&r.kind)) {
                crate::output::note!(
                    "warning: the admission plugin {plugin} does nothing: it reads {resource}.{group}, which --runtime-config turns on"
                );
            }
        }
        let unserved = strategies::rbac::unserved(&registry);
        let streams = options.node_streams;
        let server = Server::with(registry, authenticators, access.authorizer, plugins, options);
        let dialer = NodeDialer::new(server.registry.clone(), &pki.ca_pem, pki.kubelet_client()?, streams)?;
        *server.connector.write() = Some(Arc::new(dialer));
        // As upstream, whose informers of these kinds do not start then.
        server.readiness.set("informer-sync", !access.by_roles || unserved.is_empty());
        if access.by_roles && !unserved.is_empty() {
            let kinds = unserved.join(", ");
            crate::output::note!(
                "warning: the authorization mode RBAC is on, but --runtime-config turns off its {kinds}: only the group \
                 system:masters has permissions, not even controllers and nodes, and /readyz fails"
            );
        }
        server.start_steps.complete(&BOOTSTRAPPED);
        if access.by_roles {
            server.start_steps.complete(&["poststarthook/rbac/bootstrap-roles"]);
        }
        let on = server.clone();
        component.spawn("priority-and-fairness", OnEnd::Restart, move || apiserver::flow::run(on.clone()));
        let on = server.clone();
        component.spawn("api-services", OnEnd::Restart, move || apiserver::aggregate::run(on.clone()));
        if strategies::metrics::is_served(&server.registry.rows()) {
            let on = server.clone();
            component
                .spawn("resource-metrics", OnEnd::Restart, move || apiserver::scraper::run(on.clone(), usage.clone()));
        }
        server.start_steps.complete(&FOLLOWING);
        let names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        let mut addresses = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), cluster_ip, config.advertise];
        addresses.extend(&config.inside);
        addresses.extend(Some(config.bind).filter(|b| !b.is_unspecified()));
        let pair = pki.server(&names, &addresses)?;
        let hosts = names.iter().map(ToString::to_string).chain(addresses.iter().map(IpAddr::to_string)).collect();
        let (changes, tls) = watch::channel(pki.tls(&pair, &[&access.client_ca, &access.proxy_ca])?);
        let (certificates, client_ca) = (access.certificates.clone(), access.client_ca.clone());
        let authorities = Authorities {
            pki: pki.clone(),
            pair,
            certificates: access.certificates,
            registry: server.registry.clone(),
            trust: trusted,
            tls: changes,
            clients: access.client_ca,
            proxies: access.proxy_ca,
        };
        let files = (access.client_ca_file, access.proxy_ca_file);
        let authorities = Arc::new(tokio::sync::Mutex::new((authorities, files)));
        component.spawn("client-authorities", OnEnd::Restart, move || {
            let authorities = authorities.clone();
            async move {
                let (authorities, (clients, proxies)) = &mut *authorities.lock().await;
                authorities.follow(clients, proxies).await;
            }
        });
        let listeners = supervisor.component("listeners", component.shutdown(), &Handle::current());
        let listen = |name, listener: TcpListener| {
            let (server, listener, tls) = (server.clone(), Arc::new(listener), tls.clone());
            let shutdown = component.shutdown().clone();
            listeners.spawn_graceful(name, OnEnd::Restart, move || {
                apiserver::listen::serve(server.clone(), listener.clone(), tls.clone(), shutdown.clone())
            });
        };
        for inside in config.inside.iter().filter(|inside| !crate::kubelet::is_covered(config.bind, **inside)) {
            let socket = SocketAddr::new(*inside, address.port());
            let another = TcpListener::bind(socket).await.map_err(|e| Error::Port(socket, e))?;
            listen(if inside.is_ipv4() { "api-for-pods" } else { "api-for-pods-ipv6" }, another);
        }
        listen("api", listener);
        Ok(Self { listeners, server, address, hosts, pki, certificates, client_ca, admin_token, accounts, clock, rng })
    }
}

/// Readiness checks that pass once the server exists: bootstrap objects are stored, definitions are loaded, plugins are initialized.
const BOOTSTRAPPED: [&str; 10] = [
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/storage-readiness",
];

/// Readiness checks that pass once the server watches the objects of priority and fairness and the API services.
const FOLLOWING: [&str; 10] = [
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/priority-and-fairness-filter",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "poststarthook/apiservice-openapi-controller",
    "autoregister-completion",
];

/// The data of `extension-apiserver-authentication`.
fn trust(access: &Access) -> serde_json::Value {
    let list = |l: &[String]| serde_json::json!(l).to_string();
    let p = &access.front_proxy;
    serde_json::json!({"client-ca-file": access.client_ca, "requestheader-client-ca-file": access.proxy_ca,
        "requestheader-allowed-names": list(&p.allowed_names), "requestheader-username-headers": list(&p.username_headers),
        "requestheader-uid-headers": list(&p.uid_headers), "requestheader-group-headers": list(&p.group_headers),
        "requestheader-extra-headers-prefix": list(&p.extra_headers_prefixes)})
}

/// Binds the port, before anything is created that would have to be removed.
pub async fn listen(bind: IpAddr, port: u16) -> Result<TcpListener, Error> {
    let socket = SocketAddr::new(bind, port);
    TcpListener::bind(socket).await.map_err(|e| Error::Port(socket, e))
}

/// Opens the data directory, which must be private first. `file` is an
/// `EncryptionConfiguration` to use instead of the keys in the directory.
pub async fn open(
    dir: &Path,
    etcd: &crate::etcd::Flags,
    file: Option<PathBuf>,
    component: &Component,
) -> Result<Store, Error> {
    let etcd = match etcd.is_used() {
        true => {
            let engine = etcd.connect().await?;
            cluster_keys::share(&engine, dir, etcd.cluster_token_file.as_deref(), file.as_ref()).await?;
            Some(engine)
        }
        false => None,
    };
    let source = encryption::Source { directory: dir.join("keys"), file };
    let encryption = Encryption::load(source, Arc::new(SystemRng))?;
    let store = match etcd {
        Some(engine) => open_engine(engine, Path::new("etcd"), encryption.clone()).await?,
        None => open_embedded(dir, encryption.clone()).await?,
    };
    encryption.keep()?;
    if store.is_shared() {
        let failing = store.clone();
        component.spawn("store", OnEnd::Fatal, move || {
            let failing = failing.clone();
            async move { Err::<(), _>(failing.failed().await) }
        });
    }
    let (on, shutdown) = (store.clone(), component.shutdown().clone());
    component.spawn("encryption-at-rest", OnEnd::Restart, move || {
        encryption.clone().run(on.clone(), KEYS_EVERY, shutdown.clone())
    });
    Ok(store)
}

async fn open_embedded(dir: &Path, encryption: Arc<Encryption>) -> Result<Store, Error> {
    let path = dir.join("store");
    let engine = Lmdb::open(&path, LmdbOptions::default()).map_err(|source| match source {
        EngineError::InUse { .. } => Error::InUse(dir.display().to_string()),
        source => Error::Engine { path: path.clone(), source },
    })?;
    open_engine(engine, &path, encryption).await.map_err(|e| match e {
        Error::Store { source: store::Error::InUse { .. }, .. } => Error::InUse(dir.display().to_string()),
        e => e,
    })
}

pub async fn open_engine(
    engine: Arc<dyn store::Engine>,
    path: &Path,
    encryption: Arc<Encryption>,
) -> Result<Store, Error> {
    let options = Options {
        index: encode::index_fn(strategies::selectable_fields()),
        transform: Some(encryption),
        retention: Retention::default(),
        clock: Arc::new(|| SystemClock.now().as_millisecond().unsigned_abs()),
    };
    Store::open(engine, options).await.map_err(|source| match source {
        store::Error::Engine(source) => Error::Engine { path: path.to_owned(), source },
        source => Error::Store { path: path.to_owned(), source },
    })
}

/// The administrator's token, created once and readable by its owner only.
pub(crate) fn admin_token(dir: &Path, rng: &dyn Rng) -> Result<String, Error> {
    let path = dir.join("admin.token");
    if let Ok(t) = std::fs::read_to_string(&path) {
        return Ok(t.trim().to_owned());
    }
    let mut bytes = [0; 32];
    rng.fill(&mut bytes);
    let token: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    pki::write_private(&path, &token)?;
    Ok(token)
}
