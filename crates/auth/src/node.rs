//! The Node authorizer (`k8s.io/kubernetes/plugin/pkg/auth/authorizer/node`): kubelets may access objects related to
//! the pods of their node, and what the role `system:node` grants. No opinion about other users.
//!
//! Each decision reads the relations from the store: an index selects the node's pods, and each is decoded once per
//! revision into a view of the names it references. Large pods do not delay other requests.

use crate::{Attributes, Authorizer, Decision, RbacCache, User};
use meta::{Object, Value};
use parking_lot::RwLock;
use std::sync::Arc;
use store::{Entry, Key, Snapshot, Store};
use stored::in_place::{self, Lane};
use stored::{Views, encode};

/// The role of every node.
const ROLE: &str = "system:node";
/// The provisioner of nodes: its volumes are on the node that the scheduler has selected for the claim.
const NODE_PROVISIONER: &str = "kemudi.local/directory";
const LEASES: &str = "kube-node-lease";
/// Maximum size of the cache of names, in bytes.
const KEPT: usize = 32 << 20;
/// Maximum number of names of a kind per pod: more than any runnable pod has; the rest is ignored.
const MOST_NAMES: usize = 2_000;
/// Cost of a claim lookup, in bytes read.
const CLAIM: usize = 64;

/// Authorizes kubelets.
pub struct NodeAuthorizer {
    rbac: Arc<RbacCache>,
    store: RwLock<Option<Store>>,
    pods: Views<Names>,
}

/// The relation between a request and the node.
enum Relation {
    /// The object is the node itself, or related to a pod of it.
    Related,
    /// The object is not related to the node.
    Unrelated(String),
    /// Objects of this resource have no relation to nodes.
    Other,
}

impl NodeAuthorizer {
    /// `rbac` has the rules of the role `system:node`.
    pub fn new(rbac: Arc<RbacCache>) -> Arc<Self> {
        Arc::new(Self { rbac, store: RwLock::new(None), pods: Views::new(KEPT, KEPT / 16) })
    }

    /// Until set, no relation is known.
    pub fn attach(&self, store: &Store) {
        *self.store.write() = Some(store.clone());
    }

    fn find(&self, node: &str, a: &Attributes) -> Relation {
        let kind = (&*a.group, &*a.resource);
        match kind {
            ("", "nodes") => return nodes(node, a),
            ("", "pods") => return self.pods(node, a),
            ("resource.k8s.io", "resourceslices") => return self.slices(node, a),
            ("", "serviceaccounts") => return self.accounts(node, a),
            ("coordination.k8s.io", "leases") => return own(node, a, LEASES),
            ("storage.k8s.io", "csinodes") => return own(node, a, ""),
            _ => {}
        }
        let relation: fn(&Related<'_>, &Attributes) -> bool = match kind {
            ("", "secrets") => |r, a| r.refers_to_secret(&a.namespace, &a.name),
            ("", "configmaps") => |r, a| r.any_pod(&a.namespace, |p| has(&p.config_maps, &a.name)),
            ("", "persistentvolumeclaims") => |r, a| r.any_pod(&a.namespace, |p| has(&p.claims, &a.name)),
            ("", "persistentvolumes") => |r, a| r.uses_volume(&a.name),
            ("resource.k8s.io", "resourceclaims") => |r, a| r.any_pod(&a.namespace, |p| has(&p.device_claims, &a.name)),
            ("storage.k8s.io", "volumeattachments") => {
                |r, a| r.on_node("storage.k8s.io/volumeattachments", "", &a.name)
            }
            _ => return Relation::Other,
        };
        let no = |why: &str| Relation::Unrelated(why.into());
        match (&*a.resource, &*a.subresource, &*a.verb) {
            ("persistentvolumeclaims", "status", "update" | "patch") => {
                // The provisioner of a node records how its volumes grow, also while no pod uses them.
                let relation = |r: &Related<'_>, a: &Attributes| relation(r, a) || r.has_provisioned(a);
                return self.related(node, a, relation);
            }
            ("persistentvolumeclaims", "status", _) => return no("can only get/update/patch this type"),
            ("secrets" | "configmaps", "", "get" | "list" | "watch") if !a.namespace.is_empty() => {}
            ("secrets" | "configmaps", "", "get" | "list" | "watch") => {
                return no("can only read namespaced object of this type");
            }
            ("secrets" | "configmaps", _, "get" | "list" | "watch") => return no("cannot read subresource"),
            ("secrets" | "configmaps", _, _) => return no("can only read resources of this type"),
            (_, "", "get") => {}
            (_, _, "get") => return no("cannot get subresource"),
            _ => return no("can only get individual resources of this type"),
        }
        self.related(node, a, relation)
    }

