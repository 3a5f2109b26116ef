//! Decodes the object in the body of a write.

use super::options::{FieldValidation, field_validation};
use super::patch::is_apply;
use crate::call::Call;
use meta::{FieldError, FieldPath, GroupKind, GroupVersion, Gvk, Object, Status, Value};
use registry::Sent;
use registry::{Request, Sub};
use schema::Nulls;

/// Decodes a body as the kind of the resource or subresource: validates fields by `fieldValidation`, types and
/// defaults.
pub(super) fn read_object(call: &Call, request: &Request) -> Result<Sent, Status> {
    let row = &request.resource;
    let accepted = row.kind.subresource(&request.subresource).and_then(|s| s.speaks.clone());
    let is_built_in = row.bare_items || accepted.is_some();
    let want = accepted.unwrap_or_else(|| row.kind.gvk());
    let unrecognized = |why: &str| {
        let summary = summary(&call.body);
        let kind = &want.kind;
        Status::bad_request(format!("the object provided is unrecognized (must be of type {kind}): {why} ({summary})"))
    };
    let sent = call.sent().map_err(|s| if s.is(meta::Reason::BadRequest) { unrecognized(&s.message) } else { s })?;
    let mut map = match sent.value {
        Value::Object(m) => m,
        // An empty document is an empty object.
        Value::Null => meta::Map::new(),
        other => {
            let have = schema::typed::have(&other);
            return Err(unrecognized(&format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {have} into Go value of type {TYPED}"
            )));
        }
    };
    for name in ["apiVersion", "kind"] {
        if let Some(other) = map.get(name).filter(|v| !v.is_string() && !v.is_null()) {
            let have = schema::typed::have(other);
            return Err(unrecognized(&format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {have} into Go struct field .{name} of type string"
            )));
        }
    }
    let text = |m: &meta::Map<String, Value>, k: &str| m.get(k).and_then(Value::as_str).unwrap_or_default().to_owned();
    // Bodies of built-in kinds may omit what the path contains.
    for (name, default) in [("apiVersion", want.api_version()), ("kind", want.kind.clone())] {
        if is_built_in && text(&map, name).is_empty() {
            map.insert(name.into(), default.into());
        }
    }
    if text(&map, "kind").is_empty() {
        let body = String::from_utf8_lossy(&call.body);
        return Err(unrecognized(&format!("Object 'Kind' is missing in '{body}'")));
    }
    let (version, kind) = (text(&map, "apiVersion"), text(&map, "kind"));
    let gv = GroupVersion::parse(&version)
        .ok_or_else(|| unrecognized(&format!("unexpected GroupVersion string: {version}")))?;
    let have = gv.with_kind(kind.clone());
    if have != want && !is_built_in {
        if have.group_version() != want.group_version() {
            return Err(Status::bad_request(other_version(&version, &want)));
        }
        let name = map.get("metadata").and_then(|m| m["name"].as_str()).unwrap_or_default();
        if !request.name.is_empty() && name != request.name {
            return check_name(request, &Object(map)).map(|()| Sent::from(Object::default()));
        }
        check_custom_kind(&map, &want)?;
    }
    if have != want {
        if !function_accepts(request, &have) {
            return Err(Status::bad_request(mismatch(&version, &have, &want, row.strategy.scheme())));
        }
        map.insert("apiVersion".into(), want.api_version().into());
    }
    to_typed(call, request, &want, map, sent.duplicates)
}

fn other_version(version: &str, want: &Gvk) -> String {
    let expected = want.api_version();
    format!("the API version in the data ({version}) does not match the expected API version ({expected})")
}

