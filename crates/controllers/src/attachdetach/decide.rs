//! What happens to the attachments of one volume. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a volume that a node still uses stays attached if the node is not ready (upstream's `ReconcilerMaxWaitForUnmountDuration`).
pub const UNMOUNT: Duration = Duration::from_secs(6 * 60);

/// A node that has the volume, or is getting or losing it.
#[derive(Clone, Debug, Default)]
pub struct Attached {
    /// The attachment is being deleted.
    pub is_deleting: bool,
    /// The node reports that it uses the volume.
    pub is_in_use: bool,
    pub is_ready: bool,
    pub is_out_of_service: bool,
    /// How long the volume has not been needed there; `None` if that is new.
    pub unneeded: Option<Duration>,
}

/// A step for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Attach(String),
    /// `true`: although the node may use it.
    Detach(String, bool),
    /// The volume is on other nodes and may be on one only.
    Blocked(String, Vec<String>),
    /// Nothing to do now; decide again after this time.
    Wait(Duration),
}

/// The steps for a volume: `needed` by pods on these nodes, `attached` to those.
pub fn steps(needed: &BTreeSet<String>, attached: &BTreeMap<String, Attached>, several: bool) -> Vec<Step> {
    let mut out = Vec::new();
    for (node, a) in attached.iter().filter(|(node, a)| !a.is_deleting && !needed.contains(*node)) {
        let waited = a.unneeded.unwrap_or_default();
        let is_forced = a.is_out_of_service || !a.is_ready && waited > UNMOUNT;
        if !a.is_in_use || is_forced {
            out.push(Step::Detach(node.clone(), is_forced));
        } else if !a.is_ready {
            out.push(Step::Wait(UNMOUNT.saturating_sub(waited) + Duration::from_secs(1)));
        }
        // A change of the node's status is awaited otherwise.
    }
    let mut taken: Vec<String> = attached.keys().cloned().collect();
    for node in needed.iter().filter(|n| !attached.contains_key(*n)) {
        if several || taken.is_empty() {
            out.push(Step::Attach(node.clone()));
            taken.push(node.clone());
        } else {
            out.push(Step::Blocked(node.clone(), taken.clone()));
        }
    }
    out
}

/// The message about a volume that is on other nodes. `local`: the pods there in the namespace of the pod that waits, and how many there are in others.
pub fn multi_attach(volume: &str, local: &[String], elsewhere: usize) -> String {
    let why = match (local.is_empty(), elsewhere) {
        (true, 0) => "Volume is already exclusively attached to one node and can't be attached to another".to_owned(),
        (true, n) => format!("Volume is already used by {n} pod(s) in different namespaces"),
        (false, 0) => format!("Volume is already used by pod(s) {}", local.join(", ")),
        (false, n) => {
            format!("Volume is already used by pod(s) {} and {n} pod(s) in different namespaces", local.join(", "))
        }
    };
    format!("Multi-Attach error for volume {volume:?} {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed(nodes: &[&str]) -> BTreeSet<String> {
        nodes.iter().map(|n| (*n).to_owned()).collect()
    }

    fn check(needs: &[&str], attached: &[(&str, Attached)], several: bool, expected: &[Step]) {
        let attached: BTreeMap<_, _> = attached.iter().map(|(n, a)| ((*n).to_owned(), a.clone())).collect();
        assert_eq!(steps(&needed(needs), &attached, several), expected, "{needs:?} {attached:?}");
    }

    #[test]
    fn a_volume_is_attached_where_pods_need_it() {
        let there = Attached { is_ready: true, ..Attached::default() };
        check(&["a"], &[], false, &[Step::Attach("a".into())]);
        check(&["a"], &[("a", there.clone())], false, &[]);
        check(&["a", "b"], &[], true, &[Step::Attach("a".into()), Step::Attach("b".into())]);
        let blocked = Step::Blocked("b".into(), vec!["a".into()]);
        check(&["a", "b"], &[], false, &[Step::Attach("a".into()), blocked.clone()]);
        check(&["b"], &[("a", there)], false, &[Step::Detach("a".into(), false), blocked.clone()]);
        let leaving = Attached { is_deleting: true, ..Attached::default() };
        check(&["b"], &[("a", leaving.clone())], false, &[blocked]);
        check(&["a"], &[("a", leaving)], false, &[]);
    }

    #[test]
    fn a_volume_in_use_stays_until_it_is_unmounted_or_the_node_is_lost() {
        let used = Attached { is_in_use: true, is_ready: true, ..Attached::default() };
        check(&[], &[("a", used.clone())], false, &[]);
        let long = Some(Duration::from_secs(3600));
        check(&[], &[("a", Attached { unneeded: long, ..used.clone() })], false, &[]);
        let lost = Attached { is_ready: false, ..used.clone() };
        check(&[], &[("a", lost.clone())], false, &[Step::Wait(Duration::from_secs(361))]);
        let minute = Attached { unneeded: Some(Duration::from_secs(60)), ..lost.clone() };
        check(&[], &[("a", minute)], false, &[Step::Wait(Duration::from_secs(301))]);
        check(&[], &[("a", Attached { unneeded: long, ..lost })], false, &[Step::Detach("a".into(), true)]);
        let out = Attached { is_out_of_service: true, ..used };
        check(&[], &[("a", out)], false, &[Step::Detach("a".into(), true)]);
    }

    #[test]
    fn messages_are_those_of_upstream() {
        let pods = ["p".to_owned(), "q".to_owned()];
        assert_eq!(
            multi_attach("pv", &pods, 1),
            "Multi-Attach error for volume \"pv\" Volume is already used by pod(s) p, q and 1 pod(s) in different namespaces"
        );
        assert!(multi_attach("pv", &[], 0).ends_with("can't be attached to another"));
        assert!(multi_attach("pv", &[], 2).ends_with("used by 2 pod(s) in different namespaces"));
    }
}
