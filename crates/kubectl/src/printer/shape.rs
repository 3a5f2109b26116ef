//! An object with its fields in the order in which they are printed.
//!
//! Objects that kubectl builds itself, or decodes into Go types, are printed in the order of those types; all others by
//! field name. The order of a type is that of its protobuf numbers, with the exceptions of [`MOVED_FIELDS`].

use meta::{Gvk, Value};
use schema::{Schema, Type};

/// How the fields of objects are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    ByName,
    /// The order of Go's types.
    ByType,
    /// The order of a kubeconfig's types.
    Kubeconfig,
    /// The order of a kuberc's types.
    Preference,
    /// The order of version types.
    Version,
}

impl Order {
    /// Returns the order of fields for types without a schema; empty for others.
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::ByName | Self::ByType => &[],
            Self::Kubeconfig => &KUBECONFIG,
            Self::Preference => &PREFERENCE,
            Self::Version => &VERSION,
        }
    }
}

/// The fields of a kuberc.
const PREFERENCE: [&str; 10] =
    ["kind", "apiVersion", "defaults", "aliases", "name", "command", "prependArgs", "appendArgs", "options", "default"];

/// The fields of client and server versions.
const VERSION: [&str; 16] = [
    "clientVersion",
    "kustomizeVersion",
    "serverVersion",
    "major",
    "minor",
    "emulationMajor",
    "emulationMinor",
    "minCompatibilityMajor",
    "minCompatibilityMinor",
    "gitVersion",
    "gitCommit",
    "gitTreeState",
    "buildDate",
    "goVersion",
    "compiler",
    "platform",
];

/// The fields of a kubeconfig.
const KUBECONFIG: [&str; 31] = [
    "kind",
    "apiVersion",
    "preferences",
    "clusters",
    "users",
    "contexts",
    "current-context",
    "name",
    "cluster",
    "user",
    "context",
    "namespace",
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority",
    "certificate-authority-data",
    "proxy-url",
    "disable-compression",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "token",
    "tokenFile",
    "as",
    "as-uid",
    "as-groups",
    "as-user-extra",
    "username",
    "password",
];

