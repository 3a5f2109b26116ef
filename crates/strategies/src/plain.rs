//! A kind without peculiarities.

use meta::Object;
use registry::{Strategy, Sub};

pub struct Plain;

impl Strategy for Plain {
    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "scale").then_some(Sub::Scale { selector: label_selector })
    }
}

/// The selector that `scale` publishes, in its query form.
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
