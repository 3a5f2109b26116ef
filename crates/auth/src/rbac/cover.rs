//! Privilege escalation check (`k8s.io/component-helpers/auth/rbac/validation`): whether a user's rules grant
//! everything that other rules do. Compares rules part by part: several rules may together cover one.

use super::PolicyRule;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Limits on string comparisons per check, and on combinations in a message: lists multiply, so a rule of a few
/// kilobytes may have billions of combinations.
const MOST_COMPARED: usize = 10_000_000;
const MAX_MISSING: usize = 20_000;
/// Maximum length of [`describe`]'s result, in bytes.
const MAX_MESSAGE: usize = 64 << 10;

/// The check or its message exceeds the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the rules stand for too many combinations of verbs, groups, resources and names")]
pub struct TooMany;

/// The part of `requested` that no rule of `held` grants: one rule per URL and verb, and one per resource of a group,
/// with one name or all, and its verbs. Several held rules may together grant one.
pub fn missing(held: &[PolicyRule], requested: &[PolicyRule]) -> Result<Vec<PolicyRule>, TooMany> {
    let mut left: Vec<Product<'_>> = requested.iter().flat_map(Product::of_rule).filter(|p| p.size() > 0).collect();
    let mut compared = 0;
    for rule in held {
        let mut rest = Vec::new();
        for product in left {
            compared += product.lists.iter().map(Vec::len).sum::<usize>() * Product::length(rule).max(1);
            if compared > MOST_COMPARED {
                return Err(TooMany);
            }
            rest.extend(product.without(rule));
        }
        left = rest;
    }
    let size = left.iter().fold(0, |sum: usize, p| sum.saturating_add(p.size()));
    if size > MAX_MISSING {
        return Err(TooMany);
    }
    Ok(uncovered_rules(&left, requested))
}

/// A Cartesian product of lists: URLs and verbs, or groups, resources, verbs and names. No name stands for all.
struct Product<'a> {
    lists: Vec<Vec<Option<&'a str>>>,
}

impl<'a> Product<'a> {
    fn of_rule(rule: &'a PolicyRule) -> [Self; 2] {
        let list = |l: &'a [String]| -> Vec<Option<&'a str>> {
            let mut seen = BTreeSet::new();
            l.iter().map(|s| Some(s.as_str())).filter(|s| seen.insert(*s)).collect()
        };
        let names = if rule.names.is_empty() { vec![None] } else { list(&rule.names) };
        let urls = vec![list(&rule.urls), list(&rule.verbs)];
        let resources = vec![list(&rule.groups), list(&rule.resources), list(&rule.verbs), names];
        [Self { lists: urls }, Self { lists: resources }]
    }

    fn is_of_urls(&self) -> bool {
        self.lists.len() == 2
    }

    fn size(&self) -> usize {
        self.lists.iter().fold(1, |product: usize, l| product.saturating_mul(l.len()))
    }

    /// Maximum number of strings that an element is compared with.
    fn length(rule: &PolicyRule) -> usize {
        [&rule.verbs, &rule.groups, &rule.resources, &rule.names, &rule.urls].iter().map(|l| l.len()).max().unwrap_or(0)
    }

    /// The part of the product that a rule does not grant. Splits each list by what the rule grants; the resulting
    /// products are disjoint.
    fn without(self, rule: &PolicyRule) -> Vec<Self> {
        let of_urls = self.is_of_urls();
        let halves: Vec<(Vec<_>, Vec<_>)> = (self.lists.iter().enumerate())
            .map(|(at, list)| list.iter().partition(|x| grants(rule, of_urls, at, **x)))
            .collect();
        if halves.iter().any(|(has, _)| has.is_empty()) {
            return vec![self];
        }
        let piece = |at: usize| {
            let before = halves[..at].iter().map(|(has, _)| has.clone());
            let after = self.lists[at + 1..].iter().cloned();
            Self { lists: before.chain([halves[at].1.clone()]).chain(after).collect() }
        };
        (0..halves.len()).filter(|at| !halves[*at].1.is_empty()).map(piece).collect()
    }
}

/// Whether a rule grants an element of the list at this index of a product.
fn grants(rule: &PolicyRule, of_urls: bool, at: usize, x: Option<&str>) -> bool {
    let Some(x) = x else { return rule.names.is_empty() };
    let has = |list: &[String]| list.iter().any(|l| l == "*" || l == x);
    match (of_urls, at) {
        (true, 0) => {
            rule.urls.iter().any(|u| u == x || u.strip_suffix('*').is_some_and(|prefix| x.starts_with(prefix)))
        }
        (true, _) | (false, 2) => has(&rule.verbs),
        (false, 0) => has(&rule.groups),
        (false, 1) => {
            let of_all = |r: &String, sub| r.strip_prefix("*/").is_some_and(|s| s == sub);
            has(&rule.resources)
                || x.split_once('/').is_some_and(|(_, sub)| rule.resources.iter().any(|r| of_all(r, sub)))
        }
        (false, _) => rule.names.is_empty() || rule.names.iter().any(|n| n == x),
    }
}

