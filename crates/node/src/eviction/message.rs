//! The message of an eviction, and the annotations of its event (upstream `evictionMessage`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use meta::Quantity;

use super::observe::Observations;
use super::rank::{ContainerUsage, PodUsage};
use crate::configuration::{Starved, Threshold};
use crate::pod::spec::{containers, text};

/// An event's annotations.
pub type Annotations = BTreeMap<String, String>;

fn request(resources: Option<&ResourceRequirements>, starved: Starved) -> Option<Quantity> {
    let requests = resources?.requests.as_ref()?;
    Quantity::parse(&requests.get(starved.as_str())?.0).ok()
}

fn used(container: &ContainerUsage, starved: Starved) -> Option<Quantity> {
    let bytes = match starved {
        Starved::Memory => container.memory,
        Starved::Storage => container.layer.bytes.saturating_add(container.log.bytes),
        Starved::Inodes | Starved::Pids => return None,
    };
    Some(starved.quantity(bytes))
}

/// Message and annotations for a pod. `due` are the thresholds whose grace periods are over, the first to reclaim first.
pub fn message(
    starved: Starved,
    pod: &Pod,
    usage: Option<&PodUsage>,
    due: &[Threshold],
    observations: &Observations,
) -> (String, Annotations) {
    let resource = starved.as_str();
    let mut out = format!("The node was low on resource: {resource}. ");
    let mut annotations = Annotations::new();
    let seen = due.iter().filter(|t| t.signal.starved() == starved);
    if let Some((t, seen)) = seen.filter_map(|t| Some((t, observations.get(&t.signal)?))).next() {
        let quantity = t.value.of_capacity(seen.capacity);
        let available = starved.quantity(seen.available);
        out.push_str(&format!("Threshold quantity: {quantity}, available: {available}. "));
    }
    let (Some(usage), Some(spec)) = (usage, &pod.spec) else { return (out, annotations) };
    if starved == Starved::Memory
        && let Some(request) = request(spec.resources.as_ref(), starved)
    {
        let (name, usage) = (text(&pod.metadata.name), starved.quantity(usage.memory));
        out.push_str(&format!(
            "Pod {name} was using {usage}, request is {request}, has larger consumption of {resource}. "
        ));
        annotations.insert("offending_pod".into(), name.to_owned());
        annotations.insert("offending_pod_usage".into(), usage.to_string());
    }
    let (mut names, mut usages) = (Vec::new(), Vec::new());
    for container in &usage.containers {
        let Some(spec) = containers(spec).find(|c| c.name == container.name) else { continue };
        let request = request(spec.resources.as_ref(), starved).unwrap_or(Quantity::from_int(0));
        let Some(usage) = used(container, starved).filter(|usage| *usage > request) else { continue };
        let name = &container.name;
        out.push_str(&format!(
            "Container {name} was using {usage}, request is {request}, has larger consumption of {resource}. "
        ));
        names.push(name.clone());
        usages.push(usage.to_string());
    }
    annotations.insert("offending_containers".into(), names.join(","));
    annotations.insert("offending_containers_usage".into(), usages.join(","));
    annotations.insert("starved_resource".into(), resource.to_owned());
    (out, annotations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::{Amount, Signal};
    use crate::eviction::observe::Observation;
    use crate::eviction::rank::Disk;
    use serde_json::json;
    use std::time::Duration;

    fn threshold(signal: Signal, value: Amount) -> Threshold {
        Threshold { signal, value, grace_period: Duration::ZERO, minimum_reclaim: None }
    }

    #[test]
    fn messages_are_upstreams() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "a", "resources": {"requests": {"memory": "1Mi"}}}, {"name": "b"},
            {"name": "c", "resources": {"requests": {"memory": "1Gi"}}}]}}))
        .unwrap();
        let container = |name: &str, memory, bytes| ContainerUsage {
            name: name.into(),
            memory,
            layer: Disk { bytes, inodes: 1 },
            log: Disk { bytes: 24, inodes: 1 },
        };
        let usage = PodUsage {
            memory: 9 << 20,
            containers: vec![container("a", 5 << 20, 0), container("b", 1000, 1000), container("c", 3 << 20, 0)],
            ..PodUsage::default()
        };
        let due = [
            threshold(Signal::MemoryAvailable, Amount::Absolute(Quantity::parse("100Mi").unwrap())),
            threshold(Signal::NodeFsAvailable, Amount::Share(0.1)),
            threshold(Signal::PidAvailable, Amount::Absolute(Quantity::parse("1k").unwrap())),
        ];
        let observations: Observations = [
            (Signal::MemoryAvailable, Observation { available: 90 << 20, capacity: 1 << 30 }),
            (Signal::NodeFsAvailable, Observation { available: 1 << 20, capacity: 1000 << 20 }),
            (Signal::PidAvailable, Observation { available: 800, capacity: 4000 }),
        ]
        .into();
        let text = |starved| message(starved, &pod, Some(&usage), &due, &observations);
        let (memory, annotations) = text(Starved::Memory);
        assert_eq!(
            memory,
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. Container a was using 5Mi, \
             request is 1Mi, has larger consumption of memory. Container b was using 1k, request is 0, has larger \
             consumption of memory. "
        );
        let expected =
            [("offending_containers", "a,b"), ("offending_containers_usage", "5Mi,1k"), ("starved_resource", "memory")];
        assert_eq!(annotations, expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        assert_eq!(
            text(Starved::Storage).0,
            "The node was low on resource: ephemeral-storage. Threshold quantity: 104857601, available: 1Mi. Container a was \
             using 24, request is 0, has larger consumption of ephemeral-storage. Container b was using 1Ki, request is 0, \
             has larger consumption of ephemeral-storage. Container c was using 24, request is 0, has larger consumption of \
             ephemeral-storage. "
        );
        assert_eq!(
            text(Starved::Pids).0,
            "The node was low on resource: pids. Threshold quantity: 1k, available: 800. "
        );
        assert_eq!(text(Starved::Inodes).0, "The node was low on resource: inodes. ");
        let unknown = message(Starved::Memory, &pod, None, &due, &observations);
        assert!(unknown.0.ends_with("available: 90Mi. ") && unknown.1.is_empty());
    }

    #[test]
    fn the_request_of_the_pod_is_named() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"},
            "spec": {"containers": [], "resources": {"requests": {"memory": "2Mi"}}}}))
        .unwrap();
        let usage = PodUsage { memory: 3 << 20, ..PodUsage::default() };
        let (text, annotations) = message(Starved::Memory, &pod, Some(&usage), &[], &Observations::new());
        assert_eq!(
            text,
            "The node was low on resource: memory. Pod p was using 3Mi, request is 2Mi, has larger consumption of memory. "
        );
        assert_eq!((&*annotations["offending_pod"], &*annotations["offending_pod_usage"]), ("p", "3Mi"));
    }
}
