//! Parts of views that many objects share, stored once per process.

use meta::Pool;
use parking_lot::RwLock;
use serde::{Deserialize, Deserializer};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

/// A part of a view that equals that of many other objects, for example what a pod template sets. Equal values share one
/// allocation.
#[derive(PartialEq, Eq, Hash)]
pub struct Pooled<T>(Arc<T>);

type Pools = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;

impl<T: Eq + Hash + Send + Sync + 'static> Pooled<T> {
    /// Returns the pooled value that equals `value`; adds it to the pool if there is none.
    pub fn intern(value: T) -> Self {
        static POOLS: LazyLock<RwLock<Pools>> = LazyLock::new(RwLock::default);
        let known = POOLS.read().get(&TypeId::of::<T>()).cloned();
        let pool = known.unwrap_or_else(|| {
            POOLS.write().entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(Pool::<Arc<T>>::default())).clone()
        });
        let value = Arc::new(value);
        // Each pool is stored under the type of its values.
        Self(pool.downcast_ref::<Pool<Arc<T>>>().map_or_else(|| value.clone(), |p| p.get(&value, || value.clone())))
    }
}

impl<T> Clone for Pooled<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Default + Eq + Hash + Send + Sync + 'static> Default for Pooled<T> {
    fn default() -> Self {
        Self::intern(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Pooled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Deref for Pooled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// `null` is the default value.
impl<'de, T: Deserialize<'de> + Default + Eq + Hash + Send + Sync + 'static> Deserialize<'de> for Pooled<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Self::intern(Option::<T>::deserialize(d)?.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_parts_are_one() {
        let read = |s: &str| serde_json::from_str::<Pooled<Vec<String>>>(s).unwrap();
        let (a, b) = (read(r#"["x"]"#), read(r#"["x"]"#));
        assert!(Arc::ptr_eq(&a.0, &b.0));
        assert!(Arc::ptr_eq(&read("null").0, &Pooled::<Vec<String>>::default().0));
        assert_ne!(a, Pooled::intern(vec!["y".to_owned()]));
        assert_eq!(*Pooled::intern(7), 7);
    }
}
