//! Removes unused images when the disk fills up (kubelet `images/image_gc_manager.go`).
//!
//! Above 85 % usage, images go that no container uses, those that were used longest ago first, until usage is at 80 %. Images that were
//! detected less than two minutes ago stay, and so do those that no registry has: imported ones and the built-in one. With a maximum age,
//! images that were not used for longer go in any case. All of these limits can be configured. Before that, what killed pulls and
//! interrupted imports left is removed. Left out: metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::{Recorder, Regarding};
use jiff::Timestamp;
use runtime::image::{Error as ImageError, Image};
use supervisor::blocking;

use crate::options::Options;

const PERIOD: Duration = Duration::from_secs(5 * 60);

/// Why images were not removed. The messages are those of events.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
    #[error(
        "Insufficient free disk space on the node's image filesystem ({percent}% of {} used). Failed to free sufficient space by \
         deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, \
         or other data.",
        size(*capacity)
    )]
    Insufficient { percent: u64, capacity: u64, freed: u64 },
    #[error(
        "wanted to free {needed} bytes, but freed {freed} bytes space with errors in image deletion: {}",
        join(errors)
    )]
    Deletion { needed: u64, freed: u64, errors: Vec<String> },
    #[error("{0}")]
    Runtime(#[from] runtime::Error),
    #[error("{0}")]
    Images(#[from] ImageError),
    #[error("reading the usage of the disk: {0}")]
    Disk(#[from] nix::Error),
}

/// Errors as upstream joins them.
fn join(errors: &[String]) -> String {
    match errors {
        [error] => error.clone(),
        errors => format!("[{}]", errors.join(", ")),
    }
}

/// Bytes with a binary unit.
fn size(bytes: u64) -> String {
    let value = bytes as f64;
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.iter().find(|(shift, _)| bytes >> shift > 0);
    unit.map_or_else(|| format!("{bytes} B"), |(shift, name)| format!("{:.1} {name}", value / (1u64 << shift) as f64))
}

/// Bytes of a disk.
#[derive(Clone, Copy, Debug)]
struct Disk {
    capacity: u64,
    available: u64,
}

impl Disk {
    /// The disk of a path.
    fn at(path: &Path) -> nix::Result<Disk> {
        let disk = nix::sys::statvfs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.fragment_size());
        Ok(Disk { capacity: bytes(disk.blocks()), available: bytes(disk.blocks_available()) })
    }

    /// The usage in percent, and the bytes to free if it is above the threshold.
    fn excess(self, high: u64, low: u64) -> Result<(u64, Option<u64>), Error> {
        let available = u128::from(self.available.min(self.capacity));
        let capacity = u128::from(self.capacity);
        let used = 100 - u64::try_from(available * 100 / capacity.max(1)).unwrap_or(100);
        if capacity == 0 {
            return Err(Error::NoCapacity);
        }
        let target = u64::try_from(capacity * u128::from(100u64.saturating_sub(low)) / 100).unwrap_or(u64::MAX);
        Ok((used, (used >= high).then(|| target.saturating_sub(self.available))))
    }
}

/// What is known of an image.
#[derive(Clone, Copy, Debug)]
struct Record {
    detected: Timestamp,
    used: Option<Timestamp>,
}

/// The images of the node by id.
#[derive(Default)]
struct Records(BTreeMap<String, Record>);

impl Records {
    /// Updates the records. `used` has the references of images that containers use.
    fn update(&mut self, images: &[Image], used: &BTreeSet<String>, now: Timestamp) {
        self.0.retain(|id, _| images.iter().any(|i| i.id == *id));
        for image in images {
            let record = self.0.entry(image.id.clone()).or_insert(Record { detected: now, used: None });
            if is_used(image, used) {
                record.used = Some(now);
            }
        }
    }

    /// The images that may be removed, in order: those that were detected at least `min_age` ago.
    fn candidates<'a>(
        &self,
        images: &'a [Image],
        used: &BTreeSet<String>,
        min_age: Duration,
        now: Timestamp,
    ) -> Vec<&'a Image> {
        let record = |i: &Image| self.0.get(&i.id).copied().unwrap_or(Record { detected: now, used: None });
        let is_old = |r: Record| Duration::try_from(now.duration_since(r.detected)).is_ok_and(|age| age >= min_age);
        let fits = |i: &&Image| !is_used(i, used) && !is_pinned(i) && is_old(record(i));
        let mut candidates: Vec<&Image> = images.iter().filter(fits).collect();
        candidates.sort_by_key(|i| (record(i).used, record(i).detected));
        candidates
    }

    /// Whether an image was not used for longer than `max_age`.
    fn is_outdated(&self, image: &Image, max_age: Duration, now: Timestamp) -> bool {
        let last = self.0.get(&image.id).map_or(now, |r| r.used.unwrap_or(r.detected));
        Duration::try_from(now.duration_since(last)).is_ok_and(|age| age > max_age)
    }
}

