//! Smaller plugins: their changes and rejections.

use crate::call;
use apiserver::Server;
use auth::User;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use meta::Value;
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::json;
use std::sync::Arc;
use testkit::Cluster;

const PODS: &str = "/api/v1/namespaces/golden/pods";

async fn with(seed: u64, plugins: &[&str]) -> Cluster {
    let names: Vec<String> = plugins.iter().map(|p| (*p).to_owned()).collect();
    Cluster::admitting(seed, admission::chain(&names, &[]).unwrap()).await
}

fn pod(name: &str, spec: Value) -> Value {
    let mut o = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (k, v) in spec.as_object().unwrap() {
        o["spec"][k] = v.clone();
    }
    o
}

async fn make(c: &Cluster, path: &str, body: Value) -> Value {
    let (code, answer, _) = call(c, "POST", path, body).await;
    assert_eq!(code, 201, "{answer}");
    answer
}

async fn refused(c: &Cluster, method: &str, path: &str, body: Value) -> String {
    let (code, answer, _) = call(c, method, path, body).await;
    assert_eq!((code, answer["reason"].as_str()), (403, Some("Forbidden")), "{answer}");
    answer["message"].as_str().unwrap().to_owned()
}

/// Sends JSON as another user.
async fn send(c: &Arc<Server>, user: &User, method: &str, path: &str, body: Value) -> (u16, String) {
    let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", media)
        .body(Bytes::from(body.to_string()))
        .unwrap();
    let r = c.handle(apiserver::as_identity(request, user.clone())).await;
    let code = r.status().as_u16();
    let v: Value = serde_json::from_slice(&r.into_body().collect().await.unwrap()).unwrap();
    (code, v["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn runtime_classes_set_overhead_and_scheduling() {
    let c = Cluster::start(1).await;
    make(
        &c,
        "/apis/node.k8s.io/v1/runtimeclasses",
        json!({"metadata": {"name": "vm"}, "handler": "vm",
        "overhead": {"podFixed": {"cpu": "100m"}},
        "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm", "operator": "Exists"}]}}),
    )
    .await;
    let o = make(&c, PODS, pod("vm", json!({"runtimeClassName": "vm"}))).await;
    assert_eq!(o["spec"]["overhead"], json!({"cpu": "100m"}));
    assert_eq!(o["spec"]["nodeSelector"], json!({"vm": "yes"}));
    assert!(o["spec"]["tolerations"].as_array().unwrap().iter().any(|t| t["key"] == "vm"));
    let text = refused(&c, "POST", PODS, pod("x", json!({"runtimeClassName": "none"}))).await;
    assert!(text.ends_with("pod rejected: RuntimeClass \"none\" not found"), "{text}");
    let text =
        refused(&c, "POST", PODS, pod("x", json!({"runtimeClassName": "vm", "nodeSelector": {"vm": "no"}}))).await;
    assert!(
        text.ends_with("conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no"),
        "{text}"
    );
    let text = refused(&c, "POST", PODS, pod("x", json!({"overhead": {"cpu": "1"}}))).await;
    assert!(text.ends_with("Pod Overhead set without corresponding RuntimeClass defined Overhead"), "{text}");
}

#[tokio::test]
async fn ingresses_get_the_default_class() {
    let c = Cluster::start(2).await;
    let class = json!({"metadata": {"name": "front", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}},
        "spec": {"controller": "example.com/front"}});
    make(&c, "/apis/networking.k8s.io/v1/ingressclasses", class).await;
    let ingress = |name: &str, class: Value| {
        let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
        json!({"metadata": {"name": name}, "spec": {"ingressClassName": class, "defaultBackend": backend}})
    };
    let path = "/apis/networking.k8s.io/v1/namespaces/golden/ingresses";
    assert_eq!(make(&c, path, ingress("a", Value::Null)).await["spec"]["ingressClassName"], "front");
    assert_eq!(make(&c, path, ingress("b", "mine".into())).await["spec"]["ingressClassName"], "mine");
}

