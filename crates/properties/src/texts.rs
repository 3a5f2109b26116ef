//! Properties of text formats and protobuf messages.

use cel::{Budget, Env, Error, Type, Val, Vars};
use codec::json::Html;
use meta::{FieldSelector, GroupVersion, LabelSelector, Object, Quantity, Value};
use std::cmp::Ordering;

/// Deeper texts need a larger stack than a fuzzer has.
const DEPTH: usize = 200;

/// A decoded JSON text encodes to one that decodes to the same value, with and without HTML escapes.
pub fn json(data: &[u8]) {
    if meta::depth::of_text(data) > DEPTH {
        return;
    }
    let Ok(read) = schema::decode::decode(data) else { return };
    for html in [Html::Escape, Html::Keep] {
        let written = codec::json::to_vec(&read.value, html);
        let again = schema::decode::decode(&written);
        assert!(again.is_ok_and(|a| same(&a.value, &read.value) && a.duplicates.is_empty()), "{}", read.value);
    }
}

/// A parsed YAML document prints as one that parses to the same value.
pub fn yaml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(documents) = codec::yaml::parse(text) else { return };
    for document in documents {
        let written = codec::yaml::to_string(&document);
        let again = codec::yaml::parse(&written);
        assert!(
            again.as_ref().is_ok_and(|a| a.len() == 1 && same(&a[0], &document) || a.is_empty() && document.is_null()),
            "{document}\n{written}\n{again:?}"
        );
    }
}

/// A decoded protobuf message encodes to one that decodes to the same object.
pub fn protobuf(data: &[u8]) {
    let schema_of = |api_version: &str, kind: &str| {
        kinds::catalog().schema_of(&GroupVersion::parse(api_version)?.with_kind(kind)).map(|s| &**s)
    };
    let Ok(read) = codec::protobuf::decode(data, schema_of) else { return };
    let Some(schema) = schema_of(read.api_version(), read.kind()) else { return };
    let Ok(written) = codec::protobuf::encode(&read, schema) else { return };
    let again = codec::protobuf::decode(&written, schema_of);
    let again_written = again.as_ref().ok().and_then(|o: &Object| codec::protobuf::encode(o, schema).ok());
    assert_eq!(again_written, Some(written), "{read:?}\n{again:?}");
}

/// A parsed selector prints as one that parses to an equal selector.
pub fn selectors(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(read) = LabelSelector::parse(text) {
        assert_eq!(LabelSelector::parse(&read.to_string()).as_ref(), Ok(&read), "{text:?} {read}");
    }
    if let Ok(read) = FieldSelector::parse(text) {
        assert_eq!(FieldSelector::parse(&read.to_string()).as_ref(), Ok(&read), "{text:?} {read}");
    }
}

/// A parsed quantity prints as one that parses to an equal quantity, and comparison is a total order.
pub fn quantities(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let all: Vec<Quantity> = text.split(' ').filter_map(|t| Quantity::parse(t).ok()).take(3).collect();
    for q in &all {
        let printed = q.to_string();
        let again = Quantity::parse(&printed);
        assert!(again.as_ref().is_ok_and(|a| a == q && a.to_string() == printed), "{q:?} {printed} {again:?}");
        let _ = (q.value(), q.milli_value(), q.nano_value(), q.sign());
    }
    if let [a, b, c] = &all[..] {
        assert_eq!(a.cmp(b), b.cmp(a).reverse());
        if a.cmp(b) == b.cmp(c) && a.cmp(b) != Ordering::Equal {
            assert_eq!(a.cmp(c), a.cmp(b));
        }
    }
}

struct OneObject<'a>(&'a Value);

impl<'a> Vars<'a> for OneObject<'a> {
    fn get(&self, name: &str, _: &mut Budget) -> Result<Val<'a>, Error> {
        match name {
            "object" => Ok(Val::json(self.0, None)),
            _ => Err(Error::Fault(format!("no such variable: {name}"))),
        }
    }
}

/// An expression is rejected with errors, or evaluates twice to the same value. The first line is the expression, the rest the object.
pub fn cel(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (expression, object) = text.split_once('\n').unwrap_or((text, "{}"));
    let object: Value = serde_json::from_str(object).unwrap_or_default();
    let compiled = match Env::default().with("object", Type::Dyn).with_bindings().compile(expression) {
        Ok(compiled) => compiled,
        Err(issues) => {
            assert!(issues.to_string().starts_with("ERROR: "), "{expression}");
            return;
        }
    };
    let value = || {
        let result = compiled.program.eval(&OneObject(&object), &mut Budget::new(100_000));
        result.and_then(|v| v.to_json().map_err(Error::Fault)).map(|v| v.to_string())
    };
    assert_eq!(value(), value(), "{expression}");
}

/// Equal, numbers by value: `1.0` is written `1`.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64(),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(k, v)| y.get(k).is_some_and(|w| same(v, w)))
        }
        _ => a == b,
    }
}
