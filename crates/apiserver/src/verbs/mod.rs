//! One file per verb. Each takes a call and a row, and knows no kind.

mod create;
mod delete;
mod get;
mod list;
mod patch;
mod pipe;
mod scale;
mod shared;
mod update;
mod watch;

use crate::Server;
use crate::answer::{bytes, failure_in, method_not_allowed};
use crate::body::Body;
use crate::content::{self, Shape};
use crate::handle::Call;
use crate::{admit::Admission, connect, table};
use http::{Method, Response};
use meta::{GroupVersion, Gvk, Object, Status, Value};
use registry::{Preconditions, Request, Resource, Sub, WriteOptions, Written, encode};
use std::sync::Arc;
use store::Entry;

/// Subresources that answer with streams and negotiate for themselves.
pub fn is_stream(subresource: &str) -> bool {
    matches!(subresource, "log" | "exec" | "attach" | "portforward" | "proxy")
}

pub async fn dispatch(server: &Arc<Server>, call: Call, row: Arc<Resource>) -> Result<Response<Body>, Status> {
    let t = &call.target;
    let namespaced = row.kind.namespaced;
    let method = call.parts.method.clone();
    let named = !t.name.is_empty();
    let request = Request {
        user: call.user.clone(),
        resource: row.clone(),
        subresource: t.subresource.clone(),
        namespace: t.namespace.clone(),
        name: t.name.clone(),
        warnings: call.warnings.clone(),
        conversions: registry::Conversions::default(),
        empties: registry::Sent::default(),
    };
    let verb = call.verb;
    const METHODS: [Method; 6] = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let reads = matches!(method, Method::GET | Method::HEAD);
    if namespaced && named && t.namespace.is_empty() {
        return Err(Status::no_such_path());
    }
    if (!METHODS.contains(&method) && !is_stream(&t.subresource)) || (t.watch && !reads) {
        return Err(method_not_allowed());
    }
    if !t.subresource.is_empty() {
        return Box::pin(subresource(server, call, request, &method, verb)).await;
    }
    let served =
        row.kind.has_verb(verb) || (row.strategy.serves_more() && matches!(verb, "create" | "update" | "patch"));
    if !served || (method == Method::POST && named) {
        return Err(method_not_allowed());
    }
    if namespaced && matches!(verb, "create" | "deletecollection") && t.namespace.is_empty() && row.stored().is_some() {
        return Err(method_not_allowed());
    }
    // What changes one object names it.
    if !named && matches!(verb, "update" | "patch") {
        return Err(method_not_allowed());
    }
    // Boxed, what a write remembers is not part of every reading request.
    match verb {
        "get" => get::get(server, &call, &request).await,
        "list" => list::list(server, &call, &request).await,
        "watch" => watch::watch(server, &call, request),
        "create" => Box::pin(create::create(server, &call, request)).await,
        "update" => Box::pin(update::update(server, &call, request)).await,
        "patch" => Box::pin(patch::patch(server, &call, request)).await,
        "delete" => Box::pin(delete::delete(server, &call, request)).await,
        "deletecollection" => Box::pin(delete::collection(server, &call, request)).await,
        _ => Err(method_not_allowed()),
    }
}

async fn subresource(
    server: &Arc<Server>,
    call: Call,
    request: Request,
    method: &Method,
    verb: &str,
) -> Result<Response<Body>, Status> {
    let row = request.resource.clone();
    let described = row.kind.subresource(&request.subresource).ok_or_else(Status::no_such_path)?;
    let has = |v: &str| described.verbs.iter().any(|x| **x == *v);
    match row.strategy.subresource(&request.subresource).unwrap_or(Sub::Part) {
        Sub::Connect => connect::connect(server, call, request).await,
        _ if !has(verb) => Err(method_not_allowed()),
        Sub::Scale(s) => scale::scale(server, &call, request, &s).await,
        Sub::Function(f) => create::function(server, &call, request, &*f).await,
        Sub::Part => match *method {
            Method::GET | Method::HEAD => get::get(server, &call, &request).await,
            Method::PUT => update::update(server, &call, request).await,
            Method::PATCH => patch::patch(server, &call, request).await,
            _ => Err(method_not_allowed()),
        },
    }
}

