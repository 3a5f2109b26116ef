use crate::testing::{Server, snapshot};
use serde_json::{Value, json};

fn list(items: Value) -> Value {
    json!({"kind": "List", "apiVersion": "v1", "items": items})
}

fn forbidden(what: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": what})
}

fn pod(name: &str, spec: Value, status: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": name,
        "creationTimestamp": "2026-11-21T11:00:00Z", "labels": {"app": "web"}}, "spec": spec, "status": status})
}

fn waiting(cpu: &str) -> Value {
    let spec = json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]});
    let condition =
        json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"});
    pod("p", spec, json!({"phase": "Pending", "conditions": [condition]}))
}

fn node() -> Value {
    json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"}}})
}

const POD: &str = "GET /api/v1/namespaces/default/pods/p";

/// Clauses: G01.pending
#[tokio::test]
async fn computes_the_decision_where_the_server_has_none() {
    let s = Server::new().on(POD, 200, waiting("1500m")).on("GET /api/v1/nodes", 200, list(json!([node()])));
    let expect = "\
pod/p is pending: none of 1 node fits
  n:
    NodeResourcesFit: the pod requests 1500m cpu, 1 of 1 are free
  one change is enough:
    => fits n with 500m less cpu
  computed by this program from the objects of the API, with the default configuration of the scheduler
";
    assert_eq!(snapshot(&s, "why pod/p", "").await, expect);
    let document: Value = serde_json::from_str(&snapshot(&s, "why pod/p -o json", "").await).unwrap();
    assert_eq!(
        (&document["kind"], &document["state"], &document["healthy"]),
        (&json!("Explanation"), &json!("pending"), &json!(false))
    );
    assert_eq!(document["object"], json!({"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "p"}));
    assert_eq!(document["findings"][0]["reason"], "NodeRefused");
    let suggestion = &document["decision"]["explanation"]["suggestions"][0];
    assert_eq!(suggestion["change"], json!({"type": "lowerRequest", "resource": "cpu", "by": "500m"}));
    assert_eq!((&suggestion["nodes"], &suggestion["nodeCount"]), (&json!(["n"]), &json!(1)));
}

#[tokio::test]
async fn takes_the_decision_of_the_server() {
    let decision = json!({"kind": "Decision", "apiVersion": "kemudi/v1", "scheduler": "default-scheduler",
        "time": "2026-11-21T12:00:00Z",
        "queue": {"stage": "unschedulable", "attempts": 3, "secondsToRetry": 240, "refusedBy": ["NodeResourcesFit"]},
        "lastDecision": {"time": "2026-11-21T11:59:00Z", "message": "0/1"},
        "explanation": {"nodeCount": 1, "nodes": [{"node": "n", "shortfalls": [
            {"rule": "NodeResourcesFit", "what": "cpu", "message": "the pod requests 2 cpu, 1 of 1 are free"}]}]}});
    let s =
        Server::new().on(POD, 200, waiting("2")).on("GET /kemudi/v1/namespaces/default/pods/p/decision", 200, decision);
    let expect = "\
pod/p is pending: none of 1 node fits
  n:
    NodeResourcesFit: the pod requests 2 cpu, 1 of 1 are free
  decided by scheduler default-scheduler, tried 3 times; tried again when something changes that concerns NodeResourcesFit, or in 4m; last attempt 60s ago
";
    assert_eq!(snapshot(&s, "why pod/p", "").await, expect);
}

#[tokio::test]
async fn explains_the_rest_without_permissions() {
    let s = Server::new().on(POD, 200, waiting("2")).on("GET /api/v1/nodes", 403, forbidden("no"));
    let expect = "\
pod/p is pending
  the scheduler wrote: Unschedulable: 0/1 nodes
  the decision cannot be computed: you may not list the nodes and pods of the cluster
  (you may not read nodes: what depends on that is not explained)
";
    assert_eq!(snapshot(&s, "why pod/p", "").await, expect);
}

#[tokio::test]
async fn explains_schedulers_and_claims() {
    let mut other = waiting("1");
    other["spec"]["schedulerName"] = "mine".into();
    other["status"] = json!({"phase": "Pending"});
    let s = Server::new().on(POD, 200, other);
    let expect = "\
pod/p is pending: no scheduler takes it
  its schedulerName is mine; no scheduler of this name has acted on any pod
    => start a scheduler named mine
";
    assert_eq!(snapshot(&s, "why pod/p", "").await, expect);
    let mut claims = waiting("1");
    claims["spec"]["volumes"] = json!([{"name": "a", "persistentVolumeClaim": {"claimName": "gone"}}, {"name": "b", "persistentVolumeClaim": {"claimName": "lazy"}},
        {"name": "c", "persistentVolumeClaim": {"claimName": "classless"}}]);
    let claim = |name: &str, class: &str| {
        json!({"metadata": {"name": name, "namespace": "default"},
        "spec": {"storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Pending"}})
    };
    let class = json!({"metadata": {"name": "late"}, "provisioner": "csi.example", "volumeBindingMode": "WaitForFirstConsumer"});
    let at = |name: &str| format!("GET /api/v1/namespaces/default/persistentvolumeclaims/{name}");
    let s = Server::new()
        .on(POD, 200, claims)
        .on(&at("lazy"), 200, claim("lazy", "late"))
        .on(&at("classless"), 200, claim("classless", "missing"))
        .on("GET /apis/storage.k8s.io/v1/storageclasses/late", 200, class)
        .on("GET /api/v1/nodes", 200, list(json!([node()])));
    let text = snapshot(&s, "why pod/p", "").await;
    for line in [
        "  PersistentVolumeClaim gone does not exist\n",
        "  PersistentVolumeClaim lazy waits for a pod to be scheduled (StorageClass late: WaitForFirstConsumer)\n",
        "  PersistentVolumeClaim classless has the StorageClass missing, which does not exist\n    no volume of its class is available\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[tokio::test]
async fn a_scheduler_that_does_not_run_is_reported() {
    let mut new = waiting("1");
    new["status"] = json!({"phase": "Pending"});
    let lease = json!({"spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-11-21T11:50:00.000000Z"}});
    let s = Server::new().on(POD, 200, new).on("GET /api/v1/nodes", 200, list(json!([node()]))).on(
        "GET /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler",
        200,
        lease,
    );
    let text = snapshot(&s, "why pod/p", "").await;
    assert!(text.contains("the pod fits 1 of 1 nodes now: n\n"), "{text}");
    assert!(text.contains("the scheduler does not run: its lease was renewed 10m ago, by a\n"), "{text}");
}

/// Clauses: G01.waiting, G01.not-evictable
#[tokio::test]
async fn explains_pods_with_a_node() {
    let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i", "envFrom": [{"configMapRef": {"name": "settings"}}],
        "env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]});
    let status = json!({"phase": "Pending", "containerStatuses": [{"name": "c", "state": {"waiting": {
        "reason": "CreateContainerConfigError", "message": "configmap \"settings\" not found"}}}]});
    let ready = json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let s = Server::new()
        .on(POD, 200, pod("p", spec.clone(), status))
        .on("GET /api/v1/nodes/n", 200, ready.clone())
        .on("GET /api/v1/namespaces/default/secrets/s", 200, json!({"data": {"other": "c2VjcmV0"}}));
    let expect = "\
pod/p is waiting: it has a node, and its containers have not started
  container c cannot be started (CreateContainerConfigError): configmap \"settings\" not found
  ConfigMap settings does not exist (envFrom of container c)
  Secret s has no key k (variable K of container c)
";
    assert_eq!(snapshot(&s, "why pod/p", "").await, expect);
    let running = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "c", "ready": true, "state": {"running": {}}}]});
    let healthy = pod("p", spec, running);
    let s = Server::new().on(POD, 200, healthy.clone()).on("GET /api/v1/nodes/n", 200, ready);
    assert_eq!(snapshot(&s, "why pod/p", "").await, "pod/p is healthy\n");
    let budget = json!({"metadata": {"name": "b", "namespace": "default"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
    let s = s.on("GET /apis/policy/v1/namespaces/default/poddisruptionbudgets", 200, list(json!([budget]))).on(
        "GET /api/v1/namespaces/default/pods",
        200,
        list(json!([healthy])),
    );
    let text = snapshot(&s, "why pod/p", "").await;
    assert!(text.starts_with("pod/p is healthy, and cannot be evicted now\n  PodDisruptionBudget b allows no eviction: 1 of 1 pods are healthy"), "{text}");
    let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [{"name": "c",
        "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]});
    s.replace(POD, 200, pod("p", json!({"nodeName": "n", "containers": [{"name": "c"}]}), status));
    let text = snapshot(&s, "why pod/p", "").await;
    let expect = "\
pod/p is restarting
  container c has restarted 2 times
  PodDisruptionBudget b has been changed, and the disruption controller has not counted its pods since
";
    s.replace(
        "GET /apis/policy/v1/namespaces/default/poddisruptionbudgets",
        200,
        list(json!([{"metadata": {"name": "b", "namespace": "default", "generation": 1},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}}])),
    );
    assert!(!text.contains("PodDisruptionBudget"), "enough other pods are healthy: {text}");
    assert_eq!(snapshot(&s, "why pod/p", "").await, expect);
}

/// Clauses: G01.rollout
#[tokio::test]
async fn explains_a_rollout_down_to_its_pods() {
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "uid": "d", "generation": 2},
        "spec": {"replicas": 2, "progressDeadlineSeconds": 60, "template": {"spec": {"containers": [{"image": "nowhere/i:2"}]}}},
        "status": {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 1, "availableReplicas": 2, "conditions": [
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "lastTransitionTime": "2026-11-21T11:55:00Z"}]}});
    let set = |name: &str, revision: &str, replicas: i64, available: i64| {
        json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": {"deployment.kubernetes.io/revision": revision},
            "ownerReferences": [{"uid": "d", "controller": true}]},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"image": format!("nowhere/i:{revision}")}]}}},
        "status": {"replicas": replicas, "availableReplicas": available}})
    };
    let mut bad = pod(
        "web-2-x",
        json!({"nodeName": "n", "containers": [{"name": "c", "image": "nowhere/i:2"}]}),
        json!({"phase": "Pending",
        "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}}]}),
    );
    bad["metadata"]["ownerReferences"] = json!([{"uid": "web-2", "controller": true}]);
    let good = |name: &str| {
        let mut good = pod(
            name,
            json!({"nodeName": "n"}),
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
        );
        good["metadata"]["ownerReferences"] = json!([{"uid": "web-1", "controller": true}]);
        good
    };
    let ready = json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let s = Server::new()
        .on("GET /apis/apps/v1/namespaces/default/deployments/web", 200, deployment)
        .on(
            "GET /apis/apps/v1/namespaces/default/replicasets",
            200,
            list(json!([set("web-1", "1", 2, 2), set("web-2", "2", 1, 0)])),
        )
        .on("GET /api/v1/namespaces/default/pods", 200, list(json!([bad, good("a"), good("b")])))
        .on("GET /api/v1/nodes/n", 200, ready);
    let expect = "\
deployment.apps/web is stuck: 1 of 2 replicas are updated, 2 available
  no replica became available within its progress deadline of 60s, which ended 5m ago
  the new ReplicaSet web-2: 0 of 1 replicas are available
    pod web-2-x is waiting: it has a node, and its containers have not started
      container c: the image nowhere/i:2 cannot be used (ErrImagePull): no such host
  the old ReplicaSet web-1 keeps 2 replicas until new ones are available
";
    assert_eq!(snapshot(&s, "why deploy/web", "").await, expect);
}

#[tokio::test]
async fn reports_healthy_objects_and_errors() {
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": 2}, "status": {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}});
    let widget =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "default"}});
    let s = Server::new().on("GET /apis/apps/v1/namespaces/default/deployments/web", 200, deployment).on(
        "GET /apis/example.com/v1/namespaces/default/widgets/w",
        200,
        widget,
    );
    let expect = "\
deployment.apps/web is healthy: 2 of 2 replicas are updated and available
widget.example.com/w exists, and reports no conditions
";
    assert_eq!(snapshot(&s, "why deploy/web widget/w", "").await, expect);
    let both: Value = serde_json::from_str(&snapshot(&s, "why deploy/web widget/w -o json", "").await).unwrap();
    assert_eq!((&both["kind"], both["items"].as_array().map(Vec::len)), (&json!("List"), Some(2)));
    let missing = snapshot(&s, "why pod/gone", "").await;
    assert_eq!(missing, "! Error from server (NotFound): pods \"gone\" not found\nexit 1\n");
    assert!(snapshot(&s, "why", "").await.contains("exit 1"));
    assert!(snapshot(&s, "why pod/p -o wide", "").await.contains("allowed formats are: json,yaml"));
    // An object without status and specification.
    let s = Server::new().on(POD, 200, json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}));
    assert!(snapshot(&s, "why pod/p", "").await.starts_with("pod/p is pending: the cluster has no nodes\n"));
}

