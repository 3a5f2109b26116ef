//! Watches FlowSchemas and PriorityLevelConfigurations: applies changes immediately, creates mandatory and suggested
//! objects, and updates the `Dangling` condition (upstream's config consumer and producer).

use crate::Server;
use crate::lookup::{Decoded, Stored};
use crate::server_kinds::{FLOW_GROUP, FLOW_SCHEMAS, PRIORITY_LEVELS};
use admission::Lookup;
use flowcontrol::Config;
use flowcontrol::bootstrap::{self, Kind, MANDATORY, SUGGESTED};
use meta::{Object, Reason, Status, Value};
use registry::row::storage_name;
use registry::{AdmitAll, Preconditions, Registry, Request, Resource, Target, Updated, WriteOptions};
use serde_json::json;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use store::{Scope, WatchError};

/// Interval of borrowing idle seats and syncing objects.
const LEND: Duration = Duration::from_secs(10);
const KEEP: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(1);

/// Maintains the configuration until the store closes.
pub fn run(server: Arc<Server>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(keep(server))
}

async fn keep(server: Arc<Server>) {
    let registry = server.registry.clone();
    load(&server);
    let mut lend = tokio::time::interval(LEND);
    let mut keep = tokio::time::interval(KEEP);
    loop {
        let after = registry.store.revision();
        load(&server);
        write_conditions(&registry, &server).await;
        let scope = |plural: &str| Scope::resource(&storage_name(FLOW_GROUP, plural));
        let watches = [FLOW_SCHEMAS, PRIORITY_LEVELS].map(|p| registry.store.watch(scope(p), after));
        let [Ok(mut schemas), Ok(mut levels)] = watches else {
            if !registry.store.is_alive() {
                return;
            }
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        loop {
            let changed = tokio::select! {
                c = schemas.next() => c,
                c = levels.next() => c,
                _ = lend.tick() => {
                    server.flow.allocate_seats();
                    continue;
                }
                _ = keep.tick() => {
                    if let Err(e) = maintain(&registry).await {
                        tracing::warn!("keeping the objects of priority and fairness: {e}");
                        keep.reset_after(AGAIN);
                    }
                    continue;
                }
            };
            match changed {
                Ok(_) => {
                    load(&server);
                    write_conditions(&registry, &server).await;
                }
                Err(WatchError::Expired { .. } | WatchError::Engine(_)) => break,
                Err(_) => return,
            }
        }
    }
}

fn list(registry: &Registry, plural: &str) -> Vec<Object> {
    let decoded = Decoded::default();
    let stored = Stored { registry, decoded: &decoded };
    let all = stored.list(FLOW_GROUP, plural, None);
    // The configuration consists of the readable objects.
    all.filter_map(|o| o.inspect_err(|s| tracing::error!("{}", s.message)).ok()).collect()
}

fn load(server: &Server) {
    let (schemas, levels) = (list(&server.registry, FLOW_SCHEMAS), list(&server.registry, PRIORITY_LEVELS));
    server.flow.replace(|seats, before| Config::new(seats, &schemas, &levels, Some(before)), &server.metrics.set);
}

fn options() -> WriteOptions {
    WriteOptions::by("api-priority-and-fairness-config-consumer-v1")
}

/// Updates the `Dangling` condition of every schema.
async fn write_conditions(registry: &Registry, server: &Server) {
    let rows = registry.rows();
    let Some(row) = rows.stored(FLOW_GROUP, FLOW_SCHEMAS) else { return };
    for o in list(registry, FLOW_SCHEMAS) {
        let level = o.str_at(&["spec", "priorityLevelConfiguration", "name"]).unwrap_or_default().to_owned();
        let (status, reason, what) = match server.flow.has_level(&level) {
            true => ("False", "Found", "and it exists"),
            false => ("True", "NotFound", "but there is no such object"),
        };
        let message =
            format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?} {what}");
        let none = Vec::new();
        let conditions = o.at(&["status", "conditions"]).and_then(Value::as_array).unwrap_or(&none);
        let is_dangling = |c: &&Value| c["type"] == "Dangling";
        if conditions
            .iter()
            .find(is_dangling)
            .is_some_and(|c| c["status"] == status && c["message"] == message.as_str())
        {
            continue;
        }
        let now = meta::time::format(registry.clock.now());
        let condition = json!({"type": "Dangling", "status": status, "lastTransitionTime": now, "reason": reason,
            "message": message});
        let request = Request::own(row.clone(), "status", "", o.name());
        let change = |live: Option<&Object>, _: &_| {
            let mut o = live.cloned().ok_or_else(|| Status::not_found(&request.group_resource(), &request.name))?;
            let all = o.at(&["status", "conditions"]).and_then(Value::as_array);
            let mut all: Vec<Value> = all.into_iter().flatten().filter(|c| !is_dangling(c)).cloned().collect();
            all.push(condition.clone());
            o.set(&["status", "conditions"], all);
            Ok(Target::object(o))
        };
        let done = registry.update(&request, &change, &Preconditions::default(), &options(), &AdmitAll).await;
        if let Err(e) = done.map(|_: Updated| ()) {
            tracing::debug!("the status of the flow schema {}: {e}", o.name());
        }
    }
}

/// Creates missing objects, and restores those that must not differ.
async fn maintain(registry: &Registry) -> Result<(), Status> {
    let rows = registry.rows();
    for (kind, plural) in [(Kind::Level, PRIORITY_LEVELS), (Kind::Schema, FLOW_SCHEMAS)] {
        let Some(row) = rows.stored(FLOW_GROUP, plural) else { continue };
        let live = list(registry, plural);
        for (table, mandatory) in [(MANDATORY, true), (SUGGESTED, false)] {
            for desired in bootstrap::objects(table, kind) {
                let desired = typed(row, desired)?;
                let request = Request::own(row.clone(), "", "", desired.name());
                let done = match live.iter().find(|o| o.name() == desired.name()) {
                    None => registry.create(&request, desired, &options(), &AdmitAll).await.map(|_| ()),
                    Some(o) if bootstrap::updated(o, &desired, mandatory).is_some() => {
                        let change = |live: Option<&Object>, _: &_| {
                            let live =
                                live.ok_or_else(|| Status::not_found(&request.group_resource(), &request.name))?;
                            let next = bootstrap::updated(live, &desired, mandatory).unwrap_or_else(|| live.clone());
                            Ok(Target::object(next))
                        };
                        let done =
                            registry.update(&request, &change, &Preconditions::default(), &options(), &AdmitAll).await;
                        done.map(|_| ())
                    }
                    Some(_) => Ok(()),
                };
                match done {
                    Err(s) if !s.is(Reason::AlreadyExists) && !s.is(Reason::NotFound) => return Err(s),
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

/// Decodes an object as if a client had sent it.
fn typed(row: &Resource, o: Object) -> Result<Object, Status> {
    let mut v = o.into_value();
    schema::typed(&mut v, &row.kind.schema).map_err(Status::internal)?;
    schema::fill(&mut v, &row.kind.schema);
    let mut o = Object::from_value(v).ok_or_else(|| Status::internal("no object"))?;
    row.strategy.default(&mut o);
    Ok(o)
}
