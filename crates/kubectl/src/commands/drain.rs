//! `kubectl drain`: cordons a node and evicts its pods, within their disruption budgets.
//!
//! [`pods`] decides which pods to evict and which prevent the drain; [`evict`] evicts them.

mod evict;
mod pods;

use super::cordon;
use crate::error::{Error, Result, text};
use crate::flags::{DryRunFlag, DryRunStrategy, duration};
use crate::kube::Kube;
use crate::resource::Collection;
use crate::resource::scheme;
use crate::resource::select::{Selection, list};
use meta::Object;
use pods::{Decisions, Rules};
use std::time::Duration;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Node names.
    pub nodes: Vec<String>,
    /// Label selector for nodes.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Also delete pods without a controller; nothing recreates them.
    #[arg(long)]
    pub force: bool,
    /// Ignore pods of daemon sets.
    #[arg(long)]
    pub ignore_daemonsets: bool,
    /// Also delete pods with emptyDir volumes; their data is lost.
    #[arg(long)]
    pub delete_emptydir_data: bool,
    /// Grace period of each pod in seconds; negative is the pod's own.
    #[arg(long, default_value = "-1", hide_default_value = true)]
    pub grace_period: i64,
    /// Time limit; 0 is no limit.
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub timeout: String,
    /// Only pods with these labels.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub pod_selector: String,
    /// Delete pods instead of evicting them, without regard to disruption budgets.
    #[arg(long)]
    pub disable_eviction: bool,
    /// Do not wait for pods that were deleted more than this many seconds ago; 0 waits for all.
    #[arg(long, default_value = "0", hide_default_value = true)]
    pub skip_wait_for_delete_timeout: i64,
    /// Page size of lists.
    #[arg(long, default_value = "500", hide_default_value = true, allow_negative_numbers = true)]
    pub chunk_size: i64,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

/// The options of an eviction.
struct Drain {
    rules: Rules,
    pod_selector: String,
    /// The page size of the list of pods.
    page: i64,
    grace: Option<i64>,
    timeout: Option<Duration>,
    disable_eviction: bool,
    dry: DryRunStrategy,
    /// The pause before a refused eviction is tried again.
    retry_pause: Duration,
    /// The pause between two checks whether a pod is deleted.
    poll_pause: Duration,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    k.scheme = Some(scheme::KUBECTL);
    super::cordon::check_selection(k, "drain", &a.nodes, &a.selector)?;
    if meta::LabelSelector::parse(&a.pod_selector).is_err() {
        return text("--pod-selector=<pod_selector> must be a valid label selector");
    }
    let d = Drain {
        rules: Rules {
            force: a.force,
            ignore_daemonsets: a.ignore_daemonsets,
            delete_emptydir_data: a.delete_emptydir_data,
            skip_deleted: a.skip_wait_for_delete_timeout,
            now: k.now(),
        },
        pod_selector: a.pod_selector.clone(),
        page: a.chunk_size,
        grace: (a.grace_period >= 0).then_some(a.grace_period),
        timeout: duration("timeout", &a.timeout)?.filter(|t| !t.is_zero()),
        disable_eviction: a.disable_eviction,
        dry: a.dry.strategy()?,
        retry_pause: Duration::from_secs(5),
        poll_pause: Duration::from_secs(1),
    };
    let s = Selection { labels: &a.selector, page: Some(a.chunk_size), ..Selection::default() };
    let nodes = cordon::nodes(k, &a.nodes, &s).await?;
    for i in &nodes {
        if let Err(e) = cordon::cordon_node(k, i, true, d.dry).await {
            k.warn(format!("error: {e}"));
        }
    }
    let (mut failed, mut left) = (Vec::new(), Vec::new());
    for i in nodes {
        match d.node(k, &i.name).await {
            Ok(()) => k.println(format!("node/{} drained{}", i.name, d.dry.suffix())),
            Err(e) => {
                k.warn(format!(
                    "error: unable to drain node {:?} due to error: {}, continuing command...",
                    i.name,
                    aggregate(&e)
                ));
                failed.push(e);
                left.push(i.name);
            }
        }
    }
    if !left.is_empty() {
        k.warn("There are pending nodes to be drained:");
        left.iter().for_each(|n| k.warn(format!(" {n}")));
    }
    if failed.is_empty() { Ok(()) } else { Err(Error::Many(failed)) }
}