/// Admission for one call.
pub(crate) fn admission<'a>(
    server: &'a Arc<Server>,
    call: &'a Call,
    request: &'a Request,
    options: &WriteOptions,
) -> Admission<'a> {
    Admission { server, call, request, attributes: call.attributes(), dry_run: options.dry_run, asked: Arc::default() }
}

/// The options every write takes from the query.
fn write_options(call: &Call) -> Result<WriteOptions, Status> {
    let dry: Vec<&str> = call.query.all("dryRun").filter(|v| !v.is_empty()).collect();
    if let Some(bad) = dry.iter().find(|v| **v != "All") {
        let path = meta::FieldPath::new("dryRun");
        let e = meta::FieldError::not_supported(&path, *bad, &["All"]);
        return Err(Status::invalid(&options_kind(call), "", &[e]));
    }
    let manager = call.query.get("fieldManager");
    if manager.len() > 128 {
        let e = meta::FieldError::too_long(&meta::FieldPath::new("fieldManager"), 128);
        return Err(Status::invalid(&options_kind(call), "", &[e]));
    }
    if manager.chars().any(char::is_control) {
        let why = "should only contain printable characters";
        let e = meta::FieldError::invalid(&meta::FieldPath::new("fieldManager"), manager, why);
        return Err(Status::invalid(&options_kind(call), "", &[e]));
    }
    Ok(WriteOptions { dry_run: !dry.is_empty(), manager: call.manager(), ..WriteOptions::default() })
}

/// The kind that the query of a write is read as.
fn options_kind(call: &Call) -> meta::GroupKind {
    let kind = match call.parts.method {
        http::Method::PUT => "UpdateOptions",
        http::Method::PATCH => "PatchOptions",
        _ => "CreateOptions",
    };
    meta::GroupKind { group: "meta.k8s.io".into(), kind: kind.into() }
}

/// `If-Match`: the revision that the object must have, as the documentation of managed fields uses it. Quotes are allowed.
fn preconditions(call: &Call) -> Preconditions {
    let text = call.parts.headers.get(http::header::IF_MATCH).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let revision = text.trim().trim_matches('"');
    let resource_version = (!revision.is_empty() && revision != "*").then(|| revision.to_owned());
    Preconditions { uid: None, resource_version }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

fn field_validation(call: &Call) -> Result<FieldValidation, Status> {
    match call.query.get("fieldValidation") {
        "Strict" => Ok(FieldValidation::Strict),
        "Ignore" => Ok(FieldValidation::Ignore),
        "" | "Warn" => Ok(FieldValidation::Warn),
        other => {
            let e = meta::FieldError::not_supported(
                &meta::FieldPath::new("fieldValidation"),
                other,
                &["Ignore", "Strict", "Warn"],
            );
            Err(Status::invalid(&options_kind(call), "", &[e]))
        }
    }
}

/// Reads the object of a body in the kind that the row (or its subresource) speaks: strict where asked, typed, defaulted.
fn read_object(call: &Call, request: &Request) -> Result<Object, Status> {
    let row = &request.resource;
    let spoken = row.kind.subresource(&request.subresource).and_then(|s| s.speaks.clone());
    let want = spoken.unwrap_or_else(|| row.kind.gvk());
    let unrecognized = |why: &str| {
        let summary = summary(&call.body);
        let kind = &want.kind;
        Status::bad_request(format!("the object provided is unrecognized (must be of type {kind}): {why} ({summary})"))
    };
    let sent = call.sent().map_err(|s| if s.is(meta::Reason::BadRequest) { unrecognized(&s.message) } else { s })?;
    let mut map = match sent.value {
        Value::Object(m) => m,
        // Nothing is an object in which nothing is said.
        Value::Null => meta::Map::new(),
        other => {
            let have = schema::typed::have(&other);
            return Err(unrecognized(&format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {have} into Go value of type {TYPED}"
            )));
        }
    };
    let text = |m: &meta::Map<String, Value>, k: &str| m.get(k).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (version, kind) = (text(&map, "apiVersion"), text(&map, "kind"));
    // Bodies may leave out what the path says.
    if version.is_empty() && kind.is_empty() {
        map.insert("apiVersion".into(), want.api_version().into());
        map.insert("kind".into(), want.kind.clone().into());
    }
    let (version, kind) = (text(&map, "apiVersion"), text(&map, "kind"));
    let gv = GroupVersion::parse(&version)
        .ok_or_else(|| Status::bad_request(format!("unexpected GroupVersion string: {version}")))?;
    let have = gv.with_kind(kind.clone());
    if have != want {
        if !function_accepts(request, &have) {
            return Err(Status::bad_request(mismatch(&version, &have, &want, row.strategy.scheme())));
        }
        map.insert("apiVersion".into(), want.api_version().into());
    }
    to_typed(call, request, &want, map, sent.duplicates)
}

