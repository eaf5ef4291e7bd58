//! A turn that is ready to be committed.

use super::Base;
use super::prepared::PreparedRequest;
use super::request::{Compaction, OffloadedResult, PersistReply, PersistRequest};
use crate::codec::window_id::{WindowId, receipt_prefix};
use crate::codec::{CodecError, digest, frame, line};
use crate::engine::{Engine, Error, compute};
use crate::format::CallTracker;
use crate::limits::{JOURNAL_SESSION_BYTES_MAX, PENDING_CALLS_BYTES_MAX, PENDING_CALLS_MAX};
use crate::model::{
    Branch, CallState, Digest, Entry, Output, Turn, TurnKind, UnansweredCall, Usage, Version,
};
use crate::store::meta::{
    Expected, NewTurn, NewWindowState, RecordedTurn, SessionKey, Tip, TurnEntries, TurnOutput,
};
use crate::window::Message;
use bytes::Bytes;

/// A turn that is ready to be committed.
pub(super) struct Draft {
    pub(super) base: Turn,
    pub(super) branch: Option<Branch>,
    pub(super) turn: Turn,
    pub(super) entries: Vec<Entry>,
    /// What they say; none for those that are not part of windows.
    pub(super) messages: Vec<Option<Message>>,
    pub(super) lines: Bytes,
    pub(super) body: Bytes,
    /// The window state that is recorded with it, if it is a rewind.
    pub(super) window_state: Option<NewWindowState>,
    pub(super) revise_window: bool,
    /// The tool outputs that it brings.
    pub(super) outputs: Vec<TurnOutput>,
    pub(super) reply: PersistReply,
}

impl Draft {
    /// Bytes of its outputs that are to be held.
    pub(super) fn held_bytes(&self) -> usize {
        self.outputs.iter().filter_map(|output| output.held.as_ref()).map(Bytes::len).sum()
    }

    /// The head after it was committed on this one.
    pub(super) fn next_tip(&self, tip: &Tip) -> Tip {
        let mut tip = tip.clone();
        tip.head.version = self.turn.version;
        tip.head.branch = self.turn.branch.clone();
        tip.head.receipt = self.turn.receipt;
        tip.head.window_revision += u64::from(self.revise_window);
        if let Some(new) = &self.window_state {
            (tip.head.window_state, tip.head.window_offset) = (new.state.number, new.window_offset);
            tip.head.window_revision += 1;
        }
        let journaled = (self.body.len() + self.held_bytes()) as u64;
        tip.head.journal_bytes = tip.head.journal_bytes.saturating_add(journaled);
        tip.head.updated_at = self.turn.created_at;
        if let Some(branch) = &self.branch {
            tip.branch = branch.clone();
        }
        tip.turn = self.turn.clone();
        tip
    }

    pub(super) fn reply_json(&self) -> Result<String, Error> {
        serde_json::to_string(&self.reply).map_err(|error| Error::Internal {
            context: "encode a reply".to_owned(),
            source: Some(error.into()),
        })
    }

    pub(super) fn to_commit(
        &self,
        key: &SessionKey,
        tip: &Tip,
        entries: TurnEntries,
    ) -> Result<NewTurn, Error> {
        Ok(NewTurn {
            key: key.clone(),
            expected: Expected::unchanged(tip),
            turn: RecordedTurn { turn: self.turn.clone(), reply: self.reply_json()? },
            entries,
            branch: self.branch.clone(),
            window_state: self.window_state.clone(),
            revise_window: self.revise_window,
            journal_bytes_max: JOURNAL_SESSION_BYTES_MAX,
            outputs: self.outputs.clone(),
        })
    }
}

