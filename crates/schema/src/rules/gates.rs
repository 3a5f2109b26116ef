//! Fields behind disabled feature gates (`DropDisabledFields` of upstream's kinds): they are dropped from a written object before validation,
//! unless the gate is enabled.
//! An object that had such a field before keeps it, wherever in the object it is.

use super::Rule;
use crate::types::{Field, Schema, Type};
use meta::{Map, Value};
use std::collections::BTreeSet;

type Members = Map<String, Value>;

/// Names of feature gates.
pub type Gates = BTreeSet<String>;

/// Drops fields behind gates that are not `enabled`, unless the old object has them. Drops a struct that becomes empty.
pub fn leave_out(object: &mut Members, old: Option<&Members>, schema: &Schema, enabled: &Gates) {
    if schema.walk_index().disabled.is_empty() {
        return;
    }
    let mut kept = Vec::new();
    if let Some(old) = old {
        used(old, schema, &mut kept);
    }
    without(object, schema, &Allowed { kept, enabled });
}

/// What is not dropped.
struct Allowed<'s> {
    /// The fields that the old object has.
    kept: Vec<&'s Field>,
    enabled: &'s Gates,
}

impl Allowed<'_> {
    fn has(&self, f: &Field) -> bool {
        let is_on = |r: &Rule| matches!(r, Rule::Off(Some(gate)) if self.enabled.contains(&**gate));
        f.rules.iter().any(is_on) || self.kept.iter().any(|k| std::ptr::eq(*k, f))
    }
}

fn is_gated(f: &Field) -> bool {
    f.rules.iter().any(|r| matches!(r, Rule::Off(_)))
}

/// The fields behind disabled gates that an object has.
fn used<'s>(m: &Members, schema: &'s Schema, found: &mut Vec<&'s Field>) {
    for (f, v) in schema.some_beside(&schema.walk_index().disabled, m.iter()) {
        match (v, f.schema.ty) {
            (None | Some(Value::Null), _) => {}
            _ if is_gated(f) => found.push(f),
            (Some(Value::Object(m)), Type::Struct) => used(m, &f.schema, found),
            (Some(Value::Array(a)), Type::Array) => {
                let Some(items) = f.schema.items.as_deref() else { continue };
                a.iter().filter_map(Value::as_object).for_each(|m| used(m, items, found));
            }
            (Some(Value::Object(m)), Type::Map) => {
                let Some(values) = f.schema.additional.as_deref() else { continue };
                m.values().filter_map(Value::as_object).for_each(|m| used(m, values, found));
            }
            _ => {}
        }
    }
}

fn without(m: &mut Members, schema: &Schema, allowed: &Allowed<'_>) {
    let mut gone = Vec::new();
    for (f, v) in schema.some_beside(&schema.walk_index().disabled, m.iter_mut()) {
        match (v, f.schema.ty) {
            (None, _) => {}
            _ if allowed.has(f) => {}
            _ if is_gated(f) => gone.push(&f.name),
            (Some(Value::Object(m)), Type::Struct) if !m.is_empty() => {
                without(m, &f.schema, allowed);
                if m.is_empty() {
                    gone.push(&f.name);
                }
            }
            (Some(Value::Array(a)), Type::Array) => {
                let Some(items) = f.schema.items.as_deref() else { continue };
                a.iter_mut().filter_map(Value::as_object_mut).for_each(|m| without(m, items, allowed));
            }
            (Some(Value::Object(m)), Type::Map) => {
                let Some(values) = f.schema.additional.as_deref() else { continue };
                m.values_mut().filter_map(Value::as_object_mut).for_each(|m| without(m, values, allowed));
            }
            _ => {}
        }
    }
    for name in gone {
        m.remove(&**name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SchemaRef;
    use serde_json::json;
    use std::sync::Arc;

    fn field(name: &str, schema: Schema, rules: Vec<Rule>) -> Field {
        Field { rules, ..Field::new(name, SchemaRef::Inline(Arc::new(schema))) }
    }

    /// `{lifecycle: {signal: OFF, start}, sources: [{bundle: OFF}], values: {KEY: {bundle: OFF}}}`
    fn schema() -> Schema {
        let of = |fields| Schema { fields, ..Schema::new(Type::Struct) };
        let text = || Schema::new(Type::String);
        let lifecycle =
            of(vec![field("signal", text(), vec![Rule::Off(Some("Signals".into()))]), field("start", text(), vec![])]);
        let source = || Some(SchemaRef::Inline(Arc::new(of(vec![field("bundle", text(), vec![Rule::Off(None)])]))));
        let sources = Schema { items: source(), ..Schema::new(Type::Array) };
        let values = Schema { additional: source(), ..Schema::new(Type::Map) };
        of(vec![
            field("lifecycle", lifecycle, vec![]),
            field("sources", sources, vec![]),
            field("values", values, vec![]),
        ])
    }

    #[test]
    fn what_is_off_is_left_out_unless_it_was_there() {
        let signal = json!({"lifecycle": {"signal": "X"}});
        for (sent, old, left) in [
            (signal.clone(), None, json!({})),
            (json!({"lifecycle": {"signal": "X", "start": "s"}}), None, json!({"lifecycle": {"start": "s"}})),
            (json!({"lifecycle": {}}), None, json!({"lifecycle": {}})),
            (json!({"sources": [{"bundle": "b"}]}), None, json!({"sources": [{}]})),
            (json!({"values": {"a": {"bundle": "b"}}}), None, json!({"values": {"a": {}}})),
            (
                json!({"values": {"a": {"bundle": "b"}}}),
                Some(json!({"values": {"c": {"bundle": "b"}}})),
                json!({"values": {"a": {"bundle": "b"}}}),
            ),
            (json!({"lifecycle": {"signal": "Y"}}), Some(signal.clone()), json!({"lifecycle": {"signal": "Y"}})),
            (json!({"sources": [{"bundle": "b"}]}), Some(signal), json!({"sources": [{}]})),
        ] {
            let mut sent = sent.as_object().cloned().unwrap_or_default();
            leave_out(&mut sent, old.as_ref().and_then(Value::as_object), &schema(), &Gates::new());
            assert_eq!(Value::Object(sent), left);
        }
        let sent = json!({"lifecycle": {"signal": "X"}, "sources": [{"bundle": "b"}]});
        let mut sent = sent.as_object().cloned().unwrap_or_default();
        leave_out(&mut sent, None, &schema(), &Gates::from(["Signals".to_owned()]));
        assert_eq!(Value::Object(sent), json!({"lifecycle": {"signal": "X"}, "sources": [{}]}), "one gate is enabled");
    }
}
