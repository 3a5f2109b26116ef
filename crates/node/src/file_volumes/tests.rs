use super::files::is_preallocated;
use super::mounts::mount_file;
use super::*;
use nix::mount::{MsFlags, mount};
use nix::sys::statvfs::statvfs;
use serde_json::json;
use std::fs::OpenOptions;
use std::io;

const EXT4: FileOptions = FileOptions { format: Format::Ext4, is_preallocated: false };

/// File systems need loop devices, mounts and `mkfs.ext4`; None on a machine without them.
struct Machine {
    directory: tempfile::TempDir,
    files: FileVolumes,
}

impl Machine {
    fn new() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() || obstacle(Format::Ext4).is_some() {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir(root.join("pods")).unwrap();
        let files = FileVolumes::new(root.join("volumes"), root.join("pods"));
        Some(Self { directory, files })
    }

    fn path(&self, below: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(below)
    }

    fn device(&self, name: &str) -> Option<LoopDevice> {
        LoopDevice::find(&open(&self.files.path(name)).unwrap()).unwrap()
    }

    /// Waits until the file has no device: the kernel detaches it on a thread of its own.
    async fn detached(&self, name: &str) {
        let waits = async {
            while self.device(name).is_some() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), waits).await.expect("the device is still there");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let root = self.path("");
        unmount_below(&root).unwrap();
        runtime::loop_device::detach_all(&root.join("volumes")).unwrap();
    }
}

fn volume(name: &str, format: Format) -> FileVolume {
    FileVolume { name: name.into(), format }
}

fn total(path: &Path) -> u64 {
    let s = statvfs(path).unwrap();
    s.blocks() * s.fragment_size()
}

#[tokio::test]
async fn a_file_system_has_the_size_of_its_volume() {
    let Some(m) = Machine::new() else { return };
    for _ in 0..2 {
        m.files.make("pvc-1", 8 << 20, EXT4, None).await.unwrap();
    }
    assert_eq!(m.files.unused().await, ["pvc-1"]);
    let (v, a, b) = (volume("pvc-1", Format::Ext4), m.path("pods/a/v"), m.path("pods/b/v"));
    for place in [&a, &b, &a] {
        assert_eq!(m.files.mount(&v, place, false).await.unwrap(), Contents::AsLargeAsFile);
    }
    assert!(m.files.unused().await.is_empty());
    assert_eq!(fs::read_dir(&a).unwrap().count(), 0, "it is empty");
    assert_eq!(fs::metadata(&a).unwrap().mode() & 0o7777, 0o777);
    let full = fs::write(a.join("file"), vec![1; 9 << 20]).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
    fs::write(a.join("file"), "x").unwrap();
    assert_eq!(fs::read_to_string(b.join("file")).unwrap(), "x", "all pods share it");
    let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let line = text.lines().find(|l| l.contains(a.to_str().unwrap())).unwrap();
    assert!(line.contains("nosuid,nodev"), "{line}");
    assert!(matches!(m.files.remove("pvc-1").await, Err(Error::InUse(_))));

    unmount_below(&m.path("pods")).unwrap();
    m.detached("pvc-1").await;
    assert!(matches!(m.files.make("pvc-2", 1 << 60, EXT4, None).await, Err(Error::TooLarge { .. })));
    for _ in 0..2 {
        m.files.remove("pvc-1").await.unwrap();
    }
    assert_eq!(fs::read_dir(m.path("volumes")).unwrap().count(), 0, "nothing is left");
}

#[tokio::test]
async fn it_grows_before_it_is_mounted() {
    let Some(m) = Machine::new() else { return };
    m.files.make("pvc-1", 8 << 20, EXT4, None).await.unwrap();
    let (v, place) = (volume("pvc-1", Format::Ext4), m.path("pods/a/v"));
    m.files.mount(&v, &place, false).await.unwrap();
    let before = total(&place);
    fs::write(place.join("file"), "kept").unwrap();
    unmount_below(&m.path("pods")).unwrap();
    m.detached("pvc-1").await;
    m.files.grow_file("pvc-1", 32 << 20).await.unwrap();
    m.files.grow_file("pvc-1", 16 << 20).await.unwrap();
    assert_eq!(m.files.path("pvc-1").metadata().unwrap().len(), 32 << 20, "it never shrinks");
    assert!(matches!(m.files.grow_file("pvc-1", 1 << 60).await, Err(Error::TooLarge { .. })));
    // A second agent that repeats the step finds nothing to do.
    for _ in 0..2 {
        assert_eq!(m.files.grow_contents(&v).await.unwrap(), Contents::AsLargeAsFile);
    }
    m.files.mount(&v, &place, true).await.unwrap();
    assert!(total(&place) > before + (20 << 20), "{} {before}", total(&place));
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "kept");
}

