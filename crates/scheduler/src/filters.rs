//! The filters of all plugins for one pod, and trials with pods added to a node or removed from it.

use crate::cluster::{Cluster, Node};
use crate::decision::Refusal;
use crate::explain::{Shortfall, plural};
use crate::framework::{Framework, NodeFilter};
use crate::pod::Pod;
use std::sync::Arc;

/// The filters of all plugins for one pod.
pub struct Filters<'a> {
    pod: &'a Pod,
    cluster: &'a Cluster,
    filters: Vec<Box<dyn NodeFilter + 'a>>,
    /// The only nodes that can pass, if filters name them.
    pub names: Option<Vec<String>>,
    /// The plugins that name nodes.
    pub naming: Vec<&'static str>,
}

impl<'a> Filters<'a> {
    /// Calls PreFilter of all plugins. Errors if a plugin refuses all nodes.
    pub fn new(framework: &'a Framework, pod: &'a Pod, cluster: &'a Cluster) -> Result<Self, Refusal> {
        let mut all = Self { pod, cluster, filters: Vec::new(), names: None, naming: Vec::new() };
        let mut refused = None;
        for f in framework.filtering() {
            let filter = match f.plugin.pre_filter(pod, cluster) {
                Ok(filter) => filter,
                Err(_) if !f.pre_filter => continue,
                // Preemption may help later, if no other plugin refuses for good.
                Err(refusal) if refusal.resolvable => {
                    refused = Some(refusal);
                    continue;
                }
                Err(refusal) => return Err(refusal),
            };
            let Some(filter) = filter else { continue };
            if let Some(names) = filter.names().filter(|_| f.pre_filter) {
                all.limit(f.plugin.name(), names)?;
            }
            if f.filter {
                all.filters.push(filter);
            }
        }
        match refused {
            Some(refusal) => Err(refusal),
            None => Ok(all),
        }
    }

    /// Limits the nodes to those that a plugin names. Errors if none is left.
    fn limit(&mut self, plugin: &'static str, mut names: Vec<String>) -> Result<(), Refusal> {
        self.naming.push(plugin);
        self.naming.sort_unstable();
        if let Some(before) = &self.names {
            names.retain(|n| before.contains(n));
        }
        if names.is_empty() {
            let why = match self.naming.as_slice() {
                [one] => format!("node(s) didn't satisfy plugin {one}"),
                several => format!("node(s) didn't satisfy plugin(s) [{}] simultaneously", several.join(" ")),
            };
            return Err(Refusal::unresolvable(plugin, why));
        }
        self.names = Some(names);
        Ok(())
    }

    fn check(&self, node: &Node) -> Result<(), Refusal> {
        self.filters.iter().try_for_each(|f| f.check(node))
    }

    /// Filters a node with the nominated pods on it that go before the pod, and without them: it has to pass both times.
    pub fn check_with_nominated(&self, node: &Node) -> Result<(), Refusal> {
        if self.cluster.nominations().is_empty() {
            return self.check(node);
        }
        let ahead = self.ahead(&node.name);
        if ahead.is_empty() {
            return self.check(node);
        }
        let mut trial = Trial::new(self, node);
        ahead.into_iter().for_each(|pod| trial.add(pod));
        trial.check_alone()?;
        self.check(node)
    }

    /// Whether the pod fits a node.
    pub fn fits(&self, node: &Node) -> bool {
        let named = self.names.as_ref().is_none_or(|names| names.iter().any(|n| **n == *node.name));
        named && node.entry.is_some() && self.check_with_nominated(node).is_ok()
    }

