//! Formats values as upstream's internal Go types appear in error messages. Internal types have no JSON tags, so that fields have
//! their Go names and order, and empty fields are included.
//!
//! Types of `metav1` are the same in internal and external versions and keep their JSON form. Left out: fields that internal types have in
//! another struct (`hostNetwork` of pods) stay where the external type has them.

mod diff;
mod print;

pub use diff::unified;
pub use print::{float, plain, syntax, type_name};

use crate::sent;
use crate::types::{Field, Presence, Schema, Type};
use meta::FieldPath;
use serde_json::{Map, Value};

/// A value with ordered members.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A scalar, or a value without a schema.
    Leaf(Value),
    /// A list.
    List(Vec<Shape>),
    /// An object, with its members in the order of the type.
    Fields(Vec<(String, Shape)>),
}

/// The value on one line; `path` is that of the value in the object.
pub fn show(v: &Value, schema: &Schema, path: &FieldPath) -> String {
    Shape::sent(v, schema, path).compact()
}

/// The value of a field on one line; the zero value of its Go type if it is absent.
pub fn show_field(v: Option<&Value>, f: &Field, path: &FieldPath) -> String {
    v.filter(|v| !v.is_null()).map_or_else(|| zero(f, Some(path)), |v| Shape::sent(v, &f.schema, path)).compact()
}

impl Shape {
    /// The shape of a stored value: an empty list or map is absent.
    pub fn new(v: &Value, schema: &Schema) -> Self {
        Self::at(v, schema, None)
    }

    /// The shape of a value of the request, at this path: a list or map that was sent empty stays empty.
    pub fn sent(v: &Value, schema: &Schema, path: &FieldPath) -> Self {
        Self::at(v, schema, sent::any().then_some(path))
    }

    fn at(v: &Value, schema: &Schema, path: Option<&FieldPath>) -> Self {
        match (v, schema.ty) {
            (Value::Object(m), Type::Struct) if is_meta(schema) => Self::meta(m, schema),
            (Value::Object(m), Type::Struct) => Self::Fields(fields(m, schema, path)),
            (Value::Array(a), Type::Array) => match schema.items.as_deref() {
                Some(s) => {
                    let each = a.iter().enumerate();
                    Self::List(each.map(|(i, v)| Self::at(v, s, path.map(|p| p.index(i)).as_ref())).collect())
                }
                None => Self::Leaf(v.clone()),
            },
            (Value::Object(m), Type::Map) => match schema.additional.as_deref() {
                Some(s) => {
                    let member =
                        |(k, v): (&String, &Value)| (k.clone(), Self::at(v, s, path.map(|p| p.key(k)).as_ref()));
                    Self::Fields(m.iter().map(member).collect())
                }
                None => Self::Leaf(v.clone()),
            },
            _ => Self::Leaf(v.clone()),
        }
    }

    /// The shape of `metav1` types: only the present members, with their JSON names, in the order of the Go type.
    fn meta(m: &Map<String, Value>, schema: &Schema) -> Self {
        let mut all: Vec<(&Field, &Value)> = m.iter().filter_map(|(k, v)| Some((schema.field(k)?, v))).collect();
        all.sort_by_key(|(f, _)| f.place);
        Self::Fields(all.into_iter().map(|(f, v)| (f.name.to_string(), Self::new(v, &f.schema))).collect())
    }

    /// The value on one line.
    pub fn compact(&self) -> String {
        match self {
            Self::Leaf(v) => leaf(v),
            Self::List(a) => format!("[{}]", a.iter().map(Self::compact).collect::<Vec<_>>().join(",")),
            Self::Fields(m) => {
                let each = m.iter().map(|(k, v)| format!("{}:{}", leaf(&k.as_str().into()), v.compact()));
                format!("{{{}}}", each.collect::<Vec<_>>().join(","))
            }
        }
    }

