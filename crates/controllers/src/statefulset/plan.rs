//! What a StatefulSet does next (upstream `stateful_set_control.go`). Pure: data to data.
//!
//! Invariants: with `OrderedReady` no pod is created or deleted while an earlier one is not available, and a scale-down or an update ends
//! at most one pod at a time.

use super::identity;
use crate::pod_control::BURST;
use crate::views::PodEntry;
use jiff::Timestamp;
use meta::Object;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The fields of a StatefulSet that decide.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The first ordinal.
    pub start: i64,
    pub replicas: i64,
    pub min_ready_seconds: i64,
    /// `podManagementPolicy: Parallel`.
    pub parallel: bool,
    /// `updateStrategy.type: OnDelete`.
    pub on_delete: bool,
    /// Replicas below keep the current revision in a rolling update.
    pub partition: i64,
    /// The number of replicas that may be unavailable in a rolling update; none if the set does not specify it.
    pub max_unavailable: Option<i64>,
}

impl Spec {
    pub fn read(set: &Object) -> Self {
        let int = |path: &[&str], default| set.int_at(path).unwrap_or(default);
        let replicas = int(&["spec", "replicas"], 1).max(0);
        let rolling = |k| ["spec", "updateStrategy", "rollingUpdate", k];
        Self {
            start: int(&["spec", "ordinals", "start"], 0).max(0),
            replicas,
            min_ready_seconds: int(&["spec", "minReadySeconds"], 0),
            parallel: set.str_at(&["spec", "podManagementPolicy"]) == Some("Parallel"),
            on_delete: set.str_at(&["spec", "updateStrategy", "type"]) == Some("OnDelete"),
            partition: int(&rolling("partition"), 0),
            max_unavailable: set.at(&rolling("maxUnavailable")).filter(|v| !v.is_null()).map(|v| share(v, replicas)),
        }
    }

    pub fn has_ordinal(&self, ordinal: i64) -> bool {
        ordinal >= self.start && ordinal < self.start.saturating_add(self.replicas)
    }
}

/// A count, or a percentage of `total` rounded down; at least 1.
fn share(v: &Value, total: i64) -> i64 {
    crate::views::scaled(v, total, f64::floor).max(1)
}

/// A pod and what was found out about its identity and claims.
#[derive(Clone)]
pub struct Member {
    pub ordinal: i64,
    pub pod: Arc<PodEntry>,
    /// Its labels, volumes and claims are those that the set specifies.
    pub matches: bool,
    /// The owners of its claims are those of the set's retention policy.
    pub claims_match: bool,
}

impl Member {
    fn phase(&self) -> &str {
        &self.pod.view.status.phase
    }

    fn is_available(&self, min_ready_seconds: i64, now: Timestamp) -> bool {
        self.pod.view.is_available(min_ready_seconds, now)
    }

    fn is_unavailable(&self, min_ready_seconds: i64, now: Timestamp) -> bool {
        !self.is_available(min_ready_seconds, now) || self.pod.meta.is_deleting()
    }

    fn is_healthy(&self, min_ready_seconds: i64, now: Timestamp) -> bool {
        self.phase() == "Running" && self.pod.view.is_ready() && self.is_available(min_ready_seconds, now)
    }
}

/// Something to do.
#[derive(Clone)]
pub enum Action {
    /// Create the pod of an ordinal, and its claims.
    Create(i64),
    /// Create the claims that a pending pod lacks.
    CreateClaims(Member),
    /// Give a pod its labels, volumes and claims.
    Repair(Member),
    /// Give the claims of a pod that goes the owners of the retention policy.
    UpdateClaims(Member),
    Delete(Member),
    /// Delete a pod so that it is created with the present template.
    Update(Member),
}

/// Pods by their distance from the first ordinal.
type Replicas<'a> = BTreeMap<i64, &'a Member>;

/// Actions that may be carried out at the same time; those of the next step follow when all succeeded.
pub type Step = Vec<Action>;

