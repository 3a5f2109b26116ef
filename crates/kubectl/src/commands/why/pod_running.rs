//! Why a pod that has a node does not run, restarts, or is not ready: from the state of its containers. Pure.

use super::fields::{condition, has_condition, is_true, list, name, namespace, number, text};
use super::finding::{Finding, State, plural, shortened};
use jiff::Timestamp;
use meta::Value;

/// How many characters of a termination message are shown.
const MOST_MESSAGE: usize = 300;

/// The state of the containers of a pod, with the reasons. None if all of them run and are ready.
pub fn containers(pod: &Value, now: Timestamp) -> Option<(State, Vec<Finding>)> {
    let statuses = |field: &str| list(pod, &format!("/status/{field}"));
    for (spec, status) in paired(list(pod, "/spec/initContainers"), statuses("initContainerStatuses")) {
        let sidecar = spec["restartPolicy"] == "Always";
        let done = match sidecar {
            true => is_true(status, "/started") || is_true(status, "/ready"),
            false => status.pointer("/state/terminated/exitCode") == Some(&Value::from(0)),
        };
        if done {
            continue;
        }
        // The others wait for this one.
        let what = if sidecar { "sidecar" } else { "init container" };
        return Some(not_started(pod, what, spec, status, now));
    }
    let mut all: Vec<(State, Finding)> = Vec::new();
    for (spec, status) in paired(list(pod, "/spec/containers"), statuses("containerStatuses")) {
        if is_true(status, "/ready") || status.pointer("/state/terminated/exitCode") == Some(&Value::from(0)) {
            continue;
        }
        if status.pointer("/state/running").is_some() {
            all.push((State::NotReady, not_ready(spec, status, now)));
        } else {
            let (state, findings) = not_started(pod, "container", spec, status, now);
            all.extend(findings.into_iter().map(|f| (state, f)));
        }
    }
    // A container that has not been created explains nothing if another one fails.
    if all.iter().any(|(_, f)| f.reason != "ContainerCreating") {
        all.retain(|(_, f)| f.reason != "ContainerCreating");
    }
    all.sort_by_key(|(state, _)| match state {
        State::Waiting => 0,
        State::Restarting => 1,
        _ => 2,
    });
    let state = all.first()?.0;
    Some((state, all.into_iter().map(|(_, f)| f).collect()))
}

/// Each container of the specification with its status; null without one.
fn paired<'a>(specs: &'a [Value], statuses: &'a [Value]) -> impl Iterator<Item = (&'a Value, &'a Value)> {
    specs.iter().map(|s| (s, statuses.iter().find(|t| t["name"] == s["name"]).unwrap_or(&Value::Null)))
}

/// Why a container is not running.
fn not_started(pod: &Value, what: &str, spec: &Value, status: &Value, now: Timestamp) -> (State, Vec<Finding>) {
    let container = format!("{what} {}", text(spec, "/name"));
    let image = text(spec, "/image");
    if status.pointer("/state/running").is_some() {
        let since = ago(text(status, "/state/running/startedAt"), now);
        let message = format!("{container} has run for {since} and has not ended; the other containers wait for it");
        return match what {
            "sidecar" => (State::NotReady, vec![not_ready(spec, status, now)]),
            _ => (State::Waiting, vec![Finding::new("InitContainerRunning", message).suggest(logs(pod, spec, false))]),
        };
    }
    let waiting = text(status, "/state/waiting/reason");
    let message = text(status, "/state/waiting/message");
    let colon = if message.is_empty() { String::new() } else { format!(": {message}") };
    match waiting {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "ErrImageNeverPull"
        | "InvalidImageName"
        | "ImageInspectError"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => {
            let what = match image_volume(pod, spec, message) {
                Some((volume, reference)) => format!("the image {reference} of its volume {volume}"),
                None => format!("the image {image}"),
            };
            let text = format!("{container}: {what} cannot be used ({waiting}){colon}");
            (State::Waiting, vec![Finding::new("ImagePullFailed", text)])
        }
        "CreateContainerConfigError"
        | "CreateContainerError"
        | "RunContainerError"
        | "PreCreateHookError"
        | "PreStartHookError"
        | "PostStartHookError" => {
            let text = format!("{container} cannot be started ({waiting}){colon}");
            (State::Waiting, vec![Finding::new("ContainerNotStarted", text)])
        }
        "ContainerCreating" | "PodInitializing" | "" if last_end(status).is_none() => {
            let text = format!("{container} has not been created yet{colon}");
            (State::Waiting, vec![Finding::new("ContainerCreating", text)])
        }
        _ => (State::Restarting, vec![restarting(pod, &container, spec, status, now)]),
    }
}

