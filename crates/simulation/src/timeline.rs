//! The timeline of a rehearsal: what happened when, and why. Equal events of one moment are one entry.

use serde::Serialize;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// Events of one kind, object and cause are one entry for this long.
const TOGETHER: Duration = Duration::from_secs(1);
/// How many names an entry keeps, and how many entries a timeline keeps.
const NAMES: usize = 5;
const ENTRIES: usize = 20_000;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    Step,
    Evicted,
    Preempted,
    Deleted,
    Lost,
    Pending,
    Started,
    Ready,
    NotReady,
    Ended,
    /// Fewer pods are available than desired.
    Unavailable,
    /// A service has no endpoint.
    NoEndpoints,
    /// Fewer pods are healthy than a budget demands.
    BudgetBroken,
    DrainBegan,
    DrainBlocked,
    DrainEnded,
    NodeDown,
    NodeUp,
    NodeNotReady,
    NodeReady,
    Cordoned,
    Uncordoned,
    RolloutBegan,
    RolloutStuck,
    RolloutEnded,
    Failed,
    Remark,
}

impl Kind {
    /// Whether it is about pods, of which an entry counts several.
    pub(crate) fn counts_pods(self) -> bool {
        use Kind::{Deleted, Ended, Evicted, Lost, NotReady, Pending, Preempted, Ready, Started};
        matches!(self, Evicted | Preempted | Deleted | Lost | Pending | Started | Ready | NotReady | Ended)
    }

    /// Whether it is bad news.
    pub(crate) fn is_bad(self) -> bool {
        use Kind::{
            BudgetBroken, DrainBlocked, Failed, Lost, NoEndpoints, NodeDown, NodeNotReady, Pending, RolloutStuck,
            Unavailable,
        };
        matches!(
            self,
            BudgetBroken
                | DrainBlocked
                | Failed
                | Lost
                | NoEndpoints
                | NodeDown
                | NodeNotReady
                | Pending
                | RolloutStuck
                | Unavailable
        )
    }

    /// The order of events of one time: what happens to nodes, then to pods, then to what consists of pods.
    fn rank(self) -> u8 {
        match self {
            Self::Step => 0,
            Self::DrainBegan | Self::RolloutBegan => 1,
            Self::Cordoned | Self::NodeDown | Self::NodeUp => 2,
            Self::NodeNotReady | Self::NodeReady => 3,
            Self::Evicted | Self::Preempted | Self::Deleted | Self::Lost | Self::Ended | Self::NotReady => 4,
            Self::Pending | Self::Started => 5,
            Self::Ready => 6,
            Self::Unavailable => 7,
            Self::NoEndpoints | Self::BudgetBroken => 8,
            Self::DrainBlocked => 9,
            Self::RolloutStuck | Self::RolloutEnded | Self::DrainEnded => 10,
            Self::Uncordoned => 11,
            Self::Failed => 12,
            Self::Remark => 13,
        }
    }

    /// The kind in words.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Evicted => "evicted",
            Self::Preempted => "preempted",
            Self::Deleted => "deleted",
            Self::Lost => "lost",
            Self::Pending => "pending",
            Self::Started => "started",
            Self::Ready => "ready",
            Self::NotReady => "not ready",
            Self::Ended => "ended",
            Self::Unavailable => "unavailable",
            Self::NoEndpoints => "no endpoints",
            Self::BudgetBroken => "budget broken",
            Self::DrainBegan => "drain began",
            Self::DrainBlocked => "drain blocked",
            Self::DrainEnded => "drain ended",
            Self::NodeDown => "node down",
            Self::NodeUp => "node up",
            Self::NodeNotReady => "node not ready",
            Self::NodeReady => "node ready",
            Self::Cordoned => "cordoned",
            Self::Uncordoned => "uncordoned",
            Self::RolloutBegan => "rollout began",
            Self::RolloutStuck => "rollout stuck",
            Self::RolloutEnded => "rollout ended",
            Self::Failed => "failed",
            Self::Remark => "remark",
        }
    }
}

/// The object of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    pub kind: String,
    /// Empty for objects without a namespace.
    pub namespace: String,
    pub name: String,
}

impl Subject {
    pub(crate) fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self { kind: kind.into(), namespace: namespace.into(), name: name.into() }
    }

    /// Whether a scenario names this object.
    pub(crate) fn is_named(&self, name: &crate::name::ObjectName) -> bool {
        self.kind == name.kind && self.namespace == name.namespace && self.name == name.name
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.namespace.is_empty() { "" } else { "/" };
        write!(f, "{} {}{slash}{}", self.kind.to_lowercase(), self.namespace, self.name)
    }
}

impl Serialize for Subject {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// Events of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub at: Duration,
    /// When the state ended that began then, or the last of the events.
    pub until: Option<Duration>,
    pub kind: Kind,
    pub object: Subject,
    /// The node of the pods, if it matters.
    pub node: String,
    pub text: String,
    pub cause: Option<String>,
    /// The index of the step that was executed.
    pub step: Option<usize>,
    /// How many events these are, and the names of the first pods.
    pub count: usize,
    pub names: Vec<String>,
}

type Group = (Kind, Subject, String, String, Option<String>);

/// The entries of a rehearsal.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    entries: Vec<Entry>,
    /// The newest entry of each group.
    groups: HashMap<Group, usize>,
    pub step: Option<usize>,
    /// How many entries were not kept.
    pub omitted: usize,
}

/// A new event.
#[derive(Debug, Default)]
pub(crate) struct Event<'a> {
    pub object: Subject,
    pub node: &'a str,
    pub text: String,
    pub cause: Option<String>,
    /// The name of the pod.
    pub pod: &'a str,
}

