//! The schema of a kind: types, list and map topology, defaults, pruning, validation, strict decoding.
