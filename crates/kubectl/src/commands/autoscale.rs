//! `kubectl autoscale`: creates a HorizontalPodAutoscaler for a workload.

use super::create::{WriteFlags, submit};
use crate::error::{Error, Result, text};
use crate::flags::{DryRunStrategy, FileFlags};
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::last_applied::annotate_generated;
use crate::resource::select::{Selection, gather};
use meta::{Object, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME, or TYPE/NAME.
    pub resources: Vec<String>,
    #[command(flatten)]
    pub files: FileFlags,
    /// Minimum number of replicas; -1 leaves it to the server.
    #[arg(long, default_value = "-1", hide_default_value = true)]
    pub min: i64,
    /// Maximum number of replicas.
    #[arg(long, required = true, allow_negative_numbers = true)]
    pub max: i64,
    /// Target CPU utilization per pod, in percent of the request.
    #[arg(long, default_value = "-1", hide = true)]
    pub cpu_percent: i64,
    /// Target CPU per pod: a percentage of the request (70%) or a quantity (500m).
    #[arg(long, default_value = "", hide_default_value = true)]
    pub cpu: String,
    /// Target memory per pod: a percentage of the request or a quantity.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub memory: String,
    /// Name of the autoscaler.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub name: String,
    #[command(flatten)]
    pub write: WriteFlags,
}

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    if a.cpu_percent != -1 {
        k.warn("Flag --cpu-percent has been deprecated, Use --cpu with percentage or resource quantity format (e.g., '70%' for utilization or '500m' for milliCPU).");
    }
    if a.max < 1 {
        return text(format!("--max=MAXPODS is required and must be at least 1, max: {}", a.max));
    }
    if a.max < a.min {
        return text(format!("--max=MAXPODS must be larger or equal to --min=MINPODS, max: {}, min: {}", a.max, a.min));
    }
    if a.cpu_percent != -1 && !a.cpu.is_empty() {
        return text("--cpu-percent and --cpu are mutually exclusive");
    }
    let dry = a.write.dry.strategy()?;
    let metrics = metrics(&a)?;
    let mut printer = Printer::new(&a.write.print, dry)?.typed();
    let (found, mut errors) =
        gather(k, &a.resources, &a.files, &Selection { files_as_given: true, ..Selection::default() }).await?;
    if found.is_empty() && errors.is_empty() {
        return text("no objects passed to autoscale");
    }
    let (_, explicit) = k.namespace()?;
    for i in found {
        let done = async {
            if !i.resource.subresources.iter().any(|s| s == "scale") {
                let r = &i.resource;
                return text(format!(
                    "cannot autoscale a {}: could not find scale subresource for {}/{}, Resource={} in discovery information",
                    r.kind, r.group, r.version, r.plural
                ));
            }
            let target = json!({"apiVersion": i.resource.gvk().api_version(), "kind": i.resource.kind, "name": i.name});
            let mut o = document(&a, &i.name, &target, &metrics);
            if explicit {
                o.set_namespace(&i.namespace);
            }
            k.record(&mut o);
            if a.write.save_config && dry != DryRunStrategy::Client {
                annotate_generated(&mut o);
            }
            let made = match submit(k, &a.write, o, &i.namespace).await {
                Ok(made) => made,
                Err(Error::Text(_)) => {
                    let mut o = v1_document(&a, &i.name, &target)?;
                    if explicit {
                        o.set_namespace(&i.namespace);
                    }
                    k.record(&mut o);
                    if a.write.save_config {
                        annotate_generated(&mut o);
                    }
                    submit(k, &a.write, o, &i.namespace).await?
                }
                Err(e) => return Err(e),
            };
            printer.print(k, &made, if dry == DryRunStrategy::Client { "created" } else { "autoscaled" })
        };
        if let Err(e) = done.await {
            errors.push(e);
        }
    }
    Error::collect(errors)
}

fn metrics(a: &Arguments) -> Result<Vec<Value>> {
    let cpu = if a.cpu_percent > 0 { format!("{}%", a.cpu_percent) } else { a.cpu.clone() };
    let mut out = Vec::new();
    // A number without unit means thousandths of a CPU, or mebibytes.
    for (name, given, unit) in [("cpu", cpu.trim(), "m"), ("memory", a.memory.trim(), "Mi")] {
        if given.is_empty() {
            continue;
        }
        let target = if let Some(percent) = given.strip_suffix('%') {
            match percent.parse::<i32>() {
                Ok(n) if n >= 0 => json!({"type": "Utilization", "averageUtilization": n}),
                _ => return text(format!("invalid percentage value: {percent}")),
            }
        } else {
            let bare = given.parse::<f64>().is_ok();
            let quantity = if bare { format!("{given}{unit}") } else { given.to_owned() };
            match quantity.parse::<meta::Quantity>() {
                Ok(q) => json!({"type": "AverageValue", "averageValue": q.to_string()}),
                Err(_) => return text(format!("invalid resource {name} value: {given}")),
            }
        };
        out.push(json!({"type": "Resource", "resource": {"name": name, "target": target}}));
    }
    Ok(out)
}

