//! Flags of the API server, under upstream's names.

use apiserver::audit;
use clap::{ArgMatches, Args};
use client::https::ClientIdentity;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("loading audit policy file: {source}: from file {path}")]
    Policy { path: PathBuf, source: audit::Error },
    #[error("{0}")]
    Audit(String),
}

#[derive(Args)]
#[group(id = "api")]
pub struct Flags {
    /// The longest time a request may take that is no watch and no stream.
    #[arg(long, default_value = "1m", value_parser = apiserver::duration)]
    pub request_timeout: Duration,
    /// Seconds: a watch that asks for no end lives for once to twice as long.
    #[arg(long, default_value_t = 1800)]
    pub min_request_timeout: u64,
    /// Requests that only read, at a time; 0 for any number.
    #[arg(long, default_value_t = 400)]
    pub max_requests_inflight: usize,
    /// Requests that may change something, at a time; 0 for any number.
    #[arg(long, default_value_t = 200)]
    pub max_mutating_requests_inflight: usize,
    /// Whether FlowSchemas and PriorityLevelConfigurations govern requests; the two numbers above together are their seats.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    pub enable_priority_and_fairness: bool,
    /// How long the server goes on serving after it was asked to stop, while /readyz already says that it ends.
    #[arg(long, default_value = "0s", value_parser = apiserver::duration)]
    pub shutdown_delay_duration: Duration,
    /// The certificate by which extension API servers know this one, with its key. Default: one of this cluster's own CA.
    #[arg(long, requires = "proxy_client_key_file")]
    pub proxy_client_cert_file: Option<PathBuf>,
    #[arg(long, requires = "proxy_client_cert_file")]
    pub proxy_client_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub audit: crate::audit::Flags,
    /// Which built-in APIs are served: `api/all`, `api/ga`, `api/beta`, `api/alpha`, `group/version` or `group/version/resource`
    /// with `=true` or `=false`.
    #[arg(long, value_delimiter = ',')]
    pub runtime_config: Vec<String>,
    /// How long an event is kept after it was last written; 0 for ever.
    #[arg(long, default_value = "1h", value_parser = apiserver::duration)]
    pub event_ttl: Duration,
}

/// The flags of a command with their values, given or not, by the names they have on the command line.
pub fn shown(matches: &ArgMatches) -> BTreeMap<String, String> {
    let value = |id: &str| {
        let raw = matches.try_get_raw(id).ok().flatten()?;
        Some(raw.map(|v| v.to_string_lossy()).collect::<Vec<_>>().join(","))
    };
    matches.ids().filter_map(|id| Some((id.as_str().replace('_', "-"), value(id.as_str())?))).collect()
}

impl Flags {
    pub async fn server(&self) -> Result<apiserver::Options, Error> {
        Ok(apiserver::Options {
            request_timeout: self.request_timeout,
            min_request_timeout: Duration::from_secs(self.min_request_timeout),
            max_requests_in_flight: self.max_requests_inflight,
            max_mutating_requests_in_flight: self.max_mutating_requests_inflight,
            priority_and_fairness: self.enable_priority_and_fairness,
            proxy_client: self.proxy_client()?,
            audit: self.audit.audit().await?,
            flags: BTreeMap::new(),
        })
    }

    fn proxy_client(&self) -> Result<Option<ClientIdentity>, Error> {
        let (Some(crt), Some(key)) = (&self.proxy_client_cert_file, &self.proxy_client_key_file) else {
            return Ok(None);
        };
        let read = |path: &PathBuf| std::fs::read(path).map_err(|source| Error::File { path: path.clone(), source });
        Ok(Some(ClientIdentity { certificates: read(crt)?, key: read(key)? }))
    }
}
