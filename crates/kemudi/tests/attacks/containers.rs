//! Escapes from a container: descriptors, the start of exec, pod fields that weaken isolation, privileges by level.

use crate::cluster::KEMUDI;
use crate::runner::Case;
use crate::story::Story;
use serde_json::json;
use std::path::{Path, PathBuf};

pub const TESTS: &[Case] = &[
    ("containers::programs_inherit_three_descriptors", programs_inherit_three_descriptors),
    ("containers::the_server_passes_nothing_on", the_server_passes_nothing_on),
    ("containers::the_binary_cannot_be_written", the_binary_cannot_be_written),
    ("containers::fields_that_are_not_carried_out_are_refused", fields_that_are_not_carried_out_are_refused),
    ("containers::privileges_are_those_of_the_level", privileges_are_those_of_the_level),
    ("containers::pods_become_nobodys_router", pods_become_nobodys_router),
    ("containers::no_cgroup_of_the_machine_is_theirs", no_cgroup_of_the_machine_is_theirs),
    ("containers::nothing_that_hangs_keeps_a_pod", nothing_that_hangs_keeps_a_pod),
    ("containers::a_pod_forks_up_to_its_limit", a_pod_forks_up_to_its_limit),
    ("containers::environments_that_no_program_takes_leave_nothing", environments_that_no_program_takes_leave_nothing),
    ("containers::a_status_that_is_too_large_keeps_no_pod", a_status_that_is_too_large_keeps_no_pod),
];

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
/// The three streams, and the directory that `ls` opens itself.
const STREAMS: &str = "0\n1\n2\n3\n";

/// The database was open for writing in every container. (What a terminal adds is looked at in the tests of the runtime.)
fn programs_inherit_three_descriptors(s: &Story) {
    let list = |file: &str| json!(["sh", "-c", format!("exec ls /proc/self/fd > /v/{file}")]);
    let run = |file: &str| json!({"exec": {"command": list(file)}});
    for (pod, spec) in [
        ("plain", json!({})),
        ("shared", json!({"shareProcessNamespace": true})),
        ("host", json!({"hostPID": true, "hostNetwork": true, "hostIPC": true})),
    ] {
        let mounts = json!([{"name": "v", "mountPath": "/v"}, {"name": "tools", "mountPath": "/bin"}]);
        let first =
            json!({"name": "i", "image": crate::story::IMAGE, "command": list("first"), "volumeMounts": mounts});
        let mut spec = spec;
        spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        spec["initContainers"] = json!([first]);
        let container = json!({
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "lifecycle": {"postStart": run("hook")},
            "readinessProbe": run("probe"),
            "startupProbe": run("startup"),
        });
        s.shell_pod(pod, FOREVER, spec, container);
        s.ready(pod);
        for file in ["first", "hook", "probe", "startup"] {
            let what = format!("{file} of the pod {pod}");
            let found = s.eventually(&what, || Some(s.sh(pod, &format!("cat /v/{file}"))).filter(|t| !t.is_empty()));
            assert_eq!(found, STREAMS, "{what}");
        }
        assert_eq!(s.ok(&["exec", pod, "--", "ls", "/proc/self/fd"]), STREAMS, "exec in the pod {pod}");
        let output = s.with_input(&["exec", "-i", pod, "--", "ls", "/proc/self/fd"], "input");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), STREAMS, "exec with input in the pod {pod}");
    }
}

/// Every descriptor of the server closes when it runs a program, whoever opened it.
fn the_server_passes_nothing_on(s: &Story) {
    let pid = std::fs::read_to_string(s.cluster.directory.join("data/kemudi.pid")).unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
        let number: u32 = entry.file_name().to_str().unwrap().parse().unwrap();
        let Ok(info) = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")) else { continue };
        let flags = info.lines().find_map(|l| l.strip_prefix("flags:")).unwrap().trim();
        let close_on_exec = u32::from_str_radix(flags, 8).unwrap() & 0o2_000_000 != 0;
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        assert!(number < 3 || close_on_exec, "{number}, {}, is inherited", target.display());
        seen += 1;
    }
    assert!(seen > 10, "the server has files and sockets open");
}

