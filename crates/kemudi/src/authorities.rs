//! CAs of client certificates and authenticating proxies (`--client-ca-file`, `--requestheader-client-ca-file`). Changed files
//! are reloaded and apply to all requests, also on open connections; the TLS handshake names the new CAs
//! and extension API servers get them.

use crate::bootstrap;
use crate::pki::{Pair, Pki};
use crate::reload::Followed;
use apiserver::Certificates;
use registry::Registry;
use rustls::ServerConfig;
use serde_json::Value;
use std::future::pending;
use std::sync::Arc;
use tokio::sync::watch::Sender;

/// The CAs, and what is updated when they change.
pub struct Authorities {
    pub pki: Arc<Pki>,
    /// CAs of the server's TLS configuration.
    pub pair: Pair,
    pub certificates: Certificates,
    pub registry: Arc<Registry>,
    /// The data of `extension-apiserver-authentication`.
    pub trust: Value,
    pub tls: Sender<Arc<ServerConfig>>,
    /// PEM, one or more certificates each.
    pub clients: String,
    pub proxies: String,
}

/// The CAs of client certificates: the cluster's own and those of the file.
pub fn clients(pki: &Pki, file: &str) -> String {
    format!("{}\n{file}", pki.ca_pem.trim_end())
}

impl Authorities {
    /// Reloads the files when they change; runs for ever if there are any.
    pub async fn follow(&mut self, clients_file: &mut Option<Followed>, proxies_file: &mut Option<Followed>) {
        loop {
            tokio::select! {
                file = changed(clients_file) => {
                    let taken = self.take(clients(&self.pki, &file), self.proxies.clone()).await;
                    clients_file.iter().for_each(|f| f.log_result(taken.clone()));
                }
                file = changed(proxies_file) => {
                    let taken = self.take(self.clients.clone(), file).await;
                    proxies_file.iter().for_each(|f| f.log_result(taken.clone()));
                }
            }
        }
    }

    async fn take(&mut self, clients: String, proxies: String) -> Result<(), String> {
        let tls = self.pki.tls(&self.pair, &[&clients, &proxies]).map_err(|e| e.to_string())?;
        self.certificates.replace(&clients, &proxies).map_err(|e| e.to_string())?;
        self.tls.send_replace(tls);
        (self.clients, self.proxies) = (clients, proxies);
        self.trust["client-ca-file"] = self.clients.as_str().into();
        self.trust["requestheader-client-ca-file"] = self.proxies.as_str().into();
        bootstrap::trust(&self.registry, &self.trust).await.map_err(|s| s.message)
    }
}

async fn changed(file: &mut Option<Followed>) -> String {
    match file {
        Some(f) => f.changed().await,
        None => pending().await,
    }
}
