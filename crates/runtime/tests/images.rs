//! Images from archives, and the one made from the program itself.
#![allow(clippy::unwrap_used)] // helpers of tests

mod host;

use std::io::{Read, Write};
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use host::{Host, log, shell};
use runtime::*;
use serde_json::{Value, json};

/// One entry of a layer: path and content; `None` is a directory, `link:` a symlink, `hard:` a hard link.
type Entry<'a> = (&'a str, Option<&'a str>);

fn layer(entries: &[Entry]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        // Written into the header itself, since the library refuses to make paths that an attacker would.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        let content = content.unwrap_or_default();
        let data = match content.split_once(':') {
            Some((kind @ ("link" | "hard"), target)) => {
                header.set_entry_type(if kind == "link" { tar::EntryType::Symlink } else { tar::EntryType::Link });
                header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
                ""
            }
            _ if path.ends_with('/') => {
                header.set_entry_type(tar::EntryType::Directory);
                ""
            }
            _ => {
                header.set_entry_type(tar::EntryType::Regular);
                content
            }
        };
        header.set_size(data.len() as u64);
        header.set_cksum();
        archive.append(&header, data.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

fn sha(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn configuration(layers: &[Vec<u8>]) -> Vec<u8> {
    let diff_ids: Vec<String> = layers.iter().map(|l| format!("sha256:{}", sha(l))).collect();
    serde_json::json!({
        "architecture": "amd64", "os": "linux",
        "config": {"Entrypoint": ["/bin/sh", "-c"], "Cmd": ["echo default $V; pwd"], "Env": ["V=1", "PATH=/bin"],
                   "WorkingDir": "/w", "StopSignal": "SIGINT", "Volumes": null},
        "rootfs": {"type": "layers", "diff_ids": diff_ids}
    })
    .to_string()
    .into_bytes()
}

fn oci_layout(directory: &Path, layers: &[Vec<u8>]) {
    let blobs = directory.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    let put = |bytes: &[u8], kind: &str| {
        std::fs::write(blobs.join(sha(bytes)), bytes).unwrap();
        serde_json::json!({"mediaType": kind, "digest": format!("sha256:{}", sha(bytes)), "size": bytes.len()})
    };
    let config = put(&configuration(layers), "application/vnd.oci.image.config.v1+json");
    let compressed: Vec<_> =
        layers.iter().map(|l| put(&gzip(l), "application/vnd.oci.image.layer.v1.tar+gzip")).collect();
    let manifest = serde_json::json!({"schemaVersion": 2, "config": config, "layers": compressed}).to_string();
    let mut descriptor = put(manifest.as_bytes(), "application/vnd.oci.image.manifest.v1+json");
    descriptor["annotations"] = serde_json::json!({"org.opencontainers.image.ref.name": "example.org/app:1"});
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [descriptor]}).to_string();
    std::fs::write(directory.join("index.json"), index).unwrap();
    std::fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

fn docker_archive(path: &Path, layers: &[Vec<u8>]) {
    let mut archive = tar::Builder::new(std::fs::File::create(path).unwrap());
    let mut put = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, bytes).unwrap();
    };
    let names: Vec<String> = (0..layers.len()).map(|i| format!("{i}/layer.tar")).collect();
    for (name, layer) in names.iter().zip(layers) {
        put(name, layer);
    }
    put("config.json", &configuration(layers));
    let manifest = serde_json::json!([{"Config": "config.json", "RepoTags": ["app:2"], "Layers": names}]).to_string();
    put("manifest.json", manifest.as_bytes());
    archive.finish().unwrap();
}

fn layers() -> Vec<Vec<u8>> {
    let busybox = std::fs::read("/bin/busybox").unwrap();
    let mut base = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(busybox.len() as u64);
    header.set_mode(0o4755);
    base.append_data(&mut header, "bin/busybox", busybox.as_slice()).unwrap();
    for applet in ["sh", "cat", "ls", "echo", "stat", "find"] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        base.append_link(&mut header, format!("bin/{applet}"), "busybox").unwrap();
    }
    let files = layer(&[
        ("etc/", None),
        ("etc/gone", Some("x")),
        ("etc/kept", Some("kept\n")),
        ("dir/", None),
        ("dir/old", Some("old")),
        ("hard", Some("hard:etc/kept")),
        ("abs", Some("link:/etc/kept")),
    ]);
    let changes =
        layer(&[("etc/.wh.gone", Some("")), ("dir/", None), ("dir/.wh..wh..opq", Some("")), ("dir/new", Some("new"))]);
    vec![base.into_inner().unwrap(), files, changes]
}

