//! Validation of security contexts.

use crate::read::{items, shown, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};
use std::collections::HashSet;

const ID_MAX: i64 = i32::MAX as i64;

fn id(v: &Value, key: &str, at: &FieldPath, errors: &mut ErrorList) {
    user_id(&v[key], &at.child(key), errors);
}

fn user_id(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    if v.as_i64().is_some_and(|n| !(0..=ID_MAX).contains(&n)) {
        errors.push(FieldError::invalid(at, v, "must be between 0 and 2147483647, inclusive"));
    }
}

const GROUP_CHANGES: [&str; 2] = ["Always", "OnRootMismatch"];
const GROUP_POLICIES: [&str; 2] = ["Merge", "Strict"];
/// `MountOption` requires a feature gate that is off.
const LABEL_CHANGES: [&str; 1] = ["Recursive"];

pub fn pod(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let context = &spec["securityContext"];
    let at = path.child("securityContext");
    for key in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(context, key, &at, errors);
    }
    for (i, g) in items(context, "supplementalGroups").iter().enumerate() {
        user_id(g, &at.child("supplementalGroups").index(i), errors);
    }
    if spec["hostPID"] == true && spec["shareProcessNamespace"] == true {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(&at.child("shareProcessNamespace"), true, why));
    }
    for (key, known) in [
        ("fsGroupChangePolicy", &GROUP_CHANGES[..]),
        ("supplementalGroupsPolicy", &GROUP_POLICIES),
        ("seLinuxChangePolicy", &LABEL_CHANGES),
    ] {
        if let Some(policy) = context[key].as_str().filter(|p| !known.contains(p)) {
            errors.push(FieldError::not_supported(&at.child(key), policy, known));
        }
    }
    seccomp(&context["seccompProfile"], &at.child("seccompProfile"), errors);
    apparmor(&context["appArmorProfile"], &at.child("appArmorProfile"), errors);
    sysctls(spec, &at.child("sysctls"), errors);
    if spec["hostUsers"] == false {
        // Upstream reports two of the fields with their Go names.
        for (key, reported) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
            if spec[key] == true {
                errors.push(FieldError::forbidden(&path.child(reported), "when `hostUsers` is false"));
            }
        }
    }
}

fn sysctls(spec: &Value, list: &FieldPath, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for (i, s) in items(&spec["securityContext"], "sysctls").iter().enumerate() {
        let at = list.index(i).child("name");
        let name = text(s, "name");
        if name.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if !is_sysctl(name) {
            let why = r"must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            errors.push(FieldError::invalid(&at, name, why));
        } else if seen.contains(name) {
            errors.push(FieldError::duplicate(&at, name));
        }
        seen.insert(name);
        // Sysctls of the host: dots and slashes are equivalent.
        let dotted = name.replace('/', ".");
        let ipc = matches!(dotted.as_str(), "kernel.sem" | "kernel.shm_rmid_forced")
            || ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|p| dotted.starts_with(p));
        if spec["hostNetwork"] == true && dotted.starts_with("net.") {
            errors.push(FieldError::invalid(&at, name, "may not be specified when 'hostNetwork' is true"));
        } else if spec["hostIPC"] == true && ipc {
            errors.push(FieldError::invalid(&at, name, "may not be specified when 'hostIPC' is true"));
        }
    }
}

fn is_sysctl(name: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 253
        && name.split(['.', '/']).all(|s| {
            let b = s.as_bytes();
            b.first().is_some_and(|c| inner(*c))
                && b.last().is_some_and(|c| inner(*c))
                && b.iter().all(|c| inner(*c) || matches!(c, b'-' | b'_'))
        })
}

const PROFILES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

/// Validates and returns the type of a profile.
fn profile_type<'a>(p: &'a Value, what: &str, at: &FieldPath, errors: &mut ErrorList) -> &'a str {
    let ty = text(p, "type");
    if ty.is_empty() {
        errors.push(FieldError::required(&at.child("type"), &format!("type is required when {what} is set")));
    } else if !PROFILES.contains(&ty) {
        errors.push(FieldError::not_supported(&at.child("type"), ty, &PROFILES));
    }
    ty
}