/// The image of the demonstration is made of the binary that runs the cluster.
fn the_binary_cannot_be_written(s: &Story) {
    let before = std::fs::read(KEMUDI).unwrap();
    s.pod("p", json!({}), vec![json!({"name": "c"}), json!({"name": "shell", "command": ["sh", "-c", FOREVER]})]);
    s.ready("p");
    let script = "(echo gone >> /kemudi) 2>&1; (echo gone > /kemudi) 2>&1; (echo gone >> /proc/1/exe) 2>&1;
        for fd in 0 1 2 3 4 5 6 7 8 9; do (echo gone >> /proc/self/fd/$fd/../exe) 2>&1; done; chmod 777 /kemudi; true";
    s.ok(&["exec", "p", "-c", "shell", "--", "sh", "-c", script]);
    assert!(std::fs::read(KEMUDI).unwrap() == before, "the binary of the host was written from a container");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(KEMUDI).unwrap().permissions());
    assert_eq!(mode & 0o022, 0, "the binary of the host became writable");
}

/// Admission trusts these fields, and the node ignored them.
fn fields_that_are_not_carried_out_are_refused(s: &Story) {
    let apparmor = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "kemudi-has-none"}});
    let has_apparmor =
        std::fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|e| e.starts_with('Y'));
    let why =
        if has_apparmor { "profile \"kemudi-has-none\" is not loaded" } else { "AppArmor is not enabled on the host" };
    let apparmor_message = format!("Cannot enforce AppArmor: {why}");
    let cases = [
        ("apparmor", json!({}), json!(apparmor), "AppArmor", apparmor_message.as_str()),
        ("apparmor-pod", json!({"securityContext": apparmor}), json!({}), "AppArmor", &apparmor_message),
    ];
    for (name, spec, context, reason, message) in cases {
        let mark = s.dir.join(format!("{name}-ran"));
        let volumes = json!([{"name": "mark", "hostPath": {"path": s.dir}}]);
        let mut spec = spec;
        spec["volumes"] = volumes;
        let script = format!("touch /mark/{name}-ran; {FOREVER}");
        let container = json!({"securityContext": context, "volumeMounts": [{"name": "mark", "mountPath": "/mark"}]});
        s.shell_pod(name, &script, spec, container);
        let pod = s.phase(name, "Failed");
        assert_eq!(pod["status"]["reason"], reason, "{name}");
        assert_eq!(pod["status"]["message"], format!("Pod was rejected: {message}"), "{name}");
        assert_eq!(s.event(name, reason), message);
        assert!(!mark.exists(), "{name} ran all the same");
    }
    // One that joins a pod which runs.
    s.shell_pod("host", FOREVER, json!({}), json!({}));
    s.ready("host");
    let ephemeral = json!({"spec": {"ephemeralContainers": [
        {"name": "debugger", "image": crate::story::IMAGE, "command": ["sh", "-c", FOREVER], "securityContext": apparmor,
         "volumeMounts": [{"name": "tools", "mountPath": "/bin"}]},
    ]}});
    s.patch("pods/host/ephemeralcontainers", ephemeral);
    let pod = s.until("pods/host", |p| {
        p["status"]["ephemeralContainerStatuses"][0]["state"]["waiting"]["message"].is_string()
    });
    let waiting = &pod["status"]["ephemeralContainerStatuses"][0]["state"]["waiting"];
    assert_eq!(
        (&waiting["reason"], &waiting["message"]),
        (&json!("CreateContainerConfigError"), &json!(apparmor_message))
    );
}

