//! Shortcuts for walks over a schema: most fields have neither defaults nor rules, at any depth, and are skipped.
//!
//! Invariant: computed once per schema, on first use; a schema does not change afterwards. A clone may change, and computes its own.

use crate::rules::Rule;
use crate::types::{Field, Presence, Schema, Type};
use std::collections::HashSet;
use std::sync::OnceLock;

#[derive(Debug, Default)]
pub struct Ways(OnceLock<Box<Found>>);

/// Fields are given by their sorted indexes in [`Schema::fields`].
#[derive(Debug)]
pub(crate) struct Found {
    /// Whether the schema has defaults, at any depth.
    pub fills: bool,
    /// Fields with a default of their own.
    pub filled: Vec<u16>,
    /// Fields that have defaults below.
    pub fills_below: Vec<u16>,
    /// Fields with rules, at any depth.
    pub ruled: Vec<u16>,
    /// Fields behind a disabled feature gate, at any depth.
    pub off: Vec<u16>,
    /// Lists that are always written, at any depth.
    pub settled: Vec<u16>,
}

impl Clone for Ways {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Schema {
    /// Whether the schema has defaults, at any depth.
    pub fn has_defaults(&self) -> bool {
        self.ways().fills
    }

    pub(crate) fn ways(&self) -> &Found {
        self.ways.0.get_or_init(|| Box::new(Found::new(self)))
    }
}

impl Found {
    fn new(s: &Schema) -> Self {
        let indexes = |matches: &dyn Fn(&Field) -> bool| -> Vec<u16> {
            (0..).zip(&s.fields).filter(|(_, f)| matches(f)).map(|(i, _)| i).collect()
        };
        Self {
            fills: below(s, &fills),
            filled: indexes(&|f| f.fill.is_some()),
            fills_below: indexes(&|f| below(&f.schema, &fills)),
            ruled: indexes(&|f| !f.rules.is_empty() || below(&f.schema, &rules)),
            off: indexes(&|f| f.rules.contains(&Rule::Off) || below(&f.schema, &is_off)),
            settled: indexes(&|f| is_list(f) || below(&f.schema, &settles)),
        }
    }
}

fn fills(s: &Schema) -> bool {
    // Amounts are rounded up.
    let amounts = s.ty == Type::Map && s.additional.as_ref().is_some_and(|a| a.ty == Type::Quantity);
    amounts || s.fields.iter().any(|f| f.fill.is_some())
}

fn rules(s: &Schema) -> bool {
    s.fields.iter().any(|f| !f.rules.is_empty())
}

fn is_off(s: &Schema) -> bool {
    s.fields.iter().any(|f| f.rules.contains(&Rule::Off))
}

fn settles(s: &Schema) -> bool {
    s.fields.iter().any(is_list)
}

fn is_list(f: &Field) -> bool {
    f.presence == Presence::Always && matches!(f.schema.ty, Type::Array | Type::Any | Type::Raw)
}

/// Whether `holds` is true for a schema or any below it. Schemas may be recursive.
fn below(s: &Schema, holds: &dyn Fn(&Schema) -> bool) -> bool {
    let (mut seen, mut left) = (HashSet::new(), vec![s]);
    while let Some(s) = left.pop() {
        if !seen.insert(std::ptr::from_ref(s)) {
            continue;
        }
        if holds(s) {
            return true;
        }
        left.extend(s.fields.iter().map(|f| f.schema.get()));
        left.extend(s.items.iter().chain(&s.additional).map(|s| s.get()));
    }
    false
}