/// The image volume of a container that a message of the kubelet is about, and its image.
fn image_volume<'a>(pod: &'a Value, spec: &Value, message: &str) -> Option<(&'a str, &'a str)> {
    if message.contains(&format!("\"{}\"", text(spec, "/image"))) {
        return None;
    }
    let is_mounted = |v: &&Value| list(spec, "/volumeMounts").iter().any(|m| m["name"] == v["name"]);
    let images = list(pod, "/spec/volumes").iter().filter(is_mounted);
    let images = images.map(|v| (text(v, "/name"), text(v, "/image/reference")));
    images.filter(|(_, r)| !r.is_empty()).find(|(_, reference)| message.contains(&format!("\"{reference}\"")))
}

/// How the last run of a container ended.
fn last_end(status: &Value) -> Option<&Value> {
    let ended = |pointer: &str| status.pointer(pointer).filter(|t| t.is_object());
    ended("/state/terminated").or_else(|| ended("/lastState/terminated"))
}

fn restarting(pod: &Value, container: &str, spec: &Value, status: &Value, now: Timestamp) -> Finding {
    let restarts = number(status, "/restartCount");
    let mut message = match restarts {
        0 => format!("{container} has ended"),
        1 => format!("{container} has restarted once"),
        n => format!("{container} has restarted {n} times"),
    };
    let Some(end) = last_end(status) else { return Finding::new("Restarting", message) };
    let finished = text(end, "/finishedAt");
    message.push_str("; the last run ended");
    if has_happened(finished) {
        message.push_str(&format!(" {} ago", ago(finished, now)));
    }
    let times = (meta::time::parse(text(end, "/startedAt")), meta::time::parse(finished));
    if let (Some(a), Some(b)) = times
        && a.as_second() > 0
    {
        message.push_str(&format!(", after {}", kinds::columns::duration(b.as_second() - a.as_second())));
    }
    message.push_str(&format!(", {}", ending(spec, end)));
    let reason = if end["reason"] == "OOMKilled" { "OutOfMemory" } else { "Restarting" };
    let mut finding = Finding::new(reason, message);
    finding.children.extend(termination_message(end));
    if let Some(next) = next_start(status, finished, now) {
        finding = finding.because([Finding::new("BackOff", next)]);
    }
    finding.suggest(logs(pod, spec, restarts > 0))
}

/// The message that a container left when it ended.
fn termination_message(end: &Value) -> Option<Finding> {
    let message = shortened(text(end, "/message").trim(), MOST_MESSAGE);
    (!message.is_empty()).then(|| Finding::new("TerminationMessage", format!("its last message: {message}")))
}

/// Whether a time is that of an event. Runtimes report the start of 1970 for a container that did not start.
fn has_happened(time: &str) -> bool {
    meta::time::parse(time).is_some_and(|t| t.as_second() > 0)
}

