//! Who a pod's processes are and what they may do.

use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};
use std::collections::HashSet;

const ID_MAX: i64 = i32::MAX as i64;

fn id(v: &Value, key: &str, at: &FieldPath, errors: &mut ErrorList) {
    one_id(&v[key], &at.child(key), errors);
}

fn one_id(v: &Value, at: &FieldPath, errors: &mut ErrorList) {
    if v.as_i64().is_some_and(|n| !(0..=ID_MAX).contains(&n)) {
        errors.push(FieldError::invalid(at, v.clone(), "must be between 0 and 2147483647, inclusive"));
    }
}

pub fn pod(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let context = &spec["securityContext"];
    let at = path.child("securityContext");
    for key in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(context, key, &at, errors);
    }
    for (i, g) in items(context, "supplementalGroups").iter().enumerate() {
        one_id(g, &at.child("supplementalGroups").index(i), errors);
    }
    if let Some(policy) = context["fsGroupChangePolicy"].as_str()
        && !matches!(policy, "OnRootMismatch" | "Always")
    {
        let path = at.child("fsGroupChangePolicy");
        errors.push(FieldError::not_supported(&path, policy, &["Always", "OnRootMismatch"]));
    }
    profile(&context["seccompProfile"], &at.child("seccompProfile"), errors);
    profile(&context["appArmorProfile"], &at.child("appArmorProfile"), errors);
    let mut seen = HashSet::new();
    for (i, s) in items(context, "sysctls").iter().enumerate() {
        let at = at.child("sysctls").index(i).child("name");
        let name = text(s, "name");
        if name.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if !is_sysctl(name) {
            let why = r"must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            errors.push(FieldError::invalid(&at, name, why));
        } else if !seen.insert(name) {
            errors.push(FieldError::duplicate(&at, name));
        }
        if spec["hostNetwork"] == true && name.starts_with("net.") {
            errors.push(FieldError::invalid(&at, name, "may not be specified when 'hostNetwork' is true"));
        }
        if spec["hostIPC"] == true
            && (name.starts_with("kernel.shm") || name.starts_with("kernel.msg") || name.starts_with("fs.mqueue."))
        {
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

/// A seccomp or AppArmor profile: `localhostProfile` goes with the type `Localhost`, and only with it.
fn profile(p: &Value, at: &FieldPath, errors: &mut ErrorList) {
    if !p.is_object() {
        return;
    }
    let local = is_set(p, "localhostProfile");
    match text(p, "type") {
        "Localhost" => {
            let file = text(p, "localhostProfile");
            if file.is_empty() {
                let why = "must be set when type is Localhost";
                errors.push(FieldError::required(&at.child("localhostProfile"), why));
            } else if file.starts_with('/') || file.split('/').any(|s| s == "..") {
                let why = if file.starts_with('/') { "must be a relative path" } else { "must not contain '..'" };
                errors.push(FieldError::invalid(&at.child("localhostProfile"), file, why));
            }
        }
        "RuntimeDefault" | "Unconfined" if local => {
            let value = p["localhostProfile"].clone();
            errors.push(FieldError::invalid(
                &at.child("localhostProfile"),
                value,
                "can only be set when type is Localhost",
            ));
        }
        "RuntimeDefault" | "Unconfined" => {}
        "" => errors.push(FieldError::required(&at.child("type"), "type is required when seccompProfile is set")),
        other => {
            errors.push(FieldError::not_supported(
                &at.child("type"),
                other,
                &["Localhost", "RuntimeDefault", "Unconfined"],
            ));
        }
    }
}

pub fn container(c: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let context = &c["securityContext"];
    if !context.is_object() {
        return;
    }
    let at = at.child("securityContext");
    for key in ["runAsUser", "runAsGroup"] {
        id(context, key, &at, errors);
    }
    if let Some(mount) = context["procMount"].as_str()
        && !matches!(mount, "Default" | "Unmasked")
    {
        errors.push(FieldError::not_supported(&at.child("procMount"), mount, &["Default", "Unmasked"]));
    }
    profile(&context["seccompProfile"], &at.child("seccompProfile"), errors);
    profile(&context["appArmorProfile"], &at.child("appArmorProfile"), errors);
    if context["allowPrivilegeEscalation"] == false {
        if context["privileged"] == true {
            let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid(&at, context.clone(), why));
        }
        if items(&context["capabilities"], "add").iter().any(|c| c == "CAP_SYS_ADMIN") {
            let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(FieldError::invalid(&at, context.clone(), why));
        }
    }
}
