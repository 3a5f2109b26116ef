//! Commands that change live objects, and how apply takes the fields over afterwards.

use crate::handover::editor;
use crate::runner::Case;
use crate::story::{Story, Tool, text};
use serde_json::{Value, json};
use std::collections::BTreeSet;

pub const TESTS: &[Case] = &[
    ("imperative::set_changes_workloads", set_changes_workloads),
    ("imperative::set_changes_bindings_and_services", set_changes_bindings_and_services),
    ("imperative::apply_takes_the_fields_back", apply_takes_the_fields_back),
    ("imperative::edit_changes_what_is_live", edit_changes_what_is_live),
    ("imperative::patch_has_its_kinds", patch_has_its_kinds),
    ("imperative::labels_and_annotations", labels_and_annotations),
    ("imperative::replace_checks_resource_versions", replace_checks_resource_versions),
    ("imperative::forced_replacements_lose_nothing", forced_replacements_lose_nothing),
    ("imperative::flags_stand_anywhere", flags_stand_anywhere),
    ("imperative::create_opens_an_editor", create_opens_an_editor),
    ("imperative::create_makes_every_kind", create_makes_every_kind),
];

const MANIFEST: &str = "
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {tier: front}
spec:
  replicas: 0
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
      - name: nginx
        image: nginx:1.7.9
        env:
        - {name: MODE, value: plain}
        resources:
          limits: {cpu: 100m}
";

fn pod(s: &Story) -> Value {
    s.get("deployments/web")["spec"]["template"]["spec"].clone()
}

/// Clauses: A14.set-image A14.set-env A14.set-resources A14.set-serviceaccount A14.set-local
fn set_changes_workloads(s: &Story) {
    s.apply(MANIFEST);
    assert_eq!(s.ok(&["set", "image", "deployment/web", "nginx=nginx:1.11.9"]), "deployment.apps/web image updated\n");
    assert_eq!(pod(s)["containers"][0]["image"], "nginx:1.11.9");
    s.ok(&["set", "image", "deployments,replicasets", "*=nginx:2", "--all"]);
    assert_eq!(pod(s)["containers"][0]["image"], "nginx:2");
    let stderr = s.fails(&["set", "image", "deployment/web", "none=x"]);
    assert!(stderr.contains("unable to find container named \"none\""), "{stderr}");

    assert_eq!(s.ok(&["set", "env", "deployment/web", "MODE=odd", "MORE=1"]), "deployment.apps/web env updated\n");
    assert_eq!(
        s.ok(&["set", "env", "deployment/web", "--list"]),
        "# Deployment web, container nginx\nMODE=odd\nMORE=1\n"
    );
    s.ok(&["set", "env", "deployment/web", "MORE-"]);
    assert_eq!(pod(s)["containers"][0]["env"], json!([{"name": "MODE", "value": "odd"}]));
    s.ok(&["create", "configmap", "settings", "--from-literal=level=9"]);
    s.ok(&["set", "env", "--from=configmap/settings", "--prefix=APP_", "deployment/web"]);
    let from = json!({"name": "APP_LEVEL", "valueFrom": {"configMapKeyRef": {"key": "level", "name": "settings"}}});
    assert!(pod(s)["containers"][0]["env"].as_array().unwrap().contains(&from), "{}", pod(s));

    let line =
        ["set", "resources", "deployment", "web", "-c=nginx", "--limits=cpu=200m,memory=512Mi", "--requests=cpu=50m"];
    assert_eq!(s.ok(&line), "deployment.apps/web resource requirements updated\n");
    let resources = json!({"limits": {"cpu": "200m", "memory": "512Mi"}, "requests": {"cpu": "50m"}});
    assert_eq!(pod(s)["containers"][0]["resources"], resources);
    s.ok(&["create", "serviceaccount", "robot"]);
    assert_eq!(
        s.ok(&["set", "serviceaccount", "deployment", "web", "robot"]),
        "deployment.apps/web serviceaccount updated\n"
    );
    assert_eq!(pod(s)["serviceAccountName"], "robot");
    let before = pod(s);
    s.file("web.yaml", MANIFEST);
    let local = s.ok(&["set", "image", "-f", "web.yaml", "nginx=nginx:3", "--local", "-o", "yaml"]);
    assert!(local.contains("image: nginx:3"), "{local}");
    let dry = s.ok(&["set", "image", "deployment/web", "nginx=nginx:3", "--dry-run=server"]);
    assert_eq!(dry, "deployment.apps/web image updated (server dry run)\n");
    assert_eq!(pod(s), before);
}

