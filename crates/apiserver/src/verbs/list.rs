//! List. In the storage version, a list joins the stored bytes of its objects.

use super::shared;
use crate::answer::bytes;
use crate::body::Body;
use crate::call::Call;
use crate::content::{Encoding, META_V1, Negotiated, Shape};
use crate::joined::Joined;
use crate::listing::{Listing, frame, pieces};
use crate::path::Query;
use crate::{Server, order, table};
use http::Response;
use meta::{FieldError, FieldPath, FieldSelector, GroupKind, LabelSelector, Object, Status, Value};
use registry::{Backend, ListOptions, Page, Request, Resource, VersionMatch};
use serde_json::json;
use std::sync::Arc;
use store::Entry;
use stored::encode;

pub async fn list(server: &Server, call: &Call, request: &Request) -> Result<Response<Body>, Status> {
    let options = options(call, request, ListOrWatch::List)?;
    let row = &request.resource;
    if let Backend::Function(f) = &row.backend {
        let items = f.list(server.registry.env(), request, &options).await?;
        table::check_list(row, &call.negotiated)?;
        let mut listing = Objects::new(server, call, request, json!({"resourceVersion": ""}));
        listing.push(items)?;
        return Ok(listing.finish());
    }
    let page = server.registry.list(request, &options).await?;
    table::check_list(row, &call.negotiated)?;
    if shared::negotiated(call) {
        return shared::list(server, row, call.negotiated.shape, &page).await;
    }
    if call.negotiated.encoding == Encoding::Json && !call.negotiated.pretty {
        match call.negotiated.shape {
            Shape::Object if page.entries.iter().all(|e| row.serves_bytes(e)) => {
                let bare = row.bare_items;
                let splice = if bare { encode::splice_bare } else { encode::splice };
                let length = move |e: &Entry| encode::spliced_len(e, bare);
                let (kind, version) = (row.kind.list_kind(), row.kind.gvk().api_version());
                return Ok(joined(&kind, &version, list_meta(&page, ListForm::of(row)), page.entries, splice, length));
            }
            Shape::PartialMetadataList if call.negotiated.meta == META_V1 => {
                let length = |e: &Entry| {
                    let mut out = Vec::new();
                    encode::splice_metadata(&mut out, e);
                    out.len()
                };
                let meta = list_meta(&page, ListForm::Typed);
                let kind = "PartialObjectMetadataList";
                return Ok(joined(kind, META_V1, meta, page.entries, encode::splice_metadata, length));
            }
            _ => {}
        }
    }
    let json = call.negotiated.encoding == Encoding::Json && call.negotiated.shape == Shape::Object;
    if json && !page.entries.is_empty() && page.entries.iter().all(|e| row.serves_bytes(e)) {
        let (kind, version) = (row.kind.list_kind(), row.kind.gvk().api_version());
        let list = json!({"kind": kind, "apiVersion": version, "metadata": list_meta(&page, ListForm::of(row))});
        let splice = if row.bare_items { encode::splice_bare } else { encode::splice };
        let schema = order::schema_of_items(&version, &kind);
        let joined = Joined::pretty(frame(&call.negotiated, list, "items"), page.entries, splice, schema);
        return Ok(bytes(200, "application/json", Body::Joined(Box::new(joined))));
    }
    let form = if call.negotiated.shape == Shape::Object { ListForm::of(row) } else { ListForm::Typed };
    let mut listing = Objects::new(server, call, request, list_meta(&page, form));
    for piece in pieces(row, &page.entries) {
        listing.push(server.registry.all_from_stored(row, piece).await?)?;
        tokio::task::yield_now().await;
    }
    Ok(listing.finish())
}

/// How Go holds a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ListForm {
    Typed,
    /// Of custom resources: it always has `continue`.
    Unstructured,
}

impl ListForm {
    pub fn of(row: &Resource) -> Self {
        if row.bare_items { Self::Typed } else { Self::Unstructured }
    }
}

pub fn list_meta(page: &Page, form: ListForm) -> Value {
    let mut m = json!({"resourceVersion": page.revision.to_string()});
    if form == ListForm::Unstructured {
        m["continue"] = "".into();
    }
    if !page.continue_token.is_empty() {
        m["continue"] = page.continue_token.clone().into();
        if let Some(n) = page.remaining {
            m["remainingItemCount"] = n.into();
        }
    }
    m
}

