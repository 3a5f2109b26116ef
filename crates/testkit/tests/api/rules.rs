//! Rules of single kinds, as tables: what is put where, and which fields are blamed.

use crate::devices::{Case, check};
use kemudi_testkit::Cluster;
use serde_json::{Value, json};

const NETWORKING: &str = "/apis/networking.k8s.io/v1";
const STORAGE: &str = "/apis/storage.k8s.io/v1";

#[tokio::test]
async fn ingresses_their_classes_and_policies() {
    let c = Cluster::start(1).await;
    let class = json!({"metadata": {"name": "c"}, "spec": {"controller": "example.com/c",
        "parameters": {"kind": "K", "name": "n"}}});
    let parameters = |v: Value| {
        let mut all = json!({"kind": "K", "name": "n"});
        all.as_object_mut().unwrap().extend(v.as_object().unwrap().clone());
        all
    };
    let cases: Vec<Case> = vec![
        ("/spec/parameters", json!({}), &["spec.parameters.kind", "spec.parameters.name"]),
        ("/spec/parameters", json!({"kind": "a/b", "name": ".."}), &["spec.parameters.kind", "spec.parameters.name"]),
        ("/spec/parameters", parameters(json!({"apiGroup": "A"})), &["spec.parameters.apiGroup"]),
        ("/spec/parameters", parameters(json!({"scope": "Planet"})), &["spec.parameters.scope"]),
        ("/spec/parameters", parameters(json!({"namespace": "n"})), &["spec.parameters.namespace"]),
        ("/spec/parameters", parameters(json!({"scope": "Namespace"})), &["spec.parameters.namespace"]),
        ("/spec/parameters", parameters(json!({"scope": "Namespace", "namespace": "n"})), &[]),
    ];
    check(&c, "POST", &format!("{NETWORKING}/ingressclasses"), &class, cases).await;
    let policy = json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}, "ingress": [{"from": [
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}]}});
    let at = "/spec/ingress/0/from/0/ipBlock/except";
    let cases: Vec<Case> = vec![
        (
            at,
            json!(["11.0.0.0/16", "10.0.0.0/8", "::/64", "10.255.255.255/32"]),
            &[
                "spec.ingress[0].from[0].ipBlock.except[0]",
                "spec.ingress[0].from[0].ipBlock.except[1]",
                "spec.ingress[0].from[0].ipBlock.except[2]",
            ],
        ),
        ("/spec/ingress/0/from/0/ipBlock", json!({"cidr": "::/0", "except": ["fe80::/10"]}), &[]),
    ];
    check(&c, "POST", &format!("{NETWORKING}/namespaces/golden/networkpolicies"), &policy, cases).await;
    let ingresses = format!("{NETWORKING}/namespaces/golden/ingresses");
    let ingress =
        json!({"metadata": {"name": "i"}, "spec": {"defaultBackend": {"resource": {"kind": "K", "name": "n"}}}});
    let cases: Vec<Case> = vec![(
        "/spec/defaultBackend/resource",
        json!({"apiGroup": "", "kind": "", "name": ""}),
        &[
            "spec.defaultBackend.resource.apiGroup",
            "spec.defaultBackend.resource.kind",
            "spec.defaultBackend.resource.name",
        ],
    )];
    check(&c, "POST", &ingresses, &ingress, cases).await;
    let mut made = c.call("POST", &ingresses, ingress).await.body;
    made["status"] = json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}, {"hostname": "a.example.com"}]}});
    let cases: Vec<Case> = vec![
        ("/status/loadBalancer/ingress/0", json!({"ip": "x"}), &["status.loadBalancer.ingress[0].ip"]),
        (
            "/status/loadBalancer/ingress/1",
            json!({"hostname": "10.0.0.1"}),
            &["status.loadBalancer.ingress[1].hostname"],
        ),
        ("/status/loadBalancer/ingress/1", json!({"hostname": "A_"}), &["status.loadBalancer.ingress[1].hostname"]),
    ];
    check(&c, "PUT", &format!("{ingresses}/i/status"), &made, cases).await;
}

