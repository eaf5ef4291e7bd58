//! What is to be known of an entry by itself.

use super::admit::{Admitted, admit};
use super::round::Api;
use crate::format::json::{Ends, Value};
use crate::format::{Reading, read, read_value};
use crate::limits::FIRST_MESSAGE_TOKENS;
use crate::model::{Entry, EntryKind, Origin, RepairKind, WindowState};
use crate::preview::{shortened_results, shortened_texts};
use bytes::Bytes;

/// An entry that was looked through for an assembler.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) entry: Entry,
    /// None if it is not a message.
    pub(super) message: Option<Message>,
}

/// What a message says.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// The payload as its API takes it.
    pub(super) payload: Bytes,
    /// What was mended for that.
    pub(super) mends: Vec<(RepairKind, &'static str)>,
    /// All of its reading but the parts.
    pub(super) reading: Reading<'static>,
    /// Tokens of the payload.
    pub(super) tokens: u64,
    /// Where the payload comes from.
    pub(super) origin: Origin,
}

impl Prepared {
    /// An entry as a window of `state` shows it.
    pub(super) fn new(api: Api, state: &WindowState, entry: Entry) -> Self {
        let shortened = || {
            let is_first = state.cut.as_ref().is_some_and(|cut| cut.shortens(entry.seq));
            if is_first && entry.tokens > FIRST_MESSAGE_TOKENS {
                shortened_texts(api.format, &entry.payload, entry.seq, FIRST_MESSAGE_TOKENS, api.counter)
            } else if state.snipped.binary_search(&entry.seq).is_ok() {
                let later = state.stale.get(&entry.seq).copied();
                let only = state.partly.get(&entry.seq).map(Vec::as_slice);
                shortened_results(api.format, &entry.payload, entry.seq, later, only)
            } else {
                None
            }
        };
        if entry.kind == EntryKind::Message
            && let Some(payload) = shortened()
        {
            let tokens = api.tokens(&payload);
            let mut prepared = Self::of_entry(api, Entry { tokens, payload, ..entry });
            if let Some(message) = &mut prepared.message {
                message.origin = Origin::Snipped;
            }
            return prepared;
        }
        Self::of_entry(api, entry)
    }

    /// A message that stands for something that is no entry.
    pub(super) fn made_up(api: Api, entry: Entry, origin: Origin) -> Self {
        let mut prepared = Self::of_entry(api, entry);
        if let Some(message) = &mut prepared.message {
            message.origin = origin;
        }
        prepared
    }

    fn of_entry(api: Api, entry: Entry) -> Self {
        let message = (entry.kind == EntryKind::Message).then(|| {
            let ends = Ends::of(&entry.payload);
            let recorded = Value::scanned(&entry.payload, &ends);
            let Admitted { payload, mends } = admit(api.format, &entry.payload, recorded);
            if mends.is_empty() {
                let reading = read_value(api.format, recorded).into_calls();
                return Message { payload, mends, reading, tokens: entry.tokens, origin: Origin::Log };
            }
            let reading = read(api.format, &payload);
            let tokens = api.counter.count_entry(&reading);
            let reading = reading.into_calls();
            Message { payload, mends, reading, tokens, origin: Origin::Log }
        });
        Self { entry, message }
    }

    /// The entry.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }
}