/// Suggested names of schedulers are those that run, by the server or by the pods that they have acted on.
#[tokio::test]
async fn suggests_schedulers_that_run() {
    let mut other = waiting("1");
    other["spec"]["schedulerName"] = "mine".into();
    other["status"] = json!({"phase": "Pending"});
    let mut absent = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
        "details": {"group": "kemudi", "kind": "decisions", "causes": [{"reason": "Decider", "message": "batch"}]}});
    let at = "GET /kemudi/v1/namespaces/default/pods/p/decision";
    let s = Server::new().on(POD, 200, other.clone()).on(at, 404, absent.clone());
    let text = snapshot(&s, "why pod/p", "").await;
    let expect = "    => create the pod with a scheduler that runs (batch), or start a scheduler named mine\n";
    assert!(text.contains(expect), "{text}");
    // The default scheduler need not run, either.
    let mut default = other.clone();
    default["spec"]["schedulerName"] = "default-scheduler".into();
    let s = Server::new().on(POD, 200, default).on(at, 404, absent.clone());
    let text = snapshot(&s, "why pod/p", "").await;
    let expect =
        "    => create the pod with a scheduler that runs (batch), or start a scheduler named default-scheduler\n";
    assert!(text.contains(expect), "{text}");
    absent["details"] = json!({});
    let mut placed = waiting("1");
    placed["spec"]["schedulerName"] = "default-scheduler".into();
    let pods = list(json!([other, placed]));
    let s = Server::new().on(POD, 200, other).on(at, 404, absent).on("GET /api/v1/pods", 200, pods);
    let text = snapshot(&s, "why pod/p", "").await;
    assert!(
        text.contains("=> create the pod with a scheduler that has acted on pods (default-scheduler), or"),
        "{text}"
    );
}

