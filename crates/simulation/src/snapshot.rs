//! A copy of a running cluster, read with lists alone.
//!
//! Secrets and ConfigMaps are not read: nothing simulated uses their contents.

use crate::copy::{Copy, Source};
use client::{ApiResource, Client, ListLimits, ListOptions};
use jiff::Timestamp;
use meta::{Object, Value};
use std::time::Duration;

/// The kinds that are copied: group, version, resource, kind, and whether its objects are in namespaces.
const KINDS: [(&str, &str, &str, &str, bool); 26] = [
    ("", "v1", "namespaces", "Namespace", false),
    ("", "v1", "nodes", "Node", false),
    ("", "v1", "serviceaccounts", "ServiceAccount", true),
    ("", "v1", "services", "Service", true),
    ("", "v1", "pods", "Pod", true),
    ("", "v1", "replicationcontrollers", "ReplicationController", true),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", true),
    ("", "v1", "persistentvolumes", "PersistentVolume", false),
    ("", "v1", "resourcequotas", "ResourceQuota", true),
    ("", "v1", "limitranges", "LimitRange", true),
    ("apps", "v1", "deployments", "Deployment", true),
    ("apps", "v1", "replicasets", "ReplicaSet", true),
    ("apps", "v1", "statefulsets", "StatefulSet", true),
    ("apps", "v1", "daemonsets", "DaemonSet", true),
    ("apps", "v1", "controllerrevisions", "ControllerRevision", true),
    ("batch", "v1", "jobs", "Job", true),
    ("batch", "v1", "cronjobs", "CronJob", true),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", true),
    ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", true),
    ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", false),
    ("storage.k8s.io", "v1", "storageclasses", "StorageClass", false),
    ("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", false),
    ("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", false),
    ("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", false),
    ("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", true),
    ("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", true),
];
/// Kinds that are counted, because what they describe does not happen here.
const COUNTED: [(&str, &str, &str, &str, &str); 4] = [
    (
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        "are not called",
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        "are not called",
    ),
    (
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        "and their objects are not copied; their operators do not run",
    ),
    ("apiregistration.k8s.io", "v1", "apiservices", "APIService", "with a service behind them are not served"),
];
/// How much of each list is read.
const LIMITS: ListLimits = ListLimits { pages: 1_000, bytes: 1 << 30, time: Duration::from_secs(300) };
/// The size of a page.
const PAGE: u32 = 500;

/// Copies the objects of a cluster; `now` is its time.
///
/// # Errors
/// The cluster cannot be reached, or its nodes or pods may not be read.
pub async fn read(client: &Client, server: &str, now: Timestamp) -> Result<Copy, client::Error> {
    let mut copy = Copy { taken: Some(now), namespace: "default".into(), ..Copy::default() };
    let mut counts = Vec::new();
    for (group, version, resource, kind, namespaced) in KINDS {
        let api = ApiResource::named(group, version, resource, kind, namespaced);
        let needed = matches!(resource, "nodes" | "pods" | "namespaces");
        let items = match list(client, &api).await {
            Ok(items) => items,
            Err(e) if !needed && (e.is_forbidden() || e.is_not_found()) => {
                let why = if e.is_forbidden() { "may not be read" } else { "are not served by the cluster" };
                copy.notes.push(format!("{resource} {why}, and were not copied"));
                continue;
            }
            Err(e) => return Err(e),
        };
        let (mut kept, mut leaving) = (0, 0);
        for mut object in items {
            if object.is_deleting() {
                leaving += 1;
                continue;
            }
            object.set(&["apiVersion"], api.gvk().api_version());
            object.set(&["kind"], kind);
            object.metadata_mut().remove("managedFields");
            let slash = if object.namespace().is_empty() { "" } else { "/" };
            let origin = format!("{} {}{slash}{}", kind.to_lowercase(), object.namespace(), object.name());
            copy.sources.push(Source { object, origin });
            kept += 1;
        }
        if leaving > 0 {
            copy.notes.push(format!("{leaving} {resource} that are being deleted were not copied"));
        }
        if kept > 0 {
            counts.push(format!("{kept} {resource}"));
        }
    }
    for (group, version, resource, kind, what) in COUNTED {
        let api = ApiResource::named(group, version, resource, kind, false);
        let Ok(items) = list(client, &api).await else { continue };
        let outside =
            |o: &&Object| kind != "APIService" || o.at(&["spec", "service"]).is_some_and(|s| !Value::is_null(s));
        let names: Vec<&str> = items.iter().filter(outside).map(Object::name).collect();
        if !names.is_empty() {
            let more = if names.len() > 5 { ", …" } else { "" };
            let first = names.iter().take(5).copied().collect::<Vec<_>>().join(", ");
            copy.notes.push(format!("{} {resource} {what} ({first}{more})", names.len()));
        }
    }
    copy.described = vec![format!("the cluster at {server}, read with lists alone: {}", counts.join(", "))];
    Ok(copy)
}

async fn list(client: &Client, resource: &ApiResource) -> Result<Vec<Object>, client::Error> {
    let options = ListOptions { limit: PAGE, ..ListOptions::default() };
    let items: Vec<Object> = client.dynamic(resource).list_within(&options, &LIMITS).await?;
    // Items of lists have no kind, or their own.
    match items.iter().map(Object::kind).find(|kind| !kind.is_empty() && *kind != resource.kind()) {
        Some(kind) => {
            let why = format!("the list of {} has an object of the kind {kind:?}", resource.gvr().resource);
            Err(client::Error::Unexpected(why))
        }
        None => Ok(items),
    }
}
