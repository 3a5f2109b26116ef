//! Which daemon pods are created and deleted (upstream `daemon_controller.go` and `update.go`). Pure: data to data.

use super::template::Eligible;
use crate::views::{PodEntry, scaled};
use jiff::Timestamp;
use meta::Object;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A daemon pod.
#[derive(Clone)]
pub struct Daemon {
    pub pod: Arc<PodEntry>,
    /// It has the present template.
    pub updated: bool,
}

impl Daemon {
    fn is_available(&self, min_ready_seconds: i64, now: Timestamp) -> bool {
        self.pod.view.is_available(min_ready_seconds, now)
    }

    fn phase(&self) -> &str {
        &self.pod.view.status.phase
    }

    fn is_deleting(&self) -> bool {
        self.pod.meta.is_deleting()
    }
}

/// A node and whether a pod belongs on it.
pub struct NodeState {
    pub name: Arc<str>,
    pub eligible: Eligible,
}

/// The nodes of the cluster and the daemon pods of a set by the node that they are for.
pub struct Observed {
    pub nodes: Vec<NodeState>,
    pub pods: BTreeMap<String, Vec<Daemon>>,
}

impl Observed {
    fn on(&self, node: &str) -> &[Daemon] {
        self.pods.get(node).map_or(&[], Vec::as_slice)
    }

    pub fn desired(&self) -> i64 {
        self.nodes.iter().filter(|n| n.eligible == Eligible::Yes).count() as i64
    }
}

/// The fields of a DaemonSet that decide.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub min_ready_seconds: i64,
    /// `updateStrategy.type: RollingUpdate`.
    pub rolling: bool,
    /// Two pods may be on a node while one replaces the other.
    pub surges: bool,
    pub max_surge: i64,
    pub max_unavailable: i64,
}

impl Spec {
    /// `desired`: on how many nodes a pod belongs, for percentages.
    pub fn read(set: &Object, desired: i64) -> Self {
        let rolling = set.str_at(&["spec", "updateStrategy", "type"]).unwrap_or("RollingUpdate") == "RollingUpdate";
        let count = |k, total| {
            let v = set.at(&["spec", "updateStrategy", "rollingUpdate", k]).filter(|_| rolling);
            v.map_or(0, |v| scaled(v, total, f64::ceil))
        };
        let (max_surge, mut max_unavailable) = (count("maxSurge", desired), count("maxUnavailable", desired));
        if desired > 0 && max_surge == 0 && max_unavailable == 0 {
            max_unavailable = 1;
        }
        Self {
            min_ready_seconds: set.int_at(&["spec", "minReadySeconds"]).unwrap_or(0),
            rolling,
            surges: count("maxSurge", 1) > 0,
            max_surge,
            max_unavailable,
        }
    }
}

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Failed,
    Succeeded,
    /// It is on the wrong node, superfluous or outdated.
    Surplus,
}

/// Pods to create, by node, and to delete.
#[derive(Clone, Default)]
pub struct Plan {
    pub create: Vec<Arc<str>>,
    pub delete: Vec<(Arc<PodEntry>, Cause)>,
}

impl Plan {
    fn delete(&mut self, d: &Daemon, cause: Cause) {
        self.delete.push((d.pod.clone(), cause));
    }
}

/// Pods that nodes need or must not have. `backed_off`: a failed pod of the node must not be deleted yet.
pub fn manage(spec: &Spec, seen: &Observed, backed_off: impl Fn(&PodEntry, &str) -> bool, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    for node in &seen.nodes {
        let pods = seen.on(&node.name);
        match node.eligible {
            Eligible::Yes if pods.is_empty() => plan.create.push(node.name.clone()),
            Eligible::Yes | Eligible::MayStay => keep_one(spec, node, pods, &backed_off, now, &mut plan),
            Eligible::No => {
                for d in pods.iter().filter(|d| !d.is_deleting()) {
                    plan.delete(d, Cause::Surplus);
                }
            }
        }
    }
    // Pods for nodes that are gone are never scheduled, and nobody else deletes them.
    for (node, pods) in &seen.pods {
        if !seen.nodes.iter().any(|n| *n.name == **node) {
            for d in pods.iter().filter(|d| d.pod.view.spec.node_name.is_empty() && !d.is_deleting()) {
                plan.delete(d, Cause::Surplus);
            }
        }
    }
    plan
}