    fn pods(&self, node: &str, a: &Attributes) -> Relation {
        let of_node = |r: &Related<'_>, a: &Attributes| r.on_node("pods", &a.namespace, &a.name);
        match (&*a.subresource, &*a.verb) {
            ("", "get") => self.related(node, a, of_node),
            ("", "list" | "watch") if selects(a, "spec.nodeName", node) => Relation::Related,
            ("", "list" | "watch") if !a.name.is_empty() => self.related(node, a, of_node),
            ("", "list" | "watch") => {
                Relation::Unrelated("can only list/watch pods with spec.nodeName field selector".into())
            }
            // Admission checks the owner.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Relation::Related,
            _ => Relation::Unrelated(String::new()),
        }
    }

    fn slices(&self, node: &str, a: &Attributes) -> Relation {
        if !a.subresource.is_empty() {
            return Relation::Unrelated("cannot authorize ResourceSlice subresources".into());
        }
        match &*a.verb {
            "create" => Relation::Related,
            "get" | "update" | "patch" | "delete" => {
                self.related(node, a, |r, a| r.on_node("resource.k8s.io/resourceslices", "", &a.name))
            }
            "watch" | "list" | "deletecollection" if selects(a, "spec.nodeName", node) => Relation::Related,
            "watch" | "list" | "deletecollection" => Relation::Unrelated(
                "can only list/watch/deletecollection resourceslices with nodeName field selector".into(),
            ),
            _ => Relation::Unrelated(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection"
                    .into(),
            ),
        }
    }

    /// Service accounts of the node's pods: may be read, and tokens created.
    fn accounts(&self, node: &str, a: &Attributes) -> Relation {
        match (&*a.subresource, &*a.verb) {
            ("", "get") | ("token", "create") => {
                self.related(node, a, |r, a| r.any_pod(&a.namespace, |p| p.account == a.name))
            }
            _ => Relation::Unrelated("can only create tokens for individual service accounts".into()),
        }
    }

    fn related(&self, node: &str, a: &Attributes, is: impl Fn(&Related<'_>, &Attributes) -> bool) -> Relation {
        if a.name.is_empty() {
            return Relation::Unrelated("No Object name found".into());
        }
        let Some(store) = self.store.read().clone() else { return Relation::Unrelated(String::new()) };
        let r = Related { node, snapshot: store.snapshot(), views: &self.pods };
        if is(&r, a) {
            return Relation::Related;
        }
        Relation::Unrelated(format!("no relationship found between node '{node}' and this object"))
    }
}

impl Authorizer for NodeAuthorizer {
    fn authorize(&self, a: &Attributes) -> Decision {
        let Some(node) = a.user.node() else { return Decision::NoOpinion(String::new()) };
        match self.find(node, a) {
            Relation::Related => Decision::Allow(String::new()),
            Relation::Other if self.rbac.role_allows(ROLE, a) => Decision::Allow(String::new()),
            Relation::Other => Decision::NoOpinion(String::new()),
            Relation::Unrelated(why) => Decision::NoOpinion(why),
        }
    }

    fn unlisted(&self, user: &User) -> Vec<&'static str> {
        user.node().map(|_| "node authorizer does not support user rule resolution").into_iter().collect()
    }
}

/// Whether a field selector restricts the request to this value.
fn selects(a: &Attributes, field: &str, value: &str) -> bool {
    a.fields.as_ref().is_some_and(|f| f.exact(field) == Some(value))
}

/// The node itself, even before it exists; admission checks its content.
fn nodes(node: &str, a: &Attributes) -> Relation {
    match (&*a.subresource, &*a.verb, &*a.name) {
        ("", "create" | "update" | "patch", _) | ("status", "update" | "patch", _) => Relation::Related,
        ("", "get" | "list" | "watch", name) if name == node => Relation::Related,
        ("", "get" | "list" | "watch", "") => {
            Relation::Unrelated(format!("node '{node}' cannot read all nodes, only its own Node object"))
        }
        ("", "get" | "list" | "watch", name) => {
            Relation::Unrelated(format!("node '{node}' cannot read '{name}', only its own Node object"))
        }
        _ => Relation::Unrelated(String::new()),
    }
}

/// An object with the same name as the node.
fn own(node: &str, a: &Attributes, namespace: &str) -> Relation {
    let known = matches!(&*a.verb, "get" | "create" | "update" | "patch" | "delete") && a.subresource.is_empty();
    // A create request has no name in its path; admission checks it.
    let name = a.name == node || (a.verb == "create" && a.name.is_empty());
    if known && name && a.namespace == namespace {
        return Relation::Related;
    }
    Relation::Unrelated(format!("can only access {} with the same name as the requesting node", a.resource))
}

/// The related objects of a node at one revision.
struct Related<'a> {
    node: &'a str,
    snapshot: Snapshot,
    views: &'a Views<Names>,
}

