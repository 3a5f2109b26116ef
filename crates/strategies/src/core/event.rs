//! Event, served in two groups and stored as `v1`.

use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Gvk, Object, Status, Value, names};
use registry::{NameRule, Strategy};

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

    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    /// An event of the newer kind says once what happened; only its series goes on.
    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        errors.retain(|e| !matches!(e.path.as_str(), "eventTime" | "type"));
        if old.str_at(&["eventTime"]).unwrap_or_default().is_empty() {
            return;
        }
        let pairs = [
            ("involvedObject", "regarding"),
            ("reason", "reason"),
            ("reason", "reason"),
            ("message", "note"),
            ("type", "type"),
            ("action", "action"),
            ("eventTime", "eventTime"),
            ("reportingComponent", "reportingController"),
            ("reportingInstance", "reportingInstance"),
        ];
        for (name, modern) in pairs {
            let get = |o: &Object| o.get(name).or_else(|| o.get(modern)).cloned().filter(|v| !v.is_null());
            if get(o) != get(old) {
                let said = if name == "reportingComponent" { "reportingController" } else { name };
                let path = FieldPath::new(said);
                errors.push(FieldError::invalid(&path, get(o).unwrap_or_default(), "field is immutable"));
            }
        }
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        place(o, errors);
        if o.api_version() != "v1" {
            complete(o, errors);
            let bad = names::dns_subdomain(o.name()).into_iter().filter(|_| !o.name().is_empty());
            let at = FieldPath::new("metadata.name");
            let fresh: Vec<FieldError> = bad.map(|m| FieldError::invalid(&at, o.name(), m)).collect();
            if !errors.iter().any(|e| e.path == "metadata.name") {
                errors.extend(fresh);
            }
        }
    }
}

/// An event lies with what it is about; about something without a namespace, in `default`. With a time of its own it is of the
/// newer kind, of which less is asked.
fn place(o: &Object, errors: &mut ErrorList) {
    let about = ["involvedObject", "regarding"].iter().find_map(|k| o.str_at(&[k, "namespace"])).unwrap_or_default();
    let timed = o.str_at(&["eventTime"]).is_some_and(|t| !t.is_empty());
    let ok = match (about.is_empty(), timed) {
        (true, _) => matches!(o.namespace(), "default" | "kube-system"),
        (false, true) => true,
        (false, false) => about == o.namespace(),
    };
    if !ok {
        let why = "does not match event.namespace";
        errors.push(FieldError::invalid(&FieldPath::new("involvedObject.namespace"), Value::from(about), why));
    }
}

const WORD_MAX: usize = 128;
const NOTE_MAX: usize = 1024;

/// What the newer kind wants to be said.
fn complete(o: &Object, errors: &mut ErrorList) {
    let text = |k: &str| o.str_at(&[k]).unwrap_or_default();
    if text("eventTime").is_empty() {
        errors.push(FieldError::required(&FieldPath::new("eventTime"), ""));
    }
    let controller = text("reportingController");
    let at = FieldPath::new("reportingController");
    if controller.is_empty() {
        errors.push(FieldError::required(&at, ""));
    }
    errors.extend(names::qualified_name(controller).into_iter().map(|m| FieldError::invalid(&at, controller, m)));
    for key in ["reportingInstance", "action", "reason"] {
        let at = FieldPath::new(key);
        if text(key).is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if text(key).len() > WORD_MAX {
            errors.push(FieldError::invalid(&at, "", format!("can have at most {WORD_MAX} characters")));
        }
    }
    if text("note").len() > NOTE_MAX {
        let why = format!("can have at most {NOTE_MAX} characters");
        errors.push(FieldError::invalid(&FieldPath::new("message"), "", why));
    }
    if !matches!(text("type"), "Normal" | "Warning") {
        let why = format!("has invalid value: {}", text("type"));
        errors.push(FieldError::invalid(&FieldPath::new("type"), "", why));
    }
}
