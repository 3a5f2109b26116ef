//! From events to values, without recursion.

use super::Error;
use super::resolve::{self, Dialect, MERGE};
use libyaml_safer::{Encoding, EventData, Parser, ScalarStyle};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;

/// How deep collections may be nested, as go-yaml and Go's JSON decoder allow.
pub const DEPTH_LIMIT: usize = 10_000;

/// What files for kustomize may have: who merges them does so recursively.
const DEPTH_OF_FILES: usize = 500;

/// The most repeated keys that are reported.
const MOST_REPORTED: usize = 100;
/// The longest path that a report names, in bytes.
const LONGEST_PATH: usize = 4 << 10;
/// Bytes of scalars that aliases may repeat. The Go types share such strings until they are written as JSON; here each is a
/// copy.
const ALIASED_BYTES: usize = 16 << 20;

/// A key that its mapping already had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// Of the repeated value, from 1.
    pub line: u64,
    /// The duplicate key.
    pub key: String,
    /// The mapping's place: `spec.containers[0]`; empty for the document.
    pub path: String,
}

impl fmt::Display for Duplicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n  line {}: key {:?} already set in map", self.line, self.key)
    }
}

/// All documents that are not empty, as kubectl reads a file. A repeated key's last value wins.
pub fn parse(text: &str) -> Result<Vec<Value>, Error> {
    parse_within(text, DEPTH_LIMIT).map(|(documents, _)| documents)
}

/// Like [`parse`], but repeated keys are errors, all of them reported at once.
pub fn parse_strict(text: &str) -> Result<Vec<Value>, Error> {
    let (documents, duplicates) = parse_within(text, DEPTH_LIMIT)?;
    if duplicates.is_empty() { Ok(documents) } else { Err(Error::Duplicates(duplicates)) }
}

type Id = usize;

enum Node {
    Scalar {
        tag: Option<String>,
        implicit: bool,
        text: String,
    },
    Sequence(Vec<Id>),
    /// Keys and values in turn.
    Mapping(Vec<Id>),
    Alias(Id),
}

/// One document's nodes; children have higher numbers than their parents, aliases point anywhere before.
#[derive(Default)]
struct Document {
    nodes: Vec<(Node, u64)>,
    anchors: HashMap<String, Id>,
    anchor_names: HashMap<Id, String>,
    open: Vec<Id>,
    limit: usize,
    dialect: Dialect,
}

impl Document {
    fn new(limit: usize, dialect: Dialect) -> Self {
        Self { limit, dialect, ..Self::default() }
    }

    fn add(&mut self, node: Node, line: u64, anchor: Option<String>) -> Id {
        let id = self.nodes.len();
        self.nodes.push((node, line));
        if let Some(&parent) = self.open.last()
            && let Node::Sequence(items) | Node::Mapping(items) = &mut self.nodes[parent].0
        {
            items.push(id);
        }
        if let Some(a) = anchor {
            self.anchor_names.insert(id, a.clone());
            self.anchors.insert(a, id);
        }
        id
    }

    fn open(&mut self, node: Node, line: u64, anchor: Option<String>) -> Result<(), Error> {
        let id = self.add(node, line, anchor);
        self.open.push(id);
        if self.open.len() > self.limit { Err(Error::Depth { line, limit: self.limit }) } else { Ok(()) }
    }
}

/// The first document that is not empty, as the API server reads a body, with the keys that came twice; `null` if there is
/// none. What follows is not looked at.
pub fn parse_first(text: &str, depth: usize) -> Result<(Value, Vec<Duplicate>), Error> {
    let (mut documents, duplicates) = documents(text, depth, Dialect::V2, 1)?;
    Ok((documents.pop().unwrap_or_default(), duplicates))
}

/// Like [`parse`], with the keys that came twice. Collections are nested at most `depth` deep: the time that a text takes grows
/// with its length times its depth, so a server allows little.
pub fn parse_within(text: &str, depth: usize) -> Result<(Vec<Value>, Vec<Duplicate>), Error> {
    documents(text, depth, Dialect::V2, usize::MAX)
}

