//! Validation of the subresources of pods, and of applied scales.

use serde_json::{Value, json};
use testkit::{Answer, Cluster};

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

async fn patch(c: &Cluster, path: &str, media: &str, body: Value) -> Answer {
    c.send("PATCH", path, Some(media), "application/json", body.to_string().into()).await
}

fn fields(a: &Answer) -> Vec<&str> {
    let causes = a.body["details"]["causes"].as_array();
    let mut all: Vec<&str> = causes.into_iter().flatten().filter_map(|c| c["field"].as_str()).collect();
    all.sort_unstable();
    all
}

async fn pod(c: &Cluster) {
    let resources = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}});
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}});
    assert_eq!(c.call("POST", PODS, pod).await.code, 201);
}

#[tokio::test]
async fn ephemeral_containers_are_added_and_never_removed() {
    let c = Cluster::start(1).await;
    pod(&c).await;
    let path = format!("{PODS}/p/ephemeralcontainers");
    let with = |x: Value| json!({"spec": {"ephemeralContainers": [x]}});
    let a = patch(&c, &path, STRATEGIC, with(json!({"name": "d", "image": "i", "targetContainerName": "c"}))).await;
    assert_eq!((a.code, &a.body["metadata"]["generation"]), (200, &json!(2)), "{}", a.body);
    let list = "spec.ephemeralContainers";
    let cases = [
        (MERGE, json!({"spec": {"ephemeralContainers": null}}), vec![list]),
        (STRATEGIC, with(json!({"name": "d", "image": "j"})), vec![list]),
        (STRATEGIC, with(json!({"name": "c", "image": "i"})), vec!["spec.ephemeralContainers[1].name"]),
        (STRATEGIC, with(json!({"name": "e"})), vec!["spec.ephemeralContainers[1].image"]),
        (
            STRATEGIC,
            with(json!({"name": "e", "image": "i", "ports": [{"containerPort": 1}]})),
            vec!["spec.ephemeralContainers[1].ports"],
        ),
    ];
    for (media, body, want) in cases {
        let a = patch(&c, &path, media, body).await;
        let mut found = fields(&a);
        found.dedup();
        // A strategic patch puts what is new first.
        let found: Vec<String> = found.iter().map(|f| f.replace("[0]", "[1]")).collect();
        assert_eq!((a.code, found), (422, want.iter().map(|w| (*w).to_owned()).collect()), "{}", a.body);
    }
}

