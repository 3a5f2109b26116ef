//! Plugins of the version `builtin` in `generators`, `transformers` and `validators`: the built-in steps with their own
//! configuration. Other objects there would be external programs, which are not run.

use crate::Error;
use crate::generate;
use crate::go::{self, Decode, Unknown};
use crate::kustomization::{ConfigMapArgs, FieldSpec, Metadata, Patch, Replica, SecretArgs};
use crate::resource::Resource;
use crate::root::Root;
use crate::transform::{
    Transform, image, json_patch, labels, names, namespace, patch, replacement, replicas, value_add,
};

fn config<T: Decode + Default>(r: &Resource) -> Result<T, Error> {
    go::decode(r.object.clone().into(), Unknown::Ignored).map_err(Error::text)
}

fn builtin(r: &Resource) -> Result<(), Error> {
    if r.gvk().api_version() == "builtin" {
        return Ok(());
    }
    Err(Error::text(format!("external plugins disabled; unable to load external plugin '{}'", r.kind())))
}

/// The name and namespace of the configuration default to those of the object.
fn named(r: &Resource, args: &mut ConfigMapArgs) {
    if args.name.is_empty() {
        args.name = r.name();
    }
    if args.namespace.is_empty() {
        args.namespace = r.namespace();
    }
}

/// Runs a generator plugin.
pub fn generate(r: &Resource, root: &Root<'_>) -> Result<Vec<Resource>, Error> {
    builtin(r)?;
    match r.kind() {
        "ConfigMapGenerator" => {
            let mut args: ConfigMapArgs = config(r)?;
            named(r, &mut args);
            Ok(vec![generate::config_map(root, &args)?])
        }
        "SecretGenerator" => {
            let mut args: SecretArgs = config(r)?;
            named(r, &mut args.args);
            Ok(vec![generate::secret(root, &args)?])
        }
        "HelmChartInflationGenerator" => Err(fails(r, &Error::text("must specify --enable-helm"))),
        _ => Err(Error::text(format!("failed to load generator: unable to load builtin {}", r.gvk()))),
    }
}

fn fails(r: &Resource, e: &Error) -> Error {
    Error::text(format!("plugin {} fails configuration: {e}", r.original_id()))
}

/// Returns a transformer plugin.
pub fn transformer(r: &Resource, root: &Root<'_>) -> Result<Box<dyn Transform>, Error> {
    builtin(r)?;
    match configured(r, root) {
        Ok(Some(t)) => Ok(t),
        Ok(None) => Err(Error::text(format!("unable to load builtin {}", r.gvk()))),
        Err(e @ Error::Remote(_)) => Err(e),
        Err(e) => Err(fails(r, &e)),
    }
}

/// Returns `None` if there is no such transformer.
fn configured(r: &Resource, root: &Root<'_>) -> Result<Option<Box<dyn Transform>>, Error> {
    let specs_given = |specs: &[FieldSpec]| {
        if specs.is_empty() { Err(Error::text("fieldSpecs is not expected to be nil")) } else { Ok(()) }
    };
    Ok(Some(match r.kind() {
        "AnnotationsTransformer" => Box::new(config::<labels::Annotations>(r)?),
        "LabelTransformer" => Box::new(config::<labels::Labels>(r)?),
        "NamespaceTransformer" => {
            let t: namespace::Namespace = config(r)?;
            t.check()?;
            Box::new(t)
        }
        "PrefixTransformer" => {
            let t: names::Prefix = config(r)?;
            specs_given(&t.specs)?;
            Box::new(t)
        }
        "SuffixTransformer" => {
            let t: names::Suffix = config(r)?;
            specs_given(&t.specs)?;
            Box::new(t)
        }
        "HashTransformer" => Box::new(names::Hash),
        "ImageTagTransformer" => Box::new(config::<image::Images>(r)?),
        "ReplicaCountTransformer" => {
            let mut t: replicas::Replicas = config(r)?;
            if t.replica == Replica::default() {
                t.replica.name = config::<Metadata>(r).map(|m| m.name).unwrap_or_default();
            }
            Box::new(t)
        }
        "PatchTransformer" => Box::new(patch::load(config::<Patch>(r)?, root)?),
        "PatchStrategicMergeTransformer" => Box::new(config::<patch::StrategicMerge>(r)?.load(root)?),
        "PatchJson6902Transformer" => Box::new(config::<json_patch::JsonPatch>(r)?.load(root)?),
        "ReplacementTransformer" => Box::new(config::<replacement::Replacements>(r)?.load(root)?),
        "ValueAddTransformer" => Box::new(config::<value_add::ValueAdd>(r)?.load(root)?),
        _ => return Ok(None),
    }))
}
