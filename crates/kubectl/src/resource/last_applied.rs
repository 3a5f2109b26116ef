//! The annotation `kubectl.kubernetes.io/last-applied-configuration` of client-side apply.

use crate::printer::shape::{Order, Shape};
use meta::Object;

/// The annotation that holds the configuration of the last client-side apply.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Returns the object as the annotation stores it: JSON without the annotation itself, with a newline at the end.
pub fn configuration(o: &Object) -> String {
    let mut o = o.clone();
    o.remove(&["metadata", "annotations", LAST_APPLIED]);
    if o.at(&["metadata", "annotations"]).is_none_or(|a| !a.is_object()) {
        o.set(&["metadata", "annotations"], meta::Map::new());
    }
    format!("{}\n", codec::json::to_string(&o.into_value(), codec::json::Html::Escape))
}

/// Stores the configuration of the object in its annotation.
pub fn annotate(o: &mut Object) {
    let text = configuration(o);
    o.set_annotation(LAST_APPLIED, &text);
}

/// Stores the configuration of an object that was made from arguments, in the field order of its type.
pub fn annotate_generated(o: &mut Object) {
    let text = format!("{}\n", Shape::new(&o.clone().into_value(), Order::ByType).compact());
    o.set_annotation(LAST_APPLIED, &text);
}
