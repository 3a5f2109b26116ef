//! Errors of containers without a log, or without a process. Clients match kubelet's messages (`pkg/kubelet`,
//! `validateContainerLogStatus`).

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::{Error, Handle};

/// The error for a container that the runtime does not have, from the status of its pod.
pub(super) async fn no_log(handle: &Handle, ns: &str, pod: &str, name: &str) -> Error {
    match handle.options.client.api::<Pod>().namespace(ns).get_opt(pod).await {
        Ok(Some(p)) if !has_container(&p, name) => {
            Error::NotFound(format!("container {name:?} not found in pod {pod:?}"))
        }
        Ok(Some(p)) => Error::BadRequest(why(&p, name)),
        Ok(None) => Error::NotFound(format!("pod {pod:?} does not exist")),
        // A node may not read pods of other nodes.
        Err(e) if e.is_forbidden() => Error::NotFound(format!("pod {pod:?} does not exist")),
        Err(e) => Error::Internal(e.to_string()),
    }
}

fn has_container(p: &Pod, name: &str) -> bool {
    let Some(spec) = &p.spec else { return false };
    let ephemeral = spec.ephemeral_containers.iter().flatten().any(|c| c.name == name);
    ephemeral || spec.init_containers.iter().flatten().chain(&spec.containers).any(|c| c.name == name)
}

fn why(p: &Pod, name: &str) -> String {
    let pod = p.metadata.name.as_deref().unwrap_or_default();
    let status = p.status.as_ref();
    let lists = status.map(|s| [&s.container_statuses, &s.init_container_statuses, &s.ephemeral_container_statuses]);
    let mut all = lists.into_iter().flatten().flat_map(|l| l.iter().flatten());
    let Some(status): Option<&ContainerStatus> = all.find(|s| s.name == name) else {
        return format!("container {name:?} in pod {pod:?} is not available");
    };
    let state = status.state.as_ref();
    let waiting = state.and_then(|s| s.waiting.as_ref());
    let ended = |s: &k8s_openapi::api::core::v1::ContainerState| s.terminated.is_some();
    match waiting.map(|w| w.reason.as_deref().unwrap_or_default()) {
        _ if state.is_some_and(ended) || status.last_state.as_ref().is_some_and(ended) => {
            format!("container {name:?} in pod {pod:?} is terminated")
        }
        None => format!("container {name:?} in pod {pod:?} is waiting to start - no logs yet"),
        Some("ErrImagePull") => format!("container {name:?} in pod {pod:?} is waiting to start: image can't be pulled"),
        Some("ImagePullBackOff") => {
            format!("container {name:?} in pod {pod:?} is waiting to start: trying and failing to pull image")
        }
        Some(reason) => format!("container {name:?} in pod {pod:?} is waiting to start: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn explains_containers_without_logs() {
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        for (status, expected) in [
            (json!({}), "container \"c\" in pod \"p\" is not available"),
            (
                json!({"state": waiting("PodInitializing")}),
                "container \"c\" in pod \"p\" is waiting to start: PodInitializing",
            ),
            (
                json!({"state": waiting("ContainerCreating")}),
                "container \"c\" in pod \"p\" is waiting to start: ContainerCreating",
            ),
            (
                json!({"state": waiting("CreateContainerConfigError")}),
                "container \"c\" in pod \"p\" is waiting to start: CreateContainerConfigError",
            ),
            (
                json!({"state": waiting("ErrImagePull")}),
                "container \"c\" in pod \"p\" is waiting to start: image can't be pulled",
            ),
            (
                json!({"state": waiting("ImagePullBackOff")}),
                "container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image",
            ),
            (json!({"state": {}}), "container \"c\" in pod \"p\" is waiting to start - no logs yet"),
            (
                json!({"state": waiting("x"), "lastState": {"terminated": {"exitCode": 1}}}),
                "container \"c\" in pod \"p\" is terminated",
            ),
        ] {
            for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
                let mut one = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0});
                one.as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
                let statuses = if status == json!({}) { json!([]) } else { json!([one]) };
                let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}, "status": {list: statuses}});
                assert_eq!(why(&serde_json::from_value(pod).unwrap(), "c"), expected);
            }
        }
    }
}
