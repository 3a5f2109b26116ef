//! Event, served in two groups and stored as `v1`.

use crate::Config;
use crate::read::shown;
use crate::table::Row;
use kinds::columns::{Cell, age, display};
use meta::field::{BadValue, ErrorList};
use meta::{FieldError, FieldPath, Gvk, Object, Status, Value, names};
use registry::{CreateStrategy, NameRule, ObjectConvertor, TableConvertor, UpdateStrategy};

pub fn row(_: &Config) -> Row {
    Row::stored(Event)
}

pub struct Event;

/// Field names in `v1` and in `events.k8s.io/v1`.
const FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

impl CreateStrategy for Event {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn validate_since(&self, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        if old.is_none() && o.api_version() != "v1" {
            new_event(o, errors);
        }
    }

    fn check_name(&self, o: &Object) -> Vec<String> {
        if o.api_version() == "v1" { self.name_rule().check(o.name()) } else { names::dns_subdomain(o.name()) }
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        namespace(o, errors);
        if is_timed(o) {
            required_fields(o, errors);
        }
    }
}

impl UpdateStrategy for Event {
    /// In `events.k8s.io`, only the series of an event may change.
    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        if o.api_version() == "v1" {
            return;
        }
        if o.get("series") != old.get("series") {
            series(o, errors);
        }
        let pairs = [
            ("involvedObject", "regarding"),
            ("reason", "reason"),
            ("reason", "reason"),
            ("message", "note"),
            ("source", "deprecatedSource"),
            ("firstTimestamp", "deprecatedFirstTimestamp"),
            ("lastTimestamp", "deprecatedLastTimestamp"),
            ("count", "deprecatedCount"),
            ("type", "type"),
            ("eventTime", "eventTime"),
            ("action", "action"),
            ("related", "related"),
            ("reportingComponent", "reportingController"),
            ("reportingInstance", "reportingInstance"),
        ];
        for (name, modern) in pairs {
            let get = |o: &Object| o.get(name).or_else(|| o.get(modern)).cloned().filter(|v| !v.is_null());
            if get(o) != get(old) {
                let field = if name == "reportingComponent" { "reportingController" } else { name };
                let path = FieldPath::new(field);
                let value = get(o);
                let shown = match name {
                    "involvedObject" => {
                        let about = value.unwrap_or_else(|| Value::Object(Default::default()));
                        shown(&about, "io.k8s.api.core.v1.ObjectReference", &path)
                    }
                    "related" => shown(&value.unwrap_or_default(), "io.k8s.api.core.v1.ObjectReference", &path),
                    "source" | "series" | "firstTimestamp" | "lastTimestamp" | "eventTime" => {
                        BadValue::formatted(&value.unwrap_or_default().to_string())
                    }
                    _ => BadValue::formatted(&value.unwrap_or_else(|| "".into()).to_string()),
                };
                errors.push(FieldError::invalid(&path, shown, "field is immutable"));
            }
        }
    }
}

impl TableConvertor for Event {
    fn cell(&self, cell: &Cell<'_>) -> Option<Value> {
        cells(cell)
    }
}

impl ObjectConvertor for Event {
    fn convert(&self, mut o: Object, to: &Gvk) -> Result<Object, Status> {
        let modern = to.group == "events.k8s.io";
        for (old, new) in FIELDS {
            let (from, into) = if modern { (old, new) } else { (new, old) };
            if let Some(v) = o.remove(&[from]) {
                o.set(&[into], v);
            }
        }
        let schema = kinds::catalog().schema_of(to).ok_or_else(|| Status::internal(format!("{to} has no schema")))?;
        o.set_gvk(to);
        let mut v = o.into_value();
        schema::typed(&mut v, schema).map_err(Status::internal)?;
        Object::from_value(v).ok_or_else(|| Status::internal("conversion lost the object"))
    }

    /// Events of `events.k8s.io` have no `source`.
    fn stored_instead(&self, field: &str) -> Option<&'static str> {
        (field == "source").then_some("reportingComponent")
    }
}

registry::strategy!(Event: CreateStrategy, UpdateStrategy, TableConvertor, ObjectConvertor);

/// Whether an event has an `eventTime`: such events follow the rules of `events.k8s.io`, in either group.
fn is_timed(o: &Object) -> bool {
    o.str_at(&["eventTime"]).is_some_and(|t| !t.is_empty())
}

