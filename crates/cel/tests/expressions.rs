//! Expressions, and what becomes of them.

use cel::{Budget, Decl, Env, Error, Field, Object, Range, Shape, Type, Val, Vars};
use serde_json::{Value, json};
use std::sync::Arc;

struct Given<'a>(&'a Value, Option<&'a Shape>);

impl<'a> Vars<'a> for Given<'a> {
    fn get(&self, name: &str, _: &mut Budget) -> Result<Val<'a>, Error> {
        match name {
            "x" => Ok(Val::json(self.0, self.1)),
            n => Err(Error::Fault(format!("no such attribute: {n}"))),
        }
    }
}

/// The value of an expression over `x`, of any type, as JSON; or what is wrong, behind an exclamation mark.
fn value(text: &str, x: &Value) -> Value {
    let compiled = match Env::default().with("x", Type::Dyn).with_bindings().compile(text) {
        Ok(c) => c,
        Err(e) => return format!("!{}", e.issues[0].message).into(),
    };
    match compiled.program.eval(&Given(x, None), &mut Budget::new(10_000_000)) {
        Ok(v) => v.to_json().unwrap_or_else(|e| format!("!{e}").into()),
        Err(e) => format!("!{e}").into(),
    }
}

fn check(cases: &[(&str, Value)]) {
    let x = json!({
        "a": [1, 2, 3],
        "m": {"k": "v", "l": "w"},
        "s": "kemudi",
        "n": 3,
        "d": 1.5,
        "none": null,
        "deep": {"er": {"still": true}},
        "items": [{"name": "a", "n": 1}, {"name": "b", "n": 2}],
    });
    for (text, expect) in cases {
        assert_eq!(value(text, &x), *expect, "{text}");
    }
}

#[test]
fn numbers_keep_their_types() {
    check(&[
        ("1 + 2 * 3 == 7", json!(true)),
        ("type(x.n) == int", json!(true)),
        ("type(x.d) == double", json!(true)),
        ("x.n == 3.0", json!(true)),
        ("x.n < 3.5 && 3u >= 3", json!(true)),
        ("7 / 2", json!(3)),
        ("-7 / 2", json!(-3)),
        ("-7 % 3", json!(-1)),
        ("7.0 / 2.0", json!(3.5)),
        ("1 / 0", json!("!division by zero")),
        ("1 % 0", json!("!modulus by zero")),
        ("9223372036854775807 + 1", json!("!integer overflow")),
        ("0u - 1u", json!("!unsigned integer overflow")),
        ("int('12') + int(3.9)", json!(15)),
        ("double('1e3')", json!(1000.0)),
        ("int('x')", json!("!strconv.ParseInt: parsing \"x\": invalid syntax")),
        ("string(1.0) + string(true) + string(2u)", json!("1true2")),
        ("1 + 'a'", json!("!found no matching overload for '_+_' applied to '(int, string)'")),
        ("1 == 'a'", json!("!found no matching overload for '_==_' applied to '(int, string)'")),
        ("x.n + 'a'", json!("!no such overload")),
        ("1 + 1u", json!("!found no matching overload for '_+_' applied to '(int, uint)'")),
    ]);
}

#[test]
fn fields_and_what_is_missing() {
    check(&[
        ("x.m.k", json!("v")),
        ("x.m['l']", json!("w")),
        ("x.a[1]", json!(2)),
        ("x.m.z", json!("!no such key: z")),
        ("x.a[7]", json!("!index out of bounds: 7")),
        ("has(x.m.z) || has(x.m.k)", json!(true)),
        ("x.?m.?z.orValue('none')", json!("none")),
        ("x.?deep.er.still.value()", json!(true)),
        ("x.m[?'k'].hasValue()", json!(true)),
        ("x.?m.z.optMap(v, v + '!').orValue('-')", json!("-")),
        ("optional.of(1).optFlatMap(v, optional.none()).hasValue()", json!(false)),
        ("optional.none().value()", json!("!optional.none() dereference")),
        ("[1, ?x.?z, 2]", json!([1, 2])),
        ("{'a': 1, ?'b': x.?z}", json!({"a": 1})),
        ("x.none == null", json!(true)),
        ("x.n.foo", json!("!no such overload")),
        ("y", json!("!undeclared reference to 'y' (in container '')")),
        ("nothing(1)", json!("!undeclared reference to 'nothing' (in container '')")),
        ("has(x)", json!("!invalid argument to has() macro")),
        ("'a'.b", json!("!type 'string' does not support field selection")),
        ("{'a': 1, 'a': 2}", json!("!Failed with repeated key")),
        ("[1, 'a']", json!("!expected type 'int' but found 'string'")),
    ]);
}

