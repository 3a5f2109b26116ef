//! Transfer of a field from a user to a controller: an autoscaler takes over the replicas of the documentation's Deployment.

use super::*;

/// `application/ssa/nginx-deployment.yaml`
pub const NGINX: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: nginx-deployment
  labels:
    app: nginx
spec:
  replicas: 3
  selector:
    matchLabels:
      app: nginx
  template:
    metadata:
      labels:
        app: nginx
    spec:
      containers:
      - name: nginx
        image: nginx:1.14.2
";

pub const NGINX_AS_D: &str = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {selector: {matchLabels: {app: nginx}}, \
    template: {metadata: {labels: {app: nginx}}, spec: {containers: [{name: nginx, image: 'nginx:1.14.2'}]}}}}";

/// `nginx-deployment-replicas-only.yaml`
const REPLICAS_ONLY: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: nginx-deployment
spec:
  replicas: 3
";

/// `application/ssa/nginx-deployment-no-replicas.yaml`
fn no_replicas() -> String {
    NGINX.replace("  replicas: 3\n", "")
}

fn path() -> String {
    format!("{DEPLOYMENTS}/nginx-deployment")
}

/// A Deployment that the user has applied, and the autoscaler that `kubectl autoscale` makes for it.
async fn autoscaled() -> Cluster {
    let c = Cluster::start(1).await;
    let o = applied(&c, &path(), "kubectl", NGINX).await;
    assert_eq!(owned(&o, "kubectl")["f:spec"]["f:replicas"], json!({}));
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "nginx-deployment"});
    let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}});
    let spec = json!({"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 10, "metrics": [cpu]});
    let hpas = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let hpa = json!({"metadata": {"name": "nginx-deployment"}, "spec": spec});
    written(&c, "POST", hpas, "application/json", &hpa).await;
    c
}

/// What the autoscaler's controller does: it updates the scale.
async fn scale(c: &Cluster, replicas: u32) -> Value {
    let scale = format!("{}/scale", path());
    let mut s = read(c, &scale).await;
    s["spec"]["replicas"] = replicas.into();
    written(c, "PUT", &format!("{scale}?fieldManager=kube-controller-manager"), "application/json", &s).await;
    read(c, &path()).await
}

/// The trap: who drops the field before the controller has written it has the default. Clauses: S08.too-early
#[tokio::test]
async fn dropping_the_field_too_early_means_one_replica() {
    let c = autoscaled().await;
    assert_eq!(applied(&c, &path(), "kubectl", &no_replicas()).await["spec"]["replicas"], 1);
}

/// The first way: the conflict tells when the field may go. Clauses: S08.wait-for-conflict
#[tokio::test]
async fn a_conflict_names_the_controller() {
    let c = autoscaled().await;
    applied(&c, &path(), "kubectl", NGINX).await;
    let o = scale(&c, 5).await;
    assert_eq!(owned(&o, "kube-controller-manager"), json!({"f:spec": {"f:replicas": {}}}));
    assert!(managers(&o).contains(&"kube-controller-manager Update apps/v1 scale".to_owned()), "{:?}", managers(&o));
    let a = apply(&c, &path(), "kubectl", NGINX).await;
    let with = "\"kube-controller-manager\" with subresource \"scale\" using apps/v1";
    assert_eq!(conflicts(&a), [conflict(".spec.replicas", with)]);
    let o = applied(&c, &path(), "kubectl", &no_replicas()).await;
    assert_eq!(o["spec"]["replicas"], 5);
    assert_eq!(owned(&o, "kubectl")["f:spec"].get("f:replicas"), None);
}

/// The second way: a manager of its own holds the field until the controller writes it, and is gone then.
/// Clauses: S08.handover-to-hpa
#[tokio::test]
async fn a_manager_for_the_time_between_hands_the_field_over() {
    let c = autoscaled().await;
    let o = applied(&c, &path(), "handover-to-hpa", REPLICAS_ONLY).await;
    assert_eq!(owned(&o, "handover-to-hpa"), json!({"f:spec": {"f:replicas": {}}}));
    let o = applied(&c, &path(), "kubectl", &no_replicas()).await;
    assert_eq!(o["spec"]["replicas"], 3, "the field is still held");
    assert_eq!(managers(&o), ["handover-to-hpa Apply apps/v1", "kubectl Apply apps/v1"]);
    let o = scale(&c, 5).await;
    assert_eq!((&o["spec"]["replicas"], owned(&o, "handover-to-hpa")), (&json!(5), Value::Null));
    assert_eq!(managers(&o), ["kube-controller-manager Update apps/v1 scale", "kubectl Apply apps/v1"]);
    assert_eq!(applied(&c, &path(), "kubectl", &no_replicas()).await["spec"]["replicas"], 5);
}

/// Where the controller was faster, the manager in between is refused, and there is nothing to do.
/// Clauses: S08.handover-conflict
#[tokio::test]
async fn a_handover_that_comes_too_late_is_a_conflict() {
    let c = autoscaled().await;
    let o = scale(&c, 5).await;
    let a = apply(&c, &path(), "handover-to-hpa", REPLICAS_ONLY).await;
    let with = "\"kube-controller-manager\" with subresource \"scale\" using apps/v1";
    assert_eq!(conflicts(&a), [conflict(".spec.replicas", with)]);
    assert_eq!(read(&c, &path()).await, o);
}
