//! Builds a cluster from listed objects, for programs that decide without watching.

use crate::budgets::Budget;
use crate::cluster::{Cluster, NodeEntry};
use crate::dependency::Dependency;
use crate::devices::DeviceObject;
use crate::pod::Pod;
use crate::storage::StorageObject;
use crate::workloads::Kind;
use client::Entry;
use serde_json::{Error, Value};
use std::sync::Arc;

/// A resource that decisions depend on.
pub struct Listed {
    /// `v1`, or `group/version`.
    pub group_version: &'static str,
    pub plural: &'static str,
    add: fn(&mut Cluster, bytes::Bytes) -> Result<(), Error>,
}

impl Listed {
    /// Adds an object of the resource. Errors if it cannot be decoded.
    pub fn add(&self, cluster: &mut Cluster, object: &Value) -> Result<(), Error> {
        (self.add)(cluster, serde_json::to_vec(object)?.into())
    }
}

/// All resources that decisions depend on. Nodes come before pods.
pub const LISTED: &[Listed] = &[
    Listed { group_version: "v1", plural: "nodes", add: add_node },
    Listed { group_version: "v1", plural: "namespaces", add: add_namespace },
    Listed { group_version: "v1", plural: "pods", add: add_pod },
    Listed {
        group_version: "policy/v1",
        plural: "poddisruptionbudgets",
        add: |c, b| {
            Dependency::Budget(Arc::new(Budget::new(b)?)).set(c);
            Ok(())
        },
    },
    Listed { group_version: "v1", plural: "services", add: |c, b| add_workload(c, b, Kind::Service) },
    Listed {
        group_version: "v1",
        plural: "replicationcontrollers",
        add: |c, b| add_workload(c, b, Kind::ReplicationController),
    },
    Listed { group_version: "apps/v1", plural: "replicasets", add: |c, b| add_workload(c, b, Kind::ReplicaSet) },
    Listed { group_version: "apps/v1", plural: "statefulsets", add: |c, b| add_workload(c, b, Kind::StatefulSet) },
    Listed {
        group_version: "v1",
        plural: "persistentvolumeclaims",
        add: |c, b| add_storage(c, StorageObject::Claim(entry(b)?)),
    },
    Listed {
        group_version: "v1",
        plural: "persistentvolumes",
        add: |c, b| add_storage(c, StorageObject::Volume(entry(b)?)),
    },
    Listed {
        group_version: "storage.k8s.io/v1",
        plural: "storageclasses",
        add: |c, b| add_storage(c, StorageObject::Class(entry(b)?)),
    },
    Listed {
        group_version: "storage.k8s.io/v1",
        plural: "csinodes",
        add: |c, b| add_storage(c, StorageObject::CsiNode(entry(b)?)),
    },
    Listed {
        group_version: "storage.k8s.io/v1",
        plural: "csidrivers",
        add: |c, b| add_storage(c, StorageObject::CsiDriver(entry(b)?)),
    },
    Listed {
        group_version: "storage.k8s.io/v1",
        plural: "csistoragecapacities",
        add: |c, b| add_storage(c, StorageObject::Capacity(entry(b)?)),
    },
    Listed {
        group_version: "storage.k8s.io/v1",
        plural: "volumeattachments",
        add: |c, b| add_storage(c, StorageObject::Attachment(entry(b)?)),
    },
    Listed {
        group_version: "resource.k8s.io/v1",
        plural: "resourceclaims",
        add: |c, b| add_device(c, DeviceObject::Claim(entry(b)?)),
    },
    Listed {
        group_version: "resource.k8s.io/v1",
        plural: "deviceclasses",
        add: |c, b| add_device(c, DeviceObject::Class(entry(b)?)),
    },
    Listed {
        group_version: "resource.k8s.io/v1",
        plural: "resourceslices",
        add: |c, b| add_device(c, DeviceObject::Slice(entry(b)?)),
    },
];

fn entry<V: client::informer::View>(bytes: bytes::Bytes) -> Result<Arc<Entry<V>>, Error> {
    Ok(Arc::new(Entry::new(bytes)?))
}

fn add_node(cluster: &mut Cluster, bytes: bytes::Bytes) -> Result<(), Error> {
    cluster.set_node(Arc::new(NodeEntry::new(bytes)?));
    Ok(())
}

fn add_namespace(cluster: &mut Cluster, bytes: bytes::Bytes) -> Result<(), Error> {
    let namespace: Arc<Entry<()>> = entry(bytes)?;
    cluster.set_namespace(&namespace.meta.name, namespace.meta.labels.clone());
    Ok(())
}

fn add_pod(cluster: &mut Cluster, bytes: bytes::Bytes) -> Result<(), Error> {
    let pod = Arc::new(Pod::new(bytes)?);
    if pod.view.is_terminal() {
        return Ok(());
    }
    match &*pod.view.node_name.clone() {
        "" => cluster.nominations_mut().update(None, &pod),
        node => cluster.add_pod(pod, node),
    }
    Ok(())
}

fn add_workload(cluster: &mut Cluster, bytes: bytes::Bytes, kind: Kind) -> Result<(), Error> {
    Dependency::Workload(kind, entry(bytes)?).set(cluster);
    Ok(())
}

fn add_storage(cluster: &mut Cluster, object: StorageObject) -> Result<(), Error> {
    Dependency::Storage(object).set(cluster);
    Ok(())
}

fn add_device(cluster: &mut Cluster, object: DeviceObject) -> Result<(), Error> {
    Dependency::Device(object).set(cluster);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn builds_a_cluster_and_reports_undecodable_objects() {
        let mut cluster = Cluster::default();
        let object =
            |name: &str| json!({"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {"nodeName": "n"}});
        for listed in LISTED {
            listed.add(&mut cluster, &object("n")).unwrap();
            assert!(listed.add(&mut cluster, &json!([])).is_err(), "{}", listed.plural);
        }
        let mut ended = object("ended");
        ended["status"] = json!({"phase": "Succeeded"});
        LISTED[2].add(&mut cluster, &ended).unwrap();
        assert_eq!((cluster.live(), cluster.nodes()[0].pods.len()), (1, 1));
    }
}