/// Validates a seccomp profile: a file only, and always, with type `Localhost`.
fn seccomp(p: &Value, at: &FieldPath, errors: &mut ErrorList) {
    if !p.is_object() {
        return;
    }
    let localhost = profile_type(p, "seccompProfile", at, errors) == "Localhost";
    let at = at.child("localhostProfile");
    match p["localhostProfile"].as_str() {
        None if localhost => errors.push(FieldError::required(&at, "must be set when seccomp type is Localhost")),
        Some(file) if localhost => schema::rules::descending_path(file, &at, errors),
        Some(_) => {
            let why = "can only be set when seccomp type is Localhost";
            let profile = shown(p, "io.k8s.api.core.v1.SeccompProfile", &at);
            errors.push(FieldError::invalid(&at, profile, why));
        }
        None => {}
    }
}

const APPARMOR_NAME_MAX: usize = 4095;

/// Validates an AppArmor profile: a name only, and always, with type `Localhost`.
pub fn apparmor(p: &Value, at: &FieldPath, errors: &mut ErrorList) {
    if !p.is_object() {
        return;
    }
    let ty = profile_type(p, "appArmorProfile", at, errors);
    let at = at.child("localhostProfile");
    let missing = "must be set when AppArmor type is Localhost";
    match (ty, p["localhostProfile"].as_str()) {
        ("Localhost", None | Some("")) => errors.push(FieldError::required(&at, missing)),
        ("Localhost", Some(name)) => {
            if name.trim() != name {
                errors.push(FieldError::invalid(&at, name, "must not be padded with whitespace"));
            }
            if name.len() > APPARMOR_NAME_MAX {
                errors.push(FieldError::too_long(&at, APPARMOR_NAME_MAX));
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            errors.push(FieldError::invalid(&at, name, "can only be set when AppArmor type is Localhost"));
        }
        _ => {}
    }
}

/// Validates the security context of a container; `host_users` is whether it uses the host's user namespace.
pub fn container(c: &Value, host_users: bool, at: &FieldPath, errors: &mut ErrorList) {
    let context = &c["securityContext"];
    if !context.is_object() {
        return;
    }
    let at = at.child("securityContext");
    for key in ["runAsUser", "runAsGroup"] {
        id(context, key, &at, errors);
    }
    if let Some(mount) = context["procMount"].as_str() {
        let at = at.child("procMount");
        if !matches!(mount, "Default" | "Unmasked") {
            errors.push(FieldError::not_supported(&at, mount, &["Default", "Unmasked"]));
        } else if mount == "Unmasked" && host_users {
            errors.push(FieldError::invalid(&at, mount, "`hostUsers` must be false to use `Unmasked`"));
        }
    }
    seccomp(&context["seccompProfile"], &at.child("seccompProfile"), errors);
    apparmor(&context["appArmorProfile"], &at.child("appArmorProfile"), errors);
    if context["allowPrivilegeEscalation"] == false {
        if context["privileged"] == true {
            let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid(&at, shown(context, "io.k8s.api.core.v1.SecurityContext", &at), why));
        }
        if items(&context["capabilities"], "add").iter().any(|c| c == "CAP_SYS_ADMIN") {
            let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(FieldError::invalid(&at, shown(context, "io.k8s.api.core.v1.SecurityContext", &at), why));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::check_pod_spec;
    use serde_json::json;

    #[test]
    fn validates_pod_security_contexts() {
        let range = "must be between 0 and 2147483647, inclusive";
        let namespaces = "securityContext.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled";
        check_pod_spec(&[
            ("/securityContext", json!({"runAsUser": 0, "fsGroup": 2147483647}), &[]),
            (
                "/securityContext",
                json!({"runAsUser": -1}),
                &[&format!("securityContext.runAsUser: Invalid value: -1: {range}")],
            ),
            (
                "/securityContext",
                json!({"supplementalGroups": [1, -2]}),
                &[&format!("securityContext.supplementalGroups[1]: Invalid value: -2: {range}")],
            ),
            (
                "/securityContext",
                json!({"fsGroupChangePolicy": "Sometimes"}),
                &[
                    r#"securityContext.fsGroupChangePolicy: Unsupported value: "Sometimes": supported values: "Always", "OnRootMismatch""#,
                ],
            ),
            (
                "/securityContext",
                json!({"seccompProfile": {"type": "Localhost"}}),
                &[
                    "securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
                ],
            ),
            (
                "/securityContext",
                json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "../a"}}),
                &["securityContext.seccompProfile.localhostProfile: Invalid value: \"../a\": must not contain '..'"],
            ),
            (
                "/securityContext",
                json!({"seccompProfile": {"type": "Unconfined", "localhostProfile": "a"}}),
                &[
                    "securityContext.seccompProfile.localhostProfile: Invalid value: {\"Type\":\"Unconfined\",\"LocalhostProfile\":\"a\"}: can only be set when seccomp type is Localhost",
                ],
            ),
            (
                "/securityContext",
                json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": " a"}}),
                &[
                    "securityContext.appArmorProfile.localhostProfile: Invalid value: \" a\": must not be padded with whitespace",
                ],
            ),
            (
                "/securityContext",
                json!({"appArmorProfile": {}}),
                &["securityContext.appArmorProfile.type: Required value: type is required when appArmorProfile is set"],
            ),
            (
                "/securityContext",
                json!({"sysctls": [{"name": "a.b", "value": "1"}, {"name": "a.b", "value": "1"}, {"name": "", "value": ""}]}),
                &[
                    "securityContext.sysctls[1].name: Duplicate value: \"a.b\"",
                    "securityContext.sysctls[2].name: Required value",
                ],
            ),
            (
                "/securityContext",
                json!({"sysctls": [{"name": "A", "value": "1"}]}),
                &[
                    "securityContext.sysctls[0].name: Invalid value: \"A\": must have at most 253 characters and match regex…",
                ],
            ),
        ]);
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
            "hostPID": true, "hostNetwork": true, "shareProcessNamespace": true,
            "securityContext": {"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]},
            "containers": [{"name": "c", "image": "i"}]}});
        let sysctl = "spec.securityContext.sysctls[0].name: Invalid value: \"net.ipv4.tcp_syncookies\": may not be specified when 'hostNetwork' is true";
        let users = ["hostNetwork", "HostPID"].map(|k| format!("spec.{k}: Forbidden: when `hostUsers` is false"));
        let namespaces = format!("spec.{namespaces}");
        let both: [&str; 4] = [&namespaces, sysctl, &users[0], &users[1]];
        crate::testing::check_create(
            &crate::core::pod::Pod,
            &pod,
            &[("", json!(null), &both[..2]), ("/spec/hostUsers", json!(false), &both)],
        );
    }

    #[test]
    fn validates_container_security_contexts() {
        let shown = r#"{"Capabilities":{"Add":["CAP_SYS_ADMIN"],"Drop":null},"Privileged":true,…,"AllowPrivilegeEscalation":false,"ProcMount":null,"SeccompProfile":null,"AppArmorProfile":null}"#;
        let escalation = "cannot set `allowPrivilegeEscalation` to false and";
        check_pod_spec(&[
            ("/containers/0/securityContext", json!({"privileged": true, "procMount": "Default"}), &[]),
            (
                "/containers/0/securityContext",
                json!({"privileged": true, "allowPrivilegeEscalation": false, "capabilities": {"add": ["CAP_SYS_ADMIN"]}}),
                &[
                    &format!(
                        "containers[0].securityContext: Invalid value: {shown}: {escalation} `privileged` to true"
                    ),
                    &format!(
                        "containers[0].securityContext: Invalid value: {shown}: {escalation} `capabilities.Add` CAP_SYS_ADMIN"
                    ),
                ],
            ),
            (
                "/containers/0/securityContext",
                json!({"procMount": "Unmasked"}),
                &[
                    "containers[0].securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
                ],
            ),
            (
                "/containers/0/securityContext",
                json!({"runAsGroup": -1}),
                &[
                    "containers[0].securityContext.runAsGroup: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                ],
            ),
        ]);
    }
}
