//! The types of schemas.

use crate::enumeration::Enumeration;
use crate::pattern::Pattern;
use crate::rule::Rule;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

pub use crate::strings::Str;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// A string.
    String,
    /// Base64 in JSON, bytes in protobuf.
    Bytes,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// A floating-point number.
    Double,
    /// A boolean.
    Boolean,
    /// `metav1.Time`: RFC 3339, whole seconds.
    Time,
    /// `metav1.MicroTime`.
    MicroTime,
    /// A Go duration: `1h30m`.
    Duration,
    /// A quantity such as `500m` (`resource.Quantity`).
    Quantity,
    /// An integer or a string (`intstr.IntOrString`).
    IntOrString,
    /// A list: [`Schema::items`] describes the items.
    Array,
    /// A map with string keys: [`Schema::additional`] describes the values.
    Map,
    /// An object with named fields.
    Struct,
    /// Any JSON at all.
    Any,
    /// An embedded object of any kind (`runtime.RawExtension`, `FieldsV1`): a JSON object kept as it is.
    Raw,
}

/// How server-side apply merges a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListType {
    /// The list is owned and replaced as a whole.
    Atomic,
    /// A set of scalars, which are owned one by one.
    Set,
    /// A map-like list: these keys identify items.
    Map(Vec<Str>),
}

/// How a strategic merge patch treats a field. Differs from the topology of server-side apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchStrategy {
    /// `merge`: a list is merged, by `merge_key` or (primitives) as a set.
    pub merge: bool,
    /// `retainKeys`: keys of a map that the patch does not name are dropped.
    pub retain_keys: bool,
    /// `replace`: a map or struct is sent and taken as a whole.
    pub replace: bool,
    /// The key that identifies items of a merged list.
    pub merge_key: Option<Str>,
}

/// How a field with a zero value is encoded, as by Go's encoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// A value with `omitempty`: zero and empty are left out.
    #[default]
    OmitZero,
    /// A pointer: left out when absent, kept whatever it points to.
    Pointer,
    /// Always written, as zero, `""` or `null`.
    Always,
    /// A struct by value: written as `{}` when nothing is in it.
    Struct,
}

/// A default that the server fills in.
#[derive(Clone, Debug, PartialEq)]
pub struct Fill {
    /// The value that is filled in.
    pub value: Value,
    /// Only when the sibling field has one of these values.
    pub when: Option<(Str, Vec<Str>)>,
}

/// Constraints on a value beyond its type.
#[derive(Clone, Debug, Default)]
pub struct Constraints {
    /// `format`.
    pub format: Option<Str>,
    /// `pattern`.
    pub pattern: Option<Box<Pattern>>,
    /// `minimum`.
    pub minimum: Option<f64>,
    /// `maximum`.
    pub maximum: Option<f64>,
    /// `exclusiveMinimum`.
    pub exclusive_minimum: bool,
    /// `exclusiveMaximum`.
    pub exclusive_maximum: bool,
    /// `multipleOf`.
    pub multiple_of: Option<f64>,
    /// `minLength` and `maxLength`, in characters.
    pub length: Bounds,
    /// `minItems` and `maxItems`.
    pub items: Bounds,
    /// `minProperties` and `maxProperties`.
    pub properties: Bounds,
    /// `enum`.
    pub allowed: Enumeration,
    /// `required`, sorted.
    pub required: Vec<Str>,
    /// `allOf`.
    pub all_of: Vec<Schema>,
    /// `anyOf`.
    pub any_of: Vec<Schema>,
    /// `oneOf`.
    pub one_of: Vec<Schema>,
    /// `not`.
    pub not: Option<Box<Schema>>,
}

/// Minimum and maximum of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The minimum.
    pub min: Option<u32>,
    /// The maximum.
    pub max: Option<u32>,
}

/// Indexes of fields that walks over a schema visit, in [`Schema::fields`], sorted. Most fields have neither defaults nor rules, at any depth.
#[derive(Debug)]
pub(crate) struct WalkIndex {
    /// Whether the schema has defaults, at any depth.
    pub has_defaults: bool,
    /// Fields with a default of their own.
    pub with_default: Vec<u16>,
    /// Fields that have defaults below.
    pub with_defaults_below: Vec<u16>,
    /// Fields with rules, at any depth.
    pub with_rules: Vec<u16>,
    /// Fields behind a disabled feature gate, at any depth.
    pub disabled: Vec<u16>,
    /// Lists that are always written, at any depth.
    pub always_written: Vec<u16>,
}

/// The `WalkIndex` of a schema, computed on first use. A clone of a schema may change, and computes its own.
#[derive(Debug, Default)]
pub struct CachedWalkIndex(pub(crate) OnceLock<Box<WalkIndex>>);

