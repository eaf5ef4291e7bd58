//! A log, assembled.

use super::compute;
use crate::codec::window_id::{ReceiptPrefix, receipt_prefix};
use crate::engine::Error;
use crate::engine::window_state::StateAt;
use crate::model::{BranchId, Digest, Entry, Head, Seq, Session, Turn, Version, WindowState};
use crate::store::meta::Tip;
use crate::tokens::TokenCounter;
use crate::window::{Assembler, Message, Prepared};
use std::collections::VecDeque;
use std::sync::Arc;

/// The log of a branch up to a version, assembled.
#[derive(Debug)]
pub(in crate::engine) struct Assembled {
    branch: BranchId,
    window_revision: u64,
    config_revision: u64,
    /// Number of the head's newest window state.
    head_state: u64,
    /// Number of the window state that it has.
    pub(super) state_number: u64,
    /// That state.
    pub(in crate::engine) state: Arc<WindowState>,
    /// Receipt of the newest turn: tells apart logs of the same version, as
    /// after a restore of the database.
    pub(super) receipt: Digest,
    /// Receipts of turns that were the newest before, the oldest first: what a
    /// worker holds is mostly one of these, and need not be looked up.
    pub(super) earlier: VecDeque<(Version, ReceiptPrefix)>,
    /// Turns that have entries, and the newest turn of all: version and newest
    /// seq.
    versions: Vec<(Version, Seq)>,
    pub(in crate::engine) assembler: Assembler,
    /// Bytes that it takes, roughly.
    pub(super) bytes: usize,
}

/// Receipts of earlier turns that a window in memory remembers.
const EARLIER_RECEIPTS_MAX: usize = 32;

/// What an entry takes beside its payload, roughly.
const ENTRY_OVERHEAD_BYTES: usize = 256;

/// Bytes that are prepared in about the time in which an entry is taken in.
const TAKE_IN_BYTES: usize = 100;

impl Assembled {
    /// Before the first entry from its cut on; `kept` are those before it that stay.
    pub(super) fn new(session: &Session, head: &Head, turn: &Turn, at: StateAt, kept: Vec<Entry>) -> Self {
        let counter = TokenCounter::new(session.format, session.tokenizer());
        let StateAt { number, state } = at;
        let bytes = kept.iter().map(|entry| entry.payload.len() + ENTRY_OVERHEAD_BYTES).sum();
        Self {
            branch: turn.branch.clone(),
            window_revision: head.window_revision,
            config_revision: head.config_revision,
            head_state: head.window_state,
            state_number: number,
            state: state.clone(),
            receipt: turn.receipt,
            earlier: VecDeque::new(),
            versions: vec![(Version(0), Seq(0))],
            assembler: Assembler::with_state(session.format, counter, state, kept),
            bytes,
        }
    }

    /// Makes it of no use.
    pub(super) fn forget(&mut self) {
        (self.window_revision, self.config_revision) = (u64::MAX, u64::MAX);
    }

    /// Whether the session is on its branch and is configured as it was: the log
    /// may have grown, and a late result may have revised what is here, which
    /// taking in the entries does as well.
    pub(in crate::engine) fn is_of(&self, head: &Head) -> bool {
        self.branch == head.branch
            && self.head_state == head.window_state
            && head.is_configured_as(self.window_revision, self.config_revision)
    }

    /// The newest turn.
    pub(in crate::engine) fn newest(&self) -> (Version, Seq) {
        self.versions.last().copied().unwrap_or_default()
    }

    /// The newest seq of a version.
    pub(super) fn seq_of(&self, version: Version) -> Seq {
        let end = self.versions.partition_point(|(other, _)| *other <= version);
        self.versions.get(end.saturating_sub(1)).map_or(Seq(0), |(_, seq)| *seq)
    }

    /// Takes in the entries that follow, up to the tip, with their messages if those were
    /// looked through before.
    pub(super) fn extend_to(
        &mut self,
        entries: impl IntoIterator<Item = (Entry, Option<Message>)>,
        tip: &Tip,
    ) {
        if !self.is_of(&tip.head) {
            return;
        }
        if self.newest().0 < tip.head.version {
            if self.earlier.len() == EARLIER_RECEIPTS_MAX {
                self.earlier.pop_front();
            }
            self.earlier.push_back((self.newest().0, receipt_prefix(self.receipt)));
            let prepare = |(entry, message)| self.assembler.prepared(entry, message);
            let prepared: Vec<_> = entries.into_iter().map(prepare).collect();
            self.take_in(prepared);
            self.reach(tip.head.version);
            self.receipt = tip.turn.receipt;
        }
        if self.newest().0 == tip.head.version {
            self.window_revision = tip.head.window_revision;
            self.config_revision = tip.head.config_revision;
        }
    }

    /// With the entries that follow, up to a version.
    pub(super) async fn extended(mut self, entries: Vec<Prepared>, version: Version) -> Result<Self, Error> {
        compute(entries.len() * TAKE_IN_BYTES, move || {
            self.take_in(entries);
            self.reach(version);
            self
        })
        .await
    }

    /// Has the version as its newest, which may have no entries.
    fn reach(&mut self, version: Version) {
        let (newest, seq) = self.newest();
        if version > newest {
            self.versions.push((version, seq));
        }
    }

    fn take_in(&mut self, entries: Vec<Prepared>) {
        for prepared in entries {
            let entry: &Entry = prepared.as_ref();
            let (newest, seq) = self.newest();
            if entry.seq <= seq {
                continue;
            }
            self.bytes += entry.payload.len() + ENTRY_OVERHEAD_BYTES;
            if entry.version > newest {
                self.versions.push((entry.version, entry.seq));
            } else if let Some(last) = self.versions.last_mut() {
                last.1 = entry.seq;
            }
            self.assembler.push_prepared(prepared);
        }
    }
}
