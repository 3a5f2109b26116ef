//! Adds labels and annotations to all objects.

use super::Transform;
use crate::Error;
use crate::config::{Config, merge_specs};
use crate::fields::set_keys;
use crate::go::go_struct;
use crate::kustomization::{FieldSpec, Label};
use crate::resources::Resources;
use std::collections::BTreeMap;

go_struct! {
    Labels "LabelTransformer" {
        labels: BTreeMap<String, String> = "labels",
        specs: Vec<FieldSpec> = "fieldSpecs",
    }
}

go_struct! {
    Annotations "AnnotationsTransformer" {
        annotations: BTreeMap<String, String> = "annotations",
        specs: Vec<FieldSpec> = "fieldSpecs",
    }
}

impl Transform for Labels {
    fn apply(&self, all: &mut Resources) -> Result<(), Error> {
        all.0.iter_mut().filter(|r| !r.is_empty()).try_for_each(|r| set_keys(r, &self.specs, self.labels.iter()))
    }
}

impl Transform for Annotations {
    fn apply(&self, all: &mut Resources) -> Result<(), Error> {
        all.0.iter_mut().filter(|r| !r.is_empty()).try_for_each(|r| set_keys(r, &self.specs, self.annotations.iter()))
    }
}

/// Returns the transformer for an entry of `labels`.
pub fn label_transformer(label: &Label, config: &Config) -> Result<Labels, Error> {
    let mut specs = label.fields.clone();
    let mut add = |more: &[FieldSpec]| {
        merge_specs(&mut specs, more).map_err(|e| Error::text(format!("failed to merge labels: {e}")))
    };
    add(&config.labels)?;
    if label.include_selectors {
        add(&config.common_labels)?;
    } else {
        if label.include_templates {
            add(&config.template_labels)?;
        }
        add(&[FieldSpec { path: "metadata/labels".to_owned(), create: true, ..FieldSpec::default() }])?;
    }
    Ok(Labels { labels: label.pairs.clone(), specs })
}
