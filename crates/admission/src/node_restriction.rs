//! The agent of a node changes its own node, its pods and what belongs to them, and nothing else.

use crate::{Operation, Plugin, Review};
use meta::{GroupResource, Object, Status, Value};
use std::collections::BTreeSet;

pub struct NodeRestriction;

impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        admit(review, Some(object))
    }

    /// Only for deletions, which nobody mutates.
    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        if object.is_none() { admit(review, None) } else { Ok(()) }
    }
}

fn admit(review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
    let user = &review.attributes.user;
    if !user.is_in(auth::user::GROUP_NODES) {
        return Ok(());
    }
    let Some(node) = user.node() else {
        return Err(review.forbidden(&format!("could not determine node from user {:?}", user.name)));
    };
    let r = Request { review, object, node };
    match (review.attributes.group.as_str(), review.attributes.resource.as_str(), review.subresource) {
        ("", "pods", "") => r.pod(),
        ("", "pods", "status") => r.pod_status(),
        ("", "pods", "eviction") => r.of_own_pod(review.name, "evict"),
        ("", "pods", other) => {
            r.no(&format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))
        }
        ("", "nodes", _) => r.node(),
        ("", "persistentvolumeclaims", "status") => r.claim_status(),
        ("", "persistentvolumeclaims", _) => r.no("may only update PVC status"),
        ("", "serviceaccounts", "token") => r.token(),
        ("coordination.k8s.io", "leases", _) => r.lease(),
        ("storage.k8s.io", "csinodes", _) if r.name() != node => {
            r.no("can only access CSINode with the same name as the requesting node")
        }
        _ => Ok(()),
    }
}

struct Request<'a> {
    review: &'a Review<'a>,
    object: Option<&'a Object>,
    node: &'a str,
}

