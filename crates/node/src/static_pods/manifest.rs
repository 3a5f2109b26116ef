//! Makes a static pod from a manifest.

use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde_json::{Value, json};

use super::PodDecoder;

/// Annotations of static pods and of their mirror pods (`pkg/kubelet/types`).
pub const HASH: &str = "kubernetes.io/config.hash";
pub const MIRROR: &str = "kubernetes.io/config.mirror";
pub const SOURCE: &str = "kubernetes.io/config.source";
pub const SEEN: &str = "kubernetes.io/config.seen";

/// Bytes of a hash in a UID.
const UID_BYTES: usize = 16;

/// The pod of a manifest, named `NAME-NODE`. Errors if the API server would not accept it, or if it needs objects of the API.
pub fn read(
    decoder: &dyn PodDecoder,
    text: &str,
    path: &Path,
    node: &str,
    now: jiff::Timestamp,
) -> Result<Pod, String> {
    let mut pod = decoder.decode(text).map_err(|e| format!("couldn't parse as pod({e}), please check config file"))?;
    let text_at = |pod: &Value, field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
    let name = text_at(&pod, "name");
    if name.is_empty() {
        return Err("invalid pod: name is needed for the pod".into());
    }
    let mut uid = text_at(&pod, "uid");
    if uid.is_empty() {
        uid = hash(&pod, node, path);
    } else if !is_label(&uid) {
        // It is a part of paths and of the names of control groups.
        return Err(format!("invalid pod: metadata.uid {uid:?} must consist of lower case letters, digits and '-'"));
    }
    let namespace = Some(text_at(&pod, "namespace")).filter(|n| !n.is_empty()).unwrap_or_else(|| "default".into());
    let metadata = &mut pod["metadata"];
    metadata["uid"] = uid.as_str().into();
    metadata["name"] = format!("{name}-{}", node.to_lowercase()).into();
    metadata["namespace"] = namespace.into();
    metadata["annotations"][HASH] = uid.into();
    pod["spec"]["nodeName"] = node.into();
    tolerate_no_execute(&mut pod["spec"]);
    pod["status"] = json!({"phase": "Pending"});
    decoder.validate(&pod).map_err(|e| format!("invalid pod: {e}"))?;
    // Set after the validation, as upstream: they are no part of the manifest.
    pod["metadata"]["annotations"][SOURCE] = "file".into();
    pod["metadata"]["annotations"][SEEN] = meta::time::format(now).into();
    let pod: Pod = serde_json::from_value(pod).map_err(|e| format!("invalid pod: {e}"))?;
    match pod.spec.as_ref().and_then(referenced_objects) {
        Some(resource) => Err(format!("static pods may not reference {resource}")),
        None => Ok(pod),
    }
}

/// Static pods are not evicted when the node has problems.
fn tolerate_no_execute(spec: &mut Value) {
    let toleration = json!({"operator": "Exists", "effect": "NoExecute"});
    match spec["tolerations"].as_array_mut() {
        Some(list) if list.contains(&toleration) => {}
        Some(list) => list.push(toleration),
        None => spec["tolerations"] = json!([toleration]),
    }
}

/// A UID that is the same for the same manifest in the same file on the same node.
fn hash(pod: &Value, node: &str, path: &Path) -> String {
    let text = format!("{pod}host:{node}file:{}", path.display());
    digest(&SHA256, text.as_bytes()).as_ref().iter().take(UID_BYTES).map(|b| format!("{b:02x}")).collect()
}

fn is_label(uid: &str) -> bool {
    uid.len() <= 63
        && uid.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !uid.starts_with('-')
}

