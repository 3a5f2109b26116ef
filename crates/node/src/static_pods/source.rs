//! Reads the manifests of static pods, and reads them again when a file changes.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use client::Key;
use k8s_openapi::api::core::v1::Pod;
use supervisor::blocking;
use tokio::time::Instant;

use super::{StaticPodSource, StaticPods, manifest};

/// How often the directory is searched for changed files.
const POLL: Duration = Duration::from_secs(1);
/// Maximum size of a manifest in bytes, as upstream.
const MAX_BYTES: u64 = 10 << 20;
/// Maximum number of files of a directory.
const MAX_FILES: usize = 1000;

/// The version of a file: a changed file has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Metadata> for Version {
    fn from(m: &Metadata) -> Self {
        Self {
            inode: m.ino(),
            size: m.len(),
            modified: (m.mtime(), m.mtime_nsec()),
            changed: (m.ctime(), m.ctime_nsec()),
        }
    }
}

/// Which files are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Those that have changed. One that cannot be used keeps its pod, since it may be incomplete.
    Changed,
    /// All of them.
    All,
}

/// The result of reading a file.
struct Manifest {
    version: Version,
    pod: Option<Arc<Pod>>,
    /// The last error, so that it is logged once.
    error: Option<String>,
}

/// The manifests of a directory.
struct Source {
    from: StaticPodSource,
    files: BTreeMap<PathBuf, Manifest>,
    /// The last error of the directory, so that it is logged once.
    error: Option<String>,
}

/// Keeps `pods` up to date with the manifests, for ever.
pub async fn follow(from: StaticPodSource, pods: Arc<StaticPods>) {
    let frequency = from.check_frequency;
    let mut source = Source { from, files: BTreeMap::new(), error: None };
    let mut complete: Option<Instant> = None;
    let mut ticks = tokio::time::interval(POLL.min(frequency));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let pass = if complete.is_none_or(|at| at.elapsed() >= frequency) { Pass::All } else { Pass::Changed };
        if pass == Pass::All {
            complete = Some(Instant::now());
        }
        let found;
        (source, found) = blocking(move || {
            let found = source.read(pass);
            (source, found)
        })
        .await;
        if let Some(found) = found
            && pods.desired().as_ref() != Some(&found)
        {
            pods.set_desired(found);
        }
    }
}

impl Source {
    /// Reads the manifests. `None` if the directory cannot be read: the pods that are known stay.
    fn read(&mut self, pass: Pass) -> Option<BTreeMap<Key, Arc<Pod>>> {
        match self.list() {
            Ok(paths) => {
                self.error = None;
                self.files.retain(|path, _| paths.iter().any(|(p, _)| p == path));
                for (path, version) in paths {
                    self.read_file(path, version, pass);
                }
                Some(self.pods())
            }
            Err(error) => {
                let gone = error.kind() == io::ErrorKind::NotFound;
                let message = error.to_string();
                if self.error.as_ref() != Some(&message) {
                    let path = self.from.path.display();
                    tracing::warn!(%path, error = message, "reading the manifests of static pods failed; it is tried again");
                    self.error = Some(message);
                }
                gone.then(|| {
                    self.files.clear();
                    BTreeMap::new()
                })
            }
        }
    }

    /// The manifests, in the order of their names. Hidden files are none.
    fn list(&self) -> io::Result<Vec<(PathBuf, Version)>> {
        let path = &self.from.path;
        let metadata = fs::metadata(path)?;
        if metadata.is_file() {
            return Ok(vec![(path.clone(), (&metadata).into())]);
        }
        let mut out = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            // A file may be gone again, or a link without a target.
            if let Ok(metadata) = fs::metadata(entry.path())
                && metadata.is_file()
            {
                out.push((entry.path(), (&metadata).into()));
            }
            if out.len() > MAX_FILES {
                return Err(io::Error::other(format!("the directory has more than {MAX_FILES} files")));
            }
        }
        out.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(out)
    }

    fn read_file(&mut self, path: PathBuf, version: Version, pass: Pass) {
        let known = self.files.get(&path);
        if pass == Pass::Changed && known.is_some_and(|k| k.version == version) {
            return;
        }
        let before = known.and_then(|k| k.pod.clone());
        let manifest = match self.parse(&path) {
            Ok(pod) => {
                // An unchanged pod stays the same, with the time when it was seen first.
                let same = before.filter(|b| b.metadata.uid == pod.metadata.uid && b.spec == pod.spec);
                Manifest { version, pod: Some(same.unwrap_or_else(|| Arc::new(pod))), error: None }
            }
            Err(error) => {
                if known.and_then(|k| k.error.as_ref()) != Some(&error) {
                    tracing::error!(path = %path.display(), error, "the manifest of a static pod cannot be used");
                }
                Manifest { version, pod: before.filter(|_| pass == Pass::Changed), error: Some(error) }
            }
        };
        self.files.insert(path, manifest);
    }

    fn parse(&self, path: &Path) -> Result<Pod, String> {
        let file = fs::File::open(path).map_err(|e| e.to_string())?;
        let mut text = String::new();
        file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
        if text.len() as u64 > MAX_BYTES {
            return Err(format!("the file has more than {MAX_BYTES} bytes"));
        }
        manifest::read(&*self.from.decoder, &text, path, &self.from.node, self.from.clock.now())
    }

    /// The pods by namespace and name. Of several with one name, the last file defines it.
    fn pods(&self) -> BTreeMap<Key, Arc<Pod>> {
        let pods = self.files.values().filter_map(|m| m.pod.clone());
        pods.map(|pod| (key(&pod), pod)).collect()
    }
}