#[tokio::test]
async fn claims_grow_only_if_the_class_allows_it() {
    let c = Cluster::start(3).await;
    for (name, grows) in [("soft", true), ("hard", false)] {
        let class = json!({"metadata": {"name": name}, "provisioner": "example.com/x", "allowVolumeExpansion": grows});
        make(&c, "/apis/storage.k8s.io/v1/storageclasses", class).await;
    }
    let claims = "/api/v1/namespaces/golden/persistentvolumeclaims";
    let more = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    for name in ["soft", "hard", "unbound"] {
        let class = if name == "hard" { "hard" } else { "soft" };
        make(
            &c,
            claims,
            json!({"metadata": {"name": name}, "spec": {"storageClassName": class, "volumeName": "v",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
        )
        .await;
        if name != "unbound" {
            let bound = json!({"status": {"phase": "Bound"}});
            assert_eq!(call(&c, "PATCH", &format!("{claims}/{name}/status"), bound).await.0, 200);
        }
    }
    let (code, answer, _) = call(&c, "PATCH", &format!("{claims}/soft"), more.clone()).await;
    assert_eq!(code, 200, "{answer}");
    let text = refused(&c, "PATCH", &format!("{claims}/hard"), more).await;
    assert!(text.contains("the storageclass that provisions the pvc must support resize"), "{text}");
}

#[tokio::test]
async fn certificate_requests_need_permissions_and_not_system_masters() {
    let c = Cluster::start(4).await;
    let request = |group: &str| {
        let mut p = CertificateParams::new(Vec::new()).unwrap();
        p.distinguished_name.push(DnType::CommonName, "me");
        p.distinguished_name.push(DnType::OrganizationName, group);
        let pem = p.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        json!({"metadata": {"name": group.replace(':', "-")}, "spec": {"request": STANDARD.encode(pem),
            "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}})
    };
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let text = refused(&c, "POST", path, request("system:masters")).await;
    let want = "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
    assert!(text.ends_with(want), "{text}");
    make(&c, path, request("team")).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = |resources: &[&str]| json!({"metadata": {"name": "csr"}, "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": resources, "verbs": ["*"]}]});
    make(
        &c,
        &format!("{rbac}/clusterroles"),
        role(&["certificatesigningrequests", "certificatesigningrequests/approval"]),
    )
    .await;
    make(
        &c,
        &format!("{rbac}/clusterrolebindings"),
        json!({"metadata": {"name": "csr"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "csr"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jo"}]}),
    )
    .await;
    let jo = User::new("jo", &[]);
    let approval = format!("{path}/team/approval");
    let approve =
        json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "R", "message": "m"}]}});
    let (code, text) = reload(&c, &jo, "PATCH", &approval, approve.clone()).await;
    assert_eq!(code, 403);
    assert!(
        text.ends_with(
            "user not permitted to approve requests with signerName \"kubernetes.io/kube-apiserver-client\""
        ),
        "{text}"
    );
    let all = role(&["certificatesigningrequests", "certificatesigningrequests/approval", "signers"]);
    assert_eq!(call(&c, "PATCH", &format!("{rbac}/clusterroles/csr"), all).await.0, 200);
    let (code, text) = reload(&c, &jo, "PATCH", &approval, approve).await;
    assert_eq!(code, 200, "{text}");
}

/// Sends as a user whose permissions have just changed.
async fn reload(c: &Cluster, user: &User, method: &str, path: &str, body: Value) -> (u16, String) {
    let rbac = auth::RbacCache::new();
    rbac.load(&c.server.registry.store);
    let server = apiserver::Server::new(
        c.server.registry.clone(),
        apiserver::Authenticators::default(),
        rbac,
        admission::default_plugins(),
    );
    send(&server, user, method, path, body).await
}

#[tokio::test]
async fn plugins_can_be_enabled() {
    let plugins = ["ExtendedResourceToleration", "AlwaysPullImages", "PodNodeSelector"];
    let c = with(5, &plugins).await;
    let annotations =
        json!({"metadata": {"annotations": {"scheduler.alpha.kubernetes.io/node-selector": "zone=a, disk=ssd"}}});
    assert_eq!(call(&c, "PATCH", "/api/v1/namespaces/golden", annotations).await.0, 200);
    let containers = json!([{"name": "c", "image": "i:1", "imagePullPolicy": "Never",
        "resources": {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}}]);
    let o = make(&c, PODS, pod("p", json!({"containers": containers, "nodeSelector": {"disk": "ssd"}}))).await;
    assert_eq!(o["spec"]["nodeSelector"], json!({"disk": "ssd", "zone": "a"}));
    assert_eq!(o["spec"]["containers"][0]["imagePullPolicy"], "Always");
    let gpu = json!({"key": "example.com/gpu", "operator": "Exists", "effect": "NoSchedule"});
    assert!(o["spec"]["tolerations"].as_array().unwrap().contains(&gpu));
    let text = refused(&c, "POST", PODS, pod("q", json!({"nodeSelector": {"zone": "b"}}))).await;
    assert!(text.ends_with("pod node label selector conflicts with its namespace node label selector"), "{text}");
    let plain = Cluster::start(5).await;
    let o = make(&plain, PODS, pod("p", json!({}))).await;
    assert!(o["spec"]["nodeSelector"].is_null());
}

#[tokio::test]
async fn node_agents_change_only_their_own_objects() {
    let c = with(6, &["NodeRestriction"]).await;
    // As agents may do everything by their groups here, what is refused is refused by admission.
    let agent = |n: &str| User::new(format!("system:node:{n}"), &[auth::user::GROUP_NODES, auth::user::GROUP_MASTERS]);
    let (a, b) = (agent("a"), agent("b"));
    let node = |name: &str, label: &str| json!({"metadata": {"name": name, "labels": {label: "x"}}});
    let nodes = "/api/v1/nodes";
    let (code, text) = send(&c.server, &a, "POST", nodes, node("a", "node-restriction.kubernetes.io/team")).await;
    assert_eq!(code, 403);
    assert!(
        text.ends_with("node \"a\" is not allowed to set the following labels: node-restriction.kubernetes.io/team"),
        "{text}"
    );
    assert_eq!(send(&c.server, &a, "POST", nodes, node("a", "kubernetes.io/hostname")).await.0, 201);
    let (code, text) =
        send(&c.server, &b, "PATCH", "/api/v1/nodes/a", json!({"metadata": {"labels": {"own": "1"}}})).await;
    assert_eq!(code, 403);
    assert!(text.ends_with("node \"b\" is not allowed to modify node \"a\""), "{text}");
    let (code, text) = send(&c.server, &a, "PATCH", "/api/v1/nodes/a", json!({"spec": {"taints": []}})).await;
    assert_eq!(code, 403);
    assert!(text.ends_with("node \"a\" is not allowed to modify taints"), "{text}");
    assert_eq!(
        send(&c.server, &a, "PATCH", "/api/v1/nodes/a", json!({"metadata": {"labels": {"own": "1"}}})).await.0,
        200
    );
    make(&c, PODS, pod("mine", json!({"nodeName": "a"}))).await;
    let status = json!({"status": {"phase": "Running"}});
    let path = format!("{PODS}/mine");
    assert_eq!(send(&c.server, &a, "PATCH", &format!("{path}/status"), status.clone()).await.0, 200);
    let (code, text) = send(&c.server, &b, "PATCH", &format!("{path}/status"), status).await;
    assert_eq!(code, 403);
    assert!(text.contains("can only update pod status for pods with spec.nodeName set to itself"), "{text}");
    let (code, text) = send(&c.server, &b, "DELETE", &path, Value::Null).await;
    assert_eq!(code, 403, "{text}");
    let (code, text) = send(&c.server, &a, "POST", PODS, pod("other", json!({"nodeName": "a"}))).await;
    assert_eq!(code, 403);
    assert!(text.contains("node \"a\" can only create mirror pods"), "{text}");
}

/// A node writes only volumes that are directories of its own, for claims for which it was selected.
#[tokio::test]
async fn nodes_provision_directories_of_their_own() {
    let c = with(6, &["NodeRestriction"]).await;
    let agent = |n: &str| User::new(format!("system:node:{n}"), &[auth::user::GROUP_NODES, auth::user::GROUP_MASTERS]);
    let (a, b) = (agent("a"), agent("b"));
    let provisioner = "kemudi.local/directory";
    let annotations =
        json!({"volume.kubernetes.io/selected-node": "a", "volume.kubernetes.io/storage-provisioner": provisioner});
    let claim = json!({"metadata": {"name": "c", "annotations": annotations}, "spec": {"accessModes": ["ReadWriteOnce"],
        "storageClassName": "local", "resources": {"requests": {"storage": "1Gi"}}}});
    let claims = "/api/v1/namespaces/golden/persistentvolumeclaims";
    make(&c, claims, claim).await;
    let uid =
        call(&c, "GET", &format!("{claims}/c"), Value::Null).await.1["metadata"]["uid"].as_str().unwrap().to_owned();
    let volume = |node: &str| {
        let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
        json!({"metadata": {"name": format!("pvc-{uid}"), "annotations": {"pv.kubernetes.io/provisioned-by": provisioner}}, "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "local": {"path": "/x"}, "storageClassName": "local",
            "claimRef": {"namespace": "golden", "name": "c", "uid": uid},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}}})
    };
    let volumes = "/api/v1/persistentvolumes";
    let with = |pointer: &str, value: Value| {
        let mut v = volume("a");
        *v.pointer_mut(pointer).unwrap() = value;
        v
    };
    let refused = [
        (&b, volume("b"), "the scheduler has selected another node"),
        (&b, volume("a"), "a volume of another node"),
        (&a, with("/metadata/name", "mine".into()), "another name"),
        (&a, with("/metadata/annotations", json!({})), "another provisioner"),
        (&a, with("/spec/claimRef/uid", "other".into()), "another claim"),
    ];
    for (user, body, why) in refused {
        let (code, text) = send(&c.server, user, "POST", volumes, body).await;
        assert_eq!(code, 403, "{why}: {text}");
        assert!(
            text.contains("can only write PersistentVolumes that are directories of the requesting node"),
            "{text}"
        );
    }
    assert_eq!(send(&c.server, &a, "POST", volumes, volume("a")).await.0, 201);
    let path = format!("{volumes}/pvc-{uid}");
    let finalizers = json!({"metadata": {"finalizers": ["example.com/x"]}});
    assert_eq!(send(&c.server, &b, "PATCH", &path, finalizers.clone()).await.0, 403);
    assert_eq!(send(&c.server, &a, "PATCH", &path, json!({"spec": {"claimRef": null}})).await.0, 403);
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "gone"});
    for metadata in [json!({"labels": {"mine": "yes"}}), json!({"ownerReferences": [owner]})] {
        assert_eq!(send(&c.server, &a, "PATCH", &path, json!({"metadata": metadata})).await.0, 403, "{metadata}");
    }
    assert_eq!(
        send(&c.server, &a, "PATCH", &format!("{path}/status"), json!({"status": {"phase": "Released"}})).await.0,
        403
    );
    // Volumes grow.
    let capacity = |size: &str| json!({"spec": {"capacity": {"storage": size}}});
    let mut other = capacity("3Gi");
    other["spec"]["local"] = json!({"path": "/y"});
    for (user, change, code) in
        [(&a, capacity("2Gi"), 200), (&a, capacity("1Gi"), 403), (&a, other, 403), (&b, capacity("3Gi"), 403)]
    {
        assert_eq!(send(&c.server, user, "PATCH", &path, change.clone()).await.0, code, "{change}");
    }
    assert_eq!(send(&c.server, &b, "DELETE", &path, Value::Null).await.0, 403);
    assert_eq!(send(&c.server, &a, "PATCH", &path, finalizers).await.0, 200);
    assert_eq!(send(&c.server, &a, "DELETE", &path, Value::Null).await.0, 200);
}

