//! Get and list: snapshots, selectors, pagination (`k8s.io/apiserver/pkg/storage`, `…/registry/generic/registry`).

use crate::Registry;
use crate::row::{Backend, Resource};
use crate::strategy::Request;
use crate::written::commit_status;
use base64::Engine;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD, URL_SAFE_NO_PAD};
use meta::{FieldSelector, LabelSelector, Object, Status, Value};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use store::{Entry, Key, Scope, Snapshot, SnapshotError};
use stored::encode;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VersionMatch {
    #[default]
    Unset,
    NotOlderThan,
    Exact,
}

#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
    /// 0: no limit.
    pub limit: usize,
    pub continue_token: String,
    pub resource_version: String,
    pub version_match: VersionMatch,
    /// Skip unreadable objects instead of failing.
    pub readable_only: bool,
}

/// A page of a list, or the whole list.
pub struct Page {
    pub entries: Vec<Arc<Entry>>,
    /// The revision of the whole list.
    pub revision: u64,
    /// Empty on the last page.
    pub continue_token: String,
    /// The number of objects after this page; known only without selectors.
    pub remaining: Option<usize>,
}

#[derive(Serialize)]
struct Token {
    v: String,
    /// Negative: use the newest revision.
    rv: i64,
    start: String,
}

/// Entries per chunk.
const CHUNK: usize = 512;

const TOKEN_VERSION: &str = "meta.k8s.io/v1";
const ANY: i64 = -1;
/// Decodes tokens as Go does: ignores trailing bits of the last character.
const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&base64::alphabet::URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

impl Token {
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Errors have the messages of `DecodeContinue` (`k8s.io/apiserver/pkg/storage`).
    fn decode(text: &str) -> Result<Self, String> {
        let bytes = LENIENT
            .decode(text)
            .map_err(|_| format!("illegal base64 data at input byte {}", schema::typed::illegal_in_url(text)))?;
        if let Some(why) = schema::decode::syntax::wrong(&bytes) {
            return Err(why);
        }
        let v: Value = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
        let version = v["v"].as_str().unwrap_or_default();
        if version != TOKEN_VERSION {
            return Err(format!("server does not recognize this encoded version {version}"));
        }
        let at = |why: &str| format!("{why} (version {TOKEN_VERSION})");
        match (v["rv"].as_i64(), v["start"].as_str()) {
            (None | Some(0), _) => Err(at("incorrect encoded start resourceVersion")),
            (_, None | Some("")) => Err(at("encoded start key empty")),
            (Some(rv), Some(start)) if start.contains('/') => Ok(Self { v: version.into(), rv, start: start.into() }),
            (_, Some(start)) => Err(start.into()),
        }
    }
}

impl Registry {
    /// The entry of an object.
    pub fn entry(&self, request: &Request) -> Result<Arc<Entry>, Status> {
        let row = &request.resource;
        let gr = row.group_resource();
        let key = row.key(&request.namespace, &request.name);
        let key = key.ok_or_else(|| Status::method_not_supported(&gr, "get"))?;
        self.find(&key)?.ok_or_else(|| Status::not_found(&gr, &request.name))
    }

    /// The entry under a key, none if it does not exist. Errors if it cannot be read.
    pub fn find(&self, key: &Key) -> Result<Option<Arc<Entry>>, Status> {
        find(&self.store.snapshot(), key)
    }

    /// The stored object under a key, none if it does not exist. Errors if it cannot be read.
    pub fn stored_object(&self, key: &Key) -> Result<Option<Object>, Status> {
        Ok(self.find(key)?.map(|e| encode::decode(&e)).transpose()?)
    }

    /// Brings the state up to date for a request with the resource version `requested`, where other servers write, too: an empty one
    /// requires everything that was committed before, a number that revision, and 0 nothing.
    ///
    /// # Errors
    /// The store does not answer. A revision that does not come in time is the error of the request that needs it.
    pub async fn refresh(&self, requested: &str) -> Result<(), Status> {
        if !self.store.is_shared() {
            return Ok(());
        }
        match requested.parse::<u64>() {
            Ok(0) => {}
            Ok(revision) if revision <= self.store.revision() => {}
            Ok(revision) => drop(tokio::time::timeout(LATE, self.store.wait_for(revision)).await),
            Err(_) => self.store.refresh().await.map_err(|e| commit_status(&e))?,
        }
        Ok(())
    }

    /// Errors if a resource version is newer than the store. An empty one never is.
    pub fn check_not_older(&self, revision: &str) -> Result<(), Status> {
        let (requested, now) = (parse_revision(revision)?, self.store.snapshot().revision());
        if requested > now { Err(too_new(requested, now)) } else { Ok(()) }
    }

