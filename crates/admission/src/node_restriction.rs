//! NodeRestriction: restricts a kubelet to its own node, its pods and their objects.

use crate::certificates::common_name;
use crate::{Operation, Plugin, Review, mirror_pod};
use meta::{GroupResource, Object, Quantity, Status, Value};
use serde_json::json;
use std::collections::BTreeSet;

pub struct NodeRestriction;

impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        admit(review, Some(object))
    }

    /// Deletions only: they skip mutation.
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
        ("", "persistentvolumes", _) => r.directory_volume(),
        ("", "serviceaccounts", "token") => r.token(),
        ("coordination.k8s.io", "leases", _) => r.lease(),
        ("resource.k8s.io", "resourceslices", _) => r.resource_slice(),
        ("certificates.k8s.io", "certificatesigningrequests", "") => r.certificate_request(),
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

/// Labels with Kubernetes prefixes that a kubelet may set (`k8s.io/kubelet/pkg/apis`).
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

/// The provisioner of node agents, whose volumes are directories of nodes.
const DIRECTORY_PROVISIONER: &str = "kemudi.local/directory";

fn is_directory_of(volume: &Object, node: &str) -> bool {
    let affinity = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}});
    volume.annotation("pv.kubernetes.io/provisioned-by") == Some(DIRECTORY_PROVISIONER)
        && volume.at(&["spec", "local"]).is_some()
        && volume.at(&["spec", "nodeAffinity"]) == Some(&affinity)
}

