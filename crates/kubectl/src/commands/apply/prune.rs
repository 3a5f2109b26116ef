//! `kubectl apply --prune`: deletes objects that were applied before and are no longer in the files.

use crate::discovery::Resource;
use crate::error::{Error, Result, text};
use crate::flags::DryRunStrategy;
use crate::kube::Kube;
use crate::printer::Printer;
use client::{DeleteOptions, ListOptions, Propagation};
use meta::{Gvk, Object};
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::resource::last_applied::LAST_APPLIED;

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Flags {
    /// Delete objects that were applied before and are not in the files.
    #[arg(long)]
    pub prune: bool,
    /// With --prune, consider all objects instead of those of a selector.
    #[arg(long)]
    pub all: bool,
    /// With --prune, only these kinds: GROUP/VERSION/KIND; may be repeated.
    #[arg(long, value_name = "GVK")]
    pub prune_allowlist: Vec<String>,
    /// With --prune, only members of the ApplySet with this parent: [RESOURCE[.GROUP]/]NAME (alpha, KUBECTL_APPLYSET=true).
    #[arg(long, default_value = "", hide_default_value = true)]
    pub applyset: String,
}

/// The kinds that are pruned by default.
const KINDS: [(&str, &str); 16] = [
    ("", "ConfigMap"),
    ("", "Endpoints"),
    ("", "PersistentVolumeClaim"),
    ("", "Pod"),
    ("", "ReplicationController"),
    ("", "Secret"),
    ("", "Service"),
    ("batch", "Job"),
    ("batch", "CronJob"),
    ("networking.k8s.io", "Ingress"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("", "Namespace"),
    ("", "PersistentVolume"),
];

/// Upstream's announcement of a change of this default.
const NON_NAMESPACED_DEPRECATION: &str = "Deprecated: kubectl apply will no longer prune non-namespaced resources by default when used with the --namespace flag in a future release. To preserve the current behaviour, list the resources you want to target explicitly in the --prune-allowlist flag.";

/// The objects that this run applied.
#[derive(Debug, Default)]
pub struct Visited {
    uids: BTreeSet<String>,
    namespaces: BTreeSet<String>,
}

impl Visited {
    /// Whether this run applied the object.
    pub fn has(&self, o: &Object) -> bool {
        self.uids.contains(o.uid())
    }

    /// Records an applied object.
    pub fn record(&mut self, o: &Object) {
        self.uids.insert(o.uid().to_owned());
        if !o.namespace().is_empty() {
            self.namespaces.insert(o.namespace().to_owned());
        }
    }
}

impl Flags {
    /// Rejects flags that contradict each other.
    pub fn check(&self, selector: &str, force: bool, server_side: bool) -> Result {
        if self.all && !selector.is_empty() {
            return text("cannot set --all and --selector at the same time");
        }
        if !self.prune {
            return Ok(());
        }
        if force {
            return text("--force cannot be used with --prune");
        }
        if !self.applyset.is_empty() {
            let wrong = match () {
                () if self.all => "--all",
                () if !selector.is_empty() => "--selector",
                () if !self.prune_allowlist.is_empty() => "--prune-allowlist",
                () => return Ok(()),
            };
            return text(format!("{wrong} is incompatible with --applyset"));
        }
        if !self.all && selector.is_empty() {
            return text(
                "all resources selected for prune without explicitly passing --all. To prune all resources, pass the --all flag. If you did not mean to prune all resources, specify a label selector",
            );
        }
        if server_side {
            return text("--prune is in alpha and doesn't currently work on objects created by server-side apply");
        }
        Ok(())
    }

    /// Returns the resources to prune, namespaced ones first.
    pub async fn resources(&self, k: &mut Kube) -> Result<Vec<Arc<Resource>>> {
        let mut out = Vec::new();
        if !self.prune || !self.applyset.is_empty() {
            return Ok(out);
        }
        if self.prune_allowlist.is_empty() {
            let head = client::log::head('W', k.now(), &k.shell.zone, "prune.go:71");
            k.warn(format!("{head}{NON_NAMESPACED_DEPRECATION}"));
            for (group, kind) in KINDS {
                let Some(r) = k.resource_of(&Gvk::new(group, "v1", kind)).await? else {
                    let namespaced = !matches!(kind, "Namespace" | "PersistentVolume");
                    return text(format!(
                        "error retrieving RESTMappings to prune: invalid resource {group}/v1, Kind={kind}, Namespaced={namespaced}: no matches for kind {kind:?} in version \"{}v1\"",
                        if group.is_empty() { String::new() } else { format!("{group}/") }
                    ));
                };
                out.push(r);
            }
        }
        for given in &self.prune_allowlist {
            let [group, version, kind] = given.split('/').collect::<Vec<_>>()[..] else {
                return text(format!("invalid GroupVersionKind format: {given}, please follow <group/version/kind>"));
            };
            let group = if group == "core" { "" } else { group };
            let gvk = Gvk::new(group, version, kind);
            match k.resource_of(&gvk).await? {
                Some(r) => out.push(r),
                None => return text(format!("no matches for kind {kind:?} in version {:?}", gvk.api_version())),
            }
        }
        out.sort_by_key(|r| !r.namespaced);
        Ok(out)
    }

    /// Deletes objects with the annotation of `apply` that this run did not apply.
    pub async fn run(
        &self,
        k: &mut Kube,
        resources: &[Arc<Resource>],
        seen: &Visited,
        selector: &str,
        (propagation, grace): (Propagation, i64),
        dry: DryRunStrategy,
        printer: &mut Printer,
    ) -> Result {
        let mut options = DeleteOptions::propagation(propagation);
        if grace >= 0 {
            options.grace_period_seconds = Some(grace);
        }
        options.dry_run = dry.option();
        for (r, n) in seen.collections(resources) {
            let done = prune_object(k, r, n, seen, selector, &options, dry, printer).await;
            let gvk = r.gvk();
            let what = if r.namespaced { "namespaced" } else { "nonNamespaced" };
            done.map_err(|e| {
                Error::Text(format!(
                    "error pruning {what} object {}, Kind={}: {e}",
                    if gvk.group.is_empty() { format!("/{}", gvk.version) } else { gvk.api_version() },
                    gvk.kind
                ))
            })?;
        }
        Ok(())
    }
}

impl Visited {
    /// Returns where to prune: every namespaced resource in every namespace of an applied object, then the cluster-scoped
    /// resources.
    pub fn collections<'a>(&'a self, resources: &'a [Arc<Resource>]) -> Vec<(&'a Arc<Resource>, &'a str)> {
        let with_scope = |namespaced: bool| resources.iter().filter(move |r| r.namespaced == namespaced);
        let namespaced = self.namespaces.iter().flat_map(|n| with_scope(true).map(move |r| (r, n.as_str())));
        namespaced.chain(with_scope(false).map(|r| (r, ""))).collect()
    }
}