#[tokio::test]
async fn shows_why_a_load_balancer_is_missing() {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "default", "uid": "u"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
    let event = json!({"type": "Warning", "reason": "SyncLoadBalancerFailed", "message": "no address is free",
        "lastTimestamp": "2026-11-21T11:59:00Z"});
    let events = "GET /api/v1/namespaces/default/events?fieldSelector=involvedObject.uid%3Du";
    let s = Server::new().on("GET /api/v1/namespaces/default/services/s", 200, service).on(
        events,
        200,
        list(json!([event])),
    );
    let text = snapshot(&s, "why service/s", "").await;
    assert!(text.contains("SyncLoadBalancerFailed: no address is free"), "{text}");
}

#[tokio::test]
async fn explains_what_holds_a_gated_pod_back_later() {
    let mut gated = waiting("1500m");
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/a"}]);
    let s = Server::new().on(POD, 200, gated).on("GET /api/v1/nodes", 200, list(json!([node()])));
    let expect = "\
pod/p is pending: scheduling gates hold it back
  the scheduler does not take the pod before its scheduling gate is gone: example.com/a
  without its gates: none of 1 node fits
    n:
      NodeResourcesFit: the pod requests 1500m cpu, 1 of 1 are free
    one change is enough:
      => fits n with 500m less cpu
";
    assert_eq!(snapshot(&s, "why pod/p", "").await, expect);
}

