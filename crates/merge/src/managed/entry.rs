//! The entries of `metadata.managedFields`.

use super::{ANCIENT, MAX_UPDATE_MANAGERS};
use crate::fieldset::{self, Set};
use meta::{Map, Value};
use std::cmp::Ordering;
use std::collections::HashMap;

/// Number of entries up to which a search is linear.
pub(super) const FEW: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("managed fields are not a list of objects")]
    NotAList,
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    #[error("apiVersion must not be empty")]
    ApiVersion,
    #[error("missing fieldsType in managed fields entry {0}")]
    MissingFieldsType(usize),
    #[error("invalid fieldsType {1:?} in managed fields entry {0}")]
    FieldsType(usize, String),
    #[error(transparent)]
    Fields(#[from] fieldset::Error),
}

/// The operation of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Server-side apply.
    Apply,
    /// Any other write.
    Update,
}

impl Operation {
    /// The name in `managedFields`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// The fields that a manager owns through one operation, version and subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of the manager.
    pub manager: String,
    /// The operation.
    pub operation: Operation,
    /// The version of the fields: `apps/v1`.
    pub api_version: String,
    /// Empty for the main resource.
    pub subresource: String,
    /// RFC 3339.
    pub time: Option<String>,
    /// The owned fields.
    pub fields: Set,
    /// The index in the decoded list, while the entry is unchanged.
    source: Option<usize>,
}

impl Entry {
    /// An entry without fields and time.
    pub fn new(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        Self {
            // Upstream's name for a manager without one.
            manager: if manager.is_empty() { "unknown" } else { manager }.to_owned(),
            operation,
            api_version: api_version.to_owned(),
            subresource: subresource.to_owned(),
            time: None,
            fields: Set::new(),
            source: None,
        }
    }

    /// Whether two entries belong to the same manager. Versions of appliers do not matter.
    pub(super) fn same_manager(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// The identity of a manager.
    fn identity(&self) -> (String, Operation, String, String) {
        let version = if self.operation == Operation::Apply { "" } else { &self.api_version };
        (self.manager.clone(), self.operation, version.to_owned(), self.subresource.clone())
    }

    /// Orders by upstream's identifier: the JSON of the entry without time and fields.
    pub(super) fn by_identity(&self, other: &Self) -> Ordering {
        fn key(e: &Entry) -> (&str, Operation, &str, &str) {
            let version = if e.operation == Operation::Apply { "" } else { &e.api_version };
            (&e.manager, e.operation, version, &e.subresource)
        }
        key(self).cmp(&key(other))
    }

    /// Changes the owned fields.
    pub(super) fn set_fields(&mut self, change: impl FnOnce(Set) -> Set) {
        self.fields = change(std::mem::take(&mut self.fields));
        self.source = None;
    }

    pub(super) fn set_time(&mut self, time: &str) {
        self.time = Some(time.to_owned());
        self.source = None;
    }

    fn read(v: &Value, index: usize) -> Result<Self, Error> {
        let Value::Object(m) = v else { return Err(Error::NotAList) };
        let text = |key: &str| m.get(key).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return Err(Error::Operation),
        };
        if text("apiVersion").is_empty() {
            return Err(Error::ApiVersion);
        }
        match text("fieldsType") {
            "FieldsV1" => {}
            "" => return Err(Error::MissingFieldsType(index)),
            other => return Err(Error::FieldsType(index, other.to_owned())),
        }
        let fields = match m.get("fieldsV1") {
            None | Some(Value::Null) => Set::new(),
            Some(v) => Set::from_value(v)?,
        };
        Ok(Self {
            manager: text("manager").to_owned(),
            operation,
            api_version: text("apiVersion").to_owned(),
            subresource: text("subresource").to_owned(),
            time: m.get("time").and_then(Value::as_str).map(str::to_owned),
            fields,
            source: Some(index),
        })
    }

    fn write(self) -> Value {
        let mut m = Map::new();
        m.insert("manager".to_owned(), self.manager.into());
        m.insert("operation".to_owned(), self.operation.as_str().into());
        m.insert("apiVersion".to_owned(), self.api_version.into());
        if let Some(t) = self.time {
            m.insert("time".to_owned(), t.into());
        }
        m.insert("fieldsType".to_owned(), "FieldsV1".into());
        m.insert("fieldsV1".to_owned(), self.fields.to_value());
        if !self.subresource.is_empty() {
            m.insert("subresource".to_owned(), self.subresource.into());
        }
        m.retain(|k, v| k != "manager" || v != "");
        Value::Object(m)
    }
}

