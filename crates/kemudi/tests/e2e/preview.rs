//! `kubectl diff`, and `--prune` of apply and diff.

use crate::apply::SIMPLE;
use crate::runner::Case;
use crate::story::{Story, text};
use serde_json::Value;
use std::process::Output;

pub const TESTS: &[Case] = &[
    ("preview::diff_of_the_documentation", diff_of_the_documentation),
    ("preview::diff_with_an_external_program", diff_with_an_external_program),
    ("preview::diff_server_side", diff_server_side),
    ("preview::diff_shows_pruned_objects", diff_shows_pruned_objects),
    ("preview::delete_takes_files", delete_takes_files),
    ("preview::prune_keeps_to_the_selector", prune_keeps_to_the_selector),
    ("preview::prune_keeps_to_its_kinds", prune_keeps_to_its_kinds),
];

pub fn update() -> String {
    SIMPLE.replace("  minReadySeconds: 5\n", "").replace("nginx:1.7.9", "nginx:1.11.9 # update the image")
}

fn map(name: &str, label: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  labels: {{your: {label}}}\n")
}

/// Returns exit code and output.
fn code_and_output(o: &Output) -> (i32, String) {
    (o.status.code().unwrap_or(-1), String::from_utf8_lossy(&o.stdout).into_owned())
}

fn error(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

/// Returns the added and removed lines of a unified diff, without fields that change on their own.
fn changes(diff: &str) -> Vec<&str> {
    let own = |l: &&str| {
        (l.starts_with('+') || l.starts_with('-'))
            && !l.starts_with("+++")
            && !l.starts_with("---")
            && !l.contains("generation:")
    };
    diff.lines().filter(own).collect()
}

/// The documentation's commands, with a file instead of the URL, and then with a URL.
fn diff_of_the_documentation(s: &Story) {
    s.file("application/simple_deployment.yaml", SIMPLE);
    let site = s.serve(&[
        ("/examples/application/simple_deployment.yaml", 200, SIMPLE.into()),
        ("/examples/application/update_deployment.yaml", 200, update()),
    ]);
    let simple = format!("{site}/examples/application/simple_deployment.yaml");
    let changed = format!("{site}/examples/application/update_deployment.yaml");
    let (code, new) = code_and_output(&s.k(&["diff", "-f", &simple]));
    assert_eq!(code, 1, "{new}");
    assert!(new.contains("\n+kind: Deployment\n") && new.contains("\n+  minReadySeconds: 5\n"), "{new}");
    assert!(changes(&new).iter().all(|l| l.starts_with('+')), "{new}");
    assert!(s.get("deployments/nginx-deployment").is_null(), "diff has written something");

    assert_eq!(s.ok(&["apply", "-f", &simple]), "deployment.apps/nginx-deployment created\n");
    assert_eq!(code_and_output(&s.k(&["diff", "-f", &simple])), (0, String::new()));
    s.ok(&["scale", "deployment/nginx-deployment", "--replicas=2"]);
    assert_eq!(
        code_and_output(&s.k(&["diff", "-f", "application/"])),
        (0, String::new()),
        "the file says nothing of replicas"
    );
    // Writes of controllers in the meantime would be a difference too.
    let seen =
        |v: &Value| v["status"]["replicas"] == 2 && v["status"]["observedGeneration"] == v["metadata"]["generation"];
    let before = s.until("deployments/nginx-deployment", seen)["spec"].clone();
    let (code, diff) = code_and_output(&s.k(&["diff", "-f", &changed]));
    assert_eq!(code, 1);
    assert_eq!(
        changes(&diff),
        ["-  minReadySeconds: 5", "-      - image: nginx:1.7.9", "+      - image: nginx:1.11.9"],
        "{diff}"
    );
    let file = format!("apps.v1.Deployment.{}.nginx-deployment", s.ns);
    assert!(diff.lines().any(|l| l.starts_with("--- ") && l.contains("LIVE") && l.contains(&file)), "{diff}");
    assert!(diff.lines().any(|l| l.starts_with("+++ ") && l.contains("MERGED") && l.contains(&file)), "{diff}");
    assert_eq!(s.get("deployments/nginx-deployment")["spec"], before);
    s.file("application/deeper/new.yaml", &map("new", "x"));
    assert_eq!(code_and_output(&s.k(&["diff", "-f", "application"])).0, 0);
    assert_eq!(code_and_output(&s.k(&["diff", "-R", "-f", "application"])).0, 1);

    let o = s.k(&["diff", "-f", "none.yaml"]);
    assert!(code_and_output(&o).0 > 1 && error(&o).contains("the path \"none.yaml\" does not exist"), "{}", error(&o));
    s.file("bad.yaml", &SIMPLE.replace("name: nginx-deployment", "name: Not_A_Name"));
    let o = s.k(&["diff", "-f", "bad.yaml"]);
    assert!(code_and_output(&o).0 > 1 && error(&o).contains("Not_A_Name"), "{}", error(&o));
}

/// Clauses: A06.external A06.external-codes A06.external-arguments
fn diff_with_an_external_program(s: &Story) {
    s.file("a.yaml", SIMPLE);
    s.ok(&["apply", "-f", "a.yaml"]);
    s.file("a.yaml", &update());
    let with = |program: &str| {
        let mut c = s.command(&["diff", "-f", "a.yaml"]);
        c.env("KUBECTL_EXTERNAL_DIFF", program).output().unwrap()
    };
    let (code, names) = code_and_output(&with("ls"));
    let file = format!("apps.v1.Deployment.{}.nginx-deployment", s.ns);
    assert_eq!((code, names.matches(&file).count()), (0, 2), "{names}");
    // Words that could be more than a flag are dropped; the others follow the two directories.
    let (code, echoed) = code_and_output(&with("echo -u ;ls x=1"));
    let words: Vec<&str> = echoed.split_whitespace().collect();
    assert_eq!((code, words.len(), &words[2..]), (0, 4, &["-u", "x=1"][..]), "{echoed}");
    assert!(words[0].contains("/LIVE-") && words[1].contains("/MERGED-"), "{echoed}");
    assert_eq!(code_and_output(&with("false")), (1, String::new()));
    for program in ["ls --no-such-flag", "/no/such/program"] {
        let o = with(program);
        assert!(code_and_output(&o).0 > 1 && error(&o).contains("failed to run"), "{program}: {}", error(&o));
    }
}

/// Clauses: A06.server-side A06.force-conflicts A06.secrets
fn diff_server_side(s: &Story) {
    let of = |value: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{k: {value}}}\n");
    s.file("c.yaml", &of("one"));
    s.ok(&["apply", "--server-side", "--field-manager=someone", "-f", "c.yaml"]);
    assert_eq!(code_and_output(&s.k(&["diff", "--server-side", "-f", "c.yaml"])).0, 0);
    s.file("c.yaml", &of("two"));
    let o = s.k(&["diff", "--server-side", "-f", "c.yaml"]);
    assert!(code_and_output(&o).0 > 1 && error(&o).contains("conflict with \"someone\""), "{}", error(&o));
    let (code, diff) = code_and_output(&s.k(&["diff", "--server-side", "--force-conflicts", "-f", "c.yaml"]));
    assert_eq!((code, changes(&diff)), (1, vec!["-  k: one", "+  k: two"]));
    let (code, diff) = code_and_output(&s.k(&["diff", "--server-side", "--field-manager=someone", "-f", "c.yaml"]));
    assert_eq!((code, changes(&diff)), (1, vec!["-  k: one", "+  k: two"]));
    assert_eq!(s.get("configmaps/c")["data"]["k"], "one");

    let secret = |v: &str| format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{k: {v}}}\n");
    s.apply(&secret("hunter2"));
    s.file("s.yaml", &secret("hunter3"));
    let (code, diff) = code_and_output(&s.k(&["diff", "--server-side", "--force-conflicts", "-f", "s.yaml"]));
    assert_eq!(code, 1);
    assert!(diff.contains("*** (before)") && diff.contains("*** (after)"), "{diff}");
    assert!(!diff.contains("aHVudGVy"), "{diff}");
}

