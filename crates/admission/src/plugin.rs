//! The traits of admission plugins, their inputs, and the services of the server for them.

use async_trait::async_trait;
use auth::{Attributes, Caller, Decision, Endpoint};
pub use client::informer::Labels;
use meta::{Clock, GroupResource, Gvk, Gvr, LabelSelector, MutatedBy, Object, Operation, Status, Value};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A write under review. Methods receive the new object separately.
pub struct Review<'a> {
    pub operation: Operation,
    pub attributes: &'a Attributes,
    /// The kind of the object: for a subresource, the kind that it accepts.
    pub kind: Gvk,
    pub subresource: &'a str,
    pub namespace: &'a str,
    /// The name in the request; empty if the server generates it.
    pub name: &'a str,
    /// The name of the object, generated or not.
    pub object_name: &'a str,
    pub old: Option<&'a Object>,
    pub dry_run: bool,
    pub lookup: &'a dyn Lookup,
    pub host: &'a dyn Host,
}

impl Review<'_> {
    /// Whether the request is for this main resource, not a subresource.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.is_part(group, resource, "")
    }

    /// Whether the request is for this subresource.
    pub fn is_part(&self, group: &str, resource: &str, subresource: &str) -> bool {
        self.attributes.group == group && self.attributes.resource == resource && self.subresource == subresource
    }

    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.attributes.group.clone(), resource: self.attributes.resource.clone() }
    }

    pub fn forbidden(&self, why: &str) -> Status {
        Status::forbidden(&self.group_resource(), self.object_name, why)
    }

    /// Whether the user is also authorized for this.
    pub fn may(&self, verb: &str, group: &str, resource: &str, subresource: &str, namespace: &str, name: &str) -> bool {
        self.host.may(&Attributes {
            user: self.attributes.user.clone(),
            verb: verb.into(),
            group: group.into(),
            version: "*".into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            ..Attributes::default()
        })
    }
}

/// An object that a selector matches. [`Lookup::get`] reads it: objects of users are not decoded all at once.
#[derive(Debug)]
pub struct FoundObject {
    pub name: String,
    /// Bytes as stored.
    pub size: usize,
}

/// A write whose body has not been read yet, as its path describes it.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest<'a> {
    /// The verb that was authorized.
    pub verb: &'a str,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

impl WriteRequest<'_> {
    /// Whether the request creates an object of this resource.
    pub fn creates(&self, group: &str, resource: &str) -> bool {
        self.verb == "create" && self.is(group, resource)
    }

    /// Whether the request is for this main resource, not a subresource.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        (self.group, self.resource, self.subresource) == (group, resource, "")
    }
}

/// Which objects of a resource a plugin reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadScope<'a> {
    All,
    Named(&'a str),
    /// A single object, known only from the body: estimated as the largest.
    One,
}

