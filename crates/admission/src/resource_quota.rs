//! Nobody takes more of a namespace than its quotas allow, and nobody takes without a quota what is limited by the configuration.
//! Usage is charged in the transaction that writes the object, so that it is exact; what objects leave behind is found by the
//! controller (`k8s.io/apiserver/pkg/admission/plugin/resourcequota`).

use crate::configuration::{Fields, Form, Kind, TEXT, TEXTS, aggregate};
use crate::quota::{self, Amounts, Asked, Quota, Scope};
use crate::{Lookup, Operation, Plugin, Review, Which, Write};
use meta::status::Reason;
use meta::{FieldError, FieldPath, Object, Status, Value};
use std::collections::BTreeSet;

#[derive(Default)]
pub struct ResourceQuota {
    limited: Vec<Limited>,
}

/// What is not to be had without a quota.
struct Limited {
    group: String,
    resource: String,
    /// Parts of the names that resources have in quotas.
    contains: Vec<String>,
    scopes: Vec<Scope>,
}

const KIND: Kind = Kind {
    versions: &[
        ("apiserver.config.k8s.io/v1", "ResourceQuotaConfiguration"),
        ("resourcequota.admission.k8s.io/v1beta1", "Configuration"),
        ("resourcequota.admission.k8s.io/v1alpha1", "Configuration"),
    ],
    fields: Fields("Configuration", &[("limitedResources", Form::List(&LIMITED))]),
};
const LIMITED: Form = Form::Object(Fields(
    "LimitedResource",
    &[("apiGroup", TEXT), ("resource", TEXT), ("matchContains", TEXTS), ("matchScopes", Form::List(&SCOPE))],
));
const SCOPE: Form = Form::Object(Fields(
    "ScopedResourceSelectorRequirement",
    &[("scopeName", TEXT), ("operator", TEXT), ("values", TEXTS)],
));

impl ResourceQuota {
    pub fn new(said: Option<&Value>) -> Result<Self, String> {
        let Some(said) = said else { return Ok(Self::default()) };
        let said = KIND.read(said)?;
        let limited: Vec<Limited> =
            said["limitedResources"].as_array().into_iter().flatten().map(Limited::read).collect();
        let nameless = limited.iter().enumerate().filter(|(_, l)| l.resource.is_empty());
        let path = |i: usize| FieldPath::new("limitedResources").index(i).child("resource");
        let wrong: Vec<FieldError> = nameless.map(|(i, _)| FieldError::required(&path(i), "")).collect();
        aggregate(&wrong)?;
        Ok(Self { limited })
    }

    /// Refuses what is limited and has no quota.
    fn check(&self, review: &Review<'_>, asked: &Asked<'_>, usage: &Amounts, quotas: &[Quota]) -> Result<(), Status> {
        let own = self.limited.iter().filter(|l| l.group == asked.group && l.resource == asked.resource);
        let parts: Vec<&String> = own.flat_map(|l| &l.contains).collect();
        let taken = usage.iter().filter(|(_, q)| q.sign() > 0).map(|(k, _)| k.as_str());
        let mut missing: BTreeSet<&str> = taken.filter(|k| parts.iter().any(|p| k.contains(p.as_str()))).collect();
        for q in quotas {
            for name in q.concerns(asked).ok().flatten().into_iter().flatten() {
                missing.remove(name);
            }
        }
        if !missing.is_empty() {
            let missing: Vec<&str> = missing.into_iter().collect();
            return Err(review.forbidden(&format!("insufficient quota to consume: {}", missing.join(","))));
        }
        let limited = self.limited.iter().flat_map(|l| &l.scopes);
        let limited = limited.filter(|s| s.holds(asked.group, asked.resource, asked.object));
        let has_quota = |s: &&Scope| quotas.iter().any(|q| q.scopes_of(asked).any(|own| own.covers(s)));
        let missing: Vec<String> = limited.filter(|s| !has_quota(s)).map(ToString::to_string).collect();
        if missing.is_empty() {
            return Ok(());
        }
        // Upstream makes no refusal of it.
        let why = format!("insufficient quota to match these scopes: [{}]", missing.join(" "));
        Err(Status::new(500, Reason::Unknown, why))
    }
}