/// Clauses: A06.prune
fn diff_shows_pruned_objects(s: &Story) {
    s.file("dir/a.yaml", &map("a", "label"));
    s.file("dir/b.yaml", &map("b", "label"));
    s.ok(&["apply", "-f", "dir"]);
    s.apply(&map("other", "other"));
    s.file("dir/b.yaml", "");
    let line = ["diff", "-f", "dir", "--prune", "-l", "your=label", "--prune-allowlist=core/v1/ConfigMap"];
    let (code, diff) = code_and_output(&s.k(&line));
    assert_eq!(code, 1);
    let gone = format!("v1.ConfigMap.{}.", s.ns);
    assert!(diff.contains(&format!("{gone}b")) && diff.contains("\n-kind: ConfigMap\n"), "{diff}");
    assert!(!diff.contains(&format!("{gone}a")) && !diff.contains(&format!("{gone}other")), "{diff}");
    s.ok(&["delete", "configmap", "b"]);
    assert_eq!(code_and_output(&s.k(&line)), (0, String::new()));
}

/// Clauses: A07.delete-file A07.delete-directory A07.delete-stdin A07.delete-missing
fn delete_takes_files(s: &Story) {
    s.file("simple.yaml", SIMPLE);
    s.ok(&["apply", "-f", "simple.yaml"]);
    s.apply(&map("stays", "x"));
    // Newer versions print the namespace.
    let gone = |o: &str| o.replace(&format!(" from {} namespace", s.ns), "");
    let deleted = s.ok(&["delete", "-f", "simple.yaml"]);
    assert_eq!(gone(&deleted), "deployment.apps \"nginx-deployment\" deleted\n");
    s.gone("deployments/nginx-deployment");
    let missing = s.fails(&["delete", "-f", "simple.yaml"]);
    assert!(missing.contains("deployments.apps \"nginx-deployment\" not found"), "{missing}");
    assert_eq!(s.ok(&["delete", "-f", "simple.yaml", "--ignore-not-found"]), "");

    s.file("dir/a.yaml", &map("a", "x"));
    s.file("dir/deeper/b.yaml", &map("b", "x"));
    s.ok(&["apply", "-R", "-f", "dir"]);
    assert_eq!(gone(&s.ok(&["delete", "-f", "dir"])), "configmap \"a\" deleted\n");
    assert!(!s.get("configmaps/b").is_null());
    let o = s.with_input(&["delete", "-f", "-"], &format!("{}---\n{}", map("none", "x"), map("b", "x")));
    assert_eq!(o.status.code(), Some(1), "one was not there");
    assert_eq!(gone(&code_and_output(&o).1), "configmap \"b\" deleted\n");
    assert!(!s.get("configmaps/stays").is_null());
}

