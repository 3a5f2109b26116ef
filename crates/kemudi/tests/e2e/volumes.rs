//! Volumes and their updates.

use crate::runner::Case;
use crate::story::Story;
use serde_json::json;

pub const TESTS: &[Case] = &[
    ("volumes::memory_has_the_modes_of_a_tmpfs", memory_has_the_modes_of_a_tmpfs),
    ("volumes::updates_reach_running_containers", updates_reach_running_containers),
    ("volumes::items_modes_and_dotfiles", items_modes_and_dotfiles),
    ("volumes::wait_for_what_is_missing", wait_for_what_is_missing),
    ("volumes::are_shared_and_survive_restarts", are_shared_and_survive_restarts),
];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// Clauses: K06.propagated K06.atomic K12.volume
fn updates_reach_running_containers(s: &Story) {
    s.create("configmaps", json!({"metadata": {"name": "cm"}, "data": {"a": "1", "b": "old"}}));
    s.create("secrets", json!({"metadata": {"name": "key"}, "stringData": {"password": "one"}}));
    let volumes =
        json!([{"name": "cm", "configMap": {"name": "cm"}}, {"name": "key", "secret": {"secretName": "key"}}]);
    let mounts = json!([{"name": "cm", "mountPath": "/cm"}, {"name": "key", "mountPath": "/key", "readOnly": true}]);
    s.shell_pod("p", FOREVER, json!({"volumes": volumes}), json!({"volumeMounts": mounts}));
    s.ready("p");
    assert_eq!(s.sh("p", "cat /cm/a /cm/b /key/password"), "1oldone");
    s.patch("configmaps/cm", json!({"data": {"a": "2", "b": null, "c": "new"}}));
    s.patch("secrets/key", json!({"stringData": {"password": "two"}}));
    s.eventually("the new files", || {
        (s.sh("p", "ls /cm; cat /cm/a /cm/c /key/password 2>/dev/null; true") == "a\nc\n2newtwo").then_some(())
    });
    // All files of a volume change with one link.
    assert!(s.sh("p", "ls -l /cm").contains("a -> ..data/a"));
}

/// Clauses: K06.items K06.default-mode K06.mode K06.dotfiles K06.tmpfs K06.only-mounters K06.optional
fn items_modes_and_dotfiles(s: &Story) {
    s.create("configmaps", json!({"metadata": {"name": "cm"}, "data": {"a": "A", "b": "B"}}));
    s.create("secrets", json!({"metadata": {"name": "dot"}, "stringData": {".hidden": "psst", "seen": "x"}}));
    let volumes = json!([
        {"name": "cm", "configMap": {"name": "cm", "items": [{"key": "a", "path": "deep/er/file", "mode": 256}]}},
        {"name": "dot", "secret": {"secretName": "dot", "defaultMode": 288}},
        {"name": "none", "secret": {"secretName": "not-there", "optional": true}},
        s.tools(),
    ]);
    let mounts = json!([
        {"name": "cm", "mountPath": "/cm"}, {"name": "dot", "mountPath": "/dot"}, {"name": "none", "mountPath": "/none"},
        {"name": "tools", "mountPath": "/bin"},
    ]);
    let image = crate::story::IMAGE;
    let with = json!({"name": "with", "image": image, "command": ["sh", "-c", FOREVER], "volumeMounts": mounts});
    let tools = json!([{"name": "tools", "mountPath": "/bin"}]);
    let without = json!({"name": "without", "image": image, "command": ["sh", "-c", FOREVER], "volumeMounts": tools});
    let spec = json!({"terminationGracePeriodSeconds": 1, "volumes": volumes, "containers": [with, without]});
    s.create("pods", json!({"metadata": {"name": "p"}, "spec": spec}));
    s.ready("p");
    let sh = |container: &str, script: &str| s.ok(&["exec", "p", "-c", container, "--", "sh", "-c", script]);
    assert_eq!(sh("with", "cd /cm; ls; cat deep/er/file; stat -L -c %a deep/er/file"), "deep\nA400\n");
    assert_eq!(sh("with", "cat /dot/.hidden; stat -L -c %a /dot/.hidden /dot/seen; ls /none"), "psst440\n440\n");
    assert!(
        sh("with", "mount").lines().any(|l| l.starts_with("tmpfs on /dot type tmpfs")),
        "secrets never reach a disk"
    );
    assert_eq!(sh("without", "ls -d /dot /cm 2>/dev/null; true"), "");
}

