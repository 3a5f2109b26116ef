//! Validation of the pod's OS, and of fields that apply to a single OS.

use crate::read::{is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value, names};
use regex::Regex;
use std::sync::LazyLock;

const SYSTEMS: [&str; 2] = ["linux", "windows"];
const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Fields of pods, pod security contexts and container security contexts that Windows does not support.
const NOT_OF_PODS: [&str; 4] = ["hostUsers", "hostPID", "hostIPC", "shareProcessNamespace"];
const NOT_OF_POD_CONTEXTS: [&str; 11] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];
const NOT_OF_CONTEXTS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

pub fn rules(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let context = path.child("securityContext");
    options(&spec["securityContext"]["windowsOptions"], &context.child("windowsOptions"), errors);
    let containers: Vec<(&Value, FieldPath)> = LISTS
        .iter()
        .flat_map(|l| {
            items(spec, l).iter().enumerate().map(move |(i, c)| (c, path.child(l).index(i).child("securityContext")))
        })
        .collect();
    for (c, at) in &containers {
        options(&c["securityContext"]["windowsOptions"], &at.child("windowsOptions"), errors);
    }
    host_processes(spec, &containers, path, errors);
    let os = &spec["os"];
    if !os.is_object() {
        return;
    }
    match text(os, "name") {
        "" => errors.push(FieldError::required(&path.child("os").child("name"), "")),
        "linux" => {
            const WHY: &str = "windows options cannot be set for a linux pod";
            if is_set(&spec["securityContext"], "windowsOptions") {
                errors.push(FieldError::forbidden(&context.child("windowsOptions"), WHY));
            }
            for (_, at) in containers.iter().filter(|(c, _)| is_set(&c["securityContext"], "windowsOptions")) {
                errors.push(FieldError::forbidden(&at.child("windowsOptions"), WHY));
            }
        }
        "windows" => {
            const WHY: &str = "cannot be set for a windows pod";
            let set = |v: &Value| !matches!(v, Value::Null | Value::Bool(false));
            for k in NOT_OF_PODS.iter().filter(|k| match **k {
                "hostPID" | "hostIPC" => set(&spec[**k]),
                k => is_set(spec, k),
            }) {
                errors.push(FieldError::forbidden(&path.child(k), WHY));
            }
            for k in NOT_OF_POD_CONTEXTS.iter().filter(|k| is_set(&spec["securityContext"], k)) {
                errors.push(FieldError::forbidden(&context.child(k), WHY));
            }
            for (c, at) in &containers {
                for k in NOT_OF_CONTEXTS.iter().filter(|k| is_set(&c["securityContext"], k)) {
                    errors.push(FieldError::forbidden(&at.child(k), WHY));
                }
            }
        }
        other => errors.push(FieldError::not_supported(&path.child("os"), other, &SYSTEMS)),
    }
}

/// Checks host processes: all containers of a pod, or none, and on the host network.
fn host_processes(spec: &Value, containers: &[(&Value, FieldPath)], path: &FieldPath, errors: &mut ErrorList) {
    let of_pod = spec["securityContext"]["windowsOptions"]["hostProcess"].as_bool();
    let mut found = 0;
    for (c, at) in containers {
        let own = c["securityContext"]["windowsOptions"]["hostProcess"].as_bool();
        if let (Some(pod), Some(own)) = (of_pod, own)
            && pod != own
        {
            let why = format!("pod hostProcess value must be identical if both are specified, was {pod}");
            errors.push(FieldError::invalid(&at.child("windowsOptions").child("hostProcess"), own, why));
        }
        found += usize::from(own.or(of_pod) == Some(true));
    }
    if found == 0 {
        return;
    }
    if found != containers.len() {
        let why = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(FieldError::invalid(path, "", why));
    }
    if spec["hostNetwork"] != true {
        let why = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(FieldError::invalid(&path.child("hostNetwork"), false, why));
    }
}

const SPEC_KIB_MAX: usize = 64;
const DOMAIN_MAX: usize = 256;
const USER_MAX: usize = 104;

fn options(o: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let mut wrong = |key: &str, why: String| errors.push(FieldError::invalid(&at.child(key), &o[key], why));
    if let Some(name) = o["gmsaCredentialSpecName"].as_str() {
        names::dns_subdomain(name).into_iter().for_each(|m| wrong("gmsaCredentialSpecName", m));
    }
    match o["gmsaCredentialSpec"].as_str().map(str::len) {
        Some(0) => wrong("gmsaCredentialSpec", "gmsaCredentialSpec cannot be an empty string".into()),
        Some(n) if n > SPEC_KIB_MAX * 1024 => {
            wrong("gmsaCredentialSpec", format!("gmsaCredentialSpec size must be under {SPEC_KIB_MAX} KiB"));
        }
        _ => {}
    }
    if let Some(name) = o["runAsUserName"].as_str() {
        user_name(name).into_iter().for_each(|why| wrong("runAsUserName", format!("runAsUserName{why}")));
    }
}

