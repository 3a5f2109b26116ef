//! When nothing is written any more, what objects report is what there is.

use super::Invariant;
use super::objects::{
    Objects, controlled_by, count, in_resource, is_active, is_deleting, is_ready, name, selects, uid,
};
use meta::Value;
use std::collections::BTreeSet;

pub(super) struct Converged;

impl Invariant for Converged {
    fn name(&self) -> &'static str {
        "status shows what there is"
    }

    fn settled(&mut self, objects: &Objects) -> Result<(), String> {
        for resource in ["apps/replicasets", "replicationcontrollers", "apps/statefulsets"] {
            for (key, set) in in_resource(objects, resource).filter(|(_, o)| !is_deleting(o)) {
                let pods: Vec<&Value> =
                    controlled_by(objects, "pods", uid(set)).map(|p| &**p).filter(|p| is_active(p)).collect();
                let ready = pods.iter().filter(|p| is_ready(p)).count() as i64;
                expect(set, &key.to_string(), "replicas", pods.len() as i64)?;
                expect(set, &key.to_string(), "readyReplicas", ready)?;
            }
        }
        for (key, deployment) in in_resource(objects, "apps/deployments").filter(|(_, o)| !is_deleting(o)) {
            let sets: Vec<_> = controlled_by(objects, "apps/replicasets", uid(deployment)).collect();
            for field in ["replicas", "readyReplicas"] {
                let sum = sets.iter().map(|s| count(&s["status"][field])).sum();
                expect(deployment, &key.to_string(), field, sum)?;
            }
        }
        for (key, set) in in_resource(objects, "apps/daemonsets").filter(|(_, o)| !is_deleting(o)) {
            let pods = controlled_by(objects, "pods", uid(set)).filter(|p| is_ready(p)).count() as i64;
            expect(set, &key.to_string(), "numberReady", pods)?;
        }
        for (key, job) in in_resource(objects, "batch/jobs").filter(|(_, o)| !is_deleting(o)) {
            let active = controlled_by(objects, "pods", uid(job)).filter(|p| is_active(p)).count() as i64;
            expect(job, &key.to_string(), "active", active)?;
        }
        for (key, budget) in in_resource(objects, "policy/poddisruptionbudgets") {
            let healthy = in_resource(objects, "pods")
                .filter(|(pod, p)| pod.namespace == key.namespace && is_ready(p))
                .filter(|(_, p)| selects(&budget["spec"]["selector"], p))
                .count();
            expect(budget, &key.to_string(), "currentHealthy", healthy as i64)?;
        }
        for (key, quota) in in_resource(objects, "resourcequotas") {
            let (hard, used) = (&quota["status"]["hard"]["pods"], &quota["status"]["used"]["pods"]);
            let pods = in_resource(objects, "pods")
                .filter(|(pod, p)| pod.namespace == key.namespace && !super::objects::is_terminal(p))
                .count();
            if !hard.is_null() && used.as_str() != Some(&pods.to_string()) {
                return Err(format!("{key}: {used} pods used, but there are {pods}"));
            }
        }
        addresses(objects)
    }
}

fn expect(object: &Value, key: &str, field: &str, found: i64) -> Result<(), String> {
    let shown = count(&object["status"][field]);
    let generation = count(&object["metadata"]["generation"]);
    if shown != found {
        return Err(format!("{key}: status.{field} is {shown}, but there are {found}"));
    }
    let observed = &object["status"]["observedGeneration"];
    if !observed.is_null() && count(observed) != generation {
        return Err(format!("{key}: generation {generation} was not observed"));
    }
    Ok(())
}

/// The slices of a service have the addresses of its ready pods.
fn addresses(objects: &Objects) -> Result<(), String> {
    // Without a controller there are none.
    if in_resource(objects, "discovery.k8s.io/endpointslices").next().is_none() {
        return Ok(());
    }
    for (key, service) in in_resource(objects, "services") {
        let selector = &service["spec"]["selector"];
        let Some(labels) = selector.as_object().filter(|s| !s.is_empty()) else { continue };
        let pods: BTreeSet<&str> = in_resource(objects, "pods")
            .filter(|(pod, p)| pod.namespace == key.namespace && is_ready(p))
            .filter(|(_, p)| labels.iter().all(|(k, v)| p["metadata"]["labels"][k] == *v))
            .map(|(_, p)| name(p))
            .collect();
        let slices = in_resource(objects, "discovery.k8s.io/endpointslices").filter(|(slice, s)| {
            slice.namespace == key.namespace && s["metadata"]["labels"]["kubernetes.io/service-name"] == *key.name
        });
        let endpoints = slices.flat_map(|(_, s)| s["endpoints"].as_array().into_iter().flatten());
        let ready = endpoints.filter(|e| e["conditions"]["ready"] != false);
        let shown: BTreeSet<&str> = ready.filter_map(|e| e["targetRef"]["name"].as_str()).collect();
        if shown != pods {
            return Err(format!("{key}: its slices have {shown:?}, but {pods:?} are ready"));
        }
    }
    Ok(())
}
