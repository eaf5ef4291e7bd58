//! Entries that passed all checks, with what does not depend on the head.

use super::refs::Refs;
use super::request::{PersistRequest, Stripped, digest_of};
use crate::clock::Micros;
use crate::codec::digest;
use crate::engine::Engine;
use crate::format;
use crate::model::{Digest, EntryKind, Session};
use crate::store::meta::TurnOutput;
use crate::tokens::TokenCounter;
use crate::window::Message;
use bytes::Bytes;
use std::collections::BTreeMap;

/// An entry that passed all checks, with what does not depend on its place.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Prepared {
    /// Index in the request.
    pub(in crate::engine) index: usize,
    pub(in crate::engine) payload: Bytes,
    /// Of the payload.
    pub(super) sha256: Digest,
    pub(super) kind: EntryKind,
    pub(super) at: Option<Micros>,
    /// Canonical digest of the entry as it was received: where the caller sends what
    /// a persist made of an entry, of what that was made of.
    pub(in crate::engine) content: Digest,
    pub(super) tokens: u64,
    /// What it says; none if it is not part of windows.
    pub(super) message: Option<Message>,
    /// Whether results that are too long were looked for.
    pub(super) is_checked: bool,
    /// The tool outputs for which previews stand in the payload since.
    pub(super) outputs: Vec<TurnOutput>,
}

/// A request whose entries passed all checks.
pub(super) struct PreparedRequest {
    pub(super) entries: Vec<Prepared>,
    pub(super) stripped: Vec<Stripped>,
    /// Whether a rule stripped an entry that windows would show.
    pub(super) is_message_stripped: bool,
    pub(super) request_digest: Digest,
    /// The outputs that the entries name.
    pub(super) refs: Refs,
}

pub(super) fn prepare(request: &PersistRequest, session: &Session, engine: &Engine) -> PreparedRequest {
    let counter = TokenCounter::new(session.format, session.tokenizer());
    let rules = &engine.inner.options.strip_rules;
    let mut stripped: BTreeMap<&str, Stripped> = BTreeMap::new();
    let mut is_message_stripped = false;
    let mut refs = Refs::default();
    let mut entries = Vec::with_capacity(request.input.entries().len());
    let mut received = Vec::with_capacity(request.input.entries().len());
    for (index, entry) in request.input.entries().iter().enumerate() {
        let sha256 = digest::sha256(&entry.payload);
        received.push(sha256);
        let rule = entry.kind.stripped_as().or_else(|| rules.matching(&session.strip_rules, &entry.payload));
        if let Some(rule) = rule {
            is_message_stripped |= entry.kind == EntryKind::Message;
            let count = stripped.entry(rule).or_insert_with(|| Stripped {
                rule: rule.to_owned(),
                count: 0,
                payload_bytes: 0,
            });
            count.count += 1;
            count.payload_bytes += entry.payload.len() as u64;
            continue;
        }
        let payload = format::to_single_line(entry.payload.clone());
        let is_same = std::ptr::eq(payload.as_ref(), entry.payload.as_ref());
        refs.add(&payload);
        let is_message = entry.kind == EntryKind::Message;
        let message = is_message.then(|| Message::counted(session.format, counter, &payload));
        let (tokens, message) = message.map_or((0, None), |(tokens, message)| (tokens, Some(message)));
        entries.push(Prepared {
            index,
            content: format::canonical_digest(&payload),
            sha256: if is_same { sha256 } else { digest::sha256(&payload) },
            tokens,
            message,
            payload,
            kind: entry.kind,
            at: entry.at,
            is_checked: false,
            outputs: vec![],
        });
    }
    PreparedRequest {
        entries,
        stripped: stripped.into_values().collect(),
        is_message_stripped,
        request_digest: digest_of(request, &received),
        refs,
    }
}
