//! Checks that the names in a scenario refer to something, and that its objects are not too many, before anything runs.
//!
//! Known are the objects of the copy and those that steps create. Names that only controllers could make are not checked.

use crate::copy::Copy;
use crate::name::ObjectName;
use crate::node_spec::NodeSpec;
use crate::scenario::{Scenario, Step};
use meta::{LabelSelector, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The most pods of a rehearsal.
pub(crate) const MOST_PODS: u64 = 50_000;
/// The most nodes of a scenario, and the most objects of a copy.
const MOST_NODES: usize = 10_000;
const MOST_OBJECTS: usize = 200_000;
/// Kinds that no controller creates: their objects must be in the copy or in a step.
const CREATED_BY_USERS: [&str; 7] =
    ["Deployment", "StatefulSet", "DaemonSet", "CronJob", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"];
/// Labels that controllers add to pods, besides those of `kubernetes.io`.
const ADDED_LABELS: [&str; 5] =
    ["pod-template-hash", "controller-revision-hash", "pod-template-generation", "job-name", "controller-uid"];

/// The containers and labels of pods.
struct Template {
    /// The kind, namespace and name of the object that has it.
    owner: (String, String, String),
    labels: Value,
    /// Names and images.
    containers: Vec<(String, String)>,
}

/// What a scenario can name.
#[derive(Default)]
struct Catalog {
    objects: BTreeSet<(String, String, String)>,
    templates: Vec<Template>,
    /// Images that steps set.
    images: BTreeSet<String>,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn id(object: &Value, namespace: &str) -> (String, String, String) {
    let own = text(&object["metadata"]["namespace"]);
    let namespace = if own.is_empty() { namespace } else { own };
    (text(&object["kind"]).into(), namespace.into(), text(&object["metadata"]["name"]).into())
}

/// The pod template of an object; a pod is its own.
fn pod_template(object: &Value) -> Option<&Value> {
    match text(&object["kind"]) {
        "Pod" => Some(object),
        "CronJob" => object.pointer("/spec/jobTemplate/spec/template"),
        _ => object.pointer("/spec/template").filter(|t| t["spec"].is_object()),
    }
}

/// Adds all values of fields called `image`.
fn add_images(value: &Value, images: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, v)| match v.as_str() {
            Some(image) if name == "image" => _ = images.insert(image.to_owned()),
            _ => add_images(v, images),
        }),
        Value::Array(items) => items.iter().for_each(|v| add_images(v, images)),
        _ => {}
    }
}

impl Catalog {
    fn new(scenario: &Scenario, copy: &Copy) -> Self {
        let mut catalog = Self::default();
        for source in &copy.sources {
            catalog.add(&source.object.clone().into_value(), &copy.namespace);
        }
        for step in &scenario.steps {
            scenario.objects(step).into_iter().for_each(|o| catalog.add(o, "default"));
            match step {
                Step::Rollout(r) => catalog.images.extend(r.image.clone()),
                Step::Patch { object, patch } => {
                    add_images(patch, &mut catalog.images);
                    let owner = (object.kind.clone(), object.namespace.clone(), object.name.clone());
                    let labels = patch["spec"]["template"]["metadata"]["labels"].clone();
                    catalog.templates.push(Template { owner, labels, containers: Vec::new() });
                }
                _ => {}
            }
        }
        catalog
    }

    fn add(&mut self, object: &Value, namespace: &str) {
        let owner = id(object, namespace);
        if let Some(template) = pod_template(object) {
            let containers = template["spec"]["containers"].as_array().into_iter().flatten();
            let containers = containers.map(|c| (text(&c["name"]).into(), text(&c["image"]).into())).collect();
            add_images(&template["spec"], &mut self.images);
            let labels = template["metadata"]["labels"].clone();
            self.templates.push(Template { owner: owner.clone(), labels, containers });
        }
        self.objects.insert(owner);
    }

    fn find(&self, name: &ObjectName) -> Result<(), String> {
        let known = self.objects.contains(&(name.kind.clone(), name.namespace.clone(), name.name.clone()));
        if known { Ok(()) } else { Err(format!("there is no {name}")) }
    }

    fn has_label(&self, key: &str, value: &str) -> bool {
        let added = key.contains("kubernetes.io/") || ADDED_LABELS.contains(&key);
        added || self.templates.iter().any(|t| t.labels[key] == value)
    }

    fn has_container(&self, object: &ObjectName, container: &str) -> bool {
        let own = (&object.kind, &object.namespace, &object.name);
        let mut templates = self.templates.iter().filter(|t| (&t.owner.0, &t.owner.1, &t.owner.2) == own);
        templates.any(|t| t.containers.iter().any(|(name, _)| name == container))
    }

    /// The field and the problem of the first selector of an exception that matches nothing.
    fn check_exception(&self, e: &crate::assumptions::Exception) -> Result<(), (&'static str, String)> {
        if let Some(pattern) = &e.image
            && !self.images.iter().any(|image| crate::assumptions::matches_pattern(pattern, image))
        {
            return Err(("image", format!("no container has an image that matches {pattern:?}")));
        }
        if let Some((key, value)) = e.labels.iter().find(|(key, value)| !self.has_label(key, value)) {
            return Err(("labels", format!("no pod has the label {key}={value}")));
        }
        e.workload.as_ref().map_or(Ok(()), |w| self.find(w).map_err(|problem| ("workload", problem)))
    }