/// Deletes all pods of a node but one, or but two while one replaces the other.
fn keep_one(
    spec: &Spec,
    node: &NodeState,
    pods: &[Daemon],
    backed_off: impl Fn(&PodEntry, &str) -> bool,
    now: Timestamp,
    plan: &mut Plan,
) {
    let mut running: Vec<&Daemon> = Vec::new();
    for d in pods.iter().filter(|d| !d.is_deleting()) {
        match d.phase() {
            "Failed" => {
                if !backed_off(&d.pod, &node.name) {
                    plan.delete(d, Cause::Failed);
                }
            }
            "Succeeded" => plan.delete(d, Cause::Succeeded),
            _ => running.push(d),
        }
    }
    // Scheduled ones first, then the oldest.
    running.sort_by_key(|d| age_order(&d.pod));
    if !spec.surges {
        for d in running.iter().skip(1) {
            plan.delete(d, Cause::Surplus);
        }
        return;
    }
    if running.is_empty() && node.eligible == Eligible::Yes {
        plan.create.push(node.name.clone());
    }
    let (new, old): (Vec<&Daemon>, Vec<&Daemon>) = running.iter().partition(|d| d.updated);
    for d in new.iter().skip(1).chain(old.iter().skip(1)) {
        plan.delete(d, Cause::Surplus);
    }
    if let (Some(new), Some(old)) = (new.first(), old.first())
        && (!old.pod.view.is_ready() || new.is_available(spec.min_ready_seconds, now))
    {
        plan.delete(old, Cause::Surplus);
    }
}

/// Scheduled pods first, then older ones, then by name.
pub fn age_order(pod: &PodEntry) -> (bool, Option<Timestamp>, Arc<str>) {
    (pod.view.spec.node_name.is_empty(), pod.meta.creation_timestamp, pod.meta.name.clone())
}

/// The pods on a node: the one with the present template and the one without. None if there are several of a sort.
fn pair(pods: &[Daemon]) -> Option<(Option<&Daemon>, Option<&Daemon>)> {
    let mut pair = (None, None);
    for d in pods.iter().filter(|d| !d.is_deleting()) {
        let slot = if d.updated { &mut pair.0 } else { &mut pair.1 };
        if slot.replace(d).is_some() {
            return None;
        }
    }
    Some(pair)
}

/// The next step of a rolling update.
pub fn roll(spec: &Spec, seen: &Observed, now: Timestamp) -> Plan {
    // Nodes on which a pod belongs, and all that have one.
    let mut names: Vec<&str> = seen.pods.keys().map(String::as_str).collect();
    names.extend(seen.nodes.iter().filter(|n| n.eligible == Eligible::Yes).map(|n| &*n.name));
    names.sort_unstable();
    names.dedup();
    if !spec.surges { replace(spec, seen, &names, now) } else { surge(spec, seen, &names, now) }
}

/// Deletes outdated pods, so that no more than `max_unavailable` are unavailable.
fn replace(spec: &Spec, seen: &Observed, names: &[&str], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let mut unavailable = 0;
    let mut candidates: Vec<&Daemon> = Vec::new();
    for pods in names.iter().map(|n| seen.on(n)) {
        match pair(pods) {
            // [`manage`] deletes the superfluous ones, or creates one.
            None | Some((None, None) | (Some(_), Some(_))) => unavailable += 1,
            Some((Some(new), None)) => unavailable += i64::from(!new.is_available(spec.min_ready_seconds, now)),
            Some((None, Some(old))) => {
                if old.is_available(spec.min_ready_seconds, now) {
                    candidates.push(old);
                } else {
                    unavailable += 1;
                    plan.delete(old, Cause::Surplus);
                }
            }
        }
    }
    let room = usize::try_from(spec.max_unavailable - unavailable).unwrap_or(0);
    for d in candidates.into_iter().take(room) {
        plan.delete(d, Cause::Surplus);
    }
    plan
}

