//! Kustomize 5: builds objects from a directory with a `kustomization.yaml`.
//!
//! [`build`] reads through [`Files`] and returns the objects in order, in the form in which `kustomize build` prints them.
//! The steps and their order are upstream's (v5.8.1, as in kubectl v1.36), and so are the errors.
//!
//! Invariant: data to data. Nothing is fetched, no program is run, and nothing outside of the roots is read unless the
//! caller allows it.
//!
//! Left out: remote bases, Helm charts and external plugins (rejected, each with its reason), `openapi` schemas for the
//! merge keys of custom kinds (only their existence is checked; lists of custom kinds are replaced), the generator of
//! Google's IAM policies. A field with an empty value (`key:`) is `null`, before and after a patch. A replacement inside of
//! an embedded YAML text sorts the keys of that text.

#![warn(missing_docs)]

mod config;
mod fields;
mod files;
mod generate;
mod go;
mod id;
mod kustomization;
mod origin;
mod plugin;
mod refs;
mod resource;
mod resources;
mod root;
mod sort;
mod target;
mod transform;
mod vars;

pub use files::{Files, Memory, Missing};
pub use root::Restriction;
pub use sort::Order;

use id::{Gvk, Id};
use kustomization::FieldSpec;
use meta::Object;
use origin::Origin;
use root::Root;
use std::collections::{BTreeMap, BTreeSet};
use target::{Build, Gathered, Target};
use transform::Transform as _;
use transform::names::Hash;

/// Why a build fails. Every variant carries the complete message in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A file that is no valid YAML.
    #[error("{0}")]
    Malformed(String),
    /// A path that would have to be fetched.
    #[error("{0}")]
    Remote(String),
    /// Any other error, in the words of kustomize.
    #[error("{0}")]
    Other(String),
}

impl Error {
    fn text(why: impl ToString) -> Self {
        Self::Other(why.to_string())
    }

    /// Adds the operation to the message.
    fn within(self, what: &str) -> Self {
        match self {
            Self::Malformed(e) => Self::Malformed(format!("{what}: {e}")),
            Self::Remote(e) => Self::Remote(format!("{what}: {e}")),
            Self::Other(e) => Self::Other(format!("{what}: {e}")),
        }
    }

    fn in_file(self, path: &str) -> Self {
        match self {
            Self::Malformed(e) => Self::Malformed(format!("{e} in File: {path}")),
            e => e,
        }
    }
}

/// The options of a build.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The order if the kustomization has no `sortOptions`.
    pub order: Order,
    /// Which files the kustomizations may load.
    pub restriction: Restriction,
    /// Adds the label `app.kubernetes.io/managed-by`.
    pub managed_by: bool,
}

/// The built objects in order.
#[derive(Clone, Debug, Default)]
pub struct Output(pub Vec<Object>);

impl Output {
    /// Formats all objects as YAML documents.
    pub fn yaml(&self) -> String {
        let documents: Vec<String> = self.0.iter().map(document).collect();
        documents.join("---\n")
    }

    /// Returns a file per object: names and contents. The names contain the namespace if there are several.
    pub fn files(&self) -> Vec<(String, String)> {
        let id = |o: &Object| Id {
            gvk: Gvk::new(o.api_version(), o.kind()),
            name: o.name().to_owned(),
            namespace: o.namespace().to_owned(),
        };
        let ids: Vec<Id> = self.0.iter().map(id).collect();
        let namespaced = || ids.iter().filter(|id| !id.gvk.is_cluster_scoped());
        let namespaces: BTreeSet<&str> = namespaced().map(Id::effective_namespace).collect();
        let name = |id: &Id| {
            let Gvk { group, version, kind } = &id.gvk;
            let parts: Vec<&str> =
                [group, version, kind].into_iter().map(String::as_str).filter(|p| !p.is_empty()).collect();
            let file = format!("{}_{}.yaml", parts.join("_"), id.name).to_lowercase();
            if namespaces.len() > 1 && !id.gvk.is_cluster_scoped() {
                format!("{}_{file}", id.effective_namespace().to_lowercase())
            } else {
                file
            }
        };
        ids.iter().map(name).zip(self.0.iter().map(document)).collect()
    }
}

fn document(o: &Object) -> String {
    codec::yaml::to_string(&o.clone().into_value())
}

/// Builds the directory `path`. Also returns warnings about deprecated fields, even if the build fails.
pub fn build(files: &dyn Files, path: &str, options: Options) -> (Result<Output, Error>, Vec<String>) {
    let root = match Root::new(files, path, options.restriction) {
        Ok(root) => root,
        Err(e) => return (Err(e), Vec::new()),
    };
    let build = Build { warnings: Default::default(), root: &root };
    let result = run(&build, options);
    (result, build.warnings.into_inner())
}

fn run(build: &Build<'_>, options: Options) -> Result<Output, Error> {
    let mut target = Target::load(build.root, build)?;
    if !target.kustomization.build_metadata.is_empty() {
        target.origin = Some(Origin::default());
    }
    let Gathered { mut all, config, vars } = target.gather(Gathered::default())?;
    Hash.apply(&mut all)?;
    refs::fix(&mut all, &config)?;
    let unused = vars::resolve(&mut all, &vars, &config)?;
    if !unused.is_empty() {
        let names = unused.join(",");
        build.warnings.borrow_mut().push(format!("well-defined vars that were never replaced: {names}"));
    }
    // Objects for local tools only.
    all.0.retain(|r| {
        let local = r.strings("annotations").into_iter().find(|(k, _)| k == "config.kubernetes.io/local-config");
        local.is_none_or(|(_, v)| v == "false")
    });
    let k = &target.kustomization;
    sort::sort(&mut all, k.sort_options.as_ref(), options.order)?;
    let has_build_metadata = |what: &str| k.build_metadata.iter().any(|m| m == what);
    if options.managed_by || has_build_metadata("managedByLabel") {
        let label = [("app.kubernetes.io/managed-by".to_owned(), format!("kustomize-{VERSION}"))];
        let spec = FieldSpec { path: "metadata/labels".to_owned(), create: true, ..FieldSpec::default() };
        let labels: BTreeMap<String, String> = label.into_iter().collect();
        let labels = transform::labels::Labels { labels, specs: vec![spec] };
        labels.apply(&mut all)?;
    }
    for r in &mut all.0 {
        r.finish();
        r.annotate_build(has_build_metadata("originAnnotations"), has_build_metadata("transformerAnnotations"));
    }
    Ok(Output(all.0.into_iter().map(|r| Object(r.object)).collect()))
}

/// The version of kustomize whose behaviour this follows.
pub const VERSION: &str = "v5.8.1";
