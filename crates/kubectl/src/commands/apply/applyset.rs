//! `kubectl apply --prune --applyset=PARENT` (alpha, `KUBECTL_APPLYSET=true`): members carry a label, and a parent object
//! stores their kinds and namespaces, so that pruning finds the members and nothing else.
//!
//! Invariant: before anything is written, the parent names all kinds and namespaces that have or will have members. They
//! are narrowed down after pruning. Follows v1alpha1 of the ApplySet specification (KEP 3659).

use super::super::delete::cascade;
use super::{Apply, Arguments, prune::Visited};
use crate::discovery::{Resource, dotted};
use crate::error::{Error, Result, text};
use crate::flags::DryRunStrategy;
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::Info;
use base64::Engine as _;
use client::{DeleteOptions, ListOptions, Patch, WriteOptions};
use meta::{Gvk, Map, Object, Value};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const TOOL: &str = "kubectl";
const MANAGER: &str = "kubectl-applyset";
const TOOLING: &str = "applyset.kubernetes.io/tooling";
const KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
/// The older annotation for [`KINDS`].
const RESOURCES: &str = "applyset.kubernetes.io/contains-group-resources";
const NAMESPACES: &str = "applyset.kubernetes.io/additional-namespaces";
const ID: &str = "applyset.kubernetes.io/id";
const PART_OF: &str = "applyset.kubernetes.io/part-of";
/// The label of definitions with objects that may be parents.
const PARENT_TYPE: &str = "applyset.kubernetes.io/is-parent-type";

/// A set of objects that is applied and pruned together.
pub struct Set {
    parent: Arc<Resource>,
    name: String,
    /// Empty for cluster-scoped parents.
    namespace: String,
    before: Members,
    now: Members,
}

/// The kinds of members by `Kind.group`, and their namespaces.
#[derive(Clone, Default)]
struct Members {
    kinds: BTreeMap<String, Arc<Resource>>,
    namespaces: BTreeSet<String>,
}

impl Members {
    fn add(&mut self, r: &Arc<Resource>, namespace: &str) {
        self.kinds.insert(dotted(&r.kind, &r.group), r.clone());
        if r.namespaced && !namespace.is_empty() {
            self.namespaces.insert(namespace.to_owned());
        }
    }
}

impl Set {
    /// Returns the set that `--applyset` names; `None` without the flag.
    pub async fn open(k: &mut Kube, a: &Arguments) -> Result<Option<Self>> {
        let given = a.pruning.applyset.as_str();
        if given.is_empty() {
            return Ok(None);
        }
        let enabled = (k.shell.environment)("KUBECTL_APPLYSET").is_some_and(|v| crate::flags::go_bool(&v) == Ok(true));
        if !enabled {
            return text("unknown flag: --applyset\nSee 'kubectl apply --help' for usage.");
        }
        let invalid = |why: String| Error::Text(format!("invalid parent reference {given:?}: {why}"));
        let (word, name) = given.split_once('/').unwrap_or(("secrets", given));
        if name.is_empty() {
            return Err(invalid("name cannot be blank".into()));
        }
        let (plural, group) = word.split_once('.').unwrap_or((word, ""));
        let parent = k.resource(word).await.map_err(|e| match e {
            Error::Text(_) => invalid(format!("no matches for {group}/, Resource={plural}")),
            e => e,
        })?;
        // Only the namespace of the flag counts, not that of the kubeconfig.
        let namespace = match k.namespace()? {
            (n, true) if parent.namespaced => n,
            _ => String::new(),
        };
        let set =
            Self { parent, name: name.to_owned(), namespace, before: Members::default(), now: Members::default() };
        if !a.pruning.prune {
            return text("--applyset requires --prune");
        }
        set.check_parent(k).await?;
        Ok(Some(set))
    }

    fn is_builtin(&self) -> bool {
        self.parent.group.is_empty() && matches!(self.parent.plural.as_str(), "secrets" | "configmaps")
    }

    async fn check_parent(&self, k: &mut Kube) -> Result {
        let mut wrong = Vec::new();
        if self.parent.namespaced && self.namespace.is_empty() {
            wrong.push(Error::Text("namespace is required to use namespace-scoped ApplySet".into()));
        }
        if self.is_builtin() {
            return Error::collect(wrong);
        }
        let crd = Gvk::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        let allowed = match k.resource_of(&crd).await? {
            Some(r) => {
                let which = ListOptions { label_selector: PARENT_TYPE.to_owned(), ..ListOptions::default() };
                let all = k.api(&r, "").await?.list_all(&which).await?;
                all.items.iter().any(|o| o.name() == self.parent.group_resource())
            }
            None => false,
        };
        if !allowed {
            let p = &self.parent;
            wrong.push(Error::Text(format!(
                "resource \"{}/{}, Resource={}\" is not permitted as an ApplySet parent",
                p.group, p.version, p.plural
            )));
        }
        Error::collect(wrong)
    }

