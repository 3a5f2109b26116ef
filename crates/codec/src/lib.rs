//! JSON, YAML, protobuf and tables: bytes to values and back.
