//! The journal of an atomic apply, object by object, and how to undo it.
//!
//! Invariant: only what this apply wrote is undone, and only where it is unchanged since. Status and metadata of the server
//! do not count.

use super::foreign;
use super::order::group;
use crate::discovery::Resource;
use crate::error::{Error, Result, text};
use crate::kube::Kube;
use crate::resource::Info;
use crate::resource::deletion::wait_deleted;
use client::{DeleteOptions, Patch, Propagation, WriteOptions};
use meta::{Gvk, Map, Object, Value};
use serde_json::json;
use std::time::Duration;

/// A write of one object.
#[derive(Clone, Debug)]
pub struct Step {
    pub gvk: Gvk,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
    /// The field manager of the apply, which also undoes it, so that the fields keep their manager.
    pub manager: String,
    /// The object before the write; `None` if it did not exist.
    pub before: Option<Object>,
    /// The object after the write; `None` if it is unknown whether the write arrived.
    pub after: Option<Object>,
}

/// Time limit for the deletion of an object.
const DELETION_TIMEOUT: Duration = Duration::from_secs(60);
/// How many times a write is tried when others write at the same time.
const ATTEMPTS: usize = 5;

/// Returns the part of an object that users write.
fn content(o: &Object) -> Value {
    let mut m = o.0.clone();
    m.remove("status");
    if let Some(Value::Object(meta)) = m.get_mut("metadata") {
        meta.retain(|k, _| matches!(k.as_str(), "labels" | "annotations" | "ownerReferences"));
    }
    m.into()
}

/// Reports the paths of `written` that `current` lacks or has changed. Additional fields are allowed.
fn changed_fields(written: &Value, current: Option<&Value>, path: &str, out: &mut Vec<String>) {
    match (written, current) {
        (Value::Object(w), Some(Value::Object(c))) => {
            w.iter().for_each(|(k, v)| changed_fields(v, c.get(k), &format!("{path}.{k}"), out));
        }
        (Value::Array(w), Some(Value::Array(c))) if w.len() == c.len() => {
            w.iter()
                .zip(c)
                .enumerate()
                .for_each(|(i, (w, c))| changed_fields(w, Some(c), &format!("{path}[{i}]"), out));
        }
        (w, Some(c)) if w == c => {}
        (Value::Null, None) => {}
        _ => out.push(path.to_owned()),
    }
}

/// Reports the paths that changed from `before` to `after` and have another value now.
fn changed_since(before: &Value, after: &Value, current: Option<&Value>, path: &str, out: &mut Vec<String>) {
    if before == after {
        return;
    }
    match (before, after, current) {
        (Value::Object(b), Value::Object(a), Some(Value::Object(c))) => {
            let keys: std::collections::BTreeSet<&String> = b.keys().chain(a.keys()).collect();
            for k in keys {
                match (b.get(k), a.get(k)) {
                    (Some(b), Some(a)) => changed_since(b, a, c.get(k), &format!("{path}.{k}"), out),
                    (_, a) if a == c.get(k) => {}
                    _ => out.push(format!("{path}.{k}")),
                }
            }
        }
        (_, a, Some(c)) if a == c => {}
        _ => out.push(path.to_owned()),
    }
}

/// Returns the merge patch from `after` back to `before`.
fn reverse_patch(before: &Map<String, Value>, after: &Map<String, Value>) -> Map<String, Value> {
    let mut out = Map::new();
    for (k, b) in before {
        match (b, after.get(k)) {
            (b, Some(a)) if a == b => {}
            (Value::Object(b), Some(Value::Object(a))) => _ = out.insert(k.clone(), reverse_patch(b, a).into()),
            (b, _) => _ = out.insert(k.clone(), b.clone()),
        }
    }
    out.extend(after.keys().filter(|k| !before.contains_key(*k)).map(|k| (k.clone(), Value::Null)));
    out
}

/// What undoing a step takes.
enum Reversal {
    Nothing,
    Delete(Object),
    Patch(Object, Map<String, Value>),
}

