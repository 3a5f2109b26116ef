//! Formats and mounts block devices with the machine's programs, as upstream's `SafeFormatAndMount`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use runtime::block_device::{LockedDevice, Use};
use supervisor::blocking;

use super::LocalVolume;
use super::error::DeviceError;
use crate::programs::{self, Failure};
use crate::volumes::mount_program;

/// The time that a program may take: a device may be slow and large.
const TIME: Duration = Duration::from_secs(600);
/// How often, and after which time again, it is tried to lock a device.
const MAX_TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);
/// `blkid` found nothing on the device.
const BLKID_NOTHING: i32 = 2;
const FSCK_CORRECTED: i32 = 1;
const FSCK_UNCORRECTED: i32 = 4;
/// A device with a table of partitions, which is not formatted.
const PARTITIONS: &str = "unknown data, probably partitions";

/// How a program ended.
struct Ended {
    /// The exit code; `None` if there is none, as it did not run or was killed.
    code: Option<i32>,
    /// Why it did not succeed.
    why: String,
    output: String,
    is_missing: bool,
}

async fn run(program: &str, arguments: &[&str]) -> Ended {
    let failed = |why: String, is_missing| Ended { code: None, why, output: String::new(), is_missing };
    match programs::run(program, arguments, TIME).await {
        Err(Failure::TimedOut) => failed(format!("{program} did not end in time"), false),
        Err(Failure::Missing) => failed(format!("{program} is not installed on this node"), true),
        Err(Failure::Io(e)) => failed(format!("{program}: {e}"), false),
        Ok(ended) => {
            let (code, why) = (ended.status.code(), ended.status.to_string());
            Ended { code, why, output: ended.output(), is_missing: false }
        }
    }
}

/// The file system on a device; `None` on an empty one. A table of partitions counts as one.
async fn format_of(device: &str) -> Result<Option<String>, DeviceError> {
    let failed = |why: String| DeviceError::Probe { device: device.to_owned(), why };
    let ended = run("blkid", &["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device]).await;
    match ended.code {
        Some(0) => parse_format(&ended.output).map_err(failed),
        Some(BLKID_NOTHING) => Ok(None),
        _ => Err(failed(format!("{} {}", ended.why, ended.output).trim_end().to_owned())),
    }
}

/// Reads the output of `blkid -o export`.
fn parse_format(output: &str) -> Result<Option<String>, String> {
    let mut format = None;
    for line in output.lines().filter(|l| !l.is_empty()) {
        match line.split_once('=') {
            Some(("TYPE", value)) => format = Some(value.to_owned()),
            Some(("PTTYPE", value)) if !value.is_empty() => return Ok(Some(PARTITIONS.to_owned())),
            Some(_) => {}
            None => return Err(format!("blkid returns invalid output: {output}")),
        }
    }
    Ok(format)
}

/// The arguments of `mkfs.FORMAT`.
fn format_arguments<'a>(file_system: &str, device: &'a str) -> Vec<&'a str> {
    match file_system {
        "ext3" | "ext4" => vec!["-F", "-m0", device],
        "xfs" => vec!["-f", device],
        _ => vec![device],
    }
}

/// Makes a file system on a device without one, unless it is in use. `user`: the pod that has it as it is. Programs that only look at new
/// devices, as `udev` does, are waited for. Returns the file system that another program has made meanwhile.
async fn format(
    volume: &LocalVolume,
    device: &str,
    user: impl FnOnce() -> Option<String> + Send + 'static,
) -> Result<Option<String>, DeviceError> {
    if let Some(pod) = blocking(user).await {
        return Err(DeviceError::OfPod { device: device.to_owned(), pod });
    }
    let failed = |source| DeviceError::Lock { device: device.to_owned(), source };
    let mut tries = 0;
    loop {
        let path = PathBuf::from(device);
        let locked = blocking(move || LockedDevice::lock(&path)).await.map_err(failed)?;
        let error = match locked {
            None => DeviceError::Locked(device.to_owned()),
            Some(locked) => {
                let found = format_of(device).await?;
                if found.is_some() {
                    return Ok(found);
                }
                let (user, _locked) = blocking(move || (locked.user(), locked)).await;
                match user.map_err(failed)? {
                    None => return make_file_system(&volume.file_system, device).await.map(|()| None),
                    Some(user) => DeviceError::InUse { device: device.to_owned(), user },
                }
            }
        };
        tries += 1;
        let may_pass = matches!(&error, DeviceError::Locked(_) | DeviceError::InUse { user: Use::Open { .. }, .. });
        if !may_pass || tries == MAX_TRIES {
            return Err(error);
        }
        tokio::time::sleep(BETWEEN_TRIES).await;
    }
}

