//! StorageClass: driver parameters and allowed topologies.

use super::{old_keys, parameters};
use crate::Config;
use crate::plain::Ruled;
use crate::read::{items, text};
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value, names};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

pub fn row(_: &Config) -> Row {
    Row::stored(rules())
}

fn rules() -> Ruled {
    Ruled::new(validate).with_warnings(warnings)
}

/// Reclaim policies of provisioned volumes.
const RECLAIM: [&str; 2] = ["Delete", "Retain"];

fn validate(o: &Object, errors: &mut ErrorList) {
    parameters(o, errors);
    let policy = o.str_at(&["reclaimPolicy"]).unwrap_or_default();
    if !policy.is_empty() && !RECLAIM.contains(&policy) {
        errors.push(FieldError::not_supported(&FieldPath::new("reclaimPolicy"), policy, &RECLAIM));
    }
    let all = o.clone().into_value();
    let path = FieldPath::new("allowedTopologies");
    let topologies = items(&all, "allowedTopologies");
    // As upstream, a term without expressions equals one more for each term of the list.
    let mut terms: HashMap<BTreeMap<&str, BTreeSet<&str>>, usize> =
        HashMap::from([(BTreeMap::new(), topologies.len())]);
    for (i, t) in topologies.iter().enumerate() {
        let at = path.index(i).child("matchLabelExpressions");
        let expressions = items(t, "matchLabelExpressions");
        let mut keys = HashSet::new();
        for (j, e) in expressions.iter().enumerate() {
            let at = at.index(j);
            let key = text(e, "key");
            let values = items(e, "values");
            if values.is_empty() {
                errors.push(FieldError::required(&at.child("values"), ""));
            }
            for (k, v) in values.iter().enumerate() {
                if values[..k].contains(v) {
                    errors.push(FieldError::duplicate(&at.child("values").index(k), v));
                }
            }
            errors
                .extend(names::qualified_name(key).into_iter().map(|m| FieldError::invalid(&at.child("key"), key, m)));
            if !keys.insert(key) {
                errors.push(FieldError::duplicate(&at.child("key"), key));
            }
        }
        // Terms are compared regardless of order. Each equal term before one is an error.
        let values = |e| items(e, "values").iter().filter_map(Value::as_str).collect();
        let equal = terms.entry(expressions.iter().map(|e| (text(e, "key"), values(e))).collect()).or_default();
        for _ in (0..*equal).take_while(|_| !meta::field::is_full()) {
            errors.push(FieldError::duplicate(&at, ""));
        }
        *equal += 1;
    }
    let provisioner = o.str_at(&["provisioner"]).unwrap_or_default().to_lowercase();
    if !provisioner.is_empty() {
        let at = FieldPath::new("provisioner");
        let why = names::qualified_name(&provisioner).into_iter();
        errors.extend(why.map(|m| FieldError::invalid(&at, provisioner.as_str(), m)));
    }
}

/// Returns warnings for deprecated node labels in allowed topologies.
fn warnings(o: &Object, _old: Option<&Object>) -> Vec<String> {
    let mut out = Vec::new();
    let terms = o.get("allowedTopologies").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (i, t) in terms.iter().enumerate() {
        let at = FieldPath::new("allowedTopologies").index(i).child("matchLabelExpressions");
        old_keys(items(t, "matchLabelExpressions"), &at, &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_create;
    use serde_json::json;

    #[test]
    fn validates_parameters_and_topologies() {
        let strategy = rules();
        let base =
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "example.com/disk"});
        check_create(
            &strategy,
            &base,
            &[
                ("/provisioner", json!("Example.com/Disk"), &[]),
                ("/provisioner", json!(""), &["provisioner: Required value"]),
                ("/provisioner", json!("A B"), &[r#"provisioner: Invalid value: "a b": name part must consist…"#]),
                (
                    "/reclaimPolicy",
                    json!("Recycle"),
                    &[r#"reclaimPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain""#],
                ),
            ],
        );
    }
}
