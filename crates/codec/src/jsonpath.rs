//! kubectl's dialect of JSONPath (`k8s.io/client-go/util/jsonpath`), which is older than RFC 9535 and differs from it.
//!
//! A template is text with `{expressions}` in it. `$` and `@` both mean the value at hand, `range … end` repeats, and what
//! cannot be found is nothing or an error, as the caller chooses. What upstream's evaluation does that a reader may not expect is
//! followed, since scripts have it: a slice that is empty ends the list of results, and a wildcard takes a string apart into bytes.
//! Invariant: no template and no document makes it panic.

mod eval;
mod parse;
#[cfg(test)]
mod tests;

pub use eval::text;

use eval::Evaluation;
use meta::Value;
use std::borrow::Cow;

/// The error of parsing or evaluating a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The template is no JSONPath.
    #[error("{0}")]
    Parse(String),
    /// The document does not fit the template.
    #[error("{0}")]
    Eval(String),
}

/// What becomes of fields that are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// A missing key yields nothing.
    Allowed,
    /// A missing key is an error.
    Error,
}

/// A parsed template.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    pub(self) nodes: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Text(String),
    /// One pair of braces.
    List(Vec<Step>),
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Text(String),
    Int(i64),
    Float(f64),
    Bool(bool),
    /// `range`, `end`, or what is no identifier of the language.
    Identifier(String),
    Field(String),
    Wildcard,
    Recursive,
    /// From, to and step; the second is derived from the first where one index was written.
    Slice {
        from: Option<i64>,
        to: Option<i64>,
        derived: bool,
        step: Option<i64>,
    },
    Filter(Vec<Step>, Comparison, Vec<Step>),
    Union(Vec<Vec<Step>>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Comparison {
    Exists,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// An operator that there is not: an error once two values are compared.
    Unknown(String),
}

/// How deep filters may be nested in each other, and ranges: those who read and evaluate them go as deep.
const DEPTH: usize = 64;

impl Template {
    /// Parses a template, as that of `-o jsonpath`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        parse::template(text)
    }

    /// Reads what `--sort-by` and custom columns take: `.x`, `x`, `{.x}` or `{x}`.
    pub fn relaxed(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Ok(Self { nodes: Vec::new() });
        }
        let wrong = || {
            Error::Parse("unexpected path string, expected a 'name1.name2' or '.name1.name2' or '{name1.name2}' or '{.name1.name2}'".into())
        };
        let inner = match (text.strip_prefix('{'), text.ends_with('}')) {
            (Some(rest), true) => &rest[..rest.len() - 1],
            (None, false) => text,
            _ => return Err(wrong()),
        };
        if inner.contains(['{', '}']) {
            return Err(wrong());
        }
        let inner = inner.strip_prefix('.').unwrap_or(inner);
        if inner.is_empty() {
            return Err(wrong());
        }
        Self::parse(&format!("{{.{inner}}}"))
    }

    /// What each expression finds, in order.
    pub fn find(&self, document: &Value, missing: Missing) -> Result<Vec<Vec<Value>>, Error> {
        let found = Evaluation::new(missing, usize::MAX).find(&self.nodes, &Cow::Borrowed(document))?;
        Ok(found.into_iter().map(|all| all.into_iter().map(Cow::into_owned).collect()).collect())
    }

    /// The first value that is found, for templates and documents of others: it looks at no more values than `work`, and takes away from
    /// it what it looks at. Errors if that is not enough.
    pub fn first_within(&self, document: &Value, work: &mut usize) -> Result<Option<Value>, Error> {
        let mut evaluation = Evaluation::new(Missing::Allowed, *work);
        let found = evaluation.find(&self.nodes, &Cow::Borrowed(document));
        *work = evaluation.work;
        Ok(found?.into_iter().next().and_then(|all| all.into_iter().next()).map(Cow::into_owned))
    }

    /// Fills the template.
    pub fn render(&self, document: &Value, missing: Missing) -> Result<String, Error> {
        Ok(self.find(document, missing)?.iter().map(|r| text(r)).collect())
    }
}