fn uncovered_rules(left: &[Product<'_>], requested: &[PolicyRule]) -> Vec<PolicyRule> {
    let mut rank: HashMap<&str, usize> = HashMap::new();
    for verb in requested.iter().flat_map(|r| &r.verbs) {
        let next = rank.len();
        rank.entry(verb).or_insert(next);
    }
    let list_of = |s: &str| vec![s.to_owned()];
    let mut out = Vec::new();
    let mut verbs_of: BTreeMap<[Option<&str>; 3], BTreeSet<(usize, &str)>> = BTreeMap::new();
    for product in left {
        match &product.lists[..] {
            [urls, verbs] => {
                let pairs = urls.iter().flatten().flat_map(|u| verbs.iter().flatten().map(move |v| (u, v)));
                out.extend(pairs.map(|(u, v)| PolicyRule {
                    urls: list_of(u),
                    verbs: list_of(v),
                    ..PolicyRule::default()
                }));
            }
            [groups, resources, verbs, names] => {
                for group in groups {
                    for resource in resources {
                        for name in names {
                            let verbs = verbs.iter().flatten().map(|v| (rank.get(v).copied().unwrap_or_default(), *v));
                            verbs_of.entry([*group, *resource, *name]).or_default().extend(verbs);
                        }
                    }
                }
            }
            _ => {}
        }
    }
    let list = |x: Option<&str>| x.map(str::to_owned).into_iter().collect();
    out.extend(verbs_of.into_iter().map(|([group, resource, name], verbs)| PolicyRule {
        groups: list(group),
        resources: list(resource),
        names: list(name),
        verbs: verbs.into_iter().map(|(_, v)| v.to_owned()).collect(),
        ..PolicyRule::default()
    }));
    out
}

/// Formats missing rules, one per sorted line; truncated if there are very many.
pub fn describe(missing: &[PolicyRule]) -> String {
    let lines: BTreeSet<String> = missing.iter().map(line).collect();
    let mut text = String::new();
    for (shown, line) in lines.iter().enumerate() {
        if text.len() + line.len() > MAX_MESSAGE {
            return format!("{text}\n({} more)", lines.len() - shown);
        }
        if shown > 0 {
            text.push('\n');
        }
        text.push_str(line);
    }
    text
}

fn line(rule: &PolicyRule) -> String {
    let fields = [
        ("APIGroups", &rule.groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.urls),
        ("ResourceNames", &rule.names),
        ("Verbs", &rule.verbs),
    ];
    let set = fields.iter().filter(|(_, l)| !l.is_empty()).map(|(name, l)| format!("{name}:{}", quoted(l)));
    format!("{{{}}}", set.collect::<Vec<_>>().join(", "))
}

/// Formats a list as Go's `%q`.
pub fn quoted(list: &[String]) -> String {
    let all: Vec<String> = list.iter().map(|s| format!("{s:?}")).collect();
    format!("[{}]", all.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        let check = |held: &[PolicyRule], requested: PolicyRule, lacks: &str| {
            assert_eq!(describe(&missing(held, &[requested]).unwrap()), lacks);
        };
        let all = rule("*", "*", "*", "-");
        check(&[all.clone(), url("*", "*")], rule("get", "apps", "deployments/scale", "x"), "");
        check(std::slice::from_ref(&all), url("get", "/metrics"), r#"{NonResourceURLs:["/metrics"], Verbs:["get"]}"#);
        // Several rules together.
        let split = [rule("get", "", "pods", "-"), rule("list", "", "pods", "-")];
        check(&split, rule("get,list", "", "pods", "-"), "");
        let expected = "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"watch\" \"delete\"]}\n\
            {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"watch\" \"delete\"]}";
        check(&split, rule("get,watch,delete", "", "pods,secrets", "-"), expected);
        // Requesting a wildcard requires a wildcard.
        check(&split, rule("*", "", "pods", "-"), r#"{APIGroups:[""], Resources:["pods"], Verbs:["*"]}"#);
        // A resource does not include its subresources.
        let scale = r#"{APIGroups:["apps"], Resources:["deployments/scale"], Verbs:["get"]}"#;
        check(&[rule("get", "apps", "deployments", "-")], rule("get", "apps", "deployments/scale", "-"), scale);
        check(&[rule("get", "apps", "*/scale", "-")], rule("get", "apps", "deployments/scale", "-"), "");
        // A name does not cover all names.
        let named = [rule("get", "", "secrets", "one,two")];
        check(&named, rule("get", "", "secrets", "two"), "");
        check(&named, rule("get", "", "secrets", "-"), r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#);
        let three = r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["three"], Verbs:["get"]}"#;
        check(&named, rule("get", "", "secrets", "two,three"), three);
        check(&[url("get", "/apis/*")], url("get", "/apis/apps"), "");
        check(&[url("get", "/apis/*")], url("get", "/api"), r#"{NonResourceURLs:["/api"], Verbs:["get"]}"#);
    }

    /// By definition: every combination and every held rule.
    fn slowly(held: &[PolicyRule], requested: &PolicyRule) -> BTreeSet<String> {
        let all = [None];
        let names: Vec<Option<&String>> = requested.names.iter().map(Some).collect();
        let names = if names.is_empty() { &all[..] } else { &names[..] };
        let mut out = BTreeSet::new();
        for g in &requested.groups {
            for r in &requested.resources {
                for v in &requested.verbs {
                    for n in names {
                        let has = |list: &[String], x: &String| list.contains(x) || list.iter().any(|l| l == "*");
                        let covers = |h: &PolicyRule| {
                            has(&h.groups, g)
                                && has(&h.resources, r)
                                && has(&h.verbs, v)
                                && (h.names.is_empty() || n.is_some_and(|n| h.names.contains(n)))
                        };
                        if !held.iter().any(covers) {
                            out.insert(format!("{g} {r} {v} {n:?}"));
                        }
                    }
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn products_say_what_combinations_say(
            held in prop::collection::vec(any_rule(), 0..6),
            requested in any_rule(),
        ) {
            let each = |r: &PolicyRule| -> Vec<String> {
                let name = r.names.first();
                r.verbs.iter().map(|v| format!("{} {} {v} {name:?}", r.groups[0], r.resources[0])).collect()
            };
            let found: BTreeSet<String> = missing(&held, std::slice::from_ref(&requested)).unwrap().iter().flat_map(each).collect();
            prop_assert_eq!(found, slowly(&held, &requested));
        }
    }

    fn any_rule() -> impl Strategy<Value = PolicyRule> {
        let some = |texts: &'static [&'static str]| {
            prop::collection::vec(prop::sample::select(texts), 1..4)
                .prop_map(|l| l.into_iter().map(str::to_owned).collect::<Vec<_>>())
        };
        let names = prop_oneof![Just(Vec::new()), some(&["x", "y", "z"])];
        let three = (some(&["", "apps", "*"]), some(&["pods", "secrets", "*"]), some(&["get", "list", "watch", "*"]));
        (three, names).prop_map(|((groups, resources, verbs), names)| PolicyRule {
            groups,
            resources,
            verbs,
            names,
            ..PolicyRule::default()
        })
    }

    #[test]
    fn lists_that_multiply_are_not_multiplied() {
        let many = |what: &str| (0..1000).map(|n| format!("{what}{n}")).collect::<Vec<_>>();
        let billions = PolicyRule {
            verbs: many("v"),
            groups: many("g"),
            resources: many("r"),
            names: many("n"),
            ..PolicyRule::default()
        };
        let of_all = rule("*", "*", "*", "-");
        assert_eq!(missing(std::slice::from_ref(&of_all), std::slice::from_ref(&billions)), Ok(Vec::new()));
        let mut held = vec![billions.clone()];
        assert_eq!(missing(&held, std::slice::from_ref(&billions)), Ok(Vec::new()));
        // One fewer of each.
        held[0].groups.pop();
        assert_eq!(missing(&held, std::slice::from_ref(&billions)), Err(TooMany));
        assert_eq!(missing(&[], std::slice::from_ref(&billions)), Err(TooMany));
        let odd: Vec<_> = (0..2000).map(|n| rule("v1,v3", "g1", &format!("r{n}"), "n5,n7")).collect();
        assert_eq!(missing(&odd, &[billions]), Err(TooMany));

        let some = PolicyRule { resources: many("a-resource-with-a-long-name-"), ..rule("get", "apps", "-", "-") };
        let text = describe(&missing(&[], &[some]).unwrap());
        assert!(text.len() < MAX_MESSAGE + 100 && text.lines().last().unwrap().ends_with(" more)"), "{}", text.len());
    }
}