fn is_used(image: &Image, used: &BTreeSet<String>) -> bool {
    used.contains(&image.id) || image.names.iter().any(|n| used.contains(n))
}

/// Whether the image stays: the runtime needs it, or no registry has it, since it was imported or is built in.
fn is_pinned(image: &Image) -> bool {
    image.pinned || !image.names.iter().any(|n| n.contains('@'))
}

/// Removes candidates until `needed` bytes are free. Returns the freed bytes.
async fn free<F: Future<Output = Result<(), String>>>(
    candidates: &[Image],
    needed: u64,
    mut remove: impl FnMut(String) -> F,
) -> Result<u64, Error> {
    let (mut freed, mut errors) = (0, Vec::new());
    for image in candidates {
        if freed >= needed {
            break;
        }
        match remove(image.id.clone()).await {
            Ok(()) => freed += image.size,
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(freed) } else { Err(Error::Deletion { needed, freed, errors }) }
}

/// Collects unused images, when the disk fills up and when the node is under pressure.
pub(crate) struct ImageCollector {
    options: Arc<Options>,
    records: tokio::sync::Mutex<Records>,
}

impl ImageCollector {
    pub fn new(options: Arc<Options>) -> Self {
        Self { options, records: tokio::sync::Mutex::default() }
    }

    /// Collects the garbage of a node, for ever.
    pub async fn run(&self, recorder: Recorder, node: Regarding) {
        let mut has_failed = false;
        // An image that cannot be listed now counts as detected later.
        let images = self.options.images.list().await.unwrap_or_default();
        self.records.lock().await.update(&images, &BTreeSet::new(), self.options.clock.now());
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + PERIOD, PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let result = collect(&self.options, &mut *self.records.lock().await).await;
            let Err(error) = result else {
                has_failed = false;
                continue;
            };
            tracing::warn!(%error, "garbage collection of images failed; the next one is in five minutes");
            match &error {
                Error::NoCapacity => recorder.warning(node.clone(), "InvalidDiskCapacity", error.to_string()),
                Error::Insufficient { .. } => recorder.warning(node.clone(), "FreeDiskSpaceFailed", error.to_string()),
                _ => {}
            }
            // As upstream, a single failure is none to report.
            if has_failed {
                recorder.warning(node.clone(), "ImageGCFailed", error.to_string());
            }
            has_failed = true;
        }
    }

    /// Removes all unused images that have the minimum age (upstream `DeleteUnusedImages`).
    pub async fn delete_unused(&self) -> Result<(), Error> {
        let mut records = self.records.lock().await;
        remove_leftovers(&self.options).await;
        let (images, used, now) = observe(&self.options).await?;
        records.update(&images, &used, now);
        let age = self.options.configuration.image_minimum_gc_age.get();
        let unused = records.candidates(&images, &used, age, now).into_iter().cloned().collect();
        remove(&self.options, unused, u64::MAX, "the node is under disk pressure").await.map(drop)
    }
}

