//! Admission plugins.