/// All documents that are not empty, as go-yaml v3 (and so kustomize) reads them: `yes` and `on` are strings, dates are
/// moments in RFC 3339, keys keep their text, and repeated keys are errors.
pub fn parse_v3(text: &str) -> Result<Vec<Value>, Error> {
    let (documents, duplicates) = documents(text, DEPTH_OF_FILES, Dialect::V3, usize::MAX)?;
    if duplicates.is_empty() { Ok(documents) } else { Err(Error::Duplicates(duplicates)) }
}

/// Tag directives that a text may have, and the bytes of one.
const DIRECTIVES: usize = 16;
const DIRECTIVE: usize = 256;

/// Refuses tag directives that are many or long: the scanner looks through all of them at each tag, and writes the whole prefix into
/// each tagged node.
fn check_directives(text: &str) -> Result<(), Error> {
    const BREAKS: [char; 5] = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];
    let begins_line = |at: usize| at == 0 || text[..at].ends_with(BREAKS) || text[..at].ends_with('\u{feff}');
    let found = text.match_indices("%TAG").filter(|(at, _)| begins_line(*at));
    for (count, (at, _)) in found.enumerate() {
        let length = text[at..].find(BREAKS).unwrap_or(text.len() - at);
        if count == DIRECTIVES || length > DIRECTIVE {
            return Err(Error::Syntax("yaml: found too many or too long %TAG directives".into()));
        }
    }
    Ok(())
}

fn documents(text: &str, depth: usize, dialect: Dialect, most: usize) -> Result<(Vec<Value>, Vec<Duplicate>), Error> {
    check_directives(text)?;
    let mut parser = Parser::new();
    // Otherwise it guesses, and takes a text that begins like a byte order mark for a broken one.
    parser.set_encoding(Encoding::Utf8);
    let mut input = text.as_bytes();
    parser.set_input_string(&mut input);
    let mut out = Vec::new();
    let mut duplicates = Vec::new();
    let mut doc = Document::new(depth, dialect);
    loop {
        let event = next(&mut parser)?;
        let line = event.start_mark.line + 1;
        match event.data {
            EventData::StreamStart { .. } => {}
            EventData::StreamEnd => break,
            EventData::DocumentStart { .. } => doc = Document::new(depth, dialect),
            EventData::DocumentEnd { .. } => {
                let v = if doc.nodes.is_empty() { Value::Null } else { build(&doc, &mut duplicates)? };
                if !v.is_null() {
                    out.push(v);
                }
                if out.len() >= most {
                    break;
                }
            }
            EventData::Alias { anchor } => {
                let Some(&target) = doc.anchors.get(&anchor) else { return Err(Error::UnknownAnchor(anchor)) };
                if doc.open.contains(&target) {
                    return Err(Error::SelfReference(anchor));
                }
                doc.add(Node::Alias(target), line, None);
            }
            EventData::Scalar { anchor, tag, value, plain_implicit, style, .. } => {
                let implicit = plain_implicit && style == ScalarStyle::Plain;
                doc.add(Node::Scalar { tag, implicit, text: value }, line, anchor);
            }
            EventData::SequenceStart { anchor, .. } => doc.open(Node::Sequence(Vec::new()), line, anchor)?,
            EventData::MappingStart { anchor, .. } => doc.open(Node::Mapping(Vec::new()), line, anchor)?,
            EventData::SequenceEnd | EventData::MappingEnd => _ = doc.open.pop(),
        }
    }
    Ok((out, duplicates))
}

/// The next event. The scanner panics where a text ends within an escape.
fn next<R: std::io::BufRead>(parser: &mut Parser<R>) -> Result<libyaml_safer::Event, Error> {
    let parsed = std::panic::catch_unwind(AssertUnwindSafe(|| parser.parse()));
    let parsed = parsed.map_err(|_| Error::Syntax("found unexpected end of stream".into()))?;
    parsed.map_err(|e| Error::Syntax(describe(&e)))
}

/// What went wrong, with the line as go-yaml counts it: one less than an editor would, except for the scanner.
fn describe(e: &libyaml_safer::Error) -> String {
    let scanner = e.kind() == libyaml_safer::ErrorKind::Scanner;
    let line = match (e.problem_mark().map_or(0, |m| m.line), e.context_mark().map_or(0, |m| m.line)) {
        (0, context) => context,
        (problem, _) => problem + u64::from(scanner),
    };
    if line == 0 { e.problem().to_owned() } else { format!("line {line}: {}", e.problem()) }
}