#[test]
fn one_side_may_decide() {
    check(&[
        ("1 / 0 > 1 || true", json!(true)),
        ("false && 1 / 0 > 1", json!(false)),
        ("1 / 0 > 1 && true", json!("!division by zero")),
        ("true ? 1 : 1 / 0", json!(1)),
        ("x.a.exists(i, i / (i - 2) > 1)", json!(true)),
        ("x.a.all(i, i / (i - 2) > 100)", json!(false)),
    ]);
}

#[test]
fn loops() {
    check(&[
        ("x.a.all(i, i > 0)", json!(true)),
        ("x.a.exists_one(i, i > 2) && x.a.existsOne(i, i == 1)", json!(true)),
        ("x.a.map(i, i * 2)", json!([2, 4, 6])),
        ("x.a.map(i, i > 1, i * 2)", json!([4, 6])),
        ("x.a.filter(i, i % 2 == 1)", json!([1, 3])),
        ("x.m.all(k, k in ['k', 'l'])", json!(true)),
        ("x.m.map(k, x.m[k])", json!(["v", "w"])),
        ("x.a.all(i, v, v == i + 1)", json!(true)),
        ("x.m.exists(k, v, v == 'w')", json!(true)),
        ("x.a.transformList(i, v, i * v)", json!([0, 2, 6])),
        ("x.m.transformList(k, v, v == 'w', k + v)", json!(["lw"])),
        ("x.m.transformMap(k, v, k + v)", json!({"k": "kv", "l": "lw"})),
        ("x.m.transformMapEntry(k, v, {v: k})", json!({"v": "k", "w": "l"})),
        ("x.items.map(i, x.a.map(j, i.n * j))", json!([[1, 2, 3], [2, 4, 6]])),
        ("cel.bind(v, x.n, v * v)", json!(9)),
        ("x.items.sortBy(i, -i.n).map(i, i.name)", json!(["b", "a"])),
        (
            "5.all(i, true)",
            json!("!expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)"),
        ),
        ("[1].all(i, i)", json!("!found no matching overload for '_&&_' applied to '(bool, int)'")),
        ("[1].map(i + 1, i)", json!("!argument is not an identifier")),
        ("[1].all(i.j, true)", json!("!argument must be a simple name")),
        ("[1].all(i, i, true)", json!("!duplicate variable name: i")),
        ("[1].map(__result__, 1)", json!("!iteration variable overwrites accumulator variable")),
    ]);
}

#[test]
fn texts() {
    check(&[
        ("x.s.startsWith('kem') && x.s.endsWith('di') && x.s.contains('mu')", json!(true)),
        ("x.s.charAt(1) + x.s.substring(2) + x.s.substring(0, 2)", json!("emudike")),
        ("x.s.substring(9)", json!("!index out of range: 9")),
        ("x.s.substring(3, 2)", json!("!invalid substring range. start: 3, end: 2")),
        ("'a,b,c'.split(',')", json!(["a", "b", "c"])),
        ("'a,b,c'.split(',', 2)", json!(["a", "b,c"])),
        ("'abc'.split('')", json!(["a", "b", "c"])),
        ("['a', 'b'].join('-') + ['x'].join()", json!("a-bx")),
        ("'aXbX'.replace('X', '-') + 'aXbX'.replace('X', '-', 1)", json!("a-b-a-bX")),
        ("'Ab'.lowerAscii() + 'Ab'.upperAscii() + '  t '.trim()", json!("abABt")),
        ("'banana'.indexOf('an') + 10 * 'banana'.lastIndexOf('an') + 100 * 'banana'.indexOf('z')", json!(-69)),
        ("'banana'.indexOf('an', 2)", json!(3)),
        ("size('héllo') + 'héllo'.size()", json!(10)),
        (
            "'%s is %d and %.2f, %x %s'.format([dyn('a'), 5, 1.234, 255, [1, dyn('b')]])",
            json!("a is 5 and 1.23, ff [1, b]"),
        ),
        ("strings.quote('a\"b\\n')", json!("\"a\\\"b\\n\"")),
        ("'abc123'.matches('^[a-z]+[0-9]+$') && matches('a', 'a')", json!(true)),
        ("'abc'.matches('(')", json!("!invalid matches argument")),
        (r"'٣'.matches('\\d') || 'é'.matches('\\w') || '\u00a0'.matches('\\s')", json!(false)),
        (r"'7'.matches('^\\d$') && 'a b'.matches('a\\sb') && 'é a'.matches('\\ba\\b')", json!(true)),
        ("'a1b22'.find('[0-9]+') + 'a1'.find('z')", json!("1")),
        ("'a1b22'.findAll('[0-9]+')", json!(["1", "22"])),
        ("'a1b22'.findAll('[0-9]+', 1)", json!(["1"])),
        ("string(bytes('é')) == 'é' && size(bytes('é')) == 2 && b'ab' < b'b'", json!(true)),
    ]);
}