#[tokio::test]
async fn drivers_and_classes_of_storage() {
    let c = Cluster::start(1).await;
    let driver = json!({"metadata": {"name": "d.example.com"}, "spec": {"tokenRequests": [{"audience": "a"}]}});
    let requests = |seconds: i64| json!([{"audience": "a", "expirationSeconds": seconds}]);
    let cases: Vec<Case> = vec![
        ("/spec/tokenRequests", requests(600), &[]),
        ("/spec/tokenRequests", requests(599), &["spec.tokenRequests[0].expirationSeconds"]),
        ("/spec/tokenRequests", requests((1 << 32) + 1), &["spec.tokenRequests[0].expirationSeconds"]),
        ("/spec/tokenRequests", json!([{"audience": "a"}, {"audience": "a"}]), &["spec.tokenRequests[1].audience"]),
        ("/spec/nodeAllocatableUpdatePeriodSeconds", json!(9), &["spec.nodeAllocatableUpdatePeriodSeconds"]),
    ];
    check(&c, "POST", &format!("{STORAGE}/csidrivers"), &driver, cases).await;
    let class = json!({"metadata": {"name": "c"}, "provisioner": "example.com/p", "parameters": {"a": "b"}});
    let many: serde_json::Map<String, Value> = (0..513).map(|i| (i.to_string(), "v".into())).collect();
    let cases: Vec<Case> = vec![
        ("/parameters", json!({"": "v"}), &["parameters"]),
        ("/parameters", many.into(), &["parameters"]),
        ("/parameters", json!({"a": "v".repeat(256 * 1024)}), &["parameters"]),
    ];
    check(&c, "POST", &format!("{STORAGE}/storageclasses"), &class, cases).await;
    let capacity = json!({"metadata": {"name": "c"}, "storageClassName": "s", "capacity": "1Gi"});
    let cases: Vec<Case> =
        vec![("/capacity", json!("-1"), &["capacity"]), ("/maximumVolumeSize", json!("-1Gi"), &["maximumVolumeSize"])];
    check(&c, "POST", &format!("{STORAGE}/namespaces/golden/csistoragecapacities"), &capacity, cases).await;
}

#[tokio::test]
async fn scopes_of_quotas() {
    let c = Cluster::start(1).await;
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}});
    let of = |scope: &str, operator: &str, values: Value| json!({"matchExpressions": [{"scopeName": scope, "operator": operator, "values": values}]});
    const AT: &str = "/spec/scopeSelector";
    let cases: Vec<Case> = vec![
        (AT, of("PriorityClass", "In", json!(["high"])), &[]),
        (AT, of("PriorityClass", "In", json!([])), &["spec.scopeSelector.matchExpressions.values"]),
        (AT, of("PriorityClass", "Exists", json!(["high"])), &["spec.scopeSelector.matchExpressions.values"]),
        (AT, of("Terminating", "In", json!(["x"])), &["spec.scopeSelector.matchExpressions.operator"]),
        (AT, of("Nothing", "Exists", json!([])), &["spec.scopeSelector.matchExpressions.scopeName"]),
        (AT, of("VolumeAttributesClass", "Exists", json!([])), &["spec.scopeSelector.matchExpressions"]),
        ("/spec", json!({"hard": {"configmaps": "1"}, "scopes": ["BestEffort"]}), &["spec.scopes"]),
        ("/spec", json!({"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}), &["spec.scopes"]),
        ("/spec", json!({"hard": {"cpu": "1"}, "scopes": ["Terminating"]}), &[]),
        ("/spec", json!({"hard": {"example.com/gpu": "1"}, "scopes": ["BestEffort"]}), &[]),
    ];
    check(&c, "POST", "/api/v1/namespaces/golden/resourcequotas", &quota, cases).await;
}

/// Everything that looks at metadata during an update says what is wrong with it.
#[tokio::test]
async fn an_update_says_it_as_often_as_it_looks() {
    let c = Cluster::start(1).await;
    let kinds = [
        ("/api/v1/namespaces/golden/configmaps", json!({}), 4),
        ("/apis/coordination.k8s.io/v1/namespaces/golden/leases", json!({}), 3),
        ("/apis/rbac.authorization.k8s.io/v1/namespaces/golden/roles", json!({}), 5),
        ("/apis/policy/v1/namespaces/golden/poddisruptionbudgets", json!({"spec": {"minAvailable": 1}}), 2),
    ];
    for (path, mut body, times) in kinds {
        body["metadata"] = json!({"name": "a", "labels": {"a": "b"}});
        let mut made = c.call("POST", path, body).await.body;
        made["metadata"]["labels"]["a"] = "-".into();
        let a = c.call("PUT", &format!("{path}/a"), made).await;
        let causes = a.body["details"]["causes"].as_array().unwrap();
        assert_eq!(causes.iter().filter(|c| c["field"] == "metadata.labels").count(), times, "{}", a.body);
        let message = a.body["message"].as_str().unwrap();
        assert_eq!(message.matches("metadata.labels").count(), 1, "{message}");
    }
}

/// The server does not need to serve what it uses itself.
#[tokio::test(start_paused = true)]
async fn groups_that_are_off_take_nothing_along() {
    let groups = [
        "admissionregistration.k8s.io/v1",
        "apiextensions.k8s.io/v1",
        "apiregistration.k8s.io/v1",
        "apps/v1",
        "authentication.k8s.io/v1",
        "authorization.k8s.io/v1",
        "certificates.k8s.io/v1",
        "coordination.k8s.io/v1",
        "discovery.k8s.io/v1",
        "events.k8s.io/v1",
        "flowcontrol.apiserver.k8s.io/v1",
        "networking.k8s.io/v1",
        "node.k8s.io/v1",
        "policy/v1",
        "rbac.authorization.k8s.io/v1",
        "resource.k8s.io/v1",
        "scheduling.k8s.io/v1",
        "storage.k8s.io/v1",
    ];
    for group in groups {
        let plugins = admission::chain(&[], &[]).unwrap();
        let c = Cluster::serving(1, &format!("{group}=false"), plugins).await;
        assert_eq!(c.call("GET", &format!("/apis/{group}"), Value::Null).await.code, 404, "{group}");
        assert_eq!(c.call("GET", "/readyz", Value::Null).await.code, 200, "{group}");
        let account = json!({"metadata": {"name": "default"}});
        c.call("POST", "/api/v1/namespaces/golden/serviceaccounts", account).await;
        let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}});
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        for (path, body) in [("services", service), ("pods", pod)] {
            let a = c.call("POST", &format!("/api/v1/namespaces/golden/{path}"), body).await;
            assert_eq!(a.code, 201, "{group} {path}: {}", a.body);
            let a = c.call("DELETE", &format!("/api/v1/namespaces/golden/{path}/{}", &path[..1]), Value::Null).await;
            assert_eq!(a.code, 200, "{group} {path}: {}", a.body);
        }
    }
}