/// Whether a subresource takes an object of this version as well.
fn function_accepts(request: &Request, have: &Gvk) -> bool {
    match request.resource.strategy.subresource(&request.subresource) {
        Some(Sub::Function(f)) => f.accepts(have),
        _ => false,
    }
}

/// What upstream says of an object of another kind or version than that of the path (`transformDecodeError` of `handlers/rest.go`).
fn mismatch(version: &str, have: &Gvk, want: &Gvk, scheme: &str) -> String {
    let catalog = kinds::catalog();
    let same = have.group == want.group && have.kind == want.kind;
    let other_version = format!(
        "the API version in the data ({version}) does not match the expected API version ({})",
        want.api_version()
    );
    let why = match (catalog.kind(have).is_some(), catalog.kind(want).is_some()) {
        (true, true) if same => return other_version,
        (true, true) => {
            let internal = match want.group.split('.').next().unwrap_or_default() {
                "" | "events" => "core",
                "internal" => "apiserverinternal",
                first => first,
            };
            let (from, to) = (format!("{}.{}", have.version, have.kind), format!("{internal}.{}", want.kind));
            format!("converting ({from}) to ({to}): unknown conversion")
        }
        (_, false) if same => other_version,
        _ => format!("no kind {:?} is registered for version {version:?} in scheme {scheme:?}", have.kind),
    };
    format!("{} in version {:?} cannot be handled as a {}: {why}", have.kind, have.version, want.kind)
}

/// What names the version and kind of an object, as Go prints its type.
const TYPED: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// The beginning of a body for a message: as text if it may be JSON, else in hexadecimal digits.
fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let (head, more) = if body.len() > SHOWN { (&body[..SHOWN], " ...") } else { (body, "") };
    match head.first() {
        None => "<empty>".into(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(head)),
        Some(_) => head.iter().map(|b| format!("{b:02x}")).chain([more.to_owned()]).collect(),
    }
}

/// Why a document cannot be read as a kind.
enum Unread {
    /// It does not fit, or not strictly: in the words of the decoder of a text, and of the converter of a value.
    Why {
        text: String,
        value: String,
    },
    Other(Status),
}

/// Gives a sent object the form of its kind's schema, with strictness as the query asks.
fn to_typed(
    call: &Call,
    request: &Request,
    kind: &meta::Gvk,
    map: meta::Map<String, Value>,
    duplicates: Vec<String>,
) -> Result<Object, Status> {
    typed(call, request, kind, map, duplicates).map_err(|e| match e {
        Unread::Other(s) => s,
        Unread::Why { text, .. } => Status::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {text}",
            kind.kind, kind.version, kind.kind
        )),
    })
}

