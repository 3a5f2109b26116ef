//! `kubectl why` on a running cluster.

use crate::runner::Case;
use crate::story::{IMAGE, Story};
use serde_json::{Value, json};

pub const TESTS: &[Case] = &[
    ("why::pending", pending),
    ("why::pending_for_a_user_with_few_permissions", pending_for_a_user_with_few_permissions),
    ("why::waiting", waiting),
    ("why::restarting", restarting),
    ("why::not_ready", not_ready),
    ("why::not_evictable", not_evictable),
    ("why::rollout", rollout),
    ("why::deletion", deletion),
    ("why::traffic", traffic),
    ("why::storage_and_schedules", storage_and_schedules),
    ("why::extensions", extensions),
];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// Waits until an explanation has all of these parts, and returns it.
#[track_caller]
fn explained(s: &Story, args: &[&str], parts: &[&str]) -> String {
    s.eventually(&format!("{args:?} explains {parts:?}"), || {
        let text = s.ok(&[&["why"], args].concat());
        parts.iter().all(|part| text.contains(part)).then_some(text)
    })
}

fn document(s: &Story, what: &str) -> Value {
    serde_json::from_str(&s.ok(&["why", what, "-o", "json"])).unwrap()
}

/// Clauses: G01.pending
fn pending(s: &Story) {
    let requests = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
    s.shell_pod("large", FOREVER, json!({}), requests("900"));
    let parts =
        ["pod/large is pending: none of 1 node fits\n", "NodeResourcesFit: the pod requests 900 cpu, ", " less cpu\n"];
    let text = explained(s, &["pod/large"], &parts);
    // Other tests that end beside this one make the scheduler try again.
    let tried = text.split_once("decided by scheduler default-scheduler, tried ").unwrap_or_else(|| panic!("{text}")).1;
    assert!(tried.contains("; tried again when something changes that concerns NodeResourcesFit"), "{text}");
    // The change that it suggests is made.
    let label = format!("{}.example/disk", s.ns);
    s.shell_pod("picky", FOREVER, json!({"nodeSelector": {&label: "ssd"}}), json!({}));
    let suggestion = format!("if it had the label {label}=ssd\n");
    explained(s, &["pod", "picky"], &["NodeAffinity: the pod requires ", &suggestion]);
    let document = document(s, "pod/picky");
    let change = &document["decision"]["explanation"]["suggestions"][0];
    assert_eq!(change["change"], json!({"type": "setLabel", "key": label, "value": "ssd"}));
    assert_eq!(document["decision"]["queue"]["stage"], "unschedulable");
    let node = change["nodes"][0].as_str().unwrap();
    s.ok(&["label", "node", node, &format!("{label}=ssd")]);
    s.ready("picky");
    s.ok(&["label", "node", node, &format!("{label}-")]);
    assert_eq!(s.ok(&["why", "pod/picky"]), "pod/picky is healthy\n");
    let mut gated = json!({"schedulingGates": [{"name": "example.com/wait"}]});
    gated["schedulerName"] = "default-scheduler".into();
    s.shell_pod("gated", FOREVER, gated, json!({}));
    explained(s, &["pod/gated"], &["scheduling gate is gone: example.com/wait\n"]);
    s.shell_pod("other", FOREVER, json!({"schedulerName": "mine"}), json!({}));
    explained(s, &["pod/other"], &["no scheduler of this name has acted on any pod\n"]);
}

