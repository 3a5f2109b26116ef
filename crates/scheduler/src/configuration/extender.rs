//! The configuration of an extender.

use super::read::list;
use base64::Engine;
use client::https::{ClientIdentity, Config, Roots};
use meta::Value;
use std::time::Duration;

/// How long an extender may take, unless it has a timeout of its own.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An HTTP service that filters, scores, preempts or binds.
#[derive(Clone, Debug)]
pub struct ExtenderConfiguration {
    /// Where it is, and its name in messages.
    pub url: Box<str>,
    /// The last part of the path of each call; empty for none.
    pub filter: Box<str>,
    pub preempt: Box<str>,
    pub prioritize: Box<str>,
    pub bind: Box<str>,
    /// The factor of its scores.
    pub weight: i64,
    /// How to connect.
    pub connection: Config,
    pub timeout: Duration,
    /// Whether it knows the nodes by their names.
    pub caches_nodes: bool,
    /// It is called only for pods that request one of these resources, if there are any; and whether the scheduler ignores them.
    pub resources: Vec<(Box<str>, bool)>,
    /// Whether pods are scheduled without it when it fails.
    pub ignorable: bool,
}

impl ExtenderConfiguration {
    /// Reads a valid configuration, and the files that it names. Errors if a file cannot be read.
    pub(super) fn read(value: &Value) -> Result<Self, String> {
        let text = |field: &str| -> Box<str> { value[field].as_str().unwrap_or_default().into() };
        let mut connection = Config::new(&*text("urlPrefix"));
        let tls = &value["tlsConfig"];
        let ca = material(tls, "ca")?;
        connection.insecure = tls["insecure"] == true || (value["enableHTTPS"] == true && ca.is_none());
        connection.server_name = tls["serverName"].as_str().filter(|n| !n.is_empty()).map(str::to_owned);
        if let Some(pem) = ca {
            connection.roots = Roots::Pem(pem);
        }
        if let (Some(certificates), Some(key)) = (material(tls, "cert")?, material(tls, "key")?) {
            connection.identity = Some(ClientIdentity { certificates, key });
        }
        let timeout = value["httpTimeout"].as_str().and_then(meta::time::parse_go_duration);
        let timeout = timeout.and_then(|nanos| u64::try_from(nanos).ok()).filter(|nanos| *nanos > 0);
        Ok(Self {
            url: text("urlPrefix"),
            filter: text("filterVerb"),
            preempt: text("preemptVerb"),
            prioritize: text("prioritizeVerb"),
            bind: text("bindVerb"),
            weight: value["weight"].as_i64().unwrap_or(0),
            connection,
            timeout: timeout.map_or(TIMEOUT, Duration::from_nanos),
            caches_nodes: value["nodeCacheCapable"] == true,
            resources: list(value, "managedResources")
                .map(|r| (r["name"].as_str().unwrap_or_default().into(), r["ignoredByScheduler"] == true))
                .collect(),
            ignorable: value["ignorable"] == true,
        })
    }

    /// The managed resources that NodeResourcesFit ignores.
    pub fn ignored_resources(&self) -> impl Iterator<Item = Box<str>> {
        self.resources.iter().filter(|(_, ignored)| *ignored).map(|(name, _)| name.clone())
    }
}

/// A certificate or key, in the configuration itself or in a file.
fn material(tls: &Value, name: &str) -> Result<Option<Vec<u8>>, String> {
    let text = |end: &str| tls[format!("{name}{end}")].as_str().filter(|t| !t.is_empty());
    if let Some(data) = text("Data") {
        let decoded = base64::engine::general_purpose::STANDARD.decode(data);
        return decoded.map(Some).map_err(|e| format!("{name}Data: {e}"));
    }
    match text("File") {
        Some(path) => std::fs::read(path).map(Some).map_err(|e| format!("open {path}: {e}")),
        None => Ok(None),
    }
}
