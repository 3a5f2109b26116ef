//! Watches APIServices: creates those of local versions, builds the routing table, and updates availability
//! conditions.

use super::check::{Availability, available};
use super::{Remote, Table, documents, local};
use crate::Server;
use crate::metrics::table::{BECAME_UNAVAILABLE, UNAVAILABLE};
use crate::server_kinds::{API_SERVICES, API_SERVICES_GROUP, API_SERVICES_PLURAL, ENDPOINT_SLICES, SERVICES};
use base64::Engine as _;
use meta::{GroupVersion, Object, Status, Value};
use registry::{AdmitAll, DeleteOptions, Preconditions, Registry, Request, Target, WriteOptions};
use serde_json::json;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use store::{Event, Scope, WatchError};
use stored::encode;
use tokio::task::JoinSet;

/// Interval of checks for changed local versions and newly available servers.
const LOOK: Duration = Duration::from_secs(1);
/// Interval of availability checks.
const ASK: Duration = Duration::from_secs(30);

/// Maintains the APIServices until the store closes.
pub fn run(server: Arc<Server>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(keep(server))
}

async fn keep(server: Arc<Server>) {
    let registry = server.registry.clone();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut ask = tokio::time::interval(ASK);
    ask.reset();
    let mut rows = None;
    loop {
        let after = registry.store.revision();
        refresh(&server).await;
        let scopes = [API_SERVICES, SERVICES, ENDPOINT_SLICES];
        let watches = scopes.map(|s| registry.store.watch(Scope::resource(s), after));
        let [Ok(mut objects), Ok(mut services), Ok(mut slices)] = watches else {
            if !registry.store.is_alive() {
                return;
            }
            tokio::time::sleep(LOOK).await;
            continue;
        };
        loop {
            let table = server.aggregator.table();
            let batch = tokio::select! {
                b = objects.next() => b,
                b = services.next() => b,
                b = slices.next() => b,
                _ = look.tick() => {
                    let now = Some(registry.rows().change(None));
                    if now != rows {
                        match register(&registry).await {
                            Ok(()) => rows = now,
                            Err(e) => tracing::warn!("registering API services: {e}"),
                        }
                    } else if table.remotes.values().any(|r| !r.available) {
                        refresh(&server).await;
                    }
                    continue;
                }
                _ = ask.tick(), if !table.remotes.is_empty() => {
                    refresh(&server).await;
                    continue;
                }
            };
            match batch {
                Ok(b) if b.events.iter().any(|e| concerns(&table, e)) => refresh(&server).await,
                Ok(_) => {}
                Err(WatchError::Expired { .. } | WatchError::Engine(_)) => break,
                Err(_) => return,
            }
        }
    }
}

/// Changes of services and endpoints are frequent, but few back an APIService.
fn concerns(table: &Table, e: &Event) -> bool {
    let key = &e.entry.key;
    let name = match &*key.resource {
        API_SERVICES => return true,
        SERVICES => key.name.to_string(),
        _ => {
            let label = e.entry.index().labels.iter().find(|(k, _)| **k == *"kubernetes.io/service-name");
            label.map(|(_, v)| v.to_string()).unwrap_or_default()
        }
    };
    table.remotes.values().any(|r| *r.namespace == *key.namespace && r.service == name)
}

fn api_services(registry: &Registry) -> Vec<Object> {
    let resource: store::Str = API_SERVICES.into();
    registry.store.snapshot().range(&resource, None, None).filter_map(|e| encode::decode_or_log(e)).collect()
}

