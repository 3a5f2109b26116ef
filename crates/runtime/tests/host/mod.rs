//! What the tests share: a root directory of its own, an image of busybox, a network namespace; all gone at the end.
#![allow(dead_code, clippy::unwrap_used)] // every test binary uses its part; a broken setup is a failed test

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use runtime::*;
use tokio::sync::broadcast;

static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct Host {
    pub directory: tempfile::TempDir,
    pub options: Options,
    pub runtime: Embedded,
    pub events: broadcast::Receiver<Event>,
    netns: Vec<PathBuf>,
}

fn clock() -> Clock {
    Arc::new(|| {
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME).unwrap();
        Timestamp { secs: now.tv_sec() as u64, nanos: now.tv_nsec() as u32 }
    })
}

impl Host {
    pub async fn new() -> Host {
        Host::with(|_| ()).await
    }

    pub async fn with(change: impl FnOnce(&mut Options)) -> Host {
        assert!(nix::unistd::geteuid().is_root(), "these tests start containers: run them as root");
        assert!(Path::new("/bin/busybox").exists(), "these tests need /bin/busybox: install busybox-static");
        // On a real file system, unlike /tmp perhaps.
        let directory =
            tempfile::Builder::new().prefix("kemudi-test-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let prefix = format!("kemudi-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut options = Options::new(directory.path().join("runtime"), prefix, clock());
        options.shim_program = env!("CARGO_BIN_EXE_kemudi-runtime-testbed").into();
        change(&mut options);
        let runtime = Embedded::open(options.clone()).await.unwrap();
        busybox(&runtime, directory.path());
        let events = runtime.subscribe();
        Host { directory, options, runtime, events, netns: Vec::new() }
    }

    /// A fresh network namespace, made in a thread that ends with it bound to a file.
    pub fn netns(&mut self) -> PathBuf {
        let path = self.directory.path().join(format!("netns{}", self.netns.len()));
        std::fs::File::create(&path).unwrap();
        let target = path.clone();
        std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let source = format!("/proc/self/task/{}/ns/net", nix::unistd::gettid());
            let flags = nix::mount::MsFlags::MS_BIND;
            nix::mount::mount(Some(source.as_str()), &target, None::<&str>, flags, None::<&str>).unwrap();
        })
        .join()
        .unwrap();
        self.netns.push(path.clone());
        path
    }

    pub fn has_user_namespaces(&self) -> bool {
        runtime::Host::user_namespaces(&self.runtime).is_ok()
    }

    /// The configuration of a pod with users of its own.
    pub fn user_pod_config(&mut self, id: &str, range: IdRange) -> PodConfig {
        let path = self.directory.path().join(format!("netns{}", self.netns.len()));
        std::fs::File::create(&path).unwrap();
        let network = user_namespace::network(range).unwrap();
        let source = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&network));
        let flags = nix::mount::MsFlags::MS_BIND;
        nix::mount::mount(Some(source.as_str()), &path, None::<&str>, flags, None::<&str>).unwrap();
        self.netns.push(path.clone());
        PodConfig { netns: Some(path), user_namespace: Some(range), ..self.pod_config(id) }
    }

    pub fn pod_config(&mut self, id: &str) -> PodConfig {
        PodConfig {
            id: id.into(),
            name: id.into(),
            namespace: "default".into(),
            uid: id.into(),
            hostname: format!("host-{id}"),
            netns: Some(self.netns()),
            cgroup_parent: format!("burstable/pod{id}"),
            hosts: Some("127.0.0.1 localhost\n10.0.0.9 other\n".into()),
            resolv_conf: Some("nameserver 10.96.0.10\n".into()),
            log_directory: self.directory.path().join("logs").join(id),
            ..PodConfig::default()
        }
    }

    pub async fn pod(&mut self, id: &str) -> Pod {
        let config = self.pod_config(id);
        self.runtime.run_pod(config).await.unwrap()
    }

    /// Creates and starts; gives the id.
    pub async fn start(&self, pod: &str, config: ContainerConfig) -> String {
        let id = self.runtime.create_container(pod, config).await.unwrap();
        self.runtime.start_container(&id).await.unwrap();
        id
    }

    /// Waits for the container to exit.
    pub async fn ended(&mut self, container: &str) -> Container {
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, async {
            loop {
                let status = self.runtime.container_status(container).await.unwrap();
                if matches!(status.state, ContainerState::Exited | ContainerState::Unknown) {
                    return status;
                }
                self.events.recv().await.unwrap();
            }
        })
        .await
        .expect("the container did not exit")
    }

    /// Waits until the container's log has a line with `text`.
    pub async fn wait_for_output(&self, container: &str, text: &str) {
        let status = self.runtime.container_status(container).await.unwrap();
        let limit = tokio::time::Instant::now() + Duration::from_secs(30);
        while !std::fs::read_to_string(&status.log_path).is_ok_and(|l| l.contains(text)) {
            assert!(tokio::time::Instant::now() < limit, "{text:?} never came");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Runs a shell script in a container of its own and gives its log without the CRI heads.
    pub async fn script(
        &mut self,
        pod: &str,
        name: &str,
        script: &str,
        edit: impl FnOnce(&mut ContainerConfig),
    ) -> (Container, String) {
        // The streams are two pipes: the log has an order only within each.
        let mut config = shell(name, &format!("exec 2>&1; {script}"));
        edit(&mut config);
        let id = self.start(pod, config).await;
        let status = self.ended(&id).await;
        let text = log(&status);
        (status, text)
    }

    pub async fn finish(self) {
        Embedded::purge(&self.options).await.unwrap();
        for path in &self.netns {
            nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH).unwrap();
        }
        let left = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let directory = self.directory.path().to_str().unwrap();
        assert!(!left.contains(directory), "mounts are left:\n{left}");
        let prefix = &self.options.cgroup_prefix;
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            assert!(!hierarchy.path().join(prefix).exists(), "cgroups are left in {:?}", hierarchy.path());
        }
    }
}

impl Drop for Host {
    /// For a test that failed: what it started must not stay.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let options = self.options.clone();
        let purge = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(Embedded::purge(&options))
        };
        let _ = std::thread::spawn(purge).join();
        for path in &self.netns {
            let _ = nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

pub fn shell(name: &str, script: &str) -> ContainerConfig {
    ContainerConfig {
        name: name.into(),
        image: "busybox".into(),
        command: vec!["/bin/sh".into(), "-c".into(), script.into()],
        log_path: format!("{name}.log").into(),
        ..ContainerConfig::default()
    }
}

pub fn log(status: &Container) -> String {
    let text = std::fs::read_to_string(&status.log_path).unwrap();
    text.lines().map(|l| l.splitn(4, ' ').nth(3).unwrap().to_owned() + "\n").collect()
}

fn busybox(runtime: &Embedded, scratch: &Path) {
    let root = scratch.join("busybox");
    for directory in ["bin", "etc", "tmp", "home/web"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    std::fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    let list = Command::new("/bin/busybox").arg("--list").output().unwrap();
    for applet in String::from_utf8(list.stdout).unwrap().lines().filter(|a| *a != "busybox") {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nweb:x:33:44:Web:/home/web:/bin/sh\n")
        .unwrap();
    std::fs::write(root.join("etc/group"), "root:x:0:\nwww:x:44:\nmedia:x:70:web\n").unwrap();
    let config = ImageConfig { cmd: vec!["sh".into()], env: vec!["PATH=/bin".into()], ..ImageConfig::default() };
    runtime.images().adopt_directory("busybox", &root, config).unwrap();
}
