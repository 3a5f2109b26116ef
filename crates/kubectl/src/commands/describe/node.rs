//! Describes nodes.

use super::page::{Page, list, pairs, show};
use super::related;
use crate::error::Result;
use crate::kube::Kube;
use crate::printer::table::age;
use crate::resource::Collection;
use crate::resource::select::{Selection, list as list_objects};
use meta::{Object, Quantity, Reason, Value};
use std::collections::BTreeMap;

pub async fn describe(p: &mut Page, o: &Object, k: &mut Kube) -> Result {
    p.field("Name", o.name());
    let mut roles: Vec<&str> = o
        .labels()
        .filter_map(|(key, v)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(r) if !r.is_empty() => Some(r),
            _ if key == "kubernetes.io/role" && !v.is_empty() => Some(v),
            _ => None,
        })
        .collect();
    roles.sort_unstable();
    p.field("Roles", if roles.is_empty() { "<none>".into() } else { roles.join(",") });
    p.metadata(o);
    p.field("CreationTimestamp", p.time(o.creation_timestamp()));
    let mut taints: Vec<&Value> = list(o.at(&["spec", "taints"])).iter().collect();
    taints.sort_by_key(|t| format!("{},{}", show(&t["effect"]), show(&t["key"])));
    let taints: Vec<String> = taints
        .into_iter()
        .map(|t| match t["value"].as_str().filter(|v| !v.is_empty()) {
            Some(v) => format!("{}={v}:{}", show(&t["key"]), show(&t["effect"])),
            None => format!("{}:{}", show(&t["key"]), show(&t["effect"])),
        })
        .collect();
    p.many(0, "Taints", &taints);
    p.field("Unschedulable", o.at(&["spec", "unschedulable"]).map_or("false".into(), show));
    lease(p, o, k).await;
    let conditions = list(o.at(&["status", "conditions"]));
    if !conditions.is_empty() {
        p.line(0, "Conditions:\n  Type\tStatus\tLastHeartbeatTime\tLastTransitionTime\tReason\tMessage\n  ----\t------\t-----------------\t------------------\t------\t-------");
        for c in conditions {
            p.line(
                1,
                format!(
                    "{} \t{} \t{} \t{} \t{} \t{}",
                    show(&c["type"]),
                    show(&c["status"]),
                    p.time(&show(&c["lastHeartbeatTime"])),
                    p.time(&show(&c["lastTransitionTime"])),
                    show(&c["reason"]),
                    show(&c["message"])
                ),
            );
        }
    }
    p.line(0, "Addresses:");
    for a in list(o.at(&["status", "addresses"])) {
        p.at(1, &show(&a["type"]), show(&a["address"]));
    }
    for (title, key) in [("Capacity", "capacity"), ("Allocatable", "allocatable")] {
        if o.at(&["status", key]).and_then(Value::as_object).is_some_and(|m| !m.is_empty()) {
            p.line(0, format!("{title}:"));
            for (name, v) in pairs(o.at(&["status", key])) {
                p.at(1, &name, v);
            }
        }
    }
    slices(p, o, k).await;
    p.line(0, "System Info:");
    for (title, key) in [
        ("Machine ID", "machineID"),
        ("System UUID", "systemUUID"),
        ("Boot ID", "bootID"),
        ("Kernel Version", "kernelVersion"),
        ("OS Image", "osImage"),
        ("Operating System", "operatingSystem"),
        ("Architecture", "architecture"),
        ("Container Runtime Version", "containerRuntimeVersion"),
        ("Kubelet Version", "kubeletVersion"),
        ("Kube-Proxy Version", "kubeProxyVersion"),
    ] {
        let v = o.at(&["status", "nodeInfo", key]).map(show).unwrap_or_default();
        // Nodes no longer report this about services.
        if !v.is_empty() || key != "kubeProxyVersion" {
            p.at(1, title, v);
        }
    }
    if let Some(c) = o.str_at(&["spec", "podCIDR"]).filter(|c| !c.is_empty()) {
        p.field("PodCIDR", c);
    }
    let cidrs: Vec<String> = list(o.at(&["spec", "podCIDRs"])).iter().map(show).collect();
    if !cidrs.is_empty() {
        p.field("PodCIDRs", cidrs.join(","));
    }
    if let Some(c) = o.str_at(&["spec", "providerID"]).filter(|c| !c.is_empty()) {
        p.field("ProviderID", c);
    }
    pods(p, o, k).await
}

