//! Bytes to values and back: JSON as Go writes it, YAML as `sigs.k8s.io/yaml` reads and writes it, Kubernetes' protobuf, and its CBOR.
//!
//! Invariant: nothing here knows a kind, a transport or the clock, and no input, however deep or repetitive, makes it
//! overflow the stack or run without bound. Strict decoding against a schema lives in the `schema` crate.

#![warn(missing_docs)]

pub mod cbor;
pub mod json;
pub mod jsonpath;
pub mod protobuf;
pub mod yaml;