    /// What the pod misses on a node, of all filters. Empty if the pod fits.
    pub fn shortfalls(&self, node: &Node) -> Vec<Shortfall> {
        let own = self.filters.iter().flat_map(|f| shortfalls(&**f, node));
        let mut all: Vec<Shortfall> = own.collect();
        let named = self.names.as_ref().is_none_or(|names| names.iter().any(|n| **n == *node.name));
        if all.is_empty() && !named {
            let rule = self.naming.first().copied().unwrap_or_default();
            all.push(Shortfall::new("node", "the pod may only run on other nodes").of_rule(rule));
        }
        let ahead = self.ahead(&node.name);
        if all.is_empty() && !ahead.is_empty() {
            let count = ahead.len();
            let mut trial = Trial::new(self, node);
            ahead.into_iter().for_each(|pod| trial.add(pod));
            all.extend(trial.shortfalls());
            for shortfall in &mut all {
                shortfall.message.push_str(&format!(", counting {count} nominated pod{}", plural(count)));
            }
        }
        all
    }

    /// The pods of the same or a higher priority that are nominated for a node.
    fn ahead(&self, node: &str) -> Vec<Arc<Pod>> {
        let nominated = self.cluster.nominated(node).iter();
        let ahead = nominated.filter(|p| p.view.priority >= self.pod.view.priority && p.meta.uid != self.pod.meta.uid);
        ahead.cloned().collect()
    }
}

/// What the pod misses on a node according to one filter.
fn shortfalls(filter: &(impl NodeFilter + ?Sized), node: &Node) -> Vec<Shortfall> {
    let Err(refusal) = filter.check(node) else { return Vec::new() };
    let mut all = filter.shortfalls(node);
    if all.is_empty() {
        all = refusal.reasons.iter().map(|reason| Shortfall::of_reason(reason)).collect();
    }
    all.into_iter().map(|s| s.of_rule(refusal.plugin)).collect()
}

/// A filter of a trial: a copy where pods of other nodes matter.
enum Trialed<'a> {
    Shared(&'a (dyn NodeFilter + 'a)),
    Forked(Box<dyn NodeFilter + 'a>),
}

/// A node with pods added and removed on trial.
pub struct Trial<'a> {
    filters: &'a Filters<'a>,
    trialed: Vec<Trialed<'a>>,
    pub node: Node,
}

impl<'a> Trial<'a> {
    pub fn new(filters: &'a Filters<'_>, node: &Node) -> Self {
        let trialed = filters.filters.iter().map(|f| match f.fork() {
            Some(forked) => Trialed::Forked(forked),
            None => Trialed::Shared(&**f),
        });
        Self { filters, trialed: trialed.collect(), node: node.clone() }
    }

    fn fork(&self) -> Trial<'_> {
        let trialed = self.trialed.iter().map(|t| match t {
            Trialed::Shared(f) => Trialed::Shared(*f),
            Trialed::Forked(f) => f.fork().map_or(Trialed::Shared(&**f), Trialed::Forked),
        });
        Trial { filters: self.filters, trialed: trialed.collect(), node: self.node.clone() }
    }

    pub fn add(&mut self, pod: Arc<Pod>) {
        self.node.add(pod.clone());
        for t in &mut self.trialed {
            if let Trialed::Forked(f) = t {
                f.add_pod(&pod, &self.node);
            }
        }
    }

    pub fn remove(&mut self, pod: &Pod) {
        self.node.remove(&pod.meta.uid);
        for t in &mut self.trialed {
            if let Trialed::Forked(f) = t {
                f.remove_pod(pod, &self.node);
            }
        }
    }

    fn check_alone(&self) -> Result<(), Refusal> {
        self.trialed.iter().try_for_each(|t| match t {
            Trialed::Shared(f) => f.check(&self.node),
            Trialed::Forked(f) => f.check(&self.node),
        })
    }

    fn shortfalls(&self) -> Vec<Shortfall> {
        let each = self.trialed.iter().flat_map(|t| match t {
            Trialed::Shared(f) => shortfalls(*f, &self.node),
            Trialed::Forked(f) => shortfalls(&**f, &self.node),
        });
        each.collect()
    }

    /// Filters the node as it is on trial, with and without the nominated pods that go before the pod.
    pub fn check(&self) -> Result<(), Refusal> {
        let ahead = self.filters.ahead(&self.node.name);
        if !ahead.is_empty() {
            let mut with = self.fork();
            ahead.into_iter().for_each(|pod| with.add(pod));
            with.check_alone()?;
        }
        self.check_alone()
    }
}
