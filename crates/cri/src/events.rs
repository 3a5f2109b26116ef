//! Events of sandboxes and containers: differences between two listings, as the kubelet finds them.
//!
//! A runtime that has a stream of events (`GetContainerEvents`: containerd 1.7, CRI-O) says when there is something new to list; it is
//! listed now and then all the same, as upstream. With other runtimes, and while there is no stream, it is listed every second. What an event
//! says is not used: a listing tells of everything, in whatever order events come, or if one is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_cri::v1;
use runtime::{ContainerState, Event, Result};
use tokio::sync::{Notify, watch};
use tonic::Code;

use crate::Inner;
use crate::records::{OWNER, container_record, sandbox, state};

/// How often is listed, and how long the stream of events is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Without a stream (`genericPlegRelistPeriod`).
    pub poll: Duration,
    /// With a stream (`eventedPlegRelistPeriod`).
    pub check: Duration,
    /// The pause after a stream has ended or could not be opened.
    pub retry: Duration,
    /// Events within this time are listed together.
    pub gather: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(1),
            check: Duration::from_secs(300),
            retry: Duration::from_secs(10),
            gather: Duration::from_millis(20),
        }
    }
}

/// The longest pause after a runtime that has no stream was asked for it. It may be replaced by a newer one.
const LAST_RETRY: Duration = Duration::from_secs(600);

/// The states of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Listing {
    /// Whether each sandbox is ready.
    pods: BTreeMap<String, bool>,
    /// The sandbox and state of each container.
    containers: BTreeMap<String, (String, ContainerState)>,
}

/// Whether the runtime streams events at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Closed,
    Open,
}

/// Emits events until the runtime is dropped.
pub(crate) async fn follow(inner: Weak<Inner>, pace: Pace) {
    let (news, changed) = (Arc::new(Notify::new()), watch::Sender::new(Stream::Closed));
    let stream = changed.subscribe();
    tokio::select! {
        () = watch_events(inner.clone(), pace, news.clone(), changed) => {}
        () = list_changes(inner, pace, news, stream) => {}
    }
}

/// Lists again and again: after events, and periodically.
async fn list_changes(inner: Weak<Inner>, pace: Pace, news: Arc<Notify>, mut stream: watch::Receiver<Stream>) {
    let mut before = Listing::default();
    loop {
        let Some(inner) = inner.upgrade() else { return };
        let listed = match list(&inner).await {
            Ok(now) => {
                for change in changes(&before, &now) {
                    inner.emit(change).await;
                }
                before = now;
                true
            }
            Err(error) => {
                tracing::debug!(%error, "listing the containers of the runtime failed; it is tried again");
                false
            }
        };
        drop(inner);
        let pause = match *stream.borrow_and_update() {
            Stream::Open if listed => pace.check,
            _ => pace.poll,
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = news.notified() => tokio::time::sleep(pace.gather).await,
            // What has happened before it was opened or after it has broken is in no event.
            Ok(()) = stream.changed() => {}
        }
    }
}

/// Reads the runtime's stream of events, and opens it again when it has ended.
async fn watch_events(inner: Weak<Inner>, pace: Pace, news: Arc<Notify>, stream: watch::Sender<Stream>) {
    let mut retry = pace.retry;
    loop {
        let Some(connection) = inner.upgrade().map(|i| i.connection.clone()) else { return };
        match connection.container_events().await {
            Ok(mut events) => {
                tracing::info!("the container runtime streams events");
                retry = pace.retry;
                stream.send_replace(Stream::Open);
                while let Ok(Some(_)) = events.message().await {
                    news.notify_one();
                }
                stream.send_replace(Stream::Closed);
            }
            Err(status) => {
                tracing::debug!(%status, "the container runtime streams no events; its containers are listed");
                let lacks = matches!(status.code(), Code::Unimplemented | Code::Unknown);
                retry = if lacks { (retry * 2).min(LAST_RETRY) } else { pace.retry };
            }
        }
        tokio::time::sleep(retry).await;
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
#[path = "events_tests.rs"]
mod stream_tests;

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
