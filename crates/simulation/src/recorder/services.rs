//! Services and their endpoints, and disruption budgets.

use super::Recorder;
use super::pods::Pod;
use crate::expectations::Expectation;
use crate::level::{Level, Turn};
use crate::timeline::{Event, Kind, Subject};
use crate::trace::ObjectChange;
use meta::LabelSelector;
use std::collections::BTreeSet;
use std::time::Duration;

/// The label of endpoint slices with the name of their service.
const SERVICE: &str = "kubernetes.io/service-name";

/// The endpoints of a service. The level is below its base while there is none.
#[derive(Debug, Default)]
pub(crate) struct Service {
    pub level: Level,
    /// How many endpoints there are now, and the fewest since the start.
    pub endpoints: u64,
    pub minimum: u64,
    entry: Option<usize>,
}

/// A budget and the pods that it protects.
#[derive(Debug)]
pub(crate) struct Budget {
    pub selector: LabelSelector,
    /// The healthy pods as its controller counted them the last time.
    counted: i64,
    /// How many of those are on machines that went down, which the controller has not noticed.
    unnoticed: i64,
    /// The pods that are healthy now.
    pub healthy: i64,
    pub required: i64,
    /// The fewest healthy pods since the start.
    pub minimum: i64,
    pub broken: Duration,
    broken_since: Option<Duration>,
    entry: Option<usize>,
}

impl Budget {
    pub fn begin(&mut self) {
        self.minimum = self.healthy;
    }

    pub fn finish(&mut self, at: Duration) {
        self.broken += self.broken_since.take().map(|since| at.saturating_sub(since)).unwrap_or_default();
    }
}

impl Recorder {
    pub(super) fn service_changed(&mut self, change: &ObjectChange) {
        let subject = Subject::new("Service", &change.key.namespace, &change.key.name);
        if change.new.is_some() {
            self.services.entry(subject.clone()).or_default();
        }
        self.touched_services.insert(subject);
    }

    pub(super) fn slice_changed(&mut self, change: &ObjectChange) {
        if let Some((service, _)) = self.slices.remove(&change.key) {
            self.touched_services.insert(service);
        }
        let Some(slice) = &change.new else { return };
        let Some(name) = slice["metadata"]["labels"][SERVICE].as_str() else { return };
        let service = Subject::new("Service", &change.key.namespace, name);
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        let ready = endpoints.filter(|e| e["conditions"]["ready"] != false);
        let pods = ready.filter_map(|e| e["targetRef"]["uid"].as_str().map(str::to_owned)).collect();
        self.slices.insert(change.key.clone(), (service.clone(), pods));
        self.touched_services.insert(service);
    }

    /// The machines of pods stop or start.
    pub(super) fn touch_services(&mut self, changed: impl Fn(&String) -> bool) {
        let uses = |pods: &Vec<String>| pods.iter().any(&changed);
        let services: Vec<Subject> =
            self.slices.values().filter(|(_, pods)| uses(pods)).map(|(s, _)| s.clone()).collect();
        self.touched_services.extend(services);
    }

    pub(super) fn evaluate_service(&mut self, at: Duration, subject: &Subject) {
        let slices = self.slices.values().filter(|(service, _)| service == subject);
        let pods: BTreeSet<&String> = slices.flat_map(|(_, pods)| pods).collect();
        let count = pods.into_iter().filter(|pod| self.is_alive(pod)).count() as u64;
        let Some(service) = self.services.get_mut(subject) else { return };
        service.minimum = if self.begun { service.minimum.min(count) } else { count };
        service.endpoints = count;
        let desired = u64::from(count > 0 || service.level.base > 0);
        let turn = service.level.set(at, count.min(1), desired);
        if !self.begun {
            return;
        }
        let served = service.level.base > 0;
        match turn {
            Some(Turn::Fell) => {
                let object = subject.clone();
                let event = Event { object, text: "nothing serves it".into(), ..Event::default() };
                let entry = self.event(at, Kind::NoEndpoints, event);
                if let Some(service) = self.services.get_mut(subject) {
                    service.entry = entry;
                }
            }
            Some(Turn::Recovered) => {
                let entry = service.entry.take();
                self.timeline.end(entry, at, "nothing serves it".into());
            }
            None => {}
        }
        for expectation in &self.expectations {
            let Expectation::Endpoints { object, at_least } = expectation else { continue };
            if object.as_ref().map_or(served, |o| subject.is_named(o)) {
                let problem = format!("{count} endpoints instead of {at_least}");
                let shortage = at_least.checked_sub(count).filter(|n| *n > 0).map(|n| (n, problem));
                self.violations.update(at, expectation.to_string(), subject, shortage, None);
            }
        }
    }

