//! DefaultIngressClass: sets the default class of ingresses without one.

use crate::{Lookup, Operation, Plugin, ReadScope, Review, WriteRequest};
use meta::{Object, Status};

pub struct DefaultIngressClass;

const GROUP: &str = "networking.k8s.io";

impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn reads(&self, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
        if write.creates(GROUP, "ingresses") { lookup.bytes(GROUP, "ingressclasses", None, ReadScope::All) } else { 0 }
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        let applies = review.is(GROUP, "ingresses") && review.operation == Operation::Create;
        let has_class = object.at(&["spec", "ingressClassName"]).is_some()
            || object.annotation("kubernetes.io/ingress.class").is_some();
        if !applies || has_class {
            return Ok(());
        }
        let classes = review.lookup.list(GROUP, "ingressclasses", None);
        let is_default = |c: &Object| c.annotation("ingressclass.kubernetes.io/is-default-class") == Some("true");
        let defaults = classes.filter(|c| c.as_ref().map_or(true, is_default)).collect::<Result<Vec<_>, _>>()?;
        // The newest, then the first by name.
        let newest =
            |a: &Object, b: &Object| b.creation_timestamp().cmp(a.creation_timestamp()).then(a.name().cmp(b.name()));
        if let Some(c) = defaults.into_iter().min_by(newest) {
            object.set(&["spec", "ingressClassName"], c.name());
        }
        Ok(())
    }
}