impl Timeline {
    /// Adds an event. Returns its entry.
    pub fn add(&mut self, at: Duration, kind: Kind, event: Event<'_>) -> Option<usize> {
        let Event { object, node, text, cause, pod } = event;
        let group = (kind, object, node.to_owned(), text, cause);
        if let Some(&i) = self.groups.get(&group).filter(|_| kind.counts_pods() || kind == Kind::DrainBlocked) {
            let entry = &mut self.entries[i];
            let blocked = kind == Kind::DrainBlocked;
            let together = if blocked { 10 * TOGETHER } else { TOGETHER };
            let same_step = blocked || entry.step == self.step;
            if same_step && entry.until.unwrap_or(entry.at) + together >= at {
                let known = entry.names.iter().any(|n| n == pod);
                entry.count += usize::from(!blocked || !known);
                entry.until = Some(at);
                if entry.names.len() < NAMES && !known {
                    entry.names.push(pod.to_owned());
                }
                return Some(i);
            }
        }
        if self.entries.len() >= ENTRIES {
            self.omitted += 1;
            return None;
        }
        let (_, object, node, text, cause) = group.clone();
        let names = if pod.is_empty() { Vec::new() } else { vec![pod.to_owned()] };
        // A refusal is one moment, until another one follows.
        let until = (kind == Kind::DrainBlocked).then_some(at);
        self.entries.push(Entry { at, until, kind, object, node, text, cause, step: self.step, count: 1, names });
        self.groups.insert(group, self.entries.len() - 1);
        Some(self.entries.len() - 1)
    }

    /// Ends the state that an entry began, with its final text.
    pub fn end(&mut self, entry: Option<usize>, at: Duration, text: String) {
        if let Some(entry) = entry.and_then(|i| self.entries.get_mut(i)) {
            entry.until = Some(at);
            entry.text = text;
        }
    }

    /// Sets the text of an entry whose state continues.
    pub fn describe(&mut self, entry: Option<usize>, text: String) {
        if let Some(entry) = entry.and_then(|i| self.entries.get_mut(i)) {
            entry.text = text;
        }
    }

    /// Ends the entries of refused evictions on a node that have lasted until now, when its drain ends.
    pub fn end_blocked(&mut self, node: &Subject, at: Duration) {
        let blocked = self.entries.iter_mut().filter(|e| e.kind == Kind::DrainBlocked && e.object == *node);
        for entry in blocked.filter(|e| e.until.unwrap_or(e.at) + 10 * TOGETHER >= at) {
            entry.until = Some(at);
        }
    }

    /// The entries in the order of time, and at one time causes before their effects.
    pub fn into_entries(self) -> Vec<Entry> {
        let mut entries = self.entries;
        entries.sort_by_key(|e| (e.at, e.step, e.kind.rank()));
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event<'a>(pod: &'a str, cause: &str) -> Event<'a> {
        Event { object: Subject::new("Deployment", "d", "web"), cause: Some(cause.into()), pod, ..Event::default() }
    }

    #[test]
    fn equal_events_of_a_moment_are_one_entry() {
        let mut timeline = Timeline::default();
        for i in 0..8 {
            timeline.add(Duration::from_millis(100 * i), Kind::Evicted, event(&format!("p{i}"), "drain"));
        }
        timeline.add(Duration::from_millis(700), Kind::Evicted, event("other", "rollout"));
        timeline.add(Duration::from_secs(5), Kind::Evicted, event("later", "drain"));
        timeline.step = Some(1);
        timeline.add(Duration::from_secs(5), Kind::Evicted, event("next", "drain"));
        let entries = timeline.into_entries();
        assert_eq!(
            entries.iter().map(|e| (e.count, e.names.len())).collect::<Vec<_>>(),
            [(8, 5), (1, 1), (1, 1), (1, 1)]
        );
        assert_eq!(entries[0].until, Some(Duration::from_millis(700)));
    }

    #[test]
    fn entries_of_one_time_are_ordered_by_cause() {
        let mut timeline = Timeline::default();
        let at = Duration::from_secs(5);
        for kind in [Kind::BudgetBroken, Kind::Unavailable, Kind::Lost, Kind::NodeDown, Kind::Step] {
            timeline.add(at, kind, event("p", "c"));
        }
        let kinds: Vec<Kind> = timeline.into_entries().iter().map(|e| e.kind).collect();
        assert_eq!(kinds, [Kind::Step, Kind::NodeDown, Kind::Lost, Kind::Unavailable, Kind::BudgetBroken]);
    }

    #[test]
    fn refused_evictions_end_with_their_drain() {
        let mut timeline = Timeline::default();
        let node = Subject::new("Node", "", "a");
        let refused = || Event { object: node.clone(), cause: Some("budget".into()), pod: "p", ..Event::default() };
        let at = Duration::from_secs;
        timeline.add(at(1), Kind::DrainBlocked, refused());
        for second in [60, 65, 70] {
            timeline.add(at(second), Kind::DrainBlocked, refused());
        }
        timeline.end_blocked(&node, at(73));
        let times: Vec<_> = timeline.into_entries().iter().map(|e| (e.at, e.until)).collect();
        assert_eq!(times, [(at(1), Some(at(1))), (at(60), Some(at(73)))]);
    }

    #[test]
    fn the_timeline_is_bounded() {
        let mut timeline = Timeline::default();
        for i in 0..ENTRIES + 10 {
            timeline.add(Duration::from_secs(10 * i as u64), Kind::Ready, event("p", "c"));
        }
        assert_eq!(timeline.omitted, 10);
        assert_eq!(timeline.into_entries().len(), ENTRIES);
    }
}