/// Formats several errors in one line, as Go's aggregate does.
fn aggregate(e: &Error) -> String {
    match e {
        Error::Many(_) => format!("[{e}]"),
        e => e.to_string(),
    }
}

impl Drain {
    async fn node(&self, k: &mut Kube, node: &str) -> Result {
        let decisions = self.decide_pods(k, node).await?;
        Error::collect(decisions.errors())?;
        if let Some(w) = decisions.warnings() {
            k.warn(format!("Warning: {w}"));
        }
        let to_evict = decisions.to_evict();
        if self.dry == DryRunStrategy::Client {
            for p in to_evict {
                k.println(format!("evicting pod {}/{} (dry run)", p.namespace(), p.name()));
            }
            return Ok(());
        }
        let Err(e) = evict::evict_all(self, k, to_evict).await else { return Ok(()) };
        let again = self.decide_pods(k, node).await?;
        let pending = again.to_evict();
        if !pending.is_empty() {
            k.warn(format!("There are pending pods in node {node:?} when an error occurred: {}", aggregate(&e)));
            pending.iter().for_each(|p| k.warn(format!("pod/{}", p.name())));
        }
        if let Err(more) = Error::collect(again.errors()) {
            k.warn(format!(
                "Following errors occurred while getting the list of pods to delete:\n{}",
                aggregate(&more)
            ));
        }
        Err(e)
    }

    /// Decides about every pod of the node; reads the daemon sets that own some of them.
    async fn decide_pods(&self, k: &mut Kube, node: &str) -> Result<Decisions> {
        let resource = k.resource("pods").await?;
        let fields = format!("spec.nodeName={node}");
        let s =
            Selection { labels: &self.pod_selector, fields: &fields, page: Some(self.page), ..Selection::default() };
        let all = list(k, &Collection { resource, namespace: String::new() }, &s).await?;
        let mut decisions = Decisions::default();
        for p in all.into_iter().filter_map(|i| i.object) {
            let owner = match pods::daemon_set(&p) {
                Some(name) => Some(daemon_set(k, &p, &name).await),
                None => None,
            };
            decisions.add(self.rules.decide(&p, owner), p);
        }
        Ok(decisions)
    }
}