/// The objects' bytes, joined while they are sent.
fn joined(
    kind: &str,
    version: &str,
    meta: Value,
    entries: Vec<Arc<Entry>>,
    splice: fn(&mut Vec<u8>, &Entry),
    length: impl Fn(&Entry) -> usize,
) -> Response<Body> {
    let head = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{version}\",\"metadata\":{meta},\"items\":[");
    let joined = Joined::new(head.into_bytes(), entries, splice, length);
    bytes(200, "application/json", Body::Joined(Box::new(joined)))
}

/// Encodes a list of decoded objects in the negotiated representation.
struct Objects<'a> {
    row: &'a Resource,
    negotiated: &'a Negotiated,
    include: &'a str,
    now: String,
    listing: Listing,
}

impl<'a> Objects<'a> {
    fn new(server: &Server, call: &'a Call, request: &'a Request, meta: Value) -> Self {
        let (row, negotiated) = (&*request.resource, &call.negotiated);
        let include = call.query.get("includeObject");
        let now = meta::time::format(server.registry.clock.now());
        let (list, field) = match negotiated.shape {
            Shape::Table => {
                let how = table::TableOptions { meta: negotiated.meta, include, headers: true, now: &now };
                (table::table(row, &[], meta, &how), "rows")
            }
            Shape::PartialMetadata | Shape::PartialMetadataList => {
                (json!({"kind": "PartialObjectMetadataList", "apiVersion": negotiated.meta, "metadata": meta}), "items")
            }
            Shape::Object => {
                let (kind, version) = (row.kind.list_kind(), row.kind.gvk().api_version());
                (json!({"kind": kind, "apiVersion": version, "metadata": meta}), "items")
            }
        };
        Self { row, negotiated, include, now, listing: Listing::new(negotiated, list, field) }
    }

    fn push(&mut self, objects: Vec<Object>) -> Result<(), Status> {
        let items = match self.negotiated.shape {
            Shape::Table => {
                let how = table::TableOptions {
                    meta: self.negotiated.meta,
                    include: self.include,
                    headers: true,
                    now: &self.now,
                };
                table::rows(self.row, &objects, &how)
            }
            Shape::PartialMetadata | Shape::PartialMetadataList => {
                objects.iter().map(|o| table::partial(o, self.negotiated.meta)).collect()
            }
            Shape::Object => {
                let bare = |mut o: Object| {
                    if self.row.bare_items {
                        o.remove(&["kind"]);
                        o.remove(&["apiVersion"]);
                    }
                    o.into_value()
                };
                objects.into_iter().map(bare).collect()
            }
        };
        self.listing.push(items)
    }

    fn finish(self) -> Response<Body> {
        let (media, body) = self.listing.finish();
        bytes(200, media, body)
    }
}

/// Maximum number of selector requirements per request: each is evaluated for every object and watch event. Upstream
/// has no limit but the length of the URL.
const MOST_REQUIREMENTS: usize = 1_000;

