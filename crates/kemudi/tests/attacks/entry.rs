//! Credentials with too few permissions: nodes, mirror pods, paths of requests, proxies.

use crate::runner::Case;
use crate::story::Story;
use serde_json::json;
use std::fs;
use std::net::TcpListener;
use std::process::Command;

pub const TESTS: &[Case] = &[
    ("entry::nodes_change_only_what_is_theirs", nodes_change_only_what_is_theirs),
    ("entry::mirror_pods_refer_to_nothing", mirror_pods_refer_to_nothing),
    ("entry::no_path_leads_past_authorization", no_path_leads_past_authorization),
    ("entry::proxies_do_not_lead_to_the_server_itself", proxies_do_not_lead_to_the_server_itself),
];

/// Without a flag: the server restricts nodes because it authorizes them.
fn nodes_change_only_what_is_theirs(s: &Story) {
    let as_node = ["--as", "system:node:evil", "--as-group", "system:nodes"];
    let node = |arguments: &[&str], input: &str| {
        let o = Story::feed(s.bare(&[&as_node, arguments].concat()), input);
        (o.status.success(), String::from_utf8_lossy(&o.stderr).into_owned())
    };
    let own = "---\n{apiVersion: v1, kind: Node, metadata: {name: evil}}";
    assert!(node(&["create", "-f", "-"], own).0);
    let owner =
        r#"{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"gone"}]}}"#;
    let label = r#"{"metadata":{"labels":{"node-restriction.kubernetes.io/secure":"yes"}}}"#;
    let taint = r#"{"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}"#;
    for (arguments, why) in [
        (&["patch", "node", "evil", "--type=merge", "-p", owner][..], "is not allowed to modify ownerReferences"),
        (&["patch", "node", "evil", "--type=merge", "-p", label], "is not allowed to modify labels"),
        (&["patch", "node", "evil", "--type=merge", "-p", taint], "is not allowed to modify taints"),
        (&["patch", "node", "e2e", "--type=merge", "-p", "{\"metadata\":{\"labels\":{\"a\":\"b\"}}}"], "forbidden"),
    ] {
        let (done, said) = node(arguments, "");
        assert!(!done && said.contains(why), "{arguments:?}: {said}");
    }
    let slice = |node: &str| {
        format!(
            "---\n{{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {{name: s-{node}}}, spec: {{driver: d.example.com, \
             nodeName: {node}, pool: {{name: {node}, resourceSliceCount: 1}}}}}}"
        )
    };
    let (done, said) = node(&["create", "-f", "-"], &slice("e2e"));
    assert!(!done && said.contains("forbidden"), "{said}");
    let (done, said) = node(&["create", "-f", "-"], &slice("evil"));
    assert!(done, "{said}");
    // A request for a certificate in the name of another node.
    let request = |name: &str| {
        let (key, csr) = (s.dir.join("key.pem"), s.dir.join("csr.pem"));
        let subject = format!("/O=system:nodes/CN={name}");
        let made = Command::new("openssl")
            .args([
                "req",
                "-new",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-subj",
                &subject,
            ])
            .arg("-keyout")
            .arg(key)
            .arg("-out")
            .arg(&csr)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let encoded = Command::new("base64").arg("-w0").arg(csr).output().unwrap();
        let encoded = String::from_utf8(encoded.stdout).unwrap();
        format!(
            "---\n{{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {{generateName: r-}}, spec: {{request: {encoded}, \
             signerName: kubernetes.io/kube-apiserver-client-kubelet, usages: [digital signature, client auth]}}}}"
        )
    };
    let (done, said) = node(&["create", "-f", "-"], &request("system:node:e2e"));
    assert!(!done && said.contains("can only create a node CSR with CN=system:node:evil"), "{said}");
    let (done, said) = node(&["create", "-f", "-"], &request("system:node:evil"));
    assert!(done, "{said}");
    // A token of a pod's account for an audience that the pod does not name.
    let bound = s.create("pods", json!({"metadata": {"name": "bound"}, "spec": {"nodeName": "evil", "containers": [{"name": "c", "image": "x"}]}}));
    let uid = bound["metadata"]["uid"].as_str().unwrap();
    let path = format!("/api/v1/namespaces/{}/serviceaccounts/default/token", s.ns);
    for (audience, allowed) in [("https://elsewhere.example.com", false), ("", true)] {
        let audiences = if audience.is_empty() { json!([]) } else { json!([audience]) };
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": audiences,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "bound", "uid": uid}}});
        let (done, said) = node(&["create", "--raw", &path, "-f", "-"], &body.to_string());
        assert_eq!(done, allowed, "{audience:?}: {said}");
        assert!(allowed || said.contains("not found in pod spec volume"), "{said}");
    }
    s.k(&["delete", "pod", "bound", "--force", "--grace-period=0"]);
    s.ok(&["delete", "node/evil", "resourceslice/s-evil"]);
}

