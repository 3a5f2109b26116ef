//! Variables: `$(NAME)` in the fields of the table `varReference` is replaced by the value of a field of an object.

use crate::Error;
use crate::config::Config;
use crate::fields::{Create, visit};
use crate::id::{Gvk, Id};
use crate::kustomization::Var;
use crate::resources::Resources;
use crate::transform::replacement::lookup;
use meta::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The variables by name.
pub type Vars = BTreeMap<String, Var>;

impl Var {
    fn gvk(&self) -> Gvk {
        if self.object.api_version.is_empty() {
            self.object.gvk.clone()
        } else {
            Gvk::new(&self.object.api_version, &self.object.gvk.kind)
        }
    }

    fn path(&self) -> &str {
        if self.field.field_path.is_empty() { "metadata.name" } else { &self.field.field_path }
    }

    fn shown(&self) -> String {
        format!("{{{} {} {{{}}}}}", self.name, self.gvk(), self.path())
    }
}

/// Formats variables as in the kustomization.
pub fn shown(vars: &[Var]) -> String {
    let variable = |v: &Var| format!("{{{} {} {{{}}}}}", v.name, v.object.gvk, v.field.field_path);
    format!("[{}]", vars.iter().map(variable).collect::<Vec<_>>().join(" "))
}

/// Adds the variables of an included kustomization.
pub fn merge(into: &mut Vars, more: Vars) -> Result<(), Error> {
    more.into_values().try_for_each(|v| insert(into, v))
}

fn insert(into: &mut Vars, v: Var) -> Result<(), Error> {
    match into.insert(v.name.clone(), v) {
        None => Ok(()),
        Some(old) => Err(Error::text(format!("var '{}' already encountered", old.name))),
    }
}

/// Adds the variables of a kustomization, and records them in the objects that they read.
pub fn collect(into: &mut Vars, all: &mut Resources, vars: &[Var]) -> Result<(), Error> {
    for v in vars {
        let id = Id { gvk: v.gvk(), name: v.object.name.clone(), namespace: v.object.namespace.clone() };
        let exact = !id.namespace.is_empty() || id.gvk.is_cluster_scoped();
        let found = all.by_any_id(|i| if exact { i.is_same(&id) } else { i.gvk == id.gvk && i.name == id.name });
        match found[..] {
            [] => {}
            [one] => all.0[one].vars.push(v.name.clone()),
            _ => {
                return Err(Error::text(format!(
                    "found {} resId matches for var {} (unable to disambiguate)",
                    found.len(),
                    v.shown()
                )));
            }
        }
        insert(into, v.clone())?;
    }
    Ok(())
}

/// Splits `spec.ports[0].port` into parts.
fn parts(path: &str) -> Vec<String> {
    let mut out = Vec::new();
    for part in crate::transform::replacement::parts(path) {
        match part.split_once('[') {
            Some((name, index)) if !name.is_empty() && index.ends_with(']') => {
                out.push(name.to_owned());
                out.extend(index.trim_end_matches(']').split("][").map(str::to_owned));
            }
            _ => out.push(part),
        }
    }
    out
}

fn value(all: &Resources, v: &Var) -> Result<Value, Error> {
    let Some(r) = all.0.iter().find(|r| r.vars.contains(&v.name)) else {
        return Err(Error::text(format!(
            "var '{}' cannot be mapped to a field in the set of known resources",
            v.shown()
        )));
    };
    let object = Value::Object(r.object.clone());
    match lookup(&object, &parts(v.path())) {
        Ok(Some(found)) => Ok(found.clone()),
        _ => Err(Error::text(format!("field specified in var '{}' not found in corresponding resource", v.shown()))),
    }
}

/// Replaces the variables. Returns the names of those that were never used.
pub fn resolve(all: &mut Resources, vars: &Vars, config: &Config) -> Result<Vec<String>, Error> {
    let mut values = BTreeMap::new();
    for v in vars.values() {
        values.insert(v.name.clone(), value(all, v)?);
    }
    if values.is_empty() {
        return Ok(Vec::new());
    }
    let expander = Expander { values, used: RefCell::default() };
    for r in &mut all.0 {
        for spec in &config.vars {
            visit(r, spec, Create::Nothing, &mut |v| expander.set(v))?;
        }
    }
    let used = expander.used.into_inner();
    Ok(expander.values.into_keys().filter(|k| !used.contains(k)).collect())
}

struct Expander {
    values: BTreeMap<String, Value>,
    used: RefCell<BTreeSet<String>>,
}

impl Expander {
    fn set(&self, v: &mut Value) -> Result<(), Error> {
        match v {
            Value::String(s) => *v = self.expand(s),
            Value::Object(m) => {
                for v in m.values_mut() {
                    if let Value::String(s) = v {
                        *v = self.expand(s);
                    }
                }
            }
            Value::Array(items) => {
                for v in items {
                    let Value::String(s) = v else {
                        return Err(Error::text("invalid value type expect a string"));
                    };
                    *v = self.expand(s);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Replaces `$(NAME)` by the value and `$$` by a dollar. A text that is a single variable gets the type of the value.
    fn expand(&self, input: &str) -> Value {
        let mut out = String::with_capacity(input.len());
        let mut rest = input;
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            let after = &rest[at + 1..];
            let Some(next) = after.chars().next() else {
                out.push('$');
                return out.into();
            };
            rest = if next == '$' {
                out.push('$');
                &after[1..]
            } else if let Some((name, behind)) = after.strip_prefix('(').and_then(|a| a.split_once(')')) {
                let scalar = self.values.get(name).filter(|v| !(v.is_object() || v.is_array() || v.is_null()));
                match scalar {
                    Some(v) => {
                        self.used.borrow_mut().insert(name.to_owned());
                        if input.len() == name.len() + 3 {
                            return v.clone();
                        }
                        out.push_str(&crate::resource::text(v));
                    }
                    None => out.push_str(&format!("$({name})")),
                }
                behind
            } else {
                out.push('$');
                out.push(next);
                &after[next.len_utf8()..]
            };
        }
        out.push_str(rest);
        out.into()
    }
}
