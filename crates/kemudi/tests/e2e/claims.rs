//! Claims and persistent volumes: provisioned ones, volumes of administrators, and pods that wait for them.

use crate::runner::Case;
use crate::story::{Story, condition};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

pub const TESTS: &[Case] = &[
    ("claims::provisioned_volumes_live_as_long_as_their_claim", provisioned_volumes_live_as_long_as_their_claim),
    ("claims::volumes_of_administrators_are_mounted", volumes_of_administrators_are_mounted),
    ("claims::ephemeral_volumes_go_with_their_pod", ephemeral_volumes_go_with_their_pod),
    ("claims::pods_wait_for_what_cannot_be_mounted", pods_wait_for_what_cannot_be_mounted),
];

pub const ALONE: &[Case] = &[("claims::data_survives_a_killed_server", data_survives_a_killed_server)];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

pub fn volume_path(name: &str) -> String {
    format!("/api/v1/persistentvolumes/{name}")
}

/// The name of the volume that a claim is bound to, and its file.
pub fn file(s: &Story, claim: &str) -> (String, PathBuf) {
    let bound = s.until(&format!("persistentvolumeclaims/{claim}"), |c| c["status"]["phase"] == "Bound");
    let name = bound["spec"]["volumeName"].as_str().unwrap().to_owned();
    let volume = s.get_at(&volume_path(&name));
    (name, volume["spec"]["local"]["path"].as_str().unwrap().into())
}

fn request(more: Value) -> Value {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Mi"}}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

fn claim(s: &Story, name: &str, more: Value) {
    s.create("persistentvolumeclaims", json!({"metadata": {"name": name}, "spec": request(more)}));
}

fn stateful_set(s: &Story) {
    let mounts = json!([{"name": "data", "mountPath": "/data"}, {"name": "tools", "mountPath": "/bin"}]);
    let container =
        json!({"name": "c", "image": crate::story::IMAGE, "command": ["sh", "-c", FOREVER], "volumeMounts": mounts});
    let template = json!({"metadata": {"labels": {"app": "db"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], "volumes": [s.tools()]}});
    let set = json!({"metadata": {"name": "db", "namespace": s.ns}, "spec": {
        "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": template,
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": request(json!({}))}]}});
    s.post(&format!("/apis/apps/v1/namespaces/{}/statefulsets", s.ns), set);
    s.ready("db-0");
}

/// Clauses: C08.claims P02.persistent
fn provisioned_volumes_live_as_long_as_their_claim(s: &Story) {
    let class = s.get_at("/apis/storage.k8s.io/v1/storageclasses/local");
    assert_eq!(class["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"], "true");
    stateful_set(s);
    let (name, path) = file(s, "data-db-0");
    assert_eq!(path.file_name().unwrap().to_str(), Some(&*format!("{name}.img")));
    s.sh("db-0", "echo kept > /data/file");
    let before = s.get("pods/db-0")["metadata"]["uid"].clone();
    s.ok(&["delete", "pod", "db-0"]);
    s.until("pods/db-0", |p| p["metadata"]["uid"] != before && condition(p, "Ready") == "True");
    assert_eq!(s.sh("db-0", "cat /data/file"), "kept\n");
    let volume = s.get_at(&volume_path(&name));
    assert_eq!(volume["status"]["phase"], "Bound");
    assert_eq!(volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"], "kemudi.local/directory");
    assert!(s.event("data-db-0", "ProvisioningSucceeded").contains(&name));

    // The claim stays while a pod uses it, then takes volume and data with it.
    s.ok(&["delete", "pvc", "data-db-0", "--wait=false"]);
    assert!(s.get("persistentvolumeclaims/data-db-0")["metadata"]["deletionTimestamp"].is_string());
    assert!(path.exists());
    s.ok(&["delete", "statefulset", "db"]);
    s.gone("persistentvolumeclaims/data-db-0");
    s.until_at(&volume_path(&name), Value::is_null);
    assert!(!path.exists());
}

/// Clauses: P02.persistent P02.retained
fn volumes_of_administrators_are_mounted(s: &Story) {
    let root = s.dir.join("disk");
    std::fs::create_dir_all(root.join("sub")).unwrap();
    std::fs::write(root.join("sub/file"), "x").unwrap();
    let node = s.get_at("/api/v1/nodes")["items"][0]["metadata"]["name"].as_str().unwrap().to_owned();
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}});
    for (name, source, affinity) in [("local", "local", affinity), ("host", "hostPath", Value::Null)] {
        let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "claimRef": {"namespace": s.ns, "name": name}, source: {"path": root}, "nodeAffinity": affinity});
        s.post("/api/v1/persistentvolumes", json!({"metadata": {"name": format!("{}-{name}", s.ns)}, "spec": spec}));
        claim(s, name, json!({"storageClassName": ""}));
    }
    let volumes = json!([
        {"name": "local", "persistentVolumeClaim": {"claimName": "local"}},
        {"name": "host", "persistentVolumeClaim": {"claimName": "host", "readOnly": true}},
    ]);
    let mounts = json!([
        {"name": "local", "mountPath": "/local", "subPath": "sub"}, {"name": "host", "mountPath": "/host"},
    ]);
    let context = json!({"fsGroup": 4242});
    s.shell_pod("p", FOREVER, json!({"volumes": volumes, "securityContext": context}), json!({"volumeMounts": mounts}));
    s.ready("p");
    assert_eq!(s.sh("p", "cat /local/file; echo y > /local/new; cat /host/sub/new"), "xy\n");
    assert!(
        !s.exec("p", &["sh", "-c", "echo z > /host/z"]).status.success(),
        "a claim may be mounted for reading only"
    );
    assert_eq!(std::fs::metadata(root.join("sub/file")).unwrap().gid(), 4242);
    s.ok(&["delete", "pod", "p"]);
    s.ok(&["delete", "pvc", "local"]);
    let volume = volume_path(&format!("{}-local", s.ns));
    s.until_at(&volume, |v| v["status"]["phase"] == "Released");
    assert!(root.join("sub/new").exists(), "the reclaim policy is Retain");
    s.ok(&["delete", "pvc", "host"]);
    s.ok(&["delete", "pv", &format!("{}-local", s.ns), &format!("{}-host", s.ns)]);
}