/// Checks that an event without `eventTime` is in the namespace of its object, or in `default` for a cluster-scoped
/// one; with `eventTime`, only events of cluster-scoped objects are checked.
fn namespace(o: &Object, errors: &mut ErrorList) {
    let about = ["involvedObject", "regarding"].iter().find_map(|k| o.str_at(&[k, "namespace"])).unwrap_or_default();
    let ok = match (about.is_empty(), is_timed(o)) {
        (true, true) => matches!(o.namespace(), "default" | "kube-system"),
        (true, false) => o.namespace() == "default",
        (false, true) => true,
        (false, false) => about == o.namespace(),
    };
    if !ok {
        let why = "does not match event.namespace";
        errors.push(FieldError::invalid(&FieldPath::new("involvedObject.namespace"), Value::from(about), why));
    }
}

const REASON_MAX: usize = 128;
const NOTE_MAX: usize = 1024;

/// Validates a new event of `events.k8s.io`: required fields, and deprecated ones that must be unset.
fn new_event(o: &Object, errors: &mut ErrorList) {
    series(o, errors);
    if !is_timed(o) {
        errors.push(FieldError::required(&FieldPath::new("eventTime"), ""));
    }
    let kind = o.str_at(&["type"]).unwrap_or_default();
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(FieldError::invalid(&FieldPath::new("type"), "", format!("has invalid value: {kind}")));
    }
    let set = |v: &Value| match v {
        Value::Null => false,
        Value::Number(n) => n.as_i64() != Some(0),
        Value::Object(m) => m.values().any(|v| v.as_str().is_some_and(|s| !s.is_empty())),
        _ => true,
    };
    for name in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        let modern = FIELDS.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| new);
        if o.get(modern).is_some_and(set) {
            errors.push(FieldError::invalid(&FieldPath::new(name), "", "needs to be unset"));
        }
    }
}

/// Checks that a series has at least two occurrences.
fn series(o: &Object, errors: &mut ErrorList) {
    let Some(s) = o.get("series").filter(|s| s.is_object()) else { return };
    if s["count"].as_i64().unwrap_or(0) < 2 {
        errors.push(FieldError::invalid(&FieldPath::new("series.count"), "", "should be at least 2"));
    }
    if s["lastObservedTime"].as_str().unwrap_or_default().is_empty() {
        errors.push(FieldError::required(&FieldPath::new("series.lastObservedTime"), ""));
    }
}

/// Validates the fields required of an event with an `eventTime`.
fn required_fields(o: &Object, errors: &mut ErrorList) {
    let text = |k: &str| {
        let old = FIELDS.iter().find(|(_, new)| *new == k).map_or(k, |(old, _)| old);
        o.str_at(&[k]).or_else(|| o.str_at(&[old])).unwrap_or_default()
    };
    let controller = text("reportingController");
    let at = FieldPath::new(if o.api_version() == "v1" { "reportingComponent" } else { "reportingController" });
    if controller.is_empty() {
        errors.push(FieldError::required(&at, ""));
    }
    errors.extend(names::qualified_name(controller).into_iter().map(|m| FieldError::invalid(&at, controller, m)));
    for key in ["reportingInstance", "action", "reason"] {
        let at = FieldPath::new(key);
        if text(key).is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if text(key).len() > REASON_MAX {
            errors.push(FieldError::invalid(&at, "", format!("can have at most {REASON_MAX} characters")));
        }
    }
    if text("note").len() > NOTE_MAX {
        let why = format!("can have at most {NOTE_MAX} characters");
        errors.push(FieldError::invalid(&FieldPath::new("message"), "", why));
    }
}

