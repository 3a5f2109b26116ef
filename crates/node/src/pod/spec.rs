//! Reading a pod: its containers, and optional texts.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec};

/// The text; empty if there is none.
pub fn text(o: &Option<String>) -> &str {
    o.as_deref().unwrap_or_default()
}

/// Init containers, then app containers.
pub fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// Containers of every kind.
pub fn all_containers(spec: &PodSpec) -> Vec<Container> {
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(from_ephemeral);
    containers(spec).cloned().chain(ephemeral).collect()
}

/// The container of a pod with this name, of any kind.
pub fn find_container(pod: &Pod, name: &str) -> Option<Container> {
    let spec = pod.spec.as_ref()?;
    let plain = containers(spec).find(|c| c.name == name).cloned();
    plain.or_else(|| spec.ephemeral_containers.iter().flatten().find(|c| c.name == name).map(from_ephemeral))
}

/// An ephemeral container as a container: it has the same fields less those it may not have.
fn from_ephemeral(c: &EphemeralContainer) -> Container {
    Container {
        args: c.args.clone(),
        command: c.command.clone(),
        env: c.env.clone(),
        env_from: c.env_from.clone(),
        image: c.image.clone(),
        image_pull_policy: c.image_pull_policy.clone(),
        name: c.name.clone(),
        security_context: c.security_context.clone(),
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        termination_message_path: c.termination_message_path.clone(),
        termination_message_policy: c.termination_message_policy.clone(),
        tty: c.tty,
        volume_devices: c.volume_devices.clone(),
        volume_mounts: c.volume_mounts.clone(),
        working_dir: c.working_dir.clone(),
        ..Container::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_ephemeral_container_keeps_its_fields() {
        // All that one may have, but the name of the container whose processes it shares.
        let fields = json!({"name": "e", "image": "i", "imagePullPolicy": "Always", "command": ["c"], "args": ["a"], "workingDir": "/w",
            "env": [{"name": "k", "value": "v"}], "envFrom": [{"prefix": "p"}], "stdin": true, "stdinOnce": true, "tty": true,
            "securityContext": {"privileged": true}, "terminationMessagePath": "/t", "terminationMessagePolicy": "File",
            "volumeMounts": [{"name": "v", "mountPath": "/v"}], "volumeDevices": [{"name": "d", "devicePath": "/d"}]});
        let c = serde_json::from_value(fields.clone()).unwrap();
        assert_eq!(serde_json::to_value(from_ephemeral(&c)).unwrap(), fields);
    }
}
