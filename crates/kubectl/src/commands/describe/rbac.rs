//! Describes roles and bindings.

use super::page::{Page, list, show};
use meta::{Object, Value};
use std::collections::BTreeMap;

/// A rule on one resource or one path.
#[derive(Clone, Default)]
struct Rule {
    verbs: Vec<String>,
    group: String,
    resource: String,
    names: Vec<String>,
    paths: Vec<String>,
}

impl Rule {
    /// Upstream's sort key: the rule as Go prints it.
    fn order(&self) -> String {
        let Self { verbs, group, resource, names, paths } = self;
        let (v, n, p) = (verbs.join(" "), names.join(" "), paths.join(" "));
        format!("Verbs:[{v}],APIGroups:[{group}],Resources:[{resource}],ResourceNames:[{n}],NonResourceURLs:[{p}]")
    }

    /// Formats the resource with its group, followed by a subresource.
    fn resource(&self) -> String {
        if self.group.is_empty() {
            return self.resource.clone();
        }
        match self.resource.split_once('/') {
            Some((r, sub)) => format!("{r}.{}/{sub}", self.group),
            None => format!("{}.{}", self.resource, self.group),
        }
    }
}

fn words(v: &Value) -> Vec<String> {
    list(Some(v)).iter().map(show).collect()
}

/// Splits into one rule per resource and name, with the verbs of all rules about it, and one per path and verb (upstream `BreakdownRule`
/// and `CompactRules`).
fn rules(o: &Object) -> Vec<Rule> {
    let mut found: Vec<Rule> = Vec::new();
    let mut known: BTreeMap<(String, String, Vec<String>), usize> = BTreeMap::new();
    for r in list(o.get("rules")) {
        let (verbs, names) = (words(&r["verbs"]), words(&r["resourceNames"]));
        let names: Vec<Vec<String>> =
            if names.is_empty() { vec![Vec::new()] } else { names.into_iter().map(|n| vec![n]).collect() };
        for group in words(&r["apiGroups"]) {
            for resource in words(&r["resources"]) {
                for (verb, names) in verbs.iter().flat_map(|verb| names.iter().map(move |names| (verb, names))) {
                    let key = (group.clone(), resource.clone(), names.clone());
                    let i = *known.entry(key).or_insert(found.len());
                    if i == found.len() {
                        let (group, resource, names) = (group.clone(), resource.clone(), names.clone());
                        found.push(Rule { group, resource, names, ..Rule::default() });
                    }
                    if !found[i].verbs.contains(verb) {
                        found[i].verbs.push(verb.clone());
                    }
                }
            }
        }
        for path in words(&r["nonResourceURLs"]) {
            let rule = |verb: &String| Rule { verbs: vec![verb.clone()], paths: vec![path.clone()], ..Rule::default() };
            found.extend(verbs.iter().map(rule));
        }
    }
    found.sort_by_key(Rule::order);
    found
}

pub fn role(p: &mut Page, o: &Object) {
    p.field("Name", o.name());
    p.metadata(o);
    p.line(0, "PolicyRule:\n  Resources\tNon-Resource URLs\tResource Names\tVerbs");
    p.line(1, "---------\t-----------------\t--------------\t-----");
    for row in rows(o) {
        p.line(1, row.join("\t"));
    }
}

/// Returns the rules of an object, one per resource and path: resource, paths, names, verbs.
pub fn rows(o: &Object) -> Vec<[String; 4]> {
    let show = |r: Rule| {
        let list = |l: &[String]| format!("[{}]", l.join(" "));
        [r.resource(), list(&r.paths), list(&r.names), list(&r.verbs)]
    };
    rules(o).into_iter().map(show).collect()
}

pub fn binding(p: &mut Page, o: &Object) {
    p.field("Name", o.name());
    p.metadata(o);
    let role = |key: &str| o.at(&["roleRef", key]).map(show).unwrap_or_default();
    p.line(0, "Role:");
    p.at(1, "Kind", role("kind"));
    p.at(1, "Name", role("name"));
    p.line(0, "Subjects:\n  Kind\tName\tNamespace\n  ----\t----\t---------");
    for s in list(o.get("subjects")) {
        p.line(1, format!("{}\t{}\t{}", show(&s["kind"]), show(&s["name"]), show(&s["namespace"])));
    }
}
