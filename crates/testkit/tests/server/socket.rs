//! A server with TLS on a loopback socket.

use apiserver::{Authenticators, Options, Server};
use async_trait::async_trait;
use auth::{Authenticated, TokenAuthenticator, Tokens, User};
use client::https::{Config, Credentials, Https, Roots};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::sync::Arc;
use supervisor::Trigger;
use testkit::Cluster;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Believes every token: it is the name of the user, and its groups after slashes. That of `slow` takes for ever.
pub struct Names;

#[async_trait]
impl TokenAuthenticator for Names {
    async fn authenticate(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, String> {
        if token == "slow" {
            return std::future::pending().await;
        }
        let mut parts = token.split('/');
        let name = parts.next().unwrap_or_default();
        let user = User::new(name, &parts.collect::<Vec<_>>());
        Ok(Some(Authenticated { user, audiences: audiences.to_vec() }))
    }
}

/// Another server over the objects of a cluster. `admin/system:masters` is a token that may do everything.
pub fn server(cluster: &Cluster, options: Options) -> Arc<Server> {
    admitting(cluster, admission::default_plugins(), options)
}

/// The same with other plugins.
pub fn admitting(cluster: &Cluster, chain: admission::Chain, options: Options) -> Arc<Server> {
    let tokens = Arc::new(Tokens { all: vec![Arc::new(Names)], audiences: vec!["test".into()] });
    let authenticators = Authenticators { tokens, ..Authenticators::default() };
    let s = &cluster.server;
    Server::with(s.registry.clone(), authenticators, s.authorizer.clone(), chain, options)
}

pub struct Socket {
    pub port: u16,
    pub ca: String,
    stop: Trigger,
    pub serving: JoinHandle<()>,
}

impl Socket {
    pub async fn listen(server: Arc<Server>) -> Self {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], der)
            .unwrap();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, shutdown) = supervisor::shutdown();
        let serving = tokio::spawn(apiserver::listen::serve(
            server,
            Arc::new(listener),
            watch::channel(Arc::new(tls)).1,
            shutdown,
        ));
        Self { port, ca: cert.pem(), stop, serving }
    }

    pub fn client(&self, token: &str) -> Https {
        let mut config = Config::new(format!("https://127.0.0.1:{}", self.port));
        config.roots = Roots::Pem(self.ca.clone().into_bytes());
        config.credentials = Credentials::Bearer(token.to_owned());
        Https::new(&config).unwrap()
    }

    pub fn stop(&self) {
        self.stop.trigger();
    }
}