#[tokio::test]
async fn shows_the_nodes_that_extenders_refused() {
    let decision = json!({"kind": "Decision", "apiVersion": "kemudi/v1", "scheduler": "default-scheduler",
        "time": "2026-11-21T12:00:00Z", "queue": {"stage": "active", "attempts": 1, "refusedBy": []},
        "lastDecision": {"time": "2026-11-21T11:59:00Z", "message": "0/1", "extenders": [
            {"extender": "http://e", "message": "too hot", "nodes": ["n"], "nodeCount": 1}]},
        "explanation": {"nodeCount": 1, "fittingCount": 1, "fitting": ["n"]}});
    let at = "GET /kemudi/v1/namespaces/default/pods/p/decision";
    let s = Server::new().on(POD, 200, waiting("1")).on(at, 200, decision);
    let text = snapshot(&s, "why pod/p", "").await;
    assert!(text.contains("  the extender http://e refused 1 node (n): too hot\n"), "{text}");
}

#[tokio::test]
async fn prints_an_empty_list_if_no_object_matches() {
    let s = Server::new().on(
        "GET /api/v1/namespaces/default/pods?labelSelector=app%3Dnone&limit=500",
        200,
        list(json!([])),
    );
    let (code, out, err) = crate::testing::run_with(&s, &["why", "pods", "-l", "app=none", "-o", "json"], "").await;
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document, json!({"apiVersion": "v1", "kind": "List", "items": []}));
    assert_eq!((code, err.as_str()), (0, ""));
}
