//! `log`, `exec`, `attach` and `portforward` of pods that do not run, with upstream's messages and codes.

use serde_json::Value;
use serde_json::json;
use testkit::Cluster;

#[tokio::test]
async fn pods_without_a_node_have_no_streams() {
    let c = Cluster::start(1).await;
    let base = "/api/v1/namespaces/default/pods";
    let many = json!([{"name": "web", "image": "x"}, {"name": "side", "image": "x"}]);
    let annotated = json!({"kubectl.kubernetes.io/default-container": "web"});
    for (name, containers, init) in [
        ("one", json!([{"name": "web", "image": "x"}]), json!([])),
        ("many", many, json!([{"name": "init-mydb", "image": "x"}])),
    ] {
        let pod = json!({"metadata": {"name": name, "annotations": annotated}, "spec": {"containers": containers,
            "initContainers": init, "automountServiceAccountToken": false}});
        let a = c.call("POST", base, pod).await;
        assert_eq!(a.code, 201, "{}", a.body);
    }
    let none = "pod one does not have a host assigned";
    let choose = "a container name must be specified for pod many, choose one of: [init-mydb web side]";
    for (method, path, code, expected) in [
        ("GET", "one/log", 204, ""),
        ("GET", "one/log?container=web&follow=true", 204, ""),
        ("GET", "many/log?container=init-mydb", 204, ""),
        ("GET", "one/log?container=foo", 400, "container foo is not valid for pod one"),
        ("GET", "many/log", 400, choose),
        ("POST", "one/exec?command=true&stdout=true", 400, none),
        ("POST", "one/attach?stdout=true", 400, none),
        ("POST", "one/portforward?ports=80", 400, none),
        ("GET", "one/portforward?ports=80", 400, none),
        ("POST", "one/exec?command=true&container=foo", 400, "container foo is not valid for pod one"),
        ("POST", "many/exec?command=true", 400, choose),
        ("POST", "many/attach", 400, choose),
    ] {
        let a = c.call(method, &format!("{base}/{path}"), Value::Null).await;
        let message = a.body["message"].as_str().unwrap_or_default();
        assert_eq!((a.code, message), (code, expected), "{method} {path}");
        if code == 400 {
            assert_eq!(a.body["reason"], "BadRequest");
        }
    }
}
