//! Validation of the ResourceClaim status: allocation, consumers and device status.

use super::claim::Requests;
use super::parts::{binding_conditions, configuration, driver, every, messages, pool, raw, uid};
use crate::conditions;
use crate::pod_template::scheduling::node_selector_terms;
use crate::read::{delegated, items, repeats, shown, text};
use meta::field::{BadValue, ErrorList};
use meta::{FieldError, FieldPath, Object, Value, names};
use std::net::IpAddr;

const RESERVED_MAX: usize = 256;
const RESULTS_MAX: usize = 32;
/// Maximum configuration items, of class and claim together.
const CONFIG_MAX: usize = 64;
/// Maximum requests that a configuration item names.
const REQUESTS_MAX: usize = 32;
const CONDITIONS_MAX: usize = 8;
const ADDRESSES_MAX: usize = 16;
const INTERFACE_MAX: usize = 256;
const HARDWARE_MAX: usize = 128;

pub fn claim_status(o: &Object, old: &Object, errors: &mut ErrorList) {
    let status = o.get("status").unwrap_or(&Value::Null);
    let before = old.get("status").unwrap_or(&Value::Null);
    let path = FieldPath::new("status");
    let allocation = &status["allocation"];
    reserved(status, before, o.is_deleting(), &path, errors);
    let results = items(&allocation["devices"], "results");
    every(status, "devices", &path, |d, at| device(d, results, at, errors));
    let mut again = repeats(items(status, "devices").iter().map(identity)).into_iter();
    every(status, "devices", &path, |d, at| {
        if again.next() == Some(true) {
            errors.push(FieldError::duplicate(at, shown_identity(d)));
        }
    });
    if allocation.is_null() {
        return;
    }
    let at = path.child("allocation");
    if before["allocation"].is_null() {
        let requests = Requests::new(o.at(&["spec", "devices"]).unwrap_or(&Value::Null));
        allocated(allocation, &requests, &at, errors);
    } else if before["allocation"] != *allocation {
        let shown = shown(allocation, "io.k8s.api.resource.v1.AllocationResult", &at);
        errors.push(FieldError::invalid(&at, shown, "field is immutable"));
    }
}

/// Checks the number of items. Returns false for too many, which are not validated further.
fn check_count(v: &Value, key: &str, max: usize, at: &FieldPath, errors: &mut ErrorList) -> bool {
    let n = items(v, key).len();
    if n > max {
        errors.push(FieldError::too_many(&at.child(key), n, max));
    }
    n <= max
}

fn unique(v: &Value, key: &str, at: &FieldPath, of: impl Fn(&Value) -> Value, errors: &mut ErrorList) {
    let all: Vec<Value> = items(v, key).iter().map(of).collect();
    let again = repeats(&all);
    for (i, id) in all.iter().enumerate().filter(|(i, _)| again[*i]) {
        errors.push(FieldError::duplicate(&at.child(key).index(i), id));
    }
}

fn reserved(status: &Value, before: &Value, deleting: bool, path: &FieldPath, errors: &mut ErrorList) {
    if check_count(status, "reservedFor", RESERVED_MAX, path, errors) {
        every(status, "reservedFor", path, |r, at| {
            for field in ["resource", "name", "uid"] {
                if text(r, field).is_empty() {
                    errors.push(FieldError::required(&at.child(field), ""));
                }
            }
        });
        unique(status, "reservedFor", path, |r| text(r, "uid").into(), errors);
    }
    let (now, then) = (items(status, "reservedFor"), items(before, "reservedFor"));
    let at = path.child("reservedFor");
    if now.is_empty() {
    } else if status["allocation"].is_null() {
        errors.push(FieldError::forbidden(&at, "may not be specified when `allocated` is not set"));
    } else if deleting && now.iter().any(|r| !then.contains(r)) {
        let why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        errors.push(FieldError::forbidden(&at, why));
    }
}

/// Returns the identity of a device and its share.
fn identity(d: &Value) -> Value {
    let id = [text(d, "driver"), text(d, "pool"), text(d, "device")].join("/");
    match d["shareID"].as_str() {
        Some(share) => format!("{id}/{share}").into(),
        None => id.into(),
    }
}

