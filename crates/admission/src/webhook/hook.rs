//! Webhooks of the stored configurations, parsed once and cached until a configuration changes.

use crate::configuration::{Fields, Kind, STATIC_MANIFESTS, TEXT, without_manifests};
use crate::evaluation::Conditions;
use crate::matching::{GROUP, Matcher};
use crate::plugin::{Lookup, MatchOwner};
use crate::remembered::{LastResult, ResultPerObject};
use auth::{Callers, Endpoint};
use expressions::webhook_env;
use meta::{FieldError, FieldPath, Object, Status, Value};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Hook {
    /// Configuration name, webhook name and index within the configuration: unique.
    pub uid: String,
    pub configuration: String,
    pub name: String,
    /// None if the configuration has neither a URL nor a service.
    pub endpoint: Option<Endpoint>,
    pub matcher: Matcher,
    /// `failurePolicy: Ignore`.
    pub ignores_failure: bool,
    pub dry_run: DryRun,
    pub timeout: Duration,
    pub reinvoked: bool,
    pub versions: Vec<String>,
    pub conditions: Conditions,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DryRun {
    Supported,
    Unsupported,
}

/// The webhooks of one kind of configuration, and the credentials for calling them.
pub(super) struct Hooks {
    read: LastResult<u64, Vec<Arc<Hook>>>,
    compiled: ResultPerObject<Vec<Arc<Hook>>>,
    kubeconfig: Option<PathBuf>,
    pub callers: Callers,
}

const KIND: Kind = Kind {
    versions: &[("apiserver.config.k8s.io/v1", "WebhookAdmissionConfiguration")],
    fields: Fields("WebhookAdmission", &[("kubeConfigFile", TEXT), (STATIC_MANIFESTS, TEXT)]),
};

impl Hooks {
    /// Reads the plugin configuration (`k8s.io/apiserver/pkg/admission/plugin/webhook/config`).
    pub fn new(config: Option<&Value>) -> Result<Self, String> {
        let config = config.map_or(Ok(Value::Null), |s| KIND.read(s))?;
        let file = config["kubeConfigFile"].as_str().filter(|f| !f.is_empty());
        if let Some(file) = file.filter(|f| !f.starts_with('/')) {
            let path = FieldPath::new("kubeConfigFile");
            return Err(FieldError::invalid(&path, file, "must be an absolute file path").to_string());
        }
        without_manifests(&config)?;
        Ok(Self {
            read: LastResult::default(),
            compiled: ResultPerObject::default(),
            kubeconfig: file.map(PathBuf::from),
            callers: Callers::default(),
        })
    }

    /// Loads the credentials of the server.
    pub fn open(&mut self) -> Result<(), String> {
        if let Some(file) = &self.kubeconfig {
            self.callers = Callers::of_file(file.clone())?;
        }
        Ok(())
    }

    /// All webhooks: configurations sorted by name, webhooks in their listed order. Errors if a configuration cannot
    /// be read.
    pub async fn get(&self, lookup: &dyn Lookup, resource: &str) -> Result<Arc<Vec<Arc<Hook>>>, Status> {
        if let Some(known) = self.read.known(&lookup.fingerprint(GROUP, resource)) {
            return Ok(known);
        }
        let mut compiled = self.compiled.begin().await;
        let now = lookup.fingerprint(GROUP, resource);
        if let Some(known) = self.read.known(&now) {
            return Ok(known);
        }
        let when = if resource.starts_with("mutating") { "admit" } else { "validating" };
        let mut all = Vec::new();
        for c in lookup.list(GROUP, resource, None) {
            all.extend(compiled.get(&c?, |c| hooks(c, when)).await.iter().cloned());
        }
        compiled.end();
        Ok(self.read.put(now, all))
    }

    pub fn any(&self, lookup: &dyn Lookup, resource: &str) -> bool {
        lookup.fingerprint(GROUP, resource) != 0
    }
}

fn hooks(configuration: &Object, when: &'static str) -> Vec<Arc<Hook>> {
    let list = configuration.get("webhooks").and_then(Value::as_array);
    let all = list.into_iter().flatten().enumerate();
    all.map(|(i, h)| Arc::new(hook(configuration.name(), i, h, when))).collect()
}

fn hook(configuration: &str, index: usize, h: &Value, when: &'static str) -> Hook {
    let owner = MatchOwner { kind: "webhook", when, name: text(h, "name").to_owned() };
    Hook {
        uid: format!("{configuration}/{}/{index}", text(h, "name")),
        configuration: configuration.to_owned(),
        name: text(h, "name").to_owned(),
        endpoint: Endpoint::read(&h["clientConfig"]),
        matcher: Matcher::of_hook(h),
        ignores_failure: h["failurePolicy"] == "Ignore",
        dry_run: match text(h, "sideEffects") {
            "None" | "NoneOnDryRun" => DryRun::Supported,
            _ => DryRun::Unsupported,
        },
        timeout: Duration::from_secs(h["timeoutSeconds"].as_u64().unwrap_or(10)),
        reinvoked: h["reinvocationPolicy"] == "IfNeeded",
        versions: texts(h, "admissionReviewVersions"),
        conditions: Conditions::read(&h["matchConditions"], &webhook_env(), owner),
    }
}

fn text<'a>(v: &'a Value, k: &str) -> &'a str {
    v[k].as_str().unwrap_or_default()
}

fn texts(v: &Value, k: &str) -> Vec<String> {
    v[k].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}
