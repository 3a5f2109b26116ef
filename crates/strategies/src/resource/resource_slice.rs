//! ResourceSlice: the devices of a driver.

use super::capacity::capacity;
use super::parts::{binding_conditions, driver, every, pool, qualified};
use crate::Config;
use crate::plain::Ruled;
use crate::pod_template::scheduling::node_selector_terms;
use crate::read::{delegated, is_sent, items, shown, shown_list, text};
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names, time};
use registry::Env;
use std::collections::HashMap;

pub fn row(_: &Config) -> Row {
    Row::stored(
        Ruled::new(|_, _| {})
            .with_since(validate_since)
            .with_update(validate_update)
            .with_prepare(date_taints)
            .with_warnings(warnings)
            .unselectable("field label not supported for resource.k8s.io/v1, Kind=ResourceSlice"),
    )
}

const TERM: &str = "io.k8s.api.core.v1.NodeSelectorTerm";
/// Taints without a time are added now (`SetDefaults_DeviceTaint`).
fn date_taints(env: Env<'_>, o: &mut Object, _: Option<&Object>) {
    let now = time::format(env.clock().now());
    let Some(Value::Array(mut devices)) = o.at(&["spec", "devices"]).cloned() else { return };
    let mut dated = false;
    for t in devices.iter_mut().filter_map(|d| d.get_mut("taints")?.as_array_mut()).flatten() {
        if let Some(m) = t.as_object_mut().filter(|m| m.get("timeAdded").is_none_or(Value::is_null)) {
            m.insert("timeAdded".into(), now.as_str().into());
            dated = true;
        }
    }
    if dated {
        o.set(&["spec", "devices"], devices);
    }
}

/// Returns the warning for a driver in upper case.
fn warnings(o: &Object, _: Option<&Object>) -> Vec<String> {
    let driver = o.str_at(&["spec", "driver"]).unwrap_or_default();
    let why = || format!("spec.driver: driver names should be lowercase; {driver:?} contains uppercase characters");
    (driver != driver.to_lowercase()).then(why).into_iter().collect()
}

const ALWAYS: &str = "must be either unset or set to true";
const DEVICES_MAX: usize = 128;
/// Maximum number of devices if some have taints, counters or lists among their attributes.
const ELABORATE_DEVICES_MAX: usize = 64;
const DESCRIBED_BY_MAX: usize = 32;
/// Maximum number of attribute values, including those of lists.
const VALUES_MAX: usize = 48;
const LISTS: [&str; 4] = ["bools", "ints", "strings", "versions"];
const TAINTS_MAX: usize = 16;
const COUNTERS_MAX: usize = 32;
const ATTRIBUTE_MAX: usize = 64;

/// Validates a slice. Unchanged taints remain valid.
fn validate_since(o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
    let spec = o.get("spec").unwrap_or(&Value::Null);
    let path = FieldPath::new("spec");
    driver(text(spec, "driver"), &path.child("driver"), errors);
    let at = path.child("pool");
    pool(text(&spec["pool"], "name"), &at.child("name"), errors);
    let counts = [
        ("resourceSliceCount", 1, "must be greater than zero"),
        ("generation", 0, "must be greater than or equal to zero"),
    ];
    for (field, least, why) in counts {
        let n = spec["pool"][field].as_i64().unwrap_or_default();
        if n < least {
            errors.push(FieldError::invalid(&at.child(field), n, why));
        }
    }
    let empty = "must be either unset or set to a non-empty string";
    let set = node_selections(
        spec,
        &path,
        &["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"],
        empty,
        errors,
    );
    if spec["nodeSelector"].is_object() && items(&spec["nodeSelector"], "nodeSelectorTerms").len() != 1 {
        let at = path.child("nodeSelector").child("nodeSelectorTerms");
        let terms = shown_list(items(&spec["nodeSelector"], "nodeSelectorTerms"), TERM, &at);
        errors.push(FieldError::invalid(&at, terms, "must have exactly one node selector term"));
    }
    let one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match set.len() {
        0 => errors.push(FieldError::required(&path, one)),
        1 => {}
        _ => errors.push(FieldError::invalid(
            &path,
            format!("{{{}}}", set.join(", ")),
            format!("{one}, but multiple fields are set"),
        )),
    }
    if is_sent(spec, "sharedCounters", &path) && is_sent(spec, "devices", &path) {
        errors.push(FieldError::invalid(&path, "", "only one of `sharedCounters` or `devices` is allowed"));
    }
    let devices = items(spec, "devices");
    let listed = |d: &Value| {
        let mut all = d["attributes"].as_object().into_iter().flatten();
        all.any(|(_, a)| LISTS.iter().any(|k| a[*k].is_array()))
    };
    let elaborate = |d: &Value| !items(d, "taints").is_empty() || !items(d, "consumesCounters").is_empty() || listed(d);
    let max = if devices.iter().any(elaborate) { ELABORATE_DEVICES_MAX } else { DEVICES_MAX };
    if devices.len() > max {
        errors.push(FieldError::too_many(&path.child("devices"), devices.len(), max));
    } else {
        let apart = spec["perDeviceNodeSelection"] == true;
        let before = old.and_then(|o| o.at(&["spec", "devices"])).and_then(Value::as_array);
        let before: HashMap<&Value, &Value> = before.into_iter().flatten().rev().map(|d| (&d["name"], d)).collect();
        every(spec, "devices", &path, |d, at| device(d, before.get(&d["name"]).copied(), apart, at, errors));
    }
    every(spec, "sharedCounters", &path, |s, at| counters(s, at, errors));
}

