//! Fields of new objects that the server derives, drops or defaults, beyond the defaults of the description.

use serde_json::{Value, json};
use testkit::Cluster;

const CORE: &str = "/api/v1/namespaces/golden";
const FIELDS: &str = "/metadata/managedFields/0/fieldsV1";

/// The path of the collection, the object, and what is at pointers of the response.
type Case = (&'static str, Value, Vec<(&'static str, Value)>);

async fn check(cases: Vec<Case>) {
    let c = Cluster::start(1).await;
    c.call("POST", &format!("{CORE}/serviceaccounts"), json!({"metadata": {"name": "default"}})).await;
    for (path, mut body, expected) in cases {
        let path = match path.strip_prefix('/') {
            Some(_) => path.to_owned(),
            None => format!("{CORE}/{path}"),
        };
        body["metadata"]["name"] = "x".into();
        let a = c.call("POST", &format!("{path}?dryRun=All"), body.clone()).await;
        assert_eq!(a.code, 201, "{path}: {}", a.body);
        for (pointer, value) in expected {
            assert_eq!(a.body.pointer(pointer).unwrap_or(&json!("absent")), &value, "{pointer} of {body}: {}", a.body);
        }
    }
}

fn pod(spec: Value) -> Value {
    let mut pod = json!({"spec": {"serviceAccountName": "default", "containers": [{"name": "c", "image": "i"}]}});
    spec.as_object().unwrap().iter().for_each(|(k, v)| pod["spec"][k] = v.clone());
    pod
}

#[tokio::test(start_paused = true)]
async fn pods() {
    let from_file = json!({"name": "E", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}});
    check(vec![
        (
            "pods",
            pod(json!({"volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "c", "image": "i", "env": [from_file]}]})),
            vec![("/spec/containers/0/env/0/valueFrom/fileKeyRef/optional", json!(false))],
        ),
        (
            "pods",
            pod(json!({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}})),
            vec![("/metadata/annotations", json!("absent"))],
        ),
        (
            "pods",
            pod(json!({"imagePullSecrets": [{}]})),
            vec![
                ("/spec/imagePullSecrets", json!([{}])),
                (
                    "/metadata/managedFields/0/fieldsV1/f:spec/f:imagePullSecrets",
                    json!({".": {}, "k:{\"name\":\"\"}": {}}),
                ),
            ],
        ),
        (
            "pods",
            pod(json!({"schedulingGates": [{"name": "g"}]})),
            vec![("/status/conditions/0/lastProbeTime", Value::Null)],
        ),
        (
            "pods",
            pod(json!({"containers": [{"name": "c", "image": "i",
                "resources": {"limits": {"cpu": null, "memory": "99999999999999999999"}}}]})),
            vec![("/spec/containers/0/resources/limits", json!({"cpu": "0", "memory": "99999999999999999999"}))],
        ),
    ])
    .await;
    let c = crate::pods::cluster().await;
    let mut gated = crate::pods::pod();
    gated["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    let a = c.call("POST", crate::pods::PODS, gated).await.body;
    assert_eq!(a.pointer("/status/conditions/0/lastTransitionTime"), Some(&a["metadata"]["creationTimestamp"]), "{a}");
}

#[tokio::test(start_paused = true)]
async fn other_kinds() {
    let volume = json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.example.com", "volumeHandle": "h"}});
    let mut persistent = json!({"spec": volume});
    persistent["spec"]["capacity"] = json!({"storage": "1Gi"});
    persistent["spec"]["claimRef"] = json!({"namespace": "a", "name": "b"});
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"});
    let service = |spec: Value| {
        let mut service = json!({"spec": {"ports": [{"port": 80}]}});
        spec.as_object().unwrap().iter().for_each(|(k, v)| service["spec"][k] = v.clone());
        service
    };
    let device = json!({"name": "d", "taints": [{"key": "a", "effect": "NoExecute"}],
        "attributes": {"a": {"string": "s", "ints": [1]}, "a/-/c": {"bool": true}},
        "nodeAllocatableResourceMappings": {"cpu": {}}});
    let timeout = json!({"clientIP": {"timeoutSeconds": 10800}});
    check(vec![
        (
            "serviceaccounts",
            json!({"secrets": [{"name": "s", "namespace": "n", "uid": "u", "kind": "Secret"}]}),
            vec![("/secrets", json!([{"name": "s"}]))],
        ),
        ("/api/v1/nodes", json!({"spec": {"podCIDRs": ["10.0.0.0/24"]}}), vec![("/spec/podCIDR", json!("10.0.0.0/24"))]),
        (
            "/api/v1/nodes",
            json!({"metadata": {"ownerReferences": [owner, owner]}}),
            vec![("/metadata/ownerReferences", json!([owner]))],
        ),
        (
            "/api/v1/persistentvolumes",
            persistent,
            vec![
                ("/spec/persistentVolumeReclaimPolicy", json!("Retain")),
                ("/status/phase", json!("Pending")),
                (
                    "/metadata/managedFields/0/fieldsV1/f:spec/f:claimRef",
                    json!({".": {}, "f:name": {}, "f:namespace": {}}),
                ),
            ],
        ),
        (
            "/apis/storage.k8s.io/v1/volumeattachments",
            json!({"spec": {"attacher": "d.example.com", "nodeName": "n", "source": {"inlineVolumeSpec":
                {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.example.com", "volumeHandle": "h"},
                    "volumeAttributesClassName": ""}}}}),
            vec![
                ("/spec/source/inlineVolumeSpec/volumeMode", json!("absent")),
                ("/spec/source/inlineVolumeSpec/persistentVolumeReclaimPolicy", json!("absent")),
            ],
        ),
        (
            "persistentvolumeclaims",
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                "dataSource": {"kind": "PersistentVolumeClaim", "name": "p"}}}),
            vec![
                ("/spec/dataSource/apiGroup", Value::Null),
                ("/spec/dataSourceRef/apiGroup", Value::Null),
            ],
        ),
        (
            "/apis/resource.k8s.io/v1/resourceslices",
            json!({"spec": {"driver": "d.example.com", "nodeName": "n", "pool": {"name": "p", "resourceSliceCount": 1},
                "devices": [device]}}),
            vec![
                ("/spec/devices/0/nodeAllocatableResourceMappings", json!("absent")),
                ("/spec/devices/0/attributes", json!({"a": {"string": "s"}, "a/-/c": {"bool": true}})),
            ],
        ),
        ("services", service(json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {}})),
            vec![("/spec/sessionAffinityConfig", timeout.clone())]),
        ("services", service(json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {}}})),
            vec![("/spec/sessionAffinityConfig", timeout)]),
        (
            "services",
            service(json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 5}]})),
            vec![("/spec/ports/0/nodePort", json!(5))],
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/golden/endpointslices",
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"], "deprecatedTopology": {"?": "?"}}]}),
            vec![("/endpoints/0", json!({"addresses": ["10.0.0.1"], "conditions": {}}))],
        ),
        (
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            json!({"spec": {"namespace": "golden"}}),
            vec![("/metadata", json!({})), ("/spec", json!({}))],
        ),
        ("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({}), vec![("/metadata/name", json!("absent"))]),
        (
            "/apis/authentication.k8s.io/v1/tokenreviews",
            json!({"spec": {"token": "t"}}),
            vec![(FIELDS, json!({"f:spec": {"f:token": {}}})), ("/status/error", json!("invalid bearer token"))],
        ),
    ])
    .await;
}