/// Labels under the names of Kubernetes that an agent may set (`k8s.io/kubelet/pkg/apis`).
const LABELS: [&str; 13] = [
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.kubernetes.io/region",
    "failure-domain.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

fn is_forbidden_label(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    let below = |d: &str| domain == d || domain.ends_with(&format!(".{d}"));
    if below("node-restriction.kubernetes.io") {
        return true;
    }
    let own = LABELS.contains(&key) || below("kubelet.kubernetes.io") || below("node.kubernetes.io");
    (below("kubernetes.io") || below("k8s.io")) && !own
}

impl Request<'_> {
    fn no(&self, why: &str) -> Result<(), Status> {
        Err(self.review.forbidden(why))
    }

    /// Of the object; a creation has it nowhere else.
    fn name(&self) -> &str {
        self.object.filter(|_| self.review.operation == Operation::Create).map_or(self.review.name, Object::name)
    }

    fn pod(&self) -> Result<(), Status> {
        let node = self.node;
        match (self.review.operation, self.object) {
            (Operation::Create, Some(pod)) => self.new_pod(pod),
            (Operation::Delete, _) => {
                let own = self.review.old.is_some_and(|o| o.str_at(&["spec", "nodeName"]) == Some(node));
                if own {
                    return Ok(());
                }
                self.no(&format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
            }
            (operation, _) => self.no(&format!(
                "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
                operation.as_str()
            )),
        }
    }

    fn new_pod(&self, pod: &Object) -> Result<(), Status> {
        let node = self.node;
        const MIRROR: &str = "kubernetes.io/config.mirror";
        if pod.annotation(MIRROR).is_none() {
            let why = format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods");
            return self.no(&why);
        }
        if pod.str_at(&["spec", "nodeName"]) != Some(node) {
            return self.no(&format!("node {node:?} can only create pods with spec.nodeName set to itself"));
        }
        let owners: Vec<_> = pod.owner_references().collect();
        let owner = match &owners[..] {
            [o] if o.api_version == "v1" && o.kind == "Node" && o.name == node => o,
            [_, _, ..] => {
                let why = format!("node {node:?} can only create pods with a single owner reference set to itself");
                return self.no(&why);
            }
            _ => return self.no(&format!("node {node:?} can only create pods with an owner reference set to itself")),
        };
        if !owner.controller {
            let why = format!("node {node:?} can only create pods with a controller owner reference set to itself");
            return self.no(&why);
        }
        if owner.block_owner_deletion {
            return self.no(&format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
        }
        let Some(own) = self.review.lookup.get("", "nodes", "", node) else {
            let gr = GroupResource { group: String::new(), resource: "nodes".into() };
            return Err(Status::not_found(&gr, node));
        };
        if owner.uid != own.uid() {
            return self.no(&format!("node {node} UID mismatch: expected {} got {}", owner.uid, own.uid()));
        }
        match referenced(pod) {
            Some(what) => self.no(&format!("node {node:?} can not create pods that reference {what}")),
            None => Ok(()),
        }
    }

    fn pod_status(&self) -> Result<(), Status> {
        let (node, review) = (self.node, self.review);
        let (Some(new), Some(old)) = (self.object.filter(|_| review.operation == Operation::Update), review.old) else {
            return self.no(&format!("unexpected operation {:?}", review.operation.as_str()));
        };
        if old.str_at(&["spec", "nodeName"]) != Some(node) {
            let why = format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself");
            return self.no(&why);
        }
        if new.labels().ne(old.labels()) {
            return self.no(&format!("node {node:?} cannot update labels through pod status"));
        }
        let claims = |o: &Object| o.at(&["status", "resourceClaimStatuses"]).cloned();
        if claims(new) != claims(old) {
            return self.no(&format!("node {node:?} cannot update resource claim statues"));
        }
        Ok(())
    }

    fn of_own_pod(&self, name: &str, verb: &str) -> Result<(), Status> {
        let Some(pod) = self.review.lookup.get("", "pods", self.review.namespace, name) else {
            return Err(Status::not_found(&self.review.group_resource(), name));
        };
        if pod.str_at(&["spec", "nodeName"]) == Some(self.node) {
            return Ok(());
        }
        self.no(&format!("node {} can only {verb} pods with spec.nodeName set to itself", self.node))
    }

    fn node(&self) -> Result<(), Status> {
        let node = self.node;
        if self.name() != node {
            return self.no(&format!("node {node:?} is not allowed to modify node {:?}", self.name()));
        }
        let Some(new) = self.object else { return Ok(()) };
        let empty = Object::default();
        let (created, old) = match self.review.old {
            Some(o) => (false, o),
            None => (true, &empty),
        };
        let source = |o: &Object| o.at(&["spec", "configSource"]).filter(|s| !s.is_null()).cloned();
        if source(new).is_some() && source(new) != source(old) {
            return self.no(&if created {
                format!("node {node:?} is not allowed to create pods with a non-nil configSource")
            } else {
                format!("node {node:?} is not allowed to update configSource to a new non-nil configSource")
            });
        }
        let taints = |o: &Object| o.at(&["spec", "taints"]).cloned();
        if !created && taints(new) != taints(old) {
            return self.no(&format!("node {node:?} is not allowed to modify taints"));
        }
        let changed = |a: &Object, b: &Object| -> BTreeSet<String> {
            a.labels().filter(|(k, v)| b.label(k) != Some(*v)).map(|(k, _)| k.to_owned()).collect()
        };
        let all: BTreeSet<String> = changed(new, old).union(&changed(old, new)).cloned().collect();
        let bad: Vec<String> = all.into_iter().filter(|k| is_forbidden_label(k)).collect();
        match (bad.is_empty(), created) {
            (true, _) => Ok(()),
            (_, true) => {
                self.no(&format!("node {node:?} is not allowed to set the following labels: {}", bad.join(", ")))
            }
            (_, false) => self.no(&format!("is not allowed to modify labels: {}", bad.join(", "))),
        }
    }

    fn claim_status(&self) -> Result<(), Status> {
        let (Some(new), Some(old)) = (self.object, self.review.old) else {
            return self.no(&format!("unexpected operation {:?}", self.review.operation.as_str()));
        };
        let rest = |o: &Object| {
            let mut o = o.clone();
            for f in ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"] {
                o.remove(&["status", f]);
            }
            for f in ["resourceVersion", "managedFields"] {
                o.metadata_mut().remove(f);
            }
            o
        };
        if rest(new) == rest(old) {
            return Ok(());
        }
        let only = "is not allowed to update fields other than status.capacity and status.conditions";
        self.no(&format!("node {:?} {only}", self.node))
    }

    fn token(&self) -> Result<(), Status> {
        let Some(request) = self.object.filter(|_| self.review.operation == Operation::Create) else { return Ok(()) };
        let bound = |k: &str| request.str_at(&["spec", "boundObjectRef", k]).unwrap_or_default();
        if bound("apiVersion") != "v1" || bound("kind") != "Pod" || bound("name").is_empty() {
            return self.no("node requested token not bound to a pod");
        }
        if bound("uid").is_empty() {
            return self.no("node requested token with a pod binding without a uid");
        }
        let Some(pod) = self.review.lookup.get("", "pods", self.review.namespace, bound("name")) else {
            let gr = GroupResource { group: String::new(), resource: "pods".into() };
            return Err(Status::not_found(&gr, bound("name")));
        };
        if pod.uid() != bound("uid") {
            return self.no(&format!(
                "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
                bound("uid")
            ));
        }
        if pod.str_at(&["spec", "nodeName"]) != Some(self.node) {
            return self.no("node requested token bound to a pod scheduled on a different node");
        }
        Ok(())
    }

    fn lease(&self) -> Result<(), Status> {
        if self.review.namespace != "kube-node-lease" {
            return self.no("can only access leases in the \"kube-node-lease\" system namespace");
        }
        if self.name() != self.node {
            return self.no("can only access node lease with the same name as the requesting node");
        }
        Ok(())
    }
}

/// What a pod refers to that a mirror pod must not.
fn referenced(pod: &Object) -> Option<&'static str> {
    if pod.str_at(&["spec", "serviceAccountName"]).is_some_and(|s| !s.is_empty()) {
        return Some("a service account");
    }
    let list = |l: &str| pod.at(&["spec", l]).and_then(Value::as_array).into_iter().flatten();
    let containers: Vec<&Value> =
        ["initContainers", "containers", "ephemeralContainers"].iter().flat_map(|l| list(l)).collect();
    let env = |field: &str, from: &str| {
        let refers = |e: &Value| e["valueFrom"][field].is_object();
        let all = |e: &Value| e[from].is_object();
        containers.iter().any(|c| {
            c["env"].as_array().is_some_and(|a| a.iter().any(refers))
                || c["envFrom"].as_array().is_some_and(|a| a.iter().any(all))
        })
    };
    let volume = |field: &str| {
        list("volumes").any(|v| {
            let sources = v["projected"]["sources"].as_array();
            v[field].is_object() || sources.is_some_and(|s| s.iter().any(|s| s[field].is_object()))
        })
    };
    let pull = list("imagePullSecrets").next().is_some();
    let drivers = list("volumes").any(names_secret);
    if pull || drivers || env("secretKeyRef", "secretRef") || volume("secret") {
        return Some("secrets");
    }
    if env("configMapKeyRef", "configMapRef") || volume("configMap") {
        return Some("configmaps");
    }
    if volume("clusterTrustBundle") {
        return Some("clustertrustbundles");
    }
    list("volumes").any(|v| v["persistentVolumeClaim"].is_object()).then_some("persistentvolumeclaims")
}

/// A volume's driver is handed a secret: a reference or a name, as the drivers have it.
fn names_secret(volume: &Value) -> bool {
    let sources = volume.as_object().into_iter().flatten().filter(|(k, _)| *k != "projected" && *k != "secret");
    let fields = sources.filter_map(|(_, s)| s.as_object()).flatten();
    let mut given = fields
        .filter(|(k, v)| matches!(k.as_str(), "secretRef" | "secretName" | "nodePublishSecretRef") && !v.is_null());
    given.next().is_some()
}
