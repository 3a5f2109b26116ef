//! Aggregated roles (upstream `pkg/controller/clusterroleaggregation`): a ClusterRole with an `aggregationRule` has exactly the rules of
//! all roles that its selectors select.

use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use client::informer::Labels;
use client::{ApiResource, Informer, Key, Outcome, Patch, WriteOptions};
use k8s_openapi::api::rbac::v1::ClusterRole;
use meta::{LabelSelector, Object, Value};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Role {
    aggregation_rule: Option<Aggregation>,
    #[serde(deserialize_with = "client::informer::or_default")]
    rules: Vec<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Aggregation {
    #[serde(deserialize_with = "client::informer::or_default")]
    cluster_role_selectors: Vec<Value>,
}

struct Controller {
    context: Context,
    resource: ApiResource,
    roles: Informer<Role>,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let resource = ApiResource::typed::<ClusterRole>();
    let roles = builder.watch::<Role>(&resource);
    let all = roles.clone();
    // A changed role may be part of any aggregated one; there are few of those.
    builder.on_change(&roles, move |_, queue| {
        all.cache().entries().filter(|r| r.view.aggregation_rule.is_some()).for_each(|r| queue.add(r.key()));
    });
    builder.run(5, Arc::new(Controller { roles, resource, context })).await;
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(role) = self.roles.get(&key).filter(|r| !r.meta.is_deleting()) else { return Ok(Outcome::Done) };
        let Some(aggregation) = &role.view.aggregation_rule else { return Ok(Outcome::Done) };
        let all: Vec<_> = self.roles.cache().entries().cloned().collect();
        let others = all.iter().filter(|r| r.meta.name != role.meta.name);
        let others = others.map(|r| (&*r.meta.name, &r.meta.labels, &r.view.rules[..]));
        let rules = aggregated_rules(&aggregation.cluster_role_selectors, others)
            .map_err(|why| Error::Invalid { what: "aggregationRule", why })?;
        if rules == role.view.rules {
            return Ok(Outcome::Done);
        }
        let gvk = self.resource.gvk();
        let desired = json!({"apiVersion": gvk.api_version(), "kind": gvk.kind, "metadata": {"name": role.meta.name},
            "rules": rules});
        let options = WriteOptions { field_manager: self.context.name.into(), force: true, ..WriteOptions::default() };
        let api = self.context.client.dynamic(&self.resource);
        let _: Object = api.patch(&role.meta.name, &options, &Patch::Apply(desired)).await?;
        Ok(Outcome::Done)
    }
}

/// The rules of all roles that a selector selects, each once, ordered by selector and then by role name.
fn aggregated_rules<'a>(
    selectors: &[Value],
    roles: impl Iterator<Item = (&'a str, &'a Labels, &'a [Value])>,
) -> Result<Vec<Value>, String> {
    let mut roles: Vec<_> = roles.collect();
    roles.sort_by_key(|(name, _, _)| *name);
    let mut out: Vec<Value> = Vec::new();
    for s in selectors {
        let selector = LabelSelector::from_value(Some(s))?;
        let selected = roles.iter().filter(|(_, labels, _)| selector.matches(|k| labels.get(k)));
        for rule in selected.flat_map(|(_, _, rules)| *rules) {
            if !out.contains(rule) {
                out.push(rule.clone());
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregates_rules_in_order_and_once() {
        let rule = |v: &str| json!({"verbs": [v], "apiGroups": [""], "resources": ["pods"]});
        let labels = |k: &str| Labels::from_sorted([(k.into(), "true".into())].into());
        let (a, b) = (labels("a"), labels("b"));
        let (get, list, watch) = (rule("get"), rule("list"), rule("watch"));
        let (second, first, other) = ([get.clone(), list.clone()], [get.clone()], [watch.clone()]);
        let roles = [("second", &a, &second[..]), ("first", &a, &first[..]), ("other", &b, &other[..])];
        let select = |k: &str| json!({"matchLabels": {k: "true"}});
        let check = |selectors: &[Value], expect: &[&Value]| {
            let out = aggregated_rules(selectors, roles.into_iter()).unwrap();
            assert_eq!(out.iter().collect::<Vec<_>>(), expect);
        };
        check(&[select("a")], &[&get, &list]);
        check(&[select("b"), select("a")], &[&watch, &get, &list]);
        check(&[select("none")], &[]);
        let bad = json!({"matchExpressions": [{"key": "a", "operator": "Like"}]});
        assert!(aggregated_rules(&[bad], roles.into_iter()).is_err());
    }
}
