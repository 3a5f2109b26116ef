//! Puts a value into fields, as a whole or as a segment of a path (`ValueAddTransformer`, which no field of a kustomization
//! configures).

use super::Transform;
use crate::Error;
use crate::fields::{Create, visit};
use crate::go::{self, Unknown, go_struct};
use crate::kustomization::{FieldSpec, Selector};
use crate::resources::Resources;
use crate::root::Root;

go_struct! {
    Target "Target" {
        selector: Option<Selector> = "selector",
        field_path: String = "fieldPath",
        position: i64 = "filePathPosition",
    }
}

go_struct! {
    Targets "Targets" {
        targets: Vec<Target> = "targets",
    }
}

go_struct! {
    ValueAdd "ValueAddTransformer" {
        value: String = "value",
        targets: Vec<Target> = "targets",
        file: String = "targetFilePath",
    }
}

impl ValueAdd {
    /// Completes the value, and reads the targets file.
    pub fn load(mut self, root: &Root<'_>) -> Result<Self, Error> {
        self.value = self.value.trim().to_owned();
        if self.value.is_empty() {
            self.value = root.path.rsplit('/').next().unwrap_or_default().to_owned();
        }
        if !self.file.is_empty() {
            let documents = codec::yaml::parse(&root.read_text(&self.file)?).map_err(Error::text)?;
            let more: Targets =
                go::decode(documents.into_iter().next().unwrap_or_default(), Unknown::Ignored).map_err(Error::text)?;
            self.targets.extend(more.targets);
        }
        if self.targets.is_empty() {
            return Err(Error::text("must specify at least one target"));
        }
        for t in &self.targets {
            if t.field_path.is_empty() {
                return Err(Error::text("fieldPath cannot be empty"));
            }
            if t.position < 0 {
                return Err(Error::text(format!("value of FilePathPosition ({}) cannot be negative", t.position)));
            }
        }
        Ok(self)
    }
}

/// Inserts a segment into a path at a position counted from one.
fn insert(path: &str, part: &str, position: i64) -> String {
    let mut parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    let absolute = path.starts_with('/');
    let at = usize::try_from(position - 1).unwrap_or(0).min(parts.len());
    parts.insert(at, part);
    format!("{}{}", if absolute { "/" } else { "" }, parts.join("/"))
}

impl Transform for ValueAdd {
    fn apply(&self, all: &mut Resources) -> Result<(), Error> {
        for t in &self.targets {
            let selected = match &t.selector {
                Some(s) => all.select(s)?,
                None => (0..all.0.len()).collect(),
            };
            for i in selected {
                let r = &mut all.0[i];
                if t.field_path == "metadata/namespace" && r.gvk().is_cluster_scoped() {
                    continue;
                }
                let spec = FieldSpec { path: t.field_path.clone(), create: true, ..FieldSpec::default() };
                visit(r, &spec, Create::Scalar, &mut |v| {
                    *v = match (t.position, &*v) {
                        (0, _) => self.value.clone().into(),
                        (n, old) => insert(old.as_str().unwrap_or_default(), &self.value, n).into(),
                    };
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}
