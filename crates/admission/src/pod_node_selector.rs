//! A namespace says on which nodes its pods run.

use crate::{Operation, Plugin, Review};
use meta::{GroupResource, Object, Status};
use std::collections::BTreeMap;

pub struct PodNodeSelector;

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";

impl PodNodeSelector {
    fn of_namespace(review: &Review<'_>) -> Result<BTreeMap<String, String>, Status> {
        let Some(ns) = review.lookup.get("", "namespaces", "", review.namespace) else {
            let gr = GroupResource { group: String::new(), resource: "namespaces".into() };
            return Err(Status::not_found(&gr, review.namespace));
        };
        let text = ns.annotation(ANNOTATION).unwrap_or_default();
        let pairs = text.split(',').map(str::trim).filter(|p| !p.is_empty());
        let pairs = pairs.map(|p| p.split_once('=').map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned())));
        let all: Option<BTreeMap<_, _>> = pairs.collect();
        all.ok_or_else(|| review.forbidden(&format!("invalid selector: [{text}]")))
    }
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
        let wanted = Self::of_namespace(review)?;
        conflict(review, &wanted, object)?;
        for (k, v) in wanted {
            object.set(&["spec", "nodeSelector", &k], v);
        }
        Ok(())
    }

    fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        match object.filter(|_| is_new_pod(review)) {
            Some(o) => conflict(review, &Self::of_namespace(review)?, o),
            None => Ok(()),
        }
    }
}

fn conflict(review: &Review<'_>, wanted: &BTreeMap<String, String>, pod: &Object) -> Result<(), Status> {
    let other = |(k, v): (&String, &String)| pod.str_at(&["spec", "nodeSelector", k]).is_some_and(|own| own != v);
    if wanted.iter().any(other) {
        return Err(review.forbidden("pod node label selector conflicts with its namespace node label selector"));
    }
    Ok(())
}
