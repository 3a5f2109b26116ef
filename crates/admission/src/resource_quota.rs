//! ResourceQuota: rejects objects that exceed a quota, or that use limited resources without a quota. The transaction
//! that writes the object also charges its usage, so usage is exact; the quota controller releases usage after
//! deletions (`k8s.io/apiserver/pkg/admission/plugin/resourcequota`).

use crate::configuration::{Fields, Form, Kind, TEXT, TEXTS, aggregate};
use crate::{Lookup, Operation, Plugin, ReadScope, Review, WriteRequest};
use meta::status::Reason;
use meta::{FieldError, FieldPath, Object, Status, Value};
use quota::{self, Amounts, ChargeRequest, Quota, Scope, extended};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct ResourceQuota {
    limited: Vec<Limited>,
}

/// A resource that may be used only under a quota (`limitedResources`).
struct Limited {
    group: String,
    resource: String,
    /// Substrings of quota resource names.
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
    pub fn new(config: Option<&Value>) -> Result<Self, String> {
        let Some(config) = config else { return Ok(Self::default()) };
        let config = KIND.read(config)?;
        let limited: Vec<Limited> =
            config["limitedResources"].as_array().into_iter().flatten().map(Limited::read).collect();
        let nameless = limited.iter().enumerate().filter(|(_, l)| l.resource.is_empty());
        let path = |i: usize| FieldPath::new("limitedResources").index(i).child("resource");
        let wrong: Vec<FieldError> = nameless.map(|(i, _)| FieldError::required(&path(i), "")).collect();
        aggregate(&wrong)?;
        Ok(Self { limited })
    }

    /// Rejects limited resources without a quota.
    fn check(
        &self,
        review: &Review<'_>,
        request: &ChargeRequest<'_>,
        usage: &Amounts,
        by: &Limits,
    ) -> Result<(), Status> {
        let own = self.limited.iter().filter(|l| l.group == request.group && l.resource == request.resource);
        let parts: Vec<&String> = own.flat_map(|l| &l.contains).collect();
        let taken = usage.iter().filter(|(_, q)| q.sign() > 0).map(|(k, _)| k.as_str());
        let mut missing: BTreeSet<&str> = taken.filter(|k| parts.iter().any(|p| k.contains(p.as_str()))).collect();
        missing.retain(|name| !by.resources.contains(*name));
        if !missing.is_empty() {
            let missing: Vec<&str> = missing.into_iter().collect();
            return Err(review.forbidden(&format!("insufficient quota to consume: {}", missing.join(","))));
        }
        let limited = self.limited.iter().flat_map(|l| &l.scopes);
        let limited = limited.filter(|s| s.holds(request.group, request.resource, request.object));
        let has_quota = |s: &&Scope| by.scopes.contains(s.name());
        let missing: Vec<String> = limited.filter(|s| !has_quota(s)).map(ToString::to_string).collect();
        if missing.is_empty() {
            return Ok(());
        }
        // Upstream does not reject this.
        let why = format!("insufficient quota to match these scopes: [{}]", missing.join(" "));
        Err(Status::new(500, Reason::Unknown, why))
    }
}

/// What the quotas of a namespace limit for one object.
#[derive(Default)]
struct Limits {
    /// The limited resources that the object uses.
    resources: BTreeSet<String>,
    /// The names of the matching scopes.
    scopes: BTreeSet<String>,
}

impl Limits {
    /// `names`: the resources that the quota limits for the object.
    fn add(&mut self, quota: &Quota, names: &[&str], request: &ChargeRequest<'_>, usage: &Amounts) {
        let used = names.iter().filter(|n| usage.contains_key(**n));
        self.resources.extend(used.map(|n| (*n).to_owned()));
        self.scopes.extend(quota.scopes_of(request).map(|s| s.name().to_owned()));
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
        let bytes = |group: &str, resource: &str| lookup.bytes(group, resource, Some(write.namespace), ReadScope::All);
        match charged.then(|| bytes("", "resourcequotas")) {
            Some(quotas @ 1..) if write.is(CLAIMS.0, CLAIMS.1) => quotas + bytes(CLAIMS.0, CLAIMS.1),
            quotas => quotas.unwrap_or(0),
        }
    }

    fn wants_quotas(&self) -> bool {
        !self.limited.is_empty()
    }

