//! Exact field errors and warnings: paths, texts and order.

use meta::Gvr;
use serde_json::{Value, json};
use store::{Action, Expect, Op};
use testkit::{Answer, Cluster};

/// A change of a body at a JSON pointer, and the expected `field: message` errors in order.
type Case = (&'static str, Value, Vec<String>);

fn errors(all: &[&str]) -> Vec<String> {
    all.iter().map(|s| (*s).to_owned()).collect()
}

fn causes(a: &Answer) -> Vec<String> {
    let causes = a.body["details"]["causes"].as_array().cloned().unwrap_or_default();
    let text = |c: &Value, k: &str| c[k].as_str().unwrap_or_default().to_owned();
    causes.iter().map(|c| format!("{}: {}", text(c, "field"), text(c, "message"))).collect()
}

/// Puts a value where a pointer says, making what lies on the way.
fn put(body: &mut Value, pointer: &str, value: Value) {
    let mut at = body;
    for step in pointer.split('/').skip(1) {
        at = match at {
            Value::Array(a) => &mut a[step.parse::<usize>().unwrap()],
            other => &mut other[step],
        };
    }
    *at = value;
}

async fn check(c: &Cluster, path: &str, body: &Value, cases: &[Case]) {
    for (pointer, value, want) in cases {
        let mut body = body.clone();
        put(&mut body, pointer, value.clone());
        let a = c.call("POST", &format!("{path}?dryRun=All"), body).await;
        assert_eq!(causes(&a), *want, "{path} {pointer} {value}: {:?}", a.body["message"]);
        assert_eq!(a.code, if want.is_empty() { 201 } else { 422 }, "{path} {pointer} {value}");
    }
}

const NO_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

#[tokio::test]
async fn ambiguous_addresses_are_rejected() {
    let c = Cluster::start(1).await;
    let policy =
        json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {}}]}]}});
    let block = "spec.ingress[0].from[0].ipBlock";
    let at = "/spec/ingress/0/from/0/ipBlock";
    let bits = format!("{block}.cidr: Invalid value: \"10.0.0.1/8\": must not have bits set beyond the prefix length");
    let zeros =
        format!("{block}.cidr: Invalid value: \"010.0.0.0/8\": must not have leading 0s in IP or prefix length");
    let none = format!("{block}.cidr: Invalid value: \"x\": {NO_CIDR}");
    let part = format!("{block}.except[0]: Invalid value: \"x\": {NO_CIDR}");
    let cases: Vec<Case> = vec![
        (at, json!({"cidr": "10.0.0.1/8"}), errors(&[&bits])),
        (at, json!({"cidr": "010.0.0.0/8"}), errors(&[&zeros])),
        // What is left out of no range is not looked at.
        (at, json!({"cidr": "x", "except": ["y"]}), errors(&[&none])),
        (at, json!({"cidr": "10.0.0.0/8", "except": ["x"]}), errors(&[&part])),
        (at, json!({"cidr": "2001:DB8::/64"}), errors(&[])),
    ];
    let at = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    check(&c, at, &policy, &cases).await;
    let range = json!({"metadata": {"name": "r"}, "spec": {"cidrs": []}});
    let form = "spec.cidrs[0]: Invalid value: \"2001:DB8::/64\": must be in canonical form (\"2001:db8::/64\")";
    let families = "spec.cidrs: Invalid value: [\"10.0.0.0/24\",\"10.1.0.0/24\"]: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
    let two = "spec.cidrs: Invalid value: {\"CIDRs\":[\"x\",\"y\",\"z\"]}: may only hold up to 2 values";
    let cases: Vec<Case> = vec![
        ("/spec/cidrs", json!(["2001:DB8::/64"]), errors(&[form])),
        ("/spec/cidrs", json!(["10.0.0.0/24", "10.1.0.0/24"]), errors(&[families])),
        ("/spec/cidrs", json!(["x", "y", "z"]), errors(&[two])),
    ];
    check(&c, "/apis/networking.k8s.io/v1/servicecidrs", &range, &cases).await;
    let address = json!({"metadata": {}, "spec": {"parentRef": {"resource": "services", "name": "s"}}});
    let cases: Vec<Case> = vec![
        (
            "/metadata/name",
            json!("10.0.0.07"),
            errors(&["metadata.name: Invalid value: \"10.0.0.07\": must not have leading 0s"]),
        ),
        (
            "/metadata/name",
            json!("::ffff:1.2.3.4"),
            errors(&["metadata.name: Invalid value: \"::ffff:1.2.3.4\": must not be an IPv4-mapped IPv6 address"]),
        ),
    ];
    check(&c, "/apis/networking.k8s.io/v1/ipaddresses", &address, &cases).await;
}