#[tokio::test]
async fn archives_are_imported_and_run() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let layout = host.directory.path().join("layout");
    oci_layout(&layout, &layers());
    let archive = host.directory.path().join("app.tar");
    docker_archive(&archive, &layers());
    let images = host.runtime.images();
    let first = images.import(&layout, None, None).unwrap().remove(0);
    assert_eq!(first.names.iter().collect::<Vec<_>>(), ["example.org/app:1"]);
    let second = images.import(&archive, None, None).unwrap().remove(0);
    assert_eq!(first.id, second.id, "the same image under a second name");
    assert_eq!(images.resolve("app:2").unwrap().id, images.resolve(&first.id[..19]).unwrap().id);
    assert!(matches!(images.resolve("app:3"), Err(image::Error::NotFound(_))));

    let (_, text) = host
        .script("a", "main", "ls /etc /dir; cat /hard /abs; stat -c %a /bin/busybox; pwd", |c| c.image = "app:2".into())
        .await;
    assert_eq!(
        text.replace("hostname\nhosts\n", "").replace("resolv.conf\n", ""),
        "/dir:\nnew\n\n/etc:\nkept\nkept\nkept\n4755\n/w\n"
    );
    let mut config = shell("default", "");
    (config.command, config.image) = (Vec::new(), "example.org/app:1".into());
    config.env = vec![("V".into(), "2".into())];
    let id = host.start("a", config).await;
    assert_eq!(log(&host.ended(&id).await), "default 2\n/w\n");

    let images = host.runtime.images();
    images.remove("app:2", |_| None).unwrap();
    assert!(images.resolve("app:2").is_err() && images.resolve("example.org/app:1").is_ok());
    let other = ImageStore::open(images.layers_root().parent().unwrap()).unwrap();
    let refused = other.remove("example.org/app:1", |_| Some("c1".into())).unwrap_err().to_string();
    assert_eq!(refused, "image \"example.org/app:1\" is in use by container c1");
    other.remove("example.org/app:1", |_| None).unwrap();
    // What another store (of another process) has written is seen at once.
    assert!(images.list().iter().all(|i| i.id != first.id));
    host.finish().await;
}

#[tokio::test]
async fn bad_archives_are_refused_and_leave_nothing() {
    let host = Host::new().await;
    let images = host.runtime.images().clone();
    let before = images.list();
    let import = |layers: &[Vec<u8>], spoil: &dyn Fn(&Path)| {
        let layout = host.directory.path().join("bad");
        let _ = std::fs::remove_dir_all(&layout);
        oci_layout(&layout, layers);
        spoil(&layout);
        images.import(&layout, None, None).unwrap_err().to_string()
    };
    let nothing = |_: &Path| ();
    for entries in [
        &[("../evil", Some("x"))] as &[Entry],
        &[("out", Some("link:/tmp")), ("out/evil", Some("x"))],
        &[("hard", Some("hard:../../etc/passwd"))],
    ] {
        let error = import(&[layer(entries)], &nothing);
        assert!(error.contains("leads out of the image"), "{error}");
    }
    let flip = |layout: &Path| {
        for blob in std::fs::read_dir(layout.join("blobs/sha256")).unwrap().flatten() {
            if std::fs::read(blob.path()).unwrap().starts_with(&[0x1f, 0x8b]) {
                std::fs::write(blob.path(), gzip(&layer(&[("other", Some("x"))]))).unwrap();
            }
        }
    };
    let error = import(&[layer(&[("file", Some("x"))])], &flip);
    assert!(error.contains("digest is"), "{error}");
    // A source that names an existing layer without containing it does not get it.
    let layout = host.directory.path().join("theirs");
    oci_layout(&layout, &[layer(&[("secret", Some("x"))])]);
    images.import(&layout, Some("theirs"), None).unwrap();
    let error = import(&[layer(&[("secret", Some("x"))])], &flip);
    assert!(error.contains("digest is"), "{error}");
    images.remove("theirs", |_| None).unwrap();
    let error = import(&[layer(&[("file", Some("x"))])], &|l| std::fs::write(l.join("index.json"), "{").unwrap());
    assert!(error.contains("index.json"), "{error}");
    let file = host.directory.path().join("text");
    std::fs::write(&file, "no archive").unwrap();
    assert!(images.import(&file, None, None).is_err());
    assert_eq!(images.list(), before);
    host.finish().await;
}