#[test]
fn lists_and_sets() {
    check(&[
        ("x.a + [4]", json!([1, 2, 3, 4])),
        ("2 in x.a && !(7 in x.a) && 'k' in x.m", json!(true)),
        ("[3, 1, 2].sum() + [3, 1, 2].min() + [3, 1, 2].max()", json!(10)),
        ("[].sum()", json!(0)),
        ("x.a.filter(i, i > 5).min()", json!("!min called on empty list")),
        ("[1, 2].isSorted() && !['b', 'a'].isSorted()", json!(true)),
        ("[1, 2, 1].indexOf(1) + 10 * [1, 2, 1].lastIndexOf(1)", json!(20)),
        ("[1, 2, 3, 4].slice(1, 3)", json!([2, 3])),
        ("[[1], [2, 3]].flatten()", json!([1, 2, 3])),
        ("lists.range(3)", json!([0, 1, 2])),
        ("[1, 2, 1].distinct()", json!([1, 2])),
        ("[3, 1].sort() + [3, 1].reverse()", json!([1, 3, 1, 3])),
        ("[7, 8].first().value() + [7, 8].last().value()", json!(15)),
        ("sets.contains([1, 2], [1]) && sets.equivalent([1, 2], [2, 1]) && sets.intersects([1], [1, 3])", json!(true)),
    ]);
}

#[test]
fn times() {
    check(&[
        ("timestamp('2026-01-02T03:04:05Z') - timestamp('2026-01-01T03:04:05Z') == duration('24h')", json!(true)),
        ("duration('1h30m').getMinutes() + duration('90s').getSeconds()", json!(180)),
        ("timestamp('2026-01-02T03:04:05Z').getFullYear() + timestamp('2026-01-02T03:04:05Z').getMonth()", json!(2026)),
        ("timestamp('2026-01-02T03:04:05Z').getHours('+02:00')", json!(5)),
        ("string(duration('1500ms')) + string(timestamp('2026-01-02T03:04:05Z'))", json!("1.5s2026-01-02T03:04:05Z")),
        ("duration('nonsense')", json!("!invalid duration argument")),
        ("timestamp('nonsense')", json!("!invalid timestamp argument")),
        ("duration(x.s)", json!("!time: invalid duration \"kemudi\"")),
    ]);
}

#[test]
fn kubernetes_libraries() {
    check(&[
        ("url('https://u@example.com:80/p%20q?a=1&a=2').getHost()", json!("example.com:80")),
        (
            "url('https://[::1]:80/p').getHostname() + url('https://x:8/p').getPort() + url('/q').getEscapedPath()",
            json!("::18/q"),
        ),
        ("url('https://x/?a=1&a=2&b=3').getQuery()", json!({"a": ["1", "2"], "b": ["3"]})),
        ("isURL('https://x/') && !isURL('../x')", json!(true)),
        (
            "isIP('10.0.0.1') && ip('::1').isLoopback() && ip('10.0.0.1').family() == 4 && !isIP('10.0.0.1/8')",
            json!(true),
        ),
        ("ip.isCanonical('2001:db8::1') && !ip.isCanonical('2001:DB8::1')", json!(true)),
        ("cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')", json!(true)),
        ("string(cidr('10.1.2.3/8').masked()) + string(cidr('10.1.2.3/8').ip())", json!("10.0.0.0/810.1.2.3")),
        ("quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('1k') == quantity('1000')", json!(true)),
        ("quantity('500m').add(quantity('1500m')).asInteger() + quantity('2').sub(1).asInteger()", json!(3)),
        ("quantity('9223372036854775807').isInteger() && !quantity('9223372036854775808').isInteger()", json!(true)),
        ("quantity('1e20').asInteger()", json!("!cannot convert value to integer")),
        (
            "quantity('x')",
            json!("!quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"),
        ),
        (
            "semver('1.2.3').isLessThan(semver('1.10.0')) && semver('1.0.0-rc.1').compareTo(semver('1.0.0')) == -1",
            json!(true),
        ),
        ("semver('v1.2', true).minor() == 2 && !isSemver('v1.2')", json!(true)),
        ("format.dns1123Label().validate('Not a label').value().size() > 0", json!(true)),
        ("format.named('uuid').value().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()", json!(false)),
    ]);
}

