//! Decides which pods of a node to evict (`k8s.io/kubectl/pkg/drain/filters.go`). The state of the server is passed in.

use crate::error::Error;
use jiff::Timestamp;
use meta::{Object, Value};
use std::collections::BTreeMap;

const MIRROR: &str = "kubernetes.io/config.mirror";

/// The flags that decide about pods.
pub struct Rules {
    pub force: bool,
    pub ignore_daemonsets: bool,
    pub delete_emptydir_data: bool,
    /// Pods that were deleted more seconds ago are not waited for; 0 waits for all.
    pub skip_deleted: i64,
    pub now: Timestamp,
}

/// The decision about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Evict,
    EvictWithWarning(String),
    Skip,
    SkipWithWarning(String),
    Refused(String),
}

/// The pods of a node with the decision about each.
#[derive(Debug, Default)]
pub struct Decisions(Vec<(Decision, Object)>);

/// Returns the daemon set that owns a pod.
pub fn daemon_set(pod: &Object) -> Option<String> {
    pod.controller_of().filter(|o| o.kind == "DaemonSet" && !finished(pod)).map(|o| o.name.to_owned())
}

fn finished(pod: &Object) -> bool {
    matches!(pod.str_at(&["status", "phase"]), Some("Succeeded" | "Failed"))
}

impl Rules {
    /// Whether the pod was deleted too long ago to be waited for.
    pub fn skips(&self, pod: &Object, now: Timestamp) -> bool {
        let deleted = pod.deletion_timestamp().and_then(|t| t.parse::<Timestamp>().ok());
        self.skip_deleted > 0 && deleted.is_some_and(|t| now.as_second() - t.as_second() > self.skip_deleted)
    }

    /// Decides about a pod. `owner` is the lookup of its daemon set, if it has one.
    pub fn decide(&self, pod: &Object, owner: Option<Result<(), client::Error>>) -> Decision {
        if self.skips(pod, self.now) {
            return Decision::Skip;
        }
        match owner {
            // Its daemon set is missing, so nothing would recreate the pod: that requires --force. Otherwise it is treated
            // like any pod.
            Some(Err(e)) if e.is_not_found() && self.force => {}
            Some(Err(e)) => return Decision::Refused(e.to_string()),
            Some(Ok(())) if self.ignore_daemonsets => {
                return Decision::SkipWithWarning("ignoring DaemonSet-managed Pods".into());
            }
            Some(Ok(())) => {
                return Decision::Refused("DaemonSet-managed Pods (use --ignore-daemonsets to ignore)".into());
            }
            None => {}
        }
        if pod.annotation(MIRROR).is_some() {
            return Decision::Skip;
        }
        if finished(pod) {
            return Decision::Evict;
        }
        let volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array);
        if volumes.into_iter().flatten().any(|v| !v["emptyDir"].is_null()) && !self.delete_emptydir_data {
            return Decision::Refused("Pods with local storage (use --delete-emptydir-data to override)".into());
        }
        match pod.controller_of() {
            Some(_) => Decision::Evict,
            None if self.force => Decision::EvictWithWarning("deleting Pods that declare no controller".into()),
            None => Decision::Refused("Pods that declare no controller (use --force to override)".into()),
        }
    }
}

impl Decisions {
    /// Adds the decision about a pod.
    pub fn add(&mut self, decision: Decision, pod: Object) {
        self.0.push((decision, pod));
    }

    /// Returns the pods to evict.
    pub fn to_evict(&self) -> Vec<Object> {
        let is_evicted = |v: &Decision| matches!(v, Decision::Evict | Decision::EvictWithWarning(_));
        self.0.iter().filter(|(v, _)| is_evicted(v)).map(|(_, p)| p.clone()).collect()
    }

    /// Groups the pods by message.
    fn group_messages<'a>(&'a self, about: impl Fn(&'a Decision) -> Option<&'a String>) -> BTreeMap<&'a str, String> {
        let mut all: BTreeMap<&str, String> = BTreeMap::new();
        for (v, p) in &self.0 {
            if let Some(m) = about(v) {
                let pods = all.entry(m).or_default();
                pods.push_str(if pods.is_empty() { "" } else { ", " });
                pods.push_str(&format!("{}/{}", p.namespace(), p.name()));
            }
        }
        all
    }

    /// Returns the warnings about pods, in one line.
    pub fn warnings(&self) -> Option<String> {
        let all = self.group_messages(|v| match v {
            Decision::EvictWithWarning(m) | Decision::SkipWithWarning(m) => Some(m),
            _ => None,
        });
        let all: Vec<String> = all.into_iter().map(|(m, pods)| format!("{m}: {pods}")).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Returns the errors about pods that prevent the drain.
    pub fn errors(&self) -> Vec<Error> {
        let all = self.group_messages(|v| match v {
            Decision::Refused(m) => Some(m),
            _ => None,
        });
        all.into_iter().map(|(m, pods)| Error::Text(format!("cannot delete {m}: {pods}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn decides_by_kind_of_pod() {
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let rules =
            |force: bool| Rules { force, ignore_daemonsets: false, delete_emptydir_data: false, skip_deleted: 10, now };
        let missing = || -> Option<Result<(), client::Error>> {
            Some(Err(meta::Status::new(404, meta::Reason::NotFound, "daemonsets \"d\" not found").into()))
        };
        let owned = json!([{"kind": "DaemonSet", "name": "d", "controller": true}]);
        for (pod, owner, force, expected) in [
            (json!({"status": {"phase": "Failed"}}), None, false, Decision::Evict),
            (json!({"metadata": {"annotations": {MIRROR: "x"}}}), None, true, Decision::Skip),
            (json!({"metadata": {"deletionTimestamp": "2026-11-21T11:59:00Z"}}), None, true, Decision::Skip),
            (json!({"metadata": {"ownerReferences": owned}}), missing(), true, Decision::Evict),
            (
                json!({"metadata": {"ownerReferences": owned}}),
                missing(),
                false,
                Decision::Refused("daemonsets \"d\" not found".into()),
            ),
            (
                json!({"metadata": {"deletionTimestamp": "2026-11-21T11:59:55Z"}}),
                None,
                true,
                Decision::EvictWithWarning("deleting Pods that declare no controller".into()),
            ),
        ] {
            let o = Object::from_value(pod).unwrap();
            assert_eq!(rules(force).decide(&o, owner), expected, "{o:?}");
        }
    }
}