    /// Returns the label value: a hash of kind and name of the parent.
    fn id(&self) -> String {
        let identity = [self.name.as_str(), &self.namespace, &self.parent.kind, &self.parent.group].join(".");
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, identity.as_bytes());
        format!("applyset-{}-v1", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(hash))
    }

    /// Formats the parent for errors.
    fn display(&self) -> String {
        format!("\"{}.{}/{}\"", self.parent.plural, self.parent.group, self.name)
    }

    /// Labels the members, and stores all kinds and namespaces, old and new, in the parent.
    pub async fn begin(&mut self, k: &mut Kube, files: &mut [Result<Info>], apply: &Apply) -> Result {
        let id = self.id();
        for i in files.iter_mut().flatten() {
            let Some(o) = &mut i.object else { continue };
            if o.label(PART_OF).is_some() {
                return text(format!("ApplySet label {PART_OF:?} already set in input data"));
            }
            // Labels with a value that is no string count as none, as in Go's accessor.
            let is_map = |m: &Map<String, Value>| m.values().all(Value::is_string);
            if o.at(&["metadata", "labels"]).is_some_and(|l| !l.as_object().is_some_and(is_map)) {
                o.set(&["metadata", "labels"], json!({}));
            }
            o.set(&["metadata", "labels", PART_OF], id.as_str());
        }
        self.read(k).await?;
        for i in files.iter().flatten() {
            self.now.add(&i.resource, &i.namespace);
        }
        let mut both = self.before.clone();
        both.kinds.extend(self.now.kinds.clone());
        both.namespaces.extend(self.now.namespaces.clone());
        self.write(k, &both, apply).await
    }

    /// Reads the members from the parent, if it exists and belongs to this set.
    async fn read(&mut self, k: &mut Kube) -> Result {
        let display = self.display();
        let got = k.api(&self.parent, &self.namespace).await?.get_opt(&self.name).await;
        let found = got.map_err(|e| Error::Text(format!("failed to fetch ApplySet parent object {display}: {e}")))?;
        let Some(o) = found else {
            return match self.is_builtin() {
                true => Ok(()),
                false => text("custom resource ApplySet parents cannot be created automatically"),
            };
        };
        let Some(tooling) = o.annotation(TOOLING) else {
            return text(format!(
                "ApplySet parent object {display} already exists and is missing required annotation {TOOLING:?}"
            ));
        };
        let tool = tooling.rsplit_once('/').map_or(tooling, |(t, _)| t);
        if tool != TOOL {
            return text(format!(
                "ApplySet parent object {display} already exists and is managed by tooling {tool:?} instead of {TOOL:?}"
            ));
        }
        match o.label(ID) {
            None => {
                return text(format!("ApplySet parent object {display} exists and does not have required label {ID}"));
            }
            Some(id) if id != self.id() => {
                return text(format!(
                    "ApplySet parent object {display} exists and has incorrect value for label {ID:?} (got: {id}, want: {})",
                    self.id()
                ));
            }
            Some(_) => {}
        }
        let parsing = |why: String| Error::Text(format!("parsing ApplySet annotation on {display}: {why}"));
        self.before.kinds = kinds(k, &o).await.map_err(|e| parsing(e.to_string()))?;
        let listed = o.annotation(NAMESPACES).unwrap_or_default();
        self.before.namespaces = listed.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect();
        if self.parent.namespaced {
            self.before.namespaces.insert(self.namespace.clone());
        }
        Ok(())
    }

    async fn write(&self, k: &mut Kube, members: &Members, apply: &Apply) -> Result {
        if apply.dry == DryRunStrategy::Client {
            return Ok(());
        }
        let kinds: Vec<&str> = members.kinds.keys().map(String::as_str).collect();
        let others = members.namespaces.iter().filter(|n| **n != self.namespace);
        let namespaces: Vec<&str> = others.map(String::as_str).collect();
        let patch = Patch::Apply(json!({
            "apiVersion": self.parent.group_version(),
            "kind": self.parent.kind,
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "annotations": {
                    TOOLING: format!("{TOOL}/{}", crate::VERSION),
                    KINDS: kinds.join(","),
                    NAMESPACES: namespaces.join(","),
                },
                "labels": {ID: self.id()},
            },
        }));
        let api = k.api(&self.parent, &self.namespace).await?;
        let mut options = WriteOptions { field_manager: MANAGER.into(), force: false, ..apply.options.clone() };
        let mut done = api.patch(&self.name, &options, &patch).await.map(drop);
        if let Err(e) = &done
            && e.is_conflict()
        {
            k.warn(format!(
                "WARNING: failed to update ApplySet: {e}\nApplySet field manager {MANAGER} should own these fields. Retrying with conflicts forced."
            ));
            options.force = true;
            done = api.patch(&self.name, &options, &patch).await.map(drop);
        }
        done.map_err(|e| Error::Text(format!("failed to update ApplySet: {e}")))
    }

    /// Deletes the members that were not visited, and stores the remaining kinds and namespaces in the parent.
    pub async fn prune(&self, k: &mut Kube, seen: &Visited, apply: &Apply, printer: &mut Printer) -> Result {
        let mut options = DeleteOptions::propagation(cascade(&apply.a.cascade)?);
        if apply.a.grace_period >= 0 {
            options.grace_period_seconds = Some(apply.a.grace_period);
        }
        options.dry_run = apply.dry.option();
        let which = ListOptions { label_selector: format!("{PART_OF}={}", self.id()), ..ListOptions::default() };
        // Find everything before deleting anything.
        let mut unvisited: Vec<(Arc<Resource>, Object)> = Vec::new();
        let cluster_scope = BTreeSet::from([String::new()]);
        for r in self.before.kinds.values() {
            for n in if r.namespaced { &self.before.namespaces } else { &cluster_scope } {
                let listed = k.api(r, n).await?.list_all(&which).await;
                let listed = listed.map_err(|e| {
                    let what = format!("{}, Kind={}", r.group_version(), r.kind);
                    Error::Text(format!("listing {what} objects for pruning: {e}"))
                })?;
                unvisited.extend(listed.items.into_iter().filter(|o| !seen.has(o)).map(|o| (r.clone(), o)));
            }
        }
        for (r, mut o) in unvisited {
            o.set_gvk(&r.gvk());
            if apply.dry != DryRunStrategy::Client {
                let done = k.api(&r, o.namespace()).await?.delete(o.name(), &options).await;
                if let Err(e) = done
                    && !e.is_not_found()
                {
                    return text(format!("pruning {} {}: {e}", r.group_kind(), o.name()));
                }
            }
            printer.print(k, &o, "pruned")?;
        }
        let done = self.write(k, &self.now, apply).await;
        done.map_err(|e| Error::Text(format!("apply and prune succeeded, but ApplySet update failed: {e}")))
    }
}

