//! Update: implements the contract of `k8s.io/apiserver/pkg/registry/rest/update.go`. PUT and PATCH differ only in
//! how they compute the new object from the old one.

use crate::admit::{Admit, Charge};
use crate::metadata::OwnersSeen;
use crate::options::{Preconditions, WriteOptions};
use crate::strategy::{Env, Request, Sent};
use crate::versions::Conversions;
use crate::written::{Written, commit_status};
use crate::{Registry, managed, metadata};
use bytes::Bytes;
use kinds::Generation;
use meta::{FieldError, FieldPath, GroupKind, MutatedBy, Object, Operation, Status};
use std::sync::Arc;
use store::{Action, CommitError, Entry, Expect, Key, Op};

/// Maximum number of attempts of an update without a resource version after conflicts.
const TRIES: usize = 12;

/// The new object that an update computes.
pub enum Target {
    Object(Box<Sent>),
    /// Create the object: it does not exist, and the update may create it (server-side apply).
    Create(Box<Sent>),
}

impl Target {
    /// An object to write in place of the live one.
    pub fn object(object: impl Into<Sent>) -> Self {
        Self::Object(Box::new(object.into()))
    }
}

pub enum Updated {
    Changed(Written),
    /// Nothing was written: the object is unchanged.
    Same(Written),
    Created(Written),
    /// The update removed the last finalizer of an object under deletion, and so the object.
    Removed(Object),
}

impl Updated {
    pub fn into_written(self) -> Written {
        match self {
            Self::Changed(w) | Self::Same(w) | Self::Created(w) => w,
            Self::Removed(o) => o.into(),
        }
    }
}

/// Computes the new object from the live one (none: it does not exist). Called again after a conflict, and after conversions that it
/// recorded as missing.
pub type Change<'a> = &'a (dyn Fn(Option<&Object>, &Conversions) -> Result<Target, Status> + Send + Sync);

impl Registry {
    pub async fn update(
        &self,
        request: &Request,
        change: Change<'_>,
        preconditions: &Preconditions,
        options: &WriteOptions,
        admit: &dyn Admit,
    ) -> Result<Updated, Status> {
        let row = &request.resource;
        let gr = row.group_resource();
        let Some(key) = row.key(&request.namespace, &request.name) else {
            return Err(Status::method_not_supported(&gr, "update"));
        };
        let conversions = Conversions::default();
        for _ in 0..TRIES {
            let Some(entry) = self.find(&key)? else {
                return match change(None, &conversions)? {
                    // The object must exist if it must have a resource version.
                    _ if preconditions.resource_version.is_some() => Err(Status::not_found(&gr, &request.name)),
                    // A UID of a deleted object refers to that object.
                    Target::Create(o) if !o.uid().is_empty() => Err(uid_mismatch(request, o.uid(), "")),
                    Target::Create(mut o) => {
                        o.remove(&["metadata", "resourceVersion"]);
                        self.create(request, *o, options, admit).await.map(Updated::Created)
                    }
                    Target::Object(_) => Err(Status::not_found(&gr, &request.name)),
                };
            };
            let old = self.live(row, &entry).await?;
            match &preconditions.uid {
                Some(uid) if uid != old.uid() => return Err(uid_mismatch(request, uid, old.uid())),
                _ if preconditions.resource_version.as_ref().is_some_and(|v| v != old.resource_version()) => {
                    return Err(Status::modified(&gr, &request.name));
                }
                _ => {}
            }
            let mut made = change(Some(&old), &conversions);
            while self.convert_pending(request, &conversions).await {
                made = change(Some(&old), &conversions);
            }
            let mut new = match made? {
                Target::Object(o) | Target::Create(o) => *o,
            };
            if new.resource_version().parse() == Ok(0) {
                // An unconditional update.
                new.remove(&["metadata", "resourceVersion"]);
            }
            if !new.resource_version().is_empty() && new.resource_version() != old.resource_version() {
                return Err(Status::modified(&gr, &request.name));
            }
            match self.update_once(request, new, &old, options, admit).await? {
                Step::Write { object, key, bytes, allocated, charge } => {
                    if options.dry_run {
                        return Ok(Updated::Changed((*object).into()));
                    }
                    let expect = Expect::Revision(entry.revision);
                    let mut ops = vec![Op { key, expect, action: Action::Put(bytes) }];
                    ops.extend(allocated);
                    ops.extend(charge.ops);
                    match self.commit(row, "update", ops).await {
                        Ok(done) => {
                            let written = Written::committed(*object, &done);
                            if let Some(entry) = written.entry.as_ref().filter(|e| row.serves_bytes(e)) {
                                self.recent.keep(entry, &written.object);
                            }
                            return Ok(Updated::Changed(written));
                        }
                        // A conditional update is checked again on the next attempt.
                        Err(CommitError::Conflict { .. }) => {}
                        Err(e) => return Err(commit_status(&e)),
                    }
                }
                Step::Same => return Ok(Updated::Same(Written { object: old, entry: Some(entry) })),
                Step::Remove(o) => {
                    if options.dry_run {
                        return Ok(Updated::Removed(*o));
                    }
                    match self.remove(request, &o, entry.revision).await {
                        Ok(_) => return Ok(Updated::Removed(*o)),
                        Err(CommitError::Conflict { .. }) => {}
                        Err(e) => return Err(commit_status(&e)),
                    }
                }
            }
        }
        Err(Status::modified(&gr, &request.name))
    }