fn validate_update(o: &Object, old: &Object, errors: &mut ErrorList) {
    for path in [&["spec", "pool", "name"][..], &["spec", "driver"], &["spec", "nodeName"]] {
        if o.at(path) != old.at(path) {
            let value = o.at(path).cloned().unwrap_or_default();
            errors.push(FieldError::invalid(&FieldPath::new(path.join(".")), value, "field is immutable"));
        }
    }
}

/// Validates the fields `ways` for the nodes of a device, and returns those that are set.
fn node_selections(v: &Value, at: &FieldPath, ways: &[&str], empty: &str, errors: &mut ErrorList) -> Vec<String> {
    let mut set = Vec::new();
    for way in ways {
        let at = at.child(way);
        match &v[*way] {
            Value::Null => continue,
            Value::Bool(false) => {
                errors.push(FieldError::invalid(&at, false, ALWAYS));
                continue;
            }
            Value::String(s) if s.is_empty() => {
                errors.push(FieldError::invalid(&at, "", empty));
                continue;
            }
            Value::String(s) => {
                errors.extend(names::dns_subdomain(s).into_iter().map(|m| FieldError::invalid(&at, s.as_str(), m)));
            }
            Value::Object(_) => node_selector_terms(&v[*way], &at, errors),
            _ => {}
        }
        set.push(format!("`{way}`"));
    }
    set
}

fn device(d: &Value, old: Option<&Value>, apart: bool, at: &FieldPath, errors: &mut ErrorList) {
    let is_new = |part: &str| old.is_none_or(|old| old[part] != d[part]);
    if is_new("taints") {
        delegated(d, "io.k8s.api.resource.v1.Device", "taints", at, errors);
    }
    let (attributes, capacities) = (d["attributes"].as_object(), d["capacity"].as_object());
    let described_by = attributes.map_or(0, |m| m.len()) + capacities.map_or(0, |m| m.len());
    if described_by > DESCRIBED_BY_MAX {
        let why = format!("the total number of attributes and capacities must not exceed {DESCRIBED_BY_MAX}");
        errors.push(FieldError::invalid(at, described_by, why));
    }
    let values = |a: &Value| LISTS.iter().map(|k| items(a, k).len()).sum::<usize>().max(1);
    let total: usize = attributes.into_iter().flatten().map(|(_, a)| values(a)).sum();
    if total > VALUES_MAX {
        let why = format!("the total number of attribute values must not exceed {VALUES_MAX}");
        errors.push(FieldError::invalid(at, total, why));
    }
    let within = at.child("attributes");
    for (k, a) in attributes.into_iter().flatten() {
        qualified(k, &within, errors);
        attribute(a, &within.key(k), errors);
    }
    let within = at.child("capacity");
    for (k, c) in capacities.into_iter().flatten() {
        qualified(k, &within, errors);
        capacity(c, d["allowMultipleAllocations"] == true, &within.key(k), errors);
    }
    let taints = items(d, "taints").len();
    if taints > TAINTS_MAX && is_new("taints") {
        errors.push(FieldError::too_many(&at.child("taints"), taints, TAINTS_MAX));
    }
    every(d, "consumesCounters", at, |c, at| counters(c, at, errors));
    let ways = ["nodeName", "nodeSelector", "allNodes"];
    if apart {
        let set = node_selections(d, at, &ways, "must not be empty", errors);
        let why = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
        match set.len() {
            0 => errors.push(FieldError::required(at, why)),
            1 => {}
            _ => errors.push(FieldError::invalid(at, format!("{{{}}}", set.join(", ")), why)),
        }
    } else if ways.iter().any(|w| !d[*w].is_null()) {
        let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
        errors.push(FieldError::invalid(at, Value::Null, why));
    }
    binding_conditions(d, at, errors);
}