/// The images, the references of those that containers use, and the time.
async fn observe(options: &Arc<Options>) -> Result<(Vec<Image>, BTreeSet<String>, Timestamp), Error> {
    let containers = options.runtime.list_containers().await?;
    let used = containers.into_iter().flat_map(|c| c.mounted_images.into_iter().chain([c.image_id])).collect();
    Ok((options.images.list().await?, used, options.clock.now()))
}

/// Removes what killed pulls and interrupted imports left. It belongs to no image, and takes room all the same.
async fn remove_leftovers(options: &Arc<Options>) {
    if let Err(error) = options.images.remove_leftovers().await {
        tracing::warn!(%error, "removing what interrupted image imports left failed; the next try is in five minutes");
    }
}

async fn collect(options: &Arc<Options>, records: &mut Records) -> Result<(), Error> {
    remove_leftovers(options).await;
    let (images, used, now) = observe(options).await?;
    let directory = options.images.directory().await?;
    let disk = blocking(move || Disk::at(&directory)).await;
    records.update(&images, &used, now);
    let disk = disk?;
    let c = &options.configuration;
    let candidates = records.candidates(&images, &used, c.image_minimum_gc_age.get(), now).into_iter().cloned();
    let max_age = c.image_maximum_gc_age.get();
    let is_outdated = |i: &Image| !max_age.is_zero() && records.is_outdated(i, max_age, now);
    let (outdated, candidates): (Vec<Image>, Vec<Image>) = candidates.partition(is_outdated);
    remove(options, outdated, u64::MAX, "it was not used for long").await?;
    let percent = |percent: i32| u64::try_from(percent).unwrap_or(0);
    let (high, low) = (percent(c.image_gc_high_threshold_percent), percent(c.image_gc_low_threshold_percent));
    let (percent, Some(needed)) = disk.excess(high, low)? else { return Ok(()) };
    let freed = remove(options, candidates, needed, "the disk fills up").await?;
    match freed < needed {
        true => Err(Error::Insufficient { percent, capacity: disk.capacity, freed }),
        false => Ok(()),
    }
}