impl Clone for CachedWalkIndex {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// The schema of a value.
#[derive(Clone, Debug)]
pub struct Schema {
    /// The definition's name as OpenAPI v3 publishes it, `io.k8s.api.core.v1.Pod`; none for inline schemas.
    pub name: Option<Str>,
    /// The type.
    pub ty: Type,
    /// Sorted by name. Of a struct.
    pub fields: Vec<Field>,
    /// The fields whose errors come first, in order. A path names a nested field, `.` the struct itself.
    pub order: Vec<Str>,
    /// Of an array.
    pub items: Option<SchemaRef>,
    /// Of a map.
    pub additional: Option<SchemaRef>,
    /// Alternatives of a value, by its JSON type. Protobuf has a message with a field for each.
    pub alternatives: Vec<Alternative>,
    /// Of an array.
    pub list: ListType,
    /// A map or struct that server-side apply owns as a whole.
    pub atomic: bool,
    /// Allowed values of a string, sorted; empty for any.
    pub enum_values: Vec<Str>,
    /// Unknown fields are kept (`x-kubernetes-preserve-unknown-fields`).
    pub preserve_unknown: bool,
    /// `null` is a value and not an absence (custom resources).
    pub nullable: bool,
    /// A custom resource: unknown fields are pruned, values keep their form, and validation reports wrong types.
    pub custom: bool,
    /// Constraints of a custom resource beyond types.
    pub constraints: Option<Box<Constraints>>,
    /// The fields that walks over the schema visit.
    pub walk_index: CachedWalkIndex,
}

/// One shape of a value that may have several (`JSONSchemaPropsOrBool`).
#[derive(Clone, Debug)]
pub struct Alternative {
    /// The number of its field in the protobuf message.
    pub number: u32,
    /// A struct, a list or a boolean; no two alternatives of a schema are of the same kind.
    pub schema: SchemaRef,
}

/// A field of a struct.
#[derive(Clone, Debug)]
pub struct Field {
    /// The name in JSON.
    pub name: Str,
    /// The schema of the value.
    pub schema: SchemaRef,
    /// Listed in OpenAPI's `required`.
    pub required: bool,
    /// The default as the schema publishes it.
    pub default: Option<Value>,
    /// What the server fills in where the field is absent.
    pub fill: Option<Box<Fill>>,
    /// How a zero value is encoded.
    pub presence: Presence,
    /// Validation rules of the field.
    pub rules: Vec<Rule>,
    /// How a strategic merge patch treats the field.
    pub patch: PatchStrategy,
    /// `x-kubernetes-map-type: atomic` on the field.
    pub atomic: bool,
    /// `x-kubernetes-map-type: granular` on the field: members are owned apart, even if the type is atomic.
    pub granular: bool,
    /// A pointer without `omitempty`: written as `null` when absent.
    pub null: bool,
    /// The quantities of the map are rounded up to thousandths when defaults are filled in (`SetDefaults_ResourceList`).
    pub in_milli: bool,
    /// The protobuf field number; 0 for none.
    pub number: u32,
    /// The position of the field in its Go type.
    pub place: u16,
    /// The name of the Go type of the field or its items, unless it is a basic type: `v1.Protocol`.
    pub go: Option<Str>,
    /// A list that has a message of its own in protobuf, with the items under 1 (`v1.Verbs`).
    pub boxed: bool,
    /// Its fields lie in the parent object in JSON (a Go embedded struct), while protobuf has a message of its own.
    pub inline_of: Option<Str>,
}

/// A schema, inline or by name. Dereferences to the [`Schema`].
#[derive(Clone)]
pub enum SchemaRef {
    /// The schema itself.
    Inline(Arc<Schema>),
    /// A definition by name, which is resolved when the table is complete.
    Named(Str, Arc<OnceLock<Arc<Schema>>>),
}

impl SchemaRef {
    /// The schema referred to.
    pub fn get(&self) -> &Schema {
        match self {
            Self::Inline(s) => s,
            Self::Named(name, cell) => match cell.get() {
                Some(s) => s,
                // Unreachable: `Definitions::tie` rejects tables with undefined names.
                None => unreachable!("definition {name} was never tied"),
            },
        }
    }

    /// The name of the definition referred to.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Inline(_) => None,
            Self::Named(n, _) => Some(n),
        }
    }
}

impl Deref for SchemaRef {
    type Target = Schema;
    fn deref(&self) -> &Schema {
        self.get()
    }
}

impl fmt::Debug for SchemaRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inline(s) => s.fmt(f),
            Self::Named(n, _) => write!(f, "→{n}"),
        }
    }
}

