//! `kubectl apply --prune --applyset`: a parent object records the members.

use crate::runner::Case;
use crate::story::{Story, text};
use serde_json::{Value, json};
use std::process::Output;

pub const TESTS: &[Case] = &[
    ("applyset::adds_and_prunes_members", adds_and_prunes_members),
    ("applyset::several_namespaces_and_none", several_namespaces_and_none),
    ("applyset::dry_runs_change_nothing", dry_runs_change_nothing),
    ("applyset::sets_of_others_are_left_alone", sets_of_others_are_left_alone),
    ("applyset::custom_parents", custom_parents),
    ("applyset::bad_input_changes_nothing", bad_input_changes_nothing),
];

const ID: &str = "applyset.kubernetes.io/id";
const PART_OF: &str = "applyset.kubernetes.io/part-of";
const TOOLING: &str = "applyset.kubernetes.io/tooling";
const KINDS: &str = "applyset.kubernetes.io/contains-group-kinds";
const NAMESPACES: &str = "applyset.kubernetes.io/additional-namespaces";

fn map(name: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n---\n")
}

/// Runs `apply --prune --applyset=SET` with a manifest, in the namespace.
fn set(s: &Story, manifest: &str, set: &str, more: &[&str]) -> Output {
    let set = format!("--applyset={set}");
    let mut c = s.command(&[&["apply", "-f", "-", "--prune", &set], more].concat());
    c.env("KUBECTL_APPLYSET", "true");
    Story::feed(c, manifest)
}

fn error(o: &Output) -> String {
    assert_eq!(o.status.code(), Some(1), "{}", String::from_utf8_lossy(&o.stdout));
    String::from_utf8_lossy(&o.stderr).into_owned()
}

/// Clauses: A07.applyset A07.applyset-secret A07.applyset-labels A07.applyset-kinds A07.applyset-tooling
fn adds_and_prunes_members(s: &Story) {
    s.apply(&map("foreign"));
    let both = map("a") + &map("b");
    assert_eq!(text(&[], &set(s, &both, "mine", &[])), "configmap/a created\nconfigmap/b created\n");
    let parent = s.get("secrets/mine");
    let id = parent["metadata"]["labels"][ID].as_str().unwrap().to_owned();
    assert!(id.starts_with("applyset-") && id.ends_with("-v1") && id.len() == 9 + 43 + 3, "{id}");
    let of = |what: &str| s.get(what)["metadata"]["labels"][PART_OF].clone();
    assert_eq!((of("configmaps/a"), of("configmaps/b"), of("configmaps/foreign")), (json!(id), json!(id), Value::Null));
    let annotations = &parent["metadata"]["annotations"];
    assert!(annotations[TOOLING].as_str().unwrap().starts_with("kubectl/v1."), "{parent}");
    assert_eq!((&annotations[KINDS], &annotations[NAMESPACES]), (&json!("ConfigMap"), &json!("")));
    let field_manager = &parent["metadata"]["managedFields"][0];
    assert_eq!((&field_manager["manager"], &field_manager["operation"]), (&json!("kubectl-applyset"), &json!("Apply")));

    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: robot}\n";
    let stderr = text(&[], &set(s, &(map("a") + account), "mine", &[]));
    assert_eq!(stderr, "configmap/a unchanged\nserviceaccount/robot created\nconfigmap/b pruned\n");
    assert!(s.get("configmaps/b").is_null() && !s.get("configmaps/foreign").is_null());
    assert_eq!(s.get("secrets/mine")["metadata"]["annotations"][KINDS], "ConfigMap,ServiceAccount");
    // A kind without members is removed from the parent once they are deleted.
    assert_eq!(text(&[], &set(s, account, "mine", &[])), "serviceaccount/robot unchanged\nconfigmap/a pruned\n");
    assert_eq!(s.get("secrets/mine")["metadata"]["annotations"][KINDS], "ServiceAccount");
    // An object that somebody else labelled is a member.
    s.ok(&["label", "serviceaccount", "default", &format!("{PART_OF}={id}")]);
    let dry = text(&[], &set(s, account, "mine", &["--dry-run=server"]));
    assert!(dry.contains("serviceaccount/default pruned (server dry run)"), "{dry}");
    s.ok(&["label", "serviceaccount", "default", &format!("{PART_OF}-")]);
    // An object that was removed from the set stays.
    s.ok(&["label", "serviceaccount", "robot", &format!("{PART_OF}-")]);
    assert_eq!(text(&[], &set(s, &map("c"), "mine", &["--server-side"])), "configmap/c serverside-applied\n");
    assert!(!s.get("serviceaccounts/robot").is_null());
}

