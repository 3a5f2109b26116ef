//! The log file of a container in the format of the CRI: `2006-01-02T15:04:05.999999999Z stdout F text`.
//!
//! A line has the tag `F` if its newline was read (or the stream ended), and `P` if it is a part of one that is longer than
//! [`MAX_LINE`]. The file is rotated ([`crate::rotation`]) between two pieces of output.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use crate::api::{LogLimits, Timestamp};
use crate::beneath::{Directory, Leaf, Links};
use crate::memory::wipe;
use crate::rotation;

const DIRECTORY_MODE: Mode = Mode::from_bits_truncate(0o755);
const FILE_MODE: Mode = Mode::from_bits_truncate(0o640);

/// Longest line that is written in one piece.
pub const MAX_LINE: usize = 16 * 1024;
/// About what is written at a time.
const PIECE: usize = 32 * 1024;

pub struct LogFile {
    path: PathBuf,
    limits: LogLimits,
    file: Option<File>,
    /// Length of the file.
    size: u64,
    partial: [Vec<u8>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout = 0,
    Stderr = 1,
}

impl LogFile {
    /// Opens a log. An empty path means none.
    pub fn open(path: &Path, limits: LogLimits) -> io::Result<LogFile> {
        let mut log = LogFile { path: path.to_owned(), limits, file: None, size: 0, partial: [Vec::new(), Vec::new()] };
        log.reopen()?;
        Ok(log)
    }

    pub fn reopen(&mut self) -> io::Result<()> {
        if self.path.as_os_str().is_empty() {
            return Ok(());
        }
        let (directory, name) = self.open_directory()?;
        let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = File::from(directory.open_at(Path::new(name), flags, FILE_MODE)?);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the log is not a regular file"));
        }
        self.file = Some(file);
        self.size = metadata.len();
        Ok(())
    }

    /// The directory of the file, created if missing, and the file's name. No link is followed: a process that may write to the logs
    /// could make the shim append to any file.
    fn open_directory(&self) -> io::Result<(Directory, &OsStr)> {
        let (parent, name) = (self.path.parent().unwrap_or(Path::new("/")), self.path.file_name().unwrap_or_default());
        let parent = Directory::open(Path::new("/"), Links::Refuse)?.make(parent, Leaf::Directory, DIRECTORY_MODE)?;
        Ok((Directory::from_fd(parent, Links::Refuse), name))
    }

    fn rotate(&mut self, at: Timestamp) -> io::Result<()> {
        let (directory, name) = self.open_directory()?;
        rotation::rotate(&directory, name, self.limits.max_files, &rfc3339(at))?;
        self.reopen()
    }

    /// Writes to the file, or to a new one if it has become too large. On a full disk lines are lost, but the container runs on.
    /// Returns the length.
    fn write(&mut self, out: &[u8], at: Timestamp) -> usize {
        if self.size > 0 && self.size + out.len() as u64 > self.limits.max_size && self.rotate(at).is_err() {
            // Try again after as much output as now.
            self.size = 0;
        }
        if let Some(file) = &mut self.file {
            let _ = file.write_all(out);
            self.size += out.len() as u64;
        }
        out.len()
    }

    /// Adds output. Returns its bytes in the file.
    pub fn append(&mut self, stream: Stream, data: &[u8], at: Timestamp) -> usize {
        if self.file.is_none() {
            return 0;
        }
        let mut partial = std::mem::take(&mut self.partial[stream as usize]);
        let mut out = Vec::with_capacity(data.len() + 64);
        let head = head(stream, at);
        let (mut rest, mut written) = (data, 0);
        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
            let (line, tail) = (&rest[..end], &rest[end + 1..]);
            cut(&mut out, &head, &mut partial, line);
            record(&mut out, &head, b'F', &partial);
            partial.clear();
            rest = tail;
            // Short lines grow many times.
            if out.len() >= PIECE {
                written += self.write(&out, at);
                wipe(&mut out);
                out.clear();
            }
        }
        cut(&mut out, &head, &mut partial, rest);
        self.partial[stream as usize] = partial;
        written += self.write(&out, at);
        wipe(&mut out);
        written
    }

    /// Wipes incomplete lines, in a copy of this process.
    pub fn wipe(&mut self) {
        self.partial.iter_mut().for_each(|line| wipe(line));
    }

    /// The stream ended: the rest has no end of line, and readers must not add one.
    pub fn finish(&mut self, stream: Stream, at: Timestamp) {
        let partial = std::mem::take(&mut self.partial[stream as usize]);
        if !partial.is_empty() {
            let mut out = Vec::new();
            record(&mut out, &head(stream, at), b'P', &partial);
            self.write(&out, at);
        }
    }
}

