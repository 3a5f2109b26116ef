//! ServiceAccount: sets the service account of a pod and mounts its token.

use crate::mirror_pod::{is_mirror, referenced, uses_token};
use crate::{Lookup, Operation, Plugin, ReadScope, Review, WriteRequest};
use meta::{Object, Status, Value, names};
use serde_json::json;

pub struct ServiceAccount;

const DEFAULT: &str = "default";
const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn reads(&self, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
        let pods = write.creates("", "pods");
        if pods { lookup.bytes("", "serviceaccounts", Some(write.namespace), ReadScope::One) } else { 0 }
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        if !review.is("", "pods") || review.operation != Operation::Create || is_mirror(object) {
            return Ok(());
        }
        if object.str_at(&["spec", "serviceAccountName"]).unwrap_or_default().is_empty() {
            object.set(&["spec", "serviceAccountName"], DEFAULT);
            object.set(&["spec", "serviceAccount"], DEFAULT);
        }
        let name = object.str_at(&["spec", "serviceAccountName"]).unwrap_or_default().to_owned();
        let bad = names::path_segment(&name);
        if !bad.is_empty() {
            let account = format!("{}/{name}", review.namespace);
            let why = format!(
                "error looking up service account {account}: invalid resource name {name:?}: [{}]",
                bad.join(" ")
            );
            return Err(review.forbidden(&why));
        }
        let Some(account) = review.lookup.get("", "serviceaccounts", review.namespace, &name)? else {
            let why = format!(
                "error looking up service account {}/{name}: serviceaccount {name:?} not found",
                review.namespace
            );
            return Err(review.forbidden(&why));
        };
        let flag = |o: &Object, path: &[&str]| o.at(path).and_then(Value::as_bool);
        let mounts = flag(object, &["spec", "automountServiceAccountToken"])
            .or_else(|| flag(&account, &["automountServiceAccountToken"]))
            .unwrap_or(true);
        if mounts {
            mount(review, object);
        }
        let none = object.at(&["spec", "imagePullSecrets"]).and_then(Value::as_array).is_none_or(Vec::is_empty);
        if let (true, Some(secrets)) = (none, account.get("imagePullSecrets")) {
            object.set(&["spec", "imagePullSecrets"], secrets.clone());
        }
        Ok(())
    }

    /// The controller creates the account `default` of a new namespace.
    fn is_early(&self, review: &Review<'_>, object: &Object) -> bool {
        object.str_at(&["spec", "serviceAccountName"]) == Some(DEFAULT)
            && matches!(review.lookup.get("", "serviceaccounts", review.namespace, DEFAULT), Ok(None))
            && matches!(review.lookup.is_terminating(review.namespace), Ok(Some(false)))
    }

    /// A mirror pod, whoever creates it, must not reference objects that its node could then read.
    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let created = review.is("", "pods") && review.operation == Operation::Create;
        let Some(pod) = object.filter(|o| created && is_mirror(o)) else { return Ok(()) };
        let refused = |what: &str| Err(review.forbidden(&format!("a mirror pod may not {what}")));
        match referenced(pod) {
            Some("a service account") => refused("reference service accounts"),
            Some("secrets") => refused("reference secrets"),
            _ if uses_token(pod) => refused("use ServiceAccountToken volume projections"),
            _ => Ok(()),
        }
    }
}

/// Prefix of the volume name.
const VOLUME: &str = "kube-api-access-";

/// Adds the projected token volume, and its mounts to containers without one. Reuses a token volume that the pod has,
/// for example when a webhook added a container later.
fn mount(review: &Review<'_>, pod: &mut Object) {
    let mut spec = pod.remove(&["spec"]).unwrap_or_default();
    let all = spec["volumes"].as_array().into_iter().flatten();
    let found = all.filter_map(|v| v["name"].as_str()).find(|n| n.starts_with(VOLUME)).map(str::to_owned);
    let has = found.is_some();
    let volume = found.unwrap_or_else(|| format!("{VOLUME}{}", suffix(review, pod)));
    let mut needed = false;
    for list in ["initContainers", "containers"] {
        for c in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let own = c["volumeMounts"].as_array().is_some_and(|m| m.iter().any(|m| m["mountPath"] == MOUNT));
            if own {
                continue;
            }
            needed = true;
            let mount = json!({"name": volume, "readOnly": true, "mountPath": MOUNT});
            match c["volumeMounts"].as_array_mut() {
                Some(a) => a.push(mount),
                None => c["volumeMounts"] = vec![mount].into(),
            }
        }
    }
    if needed && !has {
        let v = json!({"name": volume, "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}});
        match spec["volumes"].as_array_mut() {
            Some(a) => a.push(v),
            None => spec["volumes"] = vec![v].into(),
        }
    }
    pod.set(&["spec"], spec);
}

/// A five-character suffix derived from the pod's random UID.
fn suffix(review: &Review<'_>, pod: &Object) -> String {
    let seed = format!("{}{}", pod.uid(), review.name);
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for b in seed.bytes() {
        hash = (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    }
    let text: String = (0..5).map(|i| char::from(b'a' + ((hash >> (i * 8)) % 26) as u8)).collect();
    meta::random::safe_encode(&text)
}
