//! The types of plugins that register with this node, and the CSINode, which lists those that are CSI drivers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use client::{Informer, Key};
use plugins::KubeletRoot;
use plugins::registration::{self, Handler};
use tokio::sync::Notify;

use crate::csi::Csi;
use crate::csi::cluster::ApiCluster;
use crate::objects::Whole;

/// How often the directory of sockets is searched.
const INTERVAL: Duration = Duration::from_secs(1);
/// The directory of sockets by which plugins register, below the root directory of the kubelet.
const DIRECTORY: &str = "plugins_registry";

/// Registers plugins, for ever.
pub(crate) async fn follow(root: &KubeletRoot, handlers: BTreeMap<&'static str, Arc<dyn Handler>>) {
    let options = registration::Options {
        directory: root.path.join(DIRECTORY),
        shown_as: root.shown_as.join(DIRECTORY),
        interval: INTERVAL,
        handlers,
    };
    registration::follow(options).await;
}

/// Creates the CSINode of the node, again for each node that is created under this name, for ever.
pub(crate) async fn keep_csi_node(cluster: &ApiCluster, csi: &Csi, node: &Informer<Whole>, name: &str) {
    let changed: Arc<Notify> = Arc::default();
    let notify = changed.clone();
    let _subscription = node.subscribe(move |_| notify.notify_one());
    node.synced().await;
    let mut known = String::new();
    loop {
        let found = node.get(&Key::new("", name)).map(|entry| entry.meta.uid.to_string());
        let Some(uid) = found.filter(|uid| *uid != known) else {
            changed.notified().await;
            continue;
        };
        match cluster.create_csi_node().await {
            Ok(()) => {
                known = uid;
                csi.node_registered().await;
            }
            Err(error) => {
                tracing::warn!(%error, "creating the CSINode failed; it is tried again");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}
