//! AlwaysAdmit and AlwaysDeny: admit or reject every request.

use crate::{Plugin, Review};
use meta::{Object, Status};

pub struct AlwaysAdmit;
pub struct AlwaysDeny;

const DENIED: &str = "admission control is denying all modifications";

impl Plugin for AlwaysAdmit {
    fn name(&self) -> &'static str {
        "AlwaysAdmit"
    }
}

impl Plugin for AlwaysDeny {
    fn name(&self) -> &'static str {
        "AlwaysDeny"
    }

    fn mutate(&self, review: &Review<'_>, _object: &mut Object) -> Result<(), Status> {
        Err(review.forbidden(DENIED))
    }

    fn validate(&self, review: &Review<'_>, _object: Option<&Object>) -> Result<(), Status> {
        Err(review.forbidden(DENIED))
    }
}
