//! Security profiles of debugging containers, and what the copy of a pod drops
//! (`k8s.io/kubectl/pkg/cmd/debug/profiles.go`).

use super::Keep;
use crate::error::{Error, Result, os_message, text};
use meta::{Map, Object, Value};
use serde_json::json;

/// A security profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Profile {
    Legacy,
    General,
    Baseline,
    Restricted,
    Netadmin,
    Sysadmin,
}

/// How the debugging container is added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Style {
    Node,
    Copy,
    Ephemeral,
}

/// Reads a partial container spec from a JSON or YAML file.
pub fn custom(path: &str) -> Result<Map<String, Value>> {
    let read = std::fs::read_to_string(path);
    let read = read.map_err(|e| {
        Error::Text(format!("must pass a container spec json file for custom profile: open {path}: {}", os_message(&e)))
    })?;
    let parsed = codec::yaml::parse(&read).ok().and_then(|d| d.into_iter().next());
    match parsed.and_then(|v| v.as_object().cloned()) {
        Some(m) => Ok(m),
        None => text(format!("{path} does not contain a valid container spec: error unmarshaling")),
    }
}

impl Profile {
    /// Parses `--profile`.
    pub fn parse(name: &str) -> Result<Self> {
        Ok(match name {
            "legacy" => Self::Legacy,
            "general" => Self::General,
            "baseline" => Self::Baseline,
            "restricted" => Self::Restricted,
            "netadmin" => Self::Netadmin,
            "sysadmin" => Self::Sysadmin,
            _ => return text(format!("unknown profile: {name}")),
        })
    }

    /// Applies the profile to the pod and its debugging container.
    pub fn apply(self, pod: &mut Object, container: &str, style: Style, keep: &Keep) {
        let host = style == Style::Node;
        match self {
            Self::Legacy => {
                if style == Style::Copy {
                    pod.remove(&["metadata", "labels"]);
                }
            }
            Self::General => match style {
                Style::Node => change_security_context(pod, container, &mut |s| *s = Value::Null),
                Style::Copy | Style::Ephemeral => allow(pod, container, &["SYS_PTRACE"]),
            },
            Self::Baseline => change_security_context(pod, container, &mut |s| *s = Value::Null),
            Self::Restricted => change_security_context(pod, container, &mut |s| {
                *s = json!({
                    "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": false,
                    "seccompProfile": {"type": "RuntimeDefault"},
                });
            }),
            Self::Netadmin => allow(pod, container, &["NET_ADMIN", "NET_RAW"]),
            Self::Sysadmin => change_security_context(pod, container, &mut |s| s["privileged"] = true.into()),
        }
        if host && matches!(self, Self::Legacy | Self::General | Self::Sysadmin) {
            mount_root(pod, container);
        }
        if host && matches!(self, Self::Legacy | Self::General | Self::Netadmin | Self::Sysadmin) {
            for field in ["hostNetwork", "hostPID", "hostIPC"] {
                pod.set(&["spec", field], true);
            }
        }
        if style == Style::Copy && self != Self::Legacy {
            strip(pod, keep);
            if pod.at(&["spec", "shareProcessNamespace"]).is_none() {
                pod.set(&["spec", "shareProcessNamespace"], true);
            }
        }
    }
}

/// Removes from a copy what would make controllers and services treat it as the original pod.
fn strip(pod: &mut Object, keep: &Keep) {
    for (field, kept) in [("labels", keep.keep_labels), ("annotations", keep.keep_annotations)] {
        if !kept {
            pod.remove(&["metadata", field]);
        }
    }
    let mut all = pod.at(&["spec", "containers"]).and_then(Value::as_array).cloned().unwrap_or_default();
    for c in all.iter_mut().filter_map(Value::as_object_mut) {
        for (field, kept) in [
            ("livenessProbe", keep.keep_liveness),
            ("readinessProbe", keep.keep_readiness),
            ("startupProbe", keep.keep_startup),
        ] {
            if !kept {
                c.remove(field);
            }
        }
    }
    pod.set(&["spec", "containers"], all);
    if !keep.keep_init_containers {
        pod.remove(&["spec", "initContainers"]);
    }
}

/// Changes the security context of a container of any type; `Null` removes it.
fn change_security_context(pod: &mut Object, container: &str, change: &mut dyn FnMut(&mut Value)) {
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        let all = pod.0.get_mut("spec").and_then(|s| s.get_mut(field)).and_then(Value::as_array_mut);
        for c in all.into_iter().flatten().filter(|c| c["name"] == container).filter_map(Value::as_object_mut) {
            let mut s = c.remove("securityContext").filter(|s| s.is_object()).unwrap_or_else(|| json!({}));
            change(&mut s);
            if !s.is_null() {
                c.insert("securityContext".into(), s);
            }
        }
    }
}

fn allow(pod: &mut Object, container: &str, capabilities: &[&str]) {
    change_security_context(pod, container, &mut |s| {
        let mut all = s["capabilities"]["add"].as_array().cloned().unwrap_or_default();
        all.extend(capabilities.iter().map(|c| Value::from(*c)));
        s["capabilities"]["add"] = all.into();
    });
}

fn mount_root(pod: &mut Object, container: &str) {
    let mut volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array).cloned().unwrap_or_default();
    volumes.push(json!({"name": "host-root", "hostPath": {"path": "/"}}));
    pod.set(&["spec", "volumes"], volumes);
    let mut all = pod.at(&["spec", "containers"]).and_then(Value::as_array).cloned().unwrap_or_default();
    for c in all.iter_mut().filter(|c| c["name"] == container) {
        let mut mounts = c["volumeMounts"].as_array().cloned().unwrap_or_default();
        mounts.push(json!({"mountPath": "/host", "name": "host-root"}));
        c["volumeMounts"] = mounts.into();
    }
    pod.set(&["spec", "containers"], all);
}
