//! Events of sandboxes and containers: differences between two listings, a second apart, as the kubelet finds them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_cri::v1;
use runtime::{ContainerState, Event, Result};

use crate::Inner;
use crate::records::{OWNER, container_record, sandbox, state};

/// The time between two listings (`genericPlegRelistPeriod`).
const PERIOD: Duration = Duration::from_secs(1);

/// The states of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Listing {
    /// Whether each sandbox is ready.
    pods: BTreeMap<String, bool>,
    /// The sandbox and state of each container.
    containers: BTreeMap<String, (String, ContainerState)>,
}

/// Emits events until the runtime is dropped.
pub(crate) async fn follow(inner: Weak<Inner>) {
    let mut before = Listing::default();
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        match list(&inner).await {
            Ok(now) => {
                for change in changes(&before, &now) {
                    inner.emit(change).await;
                }
                before = now;
            }
            Err(error) => tracing::debug!(%error, "listing the containers of the runtime failed; it is tried again"),
        }
    }
}

async fn list(inner: &Arc<Inner>) -> Result<Listing> {
    let label = (OWNER, inner.options.owner.as_str());
    let (pods, containers) =
        tokio::join!(inner.connection.list_pods([label]), inner.connection.list_containers([label]));
    let is_ready = |s: &v1::PodSandbox| s.state() == v1::PodSandboxState::SandboxReady;
    let pods = pods?.into_iter().filter_map(|s| {
        let ready = is_ready(&s);
        Some((sandbox(s)?.pod.id, ready))
    });
    let containers = containers?.into_iter().map(|c| {
        let at = state(c.state());
        (c.id, (container_record(&c.annotations).pod, at))
    });
    Ok(Listing { pods: pods.collect(), containers: containers.collect() })
}

/// What happened to a container or sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Started { pod: String, container: String },
    Exited { pod: String, container: String },
    Stopped { pod: String },
}

/// The differences between two listings. A container that has started and ended meanwhile has ended.
fn changes(before: &Listing, now: &Listing) -> Vec<Change> {
    let mut out = Vec::new();
    for (container, (pod, state)) in &now.containers {
        let old = before.containers.get(container).map(|(_, state)| *state);
        let (pod, container) = (pod.clone(), container.clone());
        match state {
            _ if old == Some(*state) => {}
            ContainerState::Running => out.push(Change::Started { pod, container }),
            ContainerState::Exited | ContainerState::Unknown => out.push(Change::Exited { pod, container }),
            ContainerState::Created => {}
        }
    }
    for (container, (pod, state)) in &before.containers {
        if *state == ContainerState::Running && !now.containers.contains_key(container) {
            out.push(Change::Exited { pod: pod.clone(), container: container.clone() });
        }
    }
    for (pod, was_ready) in &before.pods {
        if *was_ready && now.pods.get(pod) != Some(&true) {
            out.push(Change::Stopped { pod: pod.clone() });
        }
    }
    out
}

impl Inner {
    async fn emit(&self, change: Change) {
        let event = match change {
            Change::Started { pod, container } => Event::ContainerStarted { pod, container },
            Change::Stopped { pod } => Event::PodStopped { pod },
            Change::Exited { pod, container } => {
                let exit_code = self.container(&container).await.ok().and_then(|c| c.exit_code).unwrap_or(137);
                Event::ContainerExited { pod, container, exit_code }
            }
        };
        let _ = self.events.send(event); // without receivers nothing is sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(pods: &[(&str, bool)], containers: &[(&str, ContainerState)]) -> Listing {
        Listing {
            pods: pods.iter().map(|(id, ready)| ((*id).to_owned(), *ready)).collect(),
            containers: containers.iter().map(|(id, state)| ((*id).to_owned(), ("p".to_owned(), *state))).collect(),
        }
    }

    #[test]
    fn events_are_the_differences_of_listings() {
        use ContainerState::{Created, Exited, Running, Unknown};
        let (pod, container) = ("p".to_owned(), "c".to_owned());
        let started = Change::Started { pod: pod.clone(), container: container.clone() };
        let exited = Change::Exited { pod: pod.clone(), container };
        for (before, now, expect) in [
            (None, Some(Created), None),
            (None, Some(Running), Some(&started)),
            (Some(Created), Some(Running), Some(&started)),
            (Some(Running), Some(Running), None),
            (Some(Running), Some(Exited), Some(&exited)),
            (Some(Running), Some(Unknown), Some(&exited)),
            (None, Some(Exited), Some(&exited)),
            (Some(Running), None, Some(&exited)),
            (Some(Exited), None, None),
        ] {
            let of =
                |state: Option<ContainerState>| listing(&[], &state.map(|s| ("c", s)).into_iter().collect::<Vec<_>>());
            let found = changes(&of(before), &of(now));
            assert_eq!(found.first(), expect, "{before:?} {now:?}");
        }
        let stopped = [Change::Stopped { pod }];
        assert_eq!(changes(&listing(&[("p", true)], &[]), &listing(&[("p", false)], &[])), stopped);
        assert_eq!(changes(&listing(&[("p", true)], &[]), &listing(&[], &[])), stopped);
        assert_eq!(changes(&listing(&[("p", false)], &[]), &listing(&[], &[])), []);
    }
}
