//! From text to syntax: the parser of the `cel` crate, with errors in the form of cel-go's.

use cel_syntax::common::ast::{Expr, IdedExpr, SourceInfo};
use std::fmt;

/// One thing that is wrong with an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// From 1.
    pub line: usize,
    /// In characters, from 0.
    pub column: usize,
    pub message: String,
}

/// Everything that is wrong with an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issues {
    pub issues: Vec<Issue>,
    source: String,
}

/// How many issues of an expression are reported at most, as in cel-go.
const MOST_ISSUES: usize = 100;
/// Characters of the source that are shown with the issues.
const SHOWN: usize = 256 << 10;

impl Issues {
    pub(crate) fn new(source: &str, mut issues: Vec<Issue>) -> Self {
        issues.sort_by_key(|i| (i.line, i.column));
        issues.truncate(MOST_ISSUES);
        Self { issues, source: source.to_owned() }
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, i) in self.issues.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            // Nothing has no first column, and no line to show.
            let column = if self.source.is_empty() { 0 } else { i.column + 1 };
            write!(f, "ERROR: <input>:{}:{column}: {}", i.line, i.message)?;
            // Many issues of one long line would be told with as many copies of it.
            if self.source.is_empty() || n > 0 && self.source.len() * n > SHOWN {
                continue;
            }
            if let Some(line) = self.source.split('\n').nth(i.line.saturating_sub(1)) {
                let line = line.replace('\t', " ");
                let dots: String = line.chars().take(i.column).map(|c| if c.is_ascii() { '.' } else { '．' }).collect();
                write!(f, "\n | {line}\n | {dots}^")?;
            }
        }
        Ok(())
    }
}

/// Longer ones are refused; upstream's limit is that of a request.
const LONGEST: usize = 256 * 1024;
/// How deep syntax may be nested. Evaluation recurses.
pub(crate) const DEEPEST: usize = 200;
/// The parser recurses far deeper than the syntax is nested.
const STACK: usize = 128 << 20;

pub(crate) struct Parsed {
    pub expr: IdedExpr,
    pub info: SourceInfo,
    /// How deep the syntax is nested.
    pub depth: usize,
}

/// Runs what recurses through syntax on a stack that it cannot outgrow.
pub(crate) fn on_large_stack<T: Send>(f: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let made = std::thread::Builder::new().name("cel".into()).stack_size(STACK).spawn_scoped(scope, f);
        let thread = made.map_err(|e| format!("no thread for the parser: {e}"))?;
        thread.join().map_err(|_| "the parser failed".to_owned())
    })
}

/// Call on a large stack only.
pub(crate) fn parse(source: &str) -> Result<Parsed, Issues> {
    if source.len() > LONGEST {
        return Err(whole(
            source,
            format!("expression code point size exceeds limit: size: {}, limit {LONGEST}", source.len()),
        ));
    }
    let parser = cel_syntax::Env::default().parser().max_recursion_depth(250);
    match parser.parse_with_source_info(source) {
        Ok((expr, info)) => match depth(&expr) {
            depth @ 0..=DEEPEST => Ok(Parsed { expr, info, depth }),
            _ => Err(whole(source, format!("max recursion depth exceeded: {DEEPEST}"))),
        },
        Err(e) => {
            let place = |n: isize| usize::try_from(n).unwrap_or(0);
            let issue = |e: cel_syntax::ParseError| Issue {
                line: place(e.pos.0).max(1),
                column: place(e.pos.1).saturating_sub(1),
                message: e.msg,
            };
            Err(Issues::new(source, e.errors.into_iter().map(issue).collect()))
        }
    }
}

pub(crate) fn whole(source: &str, message: String) -> Issues {
    Issues::new(source, vec![Issue { line: 1, column: 0, message }])
}

fn depth(e: &IdedExpr) -> usize {
    use cel_syntax::common::ast::EntryExpr;
    let most = |all: &[IdedExpr]| all.iter().map(depth).max().unwrap_or(0);
    let entries = |all: &[cel_syntax::common::ast::IdedEntryExpr]| {
        let one = |e: &EntryExpr| match e {
            EntryExpr::StructField(f) => depth(&f.value),
            EntryExpr::MapEntry(m) => depth(&m.key).max(depth(&m.value)),
        };
        all.iter().map(|e| one(&e.expr)).max().unwrap_or(0)
    };
    1 + match &e.expr {
        Expr::Call(c) => most(&c.args).max(c.target.as_deref().map_or(0, depth)),
        Expr::Select(s) => depth(&s.operand),
        Expr::List(l) => most(&l.elements),
        Expr::Map(m) => entries(&m.entries),
        Expr::Struct(s) => entries(&s.entries),
        _ => 0,
    }
}