impl Step {
    /// `deployment.apps/web`.
    pub fn to_name(&self) -> String {
        let kind = self.gvk.kind.to_lowercase();
        let dot = if self.gvk.group.is_empty() { String::new() } else { format!(".{}", self.gvk.group) };
        format!("{kind}{dot}/{}", self.name)
    }

    /// Whether the step wrote this object of `r`.
    fn is_about(&self, r: &Resource, o: &Object) -> bool {
        self.gvk.group == r.group && self.gvk.kind == r.kind && self.name == o.name() && self.namespace == o.namespace()
    }

    async fn info(&self, k: &mut Kube) -> Result<Info> {
        let Some(resource) = k.resource_of(&self.gvk).await? else {
            return text(format!("{}: the server has no kind {:?} any more", self.to_name(), self.gvk.kind));
        };
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        Ok(Info { resource, namespace, name, source: String::new(), object: None })
    }

    /// Decides how to undo the step. Errors if another client has changed the object since.
    async fn plan(&self, k: &mut Kube, i: &Info, all: &[Self]) -> Result<Reversal> {
        let current = k.api(&i.resource, &i.namespace).await?.get_opt(&i.name).await?;
        let name = self.to_name();
        let (before, after, current) = match (&self.before, &self.after, current) {
            (None, _, None) => return Ok(Reversal::Nothing),
            (None, None, Some(c)) => {
                return foreign::check_none(k, &c, |r, o| all.iter().any(|s| s.is_about(r, o)))
                    .await
                    .map(|()| Reversal::Delete(c));
            }
            (Some(_), _, None) => return text(format!("{name} was deleted since")),
            (_, Some(a), Some(c)) if a.uid() != c.uid() => return text(format!("{name} was replaced since")),
            (None, Some(a), Some(c)) => {
                let mut different = Vec::new();
                changed_fields(&content(a), Some(&content(&c)), "", &mut different);
                if !different.is_empty() {
                    return text(changed_message(&name, &different));
                }
                return foreign::check_none(k, &c, |r, o| all.iter().any(|s| s.is_about(r, o)))
                    .await
                    .map(|()| Reversal::Delete(c));
            }
            (Some(b), after, Some(c)) => (b, after.clone().unwrap_or_else(|| c.clone()), c),
        };
        let (b, a) = (content(before), content(&after));
        let mut different = Vec::new();
        changed_since(&b, &a, Some(&content(&current)), "", &mut different);
        if !different.is_empty() {
            return text(changed_message(&name, &different));
        }
        Ok(match (b, a) {
            (Value::Object(b), Value::Object(a)) => match reverse_patch(&b, &a) {
                patch if patch.is_empty() => Reversal::Nothing,
                patch => Reversal::Patch(current, patch),
            },
            _ => Reversal::Nothing,
        })
    }

    /// Checks whether the step, one of `all`, can be undone.
    pub async fn check(&self, k: &mut Kube, all: &[Self]) -> Result {
        let i = self.info(k).await?;
        self.plan(k, &i, all).await.map(drop)
    }

