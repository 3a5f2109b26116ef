//! `kubectl get`: lists objects as tables of the server, or in the formats of `-o`.

mod show;
mod sort;
mod watch;

use crate::error::{Error, Result, text};
use crate::flags::{FileFlags, PrintFlags};
use crate::kube::Kube;
use crate::printer::{Formats, Output};
use crate::resource::select::{Selection, targets};
use crate::resource::{Target, from_files};
use crate::shell::interruptible;
use http::Method;
use show::Show;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE [NAME…], TYPE/NAME…, several types separated by commas, or a category such as `all`.
    pub resources: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    #[command(flatten)]
    pub print: PrintFlags,
    /// In all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Label selector: `a=b,c!=d,e in (f,g),!h`.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Field selector: `metadata.name=a,status.phase!=Running`.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub field_selector: String,
    /// Watch for changes after the list.
    #[arg(short = 'w', long)]
    pub watch: bool,
    /// Watch for changes without the initial list.
    #[arg(long)]
    pub watch_only: bool,
    /// With --watch, show the type of each event.
    #[arg(long)]
    pub output_watch_events: bool,
    /// Do not print headers.
    #[arg(long)]
    pub no_headers: bool,
    /// Show all labels as the last column.
    #[arg(long)]
    pub show_labels: bool,
    /// Show the kind before every name.
    #[arg(long)]
    pub show_kind: bool,
    /// Labels to show as columns; may be repeated.
    #[arg(short = 'L', long, value_delimiter = ',')]
    pub label_columns: Vec<String>,
    /// JSONPath to sort by: `.metadata.name`.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub sort_by: String,
    /// Missing objects are no error.
    #[arg(long)]
    pub ignore_not_found: bool,
    /// GET this URI of the server and print the response.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub raw: String,
    /// Subresource to show: status or scale.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub subresource: String,
    /// Page size of lists; 0 is no paging.
    #[arg(long, default_value = "500", hide_default_value = true, allow_negative_numbers = true)]
    pub chunk_size: i64,
    /// Let the server format the table.
    #[arg(long, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set, hide_default_value = true)]
    pub server_print: bool,
}

impl Arguments {
    fn selection(&self) -> Selection<'_> {
        Selection {
            labels: &self.selector,
            fields: &self.field_selector,
            all: false,
            nothing_but_all: false,
            all_namespaces: self.all_namespaces,
            bare_type_is_all: true,
            files_as_given: false,
            page: None,
        }
    }
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if !a.raw.is_empty() {
        return raw(&a, k).await;
    }
    if a.show_labels && !matches!(a.print.output.as_str(), "" | "wide") {
        return text(format!("--show-labels option cannot be used with {} printer", a.print.output));
    }
    let output = Output::parse(&a.print, Formats::Tables, !a.no_headers)?;
    if a.print.output == "custom-columns" {
        return text("custom-columns format specified but no custom columns given");
    }
    if a.resources.is_empty() && a.files.is_empty() {
        return text("You must specify the type of resource to get. Use \"kubectl api-resources\" for a complete list of supported resources.\n\nerror: Required resource not specified.\nUse \"kubectl explain <resource>\" for a detailed description of that resource (e.g. kubectl explain pods).\nSee 'kubectl get -h' for help and examples")
            .map_err(|e: Error| Error::Bare(e.to_string()));
    }
    if !a.files.is_empty() && !a.resources.is_empty() {
        return text("when paths, URLs, or stdin is provided as input, you may not specify resource arguments as well");
    }
    let mut errors = Vec::new();
    let mut all = targets(k, &a.resources, &a.selection()).await?;
    if !a.files.is_empty() {
        // As in upstream, only this command prints the error of a bad directory without prefix.
        let found = from_files(k, &a.files).await.map_err(|e| match e {
            Error::Text(t) if !a.files.kustomize.is_empty() => Error::Bare(t),
            e => e,
        });
        for i in found? {
            match i {
                Ok(i) => all.push(Target::Named(i)),
                // As in upstream, beside tables the error has no prefix.
                Err(Error::Text(t)) if output.is_human() => errors.push(Error::Bare(t)),
                Err(e) => errors.push(e),
            }
        }
    }
    if a.output_watch_events && !a.watch && !a.watch_only {
        return text("--output-watch-events option can only be used with --watch or --watch-only");
    }
    if !a.subresource.is_empty() && !a.watch && !a.watch_only && all.iter().any(|t| matches!(t, Target::All(_))) {
        return text("subresource cannot be used when bulk resources are specified");
    }
    if a.watch || a.watch_only {
        Error::collect(errors)?;
        // A request timeout ends a watch without error.
        return match crate::kube::request_timeout(&k.global.request_timeout)? {
            None => interruptible(watch::run(&a, k, output, all)).await,
            Some(limit) => {
                let watches_after_the_list = interruptible(watch::run(&a, k, output, all));
                let ended = tokio::time::timeout(limit, watches_after_the_list).await;
                if ended.is_err() && k.global.verbosity >= 5 {
                    let head = client::log::head('I', k.now(), &k.shell.zone, "streamwatcher.go:123");
                    let cause =
                        "net/http: request canceled (Client.Timeout or context cancellation while reading body)";
                    k.warn(format!("{head}\"Unable to decode an event from the watch stream\" err={cause:?}"));
                }
                ended.unwrap_or(Ok(()))
            }
        };
    }
    let mut show = Show::new(&a, k, &all)?;
    if output.is_human() {
        show.tables(k, all, &mut errors).await;
    } else {
        // As in upstream, output that would be a single document is not printed in part.
        if a.files.is_one() {
            Error::collect(std::mem::take(&mut errors))?;
        }
        show.documents(k, &output, all, &mut errors).await?;
    }
    Error::collect(errors)
}

