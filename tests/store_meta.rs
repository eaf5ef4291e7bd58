//! The contract of `MetaStore`, on both databases.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/stores.rs"]
mod stores;

#[path = "store_meta/cancels.rs"]
mod cancels;
#[path = "store_meta/checks.rs"]
mod checks;
#[path = "store_meta/deletions.rs"]
mod deletions;
#[path = "store_meta/generations.rs"]
mod generations;
#[path = "store_meta/held_outputs.rs"]
mod held_outputs;
#[path = "store_meta/notes.rs"]
mod notes;
#[path = "store_meta/outputs.rs"]
mod outputs;
#[path = "store_meta/seals.rs"]
mod seals;
#[path = "store_meta/sessions.rs"]
mod sessions;
#[path = "store_meta/summaries.rs"]
mod summaries;
#[path = "store_meta/turns.rs"]
mod turns;
#[path = "store_meta/window_states.rs"]
mod window_states;
