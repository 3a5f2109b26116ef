//! Resource rows and the generic REST store.
