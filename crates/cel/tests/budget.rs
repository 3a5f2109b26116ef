//! Whatever is written, its evaluation ends, and spends no more than it was given.

use cel::{Budget, Env, Error, Type, Val, Vars};
use proptest::prelude::*;
use serde_json::{Value, json};

struct Given<'a>(&'a Value);

impl<'a> Vars<'a> for Given<'a> {
    fn get(&self, _: &str, _: &mut Budget) -> Result<Val<'a>, Error> {
        Ok(Val::json(self.0, None))
    }
}

/// Expressions out of parts that grow what they are given.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("x".to_owned()),
        Just("x.l".to_owned()),
        Just("x.s".to_owned()),
        Just("1".to_owned()),
        Just("'abc'".to_owned()),
        Just("[1, 2]".to_owned()),
    ];
    leaf.prop_recursive(6, 40, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("dyn({a}) + dyn({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("dyn({a}).map(v, {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("dyn({a}).all(v, dyn({b}) == v)")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("cel.bind(x, {a}, {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("dyn({a}).replace('', dyn({b}))")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("dyn({a}).transformMap(k, v, {b})")),
            inner.clone().prop_map(|a| format!("dyn({a}).flatten()")),
            inner.clone().prop_map(|a| format!("[dyn({a}), dyn({a})]")),
            inner.prop_map(|a| format!("dyn({a}).join(x.s)")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn evaluation_ends_within_its_budget(text in expression(), total in 0_u64..200_000) {
        let x = json!({"l": (0..50).collect::<Vec<_>>(), "s": "0123456789"});
        let env = Env::default().with("x", Type::Dyn).with_bindings();
        if let Ok(c) = env.compile(&text) {
            let mut budget = Budget::new(total);
            let before = budget.left();
            let _ = c.program.eval(&Given(&x), &mut budget);
            prop_assert!(budget.left() <= before);
        }
    }
}
