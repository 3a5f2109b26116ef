//! AppArmor profiles in deprecated annotations (upstream `applyAppArmorVersionSkew`): on create, the fields are set from them.

use crate::pod_template::{apparmor, apparmor_profile};
use crate::read::text;
use meta::field::ErrorList;
use meta::{FieldPath, Object, Value};
use registry::Env;
use serde_json::json;

const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

pub fn fields_from_annotations(o: &mut Object, env: Env<'_>) {
    if o.str_at(&["spec", "os", "name"]) == Some("windows") {
        return;
    }
    let of_pod = o.at(&["spec", "securityContext", "appArmorProfile"]).filter(|p| p.is_object()).cloned();
    for list in LISTS {
        let Some(Value::Array(mut containers)) = o.at(&["spec", list]).cloned() else { continue };
        let mut changed = false;
        for c in &mut containers {
            let key = format!("{ANNOTATION}{}", text(c, "name"));
            let own = &c["securityContext"]["appArmorProfile"];
            let Some(value) = o.annotation(&key).filter(|_| !own.is_object()) else { continue };
            let profile = profile_field(value);
            let differs = profile.is_some() && profile != of_pod;
            if differs || profile.is_none() {
                let why = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
                env.warn(format!("metadata.annotations[{key}]: {why}"));
            }
            if let Some(profile) = profile.filter(|_| differs) {
                if !c["securityContext"].is_object() {
                    c["securityContext"] = json!({});
                }
                c["securityContext"]["appArmorProfile"] = profile;
                changed = true;
            }
        }
        if changed {
            o.set(&["spec", list], containers);
        }
    }
}

/// Returns the profile of an annotation value, or `None` if it would be invalid as a field.
fn profile_field(value: &str) -> Option<Value> {
    let profile = apparmor_profile(value)?;
    let mut errors = ErrorList::new();
    apparmor(&profile, &FieldPath::root(), &mut errors);
    errors.is_empty().then_some(profile)
}
