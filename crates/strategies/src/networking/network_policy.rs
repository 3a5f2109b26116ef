//! NetworkPolicy: peers and ports.

use crate::Config;
use crate::read::{delegated, is_set, items};
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};
use registry::CreateStrategy;
use std::net::IpAddr;

pub fn row(_: &Config) -> Row {
    Row::stored(NetworkPolicy)
}

pub struct NetworkPolicy;

impl CreateStrategy for NetworkPolicy {
    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        let spec = o.get("spec").unwrap_or(&Value::Null);
        let path = FieldPath::new("spec");
        for (list, peers) in [("ingress", "from"), ("egress", "to")] {
            for (i, rule) in items(spec, list).iter().enumerate() {
                let at = path.child(list).index(i);
                for (j, p) in items(rule, "ports").iter().enumerate() {
                    port(p, &at.child("ports").index(j), errors);
                }
                for (j, p) in items(rule, peers).iter().enumerate() {
                    peer(p, &at.child(peers).index(j), errors);
                }
            }
        }
        let types = items(spec, "policyTypes");
        let at = path.child("policyTypes");
        if types.len() > 2 {
            errors.push(FieldError::invalid(&at, types, "may not specify more than two policyTypes"));
        } else {
            delegated(spec, "io.k8s.api.networking.v1.NetworkPolicySpec", "policyTypes", &path, errors);
        }
    }

    fn warnings(&self, o: &Object, _old: Option<&Object>) -> Vec<String> {
        let spec = o.get("spec").unwrap_or(&Value::Null);
        let mut out = Vec::new();
        for (list, peers) in [("ingress", "from"), ("egress", "to")] {
            for (i, rule) in items(spec, list).iter().enumerate() {
                let at = FieldPath::new("spec").child(list).index(i).child(peers);
                for (j, peer) in items(rule, peers).iter().enumerate() {
                    let (block, at) = (&peer["ipBlock"], at.index(j).child("ipBlock"));
                    out.extend(block["cidr"].as_str().and_then(|c| schema::rules::cidr_warning(c, &at.child("cidr"))));
                    let except = items(block, "except").iter().filter_map(Value::as_str).enumerate();
                    let at = at.child("except");
                    out.extend(except.filter_map(|(k, c)| schema::rules::cidr_warning(c, &at.index(k))));
                }
            }
        }
        out
    }

    fn default(&self, o: &mut Object) {
        if o.at(&["spec", "policyTypes"]).is_none() {
            let egress = o.at(&["spec", "egress"]).and_then(Value::as_array).is_some_and(|e| !e.is_empty());
            let types = if egress { vec!["Ingress", "Egress"] } else { vec!["Ingress"] };
            o.set(&["spec", "policyTypes"], types);
        }
    }
}

registry::strategy!(NetworkPolicy: CreateStrategy);

fn port(p: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let Some(end) = p["endPort"].as_i64() else { return };
    // For a named port, this error precedes those of the name.
    let before = at.child("protocol");
    let at = at.child("endPort");
    match &p["port"] {
        Value::Null => errors.push(FieldError::invalid(&at, end, "may not be specified when `port` is not specified")),
        Value::String(_) => {
            let e = FieldError::invalid(&at, end, "may not be specified when `port` is non-numeric");
            errors.push(e.ordered_at(&before));
        }
        start => {
            if start.as_i64().is_some_and(|s| s > end) {
                errors.push(FieldError::invalid(&at, start, "must be greater than or equal to `port`"));
            }
            errors.extend(meta::names::port_number(end).into_iter().map(|m| FieldError::invalid(&at, end, m)));
        }
    }
}

fn peer(p: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let kinds = p.as_object().map_or(0, |m| m.len());
    if kinds == 0 {
        errors.push(FieldError::required(at, "must specify a peer"));
    } else if is_set(p, "ipBlock") && kinds > 1 {
        errors.push(FieldError::forbidden(at, "may not specify both ipBlock and another peer"));
    }
    except(&p["ipBlock"], &at.child("ipBlock").child("except"), errors);
}

/// Checks that exceptions are strict subsets of the range. They are not validated without a valid range.
fn except(block: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let Some((block_ip, bits)) = range(&block["cidr"]) else { return };
    for (i, e) in items(block, "except").iter().enumerate() {
        schema::rules::cidr(e.as_str().unwrap_or_default(), &at.index(i), errors);
        let within = range(e).is_none_or(|(part, n)| match (block_ip, part) {
            (IpAddr::V4(w), IpAddr::V4(p)) => bits < n && same_start(w.to_bits().into(), p.to_bits().into(), 32 - bits),
            (IpAddr::V6(w), IpAddr::V6(p)) => bits < n && same_start(w.to_bits(), p.to_bits(), 128 - bits),
            _ => false,
        });
        if !within {
            errors.push(FieldError::invalid(&at.index(i), e, "must be a strict subset of `cidr`"));
        }
    }
}

fn range(v: &Value) -> Option<(IpAddr, u32)> {
    let (ip, bits) = v.as_str()?.split_once('/')?;
    let ip: IpAddr = ip.parse().ok()?;
    let bits = bits.parse().ok().filter(|b| *b <= if ip.is_ipv4() { 32 } else { 128 })?;
    Some((ip, bits))
}

/// Whether two addresses are equal except for the last `rest` bits.
fn same_start(a: u128, b: u128, rest: u32) -> bool {
    rest >= 128 || a >> rest == b >> rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_create;
    use serde_json::json;

    #[test]
    fn validates_ports_peers_and_types() {
        let base = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"podSelector": {}}});
        let unknown = r#"spec.policyTypes[1]: Unsupported value: "Other": supported values: "Ingress", "Egress""#;
        let three = r#"spec.policyTypes: Invalid value: ["Ingress","Other","Egress"]: may not specify more than two policyTypes"#;
        let named =
            "spec.ingress[0].ports[0].endPort: Invalid value: 9: may not be specified when `port` is non-numeric";
        check_create(
            &NetworkPolicy,
            &base,
            &[
                ("", Value::Null, &[]),
                ("/spec/policyTypes", json!(["Ingress", "Other"]), &[unknown]),
                ("/spec/policyTypes", json!(["Ingress", "Other", "Egress"]), &[three]),
                ("/spec/ingress", json!([{"ports": [{"port": "a", "endPort": 9}]}]), &[named]),
                ("/spec/egress", json!([{"to": [{}]}]), &["spec.egress[0].to[0]: Required value: must specify a peer"]),
            ],
        );
    }
}
