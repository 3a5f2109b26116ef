//! `kubectl api-resources`: lists the resource types of the server.

use crate::discovery::{Discovery, Resource};
use crate::error::{Result, text};
use crate::kube::Kube;
use crate::printer::shape::Order;
use crate::printer::table::Aligner;
use crate::printer::{Output, ordered};
use meta::{Object, Value};
use serde_json::json;
use std::sync::Arc;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Only resources of this API group; empty is the core group.
    #[arg(long)]
    pub api_group: Option<String>,
    /// Only namespaced resources, or with =false only cluster-scoped ones.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub namespaced: Option<bool>,
    /// Only resources with all of these verbs.
    #[arg(long, value_delimiter = ',')]
    pub verbs: Vec<String>,
    /// Only resources of these categories.
    #[arg(long, value_delimiter = ',')]
    pub categories: Vec<String>,
    /// Output format: wide, name, json, yaml or kyaml.
    #[arg(short = 'o', long, default_value = "", hide_default_value = true)]
    pub output: String,
    /// Do not print headers.
    #[arg(long)]
    pub no_headers: bool,
    /// Sort by name or kind.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub sort_by: String,
    /// Accepted without effect: resources have no managed fields.
    #[arg(long)]
    pub show_managed_fields: bool,
    /// Use the cached discovery documents.
    #[arg(long)]
    pub cached: bool,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    let output = match a.output.as_str() {
        "" | "wide" | "name" => Output::Human,
        "json" => Output::Json,
        "yaml" => Output::Yaml,
        "kyaml" => Output::Kyaml,
        other => {
            return text(format!(
                "unable to match a printer suitable for the output format {other:?}, allowed formats are: json,kyaml,name,wide,yaml"
            ));
        }
    };
    let d = if a.cached { k.discovery().await? } else { k.refresh().await? };
    let mut all: Vec<&Arc<Resource>> = d
        .resources
        .iter()
        .filter(|r| d.is_preferred(r) && !r.verbs.is_empty())
        .filter(|r| a.api_group.as_ref().is_none_or(|g| *g == r.group))
        .filter(|r| a.namespaced.is_none_or(|n| n == r.namespaced))
        .filter(|r| a.verbs.iter().all(|v| r.has_verb(v)))
        .filter(|r| a.categories.iter().all(|c| r.categories.contains(c)))
        .collect();
    match a.sort_by.as_str() {
        "" => all.sort_by(|x, y| (&x.group, &x.plural).cmp(&(&y.group, &y.plural))),
        "name" => all.sort_by(|x, y| x.plural.cmp(&y.plural)),
        "kind" => all.sort_by(|x, y| x.kind.cmp(&y.kind)),
        _ => return text("--sort-by accepts only name or kind"),
    }
    if a.output == "name" {
        all.iter().for_each(|r| k.println(r.group_resource()));
        return check_stale(&d);
    }
    if !output.is_human() {
        let list = json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "",
            "resources": all.iter().map(|r| document(r)).collect::<Vec<_>>(),
        });
        let list = Object::from_value(list).unwrap_or_default();
        k.out.write(ordered(&output, list, a.show_managed_fields, Order::ByType)?.as_bytes());
        return check_stale(&d);
    }
    let wide = a.output == "wide";
    let mut rows = Vec::new();
    if !a.no_headers {
        let mut h: Vec<String> = ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"].map(str::to_owned).to_vec();
        if wide {
            h.extend(["VERBS".to_owned(), "CATEGORIES".to_owned()]);
        }
        rows.push(h);
    }
    for r in all {
        let mut row = vec![
            r.plural.clone(),
            r.short_names.join(","),
            r.group_version(),
            r.namespaced.to_string(),
            r.kind.clone(),
        ];
        if wide {
            row.extend([r.verbs.join(","), r.categories.join(",")]);
        }
        rows.push(row);
    }
    k.out.write(Aligner::default().lines(&rows).as_bytes());
    check_stale(&d)
}

/// Errors if the discovery of some versions failed (`discovery.ErrGroupDiscoveryFailed`).
fn check_stale(d: &Discovery) -> Result {
    if d.stale.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = d.stale.iter().map(|gv| format!("{gv}: stale GroupVersion discovery: {gv}")).collect();
    text(format!("unable to retrieve the complete list of server APIs: {}", all.join(", ")))
}

/// Returns a resource as discovery describes it (`metav1.APIResource`).
fn document(r: &Resource) -> Value {
    let mut v = json!({
        "name": r.plural, "singularName": r.singular, "namespaced": r.namespaced, "version": r.version, "kind": r.kind,
        "verbs": r.verbs,
    });
    if !r.group.is_empty() {
        v["group"] = r.group.clone().into();
    }
    for (field, values) in [("shortNames", &r.short_names), ("categories", &r.categories)] {
        if !values.is_empty() {
            v[field] = values.clone().into();
        }
    }
    v
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn resources_are_listed() {
        let s = Server::new();
        assert_eq!(
            snapshot(&s, "api-resources --api-group=apps", "").await,
            "NAME          SHORTNAMES   APIVERSION   NAMESPACED   KIND\ndaemonsets    ds           apps/v1      true         DaemonSet\ndeployments   deploy       apps/v1      true         Deployment\nreplicasets   rs           apps/v1      true         ReplicaSet\n"
        );
        assert_eq!(
            snapshot(&s, "api-resources --namespaced=false -o name", "").await,
            "namespaces\nnodes\ncertificatesigningrequests.certificates.k8s.io\nclusterrolebindings.rbac.authorization.k8s.io\nclusterroles.rbac.authorization.k8s.io\n"
        );
        assert_eq!(
            snapshot(&s, "api-versions", "").await,
            "apps/v1\ncertificates.k8s.io/v1\nexample.com/v1\nrbac.authorization.k8s.io/v1\nv1\n"
        );
    }

    /// Regression: servers before v1.26 have a document per version. A version that does not answer is an error at the end;
    /// the others are listed.
    #[tokio::test]
    async fn reads_each_version_of_older_servers() {
        let resource = |name: &str, kind: &str| json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": ["get", "list"]});
        let versions = |group: &str, preferred: &str, all: &[&str]| {
            let of = |v: &str| json!({"groupVersion": format!("{group}/{v}"), "version": v});
            json!({"name": group, "preferredVersion": of(preferred), "versions": all.iter().map(|v| of(v)).collect::<Vec<_>>()})
        };
        let list = |of: serde_json::Value| json!({"kind": "APIResourceList", "resources": of});
        let s = Server::new()
            .on("GET /api/v1", 200, list(json!([resource("pods", "Pod"), resource("pods/log", "Pod")])))
            .on("GET /apis/b.io/v2", 200, list(json!([resource("things", "Thing")])))
            .on("GET /apis/b.io/v1", 200, list(json!([resource("things", "Thing"), resource("olds", "Old")])));
        s.replace("GET /api", 200, json!({"kind": "APIVersions", "versions": ["v1"]}));
        let groups = json!([versions("b.io", "v2", &["v1", "v2"]), versions("c.io", "v1", &["v1"])]);
        s.replace("GET /apis", 200, json!({"kind": "APIGroupList", "groups": groups}));
        assert_eq!(
            snapshot(&s, "api-resources", "").await,
            "NAME     SHORTNAMES   APIVERSION   NAMESPACED   KIND\npods                  v1           true         Pod\nolds                  b.io/v1      true         Old\nthings                b.io/v2      true         Thing\n! error: unable to retrieve the complete list of server APIs: c.io/v1: stale GroupVersion discovery: c.io/v1\nexit 1\n"
        );
    }
}