    /// A member by its name.
    pub fn member(&mut self, name: &str) -> Option<&mut Shape> {
        match self {
            Self::Fields(m) => m.iter_mut().find(|(k, _)| k == name).map(|(_, v)| v),
            _ => None,
        }
    }

    /// The value with a line for each member, indented by one blank per level.
    pub fn lines(&self) -> String {
        let mut out = String::new();
        self.write(0, &mut out);
        out
    }

    fn write(&self, depth: usize, out: &mut String) {
        let line = |out: &mut String, depth: usize| {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', depth));
        };
        match self {
            Self::List(a) if !a.is_empty() => {
                out.push('[');
                for (i, v) in a.iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    line(out, depth + 1);
                    v.write(depth + 1, out);
                }
                line(out, depth);
                out.push(']');
            }
            Self::Fields(m) if !m.is_empty() => {
                out.push('{');
                for (i, (k, v)) in m.iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    line(out, depth + 1);
                    out.push_str(&leaf(&k.as_str().into()));
                    out.push_str(": ");
                    v.write(depth + 1, out);
                }
                line(out, depth);
                out.push('}');
            }
            Self::Leaf(Value::Object(m)) if !m.is_empty() => {
                let members = m.iter().map(|(k, v)| (k.clone(), Self::Leaf(v.clone())));
                Self::Fields(members.collect()).write(depth, out);
            }
            Self::Leaf(Value::Array(a)) if !a.is_empty() => {
                Self::List(a.iter().cloned().map(Self::Leaf).collect()).write(depth, out);
            }
            other => out.push_str(&other.compact()),
        }
    }
}

/// All fields of a struct, including the empty ones.
fn fields(m: &Map<String, Value>, schema: &Schema, path: Option<&FieldPath>) -> Vec<(String, Shape)> {
    let mut all: Vec<(&Field, Option<&Value>)> = schema.beside(m.iter()).collect();
    all.sort_by_key(|(f, _)| f.place);
    let mut out = Vec::with_capacity(all.len());
    for (f, v) in all {
        match v.filter(|v| !v.is_null()) {
            // Go embeds `ObjectMeta`: its fields are those of the struct.
            Some(Value::Object(m)) if &*f.name == "metadata" => {
                if let Shape::Fields(inner) = Shape::meta(m, &f.schema) {
                    out.extend(inner);
                }
            }
            None if &*f.name == "metadata" => {}
            v => {
                let at = path.map(|p| p.child(&f.name));
                let shape = v.map_or_else(|| zero(f, at.as_ref()), |v| Shape::at(v, &f.schema, at.as_ref()));
                out.push((name_in(schema, &f.name), shape));
            }
        }
    }
    as_internal(schema, &mut out);
    out
}

/// Moves the fields that internal types have in another place than external ones.
fn as_internal(schema: &Schema, out: &mut Vec<(String, Shape)>) {
    let place = |out: &[(String, Shape)], name: &str| out.iter().position(|(n, _)| n == name);
    for (_, moved, after) in MOVED.iter().filter(|(s, ..)| is_named(schema, s)) {
        if let Some(from) = place(out, moved) {
            let field = out.remove(from);
            let to = place(out, after).map_or(from, |i| i + 1);
            out.insert(to, field);
        }
    }
}

fn is_named(schema: &Schema, name: &str) -> bool {
    schema.name.as_deref().is_some_and(|n| n.rsplit('.').next() == Some(name))
}

/// The Go name of a field of this type.
fn name_in(schema: &Schema, json: &str) -> String {
    let own = OWN_NAMES.iter().find(|(s, n, _)| *n == json && is_named(schema, s));
    own.map_or_else(|| name(json), |(.., go)| (*go).into())
}

