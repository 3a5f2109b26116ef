//! The root directory of the kubelet, which plugins know by its usual path.

use std::path::{Component, Path, PathBuf};

use crate::SocketPath;

/// The root directory of the kubelet (`--root-dir`): where it is, and the path by which plugins and pods know it. The two differ, so
/// that manifests with the usual path work on every node, also where several nodes share a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletRoot {
    /// Where the directory is: an absolute path without links.
    pub path: PathBuf,
    /// The path that plugins know.
    pub shown_as: PathBuf,
}

impl KubeletRoot {
    /// The usual path.
    pub const USUAL: &str = "/var/lib/kubelet";

    /// The path of a file that a plugin or a pod names; other files than those of the kubelet have one path only. A path with `..` is
    /// returned as it is.
    pub fn real(&self, shown: &Path) -> PathBuf {
        let is_plain = !shown.components().any(|c| c == Component::ParentDir);
        match shown.strip_prefix(&self.shown_as) {
            Ok(rest) if is_plain => self.path.join(rest),
            _ => shown.to_owned(),
        }
    }

    /// The path by which plugins know a file.
    pub fn shown(&self, real: &Path) -> PathBuf {
        match real.strip_prefix(&self.path) {
            Ok(rest) => self.shown_as.join(rest),
            Err(_) => real.to_owned(),
        }
    }

    /// The socket that a plugin names. Links below the kubelet's directory do not lead out of it.
    pub fn socket(&self, shown: &Path) -> SocketPath {
        let is_plain = !shown.components().any(|c| c == Component::ParentDir);
        match shown.strip_prefix(&self.shown_as) {
            Ok(rest) if is_plain => {
                SocketPath { root: self.path.clone(), path: rest.to_owned(), name: shown.to_owned() }
            }
            _ => SocketPath::machine(shown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_that_plugins_know() {
        let root = KubeletRoot { path: "/data/node".into(), shown_as: KubeletRoot::USUAL.into() };
        let cases = [
            ("/var/lib/kubelet/plugins/a/csi.sock", "/data/node/plugins/a/csi.sock"),
            ("/var/lib/kubelet", "/data/node/"),
            ("/var/lib/kubelet2/a", "/var/lib/kubelet2/a"),
            ("/var/lib/kubelet/../a", "/var/lib/kubelet/../a"),
            ("/run/csi.sock", "/run/csi.sock"),
        ];
        for (shown, real) in cases {
            assert_eq!(root.real(Path::new(shown)), PathBuf::from(real), "{shown}");
        }
        assert_eq!(root.shown(Path::new("/data/node/pods/u")), PathBuf::from("/var/lib/kubelet/pods/u"));
        assert_eq!(root.socket(Path::new("/var/lib/kubelet/p/s")).path, PathBuf::from("p/s"));
    }
}
