//! Escapes from a pod with `hostUsers: false`: its root, with every capability, has no privileges on the host.

use crate::runner::Case;
use crate::story::Story;
use serde_json::json;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

pub const TESTS: &[Case] = &[
    ("users::root_inside_is_nobody_outside", root_inside_is_nobody_outside),
    ("users::pods_with_their_own_users_work", pods_with_their_own_users_work),
];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// What root tries: name, and a script that succeeds if it may. None does harm where it does.
const ATTEMPTS: &[(&str, &str)] = &[
    ("the pattern of core dumps", ": >> /proc/sys/kernel/core_pattern"),
    ("the program that loads modules", ": >> /proc/sys/kernel/modprobe"),
    ("a parameter of the machine's memory", ": >> /proc/sys/vm/drop_caches"),
    ("system requests", ": >> /proc/sysrq-trigger"),
    ("interrupts", ": >> /proc/irq/default_smp_affinity"),
    ("the kernel's memory", "head -c 1 /proc/kcore | grep -q ."),
    ("a device", "mknod /v/kmsg c 1 11"),
    ("a disk", "mknod /v/disk b DISK"),
    ("the kernel's log", "busybox dmesg"),
    ("mounting a disk", "mount -t ext4 /dev/DISKNAME /mnt"),
    ("mounting what debugs the kernel", "mount -t debugfs none /mnt"),
    ("the time", "! busybox date -s @$(busybox date +%s) 2>&1 | grep -q \"can't set\""),
    ("a process of the host", "kill -0 HOSTPID"),
    ("memory of a process of the host", ": < /proc/HOSTPID/mem"),
    (
        "a cgroup",
        "grep -E ' cgroup2? ' /proc/mounts | while read from at kind; do mkdir $at/x && echo made; done | grep -q made",
    ),
    ("the host's network", "busybox nsenter -t HOSTPID -n true"),
    ("a module", "busybox insmod /v/module"),
    ("a swap file", "busybox swapon /v/swap"),
    ("the kernel's settings", ": >> /sys/kernel/mm/ksm/run"),
];

/// What the tools have no link for.
const APPLETS: &str = "for a in mkdir mknod mount stat; do eval \"$a() { busybox $a \\\"\\$@\\\"; }\"; done\n";

fn map(s: &Story, pod: &str) -> (u32, u32) {
    let text = s.sh(pod, "cat /proc/self/uid_map; cat /proc/self/gid_map");
    let lines: Vec<Vec<u32>> =
        text.lines().map(|l| l.split_ascii_whitespace().map(|n| n.parse().unwrap()).collect()).collect();
    assert!(lines.len() == 2 && lines[0] == lines[1] && lines[0][0] == 0, "{text}");
    (lines[0][1], lines[0][2])
}

fn root_inside_is_nobody_outside(s: &Story) {
    let partitions = fs::read_to_string("/proc/partitions").unwrap();
    let rows = partitions.lines().skip(2).map(|l| l.split_ascii_whitespace().collect::<Vec<_>>());
    let disk = rows.filter(|r| r.len() == 4 && r[2] != "0").last().expect("a machine with a disk");
    let host = std::process::id().to_string();
    let mut ranges = Vec::new();
    for (pod, context) in [
        ("plain", json!({"procMount": "Unmasked"})),
        ("privileged", json!({"procMount": "Unmasked", "privileged": true})),
    ] {
        let spec = json!({"hostUsers": false, "volumes": [{"name": "v", "emptyDir": {}}]});
        let mounts = json!([{"name": "v", "mountPath": "/v"}]);
        let script = format!("sleep 1{host} & {FOREVER}");
        s.shell_pod(pod, &script, spec, json!({"securityContext": context, "volumeMounts": mounts}));
        let uid = s.ready(pod)["metadata"]["uid"].as_str().unwrap().to_owned();
        let (first, length) = map(s, pod);
        assert!(first >= 65536 && first % 65536 == 0 && length == 65536, "{first} {length}");
        assert!(!ranges.contains(&first), "two pods have the same users");
        ranges.push(first);
        let mut script = format!("{APPLETS}mkdir -p /mnt\n");
        for (name, attempt) in ATTEMPTS {
            let attempt = attempt.replace("DISKNAME", disk[3]).replace("HOSTPID", &host);
            let attempt = attempt.replace("DISK", &format!("{} {}", disk[0], disk[1]));
            script += &format!("({attempt}) > /dev/null 2>&1 && echo \"succeeded: {name}\"\n");
        }
        assert_eq!(s.sh(pod, &format!("{script} true")), "", "{pod}");
        // Nothing is hidden or read-only, so what was refused was refused by the kernel.
        let masks = "grep -c -E ' /proc/[a-z]+' /proc/mounts; true";
        assert_eq!(s.sh(pod, masks), "0\n", "{pod}");
        // Processes of all kinds are users of the range.
        let mine = format!("sleep\x001{host}\0");
        let found = fs::read_dir("/proc").unwrap().flatten().filter(|e| {
            let line = fs::read(e.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).ends_with(&mine)
        });
        let owners: Vec<u32> = found.map(|e| fs::metadata(e.path()).unwrap().uid()).filter(|u| *u == first).collect();
        assert_eq!(owners.len(), 1, "{pod}");
        // A program left with the set-user-id bit is root's on disk, and out of everybody's reach.
        s.sh(pod, "cp /bin/busybox /v/left; chmod 4755 /v/left");
        let left = s.cluster.directory.join(format!("data/node/pods/{uid}/volumes/kubernetes.io~empty-dir/v/left"));
        let metadata = fs::metadata(&left).unwrap();
        assert_eq!((metadata.uid(), metadata.permissions().mode() & 0o7777), (0, 0o4755));
        let run = |user: u32| Command::new(&left).arg("true").uid(user).gid(user).status();
        for user in [first, 65534] {
            assert!(run(user).is_err(), "user {user} runs a program of root in a volume");
        }
    }
    // Users of one pod cannot touch another's files, though both are root of their own.
    for (pod, other) in [("plain", ranges[1]), ("privileged", ranges[0])] {
        let text = s.sh(pod, &format!("{APPLETS} : > /mine; busybox chown {other} /mine 2> /dev/null || echo refused"));
        assert_eq!(text, "refused\n");
    }
}

