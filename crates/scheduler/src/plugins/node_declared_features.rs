//! Filters nodes that do not declare features that the pod needs.

use crate::cluster::{Cluster, Node};
use crate::framework::{NodeFilter, Plugin, Point, PreFilter, Read, Refusal};
use crate::pod::Pod;

const NAME: &str = "NodeDeclaredFeatures";

pub struct NodeDeclaredFeatures;

struct Check<'a>(&'a Pod);

impl Plugin for NodeDeclaredFeatures {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter]
    }

    fn pre_filter<'a>(&'a self, pod: &'a Pod, _: &'a Cluster) -> PreFilter<'a> {
        if pod.view.features.is_empty() { Ok(None) } else { Ok(Some(Box::new(Check(pod)))) }
    }

    fn reads(&self) -> &'static [Read] {
        &[Read::Nodes, Read::NodeFeatures]
    }
}

impl NodeFilter for Check<'_> {
    fn check(&self, node: &Node) -> Result<(), Refusal> {
        let Some(entry) = &node.entry else { return Ok(()) };
        let declares = |feature: &&str| entry.view.features.iter().any(|f| **f == **feature);
        if self.0.view.features.iter().all(declares) {
            return Ok(());
        }
        Err(Refusal::unresolvable(NAME, "node(s) didn't match Pod's required features"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;

    #[test]
    fn pods_run_where_their_features_are() {
        let mut cluster = Cluster::default();
        let mut node = |name: &str, features: Value| {
            let node = json!({"metadata": {"name": name}, "status": {"declaredFeatures": features}});
            cluster.set_node(Arc::new(client::Entry::new(serde_json::to_vec(&node).unwrap().into()).unwrap()));
        };
        node("bare", json!([]));
        node("able", json!(["Other", "RestartAllContainersOnContainerExits"]));
        let fits = |spec: Value| {
            let pod = Pod::new(serde_json::to_vec(&json!({"metadata": {"name": "p"}, "spec": spec})).unwrap().into())
                .unwrap();
            let filter = NodeDeclaredFeatures.pre_filter(&pod, &cluster).unwrap();
            let fits = |node: &str| filter.as_ref().is_none_or(|f| f.check(cluster.node(node).unwrap()).is_ok());
            (fits("bare"), fits("able"))
        };
        let rules = |action: &str| json!([{"name": "c", "restartPolicyRules": [{"action": action}]}]);
        assert_eq!(fits(json!({"containers": rules("Restart")})), (true, true));
        assert_eq!(fits(json!({"containers": rules("RestartAllContainers")})), (false, true));
        assert_eq!(fits(json!({"initContainers": rules("RestartAllContainers")})), (false, true));
        assert_eq!(fits(json!({"hostNetwork": true, "hostUsers": true})), (true, true));
        assert_eq!(fits(json!({"hostNetwork": true, "hostUsers": false})), (false, false));
    }
}
