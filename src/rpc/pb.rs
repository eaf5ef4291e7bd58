//! Types and services that are generated from `proto/`.

#![allow(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    missing_debug_implementations,
    unreachable_pub,
    reason = "generated code"
)]

tonic::include_proto!("turnkeep.v1");

/// The descriptors of all files, for reflection.
#[cfg(feature = "server")]
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/turnkeep.bin"));