    pub(super) fn budget_changed(&mut self, change: &ObjectChange) {
        let subject = Subject::new("PodDisruptionBudget", &change.key.namespace, &change.key.name);
        let Some(object) = &change.new else {
            self.budgets.remove(&subject);
            return;
        };
        let number = |field: &str| object["status"][field].as_i64().unwrap_or(0);
        let (counted, required) = (number("currentHealthy"), number("desiredHealthy"));
        let selector =
            LabelSelector::from_value(Some(&object["spec"]["selector"])).unwrap_or_else(|_| LabelSelector::none());
        let dead = self.unnoticed(&subject.namespace, &selector);
        let budget = self.budgets.entry(subject.clone()).or_insert_with(|| Budget {
            selector: LabelSelector::none(),
            counted,
            unnoticed: dead,
            healthy: counted - dead,
            required,
            minimum: counted - dead,
            broken: Duration::ZERO,
            broken_since: None,
            entry: None,
        });
        (budget.selector, budget.counted, budget.unnoticed, budget.required) = (selector, counted, dead, required);
        self.touched_budgets.insert(subject);
    }

    /// A pod that the API shows as ready serves no more, because its machine went down, or serves again.
    pub(super) fn machine_changed(&mut self, pod: &Pod, delta: i64) {
        for (subject, budget) in &mut self.budgets {
            if subject.namespace == pod.key.0 && budget.selector.matches(|key| pod.labels[key].as_str()) {
                budget.unnoticed = (budget.unnoticed + delta).max(0);
                self.touched_budgets.insert(subject.clone());
            }
        }
    }

    pub(super) fn evaluate_budget(&mut self, at: Duration, subject: &Subject) {
        let Some(budget) = self.budgets.get_mut(subject) else { return };
        let (healthy, required) = (budget.counted - budget.unnoticed, budget.required);
        let fell = healthy < budget.healthy;
        budget.healthy = healthy;
        budget.minimum = budget.minimum.min(healthy);
        let text = format!("{healthy} healthy pods, {required} required");
        let what = format!("{subject} has its healthy pods");
        if healthy >= required {
            if let Some(since) = budget.broken_since.take() {
                budget.broken += at.saturating_sub(since);
                let (entry, text) =
                    (budget.entry.take(), format!("{} healthy pods, {required} required", budget.minimum));
                self.timeline.end(entry, at, text);
                self.violations.update(at, what, subject, None, None);
            }
        } else if fell && self.begun && budget.broken_since.is_some() {
            // The worst moment counts.
            let missing = (required - healthy).unsigned_abs();
            if !self.ignore_budgets {
                self.violations.update(at, what, subject, Some((missing, text)), None);
            }
        } else if fell && self.begun {
            // More replicas demand more healthy pods, but none is lost.
            budget.broken_since = Some(at);
            let cause = self.last_loss(&subject.namespace, subject);
            let event = Event { object: subject.clone(), text: text.clone(), cause: cause.clone(), ..Event::default() };
            let entry = self.event(at, Kind::BudgetBroken, event);
            if let Some(budget) = self.budgets.get_mut(subject) {
                budget.entry = entry;
            }
            if !self.ignore_budgets {
                let missing = (required - healthy).unsigned_abs();
                self.violations.update(at, what, subject, Some((missing, text)), cause.as_ref());
            }
        }
    }

    /// Why the last pod that a budget protects was lost.
    fn last_loss(&self, namespace: &str, budget: &Subject) -> Option<String> {
        let selector = &self.budgets.get(budget)?.selector;
        self.protected(namespace, selector).into_iter().find_map(|w| self.workloads.get(&w)?.last_loss.clone())
    }
}