/// What of the API a pod needs, and so cannot have as a static pod (`HasAPIObjectReference`).
fn referenced_objects(spec: &PodSpec) -> Option<&'static str> {
    if spec.service_account_name.as_ref().is_some_and(|n| !n.is_empty()) {
        return Some("serviceaccounts");
    }
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| (&c.env, &c.env_from));
    let own = |c: &'_ Container| (c.env.clone(), c.env_from.clone());
    let mut variables: Vec<_> = spec.init_containers.iter().flatten().chain(&spec.containers).map(own).collect();
    variables.extend(ephemeral.map(|(env, from)| (env.clone(), from.clone())));
    let (mut secrets, mut config_maps) = (spec.image_pull_secrets.as_ref().is_some_and(|s| !s.is_empty()), false);
    for (env, from) in &variables {
        for source in env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            secrets |= source.secret_key_ref.is_some();
            config_maps |= source.config_map_key_ref.is_some();
        }
        for source in from.iter().flatten() {
            secrets |= source.secret_ref.is_some();
            config_maps |= source.config_map_ref.is_some();
        }
    }
    if secrets {
        return Some("secrets");
    }
    if config_maps {
        return Some("configmaps");
    }
    if spec.resource_claims.as_ref().is_some_and(|c| !c.is_empty()) {
        return Some("resourceclaims");
    }
    for volume in spec.volumes.iter().flatten() {
        let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        let found = match volume {
            v if v.config_map.is_some() => Some("configmaps (via configmap volumes)"),
            v if v.secret.is_some() => Some("secrets (via secret volumes)"),
            v if v.csi.is_some() => Some("csidrivers (via CSI volumes)"),
            v if v.glusterfs.is_some() => Some("endpoints (via glusterFS volumes)"),
            v if v.persistent_volume_claim.is_some() => Some("persistentvolumeclaims"),
            v if v.ephemeral.is_some() => Some("persistentvolumeclaims (via ephemeral volumes)"),
            v if v.azure_file.is_some() => Some("secrets (via azureFile volumes)"),
            _ => sources.into_iter().find_map(|s| match s {
                s if s.config_map.is_some() => Some("configmaps (via projected volumes)"),
                s if s.secret.is_some() => Some("secrets (via projected volumes)"),
                s if s.service_account_token.is_some() => Some("serviceaccounts (via projected volumes)"),
                s if s.cluster_trust_bundle.is_some() => Some("clustertrustbundles"),
                s if s.pod_certificate.is_some() => Some("podcertificates"),
                _ => None,
            }),
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes JSON as it is.
    struct Json;

    impl PodDecoder for Json {
        fn decode(&self, manifest: &str) -> Result<Value, String> {
            serde_json::from_str(manifest).map_err(|e| e.to_string())
        }

        fn validate(&self, pod: &Value) -> Result<(), String> {
            if pod["spec"]["containers"].is_array() { Ok(()) } else { Err("spec.containers: Required value".into()) }
        }
    }

    fn pod(manifest: Value) -> Result<Pod, String> {
        pod_at(manifest, "/etc/manifests/web.yaml")
    }

    fn pod_at(manifest: Value, path: &str) -> Result<Pod, String> {
        read(&Json, &manifest.to_string(), Path::new(path), "Node-1", jiff::Timestamp::UNIX_EPOCH)
    }

    fn manifest(spec: Value) -> Value {
        let mut spec = spec;
        spec["containers"] = json!([{"name": "c", "image": "i"}]);
        json!({"metadata": {"name": "web"}, "spec": spec})
    }

    /// Clauses: P19.manifest
    #[test]
    fn a_manifest_becomes_a_pod_of_the_node() {
        let pod = pod(manifest(json!({}))).unwrap();
        let (m, spec) = (&pod.metadata, pod.spec.as_ref().unwrap());
        assert_eq!((m.name.as_deref(), m.namespace.as_deref()), (Some("web-node-1"), Some("default")));
        assert_eq!(spec.node_name.as_deref(), Some("Node-1"));
        let annotations = m.annotations.as_ref().unwrap();
        assert_eq!(Some(&annotations[HASH]), m.uid.as_ref());
        assert_eq!((&*annotations[SOURCE], &*annotations[SEEN]), ("file", "1970-01-01T00:00:00Z"));
        let toleration = &spec.tolerations.as_ref().unwrap()[0];
        assert_eq!((toleration.operator.as_deref(), toleration.effect.as_deref()), (Some("Exists"), Some("NoExecute")));
    }

    #[test]
    fn the_uid_is_that_of_the_manifest_and_its_file() {
        let uid = |pod: Result<Pod, String>| pod.unwrap().metadata.uid.unwrap();
        let first = uid(pod(manifest(json!({}))));
        assert_eq!(first, uid(pod(manifest(json!({})))));
        assert_eq!(first.len(), 32);
        assert_ne!(first, uid(pod(manifest(json!({"hostNetwork": true})))));
        assert_ne!(first, uid(pod_at(manifest(json!({})), "/etc/manifests/other.yaml")));
        let mut own = manifest(json!({}));
        own["metadata"]["uid"] = "my-uid".into();
        assert_eq!(uid(pod(own.clone())), "my-uid");
        own["metadata"]["uid"] = "../../etc".into();
        assert!(pod(own).unwrap_err().contains("metadata.uid"));
    }

    #[test]
    fn pods_that_need_objects_of_the_api_are_refused() {
        for (spec, resource) in [
            (json!({"serviceAccountName": "a"}), "serviceaccounts"),
            (json!({"imagePullSecrets": [{"name": "s"}]}), "secrets"),
            (json!({"initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "s"}}]}]}), "secrets"),
            (
                json!({"initContainers": [{"name": "i",
                    "env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]}]}),
                "configmaps",
            ),
            (json!({"resourceClaims": [{"name": "r"}]}), "resourceclaims"),
            (json!({"volumes": [{"name": "v", "configMap": {}}]}), "configmaps (via configmap volumes)"),
            (json!({"volumes": [{"name": "v", "secret": {}}]}), "secrets (via secret volumes)"),
            (
                json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}),
                "persistentvolumeclaims",
            ),
            (
                json!({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
                "serviceaccounts (via projected volumes)",
            ),
        ] {
            assert_eq!(
                pod(manifest(spec.clone())).unwrap_err(),
                format!("static pods may not reference {resource}"),
                "{spec}"
            );
        }
        let fine = json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "emptyDir": {}},
            {"name": "p", "projected": {"sources": [{"downwardAPI": {}}]}}]});
        assert!(pod(manifest(fine)).is_ok());
    }

    #[test]
    fn invalid_manifests_are_explained() {
        let message = |manifest: Value| pod(manifest).unwrap_err();
        assert_eq!(message(json!({"metadata": {}})), "invalid pod: name is needed for the pod");
        assert_eq!(
            message(json!({"metadata": {"name": "p"}, "spec": {}})),
            "invalid pod: spec.containers: Required value"
        );
        let error = read(&Json, "{", Path::new("/f"), "n", jiff::Timestamp::UNIX_EPOCH).unwrap_err();
        assert!(error.starts_with("couldn't parse as pod(EOF"), "{error}");
    }
}
