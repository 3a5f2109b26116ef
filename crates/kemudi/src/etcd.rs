//! The flags of a cluster with several servers, whose store is an etcd cluster.

use crate::control_plane::Error;
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::{Etcd, EtcdOptions, EtcdTls};
use tokio::time::Instant;

/// How long the start waits for etcd.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Args, Clone, Debug)]
pub struct Flags {
    /// URLs of etcd. Servers with the same etcd and prefix form one cluster. Default: an embedded
    /// store in the data directory.
    #[arg(long, value_delimiter = ',')]
    pub etcd_servers: Vec<String>,
    /// Prefix of all keys in etcd.
    #[arg(long, default_value = "/registry")]
    pub etcd_prefix: String,
    /// CAs of the certificates of etcd.
    #[arg(long)]
    pub etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd.
    #[arg(long, requires = "etcd_keyfile")]
    pub etcd_certfile: Option<PathBuf>,
    /// Key of the client certificate for etcd.
    #[arg(long, requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// File with the secret that protects the cluster's keys in etcd: `cluster.token` of the first server's data
    /// directory, where it is created.
    #[arg(long)]
    pub cluster_token_file: Option<PathBuf>,
}

impl Flags {
    /// Whether the store is etcd.
    pub fn is_used(&self) -> bool {
        !self.etcd_servers.is_empty()
    }

    /// Connects to etcd, and waits until it answers.
    ///
    /// # Errors
    /// A flag is invalid, a file cannot be read, or etcd does not answer in time.
    pub async fn connect(&self) -> Result<Arc<Etcd>, Error> {
        let read = |path: &Path| std::fs::read(path).map_err(|source| Error::File { path: path.to_owned(), source });
        let authority = self.etcd_cafile.as_deref().map(read).transpose()?;
        let identity = match (&self.etcd_certfile, &self.etcd_keyfile) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        if let Some(url) = self.etcd_servers.iter().find(|u| !u.starts_with("http://") && !u.starts_with("https://")) {
            return Err(Error::Etcd(format!("--etcd-servers: {url:?} is no URL with http:// or https://")));
        }
        let encrypted = self.etcd_servers.iter().filter(|u| u.starts_with("https://")).count();
        if encrypted != 0 && encrypted != self.etcd_servers.len() {
            return Err(Error::Etcd("--etcd-servers: either all URLs or none have https".into()));
        }
        let prefix = format!("{}/", self.etcd_prefix.trim_end_matches('/'));
        if prefix == "/" || self.etcd_prefix.contains('\0') {
            return Err(Error::Etcd("--etcd-prefix: must not be empty".into()));
        }
        let endpoints = self.etcd_servers.clone();
        let options = EtcdOptions { endpoints, prefix, tls: EtcdTls { authority, identity } };
        let etcd = Etcd::connect(&options).await.map_err(|e| Error::Etcd(format!("--etcd-servers: {}", e.whole())))?;
        let end = Instant::now() + PATIENCE;
        loop {
            match etcd.read_or_create("cluster-keys", None).await {
                Ok(_) => return Ok(etcd),
                Err(e) if Instant::now() > end => {
                    let servers = self.etcd_servers.join(", ");
                    return Err(Error::Etcd(format!("etcd at {servers} does not answer: {}", e.whole())));
                }
                Err(e) => crate::output::note!("waiting for etcd: {}", e.whole()),
            }
        }
    }
}
