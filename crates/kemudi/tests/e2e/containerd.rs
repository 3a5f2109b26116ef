//! Debian's containerd as the container runtime of the cluster, with its own root, state, socket and configuration.

use crate::cluster::{KEMUDI, data_dir};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const PATIENCE: Duration = Duration::from_secs(30);
/// The image of sandboxes.
const PAUSE: &str = "kemudi.test/pause:1";

pub struct Containerd {
    child: Child,
    directory: PathBuf,
}

impl Containerd {
    /// Whether its programs are on this machine.
    pub fn is_there() -> bool {
        let runs =
            |program| Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        ["containerd", "ctr", "runc"].iter().all(|program| runs(program).is_ok_and(|s| s.success()))
    }

    /// Starts it below the directory of a cluster, with the images that it needs.
    pub async fn start(cluster: &Path) -> Result<Self, String> {
        let directory = cluster.join("containerd");
        fs::create_dir_all(&directory).map_err(|e| e.to_string())?;
        let containerd = Self { child: spawn(cluster, &directory)?, directory };
        containerd.wait().await?;
        containerd.import(PAUSE, &pause(&containerd.directory)?)?;
        containerd.import(crate::story::IMAGE, &demo(&containerd.directory)?)?;
        Ok(containerd)
    }

    pub fn endpoint(cluster: &Path) -> String {
        format!("unix://{}", socket(&cluster.join("containerd")).display())
    }

    async fn wait(&self) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        while let Err(e) = self.ctr(&["version"]) {
            if Instant::now() > end {
                return Err(format!("containerd does not answer: {e}"));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Runs `ctr` in the namespace of the CRI.
    pub fn ctr(&self, args: &[&str]) -> Result<String, String> {
        let socket = socket(&self.directory);
        let o = Command::new("ctr").arg("-a").arg(socket).args(["-n", "k8s.io"]).args(args).output();
        let o = o.map_err(|e| format!("ctr: {e}"))?;
        match o.status.success() {
            true => Ok(String::from_utf8_lossy(&o.stdout).into_owned()),
            false => Err(format!("ctr {args:?}: {}", String::from_utf8_lossy(&o.stderr))),
        }
    }

    /// Imports a directory as an image of one layer.
    fn import(&self, name: &str, image: &Image) -> Result<(), String> {
        let archive = image.archive(&self.directory, name)?;
        self.ctr(&["images", "import", &archive.display().to_string()]).map(drop)
    }

    /// Stops the daemon. Containers go on.
    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub async fn start_again(&mut self, cluster: &Path) -> Result<(), String> {
        self.child = spawn(cluster, &self.directory)?;
        self.wait().await
    }

    /// Ends it, and returns what it still has.
    pub fn end(&mut self) -> Vec<String> {
        let containers = self.ctr(&["containers", "list", "--quiet"]).unwrap_or_else(|e| e);
        for id in containers.lines() {
            let _ = self.ctr(&["tasks", "delete", "--force", id]);
            let _ = self.ctr(&["containers", "delete", id]);
        }
        self.stop();
        containers.lines().map(|id| format!("container {id}")).collect()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A second handler, whose privileged containers do not have the devices of the machine.
pub const HANDLER: &str = "no-devices";

fn socket(directory: &Path) -> PathBuf {
    directory.join("containerd.sock")
}

fn spawn(cluster: &Path, directory: &Path) -> Result<Child, String> {
    let at = |name: &str| directory.join(name).display().to_string();
    let cni = Path::new(&data_dir(cluster)).join("cni").display().to_string();
    let config = format!(
        "version = 2\nroot = {root:?}\nstate = {state:?}\n[grpc]\naddress = {socket:?}\n\
         [plugins.\"io.containerd.internal.v1.opt\"]\npath = {opt:?}\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = {PAUSE:?}\nrestrict_oom_score_adj = true\n\
         stream_server_address = \"127.0.0.1\"\nstream_server_port = \"0\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"overlayfs\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.{HANDLER}]\nruntime_type = \"io.containerd.runc.v2\"\n\
         privileged_without_host_devices = true\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"{cni}/bin\"\nconf_dir = \"{cni}/net.d\"\n",
        root = at("root"),
        state = at("state"),
        socket = socket(directory),
        opt = at("opt"),
    );
    let file = directory.join("config.toml");
    fs::write(&file, config).map_err(|e| e.to_string())?;
    let log = fs::File::options().create(true).append(true).open(directory.join("log")).map_err(|e| e.to_string())?;
    let again = log.try_clone().map_err(|e| e.to_string())?;
    let mut command = Command::new("containerd");
    command.arg("--config").arg(file).stdin(Stdio::null()).stdout(log).stderr(again);
    command.spawn().map_err(|e| format!("containerd: {e}"))
}

/// The files and settings of an image.
struct Image {
    root: PathBuf,
    entrypoint: &'static [&'static str],
}

impl Image {
    /// An archive as `docker save` writes it.
    fn archive(&self, directory: &Path, name: &str) -> Result<PathBuf, String> {
        let at = |file: &str| directory.join(file);
        let tar = |from: &Path, to: &str, what: &[&str]| {
            run(Command::new("tar").arg("-C").arg(from).arg("-cf").arg(at(to)).args(what))
        };
        tar(&self.root, "layer.tar", &["."])?;
        let sum = run(Command::new("sha256sum").arg(at("layer.tar")))?;
        let diff = format!("sha256:{}", sum.split(' ').next().unwrap_or_default());
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }, "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [diff]},
            "config": {"Entrypoint": self.entrypoint, "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"]},
        });
        let listed = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
        fs::write(at("config.json"), config.to_string()).map_err(|e| e.to_string())?;
        fs::write(at("manifest.json"), listed.to_string()).map_err(|e| e.to_string())?;
        tar(directory, "image.tar", &["config.json", "manifest.json", "layer.tar"])?;
        fs::remove_file(at("layer.tar")).map_err(|e| e.to_string())?;
        Ok(at("image.tar"))
    }
}