#[tokio::test]
async fn limits_of_claims_and_of_others() {
    let c = Cluster::start(1).await;
    let limits = json!({"metadata": {"name": "l"}, "spec": {"limits": [
        {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}]}});
    let cases: Vec<Case> = vec![
        ("/spec/limits/0/max", json!({"storage": "1Mi"}), &["spec.limits[0].min[storage]"]),
        ("/spec/limits/0/max", json!({"space": "2Gi"}), &["spec.limits[0].max[space]"]),
        ("/spec/limits/0/type", json!("Pod"), &["spec.limits[0].max[storage]", "spec.limits[0].min[storage]"]),
        ("/spec/limits/0/type", json!("example.com/disk"), &[]),
    ];
    check(&c, "POST", "/api/v1/namespaces/golden/limitranges", &limits, cases).await;
}

/// Names of priority classes that begin as the system's are the system's, which nobody deletes.
#[tokio::test]
async fn the_systems_priority_classes() {
    const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let c = Cluster::start(1).await;
    let class = json!({"metadata": {"name": "system-cluster-critical"}, "value": 2_000_000_000});
    let cases: Vec<Case> = vec![
        ("/metadata/name", json!("system-mine"), &["metadata.name"]),
        ("/value", json!(5), &["metadata.name"]),
        ("/globalDefault", json!(true), &["metadata.name"]),
        ("/metadata/name", json!("mine"), &["value"]),
    ];
    check(&c, "POST", CLASSES, &class, cases).await;
    assert_eq!(c.call("POST", CLASSES, class).await.code, 201);
    let a = c.call("DELETE", &format!("{CLASSES}/system-cluster-critical"), Value::Null).await;
    assert_eq!((a.code, &a.body["reason"]), (403, &json!("Forbidden")), "{}", a.body);
    assert_eq!(c.call("POST", CLASSES, json!({"metadata": {"name": "mine"}, "value": 5})).await.code, 201);
    assert_eq!(c.call("DELETE", &format!("{CLASSES}/mine"), Value::Null).await.code, 200);
}