/// How many device pools of the node are shown.
const MAX_POOLS: usize = 10;

/// Writes the device pools of the node.
async fn slices(p: &mut Page, o: &Object, k: &mut Kube) {
    let Ok(Some(resource)) = k.find_resource("resourceslices.resource.k8s.io").await else { return };
    let fields = format!("spec.nodeName={}", o.name());
    let c = Collection { resource, namespace: String::new() };
    let found = list_objects(k, &c, &Selection { fields: &fields, ..Selection::default() }).await.unwrap_or_default();
    let mut pools: BTreeMap<String, (String, usize, usize)> = BTreeMap::new();
    for slice in found.into_iter().filter_map(|i| i.object) {
        let text = |path: &[&str]| slice.str_at(path).unwrap_or_default().to_owned();
        let (driver, pool) = (text(&["spec", "driver"]), text(&["spec", "pool", "name"]));
        let row = format!("{driver}\t{pool}");
        let (_, slices, devices) = pools.entry(format!("{driver}/{pool}")).or_insert((row, 0, 0));
        *slices += 1;
        *devices += list(slice.at(&["spec", "devices"])).len();
    }
    if pools.is_empty() {
        return;
    }
    p.line(0, "Node-Local ResourceSlices:\n  Driver\tPool\tSlices\tDevices\n  ------\t----\t------\t-------");
    for (row, slices, devices) in pools.values().take(MAX_POOLS) {
        p.line(1, format!("{row}\t{slices}\t{devices}"));
    }
    if pools.len() > MAX_POOLS {
        p.line(1, format!("...and {} more pools", pools.len() - MAX_POOLS));
    }
}

async fn lease(p: &mut Page, o: &Object, k: &mut Kube) {
    let unset = "<unset>".to_owned();
    let found = async {
        let r = k.resource("leases.coordination.k8s.io").await?;
        Ok::<_, crate::error::Error>(k.api(&r, "kube-node-lease").await?.get(o.name()).await?)
    };
    let found: Object = match found.await {
        Ok(l) => l,
        Err(e) => return p.field("Lease", format!("Failed to get lease: {e}")),
    };
    p.line(0, "Lease:");
    p.at(1, "HolderIdentity", found.str_at(&["spec", "holderIdentity"]).unwrap_or(&unset));
    p.at(1, "AcquireTime", found.str_at(&["spec", "acquireTime"]).map_or(unset.clone(), |t| p.time(t)));
    p.at(1, "RenewTime", found.str_at(&["spec", "renewTime"]).map_or(unset.clone(), |t| p.time(t)));
}

type Amounts = BTreeMap<String, Quantity>;

fn add(to: &mut Amounts, amounts: Option<&Value>) {
    for (name, v) in pairs(amounts) {
        if let Ok(q) = Quantity::parse(&v) {
            let sum = to.get(&name).map_or(0, Quantity::nano_value).saturating_add(q.nano_value());
            to.insert(name, from_nanos(sum, &q));
        }
    }
}

/// Formats a number of billionths in the notation of another quantity.
fn from_nanos(nanos: i128, like: &Quantity) -> Quantity {
    let is_integer = nanos % 1_000_000_000 == 0;
    let n = i64::try_from(if is_integer { nanos / 1_000_000_000 } else { nanos / 1_000_000 }).unwrap_or(i64::MAX);
    match (is_integer, like.format()) {
        (true, meta::quantity::Format::BinarySi) => Quantity::binary(n),
        (true, _) => Quantity::from_int(n),
        (false, _) => Quantity::from_milli(n),
    }
}

