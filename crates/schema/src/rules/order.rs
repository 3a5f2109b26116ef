//! The order of field errors.
//!
//! Rules that are data and rules that are code validate an object one after the other, while upstream validates it once, field by field. Most
//! of its functions follow the order of the type; otherwise the description of the kind defines the order.
//! Invariant: errors of one field keep the order in which they were found. Errors of a struct come after those of its fields, and errors of
//! changes after all others, unless the description names the struct (`.`) or the changes (`+`). Unnamed fields come last, or at `*`.

use crate::types::{Schema, Type};
use meta::FieldError;

const WHOLE: &str = ".";
const CHANGES: &str = "+";
/// Fields that the description does not name; last by default.
const REST: &str = "*";
/// The distance between two named fields, with room for all others.
const STEP: usize = 1 << 17;
/// The position of a struct, or of changes, that the description does not name.
const LAST: usize = usize::MAX;

/// The number of errors of metadata, and of those found before changes were validated.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The number of errors of metadata.
    pub of_metadata: usize,
    /// The number of errors before changes were validated.
    pub before_changes: usize,
}

/// Sorts the errors of an object, except those of metadata at their start. Errors of custom resources keep their order.
pub fn arrange(errors: &mut Vec<FieldError>, found: Found, schema: &Schema) {
    let first = errors.iter().take(found.of_metadata).take_while(|e| e.path.starts_with("metadata")).count();
    if errors.len() < first + 2 || schema.custom {
        return;
    }
    let of_changes = |i: usize| first + i >= found.before_changes;
    let mut all: Vec<(Vec<usize>, FieldError)> = errors
        .drain(first..)
        .enumerate()
        .map(|(i, e)| {
            let path = e.order_path.as_deref().unwrap_or(&e.path);
            (if of_changes(i) { rank_of_change(path, schema) } else { rank(path, schema) }, e)
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    errors.extend(all.into_iter().map(|(_, e)| e));
}

/// The position of an error of a change, if a struct on its path defines one.
fn rank_of_change(path: &str, schema: &Schema) -> Vec<usize> {
    let mut at = Some(schema);
    let mut out = Vec::new();
    for segment in segments(path) {
        let Some(s) = at else { break };
        if let Some(place) = s.order.iter().position(|o| &**o == CHANGES) {
            out.push(place * STEP);
            return out;
        }
        out.push(match &segment {
            Segment::Name(name) => position(s, name, std::slice::from_ref(&segment)).0,
            Segment::Index(i) => *i,
        });
        at = segment.schema_below(Some(s));
    }
    vec![LAST]
}

fn rank(path: &str, schema: &Schema) -> Vec<usize> {
    let segments = segments(path);
    let mut rest = &segments[..];
    let mut at = Some(schema);
    let mut out = Vec::new();
    while let Some(first) = rest.first() {
        match first {
            Segment::Index(i) => {
                out.push(*i);
                at = first.schema_below(at);
                rest = &rest[1..];
            }
            Segment::Name(name) => {
                let Some(s) = at else { return out };
                let (place, taken) = position(s, name, rest);
                out.push(place);
                for segment in &rest[..taken] {
                    at = segment.schema_below(at);
                }
                rest = &rest[taken..];
            }
        }
    }
    if let Some(s) = at.filter(|s| s.ty == Type::Struct) {
        out.push(s.order.iter().position(|o| &**o == WHOLE).map_or(LAST, |i| i * STEP));
    } else {
        out.push(LAST);
    }
    out
}

/// The position of a path in a struct, and how many of its segments define it: those of the longest matching name, or one.
fn position(s: &Schema, name: &str, rest: &[Segment<'_>]) -> (usize, usize) {
    let named = s.order.iter().enumerate().filter_map(|(i, o)| {
        let name = segments(o);
        let fits = name.len() <= rest.len() && name.iter().zip(rest).all(|(s, r)| s.fits(r));
        fits.then_some((i * STEP, name.len()))
    });
    named.max_by_key(|(_, n)| *n).unwrap_or_else(|| {
        let place = s.field(name).map_or(usize::from(u16::MAX), |f| usize::from(f.place));
        let rest = s.order.iter().position(|o| &**o == REST).unwrap_or(s.order.len());
        (rest * STEP + place, 1)
    })
}

enum Segment<'a> {
    Name(&'a str),
    /// An item of a list; keys of maps have no order.
    Index(usize),
}

impl Segment<'_> {
    /// Whether the segment of a path matches this one of the description, where `[]` is any item.
    fn fits(&self, path: &Segment<'_>) -> bool {
        match (self, path) {
            (Self::Name(a), Segment::Name(b)) => a == b,
            (Self::Index(_), Segment::Index(_)) => true,
            _ => false,
        }
    }

    fn schema_below<'s>(&self, schema: Option<&'s Schema>) -> Option<&'s Schema> {
        match self {
            Self::Name(n) => schema?.member(n),
            Self::Index(_) => schema?.items.as_deref().or(schema?.additional.as_deref()),
        }
    }
}