    pub async fn get(&self, request: &Request) -> Result<Object, Status> {
        match &request.resource.backend {
            Backend::Function(f) => f.get(self.env(), request).await,
            Backend::Stored { .. } => self.from_stored(&request.resource, &*self.entry(request)?).await,
        }
    }

    pub async fn list(&self, request: &Request, options: &ListOptions) -> Result<Page, Status> {
        let row = &request.resource;
        let Some((resource, _)) = row.stored() else {
            return Err(Status::method_not_supported(&row.group_resource(), "list"));
        };
        let namespace = Some(request.namespace.as_str()).filter(|n| !n.is_empty());
        let scope = Scope { namespace: namespace.map(Into::into), ..Scope::resource(resource) };
        let (snapshot, after) = self.start(&scope, options).await?;
        let selector = Selector::new(row, options);
        let after = after.as_deref().and_then(|s| s.split_once('/'));
        if !options.readable_only {
            check_readable(&snapshot, resource, namespace)?;
        }
        let mut entries = Vec::new();
        let mut more = false;
        if options.limit == 0 && after.is_none() && selector.is_everything() {
            entries.reserve(snapshot.count(resource, namespace));
        }
        let mut range = snapshot.range(resource, namespace, after);
        let mut found = Vec::new().into_iter();
        loop {
            // Process entries that may need conversion in chunks: one converter call for many.
            let next = match found.next() {
                Some(e) => Some(e),
                None if selector.looks_inside() => {
                    let chunk: Vec<Arc<Entry>> = range.by_ref().take(CHUNK).cloned().collect();
                    if chunk.is_empty() {
                        break;
                    }
                    found = self.selected(row, &selector, chunk).await?.into_iter();
                    continue;
                }
                None => range.find(|e| selector.matches(e)).cloned(),
            };
            let Some(e) = next else { break };
            if options.limit > 0 && entries.len() == options.limit {
                more = true;
                break;
            }
            if !options.readable_only {
                encode::check_form(&e)?;
            }
            entries.push(e);
        }
        let mut page = Page { revision: snapshot.revision(), continue_token: String::new(), remaining: None, entries };
        if let (true, Some(last)) = (more, page.entries.last()) {
            let start = format!("{}/{}", last.key.namespace, last.key.name);
            let token = Token { v: TOKEN_VERSION.into(), rv: page.revision.try_into().unwrap_or(ANY), start };
            page.continue_token = token.encode();
            if selector.is_everything() {
                let position = (&*last.key.namespace, &*last.key.name);
                page.remaining = Some(snapshot.range(resource, namespace, Some(position)).count());
            }
        }
        Ok(page)
    }

    /// The snapshot to list from, and the position of a continue token.
    async fn start(&self, scope: &Scope, options: &ListOptions) -> Result<(Snapshot, Option<String>), Status> {
        if !options.continue_token.is_empty() {
            let token = Token::decode(&options.continue_token).map_err(|why| {
                Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
            })?;
            if !options.resource_version.is_empty() && options.resource_version != "0" {
                return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
            }
            let snapshot = match u64::try_from(token.rv) {
                Ok(revision) => {
                    let snapshot = self.store.snapshot_at(scope, revision).await;
                    snapshot.map_err(|e| expired_token(&e, &token.start))?
                }
                Err(_) => self.store.snapshot(),
            };
            return Ok((snapshot, Some(token.start)));
        }
        let revision = parse_revision(&options.resource_version)?;
        match (revision, options.version_match) {
            (0, _) => Ok((self.store.snapshot(), None)),
            (r, VersionMatch::Exact) => {
                let snapshot = self.store.snapshot_at(scope, r).await;
                Ok((snapshot.map_err(|e| snapshot_status(&e))?, None))
            }
            (r, _) => {
                let snapshot = self.store.snapshot();
                if r > snapshot.revision() {
                    return Err(too_new(r, snapshot.revision()));
                }
                Ok((snapshot, None))
            }
        }
    }
}

/// The label and field selectors of a request, evaluated on the index of entries.
pub struct Selector {
    labels: LabelSelector,
    fields: Vec<(Target, meta::selector::FieldTerm)>,
    /// The fields are not indexed: only those of built-in kinds are.
    unindexed: bool,
    /// The unindexed selectable fields, as stored.
    names: Vec<String>,
}

/// The values of an object's selectable fields, by name.
struct Values {
    names: Vec<String>,
    texts: Vec<String>,
}