#[tokio::test]
async fn finalizers_of_a_namespace_have_a_domain() {
    let c = Cluster::start(1).await;
    let body = json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["kubernetes", "example.com/mine"]}});
    let cases: Vec<Case> = vec![("/spec/finalizers", json!(["mine"]), &["spec.finalizers[0]"])];
    check(&c, "POST", "/api/v1/namespaces", &body, cases).await;
    let mut made = c.call("POST", "/api/v1/namespaces", body).await.body;
    made["spec"]["finalizers"] = json!(["kubernetes", "mine"]);
    let a = c.call("PUT", "/api/v1/namespaces/n/finalize", made).await;
    assert_eq!((a.code, &a.body["details"]["causes"][0]["field"]), (422, &json!("spec.finalizers[1]")), "{}", a.body);
}

/// The class of an ingress is named by the annotation or by the field, once.
#[tokio::test]
async fn an_ingress_names_its_class_once() {
    let c = Cluster::start(1).await;
    let path = format!("{NETWORKING}/namespaces/golden/ingresses");
    let mut ingress = json!({"metadata": {"name": "i", "annotations": {"kubernetes.io/ingress.class": "old"}},
        "spec": {"defaultBackend": {"resource": {"kind": "K", "name": "n"}}}});
    let cases: Vec<Case> = vec![("/spec/ingressClassName", json!("new"), &["annotations.kubernetes.io/ingress.class"])];
    check(&c, "POST", &path, &ingress, cases).await;
    // Who has both from before may go on.
    assert_eq!(c.call("POST", &path, ingress.clone()).await.code, 201);
    ingress["spec"]["ingressClassName"] = json!("new");
    assert_eq!(c.call("PUT", &format!("{path}/i"), ingress).await.code, 200);
}

/// Access to devices in use is for namespaces that an administrator marked.
#[tokio::test]
async fn admin_access_to_devices_needs_a_label() {
    const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/golden";
    let c = Cluster::start(1).await;
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c.example.com", "adminAccess": true}});
    let spec = json!({"devices": {"requests": [request]}});
    let bodies = [("resourceclaims", spec.clone()), ("resourceclaimtemplates", json!({"spec": spec}))];
    for (resource, spec) in &bodies {
        let a = c.call("POST", &format!("{CLAIMS}/{resource}"), json!({"metadata": {"name": "x"}, "spec": spec})).await;
        let field = &a.body["details"]["causes"][0]["field"];
        assert_eq!((a.code, field), (422, &json!("spec.devices.requests[0].adminAccess")), "{}", a.body);
    }
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}).to_string();
    let media = Some("application/merge-patch+json");
    assert_eq!(c.send("PATCH", "/api/v1/namespaces/golden", media, "application/json", label.into()).await.code, 200);
    for (resource, spec) in &bodies {
        let a = c.call("POST", &format!("{CLAIMS}/{resource}"), json!({"metadata": {"name": "x"}, "spec": spec})).await;
        assert_eq!(a.code, 201, "{}", a.body);
    }
    // What is allocated may give it only where it may be asked for.
    let result = json!({"request": "r", "driver": "d.example.com", "pool": "p", "device": "d", "adminAccess": true});
    let status = json!({"status": {"allocation": {"devices": {"results": [result]}}}}).to_string();
    let path = format!("{CLAIMS}/resourceclaims/x/status");
    for (label, code) in [("false", 422), ("true", 200), ("false", 200)] {
        let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": label}}}).to_string();
        assert_eq!(
            c.send("PATCH", "/api/v1/namespaces/golden", media, "application/json", label.into()).await.code,
            200
        );
        let a = c.send("PATCH", &path, media, "application/json", status.clone().into()).await;
        assert_eq!(a.code, code, "{}", a.body);
        if code == 422 {
            let cause = &a.body["details"]["causes"][0];
            assert_eq!(cause["field"], "status.allocation.devices.results[0].adminAccess", "{cause}");
        }
    }
}