/// Parses and validates the options of a list or watch.
pub fn options(call: &Call, request: &Request, verb: ListOrWatch) -> Result<ListOptions, Status> {
    let q = &call.query;
    let labels = LabelSelector::parse(q.get("labelSelector")).map_err(Status::bad_request)?;
    let fields = FieldSelector::parse(q.get("fieldSelector")).map_err(Status::bad_request)?;
    let requirements = labels.requirements.len() + fields.terms.len();
    if requirements > MOST_REQUIREMENTS {
        let why = format!("the selectors have {requirements} requirements, at most {MOST_REQUIREMENTS} are allowed");
        return Err(Status::bad_request(why));
    }
    let row = &request.resource;
    for t in &fields.terms {
        let general = match &*t.field {
            "metadata.name" => true,
            "metadata.namespace" => row.kind.namespaced || selects_metadata(row),
            _ => false,
        };
        if !general && !row.kind.selectable.iter().any(|f| **f == *t.field) {
            return Err(Status::bad_request(unselectable(row, &t.field)));
        }
    }
    let limit = match q.get("limit") {
        "" => 0,
        text => text
            .parse::<i64>()
            .map_err(|_| Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax")))?,
    };
    seconds(q)?;
    // Objects that are not stored have no resource versions.
    if row.stored().is_some() {
        check_revision(call)?;
    }
    let revision = q.get("resourceVersion");
    let errors = match verb {
        ListOrWatch::List => list_errors(q, revision),
        ListOrWatch::Watch => watch_errors(q, revision),
    };
    if !errors.is_empty() {
        let gk = GroupKind { group: "meta.k8s.io".into(), kind: "ListOptions".into() };
        return Err(Status::invalid(&gk, "", &errors));
    }
    let version_match = match q.get(MATCH) {
        "NotOlderThan" => VersionMatch::NotOlderThan,
        "Exact" => VersionMatch::Exact,
        _ => VersionMatch::Unset,
    };
    Ok(ListOptions {
        labels,
        fields,
        limit: limit.max(0) as usize,
        continue_token: q.get("continue").to_owned(),
        resource_version: revision.to_owned(),
        version_match,
        readable_only: false,
    })
}

/// Whether a kind has only the common selectable fields: these include the namespace, whatever the scope.
fn selects_metadata(row: &Resource) -> bool {
    row.kind.selectable.is_empty() && row.bare_items && row.strategy.unselectable("").is_none()
}

/// The error for an unsupported field selector. Kinds that support only the common fields have another message.
fn unselectable(row: &Resource, field: &str) -> String {
    row.strategy.unselectable(field).unwrap_or_else(|| match selects_metadata(row) {
        true => {
            format!(r#"{field:?} is not a known field selector: only "metadata.name", "metadata.namespace""#)
        }
        false => format!("field label not supported: {field}"),
    })
}

/// The verb of the options.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ListOrWatch {
    List,
    Watch,
}

const MATCH: &str = "resourceVersionMatch";
const INITIAL: &str = "sendInitialEvents";

/// Rejects conflicting options (`k8s.io/apimachinery/pkg/apis/meta/internalversion/validation`).
fn list_errors(q: &Query, revision: &str) -> Vec<FieldError> {
    let (path, how) = (FieldPath::new(MATCH), q.get(MATCH));
    let mut errors = Vec::new();
    if !how.is_empty() {
        if revision.is_empty() {
            let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            errors.push(FieldError::forbidden(&path, why));
        }
        if !q.get("continue").is_empty() {
            let why = "resourceVersionMatch is forbidden when continue is provided";
            errors.push(FieldError::forbidden(&path, why));
        }
        if !matches!(how, "Exact" | "NotOlderThan") {
            errors.push(FieldError::not_supported(&path, how, &["Exact", "NotOlderThan", ""]));
        }
        if how == "Exact" && revision == "0" {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            errors.push(FieldError::forbidden(&path, why));
        }
    }
    if q.has(INITIAL) {
        errors.push(FieldError::forbidden(&FieldPath::new(INITIAL), "sendInitialEvents is forbidden for list"));
    }
    errors
}

fn watch_errors(q: &Query, revision: &str) -> Vec<FieldError> {
    let (path, how) = (FieldPath::new(MATCH), q.get(MATCH));
    let mut errors = Vec::new();
    // The defaults of such a watch (`SetListOptionsDefaults`).
    let sends_initial = !q.has(INITIAL) && how.is_empty() && matches!(revision, "" | "0");
    if sends_initial && !q.get("continue").is_empty() {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        errors.push(FieldError::forbidden(&path, why));
    }
    if q.has(INITIAL) && how != "NotOlderThan" {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        errors.push(FieldError::forbidden(&path, why));
    }
    if !how.is_empty() {
        if !q.has(INITIAL) {
            let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            errors.push(FieldError::forbidden(&path, why));
        }
        if how != "NotOlderThan" {
            errors.push(FieldError::not_supported(&path, how, &["NotOlderThan"]));
        }
        if !q.get("continue").is_empty() {
            let why = "resourceVersionMatch is forbidden when continue is provided";
            errors.push(FieldError::forbidden(&path, why));
        }
    }
    errors
}

/// `timeoutSeconds`; 0 by default.
pub fn seconds(q: &Query) -> Result<u64, Status> {
    match q.get("timeoutSeconds") {
        "" => Ok(0),
        text => match text.parse::<i64>() {
            Ok(n) => Ok(n.try_into().unwrap_or(0)),
            Err(_) => Err(Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))),
        },
    }
}

/// Validates that `resourceVersion` is a number.
pub fn check_revision(call: &Call) -> Result<(), Status> {
    let text = call.query.get("resourceVersion");
    if text.is_empty() || text.parse::<u64>().is_ok() {
        return Ok(());
    }
    let e = FieldError::invalid(&FieldPath::new("resourceVersion"), text, registry::not_a_number(text));
    let mut s = Status::bad_request(format!("invalid resource version: {e}"));
    s.details = None;
    Err(s)
}