fn document(a: &Arguments, object_name: &str, target: &Value, metrics: &[Value]) -> Object {
    let mut v = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": if a.name.is_empty() { object_name } else { &a.name }},
        "spec": {"maxReplicas": a.max, "scaleTargetRef": target},
        "status": {"currentMetrics": null, "desiredReplicas": 0},
    });
    if a.min > 0 {
        v["spec"]["minReplicas"] = a.min.into();
    }
    if !metrics.is_empty() {
        v["spec"]["metrics"] = metrics.into();
    }
    Object::from_value(v).unwrap_or_default()
}

/// Builds the autoscaler in `autoscaling/v1`, for a server without v2.
///
/// # Errors
/// v1 supports only a percentage of CPU.
fn v1_document(a: &Arguments, object_name: &str, target: &Value) -> Result<Object> {
    let incompatible = |why: &str| {
        text(format!(
            "failed to create autoscaling/v2 HPA and the configuration is incompatible with autoscaling/v1: {why}"
        ))
    };
    let mut o = document(a, object_name, target, &[]);
    o.set(&["apiVersion"], "autoscaling/v1");
    o.set(&["status"], json!({"currentReplicas": 0, "desiredReplicas": 0}));
    let cpu = if a.cpu_percent > 0 { format!("{}%", a.cpu_percent) } else { a.cpu.trim().to_owned() };
    match cpu.strip_suffix('%').map(str::parse::<i32>) {
        _ if cpu.is_empty() => return incompatible("empty input"),
        Some(Ok(n)) if a.memory.is_empty() => o.set(&["spec", "targetCPUUtilizationPercentage"], n),
        // Upstream formats a nil error here.
        _ => return incompatible("%!w(<nil>)"),
    }
    Ok(o)
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};
    use serde_json::json;

    #[tokio::test]
    async fn autoscales_an_object_of_a_file() {
        let s = Server::new();
        let file = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: w}\n";
        let line = "autoscale -f - --max=5 --save-config --dry-run=client -o jsonpath={.metadata}";
        assert_eq!(snapshot(&s, line, file).await, "{\"name\":\"w\"}");
        assert_eq!(s.requests(), [""; 0], "discovery lists scalable resources");
    }

    #[tokio::test]
    async fn creates_an_autoscaler() {
        let d = json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "w"}});
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}});
        let s = Server::new()
            .on("GET /apis/apps/v1/namespaces/default/deployments/w", 200, d)
            .on("GET /apis/apps/v1/namespaces/default/deployments/w/scale", 200, json!({}))
            .on("GET /api/v1/namespaces/default/pods/p", 200, pod);
        for (line, expected) in [
            (
                "autoscale deploy w --max=5 --min=2 --cpu-percent=80 --dry-run=client",
                "horizontalpodautoscaler.autoscaling/w created (dry run)\n! Flag --cpu-percent has been deprecated, Use --cpu with percentage or resource quantity format (e.g., '70%' for utilization or '500m' for milliCPU).\n",
            ),
            (
                "autoscale deploy/w --max=5 --cpu=500m --memory=60% --name=x --dry-run=client -o jsonpath={.spec}{.metadata}",
                "{\"maxReplicas\":5,\"metrics\":[{\"resource\":{\"name\":\"cpu\",\"target\":{\"averageValue\":\"500m\",\"type\":\"AverageValue\"}},\"type\":\"Resource\"},{\"resource\":{\"name\":\"memory\",\"target\":{\"averageUtilization\":60,\"type\":\"Utilization\"}},\"type\":\"Resource\"}],\"scaleTargetRef\":{\"apiVersion\":\"apps/v1\",\"kind\":\"Deployment\",\"name\":\"w\"}}{\"name\":\"x\"}",
            ),
            (
                "autoscale deploy w --max=0",
                "! error: --max=MAXPODS is required and must be at least 1, max: 0\nexit 1\n",
            ),
            (
                "autoscale deploy w --min=2 --max=1",
                "! error: --max=MAXPODS must be larger or equal to --min=MINPODS, max: 1, min: 2\nexit 1\n",
            ),
            (
                "autoscale deploy w --max=1 --memory=200 --dry-run=client -o jsonpath={.spec.metrics[0].resource.target.averageValue}",
                "200Mi",
            ),
            ("autoscale deploy w --max=1 --cpu=x", "! error: invalid resource cpu value: x\nexit 1\n"),
            ("autoscale deploy w --max=1 --cpu=x%", "! error: invalid percentage value: x\nexit 1\n"),
            (
                "autoscale pod p --max=1",
                "! error: cannot autoscale a Pod: could not find scale subresource for /v1, Resource=pods in discovery information\nexit 1\n",
            ),
        ] {
            assert_eq!(snapshot(&s, line, "").await, expected, "{line}");
        }
    }
}