    /// Undoes the step. Returns the operation for the output.
    async fn revert(&self, k: &mut Kube, all: &[Self]) -> Result<&'static str> {
        let i = self.info(k).await?;
        let api = k.api(&i.resource, &i.namespace).await?;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let failed = match self.plan(k, &i, all).await? {
                Reversal::Nothing => return Ok("unchanged"),
                Reversal::Delete(o) => {
                    let mut options = DeleteOptions::uid(o.uid());
                    options.propagation_policy = Some(Propagation::Background);
                    match api.delete(&i.name, &options).await {
                        Ok(_) => {
                            if group(&o) == "apiextensions.k8s.io" {
                                k.forget_discovery();
                            }
                            wait_deleted(k, &i, o.uid(), tokio::time::Instant::now() + DELETION_TIMEOUT).await?;
                            return Ok("deleted");
                        }
                        Err(e) => e,
                    }
                }
                Reversal::Patch(current, mut patch) => {
                    // The resource version protects against writes since the check.
                    let slot = patch.entry("metadata").or_insert_with(|| json!({}));
                    slot["resourceVersion"] = current.resource_version().into();
                    match api.patch(&i.name, &WriteOptions::manager(&self.manager), &Patch::Merge(patch.into())).await {
                        Ok(_) => return Ok("restored"),
                        Err(e) => e,
                    }
                }
            };
            if !failed.is_conflict() || attempt == ATTEMPTS {
                return Err(failed.into());
            }
        }
    }

    /// Serializes the step for a record.
    pub fn to_value(&self) -> Value {
        json!({
            "apiVersion": self.gvk.api_version(), "kind": self.gvk.kind, "namespace": self.namespace, "name": self.name,
            "manager": self.manager,
            "before": self.before.as_ref().map(|o| o.clone().into_value()),
            "after": self.after.as_ref().map(|o| o.clone().into_value()),
        })
    }

    /// Parses a step of a record; `None` if it is malformed.
    pub fn from_value(v: &Value) -> Option<Self> {
        let text = |key: &str| v[key].as_str().map(str::to_owned);
        let identity = Object::from_value(json!({"apiVersion": v["apiVersion"], "kind": v["kind"]}))?;
        Some(Self {
            gvk: identity.gvk()?,
            namespace: text("namespace")?,
            name: text("name")?,
            manager: text("manager")?,
            before: Object::from_value(v["before"].clone()),
            after: Object::from_value(v["after"].clone()),
        })
    }
}

fn changed_message(name: &str, fields: &[String]) -> String {
    format!("{name} was changed by somebody else since: {}", fields.join(", "))
}

/// Undoes steps, the last one first. Errors are collected and do not stop the others.
pub async fn revert(k: &mut Kube, steps: &[Step]) -> Result {
    let mut errors = Vec::new();
    for s in steps.iter().rev() {
        match s.revert(k, steps).await {
            Ok(what) => k.println(format!("{} {what}", s.to_name())),
            Err(e) => errors.push(e),
        }
    }
    Error::collect(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clauses: G03.exact
    #[test]
    fn undoes_only_what_was_written() {
        let before = json!({"spec": {"a": 1, "list": [1], "gone": true, "map": {"x": 1}}});
        let after = json!({"spec": {"a": 2, "list": [1, 2], "new": {"y": 1}, "map": {"x": 1}}});
        let patch = reverse_patch(before.as_object().unwrap(), after.as_object().unwrap());
        assert_eq!(Value::Object(patch), json!({"spec": {"a": 1, "list": [1], "gone": true, "new": null}}));
        for (current, expected) in [
            (after.clone(), vec![]),
            (json!({"spec": {"a": 2, "list": [1, 2], "new": {"y": 1}, "map": {"x": 9}, "more": 1}}), vec![]),
            (json!({"spec": {"a": 3, "list": [1], "map": {}}}), vec![".spec.a", ".spec.list", ".spec.new"]),
            (json!({"spec": {"a": 2, "list": [1, 2], "new": {"y": 1}, "gone": 1}}), vec![".spec.gone"]),
        ] {
            let mut out = Vec::new();
            changed_since(&before, &after, Some(&current), "", &mut out);
            assert_eq!(out, expected, "{current}");
        }
        let mut out = Vec::new();
        let written = json!({"spec": {"a": 1, "list": [{"n": 1}], "null": null}});
        changed_fields(&written, Some(&json!({"spec": {"a": 1, "list": [{"n": 1, "m": 2}], "b": 1}})), "", &mut out);
        assert!(out.is_empty(), "{out:?}");
        changed_fields(&written, Some(&json!({"spec": {"list": [{"n": 2}]}})), "", &mut out);
        assert_eq!(out, [".spec.a", ".spec.list[0].n"]);
    }
}
