//! Strategies of kinds with few or no rules.

use kinds::columns::Cell;
use meta::field::ErrorList;
use meta::{FieldError, Object, Status, Value};
use registry::{
    CreateStrategy, Env, NameRule, ObjectConvertor, Request, Sub, Subresources, TableConvertor, UpdateStrategy,
};

pub struct Plain;

impl Subresources for Plain {
    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "scale").then_some(Sub::Scale(registry::Scale::usual(label_selector)))
    }
}

registry::strategy!(Plain: Subresources);

/// Returns the label selector for the status of `scale`, as query text.
pub fn label_selector(o: &Object) -> String {
    let s = o.at(&["spec", "selector"]);
    let parsed = match s {
        Some(v) if v.get("matchLabels").is_none() && v.get("matchExpressions").is_none() => {
            let pairs = v.as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default()));
            Ok(meta::LabelSelector::from_map(pairs))
        }
        v => meta::LabelSelector::from_value(v),
    };
    parsed.map(|s| s.to_string()).unwrap_or_default()
}

/// See [`CreateStrategy::permit`].
type Permit = Box<dyn Fn(Env<'_>, &Request, &Object, Option<&Object>) -> Result<(), Status> + Send + Sync>;

/// The strategy of a kind that has only validation rules over several fields, warnings and table cells.
pub struct Ruled {
    pub validate: fn(&Object, &mut ErrorList),
    pub permit: Permit,
    /// See [`CreateStrategy::validate_since`].
    pub since: fn(&Object, Option<&Object>, &mut ErrorList),
    pub update: fn(&Object, &Object, &mut ErrorList),
    /// Validates an update of the status: the new object and the old one.
    pub status: fn(&Object, &Object, &mut ErrorList),
    /// Sets defaults that depend on more than one field.
    pub default: fn(&mut Object),
    /// Prepares an object for creation, or for an update of the old one.
    pub prepare: fn(Env<'_>, &mut Object, Option<&Object>),
    /// Prepares an update of the status: the new object and the old one.
    pub prepare_status: fn(Env<'_>, &mut Object, &Object),
    pub warnings: fn(&Object, Option<&Object>) -> Vec<String>,
    /// The warnings of an update of the status.
    pub status_warnings: fn(&Object) -> Vec<String>,
    pub names: NameRule,
    /// The error for an unsupported field selector, without the field; empty selects the common error.
    pub unselectable: &'static str,
    /// See [`ObjectConvertor::scheme`].
    pub scheme: &'static str,
    pub fixed_by_status: &'static [&'static str],
    pub cells: fn(&Cell<'_>) -> Option<Value>,
}

impl Ruled {
    pub fn new(validate: fn(&Object, &mut ErrorList)) -> Self {
        Self {
            validate,
            permit: Box::new(|_, _, _, _| Ok(())),
            since: |_, _, _| {},
            update: |_, _, _| {},
            status: |_, _, _| {},
            default: |_| {},
            prepare: |_, _, _| {},
            prepare_status: |_, _, _| {},
            warnings: |_, _| Vec::new(),
            status_warnings: |_| Vec::new(),
            names: NameRule::DnsSubdomain,
            unselectable: "",
            scheme: registry::LEGACY_SCHEME,
            fixed_by_status: &[],
            cells: |_| None,
        }
    }

    pub fn with_permit(
        self,
        permit: impl Fn(Env<'_>, &Request, &Object, Option<&Object>) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        Self { permit: Box::new(permit), ..self }
    }

    pub fn with_since(self, since: fn(&Object, Option<&Object>, &mut ErrorList)) -> Self {
        Self { since, ..self }
    }

    pub fn with_update(self, update: fn(&Object, &Object, &mut ErrorList)) -> Self {
        Self { update, ..self }
    }

    pub fn with_status(self, status: fn(&Object, &Object, &mut ErrorList)) -> Self {
        Self { status, ..self }
    }

    pub fn with_default(self, default: fn(&mut Object)) -> Self {
        Self { default, ..self }
    }

    pub fn with_prepare(self, prepare: fn(Env<'_>, &mut Object, Option<&Object>)) -> Self {
        Self { prepare, ..self }
    }

    pub fn with_prepare_status(self, prepare_status: fn(Env<'_>, &mut Object, &Object)) -> Self {
        Self { prepare_status, ..self }
    }

    pub fn with_warnings(self, warnings: fn(&Object, Option<&Object>) -> Vec<String>) -> Self {
        Self { warnings, ..self }
    }

    pub fn with_status_warnings(self, status_warnings: fn(&Object) -> Vec<String>) -> Self {
        Self { status_warnings, ..self }
    }

    pub fn named(self, names: NameRule) -> Self {
        Self { names, ..self }
    }

    /// Sets the error for an unsupported field selector.
    pub fn unselectable(self, message: &'static str) -> Self {
        Self { unselectable: message, ..self }
    }

    /// Sets the table cell functions of the kind.
    pub fn with_cells(self, cells: fn(&Cell<'_>) -> Option<Value>) -> Self {
        Self { cells, ..self }
    }

    pub fn in_scheme(self, scheme: &'static str) -> Self {
        Self { scheme, ..self }
    }

    /// Forbids status updates to change metadata that users set.
    pub fn with_fixed_status_metadata(self) -> Self {
        self.with_metadata_fixed_by_status(registry::ALL_METADATA)
    }

    /// Forbids status updates to change this metadata.
    pub fn with_metadata_fixed_by_status(self, fixed_by_status: &'static [&'static str]) -> Self {
        Self { fixed_by_status, ..self }
    }
}

impl CreateStrategy for Ruled {
    fn name_rule(&self) -> NameRule {
        self.names
    }

    fn default(&self, o: &mut Object) {
        (self.default)(o);
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        (self.validate)(o, errors);
    }

    fn permit(&self, env: Env<'_>, request: &Request, o: &Object, old: Option<&Object>) -> Result<(), Status> {
        (self.permit)(env, request, o, old)
    }

    fn prepare_for_create(&self, env: Env<'_>, _request: &Request, o: &mut Object) {
        (self.prepare)(env, o, None);
    }

    fn warnings(&self, o: &Object, old: Option<&Object>) -> Vec<String> {
        (self.warnings)(o, old)
    }

    fn validate_since(&self, o: &Object, old: Option<&Object>, errors: &mut ErrorList) {
        (self.since)(o, old, errors);
    }
}

impl UpdateStrategy for Ruled {
    fn prepare_for_update(&self, env: Env<'_>, request: &Request, o: &mut Object, old: &Object) {
        match request.subresource.as_str() {
            "" => (self.prepare)(env, o, Some(old)),
            "status" => (self.prepare_status)(env, o, old),
            _ => {}
        }
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        (self.update)(o, old, errors);
    }

    fn validate_part(&self, subresource: &str, o: &Object, old: &Object, errors: &mut ErrorList) {
        if subresource == "status" {
            (self.status)(o, old, errors);
        }
    }

    fn part_warnings(&self, subresource: &str, o: &Object) -> Vec<String> {
        if subresource == "status" { (self.status_warnings)(o) } else { Vec::new() }
    }

    fn fixed_by_status(&self, _old: &Object) -> &'static [&'static str] {
        self.fixed_by_status
    }
}

impl Subresources for Ruled {
    fn subresource(&self, name: &str) -> Option<Sub> {
        Plain.subresource(name)
    }
}

impl TableConvertor for Ruled {
    fn cell(&self, cell: &Cell<'_>) -> Option<Value> {
        (self.cells)(cell)
    }
}

impl ObjectConvertor for Ruled {
    fn scheme(&self) -> &'static str {
        self.scheme
    }

    fn unselectable(&self, field: &str) -> Option<String> {
        (!self.unselectable.is_empty()).then(|| format!("{}: {field}", self.unselectable))
    }
}

registry::strategy!(Ruled: CreateStrategy, UpdateStrategy, Subresources, TableConvertor, ObjectConvertor);

/// Repeats the errors that match `repeated`, as upstream does for kinds that validate the object twice on update.
pub fn repeat_errors(errors: &mut ErrorList, repeated: impl Fn(&FieldError) -> bool) {
    let again: Vec<FieldError> = errors.iter().filter(|e| repeated(e)).cloned().collect();
    errors.extend(again);
}
