//! Creates quotas, disruption budgets and priority classes.

use super::{Generator, WriteFlags};
use crate::error::{Error, Result, text};
use meta::{Map, Quantity, Value};
use serde_json::json;

#[derive(clap::Args, Clone, Debug)]
pub struct Quota {
    /// Name of the quota.
    pub name: String,
    /// RESOURCE=QUANTITY,….
    #[arg(long, default_value = "", hide_default_value = true)]
    pub hard: String,
    /// Scopes: Terminating, NotTerminating, BestEffort, NotBestEffort.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub scopes: String,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for Quota {
    fn build(&self) -> Result<Value> {
        let mut hard = Map::new();
        for h in self.hard.split(',').filter(|h| !h.is_empty()) {
            let Some((k, v)) = h.split_once('=') else {
                return text(format!("Invalid argument syntax {h}, expected <resource>=<value>"));
            };
            let q = Quantity::parse(v).map_err(|e| Error::Text(e.to_string()))?;
            hard.insert(k.to_owned(), q.to_string().into());
        }
        let mut spec = json!({});
        if !hard.is_empty() {
            spec["hard"] = hard.into();
        }
        let scopes: Vec<&str> = self.scopes.split(',').filter(|s| !s.is_empty()).collect();
        if !scopes.is_empty() {
            spec["scopes"] = scopes.into();
        }
        Ok(
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": self.name}, "spec": spec, "status": {}}),
        )
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct Budget {
    /// Name of the disruption budget.
    pub name: String,
    /// Label selector for the pods.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub selector: String,
    /// Minimum of available pods: a number or a percentage.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub min_available: String,
    /// Maximum of unavailable pods: a number or a percentage.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub max_unavailable: String,
    #[command(flatten)]
    pub write: WriteFlags,
}

fn number(s: &str) -> Value {
    s.parse::<i64>().map_or_else(|_| s.into(), Value::from)
}

impl Generator for Budget {
    fn build(&self) -> Result<Value> {
        if self.selector.is_empty() {
            return text("a selector must be specified");
        }
        let (min, max) = (self.min_available.as_str(), self.max_unavailable.as_str());
        let counts = |s: &str| {
            let digits = s.strip_suffix('%').unwrap_or(s);
            !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
        };
        if min.is_empty() == max.is_empty() {
            return text(match min {
                "" => "one of min-available or max-unavailable must be specified",
                _ => "min-available and max-unavailable cannot be both specified",
            });
        }
        for (given, flag) in [(min, "min-available"), (max, "max-unavailable")] {
            if !given.is_empty() && !counts(given) {
                return text(format!("invalid format specified for {flag}"));
            }
        }
        let mut spec = json!({"selector": crate::flags::label_selector(&self.selector)?});
        match min {
            "" => spec["maxUnavailable"] = number(max),
            min => spec["minAvailable"] = number(min),
        }
        Ok(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": self.name}, "spec": spec,
            "status": {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0},
        }))
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct PriorityClass {
    /// Name of the priority class.
    pub name: String,
    #[arg(long, default_value = "0", hide_default_value = true)]
    pub value: i32,
    /// Make it the class of pods that name none.
    #[arg(long)]
    pub global_default: bool,
    /// Description of the priority class.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub description: String,
    /// Preemption policy: Never or PreemptLowerPriority.
    #[arg(long, default_value = "PreemptLowerPriority", hide_default_value = true)]
    pub preemption_policy: String,
    #[command(flatten)]
    pub write: WriteFlags,
}

impl Generator for PriorityClass {
    fn build(&self) -> Result<Value> {
        let mut o = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": self.name},
            "value": self.value, "preemptionPolicy": self.preemption_policy,
        });
        if self.global_default {
            o["globalDefault"] = true.into();
        }
        if !self.description.is_empty() {
            o["description"] = self.description.clone().into();
        }
        Ok(o)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Server, snapshot};

    #[tokio::test]
    async fn budget_accepts_numbers_and_percentages() {
        for (line, expected) in [
            ("--selector=a=b --max-unavailable=1 -o jsonpath={.spec.maxUnavailable}", "1"),
            ("--selector=a=b --min-available=50% -o jsonpath={.spec.minAvailable}", "50%"),
            ("--selector=a=b --max-unavailable=-1", "! error: invalid format specified for max-unavailable\nexit 1\n"),
            ("--selector=a=b --min-available=bad", "! error: invalid format specified for min-available\nexit 1\n"),
            ("--selector=a=b", "! error: one of min-available or max-unavailable must be specified\nexit 1\n"),
        ] {
            let line = format!("create pdb p {line} --dry-run=client");
            assert_eq!(snapshot(&Server::new(), &line, "").await, expected, "{line}");
        }
    }
}
