//! Whatever fails while a command deletes an object to create it anew: afterwards there is the old one or the new one, and the
//! command ends with 0 only if that is the new one. When the server stays away, the old one is in a file that the command names.

use crate::shell::{FAULTS, Fault, Ran, run};
use kemudi_testkit::Cluster;
use serde_json::{Value, json};

/// A command that deletes and creates, and what it is about.
struct Case {
    line: &'static [&'static str],
    /// Paths of collections, with the objects that are there before.
    before: Vec<(&'static str, Value)>,
    input: String,
    /// Which of two objects there is, by what they say.
    is_new: fn(&Value) -> bool,
}

fn config_map(name: &str, v: &str, immutable: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"v": v}, "immutable": immutable})
}

fn binding(role: &str) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b", "namespace": "default"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]})
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";

fn cases() -> Vec<Case> {
    let of = |v: &str, immutable| ["a", "b"].map(|n| config_map(n, v, immutable));
    let text = |all: [Value; 2]| all.map(|o| format!("---\n{o}\n")).concat();
    let is_new = |o: &Value| o["data"]["v"] == "new";
    let replace =
        |line| Case { line, before: of("old", false).map(|o| (MAPS, o)).into(), input: text(of("new", false)), is_new };
    vec![
        replace(&["replace", "--force", "-f", "-"]),
        replace(&["replace", "--force", "--grace-period=0", "-f", "-"]),
        Case {
            line: &["apply", "--force", "-f", "-"],
            before: of("old", true).map(|o| (MAPS, o)).into(),
            input: text(of("new", true)),
            is_new,
        },
        Case {
            line: &["auth", "reconcile", "-f", "-"],
            before: vec![(BINDINGS, binding("old"))],
            input: binding("new").to_string(),
            is_new: |o| o["roleRef"]["name"] == "new",
        },
    ]
}

async fn attempt(case: &Case, at: usize, fault: Fault) -> Ran {
    let cluster = Cluster::start(7).await;
    for (path, o) in &case.before {
        assert_eq!(cluster.call("POST", path, o.clone()).await.code, 201);
    }
    let directory = tempfile::tempdir().unwrap();
    let ran = run(&cluster, case.line, &case.input, at, fault, directory.path()).await;
    let what = format!("{:?}, {fault:?} at request {at}: exit {}\n{}", case.line, ran.code, ran.said);
    let mut all_new = true;
    for (path, o) in &case.before {
        let name = o["metadata"]["name"].as_str().unwrap();
        let there = cluster.call("GET", &format!("{path}/{name}"), Value::Null).await;
        if there.code == 200 {
            all_new &= (case.is_new)(&there.body);
            continue;
        }
        assert_eq!(fault, Fault::Gone, "{name} is lost: {what}");
        all_new = false;
        let kept = std::fs::read_dir(directory.path()).unwrap().map(|f| f.unwrap().path());
        let mut kept = kept.filter(|f| ran.said.contains(&f.display().to_string()));
        let is_it = |f: std::path::PathBuf| std::fs::read_to_string(f).unwrap().contains(&format!("name: {name}\n"));
        assert!(kept.any(is_it), "{name} is in no file: {what}");
    }
    // It may be there although nobody knows: a lost answer is an error.
    assert!(ran.code != 0 || all_new, "it says that all went well: {what}");
    ran
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_whatever_fails() {
    for case in cases() {
        let whole = attempt(&case, usize::MAX, Fault::Lost).await;
        assert_eq!(whole.code, 0, "{}", whole.said);
        assert!(whole.requests >= 5, "{:?} made {} requests", case.line, whole.requests);
        for fault in FAULTS {
            for at in 0..whole.requests {
                attempt(&case, at, fault).await;
            }
        }
    }
}
