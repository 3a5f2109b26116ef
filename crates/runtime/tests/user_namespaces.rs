//! Pods with users of their own: root inside is an unprivileged user of the host, and everything else works as in other pods.
#![allow(clippy::unwrap_used)] // helpers of tests

mod host;

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use host::{Host, shell};
use nix::mount::MsFlags;
use runtime::*;

const FOREVER: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
const A: IdRange = IdRange { first: 65536 * 9, length: 65536 };
const B: IdRange = IdRange { first: 65536 * 10, length: 65536 };

async fn sh(host: &Host, container: &str, script: &str) -> String {
    let command = ["sh", "-c", &format!("exec 2>&1; {script}")].map(str::to_owned).to_vec();
    let result = host.runtime.exec_sync(container, command, Some(Duration::from_secs(30)), 16 << 20).await.unwrap();
    String::from_utf8(result.stdout).unwrap()
}

#[tokio::test]
async fn root_inside_is_a_user_of_the_pods_range_outside() {
    let mut host = Host::new().await;
    assert_eq!(host.runtime.host_limits().no_user_namespaces, None, "this machine cannot run the test");
    let mut namespaces = std::collections::BTreeSet::new();
    for (name, range, mode) in [("a", A, PidMode::Container), ("b", B, PidMode::Pod)] {
        let mut config = host.user_pod_config(name, range);
        config.pid = mode;
        config.sysctls = [("kernel.shm_rmid_forced", "1"), ("net.ipv4.ip_unprivileged_port_start", "7")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        host.runtime.run_pod(config).await.unwrap();
        let id = host.start(name, shell("main", FOREVER)).await;
        let map = format!("0 {} {}\n", range.first, range.length);
        let read = "id -u; id -g; id -G; hostname; for f in uid_map gid_map; do read a b c < /proc/self/$f; echo $a $b $c; done
            cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start";
        let expected = format!("0\n0\n0\nhost-{name}\n{map}{map}1\n7\n");
        assert_eq!(sh(&host, &id, read).await, expected, "exec, {mode:?}");
        let (_, text) = host.script(name, "first", read, |_| {}).await;
        assert_eq!(text, expected, "the first process, {mode:?}");
        let (_, text) = host.script(name, "terminal", &format!("{read}; tty"), |c| c.tty = true).await;
        assert_eq!(text.replace('\r', ""), format!("{expected}/dev/pts/0\n"), "on a terminal, {mode:?}");
        let (_, text) = host
            .script(name, "user", "id -u; id -G; echo x > /tmp-mine || echo refused", |c| {
                c.security.run_as_user = Some(33);
                c.security.supplemental_groups = vec![7];
            })
            .await;
        assert!(text.starts_with("33\n") && text.contains('7') && text.ends_with("refused\n"), "{text}");
        let pid = host.runtime.container_status(&id).await.unwrap().pid.unwrap();
        assert_eq!(std::fs::metadata(format!("/proc/{pid}")).unwrap().uid(), range.first);
        for kind in ["user", "net", "ipc", "uts", "mnt", "pid", "cgroup"] {
            let of = |p: String| std::fs::read_link(format!("/proc/{p}/ns/{kind}")).unwrap();
            assert_ne!(of(pid.to_string()), of("self".into()), "{kind}");
            assert!(namespaces.insert(of(pid.to_string())), "{kind} is another pod's");
        }
        if mode == PidMode::Pod {
            let found = sh(&host, &id, "cat /proc/1/comm; grep -E '^(Uid|CapEff)' /proc/1/status").await;
            assert_eq!(found, "pause\nUid:\t0\t0\t0\t0\nCapEff:\t0000000000000000\n");
        }
        let status = host.runtime.container_status(&id).await.unwrap();
        assert_eq!(status.state, ContainerState::Running);
    }
    host.finish().await;
}

#[tokio::test]
async fn files_have_the_owners_that_they_have_on_disk() {
    let mut host = Host::new().await;
    let volume = host.directory.path().join("volume");
    let shared = volume.join("shared");
    std::fs::create_dir_all(&shared).unwrap();
    std::fs::write(volume.join("secret"), "s").unwrap();
    std::os::unix::fs::chown(volume.join("secret"), Some(33), Some(44)).unwrap();
    std::fs::write(volume.join("host"), "h").unwrap();
    std::fs::set_permissions(volume.join("host"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let memory = host.directory.path().join("memory");
    std::fs::create_dir(&memory).unwrap();
    nix::mount::mount(Some("m"), &memory, Some("tmpfs"), nix::mount::MsFlags::empty(), Some("mode=755")).unwrap();
    let config = host.user_pod_config("a", A);
    host.runtime.run_pod(config).await.unwrap();
    let script = "for f in / /bin/busybox /etc/passwd /etc/hosts /etc/hostname /dev /dev/pts /dev/shm /v /v/secret /m /log /proc/1 \
                /proc/sys/net/ipv4/ip_forward /home/web /made/deep; do stat -c '%u:%g %a %n' $f; done
            stat -c '%u %n' /dev/null /sys/fs/cgroup/* | grep -v '^65534 ' | head -n 3
            echo message > /log; echo x > /dev/shm/x; echo x > /v/made; chown 33:44 /v/made; chmod 4755 /v/made
            cat /v/host; echo x > /m/made; echo x > /layer; chown 5:6 /layer; touch /etc/passwd; chown 7 /bin/busybox
            echo out > /dev/stdout; echo err > /dev/stderr; mkdir /etc/new && stat -c '%u' /etc/new; cat /dev/null; ls /sys/class/net";
    let (status, text) = host
        .script("a", "main", script, |c| {
            c.termination_message_path = Some("/log".into());
            c.mounts = vec![
                Mount::bind(&volume, "/v"),
                Mount::bind(&memory, "/m"),
                Mount {
                    source: MountSource::Below { root: volume.clone(), path: "shared".into() },
                    ..Mount::bind("", "/made/deep")
                },
            ];
        })
        .await;
    let expected =
        "0:0 755 /\n0:0 755 /bin/busybox\n0:0 644 /etc/passwd\n0:0 644 /etc/hosts\n0:0 644 /etc/hostname\n0:0 755 /dev
0:0 755 /dev/pts\n0:0 1777 /dev/shm\n0:0 755 /v\n33:44 644 /v/secret\n0:0 755 /m\n0:0 666 /log\n0:0 555 /proc/1
0:0 644 /proc/sys/net/ipv4/ip_forward\n0:0 755 /home/web\n0:0 755 /made/deep\nhout\nerr\n0\nlo\n";
    assert_eq!(text, expected);
    let stat = |path: std::path::PathBuf| {
        let m = std::fs::symlink_metadata(path).unwrap();
        (m.uid(), m.gid())
    };
    // Volumes are mapped, the writable layer is not.
    assert_eq!(stat(volume.join("made")), (33, 44));
    assert_eq!(stat(memory.join("made")), (0, 0));
    let upper = host.options.root.join("pods/a/containers").join(&status.id).join("upper");
    assert_eq!(stat(upper.join("layer")), (A.first + 5, A.first + 6));
    assert_eq!(stat(upper.join("bin/busybox")), (A.first + 7, A.first), "copied up from the image");
    assert_eq!(stat(upper.join("etc/new")), (A.first, A.first));
    let message = std::fs::read_to_string(status.termination_message_file.as_ref().unwrap()).unwrap();
    assert_eq!(message, "message\n");
    assert!(host.runtime.container_layer(&status.id).await.unwrap().0 > 0);
    nix::mount::umount2(&memory, nix::mount::MntFlags::MNT_DETACH).unwrap();
    host.finish().await;
}

#[tokio::test]
async fn another_agent_finds_them() {
    let mut host = Host::new().await;
    let config = host.user_pod_config("a", A);
    host.runtime.run_pod(config).await.unwrap();
    let id = host.start("a", shell("main", FOREVER)).await;
    host.runtime = Embedded::open(host.options.clone()).await.unwrap();
    host.events = host.runtime.subscribe();
    assert_eq!(host.runtime.list_pods().await.unwrap()[0].config.user_namespace, Some(A));
    let read = "read a b c < /proc/self/uid_map; echo $a $b $c";
    assert_eq!(sh(&host, &id, read).await, format!("0 {} {}\n", A.first, A.length));
    let (_, text) = host.script("a", "later", read, |_| {}).await;
    assert_eq!(text, format!("0 {} {}\n", A.first, A.length));
    host.runtime.stop_container(&id, Duration::from_secs(5)).await.unwrap();
    assert_eq!(host.runtime.container_status(&id).await.unwrap().exit_code, Some(0));
    host.runtime.remove_pod("a").await.unwrap();
    assert!(!host.options.root.join("pods/a").exists());
    host.finish().await;
}

/// Every privilege there is, over the pod's own namespaces.
#[tokio::test]
async fn privileges_end_at_the_pod() {
    let mut host = Host::new().await;
    let config = host.user_pod_config("a", A);
    host.runtime.run_pod(config).await.unwrap();
    let volume = host.directory.path().join("volume");
    std::fs::create_dir(&volume).unwrap();
    // Whatever shows a device as the pod's root's: it cannot be opened.
    let rdev = |name: &&str| std::fs::metadata(format!("/dev/{name}")).ok().map(|m| m.rdev());
    let number = ["fuse", "net/tun", "loop-control", "hpet"].iter().find_map(rdev).expect("a host with such a device");
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
    nix::sys::stat::mknod(&volume.join("device"), nix::sys::stat::SFlag::S_IFCHR, mode, number).unwrap();
    assert!(std::fs::File::open(volume.join("device")).is_ok(), "the host's root opens it");
    let script = "mkdir /m; mount -t tmpfs m /m && echo own mounts; ip link set lo up && echo own network
        hostname new && hostname; echo 3 > /proc/sys/net/ipv4/ip_default_ttl && echo own parameters; chown 5 /m && echo own files
        (: < /v/device) 2> /dev/null && echo device in a volume; mount -o remount,bind,dev /v 2> /dev/null
        (: < /v/device) 2> /dev/null && echo device in a volume mounted again; (: < /given) 2> /dev/null && echo device as a volume
        for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/sys/vm/swappiness /sys/kernel/mm/ksm/run; do
            (: >> $f) 2> /dev/null && echo opened $f; done
        mknod /m/d c 1 3 2> /dev/null && echo node; mount -t debugfs d /mnt 2> /dev/null && echo debugfs; grep -c ' /proc/' /proc/mounts";
    let edit = |privileged: bool, unmasked: bool| {
        let volume = volume.clone();
        move |c: &mut ContainerConfig| {
            c.security.privileged = privileged;
            c.security.add_capabilities = vec!["ALL".into()];
            c.security.unmasked_proc = unmasked;
            c.mounts = vec![Mount::bind(&volume, "/v"), Mount::bind("/dev/kmsg", "/given")];
        }
    };
    let own = "own mounts\nown network\nnew\n";
    let (_, text) = host.script("a", "unmasked", script, edit(false, true)).await;
    assert_eq!(text, format!("{own}own parameters\nown files\n0\n"));
    let (_, text) = host.script("a", "privileged", script, edit(true, false)).await;
    assert_eq!(text, format!("{own}own parameters\nown files\n0\n"));
    let (_, text) = host.script("a", "masked", script, edit(false, false)).await;
    assert!(text.starts_with(own) && !text.contains("own parameters"), "{text}");
    assert!(!text.contains("opened") && !text.contains("device") && !text.ends_with("\n0\n"), "{text}");
    host.finish().await;
}

#[tokio::test]
async fn what_would_make_the_hosts_users_is_refused() {
    let mut host = Host::new().await;
    let wrong = |e: Error, text: &str| assert!(e.to_string().contains(text), "{e}");
    for range in [
        IdRange { first: 0, length: 65536 },
        IdRange { first: 65536, length: 0 },
        IdRange { first: u32::MAX, length: 2 },
    ] {
        let config = PodConfig { user_namespace: Some(range), ..host.pod_config("range") };
        wrong(host.runtime.run_pod(config).await.unwrap_err(), "invalid user namespace");
    }
    for edit in [
        |c: &mut PodConfig| c.netns = None,
        |c: &mut PodConfig| c.host_ipc = true,
        |c: &mut PodConfig| c.pid = PidMode::Host,
    ] {
        let mut config = host.user_pod_config("host", A);
        edit(&mut config);
        wrong(host.runtime.run_pod(config).await.unwrap_err(), "not together with the host's");
    }
    // A network namespace of the host's users, and one of another pod's.
    let config = PodConfig { user_namespace: Some(A), ..host.pod_config("plain") };
    wrong(host.runtime.run_pod(config).await.unwrap_err(), "user namespace");
    let config = PodConfig { user_namespace: Some(B), ..host.user_pod_config("other", A) };
    wrong(host.runtime.run_pod(config).await.unwrap_err(), "other ids than the pod");
    host.pod("a").await;
    let mut config = shell("main", FOREVER);
    config.security.unmasked_proc = true;
    wrong(host.runtime.create_container("a", config).await.unwrap_err(), "without a user namespace");
    host.finish().await;
}

/// With CAP_SYS_ADMIN a container made its read-only volumes writable.
#[tokio::test]
async fn read_only_mounts_stay_read_only() {
    let mut host = Host::new().await;
    let volume = host.directory.path().join("volume");
    std::fs::create_dir_all(volume.join("shared")).unwrap();
    std::fs::write(volume.join("file"), "text").unwrap();
    for (name, range, mode) in [("a", A, PidMode::Container), ("b", B, PidMode::Pod)] {
        let mut config = host.user_pod_config(name, range);
        config.pid = mode;
        host.runtime.run_pod(config).await.unwrap();
        let script = "for m in /v /r /deep/file /made/deep /h; do
                mount -o remount,bind,rw $m 2>/dev/null && echo remounted $m
                mkdir -p /tmp/x; touch /tmp/f; test -d $m && mount --bind $m /tmp/x && mount -o remount,bind,rw /tmp/x 2>/dev/null && echo copied $m
                umount /tmp/x 2>/dev/null
                test -d $m && touch $m/new 2>/dev/null && echo written in $m
                test -f $m && echo x 2>/dev/null > $m && echo written $m
            done; cat /v/file /r/file /deep/file; echo; touch /w/written && mount -o remount,bind,ro /w && mount -o remount,bind,rw /w && echo w";
        let read_only = |mount: Mount| Mount { read_only: true, ..mount };
        let (_, text) = host
            .script(name, "main", &format!("exec 2>/dev/null; {script}"), |c| {
                c.security.add_capabilities = vec!["SYS_ADMIN".into()];
                c.mounts = vec![
                    read_only(Mount::bind(&volume, "/v")),
                    Mount { recursive_read_only: true, ..read_only(Mount::bind(&volume, "/r")) },
                    read_only(Mount::bind(volume.join("file"), "/deep/file")),
                    read_only(Mount {
                        source: MountSource::Below { root: volume.clone(), path: "shared".into() },
                        ..Mount::bind("", "/made/deep")
                    }),
                    Mount { propagation: Propagation::HostToContainer, ..read_only(Mount::bind(&volume, "/h")) },
                    Mount::bind(volume.join("shared"), "/w"),
                ];
            })
            .await;
        assert_eq!(text, "texttexttext\nw\n", "{mode:?}");
    }
    assert_eq!(std::fs::read_to_string(volume.join("file")).unwrap(), "text");
    host.finish().await;
}

/// Runs a test in a mount namespace of its own, in which `/` is shared as systemd makes it.
fn where_the_root_is_shared<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let alone = move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        // What else there is on this machine sees nothing of it.
        for kind in [MsFlags::MS_PRIVATE, MsFlags::MS_SHARED] {
            nix::mount::mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | kind, None::<&str>).unwrap();
        }
        // Its threads are in the namespace of the one that makes them.
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
    };
    std::thread::Builder::new().spawn(alone).unwrap().join().unwrap();
}

/// A privileged pod with users of its own put a hundred thousand mounts into the host's namespace, which has no room for more.
#[test]
fn mounts_of_a_pod_are_not_the_hosts() {
    for mode in [PidMode::Container, PidMode::Pod] {
        where_the_root_is_shared(move || mounts_of_a_pod(mode));
    }
}

async fn mounts_of_a_pod(mode: PidMode) {
    let mut host = Host::new().await;
    let volume = host.directory.path().join("volume");
    for directory in ["a", "of-host"] {
        std::fs::create_dir_all(volume.join(directory)).unwrap();
    }
    let mut config = host.user_pod_config("a", A);
    config.pid = mode;
    host.runtime.run_pod(config).await.unwrap();
    let mount = |target: &str, propagation| Mount { propagation, ..Mount::bind(&volume, target) };
    let mut config = shell("main", FOREVER);
    config.security.privileged = true;
    let mut locked = mount("/locked", Propagation::Bidirectional);
    locked.read_only = true;
    config.mounts = vec![
        mount("/both", Propagation::Bidirectional),
        mount("/from", Propagation::HostToContainer),
        mount("/none", Propagation::Private),
        locked,
    ];
    let id = host.start("a", config).await;
    let seen = || {
        let all = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        all.lines().map(|l| l.split(' ').nth(4).unwrap().to_owned()).collect::<Vec<_>>()
    };
    let before = seen();
    let mut other = shell("other", FOREVER);
    other.mounts = vec![mount("/from", Propagation::HostToContainer), mount("/none", Propagation::Private)];
    let other = host.start("a", other).await;
    let places = "/both/a /none/a /dev/shm/a /etc /tmp/a $(ls -d /sys/fs/cgroup/* | head -n 1)";
    let script =
        format!("mkdir -p /dev/shm/a /tmp/a; for p in {places}; do mount -t tmpfs x $p || echo failed $p; done");
    assert_eq!(sh(&host, &id, &script).await, "");
    // Containers of the pod with propagation see it, also one that is started later.
    let mut later = shell("later", FOREVER);
    later.mounts = vec![mount("/both", Propagation::Bidirectional)];
    let later = host.start("a", later).await;
    let found = "grep '^x ' /proc/mounts | cut -d ' ' -f 2 | grep -v cgroup | sort | tr '\\n' ' '";
    assert_eq!(sh(&host, &id, found).await, "/both/a /dev/shm/a /etc /from/a /locked/a /none/a /tmp/a ");
    assert_eq!(sh(&host, &other, found).await, "/from/a ");
    assert_eq!(sh(&host, &later, found).await, "/both/a ");
    // Those of other tests may go meanwhile.
    let new: Vec<String> = seen().into_iter().filter(|place| !before.contains(place)).collect();
    assert!(new.is_empty(), "mounts of the pod are seen by the host: {new:?}");
    assert!(sh(&host, &id, "mount -o remount,rw,bind /locked; touch /locked/x").await.contains("Read-only"));
    // The pod still sees mounts of the host, where it requested propagation.
    let of_host = volume.join("of-host");
    nix::mount::mount(Some("y"), &of_host, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let found = sh(&host, &id, "grep '^y ' /proc/mounts | cut -d ' ' -f 2 | sort").await;
    assert_eq!(found, "/both/of-host\n/from/of-host\n/locked/of-host\n");
    nix::mount::umount2(&of_host, nix::mount::MntFlags::MNT_DETACH).unwrap();
    host.runtime.remove_pod("a").await.unwrap();
    host.finish().await;
}
