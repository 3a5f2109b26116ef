//! CustomResourceDefinition: the names that follow from others.

use meta::Object;
use registry::Strategy;

pub struct CustomResourceDefinition;

impl Strategy for CustomResourceDefinition {
    fn fixed_by_status(&self, _old: &Object) -> &'static [&'static str] {
        registry::ALL_METADATA
    }

    fn default(&self, o: &mut Object) {
        let kind = o.str_at(&["spec", "names", "kind"]).unwrap_or_default().to_owned();
        if kind.is_empty() {
            return;
        }
        let absent = |o: &Object, k: &str| o.str_at(&["spec", "names", k]).unwrap_or_default().is_empty();
        if absent(o, "singular") {
            o.set(&["spec", "names", "singular"], kind.to_lowercase());
        }
        if absent(o, "listKind") {
            o.set(&["spec", "names", "listKind"], format!("{kind}List"));
        }
    }

    fn validate(&self, o: &Object, errors: &mut meta::field::ErrorList) {
        let names = meta::FieldPath::new("spec.names");
        for k in ["plural", "singular", "kind", "listKind"] {
            if o.str_at(&["spec", "names", k]).unwrap_or_default().is_empty() {
                errors.push(meta::FieldError::required(&names.child(k), ""));
            }
        }
        let plural = o.str_at(&["spec", "names", "plural"]).unwrap_or_default();
        let want = format!("{plural}.{}", o.str_at(&["spec", "group"]).unwrap_or_default());
        if o.name() != want {
            let why = "must be spec.names.plural+\".\"+spec.group";
            errors.push(meta::FieldError::invalid(&meta::FieldPath::new("metadata.name"), o.name(), why));
        }
    }
}
