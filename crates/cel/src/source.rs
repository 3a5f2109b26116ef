//! The errors of an expression, in the form of cel-go's, and the stack on which deep expressions are read.

use std::fmt;

/// An error of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// From 1; 0 if the error has no position.
    pub line: usize,
    /// In characters, from 0.
    pub column: usize,
    /// The error itself.
    pub message: String,
}

/// The errors of an expression, by position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issues {
    /// At most as many as cel-go reports.
    pub issues: Vec<Issue>,
    truncated: usize,
    source: String,
}

/// An error that was found: its position in code points, if it has one, and the message.
pub(crate) type Found = (Option<u32>, String);

/// How many errors of an expression are reported, as in cel-go.
const REPORTED: usize = 100;
/// Bytes of the source that are shown with all errors together.
const SHOWN: usize = 256 << 10;
/// Bytes of the longest line that is shown, as in cel-go.
const LONGEST_LINE: usize = 16 << 10;

impl Issues {
    /// Takes errors in the order in which they were found.
    pub(crate) fn new(source: &str, mut found: Vec<Found>) -> Self {
        let truncated = found.len().saturating_sub(REPORTED);
        found.truncate(REPORTED);
        found.sort_by_key(|f| f.0);
        let (mut line, mut column, mut at) = (1, 0, 0);
        let mut chars = source.chars();
        let mut issues = Vec::with_capacity(found.len());
        for (position, message) in found {
            let Some(position) = position else {
                issues.push(Issue { line: 0, column: 0, message });
                continue;
            };
            while at < position {
                match chars.next() {
                    Some('\n') => (line, column) = (line + 1, 0),
                    Some(_) => column += 1,
                    None => break,
                }
                at += 1;
            }
            issues.push(Issue { line, column, message });
        }
        Self { issues, truncated, source: source.to_owned() }
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, i) in self.issues.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            if i.line == 0 {
                write!(f, "ERROR: <input>:-1:0: {}", i.message)?;
                continue;
            }
            // An empty text has no first column, and no line to show.
            let column = if self.source.is_empty() { 0 } else { i.column + 1 };
            write!(f, "ERROR: <input>:{}:{column}: {}", i.line, i.message)?;
            // Many errors in one long line would be shown with as many copies of it.
            if self.source.is_empty() || n > 0 && self.source.len() * n > SHOWN {
                continue;
            }
            let line = self.source.split('\n').nth(i.line - 1);
            if let Some(line) = line.filter(|l| l.len() <= LONGEST_LINE) {
                let line = line.replace('\t', " ");
                let dots: String = line.chars().take(i.column).map(|c| if c.is_ascii() { '.' } else { '．' }).collect();
                let caret = if line.chars().nth(i.column).is_none_or(|c| c.is_ascii()) { '^' } else { '＾' };
                write!(f, "\n | {line}\n | {dots}{caret}")?;
            }
        }
        match self.truncated {
            0 => Ok(()),
            n => write!(f, "\n{n} more errors were truncated"),
        }
    }
}

/// Stack for what recurses through an expression: in a build without optimization, a level may take 100 KiB.
const STACK: usize = 128 << 20;

/// Runs what recurses through an expression on a stack that it cannot outgrow.
pub(crate) fn on_large_stack<T: Send>(f: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let spawned = std::thread::Builder::new().name("cel".into()).stack_size(STACK).spawn_scoped(scope, f);
        let thread = spawned.map_err(|e| format!("no thread for the parser: {e}"))?;
        thread.join().map_err(|_| "the parser failed".to_owned())
    })
}