/// An archive of kilobytes may describe any number of images, layers, and any amount of words.
#[tokio::test]
async fn what_an_archive_describes_is_bounded() {
    let host = Host::new().await;
    let images = host.runtime.images().clone();
    let before = images.list();
    let root = host.directory.path().join("saved");
    std::fs::create_dir_all(&root).unwrap();
    let blob = layer(&[("file", Some("x"))]);
    std::fs::write(root.join("l"), &blob).unwrap();
    let import = |config: Value, layers: usize, count: usize| {
        let diff_ids = vec![format!("sha256:{}", sha(&blob)); layers];
        let text = json!({"config": config, "rootfs": {"type": "layers", "diff_ids": diff_ids}}).to_string();
        std::fs::write(root.join("c"), text).unwrap();
        let one = json!({"Config": "c", "RepoTags": ["saved:1"], "Layers": vec!["l"; layers]});
        std::fs::write(root.join("manifest.json"), Value::from(vec![one; count]).to_string()).unwrap();
        images.import(&root, None, None)
    };
    let error = |r: Result<Vec<image::Image>, image::Error>| r.unwrap_err().to_string();
    assert!(error(import(json!({}), 501, 1)).contains("501 layers, more than 500"));
    assert!(error(import(json!({}), 1, 1001)).contains("1001 images in it, more than 1000"));
    let labels = json!({"Labels": {"a": "b".repeat(300_000)}});
    assert!(error(import(labels, 1, 1)).contains("a configuration of 300"));
    assert_eq!(images.list(), before);
    // Unneeded parts are not kept, and an equal layer is verified and counted once.
    let ports = json!({"ExposedPorts": {"80/tcp": vec![0; 500_000]}, "Cmd": ["/bin/true"]});
    let made = import(ports, 400, 2).unwrap().remove(0);
    assert_eq!((made.layers.len(), &*made.config.cmd), (1, &["/bin/true".to_owned()][..]));
    assert!(std::fs::metadata(images.layers_root().with_file_name("index.json")).unwrap().len() < 100_000);
    images.remove("saved:1", |_| None).unwrap();
    assert_eq!(images.list(), before);
    host.finish().await;
}

/// What is on the disk of a store.
fn on_disk(images: &ImageStore) -> Vec<std::path::PathBuf> {
    let root = images.layers_root().parent().unwrap().to_owned();
    let list = |name: &str| std::fs::read_dir(root.join(name)).unwrap().flatten().map(|e| e.path()).collect::<Vec<_>>();
    let mut all = [list("layers"), list("incoming")].concat();
    all.sort();
    all
}

fn tar_of(entries: &[(&str, tar::EntryType, usize)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, kind, size) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o755);
        header.set_size(*size as u64);
        archive.append_data(&mut header, path, std::io::repeat(0).take(*size as u64)).unwrap();
    }
    archive.into_inner().unwrap()
}

