//! RuntimeClass: pod overhead and scheduling.

use crate::Config;
use crate::plain::Ruled;
use crate::pod_template::{old_label, overhead, scheduling::tolerations};
use crate::read::{items, repeats, shown, text};
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, Value};

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_warnings(warnings))
}

fn validate(o: &Object, errors: &mut ErrorList) {
    let fixed = o.at(&["overhead", "podFixed"]).unwrap_or(&Value::Null);
    overhead(fixed, &FieldPath::new("overhead"), errors);
    let (scheduling, at) = (o.get("scheduling").unwrap_or(&Value::Null), FieldPath::new("scheduling"));
    tolerations(scheduling, &at, errors);
    let (all, list) = (items(scheduling, "tolerations"), at.child("tolerations"));
    let keys = all.iter().map(|t| ["key", "operator", "value", "effect"].map(|k| text(t, k)));
    for (i, _) in repeats(keys).into_iter().enumerate().filter(|(_, repeated)| *repeated) {
        let at = list.index(i);
        let shown = shown(&all[i], "io.k8s.api.core.v1.Toleration", &at);
        errors.push(FieldError::duplicate(&at, shown).ordered_at(&list));
    }
}

fn warnings(o: &Object, _old: Option<&Object>) -> Vec<String> {
    let keys = o.at(&["scheduling", "nodeSelector"]).and_then(Value::as_object).into_iter().flatten();
    keys.filter_map(|(k, _)| old_label(k)).map(|why| format!("scheduling.nodeSelector: {why}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check_create;
    use serde_json::json;

    #[test]
    fn tolerations_are_unique() {
        let base =
            json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "r"}, "handler": "h"});
        let exists = |effect: &str| json!({"key": "a", "operator": "Exists", "effect": effect});
        let with = |all: Value| json!({"tolerations": all});
        let seconds = json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1});
        let at = "scheduling.tolerations";
        let numbers = r#"Unsupported value: "Lt": supported values: "Equal", "Exists", "Lt", "Gt""#;
        check_create(
            &Ruled::new(validate),
            &base,
            &[
                ("/scheduling", with(json!([exists(""), exists("NoExecute")])), &[]),
                (
                    "/scheduling",
                    with(json!([exists("NoExecute"), seconds])),
                    &[&format!(
                        r#"{at}[1]: Duplicate value: {{"Key":"a","Operator":"Exists","Value":"","Effect":"NoExecute","TolerationSeconds":1}}"#
                    )],
                ),
                (
                    "/scheduling",
                    with(json!([{"key": "a", "operator": "Lt", "value": "1"}])),
                    &[&format!("{at}[0].operator: {numbers}")],
                ),
            ],
        );
    }
}
