//! Which claims are deleted with a set or a pod (`persistentVolumeClaimRetentionPolicy`): the owner references of claims. Pure: data to data.

use crate::views::PodEntry;
use client::Meta;
use client::informer::Owner;
use meta::Object;

/// What happens to claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Delete them with the set.
    pub when_deleted: bool,
    /// Delete them with a pod that a scale-down ends.
    pub when_scaled: bool,
}

impl Policy {
    pub fn read(set: &Object) -> Self {
        let deletes = |k| set.str_at(&["spec", "persistentVolumeClaimRetentionPolicy", k]) == Some("Delete");
        Self { when_deleted: deletes("whenDeleted"), when_scaled: deletes("whenScaled") }
    }

    fn retains(self) -> bool {
        !self.when_deleted && !self.when_scaled
    }
}

/// An object as owners are compared.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    api_version: &'a str,
    kind: &'a str,
    name: &'a str,
    uid: &'a str,
}

impl Candidate<'_> {
    fn has_name_of(&self, o: &Owner) -> bool {
        o.api_version == self.api_version && o.kind == self.kind && o.name == self.name
    }

    fn owner(&self) -> Owner {
        Owner {
            api_version: self.api_version.into(),
            kind: self.kind.into(),
            name: self.name.into(),
            uid: self.uid.into(),
            controller: true,
            block_owner_deletion: true,
        }
    }
}

/// A claim's state.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays as it is.
    Fits,
    /// Its owners should be these.
    Replace(Vec<Owner>),
    /// Another controller is in the way, and the policy is ignored. Its owners should be these, unless they are already.
    Conflict(Option<Vec<Owner>>),
}

fn candidates<'a>(set: &'a Object, pod: &'a str, pod_uid: &'a str) -> (Candidate<'a>, Candidate<'a>) {
    (
        Candidate { api_version: "apps/v1", kind: "StatefulSet", name: set.name(), uid: set.uid() },
        Candidate { api_version: "v1", kind: "Pod", name: pod, uid: pod_uid },
    )
}

/// Whether a claim still belongs to an earlier pod of this name, so that a new one has to wait for the garbage collector.
pub fn is_stale(policy: Policy, claim: &Meta, pod: &str, uid: &str) -> bool {
    let of_pod = |o: &&Owner| o.api_version == "v1" && o.kind == "Pod" && o.name == pod;
    policy.when_scaled && claim.owner_references.iter().find(of_pod).is_some_and(|o| &*o.uid != uid)
}

impl Verdict {
    /// Whether nothing has to be written.
    pub fn is_fine(&self) -> bool {
        matches!(self, Self::Fits | Self::Conflict(None))
    }
}

