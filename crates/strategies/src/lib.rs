//! Per-kind behaviour a schema cannot say.
