//! The CEL types of built-in kinds.

use cel::{Decl, Field, Object, Type};
use meta::Gvk;
use std::collections::HashMap;
use std::sync::Arc;

/// The type of objects of a built-in kind; none for other kinds.
pub fn kind_type(kind: &Gvk) -> Option<Type> {
    let schema = &kinds::catalog().kind(kind)?.schema;
    Some(Maker::default().make(schema))
}

/// The type of the metadata of every object.
pub fn metadata_type() -> Option<Type> {
    match kind_type(&Gvk::new("", "v1", "ConfigMap"))? {
        Type::Object(o) => o.fields.get("metadata").map(|f| f.decl.ty.clone()),
        _ => None,
    }
}

/// Types that were built, and (none) those that are being built: a type that contains itself is `dyn` there.
#[derive(Default)]
struct Maker {
    made: HashMap<Arc<str>, Option<Type>>,
}

impl Maker {
    fn make(&mut self, s: &schema::Schema) -> Type {
        use schema::Type as T;
        match s.ty {
            T::String | T::Duration | T::Quantity => Type::String,
            T::Bytes => Type::Bytes,
            T::Int32 | T::Int64 => Type::Int,
            T::Double => Type::Double,
            T::Boolean => Type::Bool,
            T::Time | T::MicroTime => Type::Timestamp,
            T::IntOrString | T::Any | T::Raw => Type::Dyn,
            T::Array => Type::list(s.items.as_deref().map_or(Type::Dyn, |i| self.make(i))),
            T::Map => Type::map(Type::String, s.additional.as_deref().map_or(Type::Dyn, |v| self.make(v))),
            T::Struct => self.object(s),
        }
    }

    fn object(&mut self, s: &schema::Schema) -> Type {
        if let Some(name) = &s.name {
            if let Some(known) = self.made.get(name) {
                return known.clone().unwrap_or(Type::Dyn);
            }
            self.made.insert(name.clone(), None);
        }
        let mut o = Object { name: s.name.as_deref().unwrap_or("object").to_owned(), ..Object::default() };
        for f in &s.fields {
            let decl = Decl::from(self.make(&f.schema));
            o.fields.insert(f.name.to_string(), Field { json: f.name.to_string(), decl });
        }
        let ty = Type::Object(Arc::new(o));
        if let Some(name) = &s.name {
            self.made.insert(name.clone(), Some(ty.clone()));
        }
        ty
    }
}
