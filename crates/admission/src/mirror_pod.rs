//! Mirror pods: the API objects of a node's static pods.

use meta::{Object, Value};

pub(crate) const ANNOTATION: &str = "kubernetes.io/config.mirror";

pub(crate) fn is_mirror(pod: &Object) -> bool {
    pod.annotation(ANNOTATION).is_some()
}

/// Kinds of objects that a mirror pod must not reference: the reference would authorize the node to read them.
pub(crate) fn referenced(pod: &Object) -> Option<&'static str> {
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
    if list("volumes").any(|v| v["persistentVolumeClaim"].is_object() || v["ephemeral"].is_object()) {
        return Some("persistentvolumeclaims");
    }
    if list("resourceClaims").next().is_some() {
        return Some("resourceclaims");
    }
    if volume("podCertificate") {
        return Some("pod certificates");
    }
    uses_token(pod).then_some("service account tokens")
}

/// Whether a volume projects a token of the pod's service account.
pub(crate) fn uses_token(pod: &Object) -> bool {
    let volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array).into_iter().flatten();
    let mut sources = volumes.filter_map(|v| v["projected"]["sources"].as_array()).flatten();
    sources.any(|s| s["serviceAccountToken"].is_object())
}

/// Whether a volume passes a secret to its driver: by reference or name, depending on the driver.
fn names_secret(volume: &Value) -> bool {
    let sources = volume.as_object().into_iter().flatten().filter(|(k, _)| *k != "projected" && *k != "secret");
    let fields = sources.filter_map(|(_, s)| s.as_object()).flatten();
    let mut given = fields
        .filter(|(k, v)| matches!(k.as_str(), "secretRef" | "secretName" | "nodePublishSecretRef") && !v.is_null());
    given.next().is_some()
}