    fn check_step(&self, step: &Step, nodes: &[BTreeMap<String, String>]) -> Result<(), (&'static str, String)> {
        match step {
            Step::BreakImage(image) if !self.images.contains(image) => {
                Err(("breakImage", format!("no container has the image {image:?}")))
            }
            Step::Load { app, .. } if !self.has_label("app", app) => {
                Err(("load.app", format!("no pod has the label app={app}")))
            }
            Step::Rollout(r) => {
                self.find(&r.object).map_err(|problem| ("rollout.object", problem))?;
                match r.container.as_ref().filter(|name| !self.has_container(&r.object, name)) {
                    Some(name) => Err(("rollout.container", format!("{} has no container {name:?}", r.object))),
                    None => Ok(()),
                }
            }
            Step::WaitFor(c) if !c.absent && CREATED_BY_USERS.contains(&&*c.object.kind) => {
                self.find(&c.object).map_err(|problem| ("waitFor.object", problem))
            }
            Step::UpgradeNodes(u) => {
                let Some(selector) = u.selector.as_ref().and_then(|s| LabelSelector::parse(s).ok()) else {
                    return Ok(());
                };
                let selects =
                    |labels: &BTreeMap<String, String>| selector.matches(|k| labels.get(k).map(String::as_str));
                match nodes.iter().any(selects) {
                    true => Ok(()),
                    false => Err(("upgradeNodes.selector", format!("no node has the labels {selector}"))),
                }
            }
            _ => Ok(()),
        }
    }
}

/// How many pods an object desires.
fn pods(object: &Value) -> u64 {
    let spec = &object["spec"];
    let number = |field: &str, default: u64| spec[field].as_i64().map_or(default, |n| n.max(0).unsigned_abs());
    match text(&object["kind"]) {
        "Deployment" | "StatefulSet" | "ReplicaSet" | "ReplicationController" => number("replicas", 1),
        "Job" => number("parallelism", 1).min(number("completions", u64::MAX)),
        "CronJob" => pods(&serde_json::json!({"kind": "Job", "spec": spec["jobTemplate"]["spec"]})),
        "Pod" => 1,
        _ => 0,
    }
}

fn too_many(what: &str, count: u64) -> String {
    format!("{what}: {count} pods are too many: a rehearsal has at most {MOST_PODS}")
}

/// Checks that a rehearsal is not too large. Errors with the place in the scenario, or the origin of the object.
fn check_size(scenario: &Scenario, copy: &Copy) -> Result<(), String> {
    let nodes: u64 = scenario.nodes.iter().map(|n| u64::from(n.count.unwrap_or(1))).sum();
    if nodes > MOST_NODES as u64 {
        return Err(format!("nodes: {nodes} nodes are too many: a scenario has at most {MOST_NODES}"));
    }
    if copy.sources.len() > MOST_OBJECTS {
        let count = copy.sources.len();
        return Err(format!("the copy has {count} objects; a rehearsal has at most {MOST_OBJECTS}"));
    }
    let mut total = 0u64;
    for source in &copy.sources {
        let object = source.object.clone().into_value();
        // Pods of a workload are counted with it.
        if crate::workload::controller(&object).is_some() {
            continue;
        }
        total = total.saturating_add(pods(&object));
        if total > MOST_PODS {
            let (kind, name) = (source.object.kind(), source.object.name());
            return Err(too_many(&format!("{}: {kind} {name}", source.origin), total));
        }
    }
    for (i, step) in scenario.steps.iter().enumerate() {
        let desired = match step {
            Step::Scale { replicas, .. } => replicas.max(&0).unsigned_abs(),
            Step::Patch { object, patch } => pods(&serde_json::json!({"kind": object.kind, "spec": patch["spec"]})),
            step => scenario.objects(step).into_iter().map(pods).fold(0, u64::saturating_add),
        };
        if desired > MOST_PODS {
            return Err(too_many(&format!("steps[{i}]"), desired));
        }
    }
    Ok(())
}

/// Checks the names and the size of a scenario with a copy. Errors with the first problem and its place.
pub(crate) fn check(scenario: &Scenario, copy: &Copy, specs: &[NodeSpec]) -> Result<(), String> {
    check_size(scenario, copy)?;
    let catalog = Catalog::new(scenario, copy);
    for (i, exception) in scenario.assume.iter().flat_map(|a| &a.pods).enumerate() {
        catalog
            .check_exception(exception)
            .map_err(|(field, problem)| format!("assume.pods[{i}].{field}: {problem}"))?;
    }
    let live = copy.sources.iter().filter(|s| s.object.kind() == "Node");
    let labels = |s: &crate::copy::Source| s.object.labels().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    let nodes: Vec<BTreeMap<String, String>> = specs.iter().map(|n| n.labels.clone()).chain(live.map(labels)).collect();
    for (i, step) in scenario.steps.iter().enumerate() {
        catalog.check_step(step, &nodes).map_err(|(field, problem)| format!("steps[{i}].{field}: {problem}"))?;
    }
    Ok(())
}