/// An image that does nothing.
fn pause(directory: &Path) -> Result<Image, String> {
    let root = directory.join("pause");
    copy(Path::new("/bin/busybox"), &root, "/busybox")?;
    Ok(Image { root, entrypoint: &["/busybox", "sleep", "2147483647"] })
}

/// The image of the demonstration, as the embedded runtime makes it from its own program.
fn demo(directory: &Path) -> Result<Image, String> {
    let root = directory.join("demo");
    copy(Path::new(KEMUDI), &root, "/kemudi")?;
    for line in run(Command::new("ldd").arg(KEMUDI))?.lines() {
        if let Some(library) = line.split_whitespace().find(|w| w.starts_with('/')) {
            copy(Path::new(library), &root, library)?;
        }
    }
    for directory in ["bin", "etc", "tmp", "root", "proc", "sys", "dev", "run", "var"] {
        fs::create_dir_all(root.join(directory)).map_err(|e| e.to_string())?;
    }
    let write = |path: &str, text: &str| fs::write(root.join(path), text).map_err(|e| e.to_string());
    write("etc/passwd", "root:x:0:0:root:/root:/kemudi\nnobody:x:65534:65534:nobody:/:/kemudi\n")?;
    write("etc/group", "root:x:0:\nnogroup:x:65534:\n")?;
    write("etc/nsswitch.conf", "hosts: files dns\n")?;
    run(Command::new("chmod").arg("1777").arg(root.join("tmp")))?;
    Ok(Image { root, entrypoint: &["/kemudi", "demo-app"] })
}

fn copy(from: &Path, root: &Path, to: &str) -> Result<(), String> {
    let to = root.join(to.trim_start_matches('/'));
    let made = fs::create_dir_all(to.parent().unwrap_or(root)).and_then(|()| fs::copy(from, &to));
    made.map(drop).map_err(|e| format!("{} -> {}: {e}", from.display(), to.display()))
}

fn run(command: &mut Command) -> Result<String, String> {
    let o = command.stdin(Stdio::null()).output().map_err(|e| format!("{command:?}: {e}"))?;
    match o.status.success() {
        true => Ok(String::from_utf8_lossy(&o.stdout).into_owned()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&o.stderr))),
    }
}