/// The service of an APIService; none if it is local.
fn remote(o: &Object) -> Option<Remote> {
    let service = o.at(&["spec", "service"]).filter(|s| s.is_object())?;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let number = |k: &str| o.at(&["spec", k]).and_then(Value::as_i64).unwrap_or(0);
    let field = |k: &str| o.str_at(&["spec", k]).unwrap_or_default();
    Some(Remote {
        name: o.name().into(),
        group_version: GroupVersion::new(field("group"), field("version")),
        namespace: text(&service["namespace"]),
        service: text(&service["name"]),
        port: service["port"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(443),
        ca: base64::engine::general_purpose::STANDARD.decode(field("caBundle")).unwrap_or_default(),
        insecure: o.at(&["spec", "insecureSkipTLSVerify"]) == Some(&Value::Bool(true)),
        group_priority: number("groupPriorityMinimum"),
        version_priority: number("versionPriority"),
        available: false,
    })
}

/// Checks all servers and updates their conditions.
async fn refresh(server: &Arc<Server>) {
    let registry = &server.registry;
    let objects = api_services(registry);
    let mut checks = JoinSet::new();
    let before = server.aggregator.table();
    for (o, mut r) in objects.iter().filter_map(|o| Some((o, remote(o)?))) {
        let was = condition(o).is_some_and(|c| c["status"] == "True");
        let (server, old) = (server.clone(), before.found.get(&r.group_version).cloned());
        checks.spawn(async move {
            let availability = available(&server.aggregator, &server.registry, &r).await;
            r.available = availability.as_ref().map_or(was, |v| v.0 == "True");
            let found = documents::find(&server.aggregator, &server.registry, &r, old.as_deref()).await;
            (r, found, availability)
        });
    }
    let mut table = Table::default();
    let mut results: HashMap<String, Option<Availability>> = HashMap::new();
    while let Some(done) = checks.join_next().await {
        let Ok((r, found, availability)) = done else { continue };
        let gauge = server.metrics.set.gauge(&UNAVAILABLE, &[&r.name]);
        gauge.set(i64::from(!r.available));
        if !r.available && before.remotes.get(&r.group_version).is_some_and(|was| was.available) {
            let reason = availability.as_ref().map_or("", |v| v.1);
            server.metrics.set.counter(&BECAME_UNAVAILABLE, &[&r.name, reason]).inc();
        }
        results.insert(r.name.clone(), availability);
        table.found.insert(r.group_version.clone(), Arc::new(found));
        table.remotes.insert(r.group_version.clone(), Arc::new(r));
    }
    if table.remotes != before.remotes || table.found != before.found {
        server.aggregator.replace(table);
    }
    for o in &objects {
        let here = || ("True", "Local", "Local APIServices are always available".to_owned());
        let Some(availability) = results.remove(o.name()).unwrap_or_else(|| Some(here())) else { continue };
        if let Err(e) = write_condition(registry, o, &availability).await {
            tracing::debug!("the status of the API service {}: {e}", o.name());
        }
    }
}

fn options() -> WriteOptions {
    WriteOptions::by("kube-apiserver")
}

/// Whether the stored condition says that the server is available.
fn condition(o: &Object) -> Option<&Value> {
    let all = o.at(&["status", "conditions"]).and_then(Value::as_array);
    all.into_iter().flatten().find(is_available)
}

/// The condition that this module writes.
fn is_available(c: &&Value) -> bool {
    c["type"] == "Available"
}

/// Writes the condition if it has changed.
async fn write_condition(
    registry: &Registry,
    o: &Object,
    (status, reason, message): &Availability,
) -> Result<(), Status> {
    let live = condition(o);
    let same = |c: &Value| c["status"] == *status && c["reason"] == *reason && c["message"] == message.as_str();
    if live.is_some_and(same) {
        return Ok(());
    }
    let since = match live {
        Some(c) if c["status"] == *status => c["lastTransitionTime"].clone(),
        _ => meta::time::format(registry.clock.now()).into(),
    };
    let condition = json!({"type": "Available", "status": status, "lastTransitionTime": since, "reason": reason,
        "message": message});
    let rows = registry.rows();
    let Some(row) = rows.stored(API_SERVICES_GROUP, API_SERVICES_PLURAL) else { return Ok(()) };
    let request = Request::own(row.clone(), "status", "", o.name());
    let change = |live: Option<&Object>, _: &_| {
        let mut o = live.cloned().ok_or_else(|| Status::not_found(&request.group_resource(), &request.name))?;
        let all = o.at(&["status", "conditions"]).and_then(Value::as_array);
        let mut all: Vec<Value> = all.into_iter().flatten().filter(|c| !is_available(c)).cloned().collect();
        all.push(condition.clone());
        o.set(&["status", "conditions"], all);
        Ok(Target::object(o))
    };
    match registry.update(&request, &change, &Preconditions::default(), &options(), &AdmitAll).await {
        Err(s) if s.code != 404 => Err(s),
        _ => Ok(()),
    }
}

/// Creates and updates the APIServices of local versions. Leaves those of users unchanged.
async fn register(registry: &Registry) -> Result<(), Status> {
    let rows = registry.rows();
    let Some(row) = rows.stored(API_SERVICES_GROUP, API_SERVICES_PLURAL) else { return Ok(()) };
    let mut desired = local::api_services(&rows);
    for live in api_services(registry) {
        let managed = live.label(local::MANAGED).is_some();
        let request = Request::own(row.clone(), "", "", live.name());
        match desired.remove(live.name()) {
            None if managed => {
                registry.delete(&request, &DeleteOptions::default(), &AdmitAll).await?;
            }
            Some(next) if managed && next.get("spec") != live.get("spec") => {
                let change = |live: Option<&Object>, _: &_| {
                    let live = live.ok_or_else(|| Status::not_found(&request.group_resource(), &request.name))?;
                    let mut o = live.clone();
                    o.set(&["spec"], next.get("spec").cloned().unwrap_or_default());
                    Ok(Target::object(o))
                };
                registry.update(&request, &change, &Preconditions::default(), &options(), &AdmitAll).await?;
            }
            _ => {}
        }
    }
    for (name, o) in desired {
        let request = Request::own(row.clone(), "", "", &name);
        let mut v = o.into_value();
        schema::typed(&mut v, &row.kind.schema).map_err(Status::internal)?;
        schema::fill(&mut v, &row.kind.schema);
        let o = Object::from_value(v).ok_or_else(|| Status::internal("no object"))?;
        match registry.create(&request, o, &options(), &AdmitAll).await {
            Err(s) if !s.is(meta::Reason::AlreadyExists) => return Err(s),
            _ => {}
        }
    }
    Ok(())
}
