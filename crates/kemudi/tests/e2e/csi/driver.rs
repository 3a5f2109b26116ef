//! A CSI driver for the tests: its volumes are directories, or files with an ext4 file system, below `DATA`. This program runs as
//! the driver, in a privileged pod, when it is called with the argument `csi-driver`.
//!
//! The controller service is played by the tests. Each call is appended to `DATA/calls`. Calls of a method whose name is a file in `DATA/fail`
//! fail.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use plugins::api::csi::{self, Empty, NodeCapability, NodeGetCapabilitiesResponse, NodeGetInfoResponse};
use plugins::api::registration::{GET_INFO, NOTIFY_REGISTRATION_STATUS, PluginInfo, RegistrationStatusResponse};
use plugins::{Server, SocketPath, Status};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The argument by which the program of the tests becomes the driver.
pub const MODE: &str = "csi-driver";
/// Where the driver's own directory is in its pod.
pub const DATA: &str = "/csi-data";
pub const SOCKETS: &str = "/csi";
pub const REGISTRATION: &str = "/registration";

/// Runs as the driver of this name, for ever.
pub fn run(name: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let endpoint = format!("/var/lib/kubelet/plugins/{name}/csi.sock");
        let info = PluginInfo {
            kind: "CSIPlugin".into(),
            name: name.into(),
            endpoint,
            supported_versions: vec!["1.0.0".into()],
        };
        let _node = node().serve(&SocketPath::machine(Path::new(SOCKETS).join("csi.sock"))).unwrap();
        let registration = Server::new()
            .unary(&GET_INFO, move |_| {
                let info = info.clone();
                async move { Ok(info) }
            })
            .unary(&NOTIFY_REGISTRATION_STATUS, |status| async move {
                println!("{status:?}");
                Ok(RegistrationStatusResponse {})
            });
        let socket = Path::new(REGISTRATION).join(format!("{name}-reg.sock"));
        let _registration = registration.serve(&SocketPath::machine(socket)).unwrap();
        std::future::pending::<()>().await;
    });
}

fn node() -> Server {
    let capabilities = [NodeCapability::StageUnstageVolume, NodeCapability::ExpandVolume];
    Server::new()
        .unary(&csi::NODE_GET_INFO, |_| async {
            Ok(NodeGetInfoResponse {
                node_id: "the-node".into(),
                max_volumes_per_node: 7,
                accessible_topology: Some(csi::Topology {
                    segments: [("topology.test.example.com/rack".to_owned(), "r1".to_owned())].into(),
                }),
            })
        })
        .unary(&csi::NODE_GET_CAPABILITIES, move |_| async move {
            Ok(NodeGetCapabilitiesResponse { capabilities: capabilities.map(Into::into).to_vec() })
        })
        .unary(&csi::NODE_STAGE_VOLUME, |q: csi::NodeStageVolumeRequest| {
            answer("stage", q.volume_id.clone(), move || stage(&q).map(|()| Empty {}))
        })
        .unary(&csi::NODE_UNSTAGE_VOLUME, |q: csi::NodeUnstageVolumeRequest| {
            answer("unstage", q.volume_id.clone(), move || {
                unmount(Path::new(&q.staging_target_path)).map(|()| Empty {})
            })
        })
        .unary(&csi::NODE_PUBLISH_VOLUME, |q: csi::NodePublishVolumeRequest| {
            answer("publish", q.volume_id.clone(), move || publish(&q).map(|()| Empty {}))
        })
        .unary(&csi::NODE_UNPUBLISH_VOLUME, |q: csi::NodeUnpublishVolumeRequest| {
            answer("unpublish", q.volume_id.clone(), move || {
                let target = Path::new(&q.target_path);
                unmount(target)?;
                if let Ok(device) = fs::read_to_string(Path::new(DATA).join(format!("{}.loop", q.volume_id))) {
                    Command::new("/sbin/losetup").args(["-d", &device]).status()?;
                    let _ = fs::remove_file(target);
                }
                match fs::remove_dir(target) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
                    _ => Ok(Empty {}),
                }
            })
        })
        .unary(&csi::NODE_EXPAND_VOLUME, |q: csi::NodeExpandVolumeRequest| {
            answer("expand", q.volume_id.clone(), move || {
                let bytes = q.capacity_range.map_or(0, |c| c.required_bytes);
                fs::write(Path::new(DATA).join("expanded"), bytes.to_string())?;
                Ok(csi::NodeExpandVolumeResponse { capacity_bytes: bytes })
            })
        })
}