/// How a container ended: exit code, signal, lack of memory.
fn ending(spec: &Value, end: &Value) -> String {
    let code = number(end, "/exitCode");
    let signal = match (number(end, "/signal"), code) {
        (0, 129..=192) => code - 128,
        (signal, _) => signal,
    };
    if end["reason"] == "OOMKilled" {
        let limit = text(spec, "/resources/limits/memory");
        let limit = if limit.is_empty() { String::new() } else { format!(", its memory limit is {limit}") };
        return format!("killed because it ran out of memory (OOMKilled, exit code {code}{limit})");
    }
    let names = [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (4, "SIGILL"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (13, "SIGPIPE"),
        (15, "SIGTERM"),
    ];
    match names.iter().find(|(n, _)| *n == signal) {
        _ if end["reason"] == "StartError" => format!("because it could not be started (StartError, exit code {code})"),
        _ if signal == 0 => format!("with exit code {code}"),
        Some((_, name)) => format!("by the signal {name} (exit code {code})"),
        None => format!("by the signal {signal} (exit code {code})"),
    }
}

/// When the container is started again, by the back-off that the kubelet reports.
fn next_start(status: &Value, finished: &str, now: Timestamp) -> Option<String> {
    let (_, rest) = text(status, "/state/waiting/message").split_once("back-off ")?;
    let delay = crate::flags::parse_duration(rest.split(' ').next()?)?.as_secs() as i64;
    let finished = meta::time::parse(finished).filter(|t| t.as_second() > 0)?;
    let left = finished.as_second() + delay - now.as_second();
    let back_off = kinds::columns::duration(delay);
    Some(match left {
        1.. => format!("it is started again in {} (back-off {back_off})", kinds::columns::duration(left)),
        _ => format!("it is started again now (back-off {back_off})"),
    })
}

/// Why a running container is not ready.
fn not_ready(spec: &Value, status: &Value, now: Timestamp) -> Finding {
    let (name, since) = (text(spec, "/name"), ago(text(status, "/state/running/startedAt"), now));
    let started = status.get("started").is_none_or(|s| *s == true);
    if let Some(probe) = spec.get("startupProbe").filter(|_| !started) {
        let message = format!(
            "container {name} has run for {since}, and its startup probe has not succeeded: {}",
            of_probe(probe)
        );
        return Finding::new("StartupProbeFailing", message);
    }
    match spec.get("readinessProbe") {
        Some(probe) => {
            let message = format!(
                "container {name} has run for {since}, and its readiness probe does not succeed: {}",
                of_probe(probe)
            );
            Finding::new("ReadinessProbeFailing", message)
        }
        None => Finding::new(
            "ContainerNotReady",
            format!("container {name} has run for {since} and is not reported ready yet"),
        ),
    }
}

/// What a probe does, and how often.
pub fn of_probe(probe: &Value) -> String {
    let port = |p: &Value| p.as_str().map_or_else(|| p.to_string(), str::to_owned);
    let what = if let Some(get) = probe.get("httpGet") {
        let scheme = text(get, "/scheme").to_lowercase();
        let scheme = if scheme.is_empty() { "http" } else { &scheme };
        format!("GET {scheme}://{}:{}{}", text(get, "/host"), port(&get["port"]), text(get, "/path"))
    } else if let Some(socket) = probe.get("tcpSocket") {
        format!("connect to port {}", port(&socket["port"]))
    } else if let Some(grpc) = probe.get("grpc") {
        format!("gRPC health check on port {}", port(&grpc["port"]))
    } else {
        let words: Vec<&str> = list(probe, "/exec/command").iter().filter_map(Value::as_str).collect();
        format!("run {:?}", words.join(" "))
    };
    let period = number(probe, "/periodSeconds").max(1);
    let timeout = number(probe, "/timeoutSeconds").max(1);
    let threshold = number(probe, "/failureThreshold").max(1);
    format!("{what}, every {period}s, timeout {timeout}s, {threshold} failure{} allowed", plural(threshold as usize))
}

/// Why a pod is not ready although its containers are: its readiness gates.
pub fn readiness_gates(pod: &Value) -> Vec<Finding> {
    let gates = list(pod, "/spec/readinessGates").iter().map(|g| text(g, "/conditionType"));
    let missing = gates.filter(|gate| !has_condition(pod, gate, "True"));
    let finding = |gate: &str| {
        let message = match condition(pod, gate) {
            Some(c) => format!(
                "the condition {gate} of its readiness gate is {}: {}",
                text(c, "/status"),
                first_of([text(c, "/message"), text(c, "/reason"), "no reason is given"])
            ),
            None => format!("its readiness gate waits for the condition {gate}, which is not set"),
        };
        Finding::new("ReadinessGate", message)
    };
    missing.map(finding).collect()
}

/// How the containers of a pod ended that has failed.
pub fn failures(pod: &Value) -> Vec<Finding> {
    let fields = [("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")];
    let all = fields.iter().flat_map(|(spec, status)| {
        paired(list(pod, &format!("/spec/{spec}")), list(pod, &format!("/status/{status}")))
    });
    let failed = all.filter_map(|(spec, status)| {
        let end = last_end(status).filter(|end| number(end, "/exitCode") != 0)?;
        let message = format!("container {} ended {}", text(spec, "/name"), ending(spec, end));
        let children = termination_message(end);
        Some(Finding::new("ContainerFailed", message).because(children).suggest(logs(pod, spec, false)))
    });
    failed.collect()
}

/// The restarts of a pod that is healthy now.
pub fn past_restarts(pod: &Value, now: Timestamp) -> Vec<Finding> {
    let all = paired(list(pod, "/spec/containers"), list(pod, "/status/containerStatuses"));
    let restarted = all.filter_map(|(spec, status)| {
        let end = status.pointer("/lastState/terminated").filter(|t| t.is_object())?;
        let (name, count) = (text(spec, "/name"), number(status, "/restartCount"));
        let finished = text(end, "/finishedAt");
        let ended = if has_happened(finished) { format!(" {} ago", ago(finished, now)) } else { String::new() };
        let message = format!(
            "container {name} has restarted {count} time{}, the last run ended{ended} {}",
            plural(count as usize),
            ending(spec, end)
        );
        Some(Finding::new("RestartedBefore", message))
    });
    restarted.collect()
}

fn first_of<const N: usize>(texts: [&str; N]) -> &str {
    texts.into_iter().find(|t| !t.is_empty()).unwrap_or_default()
}

/// How long ago a time is.
pub fn ago(time: &str, now: Timestamp) -> String {
    crate::printer::table::age(time, now)
}

fn logs(pod: &Value, spec: &Value, previous: bool) -> String {
    let previous = if previous { " --previous" } else { "" };
    format!("kubectl logs -n {} {} -c {}{previous}", namespace(pod), name(pod), text(spec, "/name"))
}

#[cfg(test)]
#[path = "pod_running_tests.rs"]
mod tests;