/// Decides what to do. `members` are the set's pods with ordinals; `blocked` tells of a missing ordinal that its claims are still those
/// of a pod that goes; `update` is the name of the revision with the present template. The work is in proportion to the pods that
/// exist, not to `spec.replicas`: at most [`BURST`] creations are planned at once.
pub fn plan(spec: &Spec, members: &[Member], blocked: impl Fn(i64) -> bool, update: &str, now: Timestamp) -> Vec<Step> {
    let mut replicas: Replicas<'_> = BTreeMap::new();
    let mut condemned: Vec<&Member> = Vec::new();
    for m in members {
        match spec.has_ordinal(m.ordinal) {
            true => drop(replicas.insert(m.ordinal - spec.start, m)),
            false => condemned.push(m),
        }
    }
    condemned.sort_by_key(|m| std::cmp::Reverse(m.ordinal));
    let missing = || (0..spec.replicas).filter(|i| !replicas.contains_key(i)).map(|i| spec.start + i);
    let mut steps = if spec.parallel {
        let held = replicas.values().filter_map(|m| Some((m.ordinal, replica(spec, m, now).0?)));
        let new = missing().filter(|n| !blocked(*n)).take(BURST).map(|n| (n, Action::Create(n)));
        let mut all: Vec<(i64, Action)> = held.chain(new).collect();
        all.sort_by_key(|(ordinal, _)| *ordinal);
        vec![all.into_iter().map(|(_, action)| action).collect()]
    } else {
        let mut steps = Vec::new();
        for i in 0..spec.replicas {
            let Some(m) = replicas.get(&i) else {
                let ordinal = spec.start + i;
                steps.extend((!blocked(ordinal)).then(|| vec![Action::Create(ordinal)]));
                return steps;
            };
            let (action, stop) = replica(spec, m, now);
            steps.extend(action.map(|a| vec![a]));
            if stop {
                return steps;
            }
        }
        steps
    };
    steps.push(condemned.iter().filter(|m| !m.claims_match).map(|m| Action::UpdateClaims((*m).clone())).collect());
    if spec.parallel {
        let ending = condemned.iter().filter(|m| !m.pod.meta.is_deleting());
        steps.push(ending.map(|m| Action::Delete((*m).clone())).collect());
    } else if let Some(last) = condemned.first() {
        // All replicas are available here, so the first unavailable pod is among the condemned ones.
        let min = spec.min_ready_seconds;
        let unavailable = condemned.iter().rev().find(|m| m.is_unavailable(min, now));
        let first = unavailable.is_some_and(|u| u.ordinal == last.ordinal);
        if !last.pod.meta.is_deleting() && (last.is_healthy(min, now) || first) {
            steps.push(vec![Action::Delete((*last).clone())]);
        }
        return steps;
    }
    if !spec.on_delete {
        steps.extend(updates(spec, &replicas, update, now).into_iter().map(|m| vec![Action::Update(m.clone())]));
    }
    steps.retain(|s| !s.is_empty());
    steps
}

/// What a pod needs, and whether later ones wait for it with `OrderedReady`.
fn replica(spec: &Spec, m: &Member, now: Timestamp) -> (Option<Action>, bool) {
    if m.pod.view.is_terminal() {
        // It is created again when it is gone.
        return (if m.pod.meta.is_deleting() { None } else { Some(Action::Delete(m.clone())) }, true);
    }
    let repair = || (!m.matches || !m.claims_match).then(|| Action::Repair(m.clone()));
    if spec.parallel {
        let claims = || (m.phase() == "Pending").then(|| Action::CreateClaims(m.clone()));
        return (repair().or_else(claims), false);
    }
    if m.pod.meta.is_deleting() || !m.is_healthy(spec.min_ready_seconds, now) {
        return ((m.phase() == "Pending").then(|| Action::CreateClaims(m.clone())), true);
    }
    (repair(), false)
}

