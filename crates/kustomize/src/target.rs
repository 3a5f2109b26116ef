//! A kustomization: what it reads, generates and transforms, in kustomize's order.

use crate::config::{self, Config};
use crate::kustomization::{COMPONENT, Kustomization};
use crate::origin::Origin;
use crate::resource::{self, Resource};
use crate::resources::Resources;
use crate::root::Root;
use crate::transform::{Transform, image, json_patch, labels, names, namespace, patch, replacement, replicas};
use crate::vars::{self, Vars};
use crate::{Error, generate, plugin};
use meta::Value;
use std::cell::RefCell;

/// The results of the kustomizations so far.
#[derive(Default)]
pub struct Gathered {
    pub all: Resources,
    pub config: Config,
    pub vars: Vars,
}

/// The state that a whole build shares.
pub struct Build<'a> {
    pub warnings: RefCell<Vec<String>>,
    pub root: &'a Root<'a>,
}

/// A loaded kustomization.
pub struct Target<'a> {
    root: &'a Root<'a>,
    build: &'a Build<'a>,
    pub kustomization: Kustomization,
    file: &'static str,
    /// The origin of this kustomization, if the build records origins.
    pub origin: Option<Origin>,
}

const FILES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

type Steps = Vec<(Box<dyn Transform>, Option<Origin>)>;

