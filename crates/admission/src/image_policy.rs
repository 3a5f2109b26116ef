//! ImagePolicyWebhook: a webhook decides which images may run (`imagepolicy.k8s.io/v1alpha1`, upstream
//! `plugin/pkg/admission/imagepolicy`). Responses are cached; a failed call admits the pod only with `defaultAllow`.

use crate::plugin::Remote;
use crate::{Operation, Review};
use async_trait::async_trait;
use auth::remote::{self, AnswerCache, CacheKey, Failure};
use meta::{Clock, Object, Status, Value, names};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The configuration file, and the webhook client once the plugin is opened.
pub struct ImagePolicyWebhook {
    kubeconfig: PathBuf,
    allow_lasts: Duration,
    deny_lasts: Duration,
    pause: Duration,
    default_allow: bool,
    remote: Option<remote::Remote>,
    known: AnswerCache<Value>,
}

const KEYS: &str = ".image-policy.k8s.io/";
const AUDIT: &str = "imagepolicywebhook.image-policy.k8s.io/";
const TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts per review, including the first.
const TRIES: u32 = 5;
const GROWS: f64 = 1.5;
const HALF_AN_HOUR: Duration = Duration::from_secs(1800);

impl ImagePolicyWebhook {
    pub fn new(config: Option<&Value>) -> Result<Self, String> {
        let config = &config.ok_or("no config specified")?["imagePolicy"];
        let second = Duration::from_secs(1);
        let time = |key: &str, unit: Duration, least: Duration, most: Duration, usual: Duration| {
            let n = config[key].as_i64().unwrap_or(0);
            let time = match n {
                -1 => return Ok(Duration::ZERO),
                0 => return Ok(usual),
                n => u32::try_from(n).ok().and_then(|n| unit.checked_mul(n)).unwrap_or_default(),
            };
            if time > least && time <= most {
                return Ok(time);
            }
            Err(format!("valid value is between {} and {}, got {}", shown(least), shown(most), shown(time)))
        };
        Ok(Self {
            kubeconfig: config["kubeConfigFile"].as_str().unwrap_or_default().into(),
            pause: time(
                "retryBackoff",
                Duration::from_millis(1),
                Duration::from_nanos(1),
                Duration::from_secs(300),
                Duration::from_millis(500),
            )?,
            allow_lasts: time("allowTTL", second, second, HALF_AN_HOUR, Duration::from_secs(300))?,
            deny_lasts: time("denyTTL", second, second, HALF_AN_HOUR, Duration::from_secs(30))?,
            default_allow: config["defaultAllow"] == true,
            remote: None,
            known: AnswerCache::default(),
        })
    }

    /// Returns the status of a review, from the cache or the webhook.
    async fn call(&self, spec: &Value) -> Result<Value, String> {
        let key = CacheKey::new([spec.to_string().as_str()]);
        if let Some(known) = self.known.get(key) {
            return Ok(known);
        }
        let remote = self.remote.as_ref().ok_or("the webhook's kubeconfig was not read")?;
        let question = json!({"kind": "ImageReview", "apiVersion": "imagepolicy.k8s.io/v1alpha1",
            "metadata": {}, "spec": spec, "status": {"allowed": false}});
        let mut pause = self.pause;
        let mut tries = 1;
        let answer = loop {
            match remote.call(&question).await {
                Err(f) if f.may_pass() && tries < TRIES => {
                    tokio::time::sleep(pause).await;
                    pause = pause.mul_f64(GROWS);
                    tries += 1;
                }
                other => break other.map_err(|f: Failure| f.to_string())?,
            }
        };
        let status = answer["status"].clone();
        let lasts = if status["allowed"] == true { self.allow_lasts } else { self.deny_lasts };
        self.known.put(key, status.clone(), lasts);
        Ok(status)
    }
}

