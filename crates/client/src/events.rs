//! The event recorder.
//!
//! Equal events are counted in one object, many that differ only in their message are aggregated, and events for one object are
//! rate-limited (client-go `tools/record`). Recording never waits and never fails its caller: a task sends the events, and
//! drops them when it cannot keep up.

mod correlate;

use crate::{Api, ApiResource, Client, Error, Patch, Shutdown, WriteOptions};
use correlate::{Correlator, Event, Send};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use meta::{Clock, Object};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use supervisor::panics::caught;
use tokio::sync::mpsc;

/// How many events may wait to be sent.
const WAITING: usize = 1000;
/// Attempts to send one event.
const TRIES: u32 = 12;

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Informative.
    Normal,
    /// Something may need attention.
    Warning,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The object of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Regarding {
    /// API version of the object: `apps/v1`.
    pub api_version: String,
    /// Kind of the object.
    pub kind: String,
    /// Namespace of the object; empty if cluster-scoped. Its event is then in `default`.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    pub uid: String,
    /// Resource version of the object that the reporter saw; may be empty.
    pub resource_version: String,
    /// `spec.containers{name}` for an event about a container.
    pub field_path: String,
}

impl Regarding {
    /// Refers to an object of an informer, which may lack `apiVersion` and `kind`.
    pub fn from_meta(api_version: &str, kind: &str, m: &crate::Meta) -> Self {
        Self {
            api_version: api_version.into(),
            kind: kind.into(),
            namespace: m.namespace.to_string(),
            name: m.name.to_string(),
            uid: m.uid.to_string(),
            resource_version: m.resource_version.clone(),
            field_path: String::new(),
        }
    }

    /// Refers to a complete object.
    pub fn object(o: &Object) -> Self {
        Self {
            api_version: o.api_version().into(),
            kind: o.kind().into(),
            namespace: o.namespace().into(),
            name: o.name().into(),
            uid: o.uid().into(),
            resource_version: o.resource_version().into(),
            field_path: String::new(),
        }
    }

    /// Refers to a field of the object, such as `spec.containers{name}`.
    #[must_use]
    pub fn field(mut self, path: &str) -> Self {
        self.field_path = path.into();
        self
    }

    fn value(&self) -> Value {
        let s = |v: &str| (!v.is_empty()).then(|| v.to_owned());
        let reference = ObjectReference {
            api_version: s(&self.api_version),
            field_path: s(&self.field_path),
            kind: s(&self.kind),
            name: s(&self.name),
            namespace: s(&self.namespace),
            resource_version: s(&self.resource_version),
            uid: s(&self.uid),
        };
        serde_json::to_value(reference).unwrap_or_default()
    }
}

/// The component that reports, and the API version of its events.
#[derive(Clone, Debug)]
pub enum Source {
    /// `v1` events, as controllers and the node agent write them.
    Core {
        /// Name of the component: `kubelet`.
        component: String,
        /// Name of its node; empty for none.
        host: String,
    },
    /// `events.k8s.io/v1` events, as the scheduler writes them.
    Events {
        /// Name of the component (`reportingController`).
        controller: String,
        /// Name of its process (`reportingInstance`).
        instance: String,
    },
}

impl Source {
    /// Source of `v1` events without a host, such as a controller.
    pub fn component(name: &str) -> Self {
        Self::Core { component: name.into(), host: String::new() }
    }

    /// Source of `events.k8s.io/v1` events: the instance is `name-host`.
    pub fn scheduler(name: &str, host: &str) -> Self {
        Self::Events { controller: name.into(), instance: format!("{name}-{host}") }
    }
}

/// Records events. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Event>,
    clock: Arc<dyn Clock>,
    last: Arc<Mutex<Timestamp>>,
}

/// Events of one moment are this far apart, since their names contain the time.
const APART: SignedDuration = SignedDuration::from_nanos(1);
/// How far events may be ahead of the clock for that.
const AHEAD: SignedDuration = SignedDuration::from_millis(1);

impl Recorder {
    /// Starts the sending task, which ends with `shutdown`. Must be called inside the runtime.
    pub fn start(client: &Client, source: Source, clock: Arc<dyn Clock>, shutdown: Shutdown) -> Self {
        let (queue, mut events) = mpsc::channel::<Event>(WAITING);
        let resource = match source {
            Source::Core { .. } => ApiResource::named("", "v1", "events", "Event", true),
            Source::Events { .. } => ApiResource::named("events.k8s.io", "v1", "events", "Event", true),
        };
        let api = client.dynamic(&resource);
        tokio::spawn(async move {
            let mut correlator = Correlator::default();
            let work = async {
                while let Some(t) = events.recv().await {
                    let (about, correlator) = (t.about.clone(), &mut correlator);
                    let work = async {
                        if let Some(send) = correlator.correlate(t) {
                            deliver(&api, &source, correlator, send).await;
                        }
                    };
                    let _ = caught("event-recorder", about, work).await;
                }
            };
            shutdown.race(work).await;
        });
        Self { queue, clock, last: Arc::new(Mutex::new(Timestamp::UNIX_EPOCH)) }
    }

    /// The time, unlike that of the event before.
    fn moment(&self) -> Timestamp {
        let mut last = self.last.lock();
        let now = self.clock.now();
        *last = if now <= *last && last.duration_since(now) < AHEAD {
            last.saturating_add(APART).unwrap_or(now)
        } else {
            now
        };
        *last
    }

    /// Records an event without an action. `reason` is in CamelCase.
    pub fn event(&self, about: Regarding, severity: Severity, reason: &str, message: impl Into<String>) {
        self.action(about, severity, reason, "", message);
    }

