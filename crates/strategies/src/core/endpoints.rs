//! Endpoints: each subset has addresses.

use crate::Config;
use crate::plain::Ruled;
use crate::read::{items, text};
use crate::table::Row;
use kinds::columns::{Cell, display, limited, list_at};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use schema::rules::ip_warning;
use std::net::IpAddr;

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_cells(cells).with_warnings(warnings))
}

fn validate(o: &Object, errors: &mut ErrorList) {
    let all = o.clone().into_value();
    for (i, s) in items(&all, "subsets").iter().enumerate() {
        let at = FieldPath::new("subsets").index(i);
        if items(s, "addresses").is_empty() && items(s, "notReadyAddresses").is_empty() {
            errors.push(FieldError::required(&at, "must specify `addresses` or `notReadyAddresses`"));
        }
        for list in ["addresses", "notReadyAddresses"] {
            for (j, a) in items(s, list).iter().enumerate() {
                let at = at.child(list).index(j);
                let host = text(a, "hostname");
                if !host.is_empty() {
                    let bad = names::dns_label(host);
                    errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("hostname"), host, m)));
                }
                if let Some(node) = a["nodeName"].as_str() {
                    let bad = names::dns_subdomain(node);
                    errors.extend(bad.into_iter().map(|m| FieldError::invalid(&at.child("nodeName"), node, m)));
                }
                // Upstream validates the address twice: its form, then its range.
                let (ip, at) = (text(a, "ip"), at.child("ip"));
                if schema::rules::sloppy(ip).is_none() {
                    errors.push(FieldError::invalid(&at, ip, "must be a valid IP address"));
                }
                special_address(ip, &at, errors);
            }
        }
        let ports = items(s, "ports");
        for (j, p) in ports.iter().enumerate() {
            let at = at.child("ports").index(j).child("name");
            let name = text(p, "name");
            if name.is_empty() && ports.len() > 1 {
                errors.push(FieldError::required(&at, ""));
            } else if !name.is_empty() {
                errors.extend(names::dns_label(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
            }
        }
    }
}

/// The label of endpoints without warnings: those that the controller manages.
const MANAGED_BY: (&str, &str) = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");

fn warnings(o: &Object, _old: Option<&Object>) -> Vec<String> {
    if o.at(&["metadata", "labels", MANAGED_BY.0]).is_some_and(|by| by == MANAGED_BY.1) {
        return Vec::new();
    }
    let mut out = Vec::new();
    for (i, s) in o.get("subsets").and_then(Value::as_array).into_iter().flatten().enumerate() {
        for list in ["addresses", "notReadyAddresses"] {
            let at = FieldPath::new("subsets").index(i).child(list);
            let each = items(s, list).iter().enumerate();
            out.extend(each.filter_map(|(j, a)| ip_warning(text(a, "ip"), &at.index(j).child("ip"))));
        }
    }
    out
}

/// Rejects addresses that cannot be endpoints: unspecified, loopback and link-local ones.
pub fn special_address(ip: &str, at: &FieldPath, errors: &mut ErrorList) {
    let Some(address) = schema::rules::sloppy(ip).map(|(a, _)| a.to_canonical()) else { return };
    let mut report = |why: &str| errors.push(FieldError::invalid(at, ip, why));
    if address.is_unspecified() {
        report(&format!("may not be unspecified ({ip})"));
    }
    if address.is_loopback() {
        report("may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let (link, group) = match address {
        IpAddr::V4(a) => (a.is_link_local(), matches!(a.octets(), [224, 0, 0, _])),
        IpAddr::V6(a) => (a.segments()[0] & 0xffc0 == 0xfe80, a.segments()[0] & 0xff0f == 0xff02),
    };
    if link {
        report("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if group {
        report("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

/// Evaluates the table cell functions of the kind.
fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "endpoints" => endpoints(o).into(),
        _ => return None,
    })
}

fn endpoints(o: &Object) -> String {
    let mut all = Vec::new();
    for s in list_at(o, &["subsets"]) {
        let ports = s["ports"].as_array().cloned().unwrap_or_default();
        for a in s["addresses"].as_array().into_iter().flatten() {
            if ports.is_empty() {
                all.push(display(&a["ip"]));
            }
            all.extend(ports.iter().map(|p| format!("{}:{}", display(&a["ip"]), display(&p["port"]))));
        }
    }
    limited(&all, "<none>")
}