/// The documentation's example: `apply -f DIRECTORY --prune -l LABELS`.
fn prune_keeps_to_the_selector(s: &Story) {
    s.file("directory/a.yaml", &map("a", "label"));
    s.file("directory/b.yaml", &map("b", "label"));
    let other = map("other", "other");
    s.apply(&other);
    // It has the label, but was not created by apply.
    s.ok(&["create", "configmap", "foreign"]);
    s.ok(&["label", "configmap", "foreign", "your=label"]);
    let allow = ["--prune-allowlist=core/v1/ConfigMap", "--prune-allowlist=apps/v1/Deployment"];
    let prune = |more: &[&str]| s.k(&[&["apply", "-f", "directory/", "--prune"], &allow[..], more].concat());
    let first = text(&[], &prune(&["-l", "your=label"]));
    assert_eq!(first, "configmap/a created\nconfigmap/b created\n");
    s.file("directory/b.yaml", "");
    for how in ["client", "server"] {
        let shown = text(&[], &prune(&["-l", "your=label", &format!("--dry-run={how}")]));
        assert!(shown.contains("configmap/b pruned ("), "{shown}");
        assert!(!s.get("configmaps/b").is_null(), "{how}");
    }
    let o = prune(&[]);
    let why = "error: all resources selected for prune without explicitly passing --all. To prune all resources, pass \
               the --all flag. If you did not mean to prune all resources, specify a label selector\n";
    assert_eq!((code_and_output(&o).0, error(&o).as_str()), (1, why));
    let o = prune(&["--all", "-l", "your=label"]);
    assert_eq!(
        (code_and_output(&o).0, error(&o).as_str()),
        (1, "error: cannot set --all and --selector at the same time\n")
    );
    assert!(!s.get("configmaps/b").is_null());

    let second = text(&[], &prune(&["-l", "your=label"]));
    assert_eq!(second, "configmap/a unchanged\nconfigmap/b pruned\n");
    s.gone("configmaps/b");
    for stays in ["configmaps/a", "configmaps/other", "configmaps/foreign", "configmaps/kube-root-ca.crt"] {
        assert!(!s.get(stays).is_null(), "{stays}");
    }
}

/// Clauses: A07.prune-all A07.prune-allowlist
fn prune_keeps_to_its_kinds(s: &Story) {
    s.apply(&format!("{}---\n{SIMPLE}", map("gone", "x")));
    s.apply("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: robot}\n");
    s.file("a.yaml", &map("a", "x"));
    s.ok(&["create", "configmap", "foreign"]);
    let all = ["apply", "-f", "a.yaml", "--prune", "--all"];
    let only = s.ok(&[&all[..], &["--prune-allowlist=core/v1/ConfigMap"]].concat());
    assert_eq!(only, "configmap/a created\nconfigmap/gone pruned\n");
    for stays in ["deployments/nginx-deployment", "serviceaccounts/robot", "configmaps/foreign"] {
        assert!(!s.get(stays).is_null(), "{stays}");
    }
    let stderr = s.fails(&[&all[..], &["--prune-allowlist=apps/v1/Widget"]].concat());
    assert!(stderr.contains("no matches for kind \"Widget\" in version \"apps/v1\""), "{stderr}");
    let stderr = s.fails(&[&all[..], &["--prune-allowlist=ConfigMap"]].concat());
    assert!(stderr.contains("invalid GroupVersionKind format: ConfigMap"), "{stderr}");
    let two = ["--prune-allowlist=apps/v1/Deployment", "--prune-allowlist=core/v1/ServiceAccount"];
    let pruned = s.ok(&[&all[..], &two].concat());
    assert!(pruned.contains("serviceaccount/robot pruned\n"), "{pruned}");
    assert!(pruned.contains("deployment.apps/nginx-deployment pruned\n"), "{pruned}");
    s.gone("deployments/nginx-deployment");
    assert!(!s.get("configmaps/foreign").is_null());
}
