//! PodNodeSelector: restricts pods to nodes by the selector of their namespace, or else of the configuration, and
//! rejects selectors beyond the namespace's whitelist (upstream `plugin/pkg/admission/podnodeselector`).

use crate::{Operation, Plugin, Review};
use meta::status::Reason;
use meta::{FieldError, FieldPath, GroupResource, Object, Status, Value, names};
use std::collections::{BTreeMap, HashMap};

/// The pairs of a label selector.
type Pairs = BTreeMap<String, String>;

pub struct PodNodeSelector {
    /// The whitelist of each namespace, and under [`DEFAULT`] the selector for namespaces without one.
    selectors: HashMap<String, String>,
}

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";
const DEFAULT: &str = "clusterDefaultNodeSelector";

impl PodNodeSelector {
    /// The file has no version, and unparsable entries are ignored, as upstream does.
    pub fn new(config: Option<&Value>) -> Self {
        let all = config.and_then(|s| s["podNodeSelectorPluginConfig"].as_object()).into_iter().flatten();
        let text = |v: &Value| match v {
            Value::String(s) => s.clone(),
            Value::Bool(_) | Value::Number(_) => v.to_string(),
            _ => String::new(),
        };
        Self { selectors: all.map(|(k, v)| (k.clone(), text(v))).collect() }
    }

    fn configured(&self, key: &str) -> &str {
        self.selectors.get(key).map_or("", String::as_str)
    }

    fn of_namespace(&self, review: &Review<'_>) -> Result<Pairs, Status> {
        let Some(ns) = review.lookup.get("", "namespaces", "", review.namespace)? else {
            let gr = GroupResource { group: String::new(), resource: "namespaces".into() };
            return Err(Status::not_found(&gr, review.namespace));
        };
        pairs(ns.annotation(ANNOTATION).unwrap_or_else(|| self.configured(DEFAULT)))
    }

    fn check(&self, review: &Review<'_>, pod: &Object) -> Result<(), Status> {
        conflict(review, &self.of_namespace(review)?, pod)?;
        let allowed = pairs(self.configured(review.namespace))?;
        let mut requested = pod.at(&["spec", "nodeSelector"]).and_then(Value::as_object).into_iter().flatten();
        if !allowed.is_empty() && requested.any(|(k, v)| allowed.get(k).is_none_or(|a| v != a)) {
            return Err(review.forbidden("pod node label selector labels conflict with its namespace whitelist"));
        }
        Ok(())
    }
}

/// Parses `a=b,c=d` (`k8s.io/apimachinery/pkg/labels`). Errors are internal: the client did not write the list.
fn pairs(text: &str) -> Result<Pairs, Status> {
    let unknown = |why: String| Status::new(500, Reason::Unknown, why);
    let mut all = Pairs::new();
    for pair in text.split(',').filter(|_| !text.is_empty()) {
        let parts: Vec<&str> = pair.split('=').collect();
        let [key, value] = parts[..] else {
            return Err(unknown(format!("invalid selector: [{}]", parts.join(" "))));
        };
        let (key, value) = (key.trim(), value.trim());
        for (path, value, why) in [
            (FieldPath::root(), key, names::qualified_name(key)),
            (FieldPath::root().key(key), value, names::label_value(value)),
        ] {
            if !why.is_empty() {
                return Err(unknown(FieldError::invalid(&path, value, why.join("; ")).to_string()));
            }
        }
        all.insert(key.to_owned(), value.to_owned());
    }
    Ok(all)
}

fn is_new_pod(review: &Review<'_>) -> bool {
    review.is("", "pods") && review.operation == Operation::Create
}

impl Plugin for PodNodeSelector {
    fn name(&self) -> &'static str {
        "PodNodeSelector"
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        if !is_new_pod(review) {
            return Ok(());
        }
        let selector = self.of_namespace(review)?;
        conflict(review, &selector, object)?;
        for (k, v) in selector {
            object.set(&["spec", "nodeSelector", &k], v);
        }
        self.check(review, object)
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        object.filter(|_| is_new_pod(review)).map_or(Ok(()), |pod| self.check(review, pod))
    }
}

fn conflict(review: &Review<'_>, selector: &Pairs, pod: &Object) -> Result<(), Status> {
    let other = |(k, v): (&String, &String)| pod.str_at(&["spec", "nodeSelector", k]).is_some_and(|own| own != v);
    if selector.iter().any(other) {
        return Err(review.forbidden("pod node label selector conflicts with its namespace node label selector"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_as_upstream_reads_them() {
        let read =
            |text: &str| pairs(text).map(|p| p.into_iter().map(|(k, v)| format!("{k}={v};")).collect::<String>());
        assert_eq!(read("").unwrap(), "");
        assert_eq!(read("b = 1 ,a=").unwrap(), "a=;b=1;");
        for (text, why) in
            [("a", "invalid selector: [a]"), ("a=b=c", "invalid selector: [a b c]"), ("a=b,", "invalid selector: []")]
        {
            let e = read(text).unwrap_err();
            assert_eq!((e.code, e.message.as_str()), (500, why));
        }
        assert!(
            read("a b=c").unwrap_err().message.starts_with("<nil>: Invalid value: \"a b\": name part must consist")
        );
        assert!(read("a=b c").unwrap_err().message.starts_with("[a]: Invalid value: \"b c\": a valid label must be"));
    }
}