/// Returns the objects with the annotation of `apply` that this run did not apply.
pub async fn stale_objects(
    k: &mut Kube,
    r: &Resource,
    namespace: &str,
    seen: &Visited,
    selector: &str,
) -> Result<Vec<Object>> {
    let which = ListOptions { label_selector: selector.to_owned(), ..ListOptions::default() };
    let mut all = k.api(r, namespace).await?.list_all(&which).await?.items;
    all.retain(|o| o.annotation(LAST_APPLIED).is_some() && !seen.uids.contains(o.uid()));
    all.iter_mut().for_each(|o| o.set_gvk(&r.gvk()));
    Ok(all)
}

async fn prune_object(
    k: &mut Kube,
    r: &Arc<Resource>,
    namespace: &str,
    seen: &Visited,
    selector: &str,
    options: &DeleteOptions,
    dry: DryRunStrategy,
    printer: &mut Printer,
) -> Result {
    let api = k.api(r, namespace).await?;
    for o in stale_objects(k, r, namespace, seen, selector).await? {
        if dry != DryRunStrategy::Client {
            api.delete(o.name(), options).await?;
        }
        printer.print(k, &o, "pruned")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    const PATH: &str = "/api/v1/namespaces/default/configmaps";
    const FILE: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {x: 'y'}}\n";

    #[tokio::test]
    async fn deletes_objects_that_are_in_no_file() {
        let applied = |n: &str| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": n, "namespace": "default", "uid": n,
                "annotations": {super::LAST_APPLIED: "{}"}}})
        };
        let bare = json!({"metadata": {"name": "c", "namespace": "default", "uid": "c"}});
        let s = Server::new()
            .on(
                &format!("POST {PATH}?fieldManager=kubectl-client-side-apply&fieldValidation=Strict"),
                201,
                applied("a"),
            )
            .on(&format!("GET {PATH}?labelSelector=x%3Dy"), 200, json!({"items": [applied("a"), applied("b"), bare]}))
            .on(&format!("DELETE {PATH}/b"), 200, json!({}));
        let line = "apply -f - --prune -l x=y --prune-allowlist=core/v1/ConfigMap";
        assert_eq!(snapshot(&s, line, FILE).await, "configmap/a created\nconfigmap/b pruned\n");
        assert!(s.requests().contains(&format!("DELETE {PATH}/b")));
        for (line, expected) in [
            (
                "apply -f - --prune",
                "! error: all resources selected for prune without explicitly passing --all. To prune all resources, pass the --all flag. If you did not mean to prune all resources, specify a label selector\nexit 1\n",
            ),
            ("apply -f - --prune --all --force", "! error: --force cannot be used with --prune\nexit 1\n"),
            ("apply -f - --all -l x=y", "! error: cannot set --all and --selector at the same time\nexit 1\n"),
            (
                "apply -f - --prune --all --server-side",
                "! error: --prune is in alpha and doesn't currently work on objects created by server-side apply\nexit 1\n",
            ),
            (
                "apply -f - --prune -l x=y --prune-allowlist=ConfigMap",
                "! error: invalid GroupVersionKind format: ConfigMap, please follow <group/version/kind>\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, FILE).await, expected, "{line}");
        }
    }
}