/// Maximum size of cached field values per object: every watch of the object reads them.
const KEPT: usize = 4 << 10;

enum Target {
    Name,
    Namespace,
    Field {
        /// The name in field selectors.
        served: String,
        /// The path in the stored object, and the fallback where it is empty.
        stored: String,
        instead: Option<&'static str>,
    },
}

impl Selector {
    pub fn new(row: &Resource, options: &ListOptions) -> Self {
        let target = |f: &str| match f {
            "metadata.name" => Target::Name,
            "metadata.namespace" => Target::Namespace,
            f => Target::Field {
                served: f.to_owned(),
                stored: row.kind.stored_field(f).to_owned(),
                instead: row.strategy.stored_instead(f),
            },
        };
        Self {
            labels: options.labels.clone(),
            fields: options.fields.terms.iter().map(|t| (target(&t.field), t.clone())).collect(),
            unindexed: !row.bare_items,
            names: match row.bare_items {
                true => Vec::new(),
                false => row.kind.selectable.iter().map(|f| row.kind.stored_field(f).to_owned()).collect(),
            },
        }
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_empty()
    }

    /// Whether field values must be read from the object, not the index.
    pub(crate) fn looks_inside(&self) -> bool {
        self.unindexed && self.fields.iter().any(|(t, _)| matches!(t, Target::Field { .. }))
    }

    /// Whether an entry must be converted before its fields can be read.
    fn converts(&self, row: &Resource, e: &Entry) -> bool {
        self.looks_inside() && !row.serves_bytes(e) && self.matches_entry(e, Depth::KeyAndLabels)
    }

    /// Whether an entry may match, before conversion.
    pub(crate) fn may_match(&self, e: &Entry) -> bool {
        let look = if self.looks_inside() { Depth::KeyAndLabels } else { Depth::Fields };
        self.matches_entry(e, look)
    }

    /// Whether an entry stored in the served version matches.
    pub fn matches(&self, e: &Entry) -> bool {
        self.matches_entry(e, Depth::Fields)
    }

    /// Reads all selectable fields of an object in one scan.
    fn values(&self, e: &Entry) -> Arc<Values> {
        if let Some(known) = e.selected.get::<Values>().filter(|known| known.names == self.names) {
            return known;
        }
        let made = Values { names: self.names.clone(), texts: stored::encode::fields(&e.value, &self.names) };
        match made.texts.iter().map(String::len).sum::<usize>() <= KEPT {
            true => {
                let made = Arc::new(made);
                e.selected.keep(made.clone());
                made
            }
            false => Arc::new(made),
        }
    }

    fn matches_entry(&self, e: &Entry, look: Depth) -> bool {
        let labels = &e.index().labels;
        // Sorted, and possibly as many as requirements.
        let label = |k: &str| labels.binary_search_by(|(n, _)| (**n).cmp(k)).ok().map(|at| &*labels[at].1);
        let indexed = |f: &str| e.index().fields.iter().find(|(n, _)| **n == *f).map_or("", |(_, v)| &**v);
        let values = std::cell::OnceCell::new();
        let inside = |f: &str| {
            let values = values.get_or_init(|| self.values(e));
            let at = values.names.iter().position(|n| n == f);
            at.and_then(|at| values.texts.get(at)).map_or("", String::as_str)
        };
        let field = |t: &Target| match t {
            Target::Name => Some(&*e.key.name),
            Target::Namespace => Some(&*e.key.namespace),
            Target::Field { .. } if look == Depth::KeyAndLabels => None,
            Target::Field { stored, .. } if self.unindexed => Some(inside(stored)),
            Target::Field { stored, instead, .. } => Some(match (indexed(stored), instead) {
                ("", Some(instead)) => indexed(instead),
                (value, _) => value,
            }),
        };
        (self.labels.is_everything() || self.labels.matches(label))
            && self.fields.iter().all(|(t, term)| {
                let Some(have) = field(t) else { return true };
                // An absent boolean is false.
                let same = have == term.value || (!self.unindexed && have.is_empty() && term.value == "false");
                same == term.equal
            })
    }

    /// Whether the fields of an object in the served version match.
    fn matches_object(&self, o: &Object) -> bool {
        self.fields.iter().all(|(t, term)| {
            let Target::Field { served, .. } = t else { return true };
            let path: Vec<&str> = served.split('.').collect();
            let have = match o.at(&path) {
                None | Some(Value::Null | Value::Array(_) | Value::Object(_)) => String::new(),
                Some(Value::String(s)) => s.clone(),
                Some(scalar) => scalar.to_string(),
            };
            (have == term.value) == term.equal
        })
    }
}