/// The pods to end because their template is not the present one.
fn updates<'a>(spec: &Spec, replicas: &Replicas<'a>, update: &str, now: Timestamp) -> Vec<&'a Member> {
    let unavailable = |m: &Member| m.is_unavailable(spec.min_ready_seconds, now);
    let outdated = |m: &Member| identity::revision(&m.pod.meta) != update && !m.pod.meta.is_deleting();
    if let Some(max) = spec.max_unavailable {
        let available = replicas.values().filter(|m| !unavailable(m)).count() as i64;
        let room = usize::try_from(max - (spec.replicas - available)).unwrap_or(0);
        return replicas.range(spec.partition..).rev().map(|(_, m)| *m).filter(|m| outdated(m)).take(room).collect();
    }
    for i in (spec.partition..spec.replicas).rev() {
        let Some(m) = replicas.get(&i) else { return Vec::new() };
        if outdated(m) {
            return vec![*m];
        }
        if unavailable(m) {
            return Vec::new();
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::HASH_LABEL;
    use serde_json::json;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn spec() -> Spec {
        Spec {
            start: 0,
            replicas: 3,
            min_ready_seconds: 0,
            parallel: false,
            on_delete: false,
            partition: 0,
            max_unavailable: None,
        }
    }

    /// A pod by its ordinal and letters: `r` ready since long ago, `y` ready for a second, `p` pending, `f` failed, `s` succeeded; `d` being deleted, `o` outdated, `x` with
    /// wrong labels, `c` with wrong owners of its claims.
    fn member(ordinal: i64, state: &str) -> Member {
        let has = |c| state.contains(c);
        let phase = match () {
            () if has('p') => "Pending",
            () if has('f') => "Failed",
            () if has('s') => "Succeeded",
            () => "Running",
        };
        let since = if has('y') { "2026-01-01T00:59:59Z" } else { "2026-01-01T00:00:00Z" };
        let ready = if has('r') || has('y') { "True" } else { "False" };
        let revision = if has('o') { "web-1" } else { "web-2" };
        let mut pod = json!({
            "metadata": {"name": format!("web-{ordinal}"), "uid": ordinal.to_string(), "labels": {HASH_LABEL: revision}},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]},
        });
        if has('d') {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:59:00Z".into();
        }
        let pod = Arc::new(PodEntry::new(pod.to_string().into()).unwrap());
        Member { ordinal, pod, matches: !has('x'), claims_match: !has('c') }
    }

    fn name(a: &Action) -> String {
        match a {
            Action::Create(n) => format!("create {n}"),
            Action::CreateClaims(m) => format!("claims {}", m.ordinal),
            Action::Repair(m) => format!("repair {}", m.ordinal),
            Action::UpdateClaims(m) => format!("owners {}", m.ordinal),
            Action::Delete(m) => format!("delete {}", m.ordinal),
            Action::Update(m) => format!("update {}", m.ordinal),
        }
    }

    /// The plan as text: actions of a step are joined by commas.
    fn planned(spec: &Spec, pods: &str, blocked: &[i64]) -> String {
        let members: Vec<Member> = pods
            .split_whitespace()
            .map(|p| {
                let at = p.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(p.len());
                member(p[..at].parse().unwrap(), &p[at..])
            })
            .collect();
        let steps = plan(spec, &members, |n| blocked.contains(&n), "web-2", NOW.parse().unwrap());
        let steps: Vec<String> = steps.iter().map(|s| s.iter().map(name).collect::<Vec<_>>().join(",")).collect();
        steps.into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join("; ")
    }

    /// Clauses: C08.OrderedReady, C08.reverse-order, C08.RollingUpdate, C08.forced-rollback
    #[test]
    fn ordered_sets_act_on_one_pod_at_a_time() {
        let cases = [
            ("", "create 0"),
            ("0p", "claims 0"),
            ("0", ""),
            ("0r", "create 1"),
            ("0r 1rd", ""),
            ("0r 2r", "create 1"),
            ("0r 1r 2r", ""),
            // Failed and succeeded pods are deleted, and come again when they are gone.
            ("0f 1r 2r", "delete 0"),
            ("0s", "delete 0"),
            ("0fd", ""),
            // Labels and claims.
            ("0rx 1r 2rc", "repair 0; repair 2"),
            ("0x", ""),
            // Scale-down: the highest ordinal, one at a time.
            ("0r 1r 2r 3r 4r", "delete 4"),
            ("0r 1r 2r 3r 4rd", ""),
            ("0r 1r 2r 3r 4", "delete 4"),
            ("0r 1r 2r 3 4r", "delete 4"),
            ("0r 1r 2r 3 4", ""),
            ("0r 1r 2 3r 4r", ""),
            ("0r 1r 2r 3rc 4rc", "owners 4,owners 3; delete 4"),
            // Updates: from the highest ordinal, after all are available.
            ("0ro 1ro 2ro", "update 2"),
            ("0ro 1ro 2r", "update 1"),
            ("0ro 1ro 2", ""),
            ("0ro 1ro 2rod", ""),
            // A broken update is not repaired by going back: the broken pod has to be deleted by hand.
            ("0ro 1ro 2o", ""),
            ("0ro 1ro 2ro 3r", "delete 3"),
        ];
        for (pods, expected) in cases {
            assert_eq!(planned(&spec(), pods, &[]), expected, "{pods}");
        }
        assert_eq!(planned(&spec(), "0r", &[1]), "", "its claims are deleted first");
    }

    /// Clauses: C08.Parallel
    #[test]
    fn parallel_sets_act_on_all_pods() {
        let spec = Spec { parallel: true, ..spec() };
        let cases = [
            ("", "create 0,create 1,create 2"),
            ("0p 2f", "claims 0,create 1,delete 2"),
            ("0 1r 2rx 3r 4", "repair 2; delete 4,delete 3"),
            ("0r 1r 2r 3rd 4rc", "owners 4; delete 4"),
            ("0ro 1ro 2ro", "update 2"),
            ("0ro 1ro 2o", "update 2"),
            ("0ro 1ro 2", ""),
        ];
        for (pods, expected) in cases {
            assert_eq!(planned(&spec, pods, &[]), expected, "{pods}");
        }
        assert_eq!(planned(&spec, "0r 1r", &[2]), "");
    }

    /// Clauses: C08.partition, C08.OnDelete, C08.maxUnavailable, C08.start-ordinal, C08.minReadySeconds
    #[test]
    fn update_strategies() {
        let base = spec();
        let cases = [
            (Spec { partition: 2, ..base.clone() }, "0ro 1ro 2ro", "update 2"),
            (Spec { partition: 2, ..base.clone() }, "0ro 1ro 2r", ""),
            (Spec { partition: 7, ..base.clone() }, "0ro 1ro 2ro", ""),
            (Spec { on_delete: true, ..base.clone() }, "0ro 1ro 2ro", ""),
            (Spec { max_unavailable: Some(2), ..base.clone() }, "0ro 1ro 2ro", "update 2; update 1"),
            (Spec { max_unavailable: Some(2), parallel: true, ..base.clone() }, "0ro 1ro 2", "update 1"),
            (Spec { max_unavailable: Some(2), parallel: true, ..base.clone() }, "0o 1ro 2", ""),
            (Spec { max_unavailable: Some(3), partition: 1, ..base.clone() }, "0ro 1ro 2ro", "update 2; update 1"),
            (Spec { start: 5, ..base.clone() }, "5r 6r 4r", "create 7"),
            (Spec { start: 5, ..base.clone() }, "5r 6r 7r 4r 8r", "delete 8"),
            (Spec { start: 5, partition: 1, ..base.clone() }, "5ro 6ro 7r", "update 6"),
            (Spec { start: 5, partition: 1, ..base.clone() }, "5ro 6r 7r", ""),
            (Spec { replicas: 0, ..base.clone() }, "0r 1ro", "delete 1"),
            (Spec { min_ready_seconds: 10, ..base.clone() }, "0r 1y", ""),
            (Spec { min_ready_seconds: 10, ..base.clone() }, "0r 1r", "create 2"),
            (Spec { min_ready_seconds: 10, ..base.clone() }, "0ro 1ro 2y", ""),
        ];
        for (spec, pods, expected) in cases {
            assert_eq!(planned(&spec, pods, &[]), expected, "{spec:?} {pods}");
        }
    }

    /// A plan took memory for all replicas, and the allocation ended the process.
    #[test]
    fn huge_sets_are_planned_in_parts() {
        let base = Spec { replicas: i32::MAX.into(), ..spec() };
        assert_eq!(planned(&base, "0r 1r", &[]), "create 2");
        let parallel = Spec { parallel: true, max_unavailable: Some(1), ..base };
        let steps = planned(&parallel, "0ro 2rx", &[1]);
        assert!(steps.starts_with("repair 2,create 3,create 4,"), "{steps:.80}");
        assert_eq!(steps.matches("create").count(), BURST);
        assert!(!steps.contains("update"), "replicas that are missing are unavailable");
    }

    #[test]
    fn reads_the_spec() {
        let read = |v: Value| Spec::read(&Object::from_value(json!({"spec": v})).unwrap());
        let rolling =
            |v: Value| json!({"replicas": 10, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": v}});
        assert_eq!(read(json!({})).replicas, 1);
        assert_eq!(read(rolling(json!({"partition": 3}))).partition, 3);
        assert_eq!(read(rolling(json!({"maxUnavailable": "25%"}))).max_unavailable, Some(2), "rounded down");
        assert_eq!(read(rolling(json!({"maxUnavailable": "1%"}))).max_unavailable, Some(1), "at least one");
        assert!(read(json!({"ordinals": {"start": 4}, "replicas": 2})).has_ordinal(5));
        assert!(!read(json!({"ordinals": {"start": 4}, "replicas": 2})).has_ordinal(6));
        assert!(read(json!({"updateStrategy": {"type": "OnDelete"}})).on_delete);
    }
}
