//! The authorities that clients and proxies are known by (`--client-ca-file`, `--requestheader-client-ca-file`). Their files are
//! followed: what changes counts for every request, also of connections that are open; clients are asked for certificates of
//! the new authorities, and other servers are told of them.

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

/// What follows from authorities.
pub struct Authorities {
    pub pki: Arc<Pki>,
    /// Of the server.
    pub pair: Pair,
    pub certificates: Certificates,
    pub registry: Arc<Registry>,
    /// What other servers are told: the data of `extension-apiserver-authentication`.
    pub trust: Value,
    pub tls: Sender<Arc<ServerConfig>>,
    /// PEM, one or more each.
    pub clients: String,
    pub proxies: String,
}

/// The authorities of clients are the cluster's own and those of the file.
pub fn clients(pki: &Pki, file: &str) -> String {
    format!("{}\n{file}", pki.ca_pem.trim_end())
}

impl Authorities {
    /// For good, as far as there are files.
    pub async fn follow(&mut self, clients_file: &mut Option<Followed>, proxies_file: &mut Option<Followed>) {
        loop {
            tokio::select! {
                file = changed(clients_file) => {
                    let taken = self.take(clients(&self.pki, &file), self.proxies.clone()).await;
                    clients_file.iter().for_each(|f| f.told(taken.clone()));
                }
                file = changed(proxies_file) => {
                    let taken = self.take(self.clients.clone(), file).await;
                    proxies_file.iter().for_each(|f| f.told(taken.clone()));
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
