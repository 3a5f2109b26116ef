//! Create: implements the contract of `k8s.io/apiserver/pkg/registry/rest/create.go`.

use crate::admit::Admit;
use crate::metadata::OwnersSeen;
use crate::options::WriteOptions;
use crate::row::{Backend, Resource};
use crate::strategy::{Env, Request, Sent};
use crate::written::{Written, commit_status};
use crate::{Registry, managed, metadata};
use kinds::Generation;
use meta::{MutatedBy, Object, Operation, Status, random, time};
use store::{Action, CommitError, Expect, Key, Op};

/// Maximum number of attempts to generate an unused name.
const NAME_TRIES: usize = 8;
/// Maximum length of a prefix for generated names.
const NAME_PREFIX_MAX: usize = 58;

impl Registry {
    /// Creates `object`, which must be decoded into the served version, defaulted, and have its namespace set.
    pub async fn create(
        &self,
        request: &Request,
        sent: impl Into<Sent>,
        options: &WriteOptions,
        admit: &dyn Admit,
    ) -> Result<Written, Status> {
        let Sent { mut object, empties, labels_are_defaults } = sent.into();
        let row = &request.resource;
        if let Backend::Function(f) = &row.backend {
            managed::on_create(self, request, &mut object, options).await;
            admit.mutate(Operation::Create, &mut object, None).await?;
            admit.validate(Operation::Create, Some(&object), None).await?;
            return f.create(Env::new(self, admit.warnings()), request, object, options).await.map(Written::from);
        }
        let versioned = names_a_version(&object);
        self.stamp(request, &mut object);
        let generated = object.name().is_empty() && !object.generate_name().is_empty();
        if !generated {
            return self.create_once(request, (object, &empties, labels_are_defaults), versioned, options, admit).await;
        }
        let mut tries = NAME_TRIES;
        loop {
            let mut attempt = object.clone();
            attempt.set_name(&self.generate_name(object.generate_name()));
            match self.create_once(request, (attempt, &empties, labels_are_defaults), versioned, options, admit).await {
                Err(s) if s.is(meta::Reason::AlreadyExists) && tries > 1 => tries -= 1,
                other => return other,
            }
        }
    }

    fn generate_name(&self, prefix: &str) -> String {
        let mut end = prefix.len().min(NAME_PREFIX_MAX);
        while !prefix.is_char_boundary(end) {
            end -= 1;
        }
        format!("{}{}", &prefix[..end], random::suffix(&*self.rng, 5))
    }

    /// Sets the metadata that the server determines for a new object.
    fn stamp(&self, request: &Request, object: &mut Object) {
        let uid = random::uuid(&*self.rng);
        let now = time::format(self.clock.now());
        let m = object.metadata_mut();
        for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"] {
            m.remove(key);
        }
        m.insert("uid".into(), uid.into());
        m.insert("creationTimestamp".into(), now.into());
        // A kind that does not count keeps what the client sent.
        match request.resource.kind.generation {
            Some(Generation::Changes) => _ = object.remove(&["metadata", "generation"]),
            Some(_) => object.set_generation(1),
            None => {}
        }
    }

    async fn create_once(
        &self,
        request: &Request,
        (mut object, empties, labels_are_defaults): (Object, &schema::Empties, bool),
        versioned: bool,
        options: &WriteOptions,
        admit: &dyn Admit,
    ) -> Result<Written, Status> {
        let row = &request.resource;
        let strategy = &row.strategy;
        let mut env = Env::new(self, admit.warnings()).with(options);
        env.labels_are_defaults = labels_are_defaults;
        metadata::remove_duplicate_owners(&mut object, OwnersSeen::InRequest, env);
        managed::on_create(self, request, &mut object, options).await;
        schema::settle(&mut object.0, &row.kind.schema);
        let stamped = Stamp::read(&object);
        if admit.mutate(Operation::Create, &mut object, None).await? == MutatedBy::Anyone {
            stamped.restore(&mut object);
            if row.kind.namespaced && object.namespace() != request.namespace {
                let why = "the namespace of the provided object does not match the namespace sent on the request";
                return Err(Status::bad_request(why));
            }
            metadata::remove_duplicate_owners(&mut object, OwnersSeen::AfterAdmission, env);
            schema::settle(&mut object.0, &row.kind.schema);
        }
        strategy.permit(env, request, &object, None)?;
        let untouched = strategy.allocates().then(|| object.clone());
        let mut candidate = object;
        let mut key = None;
        for attempt in 0.. {
            if let Some(o) = untouched.as_ref().filter(|_| attempt > 0) {
                candidate = o.clone();
            }
            let with = strategy.allocate(env, &mut candidate, None)?;
            // A retry changes only allocated values, which need no second validation.
            if attempt == 0 || untouched.is_some() {
                schema::rules::leave_out(&mut candidate.0, None, &row.kind.schema, self.features());
                strategy.prepare_for_create(env, request, &mut candidate);
            }
            if attempt == 0 {
                validate_new(env, request, &candidate, empties)?;
                admit.validate(Operation::Create, Some(&candidate), None).await?;
                key = row.key(candidate.namespace(), candidate.name());
            }
            let Some(key) = &key else {
                return Err(Status::internal("a function has no key"));
            };
            if options.dry_run && self.find(key)?.is_some() {
                return Err(self.already_exists(row, &candidate, key));
            }
            let charge = admit.charge(Operation::Create, &candidate, None).await?;
            // Upstream sets defaults when it reads the new object back, also those that follow from what admission set.
            strategy.default(&mut candidate);
            if options.dry_run {
                // A dry run shows allocations and then releases them.
                self.store_and_read(row, &mut candidate).await?;
                return Ok(candidate.into());
            }
            if versioned {
                let why = "resourceVersion should not be set on objects to be created";
                return Err(Status::new(500, meta::Reason::Unknown, why));
            }
            let bytes = self.to_stored(row, &mut candidate).await?;
            let mut ops = vec![Op { key: key.clone(), expect: Expect::Absent, action: Action::Put(bytes) }];
            ops.extend(with);
            ops.extend(charge.ops);
            match self.commit(row, "create", ops).await {
                Ok(done) => return Ok(Written::committed(candidate, &done)),
                Err(CommitError::Conflict { op: 0, .. }) => return Err(self.already_exists(row, &candidate, key)),
                Err(CommitError::Conflict { .. }) if attempt < 16 => {}
                Err(e) => return Err(commit_status(&e)),
            }
        }
        unreachable!("the loop above only ends by returning")
    }
}

