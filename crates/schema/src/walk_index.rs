//! Computes the [`WalkIndex`] of a schema: walks skip the fields that have neither defaults nor rules at any depth.
//!
//! Invariant: computed once per schema, on first use; a schema does not change afterwards.

use crate::rule::Rule;
use crate::types::{Field, Presence, Schema, Type, WalkIndex};
use std::collections::HashSet;

impl Schema {
    /// Whether the schema has defaults, at any depth.
    pub fn has_defaults(&self) -> bool {
        self.walk_index().has_defaults
    }

    pub(crate) fn walk_index(&self) -> &WalkIndex {
        self.walk_index.0.get_or_init(|| Box::new(WalkIndex::new(self)))
    }
}

impl WalkIndex {
    fn new(s: &Schema) -> Self {
        let indexes = |matches: &dyn Fn(&Field) -> bool| -> Vec<u16> {
            (0..).zip(&s.fields).filter(|(_, f)| matches(f)).map(|(i, _)| i).collect()
        };
        Self {
            has_defaults: any_schema(s, &has_default),
            with_default: indexes(&|f| f.fill.is_some()),
            with_defaults_below: indexes(&|f| f.in_milli || any_schema(&f.schema, &has_default)),
            with_rules: indexes(&|f| !f.rules.is_empty() || any_schema(&f.schema, &has_rule)),
            disabled: indexes(&|f| is_disabled(f) || any_schema(&f.schema, &has_disabled)),
            always_written: indexes(&|f| is_always_written(f) || any_schema(&f.schema, &has_always_written)),
        }
    }
}

fn has_default(s: &Schema) -> bool {
    s.fields.iter().any(|f| f.fill.is_some() || f.in_milli)
}

fn has_rule(s: &Schema) -> bool {
    s.fields.iter().any(|f| !f.rules.is_empty())
}

fn is_disabled(f: &Field) -> bool {
    f.rules.iter().any(|r| matches!(r, Rule::Off(_)))
}

fn has_disabled(s: &Schema) -> bool {
    s.fields.iter().any(is_disabled)
}

fn is_always_written(f: &Field) -> bool {
    f.presence == Presence::Always && matches!(f.schema.ty, Type::Array | Type::Any | Type::Raw)
}

fn has_always_written(s: &Schema) -> bool {
    s.fields.iter().any(is_always_written)
}

/// Whether `holds` is true for a schema or any below it. Schemas may be recursive.
fn any_schema(s: &Schema, holds: &dyn Fn(&Schema) -> bool) -> bool {
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
