//! Sets the number of replicas.

use super::Transform;
use crate::Error;
use crate::fields::{Create, visit};
use crate::go::go_struct;
use crate::kustomization::{FieldSpec, Replica};
use crate::resources::Resources;

go_struct! {
    Replicas "ReplicaCountTransformer" {
        replica: Replica = "replica",
        specs: Vec<FieldSpec> = "fieldSpecs",
    }
}

impl Transform for Replicas {
    fn apply(&self, all: &mut Resources) -> Result<(), Error> {
        let mut found = false;
        for spec in &self.specs {
            for i in all.by_any_id(|id| id.name == self.replica.name && id.gvk.is_selected(&spec.gvk)) {
                found = true;
                visit(&mut all.0[i], spec, Create::Scalar, &mut |v| {
                    *v = self.replica.count.into();
                    Ok(())
                })?;
            }
        }
        if found {
            return Ok(());
        }
        let kinds: Vec<String> = self.specs.iter().map(|s| s.gvk.to_string()).collect();
        Err(Error::text(format!(
            "resource with name {} does not match a config with the following GVK [{}]",
            self.replica.name,
            kinds.join(" ")
        )))
    }
}
