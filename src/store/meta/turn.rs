//! What is written and read of turns, and of the states of their windows.

use super::{SealedRun, SessionKey, Tip, TurnOutput};
use crate::clock::Micros;
use crate::model::{Branch, BranchId, Digest, Head, RecordedState, Seq, Turn, Version};
use bytes::Bytes;

/// A turn's entries in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRow {
    /// The turn.
    pub version: Version,
    /// Seq of its first entry.
    pub first_seq: Seq,
    /// Seq of the newest entry after it.
    pub last_seq: Seq,
    /// Bytes that the body decodes to.
    pub raw_bytes: u64,
    /// The encoded entries.
    pub body: Bytes,
    /// When it was committed.
    pub created_at: Micros,
}

/// A turn with its recorded reply.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedTurn {
    /// The turn.
    pub turn: Turn,
    /// The reply, as JSON.
    pub reply: String,
}

/// What must hold of a session's head for a write to take place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its version.
    pub version: Version,
    /// Its branch.
    pub branch: BranchId,
    /// Revision of its configuration.
    pub config_revision: u64,
    /// Its fence.
    pub fence: u64,
    /// Receipt of its newest turn: a version may be another turn after the
    /// metadata were taken back.
    pub receipt: Digest,
}

impl Expected {
    /// That the head is as it was read.
    pub fn unchanged(tip: &Tip) -> Self {
        let Head { version, branch, receipt, config_revision, fence, .. } = tip.head.clone();
        Self { version, branch, config_revision, fence, receipt }
    }
}

/// Where the entries of a new turn are put.
#[derive(Clone, Debug)]
pub enum TurnEntries {
    /// Nowhere: it has none.
    None,
    /// Into the journal.
    Journal(JournalRow),
    /// Into a segment that is in the blob store already, together with the
    /// journal rows before it, which go.
    Segment(SealedRun),
}

/// A turn to be committed.
#[derive(Clone, Debug)]
pub struct NewTurn {
    /// The session.
    pub key: SessionKey,
    /// What must hold of its head.
    pub expected: Expected,
    /// The turn.
    pub turn: RecordedTurn,
    /// Its entries.
    pub entries: TurnEntries,
    /// A branch to be made for it, if it is a rewind.
    pub branch: Option<Branch>,
    /// The window state that is recorded with it, if it is a rewind.
    pub window_state: Option<NewWindowState>,
    /// Whether the window gets a new revision.
    pub revise_window: bool,
    /// Most encoded bytes that the session may have in the journal after it.
    pub journal_bytes_max: u64,
    /// Tool outputs of which previews stand in its entries.
    pub outputs: Vec<TurnOutput>,
}

/// What became of a write that expects a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// It is durable.
    Committed,
    /// The head is not as expected, or there is none, or the journal is full;
    /// nothing was written.
    NotAsExpected,
}

/// A window state to be recorded.
#[derive(Clone, Debug)]
pub struct NewWindowState {
    /// The session.
    pub key: SessionKey,
    /// The state, whose version is found when it is written.
    pub state: RecordedState,
    /// Tokens of the window less those of the log.
    pub window_offset: i64,
}
