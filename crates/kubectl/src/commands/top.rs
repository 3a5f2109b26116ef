//! `kubectl top node` and `top pod`: CPU and memory usage from the metrics API (`metrics.k8s.io`, an aggregated API).

use crate::discovery::Resource;
use crate::error::{Result, text};
use crate::kube::Kube;
use crate::printer::tabwriter;
use crate::resource::Collection;
use crate::resource::select::{Selection, list};
use meta::{Object, Quantity, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(clap::Subcommand, Clone, Debug)]
pub enum Command {
    /// Show the usage of nodes.
    #[command(visible_aliases = ["nodes", "no"])]
    Node(Node),
    /// Show the usage of pods.
    #[command(visible_aliases = ["pods", "po"])]
    Pod(Pod),
}

#[derive(clap::Args, Clone, Debug)]
pub struct Common {
    /// Name of a node or pod.
    pub names: Vec<String>,
    /// Only objects with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Sort by cpu or memory.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub sort_by: String,
    /// Do not print headers.
    #[arg(long)]
    pub no_headers: bool,
    /// Also show swap.
    #[arg(long)]
    pub show_swap: bool,
    /// Accepted without effect.
    #[arg(long, default_value = "true", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set, hide_default_value = true)]
    pub use_protocol_buffers: bool,
}

#[derive(clap::Args, Clone, Debug)]
pub struct Node {
    #[command(flatten)]
    pub common: Common,
    /// Show percentages of the capacity instead of the allocatable amount.
    #[arg(long)]
    pub show_capacity: bool,
}

#[derive(clap::Args, Clone, Debug)]
pub struct Pod {
    #[command(flatten)]
    pub common: Common,
    /// Only objects with these fields.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub field_selector: String,
    /// Show every container on its own line.
    #[arg(long)]
    pub containers: bool,
    /// In all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Show the sum below the list.
    #[arg(long)]
    pub sum: bool,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    match a.command {
        Command::Node(a) => nodes(&a, k).await,
        Command::Pod(a) => pods(&a, k).await,
    }
}

impl Common {
    fn name(&self, command: &str, what: &str) -> Result<&str> {
        if self.names.len() > 1 {
            return text(format!("{command} [NAME | -l label]\nSee 'kubectl top {command} -h' for help and examples"));
        }
        if !matches!(self.sort_by.as_str(), "" | "cpu" | "memory") {
            return text("--sort-by accepts only cpu or memory");
        }
        let name = self.names.first().map(String::as_str).unwrap_or_default();
        if !name.is_empty() && !self.selector.is_empty() {
            return text(format!("only one of NAME or {what} can be provided"));
        }
        Ok(name)
    }

    fn measured(&self) -> &'static [&'static str] {
        if self.show_swap { &["cpu", "memory", "swap"] } else { &["cpu", "memory"] }
    }
}

/// Finds the resource of the metrics API in the newest known version. Discovery is fetched again because the metrics server
/// comes and goes on its own.
async fn metrics_resource(k: &mut Kube, plural: &str) -> Result<Arc<Resource>> {
    let discovery = k.refresh().await?;
    let found = ["v1", "v1beta1"].iter().find_map(|v| {
        let mut all = discovery.resources.iter();
        all.find(|r| r.group == "metrics.k8s.io" && r.version == *v && r.plural == plural).cloned()
    });
    found.map_or_else(|| text("Metrics API not available"), Ok)
}

async fn measured(k: &mut Kube, r: &Arc<Resource>, namespace: &str, name: &str, labels: &str) -> Result<Vec<Object>> {
    if !name.is_empty() {
        return Ok(vec![k.api(r, namespace).await?.get(name).await?]);
    }
    let options = client::ListOptions { label_selector: labels.to_owned(), ..Default::default() };
    Ok(k.api(r, namespace).await?.list(&options).await?.items)
}

/// Usage by resource.
type Usage = BTreeMap<String, Quantity>;

fn usage(v: &Value) -> Usage {
    let all = v.as_object().into_iter().flatten();
    all.filter_map(|(k, v)| Some((k.clone(), Quantity::parse(v.as_str()?).ok()?))).collect()
}