/// Formats the identity of a device as Go prints it.
fn shown_identity(d: &Value) -> BadValue {
    let text = |key: &str| Value::from(text(d, key));
    let (driver, pool, device, share) = (text("driver"), text("pool"), text("device"), text("shareID"));
    BadValue::formatted(&format!(r#"{{"Driver":{driver},"Pool":{pool},"Device":{device},"ShareID":{share}}}"#))
}

/// Drops what drivers report of devices that a claim loses: who takes them back may not know of reports.
pub fn drop_deallocated(o: &mut Object, old: &Object) {
    let results = |o: &Object| -> Vec<Value> {
        let allocation = o.at(&["status", "allocation", "devices"]).unwrap_or(&Value::Null);
        items(allocation, "results").iter().map(identity).collect()
    };
    let kept = results(o);
    let lost: Vec<Value> = results(old).into_iter().filter(|id| !kept.contains(id)).collect();
    let Some(devices) = o.at(&["status", "devices"]).and_then(Value::as_array).filter(|_| !lost.is_empty()) else {
        return;
    };
    let left: Vec<Value> = devices.iter().filter(|d| !lost.contains(&identity(d))).cloned().collect();
    match left.is_empty() {
        true => _ = o.remove(&["status", "devices"]),
        false => o.set(&["status", "devices"], left),
    }
}

fn device(d: &Value, results: &[Value], at: &FieldPath, errors: &mut ErrorList) {
    device_id(d, at, errors);
    if !results.iter().any(|r| identity(r) == identity(d)) {
        errors.push(FieldError::invalid(at, shown_identity(d), "must be an allocated device in the claim"));
    }
    check_count(d, "conditions", CONDITIONS_MAX, at, errors);
    conditions::validate(items(d, "conditions"), &at.child("conditions"), errors);
    if !d["data"].is_null() {
        raw(&d["data"], &at.child("data"), errors);
    }
    let (network, at) = (&d["networkData"], at.child("networkData"));
    for (field, max) in [("interfaceName", INTERFACE_MAX), ("hardwareAddress", HARDWARE_MAX)] {
        if text(network, field).len() > max {
            errors.push(FieldError::too_long(&at.child(field), max));
        }
    }
    if check_count(network, "ips", ADDRESSES_MAX, &at, errors) {
        every(network, "ips", &at, |ip, at| {
            let text = ip.as_str().unwrap_or_default();
            if !is_interface_address(text) {
                let why = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
                errors.push(FieldError::invalid(at, text, why));
            }
        });
        unique(network, "ips", &at, Clone::clone, errors);
    }
}

fn is_interface_address(text: &str) -> bool {
    let Some((ip, bits)) = text.split_once('/') else { return false };
    let Ok(ip) = ip.parse::<IpAddr>() else { return false };
    bits.parse::<u8>().is_ok_and(|b| b <= if ip.is_ipv4() { 32 } else { 128 })
}

/// Validates driver, pool and device names.
fn device_id(d: &Value, at: &FieldPath, errors: &mut ErrorList) {
    driver(text(d, "driver"), &at.child("driver"), errors);
    pool(text(d, "pool"), &at.child("pool"), errors);
    let name = text(d, "device");
    messages(names::dns_label(name), &at.child("device"), name, errors);
    if let Some(share) = d["shareID"].as_str() {
        uid(share, &at.child("shareID"), errors);
    }
}

fn allocated(allocation: &Value, requests: &Requests<'_>, at: &FieldPath, errors: &mut ErrorList) {
    let (devices, within) = (&allocation["devices"], at.child("devices"));
    if check_count(devices, "results", RESULTS_MAX, &within, errors) {
        every(devices, "results", &within, |r, at| {
            requests.check(text(r, "request"), &at.child("request"), errors);
            device_id(r, at, errors);
            binding_conditions(r, at, errors);
        });
    }
    if check_count(devices, "config", CONFIG_MAX, &within, errors) {
        every(devices, "config", &within, |c, at| {
            let source = at.child("source");
            match text(c, "source") {
                "" => errors.push(FieldError::required(&source, "")),
                "FromClaim" | "FromClass" => {}
                other => errors.push(FieldError::not_supported(&source, other, &["FromClaim", "FromClass"])),
            }
            if check_count(c, "requests", REQUESTS_MAX, at, errors) {
                requests.check_all(c, at, errors);
                unique(c, "requests", at, Clone::clone, errors);
            }
            if c["opaque"].is_null() {
                errors.push(FieldError::required(&at.child("opaque"), ""));
            }
            configuration(c, at, errors);
        });
    }
    if allocation["nodeSelector"].is_object() {
        delegated(allocation, "io.k8s.api.resource.v1.AllocationResult", "nodeSelector", at, errors);
        node_selector_terms(&allocation["nodeSelector"], &at.child("nodeSelector"), errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::Ruled;
    use crate::testing::{Case, check_status};
    use serde_json::json;

    fn claim() -> Value {
        let result = json!({"request": "r", "driver": "d.example", "pool": "p", "device": "x"});
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "k"}}]}},
            "status": {"allocation": {"devices": {"results": [result]}}}})
    }

    fn check(old: &Value, cases: &[Case<'_>]) {
        let strategy = Ruled::new(|_, _| {}).with_status(claim_status);
        check_status(&strategy, old, cases);
    }

    #[test]
    fn validates_consumers() {
        let consumer = |n: usize| json!({"resource": "pods", "name": format!("p{n}"), "uid": format!("u{n}")});
        let consumers = |count: usize| (0..count).map(consumer).collect::<Value>();
        let list = "/status/reservedFor";
        let at = "status.reservedFor";
        check(
            &claim(),
            &[
                (list, consumers(256), &[]),
                (list, consumers(257), &[&format!("{at}: Too many: 257: must have at most 256 items")]),
                (list, json!([consumer(1), consumer(1)]), &[&format!("{at}[1]: Duplicate value: \"u1\"")]),
                (list, json!([{"resource": "pods", "name": "p"}]), &[&format!("{at}[0].uid: Required value")]),
            ],
        );
        let mut free = claim();
        free["status"] = json!({});
        check(
            &free,
            &[(list, consumers(1), &[&format!("{at}: Forbidden: may not be specified when `allocated` is not set")])],
        );
        let mut deleting = claim();
        deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        deleting["status"]["reservedFor"] = consumers(1);
        let why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        check(&deleting, &[("", Value::Null, &[]), (list, consumers(2), &[&format!("{at}: Forbidden: {why}")])]);
    }

    #[test]
    fn allocations_are_set_once() {
        check(
            &claim(),
            &[
                ("/status/allocation", Value::Null, &[]),
                (
                    "/status/allocation/devices/results/0/device",
                    json!("y"),
                    &["status.allocation: Invalid value: …: field is immutable"],
                ),
            ],
        );
        let mut free = claim();
        free["status"] = json!({});
        let allocation = |field: &str, value: Value| {
            let mut allocation = claim()["status"]["allocation"].clone();
            allocation["devices"]["results"][0][field] = value;
            allocation
        };
        let configured = |requests: Value| {
            let mut allocation = claim()["status"]["allocation"].clone();
            let opaque = json!({"driver": "d.example", "parameters": {}});
            allocation["devices"]["config"] = json!([{"source": "FromClaim", "requests": requests, "opaque": opaque}]);
            allocation
        };
        let selecting = |key: &str| {
            let mut allocation = claim()["status"]["allocation"].clone();
            let expression = json!({"key": key, "operator": "Exists"});
            allocation["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
            allocation
        };
        let at = "status.allocation.devices.results[0]";
        check(
            &free,
            &[
                ("/status/allocation", claim()["status"]["allocation"].clone(), &[]),
                (
                    "/status/allocation",
                    allocation("bindingConditions", json!(["a b"])),
                    &[
                        &format!("{at}.bindingConditions[0]: Invalid value: \"a b\": …"),
                        &format!("{at}.bindingFailureConditions: Invalid value: …"),
                    ],
                ),
                ("/status/allocation", allocation("tolerations", json!([{"operator": "Exists", "value": "x"}])), &[]),
                (
                    "/status/allocation",
                    configured(json!(["r", "r"])),
                    &["status.allocation.devices.config[0].requests[1]: Duplicate value: \"r\""],
                ),
                (
                    "/status/allocation",
                    selecting("+"),
                    &["status.allocation.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].key: Invalid value: …"],
                ),
                (
                    "/status/allocation",
                    allocation("request", json!("other")),
                    &[&format!("{at}.request: Invalid value: …")],
                ),
                ("/status/allocation", allocation("driver", json!("")), &[&format!("{at}.driver: Required value")]),
                (
                    "/status/allocation",
                    allocation("pool", json!("P")),
                    &[&format!("{at}.pool: Invalid value: \"P\": a lowercase RFC 1123 subdomain…")],
                ),
                (
                    "/status/allocation",
                    allocation("device", json!("X")),
                    &[&format!("{at}.device: Invalid value: \"X\": a lowercase RFC 1123 label…")],
                ),
            ],
        );
    }

    #[test]
    fn validates_devices() {
        let device = |more: Value| {
            let mut d = json!({"driver": "d.example", "pool": "p", "device": "x"});
            more.as_object().into_iter().flatten().for_each(|(k, v)| d[k] = v.clone());
            json!([d])
        };
        let at = "status.devices[0]";
        let address = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        check(
            &claim(),
            &[
                ("/status/devices", device(json!({"networkData": {"ips": ["10.0.0.1/24", "fd00::1/64"]}})), &[]),
                (
                    "/status/devices",
                    device(json!({"device": "y"})),
                    &[&format!(
                        "{at}: Invalid value: {{\"Driver\":\"d.example\",\"Pool\":\"p\",\"Device\":\"y\",\"ShareID\":\"\"}}: must be an allocated device in the claim"
                    )],
                ),
                (
                    "/status/devices",
                    device(json!({"data": [1]})),
                    &[&format!("{at}.data: Invalid value: \"<value omitted>\": must be a valid JSON object")],
                ),
                (
                    "/status/devices",
                    device(json!({"networkData": {"ips": ["10.0.0.1/33"]}})),
                    &[&format!("{at}.networkData.ips[0]: Invalid value: \"10.0.0.1/33\": {address}")],
                ),
                (
                    "/status/devices",
                    device(json!({"networkData": {"interfaceName": "i".repeat(257)}})),
                    &[&format!("{at}.networkData.interfaceName: Too long: may not be more than 256 bytes")],
                ),
                (
                    "/status/devices",
                    device(json!({"shareID": "x"})),
                    &[
                        &format!("{at}.shareID: Invalid value: \"x\": error validating uid: invalid UUID length: 1"),
                        &format!("{at}: Invalid value: …: must be an allocated device in the claim"),
                    ],
                ),
            ],
        );
    }
}
