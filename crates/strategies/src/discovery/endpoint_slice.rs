//! EndpointSlice: addresses of the slice's type, and unique port names.

use crate::Config;
use crate::core::endpoints::special_address;
use crate::plain::Ruled;
use crate::read::{items, text};
use crate::table::Row;
use kinds::columns::{Cell, display, limited, list_at};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use registry::Env;

pub fn row(_: &Config) -> Row {
    Row::stored(
        Ruled::new(|_, _| {})
            .with_since(validate)
            .with_cells(cells)
            .with_prepare(drop_topology)
            .with_warnings(warnings),
    )
}

const ENDPOINTS_MAX: usize = 1000;
const ADDRESSES_MAX: usize = 100;
const PORTS_MAX: usize = 20000;
const HINTS_MAX: usize = 8;
const TOPOLOGY_MAX: usize = 16;

fn validate(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    let all = o.clone().into_value();
    let at = FieldPath::new("endpoints");
    let endpoints = items(&all, "endpoints");
    // Older releases allowed addresses that are rejected now.
    let changed = old.is_none_or(|o| o.get("endpoints") != Some(&all["endpoints"]));
    if changed && endpoints.len() > ENDPOINTS_MAX {
        errors.push(FieldError::too_many(&at, endpoints.len(), ENDPOINTS_MAX));
    } else if changed {
        for (i, e) in endpoints.iter().enumerate() {
            endpoint(e, text(&all, "addressType"), &at.index(i), errors);
        }
    }
    let (ports, at) = (items(&all, "ports"), FieldPath::new("ports"));
    if ports.len() > PORTS_MAX {
        errors.push(FieldError::too_many(&at, ports.len(), PORTS_MAX));
        return;
    }
    for (i, p) in ports.iter().enumerate() {
        let name = text(p, "name");
        if ports[..i].iter().any(|q| text(q, "name") == name) {
            errors.push(FieldError::duplicate(&at.index(i).child("name"), name));
        }
    }
}

/// Drops `deprecatedTopology`, which v1 does not write, unless the endpoints are unchanged. The name of a node that an endpoint had there
/// before becomes its `nodeName` (`dropTopologyOnV1` of `pkg/registry/discovery/endpointslice/strategy.go`).
fn drop_topology(_: Env<'_>, o: &mut Object, old: Option<&Object>) {
    const HOST: &str = "kubernetes.io/hostname";
    const TOPOLOGY: &str = "deprecatedTopology";
    let before = old.and_then(|o| o.get("endpoints"));
    if before.is_some() && before == o.get("endpoints") {
        return;
    }
    let had =
        |node: &str| before.and_then(Value::as_array).is_some_and(|a| a.iter().any(|e| e[TOPOLOGY][HOST] == node));
    let Some(Value::Array(endpoints)) = o.0.get_mut("endpoints") else { return };
    for e in endpoints.iter_mut().filter_map(Value::as_object_mut) {
        let Some(topology) = e.remove(TOPOLOGY) else { continue };
        let node = topology[HOST].as_str().filter(|n| !n.is_empty() && had(n) && names::dns_subdomain(n).is_empty());
        if let Some(node) = node.filter(|_| e.get("nodeName").is_none_or(Value::is_null)) {
            e.insert("nodeName".into(), node.into());
        }
    }
}

