//! The variables of admission expressions, built from a request.

use crate::plugin::Review;
use crate::request::request;
use auth::{Attributes, User};
use cel::{Authorizer, Budget, Decision, Error, Map, Opaque, Program, Question, Request, Shape, Val, Vars};
use meta::{FieldSelector, Gvk, Gvr, LabelSelector, Object, Value};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// One request, in the version that the policy or webhook selects.
pub struct Subject<'a> {
    review: &'a Review<'a>,
    resource: &'a Gvr,
    kind: &'a Gvk,
    object: Option<&'a Object>,
    old: Option<&'a Object>,
    params: Option<&'a Object>,
    /// Built on first use.
    request: OnceCell<Value>,
    namespace: OnceCell<Option<Arc<Object>>>,
}

impl<'a> Subject<'a> {
    pub fn new(
        review: &'a Review<'a>,
        resource: &'a Gvr,
        kind: &'a Gvk,
        object: Option<&'a Object>,
        old: Option<&'a Object>,
    ) -> Self {
        let (request, namespace) = (OnceCell::new(), OnceCell::new());
        Self { review, resource, kind, object, old, params: None, request, namespace }
    }

    #[must_use]
    pub fn with_params(self, params: Option<&'a Object>) -> Self {
        Self { params, ..self }
    }

    fn namespace(&self) -> Option<&Object> {
        let a = &self.review.attributes;
        let itself = self.review.is("", "namespaces") || a.namespace.is_empty();
        let made =
            || if itself { None } else { self.review.lookup.get("", "namespaces", "", &a.namespace).ok().flatten() };
        self.namespace.get_or_init(made).as_deref()
    }
}

fn object(o: Option<&Object>) -> Val<'_> {
    o.map_or(Val::Null, |o| Val::Map(Map::Json(&o.0, None)))
}

/// Fields of a namespace that its JSON omits.
static NAMESPACE: LazyLock<Shape> = LazyLock::new(|| {
    let time = |n: &str| -> (Box<str>, Shape) { (n.into(), Shape::Timestamp) };
    let times = vec![time("creationTimestamp"), time("deletionTimestamp")];
    Shape::Fields(vec![("metadata".into(), Shape::Fields(times))])
});

impl<'s> Vars<'s> for &'s Subject<'_> {
    fn get(&self, name: &str, _: &mut Budget) -> Result<Val<'s>, Error> {
        let this: &'s Subject<'_> = self;
        Ok(match name {
            "object" => object(this.object),
            "oldObject" => object(this.old),
            "params" => object(this.params),
            "request" => {
                let made = || request(this.resource, this.kind, this.review);
                Val::json(this.request.get_or_init(made), None)
            }
            "namespaceObject" => this.namespace().map_or(Val::Null, |n| Val::Map(Map::Json(&n.0, Some(&*NAMESPACE)))),
            "authorizer" => Val::opaque(Opaque::Authorizer(Request::new(this))),
            "authorizer.requestResource" => {
                let a = this.review.attributes;
                let question = Question {
                    group: a.group.clone(),
                    resource: a.resource.clone(),
                    subresource: a.subresource.clone(),
                    namespace: a.namespace.clone(),
                    name: this.review.name.to_owned(),
                    ..Question::default()
                };
                Val::opaque(Opaque::Authorizer(Request::for_resource(this, question)))
            }
            n => return Err(Error::Fault(format!("no such attribute(s): {n}"))),
        })
    }
}

impl Authorizer for Subject<'_> {
    fn decide(&self, q: &Question) -> Decision {
        let user = match &q.service_account {
            None => self.review.attributes.user.clone(),
            Some((namespace, name)) => {
                let of_namespace = format!("{}:{namespace}", auth::GROUP_SERVICE_ACCOUNTS);
                User::new(
                    format!("system:serviceaccount:{namespace}:{name}"),
                    &[auth::GROUP_SERVICE_ACCOUNTS, &of_namespace],
                )
            }
        };
        // An unparsable selector does not restrict the check.
        let fields = FieldSelector::parse(&q.field_selector).ok().filter(|f| !f.is_everything());
        let labels = LabelSelector::parse(&q.label_selector).ok().filter(|l| !l.is_everything());
        let decision = self.review.host.decide(&Attributes {
            user,
            verb: q.verb.clone(),
            group: q.group.clone(),
            version: "*".into(),
            resource: q.resource.clone(),
            subresource: q.subresource.clone(),
            namespace: q.namespace.clone(),
            name: q.name.clone(),
            path: q.path.clone().unwrap_or_default(),
            fields,
            labels,
        });
        let allowed = decision.allowed();
        let (auth::Decision::Allow(reason) | auth::Decision::Deny(reason) | auth::Decision::NoOpinion(reason)) =
            decision;
        Decision { allowed, reason, error: None }
    }
}

/// Named expressions available as `variables.NAME`, evaluated once, on first use.
#[derive(Default)]
pub struct Variables {
    all: Vec<Result<Program, String>>,
    /// The index of each variable by name.
    places: HashMap<String, usize>,
}

impl Variables {
    /// Adds a variable, or its compile error. The first of two with the same name is used.
    pub fn add(&mut self, name: &str, made: Result<Program, String>) {
        self.places.entry(name.to_owned()).or_insert(self.all.len());
        self.all.push(made);
    }
}

/// A subject with its variables.
pub struct Composed<'s> {
    subject: &'s Subject<'s>,
    variables: &'s Variables,
    known: RefCell<HashMap<usize, Result<Val<'s>, Error>>>,
}

impl<'s> Composed<'s> {
    pub fn new(subject: &'s Subject<'s>, variables: &'s Variables) -> Self {
        Self { subject, variables, known: RefCell::default() }
    }
}

impl<'s> Vars<'s> for Composed<'s> {
    fn get(&self, name: &str, budget: &mut Budget) -> Result<Val<'s>, Error> {
        let Some(name) = name.strip_prefix("variables.") else { return self.subject.get(name, budget) };
        let Some(&i) = self.variables.places.get(name) else {
            return Err(Error::Fault(format!("no such key: {name}")));
        };
        if let Some(v) = self.known.borrow().get(&i) {
            return v.clone();
        }
        let fault = |what: &str, e: String| Error::Fault(format!("composited variable {name:?} fails to {what}: {e}"));
        let value = match &self.variables.all[i] {
            Err(e) => Err(fault("compile", e.clone())),
            Ok(p) => p.eval(self, budget).map_err(|e| match e {
                Error::Cost => Error::Cost,
                e => fault("evaluate", e.to_string()),
            }),
        };
        self.known.borrow_mut().insert(i, value.clone());
        value
    }
}
