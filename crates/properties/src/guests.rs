//! Properties of what comes from images, containers and clients: layers, image configurations, the shim's protocol, frames of
//! HTTP/2, kubeconfigs.

use client::kubeconfig::{Kubeconfig, Overrides};
use runtime::image::{ImageConfig, normalize, unpack_layer};
use runtime::protocol::{Message, ReportPacket, Request, read_report};
use runtime::{Seccomp, seccomp};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Parts of paths in made-up layers: plain names, and what must not lead out of a layer.
const PARTS: [&str; 12] =
    ["a", "b", "deep", "link", "..", ".", "/", ".wh.a", ".wh...", ".wh..", ".wh..wh..opq", ".wh.link"];

/// A directory that goes with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> std::io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kemudi-property-{}-{number}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = runtime::beneath::remove_tree(&self.0);
    }
}

/// Unpacking writes only below the layer's directory, both for arbitrary bytes and for an archive with arbitrary entries.
pub fn layers(data: &[u8]) {
    unpacks_inside(data);
    unpacks_inside(&archive(data));
}

fn unpacks_inside(archive: &[u8]) {
    let Ok(scratch) = Scratch::new() else { return };
    let (outside, layer) = (scratch.0.join("outside"), scratch.0.join("layer"));
    let made = std::fs::create_dir(&layer).and_then(|()| std::fs::write(&outside, "untouched"));
    assert!(made.is_ok(), "{made:?}");
    let _ = unpack_layer(&mut &*archive, &layer);
    let names: BTreeSet<PathBuf> =
        std::fs::read_dir(&scratch.0).into_iter().flatten().flatten().map(|e| e.path()).collect();
    assert_eq!(names, [outside.clone(), layer].into());
    assert_eq!(std::fs::read_to_string(&outside).ok().as_deref(), Some("untouched"));
}

/// An archive of entries: each takes a byte for its kind, and a few for its path and what it links to.
fn archive(data: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for entry in data.chunks(6).take(64) {
        let byte = |i: usize| usize::from(entry.get(i).copied().unwrap_or(0));
        let path =
            |parts: &[usize]| -> String { parts.iter().map(|p| PARTS[p % PARTS.len()]).collect::<Vec<_>>().join("/") };
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(match byte(0) % 6 {
            0 => tar::EntryType::Regular,
            1 => tar::EntryType::Directory,
            2 => tar::EntryType::Symlink,
            3 => tar::EntryType::Link,
            4 => tar::EntryType::Fifo,
            _ => tar::EntryType::GNUSparse,
        });
        header.set_mode(0o755);
        header.set_size(0);
        // Written into the header as they are: the builder refuses what climbs.
        let fields = header.as_old_mut();
        fill(&mut fields.name, &path(&[byte(1), byte(2), byte(3)]));
        fill(&mut fields.linkname, &path(&[byte(4), byte(5)]));
        header.set_cksum();
        let _ = builder.append(&header, std::io::empty());
    }
    builder.into_inner().unwrap_or_default()
}

fn fill(field: &mut [u8; 100], text: &str) {
    let length = text.len().min(field.len());
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
}

/// What an image says of itself is read or refused; a name has one normal form; a seccomp profile becomes a program of bounded
/// length or an error.
pub fn image_configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(config) = serde_json::from_str::<ImageConfig>(text) {
        let written = serde_json::to_string(&config).unwrap_or_default();
        assert_eq!(serde_json::from_str::<ImageConfig>(&written).ok(), Some(config));
    }
    if let Ok(name) = normalize(text) {
        assert_eq!(normalize(&name).ok(), Some(name));
    }
    if let Some(Ok(program)) = seccomp::compile(&Seccomp::Oci(text.to_owned()), &[]) {
        assert!(program.instructions().len() <= 4096, "the kernel takes no more");
    }
}

/// What agent and shim say to each other is read as it was written.
pub fn shim_protocol(data: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<Request>(data) {
        let written = serde_json::to_vec(&request).unwrap_or_default();
        let again = serde_json::from_slice::<Request>(&written).and_then(|r| serde_json::to_vec(&r));
        assert_eq!(again.ok(), Some(written));
    }
    if let Ok(message) = serde_json::from_slice::<Message>(data) {
        let written = serde_json::to_vec(&message).unwrap_or_default();
        let again = serde_json::from_slice::<Message>(&written).and_then(|m| serde_json::to_vec(&m));
        assert_eq!(again.ok(), Some(written));
    }
    // A number that is not one process would have the shim signal many.
    if let ReportPacket::Child(Some(pid)) = read_report(data) {
        assert!(pid > 1);
    }
}

/// A kubeconfig is read or refused, and so is the cluster that it names.
pub fn kubeconfig(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(config) = Kubeconfig::parse(text) {
        let _ = config.resolve(&Overrides::default());
    }
}

/// The server goes on answering whatever follows the preface of an HTTP/2 connection.
pub fn http2(data: &[u8]) {
    crate::listener::send(data);
}
