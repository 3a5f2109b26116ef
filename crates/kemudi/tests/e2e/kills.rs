//! Kills of the whole server, with the agent in it, at any moment: containers go on, no pod starts twice, logs and exit codes are
//! complete, and nothing stays that belongs to no pod. These tests have the cluster to themselves.

use crate::remains;
use crate::runner::Case;
use crate::story::Story;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

pub const ALONE: &[Case] = &[("kills::lose_nothing_and_leave_nothing", lose_nothing_and_leave_nothing)];

/// How often the server is killed, unless `KEMUDI_KILLS` says otherwise.
const KILLS: u64 = 6;

/// Pseudo-random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn short(n: u64) -> String {
    format!("short-{n}")
}

/// A pod that notes its start, ends soon with a code of its own, and has all kinds of things that an agent makes.
fn create_short(s: &Story, n: u64, out: &Path) {
    let name = short(n);
    let script = format!("echo start >> /out/{name}; sleep 0.2; echo said; echo end >> /out/{name}; exit {}", n % 5);
    let mounts = json!([{"name": "out", "mountPath": "/out"}, {"name": "word", "mountPath": "/word"}, {"name": "room", "mountPath": "/room"}]);
    let first = json!({"name": "first", "image": crate::story::IMAGE, "command": ["sh", "-c", "test -e /word/word"],
        "volumeMounts": [{"name": "word", "mountPath": "/word"}, {"name": "tools", "mountPath": "/bin"}]});
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [first],
        "volumes": [
            {"name": "out", "hostPath": {"path": out}},
            {"name": "word", "secret": {"secretName": "word"}},
            {"name": "room", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        ],
    });
    s.shell_pod(
        &name,
        &script,
        spec,
        json!({"volumeMounts": mounts, "ports": [{"containerPort": 80, "hostPort": 20000 + n}]}),
    );
}

/// What the container of a pod ended with.
fn exit_code(pod: &Value) -> Option<u64> {
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"].as_u64()
}

/// Clauses: P06.adopted P18.logs-kept
fn lose_nothing_and_leave_nothing(s: &Story) {
    let out = s.cluster.directory.join(format!("{}-out", s.ns));
    fs::create_dir_all(&out).unwrap();
    let mut random = Random(number("KEMUDI_KILLS_SEED").unwrap_or(1));
    s.create("secrets", json!({"metadata": {"name": "word"}, "stringData": {"word": "x"}}));
    let talking = "trap 'exit 0' TERM; i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done";
    s.shell_pod("talks", talking, json!({}), json!({}));
    let talks = s.ready("talks");
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    // In the cgroup of the pod, whichever runtime has made it.
    let uid = talks["metadata"]["uid"].as_str().unwrap();
    let holds = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(uid));
    let cgroups = remains::cgroups(pids.filter(holds));
    assert!(!cgroups.is_empty(), "the cgroups of the cluster are found by the processes of its pods");
    let before = remains::list(&s.cluster, &cgroups);

    let kills = number("KEMUDI_KILLS").unwrap_or(KILLS);
    for n in 0..kills {
        create_short(s, n, &out);
        s.shell_pod(
            &format!("long-{n}"),
            "trap 'sleep 0.3; exit 0' TERM; while :; do sleep 0.1; done",
            json!({"terminationGracePeriodSeconds": 5}),
            json!({"lifecycle": {"preStop": {"exec": {"command": ["sleep", "0.2"]}}}}),
        );
        if let Some(earlier) = n.checked_sub(1) {
            s.ok(&["delete", "pod", &format!("long-{earlier}"), "--wait=false"]);
        }
        // At any moment of all this: a request takes some milliseconds.
        for _ in 0..random.below(60) {
            s.get("pods/talks");
        }
        s.cluster.kill();
        s.cluster.start_again();
    }

    for n in 0..kills {
        let pod = s.until(&format!("pods/{}", short(n)), |p| exit_code(p).is_some());
        assert_eq!(exit_code(&pod), Some(n % 5), "{}", pod["status"]);
        assert_eq!(fs::read_to_string(out.join(short(n))).unwrap(), "start\nend\n", "{} ran once", short(n));
        assert_eq!(s.ok(&["logs", &short(n)]), "said\n");
    }
    let now = s.ready("talks");
    let id = |p: &Value| p["status"]["containerStatuses"][0]["containerID"].clone();
    assert_eq!((id(&now), &now["status"]["podIP"]), (id(&talks), &talks["status"]["podIP"]));
    assert_eq!(now["status"]["containerStatuses"][0]["restartCount"], 0);
    let log = s.ok(&["logs", "talks"]);
    let expected: Vec<String> = (1..=log.lines().count()).map(|i| format!("line {i}")).collect();
    assert_eq!(log.lines().collect::<Vec<_>>(), expected, "no line is missing");

    let names: Vec<String> = (0..kills).flat_map(|n| [short(n), format!("long-{n}")]).collect();
    s.ok(
        &[&["delete", "pod", "--ignore-not-found"][..], &names.iter().map(String::as_str).collect::<Vec<_>>()].concat()
    );
    let left = || -> BTreeSet<String> { remains::list(&s.cluster, &cgroups).difference(&before).cloned().collect() };
    let mut last = BTreeSet::new();
    s.eventually("nothing is left of the pods that are gone", || {
        let now = left();
        if now != last {
            println!("still there: {now:#?}");
            last.clone_from(&now);
        }
        now.is_empty().then_some(())
    });
}