/// The names that a pod references, each list sorted.
struct Names {
    /// A mirror pod: it may reference anything, and so grants nothing.
    mirrored: bool,
    account: String,
    secrets: Vec<String>,
    config_maps: Vec<String>,
    claims: Vec<String>,
    device_claims: Vec<String>,
}

impl Names {
    fn read(pod: &Object) -> (Self, usize) {
        let in_order = |mut names: Vec<String>| {
            names.truncate(MOST_NAMES);
            names.sort_unstable();
            names.dedup();
            names.shrink_to_fit();
            names
        };
        let names = Self {
            mirrored: pod.annotation("kubernetes.io/config.mirror").is_some(),
            account: pod.str_at(&["spec", "serviceAccountName"]).unwrap_or("default").to_owned(),
            secrets: in_order(names_of(pod, "secret")),
            config_maps: in_order(names_of(pod, "configMap")),
            claims: in_order(claims_of(pod)),
            device_claims: in_order(device_claims_of(pod)),
        };
        let lists = [&names.secrets, &names.config_maps, &names.claims, &names.device_claims];
        let bytes = lists.into_iter().flatten().map(|n| n.len() + size_of::<String>()).sum();
        (names, bytes)
    }
}

fn has(names: &[String], name: &str) -> bool {
    names.binary_search_by(|n| (**n).cmp(name)).is_ok()
}

impl Related<'_> {
    fn entry(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Entry>> {
        self.snapshot.get(&Key::new(resource, namespace, name))
    }

    /// Whether the object's field names the node.
    fn on_node(&self, resource: &str, namespace: &str, name: &str) -> bool {
        let entry = self.entry(resource, namespace, name);
        entry.is_some_and(|e| text_of(&e, &["spec", "nodeName"]).is_some_and(|n| n == self.node))
    }

    /// The pods of the node with their namespaces, without mirror pods.
    fn pods<'s>(&'s self, namespace: Option<&'s str>) -> impl Iterator<Item = (&'s str, Arc<Names>)> {
        let here = |e: &&Arc<Entry>| e.index().fields.iter().any(|(k, v)| **k == *"spec.nodeName" && **v == *self.node);
        let all = self.snapshot.range("pods", namespace, None).filter(here);
        let view =
            |e: &Arc<Entry>| in_place::view(self.views, e, Names::read).inspect_err(|e| tracing::error!("{e}")).ok();
        let views = all.filter_map(move |e| Some((&*e.key.namespace, view(e)?)));
        views.filter(|(_, names)| !names.mirrored)
    }

    fn any_pod(&self, namespace: &str, is: impl Fn(&Names) -> bool) -> bool {
        self.pods(Some(namespace).filter(|n| !n.is_empty())).any(|(_, p)| is(&p))
    }

    /// Whether `is` holds for a volume bound to a claim of the node's pods.
    fn any_volume(&self, namespace: Option<&str>, is: impl Fn(&str, &Entry) -> bool) -> bool {
        let pods: Vec<_> = self.pods(namespace).collect();
        let claims: usize = pods.iter().map(|(_, p)| p.claims.len()).sum();
        let bound = |namespace: &str, claim: &str| {
            let claim = self.entry("persistentvolumeclaims", namespace, claim)?;
            let volume = self.entry("persistentvolumes", "", &text_of(&claim, &["spec", "volumeName"])?)?;
            Some(is(namespace, &volume))
        };
        in_place::run(Lane::Views, claims * CLAIM, || {
            pods.iter().any(|(namespace, p)| p.claims.iter().any(|c| bound(namespace, c) == Some(true)))
        })
    }

    /// Whether the provisioner of the node makes the volume of the claim.
    fn has_provisioned(&self, a: &Attributes) -> bool {
        let Some(claim) = self.entry("persistentvolumeclaims", &a.namespace, &a.name) else { return false };
        let annotation = |key: &str| text_of(&claim, &["metadata", "annotations", key]);
        annotation("volume.kubernetes.io/selected-node").is_some_and(|n| n == self.node)
            && annotation("volume.kubernetes.io/storage-provisioner").is_some_and(|p| p == NODE_PROVISIONER)
    }

    fn uses_volume(&self, name: &str) -> bool {
        self.any_volume(None, |_, volume| *volume.key.name == *name)
    }

    /// A pod references a secret directly, or through a volume.
    fn refers_to_secret(&self, namespace: &str, name: &str) -> bool {
        self.any_pod(namespace, |p| has(&p.secrets, name))
            || self.any_volume(Some(namespace), |namespace, volume| {
                let csi = encode::part(volume, &["spec", "csi"]).ok().flatten().unwrap_or_default();
                let all = csi.as_object().into_iter().flatten();
                let mut references = all.filter(|(k, _)| k.ends_with("SecretRef")).map(|(_, r)| r);
                references.any(|r| r["name"] == *name && r["namespace"] == *namespace)
            })
    }
}

