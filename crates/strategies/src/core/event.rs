//! Event, served in two groups and stored as `v1`.

use meta::{Gvk, Object, Status, Value};
use registry::Strategy;

pub struct Event;

/// Names of fields: in `v1` and in `events.k8s.io/v1`.
const FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// Where a selectable field of `v1` lies in the stored object.
pub fn stored_path<'a>(plural: &str, field: &'a str) -> &'a str {
    if plural == "events" && field == "source" { "source.component" } else { field }
}

impl Strategy for Event {
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

    fn stored_field<'a>(&self, field: &'a str) -> &'a str {
        match field {
            "regarding.kind" => "involvedObject.kind",
            "regarding.namespace" => "involvedObject.namespace",
            "regarding.name" => "involvedObject.name",
            "regarding.uid" => "involvedObject.uid",
            "regarding.apiVersion" => "involvedObject.apiVersion",
            "regarding.resourceVersion" => "involvedObject.resourceVersion",
            "regarding.fieldPath" => "involvedObject.fieldPath",
            "reportingController" => "reportingComponent",
            f => stored_path("events", f),
        }
    }

    /// An event of the newer kind says once what happened; only its series goes on.
    fn validate_update(&self, o: &Object, old: &Object, errors: &mut meta::field::ErrorList) {
        if old.str_at(&["eventTime"]).unwrap_or_default().is_empty() {
            return;
        }
        let pairs = [
            ("involvedObject", "regarding"),
            ("reason", "reason"),
            ("message", "note"),
            ("type", "type"),
            ("action", "action"),
            ("reportingComponent", "reportingController"),
            ("reportingInstance", "reportingInstance"),
        ];
        for (name, modern) in pairs {
            let get = |o: &Object| o.get(name).or_else(|| o.get(modern)).cloned();
            if get(o) != get(old) {
                let said = if name == "reportingComponent" { "reportingController" } else { name };
                let path = meta::FieldPath::new(said);
                errors.push(meta::FieldError::invalid(&path, get(o).unwrap_or_default(), "field is immutable"));
            }
        }
    }

    fn validate(&self, o: &Object, errors: &mut meta::field::ErrorList) {
        let about =
            ["involvedObject", "regarding"].iter().find_map(|k| o.str_at(&[k, "namespace"])).unwrap_or_default();
        // An event about something without a namespace lies in `default`.
        let ok =
            if about.is_empty() { matches!(o.namespace(), "default" | "kube-system") } else { about == o.namespace() };
        if !ok {
            let path = meta::FieldPath::new("involvedObject.namespace");
            let why = "does not match event.namespace";
            errors.push(meta::FieldError::invalid(&path, Value::from(about), why));
        }
    }
}
