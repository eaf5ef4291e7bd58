//! Summaries: what is known of the entries that leave a window without a model
//! being asked, and what a model is asked.
//!
//! Everything here is made by code from the entries themselves: the same entries
//! give the same answer, and whoever takes them in piece by piece ends where one
//! ends who takes them in at once.

pub mod audit;
pub mod extract;
pub mod ledger;
pub mod literals;
pub mod prompt;

mod fit;
mod said;

pub use said::{Invocation, Outcome, Said, Speaker};

/// Counts the tokens of a text.
pub type Measure<'a> = &'a dyn Fn(&str) -> u64;
