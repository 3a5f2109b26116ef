//! Sets the namespace of all objects.

use super::Transform;
use crate::Error;
use crate::fields::{Create, visit};
use crate::go::go_struct;
use crate::kustomization::{FieldSpec, Metadata};
use crate::resource::Resource;
use crate::resources::Resources;
use meta::Value;

go_struct! {
    Namespace "NamespaceTransformer" {
        metadata: Metadata = "metadata",
        specs: Vec<FieldSpec> = "fieldSpecs",
        unset_only: bool = "unsetOnly",
        /// `defaultOnly`, `allServiceAccounts` or `none`.
        subjects: String = "setRoleBindingSubjects",
    }
}

impl Namespace {
    /// Checks `setRoleBindingSubjects`.
    pub fn check(&self) -> Result<(), Error> {
        if matches!(self.subjects.as_str(), "" | "defaultOnly" | "none" | "allServiceAccounts") {
            return Ok(());
        }
        Err(Error::text(format!(
            "invalid value {:?} for setRoleBindingSubjects: must be one of \"defaultOnly\", \"none\" or \"allServiceAccounts\"",
            self.subjects
        )))
    }

    fn set(&self, v: &mut Value) -> Result<(), Error> {
        let is_set = v.as_str().is_some_and(|s| !s.is_empty());
        if v.is_object() || v.is_array() {
            return Err(Error::text("namespace field specs must target scalar nodes"));
        }
        if !(self.unset_only && is_set) {
            *v = self.metadata.namespace.clone().into();
        }
        Ok(())
    }

    fn change(&self, r: &mut Resource) -> Result<(), Error> {
        let gvk = r.gvk();
        if !gvk.is_cluster_scoped() {
            let spec = FieldSpec { path: "metadata/namespace".to_owned(), create: true, ..FieldSpec::default() };
            visit(r, &spec, Create::Scalar, &mut |v| self.set(v))?;
        }
        let binding = matches!(gvk.kind.as_str(), "RoleBinding" | "ClusterRoleBinding");
        if binding {
            self.set_subjects(r)?;
        }
        for spec in &self.specs {
            let own = spec.path == "metadata/namespace"
                || (spec.path == "metadata/name" && gvk.api_version() != "v1")
                || (binding && spec.path == "subjects/namespace");
            if !own {
                visit(r, spec, Create::Scalar, &mut |v| self.set(v))?;
            }
        }
        Ok(())
    }

    fn set_subjects(&self, r: &mut Resource) -> Result<(), Error> {
        let Some(Value::Array(subjects)) = r.object.get_mut("subjects") else { return Ok(()) };
        for s in subjects.iter_mut().filter_map(Value::as_object_mut) {
            let is = |key: &str, value: &str| s.get(key).and_then(Value::as_str) == Some(value);
            let in_scope = match self.subjects.as_str() {
                "none" => false,
                "allServiceAccounts" => is("kind", "ServiceAccount"),
                _ => is("name", "default"),
            };
            if in_scope {
                self.set(s.entry("namespace").or_insert(Value::Null))?;
            }
        }
        Ok(())
    }
}

impl Transform for Namespace {
    fn apply(&self, all: &mut Resources) -> Result<(), Error> {
        if self.metadata.namespace.is_empty() {
            return Ok(());
        }
        for i in 0..all.0.len() {
            let r = &mut all.0[i];
            if r.is_empty() {
                continue;
            }
            r.remember();
            self.change(r).map_err(|e| Error::text(format!("namespace transformation failed: {e}")))?;
            let id = r.id();
            let same: Vec<String> = all
                .0
                .iter()
                .filter(|o| o.id().is_same(&id))
                .map(|o| codec::json::to_string(&o.object.clone().into(), codec::json::Html::Escape))
                .collect();
            if same.len() != 1 {
                return Err(Error::text(format!(
                    "namespace transformation produces ID conflict: [{}]",
                    same.join(" ")
                )));
            }
        }
        Ok(())
    }
}
