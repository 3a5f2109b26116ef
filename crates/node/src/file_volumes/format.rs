//! What a file contains: a file system of some kind, or what a pod writes to a device.

use std::path::Path;

/// The contents of the file of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Ext4,
    Xfs,
    /// A device of a pod (`volumeMode: Block`).
    Raw,
}

/// The parameters of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    pub format: Format,
    /// All blocks of the disk are reserved when the file is made.
    pub is_preallocated: bool,
}

/// A program, and Debian's package of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub name: &'static str,
    pub package: &'static str,
}

const fn e2fsprogs(name: &'static str) -> Program {
    Program { name, package: "e2fsprogs" }
}

const fn xfsprogs(name: &'static str) -> Program {
    Program { name, package: "xfsprogs" }
}

/// Sizes are multiples of this.
const UNIT: u64 = 4096;
/// The smallest file system that `mkfs.xfs` makes.
const SMALLEST_XFS: u64 = 300 << 20;
const SMALLEST: u64 = 1 << 20;

impl Format {
    /// The file system with this name (`csi.storage.k8s.io/fstype`).
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "" | "ext4" => Some(Self::Ext4),
            "xfs" => Some(Self::Xfs),
            _ => None,
        }
    }

    /// The kernel's name of the file system; `None` without one.
    pub fn file_system(self) -> Option<&'static str> {
        match self {
            Self::Ext4 => Some("ext4"),
            Self::Xfs => Some("xfs"),
            Self::Raw => None,
        }
    }

    /// The size of the file of a claim that requests so many bytes.
    pub fn size(self, requested: u64) -> u64 {
        let smallest = if self == Self::Xfs { SMALLEST_XFS } else { SMALLEST };
        requested.max(smallest).div_ceil(UNIT).saturating_mul(UNIT)
    }

    /// Options of the mount. Space of removed files goes back to the disk, unless it is reserved.
    pub(super) fn mount_options(self, is_preallocated: bool) -> &'static str {
        match (self, is_preallocated) {
            (Self::Ext4, false) => "errors=remount-ro,discard",
            (Self::Ext4, true) => "errors=remount-ro",
            (Self::Xfs, false) => "discard",
            (Self::Xfs | Self::Raw, _) => "",
        }
    }

    /// The program and the arguments that make the file system in `file`.
    pub(super) fn make(self, file: &Path, is_preallocated: bool) -> Option<(Program, Vec<String>)> {
        let file = file.to_string_lossy().into_owned();
        let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).chain([file.clone()]).collect();
        match self {
            Self::Ext4 => {
                // Without zeros in the journal, so that a small claim takes little of the disk.
                let extended = if is_preallocated { "nodiscard" } else { "lazy_journal_init=1" };
                Some((e2fsprogs("mkfs.ext4"), words(&["-F", "-q", "-m", "0", "-E", extended])))
            }
            Self::Xfs if is_preallocated => Some((xfsprogs("mkfs.xfs"), words(&["-q", "-f", "-K"]))),
            Self::Xfs => Some((xfsprogs("mkfs.xfs"), words(&["-q", "-f"]))),
            Self::Raw => None,
        }
    }

    /// The program and the arguments that repair the file system, which is not mounted. `is_full`: also one that was unmounted in order.
    /// The kernel repairs xfs when it mounts it.
    pub(super) fn check(self, file: &Path, is_full: bool) -> Option<(Program, Vec<String>)> {
        let file = file.to_string_lossy().into_owned();
        let full = is_full.then(|| "-f".to_owned());
        let arguments = ["-p".to_owned()].into_iter().chain(full).chain([file]).collect();
        (self == Self::Ext4).then_some((e2fsprogs("e2fsck"), arguments))
    }

    /// The program and the arguments that make the file system as large as its device. `mounted`: where, if it is.
    pub(super) fn grow(self, device: &Path, mounted: Option<&Path>) -> Option<(Program, Vec<String>)> {
        let text = |p: &Path| p.to_string_lossy().into_owned();
        match self {
            Self::Ext4 => Some((e2fsprogs("resize2fs"), vec![text(device)])),
            Self::Xfs => Some((xfsprogs("xfs_growfs"), vec!["-d".into(), text(mounted?)])),
            Self::Raw => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_what_file_systems_can_have() {
        for (format, requested, size) in [
            (Format::Ext4, 1, 1 << 20),
            (Format::Ext4, 10_000_000, 10_002_432),
            (Format::Ext4, 1 << 30, 1 << 30),
            (Format::Xfs, 1 << 20, 300 << 20),
            (Format::Raw, 5 << 20, 5 << 20),
            (Format::Raw, u64::MAX, u64::MAX),
        ] {
            assert_eq!(format.size(requested), size, "{format:?} {requested}");
        }
        let names = ["", "ext4", "xfs", "btrfs", "ext4 -o x"].map(Format::parse);
        assert_eq!(names, [Some(Format::Ext4), Some(Format::Ext4), Some(Format::Xfs), None, None]);
    }

    #[test]
    fn programs_get_the_file_as_their_last_argument() {
        let file = Path::new("/v/pvc-1.img");
        let (program, arguments) = Format::Ext4.make(file, false).unwrap();
        assert_eq!((program.name, &*arguments[arguments.len() - 1]), ("mkfs.ext4", "/v/pvc-1.img"));
        assert_eq!(Format::Ext4.check(file, true).unwrap().1, ["-p", "-f", "/v/pvc-1.img"]);
        assert_eq!(Format::Xfs.check(file, true), None);
        assert_eq!(Format::Xfs.grow(file, None), None, "only a mounted one grows");
        assert_eq!(Format::Xfs.grow(file, Some(Path::new("/m"))).unwrap().1, ["-d", "/m"]);
        assert_eq!((Format::Raw.make(file, true), Format::Raw.file_system()), (None, None));
    }
}
