//! Node: allocatable follows capacity.

use meta::Object;
use registry::{Strategy, Sub};

pub struct Node;

impl Strategy for Node {
    fn default(&self, o: &mut Object) {
        if o.at(&["spec", "podCIDRs"]).is_none()
            && let Some(c) = o.str_at(&["spec", "podCIDR"]).map(str::to_owned)
        {
            o.set(&["spec", "podCIDRs"], vec![c]);
        }
        if o.at(&["status", "allocatable"]).is_none()
            && let Some(c) = o.at(&["status", "capacity"]).cloned()
        {
            o.set(&["status", "allocatable"], c);
        }
    }

    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "proxy").then_some(Sub::Connect)
    }
}