#[tokio::test]
async fn a_damaged_file_system_is_not_mounted() {
    let Some(m) = Machine::new() else { return };
    m.files.make("pvc-1", 8 << 20, EXT4, None).await.unwrap();
    let file = OpenOptions::new().write(true).open(m.files.path("pvc-1")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 16 << 10], 0).unwrap();
    let (v, place) = (volume("pvc-1", Format::Ext4), m.path("pods/a/v"));
    let error = m.files.mount(&v, &place, false).await.unwrap_err().to_string();
    assert!(error.contains("e2fsck") || error.contains("fsck"), "{error}");
    assert!(m.device("pvc-1").is_none() && !crate::csi::paths::is_mounted(&place));
    fs::remove_file(m.files.path("pvc-1")).unwrap();
    assert!(matches!(m.files.mount(&v, &place, false).await, Err(Error::Gone(_))), "no empty directory instead");
}

#[tokio::test]
async fn devices_go_with_the_last_pod() {
    let Some(m) = Machine::new() else { return };
    for name in ["pvc-1", "pvc-2"] {
        m.files.make(name, 4 << 20, FileOptions { format: Format::Raw, is_preallocated: true }, None).await.unwrap();
        let meta = m.files.path(name).metadata().unwrap();
        assert!(is_preallocated(&meta), "the disk is reserved");
    }
    let v = volume("pvc-1", Format::Raw);
    let device = m.files.device(&v, "a").await.unwrap();
    assert_eq!(m.files.device(&v, "b").await.unwrap(), device);
    let first = m.device("pvc-1").unwrap().number();
    m.files.grow_file("pvc-1", 6 << 20).await.unwrap();
    m.files.grow_contents(&v).await.unwrap();
    let size = fs::read_to_string(format!("/sys/block/loop{first}/size")).unwrap();
    assert_eq!(size.trim(), ((6 << 20) / 512).to_string());

    // A program in a pod detaches its device: the agent holds it, and keeps it after the next use.
    m.device("pvc-1").unwrap().detach().unwrap();
    assert!(m.device("pvc-1").is_some());
    m.files.device(&v, "a").await.unwrap();
    // Without the agent it is gone, and no other volume gets its number.
    m.files.held.lock().clear();
    m.device("pvc-1").unwrap().detach().unwrap();
    m.detached("pvc-1").await;
    m.files.device(&volume("pvc-2", Format::Raw), "c").await.unwrap();
    assert_ne!(m.device("pvc-2").unwrap().number(), first);
    // Nor does a file system: pod `a` could read and write it.
    m.files.make("pvc-3", 4 << 20, EXT4, None).await.unwrap();
    let place = m.path("pods/d/volumes/pvc-3");
    m.files.mount(&volume("pvc-3", Format::Ext4), &place, false).await.unwrap();
    assert_ne!(m.device("pvc-3").unwrap().number(), first);
    assert!(matches!(m.files.remove("pvc-1").await, Err(Error::IsDevice)));
    // Its contents are not trusted afterwards, even if somebody makes its PersistentVolume again without `volumeMode: Block`.
    let other = m.files.mount(&volume("pvc-2", Format::Ext4), &m.path("pods/d/volumes/pvc-2"), false).await;
    assert!(matches!(other, Err(Error::WasDevice)), "{other:?}");

    m.files.device(&v, "a").await.unwrap();
    // A new agent finds what it has to hold.
    let next = FileVolumes::new(m.path("volumes"), m.path("pods"));
    next.recover().await;
    assert_eq!(next.held.lock().keys().collect::<Vec<_>>(), ["pvc-1", "pvc-2"]);
    drop(next);
    m.files.release("a").await.unwrap();
    assert!(m.device("pvc-1").is_some(), "another pod has it");
    for pod in ["b", "b", "c"] {
        m.files.release(pod).await.unwrap();
    }
    for name in ["pvc-1", "pvc-2"] {
        m.detached(name).await;
        m.files.remove(name).await.unwrap();
    }
}

#[tokio::test]
async fn a_copy_has_the_contents_of_its_source() {
    let Some(m) = Machine::new() else { return };
    m.files.make("pvc-1", 8 << 20, EXT4, None).await.unwrap();
    let (source, copy) = (volume("pvc-1", Format::Ext4), volume("pvc-2", Format::Ext4));
    let (a, b) = (m.path("pods/a/v"), m.path("pods/b/v"));
    m.files.mount(&source, &a, false).await.unwrap();
    fs::write(a.join("file"), "copied").unwrap();
    let refused = m.files.make("pvc-2", 16 << 20, EXT4, Some(&source)).await;
    assert!(matches!(refused, Err(Error::SourceInUse(_))), "{refused:?}");
    unmount_below(&m.path("pods")).unwrap();
    m.detached("pvc-1").await;
    m.files.make("pvc-2", 16 << 20, EXT4, Some(&source)).await.unwrap();
    for (volume, place) in [(&source, &a), (&copy, &b)] {
        m.files.mount(volume, place, false).await.unwrap();
        assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "copied");
    }
    assert!(total(&b) > total(&a) + (6 << 20), "it has a size of its own");
    fs::write(b.join("file"), "changed").unwrap();
    assert_eq!(fs::read_to_string(a.join("file")).unwrap(), "copied");
    assert!(m.files.path("pvc-2").metadata().unwrap().blocks() * 512 < 8 << 20, "holes stay holes");
}

