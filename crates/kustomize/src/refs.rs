//! Updates references to objects whose names changed.
//!
//! A reference means an object that once had the name, of the kind in the table, in the same namespace (or cluster-scoped);
//! among several, one with the same prefixes and suffixes.

use crate::Error;
use crate::config::Config;
use crate::fields::{Create, visit};
use crate::id::{Gvk, Id};
use crate::kustomization::FieldSpec;
use crate::resource::{Resource, text};
use crate::resources::Resources;
use meta::{Map, Value};

/// An object that others may refer to.
struct Candidate {
    previous: Vec<Id>,
    current: Id,
    original_namespace: String,
    /// The current namespace, with `default` for none; cached because it is compared for many pairs.
    namespace: String,
    is_cluster_scoped: bool,
    prefixes: Vec<String>,
    suffixes: Vec<String>,
    object: Map<String, Value>,
}

impl Candidate {
    fn new(r: &Resource) -> Self {
        let current = r.id();
        Self {
            previous: r.previous(),
            namespace: current.effective_namespace().to_owned(),
            is_cluster_scoped: current.gvk.is_cluster_scoped(),
            current,
            original_namespace: r.original_id().effective_namespace().to_owned(),
            prefixes: r.prefixes.clone(),
            suffixes: r.suffixes.clone(),
            object: r.object.clone(),
        }
    }

    fn shown(&self) -> String {
        codec::yaml::to_string(&self.object.clone().into())
    }
}

/// Updates the references in all objects.
pub fn fix(all: &mut Resources, config: &Config) -> Result<(), Error> {
    let candidates: Vec<Candidate> = all.0.iter().map(Candidate::new).collect();
    for (i, r) in all.0.iter_mut().enumerate() {
        let known: Vec<&Candidate> = reachable(r, &candidates[i], &candidates);
        let original = r.original_id().gvk;
        for names in &config.names {
            for spec in names.fields.iter().filter(|s| original.is_selected(&s.gvk)) {
                let referrer = Referrer { own: &candidates[i], known: &known, target: &names.gvk, role: role(r, spec) };
                // The kind may have changed since; the field still applies.
                let spec = FieldSpec { gvk: Gvk::default(), ..spec.clone() };
                let id = r.id();
                visit(r, &spec, Create::Nothing, &mut |v| referrer.set(v)).map_err(|e| {
                    Error::text(format!("updating name reference in '{}' field of '{id}': {e}", spec.path))
                })?;
            }
        }
    }
    Ok(())
}

/// Returns the objects that an object can refer to: those in its namespace, cluster-scoped ones, and the service accounts
/// of a role binding.
fn reachable<'a>(r: &Resource, own: &Candidate, all: &'a [Candidate]) -> Vec<&'a Candidate> {
    if own.is_cluster_scoped {
        return all.iter().collect();
    }
    let subjects = r.object.get("subjects").and_then(Value::as_array).filter(|_| r.kind() == "RoleBinding");
    let others: Vec<&str> = subjects
        .into_iter()
        .flatten()
        .filter(|s| s.get("kind").and_then(Value::as_str) == Some("ServiceAccount"))
        .filter_map(|s| s.get("namespace").and_then(Value::as_str))
        .collect();
    all.iter()
        .filter(|c| {
            c.is_cluster_scoped || c.namespace == own.namespace || others.contains(&c.current.namespace.as_str())
        })
        .collect()
}

/// Returns the kind that a `roleRef` names.
fn role(r: &Resource, spec: &FieldSpec) -> Option<Gvk> {
    if !spec.path.ends_with("roleRef/name") {
        return None;
    }
    let part = |key: &str| Some(r.object.get("roleRef")?.get(key)?.as_str()?.to_owned());
    Some(Gvk { group: part("apiGroup")?, version: String::new(), kind: part("kind")? })
}

struct Referrer<'a> {
    own: &'a Candidate,
    known: &'a [&'a Candidate],
    target: &'a Gvk,
    role: Option<Gvk>,
}

enum MatchBy {
    Names,
    NamesAndNamespaces,
}