/// Removes images until `needed` bytes are free. Returns the freed bytes.
async fn remove(options: &Arc<Options>, images: Vec<Image>, needed: u64, why: &'static str) -> Result<u64, Error> {
    let remove = |id: String| {
        let store = options.images.clone();
        async move {
            tracing::info!(image = id, why, "removing an unused image");
            store.remove(&id).await.map_err(|e| e.to_string())
        }
    };
    free(&images, needed, remove).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, name: &str) -> Image {
        Image {
            id: id.into(),
            names: [name.to_owned()].into(),
            config: runtime::image::ImageConfig::default(),
            layers: Vec::new(),
            diff_ids: Vec::new(),
            size: 10,
            access: None,
            pinned: false,
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn used(references: &[&str]) -> BTreeSet<String> {
        references.iter().map(|r| (*r).to_owned()).collect()
    }

    #[test]
    fn images_in_use_new_and_imported_ones_stay() {
        let images = ["a", "b", "c", "d"].map(|n| image(n, &format!("r.example/{n}@sha256:{n}")));
        let imported = image("i", "r.example/i:1");
        let all: Vec<Image> = images.into_iter().chain([imported]).collect();
        let mut records = Records::default();
        let ids = |records: &Records, used: &BTreeSet<String>, now| {
            let candidates = records.candidates(&all, used, Duration::from_secs(120), now);
            candidates.into_iter().map(|i| i.id.as_str()).collect::<Vec<_>>().join("")
        };
        records.update(&all[..2], &used(&["a"]), at(0));
        records.update(&all, &used(&["r.example/b@sha256:b"]), at(60));
        assert_eq!(ids(&records, &used(&[]), at(119)), "");
        // Never used ones are first; then the one that was used longest ago.
        assert_eq!(ids(&records, &used(&[]), at(120)), "ab");
        assert_eq!(ids(&records, &used(&[]), at(180)), "cdab");
        assert_eq!(ids(&records, &used(&["c", "r.example/a@sha256:a"]), at(180)), "db");
        let is_outdated = |n: usize, seconds| records.is_outdated(&all[n], Duration::from_secs(60), at(seconds));
        assert_eq!(
            [(0, 60), (0, 61), (1, 120), (1, 121)].map(|(n, at)| is_outdated(n, at)),
            [false, true, false, true]
        );
        records.update(&all[1..], &used(&[]), at(200));
        assert!(!records.0.contains_key("a"));
    }

    #[test]
    fn thresholds_are_those_of_kubelet() {
        let excess = |available| Disk { capacity: 1000, available }.excess(85, 80).unwrap();
        assert_eq!(excess(160), (84, None));
        assert_eq!(excess(150), (85, Some(50)));
        assert_eq!(excess(0), (100, Some(200)));
        assert_eq!(excess(2000), (0, None));
        assert!(matches!(Disk { capacity: 0, available: 0 }.excess(85, 80), Err(Error::NoCapacity)));
    }

    #[tokio::test]
    async fn removes_until_enough_is_free() {
        let candidates = ["a", "b", "c"].map(|n| image(n, "x"));
        let mut removed = Vec::new();
        let freed = free(&candidates, 15, |id| {
            removed.push(id);
            std::future::ready(Ok(()))
        });
        assert_eq!((freed.await.unwrap(), removed.join("")), (20, "ab".to_owned()));
        let failed =
            free(&candidates, 15, |id| std::future::ready(if id == "a" { Err("in use".into()) } else { Ok(()) }));
        let failed = failed.await.unwrap_err();
        let message = "wanted to free 15 bytes, but freed 20 bytes space with errors in image deletion: in use";
        assert_eq!(failed.to_string(), message);
        let insufficient = Error::Insufficient { percent: 91, capacity: 5 << 30, freed: 0 }.to_string();
        assert!(insufficient.starts_with(
            "Insufficient free disk space on the node's image filesystem (91% of 5.0 GiB used). Failed to free sufficient space by \
             deleting unused images (freed 0 bytes). Investigate"
        ));
        assert_eq!([1000, 2048, 3 << 20, 1 << 40].map(size), ["1000 B", "2.0 KiB", "3.0 MiB", "1.0 TiB"]);
    }

    /// On a disk without a free block, not even the index of the images can be written.
    #[tokio::test]
    async fn images_go_from_a_disk_that_is_full() {
        use std::io::Write;
        let directory = tempfile::tempdir().unwrap();
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("none"), directory.path(), Some("tmpfs"), flags, Some("size=40m")).unwrap();
        let store = runtime::ImageStore::open(directory.path().join("images")).unwrap();
        for name in ["a", "b"] {
            let tree = directory.path().join(name);
            std::fs::create_dir(&tree).unwrap();
            std::fs::write(tree.join("file"), vec![b'x'; 10 << 20]).unwrap();
            std::fs::write(tree.join(name), name).unwrap();
            store.adopt_directory(&format!("r.example/{name}:1"), &tree, Default::default()).unwrap();
        }
        let mut filler = std::fs::File::create(directory.path().join("filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
        let disk = Disk::at(directory.path()).unwrap();
        let (percent, needed) = disk.excess(85, 80).unwrap();
        assert_eq!((percent, disk.available), (100, 0));
        let remove = |id: String| std::future::ready(store.remove(&id, |_| None).map(drop).map_err(|e| e.to_string()));
        let freed = free(&store.list(), needed.unwrap(), remove).await.unwrap();
        assert!(freed >= 10 << 20, "{freed}");
        assert_eq!(store.list().len(), 1);
        assert!(Disk::at(directory.path()).unwrap().excess(85, 80).unwrap().1.is_none());
        nix::mount::umount2(directory.path(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
}
