//! Profiles: which plugins each extension point calls, in which order.

use super::{Arguments, ConfigurationError};
use crate::framework::{Plugin, Point};
use crate::plugins::{DEFAULT, Handle, build, default_weight};
use crate::profile::{Framework, Weighted};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The points, in the order in which upstream checks them.
const CHECKED: [Point; 12] = [
    Point::PreFilter,
    Point::Filter,
    Point::PostFilter,
    Point::Reserve,
    Point::PreScore,
    Point::Score,
    Point::PreBind,
    Point::Bind,
    Point::PostBind,
    Point::Permit,
    Point::PreEnqueue,
    Point::QueueSort,
];

/// A plugin to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enabled {
    pub name: Box<str>,
    /// The factor of its scores; none or zero for 1.
    pub weight: Option<i64>,
}

impl Enabled {
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), weight: None }
    }
}

/// Plugins that are called, and default plugins that are not. `*` disables all default plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginSet {
    pub enabled: Vec<Enabled>,
    pub disabled: Vec<Box<str>>,
}

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|d| **d == *name || &**d == "*")
    }
}

/// The plugins for the pods of one `schedulerName`.
#[derive(Clone, Debug)]
pub struct Profile {
    pub name: Arc<str>,
    pub percentage: Option<u32>,
    /// The plugins that are called at all points that they implement.
    pub multi_point: PluginSet,
    /// The plugins of single points.
    pub points: BTreeMap<Point, PluginSet>,
    pub arguments: Arguments,
}

