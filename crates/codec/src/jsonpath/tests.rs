use super::{Missing, Template};
use serde_json::json;

fn render(template: &str, document: &meta::Value) -> String {
    Template::parse(template).and_then(|t| t.render(document, Missing::Allowed)).unwrap_or_else(|e| format!("!{e}"))
}

/// Groundwork of A16: the forms of the documentation and of upstream's own tables.
#[test]
fn templates_render_as_upstream_renders_them() {
    let d = json!({
        "kind": "List", "n": null, "f": 0.5, "big": 12345678.5, "b": true, "m": {"a.b/c": "dotted", "x": "<y>"},
        "word": "hi", "words": ["x", ""], "empty": [{"list": [1]}, {"list": []}, {"list": [2]}],
        "items": [
            {"name": "one", "i": 1, "tags": ["p", "q"], "ready": true},
            {"name": "two", "i": 2, "tags": ["r"], "ready": false},
            {"name": "three", "i": 3, "ready": true},
        ],
    });
    for (template, want) in [
        ("hello", "hello"),
        ("{.kind}", "List"),
        ("{$.kind}", "List"),
        ("{@.kind}", "List"),
        ("kind is {.kind}!", "kind is List!"),
        ("{.f} {.big} {.b} {.n}", "0.5 1.23456785e+07 true null"),
        ("{.m.a\\.b/c}", "dotted"),
        ("{.m['a\\.b/c']}", "dotted"),
        ("{.m['a.b/c']}", ""),
        ("{['kind']}", "List"),
        ("{.m}", "{\"a.b/c\":\"dotted\",\"x\":\"\\u003cy\\u003e\"}"),
        ("{.items[*].name}", "one two three"),
        ("{.items[0].name}", "one"),
        ("{.items[-1].name}", "three"),
        ("{.items[-1:].name}", "three"),
        ("{.items[0:2].name}", "one two"),
        ("{.items[:2].name}", "one two"),
        ("{.items[::2].name}", "one three"),
        ("{.items[0,2].name}", "one three"),
        ("{.items[0]['name','i']}", "one 1"),
        ("{.items[0].tags}", "[\"p\",\"q\"]"),
        ("{..name}", "one two three"),
        ("{.items..tags[0]}", "p r"),
        ("{.items[?(@.i>1)].name}", "two three"),
        ("{.items[?(@.i >= 2)].name}", "two three"),
        ("{.items[?(@.name==\"two\")].i}", "2"),
        ("{.items[?(@.name!='two')].i}", "1 3"),
        ("{.items[?(@.ready==true)].name}", "one three"),
        ("{.items[?(@.tags)].name}", "one two"),
        ("{range .items[*]}{.name}={.i}{\"\\n\"}{end}", "one=1\ntwo=2\nthree=3\n"),
        ("{range .items[*]}[{range .tags[*]}{@}{','}{end}]{end}.", "[p,q,][r,][]."),
        ("{range .nothing[*]}{.x}{end}done", "done"),
        ("{.missing}", ""),
        ("{.items[*].missing}", ""),
        ("{.kind.x}", ""),
        ("{.items[7]}", "!array index out of bounds: index 7, length 3"),
        ("{.kind[0]}", "!string is not array or slice"),
        ("{.m[*]}", "!map[string]interface {} is not array or slice"),
        ("{.m.*}", "dotted <y>"),
        ("{.items[0].i[0]} ", "!int64 is not array or slice"),
        ("{.kind[?(@.x)]}", "!List is not array or slice and cannot be filtered"),
        ("{.items[*]['name', 'i']}", "one two three 1 2 3"),
        ("{.items[*]['name','m.x']}{$['m.x', 'm.a\\.b/c']}", "one two three<y> dotted"),
        ("{['items[0].name']}", "!invalid array index 'items[0"),
        ("{.m[\"x\"]}", "!invalid array index \"x\""),
        ("{.items[ 0 ]}", "!invalid array index  0 "),
        ("{.items[].name}", "one"),
        ("{.items[99999999999999999999]}", "!array index 99999999999999999999 is not a number"),
        ("{.items[*].tags[*]}", "p q r"),
        ("{.empty[*].list[*]}", "1"),
        ("{range .items[*]}{.name}", "onetwothree"),
        ("{range .words[*]}{range .x}{.y}", ""),
        ("{range .items[*]}{.name}{end}{end}", "!not in range, nothing to end"),
        ("{\"\\q\"}", "!unquote string \"\\q\" error invalid syntax"),
        ("{\"\\x41\\102\\u00e9\\t\\\"\"}{'\\''}", "AB\u{e9}\t\"'"),
        ("{.items[?(@.i==1.0)]}", "!incompatible types for comparison"),
        ("{.items[?(@.ready>true)]}", "!invalid type for comparison"),
        ("{.items[?(@.tags==1)]}", "!invalid type for comparison"),
        ("{.items[?(@.tags[1])].name}", "one two"),
        ("{.items[?(@.tags[?(@.x)])]}", "!unterminated filter"),
        ("{..*}", "!unrecognized character in action: U+002A '*'"),
        ("{.a....b}", "!invalid multiple recursive descent"),
        ("{.b.*} {.word.*}", " 104 105"),
        ("{.words..}", "[\"x\",\"\"] x"),
        ("{3}{-1.5}{true}{+2}", "3-1.5true2"),
        ("{1.2.3}", "!cannot parse number 1.2.3"),
        ("{\t.kind}", "!unrecognized character in action: U+0009"),
        ("{.}", ""),
        ("{.items[?(@.name==1)]}", "!incompatible types for comparison"),
        ("{range .empty[*].none}{.x}{end}.", "."),
        ("{.kind", "!unclosed action"),
        ("{.items[0}", "!unterminated array"),
        ("{.items[x]}", "!invalid array index x"),
        ("{.items[?(@.i=>1)]}", "!unrecognized filter operator =>"),
        ("{end}", "!not in range, nothing to end"),
        ("{hello}", "!unrecognized identifier hello"),
        ("{'x}", "!unterminated quoted string"),
    ] {
        assert_eq!(render(template, &d), want, "{template}");
    }
    let t = Template::parse("{.missing}").unwrap();
    assert_eq!(t.render(&d, Missing::Error).unwrap_err().to_string(), "missing is not found");
}

