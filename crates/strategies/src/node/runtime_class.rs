//! RuntimeClass: pod overhead and scheduling.

use crate::Config;
use crate::plain::Ruled;
use crate::pod_template::{old_label, overhead, scheduling::tolerations};
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldPath, Object, Value};

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate).with_warnings(warnings))
}

fn validate(o: &Object, errors: &mut ErrorList) {
    let fixed = o.at(&["overhead", "podFixed"]).unwrap_or(&Value::Null);
    overhead(fixed, &FieldPath::new("overhead"), errors);
    tolerations(o.get("scheduling").unwrap_or(&Value::Null), &FieldPath::new("scheduling"), errors);
}

fn warnings(o: &Object, _old: Option<&Object>) -> Vec<String> {
    let keys = o.at(&["scheduling", "nodeSelector"]).and_then(Value::as_object).into_iter().flatten();
    keys.filter_map(|(k, _)| old_label(k)).map(|why| format!("scheduling.nodeSelector: {why}")).collect()
}