fn counters(of: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let at = at.child("counters");
    let all = of["counters"].as_object();
    let n = all.map_or(0, |m| m.len());
    if n > COUNTERS_MAX {
        errors.push(FieldError::too_many(&at, n, COUNTERS_MAX));
        return;
    }
    for (k, _) in all.into_iter().flatten() {
        errors.extend(names::dns_label(k).into_iter().map(|m| FieldError::invalid(&at, k.as_str(), m)));
    }
}

fn attribute(a: &Value, at: &FieldPath, errors: &mut ErrorList) {
    for key in ["string", "version"] {
        if let Some(s) = a[key].as_str() {
            value(s, key, &at.child(key), errors);
        }
    }
    for (key, of) in [("bools", ""), ("ints", ""), ("strings", "string"), ("versions", "version")] {
        every(a, key, at, |v, at| value(v.as_str().unwrap_or_default(), of, at, errors));
    }
    let one = "exactly one value must be specified";
    match a.as_object().map_or(0, |m| m.values().filter(|v| !v.is_null()).count()) {
        0 => errors.push(FieldError::invalid(at, "", one)),
        1 => {}
        _ => errors.push(FieldError::invalid(at, shown(a, "io.k8s.api.resource.v1.DeviceAttribute", at), one)),
    }
}

fn value(s: &str, of: &str, at: &FieldPath, errors: &mut ErrorList) {
    if of == "version" && !is_semantic_version(s) {
        errors.push(FieldError::invalid(at, s, "must be a string compatible with semver.org spec 2.0.0"));
    }
    if s.len() > ATTRIBUTE_MAX {
        errors.push(FieldError::too_long(at, ATTRIBUTE_MAX));
    }
}

/// Whether a text is a semantic version (semver.org), such as `1.2.3-alpha.4+build`.
fn is_semantic_version(s: &str) -> bool {
    let (s, build) = s.split_once('+').map_or((s, None), |(s, b)| (s, Some(b)));
    let (core, pre) = s.split_once('-').map_or((s, None), |(s, p)| (s, Some(p)));
    let identifier = |w: &str| !w.is_empty() && w.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let digits = |w: &str| !w.is_empty() && w.bytes().all(|b| b.is_ascii_digit());
    let number = |w: &str| digits(w) && (w == "0" || !w.starts_with('0'));
    core.split('.').count() == 3
        && core.split('.').all(number)
        && pre.is_none_or(|p| p.split('.').all(|w| identifier(w) && (!digits(w) || number(w))))
        && build.is_none_or(|b| b.split('.').all(identifier))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parses_semantic_versions() {
        for good in ["1.2.3", "0.0.0", "1.0.0-alpha.1", "1.0.0+01.b", "1.0.0-a-b+c", "1.0.0--"] {
            assert!(is_semantic_version(good), "{good}");
        }
        for bad in ["", "1", "1.2", "01.2.3", "1.2.3.4", "v1.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "1.2.3-a..b"] {
            assert!(!is_semantic_version(bad), "{bad}");
        }
    }

    #[test]
    fn skips_unchanged_devices() {
        let slice_of = |devices: Value| {
            let spec = json!({"driver": "a.example", "allNodes": true, "devices": devices,
                "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}});
            Object::from_value(json!({"spec": spec})).unwrap()
        };
        let taints: Vec<Value> = (0..=TAINTS_MAX).map(|i| json!({"key": format!("k{i}"), "effect": "None"})).collect();
        let old = slice_of(json!([{"name": "a", "capacity": {"-": {"value": "1"}}}, {"name": "b"}]));
        let new = slice_of(json!([{"name": "b", "taints": taints}, {"name": "a", "capacity": {"-": {"value": "1"}}}]));
        for (old, expected) in [
            (Some(&new), vec!["spec.devices[1].capacity"]),
            (Some(&old), vec!["spec.devices[0].taints", "spec.devices[1].capacity"]),
            (None, vec!["spec.devices[0].taints", "spec.devices[1].capacity"]),
        ] {
            let mut errors = ErrorList::new();
            validate_since(&new, old, &mut errors);
            let mut paths: Vec<&str> = errors.iter().map(|e| e.path.as_str()).collect();
            paths.dedup();
            assert_eq!(paths, expected);
        }
    }
}