fn endpoint(e: &Value, kind: &str, at: &FieldPath, errors: &mut ErrorList) {
    let (addresses, in_list) = (items(e, "addresses"), at.child("addresses"));
    if addresses.len() > ADDRESSES_MAX {
        errors.push(FieldError::too_many(&in_list, addresses.len(), ADDRESSES_MAX));
    }
    for (i, a) in addresses.iter().enumerate() {
        address(a.as_str().unwrap_or_default(), kind, &in_list, i, errors);
    }
    let (topology, in_map) = (&e["deprecatedTopology"], at.child("deprecatedTopology"));
    let count = topology.as_object().map_or(0, |t| t.len());
    if count > TOPOLOGY_MAX {
        errors.push(FieldError::too_many(&in_map, count, TOPOLOGY_MAX));
    }
    schema::rules::labels(topology, &in_map, errors);
    if let Some(host) = e["hostname"].as_str() {
        let at = at.child("hostname");
        errors.extend(names::dns_label(host).into_iter().map(|m| FieldError::invalid(&at, host, m)));
    }
    let hints = at.child("hints");
    let kinds = [("forZones", names::label_value as fn(&str) -> Vec<String>), ("forNodes", names::dns_subdomain)];
    for (list, check) in kinds {
        let (all, at) = (items(&e["hints"], list), hints.child(list));
        if all.len() > HINTS_MAX {
            errors.push(FieldError::too_many(&at, all.len(), HINTS_MAX));
            continue;
        }
        for (i, h) in all.iter().enumerate() {
            let (name, at) = (text(h, "name"), at.index(i).child("name"));
            if all[..i].iter().any(|h| text(h, "name") == name) {
                errors.push(FieldError::duplicate(&at, name));
            }
            errors.extend(check(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
        }
    }
}

/// Validates an address, those of IPv6 in canonical form. Addresses of unknown types are not validated. Upstream reports those of the
/// other family at the list.
fn address(a: &str, kind: &str, list: &FieldPath, i: usize, errors: &mut ErrorList) {
    let at = &list.index(i);
    let before = errors.len();
    let wrong_family = match kind {
        "IPv4" => {
            schema::rules::ip(a, at, errors);
            a.contains(':').then_some("must be an IPv4 address")
        }
        "IPv6" => {
            let wrong = schema::rules::canonical_ip(a);
            errors.extend(wrong.map(|why| FieldError::invalid(at, a, why)));
            (!a.contains(':')).then_some("must be an IPv6 address")
        }
        "FQDN" => return fully_qualified(a, at, errors),
        _ => return,
    };
    if errors.len() == before {
        errors.extend(wrong_family.map(|why| FieldError::invalid(list, a, why).ordered_at(at)));
        special_address(a, at, errors);
    }
}

fn fully_qualified(name: &str, at: &FieldPath, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.push(FieldError::required(at, ""));
        return;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let bad = names::dns_subdomain(name);
    if !bad.is_empty() {
        errors.push(FieldError::invalid(at, name, bad.join(",")));
    } else if !name.contains('.') {
        let why = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(at, name, why));
    } else if let Some((label, bad)) =
        name.split('.').map(|l| (l, names::dns_label(l))).find(|(_, bad)| !bad.is_empty())
    {
        errors.push(FieldError::invalid(at, label, bad.join(",")));
    }
}

/// Returns warnings: on create for the address type, on every write for addresses.
fn warnings(o: &Object, old: Option<&Object>) -> Vec<String> {
    let mut out = Vec::new();
    if o.get("addressType").is_some_and(|t| t == "FQDN") && old.is_none() {
        out.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
    }
    let endpoints = o.get("endpoints").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (i, e) in endpoints.iter().enumerate() {
        let at = FieldPath::new("endpoints").index(i).child("addresses");
        let addresses = items(e, "addresses").iter().filter_map(Value::as_str).enumerate();
        out.extend(addresses.filter_map(|(j, a)| schema::rules::ip_warning(a, &at.index(j))));
    }
    out
}

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "slicePorts" => {
            let ports: Vec<String> = list_at(o, &["ports"])
                .iter()
                .map(|p| if p["port"].is_null() { "*".into() } else { display(&p["port"]) })
                .collect();
            limited(&ports, "<unset>").into()
        }
        "sliceEndpoints" => {
            let all: Vec<String> = list_at(o, &["endpoints"])
                .iter()
                .flat_map(|e| e["addresses"].as_array().cloned().unwrap_or_default())
                .map(|v| display(&v))
                .collect();
            limited(&all, "<unset>").into()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::Ruled;
    use crate::testing::{check_create, check_update};
    use serde_json::json;

    #[test]
    fn addresses_of_ipv6_are_canonical() {
        let mut base = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "s"},
            "addressType": "IPv6", "endpoints": [{"addresses": ["fd00::1"]}], "ports": []});
        let field = "/endpoints/0/addresses";
        let strategy = Ruled::new(|_, _| {}).with_since(validate);
        let form = "endpoints[0].addresses[0]: Invalid value: \"FD00::1\": must be in canonical form (\"fd00::1\")";
        let family = "endpoints[0].addresses: Invalid value: \"10.0.0.1\": must be an IPv6 address";
        check_create(
            &strategy,
            &base,
            &[("", Value::Null, &[]), (field, json!(["FD00::1"]), &[form]), (field, json!(["10.0.0.1"]), &[family])],
        );
        base["endpoints"][0]["addresses"] = json!(["FD00::1"]);
        check_update(
            &strategy,
            &base,
            &[("/metadata/labels", json!({"a": "b"}), &[]), (field, json!(["FD00::1", "::2"]), &[form])],
        );
    }

    #[test]
    fn validates_endpoints_and_ports() {
        let base = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "s"},
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": []});
        let (list, at) = ("endpoints[0].addresses: Invalid value:", "endpoints[0].addresses[0]: Invalid value:");
        check_create(
            &Ruled::new(|_, _| {}).with_since(validate),
            &base,
            &[
                ("", Value::Null, &[]),
                (
                    "/endpoints/0/addresses",
                    json!(["fd00::1"]),
                    &[&format!("{list} \"fd00::1\": must be an IPv4 address")],
                ),
                (
                    "/endpoints/0/addresses",
                    json!(["127.0.0.1"]),
                    &[&format!("{at} \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)")],
                ),
                (
                    "/endpoints/0/addresses",
                    json!([]),
                    &["endpoints[0].addresses: Required value: must contain at least 1 address"],
                ),
                (
                    "/endpoints/0/hostname",
                    json!("A"),
                    &["endpoints[0].hostname: Invalid value: \"A\": a lowercase RFC 1123 label…"],
                ),
                (
                    "/endpoints/0/hints",
                    json!({"forZones": [{"name": "a"}, {"name": "a"}]}),
                    &["endpoints[0].hints.forZones[1].name: Duplicate value: \"a\""],
                ),
                ("/ports", json!([{"port": 1}, {"port": 2}]), &["ports[1].name: Duplicate value: \"\""]),
                (
                    "/addressType",
                    json!("Other"),
                    &["addressType: Unsupported value: \"Other\": supported values: \"FQDN\", \"IPv4\", \"IPv6\""],
                ),
            ],
        );
    }
}