    /// The object to update.
    async fn live(&self, row: &crate::Resource, entry: &Entry) -> Result<Arc<Object>, Status> {
        match self.recent.get(entry).filter(|_| row.serves_bytes(entry)) {
            Some(object) => Ok(object),
            None => self.from_stored(row, entry).await.map(Arc::new),
        }
    }

    async fn update_once(
        &self,
        request: &Request,
        sent: Sent,
        old: &Object,
        options: &WriteOptions,
        admit: &dyn Admit,
    ) -> Result<Step, Status> {
        let Sent { object: mut new, empties, .. } = sent;
        let row = &request.resource;
        let strategy = &row.strategy;
        let env = Env::new(self, admit.warnings()).with(options);
        if new.name() != old.name() {
            let url = &request.name;
            let why = match new.name() {
                "" => format!("the name of the object ({url} based on URL) was undeterminable: name must be provided"),
                name => format!("the name of the object ({name}) does not match the name on the URL ({url})"),
            };
            return Err(Status::bad_request(why));
        }
        if !new.uid().is_empty() && new.uid() != old.uid() {
            // Only an update with a whole object has its UID as a precondition.
            if request.verb == "patch" {
                let e = FieldError::invalid(&FieldPath::new("metadata.uid"), new.uid(), "field is immutable");
                // Upstream validates it twice.
                return Err(Status::invalid(&row.named_kind(), old.name(), &[e.clone(), e]));
            }
            return Err(uid_mismatch(request, new.uid(), old.uid()));
        }
        if new.resource_version().is_empty() && row.kind.needs_revision {
            let path = FieldPath::new("metadata.resourceVersion");
            let e = FieldError::invalid(&path, 0, "must be specified for an update");
            // Upstream's message has the resource here, not the kind.
            let gr = row.group_resource();
            let named = GroupKind { group: gr.group, kind: gr.resource };
            return Err(Status::invalid(&named, old.name(), &[e]));
        }
        keep_system_metadata(&mut new, old);
        keep_other_parts(request, &mut new, old);
        // What a patch makes is seen only after admission.
        if request.verb != "patch" {
            metadata::remove_duplicate_owners(&mut new, OwnersSeen::InRequest, env);
        }
        managed::on_update(self, request, &mut new, old, options).await;
        schema::settle(&mut new.0, &row.kind.schema);
        if admit.mutate(Operation::Update, &mut new, Some(old)).await? == MutatedBy::Anyone {
            keep_system_metadata(&mut new, old);
            keep_other_parts(request, &mut new, old);
            schema::settle(&mut new.0, &row.kind.schema);
        }
        metadata::remove_duplicate_owners(&mut new, OwnersSeen::AfterAdmission, env);
        strategy.permit(env, request, &new, Some(old))?;
        let allocated = match request.subresource.is_empty() {
            true => strategy.allocate(env, &mut new, Some(old))?,
            false => Vec::new(),
        };
        schema::rules::leave_out(&mut new.0, Some(&old.0), &row.kind.schema, self.features());
        strategy.prepare_for_update(env, request, &mut new, old);
        if strategy.counts_generation(&request.subresource) {
            self.count_generation(row, &mut new, old);
        }
        let errors = empties.while_known(|| validate(env, request, &new, old));
        if !errors.is_empty() {
            return Err(Status::invalid(&row.named_kind(), old.name(), &errors));
        }
        let warnings = match request.subresource.as_str() {
            "" => strategy.warnings(&new, Some(old)),
            part => strategy.part_warnings(part, &new),
        };
        for w in warnings {
            env.warn(w);
        }
        admit.validate(Operation::Update, Some(&new), Some(old)).await?;
        // As on create.
        strategy.default(&mut new);
        new.set_resource_version(old.resource_version());
        if new.is_deleting()
            && new.finalizers().next().is_none()
            && new.deletion_grace_period_seconds().unwrap_or(0) == 0
            && !strategy.keeps_alive(&new)
        {
            return Ok(Step::Remove(Box::new(new)));
        }
        if managed::same(&new, old) {
            return Ok(Step::Same);
        }
        let charge = admit.charge(Operation::Update, &new, Some(old)).await?;
        let bytes = self.to_stored(row, &mut new).await?;
        let Some(key) = row.key(&request.namespace, &request.name) else {
            return Err(Status::internal("a function has no key"));
        };
        Ok(Step::Write { object: Box::new(new), key, bytes, allocated, charge })
    }