/// Formats a duration as Go does.
fn shown(d: Duration) -> String {
    match (d.as_secs(), d.as_nanos()) {
        (0, 0) => "0s".to_owned(),
        (0, n) if n >= 1_000_000 => format!("{}ms", n / 1_000_000),
        (0, n) => format!("{n}ns"),
        (s, _) if s >= 3600 => format!("{}h{}m{}s", s / 3600, s / 60 % 60, s % 60),
        (s, _) if s >= 60 => format!("{}m{}s", s / 60, s % 60),
        _ => format!("{}s", d.as_secs_f64()),
    }
}

/// Builds the `ImageReview` of a pod, or of the ephemeral containers added to it.
fn spec(review: &Review<'_>, pod: &Object) -> Value {
    let lists: &[&str] =
        if review.subresource.is_empty() { &["containers", "initContainers"] } else { &["ephemeralContainers"] };
    let all = lists.iter().filter_map(|l| pod.at(&["spec", l]).and_then(Value::as_array)).flatten();
    let images: Vec<Value> = all
        .map(|c| match c["image"].as_str() {
            Some(i) if !i.is_empty() => json!({"image": i}),
            _ => json!({}),
        })
        .collect();
    let mut spec = json!({});
    if !images.is_empty() {
        spec["containers"] = images.into();
    }
    let all = pod.at(&["metadata", "annotations"]).and_then(Value::as_object).into_iter().flatten();
    for (k, v) in all.filter(|(k, _)| k.contains(KEYS)) {
        spec["annotations"][k] = v.clone();
    }
    if !review.namespace.is_empty() {
        spec["namespace"] = review.namespace.into();
    }
    spec
}

#[async_trait]
impl Remote for ImagePolicyWebhook {
    fn name(&self) -> &'static str {
        "ImagePolicyWebhook"
    }

    async fn open(&mut self, clock: &Arc<dyn Clock>) -> Result<(), String> {
        let remote = remote::Remote::of_file(self.kubeconfig.clone(), TIMEOUT, clock).await;
        self.remote = Some(remote.map_err(|e| e.why())?);
        Ok(())
    }

    fn applies(&self, review: &Review<'_>) -> bool {
        matches!(review.operation, Operation::Create | Operation::Update)
            && (review.is("", "pods") || review.is_part("", "pods", "ephemeralcontainers"))
    }

    async fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(pod) = object else { return Ok(()) };
        let status = match self.call(&spec(review, pod)).await {
            Ok(status) => status,
            Err(_) if self.default_allow => {
                review.host.annotate(&format!("{AUDIT}failed-open"), &"true");
                return Ok(());
            }
            Err(why) => return Err(review.forbidden(&why)),
        };
        for (k, v) in status["auditAnnotations"].as_object().into_iter().flatten() {
            let key = format!("{AUDIT}{k}");
            if names::qualified_name(&key).is_empty() {
                review.host.annotate(&key, &v.as_str().unwrap_or_default());
            }
        }
        if status["allowed"] == true {
            return Ok(());
        }
        Err(review.forbidden(&match status["reason"].as_str().unwrap_or_default() {
            "" => "one or more images rejected by webhook backend".to_owned(),
            why => format!("image policy webhook backend denied one or more images: {why}"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_their_range() {
        let plugin = |config: Value| ImagePolicyWebhook::new(Some(&json!({"imagePolicy": config})));
        let usual = plugin(json!({})).unwrap();
        assert_eq!((usual.allow_lasts.as_secs(), usual.deny_lasts.as_secs(), usual.pause.as_millis()), (300, 30, 500));
        let own = plugin(json!({"allowTTL": 60, "denyTTL": -1, "retryBackoff": 20})).unwrap();
        assert_eq!((own.allow_lasts.as_secs(), own.deny_lasts.as_secs(), own.pause.as_millis()), (60, 0, 20));
        let e = plugin(json!({"allowTTL": 1801})).err().unwrap();
        assert_eq!(e, "valid value is between 1s and 30m0s, got 30m1s");
        assert_eq!(ImagePolicyWebhook::new(None).err().unwrap(), "no config specified");
    }
}
