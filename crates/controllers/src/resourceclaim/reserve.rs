//! Which consumers of a claim remain, and what a generated claim is called (upstream `pkg/controller/resourceclaim`). Pure: data to data.

use meta::{Object, Value};
use serde_json::json;

/// Set while a claim is allocated.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// Names the claim of a pod's spec that a generated claim is for.
pub const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// The longest base of a generated name.
const MAX_BASE: usize = 57;
/// The most consumers of a claim.
const MAX_CONSUMERS: usize = 256;

/// The `generateName` of the claim of a pod. If it is too long, both parts are cut in proportion to their lengths.
pub fn generate_name(pod: &str, claim: &str) -> String {
    let whole = format!("{pod}-{claim}-");
    if whole.len() <= MAX_BASE {
        return whole;
    }
    // Both are DNS names, so every byte is a character.
    let cut = |s: &str| s.get(..s.len() * MAX_BASE / whole.len()).unwrap_or(s).to_owned();
    format!("{}-{}", cut(pod), cut(claim))
}

/// A claim as a pod names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodClaim {
    pub name: String,
    /// The claim to generate from.
    pub template: Option<String>,
    /// The claim to use; none if it is not generated yet, or not needed.
    pub claim: Option<String>,
    /// It was decided that no claim is needed.
    pub unneeded: bool,
}

/// The claims of a pod.
pub fn pod_claims(pod: &Object) -> Vec<PodClaim> {
    let list = |path: [&str; 2]| pod.at(&path).and_then(Value::as_array).into_iter().flatten();
    let text = |v: &Value| v.as_str().filter(|s| !s.is_empty()).map(str::to_owned);
    list(["spec", "resourceClaims"])
        .map(|c| {
            let status = list(["status", "resourceClaimStatuses"]).find(|s| s["name"] == c["name"]);
            let template = text(&c["resourceClaimTemplateName"]);
            let generated = status.and_then(|s| text(&s["resourceClaimName"]));
            PodClaim {
                name: text(&c["name"]).unwrap_or_default(),
                unneeded: template.is_some() && status.is_some() && generated.is_none(),
                claim: if template.is_some() { generated } else { text(&c["resourceClaimName"]) },
                template,
            }
        })
        .collect()
}

/// The claim that is generated for a pod.
pub fn generated(pod: &Object, claim: &str, template: &Object) -> Object {
    let spec = template.at(&["spec"]).cloned().unwrap_or_default();
    let mut o = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {
            "namespace": pod.namespace(), "generateName": generate_name(pod.name(), claim),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod.name(), "uid": pod.uid(), "controller": true}],
            "annotations": spec["metadata"]["annotations"].as_object().cloned().unwrap_or_default(),
        },
        "spec": spec["spec"],
    });
    if let Some(labels) = spec["metadata"].get("labels") {
        o["metadata"]["labels"] = labels.clone();
    }
    o["metadata"]["annotations"][POD_CLAIM] = claim.into();
    Object::from_value(o).unwrap_or_default()
}

pub fn consumers(claim: &Object) -> &[Value] {
    claim.at(&["status", "reservedFor"]).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Whether an allocated claim has to be reserved for a pod, and has room for it.
pub fn needs_reservation(claim: &Object, pod: &Object) -> bool {
    claim.at(&["status", "allocation"]).is_some_and(|a| !a.is_null())
        && consumers(claim).len() < MAX_CONSUMERS
        && consumers(claim).iter().all(|c| c["uid"] != pod.uid())
}

/// A claim with fewer consumers; without any it is no longer allocated. Pods are the only consumers that go.
pub fn released(claim: &Object, gone: impl Fn(&Value) -> bool) -> Option<Object> {
    let all = consumers(claim);
    let is_pod = |c: &Value| c["apiGroup"].as_str().unwrap_or_default().is_empty() && c["resource"] == "pods";
    let remaining: Vec<Value> = all.iter().filter(|c| !(is_pod(c) && gone(c))).cloned().collect();
    if remaining.len() == all.len() {
        return None;
    }
    let mut next = claim.clone();
    if remaining.is_empty() {
        next.remove(&["status", "reservedFor"]);
        if claim.finalizers().any(|f| f == FINALIZER) {
            next.remove(&["status", "allocation"]);
        }
    } else {
        next.set(&["status", "reservedFor"], remaining);
    }
    Some(next)
}

/// Whether a claim asks for devices that others use (`adminAccess`).
pub fn has_admin_access(claim: &Object) -> bool {
    let requests = claim.at(&["spec", "devices", "requests"]).and_then(Value::as_array);
    requests.into_iter().flatten().any(|r| r["exactly"]["adminAccess"] == true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_in_proportion() {
        assert_eq!(generate_name("pod", "gpu"), "pod-gpu-");
        let long = generate_name(&"p".repeat(100), &"c".repeat(50));
        assert_eq!(long, format!("{}-{}", "p".repeat(37), "c".repeat(18)));
        assert!(long.len() <= MAX_BASE);
    }

    #[test]
    fn claims_without_consumers_are_deallocated() {
        let claim = |finalizers: &[&str]| {
            Object::from_value(json!({
                "metadata": {"finalizers": finalizers},
                "status": {"allocation": {"devices": {}}, "reservedFor": [
                    {"resource": "pods", "name": "a", "uid": "1"},
                    {"resource": "pods", "name": "b", "uid": "2"},
                ]},
            }))
            .unwrap()
        };
        let held = claim(&[FINALIZER]);
        assert_eq!(released(&held, |_| false), None);
        let next = released(&held, |c| c["uid"] == "1").unwrap();
        assert_eq!(consumers(&next).len(), 1);
        assert!(next.at(&["status", "allocation"]).is_some());
        assert!(released(&held, |_| true).unwrap().at(&["status", "allocation"]).is_none());
        assert!(released(&claim(&[]), |_| true).unwrap().at(&["status", "allocation"]).is_some());
        let other =
            json!({"metadata": {}, "status": {"reservedFor": [{"apiGroup": "x", "resource": "things", "uid": "3"}]}});
        assert_eq!(released(&Object::from_value(other).unwrap(), |_| true), None, "others are not ours to judge");
        let pod = |uid: &str| Object::from_value(json!({"metadata": {"uid": uid}})).unwrap();
        assert!(!needs_reservation(&held, &pod("1")) && needs_reservation(&held, &pod("3")));
    }

    #[test]
    fn reads_the_claims_of_a_pod() {
        let pod = Object::from_value(json!({
            "spec": {"resourceClaims": [
                {"name": "a", "resourceClaimName": "shared"}, {"name": "b", "resourceClaimTemplateName": "t"},
                {"name": "c", "resourceClaimTemplateName": "t"}, {"name": "d", "resourceClaimTemplateName": "t"}]},
            "status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "p-b-1"}, {"name": "d"}]},
        }))
        .unwrap();
        let got: Vec<_> = pod_claims(&pod).into_iter().map(|c| (c.claim, c.unneeded)).collect();
        assert_eq!(got, [(Some("shared".into()), false), (Some("p-b-1".into()), false), (None, false), (None, true)]);
    }
}
