//! The traits of all plugins, what they are told, and what the server does for them.

use async_trait::async_trait;
use auth::{Attributes, Caller, Decision, Endpoint};
use meta::{Clock, GroupResource, Gvk, Gvr, LabelSelector, Object, Status, Value};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// One write as plugins see it. The new object is handed in beside.
pub struct Review<'a> {
    pub operation: Operation,
    pub attributes: &'a Attributes,
    /// Of the object: for a subresource the kind it speaks.
    pub kind: Gvk,
    pub subresource: &'a str,
    pub namespace: &'a str,
    /// As the request has it; empty when the server generates one.
    pub name: &'a str,
    /// The object's, generated or not.
    pub object_name: &'a str,
    pub old: Option<&'a Object>,
    pub dry_run: bool,
    pub lookup: &'a dyn Lookup,
    pub host: &'a dyn Host,
}

impl Review<'_> {
    /// The main resource of this group and plural, not one of its subresources.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.is_part(group, resource, "")
    }

    /// This subresource of this group and plural.
    pub fn is_part(&self, group: &str, resource: &str, subresource: &str) -> bool {
        self.attributes.group == group && self.attributes.resource == resource && self.subresource == subresource
    }

    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.attributes.group.clone(), resource: self.attributes.resource.clone() }
    }

    pub fn forbidden(&self, why: &str) -> Status {
        Status::forbidden(&self.group_resource(), self.object_name, why)
    }

    /// The user may do this as well.
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

/// Names and values.
pub type Labels = HashMap<String, String>;

/// An object that was found and is read when it is its turn ([`Lookup::get`]): what a user stores is not decoded all at once.
#[derive(Debug)]
pub struct Found {
    pub name: String,
    /// Bytes as stored.
    pub size: usize,
}

/// A write whose body has not been read: what its path says.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// As it was authorized.
    pub verb: &'a str,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Write<'_> {
    /// A new object of this group and plural.
    pub fn creates(&self, group: &str, resource: &str) -> bool {
        self.verb == "create" && self.is(group, resource)
    }

    /// The main resource of this group and plural, not one of its subresources.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        (self.group, self.resource, self.subresource) == (group, resource, "")
    }
}

/// Which objects of a resource are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which<'a> {
    All,
    Named(&'a str),
    /// One of them. Before the body is read nobody knows which, and it counts as the largest.
    One,
}

