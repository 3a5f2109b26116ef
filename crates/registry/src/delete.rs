//! Delete: grace periods, finalizers, propagation (`k8s.io/apiserver/pkg/registry/rest/delete.go`).

use crate::admit::Admit;
use crate::options::{DeleteOptions, IGNORE_READ_ERROR, Preconditions, Propagation};
use crate::strategy::{DeleteStrategy, Request};
use crate::written::commit_status;
use crate::{Registry, metadata};
use jiff::Timestamp;
use meta::{FieldError, FieldPath, GroupKind, GroupResource, Object, Operation, Status, time};
use store::{Action, CommitError, Expect, Op};
use stored::encode;

/// The result of a deletion.
pub enum Deleted {
    /// It was removed.
    Removed(Object),
    /// It is being deleted: a grace period or finalizers are pending.
    Waiting(Object),
}

/// The next step of a deletion.
enum Step {
    /// Remove the object. Its watchers see its last state.
    Remove,
    /// It is being deleted already, and the request changes nothing.
    Wait,
    /// Write the object with its deletion pending.
    Mark(Object),
    /// Write the object with a grace period of zero, then remove it: watchers see both.
    MarkAndRemove(Object),
}

impl Registry {
    /// Deletes an object, or starts its deletion. A server that dies between the two writes of an immediate deletion leaves an object
    /// whose grace period is over, which the next deletion removes.
    pub async fn delete(
        &self,
        request: &Request,
        options: &DeleteOptions,
        admit: &dyn Admit,
    ) -> Result<Deleted, Status> {
        let row = &request.resource;
        let gr = row.group_resource();
        let Some(key) = row.key(&request.namespace, &request.name) else {
            return Err(Status::method_not_supported(&gr, "delete"));
        };
        let tied = options.preconditions.resource_version.is_some();
        let mut marked: Option<Object> = None;
        loop {
            let found = match self.find(&key)? {
                Some(entry) => Some((self.from_stored(row, &entry).await?, entry.revision)),
                None => None,
            };
            let (live, revision) = match (found, &marked) {
                // Another request removed what this one marked.
                (None, Some(o)) => return Ok(Deleted::Removed(o.clone())),
                (Some((live, _)), Some(o)) if live.uid() != o.uid() => return Ok(Deleted::Removed(o.clone())),
                (Some(_), Some(_)) if tied => return Err(Status::modified(&gr, &request.name)),
                (Some(found), _) => found,
                (None, None) => return Err(Status::not_found(&gr, &request.name)),
            };
            check_preconditions(&options.preconditions, &live, request)?;
            row.strategy.validate_delete(&live)?;
            admit.validate(Operation::Delete, None, Some(&live)).await?;
            let step = self.begin(request, &live, options);
            let done = match step {
                Step::Wait => Ok(Deleted::Waiting(live)),
                Step::Mark(o) if o == live => Ok(Deleted::Waiting(live)),
                Step::Remove if options.dry_run => Ok(Deleted::Removed(live)),
                Step::Mark(o) if options.dry_run => Ok(Deleted::Waiting(o)),
                Step::MarkAndRemove(o) if options.dry_run => Ok(Deleted::Removed(o)),
                Step::Remove => self.finish(request, live, revision).await,
                Step::Mark(o) => self.mark(request, o, revision).await?.map(|(o, _)| Deleted::Waiting(o)),
                Step::MarkAndRemove(o) => match self.mark(request, o, revision).await? {
                    Ok((o, revision)) => {
                        marked = Some(o.clone());
                        self.finish(request, o, revision).await
                    }
                    Err(e) => Err(e),
                },
            };
            match done {
                Ok(d) => return Ok(d),
                Err(CommitError::Conflict { .. }) if marked.is_some() => {}
                Err(CommitError::Conflict { .. }) if tied => return Err(Status::modified(&gr, &request.name)),
                Err(CommitError::Conflict { .. }) => {}
                Err(e) => return Err(commit_status(&e)),
            }
        }
    }

