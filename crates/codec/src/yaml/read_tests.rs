use super::*;
use serde_json::json;

fn check(text: &str, want: &Value) {
    match parse(text) {
        Ok(got) => assert_eq!(got, vec![want.clone()], "{text}"),
        Err(e) => panic!("{text}: {e}"),
    }
}

#[test]
fn scalars_mean_what_they_mean_to_go() {
    for (text, want) in [
        ("0644", json!(420)),
        ("0o644", json!(420)),
        ("089", json!(89)),
        ("0x1F", json!(31)),
        ("0b101", json!(5)),
        ("-0b101", json!(-5)),
        ("+12", json!(12)),
        ("1_000", json!(1000)),
        ("1__0", json!(10)),
        ("18446744073709551615", json!(18446744073709551615u64)),
        ("18446744073709551616", json!(18446744073709552000.0)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("1.5", json!(1.5)),
        ("1.0", json!(1)),
        ("1e3", json!(1000)),
        (".5", json!(0.5)),
        ("1.", json!(1)),
        ("1e", json!("1e")),
        ("yes", json!(true)),
        ("No", json!(false)),
        ("on", json!(true)),
        ("OFF", json!(false)),
        ("y", json!(true)),
        ("N", json!(false)),
        ("yEs", json!("yEs")),
        ("~", Value::Null),
        ("null", Value::Null),
        ("", Value::Null),
        ("2001-01-01", json!("2001-01-01")),
        ("2001-12-14T21:59:43.10-05:00", json!("2001-12-14T21:59:43.10-05:00")),
        ("12:30:45", json!("12:30:45")),
        ("'1'", json!("1")),
        ("\"yes\"", json!("yes")),
        ("!!str 12", json!("12")),
        ("!!int '12'", json!(12)),
        ("!!float 1", json!(1)),
        ("!!binary aGVsbG8=", json!("hello")),
        ("!foo 12", json!("12")),
        ("|\n  a\n  b", json!("a\nb\n")),
        (">-\n  a\n  b", json!("a b")),
        (".", json!(".")),
        ("-", json!([null])),
        ("=", json!("=")),
    ] {
        check(&format!("k: {text}\n").replace("k: -", "k:\n -"), &json!({ "k": want }));
    }
}

#[test]
fn keys_become_strings() {
    check(
        "yes: 1\n1: 2\n0x10: 3\n1.5: 4\n\"on\": 5\n2001-01-01: 6\n0.00001: 7\n",
        &json!({"true": 1, "1": 2, "16": 3, "1.5": 4, "on": 5, "2001-01-01": 6, "1e-05": 7}),
    );
    check("y: 1", &json!({"true": 1}));
}

#[test]
fn merge_keys_and_aliases() {
    check("a: &a {x: 1, w: 2}\nb:\n  <<: *a\n  w: 3\n", &json!({"a": {"x": 1, "w": 2}, "b": {"x": 1, "w": 3}}));
    check(
        "a: &a {x: 1}\nb: &b {x: 2, z: 3}\nc:\n  <<: [*a, *b]\n",
        &json!({"a": {"x": 1}, "b": {"x": 2, "z": 3}, "c": {"x": 1, "z": 3}}),
    );
    check("a: &a [1]\nb: *a\n", &json!({"a": [1], "b": [1]}));
    check("a: &a k\n*a : v\n", &json!({"a": "k", "k": "v"}));
    check("a: '<<'\n'<<': 1", &json!({"a": "<<", "<<": 1}));
    // Merged mappings may merge in turn.
    check(
        "a: &a {x: 1}\nb: &b {<<: *a, w: 2}\nc: {<<: *b}\n",
        &json!({"a":{"x":1},"b":{"x":1,"w":2},"c":{"x":1,"w":2}}),
    );
}

#[test]
fn documents_without_content_are_dropped() {
    let docs = parse("---\n# nothing\n---\na: 1\n---\n\n---\nb: 2\n...\n").unwrap();
    assert_eq!(docs, vec![json!({"a": 1}), json!({"b": 2})]);
    assert!(parse("").unwrap().is_empty());
    assert!(parse("# only\n").unwrap().is_empty());
    check("{\"a\": [1, true, null, \"x\"]}", &json!({"a": [1, true, null, "x"]}));
}

#[test]
fn duplicates_are_reported_with_line_and_path_or_the_last_wins() {
    let text = "a: 1\nb:\n  c:\n  - d: 1\n    e: 2\n    d: 3\na: 2\n";
    check(text, &json!({"a": 2, "b": {"c": [{"d": 3, "e": 2}]}}));
    let Err(Error::Duplicates(d)) = parse_strict(text) else { panic!("duplicates not seen") };
    assert_eq!(
        d,
        vec![
            Duplicate { line: 6, key: "d".into(), path: "b.c[0]".into() },
            Duplicate { line: 7, key: "a".into(), path: String::new() },
        ]
    );
    assert_eq!(
        Error::Duplicates(d).to_string(),
        "yaml: unmarshal errors:\n  line 6: key \"d\" already set in map\n  line 7: key \"a\" already set in map"
    );
    assert!(parse_strict("a: 1\nb: {a: 1}\n").is_ok());
}

#[test]
fn bad_input_is_refused_with_a_reason() {
    for (text, want) in [
        ("a: [1", "did not find expected ',' or ']'"),
        ("a: *x", "unknown anchor 'x' referenced"),
        ("a: &x [*x]", "anchor 'x' value contains itself"),
        ("a: {<<: 1}", "map merge requires map"),
        ("? [a]\n: b", "invalid map key"),
        ("~: 1", "unsupported map key"),
        ("a: .inf", "unsupported value: +Inf"),
        ("a: .nan", "unsupported value: NaN"),
        ("a: !!int x", "cannot decode !!str `x` as a !!int"),
        ("a: !!binary '*'", "invalid base64"),
        ("a: 'x", "unexpected end of stream"),
        ("\ta: 1", "cannot start any token"),
        ("a: b: c", "mapping values are not allowed"),
        ("a: \u{1}", "control characters"),
    ] {
        match parse(text) {
            Ok(v) => panic!("{text:?} read as {v:?}"),
            Err(e) => assert!(e.to_string().contains(want), "{text:?}: {e}"),
        }
    }
}

#[test]
fn depth_is_limited_without_recursion() {
    let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    assert!(matches!(parse(&deep(DEPTH_LIMIT + 1)), Err(Error::Depth { .. })));
    let maps = "{a: ".repeat(DEPTH_LIMIT + 1);
    assert!(matches!(parse(&maps), Err(Error::Depth { .. })));
}

#[test]
fn alias_bombs_are_refused() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..9 {
        let items = vec![format!("*a{}", i - 1); 10].join(", ");
        text.push_str(&format!("a{i}: &a{i} [{items}]\n"));
    }
    assert!(matches!(parse(&text), Err(Error::ExcessiveAliasing)));
}