/// All entries of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managers(pub Vec<Entry>);

impl Managers {
    /// Decodes `managedFields`. Joins entries of one manager, with the time of the last one.
    pub fn decode(v: &Value) -> Result<Self, Error> {
        let Value::Array(list) = v else {
            return if v.is_null() { Ok(Self::default()) } else { Err(Error::NotAList) };
        };
        let mut out: Vec<Entry> = Vec::with_capacity(list.len());
        // A client may send any number of them.
        let mut places = HashMap::new();
        for (i, v) in list.iter().enumerate() {
            let e = Entry::read(v, i)?;
            let few = list.len() <= FEW;
            let known = match few {
                true => out.iter().position(|o| o.same_manager(&e)),
                false => places.get(&e.identity()).copied(),
            };
            match known {
                Some(at) => out[at] = e,
                None => {
                    if !few {
                        places.insert(e.identity(), out.len());
                    }
                    out.push(e);
                }
            }
        }
        Ok(Self(out))
    }

    /// Encodes `managedFields` in upstream's order: operation, time, manager, version, subresource. `unchanged` returns the decoded value of an
    /// unchanged entry.
    pub fn encode(mut self, mut unchanged: impl FnMut(usize) -> Value) -> Value {
        self.0.sort_by(|a, b| {
            a.operation
                .cmp(&b.operation)
                .then_with(|| a.time.cmp(&b.time))
                .then_with(|| a.manager.cmp(&b.manager))
                .then_with(|| a.api_version.cmp(&b.api_version))
                .then_with(|| a.subresource.cmp(&b.subresource))
        });
        let mut written = |e: Entry| match e.source {
            Some(i) => unchanged(i),
            None => e.write(),
        };
        Value::Array(self.0.into_iter().map(&mut written).collect())
    }

    /// Merges the oldest entries of operation `Update`, version by version, until their number is within the limit.
    pub(super) fn cap(&mut self) {
        let mut updaters: Vec<usize> =
            (0..self.0.len()).filter(|i| self.0[*i].operation == Operation::Update).collect();
        let mut count = updaters.len();
        if count <= MAX_UPDATE_MANAGERS {
            return;
        }
        updaters.sort_by(|a, b| {
            let (a, b) = (&self.0[*a], &self.0[*b]);
            a.time.cmp(&b.time).then_with(|| a.by_identity(b))
        });
        // By version, in the order in which they are made: what is merged, and the time of the latest.
        let mut buckets: Vec<(Entry, Vec<Set>)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        // The first entry of a version only marks its bucket, which needs two.
        let mut first: HashMap<String, usize> = HashMap::new();
        let mut gone = vec![false; self.0.len()];
        for i in updaters {
            if count <= MAX_UPDATE_MANAGERS {
                break;
            }
            let version = self.0[i].api_version.clone();
            let Some(&f) = first.get(&version) else {
                first.insert(version, i);
                continue;
            };
            let at = match places.get(&version) {
                Some(at) => *at,
                None => {
                    let bucket = Entry::new(ANCIENT, Operation::Update, &version, "");
                    gone[f] = true;
                    buckets.push((bucket, vec![std::mem::take(&mut self.0[f].fields)]));
                    places.insert(version, buckets.len() - 1);
                    buckets.len() - 1
                }
            };
            let fields = std::mem::take(&mut self.0[i].fields);
            buckets[at].1.push(fields);
            // The later of the two.
            buckets[at].0.time.clone_from(&self.0[i].time);
            gone[i] = true;
            count -= 1;
        }
        let mut gone = gone.into_iter();
        self.0.retain(|_| !gone.next().unwrap_or_default());
        let buckets = buckets.into_iter().map(|(mut b, sets)| {
            b.set_fields(|_| Set::union_all(sets));
            b
        });
        for b in buckets {
            match self.0.iter_mut().find(|e| e.same_manager(&b)) {
                Some(old) => {
                    old.set_fields(|s| s.union(b.fields));
                    old.time = b.time;
                }
                None => self.0.push(b),
            }
        }
    }
}
