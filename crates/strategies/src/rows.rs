//! The rows of all built-in kinds: the description, and the strategy of those that have one.

use crate::plain::{Plain, Ruled};
use crate::runtime_config::RuntimeConfig;
use crate::table::{self, Row};
use crate::{
    admissionregistration, apiextensions, apiregistration, apps, authentication, authorization, autoscaling,
    certificates, core, discovery, flowcontrol, networking, policy, rbac, resource, scheduling, settings, storage,
};
use auth::Authorizer;
use registry::row::storage_name;
use registry::{Backend, Function, NameRule, Resource, Rows, Strategy};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What strategies need to know of the cluster.
#[derive(Clone)]
pub struct Config {
    /// The ranges of ClusterIPs: one, or one of each family.
    pub service_cidrs: Vec<networking::Cidr>,
    pub node_ports: std::ops::RangeInclusive<u16>,
    pub authorizer: Arc<dyn Authorizer>,
    /// Makes the tokens of service accounts.
    pub accounts: Arc<authentication::service_account::ServiceAccountTokens>,
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
            Some(strategy) => Row { strategy, function: function(config, &kind.group, &kind.plural) },
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

fn function(config: &Config, group: &str, plural: &str) -> Option<Arc<dyn Function>> {
    let access = |whose| -> Arc<dyn Function> {
        Arc::new(authorization::AccessReview { authorizer: config.authorizer.clone(), whose })
    };
    Some(match (group, plural) {
        ("authentication.k8s.io", "selfsubjectreviews") => Arc::new(authentication::SelfSubjectReview),
        ("authentication.k8s.io", "tokenreviews") => Arc::new(authentication::TokenReview(config.tokens.clone())),
        ("authorization.k8s.io", "selfsubjectaccessreviews") => access(authorization::Whose::Own),
        ("authorization.k8s.io", "subjectaccessreviews") => access(authorization::Whose::Any),
        ("authorization.k8s.io", "localsubjectaccessreviews") => access(authorization::Whose::Local),
        ("authorization.k8s.io", "selfsubjectrulesreviews") => {
            Arc::new(authorization::RulesReview { authorizer: config.authorizer.clone() })
        }
        _ => return None,
    })
}

fn strategy(config: &Config, group: &str, plural: &str) -> Option<Arc<dyn Strategy>> {
    Some(match (group, plural) {
        ("apps", "deployments" | "replicasets" | "daemonsets") => {
            Arc::new(apps::Workload { selector_is_immutable: true, names: NameRule::DnsSubdomain })
        }
        ("apps", "statefulsets") => Arc::new(apps::Workload { selector_is_immutable: true, names: NameRule::DnsLabel }),
        ("apiextensions.k8s.io", "customresourcedefinitions") => Arc::new(apiextensions::CustomResourceDefinition),
        ("autoscaling", "horizontalpodautoscalers") => Arc::new(autoscaling::HorizontalPodAutoscaler),
        ("rbac.authorization.k8s.io", _) => Arc::new(rbac::Rbac(config.authorizer.clone())),
        ("networking.k8s.io", "networkpolicies") => Arc::new(networking::network_policy::NetworkPolicy),
        ("scheduling.k8s.io", "priorityclasses") => Arc::new(scheduling::PriorityClass),
        ("certificates.k8s.io", "certificatesigningrequests") => Arc::new(certificates::CertificateSigningRequest),
        _ => match ruled(group, plural) {
            Some(r) => Arc::new(r),
            None if function(config, group, plural).is_some() => Arc::new(Plain),
            None => return None,
        },
    })
}

/// Kinds of which nothing but rules is peculiar.
pub(crate) fn ruled(group: &str, plural: &str) -> Option<Ruled> {
    Some(match (group, plural) {
        ("discovery.k8s.io", "endpointslices") => {
            Ruled::new(discovery::slice).with_cells(discovery::cells).with_warnings(discovery::warnings)
        }
        ("apps", "controllerrevisions") => {
            Ruled::new(|_, _| {}).with_since(apps::controller_revision).with_update(apps::controller_revision_update)
        }
        ("settings.k8s.io", "podpresets") => Ruled::new(settings::pod_preset),
        ("networking.k8s.io", "ingresses") => Ruled::new(networking::ingress::validate)
            .with_cells(networking::ingress::cells)
            .with_since(networking::ingress::validate_since)
            .with_warnings(networking::ingress::warnings)
            .with_status(networking::ingress::validate_status),
        ("networking.k8s.io", "ingressclasses") => Ruled::new(networking::ingress_class).with_cells(networking::cells),
        ("networking.k8s.io", "ipaddresses") => {
            Ruled::new(networking::ip_address).with_cells(networking::cells).named(NameRule::IpAddress)
        }
        ("networking.k8s.io", "servicecidrs") => {
            Ruled::new(|_, _| {}).with_since(networking::service_cidr).with_update(networking::service_cidr_update)
        }
        ("storage.k8s.io", "csidrivers") => Ruled::new(storage::csi_driver)
            .with_cells(storage::cells)
            .with_update(storage::csi_driver_update)
            .with_warnings(storage::csi_driver_warnings),
        ("storage.k8s.io", "csistoragecapacities") => {
            Ruled::new(storage::capacity).with_warnings(storage::capacity_warnings)
        }
        ("storage.k8s.io", "storageclasses") => {
            Ruled::new(storage::storage_class).with_warnings(storage::storage_class_warnings)
        }
        ("storage.k8s.io", "volumeattributesclasses") => Ruled::new(storage::attributes_class),
        ("storage.k8s.io", "volumeattachments") => {
            Ruled::new(storage::attachment).with_status(storage::attachment_status).with_whole_status()
        }
        ("storage.k8s.io", "csinodes") => Ruled::new(storage::csi_node).with_update(storage::csi_node_update),
        ("policy", "poddisruptionbudgets") => Ruled::new(policy::disruption_budget)
            .with_status(policy::disruption_budget_status)
            .named(NameRule::PathSegment),
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
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => Ruled::new(flowcontrol::flow_schema)
            .with_cells(flowcontrol::cells)
            .with_status(flowcontrol::status)
            .with_whole_status(),
        ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations") => {
            Ruled::new(flowcontrol::priority_level).with_status(flowcontrol::status).with_whole_status()
        }
        ("apiregistration.k8s.io", "apiservices") => Ruled::new(apiregistration::api_service)
            .with_cells(apiregistration::cells)
            .in_scheme("pkg/apiserver/scheme/scheme.go:28")
            .named(NameRule::PathSegment)
            .with_status(apiregistration::status)
            .with_whole_status(),
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
