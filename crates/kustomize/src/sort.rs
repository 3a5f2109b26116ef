//! The order of the output.

use crate::Error;
use crate::id::{Gvk, Id};
use crate::kustomization::{LegacyOrder, SortOptions};
use crate::resources::Resources;
use std::cmp::Ordering;

const FIRST: [&str; 22] = [
    "Namespace",
    "ResourceQuota",
    "StorageClass",
    "CustomResourceDefinition",
    "ServiceAccount",
    "PodSecurityPolicy",
    "Role",
    "ClusterRole",
    "RoleBinding",
    "ClusterRoleBinding",
    "ConfigMap",
    "Secret",
    "Endpoints",
    "Service",
    "LimitRange",
    "PriorityClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Deployment",
    "StatefulSet",
    "CronJob",
    "PodDisruptionBudget",
];
const LAST: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// The order if the kustomization does not set one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Namespaces first, webhooks last.
    #[default]
    Legacy,
    /// The order of the files.
    None,
}

fn order_of_kind(kind: &str, first: &[&str], last: &[&str]) -> i64 {
    let index = |list: &[&str]| list.iter().position(|k| *k == kind).and_then(|i| i64::try_from(i).ok());
    let len = i64::try_from(first.len()).unwrap_or(i64::MAX);
    match (index(last), index(first)) {
        (Some(i), _) => 1 + i,
        (None, Some(i)) => i - len,
        _ => 0,
    }
}

fn rank(kind: &str) -> i64 {
    order_of_kind(kind, &FIRST, &LAST)
}

fn text(gvk: &Gvk) -> String {
    let or = |t: &str, empty: &str| if t.is_empty() { empty.to_owned() } else { t.to_owned() };
    format!("{}_{}_{}", or(&gvk.group, "~G"), or(&gvk.version, "~V"), or(&gvk.kind, "~K"))
}

/// The key by which the tables of fields are sorted.
pub fn gvk_key(gvk: &Gvk) -> (i64, String) {
    (rank(&gvk.kind), text(gvk))
}

fn id_text(id: &Id) -> String {
    let or = |t: &str, empty: &str| if t.is_empty() { empty.to_owned() } else { t.to_owned() };
    format!("{}|{}|{}", id.gvk, or(&id.namespace, "~X"), or(&id.name, "~N"))
}

fn texts(l: &[String]) -> Vec<&str> {
    l.iter().map(String::as_str).collect()
}

/// Sorts objects in the order of the kustomization, or else of the caller.
pub fn sort(all: &mut Resources, options: Option<&SortOptions>, order: Order) -> Result<(), Error> {
    let legacy = match options {
        None => match order {
            Order::None => return Ok(()),
            Order::Legacy => None,
        },
        Some(o) => match o.order.as_str() {
            "fifo" if o.legacy.is_some() => {
                return Err(Error::text(
                    "the field 'sortOptions.legacySortOptions' is set but the selected sort order is 'fifo', not 'legacy'",
                ));
            }
            "fifo" => return Ok(()),
            "legacy" => o.legacy.as_ref(),
            _ => return Err(Error::text("the field 'sortOptions.order' must be one of [fifo, legacy]")),
        },
    };
    let rank = |kind: &str| match legacy {
        None => rank(kind),
        Some(LegacyOrder { first, last }) => order_of_kind(kind, &texts(first), &texts(last)),
    };
    let mut keyed: Vec<_> = std::mem::take(&mut all.0)
        .into_iter()
        .map(|r| {
            let id = r.id();
            ((rank(&id.gvk.kind), text(&id.gvk), id_text(&id), id), r)
        })
        .collect();
    keyed.sort_by(|(a, _), (b, _)| {
        let namespaces = a.3.gvk.kind == "Namespace" && b.3.gvk.kind == "Namespace";
        let own = namespaces && (a.3.gvk.group.is_empty() || b.3.gvk.group.is_empty());
        let kinds = match a.1.cmp(&b.1) {
            // Namespaces of the core group come before other kinds with that name.
            o if own => o.reverse(),
            o => o,
        };
        a.0.cmp(&b.0).then(kinds).then_with(|| if a.3.gvk == b.3.gvk { a.2.cmp(&b.2) } else { Ordering::Equal })
    });
    all.0 = keyed.into_iter().map(|(_, r)| r).collect();
    Ok(())
}