/// Archives that are small and unpack to what fills a disk.
#[test]
fn what_unpacks_to_too_much_is_refused_and_leaves_nothing() {
    use tar::EntryType::{Directory, Regular};
    let place = tempfile::tempdir().unwrap();
    let images = ImageStore::open(place.path().join("images")).unwrap();
    let (layout, archive) = (place.path().join("layout"), place.path().join("archive"));
    let refused = |images: &ImageStore, source: &Path, limit: Option<u64>| {
        let error = images.import(source, None, limit).unwrap_err();
        assert!(matches!(error, image::Error::TooLarge { .. }), "{error}");
        assert!(on_disk(images).is_empty(), "{:?}", on_disk(images));
        error.to_string()
    };
    let names: Vec<String> = (0..1000).map(|n| format!("d{n}")).collect();
    let many: Vec<_> = names.iter().map(|n| (n.as_str(), Directory, 0)).collect();
    for bomb in [tar_of(&[("small", Regular, 10), ("zeros", Regular, 32 << 20)]), tar_of(&many)] {
        let _ = std::fs::remove_dir_all(&layout);
        oci_layout(&layout, &[layer(&[("first", Some("x"))]), bomb.clone()]);
        let error = refused(&images, &layout, Some(2 << 20));
        assert!(
            error.ends_with("unpacks to more than 2097152 bytes, the limit for this import; nothing of it was kept"),
            "{error}"
        );
        // The archive around the layers counts too, and so does what comes after the last entry.
        std::fs::write(&archive, gzip(&bomb)).unwrap();
        refused(&images, &archive, Some(2 << 20));
    }
    let tail = [tar_of(&[("small", Regular, 10)]), vec![0; 32 << 20]].concat();
    let _ = std::fs::remove_dir_all(&layout);
    oci_layout(&layout, &[tail]);
    refused(&images, &layout, Some(2 << 20));
    // A file with a large stated size and no content.
    let mut header = tar::Header::new_gnu();
    header.set_path("sparse").unwrap();
    header.set_entry_type(tar::EntryType::GNUSparse);
    header.as_gnu_mut().unwrap().set_real_size(1 << 40);
    header.set_size(0);
    header.set_cksum();
    std::fs::write(&archive, [&header.as_bytes()[..], &[0; 1024]].concat()).unwrap();
    let error = images.import(&archive, None, None).unwrap_err().to_string();
    assert!(error.contains("sparse") && on_disk(&images).is_empty(), "{error}");

    // Without a limit the disk itself is one, less what keeps a node out of pressure.
    let small = place.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("none"), &small, Some("tmpfs"), flags, Some("size=20m")).unwrap();
    let images = ImageStore::open(small.join("images")).unwrap();
    let _ = std::fs::remove_dir_all(&layout);
    oci_layout(&layout, &[tar_of(&[("zeros", Regular, 64 << 20)])]);
    refused(&images, &layout, None);
    assert!((18 << 20..20 << 20).contains(&images.room().unwrap().bytes));
    nix::mount::umount(&small).unwrap();
}

/// A few entries with many parents used all inodes of a disk.
#[test]
fn directories_above_entries_count() {
    let place = tempfile::tempdir().unwrap();
    let (small, layout) = (place.path().join("small"), place.path().join("layout"));
    std::fs::create_dir(&small).unwrap();
    let flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("none"), &small, Some("tmpfs"), flags, Some("size=200m,nr_inodes=4000")).unwrap();
    let images = ImageStore::open(small.join("images")).unwrap();
    let names: Vec<String> = (0..3).map(|n| format!("{n}/{}f", "a/".repeat(1500))).collect();
    let entries: Vec<_> = names.iter().map(|n| (n.as_str(), tar::EntryType::Regular, 0)).collect();
    oci_layout(&layout, &[tar_of(&entries)]);
    let refuse = |limit| {
        let error = images.import(&layout, None, limit).unwrap_err();
        assert!(matches!(error, image::Error::TooLarge { .. }), "{error}");
        assert!(on_disk(&images).is_empty());
    };
    refuse(None);
    // In bytes: a directory takes a block.
    refuse(Some(1 << 20));
    let _ = std::fs::remove_dir_all(&layout);
    oci_layout(&layout, &[tar_of(&entries[..1])]);
    images.import(&layout, None, None).unwrap();
    nix::mount::umount(&small).unwrap();
}

