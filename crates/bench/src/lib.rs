//! Measurements against any cluster.