/// Merged mappings count as aliases too, also when nothing is in them, and so do the bytes of long scalars.
#[test]
fn merges_are_no_way_around_the_limit() {
    let sources = |of: usize| vec![format!("*a{of}"); 10].join(", ");
    let keys = |i: usize| (0..10).map(|k| format!("k{i}{k}: x, ")).collect::<String>();
    for inner in ["k: x", ""] {
        let mut text = format!("a0: &a0 {{{inner}}}\n");
        for i in 1..12 {
            text.push_str(&format!("a{i}: &a{i} {{<<: [{}]}}\n", sources(i - 1)));
        }
        assert!(matches!(parse(&text), Err(Error::ExcessiveAliasing)), "{inner:?}");
    }
    // Chained merges: each mapping has what is in the one before, and some keys of its own.
    let mut text = format!("a0: &a0 {{{}}}\n", keys(0));
    for i in 1..3_000 {
        text.push_str(&format!("a{i}: &a{i} {{<<: *a{}, {}}}\n", i - 1, keys(i)));
    }
    assert!(matches!(parse(&text), Err(Error::ExcessiveAliasing)));
    let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(1_000_000), vec!["*a"; 90].join(", "));
    assert!(matches!(parse(&text), Err(Error::ExcessiveAliasing)));
    let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(1_000), vec!["*a"; 90].join(", "));
    assert_eq!(parse(&text).unwrap()[0]["b"].as_array().map(Vec::len), Some(90));
}

