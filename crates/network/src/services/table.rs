//! The table of all services, changed service by service: a step renders the service ports that change, and no others.
//!
//! Service ports share maps and sets. An element that several of them want belongs to the first by name; the others get it when the first
//! is gone. **Invariant**: the table in the kernel is what `render` makes of all service ports.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::changes::{Change, Ports};
use super::render::{SHARED_MAPS, SHARED_SETS, frame, is_shared, is_shared_chain, render_port, shared_chain};
use super::{FamilyOptions, ServicePort};
use crate::ruleset::{Container, Ruleset};

/// An element of a shared map or set, or a shared chain.
type Element = (&'static str, String);

/// Stands for the map or set in an [`Element`] that is a chain.
const CHAINS: &str = "chains";

/// The service ports in the table.
#[derive(Default)]
pub struct Table {
    ports: Ports,
    /// The service ports that want an element, by name.
    owners: HashMap<Element, BTreeSet<Arc<str>>>,
}

/// A change of the table.
pub struct Step {
    /// The objects and elements that change, before and after.
    before: Ruleset,
    after: Ruleset,
    ports: Vec<(Arc<str>, Option<Arc<ServicePort>>)>,
    /// The new owners of elements.
    owners: HashMap<Element, BTreeSet<Arc<str>>>,
}

impl Step {
    /// The commands for `nft`; empty if nothing changes.
    pub fn script(&self) -> String {
        self.after.difference(&self.before)
    }

    /// The commands that replace the whole table, for a step from an empty one.
    pub fn replacement(&self, options: &FamilyOptions) -> String {
        let mut all = frame(options);
        for (name, container) in &self.after.maps {
            let own = all.maps.entry(name.clone()).or_insert_with(|| declared(container));
            own.elements.extend(container.elements.clone());
        }
        for (name, container) in &self.after.sets {
            let own = all.sets.entry(name.clone()).or_insert_with(|| declared(container));
            own.elements.extend(container.elements.clone());
        }
        all.chains.extend(self.after.chains.clone());
        all.replacement()
    }
}

fn declared(container: &Container) -> Container {
    Container { declaration: container.declaration.clone(), elements: BTreeMap::new() }
}

/// The elements of shared maps and sets, and the shared chains, of a rendered service port.
fn shared(ruleset: &Ruleset) -> Vec<(Element, &String)> {
    const NOTHING: &String = &String::new();
    let chains = ruleset.chains.keys().filter(|name| is_shared_chain(name));
    let mut found: Vec<_> = chains.map(|name| ((CHAINS, name.clone()), NOTHING)).collect();
    for (names, containers) in [(&SHARED_MAPS[..], &ruleset.maps), (&SHARED_SETS[..], &ruleset.sets)] {
        for name in names {
            let elements = containers.get(*name).map(|c| &c.elements).into_iter().flatten();
            found.extend(elements.map(|(key, value)| ((*name, key.clone()), value)));
        }
    }
    found
}

impl Table {
    /// The service ports in the table.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Computes a transaction. Nothing has changed until [`Table::commit`].
    pub fn step(&self, options: &FamilyOptions, transaction: &[Change]) -> Step {
        let render = |port: &Arc<ServicePort>| render_port(options, port);
        let mut step = Step {
            before: Ruleset::new(options.family, super::table(&options.id)),
            after: Ruleset::new(options.family, super::table(&options.id)),
            ports: Vec::new(),
            owners: HashMap::new(),
        };
        let mut rendered: HashMap<Arc<str>, (Option<Ruleset>, Option<Ruleset>)> = HashMap::new();
        for change in transaction {
            let name = change.name.clone();
            let (old, new) = (self.ports.get(&change.name).map(render), change.port.as_ref().map(render));
            for (ruleset, is_new) in [(&old, false), (&new, true)] {
                for (element, _) in ruleset.iter().flat_map(shared) {
                    let known = || self.owners.get(&element).cloned().unwrap_or_default();
                    let owners = step.owners.entry(element.clone()).or_insert_with(known);
                    if is_new {
                        owners.insert(name.clone())
                    } else {
                        owners.remove(&name)
                    };
                }
            }
            step.ports.push((name.clone(), change.port.clone()));
            rendered.insert(name, (old, new));
        }
        // Objects of their own.
        for (old, new) in rendered.values() {
            for (from, to) in [(old, &mut step.before), (new, &mut step.after)] {
                let Some(from) = from else { continue };
                let is_own = |name: &String| !is_shared(name);
                let chains = from.chains.iter().filter(|(name, _)| !is_shared_chain(name));
                to.chains.extend(chains.map(|(name, chain)| (name.clone(), chain.clone())));
                to.maps.extend(from.maps.iter().filter(|(n, _)| is_own(n)).map(|(n, c)| (n.clone(), c.clone())));
                to.sets.extend(from.sets.iter().filter(|(n, _)| is_own(n)).map(|(n, c)| (n.clone(), c.clone())));
            }
        }
        // Elements of shared maps and sets.
        let value = |element: &Element, owner: &Arc<str>, is_new: bool| -> String {
            let find = |ruleset: &Ruleset| {
                shared(ruleset)
                    .into_iter()
                    .find(|(e, _)| e == element)
                    .map(|(_, value)| value.clone())
                    .unwrap_or_default()
            };
            match rendered.get(owner) {
                Some((old, new)) => (if is_new { new } else { old }).as_ref().map(find).unwrap_or_default(),
                None => self.ports.get(&**owner).map(|port| find(&render(port))).unwrap_or_default(),
            }
        };
        for (element, owners) in &step.owners {
            let before = self.owners.get(element).and_then(|owners| owners.first());
            let after = owners.first();
            for (owner, is_new, to) in [(before, false, &mut step.before), (after, true, &mut step.after)] {
                let (name, key) = element;
                if *name == CHAINS {
                    to.chains.extend(owner.map(|_| (key.clone(), shared_chain(options.family, key))));
                    continue;
                }
                let is_map = SHARED_MAPS.contains(name);
                let containers = if is_map { &mut to.maps } else { &mut to.sets };
                // Without a declaration, which does not change.
                let container = containers.entry((*name).to_owned()).or_default();
                if let Some(owner) = owner {
                    let value = if is_map { value(element, owner, is_new) } else { String::new() };
                    container.elements.insert(key.clone(), value);
                }
            }
        }
        step
    }

    /// Records that a step is in the kernel.
    pub fn commit(&mut self, step: Step) {
        for (name, port) in step.ports {
            match port {
                Some(port) => self.ports.insert(name, port),
                None => self.ports.remove(&*name),
            };
        }
        for (element, owners) in step.owners {
            if owners.is_empty() {
                self.owners.remove(&element)
            } else {
                self.owners.insert(element, owners)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Affinity, Endpoint, Policy, changes, render};
    use super::*;
    use crate::Family;
    use crate::protocol::Protocol;
    use std::net::Ipv4Addr;

    fn options() -> FamilyOptions {
        FamilyOptions {
            id: "t".into(),
            node_namespace: None,
            family: Family::V4,
            cluster_range: "10.0.0.0/8".parse().unwrap(),
            service_range: "10.96.0.0/12".parse().unwrap(),
            load_balancer_range: None,
            own_ports: vec![],
        }
    }

    /// A service port whose addresses and endpoints are often those of others.
    fn port(name: u8, random: &mut impl FnMut(u8) -> u8) -> Arc<ServicePort> {
        let endpoint = |last: u8, local| Endpoint {
            address: Ipv4Addr::new(10, 1, 0, last).into(),
            port: 80,
            cluster: true,
            local,
        };
        Arc::new(ServicePort {
            name: format!("n/{name}").into(),
            cluster_ip: Ipv4Addr::new(10, 96, 0, random(4)).into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: (random(2) > 0).then(|| 30_000 + u16::from(random(3))),
            external_ips: (0..random(3)).map(|n| Ipv4Addr::new(192, 0, 2, n).into()).collect(),
            load_balancer_ips: vec![],
            source_ranges: vec![],
            endpoints: (0..random(4)).map(|n| endpoint(n, n > 1)).collect(),
            affinity: if random(3) > 0 {
                Affinity::None
            } else {
                Affinity::ClientIp(std::time::Duration::from_secs(9))
            },
            internal_policy: Policy::Cluster,
            external_policy: if random(2) > 0 { Policy::Cluster } else { Policy::Local },
        })
    }

    /// Applies a change to a copy of what the kernel has.
    fn apply(kernel: &mut Ruleset, step: &Step) {
        for (name, container) in step.before.maps.iter().chain(&step.after.maps) {
            let own = kernel.maps.entry(name.clone()).or_insert_with(|| declared(container));
            own.elements.retain(|key, _| !container.elements.contains_key(key));
        }
        for (name, container) in step.before.sets.iter().chain(&step.after.sets) {
            kernel
                .sets
                .entry(name.clone())
                .or_default()
                .elements
                .retain(|key, _| !container.elements.contains_key(key));
        }
        kernel.chains.retain(|name, _| !step.before.chains.contains_key(name));
        kernel.maps.retain(|name, _| is_shared(name) || !step.before.maps.contains_key(name));
        for (name, container) in &step.after.maps {
            let own = kernel.maps.entry(name.clone()).or_insert_with(|| declared(container));
            own.elements.extend(container.elements.clone());
        }
        for (name, container) in &step.after.sets {
            kernel.sets.entry(name.clone()).or_default().elements.extend(container.elements.clone());
        }
        kernel.chains.extend(step.after.chains.clone());
    }

    #[test]
    fn steps_lead_to_the_rules_of_all_services() {
        let mut state = 7u32;
        let mut random = move |below: u8| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            u8::try_from((state >> 16) % u32::from(below)).unwrap()
        };
        let options = options();
        let (mut table, mut kernel) = (Table::default(), frame(&options));
        for _ in 0..500 {
            let mut desired = table.ports().clone();
            for _ in 0..=random(3) {
                let name = random(6);
                if random(3) == 0 {
                    desired.remove(&*format!("n/{name}"));
                } else {
                    desired.insert(format!("n/{name}").into(), port(name, &mut random));
                }
            }
            let transaction = changes::changes(table.ports(), &desired);
            let step = table.step(&options, &transaction);
            apply(&mut kernel, &step);
            table.commit(step);
            assert_eq!(table.ports(), &desired);
            let expect = render::render(&options, desired.values().map(|p| &**p));
            assert_eq!(kernel, expect);
            let step = Table::default().step(&options, &changes::changes(&Ports::new(), &desired));
            assert_eq!(step.replacement(&options), expect.replacement());
        }
    }
}