/// A container of each Pod Security level, and what it is to find: name, script, and its output as privileged, baseline, restricted.
const LEVELS: &[(&str, &str, [&str; 3])] = &[
    ("inheritable capabilities", "grep CapInh /proc/self/status", ["CapInh:\t0000000000000000"; 3]),
    ("ambient capabilities", "grep CapAmb /proc/self/status", ["CapAmb:\t0000000000000000"; 3]),
    (
        "permitted capabilities",
        "grep CapPrm /proc/self/status",
        ["CapPrm:\tALL", "CapPrm:\t00000000a80425fb", "CapPrm:\t0000000000000000"],
    ),
    (
        "effective capabilities",
        "grep CapEff /proc/self/status",
        ["CapEff:\tALL", "CapEff:\t00000000a80425fb", "CapEff:\t0000000000000000"],
    ),
    (
        "bounding set",
        "grep CapBnd /proc/self/status",
        ["CapBnd:\tALL", "CapBnd:\t00000000a80425fb", "CapBnd:\t0000000000000000"],
    ),
    ("no_new_privs", "grep NoNewPrivs /proc/self/status", ["NoNewPrivs:\t0", "NoNewPrivs:\t0", "NoNewPrivs:\t1"]),
    // Without a profile none is used, as with kubelet's default (`--seccomp-default` is off).
    ("system call filter", "grep Seccomp: /proc/self/status", ["Seccomp:\t0", "Seccomp:\t0", "Seccomp:\t2"]),
    ("umask", "umask", ["0022"; 3]),
    // The machine has 4096 in all.
    ("terminals", "grep -o 'max=[0-9]*' /proc/mounts", ["max=64"; 3]),
    ("namespaces of cgroups", "cut -d: -f3 < /proc/self/cgroup | grep -c kubepods", ["*", "0", "0"]),
    ("new user namespaces", "unshare -U true 2> /dev/null && echo made || echo refused", ["*", "*", "refused"]),
    (
        "devices that are there",
        "ls /dev | grep -v -e '^fd$' -e '^shm$' -e '^pts$' -e '^given$' | tr '\\n' ' '",
        [
            "*",
            "core full mqueue null ptmx random stderr stdin stdout termination-log tty urandom zero ",
            "core full mqueue null ptmx random stderr stdin stdout termination-log tty urandom zero ",
        ],
    ),
    ("the kernel's log", "head -c 0 /dev/kmsg 2> /dev/null && echo open || echo closed", ["open", "closed", "closed"]),
    ("memory", "head -c 0 /dev/mem 2> /dev/null && echo open || echo closed", ["*", "closed", "closed"]),
    (
        "a device made in a volume",
        "mknod /v/kmsg c 1 11 2> /dev/null; head -c 0 /v/kmsg 2> /dev/null && echo open || echo closed",
        ["open", "closed", "closed"],
    ),
    (
        "a disk made in a volume",
        "mknod /v/disk b DISK 2> /dev/null; head -c 0 /v/disk 2> /dev/null && echo open || echo closed",
        // Not every host lets its own root read a disk.
        ["*", "closed", "closed"],
    ),
    (
        "a device of the host as a volume",
        "test -c /dev/given; head -c 0 /dev/given 2> /dev/null && echo open || echo closed",
        ["open", "closed", "closed"],
    ),
    (
        "a device made in the root",
        "mknod /kmsg c 1 11 2> /dev/null; head -c 0 /kmsg 2> /dev/null && echo open || echo closed",
        ["open", "closed", "closed"],
    ),
    (
        "devices that may be used",
        "head -c 1 /dev/zero > /dev/null && head -c 1 /dev/urandom > /dev/null && echo ok",
        ["ok"; 3],
    ),
    ("/proc/kcore", "head -c 1 /proc/kcore | wc -c", ["*", "0", "0"]),
    ("/proc/keys", "cat /proc/keys | wc -c | sed 's/[1-9].*/some/'", ["some", "0", "0"]),
    ("/proc/timer_list", "cat /proc/timer_list | wc -c | sed 's/[1-9].*/some/'", ["some", "0", "0"]),
    ("/proc/interrupts", "cat /proc/interrupts | wc -c | sed 's/[1-9].*/some/'", ["some", "0", "0"]),
    ("/sys/firmware", "ls /sys/firmware | wc -l | sed 's/[1-9].*/some/'", ["*", "0", "0"]),
    (
        "/proc/sys",
        "(echo x > /proc/sys/kernel/domainname) 2> /dev/null && echo written || echo kept",
        ["written", "kept", "kept"],
    ),
    (
        "/proc/sysrq-trigger",
        "(: > /proc/sysrq-trigger) 2> /dev/null && echo open || echo closed",
        ["*", "closed", "closed"],
    ),
    (
        "/proc/irq",
        "(: > /proc/irq/default_smp_affinity) 2> /dev/null && echo open || echo closed",
        ["open", "closed", "closed"],
    ),
    ("/proc/bus and /proc/fs", "grep -c -e ' /proc/bus proc ro' -e ' /proc/fs proc ro' /proc/mounts", ["0", "2", "2"]),
    ("/sys", "grep ' /sys sysfs ' /proc/mounts | cut -d' ' -f4 | cut -d, -f1", ["rw", "ro", "ro"]),
    ("cgroups", "grep -c ' /sys/fs/cgroup[^ ]* [^ ]* rw' /proc/mounts | sed 's/[1-9].*/some/'", ["some", "0", "0"]),
    (
        "writing to cgroups",
        "(mkdir /sys/fs/cgroup/memory/x || mkdir /sys/fs/cgroup/x) 2> /dev/null && echo made || echo refused",
        ["*", "refused", "refused"],
    ),
    (
        "mounting",
        "mount -t tmpfs none /v 2> /dev/null && echo mounted || echo refused",
        ["mounted", "refused", "refused"],
    ),
    ("set-user-id volumes", "grep -c -e ' /v [^ ]* [^ ]*nodev' /proc/mounts", ["0", "1", "1"]),
    (
        "other mounts",
        "cut -d' ' -f5 /proc/self/mountinfo | \\
         grep -v -E '^/($|proc|sys|dev|etc/(hosts|hostname|resolv.conf)$|v$|bin$|var/run/secrets/)' | wc -l",
        ["0"; 3],
    ),
    ("processes", "ls -d /proc/[0-9]* | wc -l | sed 's/^[1-9]$/few/'", ["few"; 3]),
];

