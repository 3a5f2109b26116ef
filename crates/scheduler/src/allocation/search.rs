//! The search for devices (upstream `allocateOne` in `structured/internal/incubating/allocator_incubating.go`).
//!
//! Claims, their requests, alternatives and devices are tried in their order, depth first, with backtracking over all claims of a pod. A
//! device of a request is looked for after the one before, so that no set of devices is tried twice. The state is on the heap: a pod may
//! have many claims. Selectors are evaluated only for devices that are tried, because one that fails for a device ends the search.

use super::pools::{Counters, State, counters};
use super::{
    AllocationError, Allocator, Alternative, Chosen, Demand, MOST_DEVICES, MOST_STEPS, STEPS_TO_CLOCK, attribute, list,
    select,
};
use crate::capacity::{Amounts, consumed, suffices};
use crate::devices::{Offered, reaches};
use placement::{EXCLUDING, Taint, untolerated};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use tokio::time::Instant;

/// Which device of which request is looked for next.
#[derive(Clone, Copy, Default)]
struct Position {
    claim: usize,
    request: usize,
    /// None: all alternatives of the request are tried.
    alternative: Option<usize>,
    /// The number of devices that the request has already.
    number: usize,
    /// The first device that is tried.
    start: usize,
}

/// Why the devices for a position were not found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    NotFound,
    /// The claim would have more devices than it may have.
    TooMany,
}

/// A decision that is changed when what follows it fails.
enum Frame {
    /// The claims before have their devices.
    Claim,
    /// The alternative at a position was chosen. `all_too_many`: those before failed because they need too many devices.
    Alternative { at: Position, all_too_many: bool },
    /// The device was chosen.
    Device { at: Position, device: usize },
}

pub(super) struct Search<'s, 'a> {
    allocator: &'s Allocator<'a>,
    demands: &'s mut [Demand<'a>],
    /// The claims that have a device, not counting shares, by the index of the device.
    holders: HashMap<usize, Vec<usize>>,
    steps: usize,
    looks: usize,
}