fn amount(u: &Usage, resource: &str) -> i64 {
    u.get(resource).map_or(0, |q| units(q, resource))
}

/// Converts to thousandths of a CPU, or bytes.
fn units(q: &Quantity, resource: &str) -> i64 {
    if resource == "cpu" { q.milli_value() } else { q.value() }
}

fn format_amount(u: &Usage, resource: &str) -> String {
    match resource {
        "cpu" => format!("{}m", amount(u, resource)),
        _ => format!("{}Mi", amount(u, resource) / (1024 * 1024)),
    }
}

/// Sorts by usage in descending order, or by name.
fn order<T>(rows: &mut [(String, Usage, T)], by: &str) {
    rows.sort_by(|(x, a, _), (y, b, _)| match by {
        "" => x.cmp(y),
        by => amount(b, by).cmp(&amount(a, by)),
    });
}

async fn nodes(a: &Node, k: &mut Kube) -> Result {
    let c = &a.common;
    let name = c.name("node", "--selector")?;
    let r = metrics_resource(k, "nodes").await?;
    let found = measured(k, &r, "", name, &c.selector).await?;
    if found.is_empty() {
        return text("metrics not available yet");
    }
    let resource = k.resource("nodes").await?;
    let nodes: Vec<Object> = if name.is_empty() {
        let s = Selection { labels: &c.selector, ..Selection::default() };
        let all = list(k, &Collection { resource, namespace: String::new() }, &s).await?;
        all.into_iter().filter_map(|i| i.object).collect()
    } else {
        vec![k.api(&resource, "").await?.get(name).await?]
    };
    let mut available: BTreeMap<String, Usage> = BTreeMap::new();
    for n in &nodes {
        let field = if a.show_capacity { "capacity" } else { "allocatable" };
        let mut u = usage(n.at(&["status", field]).unwrap_or(&Value::Null));
        if let Some(s) = n.int_at(&["status", "nodeInfo", "swap", "capacity"]) {
            u.insert("swap".into(), Quantity::binary(s));
        }
        available.insert(n.name().to_owned(), u);
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    if !c.no_headers {
        let mut names = vec!["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"];
        if c.show_swap {
            names.extend(["SWAP(bytes)", "SWAP(%)"]);
        }
        rows.push(names.into_iter().map(str::to_owned).collect());
    }
    let mut all: Vec<(String, Usage, ())> =
        found.iter().map(|o| (o.name().to_owned(), usage(o.get("usage").unwrap_or(&Value::Null)), ())).collect();
    order(&mut all, &c.sort_by);
    for (name, used, ()) in all {
        let total = available.remove(&name);
        let mut row = vec![name];
        for m in c.measured() {
            if *m == "swap" && total.as_ref().is_some_and(|o| !o.contains_key("swap")) {
                row.extend(["<unknown>".to_owned(), "<unknown>".to_owned()]);
                continue;
            }
            row.push(format_amount(&used, m));
            if let Some(q) = total.as_ref().and_then(|o| o.get(*m)) {
                let base = if *m == "cpu" { q.milli_value() } else { q.value() };
                row.push(format!("{}%", percent(amount(&used, m), base)));
            }
        }
        rows.push(row);
    }
    for name in available.into_keys() {
        let mut row = vec![name];
        row.extend(c.measured().iter().flat_map(|_| ["<unknown>".to_owned(), "<unknown>".to_owned()]));
        rows.push(row);
    }
    print(k, &rows);
    Ok(())
}

fn percent(part: i64, base: i64) -> i64 {
    if base == 0 { 0 } else { (i128::from(part) * 100 / i128::from(base)).try_into().unwrap_or(i64::MAX) }
}

/// Prints a table. Every cell is followed by a gap, also the last one. A line with fewer cells separates the columns above
/// and below.
fn print(k: &Kube, rows: &[Vec<String>]) {
    let text: String = rows.iter().map(|r| format!("{}\t\n", r.join("\t"))).collect();
    k.out.write(tabwriter::align_monotonic(&text, 6, 3).as_bytes());
}

async fn pods(a: &Pod, k: &mut Kube) -> Result {
    let c = &a.common;
    let name = c.name("pod", "selector")?;
    if !name.is_empty() && !a.field_selector.is_empty() {
        return text("only one of NAME or selector can be provided");
    }
    let r = metrics_resource(k, "pods").await?;
    let namespace = if a.all_namespaces { String::new() } else { k.namespace()?.0 };
    let mut found = measured(k, &r, &namespace, name, &c.selector).await?;
    let resource = k.resource("pods").await?;
    let mut collection = Collection { resource, namespace: namespace.clone() };
    let s = Selection { labels: &c.selector, fields: &a.field_selector, ..Selection::default() };
    if !found.is_empty() && !a.field_selector.is_empty() {
        let kept = list(k, &collection, &s).await?;
        found.retain(|o| kept.iter().any(|i| i.name == o.name() && i.namespace == o.namespace()));
    }
    if found.is_empty() {
        // As in upstream, pods are listed only in the current namespace.
        collection.namespace = k.namespace()?.0;
        let pods = list(k, &collection, &s).await?;
        if let Some(p) = pods.iter().find(|p| is_overdue(k, p.object.as_ref())) {
            let made = p.object.as_ref().map(Object::creation_timestamp).unwrap_or_default().parse::<jiff::Timestamp>();
            let age = made.map(|t| k.now().duration_since(t).unsigned_abs()).unwrap_or_default();
            let age = crate::flags::go_duration(age);
            return text(format!("Metrics not available for pod {}/{}, age: {age}", p.namespace, p.name));
        }
        if !pods.is_empty() {
            return text("metrics not available yet");
        }
        k.warn(match a.all_namespaces {
            true => "No resources found".to_owned(),
            false => format!("No resources found in {namespace} namespace."),
        });
        return Ok(());
    }
    let mut columns = vec!["NAME", "CPU(cores)", "MEMORY(bytes)"];
    if c.show_swap {
        columns.push("SWAP(bytes)");
    }
    if a.containers {
        columns.insert(0, "POD");
    }
    if a.all_namespaces {
        columns.insert(0, "NAMESPACE");
    }
    // As in upstream, the width for the sum ignores the first columns if there are no headers.
    let width = if c.no_headers { if c.show_swap { 4 } else { 3 } } else { columns.len() };
    let mut rows: Vec<Vec<String>> = Vec::new();
    if !c.no_headers {
        rows.push(columns.into_iter().map(str::to_owned).collect());
    }
    let mut total = Usage::new();
    let mut all: Vec<(String, Usage, &Object)> =
        found.iter().map(|o| (key(o, a.all_namespaces), sum(o, &mut total), o)).collect();
    order(&mut all, &c.sort_by);
    for (_, used, o) in all {
        let mut lead: Vec<String> = Vec::new();
        if a.all_namespaces {
            lead.push(o.namespace().to_owned());
        }
        let mut line = |lead: &[String], name: &str, used: &Usage| {
            let mut row = lead.to_vec();
            row.push(name.to_owned());
            row.extend(c.measured().iter().map(|m| format_amount(used, m)));
            rows.push(row);
        };
        if !a.containers {
            line(&lead, o.name(), &used);
            continue;
        }
        lead.push(o.name().to_owned());
        let mut parts: Vec<(String, Usage, ())> = containers(o)
            .map(|c| (c["name"].as_str().unwrap_or_default().to_owned(), usage(&c["usage"]), ()))
            .collect();
        order(&mut parts, &c.sort_by);
        parts.iter().for_each(|(n, u, ())| line(&lead, n, u));
    }
    if a.sum {
        let mut rule = vec![String::new(); width.saturating_sub(2)];
        rule.extend(["________".to_owned(), "________".to_owned()]);
        rows.push(rule);
        let mut last = vec![String::new(); width.saturating_sub(2)];
        last.extend(c.measured().iter().map(|m| format_amount(&total, m)));
        rows.push(last);
    }
    print(k, &rows);
    Ok(())
}

fn key(o: &Object, all_namespaces: bool) -> String {
    if all_namespaces { format!("{}/{}", o.namespace(), o.name()) } else { o.name().to_owned() }
}

fn containers(o: &Object) -> impl Iterator<Item = &Value> {
    o.get("containers").and_then(Value::as_array).into_iter().flatten()
}

/// Sums the usage of a pod's containers and adds it to the total. Only printed values are rounded.
fn sum(o: &Object, total: &mut Usage) -> Usage {
    let mut pod_usage = Usage::new();
    for c in containers(o) {
        for (name, q) in usage(&c["usage"]) {
            for sum in [&mut pod_usage, &mut *total] {
                let before = sum.get(&name).map_or(0, Quantity::nano_value);
                if let Ok(q) = Quantity::parse(&format!("{}n", before.saturating_add(q.nano_value()))) {
                    sum.insert(name.clone(), q);
                }
            }
        }
    }
    pod_usage
}

/// Two minutes after a pod was created its metrics should exist.
fn is_overdue(k: &Kube, o: Option<&Object>) -> bool {
    let made = o.map(Object::creation_timestamp).unwrap_or_default().parse::<jiff::Timestamp>();
    made.is_ok_and(|t| k.now().as_second() - t.as_second() > 120)
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn reports_a_missing_metrics_api() {
        let s = Server::new();
        for (line, expected) in [
            ("top node", "! error: Metrics API not available\nexit 1\n"),
            ("top pod", "! error: Metrics API not available\nexit 1\n"),
            ("top pod --sort-by=x", "! error: --sort-by accepts only cpu or memory\nexit 1\n"),
            ("top node a -l x=y", "! error: only one of NAME or --selector can be provided\nexit 1\n"),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }

    #[tokio::test]
    async fn shows_usage() {
        let container = |n: &str, cpu: &str, memory: &str| json!({"name": n, "usage": {"cpu": cpu, "memory": memory}});
        let pod = |n: &str, c| json!({"metadata": {"name": n, "namespace": "default"}, "containers": c});
        let s = Server::with_metrics()
            .on("GET /apis/metrics.k8s.io/v1beta1/namespaces/default/pods", 200, json!({"kind": "PodMetricsList", "items": [
                pod("b", json!([container("x", "100m", "10Mi"), container("y", "1500000n", "1Mi")])),
                pod("a", json!([container("z", "5m", "20Mi")])),
            ]}))
            .on("GET /apis/metrics.k8s.io/v1beta1/nodes", 200, json!({"kind": "NodeMetricsList", "items": [
                {"metadata": {"name": "n"}, "usage": {"cpu": "500m", "memory": "1Gi"}},
            ]}))
            .on("GET /api/v1/nodes?limit=500", 200, json!({"kind": "NodeList", "items": [
                {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "2", "memory": "4Gi"}, "capacity": {"cpu": "4", "memory": "4Gi"}}},
                {"metadata": {"name": "m"}, "status": {}},
            ]}));
        for (line, expected) in [
            (
                "top pods",
                "NAME   CPU(cores)   MEMORY(bytes)   \na      5m           20Mi            \nb      102m         11Mi            \n",
            ),
            ("top pod --sort-by=cpu --no-headers", "b     102m   11Mi   \na     5m     20Mi   \n"),
            (
                "top pod --containers --sum",
                "POD   NAME   CPU(cores)   MEMORY(bytes)   \na     z      5m           20Mi            \nb     x      100m         10Mi            \nb     y      2m           1Mi             \n             ________     ________        \n             107m         31Mi            \n",
            ),
            (
                "top node",
                "NAME   CPU(cores)   CPU(%)      MEMORY(bytes)   MEMORY(%)   \nn      500m         25%         1024Mi          25%         \nm      <unknown>    <unknown>   <unknown>       <unknown>   \n",
            ),
            (
                "top node --show-capacity --no-headers",
                "n     500m        12%         1024Mi      25%         \nm     <unknown>   <unknown>   <unknown>   <unknown>   \n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }
}