impl Engine {
    /// Everything of the turn but where its entries are put.
    pub(super) async fn draft(
        &self,
        request: &PersistRequest,
        tip: &Tip,
        base: &Base,
        prepared: &PreparedRequest,
    ) -> Result<Draft, Error> {
        let new = prepared.entries.get(base.known..).unwrap_or_default();
        let now = self.now();
        let version = tip.head.version.next();
        let branch = base.branch.as_ref().map_or(&base.turn.branch, |branch| &branch.id).clone();
        let mut seq = base.turn.last_seq;
        let mut prefix_digest = base.turn.prefix_digest;
        let mut calls = CallTracker::new(tip.session.format, base.turn.calls.clone());
        let mut late_result = false;
        let mut entries = Vec::with_capacity(new.len());
        let mut messages = Vec::with_capacity(new.len());
        let mut hashed = Vec::with_capacity(new.len());
        let mut outputs = Vec::new();
        let mut offloaded = Vec::new();
        for entry in new {
            seq = seq.next();
            prefix_digest = digest::prefix(prefix_digest, entry.content);
            if let Some(message) = &entry.message {
                late_result |= calls.push(seq, message.reading()).has_late_result();
            }
            messages.push(entry.message.clone());
            for TurnOutput { output, held, generation } in entry.outputs.iter().cloned() {
                offloaded.push(OffloadedResult {
                    seq,
                    output: output.id.clone(),
                    tool_call_id: output.tool_call_id.clone(),
                    bytes: output.bytes,
                });
                // As an output that was stored before the turn. The branch may be
                // another than at an attempt before.
                let output = Output { branch: branch.clone(), version: tip.head.version, ..output };
                outputs.push(TurnOutput { output, held, generation });
            }
            hashed.push((seq, entry.kind, entry.sha256));
            entries.push(Entry {
                seq,
                version,
                at: entry.at.unwrap_or(now),
                kind: entry.kind,
                tokens: entry.tokens,
                payload: entry.payload.clone(),
            });
        }
        check_pending_calls(request.input.field(), calls.state())?;
        let tokens = entries.iter().map(|entry| entry.tokens).sum();
        let mut turn = Turn {
            branch,
            version,
            kind: if base.branch.is_some() { TurnKind::Rewind } else { TurnKind::Persist },
            base_version: if base.branch.is_some() { base.turn.version } else { Version(0) },
            first_seq: base.turn.last_seq.next(),
            last_seq: seq,
            request_id: request.request_id.clone(),
            request_digest: prepared.request_digest,
            entries_digest: Digest::default(),
            receipt: Digest::default(),
            prefix_digest,
            calls: calls.state().clone(),
            tokens,
            log_tokens: base.turn.log_tokens.saturating_add(tokens),
            payload_bytes: entries.iter().map(|entry| entry.payload.len() as u64).sum(),
            usage: request.usage.clone().map(|usage| {
                let counted_tokens = self.counted_for(&request.key, tip, base, new, &usage);
                Usage { counted_tokens, ..usage }
            }),
            score: request.score,
            step_kind: request.step_kind.clone(),
            created_at: now,
        };
        let payload_bytes = usize::try_from(turn.payload_bytes).unwrap_or(usize::MAX);
        turn.entries_digest = digest::of_hashed(hashed);
        let (entries, lines, body) = compute(payload_bytes, move || {
            let (lines, body) = encode(&entries, payload_bytes);
            (entries, lines, body)
        })
        .await?;
        turn.receipt = digest::of_turn(base.turn.receipt, &turn);
        let mut reply = self.reply(request, tip, &turn, prepared, base);
        if base.branch.is_none() {
            reply.stall = self.stall_after(&request.key, tip, turn.log_tokens).await;
        }
        if !offloaded.is_empty() {
            // A worker that does not mind what changed would hold another window
            // than the id would have it.
            reply.window_id = String::new();
            reply.offloaded = offloaded;
            reply.changed = reply.changed_of(&entries);
        }
        Ok(Draft {
            base: base.turn.clone(),
            branch: base.branch.clone(),
            turn,
            entries,
            messages,
            lines,
            body: body?,
            window_state: self.state_of_rewind(&request.key, tip, base).await?,
            revise_window: late_result,
            outputs,
            reply,
        })
    }

    /// The window state that is recorded with a turn that goes back.
    async fn state_of_rewind(
        &self,
        key: &SessionKey,
        tip: &Tip,
        base: &Base,
    ) -> Result<Option<NewWindowState>, Error> {
        match &base.branch {
            Some(branch) => self.state_of_branch((key, tip), &base.turn, key, branch).await,
            None => Ok(None),
        }
    }

