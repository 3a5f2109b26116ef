//! IP families of services, given the cluster's ranges (upstream `initIPFamilyFields`).

use super::{Service, invalid};
use crate::core::service_rules;
use crate::core::service_spec::{has_address, is_headless, list, selects, ty};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Status, Value};
use std::net::IpAddr;

const ONE: &str = "SingleStack";
const BOTH: &str = "RequireDualStack";
const PREFERRED: &str = "PreferDualStack";

pub fn family(six: bool) -> &'static str {
    if six { "IPv6" } else { "IPv4" }
}

fn other(family: &str) -> &'static str {
    if family == "IPv4" { "IPv6" } else { "IPv4" }
}

fn policy(o: &Object) -> Option<&str> {
    o.str_at(&["spec", "ipFamilyPolicy"])
}

fn same(o: &Object, old: &Object, field: &str) -> bool {
    list(o, field) == list(old, field)
}

/// Whether an unchanged `PreferDualStack` service keeps its families, even if the cluster's ranges changed.
pub fn is_settled(o: &Object, old: Option<&Object>) -> bool {
    old.is_some_and(|old| {
        policy(o) == Some(PREFERRED)
            && matches!(policy(old), Some(PREFERRED) | None)
            && ty(o) == ty(old)
            && has_address(o)
            && same(o, old, "clusterIPs")
            && same(o, old, "ipFamilies")
    })
}

impl Service {
    fn has_family(&self, family_: &str) -> bool {
        self.ranges.iter().any(|r| family(r.is_ipv6()) == family_)
    }

    fn first_family(&self) -> &'static str {
        family(self.ranges.first().is_some_and(|r| r.is_ipv6()))
    }

    pub(super) fn families(&self, o: &mut Object, old: Option<&Object>) -> Result<(), Status> {
        if ty(o) == "ExternalName" || is_settled(o, old) {
            return Ok(());
        }
        if policy(o).is_none() {
            let kept = old.and_then(policy).map(str::to_owned);
            let chosen = if is_headless(o) && !selects(o) { BOTH } else { ONE };
            o.set(&["spec", "ipFamilyPolicy"], kept.unwrap_or_else(|| chosen.into()));
        }
        let mut errors = ErrorList::new();
        service_rules::cluster_addresses(o, &FieldPath::new("spec"), &mut errors);
        if !errors.is_empty() {
            return Err(invalid(o, &errors));
        }
        fits_policy(o, old, &mut errors);
        self.derive_from_addresses(o, &mut errors);
        if !errors.is_empty() {
            return Err(invalid(o, &errors));
        }
        let single = policy(o) == Some(ONE);
        let mut all: Vec<Value> = list(o, "ipFamilies").to_vec();
        // A headless service without a selector may have endpoints of both families.
        let free = is_headless(o) && !selects(o);
        if !free {
            self.check_configured(o, &all, &mut errors);
            if !errors.is_empty() {
                return Err(invalid(o, &errors));
            }
        }
        if all.is_empty() {
            all.push(self.first_family().into());
        }
        if let ([Value::String(only)], false) = (&all[..], single)
            && (free || self.ranges.len() == 2)
        {
            let second = other(only);
            all.push(second.into());
        }
        o.set(&["spec", "ipFamilies"], all);
        Ok(())
    }

    /// Derives absent families from the requested cluster IPs.
    fn derive_from_addresses(&self, o: &mut Object, errors: &mut ErrorList) {
        let mut all = list(o, "ipFamilies").to_vec();
        let ips = list(o, "clusterIPs").to_vec();
        for (i, ip) in ips.iter().enumerate().skip(all.len()) {
            let Ok(address) = ip.as_str().unwrap_or_default().parse::<IpAddr>() else { break };
            let of = family(address.is_ipv6());
            if self.has_family(of) {
                all.push(of.into());
            } else {
                let at = FieldPath::new("spec.clusterIPs").index(i);
                errors.push(FieldError::invalid(&at, &ips, format!("{of} is not configured on this cluster")));
            }
        }
        if !all.is_empty() {
            o.set(&["spec", "ipFamilies"], all);
        }
    }

    fn check_configured(&self, o: &Object, families: &[Value], errors: &mut ErrorList) {
        if policy(o) == Some(BOTH) && self.ranges.len() < 2 {
            let why = "this cluster is not configured for dual-stack services";
            errors.push(FieldError::invalid(&FieldPath::new("spec.ipFamilyPolicy"), BOTH, why));
        }
        for (i, f) in families.iter().enumerate() {
            if !self.has_family(f.as_str().unwrap_or_default()) {
                let at = FieldPath::new("spec.ipFamilies").index(i);
                errors.push(FieldError::invalid(&at, f, "not configured on this cluster"));
            }
        }
    }
}

/// Checks the number of families and addresses against the policy. An update to `SingleStack` drops an unchanged
/// secondary one.
fn fits_policy(o: &mut Object, old: Option<&Object>, errors: &mut ErrorList) {
    let policy_name = policy(o).unwrap_or_default().to_owned();
    let mut wrong = |why: &str| {
        errors.push(FieldError::invalid(&FieldPath::new("spec.ipFamilyPolicy"), policy_name.as_str(), why));
    };
    if let Some(old) = old {
        for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
            let (now, was) = (list(o, field), list(old, field));
            if policy_name != ONE {
                if !now.is_empty() && now.len() < was.len() {
                    wrong(&format!("must be 'SingleStack' to release the secondary {what}"));
                }
            } else if now == was && now.len() > 1 {
                let first = vec![now[0].clone()];
                o.set(&["spec", field], first);
            }
        }
    }
    if policy_name == ONE {
        for (field, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
            if list(o, field).len() == 2 {
                wrong(&format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"));
            }
        }
    }
}