    fn count_generation(&self, row: &crate::Resource, new: &mut Object, old: &Object) {
        let Some(counted) = row.kind.generation.filter(|g| *g != Generation::First) else { return };
        let counts = |k: &str| {
            let status = k == "status" && counted != Generation::Content;
            !status && !matches!(k, "metadata" | "kind" | "apiVersion")
        };
        let content = |o: &'_ Object| o.0.iter().filter(|(k, _)| counts(k)).count();
        let part = match counted {
            Generation::Annotations => Some("annotations"),
            Generation::Labels => Some("labels"),
            _ => None,
        };
        let differs = new.0.iter().any(|(k, v)| counts(k) && old.get(k) != Some(v));
        let changed = content(new) != content(old)
            || differs
            || part.is_some_and(|p| new.at(&["metadata", p]) != old.at(&["metadata", p]));
        if changed {
            new.set_generation(old.generation().saturating_add(1));
        }
    }

    /// Removes an object at a revision, and releases its allocations. Returns the revision of the removal.
    pub(crate) async fn remove(&self, request: &Request, object: &Object, revision: u64) -> Result<u64, CommitError> {
        let row = &request.resource;
        let Some(key) = row.key(object.namespace(), object.name()) else { return Ok(revision) };
        let mut ops = vec![Op { key, expect: Expect::Revision(revision), action: Action::Delete }];
        ops.extend(row.strategy.release(self.env(), object));
        Ok(self.commit(row, "delete", ops).await?.revision)
    }
}

enum Step {
    Write { object: Box<Object>, key: Key, bytes: Bytes, allocated: Vec<Op>, charge: Charge },
    Same,
    Remove(Box<Object>),
}

/// Validates a changed object, or the written part of it.
fn validate(env: Env<'_>, request: &Request, new: &Object, old: &Object) -> Vec<FieldError> {
    let (row, strategy) = (&request.resource, &request.resource.strategy);
    let mut errors = Vec::new();
    metadata::validate_update(new, old, row, &request.subresource, &mut errors);
    if request.subresource.is_empty() {
        let of_metadata = errors.len();
        schema::rules::validate(&new.0, &row.kind.schema, &mut errors);
        strategy.validate(new, &mut errors);
        strategy.validate_since(new, Some(old), &mut errors);
        let found = schema::rules::Found { of_metadata, before_changes: errors.len() };
        schema::rules::arrange(&mut errors, found, &row.kind.schema);
        schema::rules::validate_update(&new.0, &old.0, &row.kind.schema, &mut errors);
        strategy.validate_update(new, old, &mut errors);
        schema::rules::arrange(&mut errors, found, &row.kind.schema);
    } else {
        strategy.validate_part(&request.subresource, new, old, &mut errors);
    }
    strategy.examine(env, new, Some(old), &mut errors);
    schema::rules::ratchet(errors, &old.0)
}

/// Restores metadata that only the server changes. A deletion cannot be taken back; one that the object lacks, or another grace period,
/// stays, and is an error of the validation (`rest.BeforeUpdate`).
fn keep_system_metadata(new: &mut Object, old: &Object) {
    let keep =
        ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"];
    for key in keep {
        let known = |o: &Object| o.at(&["metadata", key]).is_some_and(|v| !v.is_null());
        match old.metadata().and_then(|m| m.get(key)).cloned() {
            Some(_) if key == "deletionGracePeriodSeconds" && known(new) => {}
            Some(v) => {
                new.metadata_mut().insert(key.to_owned(), v);
            }
            None if key.starts_with("deletion") && known(new) => {}
            None => {
                new.metadata_mut().remove(key);
            }
        }
    }
    if new.namespace().is_empty() {
        new.set_namespace(old.namespace());
    }
}

/// A subresource changes only its part; the object's own path everything but the status.
fn keep_other_parts(request: &Request, new: &mut Object, old: &Object) {
    let row = &request.resource;
    if !request.subresource.is_empty() {
        row.strategy.take_part(&request.subresource, new, old);
    } else if row.kind.subresource("status").is_some() {
        keep_status(new, old);
    }
}

fn keep_status(new: &mut Object, old: &Object) {
    match old.get("status") {
        same if new.get("status") == same => {}
        Some(s) => new.set(&["status"], s.clone()),
        None => {
            new.remove(&["status"]);
        }
    }
}

/// The error for an update of an object with another UID, with the message of upstream's storage.
fn uid_mismatch(request: &Request, expected: &str, found: &str) -> Status {
    let gr = request.group_resource();
    let parts = [&gr.resource, &request.namespace, &request.name].into_iter().map(String::as_str);
    let key = parts.filter(|p| !p.is_empty()).collect::<Vec<_>>().join("/");
    let why = format!("Precondition failed: UID in precondition: {expected}, UID in object meta: {found}");
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{key}, ResourceVersion: 0, AdditionalErrorMsg: {why}"
    );
    Status::conflict(&gr, &request.name, &why)
}
