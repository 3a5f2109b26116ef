//! Interns strings that many objects share: names and values of labels, nodes, phases, and whole label sets.

use std::sync::Arc;
use store::Str;

/// Longer strings are not interned: objects rarely share them.
const LONGEST: usize = 128;

type Labels = Arc<[(Str, Str)]>;

#[derive(Default)]
pub(crate) struct Pool {
    texts: meta::Pool<Str>,
    labels: meta::Pool<Labels>,
}

impl Pool {
    pub fn text(&self, text: &str) -> Str {
        if text.len() > LONGEST { text.into() } else { self.texts.get(text, || text.into()) }
    }

    pub fn labels(&self, labels: Vec<(Str, Str)>) -> Labels {
        self.labels.get(&*labels, || labels.as_slice().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_things_are_one_unless_they_are_long() {
        let pool = Pool::default();
        let (a, b) = (pool.text("Running"), pool.text("Running"));
        assert!(Arc::ptr_eq(&a, &b));
        let long = "x".repeat(LONGEST + 1);
        assert!(!Arc::ptr_eq(&pool.text(&long), &pool.text(&long)));
        let set = |text: &str| pool.labels(vec![("app".into(), text.into())]);
        assert!(Arc::ptr_eq(&set("web"), &set("web")) && set("web") != set("db"));
    }
}
