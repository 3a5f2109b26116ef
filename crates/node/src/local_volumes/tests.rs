use super::*;
use runtime::beneath::{mounts_of_device, unmount_below};
use runtime::loop_device::{Lifetime, LoopDevice};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

/// A directory of the kubelet and devices, which need loop devices and `mkfs.ext4`; None on a machine without them.
struct Machine {
    directory: tempfile::TempDir,
    /// The files of devices. Nothing holds these open, as on a real machine.
    disks: Vec<String>,
}

impl Machine {
    fn new() -> Option<Self> {
        let lacks = crate::file_volumes::obstacle(crate::file_volumes::Format::Ext4).is_some();
        if !nix::unistd::geteuid().is_root() || lacks {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("pods")).unwrap();
        Some(Self { directory, disks: Vec::new() })
    }

    fn volumes(&self) -> LocalVolumes {
        LocalVolumes::new(self.path("pods"))
    }

    fn path(&self, below: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(below)
    }

    fn file(&self, name: &str) -> File {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.path(name)).unwrap()
    }

    /// An empty device of this many MiB.
    fn device(&mut self, name: &str, size: u64) -> PathBuf {
        let file = self.file(name);
        file.set_len(size << 20).unwrap();
        let device = LoopDevice::attach(&file, Lifetime::UntilDetached, &BTreeSet::new()).unwrap();
        let path = device.path();
        self.disks.push(name.to_owned());
        path
    }

    fn global(&self, name: &str) -> PathBuf {
        self.path("plugins/kubernetes.io/local-volume/mounts").join(name)
    }

    /// What the agent does when a pod is gone.
    fn remove_pod(&self, pod: &str) {
        unmount_below(&self.path("pods").join(pod)).unwrap();
        fs::remove_dir_all(self.path("pods").join(pod)).unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        unmount_below(&self.path("")).unwrap();
        for disk in &self.disks {
            LoopDevice::find(&self.file(disk)).unwrap().unwrap().detach().unwrap();
        }
    }
}

fn volume(name: &str, path: &Path) -> LocalVolume {
    LocalVolume { name: name.into(), path: path.into(), file_system: "ext4".into(), mount_options: Vec::new() }
}

#[tokio::test]
async fn an_empty_device_is_formatted_once_and_shared_by_pods() {
    let Some(mut m) = Machine::new() else { return };
    let device = m.device("disk", 16);
    let (volumes, v) = (m.volumes(), volume("pv", &device));
    let a = volumes.set_up(&v, "a", false).await.unwrap();
    assert_eq!((&a.path, a.is_shared), (&m.path("pods/a/volumes/kubernetes.io~local-volume/pv"), false));
    fs::write(a.path.join("file"), "kept").unwrap();
    let b = volumes.set_up(&v, "b", false).await.unwrap();
    assert!(b.is_shared && fs::read(b.path.join("file")).unwrap() == b"kept");
    for _ in 0..2 {
        assert_eq!(volumes.set_up(&v, "b", false).await.unwrap(), b);
    }
    assert_eq!(mounts_of_device(&device).unwrap(), [m.global("pv"), a.path.clone(), b.path.clone()]);
    assert_eq!(fs::metadata(m.global("").parent().unwrap()).unwrap().mode() & 0o7777, 0o750);
    m.remove_pod("a");
    volumes.release_unused().await;
    assert_eq!(mounts_of_device(&device).unwrap(), [m.global("pv"), b.path.clone()]);
    m.remove_pod("b");
    // A new agent finds what is left.
    m.volumes().release_unused().await;
    assert!(mounts_of_device(&device).unwrap().is_empty() && !m.global("pv").exists());
    let again = volumes.set_up(&v, "c", false).await.unwrap();
    assert_eq!(fs::read(again.path.join("file")).unwrap(), b"kept", "a device with a file system is not formatted");
}