/// A JSON value with ordered fields.
pub enum Shape<'a> {
    Leaf(&'a Value),
    List(Vec<Shape<'a>>),
    Fields(Vec<(&'a str, Shape<'a>)>),
}

/// Type, field, and the field that it precedes although its protobuf number is higher.
const MOVED_FIELDS: [(&str, &str, &str); 11] = [
    ("io.k8s.apimachinery.pkg.apis.meta.v1.APIResource", "singularName", "namespaced"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.APIResource", "group", "kind"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.APIResource", "version", "kind"),
    ("io.k8s.api.core.v1.PodSpec", "initContainers", "containers"),
    ("io.k8s.api.core.v1.PodSpec", "ephemeralContainers", "restartPolicy"),
    ("io.k8s.api.core.v1.Container", "envFrom", "env"),
    ("io.k8s.api.core.v1.ServicePort", "appProtocol", "port"),
    ("io.k8s.api.core.v1.ServiceSpec", "clusterIPs", "type"),
    ("io.k8s.api.batch.v1.JobSpec", "backoffLimit", "selector"),
    ("io.k8s.api.networking.v1.HTTPIngressPath", "pathType", "backend"),
    ("io.k8s.api.authentication.v1.TokenRequestSpec", "expirationSeconds", "boundObjectRef"),
];

impl<'a> Shape<'a> {
    pub fn new(v: &'a Value, order: Order) -> Self {
        match order {
            Order::ByName => Self::plain(v),
            Order::ByType => Self::typed(v, None),
            order => Self::listed(v, order.fields()),
        }
    }

    /// Orders fields as in a list; fields that it lacks come last.
    fn listed(v: &'a Value, order: &[&str]) -> Self {
        match v {
            Value::Array(a) => Self::List(a.iter().map(|v| Self::listed(v, order)).collect()),
            Value::Object(m) => {
                let mut all: Vec<(&str, Self)> = m.iter().map(|(k, v)| (k.as_str(), Self::listed(v, order))).collect();
                all.sort_by_key(|(k, _)| order.iter().position(|n| n == k).unwrap_or(order.len()));
                Self::Fields(all)
            }
            v => Self::Leaf(v),
        }
    }

    fn plain(v: &'a Value) -> Self {
        match v {
            Value::Array(a) => Self::List(a.iter().map(Self::plain).collect()),
            Value::Object(m) => Self::Fields(m.iter().map(|(k, v)| (k.as_str(), Self::plain(v))).collect()),
            v => Self::Leaf(v),
        }
    }

    fn typed(v: &'a Value, schema: Option<&Schema>) -> Self {
        let own = gvk(v).filter(|_| schema.is_none_or(|s| s.ty == Type::Raw));
        let own = own.as_ref().and_then(|g| kinds::catalog().schema_of(g)).map(|s| &**s);
        let schema = own.or(schema);
        match v {
            Value::Array(a) => {
                let items = schema.and_then(|s| s.items.as_deref());
                Self::List(a.iter().map(|v| Self::typed(v, items)).collect())
            }
            Value::Object(m) => {
                let rank = |name: &str| match name {
                    "kind" if own.is_some() => (0, 0),
                    "apiVersion" if own.is_some() => (0, 1),
                    _ => schema.map_or((2, 0), |s| rank(s, name)),
                };
                let mut all: Vec<(&str, Self)> =
                    m.iter().map(|(k, v)| (k.as_str(), Self::typed(v, schema.and_then(|s| s.member(k))))).collect();
                all.sort_by_key(|(k, _)| rank(k));
                Self::Fields(all)
            }
            v => Self::Leaf(v),
        }
    }

    /// Formats as indented JSON, with a newline at the end.
    pub fn json(&self) -> String {
        self.json_indented(4)
    }

    /// [`Self::json`] with `indent` spaces per level.
    pub fn json_indented(&self, indent: usize) -> String {
        let mut out = String::new();
        self.write_json(&mut out, 0, indent);
        out.push('\n');
        out
    }

    /// Formats as JSON without white space.
    pub fn compact(&self) -> String {
        let encoded = |v: &Value| codec::json::to_string(v, codec::json::Html::Escape);
        match self {
            Self::Leaf(v) => encoded(v),
            Self::List(all) => format!("[{}]", all.iter().map(Self::compact).collect::<Vec<_>>().join(",")),
            Self::Fields(all) => {
                let member = |(k, v): &(&str, Self)| format!("{}:{}", encoded(&(*k).into()), v.compact());
                format!("{{{}}}", all.iter().map(member).collect::<Vec<_>>().join(","))
            }
        }
    }

    fn write_json(&self, out: &mut String, depth: usize, indent: usize) {
        let line = |out: &mut String, depth: usize| {
            out.push('\n');
            out.push_str(&" ".repeat(indent * depth));
        };
        let encoded = |v: &Value| codec::json::to_string(v, codec::json::Html::Escape);
        match self {
            Self::Leaf(v) => out.push_str(&encoded(v)),
            Self::List(all) if all.is_empty() => out.push_str("[]"),
            Self::Fields(all) if all.is_empty() => out.push_str("{}"),
            Self::List(all) => {
                for (n, v) in all.iter().enumerate() {
                    out.push(if n == 0 { '[' } else { ',' });
                    line(out, depth + 1);
                    v.write_json(out, depth + 1, indent);
                }
                line(out, depth);
                out.push(']');
            }
            Self::Fields(all) => {
                for (n, (k, v)) in all.iter().enumerate() {
                    out.push(if n == 0 { '{' } else { ',' });
                    line(out, depth + 1);
                    out.push_str(&encoded(&(*k).into()));
                    out.push_str(": ");
                    v.write_json(out, depth + 1, indent);
                }
                line(out, depth);
                out.push('}');
            }
        }
    }
}

fn gvk(v: &Value) -> Option<Gvk> {
    let (version, kind) = (v.get("apiVersion")?.as_str()?, v.get("kind")?.as_str()?);
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    Some(Gvk::new(group, version, kind))
}

/// Returns the rank of a field in its type. Keys of maps have equal ranks and keep their order.
fn rank(s: &Schema, name: &str) -> (u32, u32) {
    let number = |n: &str| s.field(n).map_or(u32::MAX / 4, |f| f.number);
    let of = s.name.as_deref().unwrap_or_default();
    match MOVED_FIELDS.iter().find(|(ty, field, _)| *ty == of && *field == name) {
        Some((_, _, before)) => (1, 2 * number(before) - 1),
        None if s.fields.is_empty() => (1, 0),
        None => (1, 2 * number(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn orders_fields_as_go_types_do() {
        let v = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"labels": {"b": "1", "a": "2"}, "name": "s"},
            "spec": {"ports": [{"port": 1, "protocol": "TCP", "targetPort": 2}], "clusterIP": "x"}, "status": {}});
        let flat: String = Shape::new(&v, Order::ByType).json().split_whitespace().collect();
        assert_eq!(
            flat,
            r#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"s","labels":{"a":"2","b":"1"}},"spec":{"ports":[{"protocol":"TCP","port":1,"targetPort":2}],"clusterIP":"x"},"status":{}}"#
        );
        assert_eq!(Shape::new(&v, Order::ByName).json(), codec::json::to_string_indent(&v));
    }
}