/// Seconds after which a client may try another generated name.
const NAME_RETRY_AFTER: u32 = 1;

impl Registry {
    /// The error for a name that is taken: the existing object may be on its way out.
    fn already_exists(&self, row: &Resource, new: &Object, key: &Key) -> Status {
        let gr = row.group_resource();
        let mut status = Status::already_exists(&gr, new.name());
        if !new.generate_name().is_empty() {
            status.message.push_str(", the server was not able to generate a unique name for the object");
            status.details.get_or_insert_default().retry_after_seconds = NAME_RETRY_AFTER;
        }
        let existing = self.find(key).ok().flatten().and_then(|e| stored::encode::decode(&e).ok());
        if existing.is_some_and(|o| o.is_deleting()) {
            status.message.insert_str(0, "object is being deleted: ");
        }
        status
    }
}

/// Validates a new object, and warns of its values.
fn validate_new(env: Env<'_>, request: &Request, object: &Object, empties: &schema::Empties) -> Result<(), Status> {
    let row = &request.resource;
    let strategy = &row.strategy;
    let errors = empties.while_known(|| {
        let mut errors = Vec::new();
        metadata::validate(object, row, &mut errors);
        metadata::validate_finalizers(object, row, &mut errors);
        let of_metadata = errors.len();
        schema::rules::validate(&object.0, &row.kind.schema, &mut errors);
        strategy.validate(object, &mut errors);
        strategy.validate_since(object, None, &mut errors);
        let found = schema::rules::Found { of_metadata, before_changes: errors.len() };
        schema::rules::arrange(&mut errors, found, &row.kind.schema);
        strategy.examine(env, object, None, &mut errors);
        if errors.is_empty() {
            metadata::validate_segments(object, &mut errors);
        }
        errors
    });
    if !errors.is_empty() {
        return Err(Status::invalid(&row.named_kind(), object.name(), &errors));
    }
    for w in strategy.warnings(object, None) {
        env.warn(w);
    }
    Ok(())
}

/// Whether an object sets a resource version. Only nonzero numbers count; other text is ignored.
pub(crate) fn names_a_version(object: &Object) -> bool {
    object.resource_version().parse::<u64>().is_ok_and(|v| v != 0)
}

/// Sets the metadata that only the server may set on a new object.
struct Stamp([(&'static str, Option<meta::Value>); 3]);

impl Stamp {
    fn read(object: &Object) -> Self {
        Self(["uid", "creationTimestamp", "generation"].map(|k| (k, object.at(&["metadata", k]).cloned())))
    }

    fn restore(self, object: &mut Object) {
        for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"] {
            object.metadata_mut().remove(key);
        }
        for (key, value) in self.0 {
            match value {
                Some(v) => object.metadata_mut().insert(key.into(), v),
                None => object.metadata_mut().remove(key),
            };
        }
    }
}
