//! Upstream's messages as descriptors of an independent protobuf library, and JSON as such messages by the names of fields.

use meta::{Map, Value};
use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, MessageOptions,
};
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value as Field};
use std::collections::{BTreeSet, HashMap};
use std::io::Read;

pub struct Facts {
    pool: DescriptorPool,
    /// Of a message: whether it says so in JSON under a name of its own, by the published schemas.
    properties: HashMap<String, BTreeSet<String>>,
}

fn gunzip(bytes: &[u8]) -> Map<String, Value> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A message's name as it is in one file without packages.
fn flat(name: &str) -> String {
    name.trim_start_matches('.').replace(['.', '-'], "_")
}

fn upstream(definition: &str) -> String {
    definition
        .replace("io.k8s.", "k8s.io.")
        .replace("-apiserver", "_apiserver")
        .replace("kube-aggregator", "kube_aggregator")
}

impl Facts {
    pub fn load() -> Self {
        let messages = gunzip(include_bytes!("../data/protobuf.json.gz"));
        let file = FileDescriptorProto {
            name: Some("facts.proto".into()),
            message_type: messages.iter().map(|(name, fields)| message(&messages, name, fields)).collect(),
            ..Default::default()
        };
        let pool = DescriptorPool::from_file_descriptor_set(FileDescriptorSet { file: vec![file] }).unwrap();
        let schemas = gunzip(include_bytes!("../data/schemas.json.gz"));
        let names = |s: &Value| s["properties"].as_object().into_iter().flatten().map(|(n, _)| n.clone()).collect();
        Self { pool, properties: schemas.iter().map(|(n, s)| (flat(&upstream(n)), names(s))).collect() }
    }

    /// The message of a definition.
    pub fn message(&self, definition: &str) -> Option<String> {
        let name = flat(&upstream(definition));
        self.pool.get_message_by_name(&name).map(|_| name)
    }

    pub fn descriptor(&self, message: &str) -> MessageDescriptor {
        self.pool.get_message_by_name(message).unwrap()
    }

    /// JSON as a message. `unset` gets the fields for which there is nothing.
    pub fn dynamic(&self, message: &str, v: &Value, unset: &mut BTreeSet<String>) -> Result<DynamicMessage, String> {
        let d = self.descriptor(message);
        let Some(object) = v.as_object() else { return Err(format!("{message} from {v}")) };
        let mut out = DynamicMessage::new(d.clone());
        let mut left: BTreeSet<&String> = object.keys().collect();
        self.members(&mut out, object, &mut left, unset)?;
        if left.is_empty() { Ok(out) } else { Err(format!("{message} has no fields for {left:?}")) }
    }

    /// Sets the fields of a message, and those of messages in it whose fields lie in the same object.
    fn members(
        &self,
        out: &mut DynamicMessage,
        object: &Map<String, Value>,
        left: &mut BTreeSet<&String>,
        unset: &mut BTreeSet<String>,
    ) -> Result<(), String> {
        use prost_reflect::ReflectMessage;
        let d = out.descriptor();
        for f in d.fields() {
            let key = left.iter().find(|k| same_name(k, f.name())).copied();
            if let Some(key) = key {
                left.remove(key);
                out.set_field(&f, self.field(&f, &object[key])?);
                continue;
            }
            let named = self.properties.get(d.name()).is_some_and(|p| p.iter().any(|p| same_name(p, f.name())));
            match f.kind() {
                Kind::Message(inner) if !named && !f.is_list() && !f.is_map() => {
                    let mut m = DynamicMessage::new(inner);
                    self.members(&mut m, object, left, unset)?;
                    if m.fields().next().is_some() {
                        out.set_field(&f, Field::Message(m));
                    }
                }
                _ => {
                    unset.insert(format!("{}.{}", d.name(), f.name()));
                }
            }
        }
        Ok(())
    }

