//! Stored objects: their encoding in the store, cached views of them, and estimates of their size.

#![warn(missing_docs)]

pub mod amount;
pub mod encode;
pub mod in_place;
mod pool;
mod scan;
mod views;

pub use views::Views;