    /// Reads quotas one by one: there may be many, and each may be large.
    fn charge(&self, review: &Review<'_>, object: &Object, write: &mut dyn FnMut(Object)) -> Result<(), Status> {
        if !handles(review, object) {
            return Ok(());
        }
        let (group, resource) = (review.attributes.group.as_str(), review.attributes.resource.as_str());
        let only_counted = review.subresource == "status";
        let request = ChargeRequest { group, resource, object, old: review.old, only_counted };
        let refused = |why: String| review.forbidden(&why);
        let mut usage = request.usage();
        let quotas = || review.lookup.bytes("", "resourcequotas", Some(review.namespace), ReadScope::All);
        let mut counted_by_pod = false;
        if let (Ok(usage), CLAIMS) = (&mut usage, (group, resource))
            && (self.wants_quotas() || quotas() > 0)
        {
            counted_by_pod = add_extended(review, object, usage)?;
        }
        // Errors in upstream's order: a failed quota evaluation, negative usage, a limited resource without quota, an
        // exceeded quota.
        let mut exceeded = Ok(());
        let (mut limits, mut concerned, mut takes) = (Limits::default(), false, false);
        for stored in review.lookup.list("", "resourcequotas", Some(review.namespace)) {
            let mut stored = stored?;
            let quota = Quota::read(&stored);
            let names = quota.concerns(&request).map_err(refused)?;
            let Ok(usage) = &usage else { continue };
            let more = match &names {
                Some(_) => quota.more(&request, usage),
                None => Amounts::new(),
            };
            // Of two claims for the same pod at once, also on two servers, the second is charged: it finds that the quota was written.
            let is_written = names.is_some() && counted_by_pod || quota.is_uncounted(group, resource);
            concerned |= names.is_some();
            takes |= !more.is_empty();
            limits.add(&quota, &names.unwrap_or_default(), &request, usage);
            match quota.charge(&request, more) {
                Ok(Some(used)) => {
                    stored.set(&["status", "used"], quota::to_value(&used));
                    write(stored);
                }
                // Write the quota even if its usage is unchanged: a concurrent recount of the controller would miss
                // this object.
                Ok(None) if is_written => write(stored),
                Ok(None) => {}
                Err(why) => exceeded = exceeded.and(Err(why)),
            }
        }
        let usage = usage.map_err(refused)?;
        if !concerned {
            takes = self.wants_quotas() && !request.more(&usage).is_empty();
        }
        if takes {
            self.check(review, &request, &usage, &limits)?;
        }
        exceeded.map_err(refused)
    }
}

const CLAIMS: (&str, &str) = ("resource.k8s.io", "resourceclaims");

/// Adds what a claim takes of extended resources, and did not take before. Returns whether its pod counts some of that.
fn add_extended(review: &Review<'_>, claim: &Object, usage: &mut Amounts) -> Result<bool, Status> {
    let (mut taken, counted_by_pod) = extended_of(review, claim)?;
    if let Some(old) = review.old {
        let (before, _) = extended_of(review, old)?;
        for (name, amount) in &mut taken {
            *amount = before.get(name).map_or(*amount, |b| *amount - *b);
        }
        taken.retain(|_, amount| amount.sign() > 0);
    }
    usage.extend(taken);
    Ok(counted_by_pod)
}

/// What a claim takes of extended resources beyond what its pod counts, and whether the pod counts any. A class that does not exist has no
/// devices; the quota controller counts later. A new claim is that of its pod only if there is no other: times have whole seconds, and
/// whoever makes the claim chooses its name.
fn extended_of(review: &Review<'_>, claim: &Object) -> Result<(Amounts, bool), Status> {
    let mut all = quota::usage(CLAIMS.0, CLAIMS.1, claim, None);
    let mut resources = BTreeMap::new();
    for class in extended::classes(&all) {
        let found = review.lookup.get(CLAIMS.0, "deviceclasses", "", class)?;
        let name = found.and_then(|c| Some(c.str_at(&["spec", "extendedResourceName"])?.to_owned()));
        resources.extend(name.map(|name| (class.to_owned(), name)));
    }
    let mut counted = Amounts::new();
    if let Some(owner) = extended::made_for(claim)
        && let Some(pod) = review.lookup.get("", "pods", review.namespace, owner.name)?
    {
        let (is_stored, mut is_first) = (review.old.is_some(), true);
        for other in review.lookup.list(CLAIMS.0, CLAIMS.1, Some(review.namespace)) {
            let other = other?;
            let is_other_of_pod = extended::made_for(&other).is_some_and(|o| o.uid == owner.uid)
                && !(is_stored && other.name() == claim.name());
            is_first &= !is_other_of_pod || is_stored && extended::age(claim) < extended::age(&other);
        }
        counted = extended::counted_by(&pod, claim, is_first, None);
    }
    let own: BTreeSet<String> = all.keys().cloned().collect();
    extended::add(&mut all, &counted, |class| resources.get(class).cloned());
    all.retain(|name, _| !own.contains(name));
    Ok((all, !counted.is_empty()))
}

/// Writes that may increase usage.
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
        // Its pod may have counted what it takes.
        (Operation::Update, "resourceclaims", "") => {
            group == CLAIMS.0 && review.old.is_some_and(|old| extended::made_for(old) != extended::made_for(object))
        }
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
        let error = |limited: Value| {
            let config = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "ResourceQuotaConfiguration",
                "limitedResources": limited});
            ResourceQuota::new(Some(&config)).err().unwrap_or_default()
        };
        assert_eq!(error(json!([{"resource": "pods", "matchContains": ["cpu"]}])), "");
        let required = "limitedResources[0].resource: Required value";
        assert_eq!(error(json!([{}])), required);
        let both = format!("[{required}, limitedResources[1].resource: Required value]");
        assert_eq!(error(json!([{}, {"apiGroup": "apps"}])), both);
        assert_eq!(
            error(json!([{"resource": "pods", "contains": []}])),
            "strict decoding error: unknown field \"limitedResources[0].contains\""
        );
        for version in ["v1beta1", "v1alpha1"] {
            let version = format!("resourcequota.admission.k8s.io/{version}");
            let config =
                json!({"apiVersion": version, "kind": "Configuration", "limitedResources": [{"resource": "pods"}]});
            assert!(ResourceQuota::new(Some(&config)).is_ok_and(|q| q.wants_quotas()));
        }
    }
}
