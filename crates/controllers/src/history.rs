//! The history of a pod template as ControllerRevisions (upstream `controller_history.go`), for StatefulSets and DaemonSets.
//!
//! A revision's data is a strategic merge patch that replaces `spec.template` of its owner. The revision with the highest number has
//! the present template.

use crate::context::{Error, object};
use crate::ownership::{Claims, controller_reference};
use client::{Api, ApiResource, DeleteOptions, Informer, WriteOptions, optional};
use meta::{LabelSelector, Object, Value};
use serde_json::json;

/// The label of pods, and of revisions of DaemonSets, that tells which template they have.
pub const HASH_LABEL: &str = "controller-revision-hash";
/// The label of other revisions with the hash of their data.
const REVISION_LABEL: &str = "controller.kubernetes.io/hash";

/// The longest part of the owner's name that fits into the name of a revision.
const MAX_PREFIX: usize = 223;

pub fn revisions() -> ApiResource {
    ApiResource::typed::<k8s_openapi::api::apps::v1::ControllerRevision>()
}

/// A short hash of a value: FNV-1a over its JSON with sorted keys.
pub fn hash(value: &Value, collisions: Option<i64>) -> String {
    let mut h: u32 = 0x811c_9dc5;
    let mut eat = |bytes: &[u8]| {
        for b in bytes {
            h = (h ^ u32::from(*b)).wrapping_mul(0x0100_0193);
        }
    };
    eat(value.to_string().as_bytes());
    // Status may have a count of zero or none.
    if let Some(c) = collisions.filter(|c| *c != 0) {
        eat(&c.to_le_bytes());
    }
    meta::random::safe_encode(&h.to_string())
}

/// A template without the empty fields that some clients write.
pub fn bare(template: Option<&Value>) -> Value {
    let mut t = template.cloned().unwrap_or_default();
    if let Some(t) = t.as_object_mut() {
        t.remove("$patch");
        if let Some(m) = t.get_mut("metadata").and_then(Value::as_object_mut) {
            m.retain(|_, v| !v.is_null());
        }
    }
    t
}

/// The data of the revision of the owner's present template.
fn data(owner: &Object) -> Value {
    let mut template = bare(owner.at(&["spec", "template"]));
    template["$patch"] = "replace".into();
    json!({"spec": {"template": template}})
}

/// The number of a revision: 1 for the first.
pub fn number(revision: &Object) -> i64 {
    revision.int_at(&["revision"]).unwrap_or(0)
}

/// The template that a revision restores.
pub fn template(revision: &Object) -> Value {
    bare(revision.at(&["data", "spec", "template"]))
}

/// The owner with the template of a revision.
pub fn restore(owner: &Object, revision: &Object) -> Object {
    let mut restored = owner.clone();
    restored.set(&["spec", "template"], template(revision));
    restored
}

/// The revisions of an owner.
pub struct History {
    /// The revision with the owner's present template.
    pub update: Object,
    /// All other revisions, the oldest first.
    pub others: Vec<Object>,
    /// How often the name of a new revision was taken, for `status.collisionCount`.
    pub collisions: Option<i64>,
}

/// Reads and writes the revisions of one owner.
pub struct Revisions<'a> {
    owner: &'a Object,
    owners: &'a Api<Object>,
    api: Api<Object>,
}

impl<'a> Revisions<'a> {
    /// `owners` is in the owner's namespace.
    pub fn new(owner: &'a Object, owners: &'a Api<Object>) -> Self {
        let api = owners.client().dynamic(&revisions()).namespace(owner.namespace());
        Self { owner, owners, api }
    }

    /// The revisions of the owner after adopting and releasing. The one of its present template is created, or gets the highest
    /// number, if necessary.
    pub async fn sync(&self, selector: &LabelSelector, informer: &Informer<()>) -> Result<History, Error> {
        let owned = Claims::new(self.owner, self.owners, &self.api)
            .claim_all(|r| selector.matches(|k| r.label(k)), informer)
            .await?;
        let mut all = owned.iter().map(|r| object(&revisions(), r)).collect::<Result<Vec<_>, _>>()?;
        all.sort_by(|a, b| {
            let key = |r: &Object| (number(r), r.creation_timestamp().to_owned(), r.name().to_owned());
            key(a).cmp(&key(b))
        });
        let next = all.last().map_or(0, number).saturating_add(1);
        let present = bare(self.owner.at(&["spec", "template"]));
        let collisions = self.owner.int_at(&["status", "collisionCount"]);
        let Some(at) = all.iter().rposition(|r| template(r) == present) else {
            let (update, collisions) = self.create(next, collisions).await?;
            return Ok(History { update, others: all, collisions });
        };
        let is_last = at + 1 == all.len();
        let mut update = all.remove(at);
        if !is_last {
            // The owner was rolled back.
            update.set(&["revision"], next);
            update = self.api.update(update.name(), &WriteOptions::default(), &update).await?;
        }
        Ok(History { update, others: all, collisions })
    }

    async fn create(&self, number: i64, mut collisions: Option<i64>) -> Result<(Object, Option<i64>), Error> {
        let data = data(self.owner);
        let labels = self.owner.at(&["spec", "template", "metadata", "labels"]).cloned();
        let annotations: serde_json::Map<_, _> =
            self.owner.annotations().map(|(k, v)| (k.to_owned(), Value::from(v))).collect();
        loop {
            let hash = hash(&data, collisions);
            let name = self.owner.name();
            let prefix = name.get(..MAX_PREFIX).unwrap_or(name);
            let mut labels = labels.clone().unwrap_or_else(|| json!({}));
            let label = if self.owner.kind() == "DaemonSet" { HASH_LABEL } else { REVISION_LABEL };
            labels[label] = hash.clone().into();
            let revision = json!({
                "apiVersion": "apps/v1", "kind": "ControllerRevision",
                "metadata": {
                    "name": format!("{prefix}-{hash}"), "namespace": self.owner.namespace(),
                    "labels": labels, "annotations": annotations,
                    "ownerReferences": [controller_reference(self.owner)],
                },
                "data": data, "revision": number,
            });
            let revision = Object::from_value(revision).unwrap_or_default();
            match self.api.create(&WriteOptions::default(), &revision).await {
                Ok(made) => return Ok((made, collisions)),
                Err(e) if e.is_already_exists() => {
                    let held = self.api.get(revision.name()).await?;
                    if template(&held) == template(&revision) {
                        match held.controller_of() {
                            Some(o) if o.uid == self.owner.uid() => return Ok((held, collisions)),
                            // The cache does not have it yet; it is adopted from there.
                            None => {
                                return Err(Error::Waiting(format!("the revision {} is not adopted yet", held.name())));
                            }
                            Some(_) => {}
                        }
                    }
                    collisions = Some(collisions.unwrap_or(0) + 1);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    pub async fn delete(&self, revision: &Object) -> Result<(), Error> {
        optional(self.api.delete(revision.name(), &DeleteOptions::uid(revision.uid())).await)?;
        Ok(())
    }

    /// Deletes the oldest `excess` of the revisions that are not in use.
    pub async fn truncate(
        &self,
        others: &[Object],
        excess: usize,
        in_use: impl Fn(&Object) -> bool,
    ) -> Result<(), Error> {
        for revision in others.iter().filter(|r| !in_use(r)).take(excess) {
            self.delete(revision).await?;
        }
        Ok(())
    }
}

/// `spec.revisionHistoryLimit`.
pub fn limit(owner: &Object) -> usize {
    owner.int_at(&["spec", "revisionHistoryLimit"]).map_or(10, |l| l.max(0) as usize)
}