/// A user who may read one pod, and nothing else, gets the decision without the names of other pods.
///
/// Clauses: G01.pending
fn pending_for_a_user_with_few_permissions(s: &Story) {
    let port = json!({"ports": [{"containerPort": 80, "hostPort": 39_871}]});
    s.shell_pod("holder", FOREVER, json!({}), port.clone());
    s.ready("holder");
    s.shell_pod("guest", FOREVER, json!({}), port);
    let parts = ["NodePorts: host port 39871/TCP is in use by ", "/holder\n", " without its host port 39871/TCP\n"];
    explained(s, &["pod/guest"], &parts);
    let user = format!("reader-{}", s.ns);
    s.ok(&["create", "role", "one-pod", "--verb=get", "--resource=pods", "--resource-name=guest"]);
    s.ok(&["create", "rolebinding", "one-pod", "--role=one-pod", &format!("--user={user}")]);
    // A decision names nodes.
    let path = format!("/kemudi/v1/namespaces/{}/pods/guest/decision", s.ns);
    let refused = s.fails(&["get", "--raw", &path, "--as", &user]);
    assert!(refused.contains("cannot list resource \"nodes\""), "{refused}");
    assert!(!s.ok(&["why", "pod/guest", "--as", &user]).contains("holder"));
    let role = format!("nodes-{}", s.ns);
    s.ok(&["create", "clusterrole", &role, "--verb=list", "--resource=nodes"]);
    s.ok(&["create", "clusterrolebinding", &role, &format!("--clusterrole={role}"), &format!("--user={user}")]);
    let text = explained(
        s,
        &["pod/guest", "--as", &user],
        &["NodePorts: host port 39871/TCP is in use by 1 that you may not list\n"],
    );
    assert!(!text.contains("holder"), "{text}");
    let decision: Value = serde_json::from_str(&s.ok(&["get", "--raw", &path, "--as", &user])).unwrap();
    assert_eq!((&decision["apiVersion"], &decision["kind"]), (&json!("kemudi/v1"), &json!("Decision")), "{decision}");
    let refused = s.fails(&["why", "pod/holder", "--as", &user]);
    assert!(refused.contains("pods \"holder\" is forbidden"), "{refused}");
    let path = format!("/kemudi/v1/namespaces/{}/pods/holder/decision", s.ns);
    let refused = s.fails(&["get", "--raw", &path, "--as", &user]);
    assert!(refused.contains("pods \"holder\" is forbidden"), "{refused}");
    // A pod with a node has no decision any more.
    assert!(s.fails(&["get", "--raw", &path]).contains("NotFound"));
    s.ok(&["delete", "clusterrole,clusterrolebinding", &role]);
}

/// Clauses: G01.waiting
fn waiting(s: &Story) {
    let settings = json!({"envFrom": [{"configMapRef": {"name": "settings"}}]});
    s.shell_pod("app", FOREVER, json!({}), settings);
    let parts = ["pod/app is waiting: ", "  ConfigMap settings does not exist (envFrom of container c)\n"];
    explained(s, &["pod/app"], &parts);
    s.create("configmaps", json!({"metadata": {"name": "settings"}}));
    s.ready("app");
    assert_eq!(s.ok(&["why", "pod/app"]), "pod/app is healthy\n");
    let claim = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]});
    s.shell_pod("stateful", FOREVER, claim, json!({}));
    explained(s, &["pod/stateful"], &["  PersistentVolumeClaim data does not exist\n"]);
}

/// Clauses: G01.restarting
fn restarting(s: &Story) {
    s.shell_pod("loop", "echo no such table > /dev/termination-log; exit 7", json!({}), json!({}));
    let parts =
        ["pod/loop is restarting\n", "with exit code 7\n", "its last message: no such table\n", "it is started again "];
    explained(s, &["pod/loop"], &parts);
    let document = document(s, "pod/loop");
    assert_eq!((&document["state"], &document["healthy"]), (&json!("restarting"), &json!(false)));
    assert_eq!(document["findings"][0]["reason"], "Restarting");
}

/// Clauses: G01.not-ready
fn not_ready(s: &Story) {
    let probe = json!({"readinessProbe": {"exec": {"command": ["/bin/sh", "-c", "exit 1"]}, "periodSeconds": 1}});
    s.shell_pod("unready", FOREVER, json!({}), probe);
    let parts =
        ["pod/unready is not ready\n", "its readiness probe does not succeed: run \"/bin/sh -c exit 1\", every 1s"];
    explained(s, &["pod/unready"], &parts);
    s.ok(&["expose", "pod", "unready", "--port=80"]);
    let parts = ["service/unready has no ready endpoint\n", "1 of 1 selected pod is not ready: unready\n"];
    explained(s, &["service/unready"], &parts);
}

/// Clauses: G01.not-evictable
fn not_evictable(s: &Story) {
    s.shell_pod("one", FOREVER, json!({}), json!({}));
    s.ready("one");
    s.ok(&["create", "poddisruptionbudget", "keep", "--selector=app=one", "--min-available=1"]);
    let parts = [
        "pod/one is healthy, and cannot be evicted now\n",
        "PodDisruptionBudget keep allows no eviction: 1 of 1 pods are healthy, and 1 must stay so (minAvailable 1)\n",
    ];
    explained(s, &["pod/one"], &parts);
}