async fn raw(a: &Arguments, k: &mut Kube) -> Result {
    if !a.resources.is_empty() {
        return text("arguments may not be passed when --raw is specified");
    }
    if a.watch || a.watch_only || !a.selector.is_empty() {
        return text("--raw may not be specified with other flags that filter the server request or alter the output");
    }
    if !a.print.output.is_empty() {
        return text("--raw and --output are mutually exclusive");
    }
    super::raw::send(k, Method::GET, &a.raw, &FileFlags::default()).await
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    fn table(rows: &[(&str, &str)]) -> meta::Value {
        let rows: Vec<_> = rows
            .iter()
            .map(|(n, s)| {
                json!({"cells": [n, s, "x"], "object": {"metadata": {"name": n, "namespace": "default", "labels": {"app": n}}}})
            })
            .collect();
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "7"},
            "columnDefinitions": [
                {"name": "Name", "format": "name", "priority": 0},
                {"name": "Status", "priority": 0},
                {"name": "Node", "priority": 1},
            ],
            "rows": rows,
        })
    }

    const PODS: &str = "GET /api/v1/namespaces/default/pods?limit=500";

    /// Upstream shows nothing if no row has the field, but does not sort a single row.
    #[tokio::test]
    async fn one_row_is_shown_without_the_field_that_sorts() {
        let path = "GET /api/v1/namespaces/default/pods?includeObject=Object";
        let line = "get pods --sort-by=.nope";
        let s = Server::new().on(path, 200, table(&[("a", "Running")]));
        assert_eq!(snapshot(&s, line, "").await, "NAME   STATUS\na      Running\n");
        let s = Server::new().on(path, 200, table(&[("a", "Running"), ("b", "Running")]));
        assert_eq!(snapshot(&s, line, "").await, "! No resources found in default namespace.\n");
    }

    /// With `-A`, the column of namespaces that one type has stays for those after it, also if there are no objects of it.
    #[tokio::test]
    async fn the_column_of_namespaces_stays() {
        let s = Server::new().on("GET /api/v1/pods?limit=500", 200, table(&[])).on(
            "GET /api/v1/nodes?limit=500",
            200,
            table(&[("n", "Ready")]),
        );
        for (line, expected) in [
            ("get pods,nodes -A", "NAMESPACE   NAME     STATUS\ndefault     node/n   Ready\n"),
            ("get nodes,pods -A", "NAME     STATUS\nnode/n   Ready\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }

    #[tokio::test]
    async fn prints_tables() {
        let s = Server::new()
            .on(PODS, 200, table(&[("web", "Running"), ("a-longer-one", "Pending")]))
            .on("GET /api/v1/namespaces/default/services?limit=500", 200, table(&[("web", "ClusterIP")]))
            .on("GET /apis/apps/v1/namespaces/default/deployments?limit=500", 200, table(&[]))
            .on("GET /api/v1/nodes?limit=500", 200, table(&[]))
            .on("GET /api/v1/namespaces/default/pods/web", 200, table(&[("web", "Running")]))
            .on("GET /api/v1/pods?limit=500", 200, table(&[("web", "Running")]));
        for (line, expected) in [
            ("get pods", "NAME           STATUS\nweb            Running\na-longer-one   Pending\n"),
            ("get po -o wide --no-headers", "web            Running   x\na-longer-one   Pending   x\n"),
            (
                "get Pods --show-labels",
                "NAME           STATUS    LABELS\nweb            Running   app=web\na-longer-one   Pending   app=a-longer-one\n",
            ),
            ("get pods -A", "NAMESPACE   NAME   STATUS\ndefault     web    Running\n"),
            (
                "get pods,svc",
                "NAME               STATUS\npod/web            Running\npod/a-longer-one   Pending\n\nNAME          STATUS\nservice/web   ClusterIP\n",
            ),
            ("get deploy", "! No resources found in default namespace.\n"),
            ("get deploy,nodes", "! No resources found\n"),
            (
                "get pod web nope",
                "NAME   STATUS\nweb    Running\n! Error from server (NotFound): pods \"nope\" not found\nexit 1\n",
            ),
            ("get pod/web", "NAME   STATUS\nweb    Running\n"),
            ("get pod nope --ignore-not-found", ""),
            ("get PO", "! error: the server doesn't have a resource type \"PO\"\nexit 1\n"),
            ("get pods.v1", "! error: the server doesn't have a resource type \"pods\"\nexit 1\n"),
            ("get PODS.v1. --no-headers", "web            Running\na-longer-one   Pending\n"),
            ("get bananas", "! error: the server doesn't have a resource type \"bananas\"\nexit 1\n"),
            (
                "get pods -o frob",
                "! error: unable to match a printer suitable for the output format \"frob\", allowed formats are: custom-columns,custom-columns-file,go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,templatefile,wide,yaml\nexit 1\n",
            ),
            ("get pods --frob", "! error: unknown flag: --frob\n! See 'kubectl get --help' for usage.\nexit 1\n"),
            ("frob", "! error: unknown command \"frob\" for \"kubectl\"\nexit 1\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }

    #[tokio::test]
    async fn prints_objects() {
        let pod = json!({"metadata": {"name": "web", "namespace": "default", "managedFields": [{}], "uid": "u"}, "spec": {"n": 2}});
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [pod]});
        let mut single = pod.clone();
        single["kind"] = "Pod".into();
        single["apiVersion"] = "v1".into();
        let s = Server::new().on(PODS, 200, list).on("GET /api/v1/namespaces/default/pods/web", 200, single).on(
            "GET /readyz?verbose",
            200,
            json!("ok"),
        );
        for (line, expected) in [
            ("get pods -o name", "pod/web\n"),
            (
                "get pod web -o yaml",
                "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  namespace: default\n  uid: u\nspec:\n  \"n\": 2\n",
            ),
            ("get pods -ojsonpath={.items[*].metadata.name}", "web"),
            ("get pod web -o jsonpath-as-json={.metadata.uid}", "[\n    \"u\"\n]\n"),
            ("get pods -o custom-columns=N:.metadata.name,U:metadata.uid,X:.x", "N     U     X\nweb   u     <none>\n"),
            ("get --raw /readyz?verbose", "\"ok\""),
            ("get --raw https://10.0.0.1:6443/readyz?verbose", "\"ok\""),
            (
                "get pods a b -o name",
                "! Error from server (NotFound): pods \"a\" not found\n! Error from server (NotFound): pods \"b\" not found\nexit 1\n",
            ),
            (
                "get pods a b -o jsonpath={.kind}",
                "List! Error from server (NotFound): pods \"a\" not found\n! Error from server (NotFound): pods \"b\" not found\nexit 1\n",
            ),
            (
                "get pods -o json=x",
                "! error: unable to match a printer suitable for the output format \"json=x\", allowed formats are: custom-columns,custom-columns-file,go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,templatefile,wide,yaml\nexit 1\n",
            ),
            (
                "get pods -o custom-columns=N:.metadata.name,X:.metadata.managedFields[3]",
                "N     X\n! error: array index out of bounds: index 3, length 1\nexit 1\n",
            ),
            (
                "get pods -o json",
                "{\n    \"apiVersion\": \"v1\",\n    \"items\": [\n        {\n            \"apiVersion\": \"v1\",\n            \"kind\": \"Pod\",\n            \"metadata\": {\n                \"name\": \"web\",\n                \"namespace\": \"default\",\n                \"uid\": \"u\"\n            },\n            \"spec\": {\n                \"n\": 2\n            }\n        }\n    ],\n    \"kind\": \"List\",\n    \"metadata\": {\n        \"resourceVersion\": \"\"\n    }\n}\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }

    /// A file is one document: it is printed completely or not at all, and a single object is no list.
    #[tokio::test]
    async fn reports_missing_objects_of_files() {
        let map = |n: &str| json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": n}});
        let s = Server::new().on("GET /api/v1/namespaces/default/configmaps/a", 200, map("a"));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("two.json").display().to_string();
        std::fs::write(&file, format!("{}\n{}", map("a"), map("b"))).unwrap();
        let missing = "! Error from server (NotFound): configmaps \"b\" not found\nexit 1\n";
        for (line, expected) in [
            (format!("get -f {file} -o name"), missing),
            (format!("get -f {file} -o jsonpath={{.kind}}"), missing),
            (format!("get -f {file} -o jsonpath={{.kind}} --ignore-not-found"), "ConfigMap"),
            ("get cm a b -o jsonpath={.kind} --ignore-not-found".into(), "List"),
            (
                "get cm -o name --show-labels".into(),
                "! error: --show-labels option cannot be used with name printer\nexit 1\n",
            ),
            ("get cm a -o custom-columns=A:.a[1:".into(), "A\n! error: unterminated array\nexit 1\n"),
        ] {
            assert_eq!(snapshot(&s, &line, "").await, expected, "{line}");
        }
    }

    /// Errors of files are printed without prefix beside tables, and with it beside documents.
    #[tokio::test]
    async fn reports_files_that_are_no_objects() {
        let why =
            "unable to decode \"STDIN\": json: cannot unmarshal string into Go value of type unstructured.detector";
        for (line, prefix) in [("get -f -", ""), ("get -f - -o yaml", "error: ")] {
            let text = snapshot(&Server::new(), line, "word").await;
            assert!(text.ends_with(&format!("! {prefix}{why}\nexit 1\n")), "{line}: {text}");
        }
    }

    #[tokio::test]
    async fn watches_after_the_list() {
        let event = |t: &str, table: meta::Value| format!("{}\n", json!({"type": t, "object": table}));
        let mut later = table(&[("a-longer-one", "Done")]);
        later["columnDefinitions"] = meta::Value::Null;
        let s = Server::new().on(PODS, 200, table(&[("web", "Running")])).on_bytes(
            "GET /api/v1/namespaces/default/pods?watch=true&resourceVersion=7",
            200,
            (event("ADDED", table(&[("b", "New")])) + &event("DELETED", later)).into_bytes(),
        );
        assert_eq!(
            snapshot(&s, "get pods -w", "").await,
            "NAME   STATUS\nweb    Running\nb      New\na-longer-one   Done\n"
        );
        let sorted = "GET /api/v1/namespaces/default/pods";
        let s = s.on(sorted, 200, table(&[("web", "Running")]));
        assert_eq!(
            snapshot(&s, "get pods --watch-only --sort-by=.metadata.name", "").await,
            "NAME   STATUS\nb      New\na-longer-one   Done\n! warning: --watch-only requested, --sort-by will be ignored\n"
        );
        let pod = |version: &str| json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web", "resourceVersion": version}});
        let list =
            json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [pod("6")]});
        let documents = Server::new().on(PODS, 200, list).on_bytes(
            "GET /api/v1/namespaces/default/pods?watch=true&resourceVersion=7",
            200,
            event("MODIFIED", pod("8")).into_bytes(),
        );
        assert_eq!(
            snapshot(&documents, "get pods -w --output-watch-events -o json", "").await,
            "{\"object\":{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"web\",\"resourceVersion\":\"6\"}},\"type\":\"ADDED\"}\n{\"object\":{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"web\",\"resourceVersion\":\"8\"}},\"type\":\"MODIFIED\"}\n"
        );
        assert_eq!(snapshot(&documents, "get pods -w --output-watch-events -o name", "").await, "pod/web\npod/web\n");
        assert_eq!(
            snapshot(&s, "get pods --watch-only --output-watch-events", "").await,
            "EVENT      NAME   STATUS\nADDED      b      New\nDELETED    a-longer-one   Done\n"
        );
    }
}
