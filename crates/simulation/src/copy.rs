//! The objects of a rehearsal, and how they get into the simulated API server.
//!
//! Every object is created through the API, so that admission and validation see it. Invariant: nothing of the copy makes the simulated server
//! reach a network: webhooks and aggregated APIs are left out.

use crate::control_plane;
use crate::operations::FOREIGN_OWNER;
use crate::rehearsal::Progress;
use crate::requests;
use client::{Client, FieldValidation, Patch, WriteOptions};
use jiff::{SignedDuration, Timestamp};
use meta::{Clock, Gvk, Object, Value};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use testkit::Cluster;

/// The field manager of manifests, which steps that apply share.
pub(crate) const MANAGER: &str = "scenario";
/// Kinds whose objects would make the server call something.
const CALLING: [&str; 3] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "APIService"];
/// The priority classes that every cluster has.
const PRIORITIES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];
/// How long a custom resource may take to be served.
const SERVED: Duration = Duration::from_secs(10);

/// An object and where it comes from.
#[derive(Clone, Debug)]
pub struct Source {
    pub object: Object,
    /// The file and document, for errors.
    pub origin: String,
}

/// What is copied.
#[derive(Clone, Debug, Default)]
pub struct Copy {
    pub sources: Vec<Source>,
    /// When the state of a running cluster was read, with UIDs and statuses; none for manifests.
    pub taken: Option<Timestamp>,
    /// The namespace of objects that name none.
    pub namespace: String,
    /// What was copied, in words.
    pub described: Vec<String>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// What loading a copy resulted in.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// Nodes of the copy that run.
    pub nodes: Vec<String>,
    /// Nodes of the copy that are not ready.
    pub down: Vec<String>,
    /// UIDs of pods that run already.
    pub running: Vec<String>,
    pub notes: Vec<String>,
}

/// Loads a copy into a server.
struct Loader<'a> {
    cluster: &'a Cluster,
    client: Client,
    namespaces: BTreeSet<String>,
    /// The groups of custom resources.
    defined: BTreeSet<String>,
    /// New UIDs by those of the running cluster.
    uids: BTreeMap<String, String>,
    /// How many objects of each owner's kind had to lose it.
    orphans: BTreeMap<String, usize>,
    times: Times,
    loaded: Loaded,
}

/// Moves the times of a running cluster to where virtual time begins, so that they are as long ago as they were.
struct Times {
    by: SignedDuration,
    /// No time of the copy is later: the clocks of its machines may be ahead.
    latest: Timestamp,
}

impl Times {
    fn new(taken: Option<Timestamp>, now: Timestamp) -> Self {
        Self { by: taken.map_or(SignedDuration::ZERO, |taken| now.duration_since(taken)), latest: now }
    }

    /// Moves all times in a value.
    fn shift(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Some(moved) = self.shifted(text) {
                    *text = moved;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.shift(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.shift(field)),
            _ => {}
        }
    }

    fn shifted(&self, text: &str) -> Option<String> {
        let time = meta::time::parse(text)?.saturating_add(self.by).ok()?.min(self.latest);
        // Micro times keep their form.
        Some(if text.contains('.') { meta::time::format_micro(time) } else { meta::time::format(time) })
    }
}

impl Copy {
    /// Whether it is the state of a running cluster.
    pub(crate) fn is_live(&self) -> bool {
        self.taken.is_some()
    }