static NETBIOS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r#"^[^\\/:*?"<>|.][^\\/:*?"<>|]{0,14}$"#).ok());
static DNS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    Regex::new(&format!(r"^{label}(?:\.{label})*$")).ok()
});

/// Validates `DOMAIN\\user`. Returns the errors without the name of the field.
fn user_name(name: &str) -> Vec<String> {
    if name.is_empty() {
        return vec![" cannot be an empty string".into()];
    }
    if name.chars().any(|c| c.is_ascii_control()) {
        return vec![" cannot contain control characters".into()];
    }
    if name.matches('\\').count() > 1 {
        return vec![" cannot contain more than one backslash".into()];
    }
    let (domain, user) = name.split_once('\\').map_or((None, name), |(d, u)| (Some(d), u));
    let mut out: Vec<String> = Vec::new();
    if let Some(d) = domain {
        if d.len() >= DOMAIN_MAX {
            out.push(format!("'s Domain length must be under {DOMAIN_MAX} characters"));
        }
        if ![&NETBIOS, &DNS].iter().any(|r| r.as_ref().is_some_and(|r| r.is_match(d))) {
            out.push("'s Domain doesn't match the NetBios nor the DNS format".into());
        }
    }
    if user.is_empty() {
        out.push("'s User cannot be empty".into());
    } else if user.len() > USER_MAX {
        out.push(format!("'s User length must not be longer than {USER_MAX} characters"));
    }
    if !user.is_empty() && user.chars().all(|c| matches!(c, '.' | ' ')) {
        out.push("'s User cannot contain only periods or spaces".into());
    }
    if user.contains(|c| r#""/\:;|=,+*?<>@[]"#.contains(c)) {
        out.push(r#"'s User cannot contain the following characters: "/\:;|=,+*?<>@[]"#.into());
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::testing::{check_create, check_pod_spec};
    use serde_json::{Value, json};

    #[test]
    fn validates_the_os_and_its_fields() {
        let user = "securityContext.windowsOptions.runAsUserName: Invalid value:";
        let options = |o: Value| json!({"windowsOptions": o});
        check_pod_spec(&[
            ("/os", json!({"name": "linux"}), &[]),
            (
                "/os",
                json!({"name": "other"}),
                &["os: Unsupported value: \"other\": supported values: \"linux\", \"windows\""],
            ),
            ("/os", json!({"name": ""}), &["os.name: Required value"]),
            ("/securityContext", options(json!({"runAsUserName": "d\\u"})), &[]),
            (
                "/securityContext",
                options(json!({"runAsUserName": ""})),
                &[&format!("{user} \"\": runAsUserName cannot be an empty string")],
            ),
            (
                "/securityContext",
                options(json!({"runAsUserName": "a\\b\\c"})),
                &[&format!("{user} \"a\\\\b\\\\c\": runAsUserName cannot contain more than one backslash")],
            ),
            (
                "/securityContext",
                options(json!({"runAsUserName": "..."})),
                &[&format!("{user} \"...\": runAsUserName's User cannot contain only periods or spaces")],
            ),
            (
                "/securityContext",
                options(json!({"hostProcess": true})),
                &[
                    "hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess containers",
                ],
            ),
        ]);
        let pod = |spec: Value| {
            let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
                "spec": {"containers": [{"name": "c", "image": "i"}]}});
            spec.as_object().into_iter().flatten().for_each(|(k, v)| pod["spec"][k] = v.clone());
            pod
        };
        let why = "cannot be set for a windows pod";
        check_create(
            &crate::core::pod::Pod,
            &pod(json!({"os": {"name": "windows"}})),
            &[
                ("", Value::Null, &[]),
                ("/spec/hostPID", json!(true), &[&format!("spec.hostPID: Forbidden: {why}")]),
                (
                    "/spec/securityContext",
                    json!({"fsGroup": 1}),
                    &[&format!("spec.securityContext.fsGroup: Forbidden: {why}")],
                ),
                (
                    "/spec/containers/0/securityContext",
                    json!({"privileged": true}),
                    &[&format!("spec.containers[0].securityContext.privileged: Forbidden: {why}")],
                ),
            ],
        );
        let linux = "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod";
        check_create(
            &crate::core::pod::Pod,
            &pod(json!({"os": {"name": "linux"}})),
            &[("/spec/securityContext", options(json!({})), &[linux])],
        );
    }
}