/// Layers that are compressed with zstd, and bombs of it.
#[test]
fn zstd_layers_are_imported_within_the_limit() {
    let place = tempfile::tempdir().unwrap();
    let images = ImageStore::open(place.path().join("images")).unwrap();
    let layout = place.path().join("layout");
    let content = tar_of(&[("zeros", tar::EntryType::Regular, 32 << 20)]);
    let zstd = ruzstd::encoding::compress_to_vec(content.as_slice(), ruzstd::encoding::CompressionLevel::Fastest);
    oci_layout(&layout, std::slice::from_ref(&content));
    // Its manifest names the other compression; it is the content that counts.
    let path = layout.join("blobs/sha256").join(sha(&gzip(&content)));
    std::fs::write(path, zstd).unwrap();
    let error = images.import(&layout, None, Some(1 << 20)).unwrap_err();
    assert!(matches!(error, image::Error::TooLarge { .. }) && on_disk(&images).is_empty(), "{error}");
    let image = images.import(&layout, None, None).unwrap().remove(0);
    let file = images.layers_root().join(&image.layers[0]).join("zeros");
    assert_eq!(std::fs::metadata(file).unwrap().len(), 32 << 20);
}

/// Other writers fill the disk while a layer is unpacked.
#[test]
fn the_reserve_is_checked_while_a_layer_is_unpacked() {
    let place = tempfile::tempdir().unwrap();
    let (small, layout) = (place.path().join("small"), place.path().join("layout"));
    std::fs::create_dir(&small).unwrap();
    let flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("none"), &small, Some("tmpfs"), flags, Some("size=100m")).unwrap();
    let images = ImageStore::open(small.join("images")).unwrap();
    oci_layout(&layout, &[tar_of(&[("zeros", tar::EntryType::Regular, 40 << 20)])]);
    let other = small.join("other");
    let result = images.import_pulled(&layout, &["a.example/a:1".to_owned()], None, || {
        let before = images.room().unwrap();
        // After the budget is computed in vain: it is the disk that counts.
        std::thread::spawn(move || std::fs::write(other, vec![0; 60 << 20]).unwrap()).join().unwrap();
        image::Room { bytes: before.bytes / 1000, files: 0 }
    });
    assert!(matches!(result, Err(image::Error::TooLarge { .. })), "{result:?}");
    assert!(on_disk(&images).is_empty());
    nix::mount::umount(&small).unwrap();
}

/// Layers were known by the first 64 bits of their digests.
#[test]
fn layers_are_known_by_their_whole_digest() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("images");
    let images = ImageStore::open(&root).unwrap();
    let (layout, content) = (place.path().join("layout"), layer(&[("file", Some("x"))]));
    oci_layout(&layout, std::slice::from_ref(&content));
    let first = images.import(&layout, Some("first"), None).unwrap().remove(0);
    assert_eq!(first.diff_ids, [sha(&content)]);
    let change = |change: &dyn Fn(&mut Value)| {
        let path = root.join("index.json");
        let mut index: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut index);
        std::fs::write(path, index.to_string()).unwrap();
    };
    let image = |index: &mut Value| std::mem::take(&mut index["images"][0]);
    let edit = |field: &str, value: Option<Value>| {
        change(&|index| {
            let mut first = image(index);
            match &value {
                Some(value) => first[field] = value.clone(),
                None => drop(first.as_object_mut().unwrap().remove(field)),
            }
            index["images"][0] = first;
        });
    };
    edit("id", Some(json!("sha256:another")));
    // Another layer whose digest has the same start; and one of a version that recorded no digests.
    let other = format!("{}{}", &sha(&content)[..16], "0".repeat(48));
    for (i, diff_ids) in [Some(json!([other])), None].into_iter().enumerate() {
        edit("diff_ids", diff_ids);
        let second = images.import(&layout, Some("second"), None).unwrap().remove(0);
        assert_eq!(second.layers, [format!("{}-1", first.layers[0])], "case {i}");
        assert_eq!(images.resolve("first").unwrap().layers, first.layers);
        images.remove("second", |_| None).unwrap();
        assert!(images.layers_root().join(&first.layers[0]).join("file").exists());
    }
    edit("diff_ids", Some(json!([sha(&content)])));
    let second = images.import(&layout, Some("second"), None).unwrap().remove(0);
    assert_eq!(second.layers, first.layers, "an equal layer is shared");
}

