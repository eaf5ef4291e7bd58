//! Turnkeep: a durable session service for tool-calling LLM agents.
//!
//! ARCHITECTURE.md maps the modules below; each may use only those above it.

pub mod limits;

pub mod clock;
pub mod entropy;

pub mod model;

pub mod format;
pub mod markdown;
#[cfg(feature = "server")]
pub mod tokens;

#[cfg(feature = "server")]
pub mod preview;
#[cfg(feature = "server")]
pub mod window;

#[cfg(feature = "server")]
pub mod summary;

#[cfg(feature = "server")]
pub mod codec;
#[cfg(feature = "server")]
pub mod store;

#[cfg(feature = "server")]
pub mod provider;

#[cfg(feature = "server")]
pub mod engine;

#[cfg(feature = "server")]
pub mod settings;
#[cfg(feature = "server")]
pub mod telemetry;

pub mod rpc;

#[cfg(feature = "server")]
pub mod import;

#[cfg(feature = "server")]
pub mod export;

#[cfg(feature = "server")]
pub mod server;

pub mod client;

#[cfg(feature = "server")]
pub mod cli;