/// Compares the owners of a claim with the policy. `in_range`: the set has the pod's ordinal.
pub fn check(policy: Policy, claim: &Meta, set: &Object, pod: &PodEntry, in_range: bool) -> Verdict {
    let (set, pod) = candidates(set, &pod.meta.name, &pod.meta.uid);
    let refs = &claim.owner_references;
    let owned_by = |c: &Candidate<'_>| refs.iter().any(|o| &*o.uid == c.uid);
    // A claim of an earlier set or pod of the same name is left to the garbage collector.
    let stale = |c: &Candidate<'_>| refs.iter().find(|o| c.has_name_of(o)).is_some_and(|o| &*o.uid != c.uid);
    if stale(&set) || stale(&pod) {
        return Verdict::Fits;
    }
    let mut kept: Vec<Owner> = refs.iter().filter(|o| !set.has_name_of(o) && !pod.has_name_of(o)).cloned().collect();
    let foreign = kept.iter().any(|o| o.controller);
    if !policy.retains() && foreign {
        return Verdict::Conflict((owned_by(&set) || owned_by(&pod)).then_some(kept));
    }
    let is_only_owner = |o: &&Owner| (&*o.uid == set.uid || &*o.uid == pod.uid) && !o.controller;
    let by_pod = policy.when_scaled && !in_range;
    let by_set = policy.when_deleted && !by_pod;
    if owned_by(&set) == by_set && owned_by(&pod) == by_pod && !refs.iter().any(|o| is_only_owner(&o)) {
        return Verdict::Fits;
    }
    if by_set {
        kept.push(set.owner());
    }
    if by_pod {
        kept.push(pod.owner());
    }
    Verdict::Replace(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::Pod;
    use client::Entry;
    use serde_json::json;

    fn reference(kind: &str, uid: &str, controller: bool) -> serde_json::Value {
        let (api_version, name) = match kind {
            "StatefulSet" => ("apps/v1", "web"),
            "Pod" => ("v1", "web-1"),
            other => ("example.com/v1", other),
        };
        json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": controller})
    }

    /// Clauses: C08.PVC-retention
    #[test]
    fn owners_follow_the_policy() {
        let set = Object::from_value(json!({"metadata": {"name": "web", "uid": "s"}})).unwrap();
        let pod: Entry<Pod> =
            Entry::new(json!({"metadata": {"name": "web-1", "uid": "p"}}).to_string().into()).unwrap();
        let retain = Policy { when_deleted: false, when_scaled: false };
        let deleted = Policy { when_deleted: true, when_scaled: false };
        let scaled = Policy { when_deleted: false, when_scaled: true };
        let both = Policy { when_deleted: true, when_scaled: true };
        let (s, p) = (reference("StatefulSet", "s", true), reference("Pod", "p", true));
        let other = reference("Backup", "b", false);
        let foreign = reference("Operator", "o", true);
        let uids = |owners: &[Owner]| owners.iter().map(|o| o.uid.to_string()).collect::<Vec<_>>().join(",");
        let cases = [
            (retain, true, vec![], "fits"),
            (retain, true, vec![s.clone()], "replace "),
            (retain, true, vec![foreign.clone()], "fits"),
            (deleted, true, vec![], "replace s"),
            (deleted, true, vec![s.clone()], "fits"),
            (deleted, false, vec![], "replace s"),
            (deleted, true, vec![p.clone()], "replace s"),
            (deleted, true, vec![reference("StatefulSet", "s", false)], "replace s"),
            (scaled, true, vec![], "fits"),
            (scaled, true, vec![s.clone()], "replace "),
            (scaled, false, vec![], "replace p"),
            (scaled, false, vec![p.clone()], "fits"),
            (both, true, vec![], "replace s"),
            (both, true, vec![p.clone(), s.clone()], "replace s"),
            (both, false, vec![s.clone()], "replace p"),
            (both, false, vec![p.clone()], "fits"),
            (both, true, vec![other], "replace b,s"),
            // Earlier objects of the same name: the garbage collector deletes the claim.
            (both, true, vec![reference("StatefulSet", "old", true)], "fits"),
            (both, true, vec![reference("Pod", "old", true)], "fits"),
            (both, true, vec![foreign.clone()], "conflict"),
            (both, true, vec![foreign, s], "conflict o"),
        ];
        for (policy, in_range, refs, expected) in cases {
            let claim = json!({"metadata": {"name": "data-web-1", "ownerReferences": refs}});
            let claim = Entry::<()>::new(claim.to_string().into()).unwrap();
            let got = match check(policy, &claim.meta, &set, &pod, in_range) {
                Verdict::Fits => "fits".into(),
                Verdict::Replace(owners) => format!("replace {}", uids(&owners)),
                Verdict::Conflict(None) => "conflict".into(),
                Verdict::Conflict(Some(owners)) => format!("conflict {}", uids(&owners)),
            };
            assert_eq!(got, expected, "{policy:?} {in_range} {refs:?}");
            let stale = refs.iter().any(|r| r["kind"] == "Pod" && r["uid"] != "p");
            assert_eq!(is_stale(policy, &claim.meta, "web-1", "p"), stale && policy.when_scaled);
        }
    }
}