/// A process that is killed leaves what it has unpacked.
#[test]
fn leftovers_of_interrupted_imports_are_removed() {
    let place = tempfile::tempdir().unwrap();
    let images = ImageStore::open(place.path().join("images")).unwrap();
    let layout = place.path().join("layout");
    oci_layout(&layout, &[layer(&[("file", Some("x"))])]);
    let image = images.import(&layout, Some("kept"), None).unwrap().remove(0);
    for left in ["layers/left", "layers/used", "incoming/part"] {
        std::fs::create_dir_all(place.path().join("images").join(left).join("directory")).unwrap();
    }
    images.remove_leftovers(|layer| (layer == "used").then(|| "container".into())).unwrap();
    let mut names: Vec<String> =
        on_disk(&images).iter().map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    let mut expect = [image.layers[0].clone(), "used".into()];
    expect.sort();
    assert_eq!(names, expect);
}

/// Device files and pipes with the modes of the archive, whatever the umask; owners in the range of users.
#[test]
fn special_files_have_their_modes_and_owners_are_in_range() {
    use std::os::unix::fs::MetadataExt;
    let place = tempfile::tempdir().unwrap();
    let images = ImageStore::open(place.path().join("images")).unwrap();
    let layout = place.path().join("layout");
    let entries = |uid: u64| {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, kind) in [("null", tar::EntryType::Char), ("pipe", tar::EntryType::Fifo)] {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(0o4666);
            header.set_uid(uid);
            header.set_gid(7);
            header.set_device_major(1).unwrap();
            header.set_device_minor(3).unwrap();
            header.set_size(0);
            archive.append_data(&mut header, path, &[][..]).unwrap();
        }
        archive.into_inner().unwrap()
    };
    oci_layout(&layout, &[entries(5)]);
    let image = images.import(&layout, None, None).unwrap().remove(0);
    for name in ["null", "pipe"] {
        let found = std::fs::symlink_metadata(images.layers_root().join(&image.layers[0]).join(name)).unwrap();
        assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o4666, 5, 7), "{name}");
    }
    images.remove(&image.id, |_| None).unwrap();
    for uid in [u64::from(u32::MAX), 1 << 32, 1 << 31] {
        let _ = std::fs::remove_dir_all(&layout);
        oci_layout(&layout, &[entries(uid)]);
        let error = images.import(&layout, None, None).unwrap_err().to_string();
        assert!(error.ends_with("uids and gids must be in range 0-2147483647"), "{error}");
        assert!(on_disk(&images).is_empty());
    }
}

/// A layer with a path that is too long stayed on the disk, without an image.
#[test]
fn paths_that_are_too_long_are_refused_and_leave_nothing() {
    let place = tempfile::tempdir().unwrap();
    let images = ImageStore::open(place.path().join("images")).unwrap();
    let layout = place.path().join("layout");
    let deep = vec!["x".repeat(200); 21].join("/");
    oci_layout(&layout, &[layer(&[("first", Some("x"))]), tar_of(&[(&deep, tar::EntryType::Directory, 0)])]);
    let error = images.import(&layout, None, None).unwrap_err().to_string();
    assert!(error.starts_with("a layer has a path of 4220 bytes"), "{error}");
    assert!(on_disk(&images).is_empty(), "{:?}", on_disk(&images));
    // A long one that fits is no worse than others.
    let _ = std::fs::remove_dir_all(&layout);
    let deep = vec!["x".repeat(200); 15].join("/");
    oci_layout(&layout, &[tar_of(&[(&deep, tar::EntryType::Directory, 0)])]);
    let image = images.import(&layout, None, None).unwrap().remove(0);
    images.remove(&image.id, |_| None).unwrap();
    assert!(on_disk(&images).is_empty());
}