/// Clauses: A14.set-selector A14.set-subject
fn set_changes_bindings_and_services(s: &Story) {
    s.ok(&["create", "service", "clusterip", "front", "--tcp=80:8080"]);
    assert_eq!(s.ok(&["set", "selector", "service", "front", "env=qa,tier=web"]), "service/front selector updated\n");
    assert_eq!(s.get("services/front")["spec"]["selector"], json!({"env": "qa", "tier": "web"}));
    s.ok(&["create", "rolebinding", "readers", "--role=reader", "--user=ann"]);
    let line = [
        "set",
        "subject",
        "rolebinding",
        "readers",
        "--user=ben",
        "--group=ops",
        &format!("--serviceaccount={}:robot", s.ns),
    ];
    assert_eq!(s.ok(&line), "rolebinding.rbac.authorization.k8s.io/readers subjects updated\n");
    let binding = s.get_at(&format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings/readers", s.ns));
    let subjects: Vec<(&str, &str)> = binding["subjects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| (v["kind"].as_str().unwrap(), v["name"].as_str().unwrap()))
        .collect();
    assert_eq!(subjects, [("User", "ann"), ("User", "ben"), ("Group", "ops"), ("ServiceAccount", "robot")]);
}

/// Clauses: A14.taken-back
fn apply_takes_the_fields_back(s: &Story) {
    s.file("web.yaml", MANIFEST);
    s.ok(&["apply", "-f", "web.yaml"]);
    let applied = s.get("deployments/web");
    s.ok(&["set", "image", "deployment/web", "nginx=other"]);
    s.ok(&["set", "env", "deployment/web", "MODE=odd", "MORE=1"]);
    s.ok(&["set", "resources", "deployment", "web", "--limits=cpu=1,memory=1Gi"]);
    s.ok(&["label", "deployment/web", "tier=back", "mine=yes", "--overwrite"]);
    s.ok(&["annotate", "deployment/web", "note=mine"]);
    s.ok(&["scale", "deployment/web", "--replicas=0"]);
    s.ok(&["patch", "deployment", "web", "-p", r#"{"spec":{"minReadySeconds":7}}"#]);
    assert_eq!(s.ok(&["apply", "-f", "web.yaml"]), "deployment.apps/web configured\n");
    let live = s.get("deployments/web");
    let container = &live["spec"]["template"]["spec"]["containers"][0];
    let was = &applied["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], was["image"]);
    // Fields in the file have the file's values; additions of others stay.
    assert_eq!(container["env"], json!([{"name": "MODE", "value": "plain"}, {"name": "MORE", "value": "1"}]));
    assert_eq!(container["resources"]["limits"], json!({"cpu": "100m", "memory": "1Gi"}));
    assert_eq!(live["metadata"]["labels"], json!({"tier": "front", "mine": "yes"}));
    assert_eq!(
        (&live["metadata"]["annotations"]["note"], &live["spec"]["minReadySeconds"]),
        (&json!("mine"), &json!(7))
    );
}

/// Clauses: A14.edit A14.edit-unchanged A14.edit-fails A14.edit-save-config A14.edit-json
fn edit_changes_what_is_live(s: &Story) {
    s.apply(MANIFEST);
    let edit = |script: &str, more: &[&str]| {
        let mut c = s.command(&[&["edit", "deployment/web"], more].concat());
        c.env("KUBE_EDITOR", editor(s, script)).output().unwrap()
    };
    assert_eq!(
        text(&[], &edit("sed -i 's/image: nginx:1.7.9/image: nginx:4/' \"$1\"", &[])),
        "deployment.apps/web edited\n"
    );
    assert_eq!(pod(s)["containers"][0]["image"], "nginx:4");
    let o = edit("true", &[]);
    assert_eq!(
        (o.status.code(), String::from_utf8_lossy(&o.stderr).as_ref()),
        (Some(0), "Edit cancelled, no changes made.\n")
    );
    let o = edit("exit 3", &[]);
    let stderr = String::from_utf8_lossy(&o.stderr).into_owned();
    assert!(o.status.code() == Some(1) && stderr.contains("there was a problem with the editor"), "{stderr}");
    // The page promises that an empty file cancels the edit; the real program calls it invalid.
    edit(": > \"$1\"", &[]);
    assert_eq!(pod(s)["containers"][0]["image"], "nginx:4");
    text(&[], &edit("sed -i 's/\"image\": \"nginx:4\"/\"image\": \"nginx:5\"/' \"$1\"", &["-o", "json"]));
    assert_eq!(pod(s)["containers"][0]["image"], "nginx:5");
    let last = |o: &Value| o["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"].to_string();
    assert!(last(&s.get("deployments/web")).contains("nginx:1.7.9"), "editing leaves the annotation");
    text(&[], &edit("sed -i 's/image: nginx:5/image: nginx:6/' \"$1\"", &["--save-config"]));
    assert!(last(&s.get("deployments/web")).contains("nginx:6"));
    // The server refuses the first change; the editor opens again with the error.
    let twice = "if grep -q 'was not valid' \"$1\"; then sed -i 's/^  replicas: -1/  replicas: 0/' \"$1\"; cp \"$1\" seen; \
                 sed -i 's/image: nginx:6/image: nginx:7/' \"$1\"; else sed -i 's/^  replicas: 0/  replicas: -1/' \"$1\"; fi";
    text(&[], &edit(twice, &[]));
    assert_eq!(pod(s)["containers"][0]["image"], "nginx:7");
    let seen = std::fs::read_to_string(s.dir.join("seen")).unwrap();
    assert!(seen.contains("# deployments.apps \"web\" was not valid:"), "{seen}");
    assert!(seen.contains("spec.replicas: Invalid value"), "{seen}");
}

/// Clauses: A14.patch-merge A14.patch-json A14.patch-subresource A14.patch-file A14.patch-dry-run
fn patch_has_its_kinds(s: &Story) {
    s.apply(MANIFEST);
    let patch = |more: &[&str]| s.k(&[&["patch", "deployment", "web"], more].concat());
    let merge = r#"{"spec":{"template":{"spec":{"containers":[{"name":"other","image":"x"}]}}}}"#;
    assert_eq!(text(&[], &patch(&["--type=merge", "-p", merge])), "deployment.apps/web patched\n");
    assert_eq!(pod(s)["containers"].as_array().unwrap().len(), 1, "a merge patch replaces lists");
    text(&[], &patch(&["-p", r#"{"spec":{"template":{"spec":{"containers":[{"name":"second","image":"y"}]}}}}"#]));
    assert_eq!(pod(s)["containers"].as_array().unwrap().len(), 2, "a strategic patch merges them");
    let json6902 = r#"[{"op":"test","path":"/spec/template/spec/containers/0/name","value":"second"},
        {"op":"replace","path":"/spec/template/spec/containers/0/image","value":"z"}]"#;
    text(&[], &patch(&["--type=json", "-p", json6902]));
    assert_eq!(pod(s)["containers"][0]["image"], "z");
    let o = patch(&["--type=json", "-p", r#"[{"op":"test","path":"/spec/replicas","value":9}]"#]);
    assert_eq!(o.status.code(), Some(1));
    assert_eq!(text(&[], &patch(&["-p", r#"{"spec":{"replicas":0}}"#])), "deployment.apps/web patched (no change)\n");
    s.file("p.yaml", "spec:\n  minReadySeconds: 9\n");
    let dry = text(&[], &patch(&["--patch-file=p.yaml", "--dry-run=server"]));
    assert!(dry.starts_with("deployment.apps/web patched"), "{dry}");
    assert_eq!(s.get("deployments/web")["spec"]["minReadySeconds"], Value::Null);
    text(&[], &patch(&["--patch-file=p.yaml"]));
    assert_eq!(s.get("deployments/web")["spec"]["minReadySeconds"], 9);
    text(&[], &patch(&["--subresource=status", "--type=merge", "-p", r#"{"status":{"collisionCount":3}}"#]));
    let live = s.get("deployments/web");
    assert_eq!(live["status"]["collisionCount"], 3);
    text(&[], &patch(&["--subresource=scale", "--type=merge", "-p", r#"{"spec":{"replicas":0}}"#]));
    let o = patch(&["--type=nonsense", "-p", "{}"]);
    assert!(String::from_utf8_lossy(&o.stderr).contains("--type must be one of [json merge strategic]"));
}

/// Clauses: A14.label A14.annotate A14.scale
fn labels_and_annotations(s: &Story) {
    s.apply(MANIFEST);
    assert_eq!(s.ok(&["label", "deployment", "web", "x=y"]), "deployment.apps/web labeled\n");
    assert_eq!(s.ok(&["label", "deployment", "web", "x=y"]), "deployment.apps/web not labeled\n");
    assert_eq!(
        s.fails(&["label", "deployment", "web", "x=z"]),
        "error: 'x' already has a value (y), and --overwrite is false\n"
    );
    s.ok(&["label", "--overwrite", "deployments", "-l", "x=y", "x=z"]);
    // The real one lists them in any order.
    let listed = s.ok(&["label", "deployment", "web", "--list"]);
    assert_eq!(listed.lines().collect::<BTreeSet<_>>(), BTreeSet::from(["tier=front", "x=z"]));
    assert_eq!(s.ok(&["label", "deployment", "web", "x-"]), "deployment.apps/web unlabeled\n");
    assert_eq!(s.get("deployments/web")["metadata"]["labels"], json!({"tier": "front"}));
    assert!(s.fails(&["label", "deployment", "web", "x=not valid"]).contains("a valid label must be"));
    s.ok(&["annotate", "deployment/web", "note=anything goes: \"here\""]);
    assert_eq!(s.get("deployments/web")["metadata"]["annotations"]["note"], "anything goes: \"here\"");
    s.ok(&["annotate", "deployments", "--all", "note-"]);
    assert_eq!(s.get("deployments/web")["metadata"]["annotations"]["note"], Value::Null);
    assert_eq!(
        s.fails(&["scale", "deployment/web", "--replicas=1", "--current-replicas=5"]),
        "error: Expected replicas to be 5, was 0\n"
    );
    assert_eq!(
        s.ok(&["scale", "-l", "tier=front", "deployments", "--replicas=0", "--current-replicas=0"]),
        "deployment.apps/web scaled\n"
    );
}

/// Clauses: A14.replace A14.replace-conflict A14.replace-force A14.replace-missing
fn replace_checks_resource_versions(s: &Story) {
    s.ok(&["create", "configmap", "c", "--from-literal=a=1", "--from-literal=b=1"]);
    s.file("old.yaml", &s.ok(&["get", "configmap", "c", "-o", "yaml"]));
    s.file("c.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: \"2\"}\n");
    assert_eq!(s.ok(&["replace", "-f", "c.yaml"]), "configmap/c replaced\n");
    assert_eq!(s.get("configmaps/c")["data"], json!({"a": "2"}));
    let stderr = s.fails(&["replace", "-f", "old.yaml"]);
    assert!(stderr.starts_with("Error from server (Conflict): error when replacing \"old.yaml\": "), "{stderr}");
    assert!(stderr.contains("the object has been modified"), "{stderr}");
    let uid = s.get("configmaps/c")["metadata"]["uid"].clone();
    let forced = s.ok(&["replace", "--force", "-f", "c.yaml"]);
    assert!(forced.ends_with("configmap/c replaced\n"), "{forced}");
    assert_ne!(s.get("configmaps/c")["metadata"]["uid"], uid);
    s.ok(&["delete", "-f", "c.yaml"]);
    let stderr = s.fails(&["replace", "-f", "c.yaml"]);
    assert!(stderr.contains("configmaps \"c\" not found"), "{stderr}");
}

/// Objects read from a server can be created, replaced by force and applied by force; if the server would refuse the new
/// object, nothing is deleted.
fn forced_replacements_lose_nothing(s: &Story) {
    s.file("c.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: \"1\"}\nimmutable: true\n");
    s.ok(&["apply", "-f", "c.yaml"]);
    s.file("live.json", &s.ok(&["get", "configmap", "c", "-o", "json"]));
    let first = s.get("configmaps/c")["metadata"]["uid"].clone();
    s.ok(&["replace", "--force", "-f", "live.json"]);
    let second = s.get("configmaps/c")["metadata"]["uid"].clone();
    assert_ne!(first, second);
    assert_eq!(s.get("configmaps/c")["data"], json!({"a": "1"}));
    s.file("c.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: \"2\"}\nimmutable: true\n");
    s.fails(&["apply", "-f", "c.yaml"]);
    s.ok(&["apply", "--force", "-f", "c.yaml"]);
    let third = s.get("configmaps/c")["metadata"]["uid"].clone();
    assert_ne!(second, third);
    assert_eq!(s.get("configmaps/c")["data"], json!({"a": "2"}));
    s.ok(&["delete", "configmap", "c"]);
    assert_eq!(s.ok(&["create", "-f", "live.json"]), "configmap/c created\n");
    assert_eq!(s.get("configmaps/c")["data"], json!({"a": "1"}));
    // Ours does a dry run first.
    if s.tool == Tool::Kemudi {
        let there = s.get("configmaps/c")["metadata"]["uid"].clone();
        let bad =
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {\"not a key\": \"2\"}\nimmutable: true\n";
        s.file("bad.yaml", bad);
        for command in ["replace", "apply"] {
            let stderr = s.fails(&[command, "--force", "-f", "bad.yaml"]);
            assert!(stderr.contains("is invalid"), "{command}: {stderr}");
            assert_eq!(s.get("configmaps/c")["metadata"]["uid"], there, "{command}");
        }
    }
    let mut live = s.get("configmaps/c");
    live["metadata"]["name"] = "d".into();
    s.file("versioned.json", &live.to_string());
    let stderr =
        s.fails(&["create", "--raw", &format!("/api/v1/namespaces/{}/configmaps", s.ns), "-f", "versioned.json"]);
    assert!(stderr.contains("resourceVersion should not be set on objects to be created"), "{stderr}");
    // Version 0 matches any version.
    live = s.get("configmaps/c");
    live["metadata"]["resourceVersion"] = "0".into();
    live["metadata"]["labels"] = json!({"any": "version"});
    s.file("zero.json", &live.to_string());
    assert_eq!(s.ok(&["replace", "-f", "zero.json"]), "configmap/c replaced\n");
    assert_eq!(s.get("configmaps/c")["metadata"]["labels"]["any"], "version");
}

/// Clauses: A14.create-role
fn flags_stand_anywhere(s: &Story) {
    let role = ["create", "-n", &s.ns, "role", "r", "--verb=get", "--resource=pods"];
    assert_eq!(s.ok(&role), "role.rbac.authorization.k8s.io/r created\n");
    let dry = ["create", "--dry-run=client", "-o", "name", "namespace", "q"];
    assert_eq!(s.ok(&dry), "namespace/q\n");
    assert_eq!(s.ok(&["--v", "0", "create", "secret", "-o", "name", "generic", "q"]), "secret/q\n");
    assert_eq!(s.ok(&["auth", "-n", "default", "can-i", "get", "pods"]), "yes\n");
}

/// Clauses: A14.create-edit
fn create_opens_an_editor(s: &Story) {
    let map = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: draft}}\n");
    s.file("two.yaml", &(map("one") + "---\n" + &map("two")));
    let create = |script: &str| {
        let mut c = s.command(&["create", "--edit", "-f", "two.yaml"]);
        c.env("KUBE_EDITOR", editor(s, script)).output().unwrap()
    };
    let o = create("true");
    assert_eq!(String::from_utf8_lossy(&o.stderr), "Edit cancelled, no changes made.\n".repeat(2));
    assert!(s.get("configmaps/one").is_null());
    // Each object is edited on its own; an unchanged one is not created.
    let o = create("if grep -q 'name: two' \"$1\"; then sed -i 's/draft/done/' \"$1\"; fi");
    assert_eq!(text(&[], &o), "configmap/two created\n");
    assert_eq!((s.get("configmaps/one"), &s.get("configmaps/two")["data"]["a"]), (Value::Null, &json!("done")));
    let o = create("sed -i 's/draft/again/' \"$1\"");
    assert_eq!((o.status.code(), String::from_utf8_lossy(&o.stdout).as_ref()), (Some(1), "configmap/one created\n"));
    assert!(String::from_utf8_lossy(&o.stderr).contains("configmaps \"two\" already exists"));
}

/// Every generator, and the object that it creates.
fn create_makes_every_kind(s: &Story) {
    let own = rcgen::generate_simple_self_signed(["example".to_owned()]).unwrap();
    s.file("ca.crt", &own.cert.pem());
    s.file("ca.key", &own.signing_key.serialize_pem());
    let own = |group: &str, plural: &str, name: &str| {
        let root = if group.contains('/') { format!("/apis/{group}") } else { format!("/api/{group}") };
        format!("{root}/namespaces/{}/{plural}/{name}", s.ns)
    };
    let token = own("v1", "serviceaccounts", "robot");
    for (line, path, at, expected) in [
        ("configmap m --from-literal=a=b", own("v1", "configmaps", "m"), "/data", json!({"a": "b"})),
        ("secret generic g --from-literal=a=b --type=x/y", own("v1", "secrets", "g"), "/type", json!("x/y")),
        ("secret tls t --cert=ca.crt --key=ca.key", own("v1", "secrets", "t"), "/type", json!("kubernetes.io/tls")),
        (
            "secret docker-registry r --docker-server=x --docker-username=u --docker-password=p",
            own("v1", "secrets", "r"),
            "/type",
            json!("kubernetes.io/dockerconfigjson"),
        ),
        ("serviceaccount robot", token, "/metadata/name", json!("robot")),
        ("service clusterip sc --tcp=80:8080", own("v1", "services", "sc"), "/spec/ports/0/targetPort", json!(8080)),
        ("service clusterip sh --clusterip=None", own("v1", "services", "sh"), "/spec/clusterIP", json!("None")),
        ("service nodeport sn --tcp=80", own("v1", "services", "sn"), "/spec/type", json!("NodePort")),
        ("service loadbalancer sl --tcp=80", own("v1", "services", "sl"), "/spec/type", json!("LoadBalancer")),
        (
            "service externalname se --external-name=example.com",
            own("v1", "services", "se"),
            "/spec/externalName",
            json!("example.com"),
        ),
        (
            "deployment d --image=i --replicas=0 --port=80",
            own("apps/v1", "deployments", "d"),
            "/spec/template/spec/containers/0/ports/0/containerPort",
            json!(80),
        ),
        (
            "job j --image=kemudi.local/none:1",
            own("batch/v1", "jobs", "j"),
            "/spec/template/spec/restartPolicy",
            json!("Never"),
        ),
        (
            "cronjob cj --image=i --schedule=0_0_1_1_*",
            own("batch/v1", "cronjobs", "cj"),
            "/spec/schedule",
            json!("0 0 1 1 *"),
        ),
        (
            "job jc --from=cronjob/cj",
            own("batch/v1", "jobs", "jc"),
            "/metadata/annotations",
            json!({"cronjob.kubernetes.io/instantiate": "manual"}),
        ),
        (
            "ingress in --rule=h/p=sc:80",
            own("networking.k8s.io/v1", "ingresses", "in"),
            "/spec/rules/0/host",
            json!("h"),
        ),
        (
            "poddisruptionbudget pd --selector=a=b --min-available=1",
            own("policy/v1", "poddisruptionbudgets", "pd"),
            "/spec/minAvailable",
            json!(1),
        ),
        ("quota q --hard=pods=100", own("v1", "resourcequotas", "q"), "/spec/hard", json!({"pods": "100"})),
        (
            "role ro --verb=get,list --resource=pods",
            own("rbac.authorization.k8s.io/v1", "roles", "ro"),
            "/rules/0/verbs",
            json!(["get", "list"]),
        ),
        (
            "rolebinding rb --role=ro --user=u",
            own("rbac.authorization.k8s.io/v1", "rolebindings", "rb"),
            "/roleRef/name",
            json!("ro"),
        ),
        ("namespace NS-n", format!("/api/v1/namespaces/{}-n", s.ns), "/spec/finalizers", json!(["kubernetes"])),
        (
            "priorityclass NS-p --value=7 --description=d",
            format!("/apis/scheduling.k8s.io/v1/priorityclasses/{}-p", s.ns),
            "/value",
            json!(7),
        ),
        (
            "clusterrole NS-c --verb=get --resource=nodes",
            format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/{}-c", s.ns),
            "/rules/0/resources",
            json!(["nodes"]),
        ),
        (
            "clusterrolebinding NS-b --clusterrole=view --group=g",
            format!("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{}-b", s.ns),
            "/subjects/0/kind",
            json!("Group"),
        ),
    ] {
        let line = line.replace("NS", &s.ns);
        let words: Vec<String> = line.split(' ').map(|w| w.replace('_', " ")).collect();
        let words: Vec<&str> = std::iter::once("create").chain(words.iter().map(String::as_str)).collect();
        // A dry run of the real kubectl does not reach the server, and all kinds have one answer to a second creation.
        let dry = (s.tool == Tool::Kemudi).then(|| s.ok(&[&words[..], &["--dry-run=client", "-o", "json"]].concat()));
        assert!(s.get_at(&path).is_null(), "{line}: a dry run created it");
        s.ok(&words);
        let live = s.get_at(&path);
        assert_eq!(live.pointer(at), Some(&expected), "{line}: {live}");
        if let Some(dry) = dry {
            let dry: Value = serde_json::from_str(&dry).unwrap();
            assert_eq!(live["kind"], dry["kind"], "{line}");
            let stderr = s.fails(&words);
            assert!(stderr.contains("already exists"), "{line}: {stderr}");
        }
    }
    let token = s.ok(&["create", "token", "robot", "--duration=20m"]);
    assert_eq!(token.trim().split('.').count(), 3, "{token}");
    for (kind, letter) in
        [("namespace", 'n'), ("priorityclass", 'p'), ("clusterrole", 'c'), ("clusterrolebinding", 'b')]
    {
        s.ok(&["delete", kind, &format!("{}-{letter}", s.ns), "--wait=false"]);
    }
}