/// Carries out a call on a thread that may block, and notes it.
async fn answer<T: Send + 'static>(
    method: &'static str,
    volume: String,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(move || {
        let data = Path::new(DATA);
        let mut calls = fs::File::options().create(true).append(true).open(data.join("calls"))?;
        writeln!(calls, "{method} {volume}")?;
        if data.join("fail").join(method).exists() {
            return Err(std::io::Error::other("made to fail"));
        }
        work()
    });
    let done = done.await.map_err(|e| Status::internal(e.to_string()))?;
    done.map_err(|e| Status::internal(e.to_string()))
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|l| l.split(' ').nth(4) == path.to_str())
}

fn unmount(path: &Path) -> std::io::Result<()> {
    while is_mounted(path) {
        umount2(path, MntFlags::empty())?;
    }
    Ok(())
}

/// The directory of a volume, or its file if the volume's name begins with `disk`.
fn source(volume: &str) -> std::io::Result<PathBuf> {
    let path = Path::new(DATA).join(volume);
    if !volume.starts_with("disk") {
        fs::create_dir_all(&path)?;
    } else if !path.exists() {
        fs::File::create(&path)?.set_len(16 << 20)?;
        let made = Command::new("/sbin/mkfs.ext4").arg("-q").arg(&path).status()?;
        if !made.success() {
            return Err(std::io::Error::other("mkfs.ext4 failed"));
        }
    }
    Ok(path)
}

fn bind(from: &Path, to: &Path, is_read_only: bool) -> std::io::Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    if is_read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, to, None::<&str>, flags, None::<&str>)?;
    }
    Ok(())
}

fn stage(q: &csi::NodeStageVolumeRequest) -> std::io::Result<()> {
    let target = Path::new(&q.staging_target_path);
    if is_mounted(target) || q.volume_capability.as_ref().is_some_and(|c| c.block.is_some()) {
        return Ok(());
    }
    let source = source(&q.volume_id)?;
    fs::write(Path::new(DATA).join("stage-context"), format!("{:?}", q.publish_context))?;
    if source.is_dir() {
        return bind(&source, target, false);
    }
    let mounted = Command::new("/bin/mount").args(["-o", "loop"]).arg(&source).arg(target).status()?;
    if mounted.success() { Ok(()) } else { Err(std::io::Error::other("mounting the disk failed")) }
}

/// Publishes a device: a loop device at a file.
fn publish_device(volume: &str, target: &Path) -> std::io::Result<()> {
    let file = Path::new(DATA).join(volume);
    fs::File::create(&file)?.set_len(1 << 20)?;
    let made = Command::new("/sbin/losetup").args(["--find", "--show"]).arg(&file).output()?;
    let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    fs::write(Path::new(DATA).join(format!("{volume}.loop")), &device)?;
    fs::File::create(target)?;
    bind(Path::new(&device), target, false)
}

fn publish(q: &csi::NodePublishVolumeRequest) -> std::io::Result<()> {
    let target = Path::new(&q.target_path);
    if q.volume_capability.as_ref().is_some_and(|c| c.block.is_some()) {
        return if is_mounted(target) { Ok(()) } else { publish_device(&q.volume_id, target) };
    }
    fs::write(Path::new(DATA).join("publish-context"), format!("{:?}", q.volume_context))?;
    if is_mounted(target) {
        return Ok(());
    }
    fs::create_dir_all(target)?;
    let from = match q.staging_target_path.as_str() {
        // An inline volume.
        "" => source(&q.volume_id)?,
        staged => PathBuf::from(staged),
    };
    bind(&from, target, q.readonly)
}