#[tokio::test]
async fn expressions_over_devices_have_a_price() {
    let c = Cluster::start(1).await;
    let mut dear = "device.driver == 'd'".to_owned();
    for v in ["a", "b", "c", "d", "e", "f"] {
        dear = format!("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all({v}, {dear})");
    }
    let cheap = "device.attributes['d.example.com'].all(k, device.attributes['d.example.com'][k] == 'v')";
    for (expression, why) in [(&*dear, Some("Forbidden: too complex, exceeds cost limit")), (cheap, None)] {
        let class =
            json!({"metadata": {"generateName": "c"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
        let a = c.call("POST", "/apis/resource.k8s.io/v1/deviceclasses", class).await;
        let cause = &a.body["details"]["causes"][0];
        assert_eq!((a.code, cause["message"].as_str()), (if why.is_some() { 422 } else { 201 }, why), "{}", a.body);
        if why.is_some() {
            assert_eq!(cause["field"], "spec.selectors[0].cel.expression");
        }
    }
}

#[tokio::test]
async fn jobs_their_indexes_and_who_runs_them() {
    let c = Cluster::start(1).await;
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let rules = json!({"rules": [{"succeededIndexes": "0,2-4", "succeededCount": 3}]});
    let spec = json!({"completionMode": "Indexed", "completions": 5, "parallelism": 2, "template": template,
        "successPolicy": rules, "managedBy": "example.com/runner"});
    let job = json!({"metadata": {"name": "j"}, "spec": spec.clone()});
    let rule = |v: Value| json!({"rules": [v]});
    let indexes = |s: &str| rule(json!({"succeededIndexes": s}));
    const INDEXES: &[&str] = &["spec.successPolicy.rules[0].succeededIndexes"];
    const COUNT: &[&str] = &["spec.successPolicy.rules[0].succeededCount"];
    let failure =
        json!({"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]});
    let mut failing = spec.clone();
    failing["podFailurePolicy"] = failure;
    failing["podReplacementPolicy"] = json!("TerminatingOrFailed");
    let mut many = spec.clone();
    for (k, v) in
        [("completions", 200_000), ("parallelism", 10_001), ("maxFailedIndexes", 10_001), ("backoffLimitPerIndex", 1)]
    {
        many[k] = json!(v);
    }
    let cases: Vec<Case> = vec![
        ("/spec/completionMode", json!("NonIndexed"), &["spec.successPolicy"]),
        ("/spec/successPolicy", json!({"rules": []}), &["spec.successPolicy.rules"]),
        ("/spec/successPolicy", rule(json!({})), &["spec.successPolicy.rules[0]"]),
        ("/spec/successPolicy", indexes("5"), INDEXES),
        ("/spec/successPolicy", indexes("2-2"), INDEXES),
        ("/spec/successPolicy", indexes("1,1"), INDEXES),
        ("/spec/successPolicy", indexes("1-2-3"), INDEXES),
        ("/spec/successPolicy", indexes("a"), INDEXES),
        ("/spec/successPolicy", rule(json!({"succeededCount": 6})), COUNT),
        ("/spec/successPolicy", rule(json!({"succeededCount": -1})), COUNT),
        ("/spec/successPolicy", rule(json!({"succeededIndexes": "1-2", "succeededCount": 3})), COUNT),
        ("/spec/managedBy", json!("runner"), &["spec.managedBy"]),
        ("/spec/parallelism", json!(100_001), &["spec.parallelism"]),
        ("/spec/podReplacementPolicy", json!("Soon"), &["spec.podReplacementPolicy"]),
        ("/spec", failing, &["spec.podReplacementPolicy"]),
        ("/spec", many, &["spec.maxFailedIndexes", "spec.parallelism"]),
    ];
    check(&c, "POST", "/apis/batch/v1/namespaces/golden/jobs", &job, cases).await;
    let cron = json!({"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": spec}}});
    let cases: Vec<Case> = vec![
        ("/spec/jobTemplate/spec/selector", json!({"matchLabels": {"a": "b"}}), &["spec.jobTemplate.spec.selector"]),
        ("/spec/jobTemplate/spec/manualSelector", json!(true), &["spec.jobTemplate.spec.manualSelector"]),
    ];
    check(&c, "POST", "/apis/batch/v1/namespaces/golden/cronjobs", &cron, cases).await;
}

/// Writes a status from one state, and compares what is blamed.
async fn job_status(c: &Cluster, spec: Value, was: Value, cases: &[(Value, &[(&str, &str)])]) {
    const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
    const JSON: &str = "application/json";
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let mut job = json!({"metadata": {"generateName": "j-"}, "spec": {"template": template}});
    job["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let made = c.call("POST", JOBS, job).await.body;
    let path = format!("{JOBS}/{}/status", made["metadata"]["name"].as_str().unwrap_or_else(|| panic!("{made}")));
    let patch = async |query: &str, status: &Value| {
        let body = json!({"status": status}).to_string().into();
        c.send("PATCH", &format!("{path}{query}"), Some("application/merge-patch+json"), JSON, body).await
    };
    let a = patch("", &was).await;
    assert_eq!(a.code, 200, "{was}: {}", a.body);
    for (status, want) in cases {
        let a = patch("?dryRun=All", status).await;
        let causes = a.body["details"]["causes"].as_array().into_iter().flatten();
        let found: Vec<(&str, &str)> = causes
            .map(|c| {
                let why = c["message"].as_str().unwrap();
                (c["field"].as_str().unwrap(), why.rsplit(": ").next().unwrap())
            })
            .collect();
        assert_eq!((a.code, found), (if want.is_empty() { 200 } else { 422 }, want.to_vec()), "{was} -> {status}");
    }
}

fn conditions(all: &[&str]) -> Value {
    let all: Vec<Value> = all.iter().map(|c| json!({"type": c, "status": "True"})).collect();
    json!(all)
}

#[tokio::test]
async fn what_is_said_of_a_job_stays_true() {
    let c = Cluster::start(1).await;
    let (start, end) = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z");
    let (at, done) = ("status.conditions", ["SuccessCriteriaMet", "Complete"]);
    let counts = json!({"active": 2, "ready": 1, "succeeded": 3, "failed": 3, "startTime": start});
    let complete =
        json!({"active": 0, "ready": 0, "startTime": start, "completionTime": end, "conditions": conditions(&done)});
    job_status(
        &c,
        json!({}),
        counts,
        &[
            (json!({"active": 3}), &[]),
            (
                json!({"active": -1, "ready": -2, "terminating": -1}),
                &[
                    ("status.active", "must be greater than or equal to 0"),
                    ("status.ready", "must be greater than or equal to 0"),
                    ("status.terminating", "must be greater than or equal to 0"),
                ],
            ),
            (json!({"ready": 3}), &[("status.ready", "cannot set more ready pods than active")]),
            (
                json!({"succeeded": 2, "failed": 2}),
                &[
                    ("status.failed", "cannot decrease the failed counter"),
                    ("status.succeeded", "cannot decrease the succeeded counter"),
                ],
            ),
            (json!({"startTime": end}), &[("status.startTime", "startTime cannot be removed for unsuspended job")]),
            (json!({"startTime": null}), &[("status.startTime", "startTime cannot be removed for unsuspended job")]),
            (
                json!({"completionTime": end}),
                &[("status.completionTime", "cannot set completionTime when there is no Complete=True condition")],
            ),
            (
                json!({"uncountedTerminatedPods": {"succeeded": ["a", ""], "failed": ["a", "b"]}}),
                &[
                    ("status.uncountedTerminatedPods.succeeded[1]", "must not be empty"),
                    ("status.uncountedTerminatedPods.failed[0]", "\"a\""),
                ],
            ),
            (
                json!({"completedIndexes": "1", "failedIndexes": "1"}),
                &[
                    ("status.completedIndexes", "\"1\""),
                    (
                        "status.completedIndexes",
                        "cannot set non-empty completedIndexes when non-indexed completion mode",
                    ),
                    ("status.failedIndexes", "cannot set non-null failedIndexes when backoffLimitPerIndex is null"),
                ],
            ),
            (complete.clone(), &[]),
            (
                json!({"active": 1, "ready": 0, "terminating": 1, "conditions": conditions(&["Complete", "Failed"]),
                    "uncountedTerminatedPods": {"failed": ["a"]}}),
                &[
                    (at, "cannot set Complete=True and Failed=true conditions"),
                    (at, "cannot set Failed=True condition without the FailureTarget=true condition"),
                    (at, "cannot set Complete=True condition without the SuccessCriteriaMet=true condition"),
                    ("status.completionTime", "completionTime is required for Complete jobs"),
                    ("status.active", "active>0 is invalid for finished job"),
                    ("status.uncountedTerminatedPods", "uncountedTerminatedPods needs to be empty for finished job"),
                    ("status.terminating", "terminating>0 is invalid for finished job"),
                ],
            ),
            (
                json!({"conditions": conditions(&["SuccessCriteriaMet", "FailureTarget"])}),
                &[(at, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")],
            ),
        ],
    )
    .await;
    job_status(
        &c,
        json!({}),
        complete,
        &[
            (json!({"conditions": conditions(&done)}), &[]),
            (
                json!({"conditions": null, "completionTime": null}),
                &[
                    (at, "cannot disable the terminal Complete=True condition"),
                    (at, "cannot disable the SuccessCriteriaMet=True condition"),
                ],
            ),
            (
                json!({"completionTime": "2026-01-01T00:00:03Z"}),
                &[("status.completionTime", "completionTime cannot be mutated")],
            ),
            (json!({"active": 1}), &[("status.active", "active>0 is invalid for finished job")]),
            (
                json!({"completionTime": "2025-01-01T00:00:03Z"}),
                &[
                    ("status.completionTime", "completionTime cannot be set before startTime"),
                    ("status.completionTime", "completionTime cannot be mutated"),
                ],
            ),
        ],
    )
    .await;
    job_status(
        &c,
        json!({"completionMode": "Indexed", "completions": 5, "parallelism": 5, "backoffLimitPerIndex": 1}),
        json!({"succeeded": 2, "completedIndexes": "0,1"}),
        &[
            (json!({"succeeded": 1, "completedIndexes": "0"}), &[]),
            (json!({"failedIndexes": "2-4"}), &[]),
            (json!({"failedIndexes": "1-2"}), &[("status.failedIndexes", "1")]),
            (json!({"failedIndexes": "2-5"}), &[("status.failedIndexes", "\"5\"")]),
            (json!({"completedIndexes": "3,2"}), &[("status.completedIndexes", "2")]),
        ],
    )
    .await;
    // A job of nothing may end before it begins.
    let nothing = json!({"suspend": true, "completions": 0});
    let ended = json!({"completionTime": end, "conditions": conditions(&done)});
    job_status(&c, nothing, json!({}), &[(ended.clone(), &[])]).await;
    let why = [("status.startTime", "startTime is required for finished job")];
    job_status(&c, json!({}), json!({}), &[(ended, &why)]).await;
}

/// A volume that is said where it is attached is a CSI driver's, and nobody claims it.
#[tokio::test]
async fn inline_volumes_are_of_drivers_and_of_nobody() {
    let c = Cluster::start(1).await;
    let volume = json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.example.com", "volumeHandle": "h"}});
    let attachment = json!({"metadata": {"name": "a"}, "spec": {"attacher": "d.example.com", "nodeName": "n",
        "source": {"inlineVolumeSpec": volume}}});
    let with = |k: &str, v: Value| {
        let mut all = volume.clone();
        all[k] = v;
        all
    };
    let at = "/spec/source/inlineVolumeSpec";
    let affinity =
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}});
    let cases: Vec<Case> = vec![
        (at, with("claimRef", json!({"name": "c"})), &["spec.source.inlineVolumeSpec.claimRef"]),
        (at, with("capacity", json!({"storage": "1Gi"})), &["spec.source.inlineVolumeSpec.capacity"]),
        (
            at,
            with("persistentVolumeReclaimPolicy", json!("Delete")),
            &["spec.source.inlineVolumeSpec.persistentVolumeReclaimPolicy"],
        ),
        (at, with("nodeAffinity", affinity), &["spec.source.inlineVolumeSpec.nodeAffinity"]),
        (at, with("storageClassName", json!("fast")), &["spec.source.inlineVolumeSpec.storageClassName"]),
        (at, with("volumeMode", json!("Block")), &["spec.source.inlineVolumeSpec.volumeMode"]),
        (at, with("nfs", json!({"server": "s", "path": "/"})), &["spec.source.inlineVolumeSpec.csi"]),
        (at, with("csi", Value::Null), &["spec.source.inlineVolumeSpec", "spec.source.inlineVolumeSpec.csi"]),
        (
            at,
            with("accessModes", json!(["ReadWriteOncePod", "ReadWriteOnce"])),
            &["spec.source.inlineVolumeSpec.accessModes"],
        ),
        (at, with("csi", json!({"driver": "d.example.com"})), &["spec.source.inlineVolumeSpec.csi.volumeHandle"]),
    ];
    check(&c, "POST", &format!("{STORAGE}/volumeattachments"), &attachment, cases).await;
}