/// Lookup of other objects, as they are stored now.
pub trait Lookup: Sync {
    /// Estimates how many bytes reading these objects decodes. Decodes nothing.
    fn bytes(&self, group: &str, resource: &str, namespace: Option<&str>, which: ReadScope<'_>) -> usize;
    /// The resource of a kind, and whether it is namespaced.
    fn resource(&self, kind: &Gvk) -> Option<(Gvr, bool)>;
    /// An object, or none if it does not exist. Errors if it cannot be decoded: it must not be treated as absent.
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Result<Option<Arc<Object>>, Status>;
    /// The objects of a resource, in one namespace or cluster-wide, sorted by name. The iterator decodes each on
    /// demand: keep only what is needed, to bound memory. An object that cannot be decoded yields an error with its
    /// name.
    fn list(
        &self,
        group: &str,
        resource: &str,
        namespace: Option<&str>,
    ) -> Box<dyn Iterator<Item = Result<Object, Status>> + Send + '_>;
    /// The objects of a resource that a selector matches, in one namespace or, if it is empty, in the whole cluster. Decodes nothing.
    fn find(&self, group: &str, resource: &str, namespace: &str, selector: &LabelSelector) -> Vec<FoundObject>;
    /// A number that changes whenever an object of the resource does; 0 if there is none. Decodes nothing.
    fn fingerprint(&self, group: &str, resource: &str) -> u64;

    /// The labels of an object, without decoding it.
    fn labels(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Labels>;

    fn namespace_labels(&self, namespace: &str) -> Option<Labels> {
        self.labels("", "namespaces", "", namespace)
    }

    /// Whether a namespace is terminating; none if it does not exist. Each create needs it.
    fn is_terminating(&self, namespace: &str) -> Result<Option<bool>, Status> {
        Ok(self.get("", "namespaces", "", namespace)?.map(|ns| is_terminating(&ns)))
    }
}

/// Whether a namespace is being deleted, or its phase says so.
pub fn is_terminating(namespace: &Object) -> bool {
    namespace.is_deleting() || namespace.str_at(&["status", "phase"]) == Some("Terminating")
}

/// Services of the API server for plugins: kinds and their versions, authorization, requests to webhooks.
#[async_trait]
pub trait Host: Sync {
    /// Adds a warning to the response, also to an error.
    fn warn(&self, text: String);
    fn decide(&self, attributes: &Attributes) -> Decision;
    fn may(&self, attributes: &Attributes) -> bool {
        self.decide(attributes).allowed()
    }
    /// A new random UID.
    fn uid(&self) -> String;
    /// The options of the request as an object: `CreateOptions` and the like.
    fn options(&self) -> Value;
    /// The other resources that serve the same objects, with their kinds.
    fn equivalents(&self, resource: &Gvr, subresource: &str) -> Vec<(Gvr, Gvk)>;
    async fn convert(&self, object: Object, to: &Gvk) -> Result<Object, Status>;
    /// Types and defaults a value that a policy or webhook made, as an object of `kind`.
    fn read(&self, value: Value, kind: &Gvk) -> Result<Object, Status>;
    /// Merges `part` into `live` as server-side apply does, without managed fields.
    fn merge(&self, live: &Value, part: &Value, kind: &Gvk) -> Result<Value, String>;
    /// Posts JSON with the credentials of `caller`, if there are any. Returns the body of a successful response; the messages of errors are those of
    /// Go's client.
    async fn post(
        &self,
        to: &Endpoint,
        caller: Option<&Arc<Caller>>,
        timeout: Duration,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, CallError>;
    /// Creates a namespace as `system:apiserver`.
    async fn create_namespace(&self, name: &str) -> Result<(), Status>;
    /// Adds an audit annotation.
    fn annotate(&self, _key: &str, _value: &dyn std::fmt::Display) {}
    /// Adds an audit annotation if the audit level includes objects.
    fn annotate_details(&self, _key: &str, _value: &dyn std::fmt::Display) {}
    /// Writes an event, later or, under load, not at all.
    fn event(&self, _event: &Event<'_>) {}
    /// Records the call of a webhook.
    fn record_webhook_call(&self, _asked: &WebhookCall<'_>) {}
    /// Records that the match conditions of a webhook exclude the request.
    fn record_exclusion(&self, _whose: &MatchOwner, _operation: Operation) {}
    /// Records the decision of a policy.
    fn record_policy_decision(&self, _decided: &PolicyDecision<'_>) {}
    /// Records the evaluation of match conditions.
    fn record_match_evaluation(&self, _matched: &MatchEvaluation<'_>) {}
    /// Records the run of a plugin that calls others. `index`: its index in the chain.
    fn record_plugin_run(&self, _place: usize, _passed: &PluginRun) {}
}

/// The run of a plugin, for metrics.
pub struct PluginRun {
    pub plugin: &'static str,
    pub validating: bool,
    pub operation: Operation,
    pub rejected: bool,
    pub took: Duration,
}

/// Why a webhook did not answer.
#[derive(Debug)]
pub enum CallError {
    /// The request was not sent: the trusted certificates or the credentials could not be read.
    NotSent(String),
    /// The call failed; with the HTTP status code, if there was a response.
    Failed { code: Option<u16>, why: String },
    /// Too many requests of this user wait for webhooks. This one is rejected, whatever the failure policy.
    Busy,
}

/// The message for a request that is rejected because too many wait for webhooks.
pub const TOO_MANY_OUTSIDE: &str = "too many large requests wait for webhooks";

/// An event about an object that is being written.
pub struct Event<'a> {
    pub about: &'a Object,
    pub component: &'a str,
    pub reason: &'a str,
    pub message: String,
}

/// A call of a webhook, for metrics.
pub struct WebhookCall<'a> {
    pub hook: &'a str,
    pub mutating: bool,
    pub operation: Operation,
    pub took: Duration,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    /// With the HTTP status code of the rejection.
    Refused(u16),
    /// The call failed or its response was invalid. `open`: the failure policy ignores it. `code`: the HTTP status code.
    Failed {
        open: bool,
        code: u16,
    },
    /// The webhook has side effects and must not be called for a dry run.
    Unfit,
}

/// The decision of a policy and binding, for metrics.
pub struct PolicyDecision<'a> {
    pub policy: &'a str,
    pub binding: &'a str,
    /// Upstream's name for the error of its expressions.
    pub error: &'static str,
    /// The enforcement action of a validating policy.
    pub action: Option<&'static str>,
    pub took: Duration,
}

/// The evaluation of `matchConditions`, for metrics.
pub struct MatchEvaluation<'a> {
    pub owner: &'a MatchOwner,
    pub operation: Operation,
    /// The number of conditions that failed to evaluate.
    pub errors: usize,
    pub took: Duration,
}

/// The webhook or policy that match conditions belong to, in the terms of upstream's metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchOwner {
    pub kind: &'static str,
    pub when: &'static str,
    pub name: String,
}

pub trait Plugin: Send + Sync {
    /// Upstream's name, as in `--enable-admission-plugins`.
    fn name(&self) -> &'static str;

    /// The group and resource that the plugin reads, if it may be disabled.
    fn needs(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    fn mutate(&self, _review: &Review<'_>, _object: &mut Object) -> Result<(), Status> {
        Ok(())
    }

    /// Whether a controller is about to create what a rejected mutation needs: the mutation is then retried for a moment. The rejected one must not
    /// have changed the object.
    fn is_early(&self, _review: &Review<'_>, _object: &Object) -> bool {
        false
    }

    /// Validates a write. `object` is none for a deletion.
    fn validate(&self, _review: &Review<'_>, _object: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }

    /// Estimates how many bytes of other objects ([`Lookup::bytes`]) the plugin decodes for a write. Called before
    /// the body is read, to choose the thread for the request.
    fn reads(&self, _write: &WriteRequest<'_>, _lookup: &dyn Lookup) -> usize {
        0
    }

    /// Whether the plugin rejects some writes because no quota exists, and so is called to charge where there is none.
    fn wants_quotas(&self) -> bool {
        false
    }

    /// Sets the quotas of `write`, which must be written in the same transaction as the object, each as looked up
    /// except for its usage. After an error none is written.
    fn charge(&self, _review: &Review<'_>, _object: &Object, _write: &mut dyn FnMut(Object)) -> Result<(), Status> {
        Ok(())
    }
}

/// A plugin that calls webhooks or evaluates policies, and therefore awaits.
#[async_trait]
pub trait Remote: Send + Sync {
    fn name(&self) -> &'static str;

    /// Loads files and credentials once, before the first request.
    async fn open(&mut self, _clock: &Arc<dyn Clock>) -> Result<(), String> {
        Ok(())
    }

    /// Whether the plugin has anything to call for this request. Must be cheap.
    fn applies(&self, review: &Review<'_>) -> bool;

    /// See [`Plugin::reads`].
    fn reads(&self, _write: &WriteRequest<'_>, _lookup: &dyn Lookup) -> usize {
        0
    }

    async fn mutate(
        &self,
        _review: &Review<'_>,
        _object: &mut Object,
        _rounds: &mut Reinvocation,
    ) -> Result<(), Status> {
        Ok(())
    }

    async fn validate(&self, _review: &Review<'_>, _object: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }
}

/// What each remote plugin keeps from the first round of mutation for the second (`reinvocationPolicy`).
#[derive(Default)]
pub struct Reinvocation {
    pub second: bool,
    /// A webhook or policy has changed the object: local plugins run again, once.
    pub again: bool,
    pub policies: Reinvoked,
    pub webhooks: Reinvoked,
}

/// The reinvocation state of one plugin, by webhook or policy UID.
#[derive(Default)]
pub struct Reinvoked {
    /// The object after the first round.
    last: Option<Object>,
    /// Webhooks or policies to reinvoke if the object changes after them.
    invoked: HashSet<String>,
    /// Those due for reinvocation.
    due: HashSet<String>,
}

impl Reinvoked {
    /// Starts the second round: changes since the first round count too.
    pub fn begin_again(&mut self, object: Option<&Object>) {
        if self.last.as_ref() != object {
            self.changed();
        }
    }

    /// Records that the object has changed: all invoked so far are due for reinvocation.
    pub fn changed(&mut self) {
        self.due.extend(self.invoked.drain());
    }

    /// Marks a plugin or webhook for reinvocation if the object changes later.
    pub fn mark(&mut self, name: &str) {
        self.invoked.insert(name.to_owned());
    }

    pub fn is_due(&self, name: &str) -> bool {
        self.due.contains(name)
    }

    /// Ends the first round. Keeps the object only if it will be compared.
    pub fn end(&mut self, object: Option<&Object>) {
        if !self.invoked.is_empty() {
            self.last = object.cloned();
        }
    }
}

/// Maximum number of attempts for a mutation that came too early, and the pause between attempts.
const EARLY_TRIES: usize = 15;
const EARLY_PAUSE: Duration = Duration::from_millis(100);

pub(crate) enum Step {
    Local(Box<dyn Plugin>),
    Remote(Box<dyn Remote>),
}

impl Step {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Local(p) => p.name(),
            Self::Remote(p) => p.name(),
        }
    }
}

/// Records the run of a remote plugin. Local plugins take less time than reading the clock.
fn passed(review: &Review<'_>, index: usize, plugin: &'static str, validating: bool, rejected: bool, since: Instant) {
    let (operation, took) = (review.operation, since.elapsed());
    review.host.record_plugin_run(index, &PluginRun { plugin, validating, operation, rejected, took });
}

pub(crate) fn failed_start(plugin: &str, why: &str) -> String {
    format!("couldn't init admission plugin {plugin:?}: {why}")
}

/// Why a plugin could not be created.
pub(crate) enum Unmade {
    /// Its configuration is invalid.
    Configuration(String),
    /// It was created but cannot be used (upstream's `ValidateInitialization`).
    Unready(String),
}

impl From<String> for Unmade {
    fn from(why: String) -> Self {
        Self::Configuration(why)
    }
}

impl Unmade {
    pub fn message(&self, plugin: &str) -> String {
        match self {
            Self::Configuration(why) => failed_start(plugin, why),
            Self::Unready(why) => format!("failed to initialize admission plugin {plugin:?}: {why}"),
        }
    }
}

/// Plugins in order: all mutate before any validates.
pub struct Chain {
    pub(crate) steps: Vec<Step>,
}

impl Chain {
    /// The names of the plugins, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.steps.iter().map(Step::name)
    }

    /// The plugins that read a resource which may be disabled, with its group and name.
    pub fn needs(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        let reads_of = |s: &Step| match s {
            Step::Local(p) => p.needs().map(|(group, resource)| (p.name(), group, resource)),
            _ => None,
        };
        self.steps.iter().filter_map(reads_of).collect()
    }

    /// Opens every plugin: reads its files and credentials.
    pub async fn open(mut self, clock: &Arc<dyn Clock>) -> Result<Self, String> {
        for s in &mut self.steps {
            if let Step::Remote(p) = s {
                p.open(clock).await.map_err(|why| failed_start(p.name(), &why))?;
            }
        }
        Ok(self)
    }

    pub async fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<MutatedBy, Status> {
        let mut rounds = Reinvocation::default();
        self.round(review, object, &mut rounds).await?;
        if !rounds.again {
            return Ok(MutatedBy::Plugins);
        }
        rounds.second = true;
        self.round(review, object, &mut rounds).await?;
        Ok(MutatedBy::Anyone)
    }

    async fn round(&self, review: &Review<'_>, object: &mut Object, rounds: &mut Reinvocation) -> Result<(), Status> {
        for (i, s) in self.steps.iter().enumerate() {
            match s {
                Step::Local(p) => {
                    let mut answer = p.mutate(review, object);
                    let mut tries = 1;
                    while answer.is_err() && tries < EARLY_TRIES && p.is_early(review, object) {
                        tokio::time::sleep(EARLY_PAUSE).await;
                        answer = p.mutate(review, object);
                        tries += 1;
                    }
                    answer?;
                }
                Step::Remote(p) if p.applies(review) => {
                    let since = Instant::now();
                    let answer = p.mutate(review, object, rounds).await;
                    passed(review, i, p.name(), false, answer.is_err(), since);
                    answer?;
                }
                Step::Remote(_) => {}
            }
        }
        Ok(())
    }

    /// See [`Plugin::reads`].
    pub fn reads(&self, write: &WriteRequest<'_>, lookup: &dyn Lookup) -> usize {
        let bytes = |s: &Step| match s {
            Step::Local(p) => p.reads(write, lookup),
            Step::Remote(p) => p.reads(write, lookup),
        };
        self.steps.iter().map(bytes).sum()
    }

    /// See [`Plugin::wants_quotas`].
    pub fn wants_quotas(&self) -> bool {
        self.steps.iter().any(|s| matches!(s, Step::Local(p) if p.wants_quotas()))
    }

    /// Gives `write` the quotas to write together with the object; see [`Plugin::charge`].
    pub fn charge(&self, review: &Review<'_>, object: &Object, write: &mut dyn FnMut(Object)) -> Result<(), Status> {
        for s in &self.steps {
            if let Step::Local(p) = s {
                p.charge(review, object, write)?;
            }
        }
        Ok(())
    }

    pub async fn validate(&self, review: &Review<'_>, object: Option<&Object>) -> Result<(), Status> {
        for (i, s) in self.steps.iter().enumerate() {
            match s {
                Step::Local(p) => p.validate(review, object)?,
                Step::Remote(p) if p.applies(review) => {
                    let since = Instant::now();
                    let answer = p.validate(review, object).await;
                    passed(review, i, p.name(), true, answer.is_err(), since);
                    answer?;
                }
                Step::Remote(_) => {}
            }
        }
        Ok(())
    }
}