enum Frame<'a> {
    Sequence {
        items: std::slice::Iter<'a, Id>,
        out: Vec<Value>,
    },
    Mapping {
        /// The mapping itself and, above it, those being merged into it.
        sources: Vec<Source<'a>>,
        key: Option<String>,
        out: Map<String, Value>,
    },
}

/// Keys and values that go into a mapping.
struct Source<'a> {
    pairs: std::slice::Iter<'a, Id>,
    /// It is merged through an alias.
    aliased: bool,
}

struct Builder<'a> {
    doc: &'a Document,
    stack: Vec<Frame<'a>>,
    /// Nodes decoded in all, and inside of aliases: what go-yaml measures alias bombs by.
    decoded: u64,
    aliased: u64,
    /// Depths of the stack at which an alias was entered.
    aliases: Vec<usize>,
    /// Sources that are being merged through an alias.
    merging: usize,
    /// Bytes of scalars that were read inside of aliases.
    aliased_bytes: usize,
}

impl<'a> Builder<'a> {
    fn follow(&self, mut id: Id) -> (Id, bool) {
        let mut through = false;
        while let Node::Alias(target) = self.doc.nodes[id].0 {
            id = target;
            through = true;
        }
        (id, through)
    }

    fn is_aliased(&self) -> bool {
        !self.aliases.is_empty() || self.merging > 0
    }

    /// Counts the bytes of a scalar that an alias repeats.
    fn repeat(&mut self, through_alias: bool, text: &str) -> Result<(), Error> {
        if through_alias || self.is_aliased() {
            self.aliased_bytes += text.len();
            if self.aliased_bytes > ALIASED_BYTES {
                return Err(Error::ExcessiveAliasing);
            }
        }
        Ok(())
    }

    fn count(&mut self, through_alias: bool) -> Result<(), Error> {
        self.decoded += 1;
        if through_alias || self.is_aliased() {
            self.aliased += 1;
        }
        let allowed = match self.decoded {
            ..=400_000 => 0.99,
            4_000_000.. => 0.10,
            n => 0.99 - 0.89 * ((n - 400_000) as f64 / 3_600_000.0),
        };
        if self.aliased > 100 && self.decoded > 1000 && self.aliased as f64 / self.decoded as f64 > allowed {
            return Err(Error::ExcessiveAliasing);
        }
        Ok(())
    }

    /// Either a finished value, or `None` with a new frame on the stack.
    fn start(&mut self, id: Id) -> Result<Option<Value>, Error> {
        let (id, through) = self.follow(id);
        self.count(through)?;
        let (node, line) = &self.doc.nodes[id];
        let frame = match node {
            Node::Scalar { tag, implicit, text } => {
                self.repeat(through, text)?;
                let dialect = self.doc.dialect;
                return Ok(Some(resolve::value(tag.as_deref(), *implicit, text, *line, dialect)?.1));
            }
            Node::Sequence(items) => Frame::Sequence { items: items.iter(), out: Vec::with_capacity(items.len()) },
            Node::Mapping(pairs) => Frame::Mapping {
                sources: vec![Source { pairs: pairs.iter(), aliased: false }],
                key: None,
                out: Map::new(),
            },
            Node::Alias(_) => return Ok(Some(Value::Null)),
        };
        if through {
            self.aliases.push(self.stack.len());
        }
        self.stack.push(frame);
        let limit = self.doc.limit;
        if self.stack.len() > limit { Err(Error::Depth { line: *line, limit }) } else { Ok(None) }
    }

    fn path(&self) -> String {
        let mut p = String::new();
        for f in &self.stack {
            match f {
                Frame::Sequence { out, .. } => p.push_str(&format!("[{}]", out.len())),
                Frame::Mapping { key: Some(k), .. } => {
                    if !p.is_empty() {
                        p.push('.');
                    }
                    p.push_str(k);
                }
                Frame::Mapping { .. } => {}
            }
            if p.len() > LONGEST_PATH {
                break;
            }
        }
        p
    }

