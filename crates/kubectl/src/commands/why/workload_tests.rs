use super::super::job;
use super::super::pod_pending::Nodes;
use super::super::reader::Reader;
use super::super::storage;
use super::*;
use crate::flags::GlobalFlags;
use crate::kube::Kube;
use crate::testing::{Server, shell};
use serde_json::json;

fn kube(server: &Server) -> Kube {
    let (shell, _, _) = shell(server, "", |_| None);
    Kube::new(shell, GlobalFlags::default())
}

fn list(items: Value) -> Value {
    json!({"items": items})
}

fn pod(name: &str, owner: &str, ready: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "d", "uid": name, "ownerReferences": [{"uid": owner, "controller": true}]},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-21T11:59:55Z"}],
            "containerStatuses": [{"name": "c", "ready": ready == "True", "state": {"running": {"startedAt": "2026-11-21T11:59:00Z"}}}]}})
}

/// A server with these pods in the namespace `d`, and their node.
fn server(pods: Value) -> Server {
    let node = json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    Server::new().on("GET /api/v1/namespaces/d/pods", 200, list(pods)).on("GET /api/v1/nodes/n", 200, node)
}

fn text(e: &Explanation) -> String {
    e.text("x", "2026-11-21T12:00:00Z".parse().unwrap())
}

fn object(kind: &str, spec: Value, status: Value) -> Value {
    json!({"kind": kind, "metadata": {"name": "x", "namespace": "d", "uid": "x", "generation": 1}, "spec": spec, "status": status})
}

/// Clauses: G01.rollout
#[tokio::test]
async fn explains_stateful_sets() {
    let check = async |spec: Value, status: Value, pods: Value, expect: &str| {
        let s = server(pods);
        let mut k = kube(&s);
        let set = object("StatefulSet", spec, status);
        let e = stateful_set(&mut Reader::new(&mut k), &set, Nodes::Grouped).await.unwrap();
        assert_eq!(text(&e), expect);
    };
    let status = |replicas: i64, available: i64, updated: i64| {
        json!({"observedGeneration": 1, "replicas": replicas, "availableReplicas": available,
        "updatedReplicas": updated, "currentRevision": "a", "updateRevision": "b"})
    };
    check(json!({"replicas": 2}), status(2, 2, 2), json!([]), "x is healthy: 2 of 2 replicas are available\n").await;
    check(
        json!({"replicas": 3, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}}),
        status(3, 3, 1),
        json!([pod("x-0", "x", "True"), pod("x-1", "x", "True"), pod("x-2", "x", "True")]),
        "x holds its update back: 3 of 3 replicas are available, 1 updated\n  its partition 2 keeps pods with lower ordinals at the old revision (2 of 3 pods)\n",
    )
    .await;
    check(
        json!({"replicas": 2, "updateStrategy": {"type": "OnDelete"}}),
        status(2, 2, 0),
        json!([pod("x-0", "x", "True"), pod("x-1", "x", "True")]),
        "x holds its update back: 2 of 2 replicas are available, 0 updated\n  2 pods have the old revision: with the strategy OnDelete a pod is updated when it is deleted\n",
    )
    .await;
    check(
        json!({"replicas": 3}),
        status(1, 0, 1),
        json!([pod("x-0", "x", "False")]),
        "\
x is not complete: 0 of 3 replicas are available, 1 updated
  pod x-0 is not ready
    container c has run for 60s and is not reported ready yet
  2 pods have not been created
  further pods are created when the earlier ones are ready (podManagementPolicy OrderedReady)
",
    )
    .await;
    let mut unobserved = status(1, 1, 1);
    unobserved["observedGeneration"] = 0.into();
    check(
        json!({"replicas": 1}),
        unobserved,
        json!([pod("x-0", "x", "True")]),
        "x is not complete: 1 of 1 replicas are available, 1 updated\n  the stateful set controller has not acted on generation 1 yet (last: 0); it may not run\n",
    )
    .await;
}

/// Clauses: G01.rollout
#[tokio::test]
async fn explains_daemon_sets_and_replica_sets() {
    let s = server(json!([pod("a", "x", "True"), pod("b", "x", "False"), pod("c", "x", "False")]));
    let mut k = kube(&s);
    let mut r = Reader::new(&mut k);
    let status = |desired: i64, available: i64| {
        json!({"observedGeneration": 1, "desiredNumberScheduled": desired,
        "numberAvailable": available, "updatedNumberScheduled": desired})
    };
    let none = daemon_set(&mut r, &object("DaemonSet", json!({}), status(0, 0)), Nodes::Grouped).await.unwrap();
    assert!(text(&none).starts_with("x runs on no node\n  no node matches"), "{}", text(&none));
    let some = daemon_set(&mut r, &object("DaemonSet", json!({}), status(3, 1)), Nodes::Grouped).await.unwrap();
    let expect = "\
x is not complete: 1 of 3 nodes run an available pod, 3 an updated one
  pod b is not ready, and 1 other pod like it
    container c has run for 60s and is not reported ready yet
";
    assert_eq!(text(&some), expect);
    let set = object(
        "ReplicaSet",
        json!({"replicas": 3, "minReadySeconds": 30}),
        json!({"observedGeneration": 1, "replicas": 3, "availableReplicas": 0}),
    );
    let young = replica_set(&mut r, &set, Nodes::Grouped).await.unwrap();
    assert!(text(&young).ends_with("  1 pod is ready for less than minReadySeconds (30s)\n"), "{}", text(&young));
}

