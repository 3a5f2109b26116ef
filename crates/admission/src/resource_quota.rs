//! Nobody takes more of a namespace than its quotas allow, and nobody takes without a quota what is limited by the configuration.
//! Usage is charged in the transaction that writes the object, so that it is exact; what objects leave behind is found by the
//! controller (`k8s.io/apiserver/pkg/admission/plugin/resourcequota`).

use crate::configuration::{Fields, Form, Kind, TEXT, TEXTS, aggregate};
use crate::quota::{self, Amounts, ChargeRequest, Quota, Scope};
use crate::{Lookup, Operation, Plugin, ReadScope, Review, WriteRequest};
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
    fn check(
        &self,
        review: &Review<'_>,
        asked: &ChargeRequest<'_>,
        usage: &Amounts,
        by: &Limits,
    ) -> Result<(), Status> {
        let own = self.limited.iter().filter(|l| l.group == asked.group && l.resource == asked.resource);
        let parts: Vec<&String> = own.flat_map(|l| &l.contains).collect();
        let taken = usage.iter().filter(|(_, q)| q.sign() > 0).map(|(k, _)| k.as_str());
        let mut missing: BTreeSet<&str> = taken.filter(|k| parts.iter().any(|p| k.contains(p.as_str()))).collect();
        missing.retain(|name| !by.resources.contains(*name));
        if !missing.is_empty() {
            let missing: Vec<&str> = missing.into_iter().collect();
            return Err(review.forbidden(&format!("insufficient quota to consume: {}", missing.join(","))));
        }
        let limited = self.limited.iter().flat_map(|l| &l.scopes);
        let limited = limited.filter(|s| s.holds(asked.group, asked.resource, asked.object));
        let has_quota = |s: &&Scope| by.scopes.contains(s.name());
        let missing: Vec<String> = limited.filter(|s| !has_quota(s)).map(ToString::to_string).collect();
        if missing.is_empty() {
            return Ok(());
        }
        // Upstream makes no refusal of it.
        let why = format!("insufficient quota to match these scopes: [{}]", missing.join(" "));
        Err(Status::new(500, Reason::Unknown, why))
    }
}

/// What the quotas of a namespace limit of one object.
#[derive(Default)]
struct Limits {
    /// Of the resources that the object uses.
    resources: BTreeSet<String>,
    /// The names of the scopes in which the object is.
    scopes: BTreeSet<String>,
}

impl Limits {
    /// `names`: the resources that the quota limits for the object.
    fn add(&mut self, quota: &Quota, names: &[&str], asked: &ChargeRequest<'_>, usage: &Amounts) {
        let used = names.iter().filter(|n| usage.contains_key(**n));
        self.resources.extend(used.map(|n| (*n).to_owned()));
        self.scopes.extend(quota.scopes_of(asked).map(|s| s.name().to_owned()));
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

    fn reads(&self, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
        let charged = !write.namespace.is_empty() && matches!(write.verb, "create" | "update" | "patch");
        if charged { lookup.bytes("", "resourcequotas", Some(write.namespace), ReadScope::All) } else { 0 }
    }

    fn wants_quotas(&self) -> bool {
        !self.limited.is_empty()
    }

    /// Quotas are read one by one: there may be many, and each may be large.
    fn charge(&self, review: &Review<'_>, object: &Object, write: &mut dyn FnMut(Object)) -> Result<(), Status> {
        if !handles(review, object) {
            return Ok(());
        }
        let (group, resource) = (review.attributes.group.as_str(), review.attributes.resource.as_str());
        let only_counted = review.subresource == "status";
        let asked = ChargeRequest { group, resource, object, old: review.old, only_counted };
        let refused = |why: String| review.forbidden(&why);
        let usage = asked.usage();
        // Why the object is refused, in upstream's order: what a quota cannot tell, a negative usage, what no quota limits, what exceeds one.
        let mut exceeded = Ok(());
        let (mut limits, mut concerned, mut takes) = (Limits::default(), false, false);
        for stored in review.lookup.list("", "resourcequotas", Some(review.namespace)) {
            let mut stored = stored?;
            let quota = Quota::read(&stored);
            let names = quota.concerns(&asked).map_err(refused)?;
            let Ok(usage) = &usage else { continue };
            let more = match &names {
                Some(_) => quota.more(&asked, usage),
                None => Amounts::new(),
            };
            concerned |= names.is_some();
            takes |= !more.is_empty();
            limits.add(&quota, &names.unwrap_or_default(), &asked, usage);
            match quota.charge(&asked, more) {
                Ok(Some(used)) => {
                    stored.set(&["status", "used"], quota::to_value(&used));
                    write(stored);
                }
                // Written as it is: what the controller is counting right now would lack this object.
                Ok(None) if quota.is_uncounted(group, resource) => write(stored),
                Ok(None) => {}
                Err(why) => exceeded = exceeded.and(Err(why)),
            }
        }
        let usage = usage.map_err(refused)?;
        if !concerned {
            takes = self.wants_quotas() && !asked.more(&usage).is_empty();
        }
        if takes {
            self.check(review, &asked, &usage, &limits)?;
        }
        exceeded.map_err(refused)
    }
}

/// Writes that may take more than before.
fn handles(review: &Review<'_>, object: &Object) -> bool {
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
        // The scopes `Terminating` and `NotTerminating` may change.
        (Operation::Update, "pods", "") => {
            core && review.old.is_some_and(|old| quota::is_terminating(old) != quota::is_terminating(object))
        }
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
