//! Objects other than pods, nodes and namespaces that decisions depend on.

use crate::budgets::Budget;
use crate::cluster::Cluster;
use crate::devices::DeviceObject;
use crate::framework::Read;
use crate::storage::StorageObject;
use crate::workloads::{Kind, Selecting};
use client::{Entry, Key};
use std::sync::Arc;

/// An object that decisions depend on.
#[derive(Clone)]
pub enum Dependency {
    Budget(Arc<Budget>),
    Workload(Kind, Arc<Entry<Selecting>>),
    Storage(StorageObject),
    Device(DeviceObject),
}

impl Dependency {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Budget(_) => "PodDisruptionBudget",
            Self::Workload(kind, _) => kind.name(),
            Self::Storage(object) => object.kind(),
            Self::Device(object) => object.kind(),
        }
    }

    pub fn key(&self) -> Key {
        match self {
            Self::Budget(budget) => budget.key(),
            Self::Workload(_, workload) => workload.key(),
            Self::Storage(object) => object.key(),
            Self::Device(object) => object.key(),
        }
    }

    /// What filters read of it.
    pub fn read(&self) -> Option<Read> {
        match self {
            Self::Budget(_) | Self::Workload(..) => None,
            Self::Storage(_) => Some(Read::Storage),
            Self::Device(DeviceObject::Class(_)) => Some(Read::DeviceClasses),
            Self::Device(_) => Some(Read::Devices),
        }
    }

    /// Adds the object to the cluster, or replaces it.
    pub fn set(self, cluster: &mut Cluster) {
        match self {
            Self::Budget(budget) => cluster.set_budget(budget),
            Self::Workload(kind, w) => cluster.workloads_mut().set(kind, &w.key(), Some(&w.view)),
            Self::Storage(object) => cluster.storage_mut().set(object),
            Self::Device(object) => cluster.devices_mut().set(object),
        }
    }

    pub fn remove(&self, cluster: &mut Cluster) {
        match self {
            Self::Budget(budget) => cluster.remove_budget(&budget.key()),
            Self::Workload(kind, w) => cluster.workloads_mut().set(*kind, &w.key(), None),
            Self::Storage(object) => cluster.storage_mut().remove(object),
            Self::Device(object) => cluster.devices_mut().remove(object),
        }
    }
}
