//! Table tests of validation: each case changes one field of an object and lists the rendered errors of the write.
//! Errors of common metadata are the registry's, and not included.

use meta::{Object, Value};
use registry::Strategy;

/// A JSON pointer (empty: no change), the new value, and the expected errors. An error that ends with `…` is a prefix.
pub type Case<'a> = (&'a str, Value, &'a [&'a str]);

/// Validates the creation of `base`, with the field of each case set.
pub fn check_create(strategy: &dyn Strategy, base: &Value, cases: &[Case<'_>]) {
    for (pointer, value, expected) in cases {
        let object = read(strategy, with(base, pointer, value));
        compare(&errors(strategy, &object, None), expected, pointer, value);
    }
}

/// Validates an update of `old` that sets the field of each case.
pub fn check_update(strategy: &dyn Strategy, old: &Value, cases: &[Case<'_>]) {
    for (pointer, value, expected) in cases {
        let object = read(strategy, with(old, pointer, value));
        compare(&errors(strategy, &object, Some(&read(strategy, old.clone()))), expected, pointer, value);
    }
}

fn compare(errors: &[String], expected: &[&str], pointer: &str, value: &Value) {
    let fits = |(error, expected): (&String, &&str)| match expected.strip_suffix('…') {
        Some(beginning) => error.starts_with(beginning),
        None => error == expected,
    };
    let same = errors.len() == expected.len() && errors.iter().zip(expected).all(fits);
    assert!(same, "{pointer} {value}\nerrors {errors:#?}\nexpected {expected:#?}");
}

/// Returns the field at a JSON pointer, which is created if absent.
pub fn field<'a>(object: &'a mut Value, pointer: &str) -> &'a mut Value {
    pointer.split('/').skip(1).fold(object, |at, name| match name.parse::<usize>() {
        Ok(i) if at.is_array() => &mut at[i],
        _ => &mut at[name],
    })
}

fn with(base: &Value, pointer: &str, value: &Value) -> Value {
    let mut object = base.clone();
    if !pointer.is_empty() {
        *field(&mut object, pointer) = value.clone();
    }
    object
}

fn schema_of(object: &Object) -> &'static schema::Schema {
    kinds::catalog().schema_of(&object.gvk().expect("a kind")).expect("a kind of the catalog")
}

fn read(strategy: &dyn Strategy, sent: Value) -> Object {
    let schema = schema_of(&Object::from_value(sent.clone()).expect("an object"));
    let mut value = sent;
    schema::typed(&mut value, schema).expect("the types of the kind");
    schema::fill(&mut value, schema);
    let mut object = Object::from_value(value).expect("an object");
    strategy.default(&mut object);
    object
}

fn errors(strategy: &dyn Strategy, object: &Object, old: Option<&Object>) -> Vec<String> {
    let schema = schema_of(object);
    let mut errors = Vec::new();
    schema::rules::validate(&object.0, schema, &mut errors);
    strategy.validate(object, &mut errors);
    strategy.validate_since(object, old, &mut errors);
    let found = schema::rules::Found { of_metadata: 0, before_changes: errors.len() };
    schema::rules::arrange(&mut errors, found, schema);
    if let Some(old) = old {
        schema::rules::validate_update(&object.0, &old.0, schema, &mut errors);
        strategy.validate_update(object, old, &mut errors);
        schema::rules::arrange(&mut errors, found, schema);
    }
    errors.iter().map(ToString::to_string).collect()
}