/// Clauses: A07.applyset-namespaces A07.applyset-cluster A07.applyset-configmap
fn several_namespaces_and_none(s: &Story) {
    let other = format!("{}-other", s.ns);
    s.ok(&["create", "namespace", &other]);
    let role = format!("{}-role", s.ns);
    let cluster =
        format!("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: {role}}}\n---\n");
    s.apply(&cluster.replace(&role, &format!("{role}-foreign")));
    // The flag sets the namespace of the parent, and of objects without one; so all objects name it, except for one per
    // command.
    let there = map("there").replace("{name: there}", &format!("{{name: there, namespace: {other}}}"));
    let with = |namespace: &str, manifest: &str| {
        let set = "--applyset=configmap/shared";
        let mut c = s.bare(&["-n", namespace, "apply", "-f", "-", "--prune", set]);
        c.env("KUBECTL_APPLYSET", "true");
        Story::feed(c, manifest)
    };
    let stderr = error(&with(&s.ns, &there));
    assert!(stderr.contains("does not match the namespace"), "{stderr}");
    let stderr = text(&[], &with(&s.ns, &(map("here") + &cluster)));
    assert!(stderr.contains("configmap/here created\n") && stderr.contains(&format!("/{role} created\n")), "{stderr}");
    // Another tool has put members into another namespace, as the specification allows.
    let parent = s.get("configmaps/shared");
    let id = parent["metadata"]["labels"][ID].clone();
    s.patch("configmaps/shared", json!({"metadata": {"annotations": {NAMESPACES: other}}}));
    let elsewhere = format!("/api/v1/namespaces/{other}/configmaps");
    s.post(&elsewhere, json!({"metadata": {"name": "there", "labels": {PART_OF: id}}}));
    s.post(&elsewhere, json!({"metadata": {"name": "foreign"}}));
    let o = with(&s.ns, &map("new"));
    let stderr = text(&[], &o);
    for gone in ["configmap/here pruned\n", "configmap/there pruned\n", &format!("/{role} pruned\n")] {
        assert!(stderr.contains(gone), "{gone}: {stderr}");
    }
    assert!(s.get_at(&format!("{elsewhere}/there")).is_null() && !s.get_at(&format!("{elsewhere}/foreign")).is_null());
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    assert!(s.get_at(&format!("{roles}/{role}")).is_null() && !s.get_at(&format!("{roles}/{role}-foreign")).is_null());
    let annotations = s.get("configmaps/shared")["metadata"]["annotations"].clone();
    assert_eq!((&annotations[KINDS], &annotations[NAMESPACES]), (&json!("ConfigMap"), &json!("")));
    s.ok(&["delete", "clusterrole", &format!("{role}-foreign")]);
    s.ok(&["delete", "namespace", &other, "--wait=false"]);
}

/// Clauses: A07.applyset-dry-run
fn dry_runs_change_nothing(s: &Story) {
    let both = map("a") + &map("b");
    for (how, words) in [("client", "dry run"), ("server", "server dry run")] {
        let stderr = text(&[], &set(s, &both, "mine", &[&format!("--dry-run={how}")]));
        assert_eq!(stderr, format!("configmap/a created ({words})\nconfigmap/b created ({words})\n"));
        assert!(s.get("secrets/mine").is_null() && s.get("configmaps/a").is_null(), "{how}");
    }
    text(&[], &set(s, &both, "mine", &[]));
    let before = s.get("secrets/mine");
    for (how, words) in [("client", "dry run"), ("server", "server dry run")] {
        let stderr = text(&[], &set(s, &map("a"), "mine", &[&format!("--dry-run={how}")]));
        assert!(stderr.ends_with(&format!("configmap/b pruned ({words})\n")), "{stderr}");
    }
    assert!(!s.get("configmaps/b").is_null());
    assert_eq!(s.get("secrets/mine"), before);
}

/// Clauses: A07.applyset-conflicts A07.applyset-foreign
fn sets_of_others_are_left_alone(s: &Story) {
    s.ok(&["create", "configmap", "plain"]);
    let refused = |why: &str| {
        let stderr = error(&set(s, &map("a"), "configmaps/plain", &[]));
        assert!(stderr.starts_with(&format!("error: ApplySet parent object \"configmaps./plain\" {why}")), "{stderr}");
        assert!(s.get("configmaps/a").is_null(), "{why}: something was applied");
    };
    refused("already exists and is missing required annotation \"applyset.kubernetes.io/tooling\"\n");
    s.ok(&["annotate", "configmap", "plain", &format!("{TOOLING}=helm/v3")]);
    refused("already exists and is managed by tooling \"helm\" instead of \"kubectl\"\n");
    s.ok(&["annotate", "--overwrite", "configmap", "plain", &format!("{TOOLING}=kubectl/v1.30")]);
    refused("exists and does not have required label applyset.kubernetes.io/id\n");
    s.ok(&["label", "configmap", "plain", &format!("{ID}=applyset-x-v1")]);
    refused(
        "exists and has incorrect value for label \"applyset.kubernetes.io/id\" (got: applyset-x-v1, want: applyset-",
    );

    // Two sets: neither prunes members of the other.
    text(&[], &set(s, &(map("a") + &map("b")), "one", &[]));
    text(&[], &set(s, &map("c"), "two", &[]));
    assert_eq!(text(&[], &set(s, &map("d"), "two", &[])), "configmap/d created\nconfigmap/c pruned\n");
    assert!(!s.get("configmaps/a").is_null() && !s.get("configmaps/b").is_null());
    // Fields of the parent that somebody else took over are taken back.
    let key = NAMESPACES.replace('/', "~1");
    let patch = json!([{"op": "replace", "path": format!("/metadata/annotations/{key}"), "value": "default"}]);
    s.ok(&["patch", "secret", "two", "--type=json", "-p", &patch.to_string()]);
    text(&[], &set(s, &map("d"), "two", &[]));
    assert_eq!(s.get("secrets/two")["metadata"]["annotations"][NAMESPACES], "");
}

