//! `matchConditions` of an authorization webhook: select the requests to send
//! (`k8s.io/apiserver/pkg/authorization/cel`).

use crate::expression::{Expression, extra, object, texts};
use cel::{Env, Type};
use meta::Value;

/// The match conditions of a webhook; all must be true for a call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Conditions(Vec<Expression>);

/// Maximum number of conditions per webhook.
const MOST: usize = 64;
const REQUEST: &str = "request";

/// The result of match conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matched {
    /// All conditions are true.
    Yes,
    /// A condition is false.
    No,
    /// No condition is false, and at least one evaluation failed.
    Failed(String),
}

fn env() -> Env {
    let requirement = object(
        "kubernetes.SelectorRequirement",
        [("key", Type::String), ("operator", Type::String), ("values", texts())],
    );
    let selector =
        |name: &str| object(name, [("rawSelector", Type::String), ("requirements", Type::list(requirement.clone()))]);
    let resource = ["namespace", "verb", "group", "version", "resource", "subresource", "name"];
    let resource = resource.map(|f| (f, Type::String)).into_iter().chain([
        ("fieldSelector", selector("kubernetes.FieldSelectorAttributes")),
        ("labelSelector", selector("kubernetes.LabelSelectorAttributes")),
    ]);
    let fields = [
        ("resourceAttributes", object("kubernetes.ResourceAttributes", resource)),
        (
            "nonResourceAttributes",
            object("kubernetes.NonResourceAttributes", [("path", Type::String), ("verb", Type::String)]),
        ),
        ("user", Type::String),
        ("groups", texts()),
        ("extra", extra()),
        ("uid", Type::String),
    ];
    Env::default().with(REQUEST, object("kubernetes.SubjectAccessReviewSpec", fields))
}

impl Conditions {
    /// Compiles a list of conditions. Returns the first error, with its path.
    pub fn read(list: &[Value]) -> Result<Self, String> {
        if list.len() > MOST {
            return Err(format!("matchConditions: Too many: {}: must have at most {MOST} items", list.len()));
        }
        let mut out: Vec<Expression> = Vec::new();
        for (i, c) in list.iter().enumerate() {
            let at = format!("matchConditions[{i}].expression");
            let text = c["expression"].as_str().unwrap_or_default();
            if text.trim().is_empty() {
                return Err(format!("{at}: Required value"));
            }
            if out.iter().any(|e| e.text == text) {
                return Err(format!("{at}: Duplicate value: {text:?}"));
            }
            let compiled = Expression::compile(&env(), text, Some(&Type::Bool));
            out.push(compiled.map_err(|why| format!("{at}: Invalid value: {text:?}: {why}"))?);
        }
        Ok(Self(out))
    }

    /// Whether there are no conditions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `request` is the `spec` of a `SubjectAccessReview` with all string fields, including empty ones.
    pub fn hold(&self, request: &Value) -> Matched {
        let mut failed = Vec::new();
        for e in &self.0 {
            match e.eval(REQUEST, request).map(|v| v.as_bool()) {
                Ok(Some(true)) => {}
                Ok(Some(false)) => return Matched::No,
                Ok(None) => failed.push(format!("expression '{}' is no boolean", e.text)),
                Err(why) => failed.push(why),
            }
        }
        if failed.is_empty() { Matched::Yes } else { Matched::Failed(failed.join(", ")) }
    }
}
