//! The rows of all built-in kinds: description and strategy.

use crate::authentication::service_account::ServiceAccountTokens;
use crate::networking::Cidr;
use crate::runtime_config::RuntimeConfig;
use crate::table;
use auth::Authorizer;
use registry::row::storage_name;
use registry::{Backend, Resource, Rows};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Cluster configuration that strategies depend on.
#[derive(Clone)]
pub struct Config {
    /// ClusterIP ranges: one, or one per address family.
    pub service_cidrs: Vec<Cidr>,
    pub node_ports: std::ops::RangeInclusive<u16>,
    pub authorizer: Arc<dyn Authorizer>,
    /// Issues the tokens of service accounts.
    pub accounts: Arc<ServiceAccountTokens>,
    /// Authenticates tokens, for TokenReview.
    pub tokens: Arc<auth::Tokens>,
    /// Time to live of events after their last write; `None` keeps them for ever.
    pub event_ttl: Option<Duration>,
    /// What nodes and pods use.
    pub usage: Arc<usage::Usage>,
    /// The served API versions and resources.
    pub runtime: RuntimeConfig,
}

/// Returns a row for every served built-in kind.
pub fn builtin_rows(config: &Config) -> Rows {
    let mut rows = Rows::default();
    for kind in kinds::catalog().kinds.iter().filter(|k| config.runtime.serves(k)) {
        let row = table::row(config, &kind.group, &kind.kind);
        let backend = match row.function {
            Some(f) => Backend::Function(f),
            None => Backend::Stored {
                resource: storage_name(&kind.stored.group, &kind.plural).into(),
                version: kind.stored.with_kind(&*kind.kind),
            },
        };
        let lifetime = config.event_ttl.filter(|_| kind.expires);
        rows.insert(Resource {
            kind: kind.clone(),
            backend,
            strategy: row.strategy,
            bare_items: true,
            reshaped: 0,
            empty: OnceLock::new(),
            converted: Default::default(),
            lifetime,
        });
    }
    rows
}

/// Returns the selectable fields of every storage name, in the stored version.
pub fn selectable_fields() -> HashMap<String, Vec<String>> {
    let mut out = HashMap::new();
    for k in &kinds::catalog().kinds {
        if k.stored == k.group_version() {
            let fields = k.selectable.iter().map(|f| k.stored_field(f).to_owned()).collect();
            out.insert(storage_name(&k.group, &k.plural), fields);
        }
    }
    out
}
