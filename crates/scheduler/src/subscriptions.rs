//! Watches all objects that decisions depend on.

use crate::budgets::BudgetInfo;
use crate::changes::{Change, Changes};
use crate::cluster::NodeInfo;
use crate::dependency::Dependency;
use crate::devices::{DeviceClaimInfo, DeviceClassInfo, DeviceObject, SliceInfo};
use crate::pod::PodInfo;
use crate::storage::{
    AttachmentInfo, CapacityInfo, ClaimInfo, ClassInfo, CsiDriverInfo, CsiNodeInfo, StorageObject, VolumeInfo,
};
use crate::workloads::{Kind, Selecting};
use client::informer::{Entry, Subscription, View};
use client::{ApiResource, Informer, Informers, Scope};
use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::{
    apps::v1 as apps, core::v1 as core, policy::v1 as policy, resource::v1 as resource, storage::v1 as storage,
};
use std::sync::Arc;

/// Reports the changes of all objects, until it is dropped.
pub struct Subscriptions {
    _all: Vec<Subscription>,
    synced: Vec<BoxFuture<'static, ()>>,
}

impl Subscriptions {
    pub fn new(informers: &Informers, changes: &Arc<Changes>) -> Self {
        let mut all = Self { _all: Vec::new(), synced: Vec::new() };
        let nodes = informers.typed::<core::Node, NodeInfo>();
        all.watch(&nodes, changes, |c| Change::Node { old: c.old.clone(), new: c.new.clone() });
        let only_metadata = Scope { metadata_only: true, ..Scope::default() };
        let namespaces = informers.informer::<()>(&ApiResource::typed::<core::Namespace>(), &only_metadata);
        all.watch(&namespaces, changes, |c| Change::Namespace {
            name: c.latest().meta.name.clone(),
            old: c.old.is_some(),
            new: c.new.as_ref().map(|n| n.meta.labels.clone()),
        });
        all.depend(&informers.typed::<policy::PodDisruptionBudget, BudgetInfo>(), changes, Dependency::Budget);
        let workload = |kind| move |w| Dependency::Workload(kind, w);
        all.depend(&informers.typed::<core::Service, Selecting>(), changes, workload(Kind::Service));
        let controllers = informers.typed::<core::ReplicationController, Selecting>();
        all.depend(&controllers, changes, workload(Kind::ReplicationController));
        all.depend(&informers.typed::<apps::ReplicaSet, Selecting>(), changes, workload(Kind::ReplicaSet));
        all.depend(&informers.typed::<apps::StatefulSet, Selecting>(), changes, workload(Kind::StatefulSet));
        all.watch_storage(informers, changes);
        all.watch_devices(informers, changes);
        let pods = informers.typed::<core::Pod, PodInfo>();
        all.watch(&pods, changes, |c| Change::Pod { old: c.old.clone(), new: c.new.clone() });
        all
    }

    fn watch_storage(&mut self, informers: &Informers, changes: &Arc<Changes>) {
        let claims = informers.typed::<core::PersistentVolumeClaim, ClaimInfo>();
        self.depend(&claims, changes, |o| Dependency::Storage(StorageObject::Claim(o)));
        let volumes = informers.typed::<core::PersistentVolume, VolumeInfo>();
        self.depend(&volumes, changes, |o| Dependency::Storage(StorageObject::Volume(o)));
        let classes = informers.typed::<storage::StorageClass, ClassInfo>();
        self.depend(&classes, changes, |o| Dependency::Storage(StorageObject::Class(o)));
        let csi_nodes = informers.typed::<storage::CSINode, CsiNodeInfo>();
        self.depend(&csi_nodes, changes, |o| Dependency::Storage(StorageObject::CsiNode(o)));
        let csi_drivers = informers.typed::<storage::CSIDriver, CsiDriverInfo>();
        self.depend(&csi_drivers, changes, |o| Dependency::Storage(StorageObject::CsiDriver(o)));
        let capacities = informers.typed::<storage::CSIStorageCapacity, CapacityInfo>();
        self.depend(&capacities, changes, |o| Dependency::Storage(StorageObject::Capacity(o)));
        let attachments = informers.typed::<storage::VolumeAttachment, AttachmentInfo>();
        self.depend(&attachments, changes, |o| Dependency::Storage(StorageObject::Attachment(o)));
    }

    fn watch_devices(&mut self, informers: &Informers, changes: &Arc<Changes>) {
        let claims = informers.typed::<resource::ResourceClaim, DeviceClaimInfo>();
        self.depend(&claims, changes, |o| Dependency::Device(DeviceObject::Claim(o)));
        let classes = informers.typed::<resource::DeviceClass, DeviceClassInfo>();
        self.depend(&classes, changes, |o| Dependency::Device(DeviceObject::Class(o)));
        let slices = informers.typed::<resource::ResourceSlice, SliceInfo>();
        self.depend(&slices, changes, |o| Dependency::Device(DeviceObject::Slice(o)));
    }

    fn watch<V: View>(
        &mut self,
        informer: &Informer<V>,
        changes: &Arc<Changes>,
        change: impl Fn(&client::Change<V>) -> Change + Send + Sync + 'static,
    ) {
        let changes = changes.clone();
        self._all.push(informer.subscribe(move |c| changes.add(change(c))));
        let informer = informer.clone();
        self.synced.push(Box::pin(async move { informer.synced().await }));
    }

    fn depend<V: View>(
        &mut self,
        informer: &Informer<V>,
        changes: &Arc<Changes>,
        dependency: impl Fn(Arc<Entry<V>>) -> Dependency + Send + Sync + 'static,
    ) {
        self.watch(informer, changes, move |c| Change::Dependency {
            old: c.old.clone().map(&dependency),
            new: c.new.clone().map(&dependency),
        });
    }

    /// Waits until all caches are complete.
    pub async fn synced(&mut self) {
        join_all(std::mem::take(&mut self.synced)).await;
    }
}
