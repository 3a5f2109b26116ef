//! Volumes as devices of pods (`volumeMode: Block`), and the records of them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use runtime::loop_device::{Lifetime, LoopDevice};
use supervisor::blocking;

use super::error::{Error, failed};
use super::files::{USED_AS_DEVICE, open};
use super::{FileVolume, FileVolumes, is_volume_name};

/// The directory of records below `volumeDevices` of a pod, and of file systems below `volumes` (upstream's names).
pub const TYPE_DIRECTORY: &str = "kubernetes.io~local-volume";

impl FileVolumes {
    /// The device of a volume for a pod.
    pub async fn device(&self, volume: &FileVolume, pod: &str) -> Result<PathBuf, Error> {
        let _guard = self.lock(&volume.name).await;
        let (path, pods, name) = (self.path(&volume.name), self.pods.clone(), volume.name.clone());
        let record = record(&pods, pod, &name);
        let device = blocking(move || {
            let file = open(&path)?;
            let directory = record.parent().unwrap_or(&record);
            // Before there is a device, so that it is detached with the pod.
            fs::create_dir_all(directory).map_err(failed(directory.display()))?;
            let what = || failed(record.display());
            let mut numbers = read_numbers(&record);
            fs::write(&record, text(&numbers)).map_err(what())?;
            fs::set_permissions(&path, fs::Permissions::from_mode(USED_AS_DEVICE)).map_err(failed(path.display()))?;
            let others = numbers_of_pods(&pods, Some(&name));
            let device = LoopDevice::attach(&file, Lifetime::UntilDetached, &others);
            let device = device.map_err(failed("attaching a loop device"))?;
            // A program in a pod may have changed it.
            device.set_lifetime(Lifetime::UntilDetached).map_err(failed(device.path().display()))?;
            numbers.insert(device.number());
            fs::write(&record, text(&numbers)).map_err(what())?;
            Ok::<_, Error>(device)
        })
        .await?;
        let path = device.path();
        self.held.lock().insert(volume.name.clone(), device);
        Ok(path)
    }

    /// Detaches the devices of a pod that no other pod has.
    pub async fn release(&self, pod: &str) -> Result<(), Error> {
        let (pods, uid) = (self.pods.clone(), pod.to_owned());
        let all = blocking(move || records(&pods)).await;
        for (_, name) in all.iter().filter(|(p, _)| p == pod) {
            let _guard = self.lock(name).await;
            // Read once nothing else changes the records of this volume: another pod may have got the device meanwhile.
            let pods = self.pods.clone();
            let now = blocking(move || records(&pods)).await;
            let is_last = !now.iter().any(|(p, n)| n == name && p != pod);
            let held = if is_last { self.held.lock().remove(name) } else { None };
            let (path, record) = (self.path(name), record(&self.pods, &uid, name));
            blocking(move || {
                let found = match held {
                    Some(device) => Some(device),
                    None if !is_last => None,
                    None => open(&path).ok().and_then(|f| LoopDevice::find(&f).ok().flatten()),
                };
                if let Some(device) = found {
                    device.detach().map_err(failed("detaching a loop device"))?;
                }
                fs::remove_file(&record).map_err(failed(record.display()))
            })
            .await?;
        }
        Ok(())
    }
}

/// The record of a device of a pod: the numbers of the loop devices that it had.
pub(super) fn record(pods: &Path, pod: &str, name: &str) -> PathBuf {
    pods.join(pod).join("volumeDevices").join(TYPE_DIRECTORY).join(name)
}

/// Every record: the UID of the pod and the name of the volume.
pub(super) fn records(pods: &Path) -> Vec<(String, String)> {
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|e| e.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let of_pod = |pod: String| {
        let found = names(&pods.join(&pod).join("volumeDevices").join(TYPE_DIRECTORY));
        found.into_iter().filter(|n| is_volume_name(n)).map(move |n| (pod.clone(), n))
    };
    names(pods).into_iter().flat_map(of_pod).collect()
}

/// The numbers of the loop devices that pods have or had, but for those of one volume.
pub(super) fn numbers_of_pods(pods: &Path, but_for: Option<&str>) -> BTreeSet<u32> {
    let all = records(pods).into_iter().filter(|(_, name)| but_for != Some(name));
    all.flat_map(|(pod, name)| read_numbers(&record(pods, &pod, &name))).collect()
}

fn read_numbers(record: &Path) -> BTreeSet<u32> {
    fs::read_to_string(record).unwrap_or_default().lines().filter_map(|l| l.parse().ok()).collect()
}

fn text(numbers: &BTreeSet<u32>) -> String {
    numbers.iter().map(|n| format!("{n}\n")).collect()
}
