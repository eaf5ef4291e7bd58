//! Putting entries into turns: one for the user's input, one for each step of
//! the model with the results of its calls.

use super::json::Object;
use super::verbatim::{Record, records};
use super::{ImportedEntry, ImportedTurn};
use crate::limits::{ENTRY_BYTES_MAX, TURN_ENTRIES_MAX};
use crate::model::{EntryKind, Seq, Usage};
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::HashSet;

/// What an entry is to the turn that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Input: begins a turn, unless the open one is of input.
    Input,
    /// A whole message of the model: begins a turn.
    Message,
    /// One of several items of a step: begins a turn, unless the open one is of
    /// a step that has no results yet.
    Item,
    /// Belongs to the open turn, such as a result.
    Within,
}

/// What the open turn holds so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    /// No message.
    Nothing,
    Input,
    Model,
    Results,
}

/// The turns of a thread.
#[derive(Debug)]
pub(super) struct Turns {
    all: Vec<ImportedTurn>,
    open: Open,
    /// Bytes of the open turn.
    bytes: usize,
    entries: u64,
}

/// What an entry takes in a request besides its payload, at most.
const ENTRY_OVERHEAD_BYTES: usize = 64;

impl Turns {
    pub(super) fn new() -> Self {
        Self { all: Vec::new(), open: Open::Nothing, bytes: 0, entries: 0 }
    }

    /// The seq that the next entry has in a session of its own.
    pub(super) fn next_seq(&self) -> Seq {
        Seq(self.entries + 1)
    }

    /// Adds a message.
    pub(super) fn push(&mut self, step: Step, entry: ImportedEntry) {
        let (joins, open) = match step {
            Step::Input => (self.open == Open::Input, Open::Input),
            Step::Message => (false, Open::Model),
            Step::Item => (self.open == Open::Model, Open::Model),
            Step::Within => (true, Open::Results),
        };
        if self.all.is_empty() || !(joins || self.open == Open::Nothing) {
            self.begin();
        }
        self.open = open;
        self.add(entry);
    }

    /// Adds a record to the open turn.
    pub(super) fn push_meta(&mut self, entry: ImportedEntry) {
        if self.all.is_empty() {
            self.begin();
        }
        self.add(ImportedEntry { kind: EntryKind::Meta, ..entry });
    }

    /// Gives the open turn its usage; false if it is no step of the model. What
    /// was reported last holds.
    pub(super) fn set_usage(&mut self, usage: Usage) -> bool {
        let of_model = matches!(self.open, Open::Model | Open::Results);
        match self.all.last_mut() {
            Some(turn) if of_model => turn.usage = Some(usage),
            _ => return false,
        }
        true
    }

    /// Adds a turn as it is, as far as the limits of one allow.
    pub(super) fn push_turn(&mut self, turn: ImportedTurn) {
        self.begin();
        let at = self.all.len() - 1;
        turn.entries.into_iter().for_each(|entry| self.add(entry));
        if let Some(begun) = self.all.get_mut(at) {
            begun.usage = turn.usage;
        }
    }

    /// Adds records to the open turn.
    pub(super) fn push_records(&mut self, line: u64, records: Vec<Bytes>) {
        for payload in records {
            self.push_meta(ImportedEntry { payload, kind: EntryKind::Meta, at: None, line });
        }
    }

    /// The turns.
    pub(super) fn finish(self) -> Vec<ImportedTurn> {
        self.all
    }

    fn begin(&mut self) {
        self.all.push(ImportedTurn::default());
        self.open = Open::Nothing;
        self.bytes = 0;
    }

    fn add(&mut self, entry: ImportedEntry) {
        if entry.payload.len() > ENTRY_BYTES_MAX {
            // Too large for any request: kept, but as records.
            self.push_records(entry.line, records(Record::Oversized, entry.line, 0, &entry.payload));
            return;
        }
        let size = entry.payload.len() + ENTRY_OVERHEAD_BYTES;
        let full = |turn: &ImportedTurn| {
            turn.entries.len() >= TURN_ENTRIES_MAX
                || (!turn.entries.is_empty() && self.bytes + size > ENTRY_BYTES_MAX)
        };
        if self.all.last().is_none_or(full) {
            // The same turn as far as the conversation goes: what is open
            // stays.
            let open = self.open;
            self.begin();
            self.open = open;
        }
        if let Some(turn) = self.all.last_mut() {
            self.bytes += size;
            self.entries += 1;
            turn.entries.push(entry);
        }
    }
}

/// Tells the steps of Responses items, which come one by one.
#[derive(Debug)]
pub(super) struct ItemSteps<'a> {
    /// Calls that have an output somewhere.
    answered: HashSet<Cow<'a, str>>,
    /// Answered calls whose output is yet to come.
    open: HashSet<Cow<'a, str>>,
}

impl<'a> ItemSteps<'a> {
    /// `items` are all that are going to be asked for.
    pub(super) fn new(items: impl Iterator<Item = Object<'a>>) -> Self {
        let outputs = items.filter(is_output).filter_map(|item| item.text("call_id"));
        Self { answered: outputs.collect(), open: HashSet::new() }
    }

    /// What an item is to the turn that is open. While an output is yet to
    /// come, nothing leaves the step: clients write notes of their own between
    /// a call and its output.
    pub(super) fn step(&mut self, item: &Object<'a>) -> Step {
        let call_id = item.text("call_id");
        if is_output(item) {
            if let Some(id) = call_id {
                self.open.remove(&id);
            }
            return Step::Within;
        }
        let step = match item.text("role").as_deref() {
            _ if !self.open.is_empty() => Step::Within,
            Some("user" | "system" | "developer") => Step::Input,
            _ => Step::Item,
        };
        self.open.extend(call_id.filter(|id| self.answered.contains(id)));
        step
    }
}

fn is_output(item: &Object<'_>) -> bool {
    item.text("type").is_some_and(|kind| kind.ends_with("_output") || kind == "mcp_approval_response")
}