#[tokio::test]
async fn owner_references_need_permission_to_delete() {
    let c = with(7, &["OwnerReferencesPermissionEnforcement"]).await;
    let owner = |block: bool| json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u", "blockOwnerDeletion": block}]);
    let map = |name: &str, block: bool| json!({"metadata": {"name": name, "ownerReferences": owner(block)}});
    let path = "/api/v1/namespaces/golden/configmaps";
    make(&c, path, map("admin", true)).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    make(
        &c,
        &format!("{rbac}/clusterroles"),
        json!({"metadata": {"name": "maps"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]}),
    )
    .await;
    make(
        &c,
        &format!("{rbac}/clusterrolebindings"),
        json!({"metadata": {"name": "maps"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "maps"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jo"}]}),
    )
    .await;
    let jo = User::new("jo", &[]);
    let as_jo = async |body: Value| {
        let cache = auth::RbacCache::new();
        cache.load(&c.server.registry.store);
        let names = ["OwnerReferencesPermissionEnforcement".to_owned()];
        let chain = admission::chain(&names, &[]).unwrap();
        let server =
            apiserver::Server::new(c.server.registry.clone(), apiserver::Authenticators::default(), cache, chain);
        send(&server, &jo, "POST", path, body).await
    };
    assert_eq!(as_jo(json!({"metadata": {"name": "free"}})).await.0, 201);
    let (code, text) = as_jo(map("owned", false)).await;
    assert_eq!(code, 403);
    assert!(text.contains("cannot set an ownerRef on a resource you can't delete"), "{text}");
    let both = json!({"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "delete"]}]});
    assert_eq!(call(&c, "PATCH", &format!("{rbac}/clusterroles/maps"), both).await.0, 200);
    assert_eq!(as_jo(map("owned", false)).await.0, 201);
    let (code, text) = as_jo(map("blocking", true)).await;
    assert_eq!(code, 403);
    assert!(text.contains("refers to a resource you can't set finalizers on"), "{text}");
}

async fn node(c: &Cluster, name: &str, labels: Value, status: Value) {
    make(c, "/api/v1/nodes", json!({"metadata": {"name": name, "labels": labels}})).await;
    let (code, answer, _) = call(c, "PATCH", &format!("/api/v1/nodes/{name}/status"), json!({"status": status})).await;
    assert_eq!(code, 200, "{answer}");
}

/// Pods get the topology labels of their node, whoever binds them.
#[tokio::test]
async fn pods_have_the_topology_labels_of_their_nodes() {
    let c = Cluster::start(1).await;
    let zone = "topology.kubernetes.io/zone";
    let labels = json!({zone: "z", "topology.kubernetes.io/region": "r", "topology.kubernetes.io/rack": "1"});
    node(&c, "n", labels, json!({})).await;
    let mut own = pod("own", json!({"nodeName": "n"}));
    own["metadata"]["labels"] = json!({zone: "mine"});
    let made = make(&c, PODS, own).await;
    assert_eq!(made["metadata"]["labels"], json!({zone: "mine", "topology.kubernetes.io/region": "r"}));
    let mut bound = pod("bound", json!({}));
    bound["metadata"]["labels"] = json!({"a": "b", zone: "mine"});
    make(&c, PODS, bound).await;
    let binding = json!({"metadata": {"name": "bound"}, "target": {"kind": "Node", "name": "n"}});
    let mut late = binding.clone();
    late["metadata"]["resourceVersion"] = json!("1");
    assert_eq!(call(&c, "POST", &format!("{PODS}/bound/binding"), late).await.0, 409);
    make(&c, &format!("{PODS}/bound/binding"), binding.clone()).await;
    let (_, live, _) = call(&c, "GET", &format!("{PODS}/bound"), Value::Null).await;
    let want = json!({"a": "b", zone: "z", "topology.kubernetes.io/region": "r"});
    assert_eq!(live["metadata"]["labels"], want, "labels of a binding have priority");
    let (code, answer, _) = call(&c, "POST", &format!("{PODS}/bound/binding"), binding).await;
    let why = "Operation cannot be fulfilled on pods/binding \"bound\": pod bound is already assigned to node \"n\"";
    assert_eq!((code, answer["message"].as_str().unwrap()), (409, why));
}

/// A pod changes to what its node can do, and no further. Issue 3, item 5.
#[tokio::test]
async fn pod_updates_depend_on_declared_features_of_nodes() {
    let c = Cluster::start(1).await;
    let room = json!({"cpu": "8", "memory": "8Gi", "pods": "10"});
    let feature = "InPlacePodLevelResourcesVerticalScaling";
    for (name, features) in [("old", json!([])), ("new", json!([feature]))] {
        let status = json!({"allocatable": room, "capacity": room, "declaredFeatures": features});
        node(&c, name, json!({"kubernetes.io/os": "linux"}), status).await;
        let resources =
            |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "1Gi"}, "limits": {"cpu": cpu, "memory": "1Gi"}});
        let container = json!({"name": "c", "image": "i", "resources": resources("1")});
        let p = pod(name, json!({"nodeName": name, "containers": [container], "resources": resources("3")}));
        make(&c, PODS, p).await;
        let (path, media) = (format!("{PODS}/{name}/resize"), "application/strategic-merge-patch+json");
        let resize = async |spec: Value| {
            let body = json!({"spec": spec});
            let a = c.send("PATCH", &path, Some(media), "application/json", body.to_string().into()).await;
            (a.code, a.body["message"].as_str().unwrap_or_default().to_owned())
        };
        let (code, message) = resize(json!({"containers": [{"name": "c", "resources": resources("2")}]})).await;
        assert_eq!(code, 200, "CPUs of a guaranteed pod are resized on any node: {message}");
        let (code, message) = resize(json!({"resources": resources("4")})).await;
        if name == "new" {
            assert_eq!(code, 200, "{message}");
        } else {
            let why = format!(
                "pods \"old\" is forbidden: pod update requires features {feature} which are not available on node \"old\""
            );
            assert_eq!((code, message), (403, why));
        }
    }
}

/// Plugins that are off by default.
#[tokio::test]
async fn denying_plugins_can_be_enabled() {
    let c = with(1, &["DenyServiceExternalIPs", "LimitPodHardAntiAffinityTopology", "NamespaceExists", "AlwaysAdmit"])
        .await;
    let services = "/api/v1/namespaces/golden/services";
    let service = |name: &str, ips: Value| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "externalIPs": ips}});
    let why = refused(&c, "POST", services, service("s", json!(["10.0.0.1"]))).await;
    assert_eq!(why, "services \"s\" is forbidden: Use of external IPs is denied by admission control");
    make(&c, services, service("s", json!([]))).await;
    let anti = |key: &str| {
        let term = json!({"topologyKey": key, "labelSelector": {"matchLabels": {"a": "b"}}});
        pod("p", json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}))
    };
    let why = refused(&c, "POST", PODS, anti("zone")).await;
    assert!(why.ends_with("has TopologyKey zone but only key kubernetes.io/hostname is allowed"), "{why}");
    make(&c, PODS, anti("kubernetes.io/hostname")).await;
    let (code, answer, _) = call(&c, "DELETE", "/api/v1/namespaces/nowhere/configmaps/x", Value::Null).await;
    assert_eq!(code, 404, "{answer}");
    let c = with(1, &["AlwaysDeny"]).await;
    let why = refused(&c, "POST", "/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    assert_eq!(why, "namespaces \"n\" is forbidden: admission control is denying all modifications");
}