    /// Creates all objects. Errors with those that the server refuses, each with its origin.
    /// Ends early if the rehearsal is stopped.
    pub(crate) async fn load(
        &self,
        cluster: &Cluster,
        client: Client,
        progress: &Progress,
    ) -> Result<Loaded, Vec<String>> {
        let namespaces = ["default", "kube-system"].map(str::to_owned).into();
        let (uids, orphans, loaded) = (BTreeMap::new(), BTreeMap::new(), Loaded::default());
        let is_definition = |s: &&Source| s.object.kind() == "CustomResourceDefinition";
        let group = |s: &Source| s.object.str_at(&["spec", "group"]).map(str::to_owned);
        let defined = self.sources.iter().filter(is_definition).filter_map(group).collect();
        let times = Times::new(self.taken, cluster.clock.now());
        let mut loader = Loader { cluster, client, namespaces, defined, uids, orphans, times, loaded };
        loader.priorities().await;
        let mut sources: Vec<(u8, usize, Source)> = Vec::new();
        // By kind: names of custom resources that nothing defines.
        let mut undefined: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut origins: BTreeMap<(Gvk, String, String), &str> = BTreeMap::new();
        for (i, source) in self.sources.iter().enumerate() {
            let mut source = source.clone();
            let kind = source.object.kind().to_owned();
            if CALLING.contains(&&*kind) && !is_local(&source.object) {
                let name = source.object.name().to_owned();
                loader
                    .loaded
                    .notes
                    .push(format!("{kind} {name} is left out: nothing outside the simulation is called"));
                continue;
            }
            let gvk = source.object.gvk().unwrap_or_else(|| Gvk::new("", "", &*kind));
            if !loader.defined.contains(&gvk.group) && requests::is_undefined_custom(cluster, &gvk) {
                let named = format!("{kind} of {}", source.object.api_version());
                undefined.entry(named).or_default().push(source.object.name().to_owned());
                continue;
            }
            if !source.object.name().is_empty() {
                let id = (gvk, source.object.namespace().to_owned(), source.object.name().to_owned());
                if let Some(first) = origins.insert(id, &self.sources[i].origin) {
                    let (name, origin) = (source.object.name(), &source.origin);
                    loader
                        .loaded
                        .notes
                        .push(format!("{origin}: {kind} {name} is in {first}, too, and is applied over it"));
                }
            }
            if kind == "CustomResourceDefinition" {
                source.object.remove(&["spec", "conversion"]);
            }
            sources.push((rank(&kind, self.is_live()), i, source));
        }
        for (kind, names) in undefined {
            loader.loaded.notes.push(left_out(&kind, &names));
        }
        sources.sort_by_key(|(rank, i, _)| (*rank, *i));
        let mut errors = Vec::new();
        let total = sources.len();
        for (i, (_, _, source)) in sources.into_iter().enumerate() {
            progress.set_phase(format!("loading object {} of {total}", i + 1));
            if progress.is_stopped() {
                break;
            }
            let result = if self.is_live() {
                loader.copy(source.object.clone()).await
            } else {
                loader.apply(source.object.clone(), &self.namespace).await
            };
            match result {
                Ok(()) => {}
                Err(e) if self.is_live() => {
                    loader.loaded.notes.push(format!("{} was not copied: {e}", source.origin));
                }
                Err(e) => errors.push(format!("{}: {e}", source.origin)),
            }
        }
        for (owner, n) in std::mem::take(&mut loader.orphans) {
            loader
                .loaded
                .notes
                .push(format!("{n} objects belong to a {owner}, which was not copied: nothing creates them again"));
        }
        if errors.is_empty() { Ok(loader.loaded) } else { Err(errors) }
    }
}

/// Whether an object would make the server call something.
pub(crate) fn calls_out(object: &Value) -> bool {
    let kind = object["kind"].as_str().unwrap_or_default();
    CALLING.contains(&kind) && !(kind == "APIService" && object["spec"]["service"].is_null())
        || object["spec"]["conversion"]["strategy"] == "Webhook"
}

/// Whether a patch of an object of a kind could make the server call something.
pub(crate) fn may_call_out(kind: &str, patch: &Value) -> bool {
    CALLING.contains(&kind) || !patch["spec"]["conversion"].is_null()
}

/// Says that custom resources take no part.
pub(crate) fn left_out(kind: &str, names: &[String]) -> String {
    const SHOWN: usize = 5;
    let more = if names.len() > SHOWN { ", …" } else { "" };
    let shown = names[..names.len().min(SHOWN)].join(", ");
    format!(
        "{kind} is left out ({shown}{more}): its CustomResourceDefinition is not among the objects, and its controller would not run"
    )
}

/// Whether an APIService is served by the server itself.
fn is_local(object: &Object) -> bool {
    object.kind() == "APIService" && object.at(&["spec", "service"]).is_none_or(Value::is_null)
}