impl Request<'_> {
    fn no(&self, why: &str) -> Result<(), Status> {
        Err(self.review.forbidden(why))
    }

    /// The name from the object: a create request has no name in its path.
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
        if !mirror_pod::is_mirror(pod) {
            let mirror = mirror_pod::ANNOTATION;
            let why = format!("pod does not have {mirror:?} annotation, node {node:?} can only create mirror pods");
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
        let Some(own) = self.review.lookup.get("", "nodes", "", node)? else {
            let gr = GroupResource { group: String::new(), resource: "nodes".into() };
            return Err(Status::not_found(&gr, node));
        };
        if owner.uid != own.uid() {
            return self.no(&format!("node {node} UID mismatch: expected {} got {}", owner.uid, own.uid()));
        }
        match mirror_pod::referenced(pod) {
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
        let part = |o: &Object, field: &str| o.at(&["status", field]).filter(|v| !v.is_null()).cloned();
        if part(new, "resourceClaimStatuses") != part(old, "resourceClaimStatuses") {
            return self.no(&format!("node {node:?} cannot update resource claim statues"));
        }
        if part(new, "extendedResourceClaimStatus") != part(old, "extendedResourceClaimStatus") {
            return self.no(&format!("node {node:?} cannot update extended resource claim status"));
        }
        Ok(())
    }

    fn of_own_pod(&self, name: &str, verb: &str) -> Result<(), Status> {
        let Some(pod) = self.review.lookup.get("", "pods", self.review.namespace, name)? else {
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
        // With a nonexistent owner, the garbage collector would delete the node with its taints and labels.
        let owners =
            |o: &Object| o.at(&["metadata", "ownerReferences"]).filter(|v| **v != Value::Array(Vec::new())).cloned();
        if owners(new) != owners(old) {
            return self.no(&format!("node {node:?} is not allowed to modify ownerReferences"));
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
        let Some(pod) = self.review.lookup.get("", "pods", self.review.namespace, bound("name"))? else {
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
        self.audience(request, &pod)
    }

    /// Restricts token audiences to those in the pod's volumes, or those the node is authorized for
    /// (`ServiceAccountNodeAudienceRestriction`).
    fn audience(&self, request: &Object, pod: &Object) -> Result<(), Status> {
        let audiences = request.at(&["spec", "audiences"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let audience = match audiences {
            [] => "",
            [audience_name] => audience_name.as_str().unwrap_or_default(),
            _ => return self.no("node may only request 0 or 1 audiences"),
        };
        let volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array).into_iter().flatten();
        if volumes.into_iter().any(|v| self.asks_for(v, pod, audience)) {
            return Ok(());
        }
        const VERB: &str = "request-serviceaccounts-token-audience";
        if self.review.may(VERB, "", audience, "", self.review.namespace, self.review.name) {
            return Ok(());
        }
        self.no(&format!("audience {audience:?} not found in pod spec volume"))
    }

    /// Whether a volume requests a token with this audience: a projected token, or a token for its CSI driver.
    fn asks_for(&self, volume: &Value, pod: &Object, audience: &str) -> bool {
        let matches = |token: &Value| token.is_object() && token["audience"].as_str().unwrap_or_default() == audience;
        let sources = volume["projected"]["sources"].as_array().into_iter().flatten();
        if sources.into_iter().any(|s| matches(&s["serviceAccountToken"])) {
            return true;
        }
        let claim = match (&volume["ephemeral"], volume["persistentVolumeClaim"]["claimName"].as_str()) {
            (Value::Object(_), _) => Some(format!("{}-{}", pod.name(), volume["name"].as_str().unwrap_or_default())),
            (_, name) => name.map(str::to_owned),
        };
        let driver = match claim {
            Some(name) => self.driver_of(&name),
            None => volume["csi"]["driver"].as_str().map(str::to_owned),
        };
        let driver = driver.and_then(|d| self.review.lookup.get("storage.k8s.io", "csidrivers", "", &d).ok()?);
        let requests = driver.as_ref().and_then(|d| d.at(&["spec", "tokenRequests"])?.as_array());
        requests.into_iter().flatten().any(matches)
    }

    /// The driver of the volume bound to a claim.
    fn driver_of(&self, claim: &str) -> Option<String> {
        let lookup = self.review.lookup;
        let claim = lookup.get("", "persistentvolumeclaims", self.review.namespace, claim).ok()??;
        let volume = lookup.get("", "persistentvolumes", "", claim.str_at(&["spec", "volumeName"])?).ok()??;
        volume.str_at(&["spec", "csi", "driver"]).map(str::to_owned)
    }

    /// Volumes: a node may write only those that are directories of its own, for claims for which the scheduler has selected it.
    fn directory_volume(&self) -> Result<(), Status> {
        let is_own = |o: Option<&Object>| o.is_some_and(|o| is_directory_of(o, self.node));
        let allowed = self.review.subresource.is_empty()
            && match self.review.operation {
                Operation::Create => is_own(self.object) && self.object.is_some_and(|o| self.is_for_selected_claim(o)),
                // Finalizers, and a larger capacity.
                Operation::Update => {
                    let same = |path: &[&str]| {
                        self.object.and_then(|o| o.at(path)) == self.review.old.and_then(|o| o.at(path))
                    };
                    let metadata = ["annotations", "labels", "ownerReferences"];
                    is_own(self.review.old) && self.only_grows() && metadata.iter().all(|f| same(&["metadata", f]))
                }
                Operation::Delete => is_own(self.review.old),
                Operation::Connect => false,
            };
        if allowed {
            return Ok(());
        }
        self.no("can only write PersistentVolumes that are directories of the requesting node")
    }

    /// Whether the specification of a volume stays the same, but for a capacity that is not smaller.
    fn only_grows(&self) -> bool {
        const CAPACITY: [&str; 3] = ["spec", "capacity", "storage"];
        let (Some(new), Some(old)) = (self.object, self.review.old) else { return false };
        let size = |o: &Object| o.str_at(&CAPACITY).and_then(|q| Quantity::parse(q).ok());
        let rest = |o: &Object| {
            let mut o = o.clone();
            o.remove(&CAPACITY);
            o.at(&["spec"]).cloned()
        };
        rest(new) == rest(old) && size(new) >= size(old)
    }

    /// Whether the claim of a volume is the one that the name of the volume says, and waits for a volume of this node.
    fn is_for_selected_claim(&self, volume: &Object) -> bool {
        let reference = |key: &str| volume.str_at(&["spec", "claimRef", key]).unwrap_or_default();
        let claim = self.review.lookup.get("", "persistentvolumeclaims", reference("namespace"), reference("name"));
        claim.ok().flatten().is_some_and(|claim| {
            claim.uid() == reference("uid")
                && volume.name() == format!("pvc-{}", claim.uid())
                && claim.annotation("volume.kubernetes.io/storage-provisioner") == Some(DIRECTORY_PROVISIONER)
                && claim.annotation("volume.kubernetes.io/selected-node") == Some(self.node)
        })
    }

    /// Resource slices: a node may write only its own.
    fn resource_slice(&self) -> Result<(), Status> {
        let is_own = |o: Option<&Object>| o.and_then(|o| o.str_at(&["spec", "nodeName"])) == Some(self.node);
        let (verb, own) = match self.review.operation {
            Operation::Create => ("create", is_own(self.object)),
            Operation::Update => ("update", is_own(self.object) && is_own(self.review.old)),
            Operation::Delete => ("delete", is_own(self.review.old)),
            Operation::Connect => return Ok(()),
        };
        if own {
            return Ok(());
        }
        self.no(&format!("can only {verb} ResourceSlice with the same NodeName as the requesting node"))
    }

    /// A node may request certificates only in its own name.
    fn certificate_request(&self) -> Result<(), Status> {
        const SIGNERS: [&str; 2] = ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];
        let Some(request) = self.object.filter(|_| self.review.operation == Operation::Create) else { return Ok(()) };
        if !SIGNERS.contains(&request.str_at(&["spec", "signerName"]).unwrap_or_default()) {
            return Ok(());
        }
        let Some(name) = common_name(request.str_at(&["spec", "request"]).unwrap_or_default()) else {
            return self.no("unable to parse csr: it is no certificate signing request in PEM");
        };
        let own = format!("system:node:{}", self.node);
        if name == own {
            return Ok(());
        }
        self.no(&format!("can only create a node CSR with CN={own}"))
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