/// Adds `line` to `partial`, writing full pieces of [`MAX_LINE`] as partial records.
fn cut(out: &mut Vec<u8>, head: &str, partial: &mut Vec<u8>, mut line: &[u8]) {
    while partial.len() + line.len() > MAX_LINE {
        let (now, later) = line.split_at(MAX_LINE - partial.len());
        partial.extend_from_slice(now);
        record(out, head, b'P', partial);
        partial.clear();
        line = later;
    }
    partial.extend_from_slice(line);
}

fn record(out: &mut Vec<u8>, head: &str, tag: u8, line: &[u8]) {
    out.extend_from_slice(head.as_bytes());
    out.push(tag);
    out.push(b' ');
    out.extend_from_slice(line);
    out.push(b'\n');
}

fn head(stream: Stream, at: Timestamp) -> String {
    let name = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    format!("{} {name} ", rfc3339(at))
}

/// UTC with nine digits of the second, so that lines sort as text.
pub fn rfc3339(at: Timestamp) -> String {
    let (days, seconds) = (at.secs / 86_400, at.secs % 86_400);
    // Days to civil date: count from 1 March of year 0, when leap days come last in a year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z", at.nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_civil_dates() {
        for (secs, expect) in [
            (0, "1970-01-01T00:00:00.000000007Z"),
            (951_782_400, "2000-02-29T00:00:00.000000007Z"),
            (1_795_219_199, "2026-11-20T23:59:59.000000007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000007Z"),
        ] {
            assert_eq!(rfc3339(Timestamp { secs, nanos: 7 }), expect);
        }
    }

    #[test]
    fn lines_are_tagged_full_or_partial() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/0.log");
        let mut log = LogFile::open(&path, LogLimits::default()).unwrap();
        let at = Timestamp::default();
        log.append(Stream::Stdout, b"one\ntw", at);
        log.append(Stream::Stderr, b"err\n", at);
        log.append(Stream::Stdout, b"o\n\n", at);
        log.append(Stream::Stdout, &[b'x'; MAX_LINE + 3], at);
        log.finish(Stream::Stdout, at);
        log.finish(Stream::Stderr, at);
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().map(|l| l.split_once(' ').unwrap().1).collect();
        assert_eq!(lines[..4], ["stdout F one", "stderr F err", "stdout F two", "stdout F "]);
        assert_eq!(lines[4].len(), "stdout P ".len() + MAX_LINE);
        assert_eq!(lines[5], "stdout P xxx");
        assert_eq!(lines.len(), 6);
    }

    #[test]
    fn a_flood_is_bounded_and_the_newest_lines_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let limits = LogLimits { max_size: 4 << 20, max_files: 3 };
        let mut log = LogFile::open(&path, limits).unwrap();
        std::fs::write(directory.path().join("1.log.20261120-235959"), b"of another").unwrap();
        let line = |n: u64| format!("{n:07}{}\n", "x".repeat(10_000));
        for n in 0..8_000 {
            log.append(
                Stream::Stdout,
                line(n).as_bytes(),
                Timestamp { secs: 1_795_219_199 + n / 3_000, nanos: n as u32 },
            );
        }
        let mut files = rotation::rotated(&path);
        assert_eq!(files.len(), limits.max_files - 1, "{files:?}");
        files.push(path.clone());
        let mut kept = String::new();
        for file in &files {
            let text = std::fs::read_to_string(file).unwrap();
            assert!(text.len() as u64 <= limits.max_size, "{}", text.len());
            kept += &text;
        }
        let numbers: Vec<u64> = kept.lines().map(|l| l.splitn(4, ' ').last().unwrap()[..7].parse().unwrap()).collect();
        assert!(
            numbers.windows(2).all(|w| w[1] == w[0] + 1) && numbers.last() == Some(&7_999),
            "no line is lost between"
        );
        // Nothing of this line is left, and all of the other one.
        rotation::remove(&path);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
