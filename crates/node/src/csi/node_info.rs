//! What the agent writes of a driver into its node, the CSINode and claims. Pure functions.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use plugins::api::csi::NodeGetInfoResponse;
use serde_json::{Value, json};

/// The annotation of a node with the drivers' names of it.
const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";

/// A CSINode without drivers.
pub(super) fn new_csi_node(node: &Node) -> CSINode {
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    let metadata =
        ObjectMeta { name: node.metadata.name.clone(), owner_references: Some(vec![owner]), ..ObjectMeta::default() };
    CSINode { metadata, spec: CSINodeSpec { drivers: Vec::new() } }
}

/// The CSINode with a driver, which replaces one of the same name.
pub(super) fn with_driver(mut node: CSINode, name: &str, info: &NodeGetInfoResponse) -> CSINode {
    let topology = info.accessible_topology.iter().flat_map(|t| t.segments.keys().cloned());
    let topology_keys: Vec<String> = topology.collect();
    // Beyond 32 bits, and below 1, there is no limit.
    let count = i32::try_from(info.max_volumes_per_node).unwrap_or(i32::MAX);
    let driver = CSINodeDriver {
        name: name.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: (!topology_keys.is_empty()).then_some(topology_keys),
        allocatable: (count > 0).then_some(VolumeNodeResources { count: Some(count) }),
    };
    match node.spec.drivers.iter_mut().find(|d| d.name == name) {
        Some(old) => *old = driver,
        None => node.spec.drivers.push(driver),
    }
    node
}

pub(super) fn without_driver(mut node: CSINode, name: &str) -> CSINode {
    node.spec.drivers.retain(|d| d.name != name);
    node
}

fn node_ids(node: &Node) -> Result<BTreeMap<String, String>, String> {
    let annotations = node.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|a| a.get(NODE_ID)).filter(|t| !t.is_empty()) else {
        return Ok(BTreeMap::new());
    };
    serde_json::from_str(text)
        .map_err(|e| format!("failed to parse node's {NODE_ID:?} annotation value ({text:?}) err={e}"))
}

/// The metadata to merge into a node that gets a driver; `None` if it has everything. Errors if a label has another value.
pub(super) fn installed(
    node: &Node,
    driver: &str,
    id: &str,
    topology: &BTreeMap<String, String>,
) -> Result<Option<Value>, String> {
    let mut ids = node_ids(node)?;
    let none = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    for (key, value) in topology {
        if let Some(other) = labels.get(key).filter(|v| *v != value) {
            return Err(format!(
                "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{other:?}"
            ));
        }
    }
    let missing: BTreeMap<_, _> = topology.iter().filter(|(k, _)| !labels.contains_key(*k)).collect();
    let is_new = ids.insert(driver.to_owned(), id.to_owned()).as_deref() != Some(id);
    let text = serde_json::to_string(&ids).map_err(|e| e.to_string())?;
    let metadata = json!({"annotations": {NODE_ID: text}, "labels": missing});
    Ok((is_new || !missing.is_empty()).then_some(metadata))
}

/// The metadata to merge into a node that loses a driver; `None` if it does not have it.
pub(super) fn uninstalled(node: &Node, driver: &str) -> Option<Value> {
    let mut ids = node_ids(node).ok()?;
    ids.remove(driver)?;
    let value = if ids.is_empty() { Value::Null } else { serde_json::to_string(&ids).ok()?.into() };
    Some(json!({"annotations": {NODE_ID: value}}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plugins::api::csi::Topology;

    fn node(metadata: Value) -> Node {
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn a_driver_is_added_replaced_and_removed() {
        let base = new_csi_node(&node(json!({"name": "n", "uid": "u"})));
        let segments = [("zone".to_owned(), "a".to_owned())].into();
        let info = NodeGetInfoResponse {
            node_id: "id".into(),
            max_volumes_per_node: 5,
            accessible_topology: Some(Topology { segments }),
        };
        let with = with_driver(base.clone(), "d", &info);
        assert_eq!(
            serde_json::to_value(&with.spec).unwrap(),
            json!({"drivers": [{"name": "d", "nodeID": "id", "topologyKeys": ["zone"], "allocatable": {"count": 5}}]})
        );
        let again = with_driver(with, "d", &NodeGetInfoResponse { max_volumes_per_node: 0, ..info });
        assert_eq!((again.spec.drivers.len(), &again.spec.drivers[0].allocatable), (1, &None));
        assert_eq!(without_driver(again, "d"), base);
    }

    #[test]
    fn the_node_has_ids_and_labels_of_drivers() {
        let zone: BTreeMap<String, String> = [("zone".to_owned(), "a".to_owned())].into();
        let bare = node(json!({"name": "n"}));
        let metadata = installed(&bare, "d", "id", &zone).unwrap().unwrap();
        assert_eq!(metadata, json!({"annotations": {NODE_ID: "{\"d\":\"id\"}"}, "labels": {"zone": "a"}}));
        let has = node(metadata);
        assert_eq!(installed(&has, "d", "id", &zone).unwrap(), None);
        assert_eq!(uninstalled(&has, "other"), None);
        assert_eq!(uninstalled(&has, "d"), Some(json!({"annotations": {NODE_ID: null}})));
        let other = node(json!({"labels": {"zone": "b"}}));
        assert!(installed(&other, "d", "id", &zone).unwrap_err().contains("topology value collision"));
        let broken = node(json!({"annotations": {NODE_ID: "{"}}));
        assert!(installed(&broken, "d", "id", &zone).unwrap_err().contains("failed to parse"));
    }
}
