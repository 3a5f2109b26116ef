use super::*;
use crate::yaml::parse;
use serde_json::json;

fn check(v: &Value, want: &str) {
    assert_eq!(to_string(v), want, "{v}");
    // What is written reads back as what it was.
    assert_eq!(parse(want).unwrap().first(), Some(v), "{want}");
}

#[test]
fn strings_are_quoted_as_go_yaml_quotes_them() {
    for (s, want) in [
        ("x", "x"),
        ("", "\"\""),
        (" k", "' k'"),
        ("a ", "'a '"),
        ("1", "\"1\""),
        ("0644", "\"0644\""),
        ("0x1f", "\"0x1f\""),
        ("1_000", "\"1_000\""),
        ("+1", "\"+1\""),
        ("1.5", "\"1.5\""),
        ("1e3", "\"1e3\""),
        (".inf", "\".inf\""),
        ("12:30", "\"12:30\""),
        ("1:2:3", "\"1:2:3\""),
        ("12:90", "12:90"),
        ("2020-01-01", "\"2020-01-01\""),
        ("2020-01-01T10:00:00Z", "\"2020-01-01T10:00:00Z\""),
        ("2020-13-01", "2020-13-01"),
        ("v1.2.3", "v1.2.3"),
        ("1.2.3", "1.2.3"),
        ("true", "\"true\""),
        ("yes", "\"yes\""),
        ("y", "\"y\""),
        ("Off", "\"Off\""),
        ("null", "\"null\""),
        ("~", "\"~\""),
        ("&a", "'&a'"),
        ("@a", "'@a'"),
        ("*a", "'*a'"),
        ("%a", "'%a'"),
        ("!a", "'!a'"),
        ("`a", "'`a'"),
        ("[a", "'[a'"),
        ("{a", "'{a'"),
        ("a,b", "a,b"),
        ("a:", "'a:'"),
        ("a: b", "'a: b'"),
        ("a:b", "a:b"),
        ("a #b", "'a #b'"),
        ("a#b", "a#b"),
        ("#b", "'#b'"),
        ("- a", "'- a'"),
        ("-", "'-'"),
        ("-a", "-a"),
        ("---", "'---'"),
        ("--- a", "'--- a'"),
        ("...", "'...'"),
        ("?", "'?'"),
        ("?a", "?a"),
        ("|", "'|'"),
        (">", "'>'"),
        ("=", "="),
        ("<<", "<<"),
        ("'a'", "'''a'''"),
        ("\"a\"", "'\"a\"'"),
        ("a\\b", "a\\b"),
        ("a\tb", "\"a\\tb\""),
        ("a\r\nb", "\"a\\r\\nb\""),
        ("\u{c}", "\"\\f\""),
        ("a\u{1}b", "\"a\\x01b\""),
        ("é😀", "\"é\\U0001F600\""),
        ("é", "é"),
        ("a\u{a0}b", "a\u{a0}b"),
        ("\u{feff}a", "\"\\uFEFF\\x61\""),
        ("a \nb", "\"a \\nb\""),
        ("\ta\nb", "\"\\ta\\nb\""),
        ("AAA=", "AAA="),
    ] {
        let got = to_string(&json!({ "k": s }));
        assert_eq!(got, format!("k: {want}\n"), "{s:?}");
        if s != "<<" {
            assert_eq!(parse(&got).unwrap()[0]["k"], *s, "{s:?}");
        }
    }
}

#[test]
fn a_key_is_not_taken_for_what_is_to_be_merged() {
    check(&json!({"<<": [{"a": 1}], "b": "<<"}), "\"<<\":\n- a: 1\nb: <<\n");
}

#[test]
fn lines_are_literal_blocks() {
    check(&json!({"a": "x\ny\n"}), "a: |\n  x\n  y\n");
    check(&json!({"a": "x\ny"}), "a: |-\n  x\n  y\n");
    check(&json!({"a": "x\n\n"}), "a: |+\n  x\n\n");
    check(&json!({"a": " x\ny"}), "a: |2-\n   x\n  y\n");
    check(&json!({"a": "x\n  y\n\nz"}), "a: |-\n  x\n    y\n\n  z\n");
    check(&json!({"a": {"b": ["x\ny\n"]}}), "a:\n  b:\n  - |\n    x\n    y\n");
    assert_eq!(to_string(&json!({"a": "\n"})), "a: |2+\n\n");
}

#[test]
fn collections_are_laid_out_as_kubectl_shows_them() {
    check(&json!({"b": [1, 2], "a": {"c": null}}), "a:\n  c: null\nb:\n- 1\n- 2\n");
    check(&json!({"a": [], "b": {}, "c": [[], {}]}), "a: []\nb: {}\nc:\n- []\n- {}\n");
    check(&json!([{"a": 1, "b": [{"c": 2}]}, [1, [2, 3]]]), "- a: 1\n  b:\n  - c: 2\n- - 1\n  - - 2\n    - 3\n");
    check(&json!({"a10": 1, "a2": 2, "": 3, "B": 4, "a-b": 5, "a": 6}), "\"\": 3\nB: 4\na: 6\na-b: 5\na2: 2\na10: 1\n");
    check(&json!({"x\ny": "z"}), "? |-\n  x\n  y\n: z\n");
    check(&json!({"x\ny": {"a": 1, "b": [2]}}), "? |-\n  x\n  y\n: a: 1\n  b:\n  - 2\n");
    check(&json!({"true": 1, "1": 2}), "\"1\": 2\n\"true\": 1\n");
    assert_eq!(to_string(&json!("x")), "x\n");
}

#[test]
fn numbers_take_the_way_through_json() {
    for (text, want) in [
        ("1.0", "1"),
        ("1.5", "1.5"),
        ("1234567.5", "1.2345675e+06"),
        ("123456.5", "123456.5"),
        ("0.0001", "0.0001"),
        ("0.00001", "1e-05"),
        ("1e20", "1e+20"),
        ("1e300", "1e+300"),
        ("18446744073709551615", "18446744073709551615"),
        ("-5", "-5"),
    ] {
        let v: Value = serde_json::from_str(text).unwrap();
        assert_eq!(to_string(&v), format!("{want}\n"), "{text}");
    }
}

#[test]
fn long_lines_are_folded_after_eighty_columns() {
    let word = "aaaaaaaaaaaaaaaaaaa ";
    let long = word.repeat(8).trim().to_owned();
    let got = to_string(&json!({ "k": long }));
    assert_eq!(got, format!("k: {}\n  {}\n", word.repeat(4).trim(), word.repeat(4).trim()));
    check(&json!({ "k": format!("a: {long}") }), &to_string(&json!({ "k": format!("a: {long}") })));
    check(&json!({ "k": format!("a\t{long}") }), &to_string(&json!({ "k": format!("a\t{long}") })));
}

#[test]
fn deep_values_do_not_overflow_the_stack() {
    let text = format!("{}{}", "[".repeat(9000), "]".repeat(9000));
    let v = parse(&text).unwrap().remove(0);
    assert!(to_string(&v).starts_with("- - - "));
    // Dropping a value recurses in serde_json; that is not this crate's to mend.
    std::mem::forget(v);
}

proptest::proptest! {
    #[test]
    fn any_string_reads_back(s in "(?s).{0,120}", k in "[a-z:# ]{1,20}") {
        let v = json!({ k: { "x": [s] } });
        let text = to_string(&v);
        let back = parse(&text);
        // A plain `<<` is a merge key only where keys stand, so values need no care.
        proptest::prop_assert_eq!(back.unwrap().remove(0), v, "{}", text);
    }
}
