//! The pods of the node, between their network and the rules for network policies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::watch;

use crate::{Error, Result};

/// How long a pod that starts or ends waits for the rules.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pods of the node at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    /// Grows with every change.
    pub version: u64,
    /// Pod id → addresses.
    pub pods: BTreeMap<String, Vec<IpAddr>>,
}

/// The pods whose rules are in the kernel.
#[derive(Debug)]
enum Covered {
    /// There are no rules, and all pods may start.
    All,
    /// These, and no others have an entry.
    These(BTreeSet<String>),
}

#[derive(Debug)]
struct State {
    /// Whether pods wait for their rules.
    closed: bool,
    current: Pods,
    /// The version that the rules have.
    applied: u64,
    covered: Covered,
}

/// Lets pods start once their rules are in place, and end once these are removed.
#[derive(Debug)]
pub struct PodGate {
    state: watch::Sender<State>,
}

impl PodGate {
    /// An open gate with the pods of an earlier process.
    pub(crate) fn new(pods: BTreeMap<String, Vec<IpAddr>>) -> PodGate {
        let current = Pods { version: 1, pods };
        let state = State { closed: false, current, applied: 0, covered: Covered::These(BTreeSet::new()) };
        PodGate { state: watch::Sender::new(state) }
    }

    /// From now on, pods wait for [`PodGate::set_applied`].
    pub fn close(&self) {
        self.state.send_modify(|s| s.closed = true);
    }

    /// The current pods.
    pub fn pods(&self) -> Pods {
        self.state.borrow().current.clone()
    }

    /// Waits until the pods differ from `version`.
    pub async fn changed(&self, version: u64) {
        // The sender lives as long as this.
        let _ = self.state.subscribe().wait_for(|s| s.current.version != version).await;
    }

    /// Reports that the rules of these pods (`None`: no rules, and all pods may start) are in place, and none of others.
    pub fn set_applied(&self, version: u64, pods: Option<BTreeSet<String>>) {
        self.state.send_modify(|s| {
            s.applied = version;
            s.covered = pods.map_or(Covered::All, Covered::These);
        });
    }

    /// Adds a pod, and waits for its rules. Errors after some seconds.
    pub(crate) async fn admit(&self, pod: &str, addresses: &[IpAddr]) -> Result<()> {
        self.state.send_if_modified(|s| {
            let before = s.current.pods.insert(pod.to_owned(), addresses.to_vec());
            let is_new = before.as_deref() != Some(addresses);
            s.current.version += u64::from(is_new);
            is_new
        });
        let is_ready = |s: &State| match &s.covered {
            _ if !s.closed => true,
            Covered::All => true,
            Covered::These(pods) => pods.contains(pod),
        };
        self.wait(is_ready).await.ok_or(Error::Policies)
    }

    /// Removes pods, and waits until their addresses have no rules. Errors after some seconds.
    pub(crate) async fn remove(&self, pods: &[String]) -> Result<()> {
        let mut version = 0;
        self.state.send_if_modified(|s| {
            let removed = pods.iter().filter(|pod| s.current.pods.remove(*pod).is_some()).count();
            s.current.version += removed as u64;
            version = s.current.version;
            removed > 0
        });
        let is_done = |s: &State| {
            let is_free = match &s.covered {
                Covered::All => true,
                Covered::These(covered) => s.applied >= version || !pods.iter().any(|pod| covered.contains(pod)),
            };
            !s.closed || is_free
        };
        self.wait(is_done).await.ok_or(Error::Policies)
    }

    /// Waits until `done`; none after [`PATIENCE`].
    async fn wait(&self, done: impl Fn(&State) -> bool) -> Option<()> {
        let mut states = self.state.subscribe();
        tokio::time::timeout(PATIENCE, states.wait_for(|s| done(s))).await.ok().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const A: &[IpAddr] = &[IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 2))];

    #[tokio::test(start_paused = true)]
    async fn pods_wait_for_their_rules() {
        let gate = Arc::new(PodGate::new([("old".to_owned(), A.to_vec())].into()));
        gate.admit("early", A).await.unwrap();
        gate.close();
        assert!(matches!(gate.admit("a", A).await, Err(Error::Policies)));
        let Pods { version, pods } = gate.pods();
        assert_eq!(pods.into_keys().collect::<Vec<_>>(), ["a", "early", "old"]);
        let waiting = tokio::spawn({
            let gate = gate.clone();
            async move { gate.admit("a", A).await }
        });
        gate.set_applied(version, Some(["a".to_owned()].into()));
        waiting.await.unwrap().unwrap();
        assert!(matches!(gate.remove(&["a".to_owned()]).await, Err(Error::Policies)));
        gate.changed(version).await;
        gate.set_applied(version + 1, Some(BTreeSet::new()));
        gate.remove(&["a".to_owned()]).await.unwrap();
        gate.set_applied(version + 1, None);
        gate.admit("b", A).await.unwrap();
    }
}