/// Evaluates the table cell functions of the kind.
pub fn cells(cell: &Cell<'_>) -> Option<Value> {
    let o = cell.object;
    Some(match cell.function {
        "eventLastSeen" => {
            let t = ["series.lastObservedTime", "lastTimestamp", "deprecatedLastTimestamp", "eventTime"];
            first_time(o, &t, cell.now).into()
        }
        "eventFirstSeen" => {
            first_time(o, &["firstTimestamp", "deprecatedFirstTimestamp", "eventTime"], cell.now).into()
        }
        "eventObject" => {
            let r = o.get("involvedObject").or_else(|| o.get("regarding")).cloned().unwrap_or_default();
            let (kind, name) = (display(&r["kind"]).to_lowercase(), display(&r["name"]));
            if name.is_empty() { kind.into() } else { format!("{kind}/{name}").into() }
        }
        "eventSubobject" => {
            let r = o.get("involvedObject").or_else(|| o.get("regarding")).cloned().unwrap_or_default();
            display(&r["fieldPath"]).into()
        }
        "eventSource" => {
            let s = o.get("source").or_else(|| o.get("deprecatedSource")).cloned().unwrap_or_default();
            let mut component = display(&s["component"]);
            if component.is_empty() {
                component = display(
                    o.get("reportingComponent").or_else(|| o.get("reportingController")).unwrap_or(&Value::Null),
                );
            }
            let mut host = display(&s["host"]);
            if host.is_empty() {
                host = display(o.get("reportingInstance").unwrap_or(&Value::Null));
            }
            if host.is_empty() { component.into() } else { format!("{component}, {host}").into() }
        }
        "eventMessage" => {
            display(o.get("message").or_else(|| o.get("note")).unwrap_or(&Value::Null)).trim().to_owned().into()
        }
        "eventCount" => {
            let series = o.int_at(&["series", "count"]);
            series
                .or_else(|| o.int_at(&["count"]))
                .or_else(|| o.int_at(&["deprecatedCount"]))
                .filter(|c| *c > 0)
                .unwrap_or(1)
                .into()
        }
        _ => return None,
    })
}