impl Profile {
    /// The default profile.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            percentage: None,
            multi_point: PluginSet { enabled: defaults(), disabled: Vec::new() },
            points: BTreeMap::new(),
            arguments: Arguments::default(),
        }
    }

    /// Adds plugins of a file to the default ones: one that is configured again keeps its place.
    pub fn merge_multi_point(&mut self, set: PluginSet) {
        let mut own: Vec<Option<Enabled>> = set.enabled.iter().cloned().map(Some).collect();
        let mut merged = Vec::new();
        for plugin in defaults().into_iter().filter(|p| !set.disables(&p.name)) {
            let again = own.iter_mut().find(|o| o.as_ref().is_some_and(|o| o.name == plugin.name));
            merged.push(again.and_then(Option::take).unwrap_or(plugin));
        }
        merged.extend(own.into_iter().flatten());
        self.multi_point = PluginSet { enabled: merged, disabled: set.disabled };
    }

    /// Makes the plugins. `extra` are called first, at all points. Errors if a plugin is unknown, or does not implement a point that it
    /// is enabled for, or is enabled twice, or if no single plugin sorts the queue, or none binds.
    pub fn framework(&self, handle: &Handle, extra: &[Arc<dyn Plugin>]) -> Result<Framework, ConfigurationError> {
        let problem = |problem: String| ConfigurationError::Profile { scheduler: self.name.clone(), problem };
        let mut made: HashMap<&str, Arc<dyn Plugin>> = HashMap::new();
        let all = self.points.values().flat_map(|s| &s.enabled).chain(&self.multi_point.enabled);
        for enabled in all {
            if !made.contains_key(&*enabled.name)
                && let Some(plugin) = build(&enabled.name, &self.arguments, handle)
            {
                made.insert(&enabled.name, plugin);
            }
        }
        let mut weights: HashMap<&str, i64> = HashMap::new();
        let score = self.points.get(&Point::Score).into_iter().flat_map(|s| &s.enabled);
        for enabled in score.chain(&self.multi_point.enabled) {
            let weight = enabled.weight.filter(|w| *w != 0).unwrap_or(1);
            weights.entry(&enabled.name).or_insert(weight);
        }
        let scored =
            weights.iter().filter(|(name, _)| made.get(*name).is_some_and(|p| p.points().contains(&Point::Score)));
        if scored.map(|(_, weight)| i128::from(*weight)).sum::<i128>() * 100 > i128::from(i64::MAX) {
            return Err(problem("score plugins: total score of Score plugins could overflow".into()));
        }
        let own: Result<Vec<_>, String> = CHECKED.iter().map(|point| self.own(*point, &made)).collect();
        own.map_err(problem)?;
        let orders: Result<Vec<_>, String> = CHECKED.iter().map(|p| Ok((*p, self.order(*p, &made)?))).collect();
        let mut orders: HashMap<Point, Vec<&str>> = orders.map_err(problem)?.into_iter().collect();
        let mut points = Vec::new();
        for point in Point::ALL {
            let first = extra.iter().filter(|p| p.points().contains(point));
            let mut plugins: Vec<Weighted> =
                first.map(|p| Weighted { plugin: p.clone(), weight: p.weight() }).collect();
            for name in orders.remove(point).unwrap_or_default() {
                if let Some(plugin) = made.get(name) {
                    plugins.push(Weighted { plugin: plugin.clone(), weight: weights.get(name).copied().unwrap_or(1) });
                }
            }
            points.push(plugins);
        }
        let sorting = points[Point::QueueSort as usize].iter().filter(|w| made.contains_key(w.plugin.name())).count();
        if sorting != 1 {
            return Err(problem(format!(
                "only one queue sort plugin required for profile with scheduler name \"{}\", but got {sorting}",
                self.name
            )));
        }
        if points[Point::Bind as usize].is_empty() {
            let name = &self.name;
            return Err(problem(format!(
                "at least one bind plugin is needed for profile with scheduler name \"{name}\""
            )));
        }
        let mut framework = Framework::with_points(&self.name, points);
        framework.percentage = self.percentage;
        Ok(framework)
    }

    /// The names of the plugins that are enabled for a point itself.
    fn own<'a>(&'a self, point: Point, made: &HashMap<&str, Arc<dyn Plugin>>) -> Result<Vec<&'a str>, String> {
        let kind = format!("{point:?}Plugin");
        let mut names: Vec<&str> = Vec::new();
        for enabled in self.points.get(&point).into_iter().flat_map(|s| &s.enabled) {
            let Some(plugin) = made.get(&*enabled.name) else {
                return Err(format!("{kind} \"{}\" does not exist", enabled.name));
            };
            if !plugin.points().contains(&point) {
                return Err(format!("plugin \"{}\" does not extend {kind} plugin", enabled.name));
            }
            if names.contains(&&*enabled.name) {
                return Err(format!("plugin \"{}\" already registered as \"{kind}\"", enabled.name));
            }
            names.push(&enabled.name);
        }
        Ok(names)
    }

    /// The names of the plugins that a point calls: those configured for the point that are also default ones, the other default ones,
    /// and the others of the point.
    fn order<'a>(&'a self, point: Point, made: &HashMap<&str, Arc<dyn Plugin>>) -> Result<Vec<&'a str>, String> {
        let kind = format!("{point:?}Plugin");
        const NONE: &PluginSet = &PluginSet { enabled: Vec::new(), disabled: Vec::new() };
        let own = self.points.get(&point).unwrap_or(NONE);
        let own_names = self.own(point, made)?;
        if own.disabled.iter().any(|d| &**d == "*") {
            return Ok(own_names);
        }
        let (mut overriding, mut shared): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
        for enabled in &self.multi_point.enabled {
            let Some(plugin) = made.get(&*enabled.name) else {
                return Err(format!("{kind} \"{}\" does not exist", enabled.name));
            };
            if !plugin.points().contains(&point) || own.disables(&enabled.name) {
                continue;
            }
            if own_names.contains(&&*enabled.name) {
                overriding.push(&enabled.name);
            } else if shared.contains(&&*enabled.name) {
                return Err(format!("plugin \"{}\" already registered as \"{kind}\"", enabled.name));
            } else {
                shared.push(&enabled.name);
            }
        }
        let first = own_names.iter().filter(|n| overriding.contains(n));
        let last = own_names.iter().filter(|n| !overriding.contains(n));
        Ok(first.chain(&shared).chain(last).copied().collect())
    }
}

fn defaults() -> Vec<Enabled> {
    DEFAULT.iter().map(|name| Enabled { name: (*name).into(), weight: default_weight(name) }).collect()
}