#[tokio::test]
async fn a_resize_changes_amounts_only() {
    let c = Cluster::start(1).await;
    pod(&c).await;
    let path = format!("{PODS}/p/resize");
    let with = |r: Value| json!({"spec": {"containers": [{"name": "c", "image": "other", "resources": r}]}});
    let a = patch(&c, &path, STRATEGIC, with(json!({"requests": {"cpu": "500m"}}))).await;
    assert_eq!((a.code, &a.body["metadata"]["generation"]), (200, &json!(2)), "{}", a.body);
    let container = &a.body["spec"]["containers"][0];
    assert_eq!((&container["image"], &container["resources"]["requests"]["cpu"]), (&json!("i"), &json!("500m")));
    let cases = [
        (json!({"limits": {"cpu": null}}), vec!["spec.containers[0].resources.limits"]),
        (json!({"requests": {"memory": null}}), vec!["spec.containers[0].resources.requests"]),
        (json!({"limits": {"ephemeral-storage": "1Gi"}}), vec!["spec"]),
        (json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2", "memory": "1Gi"}}), vec!["spec"]),
        (json!({"requests": {"cpu": "3"}}), vec!["spec.containers[0].resources.requests"]),
    ];
    for (resources, want) in cases {
        let a = patch(&c, &path, STRATEGIC, with(resources.clone())).await;
        assert_eq!((a.code, fields(&a)), (422, want), "{resources} {}", a.body);
    }
}

#[tokio::test]
async fn a_resize_needs_node_support() {
    let c = Cluster::start(1).await;
    let node = |name: &str, os: &str| {
        json!({"metadata": {"name": name, "labels": {"kubernetes.io/os": os}},
            "status": {"allocatable": {"cpu": "4", "memory": "2Gi"}}})
    };
    for (name, os) in [("big", "linux"), ("other", "windows")] {
        assert_eq!(c.call("POST", "/api/v1/nodes", node(name, os)).await.code, 201);
        let resources = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
        let pod = json!({"metadata": {"name": format!("on-{name}")}, "spec": {"nodeName": name,
            "containers": [{"name": "c", "image": "i", "resources": resources}]}});
        assert_eq!(c.call("POST", PODS, pod).await.code, 201);
    }
    let lost = json!({"metadata": {"name": "on-nothing"}, "spec": {"nodeName": "nothing",
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}});
    assert_eq!(c.call("POST", PODS, lost).await.code, 201);
    let more = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
    for (name, requests, want) in [
        ("on-big", more("4", "2Gi"), None),
        (
            "on-big",
            more("4001m", "1Gi"),
            Some((
                "NodeCapacity",
                "node didn't have enough allocatable resources: cpu, requested: 4001, allocatable: 4000",
            )),
        ),
        (
            "on-big",
            more("5", "3Gi"),
            Some((
                "NodeCapacity",
                "node didn't have enough allocatable resources: cpu, requested: 5000, allocatable: 4000; memory, requested: 3221225472, allocatable: 2147483648",
            )),
        ),
        (
            "on-other",
            more("2", "1Gi"),
            Some(("UnsupportedPlatform", "pod resize is only supported on linux nodes, node \"other\" is \"windows\"")),
        ),
        ("on-other", more("1", "1Gi"), None),
        ("on-nothing", json!({"cpu": "2"}), Some(("", "node \"nothing\" not found"))),
    ] {
        let body = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}});
        let a = patch(&c, &format!("{PODS}/{name}/resize"), STRATEGIC, body).await;
        match want {
            None => assert_eq!(a.code, 200, "{}", a.body),
            Some((reason, why)) => {
                let message = format!("pods \"{name}\" is forbidden: {why}");
                assert_eq!((a.code, &a.body["message"]), (403, &json!(message)));
                assert_eq!(a.body["details"]["causes"][0]["reason"].as_str().unwrap_or_default(), reason);
            }
        }
    }
}

/// Who applies a scale owns the replicas, through the subresource.
#[tokio::test]
async fn a_scale_is_applied() {
    let c = Cluster::start(1).await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    assert_eq!(c.call("POST", DEPLOYMENTS, deployment).await.code, 201);
    let path = format!("{DEPLOYMENTS}/d/scale");
    let scale = |n: i64| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": n}});
    let a = patch(&c, &path, APPLY, scale(3)).await;
    assert_eq!(a.code, 422, "nobody applies: {}", a.body);
    let a = patch(&c, &format!("{path}?fieldManager=hand"), APPLY, scale(3)).await;
    assert_eq!(a.code, 409, "{}", a.body);
    assert_eq!(a.body["details"]["causes"][0]["field"], ".spec.replicas", "{}", a.body);
    let a = patch(&c, &format!("{path}?fieldManager=hand&force=true"), APPLY, scale(3)).await;
    assert_eq!((a.code, &a.body["kind"], &a.body["spec"]["replicas"]), (200, &json!("Scale"), &json!(3)), "{}", a.body);
    let d = c.call("GET", &format!("{DEPLOYMENTS}/d"), Value::Null).await.body;
    let owner = d["metadata"]["managedFields"].as_array().unwrap().iter().find(|m| m["manager"] == "hand").unwrap();
    assert_eq!((&owner["operation"], &owner["subresource"]), (&json!("Apply"), &json!("scale")), "{owner}");
    assert_eq!(owner["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(d["metadata"]["generation"], 2);
    let a = patch(&c, &format!("{path}?fieldManager=hand&force=true"), APPLY, scale(-1)).await;
    assert_eq!((a.code, fields(&a)), (422, vec!["spec.replicas"]), "{}", a.body);
}
