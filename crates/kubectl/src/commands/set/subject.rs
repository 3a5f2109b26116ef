//! `kubectl set subject`: adds subjects to a role binding or cluster role binding.

use super::{Messages, SetFlags, change};
use crate::error::{Error, Result, text};
use crate::kube::Kube;
use meta::Value;
use serde_json::json;
use std::collections::BTreeSet;

#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// TYPE NAME, or TYPE/NAME.
    pub words: Vec<String>,
    /// Only objects with these labels.
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Group to bind; may be repeated.
    #[arg(long, value_delimiter = ',')]
    pub group: Vec<String>,
    /// Service account NAMESPACE:NAME.
    #[arg(long, value_delimiter = ',')]
    pub serviceaccount: Vec<String>,
    #[command(flatten)]
    pub set: SetFlags,
}

const RBAC: &str = "rbac.authorization.k8s.io";

pub async fn run(a: Arguments, k: &mut Kube) -> Result {
    // The flag --user does not select a kubeconfig user here.
    let users = std::mem::take(&mut k.global.user);
    let users: BTreeSet<&str> = users.iter().flat_map(|u| u.split(',')).collect();
    let found = a.set.gather(k, &a.words, &a.selector).await?;
    Error::collect(found.1)?;
    a.set.check(&a.selector)?;
    if users.is_empty() && a.group.is_empty() && a.serviceaccount.is_empty() {
        return text("you must specify at least one value of user, group or serviceaccount");
    }
    let (namespace, _) = k.namespace()?;
    let mut subjects: Vec<Value> = users.iter().map(|n| json!({"apiGroup": RBAC, "kind": "User", "name": n})).collect();
    let groups: BTreeSet<&String> = a.group.iter().collect();
    subjects.extend(groups.iter().map(|n| json!({"apiGroup": RBAC, "kind": "Group", "name": n})));
    let accounts: BTreeSet<&String> = a.serviceaccount.iter().collect();
    for s in accounts {
        match s.split_once(':') {
            Some((ns, name)) if !name.is_empty() && !name.contains(':') => {
                if ns.is_empty() && found.0.iter().any(|i| i.resource.kind == "ClusterRoleBinding") {
                    return text("serviceaccount must be <namespace>:<name>, namespace must be specified");
                }
                let ns = if ns.is_empty() { &namespace } else { ns };
                subjects.push(json!({"kind": "ServiceAccount", "name": name, "namespace": ns}));
            }
            _ => return text("serviceaccount must be <namespace>:<name>"),
        }
    }
    let w = Messages {
        done: "subjects updated",
        failed: "failed to patch subjects to rolebinding: ",
        skip_unchanged: true,
    };
    change(k, &a.set, &w, (found.0, Vec::new()), |o| {
        if !matches!(o.kind(), "RoleBinding" | "ClusterRoleBinding") {
            return text("setting subjects is only supported for RoleBinding/ClusterRoleBinding");
        }
        let mut all = o.get("subjects").and_then(Value::as_array).cloned().unwrap_or_default();
        for s in &subjects {
            if !all.contains(s) {
                all.push(s.clone());
            }
        }
        o.set(&["subjects"], all);
        Ok(())
    })
    .await
}
