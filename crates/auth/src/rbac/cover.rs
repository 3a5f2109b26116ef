//! Whether some rules grant everything that others do (`k8s.io/component-helpers/auth/rbac/validation`): nobody gives away what
//! they do not hold themselves. Rules are compared part by part, so that what one rule lacks another may add.

use super::PolicyRule;
use std::collections::BTreeSet;

/// The smallest parts of `wanted` that no single rule of `held` grants.
pub fn missing(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    wanted.iter().flat_map(parts).filter(|part| !held.iter().any(|h| covers(h, part))).collect()
}

/// One verb on one URL, or on one resource of one group, under one name or all.
fn parts(rule: &PolicyRule) -> Vec<PolicyRule> {
    let one = |s: &String| vec![s.clone()];
    let mut out = Vec::new();
    for url in &rule.urls {
        let part = |verb| PolicyRule { urls: one(url), verbs: one(verb), ..PolicyRule::default() };
        out.extend(rule.verbs.iter().map(part));
    }
    for group in &rule.groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let part = PolicyRule {
                    groups: one(group),
                    resources: one(resource),
                    verbs: one(verb),
                    ..PolicyRule::default()
                };
                if rule.names.is_empty() {
                    out.push(part);
                    continue;
                }
                out.extend(rule.names.iter().map(|n| PolicyRule { names: one(n), ..part.clone() }));
            }
        }
    }
    out
}

fn covers(held: &PolicyRule, part: &PolicyRule) -> bool {
    let has = |list: &[String], x: &String| list.iter().any(|l| l == "*" || l == x);
    let all = |list: &[String], wanted: &[String]| wanted.iter().all(|w| has(list, w));
    let resource = |wanted: &String| {
        has(&held.resources, wanted)
            || wanted.split_once('/').is_some_and(|(_, sub)| held.resources.contains(&format!("*/{sub}")))
    };
    let url = |wanted: &String| {
        held.urls.iter().any(|u| u == wanted || u.strip_suffix('*').is_some_and(|prefix| wanted.starts_with(prefix)))
    };
    let names = match (held.names.is_empty(), part.names.is_empty()) {
        (true, _) => true,
        (false, true) => false,
        (false, false) => part.names.iter().all(|n| held.names.contains(n)),
    };
    all(&held.verbs, &part.verbs)
        && all(&held.groups, &part.groups)
        && part.resources.iter().all(resource)
        && part.urls.iter().all(url)
        && names
}

/// The same parts, with those put together that differ only in their verb.
pub fn compact(parts: &[PolicyRule]) -> Vec<PolicyRule> {
    let mut compact: Vec<PolicyRule> = Vec::new();
    for p in parts {
        let simple = p.urls.is_empty() && p.groups.len() == 1 && p.resources.len() == 1 && p.names.len() <= 1;
        let same = |c: &&mut PolicyRule| {
            simple && c.urls.is_empty() && c.groups == p.groups && c.resources == p.resources && c.names == p.names
        };
        match compact.iter_mut().find(same) {
            Some(c) => p.verbs.iter().for_each(|v| {
                if !c.verbs.contains(v) {
                    c.verbs.push(v.clone());
                }
            }),
            None => compact.push(p.clone()),
        }
    }
    compact
}

/// The parts in few words, each on its line and in order.
pub fn describe(parts: &[PolicyRule]) -> String {
    let lines: BTreeSet<String> = compact(parts).iter().map(line).collect();
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

fn line(rule: &PolicyRule) -> String {
    let fields = [
        ("APIGroups", &rule.groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.urls),
        ("ResourceNames", &rule.names),
        ("Verbs", &rule.verbs),
    ];
    let said = fields.iter().filter(|(_, l)| !l.is_empty()).map(|(name, l)| format!("{name}:{}", quoted(l)));
    format!("{{{}}}", said.collect::<Vec<_>>().join(", "))
}

/// A list as Go prints it with `%q`.
pub fn quoted(list: &[String]) -> String {
    let all: Vec<String> = list.iter().map(|s| format!("{s:?}")).collect();
    format!("[{}]", all.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &str, groups: &str, resources: &str, names: &str) -> PolicyRule {
        let list = |t: &str| if t == "-" { Vec::new() } else { t.split(',').map(str::to_owned).collect() };
        PolicyRule {
            verbs: list(verbs),
            groups: list(groups),
            resources: list(resources),
            names: list(names),
            ..PolicyRule::default()
        }
    }

    fn url(verbs: &str, url: &str) -> PolicyRule {
        PolicyRule { verbs: vec![verbs.into()], urls: vec![url.into()], ..PolicyRule::default() }
    }

    #[test]
    fn what_is_held_covers_what_is_given() {
        let check = |held: &[PolicyRule], wanted: PolicyRule, lacks: &str| {
            assert_eq!(describe(&missing(held, &[wanted])), lacks);
        };
        let all = rule("*", "*", "*", "-");
        check(&[all.clone(), url("*", "*")], rule("get", "apps", "deployments/scale", "x"), "");
        check(std::slice::from_ref(&all), url("get", "/metrics"), r#"{NonResourceURLs:["/metrics"], Verbs:["get"]}"#);
        // Several rules together.
        let split = [rule("get", "", "pods", "-"), rule("list", "", "pods", "-")];
        check(&split, rule("get,list", "", "pods", "-"), "");
        let said = "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"watch\" \"delete\"]}\n\
            {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"watch\" \"delete\"]}";
        check(&split, rule("get,watch,delete", "", "pods,secrets", "-"), said);
        // Wildcards are not what they stand for.
        check(&split, rule("*", "", "pods", "-"), r#"{APIGroups:[""], Resources:["pods"], Verbs:["*"]}"#);
        // A resource is not its subresources.
        let scale = r#"{APIGroups:["apps"], Resources:["deployments/scale"], Verbs:["get"]}"#;
        check(&[rule("get", "apps", "deployments", "-")], rule("get", "apps", "deployments/scale", "-"), scale);
        check(&[rule("get", "apps", "*/scale", "-")], rule("get", "apps", "deployments/scale", "-"), "");
        // A name is less than all names.
        let named = [rule("get", "", "secrets", "one,two")];
        check(&named, rule("get", "", "secrets", "two"), "");
        check(&named, rule("get", "", "secrets", "-"), r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#);
        let three = r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["three"], Verbs:["get"]}"#;
        check(&named, rule("get", "", "secrets", "two,three"), three);
        check(&[url("get", "/apis/*")], url("get", "/apis/apps"), "");
        check(&[url("get", "/apis/*")], url("get", "/api"), r#"{NonResourceURLs:["/api"], Verbs:["get"]}"#);
    }
}
