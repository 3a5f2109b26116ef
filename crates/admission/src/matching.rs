//! Match criteria of webhooks and policies: rules, selectors, and the version in which they receive an object
//! (`k8s.io/apiserver/pkg/admission/plugin/webhook/predicates`).

use crate::plugin::Review;
use meta::Operation;
use meta::{GroupResource, Gvk, Gvr, LabelSelector, Object, Status, Value};

pub(crate) const GROUP: &str = "admissionregistration.k8s.io";

pub(crate) struct Matcher {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    /// `matchPolicy: Equivalent`: rules also match the same objects in other versions.
    equivalent: bool,
    namespaces: Result<LabelSelector, String>,
    objects: Result<LabelSelector, String>,
    /// An absence of rules matches everything.
    open: bool,
}

struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    /// Names of objects; empty matches all.
    names: Vec<String>,
    scope: String,
}

impl Matcher {
    /// Reads the criteria of a webhook.
    pub fn of_hook(h: &Value) -> Self {
        Self::read(h, "rules")
    }

    /// Reads `matchConstraints` of a policy.
    pub fn of_constraints(c: &Value) -> Self {
        Self::read(c, "resourceRules")
    }

    /// Reads `matchResources` of a binding; without rules it matches what the policy matches.
    pub fn of_binding(c: &Value) -> Self {
        let open = c["resourceRules"].as_array().is_none_or(Vec::is_empty);
        Self { open, ..Self::read(c, "resourceRules") }
    }

    fn read(v: &Value, rules: &str) -> Self {
        let selector = |k: &str| match v.get(k).filter(|v| !v.is_null()) {
            None => Ok(LabelSelector::everything()),
            selector_value => LabelSelector::from_value(selector_value),
        };
        let list = |k: &str| v[k].as_array().into_iter().flatten().map(rule).collect();
        Self {
            rules: list(rules),
            excluded: list("excludeResourceRules"),
            equivalent: v["matchPolicy"] != "Exact",
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
            open: false,
        }
    }

    /// The resource and kind under which the request matches, or none.
    pub fn matches(&self, review: &Review<'_>, object: Option<&Object>) -> Result<Option<(Gvr, Gvk)>, Status> {
        // An invalid selector is an error only if the rules match.
        let namespaces = self.match_namespace(review, object);
        if matches!(namespaces, Ok(false)) {
            return Ok(None);
        }
        let objects = self.match_object(review, object);
        if matches!(objects, Ok(false)) || self.find(&self.excluded, review).is_some() {
            return Ok(None);
        }
        let found = match self.open {
            true => Some((requested_resource(review), review.kind.clone())),
            false => self.find(&self.rules, review),
        };
        let Some(found) = found else { return Ok(None) };
        namespaces?;
        objects?;
        Ok(Some(found))
    }

    fn find(&self, rules: &[Rule], review: &Review<'_>) -> Option<(Gvr, Gvk)> {
        let requested_resource = requested_resource(review);
        if rules.iter().any(|r| r.matches(review, &requested_resource)) {
            return Some((requested_resource, review.kind.clone()));
        }
        if !self.equivalent || rules.is_empty() {
            return None;
        }
        let others = review.host.equivalents(&requested_resource, &review.attributes.subresource);
        // The first rule decides, not the first version.
        let mut pairs = rules.iter().flat_map(|r| others.iter().map(move |o| (r, o)));
        let (_, found) = pairs.find(|(r, (resource, _))| r.matches(review, resource))?;
        Some(found.clone())
    }

    fn match_namespace(&self, review: &Review<'_>, object: Option<&Object>) -> Result<bool, Status> {
        let a = review.attributes;
        // Cluster-scoped objects other than namespaces always match.
        if a.namespace.is_empty() && a.resource != "namespaces" {
            return Ok(true);
        }
        let selector = self.namespaces.as_ref().map_err(Status::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        let itself = a.resource == "namespaces" && a.subresource.is_empty();
        if itself
            && matches!(review.operation, Operation::Create | Operation::Update)
            && let Some(o) = object
        {
            return Ok(selects(selector, o));
        }
        match review.lookup.namespace_labels(&a.namespace) {
            Some(labels) => Ok(selector.matches(|k| labels.get(k))),
            None => {
                let gr = GroupResource { group: String::new(), resource: "namespaces".into() };
                Err(Status::not_found(&gr, &a.namespace))
            }
        }
    }

    fn match_object(&self, review: &Review<'_>, object: Option<&Object>) -> Result<bool, Status> {
        let selector = self.objects.as_ref().map_err(Status::internal)?;
        Ok(selector.is_everything() || object.into_iter().chain(review.old).any(|o| selects(selector, o)))
    }
}

impl Rule {
    fn matches(&self, review: &Review<'_>, resource: &Gvr) -> bool {
        let one_of = |list: &[String], x: &str| list.iter().any(|i| i == "*" || i == x);
        let part = &review.attributes.subresource;
        let in_namespace = !review.attributes.namespace.is_empty();
        let is_namespace = resource.group.is_empty() && resource.resource == "namespaces";
        let scope = match self.scope.as_str() {
            "Namespaced" => in_namespace && !is_namespace,
            "Cluster" => !in_namespace || is_namespace,
            _ => true,
        };
        scope
            && one_of(&self.operations, review.operation.as_str())
            && one_of(&self.groups, &resource.group)
            && one_of(&self.versions, &resource.version)
            && (self.names.is_empty() || self.names.iter().any(|n| n == review.name))
            && self.resources.iter().any(|r| {
                let (main, sub) = r.split_once('/').unwrap_or((r, ""));
                (main == "*" || main == resource.resource) && (sub == "*" || sub == part)
            })
    }
}

/// Admission configurations are exempt from admission webhooks: a broken webhook could not be removed otherwise.
pub(crate) fn is_exempt(review: &Review<'_>) -> bool {
    let kinds = [
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    ];
    review.attributes.group == GROUP && kinds.contains(&&*review.attributes.resource)
}

/// Virtual resources such as SubjectAccessReview are exempt from policies: they are not stored, and much depends on
/// them (`pkg/kubeapiserver/admission/exclusion`).
pub(crate) fn is_exempt_of_policies(review: &Review<'_>) -> bool {
    let reviews: &[&str] = match &*review.attributes.group {
        "authentication.k8s.io" => &["selfsubjectreviews", "tokenreviews"],
        "authorization.k8s.io" => &[
            "localsubjectaccessreviews",
            "selfsubjectaccessreviews",
            "selfsubjectrulesreviews",
            "subjectaccessreviews",
        ],
        _ => &[],
    };
    is_exempt(review) || reviews.contains(&&*review.attributes.resource)
}

fn requested_resource(review: &Review<'_>) -> Gvr {
    let a = review.attributes;
    Gvr { group: a.group.clone(), version: a.version.clone(), resource: a.resource.clone() }
}

fn selects(selector: &LabelSelector, o: &Object) -> bool {
    selector.matches(|k| o.label(k))
}

fn rule(r: &Value) -> Rule {
    let texts = |k: &str| r[k].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    Rule {
        operations: texts("operations"),
        groups: texts("apiGroups"),
        versions: texts("apiVersions"),
        resources: texts("resources"),
        names: texts("resourceNames"),
        scope: r["scope"].as_str().unwrap_or_default().to_owned(),
    }
}