async fn daemon_set(k: &mut Kube, pod: &Object, name: &str) -> std::result::Result<(), client::Error> {
    let client = k.client().await.map_err(|e| match e {
        Error::Client(e) => e,
        other => client::Error::Credentials(other.to_string()),
    })?;
    let path = format!("/apis/apps/v1/namespaces/{}/daemonsets/{name}", pod.namespace());
    client.get::<meta::Value>(&path).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use meta::Value;
    use serde_json::json;

    const PODS: &str = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn&limit=500";
    const POD: &str = "/api/v1/namespaces/default/pods";

    fn node() -> Value {
        json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}})
    }

    fn pod(name: &str, owner: &str, spec: Value) -> Value {
        let mut p = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec, "status": {"phase": "Running"}});
        if !owner.is_empty() {
            p["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u", "controller": true}]);
        }
        p
    }

    fn server(pods: Value) -> Server {
        Server::new()
            .on("GET /api/v1/nodes/n", 200, node())
            .on("PATCH /api/v1/nodes/n", 200, node())
            .on(PODS, 200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}))
            .on("GET /apis/apps/v1/namespaces/default/daemonsets/o", 200, json!({}))
    }

    fn not_found() -> Value {
        json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "pods \"a\" not found"})
    }

    #[tokio::test]
    async fn reports_pods_that_prevent_the_drain() {
        let volumes = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
        let all = json!([
            pod("d", "DaemonSet", json!({})),
            pod("bare", "", json!({})),
            pod("r", "ReplicaSet", volumes),
            pod("fine", "ReplicaSet", json!({})),
        ]);
        let s = server(all);
        let errors = "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore): default/d, cannot delete Pods that declare no controller (use --force to override): default/bare, cannot delete Pods with local storage (use --delete-emptydir-data to override): default/r";
        let lines = errors.replace(", cannot", "\n! cannot");
        assert_eq!(
            snapshot(&s, "drain n", "").await,
            format!(
                "node/n cordoned\n! error: unable to drain node \"n\" due to error: [{errors}], continuing command...\n! There are pending nodes to be drained:\n!  n\n! {lines}\nexit 1\n"
            )
        );
        assert_eq!(
            snapshot(&s, "drain n --force --ignore-daemonsets --delete-emptydir-data --dry-run=client", "").await,
            "node/n cordoned (dry run)\nevicting pod default/bare (dry run)\nevicting pod default/r (dry run)\nevicting pod default/fine (dry run)\nnode/n drained (dry run)\n! Warning: deleting Pods that declare no controller: default/bare; ignoring DaemonSet-managed Pods: default/d\n"
        );
        for (line, expected) in [
            ("drain", "! error: USAGE: drain NODE [flags]\n! See 'kubectl drain -h' for help and examples\nexit 1\n"),
            (
                "drain n -l a=b",
                "! error: cannot specify both a node name and a --selector option\n! See 'kubectl drain -h' for help and examples\nexit 1\n",
            ),
            (
                "drain n --pod-selector=a==b==c",
                "! error: --pod-selector=<pod_selector> must be a valid label selector\nexit 1\n",
            ),
            ("drain m", "! Error from server (NotFound): nodes \"m\" not found\nexit 1\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }

    #[tokio::test]
    async fn evicts_pods() {
        let a = pod("a", "ReplicaSet", json!({}));
        let evict = format!("POST {POD}/a/eviction");
        let s = server(json!([a])).on(&evict, 201, json!({})).on(&format!("GET {POD}/a"), 404, not_found());
        assert_eq!(
            snapshot(&s, "drain n --grace-period=7", "").await,
            "node/n cordoned\nevicting pod default/a\npod/a evicted\nnode/n drained\n"
        );
        assert_eq!(s.body_of(&evict)["deleteOptions"], json!({"gracePeriodSeconds": 7}));
    }

    #[tokio::test]
    async fn stops_at_the_time_limit() {
        let a = pod("a", "ReplicaSet", json!({}));
        let s = server(json!([a])).on(&format!("DELETE {POD}/a"), 200, a.clone()).on(
            &format!("GET {POD}/a"),
            200,
            a.clone(),
        );
        let why = "global timeout reached: 1ns";
        assert_eq!(
            snapshot(&s, "drain n --timeout=1ns --disable-eviction", "").await,
            format!(
                "node/n cordoned\npod/a deletion failed\n! There are pending pods in node \"n\" when an error occurred: {why}\n! pod/a\n! error: unable to drain node \"n\" due to error: {why}, continuing command...\n! There are pending nodes to be drained:\n!  n\n! {why}\nexit 1\n"
            )
        );
    }

    #[tokio::test]
    async fn deletes_pods_without_eviction() {
        let a = pod("a", "ReplicaSet", json!({}));
        let s = server(json!([a])).on(&format!("DELETE {POD}/a"), 200, a).on(&format!("GET {POD}/a"), 404, not_found());
        assert_eq!(
            snapshot(&s, "drain n --disable-eviction", "").await,
            "node/n cordoned\npod/a deleted\nnode/n drained\n"
        );
    }
}