    /// Records a `Normal` event.
    pub fn normal(&self, about: Regarding, reason: &str, message: impl Into<String>) {
        self.event(about, Severity::Normal, reason, message);
    }

    /// Records a `Warning` event.
    pub fn warning(&self, about: Regarding, reason: &str, message: impl Into<String>) {
        self.event(about, Severity::Warning, reason, message);
    }

    /// Records an event with an `action` that was performed or failed (`Scheduling`, `Binding`).
    pub fn action(&self, about: Regarding, severity: Severity, reason: &str, action: &str, message: impl Into<String>) {
        self.action_for(about, None, severity, reason, action, message);
    }

    /// Records an event with an `action` that was performed because of a `related` object.
    pub fn action_for(
        &self,
        about: Regarding,
        related: Option<Regarding>,
        severity: Severity,
        reason: &str,
        action: &str,
        message: impl Into<String>,
    ) {
        let annotations = BTreeMap::new();
        let (reason, action, message) = (reason.into(), action.into(), message.into());
        self.push(Event { about, related, severity, reason, action, message, annotations, at: self.moment() });
    }

    /// Records an event with annotations.
    pub fn annotated(
        &self,
        about: Regarding,
        severity: Severity,
        reason: &str,
        message: impl Into<String>,
        annotations: BTreeMap<String, String>,
    ) {
        let (related, action, at) = (None, String::new(), self.moment());
        let (reason, message) = (reason.into(), message.into());
        self.push(Event { about, related, severity, reason, action, message, annotations, at });
    }

    fn push(&self, mut event: Event) {
        // The API's limit.
        if event.message.len() > 1024 {
            let cut = (0..=1021).rev().find(|i| event.message.is_char_boundary(*i)).unwrap_or(0);
            event.message.truncate(cut);
            event.message.push_str("...");
        }
        if self.queue.try_send(event).is_err() {
            tracing::debug!("event dropped: the queue is full");
        }
    }
}

async fn deliver(api: &Api<Object>, source: &Source, correlator: &mut Correlator, send: Send) {
    let namespace = match send.event.about.namespace.as_str() {
        "" => "default",
        ns => ns,
    };
    let api = api.clone().namespace(namespace);
    let mut wait = Duration::from_secs(1);
    for _ in 0..TRIES {
        match once(&api, source, correlator, &send, namespace).await {
            Ok(()) => return,
            // The server rejected it and would again.
            Err(e) if !e.is_transient() => {
                tracing::debug!(reason = send.event.reason, "event rejected by the server: {e}");
                return;
            }
            Err(e) => tracing::debug!(reason = send.event.reason, "sending an event failed: {e}"),
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(10));
    }
}

async fn once(
    api: &Api<Object>,
    source: &Source,
    correlator: &mut Correlator,
    send: &Send,
    namespace: &str,
) -> Result<(), Error> {
    if let Some(name) = &send.name {
        let patch = Patch::Merge(repeat(source, send));
        match api.patch(name, &WriteOptions::default(), &patch).await {
            Err(e) if e.is_not_found() => {}
            other => return other.map(|_| ()),
        }
    }
    let event = first(source, send, namespace);
    let name = event["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let Some(event) = Object::from_value(event) else { return Ok(()) };
    match api.create(&WriteOptions::default(), &event).await {
        Ok(_) => {}
        Err(e) if e.is_already_exists() => {}
        Err(e) => return Err(e),
    }
    correlator.sent(send, name);
    Ok(())
}

/// The fields that change when an event is repeated.
fn repeat(source: &Source, send: &Send) -> Value {
    match source {
        Source::Core { .. } => json!({
            "count": send.count, "lastTimestamp": meta::time::format(send.event.at), "message": send.event.message,
        }),
        Source::Events { .. } => json!({
            "series": {"count": send.count, "lastObservedTime": meta::time::format_micro(send.event.at)},
        }),
    }
}

fn first(source: &Source, send: &Send, namespace: &str) -> Value {
    let t = &send.event;
    // Upstream's names: the object's, and the time in hexadecimal nanoseconds.
    let name = format!("{}.{:x}", t.about.name, t.at.as_nanosecond());
    let mut metadata = json!({"name": name, "namespace": namespace});
    if !t.annotations.is_empty() {
        metadata["annotations"] = json!(t.annotations);
    }
    match source {
        Source::Core { component, host } => {
            let time = meta::time::format(t.at);
            let mut source = json!({"component": component});
            if !host.is_empty() {
                source["host"] = host.as_str().into();
            }
            json!({
                "apiVersion": "v1", "kind": "Event", "metadata": metadata,
                "involvedObject": t.about.value(), "reason": t.reason, "message": t.message,
                "source": source, "reportingComponent": component, "reportingInstance": host,
                "firstTimestamp": meta::time::format(send.first), "lastTimestamp": time,
                "count": send.count, "type": t.severity.as_str(),
            })
        }
        Source::Events { controller, instance } => {
            let mut event = json!({
                "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": metadata,
                "regarding": t.about.value(), "reason": t.reason, "note": t.message, "action": t.action,
                "reportingController": controller, "reportingInstance": instance,
                "eventTime": meta::time::format_micro(send.first), "type": t.severity.as_str(),
            });
            if let Some(related) = &t.related {
                event["related"] = related.value();
            }
            if send.count > 1 {
                event["series"] = json!({"count": send.count, "lastObservedTime": meta::time::format_micro(t.at)});
            }
            event
        }
    }
}