impl Field {
    /// A field of a custom resource: optional, with its value unchanged.
    pub fn new(name: impl Into<Str>, schema: SchemaRef) -> Self {
        Self {
            name: name.into(),
            schema,
            required: false,
            default: None,
            fill: None,
            presence: Presence::Pointer,
            rules: Vec::new(),
            patch: PatchStrategy::default(),
            atomic: false,
            granular: false,
            null: false,
            in_milli: false,
            number: 0,
            place: 0,
            go: None,
            boxed: false,
            inline_of: None,
        }
    }
}

impl Schema {
    /// A schema of this type without any constraints.
    pub fn new(ty: Type) -> Self {
        Self {
            name: None,
            ty,
            fields: Vec::new(),
            order: Vec::new(),
            items: None,
            additional: None,
            alternatives: Vec::new(),
            list: ListType::Atomic,
            atomic: false,
            enum_values: Vec::new(),
            preserve_unknown: false,
            nullable: false,
            custom: false,
            constraints: None,
            walk_index: CachedWalkIndex::default(),
        }
    }

    /// The field with this name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|f| (*f.name).cmp(name)).ok().map(|i| &self.fields[i])
    }

    /// The fields of a struct, each with the member of its name, if any. Needs no lookups: fields and members are sorted.
    pub fn beside<'s, 'm, V>(
        &'s self,
        members: impl Iterator<Item = (&'m String, V)>,
    ) -> impl Iterator<Item = (&'s Field, Option<V>)> {
        beside(self.fields.iter(), members)
    }

    /// As [`Schema::beside`], for some of the fields, by sorted indexes.
    pub(crate) fn some_beside<'s, 'm, V>(
        &'s self,
        indexes: &'s [u16],
        members: impl Iterator<Item = (&'m String, V)>,
    ) -> impl Iterator<Item = (&'s Field, Option<V>)> {
        beside(indexes.iter().filter_map(|i| self.fields.get(usize::from(*i))), members)
    }

    /// Whether all of these sorted names are fields.
    pub fn has_fields<'m>(&self, names: impl Iterator<Item = &'m String>) -> bool {
        let mut fields = self.fields.iter();
        names.into_iter().all(|n| fields.find(|f| *f.name >= **n).is_some_and(|f| *f.name == **n))
    }

    /// The schema of a member of an object: a field, or a map's value.
    pub fn member(&self, name: &str) -> Option<&Schema> {
        self.field(name).map(|f| f.schema.get()).or(self.additional.as_deref())
    }

    /// The alternative of this type.
    pub fn alternative(&self, ty: Type) -> Option<&Alternative> {
        self.alternatives.iter().find(|a| a.schema.ty == ty)
    }

    /// Whether values are objects: structs or maps.
    pub fn is_object(&self) -> bool {
        matches!(self.ty, Type::Map | Type::Struct)
    }
}

fn beside<'s, 'm, V>(
    fields: impl Iterator<Item = &'s Field>,
    members: impl Iterator<Item = (&'m String, V)>,
) -> impl Iterator<Item = (&'s Field, Option<V>)> {
    let mut members = members.peekable();
    fields.map(move |f| {
        while members.next_if(|(k, _)| k.as_str() < &*f.name).is_some() {}
        (f, members.next_if(|(k, _)| k.as_str() == &*f.name).map(|(_, v)| v))
    })
}

/// All definitions by name.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    cells: BTreeMap<Str, Arc<OnceLock<Arc<Schema>>>>,
}

impl Definitions {
    /// A reference to a definition, which may be added later.
    pub fn reference(&mut self, name: &str) -> SchemaRef {
        if let Some((k, c)) = self.cells.get_key_value(name) {
            return SchemaRef::Named(k.clone(), c.clone());
        }
        let key: Str = name.into();
        let cell = Arc::new(OnceLock::new());
        self.cells.insert(key.clone(), cell.clone());
        SchemaRef::Named(key, cell)
    }

    /// Adds a definition.
    pub fn define(&mut self, name: &str, schema: Schema) {
        if let SchemaRef::Named(_, cell) = self.reference(name) {
            // Ignores a second definition of a name; a test checks that there is none.
            let _ = cell.set(Arc::new(schema));
        }
    }

    /// The names that are referred to but not defined.
    pub fn dangling(&self) -> Vec<Str> {
        self.cells.iter().filter(|(_, c)| c.get().is_none()).map(|(n, _)| n.clone()).collect()
    }

    /// The definition with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Schema>> {
        self.cells.get(name)?.get()
    }

    /// All definitions, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Str, &Arc<Schema>)> {
        self.cells.iter().filter_map(|(n, c)| Some((n, c.get()?)))
    }
}