/// Names and attributes of any length: they would be read into memory, and shown.
#[test]
fn long_headers_are_refused_and_errors_stay_short() {
    use tar::EntryType::{GNULongLink, GNULongName, Regular, XGlobalHeader, XHeader};
    let place = tempfile::tempdir().unwrap();
    let images = ImageStore::open(place.path().join("images")).unwrap();
    let (layout, archive) = (place.path().join("layout"), place.path().join("archive"));
    let refused = |source: &Path| {
        let error = images.import(source, None, None).unwrap_err().to_string();
        assert!(on_disk(&images).is_empty(), "{:?}", on_disk(&images));
        assert!(error.len() < 1024, "an error of {} bytes", error.len());
        error
    };
    for kind in [GNULongName, GNULongLink, XHeader, XGlobalHeader] {
        let bomb = tar_of(&[("long", kind, 8 << 20), ("a", Regular, 1)]);
        let _ = std::fs::remove_dir_all(&layout);
        oci_layout(&layout, std::slice::from_ref(&bomb));
        std::fs::write(&archive, gzip(&bomb)).unwrap();
        for source in [&layout, &archive] {
            let error = refused(source);
            assert!(error.contains("the headers of an entry"), "{kind:?}: {error}");
        }
    }
    let name = "x".repeat(100_000);
    let _ = std::fs::remove_dir_all(&layout);
    oci_layout(&layout, &[tar_of(&[(&name, Regular, 1)])]);
    let error = refused(&layout);
    assert!(error.contains("100000 bytes"), "{error}");
    std::fs::write(&archive, tar_of(&[(&name, Regular, 1)])).unwrap();
    refused(&archive);
    for manifest in
        [format!("[{{\"Config\": \"{name}\", \"RepoTags\": [\"a\"], \"Layers\": []}}]"), format!("\"{name}\"")]
    {
        std::fs::write(&archive, layer(&[("manifest.json", Some(&manifest))])).unwrap();
        refused(&archive);
    }
}

#[tokio::test]
async fn the_program_itself_is_an_image() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let program = Path::new(env!("CARGO_BIN_EXE_kemudi-runtime-testbed"));
    let image = host.runtime.images().ensure_builtin("demo", program).unwrap();
    let begin = tokio::time::Instant::now();
    assert_eq!(host.runtime.images().ensure_builtin("demo", program).unwrap(), image);
    println!("asked again: {:?}", begin.elapsed());
    // Other nodes of this machine have it under the same id, also if they copy the program, since theirs is another disk.
    for place in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        let other = ImageStore::open(place.path().join("images")).unwrap();
        assert_eq!(other.ensure_builtin("demo", program).unwrap().id, image.id);
    }
    // A node without it would get it only with its next start.
    let images = host.runtime.images();
    for name in ["demo", &image.id] {
        let error = images.remove(name, |_| None).unwrap_err();
        assert_eq!(error.to_string(), format!("image {name:?} is part of this node: it cannot be removed or replaced"));
    }
    let tree = host.directory.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let error = images.adopt_directory("demo", &tree, ImageConfig::default()).unwrap_err().to_string();
    assert!(error.contains("docker.io/library/demo:latest") && error.contains("is part of this node"), "{error}");
    images.add_names("demo", &["example.org/demo:1".to_owned()]).unwrap();
    images.remove("example.org/demo:1", |_| None).unwrap();
    // Another version of the program takes its place.
    let newer = host.directory.path().join("newer");
    std::fs::copy(program, &newer).unwrap();
    std::fs::File::options()
        .append(true)
        .open(&newer)
        .and_then(|mut f| std::io::Write::write_all(&mut f, b"x"))
        .unwrap();
    let next = images.ensure_builtin("demo", &newer).unwrap();
    assert!(next.id != image.id && images.list().iter().any(|i| i.id == image.id && !i.pinned));
    images.remove(&image.id, |_| None).unwrap();
    let config = ContainerConfig {
        name: "demo".into(),
        image: "demo".into(),
        args: vec!["hello".into()],
        log_path: "demo.log".into(),
        ..ContainerConfig::default()
    };
    let id = host.start("a", config).await;
    let status = host.ended(&id).await;
    assert_eq!((status.exit_code, log(&status).as_str()), (Some(0), "demo hello\n"));
    host.finish().await;
}