fn key(pod: &Pod) -> Key {
    let m = &pod.metadata;
    Key::new(m.namespace.as_deref().unwrap_or_default(), m.name.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::static_pods::PodDecoder;
    use serde_json::Value;

    struct Json;

    impl PodDecoder for Json {
        fn decode(&self, manifest: &str) -> Result<Value, String> {
            serde_json::from_str(manifest).map_err(|e| e.to_string())
        }

        fn validate(&self, _: &Value) -> Result<(), String> {
            Ok(())
        }
    }

    struct Epoch;

    impl meta::Clock for Epoch {
        fn now(&self) -> jiff::Timestamp {
            jiff::Timestamp::UNIX_EPOCH
        }
    }

    fn source(path: &Path) -> Source {
        let from = StaticPodSource {
            path: path.into(),
            check_frequency: Duration::from_secs(20),
            decoder: Arc::new(Json),
            node: "n".into(),
            clock: Arc::new(Epoch),
        };
        Source { from, files: BTreeMap::new(), error: None }
    }

    fn names(pods: Option<BTreeMap<Key, Arc<Pod>>>) -> Vec<String> {
        pods.unwrap().into_values().map(|p| p.metadata.name.clone().unwrap()).collect()
    }

    fn manifest(name: &str, image: &str) -> String {
        format!(
            r#"{{"metadata": {{"name": "{name}"}}, "spec": {{"containers": [{{"name": "c", "image": "{image}"}}]}}}}"#
        )
    }

    /// Clauses: P19.directory
    #[test]
    fn files_are_added_changed_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        let mut s = source(directory.path());
        assert_eq!(names(s.read(Pass::All)), [""; 0]);
        fs::write(file("a.yaml"), manifest("a", "1")).unwrap();
        fs::write(file(".hidden"), manifest("hidden", "1")).unwrap();
        fs::create_dir(file("directory")).unwrap();
        let first = s.read(Pass::Changed);
        assert_eq!(names(first.clone()), ["a-n"]);
        assert_eq!(s.read(Pass::All), first);
        fs::write(file("a.yaml"), manifest("a", "second")).unwrap();
        fs::write(file("b"), manifest("b", "1")).unwrap();
        let second = s.read(Pass::Changed);
        assert_eq!(names(second.clone()), ["a-n", "b-n"]);
        assert_ne!(first.unwrap().into_values().next(), second.unwrap().into_values().next());
        fs::remove_file(file("a.yaml")).unwrap();
        assert_eq!(names(s.read(Pass::Changed)), ["b-n"]);
        fs::remove_dir_all(directory.path()).unwrap();
        assert_eq!(names(s.read(Pass::Changed)), [""; 0]);
    }

    /// A file that is being written does not end its pod at once.
    #[test]
    fn an_incomplete_file_keeps_its_pod_for_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a");
        let mut s = source(&file);
        fs::write(&file, manifest("a", "1")).unwrap();
        assert_eq!(names(s.read(Pass::All)), ["a-n"]);
        fs::write(&file, "{").unwrap();
        assert_eq!(names(s.read(Pass::Changed)), ["a-n"]);
        assert_eq!(names(s.read(Pass::Changed)), ["a-n"]);
        assert_eq!(names(s.read(Pass::All)), [""; 0]);
    }

    #[test]
    fn the_last_file_defines_a_pod_that_two_files_name() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), manifest("p", "first")).unwrap();
        fs::write(directory.path().join("b"), manifest("p", "last")).unwrap();
        let pods = source(directory.path()).read(Pass::All).unwrap();
        let pod = pods.into_values().next().unwrap();
        assert_eq!(pod.spec.as_ref().unwrap().containers[0].image.as_deref(), Some("last"));
    }
}
