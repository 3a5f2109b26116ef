//! `kubectl kustomize`: builds a kustomization directory and prints the objects.

use crate::error::{Error, Result, os_message, text};
use crate::kube::Kube;
use crate::resource::kustomization::build;
use kustomize::{Options, Order, Restriction};
use std::path::Path;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Directory; by default the working directory.
    #[arg(value_name = "DIR")]
    pub dirs: Vec<String>,
    /// Output file, or directory for a file per object.
    #[arg(short = 'o', long, default_value = "", hide_default_value = true)]
    pub output: String,
    /// LoadRestrictionsRootOnly, or LoadRestrictionsNone to read files outside of the directory too.
    #[arg(long, default_value = ROOT_ONLY)]
    pub load_restrictor: String,
    /// Order of the objects: legacy or none.
    #[arg(long, default_value = "", hide = true)]
    pub reorder: String,
    #[arg(long, hide = true)]
    pub enable_managedby_label: bool,
    /// Rejected: charts are not rendered here.
    #[arg(long)]
    pub enable_helm: bool,
    /// Rejected: plugins are not run here.
    #[arg(long)]
    pub enable_alpha_plugins: bool,
    /// Rejected: plugins are not run here.
    #[arg(long)]
    pub as_current_user: bool,
    /// Accepted without effect: environment of plugins.
    #[arg(short = 'e', long)]
    pub env: Vec<String>,
    /// Accepted without effect: helm command.
    #[arg(long, default_value = "helm", hide_default_value = true)]
    pub helm_command: String,
    /// Accepted without effect: API versions for helm.
    #[arg(long)]
    pub helm_api_versions: Vec<String>,
    /// Accepted without effect: Kubernetes version for helm.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub helm_kube_version: String,
    /// Accepted without effect: helm debug output.
    #[arg(long)]
    pub helm_debug: bool,
    /// Accepted without effect: volumes of plugins.
    #[arg(long)]
    pub mount: Vec<String>,
    /// Accepted without effect: network of plugins.
    #[arg(long)]
    pub network: bool,
    /// Accepted without effect: network name of plugins.
    #[arg(long, default_value = "bridge", hide_default_value = true)]
    pub network_name: String,
}

