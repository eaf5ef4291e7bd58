//! Calls of the provider's own tools.
//!
//! They are answered by the provider: in the same message, at the beginning of
//! the model's next one if the API was to resume it, or, if the worker's tools
//! were called as well, after those have answered. The API refuses a call that
//! is not answered in time, an answer without its call, and an id that is there
//! twice; the blocks concerned are left out.

use crate::format::{ProviderBlock, Reading};
use std::collections::HashSet;

/// Follows the provider's calls through a log.
#[derive(Clone, Debug, Default)]
pub(super) struct ProviderCalls {
    /// Ids of all calls that are shown.
    shown: HashSet<String>,
    /// Calls that the next message of the model answers, or that go
    /// unanswered.
    paused: HashSet<String>,
    /// Calls that wait for results of the worker's tools.
    deferred: HashSet<String>,
}

impl ProviderCalls {
    /// Takes in a message of the model; returns the indices of those of its
    /// blocks that are left out.
    pub(super) fn push(&mut self, reading: &Reading<'_>) -> Vec<usize> {
        let blocks = &reading.provider_blocks;
        let results: HashSet<_> =
            blocks.iter().filter(|block| block.is_result).map(|block| block.id.as_ref()).collect();
        let (resumed, abandoned): (HashSet<_>, HashSet<_>) =
            self.paused.drain().partition(|id| results.contains(id.as_str()));
        self.forget(&abandoned);
        let mut waiting = resumed;
        let mut omitted = Vec::new();
        for ProviderBlock { id, index, is_result } in blocks {
            let id = id.as_ref();
            let is_shown = match is_result {
                true => waiting.remove(id) || self.deferred.remove(id),
                false => self.shown.insert(id.to_owned()) && waiting.insert(id.to_owned()),
            };
            if !is_shown {
                omitted.push(*index);
            }
        }
        if reading.calls.is_empty() {
            self.paused = waiting;
        } else {
            self.deferred.extend(waiting);
        }
        omitted
    }

    /// Something else comes than the model's next message.
    pub(super) fn interrupt(&mut self) {
        let abandoned = std::mem::take(&mut self.paused);
        self.forget(&abandoned);
    }

    /// Whether the API is to resume calls.
    pub(super) fn is_paused(&self) -> bool {
        !self.paused.is_empty()
    }

    fn forget(&mut self, abandoned: &HashSet<String>) {
        for id in abandoned {
            self.shown.remove(id);
        }
    }
}