/// Reads the kinds of members from the parent's annotations.
async fn kinds(k: &mut Kube, parent: &Object) -> Result<BTreeMap<String, Arc<Resource>>> {
    let mut out = BTreeMap::new();
    let Some(listed) = parent.annotation(KINDS) else {
        let older = parent.annotation(RESOURCES).unwrap_or_default();
        if older.is_empty() {
            return text(format!("kubectl requires the {KINDS:?} annotation to be set on all ApplySet parent objects"));
        }
        for word in older.split(',') {
            let r = k
                .resource(word)
                .await
                .map_err(|e| Error::Text(format!("invalid group resource in {RESOURCES:?} annotation: {e}")))?;
            out.insert(dotted(&r.kind, &r.group), r);
        }
        return Ok(out);
    };
    for gk in listed.split(',').filter(|g| !g.is_empty()) {
        let (kind, group) = gk.split_once('.').unwrap_or((gk, ""));
        let mut found = preferred(k, kind, group).await?;
        if found.is_none() {
            k.refresh().await?;
            found = preferred(k, kind, group).await?;
        }
        let Some(r) = found else {
            return text(format!(
                "could not find mapping for kind in {KINDS:?} annotation: no matches for kind {kind:?} in group {group:?}"
            ));
        };
        out.insert(gk.to_owned(), r);
    }
    Ok(out)
}

/// Finds a kind in the version that its group prefers, or else in the first version that has it.
async fn preferred(k: &mut Kube, kind: &str, group: &str) -> Result<Option<Arc<Resource>>> {
    let d = k.discovery().await?;
    let mut all = d.resources.iter().filter(|r| r.kind == kind && r.group == group);
    let first = all.next();
    Ok(first.into_iter().chain(all).find(|r| r.preferred).or(first).cloned())
}