/// The zero value of the Go type of an absent field.
fn zero(f: &Field, path: Option<&FieldPath>) -> Shape {
    if f.presence == Presence::Pointer {
        return Shape::Leaf(Value::Null);
    }
    match f.schema.ty {
        Type::String => Shape::Leaf("".into()),
        Type::Int32 | Type::Int64 | Type::Double | Type::IntOrString => Shape::Leaf(0.into()),
        Type::Boolean => Shape::Leaf(false.into()),
        Type::Quantity => Shape::Leaf("0".into()),
        Type::Struct => Shape::new(&Value::Object(Map::new()), &f.schema),
        _ => Shape::Leaf(path.map(|p| sent::at(&p.text())).unwrap_or_default()),
    }
}

fn is_meta(schema: &Schema) -> bool {
    schema.name.as_deref().is_some_and(|n| n.starts_with("io.k8s.apimachinery."))
}

/// Initialisms that Go names capitalize where they begin a name.
const CAPITALS: [&str; 31] = [
    "api", "aws", "ca", "cel", "cidr", "csi", "dns", "fc", "fs", "gce", "gid", "gmsa", "grpc", "http", "id", "ip",
    "iqn", "iscsi", "json", "nfs", "os", "pd", "qos", "rbd", "se", "ssl", "tcp", "tls", "ttl", "uid", "url",
];
/// Go names that do not follow from the JSON name.
const NAMES: [(&str, &str); 15] = [
    ("cephfs", "CephFS"),
    ("chapAuthDiscovery", "DiscoveryCHAPAuth"),
    ("chapAuthSession", "SessionCHAPAuth"),
    ("cidrs", "CIDRs"),
    ("ips", "IPs"),
    ("storageos", "StorageOS"),
    ("tty", "TTY"),
    ("wwids", "WWIDs"),
    ("x-kubernetes-embedded-resource", "XEmbeddedResource"),
    ("x-kubernetes-int-or-string", "XIntOrString"),
    ("x-kubernetes-list-map-keys", "XListMapKeys"),
    ("x-kubernetes-list-type", "XListType"),
    ("x-kubernetes-map-type", "XMapType"),
    ("x-kubernetes-preserve-unknown-fields", "XPreserveUnknownFields"),
    ("x-kubernetes-validations", "XValidations"),
];

/// Go names of fields that have other ones in other types: the type, the JSON name and the Go name.
const OWN_NAMES: [(&str, &str, &str); 22] = [
    ("AzureDiskVolumeSource", "diskURI", "DataDiskURI"),
    ("ContainerStatus", "lastState", "LastTerminationState"),
    ("DeviceAttribute", "bool", "BoolValue"),
    ("DeviceAttribute", "bools", "BoolValues"),
    ("DeviceAttribute", "int", "IntValue"),
    ("DeviceAttribute", "ints", "IntValues"),
    ("DeviceAttribute", "string", "StringValue"),
    ("DeviceAttribute", "strings", "StringValues"),
    ("DeviceAttribute", "version", "VersionValue"),
    ("DeviceAttribute", "versions", "VersionValues"),
    ("GlusterfsPersistentVolumeSource", "endpoints", "EndpointsName"),
    ("GlusterfsVolumeSource", "endpoints", "EndpointsName"),
    ("NodeSpec", "externalID", "DoNotUseExternalID"),
    ("PhotonPersistentDiskVolumeSource", "pdID", "PdID"),
    ("RBDPersistentVolumeSource", "image", "RBDImage"),
    ("RBDPersistentVolumeSource", "monitors", "CephMonitors"),
    ("RBDPersistentVolumeSource", "pool", "RBDPool"),
    ("RBDPersistentVolumeSource", "user", "RadosUser"),
    ("RBDVolumeSource", "image", "RBDImage"),
    ("RBDVolumeSource", "monitors", "CephMonitors"),
    ("RBDVolumeSource", "pool", "RBDPool"),
    ("RBDVolumeSource", "user", "RadosUser"),
];
/// Fields of internal types in another place than those of external ones: the type, the field, and the field before it.
const MOVED: [(&str, &str, &str); 3] = [
    ("PersistentVolumeSpec", "Quobyte", "RBD"),
    ("PersistentVolumeSpec", "FlexVolume", "ISCSI"),
    ("Volume", "Quobyte", "RBD"),
];