fn pods_with_their_own_users_work(s: &Story) {
    s.create("configmaps", json!({"metadata": {"name": "cm"}, "data": {"key": "value"}}));
    s.create("secrets", json!({"metadata": {"name": "secret"}, "stringData": {"key": "hidden"}}));
    let directory = s.dir.join("of-the-host");
    fs::create_dir(&directory).unwrap();
    let own = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let probe = json!({"exec": {"command": ["sh", "-c", "test \"$(id -u)\" = 1000 && test -f /disk/hook"]}});
    let container = json!({
        "volumeMounts": [own("disk"), own("memory"), own("cm"), own("secret"), own("host"), {
            "name": "disk", "mountPath": "/sub", "subPath": "a/b",
        }],
        "lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", "echo x > /disk/hook"]}}},
        "readinessProbe": probe,
        "terminationMessagePath": "/dev/termination-log",
        "env": [{"name": "PATH", "value": "/bin:/memory"}],
    });
    for (pod, shared) in [("one", false), ("shared", true)] {
        let spec = json!({
            "hostUsers": false, "shareProcessNamespace": shared,
            "securityContext": {"runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 2000},
            "volumes": [
                {"name": "disk", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "cm", "configMap": {"name": "cm"}},
                {"name": "secret", "secret": {"secretName": "secret", "defaultMode": 256}},
                {"name": "host", "hostPath": {"path": directory}},
            ],
        });
        let script =
            format!("ln -s /bin/busybox /memory/tar; echo end > /dev/termination-log; echo started; {FOREVER}");
        s.shell_pod(pod, &script, spec, container.clone());
        s.ready(pod);
        s.logged(pod, "started");
        let script = "id -u; id -g; cat /cm/key; echo; cat /secret/key; echo
            test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo token
            for d in /disk /memory /sub; do : > $d/made && busybox stat -c '%u:%g' $d/made; done
            busybox stat -c '%u:%g' /host /etc/hosts /secret/..data/key /dev /
            (: > /host/made) 2> /dev/null || echo refused; grep -c nameserver /etc/resolv.conf";
        let expected = "1000\n3000\nvalue\nhidden\ntoken\n1000:2000\n1000:2000\n1000:2000\n0:0\n0:0\n0:2000\n0:0\n0:0\nrefused\n1\n";
        assert_eq!(s.sh(pod, script), expected, "{pod}");
        let output = s.with_input(&["exec", "-i", pod, "--", "cat"], "through");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "through", "{pod}");
        s.file("sent", "content");
        s.ok(&["cp", "sent", &format!("{pod}:/disk/sent")]);
        assert_eq!(s.sh(pod, "cat /disk/sent"), "content");
    }
    // What changes later arrives.
    s.patch("configmaps/cm", json!({"data": {"key": "new"}}));
    s.eventually("the new value", || (s.sh("one", "cat /cm/key") == "new").then_some(()));
    // Nobody's files in a directory of the host.
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    // A file system that cannot do it is an error that says so, and the pod waits.
    let spec = json!({"hostUsers": false, "volumes": [{"name": "proc", "hostPath": {"path": "/proc"}}]});
    let mounts = json!({"volumeMounts": [{"name": "proc", "mountPath": "/p"}]});
    s.shell_pod("unmappable", FOREVER, spec, mounts);
    let why = "mount source /proc: its file system cannot be mounted with the users of a user namespace";
    let found = s.container("unmappable", |c| {
        let (t, l) = (&c["state"]["terminated"]["message"], &c["lastState"]["terminated"]["message"]);
        [t, l].iter().any(|m| m.as_str().is_some_and(|m| m.contains(why)))
    });
    assert_ne!(found["ready"], true);
}
