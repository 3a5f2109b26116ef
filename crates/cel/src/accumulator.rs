//! The accumulator of a loop.

use crate::error::Error;
use crate::node::LoopKind;
use crate::value::{Key, List, Map, Val};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The result of a loop so far.
pub(crate) struct Accumulator<'a> {
    kind: LoopKind,
    list: Vec<Val<'a>>,
    map: BTreeMap<Key<'a>, Val<'a>>,
    hits: u64,
    /// The last error. `all` and `exists` may still be decided by another item.
    failed: Option<Error>,
    decided: Option<bool>,
}

impl<'a> Accumulator<'a> {
    pub fn new(kind: LoopKind) -> Self {
        Self { kind, list: Vec::new(), map: BTreeMap::new(), hits: 0, failed: None, decided: None }
    }

    pub fn take(&mut self, key: Option<Val<'a>>, item: Val<'a>, v: Val<'a>) -> Result<bool, Error> {
        match (self.kind, v) {
            (LoopKind::All, Val::Bool(b)) | (LoopKind::Exists, Val::Bool(b)) => {
                let decides = self.kind == LoopKind::Exists;
                if b == decides {
                    self.decided = Some(b);
                }
                return Ok(b != decides);
            }
            (LoopKind::All | LoopKind::Exists, _) => return self.fail(Error::NoOverload),
            (LoopKind::ExistsOne, Val::Bool(b)) => self.hits += u64::from(b),
            (LoopKind::Filter, Val::Bool(b)) => self.list.extend(b.then_some(item)),
            (LoopKind::ExistsOne | LoopKind::Filter, _) => return Err(Error::NoOverload),
            (LoopKind::Map, v) => self.list.push(v),
            (LoopKind::TransformMap, v) => {
                let Some(key) = key.as_ref().and_then(Key::new) else {
                    return Err(Error::NoOverload);
                };
                self.map.insert(key, v);
            }
            (LoopKind::TransformMapEntry, Val::Map(m)) => {
                for (k, v) in m.iter() {
                    let Some(key) = Key::new(&k) else { return Err(Error::NoOverload) };
                    if self.map.insert(key, v).is_some() {
                        return Err(Error::Fault("insert failed: key already exists".into()));
                    }
                }
            }
            (LoopKind::TransformMapEntry, _) => return Err(Error::NoOverload),
        }
        Ok(true)
    }

    pub fn fail(&mut self, e: Error) -> Result<bool, Error> {
        match self.kind {
            LoopKind::All | LoopKind::Exists if e != Error::Cost => {
                self.failed = Some(e);
                Ok(true)
            }
            _ => Err(e),
        }
    }

    pub fn finish(self) -> Result<Val<'a>, Error> {
        match (self.kind, self.decided, self.failed) {
            (LoopKind::All | LoopKind::Exists, Some(b), _) => Ok(Val::Bool(b)),
            (LoopKind::All | LoopKind::Exists, None, Some(e)) => Err(e),
            (LoopKind::All | LoopKind::Exists, None, None) => Ok(Val::Bool(self.kind == LoopKind::All)),
            (LoopKind::ExistsOne, ..) => Ok(Val::Bool(self.hits == 1)),
            (LoopKind::Map | LoopKind::Filter, ..) => Ok(Val::List(List::Own(Rc::new(self.list)))),
            (LoopKind::TransformMap | LoopKind::TransformMapEntry, ..) => Ok(Val::Map(Map::Own(Rc::new(self.map)))),
        }
    }
}