/// The Go name of a field, from its JSON name.
pub fn name(json: &str) -> String {
    if let Some((_, go)) = NAMES.iter().find(|(n, _)| *n == json) {
        return (*go).into();
    }
    let end = json.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(json.len());
    let (first, rest) = json.split_at(end);
    if CAPITALS.contains(&first) {
        return format!("{}{rest}", first.to_ascii_uppercase());
    }
    let mut chars = json.chars();
    let initial: String = chars.next().into_iter().map(|c| c.to_ascii_uppercase()).collect();
    format!("{initial}{}", chars.as_str())
}

/// A scalar as Go's JSON encoder writes it: `<`, `>` and `&` are escaped.
fn leaf(v: &Value) -> String {
    let text = v.to_string();
    if !text.contains(['<', '>', '&']) {
        return text;
    }
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SchemaRef;
    use serde_json::json;
    use std::sync::Arc;

    fn field(name: &str, place: u16, presence: Presence, schema: Schema) -> Field {
        Field { place, presence, ..Field::new(name, SchemaRef::Inline(Arc::new(schema))) }
    }

    fn sample() -> Schema {
        let list =
            Schema { items: Some(SchemaRef::Inline(Arc::new(Schema::new(Type::String)))), ..Schema::new(Type::Array) };
        let fields = vec![
            field("apiGroup", 1, Presence::OmitZero, Schema::new(Type::String)),
            field("count", 2, Presence::Always, Schema::new(Type::Int32)),
            field("items", 0, Presence::OmitZero, list),
            field("on", 3, Presence::Pointer, Schema::new(Type::Boolean)),
        ];
        Schema { fields, ..Schema::new(Type::Struct) }
    }

    #[test]
    fn shows_empty_fields() {
        let shown = |v: Value| show(&v, &sample(), &FieldPath::root());
        assert_eq!(shown(json!({})), r#"{"Items":null,"APIGroup":"","Count":0,"On":null}"#);
        let all = json!({"items": ["<a>"], "apiGroup": "g", "count": 3, "on": false});
        assert_eq!(shown(all), r#"{"Items":["\u003ca\u003e"],"APIGroup":"g","Count":3,"On":false}"#);
    }

    #[test]
    fn indents_members_by_one_blank() {
        let lines = Shape::new(&json!({"items": ["a", "b"]}), &sample()).lines();
        let want = "{\n \"Items\": [\n  \"a\",\n  \"b\"\n ],\n \"APIGroup\": \"\",\n \"Count\": 0,\n \"On\": null\n}";
        assert_eq!(lines, want);
    }

    #[test]
    fn capitalizes_initialisms() {
        let cases =
            [("apiGroup", "APIGroup"), ("ip", "IP"), ("csi", "CSI"), ("clusterIP", "ClusterIP"), ("name", "Name")];
        for (json, go) in cases {
            assert_eq!(name(json), go);
        }
    }

    #[test]
    fn fields_have_the_names_and_places_of_the_internal_type() {
        let shown = |ty: &str, names: &[&str]| {
            let text = |(i, n): (usize, &&str)| field(n, i as u16, Presence::OmitZero, Schema::new(Type::String));
            let fields = names.iter().enumerate().map(text).collect();
            let name = Some(format!("io.k8s.api.core.v1.{ty}").into());
            show(&json!({}), &Schema { name, fields, ..Schema::new(Type::Struct) }, &FieldPath::root())
        };
        assert_eq!(shown("RBDVolumeSource", &["monitors", "fsType"]), r#"{"CephMonitors":"","FSType":""}"#);
        assert_eq!(shown("CephFSVolumeSource", &["monitors"]), r#"{"Monitors":""}"#);
        assert_eq!(shown("Volume", &["rbd", "cinder", "quobyte"]), r#"{"RBD":"","Quobyte":"","Cinder":""}"#);
    }
}
