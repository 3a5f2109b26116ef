//! A table as data, and the commands that change one into another.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::Family;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    pub family: Family,
    pub table: String,
    /// Name → declaration (`{ type … }`). A declaration that changes makes a new object.
    pub maps: BTreeMap<String, Container>,
    pub sets: BTreeMap<String, Container>,
    /// Name → rules.
    pub chains: BTreeMap<String, Chain>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    pub declaration: String,
    /// Key → value; for sets the value is empty.
    pub elements: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// `{ type … hook … }` of a base chain, else empty.
    pub declaration: String,
    pub rules: Vec<String>,
}

/// Maximum of elements in one command: nft holds a command in memory several times.
const BATCH: usize = 500;

impl Ruleset {
    /// An empty table.
    pub fn new(family: Family, table: String) -> Ruleset {
        Ruleset { family, table, maps: BTreeMap::new(), sets: BTreeMap::new(), chains: BTreeMap::new() }
    }

    /// Commands that replace the whole table.
    pub fn replacement(&self) -> String {
        let (ip, table) = (self.family.word(), &self.table);
        let mut script = format!("add table {ip} {table}\ndelete table {ip} {table}\nadd table {ip} {table}\n");
        script.push_str(&self.difference(&Ruleset::new(self.family, table.clone())));
        script
    }

    /// Commands that make `before` into this; empty if nothing changes.
    pub fn difference(&self, before: &Ruleset) -> String {
        self.changes(before) + &self.removals(before)
    }

    /// The commands of [`Ruleset::difference`] that add and change objects.
    pub fn changes(&self, before: &Ruleset) -> String {
        let (ip, table) = (self.family.word(), &self.table);
        let mut script = String::new();
        // `write!` to a String cannot fail.
        let mut say = |line: std::fmt::Arguments| {
            let _ = writeln!(script, "{line}");
        };

        // Objects are created before those that refer to them: declarations, chains, rules, elements.
        for (kind, now, old) in [("map", &self.maps, &before.maps), ("set", &self.sets, &before.sets)] {
            for (name, container) in now {
                match old.get(name) {
                    Some(known) if known.declaration == container.declaration => {}
                    Some(_) | None => say(format_args!("add {kind} {ip} {table} {name} {}", container.declaration)),
                }
            }
        }
        for (name, chain) in &self.chains {
            if !before.chains.contains_key(name) {
                say(format_args!("add chain {ip} {table} {name} {}", chain.declaration));
            }
        }
        for (name, chain) in &self.chains {
            let known = before.chains.get(name);
            if known.is_some_and(|k| k.rules == chain.rules) {
                continue;
            }
            if known.is_some() {
                say(format_args!("flush chain {ip} {table} {name}"));
            }
            for rule in &chain.rules {
                say(format_args!("add rule {ip} {table} {name} {rule}"));
            }
        }
        for (now, old) in [(&self.maps, &before.maps), (&self.sets, &before.sets)] {
            let empty = Container::default();
            for (name, container) in now {
                let known = old.get(name).unwrap_or(&empty);
                let gone: Vec<String> = known
                    .elements
                    .iter()
                    .filter(|(key, value)| container.elements.get(*key) != Some(value))
                    .map(|(key, value)| element(key, value))
                    .collect();
                for batch in gone.chunks(BATCH) {
                    say(format_args!("delete element {ip} {table} {name} {{ {} }}", batch.join(", ")));
                }
                let fresh: Vec<String> = container
                    .elements
                    .iter()
                    .filter(|(key, value)| known.elements.get(*key) != Some(value))
                    .map(|(key, value)| element(key, value))
                    .collect();
                for batch in fresh.chunks(BATCH) {
                    say(format_args!("add element {ip} {table} {name} {{ {} }}", batch.join(", ")));
                }
            }
        }
        script
    }

    /// The commands of [`Ruleset::difference`] that remove objects, which run after the others.
    pub fn removals(&self, before: &Ruleset) -> String {
        let (ip, table) = (self.family.word(), &self.table);
        let mut script = String::new();
        // `write!` to a String cannot fail.
        let mut say = |line: std::fmt::Arguments| {
            let _ = writeln!(script, "{line}");
        };
        // First all rules, since chains may refer to each other.
        let gone: Vec<&String> = before.chains.keys().filter(|n| !self.chains.contains_key(*n)).collect();
        for name in &gone {
            say(format_args!("flush chain {ip} {table} {name}"));
        }
        for name in &gone {
            say(format_args!("delete chain {ip} {table} {name}"));
        }
        for (kind, now, old) in [("map", &self.maps, &before.maps), ("set", &self.sets, &before.sets)] {
            for name in old.keys().filter(|n| !now.contains_key(*n)) {
                say(format_args!("delete {kind} {ip} {table} {name}"));
            }
        }
        script
    }
}

fn element(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key} : {value}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ruleset(elements: &[(&str, &str)], chains: &[(&str, &[&str])]) -> Ruleset {
        let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        let map = Container { declaration: "{ type x; }".into(), elements: elements.iter().map(own).collect() };
        let chain = |(n, rules): &(&str, &[&str])| {
            let rules = rules.iter().map(|r| (*r).to_owned()).collect();
            ((*n).to_owned(), Chain { declaration: String::new(), rules })
        };
        Ruleset {
            maps: [("m".to_owned(), map)].into(),
            chains: chains.iter().map(chain).collect(),
            ..Ruleset::new(Family::V4, "t".into())
        }
    }

    #[test]
    fn a_difference_touches_only_what_changed() {
        let before = ruleset(&[("1", "goto a"), ("2", "goto b")], &[("a", &["x"]), ("b", &["y"])]);
        assert_eq!(before.difference(&before), "");
        let after = ruleset(&[("1", "goto a"), ("2", "goto c")], &[("a", &["z", "w"]), ("c", &["y"])]);
        let script = after.difference(&before);
        let expect = [
            "add chain ip t c ",
            "flush chain ip t a",
            "add rule ip t a z",
            "add rule ip t a w",
            "add rule ip t c y",
            "delete element ip t m { 2 : goto b }",
            "add element ip t m { 2 : goto c }",
            "flush chain ip t b",
            "delete chain ip t b",
        ];
        assert_eq!(script.lines().collect::<Vec<_>>(), expect);
    }
}