fn typed(
    call: &Call,
    request: &Request,
    kind: &meta::Gvk,
    map: meta::Map<String, Value>,
    duplicates: Vec<String>,
) -> Result<Object, Unread> {
    let row = &request.resource;
    let own = row.kind.gvk();
    let schema = if *kind == own { Some(&row.kind.schema) } else { kinds::catalog().schema_of(kind) };
    let schema = schema.ok_or_else(|| Unread::Other(Status::internal(format!("{kind} has no schema"))))?;
    let mut value = Value::Object(map);
    // That the list is there and empty is lost in typed reading, but asks for something.
    let resets = *kind == own
        && row.stored().is_some()
        && value.pointer("/metadata/managedFields").and_then(Value::as_array).is_some_and(Vec::is_empty);
    let unread = |e: schema::TypeError| Unread::Why { text: e.message, value: e.of_value };
    let found = schema::typed(&mut value, schema).map_err(unread)?;
    request.empties.set(found.empty);
    // What is said of the text (YAML, a patch) comes before what is said of its fields.
    let (said, keys): (Vec<String>, Vec<String>) = duplicates.into_iter().partition(|p| p.contains(' '));
    let unknown = found.unknown.iter().map(|p| format!("unknown field {p:?}"));
    let twice = keys.iter().map(|p| format!("duplicate field {p:?}"));
    let problems = said.into_iter().chain(unknown).chain(twice);
    let problems: Vec<String> = problems.take(schema::MOST_REPORTED).collect();
    let validation = field_validation(call).map_err(Unread::Other)?;
    if !problems.is_empty() {
        match validation {
            FieldValidation::Strict => {
                let why = format!("strict decoding error: {}", problems.join(", "));
                return Err(Unread::Why { text: why.clone(), value: why });
            }
            FieldValidation::Warn => problems.into_iter().for_each(|p| request.warn(p)),
            FieldValidation::Ignore => {}
        }
    }
    // More than can be stored is more than defaults may add.
    if !schema::fill_within(&mut value, schema, store::MAX_OBJECT) {
        let why =
            format!("Request entity too large: the defaults of {kind} take more than {} bytes", store::MAX_OBJECT);
        return Err(Unread::Other(Status::too_large(why)));
    }
    let Value::Object(map) = value else {
        return Err(Unread::Other(Status::internal("typed reading lost the object")));
    };
    let mut object = Object(map);
    object.set_gvk(kind);
    if *kind == own {
        row.strategy.default(&mut object);
    }
    if resets {
        object.metadata_mut().insert("managedFields".into(), Value::Array(Vec::new()));
    }
    Ok(object)
}

/// The object's namespace is the path's.
fn take_namespace(request: &Request, object: &mut Object) -> Result<(), Status> {
    if !request.resource.kind.namespaced {
        // A cluster-scoped object's namespace is ignored on create, as upstream clears it.
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

/// A written object is the one that the address names.
fn check_name(request: &Request, object: &Object) -> Result<(), Status> {
    let url = &request.name;
    let why = match object.name() {
        "" => format!("the name of the object ({url} based on URL) was undeterminable: name must be provided"),
        name if name != url => format!("the name of the object ({name}) does not match the name on the URL ({url})"),
        _ => return Ok(()),
    };
    Err(Status::bad_request(why))
}

/// A written object as an answer. Where the store has it as it was asked for, it is not encoded once more.
fn written(server: &Server, call: &Call, request: &Request, code: u16, written: &Written) -> Response<Body> {
    match &written.entry {
        Some(entry) if call.wanted.is_plain() && request.resource.serves_bytes(entry) => spliced(code, entry),
        _ => answer(server, call, request, code, &written.object),
    }
}

/// An object as it is kept, in its stored version.
fn spliced(code: u16, entry: &Entry) -> Response<Body> {
    let mut out = Vec::new();
    encode::splice(&mut out, entry);
    out.push(b'\n');
    bytes(code, "application/json", out)
}

/// An object as an answer, in the shape that was asked for.
fn answer(server: &Server, call: &Call, request: &Request, code: u16, object: &Object) -> Response<Body> {
    if let Err(s) = table::check_object(&request.resource, &call.wanted, object) {
        return failure_in(&call.wanted, &s);
    }
    let shaped;
    let version = call.wanted.meta;
    let v: &Object = match call.wanted.shape {
        Shape::PartialMetadata if object.kind() != "Status" => {
            shaped = Object::from_value(table::partial(object, version)).unwrap_or_default();
            &shaped
        }
        Shape::Table if object.kind() != "Status" => {
            let now = meta::time::format(server.registry.clock.now());
            let list = serde_json::json!({"resourceVersion": object.resource_version()});
            let include = call.query.get("includeObject");
            let how = table::Making { meta: version, include, headers: true, now: &now };
            let t = table::table(&request.resource, std::slice::from_ref(object), list, &how);
            shaped = Object::from_value(t).unwrap_or_default();
            &shaped
        }
        _ => object,
    };
    let (media, body) = write_object(call, v);
    bytes(code, media, body)
}

fn write_object(call: &Call, object: &Object) -> (&'static str, Vec<u8>) {
    if call.wanted.encoding == content::Encoding::Json && !call.wanted.pretty {
        let mut out = Vec::with_capacity(1024);
        let _ = serde_json::to_writer(&mut out, &object.0);
        out.push(b'\n');
        return ("application/json", out);
    }
    content::write(&call.wanted, &object.clone().into_value())
}
