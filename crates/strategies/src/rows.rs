//! The rows of all built-in kinds: the description, and the strategy of those that have one.

use crate::authentication::service_account::ServiceAccountTokens;
use crate::networking::Cidr;
use crate::plain::Ruled;
use crate::runtime_config::RuntimeConfig;
use crate::table::{self, Row};
use crate::{admissionregistration, apiextensions, apps, core, rbac, resource};
use auth::Authorizer;
use registry::row::storage_name;
use registry::{Backend, NameRule, Resource, Rows, Strategy};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What strategies need to know of the cluster.
#[derive(Clone)]
pub struct Config {
    /// The ranges of ClusterIPs: one, or one of each family.
    pub service_cidrs: Vec<Cidr>,
    pub node_ports: std::ops::RangeInclusive<u16>,
    pub authorizer: Arc<dyn Authorizer>,
    /// Makes the tokens of service accounts.
    pub accounts: Arc<ServiceAccountTokens>,
    /// Knows whose a token is.
    pub tokens: Arc<auth::Tokens>,
    /// How long events are kept after they were last written; none for ever.
    pub event_ttl: Option<Duration>,
    /// Which kinds are served.
    pub runtime: RuntimeConfig,
}

/// A row for every kind of the catalogue that is served.
pub fn builtin_rows(config: &Config) -> Rows {
    let mut rows = Rows::default();
    for kind in kinds::catalog().kinds.iter().filter(|k| config.runtime.serves(k)) {
        let row = match strategy(config, &kind.group, &kind.plural) {
            Some(strategy) => Row { strategy, function: None },
            None => table::row(config, &kind.group, &kind.kind),
        };
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

/// The selectable fields of every storage name, in the stored version.
pub fn selectable_fields() -> HashMap<String, Vec<String>> {
    let mut out = HashMap::new();
    for k in &kinds::catalog().kinds {
        if k.stored == k.group_version() {
            let fields = k.selectable.iter().map(|f| core::event::stored_path(&k.plural, f).to_owned()).collect();
            out.insert(storage_name(&k.group, &k.plural), fields);
        }
    }
    out
}

fn strategy(config: &Config, group: &str, plural: &str) -> Option<Arc<dyn Strategy>> {
    Some(match (group, plural) {
        ("apps", "deployments" | "replicasets" | "daemonsets") => {
            Arc::new(apps::Workload { selector_is_immutable: true, names: NameRule::DnsSubdomain })
        }
        ("apps", "statefulsets") => Arc::new(apps::Workload { selector_is_immutable: true, names: NameRule::DnsLabel }),
        ("apiextensions.k8s.io", "customresourcedefinitions") => Arc::new(apiextensions::CustomResourceDefinition),
        ("rbac.authorization.k8s.io", _) => Arc::new(rbac::Rbac(config.authorizer.clone())),
        _ => match ruled(group, plural) {
            Some(r) => Arc::new(r),
            None => return None,
        },
    })
}

/// Kinds of which nothing but rules is peculiar.
pub(crate) fn ruled(group: &str, plural: &str) -> Option<Ruled> {
    Some(match (group, plural) {
        ("apps", "controllerrevisions") => {
            Ruled::new(|_, _| {}).with_since(apps::controller_revision).with_update(apps::controller_revision_update)
        }
        ("resource.k8s.io", "resourceslices") => Ruled::new(|_, _| {})
            .with_since(resource::slice)
            .with_update(resource::slice_update)
            .unselectable("field label not supported for resource.k8s.io/v1, Kind=ResourceSlice"),
        ("resource.k8s.io", "deviceclasses") => {
            Ruled::new(resource::device_class).with_since(resource::device_class_selectors).named(NameRule::LongName)
        }
        ("resource.k8s.io", "resourceclaims") => Ruled::new(|_, _| {})
            .with_cells(resource::cells)
            .with_permit(resource::admin_access)
            .with_since(resource::claim)
            .with_status(resource::claim_status)
            .with_whole_status(),
        ("resource.k8s.io", "resourceclaimtemplates") => {
            Ruled::new(|_, _| {}).with_permit(resource::admin_access).with_since(resource::claim_template)
        }
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations" | "mutatingwebhookconfigurations") => {
            Ruled::new(admissionregistration::webhooks)
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => {
            Ruled::new(admissionregistration::validating_policy)
                .with_cells(admissionregistration::cells)
                .with_status(admissionregistration::status)
                .with_whole_status()
        }
        ("admissionregistration.k8s.io", "mutatingadmissionpolicies") => {
            Ruled::new(admissionregistration::mutating_policy).with_cells(admissionregistration::cells)
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings") => {
            Ruled::new(admissionregistration::validating_binding).with_cells(admissionregistration::cells)
        }
        ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings") => {
            Ruled::new(admissionregistration::mutating_binding).with_cells(admissionregistration::cells)
        }
        _ => return None,
    })
}