/// Other objects, as they are stored now.
pub trait Lookup: Sync {
    /// About how many bytes reading such objects decodes. Decodes nothing.
    fn bytes(&self, group: &str, resource: &str, namespace: Option<&str>, which: Which<'_>) -> usize;
    /// Where objects of a kind are, and whether they are in namespaces.
    fn resource(&self, kind: &Gvk) -> Option<(Gvr, bool)>;
    /// An object, none if there is none. Errors if it is stored and cannot be read: nothing is admitted as if it were absent.
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Result<Option<Arc<Object>>, Status>;
    /// The objects of a resource, in one namespace or of the whole cluster, in the order of their names. Each is decoded when the iterator
    /// comes to it: keep only what is needed of it, and what users store is never in memory all at once. An object that cannot be read
    /// is an error that names it.
    fn list(
        &self,
        group: &str,
        resource: &str,
        namespace: Option<&str>,
    ) -> Box<dyn Iterator<Item = Result<Object, Status>> + Send + '_>;
    /// The objects that a selector chooses, without decoding any: of a resource, in one namespace or of the whole cluster.
    fn find(&self, group: &str, resource: &str, namespace: &str, selector: &LabelSelector) -> Vec<Found>;
    /// Changes whenever an object of the resource does; 0 when there is none. Decodes nothing.
    fn fingerprint(&self, group: &str, resource: &str) -> u64;

    /// The labels of an object, without decoding it.
    fn labels(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Labels>;

    fn namespace_labels(&self, namespace: &str) -> Option<Labels> {
        self.labels("", "namespaces", "", namespace)
    }

    /// Whether a namespace is going away; none when there is none. Asked at every create, and so worth a shorter way.
    fn is_terminating(&self, namespace: &str) -> Result<Option<bool>, Status> {
        Ok(self.get("", "namespaces", "", namespace)?.map(|ns| is_terminating(&ns)))
    }
}

/// A namespace that is being deleted, or says so.
pub fn is_terminating(namespace: &Object) -> bool {
    namespace.is_deleting() || namespace.str_at(&["status", "phase"]) == Some("Terminating")
}

/// What the server does for plugins: kinds and their versions, permissions, and the way out.
#[async_trait]
pub trait Host: Sync {
    /// Tells the client something; it reaches it with an error as well.
    fn warn(&self, text: String);
    fn decide(&self, attributes: &Attributes) -> Decision;
    fn may(&self, attributes: &Attributes) -> bool {
        self.decide(attributes).allowed()
    }
    /// A new random UID.
    fn uid(&self) -> String;
    /// The options of the request: `CreateOptions` and the like.
    fn options(&self) -> Value;
    /// The same objects under other versions and groups, with their kinds there.
    fn equivalents(&self, resource: &Gvr, subresource: &str) -> Vec<(Gvr, Gvk)>;
    async fn convert(&self, object: Object, to: &Gvk) -> Result<Object, Status>;
    /// Gives what somebody made the form of its kind: typed and defaulted.
    fn read(&self, value: Value, kind: &Gvk) -> Result<Object, Status>;
    /// Merges part of an object into it, as server-side apply merges, but for the managed fields.
    fn merge(&self, live: &Value, part: &Value, kind: &Gvk) -> Result<Value, String>;
    /// Sends JSON, as somebody or as nobody, and answers with the body of a success; an error is told as Go's client would.
    async fn post(
        &self,
        to: &Endpoint,
        caller: Option<&Arc<Caller>>,
        timeout: Duration,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, Unanswered>;
    /// Makes a namespace, as the server itself.
    async fn create_namespace(&self, name: &str) -> Result<(), Status>;
    /// A fact for the audit log.
    fn annotate(&self, _key: &str, _value: &dyn std::fmt::Display) {}
    /// The same, only where requests are written down with their objects.
    fn annotate_details(&self, _key: &str, _value: &dyn std::fmt::Display) {}
    /// Tells something about the object in an event, which is written later or not at all.
    fn event(&self, _event: &Event<'_>) {}
    /// A webhook was asked.
    fn asked(&self, _asked: &Asked<'_>) {}
    /// A webhook is not asked, since its conditions do not hold.
    fn excluded(&self, _whose: &Whose, _operation: Operation) {}
    /// A policy has decided about a request.
    fn decided(&self, _decided: &Decided<'_>) {}
    /// Conditions have said whether somebody is to be asked at all.
    fn matched(&self, _matched: &Matching<'_>) {}
    /// A plugin that asks others was asked, the one at this place of the chain.
    fn passed(&self, _place: usize, _passed: &Passed) {}
}

/// What a plugin took, for those who count.
pub struct Passed {
    pub plugin: &'static str,
    pub validating: bool,
    pub operation: Operation,
    pub rejected: bool,
    pub took: Duration,
}

/// Why nobody answered.
#[derive(Debug)]
pub enum Unanswered {
    /// Nobody could be asked: whom to trust or who asks is not to be known.
    Unasked(String),
    /// With the HTTP code, if there was one.
    Asked { code: Option<u16>, why: String },
    /// Too many requests of this user wait for webhooks. This one is refused, whatever the policy for failures.
    Busy,
}

/// The refusal of a request that would be one too many of those that wait for webhooks.
pub const TOO_MANY_OUTSIDE: &str = "too many large requests wait for webhooks";

/// A warning about an object that is on its way to the store.
pub struct Event<'a> {
    pub about: &'a Object,
    pub component: &'a str,
    pub reason: &'a str,
    pub message: String,
}

/// A call of a webhook, for those who count.
pub struct Asked<'a> {
    pub hook: &'a str,
    pub mutating: bool,
    pub operation: Operation,
    pub took: Duration,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    /// With the HTTP code of the refusal.
    Refused(u16),
    /// It could not be asked, or answered nonsense. `open`: the request goes on all the same. With the HTTP code that tells why.
    Failed {
        open: bool,
        code: u16,
    },
    /// It must not be asked.
    Unfit,
}

/// What a bound policy came to, for those who count.
pub struct Decided<'a> {
    pub policy: &'a str,
    pub binding: &'a str,
    /// Upstream's word for what was wrong with its expressions.
    pub error: &'static str,
    /// Of a validating policy: what followed.
    pub action: Option<&'static str>,
    pub took: Duration,
}

/// What `matchConditions` came to, for those who count.
pub struct Matching<'a> {
    pub whose: &'a Whose,
    pub operation: Operation,
    /// Conditions that have no value.
    pub errors: usize,
    pub took: Duration,
}

/// Whose conditions they are, in upstream's words: `webhook` or `policy`, and when it is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whose {
    pub kind: &'static str,
    pub when: &'static str,
    pub name: String,
}

pub trait Plugin: Send + Sync {
    /// Upstream's name, as in `--enable-admission-plugins`.
    fn name(&self) -> &'static str;

    /// The group and resource it reads, where that may be turned off.
    fn needs(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    fn mutate(&self, _review: &Review<'_>, _object: &mut Object) -> Result<(), Status> {
        Ok(())
    }

    /// Whether what a refused mutation lacks is about to be made by a controller: it is then tried again for a moment. Nothing may be left
    /// of the refused one.
    fn is_early(&self, _review: &Review<'_>, _object: &Object) -> bool {
        false
    }

    /// `object` is none for a deletion.
    fn validate(&self, _review: &Review<'_>, _object: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }

    /// About how many bytes of other objects ([`Lookup::bytes`]) the plugin decodes for a write. The estimate is made before the body is read, and
    /// decides where the request is worked on.
    fn reads(&self, _write: &Write<'_>, _lookup: &dyn Lookup) -> usize {
        0
    }

    /// It refuses some things because no quota is there, and so is asked to charge where none is.
    fn wants_quotas(&self) -> bool {
        false
    }

    /// Gives `write` the quotas that must be written in the same transaction as the object, each as it was looked up but for its usage. After an
    /// error nothing of them is written.
    fn charge(&self, _review: &Review<'_>, _object: &Object, _write: &mut dyn FnMut(Object)) -> Result<(), Status> {
        Ok(())
    }
}

/// A plugin that asks somebody outside, and so has to wait.
#[async_trait]
pub trait Remote: Send + Sync {
    fn name(&self) -> &'static str;

    /// Reads what it needs from outside, once, before it is asked anything.
    async fn open(&mut self, _clock: &Arc<dyn Clock>) -> Result<(), String> {
        Ok(())
    }

    /// False when nobody is to be asked, which must be cheap to find out.
    fn wants(&self, review: &Review<'_>) -> bool;

    /// See [`Plugin::reads`].
    fn reads(&self, _write: &Write<'_>, _lookup: &dyn Lookup) -> usize {
        0
    }

    async fn mutate(&self, _review: &Review<'_>, _object: &mut Object, _rounds: &mut Rounds) -> Result<(), Status> {
        Ok(())
    }

    async fn validate(&self, _review: &Review<'_>, _object: Option<&Object>) -> Result<(), Status> {
        Ok(())
    }
}

/// What remote plugins remember from the first round of mutation to the second (`reinvocationPolicy`), each for itself.
#[derive(Default)]
pub struct Rounds {
    pub second: bool,
    /// Somebody outside has changed the object: everybody inside is asked again, once.
    pub again: bool,
    pub policies: Reinvoked,
    pub webhooks: Reinvoked,
}

/// Who is asked again of one plugin's, by what they are called.
#[derive(Default)]
pub struct Reinvoked {
    /// The object as the plugin left it in the first round.
    last: Option<Object>,
    /// Those that want to be asked again when another changes the object after them.
    invoked: HashSet<String>,
    /// Those of them whose time has come.
    due: HashSet<String>,
}

impl Reinvoked {
    /// The second round begins: what others have changed since counts too.
    pub fn begin_again(&mut self, object: Option<&Object>) {
        if self.last.as_ref() != object {
            self.changed();
        }
    }

    /// The object has changed since those invoked so far have seen it.
    pub fn changed(&mut self) {
        self.due.extend(self.invoked.drain());
    }

    /// This one wants to be asked again.
    pub fn asked(&mut self, name: &str) {
        self.invoked.insert(name.to_owned());
    }

    pub fn is_due(&self, name: &str) -> bool {
        self.due.contains(name)
    }

    /// The first round ends. What nobody will compare is not kept.
    pub fn end(&mut self, object: Option<&Object>) {
        if !self.invoked.is_empty() {
            self.last = object.cloned();
        }
    }
}

/// Who changed an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutated {
    /// At most the plugins of the server.
    Inside,
    /// Somebody who may have changed anything.
    Outside,
}

/// How often a mutation is tried that came too early, and how long it waits in between.
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

/// Tells what a plugin took that asked others. The rest take less time than the clock that would measure them.
fn passed(review: &Review<'_>, place: usize, plugin: &'static str, validating: bool, rejected: bool, since: Instant) {
    let (operation, took) = (review.operation, since.elapsed());
    review.host.passed(place, &Passed { plugin, validating, operation, rejected, took });
}

pub(crate) fn failed_start(plugin: &str, why: &str) -> String {
    format!("couldn't init admission plugin {plugin:?}: {why}")
}

/// Why there is no plugin.
pub(crate) enum Unmade {
    /// It cannot be what it is told to be.
    Told(String),
    /// It could be made, but not be used (upstream's `ValidateInitialization`).
    Unready(String),
}

impl From<String> for Unmade {
    fn from(why: String) -> Self {
        Self::Told(why)
    }
}

impl Unmade {
    pub fn told(&self, plugin: &str) -> String {
        match self {
            Self::Told(why) => failed_start(plugin, why),
            Self::Unready(why) => format!("failed to initialize admission plugin {plugin:?}: {why}"),
        }
    }
}

/// Plugins in their order: all mutate before any validates.
pub struct Chain {
    pub(crate) steps: Vec<Step>,
}

impl Chain {
    /// The names of the plugins, in their order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.steps.iter().map(Step::name)
    }

    /// What plugins read that may be turned off: the plugin, the group and the resource.
    pub fn needs(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        let of = |s: &Step| match s {
            Step::Local(p) => p.needs().map(|(group, resource)| (p.name(), group, resource)),
            _ => None,
        };
        self.steps.iter().filter_map(of).collect()
    }

    /// Makes every plugin ready to be asked.
    pub async fn open(mut self, clock: &Arc<dyn Clock>) -> Result<Self, String> {
        for s in &mut self.steps {
            if let Step::Remote(p) = s {
                p.open(clock).await.map_err(|why| failed_start(p.name(), &why))?;
            }
        }
        Ok(self)
    }

    pub async fn mutate(&self, review: &Review<'_>, object: &mut Object) -> Result<Mutated, Status> {
        let mut rounds = Rounds::default();
        self.round(review, object, &mut rounds).await?;
        if !rounds.again {
            return Ok(Mutated::Inside);
        }
        rounds.second = true;
        self.round(review, object, &mut rounds).await?;
        Ok(Mutated::Outside)
    }

    async fn round(&self, review: &Review<'_>, object: &mut Object, rounds: &mut Rounds) -> Result<(), Status> {
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
                Step::Remote(p) if p.wants(review) => {
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
    pub fn reads(&self, write: &Write<'_>, lookup: &dyn Lookup) -> usize {
        let of = |s: &Step| match s {
            Step::Local(p) => p.reads(write, lookup),
            Step::Remote(p) => p.reads(write, lookup),
        };
        self.steps.iter().map(of).sum()
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
                Step::Remote(p) if p.wants(review) => {
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
