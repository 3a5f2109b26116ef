//! PodPreset: applies the presets of a namespace to new pods that match (Kubernetes until v1.19).
//!
//! All matching presets are applied, or none: on a conflict with the pod or another preset, the pod stays unchanged
//! and an event reports it.

use crate::plugin::Event;
use crate::{Lookup, Operation, Plugin, ReadScope, Review, WriteRequest};
use meta::{LabelSelector, Object, Status, Value};
use std::collections::HashMap;

pub struct PodPreset;

const EXCLUDE: &str = "podpreset.admission.kubernetes.io/exclude";
/// Prefix of the annotation for an applied preset and its version.
const APPLIED: &str = "podpreset.admission.kubernetes.io/podpreset-";
const MIRROR: &str = "kubernetes.io/config.mirror";

impl Plugin for PodPreset {
    fn name(&self) -> &'static str {
        "PodPreset"
    }

    fn needs(&self) -> Option<(&'static str, &'static str)> {
        Some(("settings.k8s.io", "podpresets"))
    }

    fn reads(&self, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
        let pods = write.creates("", "pods");
        if pods { lookup.bytes("settings.k8s.io", "podpresets", Some(write.namespace), ReadScope::All) } else { 0 }
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        let new = review.is("", "pods") && review.operation == Operation::Create;
        if !new || object.annotation(MIRROR).is_some() || object.annotation(EXCLUDE) == Some("true") {
            return Ok(());
        }
        let mut chosen = Vec::new();
        for p in review.lookup.list("settings.k8s.io", "podpresets", Some(review.namespace)) {
            let p = p?;
            let selector = LabelSelector::from_value(p.at(&["spec", "selector"]))
                .map_err(|e| Status::internal(format!("filtering pod presets failed: {e}")))?;
            if selector.matches(|k| object.label(k)) {
                chosen.push(p);
            }
        }
        if chosen.is_empty() {
            return Ok(());
        }
        match applied(object, &chosen) {
            Ok(pod) => *object = pod,
            Err(c) => review.host.event(&Event {
                about: object,
                component: &format!("{APPLIED}{}", c.preset),
                reason: "conflict",
                message: format!("Conflict on pod preset. Duplicate {}.", c.what),
            }),
        }
        Ok(())
    }
}

/// A conflict between a preset and the pod, or an earlier preset.
struct Conflict {
    preset: String,
    what: String,
}

/// Returns the pod with all presets applied.
fn applied(pod: &Object, presets: &[Object]) -> Result<Object, Conflict> {
    let mut pod = pod.clone();
    let mut spec = pod.remove(&["spec"]).unwrap_or_default();
    merge(&mut spec, presets, "volumes", &["name"])?;
    for list in ["containers", "initContainers"] {
        for c in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            merge(c, presets, "env", &["name"])?;
            merge(c, presets, "volumeMounts", &["name", "mountPath"])?;
            let more = presets.iter().flat_map(|p| items(p, "envFrom")).cloned();
            append(c, "envFrom", more.collect());
        }
    }
    pod.set(&["spec"], spec);
    for p in presets {
        pod.set_annotation(&format!("{APPLIED}{}", p.name()), p.resource_version());
    }
    Ok(pod)
}

/// Adds the missing items of a list. Errors if a different item has the same key.
fn merge(into: &mut Value, presets: &[Object], field: &str, keys: &[&str]) -> Result<(), Conflict> {
    let there = into[field].as_array().cloned().unwrap_or_default();
    let mut known: Vec<HashMap<&str, &Value>> = vec![HashMap::new(); keys.len()];
    for (key, known) in keys.iter().zip(&mut known) {
        known.extend(there.iter().filter_map(|i| Some((i[*key].as_str()?, i))));
    }
    let mut more: Vec<Value> = Vec::new();
    for p in presets {
        for item in items(p, field) {
            let mut new = true;
            for (key, known) in keys.iter().zip(&mut known) {
                let Some(name) = item[*key].as_str() else { continue };
                match known.get(name) {
                    Some(other) if *other == item => new = false,
                    Some(_) => {
                        let what = if *key == "name" { format!("{field} {name}") } else { format!("{key} {name}") };
                        return Err(Conflict { preset: p.name().to_owned(), what });
                    }
                    None => drop(known.insert(name, item)),
                }
            }
            if new {
                more.push(item.clone());
            }
        }
    }
    append(into, field, more);
    Ok(())
}

fn items<'a>(preset: &'a Object, field: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    preset.at(&["spec", field]).and_then(Value::as_array).into_iter().flatten()
}

fn append(into: &mut Value, field: &str, more: Vec<Value>) {
    if more.is_empty() {
        return;
    }
    match into[field].as_array_mut() {
        Some(a) => a.extend(more),
        None => into[field] = more.into(),
    }
}