/// Owners come before what they own. Quotas and limits of a running cluster come last: its pods were admitted already.
fn rank(kind: &str, live: bool) -> u8 {
    match kind {
        "Namespace" => 0,
        "CustomResourceDefinition" => 1,
        "PriorityClass" | "StorageClass" | "RuntimeClass" | "DeviceClass" | "Node" | "ServiceAccount" => 2,
        "ResourceQuota" | "LimitRange" if live => 9,
        "Deployment" | "StatefulSet" | "DaemonSet" | "CronJob" | "ReplicationController" => 4,
        "ReplicaSet" | "Job" | "ControllerRevision" | "PersistentVolumeClaim" => 5,
        "PersistentVolume" => 6,
        "Pod" => 7,
        "ResourceClaim" => 8,
        _ => 3,
    }
}

impl Loader<'_> {
    async fn priorities(&self) {
        for (name, value) in PRIORITIES {
            let class = json!({"metadata": {"name": name}, "value": value});
            self.cluster.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", class).await;
        }
    }

    /// The API of an object's kind. Waits until a custom resource is served.
    async fn api(&self, object: &Object, namespace: &str) -> Result<(client::Api<Object>, bool), String> {
        let gvk = object.gvk().unwrap_or_else(|| Gvk::new("", "", object.kind()));
        let end = tokio::time::Instant::now() + SERVED;
        let resource = loop {
            if let Some(resource) = control_plane::resource(self.cluster, &gvk) {
                break resource;
            }
            if tokio::time::Instant::now() >= end || !self.defined.contains(&gvk.group) {
                let version = object.api_version();
                return Err(format!(
                    "no matches for kind {:?} in version {version:?}; ensure CRDs are installed first",
                    gvk.kind
                ));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let namespaced = resource.namespaced();
        let api = self.client.dynamic(&resource);
        Ok((if namespaced { api.namespace(namespace) } else { api }, namespaced))
    }

    /// Creates a namespace that no manifest has, with the account that its controller would create.
    async fn ensure_namespace(&mut self, namespace: &str) {
        if !self.namespaces.insert(namespace.to_owned()) {
            return;
        }
        let body = json!({"metadata": {"name": namespace}});
        if self.cluster.call("POST", "/api/v1/namespaces", body).await.code == 201 {
            self.loaded.notes.push(format!("namespace {namespace} is in no manifest and was created"));
        }
        self.create_account(namespace).await;
    }

    async fn create_account(&self, namespace: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        self.cluster.call("POST", &path, json!({"metadata": {"name": "default"}})).await;
    }

    /// Applies a manifest.
    async fn apply(&mut self, mut object: Object, default: &str) -> Result<(), String> {
        let namespace = if object.namespace().is_empty() { default.to_owned() } else { object.namespace().to_owned() };
        let (api, namespaced) = self.api(&object, &namespace).await?;
        if namespaced {
            object.set_namespace(&namespace);
            self.ensure_namespace(&namespace).await;
        }
        object.remove(&["status"]);
        for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"] {
            object.metadata_mut().remove(field);
        }
        let name = object.name().to_owned();
        let mut options = WriteOptions { field_validation: FieldValidation::Strict, ..WriteOptions::manager(MANAGER) };
        let is_node = object.kind() == "Node";
        if is_node {
            // A node says itself what it offers.
            return Err("nodes are described in the scenario".into());
        }
        if name.is_empty() {
            return api.create(&options, &object).await.map(drop).map_err(|e| requests::message(&e));
        }
        options.force = true;
        let is_namespace = object.kind() == "Namespace";
        requests::apply(&api, &options, &object).await?;
        if is_namespace {
            self.namespaces.insert(name.clone());
            self.create_account(&name).await;
        }
        Ok(())
    }

    /// Copies an object of a running cluster with its status.
    async fn copy(&mut self, mut object: Object) -> Result<(), String> {
        let (uid, kind) = (object.uid().to_owned(), object.kind().to_owned());
        let (namespace, name) = (object.namespace().to_owned(), object.name().to_owned());
        let mut status = object.remove(&["status"]).filter(|s| !s.is_null());
        if let Some(status) = &mut status {
            self.times.shift(status);
        }
        let (api, _) = self.api(&object, &namespace).await?;
        self.adjust(&mut object, status.as_ref());
        let options = WriteOptions { field_validation: FieldValidation::Ignore, ..WriteOptions::manager(MANAGER) };
        let created = match api.create(&options, &object).await {
            Err(e) if e.is_already_exists() => api.get(&name).await,
            other => other,
        };
        let created = created.map_err(|e| e.to_string())?;
        self.uids.insert(uid, created.uid().to_owned());
        let Some(status) = status else { return Ok(()) };
        match &*kind {
            "Node" => {
                let conditions = status["conditions"].as_array().into_iter().flatten();
                if conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True") {
                    self.loaded.nodes.push(name);
                } else {
                    self.loaded.notes.push(format!("node {name} is not ready in the cluster: nothing runs there"));
                    self.loaded.down.push(name);
                }
                return Ok(());
            }
            "Pod" if status["phase"] == "Running" => self.loaded.running.push(created.uid().to_owned()),
            "Namespace" | "Service" => return Ok(()),
            _ => {}
        }
        let patch = Patch::Merge(json!({"status": status}));
        match api.patch_status(&name, &options, &patch).await {
            Err(e) if !e.is_not_found() => Err(format!("its status: {e}")),
            _ => Ok(()),
        }
    }

    /// Removes what belongs to the other cluster alone.
    fn adjust(&mut self, object: &mut Object, status: Option<&Value>) {
        let owners = object.metadata_mut().remove("ownerReferences");
        let finalizers: Vec<String> = object.finalizers().filter(|f| is_own(f)).map(str::to_owned).collect();
        let kept = ["name", "namespace", "labels", "annotations"];
        object.metadata_mut().retain(|field, _| kept.contains(&field.as_str()));
        object.set_finalizers(finalizers);
        let mut mapped = Vec::new();
        for owner in owners.as_ref().and_then(Value::as_array).into_iter().flatten() {
            let mut owner = owner.clone();
            match owner["uid"].as_str().and_then(|uid| self.uids.get(uid)) {
                Some(uid) => {
                    owner["uid"] = uid.clone().into();
                    mapped.push(owner);
                }
                None if owner["controller"] == true => {
                    let (kind, name) = (owner["kind"].as_str().unwrap_or_default(), &owner["name"]);
                    *self.orphans.entry(kind.to_owned()).or_default() += 1;
                    object.set_annotation(FOREIGN_OWNER, &format!("{kind}/{}", name.as_str().unwrap_or_default()));
                }
                None => {}
            }
        }
        if !mapped.is_empty() {
            object.set(&["metadata", "ownerReferences"], mapped);
        }
        match object.kind() {
            "Service" if object.str_at(&["spec", "clusterIP"]) != Some("None") => {
                for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "healthCheckNodePort"] {
                    object.remove(&["spec", field]);
                }
                let ports = object.at(&["spec", "ports"]).and_then(Value::as_array).cloned().unwrap_or_default();
                let without = ports.into_iter().map(|mut p| {
                    p.as_object_mut().map(|p| p.remove("nodePort"));
                    p
                });
                object.set(&["spec", "ports"], without.collect::<Vec<_>>());
            }
            "Node" => {
                // The time since which pods tolerate a taint counts on.
                if let Some(mut taints) = object.at(&["spec", "taints"]).cloned() {
                    self.times.shift(&mut taints);
                    object.set(&["spec", "taints"], taints);
                }
                for field in ["podCIDR", "podCIDRs"] {
                    object.remove(&["spec", field]);
                }
                if let Some(status) = status {
                    object.set(&["status"], status.clone());
                }
            }
            "Pod" => _ = object.remove(&["spec", "ephemeralContainers"]),
            // The selector names the job's UID in its cluster, which its pods have as a label.
            "Job" if object.at(&["spec", "selector"]).is_some() => object.set(&["spec", "manualSelector"], true),
            "PersistentVolume" => {
                let claim = object.str_at(&["spec", "claimRef", "uid"]).and_then(|uid| self.uids.get(uid)).cloned();
                if let Some(claim) = claim {
                    object.set(&["spec", "claimRef", "uid"], claim);
                }
            }
            _ => {}
        }
    }
}

/// Whether controllers that run here remove a finalizer.
fn is_own(finalizer: &str) -> bool {
    finalizer == "batch.kubernetes.io/job-tracking" || finalizer.starts_with("kubernetes.io/")
}