fn segments(path: &str) -> Vec<Segment<'_>> {
    let mut out = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (key, after) = inner.split_once(']').unwrap_or((inner, ""));
            out.push(Segment::Index(key.parse().unwrap_or(0)));
            rest = after;
        } else {
            let rest_of_name = rest.strip_prefix('.').unwrap_or(rest);
            let end = rest_of_name.find(['.', '[']).unwrap_or(rest_of_name.len());
            out.push(Segment::Name(&rest_of_name[..end]));
            rest = &rest_of_name[end..];
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Field, SchemaRef};
    use meta::FieldPath;
    use std::sync::Arc;

    fn ordered(order: &[&str], fields: &[(&str, u16, Schema)]) -> Schema {
        let mut fields: Vec<Field> = fields
            .iter()
            .map(|(n, place, s)| Field { place: *place, ..Field::new(*n, SchemaRef::Inline(Arc::new(s.clone()))) })
            .collect();
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        Schema { fields, order: order.iter().map(|o| (*o).into()).collect(), ..Schema::new(Type::Struct) }
    }

    fn list(of: Schema) -> Schema {
        Schema { items: Some(SchemaRef::Inline(Arc::new(of))), ..Schema::new(Type::Array) }
    }

    fn check(schema: &Schema, found: &[&str], expected: &[&str]) {
        let mut errors: Vec<_> = found.iter().map(|p| FieldError::required(&FieldPath::new(*p), "")).collect();
        arrange(&mut errors, Found { of_metadata: 0, before_changes: found.len() }, schema);
        assert_eq!(errors.iter().map(|e| &*e.path).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn fields_come_as_the_type_is_written_and_the_whole_comes_last() {
        let port = ordered(&[], &[("port", 1, Schema::new(Type::Int32)), ("name", 0, Schema::new(Type::String))]);
        let spec = ordered(&[], &[("type", 1, Schema::new(Type::String)), ("ports", 0, list(port))]);
        check(
            &spec,
            &["type", "ports[10].name", "ports[2]", "ports[2].port", "ports[2].name", "unknown", "ports"],
            &["ports[2].name", "ports[2].port", "ports[2]", "ports[10].name", "ports", "type", "unknown"],
        );
    }

    #[test]
    fn what_is_not_named_stands_where_the_description_says() {
        let scalar = || Schema::new(Type::String);
        let volume = ordered(&["*", ".", "name"], &[("name", 0, scalar()), ("b", 2, scalar()), ("a", 1, scalar())]);
        check(
            &ordered(&[], &[("volumes", 0, list(volume))]),
            &["volumes[0].name", "volumes[0]", "volumes[0].b", "volumes[0].a"],
            &["volumes[0].a", "volumes[0].b", "volumes[0]", "volumes[0].name"],
        );
    }

    #[test]
    fn changes_come_last_unless_the_description_says_where() {
        let scalar = || Schema::new(Type::String);
        let kind =
            |order: &[&str]| ordered(&[], &[("spec", 0, ordered(order, &[("a", 0, scalar()), ("b", 1, scalar())]))]);
        for (order, expected) in
            [(&["a"][..], ["1a", "1b", "1", "2b", "2a"]), (&["a", "+", "b"], ["1a", "2b", "2a", "1b", "1"])]
        {
            let of = |path: &str, why: &str| FieldError::forbidden(&FieldPath::new(path), why);
            let mut errors =
                vec![of("spec", "1"), of("spec.b", "1"), of("spec.a", "1"), of("spec.b", "2"), of("spec.a", "2")];
            arrange(&mut errors, Found { of_metadata: 0, before_changes: 3 }, &kind(order));
            let got = errors
                .iter()
                .map(|e| format!("{}{}", e.detail, e.path.trim_start_matches("spec").trim_start_matches('.')));
            assert_eq!(got.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn the_description_may_say_another_order() {
        let labels = ordered(&[], &[("labels", 0, Schema::new(Type::Map))]);
        let template = ordered(&[], &[("metadata", 0, labels), ("spec", 1, Schema::new(Type::Struct))]);
        let item = ordered(&[], &[("file", 0, Schema::new(Type::String)), ("name", 1, Schema::new(Type::String))]);
        let fields = [
            ("items", 3, list(item)),
            ("selector", 0, Schema::new(Type::Struct)),
            ("template", 1, template),
            ("mode", 2, list(Schema::new(Type::String))),
        ];
        let spec = ordered(&["mode", ".", "template", "selector", "template.metadata.labels", "items[].file"], &fields);
        check(
            &ordered(&[], &[("spec", 0, spec)]),
            &[
                "spec.items[1].name",
                "spec.items[3].file",
                "spec.template.metadata.labels",
                "spec.selector",
                "spec.template.spec",
                "spec",
                "spec.mode",
            ],
            &[
                "spec.mode",
                "spec",
                "spec.template.spec",
                "spec.selector",
                "spec.template.metadata.labels",
                "spec.items[3].file",
                "spec.items[1].name",
            ],
        );
    }
}