/// Creates pods beside outdated ones, `max_surge` at a time, and deletes those when the new ones are available.
fn surge(spec: &Spec, seen: &Observed, names: &[&str], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let (mut surging, mut available) = (0, 0);
    let (mut candidates, mut misplaced) = (Vec::new(), Vec::new());
    for name in names {
        let Some((new, old)) = pair(seen.on(name)) else {
            surging += 1;
            continue;
        };
        available += i64::from(old.or(new).is_some_and(|d| d.is_available(spec.min_ready_seconds, now)));
        let Some(old) = old else { continue };
        if let Some(new) = new {
            if new.is_available(spec.min_ready_seconds, now) {
                plan.delete(old, Cause::Surplus);
            } else {
                surging += 1;
            }
            continue;
        }
        let node = seen.nodes.iter().find(|n| *n.name == **name);
        let Some(node) = node.filter(|n| n.eligible == Eligible::Yes) else {
            if old.is_available(spec.min_ready_seconds, now) {
                misplaced.push(old);
            } else {
                plan.delete(old, Cause::Surplus);
            }
            continue;
        };
        if old.is_available(spec.min_ready_seconds, now) {
            candidates.push(node.name.clone());
        } else {
            plan.create.push(node.name.clone());
        }
    }
    // Pods on nodes that they no longer belong on go when others are available in their place.
    let spare = usize::try_from(available - seen.desired()).unwrap_or(0);
    for old in misplaced.into_iter().take(spare) {
        plan.delete(old, Cause::Surplus);
    }
    let room = usize::try_from(spec.max_surge - surging).unwrap_or(0);
    plan.create.extend(candidates.into_iter().take(room));
    plan
}

/// The counts of `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub desired: i64,
    pub current: i64,
    pub misscheduled: i64,
    pub ready: i64,
    pub updated: i64,
    pub available: i64,
}

