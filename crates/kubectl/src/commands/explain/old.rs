//! `--output=plaintext-openapiv2`: the page format before OpenAPI v3, without type names and enums.
//!
//! Left out: indented blocks in descriptions; their lines are wrapped like any paragraph.

use super::Explain;
use meta::{Gvk, Map, Value};

/// Lines are wrapped before this column.
const WIDTH: usize = 80;

/// Formats the page of a kind or field.
pub fn page(x: &Explain<'_>, gvk: &Gvk, field: Option<(&str, &Value)>, root: &Value, recursive: bool) -> String {
    let mut out = format!("KIND:     {}\nVERSION:  {}\n\n", gvk.kind, gvk.api_version());
    let current = field.map_or(root, |(_, v)| v);
    let inner = x.inner(current);
    let properties = inner["properties"].as_object().filter(|p| !p.is_empty());
    if let Some((name, v)) = field {
        let word = if properties.is_some() { "RESOURCE:" } else { "FIELD:   " };
        out.push_str(&format!("{word} {name} <{}>\n\n", type_of(x, v)));
    }
    out.push_str("DESCRIPTION:\n");
    let own = current["description"].as_str().filter(|d| !d.is_empty());
    let of_type = inner["description"].as_str().filter(|d| !d.is_empty() && Some(*d) != own);
    let all: Vec<String> = [own, of_type].into_iter().flatten().map(wrap_paragraphs).collect();
    out.push_str(&if all.is_empty() { "     <empty>\n".to_owned() } else { all.join("\n") });
    if let Some(p) = properties {
        out.push_str("\nFIELDS:\n");
        fields(x, inner, p, 3, recursive, &mut Vec::new(), &mut out);
    }
    out
}

fn type_of(x: &Explain<'_>, v: &Value) -> String {
    let v = x.resolve(v);
    if v["items"].is_object() {
        return format!("[]{}", type_of(x, &v["items"]));
    }
    if v["additionalProperties"].is_object() && v["properties"].is_null() {
        return format!("map[string]{}", type_of(x, &v["additionalProperties"]));
    }
    match v["type"].as_str() {
        Some("object") if v["properties"].is_null() => "map[string]".to_owned(),
        Some("object") => "Object".to_owned(),
        Some(t) => t.to_owned(),
        None if v["oneOf"].is_array() || v["format"] == "int-or-string" => "string".to_owned(),
        None => "Object".to_owned(),
    }
}

fn fields<'a>(
    x: &Explain<'a>,
    of: &'a Value,
    properties: &'a Map<String, Value>,
    indent: usize,
    recursive: bool,
    path: &mut Vec<&'a Value>,
    out: &mut String,
) {
    for (name, v) in properties {
        let pad = " ".repeat(indent);
        let must = !recursive && of["required"].as_array().is_some_and(|r| r.iter().any(|n| n == name.as_str()));
        out.push_str(&format!("{pad}{name}\t<{}>{}\n", type_of(x, v), if must { " -required-" } else { "" }));
        if recursive {
            let inner = x.inner(v);
            if let Some(p) = x.properties(inner).filter(|_| !path.iter().any(|p| std::ptr::eq(*p, inner))) {
                path.push(inner);
                fields(x, inner, p, indent + 3, recursive, path, out);
                path.pop();
            }
            continue;
        }
        let d = v["description"].as_str().or_else(|| x.resolve(v)["description"].as_str());
        match d.filter(|d| !d.is_empty()) {
            Some(d) => out.push_str(&wrap_paragraphs(d)),
            None => out.push_str("     <no description>\n"),
        }
        out.push('\n');
    }
}

/// Wraps the paragraphs of a text, with an empty line between two.
fn wrap_paragraphs(text: &str) -> String {
    let mut out = String::new();
    for paragraph in text.split("\n\n").filter(|p| !p.trim().is_empty()) {
        if !out.is_empty() {
            out.push('\n');
        }
        let mut line = String::from("    ");
        for word in paragraph.split_whitespace() {
            if line.chars().count() > 4 && line.chars().count() + 1 + word.chars().count() > WIDTH {
                out.push_str(&line);
                out.push('\n');
                line = String::from("    ");
            }
            line.push(' ');
            line.push_str(word);
        }
        out.push_str(&line);
        out.push('\n');
    }
    out
}