#[tokio::test]
async fn ingress_paths_are_validated_for_known_types() {
    let c = Cluster::start(1).await;
    let path = json!({"path": "x", "backend": {"resource": {"kind": "K", "name": "n"}}});
    let ingress = json!({"metadata": {"name": "i"}, "spec": {"rules": [{"http": {"paths": [path]}}]}});
    let at = "spec.rules[0].http.paths[0]";
    let kind = format!(
        "{at}.pathType: Unsupported value: \"Any\": supported values: \"Exact\", \"ImplementationSpecific\", \"Prefix\""
    );
    let absolute = format!("{at}.path: Invalid value: \"x\": must be an absolute path");
    let pointer = "/spec/rules/0/http/paths/0/pathType";
    let cases: Vec<Case> = vec![
        (pointer, json!("Any"), errors(&[&kind])),
        (pointer, json!("Prefix"), errors(&[&absolute])),
        (pointer, json!("ImplementationSpecific"), errors(&[&absolute])),
        (
            "/spec",
            json!({"tls": [{"hosts": ["*"]}], "defaultBackend": {"resource": {}}}),
            errors(&[
                "spec.defaultBackend.resource.kind: Required value",
                "spec.defaultBackend.resource.name: Required value",
                WILDCARD,
            ]),
        ),
    ];
    check(&c, "/apis/networking.k8s.io/v1/namespaces/default/ingresses", &ingress, &cases).await;
}

const WILDCARD: &str = "spec.tls[0].hosts[0]: Invalid value: \"*\": a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