/// Reads a string of a stored object without decoding the rest. None if it is missing or unreadable: access is then
/// denied.
fn text_of(entry: &Entry, path: &[&str]) -> Option<String> {
    match encode::part(entry, path).ok()?? {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// The secrets or config maps that a pod references: in `env`, `envFrom`, volumes, and image pull secrets.
fn names_of(pod: &Object, what: &str) -> Vec<String> {
    let (key, from) = (format!("{what}KeyRef"), format!("{what}Ref"));
    let mut out = Vec::new();
    let mut add = |v: &Value| out.extend(v.as_str().map(str::to_owned));
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    for containers in ["initContainers", "containers", "ephemeralContainers"] {
        for c in list(&spec[containers]) {
            list(&c["env"]).iter().for_each(|e| add(&e["valueFrom"][&key]["name"]));
            list(&c["envFrom"]).iter().for_each(|e| add(&e[&from]["name"]));
        }
    }
    for v in list(&spec["volumes"]) {
        list(&v["projected"]["sources"]).iter().for_each(|s| add(&s[what]["name"]));
        if what == "configMap" {
            add(&v["configMap"]["name"]);
            continue;
        }
        add(&v["secret"]["secretName"]);
        add(&v["azureFile"]["secretName"]);
        add(&v["csi"]["nodePublishSecretRef"]["name"]);
        for source in v.as_object().into_iter().flatten().map(|(_, s)| s) {
            add(&source["secretRef"]["name"]);
        }
    }
    if what == "secret" {
        list(&spec["imagePullSecrets"]).iter().for_each(|s| add(&s["name"]));
    }
    out
}

/// The resource claims of a pod, including generated ones.
fn device_claims_of(pod: &Object) -> Vec<String> {
    let list = |path: &[&str]| pod.at(path).and_then(Value::as_array).cloned().unwrap_or_default();
    let named = [list(&["spec", "resourceClaims"]), list(&["status", "resourceClaimStatuses"])].concat();
    let extended = pod.str_at(&["status", "extendedResourceClaimStatus", "resourceClaimName"]).map(str::to_owned);
    let names = named.iter().filter_map(|c| c["resourceClaimName"].as_str().map(str::to_owned));
    names.chain(extended).collect()
}

/// The volume claims of a pod, including ephemeral ones.
fn claims_of(pod: &Object) -> Vec<String> {
    let volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array).into_iter().flatten();
    let claim = |v: &Value| match v["persistentVolumeClaim"]["claimName"].as_str() {
        Some(c) => Some(c.to_owned()),
        None if v["ephemeral"].is_object() => Some(format!("{}-{}", pod.name(), v["name"].as_str()?)),
        None => None,
    };
    volumes.filter_map(claim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_names_of_a_pod_are_kept_once() {
        let env = json!([{"valueFrom": {"secretKeyRef": {"name": "b"}}}, {"valueFrom": {"secretKeyRef": {"name": "a"}}},
            {"valueFrom": {"configMapKeyRef": {"name": "m"}}}, {"valueFrom": {"secretKeyRef": {"name": "b"}}}]);
        let volumes =
            json!([{"name": "v", "ephemeral": {}}, {"name": "w", "persistentVolumeClaim": {"claimName": "c"}}]);
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"env": env}], "volumes": volumes,
            "imagePullSecrets": [{"name": "a"}], "resourceClaims": [{"resourceClaimName": "d"}]}});
        let (names, bytes) = Names::read(&Object::from_value(pod).unwrap());
        assert_eq!(
            (names.secrets, names.config_maps, &*names.account),
            (vec!["a".to_owned(), "b".into()], vec!["m".to_owned()], "default")
        );
        assert_eq!(
            (&names.claims[..], &names.device_claims[..]),
            (&["c".to_owned(), "p-v".into()][..], &["d".to_owned()][..])
        );
        assert_eq!(bytes, 8 + 6 * size_of::<String>());
        assert!(has(&names.claims, "p-v") && !has(&names.claims, "v") && !names.mirrored);
    }

    /// Some tens of pods with 40,000 names each exhausted the cache, so that each request of the node read them
    /// again.
    #[test]
    fn so_many_names_of_a_pod_are_kept() {
        let from: Vec<_> = (0..40_000).map(|i| json!({"secretRef": {"name": format!("s{i}")}})).collect();
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"envFrom": from}]}});
        let (names, bytes) = Names::read(&Object::from_value(pod).unwrap());
        assert!(names.secrets.len() == MOST_NAMES && has(&names.secrets, "s0") && bytes < KEPT / 256, "{bytes}");
    }
}
