//! Delete: grace periods, finalizers, propagation (`k8s.io/apiserver/pkg/registry/rest/delete.go`).

use crate::admit::Admit;
use crate::options::{DeleteOptions, IGNORE_READ_ERROR, Preconditions, Propagation};
use crate::strategy::{DeleteStrategy, Request};
use crate::written::commit_status;
use crate::{Registry, metadata};
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

impl Registry {
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
        loop {
            let Some(entry) = self.find(&key)? else {
                return Err(Status::not_found(&gr, &request.name));
            };
            let live = self.from_stored(row, &entry).await?;
            check_preconditions(&options.preconditions, &live, request)?;
            row.strategy.validate_delete(&live)?;
            admit.validate(Operation::Delete, None, Some(&live)).await?;
            let next = self.begin(request, &live, options);
            let done = match next {
                None if options.dry_run => Ok(Deleted::Removed(live)),
                Some(o) if options.dry_run => Ok(Deleted::Waiting(o)),
                None => self.remove(request, &live, entry.revision).await.map(|()| Deleted::Removed(live)),
                // It is being deleted already, and the request changes nothing.
                Some(o) if o == live => Ok(Deleted::Waiting(o)),
                Some(mut o) => {
                    let bytes = self.to_stored(row, &o).await?;
                    let expect = Expect::Revision(entry.revision);
                    let op = Op { key: key.clone(), expect, action: Action::Put(bytes) };
                    self.commit(row, "update", vec![op]).await.map(|c| {
                        o.set_resource_version(&c.revision.to_string());
                        Deleted::Waiting(o)
                    })
                }
            };
            match done {
                Ok(d) => return Ok(d),
                Err(CommitError::Conflict { .. }) if tied => return Err(Status::modified(&gr, &request.name)),
                Err(CommitError::Conflict { .. }) => {}
                Err(e) => return Err(commit_status(&e)),
            }
        }
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

    /// The object with its deletion pending; none if it can be removed now.
    fn begin(&self, request: &Request, live: &Object, options: &DeleteOptions) -> Option<Object> {
        let strategy: &dyn DeleteStrategy = &*request.resource.strategy;
        let mut o = live.clone();
        self.propagate(request, &mut o, options);
        let grace = strategy.grace_period(&o, options);
        let must_wait = o.finalizers().next().is_some() || strategy.keeps_alive(&o);
        if o.is_deleting() {
            // A second deletion can only shorten the grace period.
            let left = o.deletion_grace_period_seconds().unwrap_or(0);
            match grace {
                Some(g) if g < left => self.set_deletion(&mut o, g),
                Some(_) if left > 0 => return Some(o),
                _ => {}
            }
            let over = o.deletion_grace_period_seconds().unwrap_or(0) == 0;
            return if must_wait || (!over && grace.is_some()) { Some(o) } else { None };
        }
        match grace {
            Some(g) if g > 0 => self.set_deletion(&mut o, g),
            _ if must_wait => self.set_deletion(&mut o, 0),
            _ => return None,
        }
        strategy.begin_deletion(&mut o);
        if o.generation() > 0 {
            o.set_generation(o.generation().saturating_add(1));
        }
        Some(o)
    }

    fn set_deletion(&self, o: &mut Object, grace: i64) {
        let at = time::plus(self.clock.now(), grace);
        let m = o.metadata_mut();
        m.insert("deletionTimestamp".into(), time::format(at).into());
        m.insert("deletionGracePeriodSeconds".into(), grace.into());
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

fn check_preconditions(p: &Preconditions, live: &Object, request: &Request) -> Result<(), Status> {
    let fail = |what: &str, expected: &str, current: &str, happened: &str| {
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