#[test]
fn reports_are_bounded() {
    let text: String = (0..50_000).map(|i| format!("k{}: 1\n", i / 2)).collect();
    let Err(Error::Duplicates(d)) = parse_strict(&text) else { panic!("duplicates not seen") };
    assert_eq!(d.len(), MOST_REPORTED);
    let text = format!("{}: {{{}}}", "k".repeat(1_000), "a: 1, ".repeat(50_000));
    let Err(Error::Duplicates(d)) = parse_strict(&text) else { panic!("duplicates not seen") };
    assert_eq!(d.len(), MOST_REPORTED);
}

#[test]
fn the_first_document_is_read_and_no_more() {
    let (first, _) = parse_first("---\n---\na: 1\n---\nb: [\n", 10).unwrap();
    assert_eq!(first, json!({"a": 1}));
    assert_eq!(parse_first("# nothing", 10).unwrap().0, Value::Null);
}

/// Kustomize reads with the newer parser, which takes less for booleans and more for dates.
#[test]
fn the_newer_dialect() {
    for (text, want) in [
        ("yes", json!("yes")),
        ("on", json!("on")),
        ("y", json!("y")),
        ("True", json!(true)),
        ("0644", json!(420)),
        ("0o14", json!(12)),
        ("089", json!(89)),
        ("12:30:45", json!("12:30:45")),
        ("1.0", json!(1)),
        ("~", Value::Null),
        ("2001-01-01", json!("2001-01-01T00:00:00Z")),
        ("2001-12-14T21:59:43.10-05:00", json!("2001-12-14T21:59:43.1-05:00")),
        ("2001-1-4 2:59:43", json!("2001-01-04T02:59:43Z")),
        ("'2001-01-01'", json!("2001-01-01")),
    ] {
        assert_eq!(parse_v3(&format!("k: {text}\n")).unwrap(), [json!({ "k": want })], "{text}");
    }
    assert_eq!(parse_v3("yes: 1\n1: 2\n").unwrap(), [json!({"yes": 1, "1": 2})]);
    assert!(matches!(parse_v3("a: 1\na: 2\n"), Err(Error::Duplicates(_))));
}

/// What a fuzzer found.
#[test]
fn a_text_may_begin_like_a_byte_order_mark() {
    for (text, want) in [("\u{fef6}", "\u{fef6}"), ("\u{feff}a", "a"), ("\u{feff}", "")] {
        let want = if want.is_empty() { Vec::new() } else { vec![json!(want)] };
        assert_eq!(parse(text).unwrap(), want, "{text:?}");
    }
}

/// One long prefix is written into each tagged node, and each tag is looked for among all directives.
#[test]
fn tag_directives_are_bounded() {
    let body = "---\na: !x!y b\n";
    let long = format!("%TAG !x! {}\n{body}", "x".repeat(300));
    let many: String = (0..20).map(|i| format!("%TAG !{i}! x\n")).chain([body.to_owned()]).collect();
    for text in [long, many] {
        assert!(matches!(parse(&text), Err(Error::Syntax(why)) if why.contains("%TAG")), "{text}");
    }
    assert!(parse("%TAG !x! tag:yaml.org,2002:\n---\na: !x!str 1\n").is_ok());
    // Text that looks like one is text.
    let text = (0..40).map(|_| "  %TAG no directive\n").collect::<String>();
    assert!(parse(&format!("a: |\n{text}")).is_ok());
}
