//! The log of `--audit-log-path`: one line of JSON per event, in rotated files.
//!
//! A separate thread writes the lines in order: a slow disk or pipe delays only requests that wait for their line.

use bytes::Bytes;
use meta::Clock;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// `--audit-log-maxsize`, `-maxbackup`, `-maxage`; 0: unlimited, but files of 100 MB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rotation {
    pub megabytes: u64,
    pub files: usize,
    pub days: i64,
}

const MEGABYTE: u64 = 1024 * 1024;
/// The timestamp in the name of a rotated file.
const TIME: &str = "%Y-%m-%dT%H-%M-%S%.3f";
/// Default size of a file.
const SIZE: u64 = 100;

pub struct Log {
    files: Arc<Mutex<Files>>,
}

/// Maximum time for writing lines: longer than a busy disk takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The files, owned by the writing thread.
struct Files {
    out: Out,
    rotation: Rotation,
    clock: Arc<dyn Clock>,
}

enum Out {
    Stdout,
    File { path: PathBuf, file: File, size: u64 },
}

impl Log {
    /// `-` is the standard output.
    pub fn open(path: &Path, rotation: Rotation, clock: Arc<dyn Clock>) -> io::Result<Self> {
        Ok(Self { files: Arc::new(Mutex::new(Files::open(path, rotation, clock)?)) })
    }

    /// Writes lines. Returns once the kernel has them.
    pub async fn write(&self, lines: Vec<Bytes>) -> io::Result<()> {
        let write = async {
            let mut files = self.files.clone().lock_owned().await;
            // Completes even if the caller is dropped.
            let write = move || lines.iter().try_for_each(|l| files.write(l));
            tokio::task::spawn_blocking(write).await.unwrap_or_else(|e| Err(io::Error::other(e)))
        };
        tokio::time::timeout(PATIENCE, write).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Files {
    fn open(path: &Path, rotation: Rotation, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let out = if path == Path::new("-") {
            Out::Stdout
        } else {
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory)?;
            }
            let (file, size) = append(path)?;
            Out::File { path: path.to_owned(), file, size }
        };
        Ok(Self { out, rotation, clock })
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let mut put_away = None;
        let now = || self.clock.now().strftime(TIME).to_string();
        let (path, file, size) = match &mut self.out {
            Out::Stdout => {
                let mut o = io::stdout().lock();
                return o.write_all(line).and_then(|()| o.flush());
            }
            Out::File { path, file, size } => (path, file, size),
        };
        let most = if self.rotation.megabytes == 0 { SIZE } else { self.rotation.megabytes } * MEGABYTE;
        if *size > 0 && *size + line.len() as u64 > most {
            fs::rename(&*path, backup(path, &now()))?;
            (*file, *size) = append(path)?;
            put_away = Some(path.clone());
        }
        file.write_all(line)?;
        *size += line.len() as u64;
        put_away.inspect(|p| self.clear(p));
        Ok(())
    }

    /// Removes the oldest files. Retries failures at the next rotation.
    fn clear(&self, path: &Path) {
        let Some((stem, end)) = parts(path) else { return };
        let mut old: Vec<(String, PathBuf)> = Vec::new();
        for e in path.parent().and_then(|d| fs::read_dir(d).ok()).into_iter().flatten().flatten() {
            let name = e.file_name().to_string_lossy().into_owned();
            let time = name.strip_prefix(&format!("{stem}-")).and_then(|r| r.strip_suffix(&end));
            if let Some(t) = time.filter(|t| t.len() == 23) {
                old.push((t.to_owned(), e.path()));
            }
        }
        old.sort();
        old.reverse();
        let age = jiff::SignedDuration::from_hours(24 * self.rotation.days);
        let oldest = self.clock.now().checked_sub(age).unwrap_or(jiff::Timestamp::MIN);
        let oldest = oldest.strftime(TIME).to_string();
        for (i, (time, path)) in old.iter().enumerate() {
            let many = self.rotation.files > 0 && i >= self.rotation.files;
            if many || (self.rotation.days > 0 && *time < oldest) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn append(path: &Path) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    // The file may contain secrets.
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

/// Splits `/var/audit.log` into `audit` and `.log`.
fn parts(path: &Path) -> Option<(String, String)> {
    let stem = path.file_stem()?.to_string_lossy().into_owned();
    Some((stem, path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default()))
}

fn backup(path: &Path, time: &str) -> PathBuf {
    let (stem, end) = parts(path).unwrap_or_default();
    path.with_file_name(format!("{stem}-{time}{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};

    struct Hours(AtomicI64);

    impl Clock for Hours {
        fn now(&self) -> jiff::Timestamp {
            jiff::Timestamp::from_second(self.0.load(Ordering::Relaxed) * 3600).unwrap()
        }
    }

    #[test]
    fn large_files_are_put_away_and_old_ones_go() {
        let d = tempfile::tempdir().unwrap();
        let path = d.path().join("logs/audit.log");
        let clock = Arc::new(Hours(AtomicI64::new(0)));
        let rotation = Rotation { megabytes: 1, files: 2, days: 1 };
        let mut log = Files::open(&path, rotation, clock.clone()).unwrap();
        let line = vec![b'x'; 700 * 1024];
        let names = || {
            let all = fs::read_dir(d.path().join("logs")).unwrap();
            let mut names: Vec<String> = all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        for hour in 0..4 {
            clock.0.store(hour, Ordering::Relaxed);
            log.write(&line).unwrap();
        }
        let (two, three) = ("audit-1970-01-01T02-00-00.000.log", "audit-1970-01-01T03-00-00.000.log");
        assert_eq!(names(), [two, three, "audit.log"]);
        clock.0.store(27, Ordering::Relaxed);
        log.write(&line).unwrap();
        assert_eq!(names(), [three, "audit-1970-01-02T03-00-00.000.log", "audit.log"], "one day old stays, older goes");
        let mut again = Files::open(&path, rotation, clock).unwrap();
        again.write(b"more\n").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), line.len() as u64 + 5, "a file that is there is continued");
    }
}
