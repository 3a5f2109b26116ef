//! Table tests of validation: each case changes one field of an object and lists the rendered errors of the write.
//! Errors of common metadata are the registry's, and not included.

use crate::core::pod::Pod;
use meta::time::Clock;
use meta::{Object, Rng, Value};
use registry::{Registry, Rows, Strategy};
use serde_json::json;
use std::sync::Arc;
use store::{Memory, Options, Retention, Store};

/// A JSON pointer (empty: no change), the new value, and the expected errors. A `…` in an error stands for any text.
pub type Case<'a> = (&'a str, Value, &'a [&'a str]);

/// Validates the creation of `base`, with the field of each case set.
pub fn check_create(strategy: &dyn Strategy, base: &Value, cases: &[Case<'_>]) {
    check(cases, |pointer, value| errors(strategy, &read(strategy, with(base, pointer, value)), None));
}

/// Validates an update of `old` that sets the field of each case.
pub fn check_update(strategy: &dyn Strategy, old: &Value, cases: &[Case<'_>]) {
    check(cases, |pointer, value| {
        errors(strategy, &read(strategy, with(old, pointer, value)), Some(&read(strategy, old.clone())))
    });
}

/// Validates a status update of `old` that sets the field of each case.
pub fn check_status(strategy: &dyn Strategy, old: &Value, cases: &[Case<'_>]) {
    check(cases, |pointer, value| {
        let (object, old) = (read(strategy, with(old, pointer, value)), read(strategy, old.clone()));
        let mut errors = Vec::new();
        strategy.validate_part("status", &object, &old, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    });
}

/// Validates a write of a subresource of `old`: each case sets a field of the whole object, of which the subresource
/// takes its part.
pub fn check_part(strategy: &dyn Strategy, subresource: &str, old: &Value, cases: &[Case<'_>]) {
    check(cases, |pointer, value| {
        let (mut object, old) = (read(strategy, with(old, pointer, value)), read(strategy, old.clone()));
        strategy.take_part(subresource, &mut object, &old);
        let mut errors = Vec::new();
        strategy.validate_part(subresource, &object, &old, &mut errors);
        schema::rules::ratchet(errors, &old.0).iter().map(ToString::to_string).collect()
    });
}

/// Validates the creation of a pod with the field of each case set; pointers and paths of errors are relative to its
/// spec.
pub fn check_pod_spec(cases: &[Case<'_>]) {
    let base = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    check(cases, |pointer, value| {
        let pointer = if pointer.is_empty() { String::new() } else { format!("/spec{pointer}") };
        let object = read(&Pod, with(&base, &pointer, value));
        let relative = |e: String| e.strip_prefix("spec.").map(str::to_owned).unwrap_or(e);
        errors(&Pod, &object, None).into_iter().map(relative).collect()
    });
}

/// Panics with all cases whose errors are not the expected ones.
fn check(cases: &[Case<'_>], errors: impl Fn(&str, &Value) -> Vec<String>) {
    let mut failures = Vec::new();
    for (pointer, value, expected) in cases {
        let errors = errors(pointer, value);
        let fits = |(error, expected): (&String, &&str)| match expected.split_once('…') {
            Some((start, end)) => error.starts_with(start) && error.ends_with(end),
            None => error == expected,
        };
        let same = errors.len() == expected.len() && errors.iter().zip(*expected).all(fits);
        if !same {
            failures.push(format!("{pointer} {value}\nerrors {errors:#?}\nexpected {expected:#?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Returns the field at a JSON pointer, which is created if absent, also as the next item of a list.
pub fn field<'a>(object: &'a mut Value, pointer: &str) -> &'a mut Value {
    pointer.split('/').skip(1).fold(object, |at, name| match name.parse::<usize>() {
        Ok(i) if at.is_array() => {
            let items = at.as_array_mut().expect("an array");
            if i == items.len() {
                items.push(Value::Null);
            }
            &mut items[i]
        }
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

/// Reads an object as the server does: with the types and defaults of its kind.
pub fn read(strategy: &dyn Strategy, sent: Value) -> Object {
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

/// A clock that stands still, and random numbers that are all zero.
struct Fixed;

impl Clock for Fixed {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }
}

impl Rng for Fixed {
    fn next_u64(&self) -> u64 {
        0
    }
}

/// Returns a registry without kinds and with an empty store in memory.
pub async fn empty_registry() -> Registry {
    let options = Options {
        index: stored::encode::index_fn(Default::default()),
        transform: None,
        retention: Retention::default(),
        clock: Arc::new(|| 0),
    };
    let store = Store::open(Memory::new(), options).await.expect("a store in memory");
    Registry::new(store, Arc::new(Fixed), Arc::new(Fixed), Rows::default())
}
