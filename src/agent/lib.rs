//! The loops that keep a node as it should be.

pub mod view;
