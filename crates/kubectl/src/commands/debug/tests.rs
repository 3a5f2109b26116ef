use crate::testing::{Server, snapshot};
use futures::SinkExt;
use meta::Value;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

const POD: &str = "/api/v1/namespaces/default/pods";

fn pod(name: &str, status: Value) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default", "uid": "1", "labels": {"a": "b"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i", "livenessProbe": {}}]}, "status": status})
}

fn server() -> Server {
    Server::new()
        .on(&format!("GET {POD}/p"), 200, pod("p", json!({})))
        .on(&format!("PATCH {POD}/p/ephemeralcontainers"), 200, pod("p", json!({})))
        .on(&format!("POST {POD}"), 201, pod("q", json!({})))
        .on(&format!("DELETE {POD}/p"), 200, json!({}))
        .on("GET /api/v1/nodes/n", 200, json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}}))
}

#[tokio::test]
async fn adds_an_ephemeral_container() {
    let s = server();
    let output = snapshot(&s, "debug p --image=busybox --target=c --env=A=1 -- sleep 1", "").await;
    let target = "Targeting container \"c\". If you don't see processes from this container it may be because the container runtime doesn't support this feature.\n";
    assert!(output.starts_with(&format!("{target}Defaulting debug container name to debugger-")), "{output}");
    let sent = s.body_of(&format!("PATCH {POD}/p/ephemeralcontainers"));
    let c = &sent["spec"]["ephemeralContainers"][0];
    assert_eq!(c["securityContext"], json!({"capabilities": {"add": ["SYS_PTRACE"]}}));
    assert_eq!(
        (&c["command"], &c["targetContainerName"], &c["image"]),
        (&json!(["sleep", "1"]), &json!("c"), &json!("busybox"))
    );
    assert_eq!(c["env"], json!([{"name": "A", "value": "1"}]));
}

#[tokio::test]
async fn copies_a_pod() {
    let s = server();
    let line = "debug p --copy-to=q --set-image=c=new --image=busybox -c dbg --replace --profile=restricted";
    assert_eq!(snapshot(&s, line, "").await, "");
    let sent = s.body_of(&format!("POST {POD}"));
    assert_eq!(sent["metadata"], json!({"name": "q", "namespace": "default"}));
    assert_eq!(sent["spec"]["containers"][0], json!({"name": "c", "image": "new"}));
    assert_eq!(sent["spec"]["containers"][1]["securityContext"]["runAsNonRoot"], true);
    assert_eq!((&sent["spec"]["shareProcessNamespace"], &sent["spec"]["nodeName"]), (&json!(true), &Value::Null));
    assert!(s.requests().contains(&format!("DELETE {POD}/p")));
}

#[tokio::test]
async fn creates_a_pod_on_a_node() {
    let s = server();
    let output = snapshot(&s, "debug node/n --image=busybox", "").await;
    assert!(output.starts_with("Creating debugging pod node-debugger-n-"), "{output}");
    assert!(output.ends_with(" with container debugger on node n.\n"), "{output}");
    let sent = s.body_of(&format!("POST {POD}"));
    let spec = &sent["spec"];
    assert_eq!((&spec["hostPID"], &spec["nodeName"]), (&json!(true), &json!("n")));
    assert_eq!(spec["containers"][0]["volumeMounts"], json!([{"mountPath": "/host", "name": "host-root"}]));
    assert_eq!(spec["tolerations"], json!([{"operator": "Exists"}]));
}

#[tokio::test]
async fn attaches_to_the_container() {
    let running = json!({"ephemeralContainerStatuses": [{"name": "x", "state": {"running": {}}}]});
    let s = Server::new()
        .on(&format!("GET {POD}/p"), 200, pod("p", json!({})))
        .on(&format!("GET {POD}/p"), 200, pod("p", running))
        .on(&format!("PATCH {POD}/p/ephemeralcontainers"), 200, pod("p", json!({})))
        .on_upgrade(|mut ws| {
            Box::pin(async move {
                ws.send(Message::Binary(b"\x01hello\n".to_vec().into())).await.unwrap();
                ws.send(Message::Binary(b"\x03{\"status\":\"Success\"}".to_vec().into())).await.unwrap();
                ws.close(None).await.unwrap();
            })
        });
    assert_eq!(snapshot(&s, "debug p -q -i -c x --image=busybox", "").await, "hello\n");
}

#[tokio::test]
async fn errors_are_those_of_upstream() {
    let s = server();
    for (line, expected) in [
        ("debug p", "you must specify --image when not using --copy-to."),
        ("debug --image=x", "NAME or filename is required for debug"),
        ("debug p --image=x -t", "-i/--stdin is required for containers with -t/--tty=true"),
        ("debug p --image=x --profile=y", "unknown profile: y"),
        ("debug p --image=x --same-node", "--same-node may only be used with --copy-to."),
        ("debug p --copy-to=q", "you must specify --image, --set-image or command arguments."),
        (
            "debug p --copy-to=q --image=x --target=c",
            "--target is incompatible with --copy-to. Use --share-processes instead.",
        ),
        ("debug p --image=x --image-pull-policy=y", "invalid image pull policy: y"),
        (
            "debug p --attach --copy-to=q",
            "you must specify --container or create a new container using --image in order to attach.",
        ),
    ] {
        assert_eq!(snapshot(&s, line, "").await, format!("! error: {expected}\nexit 1\n"), "{line}");
    }
}

/// As upstream, an object of a file is not read from the server first.
#[tokio::test]
async fn takes_pods_of_files_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pod.yaml");
    std::fs::write(
        &path,
        "apiVersion: v1\nkind: Pod\nmetadata: {name: new}\nspec: {containers: [{name: c, image: i}]}\n",
    )
    .unwrap();
    let s = server();
    let output = snapshot(&s, &format!("debug -f {} --image=busybox", path.display()), "").await;
    assert!(output.starts_with("Defaulting debug container name to debugger-"), "{output}");
    assert!(output.contains("NotFound"), "{output}");
    let output = snapshot(&s, &format!("debug -f {} --image=busybox --copy-to=q", path.display()), "").await;
    assert!(!output.contains("rror"), "{output}");
    let made = s.body_of(&format!("POST {POD}"));
    assert_eq!((&made["metadata"]["name"], &made["spec"]["containers"][0]["image"]), (&json!("q"), &json!("i")));
}
