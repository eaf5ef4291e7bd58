//! Turnkeep: a durable session service for tool-calling LLM agents.
//!
//! ARCHITECTURE.md maps the modules below; each may use only those above it.

pub mod clock;
pub mod entropy;
pub mod limits;
pub mod model;

pub mod codec;
pub mod store;