/// What the tools have no link for.
const APPLETS: &str =
    "for a in cut mkdir mknod sed tr unshare wc; do eval \"$a() { busybox $a \\\"\\$@\\\"; }\"; done\n";

/// The numbers of a block device that is there.
fn disk_of_the_host() -> String {
    let partitions = std::fs::read_to_string("/proc/partitions").unwrap();
    let rows = partitions.lines().skip(2).map(|l| l.split_ascii_whitespace().collect::<Vec<_>>());
    let disk = rows.filter(|r| r.len() == 4 && r[2] != "0").last();
    disk.map(|r| format!("{} {}", r[0], r[1])).expect("a machine with a disk")
}

fn privileges_are_those_of_the_level(s: &Story) {
    let all = std::fs::read_to_string("/proc/self/status").unwrap();
    let all = all.lines().find_map(|l| l.strip_prefix("CapBnd:")).unwrap().trim().to_owned();
    let disk = disk_of_the_host();
    let restricted = json!({
        "runAsNonRoot": true, "runAsUser": 1000, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    let levels = [("privileged", json!({"privileged": true})), ("baseline", json!({})), ("restricted", restricted)];
    let mut wrong = Vec::new();
    for (index, (level, context)) in levels.into_iter().enumerate() {
        let device = json!({"name": "device", "hostPath": {"path": "/dev/kmsg", "type": "CharDevice"}});
        let volumes = json!({"volumes": [{"name": "v", "emptyDir": {}}, device]});
        let mounts = json!([{"name": "v", "mountPath": "/v"}, {"name": "device", "mountPath": "/dev/given"}]);
        let container = json!({"securityContext": context, "volumeMounts": mounts});
        let mut script = String::new();
        for (number, (_, line, _)) in LEVELS.iter().enumerate() {
            script += &format!("echo '= {number}'; {}\n", line.replace("DISK", &disk));
        }
        s.shell_pod(level, FOREVER, volumes, container);
        s.ready(level);
        let found = s.sh(level, &format!("{APPLETS}{script} true"));
        let mut parts: Vec<&str> = found.split("= ").collect();
        parts.remove(0);
        for ((name, _, expected), part) in LEVELS.iter().zip(parts) {
            let (_, output) = part.split_once('\n').unwrap_or((part, ""));
            let expected = expected[index].replace("ALL", &all);
            if expected != "*" && output.trim_end_matches('\n') != expected {
                wrong.push(format!("{level}: {name}: {output:?} instead of {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Router advertisements of a pod have no effect: neither the node's bridge nor other pods speak IPv6.
fn pods_become_nobodys_router(s: &Story) {
    s.shell_pod("p", "while :; do sleep 1; done", json!({}), json!({}));
    s.ready("p");
    assert_eq!(
        s.sh("p", "cat /proc/sys/net/ipv6/conf/eth0/disable_ipv6 /proc/sys/net/ipv6/conf/eth0/accept_ra"),
        "1\n0\n"
    );
    let mut bridges = 0;
    for entry in std::fs::read_dir("/proc/sys/net/ipv6/conf").unwrap().map(|e| e.unwrap()) {
        if entry.file_name().to_string_lossy().starts_with("kemudi") {
            let read = |f: &str| std::fs::read_to_string(entry.path().join(f)).unwrap();
            assert_eq!((read("disable_ipv6").trim(), read("accept_ra").trim()), ("1", "0"));
            bridges += 1;
        }
    }
    assert_eq!(bridges, 1);
}

/// Where a container stayed at the root of a hierarchy, it could mount that and write the machine's own cgroups.
fn no_cgroup_of_the_machine_is_theirs(s: &Story) {
    let marker = format!("marker-{}", s.ns);
    s.shell_pod("p", &format!("while :; do sleep 1; done; echo {marker}"), json!({}), json!({}));
    s.ready("p");
    let processes = std::fs::read_dir("/proc").unwrap().map(|e| e.unwrap().path());
    let ours = processes
        .filter(|p| std::fs::read(p.join("cmdline")).is_ok_and(|c| String::from_utf8_lossy(&c).contains(&marker)));
    let cgroups: Vec<String> = ours.filter_map(|p| std::fs::read_to_string(p.join("cgroup")).ok()).collect();
    assert!(!cgroups.is_empty());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    for line in cgroups.iter().flat_map(|c| c.lines()) {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap(), parts.next().unwrap());
        let mounted = |l: &str| match controllers {
            "" => l.contains(" - cgroup2 "),
            c => l.contains(" - cgroup ") && c.split(',').all(|c| l.contains(c)),
        };
        assert!(path.contains("/kemudi-") || path.starts_with("/kemudi") || !mounts.lines().any(mounted), "{line}");
    }
}

/// A hook that never ends, and an error as long as the agent will not read.
fn nothing_that_hangs_keeps_a_pod(s: &Story) {
    let hook = json!({"postStart": {"exec": {"command": ["sleep", "100000"]}}});
    s.shell_pod("hook", "while :; do sleep 1; done", json!({}), json!({"lifecycle": hook}));
    s.event("hook", "Created");
    s.ok(&["delete", "pod", "hook", "--grace-period=1"]);
    let long = format!("/{}", "\u{1}".repeat(16_000));
    s.shell_pod("long", "while :; do sleep 1; done", json!({}), json!({"workingDir": long}));
    s.container("long", |c| !c["state"]["waiting"]["message"].is_null() || !c["lastState"]["terminated"].is_null());
    let uid = s.get("pods/long")["metadata"]["uid"].as_str().unwrap().to_owned();
    s.ok(&["delete", "pod", "long", "--grace-period=1"]);
    let shims = || {
        let all = std::fs::read_dir("/proc").unwrap().flatten().map(|e| e.path().join("cmdline"));
        all.filter(|p| std::fs::read(p).is_ok_and(|c| String::from_utf8_lossy(&c).contains(&uid))).count()
    };
    s.eventually("its shims are gone", || (shims() == 0).then_some(()));
    // Sidecars end one after the other while the grace period lasts, and then together: three seconds for each were minutes.
    let stubborn = |i: usize| {
        let mounts = json!([{"name": "tools", "mountPath": "/bin", "readOnly": true}]);
        json!({"name": format!("s{i}"), "image": crate::story::IMAGE, "restartPolicy": "Always", "volumeMounts": mounts,
            "command": ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"],
            "lifecycle": {"preStop": {"sleep": {"seconds": 100_000}}}})
    };
    let sidecars: Vec<_> = (0..40).map(stubborn).collect();
    let spec = json!({"initContainers": sidecars, "terminationGracePeriodSeconds": 100_001});
    s.shell_pod("sidecars", "while :; do sleep 1; done", spec, json!({}));
    s.ready("sidecars");
    s.k(&["delete", "pod", "sidecars", "--grace-period=1", "--wait=false"]);
    s.gone("pods/sidecars");
}

/// The status repeats the mounts of the specification, and both together are larger than an object may be.
fn a_status_that_is_too_large_keeps_no_pod(s: &Story) {
    let path = |i: usize| format!("/{}/{i}", "p".repeat(150));
    let mounts: Vec<_> = (0..900).map(|i| json!({"name": "v", "mountPath": path(i)})).collect();
    let container = |i: usize| json!({"name": format!("c{i}"), "image": "kemudi.local/none", "imagePullPolicy": "Never", "volumeMounts": mounts});
    s.pod("p", json!({"volumes": [{"name": "v", "emptyDir": {}}]}), (0..4).map(container).collect());
    let reported =
        s.until("pods/p", |p| p["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImageNeverPull");
    assert!(reported["status"]["containerStatuses"][0]["volumeMounts"].is_null(), "{}", reported["status"]);
    s.ok(&["delete", "pod", "p"]);
    s.gone("pods/p");
}

/// A pod takes as many processes as it may have, and no more; the node, other pods and its own removal go on.
fn a_pod_forks_up_to_its_limit(s: &Story) {
    s.shell_pod("other", FOREVER, json!({}), json!({}));
    let marker = "1000000";
    let bomb = format!("(i=0; while [ $i -lt 700 ]; do sleep {marker} & i=$((i+1)); done); exec sleep {marker}");
    s.shell_pod("bomb", &bomb, json!({}), json!({}));
    s.ready("other");
    let uid = s.get("pods/bomb")["metadata"]["uid"].as_str().unwrap().to_owned();
    let group = s.eventually("the control group of the pod", || pids_group(&uid));
    let number = |group: &Path, file: &str| -> u64 {
        std::fs::read_to_string(group.join(file)).unwrap().trim().parse().unwrap()
    };
    assert_eq!(number(&group, "pids.max"), 512);
    // The shell that could not fork any more has ended.
    s.eventually("the pod has all it may have", || (number(&group, "pids.current") >= 511).then_some(()));
    let all = group.ancestors().find(|g| g.ends_with("kubepods")).unwrap();
    let machine: u64 = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap().trim().parse().unwrap();
    assert!(number(all, "pids.max") <= machine / 10 * 9, "all pods together may take what the node needs");
    assert_eq!(s.sh("other", "echo works"), "works\n");
    s.ok(&["delete", "pod", "bomb", "--grace-period=1"]);
    assert!(!group.exists(), "its processes are still there");
}

/// The control group of a pod in the hierarchy that counts processes.
fn pids_group(uid: &str) -> Option<PathBuf> {
    let below = |directory: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
    };
    let v1 = Path::new("/sys/fs/cgroup/pids");
    let mut groups = below(if v1.exists() { v1 } else { Path::new("/sys/fs/cgroup") });
    groups.retain(|g| g.file_name().is_some_and(|n| n.to_string_lossy().starts_with("kemudi-")));
    let kubepods = groups.iter().map(|g| g.join("kubepods"));
    let levels = kubepods.flat_map(|g| [g.join("besteffort"), g.join("burstable"), g]);
    levels.map(|l| l.join(format!("pod{uid}"))).find(|g| g.exists())
}

/// One config map, given to each of many containers under many names, filled memory and disk of the server with records of failed starts.
fn environments_that_no_program_takes_leave_nothing(s: &Story) {
    const CONTAINERS: usize = 12;
    let data: serde_json::Map<_, _> = (0..8).map(|n| (format!("K{n}"), "x".repeat(110_000).into())).collect();
    s.create("configmaps", json!({"metadata": {"name": "large"}, "data": data}));
    let from = |times: usize| {
        let one = |n| json!({"prefix": format!("P{n}_"), "configMapRef": {"name": "large"}});
        serde_json::Value::Array((0..times).map(one).collect())
    };
    let container = |n: usize, times| json!({"name": format!("c{n}"), "image": crate::story::IMAGE, "command": ["sh", "-c", FOREVER], "envFrom": from(times)});
    // Each of the second pod is almost what a program takes, and all of them are more than a pod has.
    for (pod, times, running, message) in
        [("refused", 6, 0, "argument list too long"), ("full", 2, 9, "environment, arguments and mounts")]
    {
        s.pod(pod, json!({}), (0..CONTAINERS).map(|n| container(n, times)).collect());
        let seen = s.until(&format!("pods/{pod}"), |p| {
            let all = p["status"]["containerStatuses"].as_array();
            let count =
                |wanted: &dyn Fn(&serde_json::Value) -> bool| all.map_or(0, |a| a.iter().filter(|c| wanted(c)).count());
            let waits = count(&|c| {
                let waiting = &c["state"]["waiting"];
                waiting["reason"].as_str().is_some_and(|r| r.starts_with("CreateContainer"))
                    && waiting["message"].as_str().is_some_and(|m| m.contains(message))
            });
            count(&|c| c["state"]["running"].is_object()) == running && waits == CONTAINERS - running
        });
        let uid = seen["metadata"]["uid"].as_str().unwrap();
        let records = records(&s.cluster.directory.join("data"), uid);
        let bytes: u64 = records.iter().map(|r| std::fs::metadata(r).unwrap().len()).sum();
        assert!(records.len() == running && bytes < (running as u64 + 1) << 21, "{bytes} bytes: {records:?}");
        s.ok(&["delete", "pod", pod, "--grace-period=0", "--force"]);
    }
}

/// The records of the containers of a pod below `directory`.
fn records(directory: &Path, uid: &str) -> Vec<PathBuf> {
    let pods = directory.join("runtime/pods");
    let pods = std::fs::read_dir(&pods).unwrap_or_else(|e| panic!("{}: {e}", pods.display())).flatten();
    let own = pods.filter(|p| p.file_name().to_string_lossy().starts_with(uid));
    let containers =
        own.flat_map(|pod| std::fs::read_dir(pod.path().join("containers")).into_iter().flatten().flatten());
    containers.map(|c| c.path().join("config.json")).filter(|file| file.exists()).collect()
}