/// Returns the amounts that the scheduler reserves for a pod: the sum of its containers, or its largest init container if
/// that is more.
fn pod_amounts(o: &Object, field: &str) -> Amounts {
    let mut all = Amounts::new();
    for c in list(o.at(&["spec", "containers"])) {
        add(&mut all, c["resources"].get(field));
    }
    for c in list(o.at(&["spec", "initContainers"])) {
        let mut container = Amounts::new();
        add(&mut container, c["resources"].get(field));
        for (name, q) in container {
            if all.get(&name).is_none_or(|have| have.nano_value() < q.nano_value()) {
                all.insert(name, q);
            }
        }
    }
    all
}

async fn pods(p: &mut Page, o: &Object, k: &mut Kube) -> Result {
    let fields = format!("spec.nodeName={},status.phase!=Failed,status.phase!=Succeeded", o.name());
    let selection = Selection { fields: &fields, page: Some(p.chunk_size), ..Selection::default() };
    let all = match related::objects(k, "pods", "", &selection).await {
        Err(e) if e.status().is_some_and(|s| s.is(Reason::Forbidden)) => {
            p.field("Pods", "not authorized");
            return Ok(());
        }
        other => other?,
    };
    let allocatable = o.at(&["status", "allocatable"]).or_else(|| o.at(&["status", "capacity"]));
    let share = |name: &str, q: Option<&Quantity>| {
        let have = allocatable.and_then(|a| a[name].as_str()).and_then(|t| Quantity::parse(t).ok());
        let nanos = q.map_or(0, Quantity::nano_value);
        let percent = match have.map(|h| h.nano_value()).filter(|h| *h > 0) {
            Some(h) => nanos * 100 / h,
            None => 0,
        };
        format!("{} ({percent}%)", q.map_or("0".to_owned(), ToString::to_string))
    };
    p.field("Non-terminated Pods", format!("({} in total)", all.len()));
    p.line(1, "Namespace\tName\t\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge\n  ---------\t----\t\t------------\t----------\t---------------\t-------------\t---");
    let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
    for pod in &all {
        let (r, l) = (pod_amounts(pod, "requests"), pod_amounts(pod, "limits"));
        p.line(
            1,
            format!(
                "{}\t{}\t\t{}\t{}\t{}\t{}\t{}",
                pod.namespace(),
                pod.name(),
                share("cpu", r.get("cpu")),
                share("cpu", l.get("cpu")),
                share("memory", r.get("memory")),
                share("memory", l.get("memory")),
                age(pod.creation_timestamp(), k.now())
            ),
        );
        for (to, from) in [(&mut requests, r), (&mut limits, l)] {
            for (name, q) in from {
                let sum = to.get(&name).map_or(0, Quantity::nano_value).saturating_add(q.nano_value());
                to.insert(name, from_nanos(sum, &q));
            }
        }
    }
    p.line(0, "Allocated resources:\n  (Total limits may be over 100 percent, i.e., overcommitted.)\n  Resource\tRequests\tLimits\n  --------\t--------\t------");
    let standard = ["cpu", "memory", "ephemeral-storage"].map(str::to_owned);
    let more = pairs(allocatable).map(|(n, _)| n).filter(|n| !standard.contains(n) && n != "pods");
    let (huge, extended): (Vec<String>, Vec<String>) = more.partition(|n| n.starts_with("hugepages-"));
    for n in standard.iter().chain(&huge) {
        p.line(1, format!("{n}\t{}\t{}", share(n, requests.get(n)), share(n, limits.get(n))));
    }
    // Extended resources have no percentages.
    for n in &extended {
        let amount = |all: &Amounts| all.get(n).map_or("0".to_owned(), ToString::to_string);
        p.line(1, format!("{n}\t{}\t{}", amount(&requests), amount(&limits)));
    }
    Ok(())
}
