//! Accepted names of definitions (`k8s.io/apiextensions-apiserver/pkg/controller/status`): those that neither another
//! definition of the group nor a built-in kind has.

use super::{is_true, strings};
use meta::{Object, Value};
use serde_json::{Map, json};
use std::collections::BTreeSet;

/// The taken names of a group.
#[derive(Default)]
pub struct Taken {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl Taken {
    pub fn from_accepted<'a>(given: impl Iterator<Item = &'a Value>) -> Self {
        let mut t = Self::default();
        for names in given {
            let text = |k: &str| names[k].as_str().unwrap_or_default().to_owned();
            t.resources.extend([text("plural"), text("singular")]);
            t.resources.extend(strings(names.get("shortNames")));
            t.kinds.extend([text("kind"), text("listKind")]);
        }
        t
    }

    /// Adds the names of the group's built-in kinds, served or not.
    pub fn and_built_in(mut self, group: &str) -> Self {
        for k in kinds::catalog().kinds.iter().filter(|k| *k.group == *group) {
            self.resources.extend([&k.plural, &k.singular].into_iter().chain(&k.short_names).map(|n| n.to_string()));
            self.kinds.extend([k.kind.to_string(), k.list_kind()]);
        }
        self
    }
}

/// Returns the definition with updated names and conditions; `None` if they are up to date.
pub fn settle(o: &Object, taken: &Taken, now: &str) -> Option<Object> {
    let names = |o: &Object, at: &str| o.at(&[at, if at == "spec" { "names" } else { "acceptedNames" }]).cloned();
    let requested = names(o, "spec").unwrap_or_default();
    let have = names(o, "status").unwrap_or_default();
    let mut given = have.as_object().cloned().unwrap_or_default();
    let mut conflict: Option<(&str, String)> = None;
    for (key, used, reason) in [
        ("plural", &taken.resources, "PluralConflict"),
        ("singular", &taken.resources, "SingularConflict"),
        ("shortNames", &taken.resources, "ShortNamesConflict"),
        ("kind", &taken.kinds, "KindConflict"),
        ("listKind", &taken.kinds, "ListKindConflict"),
    ] {
        let list = |v: &Value| match v {
            Value::String(s) => vec![s.clone()],
            v => strings(Some(v)),
        };
        let own = list(&have[key]);
        let conflicts: Vec<String> = list(&requested[key])
            .into_iter()
            .filter(|n| !own.contains(n) && used.contains(n))
            .map(|n| format!("{n:?} is already in use"))
            .collect();
        match conflicts.as_slice() {
            [] => take(&mut given, key, &requested),
            [one] => conflict = Some((reason, one.clone())),
            many => conflict = Some((reason, format!("[{}]", many.join(", ")))),
        }
    }
    take(&mut given, "categories", &requested);
    let mut new = o.clone();
    new.set(&["status", "acceptedNames"], given);
    match conflict {
        Some((reason, why)) => {
            set_condition(&mut new, "NamesAccepted", "False", reason, &why, now);
            if !is_true(o, "Established") {
                set_condition(&mut new, "Established", "False", "NotAccepted", "not all names are accepted", now);
            }
        }
        None => {
            set_condition(&mut new, "NamesAccepted", "True", "NoConflicts", "no conflicts found", now);
            if !is_true(o, "Established") {
                let why = "the initial names have been accepted";
                set_condition(&mut new, "Established", "True", "InitialNamesAccepted", why, now);
            }
        }
    }
    (new != *o).then_some(new)
}

fn take(to: &mut Map<String, Value>, key: &str, from: &Value) {
    match from.get(key) {
        Some(v) => to.insert(key.to_owned(), v.clone()),
        None => to.remove(key),
    };
}

/// Sets a condition; its transition time changes only with the status.
pub fn set_condition(o: &mut Object, ty: &str, status: &str, reason: &str, message: &str, now: &str) {
    let mut all = o.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let at = all.iter().position(|c| c["type"] == ty);
    let since = at.filter(|i| all[*i]["status"] == status).and_then(|i| all[i]["lastTransitionTime"].as_str());
    let since = since.unwrap_or(now);
    let c = json!({"type": ty, "status": status, "reason": reason, "message": message, "lastTransitionTime": since});
    match at {
        Some(i) => all[i] = c,
        None => all.push(c),
    }
    o.set(&["status", "conditions"], all);
}
