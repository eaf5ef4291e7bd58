//! What is to be known of an entry by itself.

use super::admit::{Admitted, admit_value};
use super::round::Api;
use crate::format::json::{Ends, Value};
use crate::format::{Reading, read, read_value};
use crate::model::{Entry, EntryKind, RepairKind};
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
}

impl Prepared {
    pub(super) fn new(api: Api, entry: Entry) -> Self {
        let message = (entry.kind == EntryKind::Message).then(|| {
            let ends = Ends::of(&entry.payload);
            let recorded = Value::scanned(&entry.payload, &ends);
            let Admitted { payload, mends } = admit_value(api.format, &entry.payload, recorded);
            if mends.is_empty() {
                let reading = read_value(api.format, recorded).into_calls();
                return Message { payload, mends, reading, tokens: entry.tokens };
            }
            let reading = read(api.format, &payload);
            let tokens = api.counter.count_entry(&reading);
            let reading = reading.into_calls();
            Message { payload, mends, reading, tokens }
        });
        Self { entry, message }
    }

    /// The entry.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }
}