/// Counts nodes by the state of the oldest daemon pod on them.
pub fn count(spec: &Spec, seen: &Observed, now: Timestamp) -> Counts {
    let mut c = Counts { desired: seen.desired(), ..Counts::default() };
    for node in &seen.nodes {
        let oldest = seen.on(&node.name).iter().min_by_key(|d| age_order(&d.pod));
        match (node.eligible, oldest) {
            (Eligible::Yes, Some(d)) => {
                c.current += 1;
                c.updated += i64::from(d.updated);
                if d.pod.view.is_ready() {
                    c.ready += 1;
                    c.available += i64::from(d.is_available(spec.min_ready_seconds, now));
                }
            }
            (Eligible::MayStay | Eligible::No, Some(_)) => c.misscheduled += 1,
            (_, None) => {}
        }
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn spec(max_surge: i64, max_unavailable: i64) -> Spec {
        Spec { min_ready_seconds: 0, rolling: true, surges: max_surge > 0, max_surge, max_unavailable }
    }

    /// A pod on a node, by letters: `r` ready, `o` outdated, `f` failed, `s` succeeded, `d` being deleted, `u` not bound yet; lower digits are older.
    fn daemon(node: &str, state: &str) -> Daemon {
        let has = |c| state.contains(c);
        let phase = match () {
            () if has('f') => "Failed",
            () if has('s') => "Succeeded",
            () => "Running",
        };
        let age = state.chars().find(char::is_ascii_digit).unwrap_or('5');
        let ready = if has('r') { "True" } else { "False" };
        let mut pod = json!({
            "metadata": {"name": format!("{node}{state}"), "uid": format!("{node}{state}"),
                "creationTimestamp": format!("2026-01-01T00:0{age}:00Z")},
            "spec": {"nodeName": if has('u') { "" } else { node }},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:10:00Z"}]},
        });
        if has('d') {
            pod["metadata"]["deletionTimestamp"] = NOW.into();
        }
        Daemon { pod: Arc::new(PodEntry::new(pod.to_string().into()).unwrap()), updated: !has('o') }
    }

    /// `a:r,o b!: c?:f`: the pods of nodes; `!` ineligible, `?` pods may stay, `-` no such node.
    fn observed(text: &str) -> Observed {
        let mut seen = Observed { nodes: Vec::new(), pods: BTreeMap::new() };
        for part in text.split_whitespace() {
            let (node, pods) = part.split_once(':').unwrap();
            let name = node.trim_end_matches(['!', '?', '-']);
            let eligible = match node.chars().last() {
                Some('!') => Eligible::No,
                Some('?') => Eligible::MayStay,
                _ => Eligible::Yes,
            };
            if !node.ends_with('-') {
                seen.nodes.push(NodeState { name: name.into(), eligible });
            }
            for pod in pods.split(',').filter(|p| !p.is_empty()) {
                seen.pods.entry(name.into()).or_default().push(daemon(name, pod));
            }
        }
        seen
    }

    /// `+node` for each pod to create, `-pod` for each to delete.
    fn text(plan: &Plan) -> String {
        let mut all: Vec<String> = plan.create.iter().map(|n| format!("+{n}")).collect();
        all.extend(plan.delete.iter().map(|(p, _)| format!("-{}", p.meta.name)));
        all.sort();
        all.join(" ")
    }

    /// Clauses: C09.one-per-node, C09.node-added, C09.node-relabelled
    #[test]
    fn every_eligible_node_has_one_pod() {
        let now = NOW.parse().unwrap();
        let cases = [
            ("a: b:r c:", "+a +c"),
            ("a!: b!:r", "-br"),
            ("a?: b?:r", ""),
            ("a:d", ""),
            ("a!:d", ""),
            ("a:2r,1", "-a2r"),
            ("a:1u,2", "-a1u"),
            ("a:f b:s", "-af -bs"),
            ("a:fd", ""),
            ("a:f,r", "-af"),
            ("b-:r c-:u", "-cu"),
            // It waits for a finalizer; another deletion would never be observed.
            ("c-:ud", ""),
        ];
        for (seen, expected) in cases {
            assert_eq!(text(&manage(&spec(0, 1), &observed(seen), |_, _| false, now)), expected, "{seen}");
        }
        assert_eq!(text(&manage(&spec(0, 1), &observed("a:f"), |_, _| true, now)), "", "it waits");
        let surging = [
            ("a:r,ro", "-aro"),
            ("a:,ro", ""),
            ("a:1,o", "-ao"),
            ("a:1,2ro", ""),
            ("a:1r,2r,3ro,4ro", "-a2r -a3ro -a4ro"),
            ("a:f", "+a -af"),
            ("a:d", "+a"),
            ("a?:f", "-af"),
        ];
        for (seen, expected) in surging {
            assert_eq!(text(&manage(&spec(1, 0), &observed(seen), |_, _| false, now)), expected, "{seen}");
        }
    }

    /// Clauses: C09.RollingUpdate, C09.maxUnavailable
    #[test]
    fn outdated_pods_are_replaced_within_the_budget() {
        let now = NOW.parse().unwrap();
        let cases = [
            (1, "a:ro b:ro c:ro", "-aro"),
            (2, "a:ro b:ro c:ro", "-aro -bro"),
            (1, "a: b:ro c:ro", ""),
            (1, "a:1 b:ro c:ro", ""),
            (2, "a:1 b:ro c:ro", "-bro"),
            // Those that do not work anyway go first, whatever the budget.
            (1, "a:o b:o c:ro", "-ao -bo"),
            (3, "a:o b:ro c:ro", "-ao -bro -cro"),
            (1, "a:r b:r", ""),
            (1, "a:ro,r b:ro", ""),
        ];
        for (max, seen, expected) in cases {
            assert_eq!(text(&roll(&spec(0, max), &observed(seen), now)), expected, "{max} {seen}");
        }
    }

    /// Clauses: C09.maxSurge
    #[test]
    fn new_pods_start_beside_outdated_ones() {
        let now = NOW.parse().unwrap();
        let cases = [
            (1, "a:ro b:ro c:ro", "+a"),
            (2, "a:ro b:ro c:ro", "+a +b"),
            (1, "a:ro,1 b:ro", ""),
            (1, "a:ro,r b:ro", "+b -aro"),
            (1, "a:o b:o c:ro", "+a +b +c"),
            // A pod on a node that it no longer belongs on goes when there are enough others.
            (1, "a!:ro b:r", "-aro"),
            (1, "a!:ro b:1", ""),
            (1, "a!:o b:1", "-ao"),
        ];
        for (max, seen, expected) in cases {
            assert_eq!(text(&roll(&spec(max, 0), &observed(seen), now)), expected, "{max} {seen}");
        }
    }

    #[test]
    fn counts_nodes() {
        let counts = count(&spec(0, 1), &observed("a:r b:ro c:1 d: e!:r f?:r"), NOW.parse().unwrap());
        let expected = Counts { desired: 4, current: 3, misscheduled: 2, ready: 2, updated: 2, available: 2 };
        assert_eq!(counts, expected);
    }

    #[test]
    fn reads_the_spec() {
        let read = |rolling: Value| {
            let strategy = json!({"type": "RollingUpdate", "rollingUpdate": rolling});
            let s = Spec::read(&Object::from_value(json!({"spec": {"updateStrategy": strategy}})).unwrap(), 10);
            (s.surges, s.max_surge, s.max_unavailable)
        };
        assert_eq!(read(json!({"maxUnavailable": "25%", "maxSurge": 0})), (false, 0, 3), "rounded up");
        assert_eq!(read(json!({"maxUnavailable": 0, "maxSurge": "1%"})), (true, 1, 0));
        assert_eq!(read(json!({"maxUnavailable": 0, "maxSurge": 0})), (false, 0, 1));
    }
}