fn mirror_pods_refer_to_nothing(s: &Story) {
    s.create("secrets", json!({"metadata": {"name": "key"}, "stringData": {"password": "one"}}));
    let pod = |spec: serde_json::Value| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "m-",
            "annotations": {"kubernetes.io/config.mirror": "x"}},
            "spec": {"nodeName": "nowhere", "containers": [{"name": "c", "image": "x"}]}});
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        s.with_input(&["create", "-f", "-"], &pod.to_string())
    };
    let token = json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}});
    for (spec, why) in [
        (json!({"serviceAccountName": "default"}), "a mirror pod may not reference service accounts"),
        (
            json!({"volumes": [{"name": "v", "secret": {"secretName": "key"}}]}),
            "a mirror pod may not reference secrets",
        ),
        (json!({"imagePullSecrets": [{"name": "key"}]}), "a mirror pod may not reference secrets"),
        (
            json!({"volumes": [{"name": "v", "projected": token["projected"]}]}),
            "serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set",
        ),
    ] {
        let o = pod(spec.clone());
        let said = String::from_utf8_lossy(&o.stderr).into_owned();
        assert!(!o.status.success() && said.contains(why), "{spec}: {said}");
    }
}

/// A service account without a role requests secrets with every variant of their path.
fn no_path_leads_past_authorization(s: &Story) {
    s.create("secrets", json!({"metadata": {"name": "key"}, "stringData": {"password": "one"}}));
    s.ok(&["create", "serviceaccount", "nobody"]);
    let token = s.ok(&["create", "token", "nobody"]).trim().to_owned();
    let config = fs::read_to_string(&s.cluster.kubeconfig).unwrap();
    let server = config.lines().find_map(|l| l.trim().strip_prefix("server: ")).unwrap().to_owned();
    let ns = &s.ns;
    for path in [
        format!("/api/v1/namespaces/{ns}/secrets/key"),
        format!("//api/v1/namespaces/{ns}/secrets/key"),
        format!("/api//v1/namespaces/{ns}/secrets/key"),
        format!("/api/v1//namespaces/{ns}/secrets"),
        format!("/api/./v1/namespaces/{ns}/secrets/key"),
        format!("/healthz/../api/v1/namespaces/{ns}/secrets/key"),
        format!("/version/%2e%2e/api/v1/namespaces/{ns}/secrets/key"),
        format!("/api%2Fv1/namespaces/{ns}/secrets/key"),
        format!("/api/v1/namespaces%2F{ns}/secrets/key"),
        format!("/api/v1/namespaces/{ns}%2Fsecrets/key"),
        format!("/api/v1/namespaces/{ns}/secrets%2Fkey"),
        format!("/api/v1/namespaces/{ns}/secrets;/key"),
        format!("/api/v1/namespaces/{ns}/secrets/key/"),
        format!("/api/v1/namespaces/{ns}/SECRETS/key"),
        format!("/api/v1/watch/namespaces/{ns}/secrets/key?timeoutSeconds=1"),
        "/api/v1/secrets".to_owned(),
        format!("/api/v1/namespaces/{ns}/secrets/key%00"),
        format!("/apis//v1/namespaces/{ns}/secrets/key"),
        format!("/openapi/../api/v1/namespaces/{ns}/secrets"),
    ] {
        let o = Command::new("curl")
            .args(["--path-as-is", "-sk", "--max-time", "20", "-w", "\n%{http_code}", "-H"])
            .arg(format!("Authorization: Bearer {token}"))
            .arg(format!("{server}{path}"))
            .output()
            .unwrap();
        let answer = String::from_utf8_lossy(&o.stdout).into_owned();
        let code = answer.lines().last().unwrap_or_default();
        assert!(["400", "403", "404"].contains(&code) && !answer.contains("b25l"), "{path}: {answer}");
    }
}

/// An address of this machine in the form of another family.
fn proxies_do_not_lead_to_the_server_itself(s: &Story) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    for (i, address) in
        ["127.0.0.1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::1", "169.254.169.254", "0.0.0.0", "64:ff9b::7f00:1"]
            .into_iter()
            .enumerate()
    {
        let name = format!("mapped-{i}-{}", s.ns).chars().take(50).collect::<String>();
        let name = name.trim_end_matches('-');
        s.post("/api/v1/nodes", json!({"metadata": {"name": name}, "spec": {"unschedulable": true}}));
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        // What validation refuses leads nowhere either.
        let patched = s.k(&["patch", "node", name, "--subresource=status", "--type=merge", "-p", &status.to_string()]);
        let o = s.k(&["get", "--raw", &format!("/api/v1/nodes/{name}:{port}/proxy/")]);
        let said = String::from_utf8_lossy(&o.stderr).into_owned();
        assert!(!o.status.success(), "{address}");
        assert!(!patched.status.success() || said.contains("address not allowed"), "{address}: {said}");
        assert!(listener.accept().is_err(), "{address}: somebody was led here");
        s.ok(&["delete", "node", name]);
    }
}