async fn make_file_system(file_system: &str, device: &str) -> Result<(), DeviceError> {
    let failed = |why: String, output: String| DeviceError::Format {
        device: device.to_owned(),
        file_system: file_system.to_owned(),
        why,
        output,
    };
    if file_system.contains('/') {
        return Err(failed("no file system has this name".into(), String::new()));
    }
    tracing::info!(device, file_system, "a local volume is on an empty device, which is formatted");
    let ended = run(&format!("mkfs.{file_system}"), &format_arguments(file_system, device)).await;
    if ended.code == Some(0) { Ok(()) } else { Err(failed(ended.why, ended.output)) }
}

async fn repair(device: &str) -> Result<(), DeviceError> {
    let ended = run("fsck", &["-a", device]).await;
    match ended.code {
        Some(0) => {}
        Some(FSCK_CORRECTED) => tracing::info!(device, "fsck corrected errors of the file system of a local volume"),
        Some(FSCK_UNCORRECTED) => {
            return Err(DeviceError::Damaged { device: device.to_owned(), output: ended.output });
        }
        // As kubelet does: the kernel refuses what it cannot mount.
        _ => tracing::info!(device, why = ended.why, output = ended.output, ended.is_missing, "fsck failed"),
    }
    Ok(())
}

/// Mounts the device of a volume at `place`, after formatting an empty one. About `user` see [`format`].
pub(super) async fn format_and_mount(
    volume: &LocalVolume,
    place: &Path,
    is_read_only: bool,
    user: impl FnOnce() -> Option<String> + Send + 'static,
) -> Result<(), DeviceError> {
    let device = volume.path.to_string_lossy();
    let mut options: Vec<&str> = volume.mount_options.iter().map(String::as_str).collect();
    if is_read_only && !options.contains(&"ro") {
        options.push("ro");
    }
    let is_read_only = options.contains(&"ro");
    let found = match format_of(&device).await? {
        None if is_read_only => return Err(DeviceError::Unformatted(device.into_owned())),
        None => format(volume, &device, user).await?,
        found => found,
    };
    if let Some(found) = found {
        if found != volume.file_system {
            let wanted = &volume.file_system;
            tracing::warn!(%device, found, wanted, "the device of a local volume has another file system");
        }
        if !is_read_only {
            repair(&device).await?;
        }
    }
    options.push("defaults");
    let place = place.to_string_lossy();
    let arguments = ["-t", &volume.file_system, "-o", &options.join(","), &device, &place].map(str::to_owned);
    mount_program::run(&arguments).await.map_err(DeviceError::Mount)
}

/// Lets pods write to a device that was mounted for pods that only read it.
pub(super) async fn allow_writing(volume: &LocalVolume, place: &Path) {
    if volume.mount_options.iter().any(|o| o == "ro") {
        return;
    }
    let at = place.to_owned();
    if !blocking(move || is_read_only(&at)).await {
        return;
    }
    let arguments = ["-o".to_owned(), "remount,rw".to_owned(), place.to_string_lossy().into_owned()];
    if let Err(error) = mount_program::run(&arguments).await {
        // A device that cannot be written to is mounted for reading.
        tracing::warn!(volume = volume.name, error, "a local volume stays mounted for reading only");
    }
}

fn is_read_only(place: &Path) -> bool {
    use nix::sys::statvfs::{FsFlags, statvfs};
    statvfs(place).is_ok_and(|s| s.flags().contains(FsFlags::ST_RDONLY))
}

/// Makes the mounted file system of a device as large as the device.
pub(super) async fn grow(device: &Path, place: &Path) -> Result<(), DeviceError> {
    let (path, place) = (device.to_string_lossy(), place.to_string_lossy());
    let format = format_of(&path).await?.unwrap_or_default();
    let ended = match format.as_str() {
        "ext2" | "ext3" | "ext4" => run("resize2fs", &[&path]).await,
        "xfs" => run("xfs_growfs", &["-d", &place]).await,
        "btrfs" => run("btrfs", &["filesystem", "resize", "max", &place]).await,
        _ => {
            let (device, place) = (path.into_owned(), place.into_owned());
            return Err(DeviceError::CannotGrow { format, device, place });
        }
    };
    match ended.code {
        Some(0) => Ok(()),
        _ => Err(DeviceError::Resize { device: path.into_owned(), why: ended.why, output: ended.output }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_a_device_is_read_from_blkid() {
        let cases = [
            ("DEVNAME=/dev/loop0\nTYPE=ext4\n", Ok(Some("ext4"))),
            ("DEVNAME=/dev/loop0\nPTTYPE=dos\n", Ok(Some(PARTITIONS))),
            ("DEVNAME=/dev/loop0\nTYPE=vfat\nPTTYPE=dos\n", Ok(Some(PARTITIONS))),
            ("", Ok(None)),
            ("nonsense", Err("blkid returns invalid output: nonsense")),
        ];
        for (output, expected) in cases {
            let found = parse_format(output);
            assert_eq!(found.as_ref().map(Option::as_deref).map_err(String::as_str), expected, "{output}");
        }
        assert_eq!(format_arguments("ext4", "/d"), ["-F", "-m0", "/d"]);
        assert_eq!(format_arguments("btrfs", "/d"), ["/d"]);
    }
}
