//! ResourceClaimTemplate: the spec of generated claims.

use super::admin::admin_access;
use super::claim::{delegated_spec, spec};
use crate::Config;
use crate::plain::Ruled;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldPath, Object, Value};

pub fn row(_: &Config) -> Row {
    Row::stored(rules())
}

pub(super) fn rules() -> Ruled {
    Ruled::new(|_, _| {}).with_permit(admin_access).with_since(validate_since)
}

/// Validates the spec, also of an update, although it is immutable then.
fn validate_since(o: &Object, _: Option<&Object>, errors: &mut ErrorList) {
    delegated_spec(o, "io.k8s.api.resource.v1.ResourceClaimTemplate", errors);
    let of = |k: &str| (o.at(&["spec", k]).unwrap_or(&Value::Null), FieldPath::new("spec").child(k));
    let ((metadata, at), (claim, claim_at)) = (of("metadata"), of("spec"));
    crate::pod_template::annotations::template_metadata(metadata, &at, errors);
    spec(claim, &claim_at, errors);
}
