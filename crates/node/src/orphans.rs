//! Removes what is left of pods that the API does not know any more.

use std::collections::BTreeSet;
use std::path::Path;

use client::Informer;
use runtime::beneath;
use supervisor::blocking;

use crate::objects::Whole;
use crate::pod::container::POD_UID;
use crate::shared::Shared;

/// Removes sandboxes, addresses and directories of pods that neither the API nor a manifest has.
pub(crate) async fn remove_orphans(shared: &Shared, pods: &Informer<Whole>) {
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
    for uid in orphans.difference(&known) {
        tracing::info!(uid, "removing what is left of a deleted pod");
        shared.remove_orphan(uid).await;
    }
    remove_orphan_logs(&shared.options.log_dir, known).await;
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
