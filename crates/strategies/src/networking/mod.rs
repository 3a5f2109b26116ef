//! `networking.k8s.io`, and address ranges of services.

mod cidr;
mod ingress;
mod ingress_class;
mod ip_address;
mod network_policy;
mod service_cidr;

pub use cidr::Cidr;

use crate::read::{items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};

kinds! { ingress, ingress_class, ip_address, network_policy, service_cidr }

/// The warnings for addresses of load balancers in the status of a service or an ingress.
pub fn balancer_warnings(o: &Object) -> Vec<String> {
    let at = FieldPath::new("status.loadBalancer.ingress");
    let all = items(o.at(&["status", "loadBalancer"]).unwrap_or(&Value::Null), "ingress").iter().enumerate();
    all.filter_map(|(i, a)| schema::rules::ip_warning(text(a, "ip"), &at.index(i))).collect()
}

/// Characters of a path.
const PATH: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";

/// Validates `domain/path`.
pub fn domain_prefixed(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    match name.split_once('/') {
        Some((domain, path)) if !domain.is_empty() && !path.is_empty() => {
            errors.extend(names::dns_subdomain(domain).into_iter().map(|m| FieldError::invalid(at, domain, m)));
            let ok = |c: char| c.is_ascii_alphanumeric() || "/%-._~!$&'()*+,;=:".contains(c);
            if !path.chars().all(ok) {
                let why = format!("Invalid path (regex used for validation is '{PATH}')");
                errors.push(FieldError::invalid(at, path, why));
            }
        }
        _ if name.is_empty() => errors.push(FieldError::required(at, "")),
        _ => errors.push(FieldError::invalid(at, name, "must be a domain-prefixed path (such as \"acme.io/foo\")")),
    }
}
