//! Removes what is left of pods that the API does not know any more.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::Informer;
use runtime::beneath;
use supervisor::blocking;
use tokio::task::JoinSet;

use crate::objects::Whole;
use crate::pod::container::POD_UID;
use crate::pod::network::Network;
use crate::shared::Shared;

/// How often the removal of pods with volumes of drivers is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// Removes sandboxes, addresses and directories of pods that neither the API nor a manifest has. The result removes pods with volumes of
/// drivers, whose own pods may have to start first, until it is dropped.
pub(crate) async fn remove_orphans(shared: &Arc<Shared>, pods: &Informer<Whole>) -> JoinSet<()> {
    let mut known: BTreeSet<String> = pods.cache().entries().map(|e| e.meta.uid.to_string()).collect();
    let static_pods = &shared.known.static_pods;
    let manifests = static_pods.desired().into_iter().flatten().chain(static_pods.running());
    known.extend(manifests.filter_map(|(_, pod)| pod.metadata.uid.clone()));
    let mut orphans: BTreeSet<String> = shared.volumes.pods().await.into_iter().collect();
    match shared.options.runtime.list_pods().await {
        Ok(list) => orphans.extend(list.into_iter().filter_map(|p| p.config.labels.get(POD_UID).cloned())),
        Err(error) => tracing::warn!(%error, "listing the runtime's pods failed; orphaned sandboxes stay"),
    }
    if let Some(network) = &shared.options.network {
        orphans.extend(network.attached().await.into_keys());
    }
    let plugins = match &shared.options.network {
        Some(Network::Plugins(network)) => Some(network.clone()),
        _ => None,
    };
    let mut later = Vec::new();
    for uid in orphans.difference(&known) {
        tracing::info!(uid, "removing what is left of a deleted pod");
        match plugins.is_some() || shared.volumes.has_driver_volumes(uid).await {
            // CNI plugins may take minutes.
            true => later.push(uid.clone()),
            false if !shared.remove_orphan(uid).await => later.push(uid.clone()),
            false => {}
        }
    }
    shared.volumes.release_unused_devices().await;
    remove_orphan_logs(&shared.options.log_dir, known).await;
    let mut tasks = JoinSet::new();
    if let Some(network) = plugins {
        tasks.spawn(async move {
            if let Err(error) = network.collect_garbage().await {
                tracing::debug!(%error, "the network plugins did not remove what is left of pods that are gone");
            }
        });
    }
    if !later.is_empty() {
        tasks.spawn(remove_later(shared.clone(), later));
    }
    tasks
}

/// Removes pods, and tries those again that cannot be removed yet.
async fn remove_later(shared: Arc<Shared>, mut uids: Vec<String>) {
    loop {
        let mut left = Vec::new();
        for uid in uids {
            // The manifest of a static pod may have come back.
            let manifests = shared.known.static_pods.desired().into_iter().flatten();
            if manifests.into_iter().any(|(_, pod)| pod.metadata.uid.as_deref() == Some(&*uid)) {
                continue;
            }
            if !shared.remove_orphan(&uid).await {
                left.push(uid);
            }
        }
        if left.is_empty() {
            return;
        }
        uids = left;
        tokio::time::sleep(RETRY).await;
    }
}

/// Removes the logs of pods that were deleted while no agent ran. Their directories are called `NAMESPACE_NAME_UID`.
async fn remove_orphan_logs(logs: &Path, known: BTreeSet<String>) {
    let logs = logs.to_owned();
    let removed = blocking(move || {
        for entry in std::fs::read_dir(&logs)? {
            let name = entry?.file_name();
            let parts: Vec<&str> = name.to_str().unwrap_or_default().split('_').collect();
            if let [_, _, uid] = parts.as_slice()
                && !known.contains(*uid)
            {
                beneath::remove_tree(&logs.join(&name))?;
            }
        }
        Ok::<_, std::io::Error>(())
    });
    if let Err(error) = removed.await {
        tracing::warn!(%error, "removing the logs of deleted pods failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn logs_go_with_their_pods() {
        let logs = tempfile::tempdir().unwrap();
        for name in ["ns_gone_uid-1", "ns_there_uid-2", "other"] {
            std::fs::create_dir_all(logs.path().join(name).join("container")).unwrap();
        }
        remove_orphan_logs(logs.path(), ["uid-2".to_owned()].into()).await;
        let mut left: Vec<_> = std::fs::read_dir(logs.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["ns_there_uid-2", "other"]);
    }
}
