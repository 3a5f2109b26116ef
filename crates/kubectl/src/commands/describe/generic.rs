//! Describes any object by its fields.

use super::page::{Page, show};
use meta::{Object, Value};

/// The fields that are skipped, by path.
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

/// Words that are in capitals in titles.
const ACRONYMS: [&str; 4] = ["API", "URL", "UID", "GUID"];

/// Formats `creationTimestamp` as `Creation Timestamp`; names with characters other than letters and dashes stay (upstream
/// `smartLabelFor`).
fn title(name: &str) -> String {
    if !name.chars().all(|c| c.is_alphabetic() || c == '-') {
        return name.to_owned();
    }
    let mut words: Vec<String> = Vec::new();
    let mut open = false;
    for word in camel_case(name) {
        match words.last_mut() {
            // `IP` and `Address`, but also the rest of a plural in capitals, form one word.
            Some(last) if open && word.starts_with(|c: char| c.is_ascii_uppercase()) => {
                last.push_str(&word);
                open = false;
            }
            _ => {
                open = word.len() >= 2 && word.chars().all(|c| !c.is_alphabetic() || c.is_uppercase());
                words.push(word);
            }
        }
    }
    let label = |w: &String| {
        let upper = w.to_uppercase();
        if ACRONYMS.contains(&upper.as_str()) {
            return upper;
        }
        let mut rest = w.chars();
        let first: String = rest.next().into_iter().flat_map(char::to_uppercase).collect();
        first + rest.as_str()
    };
    words.iter().map(label).collect::<Vec<_>>().join(" ")
}

/// Splits a name into runs of lower-case letters, capitals and other characters. The last capital before lower-case letters
/// belongs to their run.
fn camel_case(name: &str) -> Vec<String> {
    let class = |c: char| (c.is_lowercase(), c.is_uppercase());
    let mut words: Vec<String> = Vec::new();
    for c in name.chars() {
        match words.last_mut() {
            Some(w) if w.chars().next_back().map(class) == Some(class(c)) => w.push(c),
            Some(w) if c.is_lowercase() && w.ends_with(char::is_uppercase) => {
                let first = w.pop().into_iter();
                if w.is_empty() {
                    words.pop();
                }
                words.push(first.chain([c]).collect());
            }
            _ => words.push(c.to_string()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    #[test]
    fn converts_names_to_titles() {
        for (name, expected) in [
            ("creationTimestamp", "Creation Timestamp"),
            ("podIP", "Pod IP"),
            ("uid", "UID"),
            ("spec", "Spec"),
            ("apiVersion", "API Version"),
            ("a.b/c", "a.b/c"),
            ("openAPIV3Schema", "openAPIV3Schema"),
            ("x-kubernetes-preserve-unknown-fields", "X - Kubernetes - Preserve - Unknown - Fields"),
            ("clusterIP", "Cluster IP"),
            ("clusterIPs", "Cluster I Ps"),
            ("podCIDR", "Pod CIDR"),
            ("ip", "Ip"),
            ("id", "Id"),
            ("podUid", "Pod UID"),
            ("baseUrl", "Base URL"),
            ("APIService", "APIService"),
            ("status_code", "status_code"),
            ("Kind", "Kind"),
        ] {
            assert_eq!(super::title(name), expected);
        }
    }
}