/// Clauses: K06.missing-object K06.missing-key
fn wait_for_what_is_missing(s: &Story) {
    let volume =
        |items: serde_json::Value| json!({"volumes": [{"name": "v", "configMap": {"name": "late", "items": items}}]});
    let mount = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    s.shell_pod("p", FOREVER, volume(json!([{"key": "k", "path": "f"}])), mount);
    assert!(s.event("p", "FailedMount").contains("configmap \"late\" not found"));
    s.container("p", |c| c["state"]["waiting"]["reason"] == "ContainerCreating");
    s.create("configmaps", json!({"metadata": {"name": "late"}, "data": {"other": "x"}}));
    let about_key = || {
        s.events("p")
            .into_iter()
            .any(|(r, m)| r == "FailedMount" && m.contains("references non-existent config key: k"))
    };
    s.eventually("an event about the key", || about_key().then_some(()));
    s.patch("configmaps/late", json!({"data": {"k": "v"}}));
    s.ready("p");
    assert_eq!(s.sh("p", "cat /v/f"), "v");
}

/// Clauses: P02.shared P02.restart P02.gone P01.localhost P01.ipc
fn are_shared_and_survive_restarts(s: &Story) {
    let mount = json!([{"name": "v", "mountPath": "/v"}]);
    let script = "echo run >> /v/runs; trap 'exit 0' TERM; until test -e /v/end; do sleep 0.1; done; rm /v/end; exit 1";
    let writer = json!({"name": "writer", "command": ["sh", "-c", script], "volumeMounts": mount});
    let reader = json!({"name": "reader", "command": ["sh", "-c", FOREVER], "volumeMounts": mount});
    let server = json!({"name": "server"});
    let p = s.pod("p", json!({"volumes": [{"name": "v", "emptyDir": {}}]}), vec![writer, reader, server]);
    s.ready("p");
    let sh = |script: &str| s.ok(&["exec", "p", "-c", "reader", "--", "sh", "-c", script]);
    s.eventually("the first line", || (sh("cat /v/runs 2>/dev/null; true") == "run\n").then_some(()));
    sh("touch /v/end");
    s.eventually("the second line", || (sh("cat /v/runs") == "run\nrun\n").then_some(()));
    assert_eq!(sh("wget -q -O - http://localhost:8080/hostname; hostname"), "p\np\n");
    // Memory is shared as well, and processes are not.
    sh("echo shared > /dev/shm/x");
    assert_eq!(s.ok(&["exec", "p", "-c", "writer", "--", "cat", "/dev/shm/x"]), "shared\n");
    assert!(!sh("cat /proc/*/cmdline 2>/dev/null; true").contains("demo-app"));
    let uid = p["metadata"]["uid"].as_str().unwrap();
    let dir = s.cluster.directory.join("data/node/pods").join(uid);
    assert!(dir.exists(), "{}", dir.display());
    s.ok(&["delete", "pod", "p"]);
    s.eventually("the end of the volume", || (!dir.exists()).then_some(()));
}

/// Volumes in memory have the sticky bit, and directories of a subPath the mode of their volume.
fn memory_has_the_modes_of_a_tmpfs(s: &Story) {
    let volume = json!({"name": "room", "emptyDir": {"medium": "Memory"}});
    let mounts =
        json!([{"name": "room", "mountPath": "/room"}, {"name": "room", "mountPath": "/below", "subPath": "a/b"}]);
    let spec = json!({"volumes": [volume], "securityContext": {"fsGroup": 123}});
    s.shell_pod("p", FOREVER, spec, json!({"volumeMounts": mounts}));
    s.ready("p");
    assert_eq!(s.sh("p", "stat -c '%a %u %g' /room /below"), "3777 0 123\n3777 0 123\n");
}
