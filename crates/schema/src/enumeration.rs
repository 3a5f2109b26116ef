//! The enumerated values of a schema, with an index: values are found without comparing them with every other.

use serde_json::Value;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The values of an `enum`, in order, with an index for lookups.
#[derive(Clone, Debug, Default)]
pub struct Enumeration {
    values: Vec<Value>,
    /// Indexes of scalar values, sorted by value.
    sorted: Box<[u32]>,
    /// Hashes and indexes of lists and objects, sorted.
    rest: Box<[(u64, u32)]>,
}

impl Enumeration {
    /// An enumeration of these values.
    pub fn new(values: Vec<Value>) -> Self {
        let indexes = (0..).zip(&values).map(|(i, v)| (i, v.is_array() || v.is_object()));
        let (rest, sorted): (Vec<_>, Vec<_>) = indexes.partition(|(_, compound)| *compound);
        let mut sorted: Box<[u32]> = sorted.into_iter().map(|(i, _)| i).collect();
        let mut rest: Box<[_]> = rest.into_iter().map(|(i, _)| (Self::hash(&values[i as usize]), i)).collect();
        rest.sort_unstable();
        sorted.sort_by(|a, b| Self::order(&values[*a as usize], &values[*b as usize]));
        Self { values, sorted, rest }
    }

    /// Whether there is no enumeration.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Whether a value is in the enumeration. Numbers are compared by value.
    pub fn has(&self, v: &Value) -> bool {
        if v.is_array() || v.is_object() {
            let hash = Self::hash(v);
            let mut same =
                self.rest[self.rest.partition_point(|(h, _)| *h < hash)..].iter().take_while(|(h, _)| *h == hash);
            return same.any(|(_, i)| self.values[*i as usize] == *v);
        }
        self.sorted.binary_search_by(|i| Self::order(&self.values[*i as usize], v)).is_ok()
    }

    /// The values as error messages list them.
    pub fn texts(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.values.iter().map(|v| v.as_str().map_or_else(|| v.to_string().into(), Cow::Borrowed))
    }

    fn hash(v: &Value) -> u64 {
        let mut hasher = DefaultHasher::new();
        v.hash(&mut hasher);
        hasher.finish()
    }

    fn order(a: &Value, b: &Value) -> Ordering {
        let kind = |v: &Value| match v {
            Value::Null => 0,
            Value::Bool(_) => 1,
            Value::Number(_) => 2,
            _ => 3,
        };
        match (a, b) {
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
            (a, b) => kind(a).cmp(&kind(b)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn enumerated_values_are_found() {
        let values = json!(["b", "a", 1, 2.5, true, null, {"k": 1}, [1], "c"]);
        let allowed = Enumeration::new(values.as_array().cloned().unwrap());
        for v in values.as_array().unwrap().iter().chain([&json!(1.0)]) {
            assert!(allowed.has(v), "{v}");
        }
        for v in [json!("d"), json!(2), json!(false), json!({"k": 2}), json!([]), json!("1")] {
            assert!(!allowed.has(&v), "{v}");
        }
        assert_eq!(allowed.texts().take(3).collect::<Vec<_>>(), ["b", "a", "1"]);
        assert!(Enumeration::new(Vec::new()).is_empty());
        // Ten requests that held small objects against 100,000 stopped the API for half a minute.
        let many = Enumeration::new((0..100_000).map(|i| json!({"a": i})).collect());
        assert!((0..100_000).all(|i| many.has(&json!({"a": i})) && !many.has(&json!({"b": i}))));
    }
}