    async fn finish(&self, request: &Request, mut o: Object, revision: u64) -> Result<Deleted, CommitError> {
        let removed = self.remove(request, &o, revision).await?;
        o.set_resource_version(&removed.to_string());
        Ok(Deleted::Removed(o))
    }

    /// Writes an object whose deletion is pending. Returns it with its revision.
    async fn mark(
        &self,
        request: &Request,
        mut o: Object,
        revision: u64,
    ) -> Result<Result<(Object, u64), CommitError>, Status> {
        let row = &request.resource;
        let Some(key) = row.key(o.namespace(), o.name()) else {
            return Err(Status::method_not_supported(&row.group_resource(), "delete"));
        };
        let bytes = self.to_stored(row, &mut o).await?;
        let op = Op { key, expect: Expect::Revision(revision), action: Action::Put(bytes) };
        Ok(self.commit(row, "update", vec![op]).await.map(|c| {
            o.set_resource_version(&c.revision.to_string());
            (o, c.revision)
        }))
    }

    /// Whether the object exists but cannot be read.
    pub fn is_unreadable(&self, request: &Request) -> bool {
        let Some(key) = request.resource.key(&request.namespace, &request.name) else { return false };
        let snapshot = self.store.snapshot();
        snapshot.damaged(&key).is_some() || snapshot.get(&key).is_some_and(|e| encode::decode(&e).is_err())
    }

    /// Deletes an object that cannot be read, ignoring finalizers, preconditions and admission
    /// (`k8s.io/apiserver/pkg/registry/generic/registry/corrupt_obj_deleter.go`). Does not release its allocations
    /// (addresses, quota usage). Errors if the object can be read.
    pub async fn delete_unreadable(&self, request: &Request) -> Result<(), Status> {
        let row = &request.resource;
        let gr = row.group_resource();
        let key = row.key(&request.namespace, &request.name);
        let key = key.ok_or_else(|| Status::method_not_supported(&gr, "delete"))?;
        let snapshot = self.store.snapshot();
        let revision = match (snapshot.get(&key), snapshot.damaged(&key)) {
            (_, Some(damaged)) => damaged.revision,
            (Some(entry), None) if encode::decode(&entry).is_err() => entry.revision,
            (Some(_), None) => {
                let why = "is exclusively used to delete corrupt object(s), try again by removing this option";
                let e = FieldError::invalid(&FieldPath::new(IGNORE_READ_ERROR), true, why);
                // Upstream's message has the resource here, not the kind.
                let named = GroupKind { group: gr.group, kind: gr.resource };
                return Err(Status::invalid(&named, &request.name, &[e]));
            }
            (None, None) => return Err(Status::not_found(&gr, &request.name)),
        };
        tracing::warn!("{key} cannot be read and is deleted");
        let op = Op { key, expect: Expect::Revision(revision), action: Action::Delete };
        match self.commit(row, "delete", vec![op]).await {
            Ok(_) => Ok(()),
            Err(CommitError::Conflict { .. }) => Err(Status::modified(&gr, &request.name)),
            Err(e) => Err(commit_status(&e)),
        }
    }

    /// The error of the first object in the request's collection that cannot be opened.
    pub fn check_readable(&self, request: &Request) -> Result<(), Status> {
        let Some((resource, _)) = request.resource.stored() else { return Ok(()) };
        let namespace = Some(request.namespace.as_str()).filter(|n| !n.is_empty());
        let snapshot = self.store.snapshot();
        crate::check_readable(&snapshot, resource, namespace)
    }