/// Clauses: P02.ephemeral
fn ephemeral_volumes_go_with_their_pod(s: &Story) {
    let template = json!({"spec": request(json!({}))});
    let volumes = json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]);
    let mounts = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    s.shell_pod("p", FOREVER, json!({"volumes": volumes}), json!({"volumeMounts": mounts}));
    s.ready("p");
    s.sh("p", "echo x > /scratch/file");
    let (name, path) = file(s, "p-scratch");
    assert!(path.exists());
    s.ok(&["delete", "pod", "p"]);
    s.gone("persistentvolumeclaims/p-scratch");
    s.until_at(&volume_path(&name), Value::is_null);
    assert!(!path.exists());
}

/// Clauses: P02.waiting
fn pods_wait_for_what_cannot_be_mounted(s: &Story) {
    let node = s.get_at("/api/v1/nodes")["items"][0]["metadata"]["name"].clone();
    let pod = |name: &str, claim: &str| {
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
        let mounts = json!([{"name": "v", "mountPath": "/v"}]);
        // The scheduler would wait itself.
        s.shell_pod(name, FOREVER, json!({"volumes": volumes, "nodeName": node}), json!({"volumeMounts": mounts}));
    };
    claim(s, "unbound", json!({"storageClassName": ""}));
    pod("early", "unbound");
    let message = s.event("early", "FailedMount");
    assert!(message.contains(&format!("error processing PVC {}/unbound: PVC is not bound", s.ns)), "{message}");
    assert!(s.event("unbound", "FailedBinding").contains("no persistent volumes available for this claim"));
    let root = s.dir.join("disk");
    let volume = |name: &str, more: Value| {
        let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "hostPath": {"path": root}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        s.post("/api/v1/persistentvolumes", json!({"metadata": {"name": format!("{}-{name}", s.ns)}, "spec": spec}));
    };
    volume("late", json!({"claimRef": {"namespace": s.ns, "name": "unbound"}}));
    s.ready("early");

    let there = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["elsewhere"]});
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}});
    volume("far", json!({"claimRef": {"namespace": s.ns, "name": "far"}, "nodeAffinity": affinity}));
    claim(s, "far", json!({"storageClassName": ""}));
    s.until("persistentvolumeclaims/far", |c| c["status"]["phase"] == "Bound");
    pod("lost", "far");
    let message = s.event("lost", "FailedMount");
    assert!(message.contains("MountVolume.NodeAffinity check failed for volume"), "{message}");
    s.ok(&["delete", "pod", "early", "lost"]);
    s.ok(&["delete", "pvc", "unbound", "far"]);
    s.ok(&["delete", "pv", &format!("{}-late", s.ns), &format!("{}-far", s.ns)]);
}

/// Clauses: C08.claims P02.persistent
fn data_survives_a_killed_server(s: &Story) {
    stateful_set(s);
    let (name, path) = file(s, "data-db-0");
    s.sh("db-0", "echo kept > /data/file");
    s.ok(&["delete", "pod", "db-0", "--wait=false"]);
    s.cluster.kill();
    s.cluster.start_again();
    s.eventually("the data of the new pod", || {
        let ready = condition(&s.get("pods/db-0"), "Ready") == "True";
        (ready && s.exec("db-0", &["cat", "/data/file"]).stdout == b"kept\n").then_some(())
    });
    // Users decide about the class of a cluster that exists.
    let class = "/apis/storage.k8s.io/v1/storageclasses/local";
    let given = s.get_at(class);
    s.ok(&["delete", "storageclass", "local"]);
    s.ok(&["delete", "statefulset", "db"]);
    s.ok(&["delete", "pvc", "data-db-0", "--wait=false"]);
    s.cluster.kill();
    s.cluster.start_again();
    s.gone("persistentvolumeclaims/data-db-0");
    s.until_at(&volume_path(&name), Value::is_null);
    assert!(!path.exists());
    assert!(s.get_at(class).is_null(), "it was deleted");
    let metadata = json!({"name": "local", "annotations": given["metadata"]["annotations"]});
    let again = json!({"metadata": metadata, "provisioner": given["provisioner"], "parameters": given["parameters"],
        "volumeBindingMode": given["volumeBindingMode"], "allowVolumeExpansion": given["allowVolumeExpansion"]});
    s.post("/apis/storage.k8s.io/v1/storageclasses", again);
}
