//! AlwaysPullImages: sets `imagePullPolicy: Always`, so that only pods with pull credentials run an image.

use crate::{Operation, Plugin, Review};
use meta::{Object, Status, Value};

pub struct AlwaysPullImages;

impl Plugin for AlwaysPullImages {
    fn name(&self) -> &'static str {
        "AlwaysPullImages"
    }

    fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<(), Status> {
        let pods = review.is("", "pods") || review.is_part("", "pods", "ephemeralcontainers");
        if !pods || !matches!(review.operation, Operation::Create | Operation::Update) {
            return Ok(());
        }
        let images = |o: &Object| -> Vec<Value> { containers(o).map(|c| c["image"].clone()).collect() };
        if review.old.is_some_and(|old| images(old) == images(object)) {
            return Ok(());
        }
        let Some(mut spec) = object.remove(&["spec"]) else { return Ok(()) };
        for list in LISTS {
            for c in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                c["imagePullPolicy"] = "Always".into();
            }
        }
        object.set(&["spec"], spec);
        Ok(())
    }
}

const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

fn containers(o: &Object) -> impl Iterator<Item = &Value> {
    LISTS.into_iter().flat_map(|l| o.at(&["spec", l]).and_then(Value::as_array).into_iter().flatten())
}