    fn reply(
        &self,
        request: &PersistRequest,
        tip: &Tip,
        turn: &Turn,
        prepared: &PreparedRequest,
        base: &Base,
    ) -> PersistReply {
        let room = tip.room();
        let filled = tip.head.window_tokens(turn.log_tokens).saturating_add(tip.head.preamble_tokens);
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
        let window_fill = room.map(|room| filled as f64 / room.usable().max(1) as f64);
        let compaction = room.map(|room| {
            if !room.fits(filled) {
                Compaction::Required
            } else if room.is_compaction_advised(filled) {
                Compaction::Advised
            } else {
                Compaction::None
            }
        });
        PersistReply {
            version: turn.version,
            receipt: turn.receipt,
            first_seq: turn.first_seq,
            last_seq: turn.last_seq,
            stripped: prepared.stripped.clone(),
            turn_tokens: turn.tokens,
            log_tokens: turn.log_tokens,
            window_fill,
            compaction,
            stall: None,
            // Which messages went the answer does not say, so that a worker could
            // not extend its window as the id would have it.
            window_id: if prepared.is_message_stripped {
                String::new()
            } else {
                self.extended_window(request, &base.turn, base.branch.is_none(), turn)
            },
            rewound_to: base.branch.as_ref().map(|_| base.turn.version),
            offloaded: vec![],
            changed: vec![],
        }
    }

    /// The request's window extended by a turn; empty if it is not the newest.
    fn extended_window(
        &self,
        request: &PersistRequest,
        base: &Turn,
        same_branch: bool,
        turn: &Turn,
    ) -> String {
        let SessionKey { tenant, session } = &request.key;
        let window_ids = &self.inner.window_ids;
        let Some(window) = window_ids.decode(tenant, session, &request.window_id) else {
            return String::new();
        };
        let is_newest = same_branch && window.branch == base.branch && window.known == base.version;
        if !is_newest || window.close_pending || window.receipt != receipt_prefix(base.receipt) {
            return String::new();
        }
        let extended = WindowId { known: turn.version, receipt: receipt_prefix(turn.receipt), ..window };
        window_ids.encode(tenant, session, &extended)
    }

    pub(super) async fn reply_of_nothing_new(
        &self,
        request: &PersistRequest,
        tip: &Tip,
        prepared: &PreparedRequest,
    ) -> PersistReply {
        let base = Base { turn: tip.turn.clone(), branch: None, known: 0 };
        let mut reply = self.reply(request, tip, &tip.turn, prepared, &base);
        reply.first_seq = tip.turn.last_seq.next();
        reply.turn_tokens = 0;
        reply.stall = self.stall_after(&request.key, tip, tip.turn.log_tokens).await;
        reply
    }
}

/// The lines of entries with so many bytes of payloads, and the same for the journal.
fn encode(entries: &[Entry], payload_bytes: usize) -> (Bytes, Result<Bytes, CodecError>) {
    let mut lines = Vec::with_capacity(payload_bytes + entries.len() * 128);
    for entry in entries {
        line::write(&mut lines, entry);
    }
    let body = if entries.is_empty() { Ok(Bytes::new()) } else { frame::compress_for_journal(&lines) };
    (lines.into(), body)
}

/// Checks that a turn's row can hold the calls that wait for results after it.
fn check_pending_calls(field: &str, calls: &CallState) -> Result<(), Error> {
    let bytes: usize = calls.pending.iter().map(UnansweredCall::text_bytes).sum();
    let count = calls.pending.len();
    if count <= PENDING_CALLS_MAX && bytes <= PENDING_CALLS_BYTES_MAX {
        return Ok(());
    }
    let problem = format!(
        "leaves {count} calls without a result, with {bytes} bytes of ids and names; at most \
         {PENDING_CALLS_MAX} with {PENDING_CALLS_BYTES_MAX} are allowed: send their results with them"
    );
    Err(Error::invalid(field, problem))
}
