use super::{Env, NameRule, Request};
use meta::field::ErrorList;
use meta::{Object, Status};

/// Defaulting, preparation and validation of objects (`rest.RESTCreateStrategy`; `runtime.ObjectDefaulter`).
/// Updates default and validate their result with it too, before the checks of [`super::UpdateStrategy`].
pub trait CreateStrategy: Send + Sync {
    fn name_rule(&self) -> NameRule {
        NameRule::DnsSubdomain
    }

    /// Validates the name of an object. Returns error messages. [`Self::name_rule`] also applies to prefixes of
    /// generated names.
    fn check_name(&self, object: &Object) -> Vec<String> {
        self.name_rule().check(object.name())
    }

    /// Whether the server copies all labels from another field of the object, which validates them.
    fn has_derived_labels(&self, _object: &Object) -> bool {
        false
    }

    /// Sets defaults that depend on several fields, after the schema's defaults.
    fn default(&self, _object: &mut Object) {}

    /// Resets fields that clients must not set, and sets those that the server determines.
    fn prepare_for_create(&self, _env: Env<'_>, _request: &Request, _object: &mut Object) {}

    /// Checks whether the user may write this object, beyond the authorization of the request (upstream's
    /// `policybased` storages). Called after mutating admission, before validation.
    fn permit(&self, _env: Env<'_>, _request: &Request, _object: &Object, _old: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }

    fn validate(&self, _object: &Object, _errors: &mut ErrorList) {}

    /// Validates what depends on whether the object is new, or on its old state; `old` is none for a new object.
    /// Returns errors about the new state; errors about changes come from [`super::UpdateStrategy::validate_update`].
    fn validate_since(&self, _object: &Object, _old: Option<&Object>, _errors: &mut ErrorList) {}

    /// Final validation of creates, updates and subresource writes, with the errors found so far. May add warnings.
    fn examine(&self, _env: Env<'_>, _object: &Object, _old: Option<&Object>, _errors: &mut ErrorList) {}

    /// The warnings of a create or an update of the object itself.
    fn warnings(&self, _object: &Object, _old: Option<&Object>) -> Vec<String> {
        Vec::new()
    }
}