impl<'s, 'a> Search<'s, 'a> {
    pub fn new(allocator: &'s Allocator<'a>, demands: &'s mut [Demand<'a>]) -> Self {
        Self { allocator, demands, holders: HashMap::new(), steps: 0, looks: 0 }
    }

    /// Finds out which devices requests for all devices are about, and whether claims can have as many as they need at least.
    pub fn prepare(&mut self) -> Result<(), AllocationError> {
        for claim in 0..self.demands.len() {
            let mut least = 0_usize;
            for request in 0..self.demands[claim].requests.len() {
                let mut fewest = usize::MAX;
                for alternative in 0..self.demands[claim].requests[request].len() {
                    let at = Position { claim, request, alternative: Some(alternative), ..Position::default() };
                    if self.alternative(at).wants_all() {
                        let all = self.all(at)?;
                        let alternative = &mut self.demands[claim].requests[request][alternative];
                        alternative.count = all.len();
                        alternative.all = all;
                    }
                    fewest = fewest.min(self.alternative(at).count);
                }
                least = least.saturating_add(fewest);
            }
            if least > MOST_DEVICES {
                let why = format!(": number of requested devices {least} exceeds the claim limit of {MOST_DEVICES}");
                return Err(AllocationError::Claim { claim, why });
            }
        }
        Ok(())
    }

    /// The devices for a request for all devices.
    fn all(&mut self, at: Position) -> Result<Vec<usize>, AllocationError> {
        let mut all = Vec::new();
        for pool in 0..self.allocator.pools.all.len() {
            let pool = &self.allocator.pools.all[pool];
            let state = match pool.state {
                State::Ready => "",
                State::Incomplete => "being updated",
                State::Invalid => "invalid",
            };
            if !state.is_empty() {
                let name = self.alternative(at).request.own_name();
                let why = format!(
                    ", request {name}: asks for all devices, but resource pool {}/{} is currently {state}",
                    pool.driver, pool.name
                );
                return Err(AllocationError::Claim { claim: at.claim, why });
            }
            for device in pool.range.clone() {
                if self.is_selected(at, device)? && self.share(at, device).is_some() {
                    all.push(device);
                }
            }
        }
        Ok(all)
    }

    /// Whether all claims get their devices; they are in the demands then.
    pub fn run(&mut self) -> Result<bool, AllocationError> {
        let mut stack: Vec<Frame> = Vec::new();
        let mut next = Some(Position::default());
        let mut failure = Failure::NotFound;
        self.check_time()?;
        loop {
            let found = match next.take() {
                Some(at) => {
                    self.steps += 1;
                    if self.steps > MOST_STEPS {
                        self.check_time()?;
                        return Ok(false);
                    }
                    if at.claim >= self.demands.len() {
                        return Ok(true);
                    }
                    self.enter(at, &mut stack)?
                }
                None => match stack.pop() {
                    Some(frame) => self.retry(frame, failure, &mut stack)?,
                    None => return Ok(false),
                },
            };
            match found {
                Ok(position) => next = Some(position),
                Err(why) => failure = why,
            }
        }
    }

    /// Decides what is tried first at a position, and returns the position after it.
    fn enter(&mut self, at: Position, stack: &mut Vec<Frame>) -> Result<Result<Position, Failure>, AllocationError> {
        let demand = &mut self.demands[at.claim];
        let Some(alternatives) = demand.requests.get(at.request) else {
            stack.push(Frame::Claim);
            return Ok(Ok(Position { claim: at.claim + 1, ..Position::default() }));
        };
        let Some(index) = at.alternative else {
            demand.choice[at.request] = 0;
            let at = Position { alternative: Some(0), ..at };
            if alternatives.first().is_none_or(|a| a.request.is_alternative()) {
                stack.push(Frame::Alternative { at, all_too_many: true });
            }
            return Ok(Ok(at));
        };
        let Some(alternative) = alternatives.get(index) else { return Ok(Err(Failure::NotFound)) };
        if alternative.class.is_none() || (alternative.wants_all() && alternative.all.is_empty()) {
            return Ok(Err(Failure::NotFound));
        }
        if at.number >= alternative.count {
            return Ok(Ok(Position { claim: at.claim, request: at.request + 1, ..Position::default() }));
        }
        if demand.chosen.len().saturating_add(alternative.count - at.number) > MOST_DEVICES {
            return Ok(Err(Failure::TooMany));
        }
        let Some(device) = alternative.all.get(at.number).copied() else { return self.choose(at, at.start, stack) };
        if !self.hold(at, device)? {
            return Ok(Err(Failure::NotFound));
        }
        stack.push(Frame::Device { at, device });
        Ok(Ok(Position { number: at.number + 1, ..at }))
    }

    /// Changes a decision after what followed it failed, and returns the position after it.
    fn retry(
        &mut self,
        frame: Frame,
        failure: Failure,
        stack: &mut Vec<Frame>,
    ) -> Result<Result<Position, Failure>, AllocationError> {
        match frame {
            // Other devices for a claim do not change how many the next one needs, but another alternative may.
            Frame::Claim => Ok(Err(Failure::NotFound)),
            Frame::Alternative { at, all_too_many } => {
                let all_too_many = all_too_many && failure == Failure::TooMany;
                let following = at.alternative.map_or(0, |index| index + 1);
                let demand = &mut self.demands[at.claim];
                if following >= demand.requests[at.request].len() {
                    return Ok(Err(if all_too_many { Failure::TooMany } else { Failure::NotFound }));
                }
                demand.choice[at.request] = following;
                let at = Position { alternative: Some(following), ..at };
                stack.push(Frame::Alternative { at, all_too_many });
                Ok(Ok(at))
            }
            Frame::Device { at, device } => {
                self.release(at, device);
                match failure == Failure::TooMany || self.alternative(at).wants_all() {
                    true => Ok(Err(failure)),
                    false => self.choose(at, device + 1, stack),
                }
            }
        }
    }

    /// Chooses the first usable device from an index on.
    fn choose(
        &mut self,
        at: Position,
        from: usize,
        stack: &mut Vec<Frame>,
    ) -> Result<Result<Position, Failure>, AllocationError> {
        for device in from..self.allocator.pools.devices.len() {
            self.looks += 1;
            if self.looks.is_multiple_of(STEPS_TO_CLOCK) {
                self.check_time()?;
            }
            let is_usable = !self.is_taken(at, device)
                && self.is_selected(at, device)?
                && self.share(at, device).is_some()
                && self.hold(at, device)?;
            if is_usable {
                stack.push(Frame::Device { at, device });
                return Ok(Ok(Position { number: at.number + 1, start: device + 1, ..at }));
            }
        }
        Ok(Err(Failure::NotFound))
    }

    fn check_time(&self) -> Result<(), AllocationError> {
        match self.allocator.offer.until {
            Some(until) if Instant::now() > until => Err(AllocationError::TimedOut),
            _ => Ok(()),
        }
    }

    fn alternative(&self, at: Position) -> &Alternative<'a> {
        &self.demands[at.claim].requests[at.request][at.alternative.unwrap_or(0)]
    }

    fn device(&self, device: usize) -> &'s Offered<'a> {
        let allocator: &'s Allocator<'a> = self.allocator;
        &allocator.pools.devices[device]
    }

    /// Whether the device cannot be had because of who has it. With administrative access, only the own claim matters.
    fn is_taken(&self, at: Position, device: usize) -> bool {
        let holders = self.holders.get(&device).map_or(&[][..], Vec::as_slice);
        if self.alternative(at).request.is_admin() {
            return holders.contains(&at.claim);
        }
        let id = self.device(device).id();
        let is_used = match is_shared(self.device(device)) {
            true => self.allocator.in_use().iter().any(|all| all.is_exclusive(&id)),
            false => self.allocator.is_used(&id),
        };
        is_used || !holders.is_empty()
    }

    /// Whether class and request select the device, and the node reaches it. Evaluated once.
    fn is_selected(&mut self, at: Position, device: usize) -> Result<bool, AllocationError> {
        let alternative = self.alternative(at);
        if let Some(known) = alternative.selected.get(&device) {
            return Ok(*known);
        }
        self.check_time()?;
        let offered = self.device(device);
        let selected = select(self.allocator.offer.devices, offered, alternative, at.claim)?
            && (offered.slice["perDeviceNodeSelection"] != true || reaches(offered.device, self.allocator.node));
        let index = at.alternative.unwrap_or(0);
        self.demands[at.claim].requests[at.request][index].selected.insert(device, selected);
        Ok(selected)
    }

    fn chosen(&self) -> impl Iterator<Item = &Chosen> {
        self.demands.iter().flat_map(|d| &d.chosen)
    }

    /// What a request uses of a device: a share of each capacity, or all of it (`Some(None)`). None if the device has not enough capacity.
    fn share(&self, at: Position, device: usize) -> Option<Option<Amounts>> {
        let (offered, capacity) = (self.device(device), &self.alternative(at).request.value["capacity"]);
        let is_shared = is_shared(offered);
        if !is_shared && capacity.is_null() {
            return Some(None);
        }
        let amounts = consumed(capacity, offered.device)?;
        let id = offered.id();
        let here = |name: &str| -> i128 {
            let shares = self.chosen().filter(|c| c.device == device).filter_map(|c| c.share.as_ref()?.get(name));
            shares.map(meta::Quantity::nano_value).fold(0, i128::saturating_add)
        };
        let used = |name: &str| {
            self.allocator.in_use().iter().map(|all| all.used(&id, name)).fold(here(name), i128::saturating_add)
        };
        suffices(offered.device, &amounts, used).then(|| is_shared.then_some(amounts))
    }

    /// Gives a device to a request, if it is free, tolerated and within the constraints of the claim. Errors if a request for all devices
    /// cannot have one because of a constraint: such a claim cannot be met.
    fn hold(&mut self, at: Position, device: usize) -> Result<bool, AllocationError> {
        if self.is_taken(at, device) {
            return Ok(false);
        }
        let offered = self.device(device);
        let is_shared = is_shared(offered);
        // Whoever has a share already has the counters, too.
        let has_shares = || {
            let id = offered.id();
            self.allocator.in_use().iter().any(|all| all.is_shared(&id)) || self.chosen().any(|c| c.device == device)
        };
        let consumes = list(offered.device, "consumesCounters").next().is_some() && !(is_shared && has_shares());
        if consumes && !self.has_counters(device) {
            return Ok(false);
        }
        let alternative = self.alternative(at);
        let taints: Vec<Taint> = list(offered.device, "taints").filter_map(|t| Taint::deserialize(t).ok()).collect();
        if untolerated(&taints, EXCLUDING, &alternative.tolerations).is_some() {
            return Ok(false);
        }
        if !self.satisfies(at, device) {
            if !alternative.wants_all() {
                return Ok(false);
            }
            let why = format!(
                ", request {}: cannot add device {}/{}/{} because a claim constraint would not be satisfied",
                alternative.request.own_name(),
                offered.driver,
                offered.pool,
                offered.name
            );
            return Err(AllocationError::Claim { claim: at.claim, why });
        }
        let Some(share) = self.share(at, device) else { return Ok(false) };
        let chosen = Chosen { request: at.request, device, share, consumes };
        self.demands[at.claim].chosen.push(chosen);
        if !is_shared {
            self.holders.entry(device).or_default().push(at.claim);
        }
        Ok(true)
    }

    fn release(&mut self, at: Position, device: usize) {
        self.demands[at.claim].chosen.pop();
        if !is_shared(self.device(device))
            && let Some(holders) = self.holders.get_mut(&device)
        {
            holders.pop();
        }
    }

    /// Whether the counters of its pool suffice for a device (partitionable devices).
    fn has_counters(&self, device: usize) -> bool {
        let pools = &self.allocator.pools;
        let mut wanted = Counters::default();
        let others = self.chosen().filter(|c| c.consumes && pools.is_same(c.device, device)).map(|c| c.device);
        for d in others.chain([device]) {
            counters(&pools.devices[d].device["consumesCounters"], "counterSet", |set, name, amount| {
                let wanted = wanted.entry((set, name)).or_default();
                *wanted = wanted.saturating_add(amount);
            });
        }
        pools.of(device).suffices(&wanted, |d| self.allocator.is_used(&d.id()))
    }

    /// Whether the constraints of its claim admit one more device.
    fn satisfies(&self, at: Position, device: usize) -> bool {
        let demand = &self.demands[at.claim];
        list(&demand.claim.devices, "constraints").all(|constraint| {
            let names: Vec<&str> = list(constraint, "requests").filter_map(Value::as_str).collect();
            let is_concerned = |request: usize| {
                let r = &demand.alternative(request).request;
                names.is_empty() || names.iter().any(|n| *n == r.parent || *n == r.name)
            };
            if !is_concerned(at.request) {
                return true;
            }
            let others = || demand.chosen.iter().filter(|c| is_concerned(c.request)).map(|c| self.device(c.device));
            let (name, must_match) = match (constraint["matchAttribute"].as_str(), &constraint["distinctAttribute"]) {
                (Some(name), _) => (name, true),
                // Otherwise it is a constraint of a later version.
                (None, distinct) => (distinct.as_str().unwrap_or_default(), false),
            };
            let Some(value) = attribute(self.device(device), name) else { return false };
            match must_match {
                true => others().next().is_none_or(|first| attribute(first, name) == Some(value)),
                false => others().all(|other| attribute(other, name) != Some(value)),
            }
        })
    }
}

/// Whether several requests may share the device.
fn is_shared(device: &Offered<'_>) -> bool {
    device.device["allowMultipleAllocations"] == true
}