impl Limited {
    fn read(v: &Value) -> Self {
        let text = |k: &str| v[k].as_str().unwrap_or_default().to_owned();
        let list = |k: &str| v[k].as_array().into_iter().flatten();
        Self {
            group: text("apiGroup"),
            resource: text("resource"),
            contains: list("matchContains").filter_map(Value::as_str).map(str::to_owned).collect(),
            scopes: list("matchScopes").map(Scope::read).collect(),
        }
    }
}

impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn reads(&self, write: &Write<'_>, lookup: &dyn Lookup) -> usize {
        let charged = !write.namespace.is_empty() && matches!(write.verb, "create" | "update" | "patch");
        if charged { lookup.bytes("", "resourcequotas", Some(write.namespace), Which::All) } else { 0 }
    }

    fn wants_quotas(&self) -> bool {
        !self.limited.is_empty()
    }

    fn charge(&self, review: &Review<'_>, object: &Object) -> Result<Vec<Object>, Status> {
        if !handles(review) {
            return Ok(Vec::new());
        }
        let (group, resource) = (review.attributes.group.as_str(), review.attributes.resource.as_str());
        let only_counted = review.subresource == "status";
        let asked = Asked { group, resource, object, old: review.old, only_counted };
        let stored = review.lookup.list("", "resourcequotas", Some(review.namespace));
        let quotas: Vec<Quota> = stored.iter().map(Quota::of).collect();
        let refused = |why: String| review.forbidden(&why);
        let concerned = quotas.iter().map(|q| q.concerns(&asked).map(|c| c.is_some()));
        let concerned = concerned.collect::<Result<Vec<bool>, String>>().map_err(refused)?;
        let usage = asked.usage().map_err(refused)?;
        let more = |(q, concerned): (&Quota, &bool)| concerned.then(|| q.more(&asked, &usage)).unwrap_or_default();
        let more: Vec<Amounts> = quotas.iter().zip(&concerned).map(more).collect();
        let takes = match concerned.contains(&true) {
            true => more.iter().any(|m| !m.is_empty()),
            false => self.wants_quotas() && !asked.more(&usage).is_empty(),
        };
        if takes {
            self.check(review, &asked, &usage, &quotas)?;
        }
        let mut changed = Vec::new();
        for ((mut stored, quota), more) in stored.into_iter().zip(&quotas).zip(more) {
            if let Some(used) = quota.charge(&asked, more).map_err(refused)? {
                stored.set(&["status", "used"], quota::to_value(&used));
                changed.push(stored);
            } else if quota.is_uncounted(group, resource) {
                // Written as it is: what the controller is counting right now would lack this object.
                changed.push(stored);
            }
        }
        Ok(changed)
    }
}

/// Writes that may take more than before.
fn handles(review: &Review<'_>) -> bool {
    let (group, resource) = (review.attributes.group.as_str(), review.attributes.resource.as_str());
    if review.namespace.is_empty() || resource == "namespaces" || quota::is_ignored(group, resource) {
        return false;
    }
    let core = group.is_empty();
    match (review.operation, resource, review.subresource) {
        (Operation::Create, _, "") => true,
        (Operation::Update, "services", "") => core,
        (Operation::Update, "persistentvolumeclaims", "" | "status") => core,
        (Operation::Update, "pods", "resize") => core,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn mistakes_are_told_as_upstream_tells_them() {
        let of = |limited: Value| {
            let said = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "ResourceQuotaConfiguration",
                "limitedResources": limited});
            ResourceQuota::new(Some(&said)).err().unwrap_or_default()
        };
        assert_eq!(of(json!([{"resource": "pods", "matchContains": ["cpu"]}])), "");
        let required = "limitedResources[0].resource: Required value";
        assert_eq!(of(json!([{}])), required);
        let both = format!("[{required}, limitedResources[1].resource: Required value]");
        assert_eq!(of(json!([{}, {"apiGroup": "apps"}])), both);
        assert_eq!(
            of(json!([{"resource": "pods", "contains": []}])),
            "strict decoding error: unknown field \"limitedResources[0].contains\""
        );
        for version in ["v1beta1", "v1alpha1"] {
            let version = format!("resourcequota.admission.k8s.io/{version}");
            let said =
                json!({"apiVersion": version, "kind": "Configuration", "limitedResources": [{"resource": "pods"}]});
            assert!(ResourceQuota::new(Some(&said)).is_ok_and(|q| q.wants_quotas()));
        }
    }
}
