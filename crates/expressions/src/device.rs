//! Devices in CEL: the selectors of device classes and claims (upstream `dynamic-resource-allocation/cel`).

use cel::{Budget, Decl, Env, Error, Field, Key, Map, Opaque, Program, Type, Val, Vars};
use meta::{Quantity, Value};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

/// Maximum lengths of driver names and domains, identifiers and attribute values, and maximum numbers of items.
const DOMAIN_MAX: u64 = 63;
const ID_MAX: u64 = 32;
const VALUE_MAX: u64 = 64;
const PER_DEVICE_MAX: u64 = 32;

/// The CEL environment of selectors: attributes and capacities by domain and name.
pub static DEVICE_ENV: LazyLock<Env> = LazyLock::new(|| {
    let named = |max: u64, of: Decl| Decl::new(Type::map(Decl::new(Type::String, max), of), PER_DEVICE_MAX);
    let by_name = |of: Decl| named(DOMAIN_MAX, named(ID_MAX, of));
    let fields = [
        ("driver", Decl::new(Type::String, DOMAIN_MAX)),
        ("attributes", by_name(Decl::new(Type::Dyn, VALUE_MAX))),
        ("capacity", by_name(Type::Opaque("kubernetes.Quantity").into())),
        ("allowMultipleAllocations", Type::Bool.into()),
    ];
    let fields = fields.map(|(n, decl)| (n.to_owned(), Field { json: n.to_owned(), decl })).into();
    let device = cel::Object { name: "kubernetes.DRADevice".into(), fields, open: false };
    Env::default().with_bindings().with("device", Type::Object(Arc::new(device)))
});

/// A device, as a selector sees it.
pub struct Device<'a> {
    /// The driver of the device, and the domain of names without one.
    pub driver: &'a str,
    /// The device of a resource slice.
    pub device: &'a Value,
    /// Domains that are known although the device has no attribute of them.
    pub domains: &'a [String],
}

/// The one variable of selectors.
struct Variable<'a>(Val<'a>);

impl<'a> Vars<'a> for Variable<'a> {
    fn get(&self, name: &str, _: &mut Budget) -> Result<Val<'a>, Error> {
        match name {
            "device" => Ok(self.0.clone()),
            _ => Err(Error::Fault(format!("no such variable: {name}"))),
        }
    }
}

impl Device<'_> {
    /// Whether a selector selects the device. Errors if the evaluation fails or costs too much.
    pub fn is_selected(&self, program: &Program) -> Result<bool, Error> {
        let device = Val::record([
            ("driver".to_owned(), Val::string(self.driver)),
            ("attributes".to_owned(), self.by_domain("attributes", attribute)),
            ("capacity".to_owned(), self.by_domain("capacity", capacity)),
            ("allowMultipleAllocations".to_owned(), Val::Bool(self.device["allowMultipleAllocations"] == true)),
        ]);
        let selected = program.eval(&Variable(device), &mut Budget::new(cel::PER_CALL_LIMIT))?;
        Ok(selected.as_bool().unwrap_or(false))
    }

    /// The named values of a field of the device, by domain.
    fn by_domain<'v>(&'v self, field: &str, value: impl Fn(&'v Value) -> Option<Val<'v>>) -> Val<'v> {
        let mut domains: BTreeMap<String, BTreeMap<Key<'v>, Val<'v>>> = BTreeMap::new();
        for domain in self.domains.iter().map(String::as_str).chain([self.driver]) {
            domains.entry(domain.to_owned()).or_default();
        }
        for (name, v) in self.device[field].as_object().into_iter().flatten() {
            let (domain, id) = name.split_once('/').unwrap_or((self.driver, name));
            if let Some(value) = value(v) {
                domains.entry(domain.to_owned()).or_default().insert(Key::Str(id.to_owned().into()), value);
            }
        }
        let map = |values| Val::Map(Map::Own(Rc::new(values)));
        map(domains.into_iter().map(|(domain, values)| (Key::Str(domain.into()), map(values))).collect())
    }
}

/// The value of an attribute.
fn attribute(v: &Value) -> Option<Val<'_>> {
    let (kind, value) = v.as_object()?.iter().next()?;
    match kind.as_str() {
        "version" => Val::version(value.as_str()?),
        _ => Some(Val::json(value, None)),
    }
}

fn capacity(v: &Value) -> Option<Val<'_>> {
    let quantity = Quantity::parse(v["value"].as_str()?).ok()?;
    Some(Val::opaque(Opaque::Quantity(quantity)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_read_attributes_and_capacities() {
        let device = json!({
            "name": "gpu0",
            "attributes": {"model": {"string": "x1"}, "other.com/fast": {"bool": true}, "driver": {"version": "1.2.3"}, "n": {"int": 4}},
            "capacity": {"memory": {"value": "40Gi"}},
        });
        let domains = ["third.com".to_owned()];
        let device = Device { driver: "gpu.example.com", device: &device, domains: &domains };
        let own = r#"device.attributes["gpu.example.com"]"#;
        let cases = [
            (r#"device.driver == "gpu.example.com""#.to_owned(), Some(true)),
            (format!(r#"{own}.model == "x1" && {own}.n > 3"#), Some(true)),
            (r#"device.attributes["other.com"].fast"#.into(), Some(true)),
            (format!(r#"{own}.driver.compareTo(semver("1.10.0")) < 0"#), Some(true)),
            (r#"device.capacity["gpu.example.com"].memory.compareTo(quantity("80Gi")) >= 0"#.into(), Some(false)),
            (r#""x" in device.attributes["third.com"]"#.into(), Some(false)),
            (format!("{own}.missing"), None),
        ];
        for (expression, expected) in cases {
            let compiled = DEVICE_ENV.compile(&expression).unwrap_or_else(|e| panic!("{expression}: {e}"));
            assert_eq!(device.is_selected(&compiled.program).ok(), expected, "{expression}");
        }
    }
}