#[tokio::test]
async fn what_is_on_a_device_is_never_formatted() {
    let Some(mut m) = Machine::new() else { return };
    let device = m.device("disk", 16);
    let mkfs = Command::new("mkfs.ext3").arg("-q").arg(&device).status().unwrap();
    assert!(mkfs.success());
    // The kernel mounts ext3 as ext4, as upstream; it refuses to mount ext3 as xfs.
    let v = volume("pv", &device);
    let refused = LocalVolume { file_system: "xfs".into(), ..v.clone() };
    let error = m.volumes().set_up(&refused, "a", false).await.unwrap_err();
    let global = m.global("pv");
    let (shown, text) = (device.display(), error.to_string());
    let start = format!(
        "local: failed to mount device {shown} at {} (fstype: xfs), error mount failed: exit status: 32\nMounting command: mount\n\
         Mounting arguments: -t xfs -o defaults {shown} {}\nOutput: ",
        global.display(),
        global.display()
    );
    assert!(text.starts_with(&start), "{text}");
    assert_eq!(error.stage(), "MountVolume.MountDevice");
    assert!(!global.exists());
    m.volumes().set_up(&v, "a", false).await.unwrap();

    // Programs for file systems do not know what else is there, but partitions.
    let device = m.device("partitions", 4);
    let mut table = [0; 512];
    (table[450], table[458], table[510], table[511]) = (0x83, 8, 0x55, 0xaa);
    table[446 + 8] = 1;
    OpenOptions::new().write(true).open(&device).unwrap().write_all(&table).unwrap();
    let error = m.volumes().set_up(&volume("table", &device), "a", false).await.unwrap_err().to_string();
    assert!(error.contains("error mount failed"), "{error}");
    assert_eq!(&fs::read(&device).unwrap()[..512], table);
}