const ROOT_ONLY: &str = "LoadRestrictionsRootOnly";

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if !a.reorder.is_empty() {
        k.warn("Flag --reorder has been deprecated, use the new 'sortOptions' field in kustomization.yaml instead.");
    }
    let dir = match &a.dirs[..] {
        [] => ".",
        [dir] => dir,
        _ => return text("specify one path to kustomization.yaml"),
    };
    let restriction = match a.load_restrictor.as_str() {
        ROOT_ONLY => Restriction::RootOnly,
        "LoadRestrictionsNone" => Restriction::None,
        other => {
            return text(format!(
                "illegal flag value --load-restrictor {other}; legal values: [{ROOT_ONLY} LoadRestrictionsNone]"
            ));
        }
    };
    let order = match a.reorder.as_str() {
        "" | "legacy" => Order::Legacy,
        "none" => Order::None,
        other => return text(format!("illegal flag value --reorder {other}; legal values: [legacy none]")),
    };
    if a.enable_helm {
        return text("--enable-helm is not supported by this kubectl: render the chart with helm and name its output");
    }
    if a.enable_alpha_plugins {
        return text("--enable-alpha-plugins is not supported by this kubectl: it runs no programs of others");
    }
    let built = build(k, dir, Options { order, restriction, managed_by: a.enable_managedby_label })?;
    if a.output.is_empty() {
        k.out.write(built.yaml().as_bytes());
        return Ok(());
    }
    let to = Path::new(&a.output);
    let files = if to.is_dir() {
        built.files().into_iter().map(|(name, content)| (to.join(name), content)).collect()
    } else {
        vec![(to.to_owned(), built.yaml())]
    };
    for (path, content) in files {
        std::fs::write(&path, content)
            .map_err(|e| Error::Text(format!("open {}: {}", path.display(), os_message(&e))))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        dir
    }

    const OBJECTS: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n";

    /// Clauses: A15.command
    #[tokio::test]
    async fn builds_and_prints_directories() {
        let d = directory(&[
            ("base/kustomization.yaml", "resources: [all.yaml]\n"),
            ("base/all.yaml", OBJECTS),
            ("over/kustomization.yaml", "bases: [../base]\nnamePrefix: p-\n"),
            ("out/x", ""),
        ]);
        let s = Server::new();
        let at = |path: &str| d.path().join(path).to_str().unwrap().to_owned();
        let config_map = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: p-c\n";
        let service = "apiVersion: v1\nkind: Service\nmetadata:\n  name: p-s\n";
        let warned = "! # Warning: 'bases' is deprecated. Please use 'resources' instead. Run 'kustomize edit fix' to update your Kustomization automatically.\n";
        let over = at("over");
        assert_eq!(snapshot(&s, &format!("kustomize {over}"), "").await, format!("{config_map}---\n{service}{warned}"));
        let line = format!("kustomize {over} --reorder none");
        let old =
            "! Flag --reorder has been deprecated, use the new 'sortOptions' field in kustomization.yaml instead.\n";
        assert_eq!(snapshot(&s, &line, "").await, format!("{service}---\n{config_map}{old}{warned}"));
        assert_eq!(snapshot(&s, &format!("kustomize {over} -o {}", at("out")), "").await, warned);
        assert_eq!(std::fs::read_to_string(at("out/v1_configmap_p-c.yaml")).unwrap(), config_map);
        for (line, expected) in [
            ("kustomize a b".to_owned(), "specify one path to kustomization.yaml".to_owned()),
            (
                format!("kustomize {}", at("nope")),
                format!("must build at directory: not a valid directory: evalsymlink failure on '{0}' : lstat {0}: no such file or directory", at("nope")),
            ),
            (
                format!("kustomize {}", at("out")),
                format!("unable to find one of 'kustomization.yaml', 'kustomization.yml' or 'Kustomization' in directory '{}'", at("out")),
            ),
            (
                "kustomize github.com/example/repo".to_owned(),
                "\"github.com/example/repo\" is remote, and nothing is fetched from here: get a copy and name its directory instead".to_owned(),
            ),
        ] {
            assert_eq!(snapshot(&s, &line, "").await, format!("! error: {expected}\nexit 1\n"), "{line}");
        }
    }

    /// Clauses: A15.flag
    #[tokio::test]
    async fn commands_accept_directories() {
        let d = directory(&[("kustomization.yaml", "resources: [all.yaml]\nnameSuffix: -x\n"), ("all.yaml", OBJECTS)]);
        let dir = d.path().to_str().unwrap();
        let object = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}});
        let base = "/api/v1/namespaces/default";
        let query = "fieldManager=kubectl-create&fieldValidation=Strict";
        let s = Server::new()
            .on(&format!("POST {base}/services?{query}"), 201, object("Service", "s-x"))
            .on(&format!("POST {base}/configmaps?{query}"), 201, object("ConfigMap", "c-x"))
            .on(&format!("GET {base}/services/s-x"), 200, object("Service", "s-x"))
            .on(&format!("GET {base}/configmaps/c-x"), 200, object("ConfigMap", "c-x"));
        let made = snapshot(&s, &format!("create -k {dir}"), "").await;
        assert_eq!(made, "configmap/c-x created\nservice/s-x created\n");
        assert_eq!(snapshot(&s, &format!("get -k {dir} -o name"), "").await, "configmap/c-x\nservice/s-x\n");
        let both = snapshot(&s, &format!("create -k {dir} -f x -R"), "").await;
        assert!(
            both.contains("only one of -f or -k can be specified")
                && both.contains("the -k flag can't be used with -f or -R"),
            "{both}"
        );
        let missing = snapshot(&s, &format!("apply -k {dir}/nope"), "").await;
        assert!(
            missing.starts_with("! error: must build at directory: not a valid directory: evalsymlink failure on"),
            "{missing}"
        );
    }
}