    fn field(&self, f: &FieldDescriptor, v: &Value) -> Result<Field, String> {
        let bad = || format!("{} from {v}", f.full_name());
        if f.is_map() {
            let Kind::Message(entry) = f.kind() else { return Err(bad()) };
            let values = entry.map_entry_value_field();
            let entries = v.as_object().ok_or_else(bad)?.iter();
            let pairs = entries.map(|(k, v)| Ok((MapKey::String(k.clone()), self.single(&values, v)?)));
            return Ok(Field::Map(pairs.collect::<Result<_, String>>()?));
        }
        if f.is_list() {
            let items = v.as_array().ok_or_else(bad)?.iter().map(|v| self.single(f, v));
            return Ok(Field::List(items.collect::<Result<_, _>>()?));
        }
        self.single(f, v)
    }

    fn single(&self, f: &FieldDescriptor, v: &Value) -> Result<Field, String> {
        let bad = || format!("{} from {v}", f.full_name());
        Ok(match f.kind() {
            Kind::String => Field::String(v.as_str().ok_or_else(bad)?.to_owned()),
            Kind::Bool => Field::Bool(v.as_bool().ok_or_else(bad)?),
            Kind::Int32 => Field::I32(v.as_i64().and_then(|n| n.try_into().ok()).ok_or_else(bad)?),
            Kind::Int64 => Field::I64(v.as_i64().ok_or_else(bad)?),
            Kind::Double => Field::F64(v.as_f64().ok_or_else(bad)?),
            Kind::Bytes => Field::Bytes(v.as_str().and_then(schema::base64_decode).ok_or_else(bad)?.into()),
            Kind::Message(m) => Field::Message(self.nested(&m, v)?),
            other => return Err(format!("{}: {other:?}", f.full_name())),
        })
    }

    /// A message within a message, many of which are no objects in JSON.
    fn nested(&self, d: &MessageDescriptor, v: &Value) -> Result<DynamicMessage, String> {
        let bad = || format!("{} from {v}", d.name());
        let mut m = DynamicMessage::new(d.clone());
        let json = || Field::Bytes(serde_json::to_vec(v).unwrap().into());
        let whole = |v: &Value| {
            self.dynamic(
                &d.name().replace("OrArray", "").replace("OrBool", "").replace("OrStringArray", ""),
                v,
                &mut BTreeSet::new(),
            )
        };
        let last = d.name().rsplit('_').next().unwrap_or_default();
        match last {
            "Quantity" => m.set_field_by_name("string", Field::String(v.as_str().ok_or_else(bad)?.to_owned())),
            "IntOrString" => {
                let text = v.as_str();
                m.set_field_by_name("type", Field::I64(text.is_some().into()));
                m.set_field_by_name("intVal", Field::I32(v.as_i64().unwrap_or_default() as i32));
                m.set_field_by_name("strVal", Field::String(text.unwrap_or_default().to_owned()));
            }
            "Time" | "MicroTime" => {
                let t: jiff::Timestamp = v.as_str().and_then(|t| t.parse().ok()).ok_or_else(bad)?;
                m.set_field_by_name("seconds", Field::I64(t.as_second()));
                m.set_field_by_name("nanos", Field::I32(t.subsec_nanosecond()));
            }
            // The samples count nanoseconds.
            "Duration" => {
                let nanos = v.as_str().and_then(|d| d.strip_suffix("ns")?.parse().ok()).ok_or_else(bad)?;
                m.set_field_by_name("duration", Field::I64(nanos));
            }
            "FieldsV1" => m.set_field_by_name("Raw", json()),
            "RawExtension" | "JSON" if !v.is_null() => m.set_field_by_name("raw", json()),
            "RawExtension" | "JSON" => {}
            "ExtraValue" | "Verbs" => {
                let items = v.as_array().ok_or_else(bad)?.iter();
                let items = items.map(|v| Field::String(v.as_str().unwrap_or_default().to_owned()));
                m.set_field_by_name("items", Field::List(items.collect()));
            }
            "JSONSchemaPropsOrBool" => {
                m.set_field_by_name("allows", Field::Bool(*v != Value::Bool(false)));
                if v.is_object() {
                    m.set_field_by_name("schema", Field::Message(whole(v)?));
                }
            }
            "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrStringArray" => match v {
                Value::Array(a) if last == "JSONSchemaPropsOrArray" => {
                    let items = a.iter().map(|v| Ok(Field::Message(whole(v)?))).collect::<Result<_, String>>()?;
                    m.set_field_by_name("jSONSchemas", Field::List(items));
                }
                Value::Array(a) => {
                    let items = a.iter().map(|v| Field::String(v.as_str().unwrap_or_default().to_owned()));
                    m.set_field_by_name("property", Field::List(items.collect()));
                }
                v => m.set_field_by_name("schema", Field::Message(whole(v)?)),
            },
            _ => return self.dynamic(d.name(), v, &mut BTreeSet::new()),
        }
        Ok(m)
    }
}