#[test]
fn messages_of_one_value_stand_for_it() {
    check(&[
        ("google.protobuf.Int32Value{value: 1} == 1", json!(true)),
        ("google.protobuf.StringValue{} + 'a'", json!("a")),
        (
            "google.protobuf.BoolValue{value: 1}",
            json!("!expected type of field 'value' is 'bool' but provided type is 'int'"),
        ),
        ("google.protobuf.BoolValue{other: true}", json!("!undefined field 'other'")),
        ("google.protobuf.Other{}", json!("!undeclared reference to 'google.protobuf.Other' (in container '')")),
        ("[] == {}", json!("!found no matching overload for '_==_' applied to '(list(dyn), map(dyn, dyn))'")),
    ]);
}

/// `variables` alone is a map of them, and a part of `Object` at the place of another one fails where it is evaluated.
#[test]
fn variables_are_a_value_and_misplaced_parts_fail() {
    let env =
        Env::default().with("variables.x", Type::Int).with("x", Type::Dyn).with_family("variables").with_objects();
    assert_eq!(env.compile("variables").map(|c| c.ty.to_string()).unwrap(), "kubernetes.variables");
    assert!(env.compile("variables.y").is_err());
    let c = env.compile("x ? Object{spec: Object.spec{a: 1}} : Object{spec: Object.zz{a: 1}}").unwrap();
    let run = |x: Value| match c.program.eval(&Given(&x, None), &mut Budget::new(1_000)) {
        Ok(v) => v.to_json().unwrap(),
        Err(e) => e.to_string().into(),
    };
    assert_eq!(run(json!(true)), json!({"spec": {"a": 1}}));
    let why = r#"unexpected type name "Object.zz", expected "Object.spec", which matches field name path from root Object type"#;
    assert_eq!(run(json!(false)), json!(why));
}

#[test]
fn errors_read_as_upstream_writes_them() {
    let env = || Env::default().with("self", object());
    let message = |text: &str| env().compile(text).err().map(|e| e.to_string()).unwrap_or_default();
    let e = message("self.foo == 1");
    assert_eq!(e, "ERROR: <input>:1:5: undefined field 'foo'\n | self.foo == 1\n | ....^");
    let e = message("self.replicas > 'a' || slef.x");
    assert!(
        e.starts_with("ERROR: <input>:1:15: found no matching overload for '_>_' applied to '(int, string)'"),
        "{e}"
    );
    assert!(e.contains("\nERROR: <input>:1:24: undeclared reference to 'slef' (in container '')"), "{e}");
    let e = message("self.replicas >");
    assert!(e.starts_with("ERROR: <input>:1:16: Syntax error: mismatched input '<EOF>'"), "{e}");
    assert!(env().compile("self.__namespace__ == 'x' && self.a__dash__b.size() > 0").is_ok());
    let deep = format!("{}1{}", "(".repeat(3000), ")".repeat(3000));
    assert!(env().compile(&deep).is_err());
    let long = vec!["1"; 5000].join(" + ");
    assert!(env().compile(&long).is_err(), "nested too deeply");
}

fn object() -> Type {
    let mut o = Object { name: "object".into(), ..Default::default() };
    let mut field = |name: &str, json: &str, decl: Decl| {
        o.fields.insert(name.into(), Field { json: json.into(), decl });
    };
    field("replicas", "replicas", Type::Int.into());
    field("__namespace__", "namespace", Decl::new(Type::String, 10));
    field("a__dash__b", "a-b", Decl::new(Type::list(Decl::new(Type::String, 20)), 5));
    field("at", "at", Type::Timestamp.into());
    field("free", "free", Type::list(Type::String).into());
    Type::Object(Arc::new(o))
}

#[test]
fn names_and_formats_of_a_schema() {
    let compiled = Env::default()
        .with("x", object())
        .compile("x.__namespace__ + x.namespace + x.a__dash__b[0] + string(has(x.namespace) ? x.at.getFullYear() : 0)")
        .unwrap();
    let x = json!({"namespace": "n", "a-b": ["z"], "at": "2026-01-02T03:04:05Z"});
    let shape = Shape::Fields(vec![("at".into(), Shape::Timestamp)]);
    let v = compiled.program.eval(&Given(&x, Some(&shape)), &mut Budget::new(1000)).unwrap();
    assert_eq!(v.to_json().unwrap(), json!("nnz2026"));
}