#[tokio::test]
async fn explains_jobs_and_cron_jobs() {
    let failed = json!({"metadata": {"name": "x-1", "namespace": "d", "ownerReferences": [{"uid": "x", "controller": true}]},
        "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Failed", "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 2}}}]}});
    let s = server(json!([failed]));
    let mut k = kube(&s);
    let mut r = Reader::new(&mut k);
    let mut check = async |spec: Value, status: Value, expect: &str| {
        let e = job::job(&mut r, &object("Job", spec, status), Nodes::Grouped).await.unwrap();
        assert_eq!(text(&e), expect);
    };
    let condition = |kind: &str| json!([{"type": kind, "status": "True", "reason": "BackoffLimitExceeded", "message": "too often"}]);
    check(
        json!({"completions": 1}),
        json!({"succeeded": 1, "conditions": condition("Complete")}),
        "x has completed: 1 of 1 completions\n",
    )
    .await;
    let pods = "  1 pod failed; the last one: x-1\n    container c ended with exit code 2\n      => kubectl logs -n d x-1 -c c\n";
    check(
        json!({"completions": 1}),
        json!({"failed": 1, "conditions": condition("Failed")}),
        &format!("x has failed: BackoffLimitExceeded: too often\n{pods}"),
    )
    .await;
    check(
        json!({"completions": 1, "backoffLimit": 3}),
        json!({"failed": 1}),
        &format!("x is running: 0 of 1 completions, 0 active pods\n{pods}  1 of 3 failures that it may have (backoffLimit); after each one the job controller waits longer\n"),
    )
    .await;
    let now = "2026-11-21T12:00:00Z".parse().unwrap();
    let cron = |spec: Value, status: Value| text(&job::cron_job(&object("CronJob", spec, status), now));
    assert_eq!(
        cron(json!({"schedule": "5 12 * * *"}), json!({})),
        "x is healthy: no job has been started, the next one is due in 5m\n"
    );
    assert!(cron(json!({"schedule": "0 0 30 2 *"}), json!({})).contains("names no date that exists"));
    assert!(cron(json!({"schedule": "nonsense"}), json!({})).contains("cannot be used"));
    assert!(cron(json!({"schedule": "* * * * *", "suspend": true}), json!({})).starts_with("x is suspended\n"));
    // Starts that were due and did not happen.
    let started = |minute: u32| json!({"lastScheduleTime": format!("2026-11-21T11:{minute}:00Z")});
    for (spec, status, expect) in [
        (json!({}), started(59), None),
        (
            json!({}),
            started(50),
            Some(
                "9 starts since then did not happen, the last one was due 60s ago: the cronjob controller has not acted\n",
            ),
        ),
        (json!({}), json!({"lastScheduleTime": "2026-11-20T12:00:00Z"}), Some("more than 100 starts since then")),
        (
            json!({"startingDeadlineSeconds": 5}),
            started(58),
            Some("1 start since then did not happen; a start that is late by more than startingDeadlineSeconds (5s)"),
        ),
    ] {
        let mut all = json!({"schedule": "* * * * *"});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let text = cron(all, status);
        match expect {
            Some(part) => assert!(text.contains(part), "{text}"),
            None => assert!(text.starts_with("x is healthy: "), "{text}"),
        }
    }
    let forbidden =
        cron(json!({"schedule": "* * * * *", "concurrencyPolicy": "Forbid"}), json!({"active": [{"name": "old"}]}));
    assert!(
        forbidden.contains("no job is started while this one runs: old\n    => kubectl why -n d job/old\n"),
        "{forbidden}"
    );
}

#[tokio::test]
async fn explains_claims() {
    let class = |mode: &str, provisioner: &str| json!({"provisioner": provisioner, "volumeBindingMode": mode});
    let volume = |name: &str, phase: &str| {
        json!({"metadata": {"name": name}, "spec": {"storageClassName": "manual", "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"}}, "status": {"phase": phase}})
    };
    let s = Server::new()
        .on("GET /apis/storage.k8s.io/v1/storageclasses/now", 200, class("Immediate", "csi.example"))
        .on(
            "GET /apis/storage.k8s.io/v1/storageclasses/manual",
            200,
            class("WaitForFirstConsumer", "kubernetes.io/no-provisioner"),
        )
        .on("GET /api/v1/persistentvolumes", 200, list(json!([volume("a", "Available"), volume("b", "Bound")])));
    let mut k = kube(&s);
    let mut r = Reader::new(&mut k);
    let mut check = async |spec: Value, phase: &str, expect: &str| {
        let mut spec = spec;
        spec["resources"] = json!({"requests": {"storage": "5Gi"}});
        let e = storage::claim(&mut r, &object("PersistentVolumeClaim", spec, json!({"phase": phase}))).await.unwrap();
        assert_eq!(text(&e), expect);
    };
    check(json!({"volumeName": "v"}), "Bound", "x is healthy: bound to v\n").await;
    check(
        json!({"storageClassName": "now"}),
        "Pending",
        "x is not bound\n  PersistentVolumeClaim x waits for csi.example to provision 5Gi\n    no CSIDriver csi.example is registered: the provisioner may not be installed\n",
    )
    .await;
    check(
        json!({"storageClassName": "manual"}),
        "Pending",
        "x is not bound\n  PersistentVolumeClaim x needs an existing volume of 5Gi: the StorageClass manual provisions none\n    available, with another size, mode or label: a (1Gi, ReadWriteOnce)\n",
    )
    .await;
    check(
        json!({"volumeName": "gone"}),
        "Pending",
        "x is not bound\n  PersistentVolumeClaim x names the volume gone, which does not exist\n",
    )
    .await;
    check(
        json!({"volumeName": "v"}),
        "Lost",
        "x is not bound\n  PersistentVolumeClaim x is lost: its volume v does not exist any more\n",
    )
    .await;
    check(
        json!({}),
        "Pending",
        "x is not bound\n  PersistentVolumeClaim x has no storage class, and there was no default class when it was created\n    no volume of its class is available\n",
    )
    .await;
}

/// A paused Deployment has no ReplicaSet of its changed template: all of its sets are old ones.
#[tokio::test]
async fn finds_the_new_replica_set_by_its_template() {
    let set = |name: &str, image: &str, revision: &str, condition: Value| {
        let template = json!({"metadata": {"labels": {"app": "web", "pod-template-hash": name}}, "spec": {"containers": [{"image": image}]}});
        json!({"metadata": {"name": name, "namespace": "d", "uid": name, "ownerReferences": [{"uid": "x", "controller": true}],
                "annotations": {"deployment.kubernetes.io/revision": revision}},
            "spec": {"replicas": 1, "template": template},
            "status": {"replicas": 1, "availableReplicas": 1, "conditions": condition}})
    };
    let explained = async |sets: Value, spec: Value, conditions: Value| {
        let s = server(json!([pod("p", "a", "True"), pod("q", "b", "True")])).on(
            "GET /apis/apps/v1/namespaces/d/replicasets",
            200,
            list(sets),
        );
        let mut k = kube(&s);
        let mut spec = spec;
        spec["template"] = json!({"metadata": {"labels": {"app": "web"}, "creationTimestamp": null}, "spec": {"containers": [{"image": "new"}]}});
        let status = json!({"observedGeneration": 1, "replicas": 1, "availableReplicas": 1, "conditions": conditions});
        let d = object("Deployment", spec, status);
        text(&deployment(&mut Reader::new(&mut k), &d, Nodes::Grouped).await.unwrap())
    };
    let paused =
        explained(json!([set("a", "old", "1", json!([]))]), json!({"replicas": 1, "paused": true}), json!([])).await;
    assert!(paused.contains("the old ReplicaSet a keeps 1 replica while the rollout is paused\n"), "{paused}");
    // After a rollback the newest revision is not the newest set.
    let sets = json!([set("a", "new", "1", json!([])), set("b", "old", "2", json!([]))]);
    let rolling = explained(sets, json!({"replicas": 1}), json!([])).await;
    assert!(rolling.contains("the new ReplicaSet a: 1 of 1 replicas are available\n"), "{rolling}");
    assert!(rolling.contains("the old ReplicaSet b keeps 1 replica until new ones are available\n"), "{rolling}");
    // A quota refuses the pods of the set; the deployment repeats it.
    let refused = json!([{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: q",
        "lastTransitionTime": "2026-11-21T11:57:00Z"}]);
    let text = explained(json!([set("a", "new", "1", refused.clone())]), json!({"replicas": 1}), refused.clone()).await;
    assert_eq!(text.matches("exceeded quota").count(), 1, "{text}");
    assert!(text.contains("    pods cannot be created for 3m: exceeded quota: q\n"), "{text}");
}