/// `x-kubernetes-list-type` is `xKubernetesListType`, and `$ref` is `ref`.
fn same_name(json: &str, proto: &str) -> bool {
    let json = json.trim_start_matches('$');
    if !json.contains('-') {
        // `uid` is `uID`, as the generator makes it of Go's name.
        return json.eq_ignore_ascii_case(proto);
    }
    let mut parts = json.split('-');
    let mut camel = parts.next().unwrap_or_default().to_owned();
    for p in parts {
        let (first, rest) = p.split_at(1);
        camel.push_str(&first.to_uppercase());
        camel.push_str(rest);
    }
    camel == proto
}

fn message(all: &Map<String, Value>, name: &str, fields: &Value) -> DescriptorProto {
    let mut nested = Vec::new();
    let fields = fields.as_array().unwrap().iter().map(|f| {
        let (field, number) = (f[0].as_str().unwrap(), f[1].as_i64().unwrap() as i32);
        let (label, ty) = (f[2].as_str().unwrap(), f[3].as_str().unwrap());
        let Some(map) = ty.strip_prefix("map<").and_then(|t| t.strip_suffix('>')) else {
            return one(all, name, field, number, label, ty);
        };
        let (key, value) = map.split_once(", ").unwrap();
        let mut entry = format!("{}{}Entry", field[..1].to_uppercase(), &field[1..]);
        entry.retain(|c| c != '_');
        nested.push(DescriptorProto {
            name: Some(entry.clone()),
            field: vec![one(all, name, "key", 1, "", key), one(all, name, "value", 2, "", value)],
            options: Some(MessageOptions { map_entry: Some(true), ..Default::default() }),
            ..Default::default()
        });
        FieldDescriptorProto {
            type_name: Some(format!(".{}.{entry}", flat(name))),
            ..one(all, name, field, number, "repeated", "message")
        }
    });
    let field = fields.collect();
    DescriptorProto { name: Some(flat(name)), field, nested_type: nested, ..Default::default() }
}

fn one(
    all: &Map<String, Value>,
    message: &str,
    name: &str,
    number: i32,
    label: &str,
    ty: &str,
) -> FieldDescriptorProto {
    let scalar = match ty {
        "string" => Some(Type::String),
        "int32" => Some(Type::Int32),
        "int64" => Some(Type::Int64),
        "bool" => Some(Type::Bool),
        "bytes" => Some(Type::Bytes),
        "double" => Some(Type::Double),
        _ => None,
    };
    let label = if label == "repeated" { Label::Repeated } else { Label::Optional };
    let reference = (scalar.is_none() && ty != "message").then(|| format!(".{}", flat(&resolve(all, message, ty))));
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(label.into()),
        r#type: Some(scalar.unwrap_or(Type::Message).into()),
        type_name: reference,
        ..Default::default()
    }
}

/// The message that a name means within another: the nearest one outwards.
fn resolve(all: &Map<String, Value>, message: &str, name: &str) -> String {
    if let Some(whole) = name.strip_prefix('.') {
        return whole.to_owned();
    }
    let mut scope = message;
    while let Some((outer, _)) = scope.rsplit_once('.') {
        let candidate = format!("{outer}.{name}");
        if all.contains_key(&candidate) {
            return candidate;
        }
        scope = outer;
    }
    name.to_owned()
}
