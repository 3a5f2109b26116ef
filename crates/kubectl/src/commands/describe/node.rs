//! Describes nodes.

use super::page::{Page, list, pairs, show};
use super::related;
use crate::error::Result;
use crate::kube::Kube;
use crate::printer::table::age;
use crate::resource::Collection;
use crate::resource::select::{Selection, list as list_objects};
use meta::{Object, Quantity, Reason, Value};
use quota::{Amounts, Basis};
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
    ] {
        p.at(1, title, o.at(&["status", "nodeInfo", key]).map(show).unwrap_or_default());
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

/// The part of `have` in percent, as upstream rounds it: of thousandths of processors, of whole units of all other resources.
fn percent(name: &str, amount: &Quantity, have: &Quantity) -> i64 {
    let value = |q: &Quantity| if name == "cpu" { q.milli_value() } else { q.value() } as f64;
    if have.is_zero() { 0 } else { (value(amount) / value(have) * 100.0) as i64 }
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
    let amounts = |field| o.at(&["status", field]).filter(|a| a.as_object().is_some_and(|a| !a.is_empty()));
    let allocatable = quota::amounts(amounts("allocatable").or_else(|| amounts("capacity")));
    let zero = Quantity::from_int(0);
    let share = |name: &str, all: &Amounts| {
        let amount = all.get(name).unwrap_or(&zero);
        format!("{amount} ({}%)", percent(name, amount, allocatable.get(name).unwrap_or(&zero)))
    };
    p.field("Non-terminated Pods", format!("({} in total)", all.len()));
    p.line(1, "Namespace\tName\t\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge\n  ---------\t----\t\t------------\t----------\t---------------\t-------------\t---");
    let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
    for pod in &all {
        let in_use = |part| quota::resources_of_pod(pod, part, Basis::InUse);
        let (r, l) = (in_use("requests"), in_use("limits"));
        p.line(
            1,
            format!(
                "{}\t{}\t\t{}\t{}\t{}\t{}\t{}",
                pod.namespace(),
                pod.name(),
                share("cpu", &r),
                share("cpu", &l),
                share("memory", &r),
                share("memory", &l),
                age(pod.creation_timestamp(), k.now())
            ),
        );
        // Upstream's sums leave out what the status says.
        quota::add(&mut requests, quota::resources_of_pod(pod, "requests", Basis::Desired));
        quota::add(&mut limits, quota::resources_of_pod(pod, "limits", Basis::Desired));
    }
    p.line(0, "Allocated resources:\n  (Total limits may be over 100 percent, i.e., overcommitted.)\n  Resource\tRequests\tLimits\n  --------\t--------\t------");
    let standard = ["cpu", "memory", "ephemeral-storage"].map(str::to_owned);
    let more = allocatable.keys().filter(|n| !standard.contains(n) && *n != "pods").cloned();
    let (huge, extended): (Vec<String>, Vec<String>) = more.partition(|n| n.starts_with("hugepages-"));
    for n in standard.iter().chain(&huge) {
        p.line(1, format!("{n}\t{}\t{}", share(n, &requests), share(n, &limits)));
    }
    // Extended resources have no percentages.
    for n in &extended {
        let amount = |all: &Amounts| *all.get(n).unwrap_or(&zero);
        p.line(1, format!("{n}\t{}\t{}", amount(&requests), amount(&limits)));
    }
    Ok(())
}
