//! Termination messages: what a container wrote to its file, or the end of its log.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use runtime::{Container, beneath};

const MAX_FILE: u64 = 4096;
const MAX_LOG_BYTES: usize = 2048;
const MAX_LOG_LINES: usize = 80;

/// The message of a container that ended. `from_logs`: `FallbackToLogsOnError`.
pub fn read(c: &Container, from_logs: bool) -> String {
    let file = c.termination_message_file.as_deref().map(|p| head(p, MAX_FILE)).unwrap_or_default();
    if !file.is_empty() || !from_logs || c.exit_code == Some(0) {
        return file;
    }
    last_lines(&c.log_path)
}

fn head(path: &Path, most: u64) -> String {
    let mut out = Vec::new();
    if let Ok(f) = beneath::read_file(path) {
        let _ = f.take(most).read_to_end(&mut out);
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn last_lines(path: &Path) -> String {
    let Ok(mut f) = beneath::read_file(path) else { return String::new() };
    // Read more than is kept, since every line has a time and a stream.
    let size = f.metadata().map_or(0, |m| m.len());
    let from = size.saturating_sub(64 * 1024);
    let mut text = Vec::new();
    if f.seek(SeekFrom::Start(from)).is_err() || f.read_to_end(&mut text).is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines().skip(usize::from(from > 0)) {
        let mut parts = line.splitn(4, ' ').skip(2);
        if let (Some(tag), Some(content)) = (parts.next(), parts.next()) {
            lines.push(format!("{content}{}", if tag == "F" { "\n" } else { "" }));
        }
    }
    let kept = lines.len().saturating_sub(MAX_LOG_LINES);
    let mut out = lines[kept..].concat();
    if out.len() > MAX_LOG_BYTES {
        let cut = (out.len() - MAX_LOG_BYTES..out.len()).find(|i| out.is_char_boundary(*i)).unwrap_or(0);
        out.drain(..cut);
    }
    out
}
