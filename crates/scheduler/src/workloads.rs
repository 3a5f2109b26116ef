//! Selectors of the services and workloads that pods belong to, for the default topology spread constraints.

use crate::pod::Pod;
use client::informer::Key;
use meta::LabelSelector;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// The `spec.selector` of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Raw")]
pub struct Selecting(Option<Arc<LabelSelector>>);

#[derive(Deserialize, Default)]
#[serde(default)]
struct Raw {
    spec: RawSpec,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawSpec {
    selector: Value,
}

impl From<Raw> for Selecting {
    /// Reads a map of labels (services, replication controllers) or a label selector.
    fn from(raw: Raw) -> Self {
        let Some(fields) = raw.spec.selector.as_object() else { return Self(None) };
        let is_selector =
            fields.get("matchLabels").is_some_and(Value::is_object) || fields.contains_key("matchExpressions");
        let selector = if is_selector {
            LabelSelector::from_value(Some(&raw.spec.selector)).ok()
        } else {
            let pairs = fields.iter().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()));
            Some(LabelSelector::from_map(pairs))
        };
        Self(selector.filter(|s| !s.is_everything()).map(Arc::new))
    }
}

/// Kinds whose selectors count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Service,
    ReplicationController,
    ReplicaSet,
    StatefulSet,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::ReplicationController => "ReplicationController",
            Self::ReplicaSet => "ReplicaSet",
            Self::StatefulSet => "StatefulSet",
        }
    }
}

/// The selectors of all services and workloads.
#[derive(Clone, Default)]
pub struct Workloads {
    services: HashMap<Arc<str>, HashMap<Key, Arc<LabelSelector>>>,
    owners: HashMap<(Kind, Key), Arc<LabelSelector>>,
}

impl Workloads {
    pub fn set(&mut self, kind: Kind, key: &Key, selecting: Option<&Selecting>) {
        let selector = selecting.and_then(|s| s.0.clone());
        match (kind, selector) {
            (Kind::Service, Some(selector)) => {
                self.services.entry(key.namespace.clone()).or_default().insert(key.clone(), selector);
            }
            (Kind::Service, None) => {
                if let Some(services) = self.services.get_mut(&key.namespace) {
                    services.remove(key);
                }
            }
            (kind, Some(selector)) => drop(self.owners.insert((kind, key.clone()), selector)),
            (kind, None) => drop(self.owners.remove(&(kind, key.clone()))),
        }
    }

    /// The requirements of all services that select the pod, and of its controller. None if there is none.
    pub fn selector_for(&self, pod: &Pod) -> Option<LabelSelector> {
        let mut all = LabelSelector::everything();
        let services = self.services.get(&pod.meta.namespace).into_iter().flat_map(|s| s.values());
        for selector in services.filter(|s| s.matches(|k| pod.meta.label(k))) {
            all.requirements.extend_from_slice(&selector.requirements);
        }
        if let Some(owner) = pod.meta.controller() {
            let kinds = [Kind::ReplicationController, Kind::ReplicaSet, Kind::StatefulSet];
            let kind = kinds.into_iter().find(|k| *k.name() == *owner.kind);
            let key = Key::new(pod.meta.namespace.clone(), owner.name.clone());
            if let Some(selector) = kind.and_then(|kind| self.owners.get(&(kind, key))) {
                all.requirements.extend_from_slice(&selector.requirements);
            }
        }
        (!all.is_everything()).then_some(all)
    }
}
