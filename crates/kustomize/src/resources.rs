//! The objects of a build in order, and how they are found.

use crate::Error;
use crate::id::Id;
use crate::kustomization::Selector;
use crate::resource::{Behavior, Resource};
use meta::LabelSelector;
use meta::Value;
use regex::Regex;

/// The objects in order.
#[derive(Clone, Debug, Default)]
pub struct Resources(pub Vec<Resource>);

/// A compiled selector.
pub struct Matcher {
    group: Option<Regex>,
    version: Option<Regex>,
    kind: Option<Regex>,
    name: Option<Regex>,
    namespace: Option<Regex>,
    labels: LabelSelector,
    annotations: LabelSelector,
}

fn anchored(pattern: &str) -> Result<Option<Regex>, Error> {
    if pattern.is_empty() {
        return Ok(None);
    }
    let complete = format!("^(?:{pattern})$");
    Regex::new(&complete).map(Some).map_err(|e| {
        // The last line has the reason, the lines before point at it.
        let why = e.to_string();
        let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Error::text(format!("error parsing regexp: {why}: `{complete}`"))
    })
}

fn fits(pattern: Option<&Regex>, text: &str) -> bool {
    pattern.is_none_or(|p| p.is_match(text))
}

impl Matcher {
    pub fn new(s: &Selector) -> Result<Self, Error> {
        Ok(Self {
            group: anchored(&s.gvk.group)?,
            version: anchored(&s.gvk.version)?,
            kind: anchored(&s.gvk.kind)?,
            name: anchored(&s.name)?,
            namespace: anchored(&s.namespace)?,
            labels: LabelSelector::parse(&s.labels).map_err(Error::text)?,
            annotations: LabelSelector::parse(&s.annotations).map_err(Error::text)?,
        })
    }

    fn fits_kind(&self, id: &Id) -> bool {
        fits(self.group.as_ref(), &id.gvk.group)
            && fits(self.version.as_ref(), &id.gvk.version)
            && fits(self.kind.as_ref(), &id.gvk.kind)
    }

    pub fn fits_id(&self, id: &Id) -> bool {
        self.fits_kind(id) && fits(self.name.as_ref(), &id.name) && fits(self.namespace.as_ref(), &id.namespace)
    }

    pub fn fits_labels(&self, r: &Resource) -> bool {
        let matches = |selector: &LabelSelector, pairs: &[(String, String)]| {
            selector.matches(|key| pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str()))
        };
        matches(&self.labels, &r.strings("labels")) && matches(&self.annotations, &r.strings("annotations"))
    }

    /// Whether the original or the current identity matches.
    pub fn fits(&self, r: &Resource) -> bool {
        let (now, first) = (r.id(), r.original_id());
        let either = |f: &dyn Fn(&Id) -> bool| f(&first) || f(&now);
        either(&|id| fits(self.namespace.as_ref(), id.effective_namespace()))
            && either(&|id| fits(self.name.as_ref(), &id.name))
            && self.fits_kind(&now)
            && self.fits_labels(r)
    }
}

impl Resources {
    /// Adds an object. Errors if its identity exists.
    pub fn append(&mut self, r: Resource) -> Result<(), Error> {
        let id = r.id();
        if self.0.iter().any(|o| o.id().is_same(&id)) {
            return Err(Error::text(format!("may not add resource with an already registered id: {id}")));
        }
        self.0.push(r);
        Ok(())
    }

    pub fn append_all(&mut self, all: Vec<Resource>) -> Result<(), Error> {
        all.into_iter().try_for_each(|r| self.append(r))
    }

    /// Adds a generated object: as a new one, or by replacing or merging with the existing one.
    pub fn add_generated(&mut self, mut new: Resource) -> Result<(), Error> {
        let id = new.id();
        let found = self.by_any_id(|i| i.is_same(&id));
        let [index] = found[..] else {
            if !found.is_empty() {
                return Err(Error::text(format!("found multiple objects that could accept merge of {id}")));
            }
            return match new.behavior {
                Behavior::Merge | Behavior::Replace => {
                    Err(Error::text(format!("id {} does not exist; cannot merge or replace", id.debug())))
                }
                _ => self.append(new),
            };
        };
        let old = &mut self.0[index];
        match new.behavior {
            Behavior::Replace => new.take_metadata(old),
            Behavior::Merge => {
                new.take_metadata(old);
                new.origin = old.origin.take().or(new.origin);
                for field in ["data", "binaryData"] {
                    let mut all = old.object.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
                    let own = new.object.remove(field);
                    all.extend(
                        own.into_iter()
                            .filter_map(|v| match v {
                                Value::Object(m) => Some(m),
                                _ => None,
                            })
                            .flatten(),
                    );
                    if !all.is_empty() {
                        new.object.insert(field.to_owned(), all.into());
                    }
                }
            }
            behavior => {
                return Err(Error::text(format!(
                    "id {} exists; can not use behavior: '{}', behavior must be merge or replace",
                    id.debug(),
                    behavior.text()
                )));
            }
        }
        *old = new;
        Ok(())
    }

    /// Returns the objects with a current or previous identity that matches.
    pub fn by_any_id(&self, matches_id: impl Fn(&Id) -> bool) -> Vec<usize> {
        let all = self.0.iter().enumerate().filter(|(_, r)| !r.is_empty());
        all.filter(|(_, r)| r.ids().iter().any(&matches_id)).map(|(i, _)| i).collect()
    }

    /// Returns the index of the only object with this identity.
    pub fn by_id(&self, id: &Id) -> Result<usize, Error> {
        let why = match self.by_any_id(|i| i.is_same(id))[..] {
            [one] => return Ok(one),
            [] => "no matches",
            _ => "multiple matches",
        };
        Err(Error::text(format!("{why} for Id {id}; failed to find unique target for patch {id}")))
    }

    /// Returns the indices of the objects that a selector matches.
    pub fn select(&self, s: &Selector) -> Result<Vec<usize>, Error> {
        let matcher = Matcher::new(s)?;
        Ok(self.0.iter().enumerate().filter(|(_, r)| matcher.fits(r)).map(|(i, _)| i).collect())
    }

    /// Removes objects that patches have deleted.
    pub fn drop_empty(&mut self) {
        self.0.retain(|r| !r.is_empty());
    }

    /// Checks that no two objects have the same identity.
    pub fn check_unique(&self) -> Result<(), Error> {
        let mut seen: Vec<Id> = Vec::new();
        for r in self.0.iter().filter(|r| !r.is_empty()) {
            let id = r.id();
            if seen.iter().any(|s| s.is_same(&id)) {
                return Err(Error::text(format!("may not add resource with an already registered id: {id}")));
            }
            seen.push(id);
        }
        Ok(())
    }
}