impl<'a> Target<'a> {
    /// Loads the kustomization file of a root.
    pub fn load(root: &'a Root<'a>, build: &'a Build<'a>) -> Result<Self, Error> {
        let found: Vec<(&'static str, String)> =
            FILES.iter().filter_map(|f| Some((*f, root.read_text(f).ok()?))).collect();
        let [(file, text)] = &found[..] else {
            return Err(Error::text(if found.is_empty() {
                format!(
                    "unable to find one of 'kustomization.yaml', 'kustomization.yml' or 'Kustomization' in directory '{}'",
                    root.path
                )
            } else {
                format!("Found multiple kustomization files under: {}\n", root.path)
            }));
        };
        let mut warn = |w: String| build.warnings.borrow_mut().push(w);
        let kustomization = Kustomization::read(text, &root.path, &mut warn)?;
        let target = Self { root, build, kustomization, file, origin: None };
        target.check_openapi()?;
        Ok(target)
    }

    /// Checks that a custom schema can be read. Merge keys of built-in kinds are compiled in; lists of other kinds are
    /// replaced.
    fn check_openapi(&self) -> Result<(), Error> {
        match self.kustomization.openapi.get("path") {
            Some(path) => self.root.read(path).map(drop),
            None => Ok(()),
        }
    }

    /// Reads, generates and transforms. A component transforms the given objects.
    pub fn gather(&self, mut g: Gathered) -> Result<Gathered, Error> {
        let k = &self.kustomization;
        self.resources(&mut g, &k.resources).map_err(|e| e.within("accumulating resources"))?;
        g.config.merge(Config::load(self.root, &k.configurations)?)?;
        g.config.merge(
            config::from_definitions(self.root, &k.crds)
                .map_err(|e| e.within(&format!("loading CRDs [{}]", k.crds.join(" "))))?,
        )?;
        self.generate(&mut g)?;
        for path in &k.components {
            g = self.component(g, path).map_err(|e| e.within("accumulating components"))?;
        }
        self.transform(&mut g)?;
        self.validate(&mut g)?;
        let vars = k.vars.as_deref().unwrap_or_default();
        vars::collect(&mut g.vars, &mut g.all, vars)
            .map_err(|e| e.within(&format!("merging vars {}", vars::shown(vars))))?;
        Ok(g)
    }

    fn resources(&self, g: &mut Gathered, paths: &[String]) -> Result<(), Error> {
        for path in paths {
            let Err(as_file) = self.file(&mut g.all, path) else { continue };
            if matches!(as_file, Error::Remote(_)) {
                return Err(as_file);
            }
            let both = |e: Error| e.within(&format!("accumulation err='{as_file}'"));
            let root = match self.root.enter(path) {
                Ok(root) => root,
                // An invalid YAML file is reported as such, and not as a missing directory.
                Err(_) if matches!(as_file, Error::Malformed(_)) => return Err(as_file),
                Err(e) => return Err(both(e)),
            };
            self.directory(g, &root, path).map_err(both)?;
        }
        Ok(())
    }

    fn file(&self, all: &mut Resources, path: &str) -> Result<(), Error> {
        let reading = format!("accumulating resources from '{path}'");
        let text = self.root.read_text(path).map_err(|e| e.within(&reading))?;
        let parsed = resource::parse(&text).map_err(|e| e.in_file(path).within(&reading))?;
        let mut own = Resources::default();
        own.append_all(parsed).map_err(|e| e.within(&reading))?;
        for r in &mut own.0 {
            r.origin = self.origin.as_ref().map(|o| o.append(path));
        }
        all.append_all(own.0).map_err(|e| e.within(&format!("merging resources from '{path}'")))
    }

    fn inner<'b>(&self, root: &'b Root<'b>, path: &str) -> Result<Target<'b>, Error>
    where
        'a: 'b,
    {
        let mut target = Target::load(root, self.build)
            .map_err(|e| e.within(&format!("couldn't make target for path '{}'", root.path)))?;
        target.kustomization.build_metadata.clone_from(&self.kustomization.build_metadata);
        target.origin = self.origin.as_ref().map(|o| o.append(path));
        Ok(target)
    }

    fn directory(&self, g: &mut Gathered, root: &Root<'_>, path: &str) -> Result<(), Error> {
        let target = self.inner(root, path)?;
        if target.kustomization.kind == COMPONENT {
            return Err(Error::text(format!("expected kind != '{COMPONENT}' for path '{}'", root.path)));
        }
        let inner = target
            .gather(Gathered::default())
            .map_err(|e| e.within(&format!("recursed accumulation of path '{}'", root.path)))?;
        let merged = g
            .all
            .append_all(inner.all.0)
            .and_then(|()| g.config.merge(inner.config))
            .and_then(|()| vars::merge(&mut g.vars, inner.vars));
        merged.map_err(|e| e.within(&format!("recursed merging from path '{}'", root.path)))
    }

    fn component(&self, g: Gathered, path: &str) -> Result<Gathered, Error> {
        let root = self.root.enter(path).map_err(|e| match e {
            e @ Error::Remote(_) => e,
            e => Error::text(format!("loader.New {:?}", e.to_string())),
        })?;
        let work = || {
            let target = self.inner(&root, path)?;
            if target.kustomization.kind != COMPONENT {
                return Err(Error::text(format!(
                    "expected kind '{COMPONENT}' for path '{}' but got '{}'",
                    root.path, target.kustomization.kind
                )));
            }
            target.gather(g).map_err(|e| e.within(&format!("recursed accumulation of path '{}'", root.path)))
        };
        work().map_err(|e| match e {
            e @ Error::Remote(_) => e,
            e => Error::text(format!("accumulateDirectory: {:?}", e.to_string())),
        })
    }

    fn builtin(&self, kind: &str) -> Option<Origin> {
        self.origin.as_ref().map(|o| o.builtin(self.file, kind))
    }

    fn generate(&self, g: &mut Gathered) -> Result<(), Error> {
        let k = &self.kustomization;
        let global = k.generator_options.as_ref();
        let mut made: Vec<(Resource, Option<Origin>)> = Vec::new();
        for args in &k.config_map_generator {
            let mut args = args.clone();
            args.options = generate::with_global(args.options.take(), global);
            made.push((generate::config_map(self.root, &args)?, self.builtin("ConfigMapGenerator")));
        }
        for args in &k.secret_generator {
            let mut args = args.clone();
            args.args.options = generate::with_global(args.args.options.take(), global);
            made.push((generate::secret(self.root, &args)?, self.builtin("SecretGenerator")));
        }
        if let Some(chart) = k.helm_charts.first() {
            return Err(Error::text(format!(
                "trouble configuring builtin HelmChartInflationGenerator with config: `\n{}`: must specify --enable-helm",
                codec::yaml::to_string(&Value::Object(chart.clone()))
            )));
        }
        let plugins = self.plugins(&k.generators).map_err(|e| e.within("loading generator plugins"))?;
        for p in &plugins.0 {
            let all = plugin::generate(p, self.root).map_err(|e| e.within("loading generator plugins"))?;
            made.extend(all.into_iter().map(|r| (r, p.plugin_origin())));
        }
        for (mut r, origin) in made {
            r.origin = origin;
            let what = format!("merging from generator of {}", r.id());
            g.all.add_generated(r).map_err(|e| e.within(&what))?;
        }
        Ok(())
    }

    /// Reads the objects that configure plugins: inline, from files or from directories.
    fn plugins(&self, entries: &[String]) -> Result<Resources, Error> {
        let mut g = Gathered::default();
        let mut paths = Vec::new();
        for entry in entries {
            match resource::parse(entry) {
                Ok(mut inline) => {
                    for r in &mut inline {
                        r.origin = self.origin.as_ref().map(|o| o.append(self.file));
                    }
                    g.all.append_all(inline)?;
                }
                Err(_) => paths.push(entry.clone()),
            }
        }
        self.resources(&mut g, &paths)?;
        Ok(g.all)
    }

    fn transform(&self, g: &mut Gathered) -> Result<(), Error> {
        let mut steps = self.steps(&g.config)?;
        for p in &self.plugins(&self.kustomization.transformers)?.0 {
            steps.push((plugin::transformer(p, self.root)?, p.plugin_origin()));
        }
        for (step, origin) in steps {
            step.apply(&mut g.all)?;
            for r in &mut g.all.0 {
                match (&origin, &r.origin) {
                    (None, _) => {}
                    (Some(o), None) => r.origin = Some(o.clone()),
                    (Some(o), Some(_)) => r.transformations.push(o.clone()),
                }
            }
            g.all.drop_empty();
        }
        Ok(())
    }

    /// Returns the transformers of the kustomization in kustomize's order.
    fn steps(&self, c: &Config) -> Result<Steps, Error> {
        let k = &self.kustomization;
        let trouble = |kind: &str, config: &str, e: Error| match e {
            e @ Error::Remote(_) => e,
            e => e.within(&format!("trouble configuring builtin {kind} with config: `\n{config}`")),
        };
        let mut steps: Steps = Vec::new();
        let mut add = |kind: &str, t: Box<dyn Transform>| steps.push((t, self.builtin(kind)));
        if let Some(paths) = &k.patches_strategic_merge {
            const KIND: &str = "PatchStrategicMergeTransformer";
            let config = codec::yaml::to_string(&serde_json::json!({ "paths": paths }));
            let t = patch::StrategicMerge { paths: paths.clone(), patches: String::new() };
            add(KIND, Box::new(t.load(self.root).map_err(|e| trouble(KIND, &config, e))?));
        }
        for p in &k.patches {
            const KIND: &str = "PatchTransformer";
            let t = patch::load(p.clone(), self.root).map_err(|e| trouble(KIND, &patch::describe(p), e))?;
            add(KIND, Box::new(t));
        }
        if !k.namespace.is_empty() {
            let mut t = namespace::Namespace { specs: c.namespace.clone(), ..Default::default() };
            t.metadata.namespace.clone_from(&k.namespace);
            add("NamespaceTransformer", Box::new(t));
        }
        if !k.name_prefix.is_empty() {
            let t = names::Prefix { prefix: k.name_prefix.clone(), specs: c.name_prefix.clone() };
            add("PrefixTransformer", Box::new(t));
        }
        if !k.name_suffix.is_empty() {
            let t = names::Suffix { suffix: k.name_suffix.clone(), specs: c.name_suffix.clone() };
            add("SuffixTransformer", Box::new(t));
        }
        for label in &k.labels {
            add("LabelTransformer", Box::new(labels::label_transformer(label, c)?));
        }
        if !k.labels.is_empty() || k.common_labels.is_some() {
            let labels = k.common_labels.clone().unwrap_or_default();
            let specs = if labels.is_empty() { Vec::new() } else { c.common_labels.clone() };
            add("LabelTransformer", Box::new(labels::Labels { labels, specs }));
        }
        if !k.common_annotations.is_empty() {
            let t =
                labels::Annotations { annotations: k.common_annotations.clone(), specs: c.common_annotations.clone() };
            add("AnnotationsTransformer", Box::new(t));
        }
        for p in k.patches_json6902.iter().flatten() {
            const KIND: &str = "PatchJson6902Transformer";
            let t = json_patch::JsonPatch { target: p.target.clone(), path: p.path.clone(), json_op: p.patch.clone() };
            add(KIND, Box::new(t.load(self.root).map_err(|e| trouble(KIND, &patch::describe_with(p, "jsonOp"), e))?));
        }
        for replica in &k.replicas {
            let t = replicas::Replicas { replica: replica.clone(), specs: c.replicas.clone() };
            add("ReplicaCountTransformer", Box::new(t));
        }
        for image in &k.images {
            add("ImageTagTransformer", Box::new(image::Images { image: image.clone(), specs: c.images.clone() }));
        }
        if !k.replacements.is_empty() {
            let t = replacement::Replacements { replacements: k.replacements.clone() };
            add("ReplacementTransformer", Box::new(t.load(self.root)?));
        }
        Ok(steps)
    }

    /// Runs the validators, which may change only the label with their name.
    fn validate(&self, g: &mut Gathered) -> Result<(), Error> {
        for p in &self.plugins(&self.kustomization.validators)?.0 {
            let validator = plugin::transformer(p, self.root)?;
            let mut validated = g.all.clone();
            validator.apply(&mut validated)?;
            let mut seen = validated.clone();
            for r in &mut seen.0 {
                if let Some(Value::Object(labels)) = r.metadata_mut().get_mut("labels")
                    && labels.remove("validated-by").is_some()
                    && labels.is_empty()
                {
                    r.metadata_mut().remove("labels");
                }
            }
            let same = seen.0.len() == g.all.0.len() && seen.0.iter().zip(&g.all.0).all(|(a, b)| a.object == b.object);
            if !same {
                return Err(Error::text("validator shouldn't modify the resource map"));
            }
            g.all = validated;
        }
        Ok(())
    }
}
