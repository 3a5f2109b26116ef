//! JSON patch, merge patch, strategic merge patch and structured merge with managed fields.