/// The error for a custom resource of another kind or version: its strategy validates them, and nothing else then
/// (`apiextensions-apiserver/pkg/registry/customresource/validator.go`).
pub(super) fn check_custom_kind(map: &meta::Map<String, Value>, want: &Gvk) -> Result<(), Status> {
    let text = |k: &str| map.get(k).and_then(Value::as_str).unwrap_or_default();
    let mut errors = Vec::new();
    for (name, expected) in [("kind", want.kind.clone()), ("apiVersion", want.api_version())] {
        if text(name) != expected {
            errors.push(FieldError::invalid(&FieldPath::new(name), text(name), format!("must be {expected}")));
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    let group = GroupVersion::parse(text("apiVersion")).unwrap_or_default().group;
    let name = map.get("metadata").and_then(|m| m["name"].as_str()).unwrap_or_default();
    Err(Status::invalid(&GroupKind { group, kind: text("kind").to_owned() }, name, &errors))
}

/// Whether a subresource also accepts an object of this version.
fn function_accepts(request: &Request, have: &Gvk) -> bool {
    match request.resource.strategy.subresource(&request.subresource) {
        Some(Sub::Function(f)) => f.accepts(have),
        _ => false,
    }
}

/// The Go package of a group's internal types.
pub(super) fn internal(group: &str) -> &str {
    match group {
        "" | "events.k8s.io" => "core",
        "internal.apiserver.k8s.io" => "apiserverinternal",
        group => group.split('.').next().unwrap_or_default(),
    }
}

/// The error for an object of another kind or version than the path's (`transformDecodeError` of `handlers/rest.go`).
fn mismatch(version: &str, have: &Gvk, want: &Gvk, scheme: &str) -> String {
    let catalog = kinds::catalog();
    let same = have.group == want.group && have.kind == want.kind;
    let other_version = other_version(version, want);
    // The kind of several groups, as far as upstream still knows them.
    let is_old_scale = ["extensions/v1beta1", "apps/v1beta1", "apps/v1beta2"].contains(&version);
    if is_old_scale && have.kind == "Scale" && want.kind == "Scale" {
        return other_version;
    }
    let why = match (is_registered(have), catalog.kind(want).is_some()) {
        (true, true) if same => return other_version,
        (true, true) => {
            let (from, to) =
                (format!("{}.{}", have.version, have.kind), format!("{}.{}", internal(&want.group), want.kind));
            format!("converting ({from}) to ({to}): unknown conversion")
        }
        (_, false) if same => other_version,
        _ => format!("no kind {:?} is registered for version {version:?} in scheme {scheme:?}", have.kind),
    };
    format!("{} in version {:?} cannot be handled as a {}: {why}", have.kind, have.version, want.kind)
}

/// Whether upstream's scheme has a type of this name: kinds, their lists, and the common kinds of every group.
pub(super) fn is_registered(kind: &Gvk) -> bool {
    const OF_EVERY_GROUP: [&str; 7] =
        ["ListOptions", "GetOptions", "DeleteOptions", "CreateOptions", "UpdateOptions", "PatchOptions", "WatchEvent"];
    const OF_CORE: [&str; 6] = ["List", "Status", "APIVersions", "APIGroup", "APIGroupList", "APIResourceList"];
    let catalog = kinds::catalog();
    let item = kind.kind.strip_suffix("List").map(|item| Gvk::new(&kind.group, &kind.version, item));
    let is_core = kind.group.is_empty() && kind.version == "v1";
    catalog.kind(kind).is_some()
        || item.is_some_and(|k| catalog.kind(&k).is_some())
        || is_core && OF_CORE.contains(&&*kind.kind)
        || catalog.kinds.iter().any(|k| *k.group == *kind.group && *k.version == *kind.version)
            && OF_EVERY_GROUP.contains(&&*kind.kind)
}

/// The Go type that upstream decodes `apiVersion` and `kind` into, as Go prints it.
const TYPED: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// The beginning of a body for an error message: text if it may be JSON, else hexadecimal.
fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let (head, more) = if body.len() > SHOWN { (&body[..SHOWN], " ...") } else { (body, "") };
    match head.first() {
        None => "<empty>".into(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(head)),
        Some(_) => head.iter().map(|b| format!("{b:02x}")).chain([more.to_owned()]).collect(),
    }
}

/// Why a document cannot be decoded as a kind.
pub(super) enum DecodeError {
    /// Schema mismatch, or unknown or duplicate fields: the messages of upstream's decoder and converter.
    Mismatch {
        text: String,
        value: String,
    },
    Other(Status),
}

/// Types and defaults an object, and validates its fields by `fieldValidation`.
pub(super) fn to_typed(
    call: &Call,
    request: &Request,
    kind: &meta::Gvk,
    map: meta::Map<String, Value>,
    duplicates: Vec<String>,
) -> Result<Sent, Status> {
    typed(call, request, kind, map, duplicates).map_err(|e| match e {
        DecodeError::Other(s) => s,
        DecodeError::Mismatch { text, .. } => Status::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {text}",
            kind.kind, kind.version, kind.kind
        )),
    })
}