/// Programs for file systems find nothing on a disk of which a database has written the middle.
#[tokio::test]
async fn a_device_in_use_is_never_formatted() {
    let Some(mut m) = Machine::new() else { return };
    let device = m.device("disk", 16);
    let (volumes, v) = (m.volumes(), volume("pv", &device));
    let refused = async || {
        let error = volumes.set_up(&v, "a", false).await.unwrap_err();
        assert_eq!(error.stage(), "MountVolume.MountDevice");
        assert!(fs::read(&device).unwrap().iter().all(|b| *b == 0), "formatted: {error}");
        error.to_string()
    };
    // A pod has it as it is, and no program has opened it.
    volumes.map("raw", &device, "other").await.unwrap();
    let by_link = m.path("link");
    std::os::unix::fs::symlink(&device, &by_link).unwrap();
    volumes.map("raw", &by_link, "other").await.unwrap();
    assert!(refused().await.ends_with("is not formatted: pod other has it as a device"));
    m.remove_pod("other");

    let open = File::open(&device).unwrap();
    let error = refused().await;
    assert!(error.contains("is not formatted: process") && error.ends_with("has it open"), "{error}");
    drop(open);

    // Another device has it. (A file system that is mounted is found by what is on it.)
    let held = OpenOptions::new().read(true).custom_flags(nix::libc::O_EXCL).open(&device).unwrap();
    let error = refused().await;
    assert!(error.contains("another device or program has it exclusively"), "{error}");
    drop(held);
    volumes.set_up(&v, "a", false).await.unwrap();

    for (path, message) in [(m.path("link2"), "No such file"), (m.path("pods"), "is not a block device")] {
        let error = volumes.map("raw", &path, "a").await.unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}

/// Two volumes of one device, on two nodes of this machine.
#[tokio::test]
async fn a_device_of_two_volumes_is_formatted_once() {
    let Some(mut m) = Machine::new() else { return };
    let Some(other) = Machine::new() else { return };
    let device = m.device("disk", 16);
    let (a, b) = (m.volumes(), other.volumes());
    let of = ["one", "two"].map(|name| volume(name, &device));
    let (one, two, three) =
        tokio::join!(a.set_up(&of[0], "a", false), a.set_up(&of[1], "b", false), b.set_up(&of[0], "c", false));
    let paths = [one, two, three].map(|prepared| prepared.unwrap().path);
    fs::write(paths[0].join("file"), "kept").unwrap();
    for path in &paths {
        assert_eq!(fs::read(path.join("file")).unwrap(), b"kept", "{}", path.display());
    }
    // The device is only detached once nothing has it mounted.
    drop(other);
}

#[tokio::test]
async fn a_device_is_read_only_until_a_pod_writes() {
    let Some(mut m) = Machine::new() else { return };
    let device = m.device("disk", 16);
    let (volumes, v) = (m.volumes(), volume("pv", &device));
    let error = volumes.set_up(&v, "a", true).await.unwrap_err().to_string();
    let why = "cannot mount unformatted disk";
    assert!(error.contains(why) && error.ends_with("as we are manipulating it in read-only mode"), "{error}");
    assert!(Command::new("mkfs.ext4").arg("-q").arg(&device).status().unwrap().success());
    let reader = volumes.set_up(&v, "a", true).await.unwrap().path;
    let read_only = |path: &Path| fs::write(path.join("x"), "").unwrap_err().raw_os_error() == Some(nix::libc::EROFS);
    assert!(read_only(&reader) && read_only(&m.global("pv")));
    let writer = volumes.set_up(&v, "b", false).await.unwrap().path;
    fs::write(writer.join("x"), "").unwrap();
    assert!(read_only(&reader));
}

#[tokio::test]
async fn options_and_errors() {
    let Some(mut m) = Machine::new() else { return };
    let volumes = m.volumes();
    let device = m.device("disk", 16);
    let odd = LocalVolume { file_system: "none-such".into(), ..volume("odd", &device) };
    let error = volumes.set_up(&odd, "a", false).await.unwrap_err().to_string();
    assert!(error.contains("failed: type:(\"none-such\") errcode:(mkfs.none-such is not installed"), "{error}");
    let path = LocalVolume { file_system: "../sh".into(), ..volume("odd", &device) };
    let error = volumes.set_up(&path, "a", false).await.unwrap_err().to_string();
    assert!(error.contains("no file system has this name"), "{error}");
    let file = m.path("file");
    fs::write(&file, "").unwrap();
    for (path, expected) in [
        (m.path("gone"), format!("path {:?} does not exist", m.path("gone"))),
        (file, "only directory and block device are supported".into()),
    ] {
        let error = volumes.set_up(&volume("v", &path), "a", false).await.unwrap_err();
        assert_eq!((error.to_string(), error.stage()), (expected, "MountVolume.NewMounter initialization"));
    }
    let directory = m.path("directory");
    fs::create_dir(&directory).unwrap();
    let plain = volumes.set_up(&volume("dir", &directory), "a", false).await.unwrap();
    assert_eq!(plain, Prepared { path: directory.clone(), is_shared: false });
    assert!(volumes.set_up(&volume("dir", &directory), "b", false).await.unwrap().is_shared);
    let options = LocalVolume { mount_options: vec!["ro".into(), "noexec".into()], ..volume("opt", &directory) };
    let bound = volumes.set_up(&options, "a", false).await.unwrap().path;
    assert_eq!(bound, volumes.path(&options, "a").await);
    assert!(fs::write(bound.join("x"), "").is_err() && fs::write(directory.join("x"), "").is_ok());
    let names = ["..", "a/b", "", "."].map(is_plain);
    assert_eq!(names, [false; 4]);
}

/// xfs grows while it is mounted, whatever the capabilities of the process are.
#[tokio::test]
async fn a_file_system_grows_with_its_device() {
    let Some(mut m) = Machine::new() else { return };
    if crate::file_volumes::obstacle(crate::file_volumes::Format::Xfs).is_some() {
        return;
    }
    let device = m.device("disk", 300);
    let (volumes, v) = (m.volumes(), LocalVolume { file_system: "xfs".into(), ..volume("pv", &device) });
    let path = volumes.set_up(&v, "a", false).await.unwrap().path;
    let total = || {
        let s = nix::sys::statvfs::statvfs(&path).unwrap();
        s.blocks() * s.fragment_size()
    };
    let before = total();
    m.file("disk").set_len(400 << 20).unwrap();
    LoopDevice::find(&m.file("disk")).unwrap().unwrap().update_size().unwrap();
    volumes.grow(&v).await.unwrap();
    assert!(total() > before + (80 << 20));
    let directory = volume("dir", &m.path("pods"));
    volumes.grow(&directory).await.unwrap();
}