    fn key_of(&mut self, id: Id) -> Result<String, Error> {
        let (target, through) = self.follow(id);
        self.count(through)?;
        let (node, line) = &self.doc.nodes[target];
        let Node::Scalar { tag, implicit, text } = node else {
            return Err(Error::Invalid { line: *line, what: "invalid map key: a map or a list".to_owned() });
        };
        self.repeat(through, text)?;
        if self.doc.dialect == Dialect::V3 {
            return Ok(text.clone());
        }
        // A float that JSON cannot hold is still a key.
        let scalar = match resolve::value(tag.as_deref(), *implicit, text, *line, self.doc.dialect) {
            Ok((s, Value::String(t))) => return Ok(resolve::key(&s, &t).unwrap_or(t)),
            Ok((s, _)) => s,
            Err(Error::Unsupported(_)) => resolve::plain(text),
            Err(e) => return Err(e),
        };
        resolve::key(&scalar, text)
            .ok_or_else(|| Error::Invalid { line: *line, what: "unsupported map key of type: null".to_owned() })
    }

    fn is_merge(&self, id: Id) -> bool {
        matches!(&self.doc.nodes[id].0, Node::Scalar { tag, implicit, text }
            if text == "<<" && (*implicit || tag.as_deref() == Some(MERGE)))
    }

    /// The pairs to merge, the one to be merged first on top. Each counts like a value, as go-yaml counts them.
    fn merge_sources(&mut self, id: Id) -> Result<Vec<Source<'a>>, Error> {
        let (id, through) = self.follow(id);
        let doc = self.doc;
        let one = [id];
        let items = match &doc.nodes[id].0 {
            Node::Mapping(_) => &one[..],
            Node::Sequence(items) => items,
            _ => return Err(Error::BadMerge),
        };
        let mut sources = Vec::with_capacity(items.len());
        for item in items {
            let (target, aliased) = self.follow(*item);
            let aliased = aliased || through;
            self.count(aliased)?;
            let Node::Mapping(pairs) = &doc.nodes[target].0 else { return Err(Error::BadMerge) };
            sources.push(Source { pairs: pairs.iter(), aliased });
        }
        self.merging += sources.iter().filter(|s| s.aliased).count();
        Ok(sources)
    }
}

enum Step {
    Start(Id),
    Pair(Id, Id),
    Done,
}

fn build(doc: &Document, duplicates: &mut Vec<Duplicate>) -> Result<Value, Error> {
    let mut b =
        Builder { doc, stack: Vec::new(), decoded: 0, aliased: 0, aliases: Vec::new(), merging: 0, aliased_bytes: 0 };
    let mut done = b.start(0)?;
    loop {
        if let Some(v) = done.take() {
            match b.stack.last_mut() {
                None => return Ok(v),
                Some(Frame::Sequence { out, .. }) => out.push(v),
                Some(Frame::Mapping { key, out, .. }) => {
                    if let Some(k) = key.take() {
                        out.insert(k, v);
                    }
                }
            }
        }
        let step = match b.stack.last_mut() {
            None => return Ok(Value::Null),
            Some(Frame::Sequence { items, .. }) => items.next().map_or(Step::Done, |i| Step::Start(*i)),
            Some(Frame::Mapping { sources, .. }) => loop {
                let Some(top) = sources.last_mut() else { break Step::Done };
                match (top.pairs.next(), top.pairs.next()) {
                    (Some(k), Some(v)) => break Step::Pair(*k, *v),
                    _ => {
                        b.merging -= usize::from(top.aliased);
                        sources.pop();
                    }
                }
            },
        };
        match step {
            Step::Start(id) => done = b.start(id)?,
            Step::Pair(k, v) if b.is_merge(k) => {
                let more = b.merge_sources(v)?;
                if let Some(Frame::Mapping { sources, .. }) = b.stack.last_mut() {
                    sources.extend(more);
                }
            }
            Step::Pair(k, v) => {
                let name = b.key_of(k)?;
                let known = matches!(b.stack.last(), Some(Frame::Mapping { out, .. }) if out.contains_key(&name));
                if known && duplicates.len() < MOST_REPORTED {
                    duplicates.push(Duplicate { line: doc.nodes[v].1, key: name.clone(), path: b.path() });
                }
                if let Some(Frame::Mapping { key, .. }) = b.stack.last_mut() {
                    *key = Some(name);
                }
                done = b.start(v)?;
            }
            Step::Done => {
                done = b.stack.pop().map(|f| match f {
                    Frame::Sequence { out, .. } => Value::Array(out),
                    Frame::Mapping { out, .. } => Value::Object(out),
                });
                if b.aliases.last() == Some(&b.stack.len()) {
                    b.aliases.pop();
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