/// The kernel reads the id 4294967295 as "no change": the program of such a user was root's.
#[tokio::test]
async fn programs_of_impossible_users_do_not_start() {
    let mut host = Host::new().await;
    host.pod("a").await;
    let images = host.runtime.images().clone();
    let image = |user: &str, passwd: &str| {
        let tree = host.directory.path().join("tree");
        std::fs::create_dir_all(tree.join("bin")).unwrap();
        std::fs::create_dir_all(tree.join("etc")).unwrap();
        std::fs::copy("/bin/busybox", tree.join("bin/sh")).unwrap();
        std::fs::write(tree.join("etc/passwd"), passwd).unwrap();
        let config = ImageConfig { user: user.into(), ..ImageConfig::default() };
        images.adopt_directory("example.org/users:1", &tree, config).unwrap();
    };
    let none = Security::default();
    let with = |change: fn(&mut Security)| {
        let mut security = none.clone();
        change(&mut security);
        security
    };
    for (i, (user, passwd, security)) in [
        ("4294967295", "", none.clone()),
        ("1000:4294967295", "", none.clone()),
        ("evil", "evil:x:4294967295:1::/:\n", none.clone()),
        ("1000", "evil:x:1000:4294967295::/:\n", none.clone()),
        ("1000", "", with(|s| s.run_as_user = Some(u32::MAX))),
        ("1000", "", with(|s| s.supplemental_groups = vec![u32::MAX])),
    ]
    .into_iter()
    .enumerate()
    {
        image(user, passwd);
        let mut config = shell(&format!("c{i}"), "true");
        (config.image, config.security) = ("example.org/users:1".into(), security);
        let id = host.runtime.create_container("a", config).await.unwrap();
        let error = host.runtime.start_container(&id).await.unwrap_err().to_string();
        assert!(error.contains("uids and gids must be in range 0-2147483647"), "case {i}: {error}");
    }
    host.finish().await;
}

/// An image as a volume: read-only, and without execution; also in a user namespace.
#[tokio::test]
async fn images_are_mounted_read_only() {
    let mut host = Host::new().await;
    host.pod("a").await;
    mount_images(&mut host, "a").await;
    let config = host.user_pod_config("b", IdRange { first: 200_000, length: 65_536 });
    host.runtime.run_pod(config).await.unwrap();
    mount_images(&mut host, "b").await;
    host.finish().await;
}

async fn mount_images(host: &mut Host, pod: &str) {
    let files = host.directory.path().join(format!("files-{pod}"));
    std::fs::create_dir_all(files.join("models/deep")).unwrap();
    std::fs::write(files.join("models/deep/weights"), "heavy\n").unwrap();
    std::fs::copy("/bin/busybox", files.join("busybox")).unwrap();
    host.runtime.images().adopt_directory("example.org/data:1", &files, Default::default()).unwrap();
    let image = |path: &str, target: &str| Mount {
        source: MountSource::Image { image: "example.org/data:1".into(), path: path.into() },
        ..Mount::bind("", target).read_only()
    };
    let script = "cat /data/models/deep/weights /sub/weights /file; echo x > /data/new || echo read-only; \
                  /data/busybox true 2> /dev/null || echo not executable; grep -c noexec /proc/self/mountinfo > /dev/null && echo mounted";
    let (status, text) = host
        .script(pod, "main", script, |c| {
            c.mounts = vec![image("", "/data"), image("models/deep", "/sub"), image("models/deep/weights", "/file")];
        })
        .await;
    assert_eq!(status.exit_code, Some(0), "{text}");
    assert_eq!(text.matches("heavy\n").count(), 3, "{text}");
    for line in ["read-only", "not executable", "mounted"] {
        assert!(text.lines().any(|l| l == line), "{line:?} is missing:\n{text}");
    }
    assert_eq!(status.mounted_images.len(), 1);
    let mut config = shell("running", "sleep 60");
    config.mounts = vec![image("", "/data")];
    let id = host.runtime.create_container(pod, config).await.unwrap();
    host.runtime.start_container(&id).await.unwrap();
    assert!(host.runtime.remove_image("example.org/data:1").is_err(), "a container uses it");
    host.runtime.stop_container(&id, std::time::Duration::ZERO).await.unwrap();
    for (name, mount, message) in [
        ("no-path", image("models/none", "/x"), "ImageVolumeMountFailed: "),
        (
            "no-image",
            Mount {
                source: MountSource::Image { image: "example.org/none:1".into(), path: "".into() },
                ..Mount::bind("", "/x")
            },
            "failed to pull image",
        ),
    ] {
        let mut config = shell(name, "");
        config.mounts = vec![mount];
        let error = host.runtime.create_container(pod, config).await.unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}