pub(super) fn typed(
    call: &Call,
    request: &Request,
    kind: &meta::Gvk,
    map: meta::Map<String, Value>,
    duplicates: Vec<String>,
) -> Result<Sent, DecodeError> {
    let row = &request.resource;
    let own = row.kind.gvk();
    let schema = if *kind == own { Some(&row.kind.schema) } else { kinds::catalog().schema_of(kind) };
    let schema = schema.ok_or_else(|| DecodeError::Other(Status::internal(format!("{kind} has no schema"))))?;
    let mut value = Value::Object(map);
    // An empty list of managed fields resets them. Typing removes it.
    let resets = *kind == own
        && row.stored().is_some()
        && value.pointer("/metadata/managedFields").and_then(Value::as_array).is_some_and(Vec::is_empty);
    let mismatch = |e: schema::TypeError| DecodeError::Mismatch { text: e.message, value: e.of_value };
    // What is applied to a custom resource is not pruned before it is validated.
    let nulls = if is_apply(call) { Nulls::Keep } else { Nulls::Prune };
    let found = schema::typed_with(&mut value, schema, nulls).map_err(mismatch)?;
    let empties = found.empty;
    // Errors of the text (YAML, a patch) precede those of fields.
    let (of_text, keys): (Vec<String>, Vec<String>) = duplicates.into_iter().partition(|p| p.contains(' '));
    let unknown = found.unknown.iter().map(|p| format!("unknown field {p:?}"));
    let twice = keys.iter().map(|p| format!("duplicate field {p:?}"));
    let mut fields: Vec<String> = unknown.chain(twice).collect();
    if row.strategy.is_custom() {
        // Custom resources are pruned only after their text was read.
        fields.rotate_left(found.unknown.len());
    }
    let problems: Vec<String> = of_text.into_iter().chain(fields).take(schema::MOST_REPORTED).collect();
    let validation = field_validation(call).map_err(DecodeError::Other)?;
    if !problems.is_empty() {
        match validation {
            FieldValidation::Strict => {
                let why = format!("strict decoding error: {}", problems.join(", "));
                return Err(DecodeError::Mismatch { text: why.clone(), value: why });
            }
            FieldValidation::Warn => problems.iter().for_each(|p| warn(call, p)),
            FieldValidation::Ignore => {}
        }
    }
    // Defaults may not add more than can be stored.
    if !schema::fill_within(&mut value, schema, store::MAX_OBJECT) {
        let why =
            format!("Request entity too large: the defaults of {kind} take more than {} bytes", store::MAX_OBJECT);
        return Err(DecodeError::Other(Status::too_large(why)));
    }
    let Value::Object(map) = value else {
        return Err(DecodeError::Other(Status::internal("typed reading lost the object")));
    };
    let mut object = Object(map);
    object.set_gvk(kind);
    let has_labels = |object: &Object| object.labels().next().is_some();
    let sent_labels = has_labels(&object);
    if *kind == own {
        row.strategy.default(&mut object);
    }
    let labels_are_defaults = !sent_labels && has_labels(&object);
    if resets {
        object.metadata_mut().insert("managedFields".into(), Value::Array(Vec::new()));
    }
    Ok(Sent { object, empties, labels_are_defaults })
}

/// Warns of a problem of strict decoding; of those of YAML one by one.
pub(super) fn warn(call: &Call, problem: &str) {
    match problem.strip_prefix("yaml: unmarshal errors:\n") {
        Some(lines) => lines.lines().for_each(|l| call.warnings.push(l.trim())),
        None => call.warnings.push(problem),
    }
}

/// Sets the namespace from the path. Errors if the object has another one.
pub(super) fn take_namespace(request: &Request, object: &mut Object) -> Result<(), Status> {
    if !request.resource.kind.namespaced {
        // On create, a namespace in a cluster-scoped object is ignored, as upstream clears it.
        object.set_namespace("");
        return Ok(());
    }
    if object.namespace().is_empty() {
        object.set_namespace(&request.namespace);
    } else if object.namespace() != request.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Errors if the object is not the one in the path.
pub(super) fn check_name(request: &Request, object: &Object) -> Result<(), Status> {
    let url = &request.name;
    let why = match object.name() {
        "" => format!("the name of the object ({url} based on URL) was undeterminable: name must be provided"),
        name if name != url => format!("the name of the object ({name}) does not match the name on the URL ({url})"),
        _ => return Ok(()),
    };
    Err(Status::bad_request(why))
}