/// Clauses: A07.applyset-custom
fn custom_parents(s: &Story) {
    let group = format!("{}.example.com", s.ns);
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("bundles.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"plural": "bundles", "kind": "Bundle"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    s.apply(&crd.to_string());
    s.ok(&["wait", "--for=condition=Established", &format!("crd/bundles.{group}")]);
    let parent = format!("bundles.{group}/b");
    let stderr = error(&set(s, &map("a"), &parent, &[]));
    let why = format!("resource \"{group}/v1, Resource=bundles\" is not permitted as an ApplySet parent");
    assert!(stderr.contains(&why), "{stderr}");
    s.ok(&["label", "crd", &format!("bundles.{group}"), "applyset.kubernetes.io/is-parent-type=true"]);
    let stderr = error(&set(s, &map("a"), &parent, &[]));
    assert!(stderr.contains("custom resource ApplySet parents cannot be created automatically"), "{stderr}");
    // The creator of a custom parent sets its tooling; the label is a hash of kind and name.
    let meta = json!({"name": "b", "namespace": s.ns, "annotations": {TOOLING: "kubectl/v1.36.0", KINDS: ""}, "labels": {ID: "x"}});
    s.apply(&json!({"apiVersion": format!("{group}/v1"), "kind": "Bundle", "metadata": meta}).to_string());
    let stderr = error(&set(s, &map("a"), &parent, &[]));
    let id = stderr.split("want: ").nth(1).and_then(|r| r.split(')').next()).unwrap_or_default().to_owned();
    s.ok(&["label", "--overwrite", &format!("bundles.{group}"), "b", &format!("{ID}={id}")]);
    text(&[], &set(s, &(map("a") + &map("b")), &parent, &[]));
    assert_eq!(text(&[], &set(s, &map("a"), &parent, &[])), "configmap/a unchanged\nconfigmap/b pruned\n");
    s.ok(&["delete", "crd", &format!("bundles.{group}")]);
}

/// Clauses: A07.applyset-refused A07.applyset-failed
fn bad_input_changes_nothing(s: &Story) {
    s.file("a.yaml", &map("a"));
    let run = |namespaced: bool, words: &[&str]| {
        let words = [&["apply", "-f", "a.yaml"], words].concat();
        let mut c = if namespaced { s.command(&words) } else { s.bare(&words) };
        c.env("KUBECTL_APPLYSET", "true").output().unwrap()
    };
    for (words, why) in [
        (&["--applyset=x"][..], "--applyset requires --prune"),
        (&["--prune", "--applyset=x", "--all"], "--all is incompatible with --applyset"),
        (&["--prune", "--applyset=x", "-l", "a=b"], "--selector is incompatible with --applyset"),
        (
            &["--prune", "--applyset=x", "--prune-allowlist=core/v1/ConfigMap"],
            "--prune-allowlist is incompatible with --applyset",
        ),
        (&["--prune", "--applyset=x", "--force"], "--force cannot be used with --prune"),
        (&["--prune", "--applyset=secrets/"], "invalid parent reference \"secrets/\": name cannot be blank"),
        (&["--prune", "--applyset=nope/x"], "invalid parent reference \"nope/x\": no matches for /, Resource=nope"),
        (&["--prune", "--applyset=pods/x"], "resource \"/v1, Resource=pods\" is not permitted as an ApplySet parent"),
    ] {
        assert_eq!(error(&run(true, words)), format!("error: {why}\n"), "{words:?}");
    }
    let stderr = error(&run(false, &["--prune", "--applyset=x"]));
    assert_eq!(stderr, "error: namespace is required to use namespace-scoped ApplySet\n");
    let o = s.k(&["apply", "-f", "a.yaml", "--prune", "--applyset=x"]);
    assert!(error(&o).starts_with("error: unknown flag: --applyset\n"), "it is alpha, and must be turned on");
    let labelled = map("a").replace("{name: a}", &format!("{{name: a, labels: {{{PART_OF}: x}}}}"));
    let stderr = error(&set(s, &labelled, "x", &[]));
    assert_eq!(stderr, "error: ApplySet label \"applyset.kubernetes.io/part-of\" already set in input data\n");
    assert!(s.get("configmaps/a").is_null());

    // If an object cannot be applied, nothing is pruned, and the parent keeps all entries.
    text(&[], &set(s, &map("gone"), "x", &[]));
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: Not_A_Name}\n";
    error(&set(s, account, "x", &[]));
    assert!(!s.get("configmaps/gone").is_null());
    assert_eq!(s.get("secrets/x")["metadata"]["annotations"][KINDS], "ConfigMap,ServiceAccount");
    assert_eq!(text(&[], &set(s, &map("a"), "x", &[])), "configmap/a created\nconfigmap/gone pruned\n");
}