/// How much of an entry to evaluate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Its key and labels only.
    KeyAndLabels,
    /// Its fields too.
    Fields,
}

impl Registry {
    /// Filters entries. Field values are those of the served version: entries stored in another version are converted
    /// first.
    pub(crate) async fn selected(
        &self,
        row: &Resource,
        selector: &Selector,
        entries: Vec<Arc<Entry>>,
    ) -> Result<Vec<Arc<Entry>>, Status> {
        let others: Vec<Arc<Entry>> = entries.iter().filter(|e| selector.converts(row, e)).cloned().collect();
        let mut matching = Vec::with_capacity(others.len());
        let mut rest = &others[..];
        while !rest.is_empty() {
            // Convert few bytes at a time: decoded objects take several times as much memory.
            let mut bytes = 0;
            let fits = rest.iter().take_while(|e| {
                bytes += e.value.len();
                bytes <= CONVERTED_AT_A_TIME
            });
            let (piece, after) = rest.split_at(fits.count().max(1));
            let objects = self.all_from_stored(row, piece).await?;
            matching.extend(objects.iter().map(|o| selector.matches_object(o)));
            rest = after;
        }
        let mut matching = matching.into_iter();
        let (mut selected, mut bytes) = (Vec::new(), 0);
        for e in entries {
            bytes += e.value.len();
            if bytes > LOOKED_AT {
                tokio::task::yield_now().await;
                bytes = 0;
            }
            let matches = match selector.converts(row, &e) {
                true => matching.next().unwrap_or_default(),
                false => selector.matches(&e),
            };
            if matches {
                selected.push(e);
            }
        }
        Ok(selected)
    }
}

/// Maximum stored bytes of objects to convert at a time for selection.
const CONVERTED_AT_A_TIME: usize = 2 << 20;
/// Bytes of objects to scan before yielding to other tasks.
const LOOKED_AT: usize = 2 << 20;

/// How long a request waits for a revision that this server does not have yet.
const LATE: Duration = Duration::from_secs(3);

/// Parses a resource version; empty is 0.
pub(crate) fn parse_revision(text: &str) -> Result<u64, Status> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| Status::bad_request(format!("Invalid value: {text:?}: {}", not_a_number(text))))
}

/// The error message of Go's parser for an invalid or too large number.
pub fn not_a_number(text: &str) -> String {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let why = if digits { "value out of range" } else { "invalid syntax" };
    format!("strconv.ParseUint: parsing {text:?}: {why}")
}

pub(crate) fn too_new(requested: u64, current: u64) -> Status {
    let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
    let details = meta::status::Details {
        retry_after_seconds: 1,
        causes: vec![meta::status::Cause {
            reason: "ResourceVersionTooLarge".into(),
            message: "Too large resource version".into(),
            field: String::new(),
        }],
        ..Default::default()
    };
    Status::timeout(message).with_details(details)
}

/// The error for an expired continue token, with a token to continue inconsistently.
fn expired_token(e: &SnapshotError, start: &str) -> Status {
    let SnapshotError::Expired { .. } = e else { return snapshot_status(e) };
    let mut s = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. Start a new list without it, or \
         go on with the token in this answer: the rest of the list is then that of now, without what changed in between.",
    );
    let token = Token { v: TOKEN_VERSION.into(), rv: ANY, start: start.to_owned() };
    s.resume = Some(token.encode().into());
    s
}

/// The entry under a key, none if it does not exist. Errors if it cannot be read.
pub fn find(snapshot: &Snapshot, key: &Key) -> Result<Option<Arc<Entry>>, Status> {
    match (snapshot.get(key), snapshot.damaged(key)) {
        (None, Some(damaged)) => Err(encode::damaged_status(&damaged)),
        (Some(entry), _) => encode::check_form(&entry).map(|()| Some(entry)).map_err(Into::into),
        (None, None) => Ok(None),
    }
}

/// Errors if the store could not open an object of a resource, in one namespace or all. Names the first such object.
pub fn check_readable(snapshot: &Snapshot, resource: &str, namespace: Option<&str>) -> Result<(), Status> {
    let damaged = snapshot.all_damaged(resource, namespace).next();
    damaged.map_or(Ok(()), |d| Err(encode::damaged_status(d)))
}

fn snapshot_status(e: &SnapshotError) -> Status {
    match e {
        SnapshotError::Expired { oldest } => {
            Status::expired(format!("The resourceVersion for the provided list is too old; the oldest one is {oldest}"))
        }
        SnapshotError::Future { current } => too_new(current + 1, *current),
        other => Status::internal(other),
    }
}
