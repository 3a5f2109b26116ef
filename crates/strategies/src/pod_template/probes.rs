//! Validation of probes and lifecycle hooks.

use crate::read::{delegated, is_set, items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Value};

const CONTAINER: &str = "io.k8s.api.core.v1.Container";

pub const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

/// Signals that containers of Linux can have, in the order of upstream's message.
const SIGNALS: [&str; 65] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMAX-1",
    "SIGRTMAX-10",
    "SIGRTMAX-11",
    "SIGRTMAX-12",
    "SIGRTMAX-13",
    "SIGRTMAX-14",
    "SIGRTMAX-2",
    "SIGRTMAX-3",
    "SIGRTMAX-4",
    "SIGRTMAX-5",
    "SIGRTMAX-6",
    "SIGRTMAX-7",
    "SIGRTMAX-8",
    "SIGRTMAX-9",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];
/// Signals that containers of Windows can have.
const WINDOWS: [&str; 2] = ["SIGKILL", "SIGTERM"];

/// Validates the probes, hooks and stop signal of a container; `spec` is the pod's.
pub fn rules(c: &Value, spec: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let grace = spec["terminationGracePeriodSeconds"].as_i64();
    for probe in PROBES.into_iter().filter(|p| c[*p].is_object()) {
        let p = &c[probe];
        delegated(c, CONTAINER, probe, at, errors);
        let at = at.child(probe);
        handler(p, &["exec", "httpGet", "tcpSocket", "grpc"], "io.k8s.api.core.v1.Probe", grace, &at, errors);
        let success = p["successThreshold"].as_i64().unwrap_or(0);
        if probe != "readinessProbe" && success != 1 {
            errors.push(FieldError::invalid(&at.child("successThreshold"), success, "must be 1"));
        }
        if probe == "readinessProbe" && is_set(p, "terminationGracePeriodSeconds") {
            let value = p["terminationGracePeriodSeconds"].clone();
            let why = "must not be set for readinessProbes";
            errors.push(FieldError::invalid(&at.child("terminationGracePeriodSeconds"), value, why));
        }
    }
    delegated(c, CONTAINER, "lifecycle", at, errors);
    for hook in ["postStart", "preStop"] {
        let h = &c["lifecycle"][hook];
        if h.is_object() {
            let at = at.child("lifecycle").child(hook);
            let kinds = ["exec", "httpGet", "tcpSocket", "sleep"];
            handler(h, &kinds, "io.k8s.api.core.v1.LifecycleHandler", grace, &at, errors);
        }
    }
    if is_set(&c["lifecycle"], "stopSignal") {
        let at = at.child("lifecycle").child("stopSignal");
        let signal = text(&c["lifecycle"], "stopSignal");
        match text(&spec["os"], "name") {
            "" => errors.push(FieldError::forbidden(&at, "may not be set for containers with empty `spec.os.name`")),
            "windows" if !WINDOWS.contains(&signal) => errors.push(FieldError::not_supported(&at, signal, &WINDOWS)),
            "linux" if !SIGNALS.contains(&signal) => errors.push(FieldError::not_supported(&at, signal, &SIGNALS)),
            _ => {}
        }
    }
}

/// Validates a probe or hook, which has exactly one handler of `kinds`.
fn handler(h: &Value, kinds: &[&str], definition: &str, grace: Option<i64>, at: &FieldPath, errors: &mut ErrorList) {
    let found: Vec<&&str> = kinds.iter().filter(|k| h[**k].is_object()).collect();
    match found.first() {
        Some(kind) => delegated(h, definition, kind, at, errors),
        None => errors.push(FieldError::required(at, "must specify a handler type")),
    }
    for k in found.iter().skip(1) {
        errors.push(FieldError::forbidden(&at.child(k), "may not specify more than 1 handler type"));
    }
    let (http, sleep) = (found.first() == Some(&&"httpGet"), found.first() == Some(&&"sleep"));
    for header in items(&h["httpGet"], "httpHeaders").iter().filter(|_| http) {
        let name = text(header, "name");
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            let why = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
            errors.push(FieldError::invalid(&at.child("httpGet").child("httpHeaders"), name, why));
        }
    }
    if let (Some(grace), Some(seconds)) = (grace, h["sleep"]["seconds"].as_i64().filter(|_| sleep))
        && !(0..=grace).contains(&seconds)
    {
        let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.push(FieldError::invalid(&at.child("sleep"), seconds, why));
    }
}
