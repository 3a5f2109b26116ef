//! Admission: what is changed in and asked of objects beyond their own validity.
//!
//! One plugin, one file, one trait. Plugins see objects and look others up through [`Lookup`]; they know nothing of how either is
//! stored or served. The names are upstream's.

mod default_storage_class;
mod default_toleration_seconds;
mod limit_ranger;
mod namespace_lifecycle;
mod plugin;
mod priority;
mod service_account;
mod storage_object_in_use;
mod taint_nodes_by_condition;

pub use plugin::{Chain, Lookup, Operation, Plugin, Review, is_terminating};

/// The plugins that are on by default, in upstream's order.
pub fn default_plugins() -> Chain {
    Chain::new(vec![
        Box::new(namespace_lifecycle::NamespaceLifecycle),
        Box::new(limit_ranger::LimitRanger),
        Box::new(service_account::ServiceAccount),
        Box::new(taint_nodes_by_condition::TaintNodesByCondition),
        Box::new(default_toleration_seconds::DefaultTolerationSeconds),
        Box::new(priority::Priority),
        Box::new(storage_object_in_use::StorageObjectInUseProtection),
        Box::new(default_storage_class::DefaultStorageClass),
    ])
}