fn pod_template() -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[tokio::test]
async fn workloads() {
    let c = Cluster::start(1).await;
    let of = |more: Value| {
        let mut all = json!({"metadata": {"name": "w"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": pod_template()}});
        all["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let apps = "/apis/apps/v1/namespaces/default";
    let strategy = "spec.updateStrategy: Unsupported value: {\"Type\":\"Any\",\"RollingUpdate\":null}: supported values: \"RollingUpdate\", \"OnDelete\"";
    let early = "spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0";
    let cases: Vec<Case> = vec![("/spec/updateStrategy", json!({"type": "Any"}), errors(&[early, strategy]))];
    check(&c, &format!("{apps}/daemonsets"), &of(json!({"minReadySeconds": -1})), &cases).await;
    let policy = "spec.persistentVolumeClaimRetentionPolicy.whenDeleted: Unsupported value: \"Any\": supported values: \"Retain\", \"Delete\"";
    let cases: Vec<Case> = vec![
        ("/spec/persistentVolumeClaimRetentionPolicy", json!({"whenDeleted": "Any"}), errors(&[policy])),
        ("/spec/revisionHistoryLimit", json!(-1), errors(&[])),
    ];
    check(&c, &format!("{apps}/statefulsets"), &of(json!({})), &cases).await;
    let percent = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
    let each = |k: &str, v: &str| format!("spec.updateStrategy.rollingUpdate.{k}: Invalid value: \"{v}\": {percent}");
    let both = "spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0";
    let cases: Vec<Case> = vec![(
        "/spec/updateStrategy",
        json!({"rollingUpdate": {"maxUnavailable": "a", "maxSurge": "b"}}),
        errors(&[&each("maxUnavailable", "a"), &each("maxSurge", "b"), both]),
    )];
    check(&c, &format!("{apps}/daemonsets"), &of(json!({})), &cases).await;
    // A template is not looked at beside a selector that cannot be read.
    let operator = "spec.selector.matchExpressions[0].operator: Invalid value: \"Any\": not a valid selector operator";
    let all = "spec.selector: Invalid value: {\"matchExpressions\":[{\"key\":\"a\",\"operator\":\"Any\"}]}: invalid label selector";
    let cases: Vec<Case> = vec![(
        "/spec/selector",
        json!({"matchExpressions": [{"key": "a", "operator": "Any"}]}),
        errors(&[operator, all]),
    )];
    check(&c, &format!("{apps}/deployments"), &of(json!({"template": {"spec": {"containers": []}}})), &cases).await;
}

#[tokio::test]
async fn jobs_and_when_they_run() {
    let c = Cluster::start(1).await;
    let batch = "/apis/batch/v1/namespaces/default";
    let mut template = pod_template();
    template["spec"]["restartPolicy"] = "Never".into();
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": template.clone()}});
    let at = "spec.podFailurePolicy.rules[0].onExitCodes";
    let (operator, container, values) = (
        format!("{at}.operator: Required value: valid values: [\"In\" \"NotIn\"]"),
        format!(
            "{at}.containerName: Invalid value: \"x\": must be one of the container or initContainer names in the pod template"
        ),
        format!("{at}.values: Invalid value: []: at least one value is required"),
    );
    let codes = json!({"containerName": "x", "values": []});
    let cases: Vec<Case> = vec![
        ("/spec/managedBy", json!(""), errors(&["spec.managedBy: Required value"])),
        (
            "/spec/successPolicy",
            json!({"rules": [{"succeededIndexes": "0"}]}),
            errors(&[
                "spec.successPolicy: Invalid value: {\"Rules\":[{\"SucceededIndexes\":\"0\",\"SucceededCount\":null}]}: requires indexed completion mode",
            ]),
        ),
        (
            "/spec/podFailurePolicy",
            json!({"rules": [{"action": "Count", "onExitCodes": codes}]}),
            errors(&[&operator, &container, &values]),
        ),
    ];
    check(&c, &format!("{batch}/jobs"), &job, &cases).await;
    // A selector that was asked for is not made, so it is refused.
    let mut own = job.clone();
    own["spec"]["selector"] = json!({"matchLabels": {"a": "b"}});
    let a = c.call("POST", &format!("{batch}/jobs?dryRun=All"), own).await;
    let first = causes(&a).swap_remove(0);
    assert!(first.starts_with("spec.selector: ") && first.ends_with("`selector` not auto-generated"), "{first}");
    let cron = json!({"metadata": {"name": "c"},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}}});
    const EXPLICIT: &str = "spec.timeZone: Invalid value: \"LOCAL\": timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
    let cases: Vec<Case> = vec![
        ("/spec/timeZone", json!("Europe/Paris"), errors(&[])),
        (
            "/spec/timeZone",
            json!("europe/paris"),
            errors(&["spec.timeZone: Invalid value: \"europe/paris\": unknown time zone europe/paris"]),
        ),
        (
            "/spec/timeZone",
            json!("LOCAL"),
            errors(&[EXPLICIT, "spec.timeZone: Invalid value: \"LOCAL\": unknown time zone LOCAL"]),
        ),
    ];
    check(&c, &format!("{batch}/cronjobs"), &cron, &cases).await;
}

#[tokio::test]
async fn storage_budgets_scalers_and_reviews() {
    let c = Cluster::start(1).await;
    let class = json!({"metadata": {"name": "s"}, "provisioner": "p"});
    let reclaim = "reclaimPolicy: Unsupported value: \"Recycle\": supported values: \"Delete\", \"Retain\"";
    let cases: Vec<Case> = vec![
        ("/reclaimPolicy", json!("Recycle"), errors(&[reclaim])),
        ("/reclaimPolicy", json!("Retain"), errors(&[])),
    ];
    check(&c, "/apis/storage.k8s.io/v1/storageclasses", &class, &cases).await;
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1}});
    let both = "spec: Invalid value: {\"MinAvailable\":1,\"Selector\":null,\"MaxUnavailable\":1,\"UnhealthyPodEvictionPolicy\":null}: minAvailable and maxUnavailable cannot be both set";
    let cases: Vec<Case> = vec![("/spec/maxUnavailable", json!(1), errors(&[both]))];
    check(&c, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", &budget, &cases).await;
    let scaler = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 2,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
    let tolerance = "spec.behavior.scaleUp.tolerance: Invalid value: \"-1\": must be greater than or equal to 0";
    let cases: Vec<Case> = vec![("/spec/behavior", json!({"scaleUp": {"tolerance": "-1"}}), errors(&[tolerance]))];
    check(&c, "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", &scaler, &cases).await;
    let review = json!({"spec": {"user": "u", "resourceAttributes": {}}});
    let path = "spec.nonResourceAttributes: Invalid value: {\"Path\":\"/x\",\"Verb\":\"\"}: cannot be specified in combination with resourceAttributes";
    let cases: Vec<Case> = vec![("/spec/nonResourceAttributes", json!({"path": "/x"}), errors(&[path]))];
    check(&c, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &review, &cases).await;
    let template = json!({"metadata": {"name": "t"}, "spec": {"metadata": {}, "spec": {"devices": {}}}});
    let name = "spec.metadata.name: Forbidden: cannot be set";
    let cases: Vec<Case> = vec![("/spec/metadata", json!({"name": "x", "labels": {"a": "b"}}), errors(&[name]))];
    check(&c, "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates", &template, &cases).await;
    // What a feature that is off would read is not kept.
    let driver = json!({"metadata": {"name": "d"}, "spec": {"preventPodSchedulingIfMissing": true}});
    let a = c.call("POST", "/apis/storage.k8s.io/v1/csidrivers", driver).await;
    assert_eq!((a.code, a.body["spec"].get("preventPodSchedulingIfMissing")), (201, None));
}

/// Changes what is stored, as an older version would have stored it.
async fn rewrite(c: &Cluster, group: &str, resource: &str, name: &str, from: &str, to: &str) {
    let registry = &c.server.registry;
    let gvr = Gvr { group: group.into(), version: "v1".into(), resource: resource.into() };
    let key = registry.rows().resource(&gvr).unwrap().key("default", name).unwrap();
    let entry = registry.store.snapshot().get(&key).unwrap();
    let text = std::str::from_utf8(&entry.value).unwrap();
    assert!(text.contains(from), "{text}");
    let action = Action::Put(text.replace(from, to).into());
    registry.store.commit(vec![Op { key, expect: Expect::Revision(entry.revision), action }]).await.unwrap();
}

/// What v1.36 no longer takes may stay where it is already.
#[tokio::test]
async fn existing_invalid_values_may_stay() {
    let c = Cluster::start(1).await;
    let merge = async |path: &str, body: Value| {
        let media = Some("application/merge-patch+json");
        c.send("PATCH", path, media, "application/json", body.to_string().into()).await
    };
    let block = |cidr: &str| json!({"ipBlock": {"cidr": cidr}});
    let spec = |from: Value| json!({"podSelector": {}, "ingress": [{"from": from}]});
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    let policy = json!({"metadata": {"name": "p"}, "spec": spec(json!([block("10.0.0.0/8")]))});
    assert_eq!(c.call("POST", policies, policy).await.code, 201);
    rewrite(&c, "networking.k8s.io", "networkpolicies", "p", "10.0.0.0/8", "010.0.0.0/8").await;
    let path = format!("{policies}/p");
    let a = merge(&path, json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(a.code, 200, "{}", a.body);
    let a = merge(&path, json!({"spec": spec(json!([block("010.0.0.0/8"), block("011.0.0.0/8")]))})).await;
    assert_eq!((a.code, causes(&a).len()), (422, 1), "{}", a.body);
    assert!(causes(&a)[0].starts_with("spec.ingress[0].from[1].ipBlock.cidr: "), "{}", a.body);

    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "x", "preferredHolder": "y"}});
    let a = c.call("POST", leases, lease).await;
    assert_eq!((a.code, a.body["spec"].get("preferredHolder")), (201, None), "behind a gate that is off");
    let held = r#""holderIdentity":"x""#;
    rewrite(&c, "coordination.k8s.io", "leases", "l", held, &format!(r#"{held},"preferredHolder":"y""#)).await;
    let a = merge(&format!("{leases}/l"), json!({"spec": {"holderIdentity": "z", "strategy": "s"}})).await;
    assert_eq!(a.body["spec"], json!({"holderIdentity": "z", "preferredHolder": "y"}), "only what was there");
}

#[tokio::test]
async fn surprising_names_and_limits_cause_warnings() {
    let c = Cluster::start(1).await;
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": pod_template(), "revisionHistoryLimit": -1});
    let mut job = json!({"template": pod_template()});
    job["template"]["spec"]["restartPolicy"] = "Never".into();
    let name = "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]";
    let limit =
        "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended";
    let mut replicated = spec.clone();
    replicated.as_object_mut().unwrap().remove("revisionHistoryLimit");
    for (path, called, spec, want) in [
        ("apps/v1/namespaces/default/deployments", "a.b", &replicated, Some(name)),
        ("apps/v1/namespaces/default/replicasets", "a.b", &replicated, Some(name)),
        ("apps/v1/namespaces/default/daemonsets", "a.b", &replicated, None),
        ("apps/v1/namespaces/default/statefulsets", "a", &spec, Some(limit)),
        ("batch/v1/namespaces/default/jobs", "a.b", &job, Some(name)),
    ] {
        let body = json!({"metadata": {"name": called}, "spec": spec});
        let want: Vec<String> = want.map(|w| format!("299 - {w:?}")).into_iter().collect();
        assert_eq!(warned(&c, &format!("/apis/{path}"), &body).await, want, "{path}");
    }
}

/// What is warned of when a body is put there.
async fn warned(c: &Cluster, path: &str, body: &Value) -> Vec<String> {
    let json = [("content-type", "application/json")];
    let r = c.request("POST", &format!("{path}?dryRun=All"), &json, body.to_string().into()).await;
    assert_eq!(r.status().as_u16(), 201, "{path}");
    r.headers().get_all("warning").iter().map(|w| w.to_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn deprecated_fields_cause_warnings() {
    let c = Cluster::start(1).await;
    let arch = "beta.kubernetes.io/arch";
    let term = json!([{"matchLabelExpressions": [{"key": arch, "values": ["x"]}]}]);
    let backend = json!({"resource": {"kind": "K", "name": "n"}});
    for (path, body, want) in [
        (
            "networking.k8s.io/v1/namespaces/default/ingresses",
            json!({"metadata": {"name": "i", "annotations": {"kubernetes.io/ingress.class": "c"}}, "spec": {"defaultBackend": backend}}),
            "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead",
        ),
        (
            "networking.k8s.io/v1/namespaces/default/networkpolicies",
            json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}, "egress": [{"to": [{"ipBlock": {"cidr": "2001:DB8::/64"}}]}]}}),
            "spec.egress[0].to[0].ipBlock.cidr: IPv6 CIDR value \"2001:DB8::/64\" should be in RFC 5952 canonical format (\"2001:db8::/64\")",
        ),
        (
            "storage.k8s.io/v1/storageclasses",
            json!({"metadata": {"name": "s"}, "provisioner": "p", "allowedTopologies": term}),
            "allowedTopologies[0].matchLabelExpressions[0].key: deprecated since v1.14; use \"kubernetes.io/arch\" instead",
        ),
        (
            "storage.k8s.io/v1/namespaces/default/csistoragecapacities",
            json!({"metadata": {"name": "s"}, "storageClassName": "s", "nodeTopology": {"matchLabels": {arch: "x"}}}),
            "nodeTopology.matchLabels.beta.kubernetes.io/arch: deprecated since v1.14; use \"kubernetes.io/arch\" instead",
        ),
    ] {
        let got = warned(&c, &format!("/apis/{path}"), &body).await;
        let want = format!("299 - \"{}\"", want.replace('"', "\\\""));
        assert_eq!(got, [want], "{path}");
    }
}

#[tokio::test]
async fn a_scale_is_of_the_object_that_the_address_names() {
    let c = Cluster::start(1).await;
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    let set = json!({"metadata": {"name": "r"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": pod_template()}});
    assert_eq!(c.call("POST", sets, set).await.code, 201);
    let at = format!("{sets}/r/scale");
    let scale = c.call("GET", &at, Value::Null).await.body;
    for (pointer, value, code, why) in [
        ("/metadata/name", json!("x"), 400, "the name of the object (x) does not match the name on the URL (r)"),
        (
            "/metadata/namespace",
            json!("x"),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        ("/metadata/uid", json!("x"), 409, "Precondition failed: UID in precondition: x, UID in object meta: "),
        ("/metadata/labels", json!({"a b": "c"}), 422, "metadata.labels: Invalid value: \"a b\": "),
    ] {
        let mut body = scale.clone();
        put(&mut body, pointer, value);
        let a = c.call("PUT", &at, body).await;
        assert_eq!(a.code, code, "{pointer}: {:?}", a.body);
        assert!(a.body["message"].as_str().unwrap_or_default().contains(why), "{pointer}: {:?}", a.body);
    }
}
