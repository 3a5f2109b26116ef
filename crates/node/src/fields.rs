//! Fields of a pod that its containers may read: `fieldRef` and `resourceFieldRef`, for variables and files.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, ResourceFieldSelector, ResourceRequirements};

/// The values that do not come from the pod.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    pub node_name: String,
    pub host_ips: Vec<String>,
    pub pod_ips: Vec<String>,
    /// The node's allocatable resources.
    pub allocatable: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("unsupported fieldPath: {0}")]
    Path(String),
    #[error("container {0:?} not found")]
    Container(String),
    #[error("unsupported container resource: {0}")]
    Resource(String),
}

fn subscript<'a>(path: &'a str, of: &str) -> Option<&'a str> {
    let key = path.strip_prefix(of)?.strip_prefix("['")?.strip_suffix("']")?;
    Some(key)
}

/// Text as Go quotes it (`%q`), for label and annotation files.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    map.into_iter().flatten().map(|(k, v)| format!("{k}={}", quoted(v))).collect::<Vec<_>>().join("\n")
}

/// The value of a field path.
pub fn field(pod: &Pod, path: &str, node: &NodeInfo) -> Result<String, Error> {
    let m = &pod.metadata;
    let one = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default()
    };
    if let Some(key) = subscript(path, "metadata.labels") {
        return Ok(one(&m.labels, key));
    }
    if let Some(key) = subscript(path, "metadata.annotations") {
        return Ok(one(&m.annotations, key));
    }
    let spec = pod.spec.as_ref();
    let host_network = spec.is_some_and(|s| s.host_network == Some(true));
    let pod_ips = if host_network { &node.host_ips } else { &node.pod_ips };
    Ok(match path {
        "metadata.name" => m.name.clone().unwrap_or_default(),
        "metadata.namespace" => m.namespace.clone().unwrap_or_default(),
        "metadata.uid" => m.uid.clone().unwrap_or_default(),
        "metadata.labels" => lines(m.labels.as_ref()),
        "metadata.annotations" => lines(m.annotations.as_ref()),
        "spec.nodeName" => node.node_name.clone(),
        "spec.serviceAccountName" => spec.and_then(|s| s.service_account_name.clone()).unwrap_or_default(),
        "status.hostIP" => node.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => node.host_ips.join(","),
        "status.podIP" => pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => pod_ips.join(","),
        _ => return Err(Error::Path(path.to_owned())),
    })
}

/// The value of a resource of a container (`own` if the selector names none).
pub fn resource(pod: &Pod, own: &str, selector: &ResourceFieldSelector, node: &NodeInfo) -> Result<String, Error> {
    let name = selector.container_name.as_deref().filter(|n| !n.is_empty()).unwrap_or(own);
    let containers = pod.spec.iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
    let mut all: Vec<(&str, Option<&ResourceRequirements>)> =
        containers.map(|c| (c.name.as_str(), c.resources.as_ref())).collect();
    all.extend(pod.spec.iter().flat_map(|s| s.ephemeral_containers.iter().flatten()).map(|c| (c.name.as_str(), None)));
    let (_, resources) = all.into_iter().find(|(n, _)| *n == name).ok_or_else(|| Error::Container(name.to_owned()))?;
    let divisor = selector.divisor.as_ref().map(|d| d.0.as_str());
    let of_pod = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    // Where a container has no limit, that of its pod applies, and otherwise the node's.
    let most = |n: &str| crate::resources::limit_of_pod(of_pod, n).or_else(|| node.allocatable.get(n).cloned());
    crate::resources::field(resources, &selector.resource, divisor, most)
        .ok_or_else(|| Error::Resource(selector.resource.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_learns_about_itself() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"b": "2", "a": "x\"y"},
                "annotations": {"k/x": "line\nnext"}},
            "spec": {"serviceAccountName": "sa", "containers": [{"name": "c"}]}
        }))
        .unwrap();
        let node = NodeInfo {
            node_name: "node".into(),
            host_ips: ["192.0.2.1", "2001:db8::1"].map(str::to_owned).into(),
            pod_ips: ["10.0.0.2", "fd00::2"].map(str::to_owned).into(),
            ..NodeInfo::default()
        };
        let check = |path: &str, expected: &str| assert_eq!(field(&pod, path, &node).unwrap(), expected, "{path}");
        check("metadata.name", "p");
        check("metadata.labels['b']", "2");
        check("metadata.labels['none']", "");
        check("metadata.annotations['k/x']", "line\nnext");
        check("metadata.labels", "a=\"x\\\"y\"\nb=\"2\"");
        check("metadata.annotations", "k/x=\"line\\nnext\"");
        check("spec.nodeName", "node");
        check("spec.serviceAccountName", "sa");
        check("status.podIP", "10.0.0.2");
        check("status.hostIP", "192.0.2.1");
        check("status.podIPs", "10.0.0.2,fd00::2");
        check("status.hostIPs", "192.0.2.1,2001:db8::1");
        assert_eq!(field(&pod, "spec.nope", &node), Err(Error::Path("spec.nope".into())));
    }

    #[test]
    fn containers_without_limits_see_those_of_the_pod_and_then_those_of_the_node() {
        let value = |of_pod: serde_json::Value, own: serde_json::Value, name: &str| {
            let pod: Pod = serde_json::from_value(json!({"metadata": {},
                "spec": {"resources": of_pod, "containers": [{"name": "c", "resources": own}]}}))
            .unwrap();
            let amounts = [("cpu", "8"), ("memory", "16Gi"), ("ephemeral-storage", "100")];
            let allocatable = amounts.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
            let node = NodeInfo { allocatable, ..NodeInfo::default() };
            let selector = ResourceFieldSelector { resource: name.into(), ..Default::default() };
            resource(&pod, "c", &selector, &node).unwrap()
        };
        let of_pod = json!({"limits": {"cpu": "1250m", "memory": "64Mi"}});
        assert_eq!(value(of_pod.clone(), json!({}), "limits.cpu"), "2");
        assert_eq!(value(of_pod.clone(), json!({}), "limits.memory"), "67108864");
        assert_eq!(value(of_pod.clone(), json!({"limits": {"memory": "1"}}), "limits.memory"), "1");
        assert_eq!(value(of_pod.clone(), json!({}), "limits.ephemeral-storage"), "100");
        assert_eq!(value(json!({"limits": {"cpu": "0"}}), json!({}), "limits.cpu"), "8");
        // Requests of the pod are its own.
        assert_eq!(value(json!({"requests": {"cpu": "1"}}), json!({}), "requests.cpu"), "0");
    }
}
