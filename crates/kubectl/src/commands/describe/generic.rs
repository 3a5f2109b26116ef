//! Any object, by its fields.

use super::page::{Page, show};
use meta::{Object, Value};

/// What is not worth showing, by path.
const SKIPPED: [&str; 4] = [".metadata.managedFields", ".metadata.name", ".metadata.namespace", ".metadata.labels"];

pub fn describe(p: &mut Page, o: &Object) {
    p.field("Name", o.name());
    p.field("Namespace", o.namespace());
    p.metadata(o);
    let mut rest = o.clone();
    rest.remove(&["metadata", "annotations"]);
    object(p, 0, &rest.0, "");
}

fn object(p: &mut Page, level: usize, m: &meta::Map<String, Value>, path: &str) {
    for (key, v) in m {
        let (title, here) = (title(key), format!("{path}.{key}"));
        if SKIPPED.contains(&here.as_str()) {
            continue;
        }
        match v {
            Value::Object(m) => {
                p.line(level, format!("{title}:"));
                object(p, level + 1, m, &here);
            }
            Value::Array(a) => {
                p.line(level, format!("{title}:"));
                for i in a {
                    match i {
                        Value::Object(m) => object(p, level + 1, m, &here),
                        other => p.line(level + 1, show(other)),
                    }
                }
            }
            Value::Null => p.at(level, &title, "<nil>"),
            other => p.at(level, &title, show(other)),
        }
    }
}

/// `creationTimestamp` as `Creation Timestamp`; names that begin in capitals or have other characters stay.
fn title(name: &str) -> String {
    if !name.chars().all(|c| c.is_ascii_alphanumeric()) {
        return name.to_owned();
    }
    let mut words: Vec<String> = Vec::new();
    let chars: Vec<char> = name.chars().collect();
    for (i, c) in chars.iter().enumerate() {
        let before = i.checked_sub(1).map(|b| chars[b]);
        let after = chars.get(i + 1);
        let begins = match before {
            None => true,
            Some(b) => c.is_uppercase() && (!b.is_uppercase() || after.is_some_and(|a| a.is_lowercase())),
        };
        match words.last_mut() {
            Some(w) if !begins => w.push(*c),
            _ => words.push(c.to_string()),
        }
    }
    let upper = |w: &String| {
        let mut c = w.chars();
        let first: String = c.next().into_iter().flat_map(char::to_uppercase).collect();
        match w.as_str() {
            "ip" | "id" | "uid" | "api" | "url" | "cidr" | "ca" => w.to_uppercase(),
            _ => first + c.as_str(),
        }
    };
    words.iter().map(upper).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_become_titles() {
        for (name, want) in [
            ("creationTimestamp", "Creation Timestamp"),
            ("podIP", "Pod IP"),
            ("uid", "UID"),
            ("spec", "Spec"),
            ("apiVersion", "API Version"),
            ("a.b/c", "a.b/c"),
        ] {
            assert_eq!(super::title(name), want);
        }
    }
}
