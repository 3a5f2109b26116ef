//! Trees and errors of expressions. What is expected of errors is what cel-go reports.

use super::{Expr, Kind, parse};
use crate::node::Const;
use crate::source::Issues;
use proptest::prelude::*;

/// A tree as text: calls by name, each node with its position on request.
fn tree(e: &Expr, positions: bool) -> String {
    let sub = |e: &Expr| tree(e, positions);
    let all = |items: &[Expr]| items.iter().map(sub).collect::<Vec<_>>().join(", ");
    let mark = |optional: bool| if optional { "?" } else { "" };
    let text = match &e.kind {
        Kind::Literal(c) => match c {
            Const::Null => "null".to_owned(),
            Const::Bool(b) => b.to_string(),
            Const::Int(n) => n.to_string(),
            Const::Uint(n) => format!("{n}u"),
            Const::Double(d) => format!("{d:?}"),
            Const::Str(s) => format!("{s:?}"),
            Const::Bytes(b) => format!("b{b:?}"),
        },
        Kind::Ident(name) => name.to_string(),
        Kind::Select(operand, field) => format!("select({}, {field})", sub(operand)),
        Kind::Call(c) => match &c.target {
            Some(target) => format!("{}({}; {})", c.function, sub(target), all(&c.args)),
            None => format!("{}({})", c.function, all(&c.args)),
        },
        Kind::List(items) => {
            let items: Vec<_> = items.iter().map(|(e, optional)| format!("{}{}", mark(*optional), sub(e))).collect();
            format!("[{}]", items.join(", "))
        }
        Kind::Map(entries) => {
            let entries: Vec<_> =
                entries.iter().map(|e| format!("{}{}: {}", mark(e.optional), sub(&e.key), sub(&e.value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Kind::Struct(name, fields) => {
            let fields: Vec<_> =
                fields.iter().map(|f| format!("{}{}: {}", mark(f.optional), f.name, sub(&f.value))).collect();
            format!("{name}{{{}}}", fields.join(", "))
        }
    };
    if positions { format!("{text}@{}", e.at) } else { text }
}

fn parsed(source: &str) -> String {
    match parse(source) {
        Ok(e) => tree(&e, false),
        Err(found) => Issues::new(source, found).to_string(),
    }
}

fn check(cases: &[(&str, &str)]) {
    for (source, expected) in cases {
        assert_eq!(parsed(source), *expected, "{source}");
    }
}

/// Errors as `line:column message`, the column from 1.
fn errors(source: &str) -> Vec<String> {
    match parse(source) {
        Ok(e) => panic!("{source}: {}", tree(&e, false)),
        Err(found) => {
            let line = |i: &crate::Issue| format!("{}:{} {}", i.line, i.column + 1, i.message);
            Issues::new(source, found).issues.iter().map(line).collect()
        }
    }
}

fn check_errors(cases: &[(&str, &[&str])]) {
    for (source, expected) in cases {
        assert_eq!(errors(source), *expected, "{source}");
    }
}

const EXPR: &str =
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

#[test]
fn parses_literals() {
    check(&[
        ("7", "7"),
        ("0x1F", "31"),
        ("-0x8000000000000000", "-9223372036854775808"),
        ("-  1", "-1"),
        ("0xffffffffffffffffU", "18446744073709551615u"),
        ("1.5e-3", "0.0015"),
        (".5", "0.5"),
        ("1e3", "1000.0"),
        ("-2.5", "-2.5"),
        ("null", "null"),
        (r#"'a"b'"#, r#""a\"b""#),
        (r"'\a\b\f\n\r\t\v\\\?\'\`'", r#""\u{7}\u{8}\u{c}\n\r\t\u{b}\\?'`""#),
        (r"'\xe9\351\u00e9\U0001f600'", "\"ééé😀\""),
        (r"r'a\n'", r#""a\\n""#),
        (r#"R"a\"+'b'"#, r#"_+_("a\\", "b")"#),
        ("'''a'b\r\nc'''", r#""a'b\nc""#),
        (r#""""a"\"""b""""#, r#""a\"\"\"\"b""#),
        ("\"\"\"\"\"\"", "\"\""),
        (r"b'\xff\377é'", "b[255, 255, 195, 169]"),
        (r"Br'\x'", "b[92, 120]"),
        // A quote that does not end three is an empty string and what follows it.
        ("''.size()", "size(\"\"; )"),
    ]);
}

#[test]
fn rejects_invalid_literals() {
    check_errors(&[
        ("9223372036854775808", &["1:1 invalid int literal"]),
        ("1 + 18446744073709551616u", &["1:5 invalid uint literal"]),
        ("1e999", &["1:1 invalid double literal"]),
        (r"'\ud800'", &["1:1 invalid unicode code point"]),
        (r"b'\u0041'", &["1:1 unable to unescape string"]),
        (
            "'a",
            &[
                "1:1 Syntax error: token recognition error at: ''a'",
                &format!("1:3 Syntax error: mismatched input '<EOF>' expecting {EXPR}"),
            ],
        ),
        (
            r"[1, '\q']",
            &[
                r"1:5 Syntax error: token recognition error at: ''\q'",
                "1:8 Syntax error: token recognition error at: '']'",
                "1:10 Syntax error: missing ']' at '<EOF>'",
            ],
        ),
    ]);
}

#[test]
fn parses_names_and_selectors() {
    check(&[
        ("a.b.c", "select(select(a, b), c)"),
        (". a.b", "select(.a, b)"),
        ("a.in_", "select(a, in_)"),
        ("a.b(1).c", "select(b(a; 1), c)"),
        (".f(1, 2)", ".f(1, 2)"),
        ("a[0][?1].?b", "_?._(_[?_](_[_](a, 0), 1), \"b\")"),
        ("a.package", "select(a, package)"),
        ("-1.a", "select(-1, a)"),
        ("a // comment\n.b", "select(a, b)"),
    ]);
    check_errors(&[
        ("package + 1", &["1:1 reserved identifier: package"]),
        (".as", &["1:1 reserved identifier: as"]),
        ("for(1u, while)", &["1:1 reserved identifier: for"]),
        ("a.`b-c`", &["1:3 unsupported syntax: '`'"]),
        ("a.true", &["1:3 Syntax error: mismatched input 'true' expecting IDENTIFIER"]),
    ]);
}

#[test]
fn parses_collections() {
    check(&[
        ("[]", "[]"),
        ("[,]", "[]"),
        ("[1, ?a, 2,]", "[1, ?a, 2]"),
        ("{}", "{}"),
        ("{'a': 1, ?b: c,}", "{\"a\": 1, ?b: c}"),
        ("a.b.C{}", "a.b.C{}"),
        (".A{b: 1, ?c: d,}", ".A{b: 1, ?c: d}"),
        ("a.b{c: d{}}.e", "select(a.b{c: d{}}, e)"),
    ]);
}

#[test]
fn parses_operators_by_precedence() {
    check(&[
        ("a || b && c == d + e * !f", "_||_(a, _&&_(b, _==_(c, _+_(d, _*_(e, !_(f))))))"),
        ("a * b + c < d && e || f", "_||_(_&&_(_<_(_+_(_*_(a, b), c), d), e), f)"),
        ("a - b - c", "_-_(_-_(a, b), c)"),
        ("a < b == c in d", "@in(_==_(_<_(a, b), c), d)"),
        ("a ? b : c ? d : e", "_?_:_(a, b, _?_:_(c, d, e))"),
        ("(a ? b : c) ? d : e", "_?_:_(_?_:_(a, b, c), d, e)"),
        ("!!a", "a"),
        ("!!!a", "!_(a)"),
        ("--1", "1"),
        ("---a", "-_(a)"),
        ("!-1", "!_(-1)"),
        ("a -1", "_-_(a, 1)"),
        ("-1u", "-_(1u)"),
        // A chain of terms is a balanced tree.
        ("a && b && c && d", "_&&_(_&&_(a, b), _&&_(c, d))"),
        ("a || b || c", "_||_(_||_(a, b), c)"),
    ]);
}

#[test]
fn positions_are_code_points() {
    let at = |source: &str| tree(&parse(source).expect("valid"), true);
    assert_eq!(at("'é' == a.b"), "_==_(\"é\"@0, select(a@7, b)@8)@4");
    assert_eq!(at("-1 + f(x)[0]"), "_+_(-1@0, _[_](f(x@7)@6, 0@10)@9)@3");
    assert_eq!(at("a.?b.c(1)"), "c(_?._(a@0, \"b\"@3)@1; 1@7)@6");
    assert_eq!(at("{'k': [1]}"), "{\"k\"@1: [1@7]@6}@0");
    assert_eq!(at("!a ? b : c"), "_?_:_(!_(a@1)@0, b@5, c@9)@3");
}

#[test]
fn reports_syntax_errors_like_cel_go() {
    let expected_expr =
        |at: &str, input: &str| format!("{at} Syntax error: mismatched input '{input}' expecting {EXPR}");
    check_errors(&[
        ("", &[&expected_expr("1:1", "<EOF>")]),
        ("a +", &[&expected_expr("1:4", "<EOF>")]),
        ("a b", &["1:3 Syntax error: extraneous input 'b' expecting <EOF>"]),
        ("a b c", &["1:3 Syntax error: mismatched input 'b' expecting <EOF>"]),
        (
            "a = 1",
            &[
                "1:3 Syntax error: token recognition error at: '= '",
                "1:5 Syntax error: extraneous input '1' expecting <EOF>",
            ],
        ),
        ("f(a", &["1:4 Syntax error: missing ')' at '<EOF>'"]),
        ("f(a,)", &[&expected_expr("1:5", ")")]),
        ("a.b.", &["1:5 Syntax error: no viable alternative at input '.'"]),
        ("a.\nb.1", &["2:2 Syntax error: extraneous input '.1' expecting <EOF>"]),
        ("--", &["1:3 Syntax error: no viable alternative at input '-'", &expected_expr("1:3", "<EOF>")]),
        ("{a}", &["1:3 Syntax error: mismatched input '}' expecting ':'"]),
    ]);
    check(&[(
        "'é' + ú",
        "ERROR: <input>:1:7: Syntax error: token recognition error at: 'ú'\n | 'é' + ú\n | .．....＾\nERROR: <input>:1:8: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n | 'é' + ú\n | .．....．^",
    )]);
}

#[test]
fn limits_size_depth_and_errors() {
    let too_long = format!("'{}'", "é".repeat(100_000));
    assert_eq!(
        parsed(&too_long),
        "ERROR: <input>:-1:0: expression code point size exceeds limit: size: 100002, limit 100000"
    );
    let nested = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
    assert!(parse(&nested(249)).is_ok());
    for deep in [
        nested(250),
        "(".repeat(100_000),
        "a?b:".repeat(25_000),
        "f(".repeat(50_000),
        "1*(2+".repeat(20_000),
        "{1:".repeat(30_000),
    ] {
        assert_eq!(parsed(&deep), "ERROR: <input>:-1:0: expression recursion limit exceeded: 250", "{:.20}", deep);
    }
    let chain = |n: usize| format!("a{}", ".b".repeat(n));
    assert!(parse(&chain(250)).is_ok());
    for deep in [chain(251), chain(49_999), format!("1{}", "+1".repeat(251)), format!("a{}", "[0]".repeat(30_000))] {
        assert_eq!(parsed(&deep), "ERROR: <input>:-1:0: max recursion depth exceeded", "{:.20}", deep);
    }
    // Neither terms of one operator nor signs are nested.
    assert!(parse(&vec!["a"; 20_000].join("||")).is_ok());
    assert!(parse(&format!("{}a", "!".repeat(99_999))).is_ok());
    let many = parsed(&"@".repeat(99_999));
    assert!(many.ends_with("\n1 more errors were truncated"), "{}", &many[many.len() - 200..]);
    assert_eq!(many.matches("ERROR").count(), 100);
    assert!(parsed(&"as+".repeat(33_000)).ends_with("more errors were truncated"));
    // Strings that do not end are not read again and again.
    for text in ["'''\\'''", "r'\\'''", "\"\"\"\\\"\"\"\\\"\"\""] {
        assert!(parse(&text.repeat(99_000 / text.len())).is_err(), "{text}");
    }
}

/// An expression as text, and its tree.
fn expression() -> impl Strategy<Value = (String, String)> {
    let same = |s: &'static str| Just((s.to_owned(), s.to_owned()));
    let leaf = prop_oneof![
        same("a"),
        same("1"),
        same("2u"),
        same("1.5"),
        same("true"),
        same("null"),
        Just(("'x'".to_owned(), "\"x\"".to_owned())),
        Just(("b\"x\"".to_owned(), "b[120]".to_owned())),
        Just(("-3".to_owned(), "-3".to_owned())),
    ];
    let binary = prop::sample::select(vec![
        ("||", "_||_"),
        ("&&", "_&&_"),
        ("==", "_==_"),
        ("!=", "_!=_"),
        ("<", "_<_"),
        ("<=", "_<=_"),
        (">", "_>_"),
        (">=", "_>=_"),
        (" in ", "@in"),
        ("+", "_+_"),
        ("-", "_-_"),
        ("*", "_*_"),
        ("/", "_/_"),
        ("%", "_%_"),
    ]);
    leaf.prop_recursive(5, 40, 3, move |inner| {
        let e = || inner.clone();
        prop_oneof![
            (e(), binary.clone(), e())
                .prop_map(|(a, o, b)| (format!("({}) {} ({})", a.0, o.0, b.0), format!("{}({}, {})", o.1, a.1, b.1))),
            (e(), e(), e())
                .prop_map(|(a, b, c)| (
                    format!("({})?{}:{}", a.0, b.0, c.0),
                    format!("_?_:_({}, {}, {})", a.1, b.1, c.1)
                ))
                .prop_filter("the middle is no conditional", |(t, _)| t.matches('?').count() < 2),
            e().prop_map(|a| (format!("!({})", a.0), format!("!_({})", a.1))),
            e().prop_map(|a| (format!("-({})", a.0), format!("-_({})", a.1))),
            e().prop_map(|a| (format!("({}).f", a.0), format!("select({}, f)", a.1))),
            e().prop_map(|a| (format!("({}).?f", a.0), format!("_?._({}, \"f\")", a.1))),
            (e(), e()).prop_map(|(a, b)| (format!("({})[{}]", a.0, b.0), format!("_[_]({}, {})", a.1, b.1))),
            (e(), e()).prop_map(|(a, b)| (format!("({}).g({} , 1)", a.0, b.0), format!("g({}; {}, 1)", a.1, b.1))),
            e().prop_map(|a| (format!("h( {}\n)", a.0), format!("h({})", a.1))),
            (e(), e()).prop_map(|(a, b)| (format!("[{},?{},]", a.0, b.0), format!("[{}, ?{}]", a.1, b.1))),
            (e(), e()).prop_map(|(a, b)| (format!("{{{} : {}}}", a.0, b.0), format!("{{{}: {}}}", a.1, b.1))),
            e().prop_map(|a| (format!("p.M{{f:{}}}", a.0), format!("p.M{{f: {}}}", a.1))),
        ]
    })
}

/// Text out of pieces of expressions, most of it no expression.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a", ".", "?", "-", "1", "2.5", "0x", "(", ")", "[", "]", "{", "}", ",", ":", "!", "+", "*", "<", "in", "true",
        "'s'", "\"", "'''", "r'", "b\"\\x", "&&", "|", "==", "`a`", "`", "as", "@", "é", "\n", " ", "f(", "M{", "// c",
    ]);
    prop::collection::vec(piece, 0..30).prop_map(|p| p.concat())
}

proptest! {
    #[test]
    fn parses_what_was_printed((text, expected) in expression()) {
        prop_assert_eq!(parsed(&text), expected);
    }

    #[test]
    fn never_panics_and_points_into_the_text(text in prop_oneof![pieces(), any::<String>()]) {
        if let Err(found) = parse(&text) {
            prop_assert!(!found.is_empty());
            let length = text.chars().count();
            prop_assert!(found.iter().all(|(at, _)| at.is_none_or(|at| at as usize <= length)));
            let _ = Issues::new(&text, found).to_string();
        }
    }
}