fn first_time(o: &Object, paths: &[&str], now: &str) -> String {
    let found = paths.iter().find_map(|p| {
        let steps: Vec<&str> = p.split('.').collect();
        o.str_at(&steps).filter(|t| !t.is_empty())
    });
    found.map_or("<unknown>".into(), |t| age(t, now))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;
    use crate::testing::{check_create, check_update};
    use serde_json::json;

    #[test]
    fn requires_subdomain_names_in_the_events_group() {
        for (version, name, valid) in [
            ("v1", "A.b", true),
            ("v1", "a/b", false),
            ("events.k8s.io/v1", "a.b", true),
            ("events.k8s.io/v1", "A.b", false),
        ] {
            let event = json!({"apiVersion": version, "kind": "Event", "metadata": {"name": name}});
            let errors = Event.check_name(&Object::from_value(event).unwrap());
            assert_eq!(errors.is_empty(), valid, "{version} {name}: {errors:?}");
        }
    }

    const V1: &str = "v1";
    const EVENTS: &str = "events.k8s.io/v1";

    /// Returns an event about a pod, as recorders write it in a group.
    fn event(version: &str) -> Value {
        let (object, note, controller) = if version == V1 {
            ("involvedObject", "message", "reportingComponent")
        } else {
            ("regarding", "note", "reportingController")
        };
        let mut event = json!({"apiVersion": version, "kind": "Event", "metadata": {"name": "e", "namespace": "n"},
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingInstance": "i", "action": "a", "reason": "r", "type": "Normal"});
        event[object] = json!({"kind": "Pod", "namespace": "n", "name": "p"});
        event[note] = "m".into();
        event[controller] = "example.com/c".into();
        event
    }

    #[test]
    fn validates_new_events() {
        let long = "x".repeat(129);
        let at_most =
            |field: &str, max: usize| format!("{field}: Invalid value: \"\": can have at most {max} characters");
        for (version, note, controller, object) in [
            (V1, "/message", "reportingComponent", "/involvedObject"),
            (EVENTS, "/note", "reportingController", "/regarding"),
        ] {
            let qualified = format!("{controller}: Invalid value: …");
            check_create(
                &Event,
                &event(version),
                &[
                    ("", Value::Null, &[]),
                    (
                        &format!("/{controller}"),
                        json!(""),
                        &[&format!("{controller}: Required value"), &qualified, &qualified],
                    ),
                    (&format!("/{controller}"), json!("a b"), &[&qualified]),
                    ("/reportingInstance", json!(""), &["reportingInstance: Required value"]),
                    ("/reportingInstance", json!(long), &[&at_most("reportingInstance", 128)]),
                    ("/reportingInstance", json!(long[1..]), &[]),
                    ("/action", json!(""), &["action: Required value"]),
                    ("/action", json!(long), &[&at_most("action", 128)]),
                    ("/reason", json!(""), &["reason: Required value"]),
                    ("/reason", json!(long), &[&at_most("reason", 128)]),
                    (note, json!("x".repeat(1024)), &[]),
                    (note, json!("x".repeat(1025)), &[&at_most("message", 1024)]),
                    // The namespace of the object is not checked.
                    (&format!("{object}/namespace"), json!("m"), &[]),
                ],
            );
        }
    }

    /// Only `events.k8s.io` requires the fields of new events.
    #[test]
    fn events_of_the_new_group_are_strict() {
        let series = |count: i64| json!({"count": count, "lastObservedTime": "2026-01-01T00:00:00.000000Z"});
        let unset = |field: &str| format!("{field}: Invalid value: \"\": needs to be unset");
        let time = "2026-01-01T00:00:00Z";
        check_create(
            &Event,
            &event(EVENTS),
            &[
                ("/eventTime", Value::Null, &["eventTime: Required value"]),
                ("/type", json!("Warning"), &[]),
                ("/type", json!("Odd"), &["type: Invalid value: \"\": has invalid value: Odd"]),
                ("/series", series(2), &[]),
                ("/series", series(1), &["series.count: Invalid value: \"\": should be at least 2"]),
                (
                    "/series",
                    json!({"count": 2, "lastObservedTime": null}),
                    &["series.lastObservedTime: Required value"],
                ),
                ("/deprecatedFirstTimestamp", json!(time), &[&unset("firstTimestamp")]),
                ("/deprecatedLastTimestamp", json!(time), &[&unset("lastTimestamp")]),
                ("/deprecatedCount", json!(1), &[&unset("count")]),
                ("/deprecatedSource", json!({"host": "h"}), &[&unset("source")]),
                ("/deprecatedSource", json!({}), &[]),
            ],
        );
        check_create(
            &Event,
            &event(V1),
            &[
                ("/eventTime", Value::Null, &[]),
                ("/type", json!("Odd"), &[]),
                ("/series", series(1), &[]),
                ("/firstTimestamp", json!(time), &[]),
                ("/count", json!(1), &[]),
                ("/source", json!({"host": "h"}), &[]),
            ],
        );
    }

    /// The namespaces of an event and of its object, whether it has an `eventTime`, and whether they are accepted.
    #[test]
    fn namespaces_of_events_and_objects_match() {
        for (namespace, of_object, timed, valid) in [
            ("n", "n", false, true),
            ("n", "m", false, false),
            ("default", "", false, true),
            ("kube-system", "", false, false),
            ("n", "", false, false),
            ("default", "", true, true),
            ("kube-system", "", true, true),
            ("n", "", true, false),
            ("n", "m", true, true),
        ] {
            let mut event = event(V1);
            event["metadata"]["namespace"] = namespace.into();
            event["involvedObject"]["namespace"] = of_object.into();
            if !timed {
                event["eventTime"] = Value::Null;
            }
            let error =
                format!("involvedObject.namespace: Invalid value: {of_object:?}: does not match event.namespace");
            let errors: &[&str] = if valid { &[] } else { &[&error] };
            check_create(&Event, &event, &[("", Value::Null, errors)]);
        }
    }

    #[test]
    fn updates_change_the_series_alone() {
        let immutable = |field: &str, value: &str| format!("{field}: Invalid value: {value}: field is immutable");
        let series = json!({"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"});
        let reason = immutable("reason", "\"s\"");
        check_update(
            &Event,
            &event(EVENTS),
            &[
                ("", Value::Null, &[]),
                ("/metadata/labels", json!({"a": "b"}), &[]),
                ("/series", series.clone(), &[]),
                (
                    "/series",
                    json!({"count": 1, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}),
                    &["series.count: Invalid value: \"\": should be at least 2"],
                ),
                ("/regarding/name", json!("q"), &[&immutable("involvedObject", "…")]),
                ("/related", json!({"kind": "Pod"}), &[&immutable("related", "…")]),
                // Upstream checks the reason twice.
                ("/reason", json!("s"), &[&reason, &reason]),
                ("/note", json!("o"), &[&immutable("message", "\"o\"")]),
                ("/type", json!("Warning"), &[&immutable("type", "\"Warning\"")]),
                ("/action", json!("b"), &[&immutable("action", "\"b\"")]),
                (
                    "/reportingController",
                    json!("example.com/d"),
                    &[&immutable("reportingController", "\"example.com/d\"")],
                ),
                ("/reportingInstance", json!("j"), &[&immutable("reportingInstance", "\"j\"")]),
                ("/deprecatedCount", json!(3), &[&immutable("count", "3")]),
                ("/deprecatedSource", json!({"host": "h"}), &[&immutable("source", "…")]),
                ("/eventTime", json!("2026-01-01T00:00:01.000000Z"), &[&immutable("eventTime", "…")]),
            ],
        );
        check_update(&Event, &event(V1), &[("/reason", json!("s"), &[]), ("/involvedObject/name", json!("q"), &[])]);
    }
}