/// Clauses: K08.new-namespace
#[tokio::test]
async fn a_pod_waits_for_the_account_of_a_new_namespace() {
    let c = Cluster::start(1).await;
    make(&c, "/api/v1/namespaces", json!({"metadata": {"name": "new"}})).await;
    let accounts = "/api/v1/namespaces/new/serviceaccounts";
    let (pod, account) = tokio::join!(
        call(&c, "POST", "/api/v1/namespaces/new/pods", pod("p", json!({}))),
        call(&c, "POST", accounts, json!({"metadata": {"name": "default"}})),
    );
    assert_eq!((pod.0, account.0), (201, 201), "{}", pod.1);
    assert_eq!(pod.1["spec"]["serviceAccountName"], "default");
    let other = self::pod("q", json!({"serviceAccountName": "other"}));
    assert_eq!(
        refused(&c, "POST", "/api/v1/namespaces/new/pods", other).await,
        "pods \"q\" is forbidden: error looking up service account new/other: serviceaccount \"other\" not found"
    );
    make(&c, "/api/v1/namespaces", json!({"metadata": {"name": "without"}})).await;
    assert_eq!(
        refused(&c, "POST", "/api/v1/namespaces/without/pods", self::pod("p", json!({}))).await,
        "pods \"p\" is forbidden: error looking up service account without/default: serviceaccount \"default\" not found"
    );
}
