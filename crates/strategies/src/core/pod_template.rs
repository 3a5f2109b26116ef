//! PodTemplate: only its template has rules.

use crate::pod_template;
use meta::field::ErrorList;
use meta::{FieldPath, Object};
use registry::Strategy;

pub struct PodTemplate;

impl Strategy for PodTemplate {
    fn default(&self, o: &mut Object) {
        pod_template::default(o, &["template", "spec"]);
    }

    fn warnings(&self, o: &Object, _old: Option<&Object>) -> Vec<String> {
        o.at(&["template"]).map(|t| pod_template::warnings(t, &FieldPath::new("template"))).unwrap_or_default()
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        pod_template::validate(o.at(&["template"]), &FieldPath::new("template"), errors);
    }
}
