//! The wire: the only place that knows generated types and `Status`.

pub mod pb;

#[cfg(feature = "server")]
mod admission;
#[cfg(feature = "server")]
mod compactions;
#[cfg(feature = "server")]
mod convert;
#[cfg(feature = "server")]
mod details;
#[cfg(feature = "server")]
mod memory_service;
#[cfg(feature = "server")]
mod model_service;
#[cfg(feature = "server")]
mod observe;
#[cfg(feature = "server")]
mod pages;
#[cfg(feature = "server")]
mod search;
#[cfg(feature = "server")]
mod session_service;
#[cfg(feature = "server")]
mod status;
#[cfg(feature = "server")]
mod tool_output_service;
#[cfg(feature = "server")]
mod transcript_service;

#[cfg(feature = "server")]
pub use admission::Admission;
#[cfg(feature = "server")]
pub use details::complete;
#[cfg(feature = "server")]
pub use memory_service::Memory;
#[cfg(feature = "server")]
pub use model_service::Models;
#[cfg(feature = "server")]
pub use session_service::Sessions;
#[cfg(feature = "server")]
pub use status::{ERROR_DOMAIN, to_status};
#[cfg(feature = "server")]
pub use tool_output_service::ToolOutputs;
#[cfg(feature = "server")]
pub use transcript_service::Transcripts;