/// Clauses: G01.rollout
fn rollout(s: &Story) {
    let deployment = json!({"metadata": {"name": "web"}, "spec": {
        "replicas": 2, "progressDeadlineSeconds": 2, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
            "terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": IMAGE}]}}}});
    s.create("deployments", deployment);
    explained(s, &["deployment/web"], &["deployment.apps/web is healthy: 2 of 2 replicas are updated and available\n"]);
    s.ok(&["set", "image", "deployment/web", "c=nowhere.example/app:2"]);
    let parts = [
        "deployment.apps/web is stuck: 1 of 2 replicas are updated, 2 available\n",
        "within its progress deadline of 2s",
        "the new ReplicaSet web-",
        "the image nowhere.example/app:2 cannot be used",
        "keeps 2 replicas until new ones are available\n",
    ];
    explained(s, &["deploy", "web"], &parts);
    assert_eq!(document(s, "deployment/web")["state"], "failed");
    s.ok(&["create", "quota", "none", "--hard=pods=0"]);
    s.ok(&["create", "deployment", "more", &format!("--image={IMAGE}")]);
    explained(s, &["deployment/more"], &["pods cannot be created for ", "exceeded quota: none"]);
}

/// Clauses: G01.deletion
fn deletion(s: &Story) {
    let other = format!("{}-x", s.ns);
    s.ok(&["create", "namespace", &other]);
    s.post(
        &format!("/api/v1/namespaces/{other}/configmaps"),
        json!({"metadata": {"name": "held", "finalizers": ["e2e.example/hold"]}}),
    );
    s.ok(&["delete", "namespace", &other, "--wait=false"]);
    let parts = [
        "finalizer kubernetes: the namespace controller removes it when nothing is left in the namespace\n",
        "configmaps left: 1\n",
        "configmap/held:\n",
        "finalizer e2e.example/hold: set by ",
    ];
    explained(s, &["namespace", &other], &parts);
    // The namespace controller deletes it a moment later.
    let parts = ["1 finalizer holds it\n  finalizer e2e.example/hold"];
    explained(s, &["configmap/held", "-n", &other], &parts);
    s.ok(&["patch", "configmap", "held", "-n", &other, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]);
    s.until_at(&format!("/api/v1/namespaces/{other}"), Value::is_null);
    assert!(s.fails(&["why", "namespace", &other]).contains("NotFound"));
}

/// Services, ingresses and network policies, until they work.
///
/// Clauses: G01.other-kinds
fn traffic(s: &Story) {
    let class = format!("{}-class", s.ns);
    s.create("services", json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}}));
    explained(
        s,
        &["svc/web"],
        &["service/web has no ready endpoint\n  its selector app=web matches nothing: the namespace has no pods\n"],
    );
    let rule = |service: &str, port: u16| {
        json!({"host": "a.example", "http": {"paths": [{"path": "/", "pathType": "Prefix",
        "backend": {"service": {"name": service, "port": {"number": port}}}}]}})
    };
    let networking = format!("/apis/networking.k8s.io/v1/namespaces/{}", s.ns);
    s.post(
        &format!("{networking}/ingresses"),
        json!({"metadata": {"name": "web"}, "spec": {"ingressClassName": class,
        "rules": [rule("web", 80), rule("web", 81), rule("none", 80)]}}),
    );
    let parts = [
        "ingress.networking.k8s.io/web is served by no controller\n",
        "its IngressClass ",
        "a.example/: the Service ",
        "/none does not exist\n",
        "/web has no ready endpoint\n",
        "/web has no port 81; it has 80\n",
    ];
    explained(s, &["ingress/web"], &parts);
    s.post(
        "/apis/networking.k8s.io/v1/ingressclasses",
        json!({"metadata": {"name": class}, "spec": {"controller": "example.com/none"}}),
    );
    explained(s, &["ingress/web"], &["/web has no address\n", "the controller example.com/none of its IngressClass "]);
    s.ok(&["delete", "ingressclass", &class]);
    let ports = json!({"ports": [{"name": "http", "containerPort": 8080}]});
    s.shell_pod("web", FOREVER, json!({}), ports);
    s.ready("web");
    explained(s, &["svc/web"], &["service/web is healthy: 1 ready endpoint\n"]);
    s.post(
        &format!("{networking}/networkpolicies"),
        json!({"metadata": {"name": "closed"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}),
    );
    let parts = [
        "has 1 ready endpoint, and a port to which no policy allows connections\n",
        "its pods are isolated by closed\n",
    ];
    explained(s, &["svc/web"], &parts);
    assert_eq!(document(s, "svc/web")["findings"][0]["reason"], "PortIsolated");
}

