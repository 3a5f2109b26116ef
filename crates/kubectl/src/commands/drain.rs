//! `kubectl drain`: a node takes no more pods and loses those it has, as far as their disruption budgets let them go.
//!
//! [`pods`] decides which pods go and which stand in the way; [`evict`] makes them go.

mod evict;
mod pods;

use super::cordon;
use crate::error::{Error, Result, text};
use crate::flags::{Dry, DryRunFlag, duration};
use crate::kube::Kube;
use crate::resource::Collection;
use crate::resource::scheme;
use crate::resource::select::{Selection, list};
use meta::Object;
use pods::{Choice, Rules};
use std::time::Duration;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// The nodes.
    pub nodes: Vec<String>,
    /// The nodes with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Also delete pods that no controller would make again.
    #[arg(long)]
    pub force: bool,
    /// Leave pods of daemon sets where they are.
    #[arg(long)]
    pub ignore_daemonsets: bool,
    /// Also delete pods with data in volumes of type emptyDir; the data is lost.
    #[arg(long)]
    pub delete_emptydir_data: bool,
    /// Seconds that each pod has to end; negative is the pod's own.
    #[arg(long, default_value = "-1", hide_default_value = true)]
    pub grace_period: i64,
    /// How long to try; 0 is for ever.
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = crate::flags::duration_text)]
    pub timeout: String,
    /// Only pods with these labels.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub pod_selector: String,
    /// Delete instead of evicting: disruption budgets are not asked.
    #[arg(long)]
    pub disable_eviction: bool,
    /// Do not wait for pods that were deleted more than so many seconds ago; 0 waits.
    #[arg(long, default_value = "0", hide_default_value = true)]
    pub skip_wait_for_delete_timeout: i64,
    /// How many objects a page of a list has.
    #[arg(long, default_value = "500", hide_default_value = true, allow_negative_numbers = true)]
    pub chunk_size: i64,
    #[command(flatten)]
    pub dry: DryRunFlag,
}

/// What the eviction of pods has to know.
struct Drain {
    rules: Rules,
    pod_selector: String,
    /// How many pods a page of the list has.
    page: i64,
    grace: Option<i64>,
    timeout: Option<Duration>,
    disable_eviction: bool,
    dry: Dry,
    /// How long a refused eviction waits for its next try.
    again: Duration,
    /// How often it is looked whether a pod is gone.
    look: Duration,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    k.scheme = Some(scheme::KUBECTL);
    super::cordon::one_way(k, "drain", &a.nodes, &a.selector)?;
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
        again: Duration::from_secs(5),
        look: Duration::from_secs(1),
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
            Ok(()) => k.say(format!("node/{} drained{}", i.name, d.dry.suffix())),
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

/// Several errors in one line, as Go's aggregate shows them.
fn aggregate(e: &Error) -> String {
    match e {
        Error::Many(_) => format!("[{e}]"),
        e => e.to_string(),
    }
}

impl Drain {
    async fn node(&self, k: &mut Kube, node: &str) -> Result {
        let choice = self.choose(k, node).await?;
        Error::collect(choice.errors())?;
        if let Some(w) = choice.warnings() {
            k.warn(format!("Warning: {w}"));
        }
        let going = choice.going();
        if self.dry == Dry::Client {
            for p in going {
                k.say(format!("evicting pod {}/{} (dry run)", p.namespace(), p.name()));
            }
            return Ok(());
        }
        let Err(e) = evict::all(self, k, going).await else { return Ok(()) };
        let again = self.choose(k, node).await?;
        let pending = again.going();
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

    /// Looks at every pod of the node, and at the daemon sets that own some of them.
    async fn choose(&self, k: &mut Kube, node: &str) -> Result<Choice> {
        let resource = k.resource("pods").await?;
        let fields = format!("spec.nodeName={node}");
        let s =
            Selection { labels: &self.pod_selector, fields: &fields, page: Some(self.page), ..Selection::default() };
        let all = list(k, &Collection { resource, namespace: String::new() }, &s).await?;
        let mut choice = Choice::default();
        for p in all.into_iter().filter_map(|i| i.object) {
            let owner = match pods::daemon_set(&p) {
                Some(name) => Some(daemon_set(k, &p, &name).await),
                None => None,
            };
            choice.add(self.rules.judge(&p, owner), p);
        }
        Ok(choice)
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

    fn gone() -> Value {
        json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "pods \"a\" not found"})
    }

    #[tokio::test]
    async fn what_stands_in_the_way_is_said() {
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
        for (line, want) in [
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
            assert_eq!(snapshot(&s, line, "").await, want, "{line}");
        }
    }

    #[tokio::test]
    async fn pods_are_evicted() {
        let a = pod("a", "ReplicaSet", json!({}));
        let evict = format!("POST {POD}/a/eviction");
        let s = server(json!([a])).on(&evict, 201, json!({})).on(&format!("GET {POD}/a"), 404, gone());
        assert_eq!(
            snapshot(&s, "drain n --grace-period=7", "").await,
            "node/n cordoned\nevicting pod default/a\npod/a evicted\nnode/n drained\n"
        );
        assert_eq!(s.body_of(&evict)["deleteOptions"], json!({"gracePeriodSeconds": 7}));
    }

    #[tokio::test]
    async fn what_takes_too_long_is_given_up() {
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
    async fn without_eviction_pods_are_deleted() {
        let a = pod("a", "ReplicaSet", json!({}));
        let s = server(json!([a])).on(&format!("DELETE {POD}/a"), 200, a).on(&format!("GET {POD}/a"), 404, gone());
        assert_eq!(
            snapshot(&s, "drain n --disable-eviction", "").await,
            "node/n cordoned\npod/a deleted\nnode/n drained\n"
        );
    }
}
