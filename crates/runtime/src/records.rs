//! Versioned records: JSON files that are replaced atomically.
//!
//! A reader accepts its own version and those before it.

use std::io::{BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::memory::wipe;

pub const VERSION: u32 = 1;

/// Reads a versioned record. `Ok(None)` if the file does not exist. The bytes of the file are wiped from memory.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    let mut bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    let record = parse(&bytes);
    wipe(&mut bytes);
    record.map(Some)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice::<Version>(bytes).map_err(|e| e.to_string())?.check()?;
    serde_json::from_slice(bytes).map_err(|e| e.to_string())
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Version {
    fn check(&self) -> Result<(), String> {
        match self.version {
            version if version > VERSION => Err(format!("has version {version}, this program knows up to {VERSION}")),
            _ => Ok(()),
        }
    }
}

/// Reads a part of a versioned record; the file is never in memory as a whole. `Ok(None)` if it does not exist.
pub fn read_part<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    let open = || std::fs::File::open(path).map(BufReader::new);
    let file = match open() {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    serde_json::from_reader::<_, Version>(file).map_err(|e| e.to_string())?.check()?;
    let file = open().map_err(|e| e.to_string())?;
    serde_json::from_reader(file).map(Some).map_err(|e| e.to_string())
}

/// Replaces a file in one step. Not synced: after a crash of the machine the containers are gone anyway.
pub fn write<T: Serialize>(path: &Path, value: &T) -> std::io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let bytes = serde_json::to_vec(value)?;
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(&bytes)?;
    std::fs::rename(&temporary, path)
}