#[test]
fn relaxed_expressions_need_no_braces() {
    let d = json!({"a": {"b": 1}});
    for t in ["a.b", ".a.b", "{a.b}", "{.a.b}"] {
        assert_eq!(Template::relaxed(t).unwrap().render(&d, Missing::Allowed).unwrap(), "1", "{t}");
    }
    for t in ["{a.b", "a.b}", "{{a}}", "."] {
        assert!(Template::relaxed(t).is_err(), "{t}");
    }
}

/// Authors of definitions choose the paths of columns: `..` after `..` multiplies.
#[test]
fn expressions_of_others_have_a_limit() {
    let mut deep = json!({"name": "deepest"});
    for _ in 0..100 {
        deep = json!({"a": deep});
    }
    let first = |path: &str, work: &mut usize| Template::parse(path).unwrap().first_within(&deep, work);
    for path in ["{...*...*...*...*...*}", "{..a..a..a..a..a}", "{..[?(@..x)]}"] {
        let mut work = 100_000;
        let found = first(path, &mut work);
        assert!(found.is_err() || work < 100_000, "{path}");
    }
    let mut work = 1000;
    assert_eq!(first("{..name}", &mut work).unwrap(), Some("deepest".into()));
    assert!((1..1000).contains(&work), "{work}");
    first("{...*...*...*...*}", &mut work).unwrap_err();
    first("{.a}", &mut work).unwrap_err();
    assert_eq!(work, 0, "what one has taken the next does not have");
}

#[test]
fn expressions_are_nested_only_so_deep() {
    let filters = |n: usize| format!("{{.{}@.a{}}}", "[?(".repeat(n), ")]".repeat(n));
    let unions = |n: usize| format!("{{{}0,1{}}}", "[0,".repeat(n), "]".repeat(n));
    let quoted = |n: usize| format!("{{{}}}", (0..n).fold("@.a".to_owned(), |a, _| format!("@.b[?(x'=@{a})]''")));
    let ranges = |n: usize| "{range .a}".repeat(n);
    Template::parse(&ranges(20)).unwrap();
    for deep in [filters(100_000), unions(100_000), quoted(1_000), ranges(100_000)] {
        let e = Template::parse(&deep).unwrap_err().to_string();
        let known = ["too many nested", "invalid array index", "unterminated", "unclosed array"];
        assert!(known.iter().any(|k| e.starts_with(k)), "{}", &e[..80.min(e.len())]);
    }
}