    /// Decides what a deletion does next (`rest.BeforeDelete`, `registry.Store.updateForGracefulDeletionAndFinalizers`).
    fn begin(&self, request: &Request, live: &Object, options: &DeleteOptions) -> Step {
        let strategy: &dyn DeleteStrategy = &*request.resource.strategy;
        let mut o = live.clone();
        let left = o.deletion_grace_period_seconds().unwrap_or(0);
        let grace = match strategy.grace_period(&o, options) {
            None => None,
            Some(grace) if !o.is_deleting() => {
                self.set_deletion(&mut o, grace);
                Some(grace)
            }
            Some(_) if left == 0 => None,
            // A second deletion can only shorten the grace period.
            Some(_) => match options.grace_period_seconds.map(|g| if g < 0 { 1 } else { g }) {
                Some(sooner) if sooner < left => Some(self.shorten(&mut o, left, sooner)),
                _ => return Step::Wait,
            },
        };
        self.propagate(request, &mut o, options);
        let must_wait = o.finalizers().next().is_some() || strategy.keeps_alive(&o);
        if grace.is_none() && !must_wait {
            return Step::Remove;
        }
        if grace.is_none() && !o.is_deleting() {
            self.set_deletion(&mut o, 0);
        }
        if !live.is_deleting() {
            strategy.begin_deletion(&mut o);
            if o.generation() > 0 {
                o.set_generation(o.generation().saturating_add(1));
            }
        }
        if grace == Some(0) && !must_wait { Step::MarkAndRemove(o) } else { Step::Mark(o) }
    }

    fn set_deletion(&self, o: &mut Object, grace: i64) {
        mark_deletion(o, time::plus(self.clock.now(), grace), grace);
    }

    /// Shortens the grace period of a pending deletion, counted from the deletion. Its end does not move into the past: a period that is
    /// over becomes one second, unless the deletion is immediate.
    fn shorten(&self, o: &mut Object, left: i64, sooner: i64) -> i64 {
        let now = self.clock.now();
        let end = o.deletion_timestamp().and_then(time::parse).map_or(now, |t| time::plus(t, sooner - left));
        let (end, grace) = if end < now { (now, sooner.min(1)) } else { (end, sooner) };
        mark_deletion(o, end, grace);
        grace
    }

    /// Adds or removes the finalizers of the garbage collector.
    fn propagate(&self, request: &Request, o: &mut Object, options: &DeleteOptions) {
        let had = |f: &str| o.finalizers().any(|x| x == f);
        let (orphan, foreground) = match options.propagation {
            Some(Propagation::Orphan) => (true, false),
            Some(Propagation::Foreground) => (false, true),
            Some(Propagation::Background) => (false, false),
            None if had(metadata::ORPHAN) || had(metadata::FOREGROUND) => return,
            None => (request.resource.kind.orphans, false),
        };
        let mut finalizers: Vec<String> = o
            .finalizers()
            .filter(|f| *f != metadata::ORPHAN && *f != metadata::FOREGROUND)
            .map(str::to_owned)
            .collect();
        if orphan {
            finalizers.push(metadata::ORPHAN.into());
        }
        if foreground {
            finalizers.push(metadata::FOREGROUND.into());
        }
        if finalizers.iter().map(String::as_str).ne(o.finalizers()) {
            o.set_finalizers(finalizers);
        }
    }
}

fn mark_deletion(o: &mut Object, end: Timestamp, grace: i64) {
    let m = o.metadata_mut();
    m.insert("deletionTimestamp".into(), time::format(end).into());
    m.insert("deletionGracePeriodSeconds".into(), grace.into());
}

fn check_preconditions(p: &Preconditions, live: &Object, request: &Request) -> Result<(), Status> {
    let fail = |what: &str, expected: &str, current: &str, happened: &str| {
        if request.resource.strategy.deletes_in_phases() {
            let why =
                format!("Precondition failed: {what} in precondition: {expected}, {what} in object meta: {current}");
            return Err(Status::conflict(&request.group_resource(), live.name(), &why));
        }
        let why = format!(
            "the {what} in the precondition ({expected}) does not match the {what} in record ({current}). The object might have been {happened}"
        );
        // Upstream's message has the kind here, not the resource.
        let gr =
            GroupResource { group: request.group_resource().group, resource: request.resource.kind.kind.to_string() };
        Err(Status::conflict(&gr, live.name(), &why))
    };
    match (&p.uid, &p.resource_version) {
        (Some(u), _) if u != live.uid() => fail("UID", u, live.uid(), "deleted and then recreated"),
        (_, Some(v)) if v != live.resource_version() => fail("ResourceVersion", v, live.resource_version(), "modified"),
        _ => Ok(()),
    }
}
