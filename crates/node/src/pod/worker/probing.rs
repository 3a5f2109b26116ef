//! Probing of the running containers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ContainerStatus;
use runtime::ContainerState;

use super::Worker;
use super::events::regarding;
use super::observe::Observed;
use crate::pod::probes::Context;
use crate::pod::spec::{containers, text};
use crate::pod::status::RuntimeFacts;
use crate::probe::Names;

impl Worker {
    /// Starts probes of running containers, and ends those of others.
    pub(super) fn probe(&mut self, seen: &Observed) {
        self.probes
            .retain(|name, id| seen.newest.get(name).is_some_and(|c| c.id == id && c.state == ContainerState::Running));
        let (recorder, about) = (self.shared.recorder.clone(), regarding(&self.pod));
        let paths: BTreeMap<String, String> =
            seen.newest.keys().map(|name| (name.clone(), self.field_path(name))).collect();
        let (known, labels) = (self.shared.known.clone(), self.labels());
        let context = Arc::new(Context {
            runtime: self.shared.options.runtime.clone(),
            node_namespace: self.shared.options.node_namespace.clone(),
            clock: self.shared.options.clock.clone(),
            pod_ip: self.probe_ip(),
            names: self.names(),
            wake: self.wake.clone(),
            unhealthy: Arc::new(move |name, reason, message| {
                let about = about.clone().field(paths.get(name).map_or("", String::as_str));
                recorder.warning(about, reason, message);
            }),
            probed: Arc::new(move |kind, name, good, took| known.probed(kind, good, name, &labels, took)),
        });
        let status = &self.base.1;
        let reported: Vec<_> =
            status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten()).collect();
        let facts = self.facts(seen);
        let spec = self.pod.spec.as_ref();
        for c in spec.into_iter().flat_map(containers) {
            let Some(running) = seen.newest.get(&c.name).filter(|r| r.state == ContainerState::Running) else {
                continue;
            };
            let id = facts.container_id(&running.id);
            let before = reported.iter().find(|s| s.container_id.as_deref() == Some(id.as_str()));
            let was = |f: fn(&ContainerStatus) -> bool| before.is_some_and(|s| f(s));
            self.probes.watch(&context, c, running, was(|s| s.started == Some(true)), was(|s| s.ready));
        }
    }

    /// What statuses show of the runtime and the pod's handler.
    pub(super) fn facts(&self, seen: &Observed) -> RuntimeFacts {
        let options = &self.shared.options;
        RuntimeFacts::of(&*options.runtime, seen.handler(&*options.runtime), &options.configuration)
    }

    pub(super) fn names(&self) -> Names {
        let namespace = text(&self.pod.metadata.namespace).to_owned();
        Names { lookups: self.shared.lookups.clone(), namespace, uid: self.uid.clone() }
    }

    pub(super) fn probe_ip(&self) -> Option<IpAddr> {
        let host = self.pod.spec.as_ref().is_some_and(|s| s.host_network == Some(true));
        if host { self.shared.options.node_ips.first().copied() } else { self.ips.first().copied() }
    }
}