/// Clauses: G01.other-kinds
fn storage_and_schedules(s: &Story) {
    let volume = format!("{}-v", s.ns);
    let claim = json!({"namespace": s.ns, "name": "none"});
    s.post("/api/v1/persistentvolumes", json!({"metadata": {"name": volume}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "storageClassName": "", "claimRef": claim, "local": {"path": "/none"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["gone"]}]}]}}}}));
    let parts = [
        "can be used on no node\n",
        "node affinity (kubernetes.io/hostname in gone)\n",
        "/none, which does not exist\n",
    ];
    explained(s, &["pv", &volume], &parts);
    s.ok(&["delete", "pv", &volume, "--wait=false"]);
    s.post(
        &format!("/api/v1/namespaces/{}/persistentvolumeclaims", s.ns),
        json!({"metadata": {"name": "data"}, "spec": {"storageClassName": "absent",
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
    );
    explained(s, &["pvc/data"], &["is not bound\n", "has the StorageClass absent, which does not exist\n"]);
    s.ok(&["create", "cronjob", "tick", "--schedule=0 0 1 1 *", &format!("--image={IMAGE}"), "--", "true"]);
    explained(s, &["cronjob/tick"], &["is healthy: no job has been started, the next one is due in "]);
    s.ok(&["patch", "cronjob", "tick", "-p", r#"{"spec":{"suspend":true}}"#]);
    explained(s, &["cronjob/tick"], &["is suspended\n", "=> kubectl patch "]);
    s.post(
        &format!("/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers", s.ns),
        json!({"metadata": {"name": "none"}, "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "none"}}}),
    );
    explained(s, &["hpa/none"], &["cannot scale Deployment/none\n", "not found"]);
    s.ok(&["create", "quota", "full", "--hard=configmaps=0"]);
    explained(s, &["quota/full"], &["is exhausted: 1 of 1 resource", "more than allowed"]);
}

/// What extends the API, with services that do not exist.
///
/// Clauses: G01.other-kinds
fn extensions(s: &Story) {
    let (group, service) = (format!("{}.example", s.ns), json!({"namespace": s.ns, "name": "hook"}));
    let api = format!("v1.{group}");
    s.post(
        "/apis/apiregistration.k8s.io/v1/apiservices",
        json!({"metadata": {"name": api}, "spec": {"group": group, "version": "v1",
        "service": service, "groupPriorityMinimum": 100, "versionPriority": 1, "insecureSkipTLSVerify": true}}),
    );
    let parts = [
        "is not available\n",
        "ServiceNotFound: ",
        "/hook does not exist\n",
        "has no resources, and namespaces cannot be deleted completely\n",
    ];
    explained(s, &["apiservice", &api], &parts);
    s.ok(&["delete", "apiservice", &api]);
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": s.ns}});
    s.post("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", json!({"metadata": {"name": s.ns}, "webhooks": [{
        "name": "hook.example.com", "clientConfig": {"service": service}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "namespaceSelector": selector, "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]}]}));
    let parts = [
        "has webhooks that do not answer\n",
        "webhook hook.example.com: the Service ",
        "these requests are refused (failurePolicy Fail): create of configmaps\n",
    ];
    explained(s, &["validatingwebhookconfiguration", &s.ns], &parts);
    assert!(s.fails(&["create", "configmap", "x"]).contains("failed calling webhook"));
    s.ok(&["delete", "validatingwebhookconfiguration", &s.ns]);
    let definition = format!("widgets.{group}");
    let conversion = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"service": service}}});
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    s.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json!({"metadata": {"name": definition}, "spec": {"group": group, "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}, "conversion": conversion,
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}}));
    explained(s, &["crd", &definition], &["cannot convert its objects\n", "its conversion webhook: the Service "]);
    s.ok(&["delete", "crd", &definition]);
}
