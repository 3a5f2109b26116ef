//! How full the volumes of claims are (upstream `pkg/kubelet/server/stats/volume_stat_calculator.go`): for `/stats/summary` and
//! `kubelet_volume_stats_*`.
//!
//! Left out: volumes without a claim, whose files count as local storage of their pod.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use nix::sys::statvfs::statvfs;
use parking_lot::Mutex;
use plugins::api::csi::{NodeGetVolumeStatsResponse, Unit};
use supervisor::blocking;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::csi::{Csi, Published};

/// How long a measured value is used (upstream's `volumeStatsAggPeriod`).
const FRESH: Duration = Duration::from_secs(60);
/// How long a request waits for a first measurement: a server or a driver may not answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodVolume {
    /// The UID of the pod.
    pub pod: String,
    /// Its name in the pod.
    pub volume: String,
}

/// The claim of a volume, and where it is.
#[derive(Clone)]
pub struct ClaimedVolume {
    pub namespace: String,
    pub claim: String,
    pub place: Place,
}

/// Who knows how full a volume is.
#[derive(Clone)]
pub enum Place {
    /// The file system of this directory.
    Directory(PathBuf),
    /// The driver of the volume.
    Driver(Arc<Csi>, Published),
}

/// Bytes or inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub total: u64,
    pub available: u64,
    pub used: u64,
}

/// How full a volume was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeUsage {
    /// How long ago, in seconds.
    pub age: u64,
    pub bytes: Amount,
    /// `None` for a device, and if the driver does not tell.
    pub inodes: Option<Amount>,
}

impl VolumeUsage {
    fn new(at: Instant, (bytes, inodes): Amounts) -> Self {
        Self { age: at.elapsed().as_secs(), bytes, inodes }
    }
}

/// Bytes, and inodes.
type Amounts = (Amount, Option<Amount>);

/// The volumes of claims that pods of the node have.
#[derive(Default)]
pub struct VolumeUsages {
    volumes: Mutex<BTreeMap<PodVolume, ClaimedVolume>>,
    measured: Mutex<BTreeMap<PodVolume, (Instant, Option<Amounts>)>>,
    /// Measurements that go on: one for each volume, however long it takes.
    running: Mutex<BTreeSet<PodVolume>>,
    ended: Notify,
}

impl VolumeUsages {
    pub fn insert(&self, volume: PodVolume, claimed: ClaimedVolume) {
        self.volumes.lock().insert(volume, claimed);
    }

    /// Forgets the volumes of a pod.
    pub fn remove(&self, pod: &str) {
        self.volumes.lock().retain(|v, _| v.pod != pod);
        self.measured.lock().retain(|v, _| v.pod != pod);
    }

    /// The volumes whose usage is known.
    pub async fn all(self: &Arc<Self>) -> Vec<(PodVolume, ClaimedVolume, VolumeUsage)> {
        let known = self.volumes.lock().clone();
        let measured = known.into_iter().map(|(volume, claimed)| async move {
            let usage = self.usage(&volume, &claimed).await?;
            Some((volume, claimed, usage))
        });
        join_all(measured).await.into_iter().flatten().collect()
    }

    /// The recent usage of a volume; an old one, or none, if measuring takes too long.
    async fn usage(self: &Arc<Self>, volume: &PodVolume, claimed: &ClaimedVolume) -> Option<VolumeUsage> {
        let end = Instant::now() + PATIENCE;
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            // Registered before the check, so no notification is missed.
            ended.as_mut().enable();
            let known = self.measured.lock().get(volume).copied();
            if let Some((at, usage)) = known
                && at.elapsed() < FRESH
            {
                return usage.map(|amounts| VolumeUsage::new(at, amounts));
            }
            self.measure(volume, claimed);
            if tokio::time::timeout_at(end, ended).await.is_err() {
                return known.and_then(|(at, usage)| Some(VolumeUsage::new(at, usage?)));
            }
        }
    }

    fn measure(self: &Arc<Self>, volume: &PodVolume, claimed: &ClaimedVolume) {
        if !self.running.lock().insert(volume.clone()) {
            return;
        }
        let (this, volume, place) = (self.clone(), volume.clone(), claimed.place.clone());
        tokio::spawn(async move {
            let amounts = match place {
                Place::Directory(path) => blocking(move || of_file_system(&path)).await,
                Place::Driver(csi, published) => csi.usage(&published).await.as_ref().and_then(of_driver),
            };
            if this.volumes.lock().contains_key(&volume) {
                this.measured.lock().insert(volume.clone(), (Instant::now(), amounts));
            }
            this.running.lock().remove(&volume);
            this.ended.notify_waiters();
        });
    }
}

fn of_file_system(path: &PathBuf) -> Option<Amounts> {
    let s = statvfs(path).ok()?;
    let unit = s.fragment_size();
    let bytes = Amount {
        total: s.blocks().saturating_mul(unit),
        available: s.blocks_available().saturating_mul(unit),
        used: s.blocks().saturating_sub(s.blocks_free()).saturating_mul(unit),
    };
    let inodes = Amount { total: s.files(), available: s.files_free(), used: s.files().saturating_sub(s.files_free()) };
    Some((bytes, Some(inodes)))
}

/// What a driver answers. None without a number of bytes.
fn of_driver(answer: &NodeGetVolumeStatsResponse) -> Option<Amounts> {
    let amount = |unit: Unit| {
        let usage = answer.usage.iter().find(|u| u.unit == i32::from(unit))?;
        let number = |n: i64| u64::try_from(n).unwrap_or(0);
        Some(Amount { total: number(usage.total), available: number(usage.available), used: number(usage.used) })
    };
    Some((amount(Unit::Bytes)?, amount(Unit::Inodes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plugins::api::csi::VolumeUsage as Answer;

    #[test]
    fn drivers_count_bytes_and_inodes() {
        let usage = |unit: Unit, total| Answer { available: total - 1, total, used: 1, unit: unit.into() };
        let answer = |usage| NodeGetVolumeStatsResponse { usage, volume_condition: None };
        let bytes = Amount { total: 10, available: 9, used: 1 };
        assert_eq!(of_driver(&answer(vec![usage(Unit::Bytes, 10)])), Some((bytes, None)));
        let both = vec![usage(Unit::Inodes, 5), usage(Unit::Bytes, 10)];
        assert_eq!(of_driver(&answer(both)), Some((bytes, Some(Amount { total: 5, available: 4, used: 1 }))));
        assert_eq!(of_driver(&answer(vec![usage(Unit::Inodes, 5)])), None);
        let negative = Answer { available: -1, total: -1, used: -1, unit: Unit::Bytes.into() };
        assert_eq!(of_driver(&answer(vec![negative])), Some((Amount::default(), None)));
    }

    #[tokio::test]
    async fn volumes_are_measured_until_their_pod_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let usages = Arc::new(VolumeUsages::default());
        let claimed = |path: &std::path::Path| ClaimedVolume {
            namespace: "ns".into(),
            claim: "c".into(),
            place: Place::Directory(path.into()),
        };
        let volume = |name: &str| PodVolume { pod: "u".into(), volume: name.into() };
        usages.insert(volume("v"), claimed(directory.path()));
        usages.insert(volume("gone"), claimed(&directory.path().join("missing")));
        let all = usages.all().await;
        assert_eq!(all.iter().map(|(v, ..)| v.clone()).collect::<Vec<_>>(), [volume("v")]);
        assert!(all[0].2.bytes.total > 0 && all[0].2.inodes.is_some());
        usages.remove("u");
        assert!(usages.all().await.is_empty() && usages.measured.lock().is_empty());
    }
}
