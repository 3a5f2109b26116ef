//! Adds prefixes, suffixes and hashes to names.

use super::Transform;
use crate::Error;
use crate::fields::{Create, visit};
use crate::generate;
use crate::go::go_struct;
use crate::id::Gvk;
use crate::kustomization::FieldSpec;
use crate::resource::text;
use crate::resources::Resources;

go_struct! {
    Prefix "PrefixTransformer" {
        prefix: String = "prefix",
        specs: Vec<FieldSpec> = "fieldSpecs",
    }
}

go_struct! {
    Suffix "SuffixTransformer" {
        suffix: String = "suffix",
        specs: Vec<FieldSpec> = "fieldSpecs",
    }
}

/// Kinds whose names other programs know.
fn keeps_its_name(gvk: &Gvk) -> bool {
    matches!(
        (gvk.group.as_str(), gvk.kind.as_str()),
        (_, "CustomResourceDefinition" | "Namespace") | ("apiregistration.k8s.io", "APIService")
    )
}

enum Position {
    Front,
    Back,
}

fn apply(all: &mut Resources, added: &str, specs: &[FieldSpec], end: &Position) -> Result<(), Error> {
    for r in all.0.iter_mut().filter(|r| !r.is_empty()) {
        let gvk = r.original_id().gvk;
        if keeps_its_name(&gvk) {
            continue;
        }
        for spec in specs.iter().filter(|s| gvk.is_selected(&s.gvk)) {
            if spec.path == "metadata/name" && !added.is_empty() {
                match end {
                    Position::Front => r.prefixes.push(added.to_owned()),
                    Position::Back => r.suffixes.push(added.to_owned()),
                }
                r.remember();
            }
            visit(r, spec, Create::Scalar, &mut |v| {
                let old = if v.is_null() { String::new() } else { text(v) };
                *v = match end {
                    Position::Front => format!("{added}{old}").into(),
                    Position::Back => format!("{old}{added}").into(),
                };
                Ok(())
            })?;
        }
    }
    Ok(())
}

impl Transform for Prefix {
    fn apply(&self, all: &mut Resources) -> Result<(), Error> {
        apply(all, &self.prefix, &self.specs, &Position::Front)
    }
}

impl Transform for Suffix {
    fn apply(&self, all: &mut Resources) -> Result<(), Error> {
        apply(all, &self.suffix, &self.specs, &Position::Back)
    }
}

/// Adds the hash of the content to the names of generated objects.
pub struct Hash;

impl Transform for Hash {
    fn apply(&self, all: &mut Resources) -> Result<(), Error> {
        for r in all.0.iter_mut().filter(|r| r.needs_hash) {
            let name = format!("{}-{}", r.name(), generate::hash(&r.object));
            r.remember();
            r.set_name(&name);
        }
        Ok(())
    }
}
