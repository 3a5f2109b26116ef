//! Kustomize 5: a directory with a `kustomization.yaml` becomes objects.
//!
//! [`build`] reads through [`Files`] and gives objects back, in order, in the form in which `kustomize build` writes them. What is
//! read and done, and in which order, is upstream's (v5.8.1, as in kubectl v1.36), its errors too.
//!
//! Invariant: data to data. Nothing is fetched, no program is run, nothing outside of the roots is read unless the caller wants it.
//!
//! Left out: remote bases, Helm charts and plugins of others (refused, each with its reason), `openapi` schemas for the merge keys of
//! custom kinds (checked to be there; their lists are replaced), the generator of Google's IAM policies. A field that is
//! written empty (`key:`) is `null`, before a patch and after it. Values that a replacement sets inside of a text in YAML leave its
//! keys sorted.

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

/// Why there is no build. All carry the whole text, as upstream words it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A file that is no YAML.
    #[error("{0}")]
    Malformed(String),
    /// Something that would have to be fetched.
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

    /// With what was being done.
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

/// Options of a build.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Where the kustomization has no `sortOptions`.
    pub order: Order,
    /// Which files the kustomizations may load.
    pub restriction: Restriction,
    /// Adds the label `app.kubernetes.io/managed-by`.
    pub managed_by: bool,
}

/// What a directory was built to, in order.
#[derive(Clone, Debug, Default)]
pub struct Output(pub Vec<Object>);

impl Output {
    /// All objects as documents of YAML.
    pub fn yaml(&self) -> String {
        let documents: Vec<String> = self.0.iter().map(document).collect();
        documents.join("---\n")
    }

    /// An object a file: names and contents. The namespace is in the name where there are several.
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

/// Builds the directory `path`; and what of it is out of date, for people, which is said of what cannot be built too.
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
    // What is only for tools on this machine.
    all.0.retain(|r| {
        let local = r.strings("annotations").into_iter().find(|(k, _)| k == "config.kubernetes.io/local-config");
        local.is_none_or(|(_, v)| v == "false")
    });
    let k = &target.kustomization;
    sort::sort(&mut all, k.sort_options.as_ref(), options.order)?;
    let wants = |what: &str| k.build_metadata.iter().any(|m| m == what);
    if options.managed_by || wants("managedByLabel") {
        let label = [("app.kubernetes.io/managed-by".to_owned(), format!("kustomize-{VERSION}"))];
        let spec = FieldSpec { path: "metadata/labels".to_owned(), create: true, ..FieldSpec::default() };
        let labels: BTreeMap<String, String> = label.into_iter().collect();
        let labels = transform::labels::Labels { labels, specs: vec![spec] };
        labels.apply(&mut all)?;
    }
    for r in &mut all.0 {
        r.finish();
        origin::annotate(r, wants("originAnnotations"), wants("transformerAnnotations"));
    }
    Ok(Output(all.0.into_iter().map(|r| Object(r.object)).collect()))
}

/// The kustomize whose behaviour this is.
pub const VERSION: &str = "v5.8.1";
