//! The services to which ingresses, webhooks and API services lead.

use super::{Facts, Finding, Query, finding};
use crate::commands::why::fields::{list, text};
use crate::commands::why::finding::ObjectName;
use crate::commands::why::reader::Read;
use meta::{LabelSelector, Value};

const SLICES: &str = "discovery.k8s.io/v1";

/// A port of a service by number or name; or any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Port<'a> {
    Number(i64),
    Name(&'a str),
    Any,
}

/// What is read about a service.
pub(super) fn reads(namespace: &str, service: &str) -> Vec<Query> {
    vec![Query::get("v1", namespace, "services", service), Query::list(SLICES, namespace, "endpointslices")]
}

/// Why a service cannot answer at a port. None if it can, or if the user may not read it.
pub(super) fn problem(facts: &Facts<'_>, namespace: &str, service: &str, port: &Port<'_>) -> Option<Finding> {
    let about = ObjectName::new("v1", "Service", namespace, service);
    let found = match facts.get("v1", namespace, "services", service) {
        Read::Found(found) => found,
        Read::Missing => {
            return Some(finding(format!("the Service {namespace}/{service} does not exist")).about(about));
        }
        Read::Unreadable => return None,
    };
    let ports = list(found, "/spec/ports");
    let has = |p: &Value| match port {
        Port::Number(number) => p["port"] == *number,
        Port::Name(name) => p["name"] == *name,
        Port::Any => true,
    };
    if text(found, "/spec/type") == "ExternalName" {
        return None;
    }
    if !ports.iter().any(has) {
        let wanted = match port {
            Port::Number(number) => number.to_string(),
            Port::Name(name) => format!("named {name}"),
            Port::Any => return Some(finding(format!("the Service {namespace}/{service} has no ports")).about(about)),
        };
        let all: Vec<String> = ports
            .iter()
            .map(|p| match text(p, "/name") {
                "" => p["port"].to_string(),
                name => format!("{} ({name})", p["port"]),
            })
            .collect();
        let message = format!("the Service {namespace}/{service} has no port {wanted}; it has {}", all.join(", "));
        return Some(finding(message).about(about));
    }
    let own = LabelSelector::from_map([("kubernetes.io/service-name", service)].into_iter());
    let slices = facts.list(SLICES, namespace, "endpointslices")?;
    let mut endpoints =
        slices.iter().filter(|s| crate::commands::why::fields::selects(&own, s)).flat_map(|s| list(s, "/endpoints"));
    if endpoints.any(|e| e.pointer("/conditions/ready") != Some(&Value::Bool(false))) {
        return None;
    }
    let command = format!("kubectl why -n {namespace} service/{service}");
    Some(finding(format!("the Service {namespace}/{service} has no ready endpoint")).about(about).suggest(command))
}

/// The service of a `clientConfig`, and its port.
pub(super) fn of_client_config(config: &Value) -> Option<(&str, &str, i64)> {
    let service = config.get("service").filter(|s| s.is_object())?;
    let port = service["port"].as_i64().unwrap_or(443);
    Some((text(service, "/namespace"), text(service, "/name"), port))
}

/// What is wrong with a bundle of CA certificates. Empty: it is absent.
pub(super) fn bundle_problem(bundle: &str, now: jiff::Timestamp) -> Option<String> {
    use base64::Engine;
    if bundle.is_empty() {
        return None;
    }
    let Ok(pem) = base64::engine::general_purpose::STANDARD.decode(bundle) else {
        return Some("its caBundle is not base64".into());
    };
    let mut ends = Vec::new();
    for block in x509_parser::pem::Pem::iter_from_buffer(&pem) {
        let Ok(block) = block else { return Some("its caBundle is not in the PEM format".into()) };
        let Ok(certificate) = block.parse_x509() else {
            return Some("its caBundle has something that is no certificate".into());
        };
        ends.push(certificate.validity().not_after.timestamp());
    }
    let last = ends.into_iter().max()?;
    let ago = now.as_second() - last;
    (ago > 0).then(|| format!("the certificates of its caBundle expired {} ago", kinds::columns::duration(ago)))
}
