//! The identity of a node: its client of the API, and its certificates, which are renewed while it runs.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use client::https::{ClientIdentity, Config, Credentials, Https, Roots};
use client::{Body, Client, Shutdown, Transport, Upgrade};
use http::{Request, Response};
use meta::{Clock, Rng};
use parking_lot::RwLock;
use tokio::sync::watch;

use super::certificate::{Pair, Purpose, request};
use super::discovery::discover;
use super::{CaHash, Error, Token};

/// The pause after a renewal that failed.
const AGAIN: Duration = Duration::from_secs(30);
/// The longest sleep before the clock is read again: it may jump.
const LOOK: Duration = Duration::from_secs(600);
const CA: &str = "ca.crt";
const CLIENT: &str = "client.pem";
const SERVING: &str = "serving.pem";

/// How a machine joins a cluster.
pub struct Settings {
    /// The URLs of the API servers; at least one.
    pub servers: Vec<String>,
    /// Needed once, and again if the node's certificate has expired.
    pub token: Option<Token>,
    /// The hash of the cluster's CA is one of these, unless there are none.
    pub ca_hashes: Vec<CaHash>,
    pub node_name: String,
    /// Directory of the CA and the node's certificates.
    pub directory: PathBuf,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

/// A node of a cluster.
pub struct Identity {
    settings: Settings,
    /// The cluster's CA, PEM.
    pub ca: String,
    transport: Arc<Renewed>,
    client: RwLock<Pair>,
}

/// A transport whose client certificate is replaced.
struct Renewed {
    host: String,
    current: RwLock<Arc<Https>>,
}

impl Renewed {
    fn current(&self) -> Arc<Https> {
        self.current.read().clone()
    }
}

#[async_trait]
impl Transport for Renewed {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, client::Error> {
        self.current().send(request).await
    }

    fn host(&self) -> &str {
        &self.host
    }

    async fn upgrade(&self, request: Request<Bytes>) -> Result<Upgrade, client::Error> {
        self.current().upgrade(request).await
    }
}

/// Returns the node's identity: that of an earlier start if its certificate is valid, otherwise a new one for the token.
pub async fn join(settings: Settings) -> Result<Identity, Error> {
    let directory = &settings.directory;
    runtime::beneath::make_private(directory).map_err(|source| Error::File { path: directory.clone(), source })?;
    let (ca_path, client_path) = (directory.join(CA), directory.join(CLIENT));
    let known = match std::fs::read_to_string(&ca_path) {
        Ok(ca) => Some(ca),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(source) => return Err(Error::File { path: ca_path, source }),
    };
    let pair = Pair::read(&client_path)?.filter(|p| p.is_valid(settings.clock.now()));
    let (ca, pair) = match (known, pair) {
        (Some(ca), Some(pair)) => (ca, pair),
        (known, _) => {
            let token = settings.token.as_ref().ok_or_else(|| Error::NoToken(settings.node_name.clone()))?;
            let ca = match known {
                Some(ca) => ca,
                None => discover(&settings.servers, token, &settings.ca_hashes).await?,
            };
            let mut config = trusting(&settings.servers, &ca);
            config.credentials = Credentials::Bearer(token.bearer());
            let client = Client::new(Https::new(&config)?, "kemudi-agent");
            let pair = request(&client, &settings.node_name, &Purpose::Client).await?;
            std::fs::write(&ca_path, &ca).map_err(|source| Error::File { path: ca_path, source })?;
            pair.write(&client_path)?;
            (ca, pair)
        }
    };
    let https = Https::new(&authenticated(&settings.servers, &ca, &pair))?;
    let host = https.host().to_owned();
    let transport = Arc::new(Renewed { host, current: RwLock::new(Arc::new(https)) });
    Ok(Identity { settings, ca, transport, client: RwLock::new(pair) })
}

fn trusting(servers: &[String], ca: &str) -> Config {
    Config { roots: Roots::Pem(ca.as_bytes().to_vec()), ..Config::replicated(servers) }
}

fn authenticated(servers: &[String], ca: &str, pair: &Pair) -> Config {
    let (certificates, key) = (pair.certificate.clone().into_bytes(), pair.key.clone().into_bytes());
    Config { identity: Some(ClientIdentity { certificates, key }), ..trusting(servers, ca) }
}

impl Identity {
    /// A client that authenticates as the node, also after its certificate is renewed.
    pub fn client(&self, user_agent: &str) -> Client {
        Client::shared(self.transport.clone(), user_agent)
    }

    /// The certificate of the kubelet's API for these addresses: that of an earlier start if it fits, otherwise a new one. The node must
    /// have reported the addresses.
    pub async fn serving(&self, addresses: &[IpAddr]) -> Result<Pair, Error> {
        let path = self.settings.directory.join(SERVING);
        let now = self.settings.clock.now();
        let fits = |p: &Pair| p.is_valid(now) && addresses.iter().all(|a| is_for(p, *a));
        match Pair::read(&path) {
            Ok(Some(pair)) if fits(&pair) => Ok(pair),
            Ok(_) | Err(Error::Certificate(_)) => self.renew_serving(&path, addresses).await,
            Err(e) => Err(e),
        }
    }

    async fn renew_serving(&self, path: &Path, addresses: &[IpAddr]) -> Result<Pair, Error> {
        let client = self.client("kubelet");
        let pair = request(&client, &self.settings.node_name, &Purpose::Serving(addresses.to_vec())).await?;
        pair.write(path)?;
        Ok(pair)
    }

    async fn renew_client(&self) -> Result<(), Error> {
        let pair = request(&self.client("kubelet"), &self.settings.node_name, &Purpose::Client).await?;
        let https = Https::new(&authenticated(&self.settings.servers, &self.ca, &pair))?;
        pair.write(&self.settings.directory.join(CLIENT))?;
        *self.transport.current.write() = Arc::new(https);
        *self.client.write() = pair;
        Ok(())
    }

    /// Renews both certificates before they expire, until shutdown. `serving` is that of the kubelet's API, for these addresses.
    pub async fn renew(&self, serving: &watch::Sender<Pair>, addresses: &[IpAddr], shutdown: &Shutdown) {
        let share = (self.settings.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        loop {
            let now = self.settings.clock.now();
            let (client, api) = (self.client.read().renew_at(share), serving.borrow().renew_at(share));
            let mut pause = LOOK;
            for (at, is_client) in [(client, true), (api, false)] {
                let left = at.map(|at| at.duration_since(now)).unwrap_or_default();
                if left.is_positive() {
                    pause = pause.min(left.unsigned_abs());
                    continue;
                }
                let renewed = match is_client {
                    true => self.renew_client().await,
                    false => self
                        .renew_serving(&self.settings.directory.join(SERVING), addresses)
                        .await
                        .map(|pair| _ = serving.send_replace(pair)),
                };
                match renewed {
                    Ok(()) => tracing::info!(is_client, "renewed a certificate of the node"),
                    Err(e) => tracing::warn!("renewing a certificate of the node failed; it is tried again: {e}"),
                }
                pause = pause.min(AGAIN);
            }
            if shutdown.race(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }
}

fn is_for(pair: &Pair, address: IpAddr) -> bool {
    client::certificate::addresses(pair.certificate.as_bytes()).contains(&address)
}
