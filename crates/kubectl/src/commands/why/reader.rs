//! Reads other objects. What the user may not read is noted, and the rest is explained without it.

use crate::error::Result;
use crate::kube::Kube;
use meta::Value;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::collections::HashMap;
use std::sync::Arc;

/// The result of reading one object.
#[derive(Clone, Debug)]
pub enum Read {
    Found(Value),
    Missing,
    /// The user may not read it.
    Unreadable,
}

/// Reads objects, each list once.
pub struct Reader<'a> {
    pub k: &'a mut Kube,
    /// What could not be read.
    unreadable: Vec<String>,
    /// By path; none: the user may not list it.
    lists: HashMap<String, Option<Arc<Vec<Value>>>>,
}

/// The most bytes of an object.
const OBJECT_BYTES: usize = 16 << 20;
/// The most bytes of a list: 150,000 pods have 450 MB.
const LIST_BYTES: usize = 512 << 20;
/// What is not escaped in a segment of a path or a value of a query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// A name as a segment of a path, or as a value of a query.
pub fn escaped(name: &str) -> String {
    utf8_percent_encode(name, PLAIN).to_string()
}

/// The path of a collection; `group_version` is `v1` or `group/version`.
pub fn path(group_version: &str, namespace: &str, plural: &str) -> String {
    let root = if group_version.contains('/') { "apis" } else { "api" };
    match namespace {
        "" => format!("/{root}/{group_version}/{plural}"),
        ns => format!("/{root}/{group_version}/namespaces/{}/{plural}", escaped(ns)),
    }
}

fn described(plural: &str, namespace: &str) -> String {
    if namespace.is_empty() { plural.to_owned() } else { format!("{plural} in {namespace}") }
}

impl<'a> Reader<'a> {
    pub fn new(k: &'a mut Kube) -> Self {
        Self { k, unreadable: Vec::new(), lists: HashMap::new() }
    }

    /// What could not be read of what was needed since the last call.
    pub fn take_unreadable(&mut self) -> Vec<String> {
        std::mem::take(&mut self.unreadable)
    }

    fn note(&mut self, plural: &str, namespace: &str) {
        let what = described(plural, namespace);
        if !self.unreadable.contains(&what) {
            self.unreadable.push(what);
        }
    }

    /// Reads an object.
    ///
    /// # Errors
    /// The server cannot be reached, or fails.
    pub async fn get(&mut self, group_version: &str, namespace: &str, plural: &str, name: &str) -> Result<Read> {
        let path = format!("{}/{}", path(group_version, namespace, plural), escaped(name));
        match self.k.client().await?.get_at_most::<Value>(&path, OBJECT_BYTES).await {
            Ok(v) => Ok(Read::Found(v)),
            Err(e) if e.is_not_found() => Ok(Read::Missing),
            Err(e) if e.is_forbidden() => {
                self.note(plural, namespace);
                Ok(Read::Unreadable)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Reads all objects of a collection; none if the server does not have it, or the user may not list it.
    ///
    /// # Errors
    /// The server cannot be reached, or fails.
    pub async fn list(&mut self, group_version: &str, namespace: &str, plural: &str) -> Result<Arc<Vec<Value>>> {
        self.select(group_version, namespace, plural, "").await
    }

    /// [`Self::list`] with a query, such as a field selector.
    ///
    /// # Errors
    /// The server cannot be reached, or fails.
    pub async fn select(
        &mut self,
        group_version: &str,
        namespace: &str,
        plural: &str,
        query: &str,
    ) -> Result<Arc<Vec<Value>>> {
        let path = path(group_version, namespace, plural);
        let path = if query.is_empty() { path } else { format!("{path}?{query}") };
        match self.lists.get(&path) {
            Some(Some(known)) => return Ok(known.clone()),
            Some(None) => {
                self.note(plural, namespace);
                return Ok(Arc::default());
            }
            None => {}
        }
        let items = match self.k.client().await?.get_at_most::<Value>(&path, LIST_BYTES).await {
            Ok(mut v) => match v["items"].take() {
                Value::Array(items) => items,
                _ => Vec::new(),
            },
            Err(e) if e.is_not_found() => Vec::new(),
            Err(e) if e.is_forbidden() => {
                self.note(plural, namespace);
                self.lists.insert(path, None);
                return Ok(Arc::default());
            }
            Err(e) => return Err(e.into()),
        };
        let items = Arc::new(items);
        self.lists.insert(path, Some(items.clone()));
        Ok(items)
    }

    /// Whether the user could not read a collection.
    pub fn is_unreadable(&self, plural: &str, namespace: &str) -> bool {
        self.unreadable.contains(&described(plural, namespace))
    }
}
