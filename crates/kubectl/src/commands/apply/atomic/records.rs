//! Records of atomic applies that can be undone, as files on this machine. They hold complete objects, also secrets, so
//! only their owner may read them. Each server has a directory; the newest records are kept.

use super::journal::Step;
use crate::error::{Error, Result};
use crate::kube::Kube;
use crate::shell::Connect;
use meta::Value;
use serde_json::json;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// How many applies are kept.
const MAX_RECORDS: usize = 20;

/// The record of an atomic apply.
#[derive(Clone, Debug)]
pub struct Record {
    /// The file name: the time of the apply, sortable.
    pub id: String,
    pub time: String,
    pub steps: Vec<Step>,
    path: PathBuf,
}

/// Beside the discovery cache, so that clearing the cache keeps the records.
fn directory(k: &mut Kube) -> Option<PathBuf> {
    let base = match (k.global.cache_dir.as_str(), (k.shell.environment)("KUBECACHEDIR")) {
        ("", None) => PathBuf::from((k.shell.environment)("HOME")?).join(".kube"),
        ("", Some(dir)) => PathBuf::from(dir),
        (dir, _) => PathBuf::from(dir),
    };
    let server = match k.shell.connect {
        Connect::Given(_) => "given".to_owned(),
        Connect::Configured => k.server().ok()?,
    };
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
    Some(base.join("undo").join(server.chars().map(safe).collect::<String>()))
}

fn file_error(path: &Path, e: &std::io::Error) -> Error {
    Error::Text(format!("{}: {}", path.display(), crate::error::os_message(e)))
}

/// Saves the steps of an apply. Returns `None` if there is no directory for them.
pub fn save(k: &mut Kube, steps: &[Step]) -> Result<Option<String>> {
    let Some(dir) = directory(k) else { return Ok(None) };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|e| file_error(&dir, &e))?;
    let now = k.now();
    let id = now.strftime("%Y%m%d-%H%M%S-%3f").to_string();
    let path = dir.join(format!("{id}.json"));
    let v =
        json!({"version": 1, "time": now.to_string(), "steps": steps.iter().map(Step::to_value).collect::<Vec<_>>()});
    let mut f = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .map_err(|e| file_error(&path, &e))?;
    f.write_all(v.to_string().as_bytes()).map_err(|e| file_error(&path, &e))?;
    let all = list(k)?;
    for old in all.iter().rev().skip(MAX_RECORDS) {
        let _ = std::fs::remove_file(&old.path);
    }
    Ok(Some(id))
}

/// Returns all records, the oldest first.
pub fn list(k: &mut Kube) -> Result<Vec<Record>> {
    let Some(dir) = directory(k) else { return Ok(Vec::new()) };
    let entries = match std::fs::read_dir(&dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        r => r.map_err(|e| file_error(&dir, &e))?,
    };
    let mut out: Vec<Record> = entries.flatten().filter_map(|e| read(&e.path())).collect();
    out.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(out)
}

fn read(path: &Path) -> Option<Record> {
    let id = path.file_name()?.to_str()?.strip_suffix(".json")?.to_owned();
    let v: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let steps: Option<Vec<Step>> = v["steps"].as_array()?.iter().map(Step::from_value).collect();
    Some(Record { id, time: v["time"].as_str()?.to_owned(), steps: steps?, path: path.to_owned() })
}

impl Record {
    /// Deletes the record after its apply was undone.
    pub fn forget(&self) -> Result {
        std::fs::remove_file(&self.path).map_err(|e| file_error(&self.path, &e))
    }
}