/// The time of the phase of a volume, unless a client sets it; the time of a taint; duplicates of owners, with their warnings.
#[tokio::test(start_paused = true)]
async fn times_and_warnings() {
    let c = Cluster::start(1).await;
    let volume = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
        "csi": {"driver": "d.example.com", "volumeHandle": "h"}}});
    let path = "/api/v1/persistentvolumes";
    let made = c.call("POST", path, volume).await.body;
    let time = |o: &Value| o["status"]["lastPhaseTransitionTime"].clone();
    assert_eq!(time(&made), made["metadata"]["creationTimestamp"], "{made}");
    let merge = Some("application/merge-patch+json");
    let status = async |status: Value| {
        let body = json!({"status": status}).to_string();
        c.send("PATCH", &format!("{path}/v/status"), merge, "application/json", body.into()).await.body
    };
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    assert_eq!(time(&status(json!({"message": "m"})).await), time(&made));
    assert_eq!(time(&status(json!({"lastPhaseTransitionTime": null})).await), time(&made));
    let available = status(json!({"phase": "Available"})).await;
    assert_ne!(time(&available), time(&made), "{available}");
    let set = json!({"phase": "Bound", "lastPhaseTransitionTime": "2030-01-01T00:00:00Z"});
    assert_eq!(time(&status(set).await), "2030-01-01T00:00:00Z");

    let taint = json!({"key": "a", "effect": "NoExecute"});
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "nodeName": "n",
        "pool": {"name": "p", "resourceSliceCount": 1}, "devices": [{"name": "d", "taints": [taint]}]}});
    let made = c.call("POST", "/apis/resource.k8s.io/v1/resourceslices", slice).await.body;
    assert_eq!(made["spec"]["devices"][0]["taints"][0]["timeAdded"], made["metadata"]["creationTimestamp"], "{made}");

    let owner = |uid: &str, name: &str| json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid});
    let path = "/api/v1/namespaces/golden/configmaps";
    let owners = json!([owner("u", "a"), owner("u", "b"), owner("v", "a"), owner("u", "b"), owner("v", "a")]);
    let a = c.call("POST", path, json!({"metadata": {"name": "c", "ownerReferences": owners}})).await;
    assert_eq!(a.body["metadata"]["ownerReferences"], json!([owner("u", "a"), owner("u", "b"), owner("v", "a")]));
    assert!(a.warned, "duplicates are warned of");
}

/// A Job shares labels with its pods if it has none of its own. Charts often write the same ones into both.
#[tokio::test(start_paused = true)]
async fn labels_of_jobs() {
    let job = |labels: Value| {
        let template = json!({"metadata": {"labels": {"a": "b"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        json!({"metadata": {"labels": labels}, "spec": {"template": template}})
    };
    const JOBS: &str = "/apis/batch/v1/namespaces/golden/jobs";
    const NAME: &str = "/metadata/labels/job-name";
    const OF_PODS: &str = "/spec/template/metadata/labels/job-name";
    check(vec![
        (JOBS, job(json!({"a": "b"})), vec![("/metadata/labels", json!({"a": "b"})), (OF_PODS, json!("x"))]),
        (JOBS, job(json!(null)), vec![("/metadata/labels/a", json!("b")), (NAME, json!("x")), (OF_PODS, json!("x"))]),
        (JOBS, job(json!({})), vec![("/metadata/labels/a", json!("b")), (NAME, json!("x"))]),
        (JOBS, job(json!({"c": "d"})), vec![("/metadata/labels", json!({"c": "d"}))]),
    ])
    .await;
}
