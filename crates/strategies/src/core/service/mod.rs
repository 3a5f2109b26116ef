//! Service: allocates addresses and node ports in the transaction that writes the service.
//!
//! Allocation precedes validation, as upstream (`pkg/registry/core/service/storage`): an allocation error is the only
//! one reported.

mod addresses;
mod cells;
mod families;
mod fields;
mod node_ports;
#[cfg(test)]
mod tests;

use super::service_rules;
use crate::Config;
use crate::networking::Cidr;
use crate::table::Row;
use kinds::columns::Cell;
use meta::field::ErrorList;
use meta::{FieldError, GroupKind, Object, Status, Value};
use registry::{
    Allocator, CostEstimator, CreateStrategy, Env, NameRule, ProxyTarget, Request, Sub, Subresources, TableConvertor,
    UpdateStrategy, Upstream,
};
use serde_json::json;
use std::ops::RangeInclusive;
use store::Op;

pub fn row(config: &Config) -> Row {
    Row::stored(Service::new(config))
}

/// How long a client keeps its endpoint by default (`DefaultClientIPServiceAffinitySeconds`).
const CLIENT_IP_SECONDS: i64 = 10_800;

pub struct Service {
    /// ClusterIP ranges: one, or one per family. The first is the default family.
    ranges: Vec<Cidr>,
    node_ports: RangeInclusive<u16>,
}

impl Service {
    pub fn new(config: &Config) -> Self {
        Self { ranges: config.service_cidrs.clone(), node_ports: config.node_ports.clone() }
    }
}

impl CreateStrategy for Service {
    fn name_rule(&self) -> NameRule {
        NameRule::DnsLabel
    }

    fn default(&self, o: &mut Object) {
        let Some(mut spec) = o.remove(&["spec"]) else { return };
        // `ipMode` of load balancer addresses defaults to `VIP`.
        if spec["type"] == "LoadBalancer"
            && let Some(ingress) = o.0.get_mut("status").and_then(|s| s.pointer_mut("/loadBalancer/ingress"))
        {
            for i in ingress.as_array_mut().into_iter().flatten() {
                let has_address = i["ip"].as_str().is_some_and(|ip| !ip.is_empty());
                if has_address && i["ipMode"].is_null() {
                    i["ipMode"] = "VIP".into();
                }
            }
        }
        for p in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            let absent = match &p["targetPort"] {
                Value::Number(n) => n.as_i64() == Some(0),
                Value::String(s) => s.is_empty(),
                _ => true,
            };
            if absent {
                p["targetPort"] = p["port"].clone();
            }
        }
        // `externalTrafficPolicy` defaults to `Cluster` for services with external addresses.
        let named = spec["externalIPs"].as_array().is_some_and(|a| !a.is_empty());
        let no_policy = spec["externalTrafficPolicy"].as_str().unwrap_or_default().is_empty();
        if spec["type"] == "ClusterIP" && named && no_policy {
            spec["externalTrafficPolicy"] = "Cluster".into();
        }
        if spec["sessionAffinity"] == "ClientIP"
            && spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"].is_null()
        {
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": CLIENT_IP_SECONDS}});
        }
        if spec["sessionAffinity"] == "None"
            && let Some(m) = spec.as_object_mut()
        {
            m.remove("sessionAffinityConfig");
        }
        o.set(&["spec"], spec);
    }

    fn prepare_for_create(&self, _env: Env<'_>, _request: &Request, o: &mut Object) {
        fields::drop_unused_policy(o);
        o.set(&["status"], json!({"loadBalancer": {}}));
    }

    fn validate(&self, o: &Object, errors: &mut ErrorList) {
        service_rules::validate(o, errors);
    }

    fn warnings(&self, o: &Object, _old: Option<&Object>) -> Vec<String> {
        service_rules::warnings(o)
    }
}

impl UpdateStrategy for Service {
    fn prepare_for_update(&self, _env: Env<'_>, request: &Request, o: &mut Object, old: &Object) {
        if request.subresource.is_empty() {
            fields::drop_of_old_type(o, old);
            fields::drop_unused_policy(o);
        }
    }

    fn validate_part(&self, subresource: &str, o: &Object, _old: &Object, errors: &mut ErrorList) {
        if subresource == "status" {
            service_rules::status(o, errors);
        }
    }

    fn part_warnings(&self, subresource: &str, o: &Object) -> Vec<String> {
        if subresource == "status" { crate::networking::balancer_warnings(o) } else { Vec::new() }
    }

    fn validate_update(&self, o: &Object, old: &Object, errors: &mut ErrorList) {
        service_rules::update(o, old, errors);
    }
}

impl Allocator for Service {
    fn allocates(&self) -> bool {
        true
    }

    fn allocate(&self, env: Env<'_>, o: &mut Object, old: Option<&Object>) -> Result<Vec<Op>, Status> {
        if let Some(old) = old {
            fields::keep_allocated(o, old);
        }
        fields::normalize_cluster_ips(o, old);
        self.families(o, old)?;
        let mut ops = match old {
            Some(old) => self.update_addresses(env, o, old)?,
            None => self.new_addresses(env, o)?,
        };
        ops.extend(self.allocate_ports(env, o, old)?);
        Ok(ops)
    }

    fn release(&self, env: Env<'_>, o: &Object) -> Vec<Op> {
        let addresses = addresses::cluster_ips(o).into_iter().map(addresses::release);
        addresses.chain(node_ports::release_all(env, o)).collect()
    }
}

impl Subresources for Service {
    fn proxy(&self, env: Env<'_>, _request: &Request, o: &Object, target: &ProxyTarget) -> Result<Upstream, Status> {
        super::proxy::service(env, o, target)
    }

    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "proxy").then_some(Sub::Connect)
    }
}

impl TableConvertor for Service {
    fn cell(&self, cell: &Cell<'_>) -> Option<Value> {
        cells::cells(cell)
    }
}

impl CostEstimator for Service {
    fn reads(&self, env: Env<'_>, subresource: &str, namespace: &str, name: &str) -> usize {
        match subresource {
            "proxy" => super::proxy::service_reads(env, namespace, name),
            "" => node_ports::reads(env),
            _ => 0,
        }
    }
}

registry::strategy!(Service: CreateStrategy, UpdateStrategy, Allocator, Subresources, TableConvertor, CostEstimator);

fn invalid(o: &Object, errors: &[FieldError]) -> Status {
    Status::invalid(&GroupKind { group: String::new(), kind: "Service".into() }, o.name(), errors)
}
