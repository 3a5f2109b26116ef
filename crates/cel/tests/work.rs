//! What takes far more time than upstream's cost says ends with the error of an exceeded limit, and nothing that is meant does.

use cel::{Budget, Decl, Env, Error, RUNTIME_BUDGET, Shape, Type, Val, Vars};
use serde_json::{Value, json};

struct Given<'a>(&'a Value, Option<&'a Shape>);

impl<'a> Vars<'a> for Given<'a> {
    fn get(&self, _: &str, _: &mut Budget) -> Result<Val<'a>, Error> {
        Ok(Val::json(self.0, self.1))
    }
}

/// Whether an expression has a value; else it ran out of what it may do.
fn ends(text: &str, x: &Value, budget: &mut Budget) -> bool {
    shaped(text, x, None, budget)
}

fn shaped(text: &str, x: &Value, shape: Option<&Shape>, budget: &mut Budget) -> bool {
    let env = Env::default().with("x", Decl::from(Type::Dyn)).with_bindings();
    let program = env.compile(text).unwrap_or_else(|e| panic!("{text}: {e}")).program;
    match program.eval(&Given(x, shape), budget) {
        Ok(_) => true,
        Err(Error::Cost) => false,
        Err(e) => panic!("{text}: {e}"),
    }
}

/// Each of these took seconds or gigabytes, within its cost.
#[test]
fn what_costs_little_and_takes_long_is_cut_off() {
    let long = "é".repeat(400_000);
    let numbers = vec![1; 20_000];
    let texts = |n: usize, size: usize| -> Value {
        (0..n).map(|i| Value::from(format!("{}{i:05}", "y".repeat(size)))).collect()
    };
    let text = json!({"l": numbers, "s": long});
    let lists = json!({"l": texts(900, 2000), "m": texts(900, 2000)});
    let patterns: Value = (0..3000).map(|i| Value::from(format!("\\pL{{{}}}x{i}", 100 + i % 50))).collect();
    let failing: Value =
        (0..3000).map(|i| Value::from(format!("((\\pL{{{i}}}){{900}}){{900}}|(a{{999}}){{999}}"))).collect();
    let cases = [
        ("x.l.all(v, x.s.charAt(399999) == 'é')", &text),
        ("x.l.all(v, size(x.s) > 0)", &text),
        ("x.l.all(v, bool(x.s) || true)", &text),
        ("x.l.all(v, isURL(x.s) || true)", &text),
        ("x.l.all(v, lists.range(1000000).size() > 0)", &text),
        ("x.l.map(v, lists.range(1000000)).size() > 0", &text),
        ("x.l.all(v, '%s'.format([[x.s]]) != '')", &text),
        ("x.l.all(v, x.l == x.m)", &lists),
        ("x.l.all(v, x.l.all(w, w in x.m))", &lists),
        ("x.l.all(v, 'aaaa'.matches(v) || true)", &json!({"l": patterns})),
        ("x.l.all(v, 'aaaa'.matches(v) || true)", &json!({"l": failing})),
        // Each is compiled anew, as the others make it be forgotten.
        ("x.l.all(v, x.m.all(w, 'aaaa'.matches(w)) || true)", &json!({"l": numbers, "m": patterns})),
        (
            "x.l.all(v, x.s.matches(x.p) || true)",
            &json!({"l": numbers, "s": "a".repeat(20_000), "p": "(.{0,100}){0,9}b"}),
        ),
    ];
    for (text, x) in cases {
        let mut budget = Budget::new(RUNTIME_BUDGET);
        assert!(!ends(text, x, &mut budget), "{text}");
        assert!(budget.left() > 0, "{text}: one expression is cut off before all of them are");
    }
    let (text, mut budget, mut times) = ("x.l.all(v, lists.range(1000000).size() > 0)", Budget::new(RUNTIME_BUDGET), 0);
    while budget.left() > 0 {
        assert!(!ends(text, &json!({"l": numbers}), &mut budget));
        times += 1;
        assert!(times < 10, "all together are cut off");
    }
    let bytes = json!({"l": numbers, "b": "QUFB".repeat(100_000)});
    let shape = Shape::Fields(vec![("b".into(), Shape::Bytes)]);
    assert!(!shaped("x.l.all(v, x.b != b'')", &bytes, Some(&shape), &mut Budget::new(RUNTIME_BUDGET)));
}

/// Large objects and rules as people write them, and the longest that upstream's cost allows of some.
#[test]
fn what_is_meant_has_its_value() {
    let names: Value = (0..5000).map(|i| Value::from(format!("name-{i}.example.com"))).collect();
    let items: Value =
        (0..2000).map(|i| json!({"name": format!("n{i}"), "port": i, "text": "é".repeat(200)})).collect();
    let patterns: Value = (0..200).map(|i| Value::from(format!("^[a-z0-9]([-a-z0-9]{{0,{i}}}[a-z0-9])?$"))).collect();
    let x =
        json!({"names": names, "items": items, "patterns": patterns, "s": "é".repeat(1000), "a": "a".repeat(100_000)});
    let label = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\\\\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$";
    for text in [
        format!("x.names.all(n, n.matches('{label}'))"),
        "x.names.distinct().size() == 5000".into(),
        "x.names.all(n, n in ['a', 'b', 'c'] || n.startsWith('name-'))".into(),
        "x.items.all(i, size(i.text) == 200 && i.text.charAt(199) == 'é' && i.text.indexOf('x') < 0)".into(),
        "x.items.all(i, x.patterns.all(p, i.name.matches(p)) || true)".into(),
        "lists.range(1000).all(i, x.s.charAt(i) == 'é')".into(),
        "lists.range(1000).all(i, x.s.substring(i).size() == 1000 - i)".into(),
        "x.a.split('').size() == 100000".into(),
        "x.a.contains('b') || x.a.lastIndexOf('b') < 0".into(),
        "x.items.map(i, i.name).join(',').size() > 0".into(),
        "x.items == x.items && x == x".into(),
        "sets.contains(x.patterns, x.patterns)".into(),
    ] {
        let mut budget = Budget::new(u64::MAX);
        let ended = ends(&text, &x, &mut budget);
        assert!(ended, "{text}");
    }
}

/// Whether something is refused depends on nothing but the expression and the object.
#[test]
fn the_same_evaluation_always_does_the_same_work() {
    let patterns: Value = (0..400).map(|i| Value::from(format!("^\\pL{{{}}}$", i % 300))).collect();
    let x = json!({"l": patterns});
    let left = || {
        let mut budget = Budget::new(RUNTIME_BUDGET);
        let mut ended = 0;
        while ends("x.l.all(v, 'a'.matches(v) || true)", &x, &mut budget) {
            ended += 1;
        }
        ended
    };
    let cold = left();
    assert_eq!(left(), cold, "with patterns that are known");
    ends("[0].all(v, 'b'.matches('b+'))", &x, &mut Budget::new(RUNTIME_BUDGET));
    assert_eq!(std::thread::scope(|s| s.spawn(left).join().unwrap()), cold, "on another thread");
}