/// Whether one list is a suffix of the other.
fn same_ending(a: &[String], b: &[String]) -> bool {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    if short.is_empty() { long.is_empty() } else { long.ends_with(short) }
}

impl Referrer<'_> {
    fn set(&self, v: &mut Value) -> Result<(), Error> {
        match v {
            Value::Null => Ok(()),
            Value::Object(m) => self.set_map(m),
            Value::Array(items) => items.iter_mut().try_for_each(|i| match i {
                Value::Object(m) => self.set_map(m),
                i => self.set_scalar(i),
            }),
            v => self.set_scalar(v),
        }
    }

    fn set_scalar(&self, v: &mut Value) -> Result<(), Error> {
        if v.is_null() {
            return Ok(());
        }
        if let Some(found) = self.select(&text(v), self.known.to_vec(), &MatchBy::Names)? {
            *v = found.current.name.clone().into();
        }
        Ok(())
    }

    /// Updates a reference that has a name and a namespace.
    fn set_map(&self, m: &mut Map<String, Value>) -> Result<(), Error> {
        let Some(name) = m.get("name") else {
            return Err(Error::text("path config error; no 'name' field in node"));
        };
        let name = text(name);
        let candidates: Vec<&Candidate> = match m.get("namespace") {
            None => self.known.to_vec(),
            Some(namespace) => {
                let namespace = text(namespace);
                let filter = |by: &dyn Fn(&Candidate) -> bool| -> Vec<&Candidate> {
                    self.known.iter().copied().filter(|c| by(c)).collect()
                };
                let original = filter(&|c| c.original_namespace == namespace);
                if original.is_empty() { filter(&|c| c.namespace == namespace) } else { original }
            }
        };
        let Some(found) = self.select(&name, candidates, &MatchBy::NamesAndNamespaces)? else { return Ok(()) };
        if found.current.name == name && found.current.namespace.is_empty() {
            return Ok(());
        }
        m.insert("name".to_owned(), found.current.name.clone().into());
        if !found.current.namespace.is_empty() {
            m.insert("namespace".to_owned(), found.current.namespace.clone().into());
        }
        Ok(())
    }

    fn select<'c>(
        &self,
        name: &str,
        mut all: Vec<&'c Candidate>,
        match_by: &MatchBy,
    ) -> Result<Option<&'c Candidate>, Error> {
        all.retain(|c| c.previous.iter().any(|id| id.name == name));
        all.retain(|c| c.previous.iter().any(|id| id.gvk.is_selected(self.target)));
        if let Some(role) = &self.role {
            all.retain(|c| c.previous.iter().any(|id| id.gvk.is_selected(role)));
        }
        if !self.own.is_cluster_scoped {
            all.retain(|c| {
                c.is_cluster_scoped || c.current.gvk.kind == "ServiceAccount" || c.namespace == self.own.namespace
            });
        }
        if let [one] = all[..] {
            return Ok(Some(one));
        }
        let (prefixes, suffixes) = (&self.own.prefixes, &self.own.suffixes);
        let loosely = |a: &[String], b: &[String]| a.is_empty() || b.is_empty() || same_ending(a, b);
        all.retain(|c| loosely(&c.prefixes, prefixes) && loosely(&c.suffixes, suffixes));
        if all.len() > 1 {
            all.retain(|c| same_ending(&c.prefixes, prefixes) && same_ending(&c.suffixes, suffixes));
        }
        let Some(first) = all.first() else { return Ok(None) };
        let alike = all.iter().all(|c| {
            c.current.name == first.current.name
                && (matches!(match_by, MatchBy::Names) || c.current.namespace == first.current.namespace)
        });
        if alike {
            return Ok(Some(first));
        }
        let ids: Vec<String> = all.iter().map(|c| c.current.to_string()).collect();
        let mut why = format!("found multiple possible referrals: {}\n", ids.join(", "));
        why.push_str(&format!("\n**** Too many possible referral targets to referrer:\n{}\n", self.own.shown()));
        for (i, c) in all.iter().enumerate() {
            why.push_str(&format!("--- possible referral {i}:\n{}\n", c.shown()));
        }
        Err(Error::text(why))
    }
}
