//! What is to be known of an entry by itself.

use super::admit::{Admitted, admit};
use super::round::Api;
use crate::format::json::{Ends, Value};
use crate::format::{Reading, read, read_value};
use crate::limits::FIRST_MESSAGE_TOKENS;
use crate::model::{Entry, EntryKind, Origin, RepairKind, WindowState, WireFormat};
use crate::preview::{shortened_results, shortened_texts};
use crate::tokens::TokenCounter;
use bytes::Bytes;
use std::sync::Arc;

/// An entry that was looked through for an assembler.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(super) entry: Entry,
    /// None if it is not a message.
    pub(super) message: Option<Message>,
}

/// A message that was looked through.
#[derive(Clone, Debug)]
pub struct Message {
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

/// Prepares entries for an assembler of windows with a state, in any order and on any
/// thread: most of what a push costs, and nothing of it depends on the log.
pub fn preparation(
    format: WireFormat,
    counter: TokenCounter,
    state: Arc<WindowState>,
) -> impl Fn(Entry) -> Prepared + Clone + Send + Sync + 'static {
    let api = Api::new(format, counter);
    move |entry| Prepared::new(api, &state, entry)
}

impl Message {
    /// Looks through a payload, and counts the tokens of it as it is.
    pub fn counted(format: WireFormat, counter: TokenCounter, payload: &Bytes) -> (u64, Self) {
        Self::read(Api::new(format, counter), payload, |recorded| counter.count_entry(recorded))
    }

    /// Its calls and results as windows show them, which is as they were recorded unless
    /// the API would not take that.
    pub fn reading(&self) -> &Reading<'static> {
        &self.reading
    }

    fn read(api: Api, payload: &Bytes, count: impl FnOnce(&Reading<'_>) -> u64) -> (u64, Self) {
        let ends = Ends::of(payload);
        let value = Value::scanned(payload, &ends);
        let recorded = read_value(api.format, value);
        let counted = count(&recorded);
        let Admitted { payload, mends } = admit(api.format, payload, value);
        let (tokens, reading) = if mends.is_empty() {
            (counted, recorded.into_calls())
        } else {
            let shown = read(api.format, &payload);
            (api.counter.count_entry(&shown), shown.into_calls())
        };
        (counted, Self { payload, mends, reading, tokens, origin: Origin::Log })
    }
}

impl Prepared {
    /// An entry as a window of `state` shows it, whose message may have been looked through.
    pub(super) fn of(api: Api, state: &WindowState, entry: Entry, message: Option<Message>) -> Self {
        let is_whole = !state.cut.as_ref().is_some_and(|cut| cut.shortens(entry.seq))
            && state.snipped.binary_search(&entry.seq).is_err();
        match message {
            Some(message) if is_whole => Self { entry, message: Some(message) },
            _ => Self::new(api, state, entry),
        }
    }

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
        let is_message = entry.kind == EntryKind::Message;
        let message = is_message.then(|| Message::read(api, &entry.payload, |_| entry.tokens).1);
        Self { entry, message }
    }
}

impl AsRef<Entry> for Prepared {
    fn as_ref(&self) -> &Entry {
        &self.entry
    }
}
