//! Amounts of resources as integers.

use meta::Quantity;
use serde_json::{Map, Value};
use std::sync::Arc;

/// CPU in millicores, other amounts in units (bytes). Extended resources by name, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    pub cpu: i64,
    pub memory: i64,
    pub ephemeral: i64,
    pub pods: i64,
    pub extended: Vec<(Arc<str>, i64)>,
}

/// Which resource. Comparing names for each node takes longer than scoring it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    Cpu,
    Memory,
    EphemeralStorage,
    Pods,
    Extended(Box<str>),
}

impl From<&str> for Resource {
    fn from(name: &str) -> Self {
        match name {
            "cpu" => Self::Cpu,
            "memory" => Self::Memory,
            "ephemeral-storage" => Self::EphemeralStorage,
            "pods" => Self::Pods,
            extended => Self::Extended(extended.into()),
        }
    }
}

/// The maximum of one amount: more than any node has, but small enough that the sum of the pods of a node does not overflow, so that
/// subtraction undoes addition.
const MAX: i64 = 1 << 50;

pub(crate) fn quantity(v: &Value) -> Option<Quantity> {
    match v {
        Value::String(s) => Quantity::parse(s).ok(),
        Value::Number(n) => Quantity::parse(&n.to_string()).ok(),
        _ => None,
    }
}

impl Resources {
    /// Reads a `ResourceList`; an invalid quantity counts as zero.
    pub fn read(list: Option<&Map<String, Value>>) -> Self {
        let mut r = Self::default();
        for (name, v) in list.into_iter().flatten() {
            let Some(q) = quantity(v) else { continue };
            match Resource::from(name.as_str()) {
                Resource::Cpu => r.cpu = q.milli_value().min(MAX),
                Resource::Memory => r.memory = q.value().min(MAX),
                Resource::EphemeralStorage => r.ephemeral = q.value().min(MAX),
                Resource::Pods => r.pods = q.value().min(MAX),
                Resource::Extended(name) => r.extended.push((name.into(), q.value().min(MAX))),
            }
        }
        r.extended.sort();
        r
    }

    pub fn extended(&self, name: &str) -> i64 {
        self.extended.iter().find(|(n, _)| &**n == name).map_or(0, |(_, v)| *v)
    }

    pub fn of(&self, resource: &Resource) -> i64 {
        match resource {
            Resource::Cpu => self.cpu,
            Resource::Memory => self.memory,
            Resource::EphemeralStorage => self.ephemeral,
            Resource::Pods => self.pods,
            Resource::Extended(name) => self.extended(name),
        }
    }

    /// The amount of a resource by its name.
    pub fn get(&self, name: &str) -> i64 {
        self.of(&name.into())
    }

    /// Sets the amount of a resource by its name.
    pub fn set(&mut self, name: &str, amount: i64) {
        match name.into() {
            Resource::Cpu => self.cpu = amount,
            Resource::Memory => self.memory = amount,
            Resource::EphemeralStorage => self.ephemeral = amount,
            Resource::Pods => self.pods = amount,
            Resource::Extended(_) => match self.extended.binary_search_by(|(n, _)| (**n).cmp(name)) {
                Ok(i) => self.extended[i].1 = amount,
                Err(i) => self.extended.insert(i, (name.into(), amount)),
            },
        }
    }

    fn combine(&mut self, other: &Self, f: fn(i64, i64) -> i64) {
        self.cpu = f(self.cpu, other.cpu);
        self.memory = f(self.memory, other.memory);
        self.ephemeral = f(self.ephemeral, other.ephemeral);
        self.pods = f(self.pods, other.pods);
        for (name, v) in &other.extended {
            match self.extended.binary_search_by(|(n, _)| n.cmp(name)) {
                Ok(i) => self.extended[i].1 = f(self.extended[i].1, *v),
                Err(i) => self.extended.insert(i, (name.clone(), f(0, *v))),
            }
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.combine(other, i64::saturating_add);
    }

    pub fn subtract(&mut self, other: &Self) {
        self.combine(other, i64::saturating_sub);
    }

    pub fn at_least(&mut self, other: &Self) {
        self.combine(other, i64::max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A pod with an enormous request made the scheduler forget the other pods of its node.
    #[test]
    fn subtraction_undoes_addition() {
        let read = |v: Value| Resources::read(v.as_object());
        let mut used = read(json!({"cpu": "1500m", "memory": "1Gi", "example.com/a": "3"}));
        let before = used.clone();
        let max = i64::MAX.to_string();
        let enormous = read(json!({"cpu": max, "memory": max, "pods": max, "ephemeral-storage": max,
            "example.com/a": max}));
        (0..1000).for_each(|_| used.add(&enormous));
        (0..1000).for_each(|_| used.subtract(&enormous));
        assert_eq!(used, before);
    }
}
