//! What is needed to disconnect pods, on disk: written before a plugin runs, and removed after all have succeeded.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::configuration::{Network, is_identifier};
use crate::{Error, Result};

const FORMAT: u32 = 1;
const EXTENSION: &str = "json";

/// A sandbox that plugins have connected, or have begun to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    pub format: u32,
    pub pod: String,
    /// The path of its network namespace.
    pub namespace: PathBuf,
    /// `CNI_ARGS`.
    pub arguments: String,
    /// The arguments of capabilities (`runtimeConfig`).
    pub capabilities: Map<String, Value>,
    /// The configuration by which it was connected.
    pub network: Network,
    /// The directories of the plugins then.
    pub directories: Vec<PathBuf>,
    /// The result of the last plugin, once all have succeeded.
    pub result: Option<Value>,
}

/// The records of a directory, by the ids of sandboxes.
pub struct Records {
    directory: PathBuf,
    by_id: BTreeMap<String, Record>,
}

impl Records {
    /// Reads the records. Blocks.
    pub fn open(directory: PathBuf) -> Result<Self> {
        let fail = |path: &Path| Error::io(path.display().to_string());
        std::fs::create_dir_all(&directory).map_err(fail(&directory))?;
        let mut by_id = BTreeMap::new();
        for (id, path) in files(&directory).map_err(fail(&directory))? {
            let bytes = std::fs::read(&path).map_err(fail(&path))?;
            let corrupt = |message: String| Error::Corrupt { path: path.clone(), message };
            let record: Record = serde_json::from_slice(&bytes).map_err(|e| corrupt(e.to_string()))?;
            if record.format != FORMAT {
                return Err(corrupt(format!("unknown format {}", record.format)));
            }
            by_id.insert(id, record);
        }
        Ok(Self { directory, by_id })
    }

    pub fn all(&self) -> &BTreeMap<String, Record> {
        &self.by_id
    }

    /// The records of a pod's sandboxes.
    pub fn pod(&self, pod: &str) -> Vec<(String, Record)> {
        self.by_id.iter().filter(|(_, r)| r.pod == pod).map(|(id, r)| (id.clone(), r.clone())).collect()
    }

    /// An id for another sandbox of a pod.
    pub fn new_id(&self, pod: &str) -> String {
        // There are finitely many records.
        (0_u64..).map(|n| format!("{pod}-{n}")).find(|id| !self.by_id.contains_key(id)).unwrap_or_default()
    }

    /// A record of now.
    pub fn record(pod: &str, namespace: PathBuf, network: Network, directories: Vec<PathBuf>) -> Record {
        Record {
            format: FORMAT,
            pod: pod.to_owned(),
            namespace,
            arguments: String::new(),
            capabilities: Map::new(),
            network,
            directories,
            result: None,
        }
    }

    /// Writes a record. Blocks.
    pub fn set(&mut self, id: &str, record: Record) -> Result<()> {
        let path = self.path(id);
        let fail = || Error::io(path.display().to_string());
        let bytes = serde_json::to_vec(&record).map_err(|e| fail()(e.into()))?;
        let new = path.with_extension("new");
        std::fs::write(&new, bytes).and_then(|()| std::fs::rename(&new, &path)).map_err(fail())?;
        self.by_id.insert(id.to_owned(), record);
        Ok(())
    }

    /// Removes a record. Blocks.
    pub fn remove(&mut self, id: &str) -> Result<()> {
        let path = self.path(id);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::io(path.display().to_string())(e)),
            _ => {}
        }
        self.by_id.remove(id);
        Ok(())
    }

    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.{EXTENSION}"))
    }
}

/// The files of records, by the ids of sandboxes.
fn files(directory: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let id = path.file_stem().and_then(|s| s.to_str()).filter(|id| is_identifier(id)).map(str::to_owned);
        if let Some(id) = id.filter(|_| path.extension().is_some_and(|e| e == EXTENSION)) {
            all.push((id, path));
        }
    }
    Ok(all)
}

/// Whether plugins have connected pods of a network whose state is in this directory. Blocks.
pub fn has_attachments(state_directory: &Path) -> bool {
    files(&directory(state_directory)).is_ok_and(|files| !files.is_empty())
}

/// The directory of the records.
pub fn directory(state_directory: &Path) -> PathBuf {
    state_directory.join("attachments")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::specification::Version;

    #[test]
    fn records_are_found_again() {
        let state = tempfile::tempdir().unwrap();
        let open = || Records::open(directory(state.path())).unwrap();
        assert!(!has_attachments(state.path()));
        let network = Network {
            name: "n".into(),
            version: Version::V1_0_0,
            disable_check: false,
            disable_gc: false,
            plugins: vec![[("type".to_owned(), "x".into())].into_iter().collect()],
        };
        let record = Records::record("uid", "/run/netns/x".into(), network, vec!["/opt/cni/bin".into()]);
        let mut records = open();
        assert_eq!(records.new_id("uid"), "uid-0");
        records.set("uid-0", record).unwrap();
        assert_eq!(records.new_id("uid"), "uid-1");
        assert!(has_attachments(state.path()));
        std::fs::write(directory(state.path()).join("uid-1.new"), "interrupted").unwrap();
        let mut again = open();
        let found = again.pod("uid");
        assert_eq!((found[0].0.as_str(), &found[0].1.network.name, found.len()), ("uid-0", &"n".to_owned(), 1));
        assert!(again.pod("other").is_empty());
        again.remove("uid-0").unwrap();
        again.remove("uid-0").unwrap();
        assert!(open().all().is_empty());
        std::fs::write(directory(state.path()).join("a.json"), "{").unwrap();
        assert!(matches!(Records::open(directory(state.path())), Err(Error::Corrupt { .. })));
    }
}