#[tokio::test]
async fn a_full_disk_leaves_nothing_behind() {
    let Some(m) = Machine::new() else { return };
    let disk = m.path("volumes");
    fs::create_dir(&disk).unwrap();
    mount(Some("none"), &disk, Some("tmpfs"), MsFlags::empty(), Some("size=8m")).unwrap();
    fs::write(disk.join("other"), vec![1; (8 << 20) - 8192]).unwrap();
    for (is_preallocated, reason) in
        [(false, "No space left on device"), (true, "bytes do not fit on the disk of this node")]
    {
        let made = m.files.make("pvc-1", 6 << 20, FileOptions { is_preallocated, ..EXT4 }, None).await;
        let error = made.unwrap_err();
        let text = format!("{error}");
        assert!(text.contains(reason) || matches!(error, Error::Program { .. }), "{text}");
        let left: Vec<_> = fs::read_dir(&disk).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["other"]);
    }
}

/// xfs grows while it is mounted, whatever the capabilities of the process are.
#[tokio::test]
async fn xfs_grows_while_it_is_mounted() {
    let Some(m) = Machine::new() else { return };
    if obstacle(Format::Xfs).is_some() {
        return;
    }
    let xfs = FileOptions { format: Format::Xfs, is_preallocated: false };
    m.files.make("pvc-1", Format::Xfs.size(1), xfs, None).await.unwrap();
    let (v, place) = (volume("pvc-1", Format::Xfs), m.path("pods/a/v"));
    m.files.mount(&v, &place, false).await.unwrap();
    let before = total(&place);
    for size in [400, 500] {
        m.files.grow_file("pvc-1", size << 20).await.unwrap();
        assert_eq!(m.files.grow_contents(&v).await.unwrap(), Contents::AsLargeAsFile);
    }
    assert!(total(&place) > before + (150 << 20));
    unmount_below(&m.path("pods")).unwrap();
    m.detached("pvc-1").await;
    m.files.grow_file("pvc-1", 600 << 20).await.unwrap();
    assert_eq!(m.files.grow_contents(&v).await.unwrap(), Contents::GrowsWhenMounted);
    assert_eq!(m.files.mount(&v, &place, true).await.unwrap(), Contents::AsLargeAsFile);
    assert!(total(&place) > before + (250 << 20));
}

/// An agent that was killed left a file half made, mounted.
#[tokio::test]
async fn what_was_left_unfinished_is_removed() {
    let Some(m) = Machine::new() else { return };
    m.files.make("pvc-1", 4 << 20, EXT4, None).await.unwrap();
    let (unfinished, place) = (m.path("volumes/pvc-2.new"), m.path("volumes/pvc-2.mnt"));
    fs::copy(m.files.path("pvc-1"), &unfinished).unwrap();
    fs::create_dir(&place).unwrap();
    let half = OpenOptions::new().read(true).write(true).open(&unfinished).unwrap();
    mount_file(&half, &place, Format::Ext4, false, &m.path("pods")).unwrap();
    m.files.recover().await;
    assert_eq!(fs::read_dir(m.path("volumes")).unwrap().count(), 1);
    assert_eq!(m.files.unused().await, ["pvc-1"]);
    m.files.make("pvc-2", 4 << 20, EXT4, None).await.unwrap();
}

#[test]
fn only_the_file_of_its_name_is_a_volume() {
    let files = FileVolumes::new("/v".into(), "/p".into());
    let recognized = |name: &str, path: &str, more: serde_json::Value| {
        let mut spec = json!({"local": {"path": path}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let volume = json!({"metadata": {"name": name}, "spec": spec});
        files.recognize(&serde_json::from_value(volume).unwrap()).map(|v| v.format)
    };
    assert_eq!(recognized("pvc-1", "/v/pvc-1.img", json!({})), Some(Format::Ext4));
    assert_eq!(recognized("pvc-1", "/v/pvc-1.img", json!({"volumeMode": "Block"})), Some(Format::Raw));
    for (name, path) in [
        ("pvc-1", "/v/pvc-2.img"),
        ("pvc-1", "/v/pvc-1"),
        ("pvc-1", "/v/../v/pvc-1.img"),
        ("other", "/v/other.img"),
        ("pvc-../x", "/v/pvc-../x.img"),
    ] {
        assert_eq!(recognized(name, path, json!({})), None, "{name} {path}");
    }
}