#[test]
fn lists_that_are_sets_or_maps() {
    use cel::ListKind;
    let set = Shape::Fields(vec![
        ("a".into(), Shape::List(ListKind::Set, None)),
        ("b".into(), Shape::List(ListKind::Set, None)),
        ("m".into(), Shape::List(ListKind::Map(vec!["k".into()]), None)),
        ("n".into(), Shape::List(ListKind::Map(vec!["k".into()]), None)),
    ]);
    let x = json!({"a": [1, 2], "b": [2, 1], "m": [{"k": 1, "v": 1}, {"k": 2, "v": 2}], "n": [{"k": 2, "v": 2}, {"k": 1, "v": 1}]});
    let run = |text: &str| {
        let c = Env::default().with("x", Type::Dyn).compile(text).unwrap();
        c.program.eval(&Given(&x, Some(&set)), &mut Budget::new(1000)).unwrap().to_json().unwrap()
    };
    assert_eq!(run("x.a == x.b && x.m == x.n"), json!(true));
    assert_eq!(run("x.a + x.b + [3]"), json!([1, 2, 3]));
    assert_eq!(run("x.m + [{'k': 1, 'v': 9}]"), json!([{"k": 1, "v": 9}, {"k": 2, "v": 2}]));
}

#[test]
fn costs_are_estimated() {
    let env = Env::default().with("self", object());
    let cost = |text: &str| env.compile(text).map(|c| c.cost).unwrap();
    assert_eq!(cost("self.replicas > 1"), Range { min: 3, max: 3 });
    assert_eq!(cost("self.a__dash__b.all(s, s == 'x')").max, 2 + 1 + 5 * (3 + 1 + 1));
    assert!(cost("self.free.all(s, self.free.exists(t, t == s))").max > 1_000_000_000_000);
    assert_eq!(cost("'abc'.contains('b')"), Range { min: 1, max: 1 });
}

#[test]
fn an_evaluation_that_costs_too_much_is_stopped() {
    let x = json!({"a": (0..2000).collect::<Vec<_>>()});
    let heavy = Env::default().with("x", Type::Dyn).compile("x.a.all(i, x.a.all(j, i + j >= 0))").unwrap();
    let mut budget = Budget::new(10_000_000);
    let stopped = heavy.program.eval(&Given(&x, None), &mut budget).err();
    assert_eq!(stopped.map(|e| e.to_string()).as_deref(), Some("operation cancelled: actual cost limit exceeded"));
    assert!(budget.left() >= 8_900_000, "the limit of one call is not that of all");
    // No `||` makes up for what was spent.
    let c = Env::default().with("x", Type::Dyn).compile("x.a.all(i, x.a.all(j, i + j >= 0)) || true").unwrap();
    assert!(c.program.eval(&Given(&x, None), &mut budget).is_err());
    let c = Env::default()
        .compile("'a'.replace('', lists.range(999).map(i, 'x').join()).replace('', 'yyyyyyyyyyyy').size() > 0")
        .unwrap();
    assert!(c.program.eval(&Given(&x, None), &mut Budget::new(10_000)).is_err());
}

/// At least, at most, and what was really spent; the numbers are upstream's.
#[test]
fn calls_cost_what_upstream_says() {
    let cases = [
        ("[1, 2, 3, 4, 5].sum()", 15, 15, 15),
        ("[1, 2, 3, 4, 5].indexOf(3)", 15, 15, 15),
        ("url('http://x.b') == url('http://x.b')", 3, 3, 3),
        ("url('mailto:a@b').getScheme() == 'mailto'", 3, 3, 3),
        ("ip('192.168.0.1') == ip('192.168.0.1')", 5, 5, 5),
        ("cidr('192.168.0.0/16').containsIP(ip('192.0.0.1'))", 4, 7, 4),
        ("sets.contains([1, 2, 3, 4], [2, 3])", 29, 29, 29),
        ("!sets.equivalent([2, 1], [1])", 26, 26, 26),
        ("{'a': 1, 'b': 2}.all(k, v, v > 0)", 37, 41, 41),
        ("{'a': 1, 'b': 2}.exists(k, v, v > 0)", 39, 43, 40),
        ("[1, 2].transformList(i, v, v + 1)", 49, 49, 49),
        ("{'a': 1, 'b': 2}.transformMap(k, v, v < 5, v + 1)", 67, 75, 75),
        ("{'a': 1, 'b': 2}.transformMapEntry(k, v, {k: v + 1})", 131, 131, 131),
    ];
    for (text, min, max, spent) in cases {
        let c = Env::default().compile(text).unwrap();
        assert_eq!(c.cost, Range { min, max }, "{text}");
        let mut budget = Budget::new(1_000);
        c.program.eval(&Given(&json!(null), None), &mut budget).unwrap();
        assert_eq!(1_000 - budget.left(), spent, "{text}");
    }
}
