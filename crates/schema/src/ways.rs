//! Where walks over a schema have something to do. Most fields have no default, no rule and nothing below that has; whoever
//! looks for these is led past them.
//!
//! Invariant: it is found out once per schema, when it is first asked for, and a schema is not changed after that. A clone may
//! be, and forgets.

use crate::rules::Rule;
use crate::types::{Field, Presence, Schema, Type};
use std::collections::HashSet;
use std::sync::OnceLock;

#[derive(Debug, Default)]
pub struct Ways(OnceLock<Box<Found>>);

/// Places are those in [`Schema::fields`], in order.
#[derive(Debug)]
pub(crate) struct Found {
    /// Whether filling in defaults changes anything, here or below.
    pub fills: bool,
    /// Fields with a default of their own.
    pub filled: Vec<u16>,
    /// Fields below which there are defaults.
    pub fills_below: Vec<u16>,
    /// Fields with rules, or with rules below.
    pub ruled: Vec<u16>,
    /// Fields behind a gate that is off, or with such below.
    pub off: Vec<u16>,
    /// Fields that are lists which are always written, or have such below.
    pub settled: Vec<u16>,
}

impl Clone for Ways {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Schema {
    /// Whether filling in defaults changes anything.
    pub fn has_defaults(&self) -> bool {
        self.ways().fills
    }

    pub(crate) fn ways(&self) -> &Found {
        self.ways.0.get_or_init(|| Box::new(Found::of(self)))
    }
}

impl Found {
    fn of(s: &Schema) -> Self {
        let places = |wanted: &dyn Fn(&Field) -> bool| -> Vec<u16> {
            (0..).zip(&s.fields).filter(|(_, f)| wanted(f)).map(|(i, _)| i).collect()
        };
        Self {
            fills: below(s, &fills),
            filled: places(&|f| f.fill.is_some()),
            fills_below: places(&|f| below(&f.schema, &fills)),
            ruled: places(&|f| !f.rules.is_empty() || below(&f.schema, &rules)),
            off: places(&|f| f.rules.contains(&Rule::Off) || below(&f.schema, &is_off)),
            settled: places(&|f| is_list(f) || below(&f.schema, &settles)),
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

/// Whether something is true of a schema or of any that it leads to. Schemas lead back to themselves.
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
