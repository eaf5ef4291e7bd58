//! What is written and read of sessions.

use super::{RecordedTurn, SessionKey};
use crate::clock::Micros;
use crate::model::{
    Branch, BranchId, Calibration, CompressionPath, Labels, Note, Preamble, RecordedState, Session,
    SessionId, TenantId, Version,
};

/// A session to be created, with its first rows.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// Its owner.
    pub tenant: TenantId,
    /// Its configuration.
    pub session: Session,
    /// Its branch.
    pub branch: Branch,
    /// Its first turn: the genesis, or the fork.
    pub turn: RecordedTurn,
    /// Its preamble.
    pub preamble: Option<Preamble>,
    /// Of a fork, or of a session that continues another: the source session, which
    /// must be live and whose notes are copied, and the branch on which the fork
    /// begins, or that the source is on, which must still be there.
    pub source: Option<(SessionId, BranchId)>,
    /// Of a fork: number of the source's window state, and its window's tokens less
    /// those of its log; else those of `opening`, or 0.
    pub window_state: (u64, i64),
    /// The window state that it begins with, if it has one of its own.
    pub opening: Option<RecordedState>,
    /// Of a fork: the source's calibration.
    pub calibration: Option<Calibration>,
}

/// What became of a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// The session exists now.
    Created,
    /// The id is taken; nothing was written.
    Taken {
        /// By a session that was deleted.
        deleted: bool,
    },
    /// The source is not there; nothing was written.
    SourceGone,
}

/// The newest manifest of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestRow {
    /// The session.
    pub session: SessionId,
    /// Its key in the blob store.
    pub key: String,
    /// The session's version that it tells of.
    pub version: Version,
}

/// A change of configuration.
#[derive(Clone, Debug)]
pub struct SessionUpdate {
    /// The session.
    pub key: SessionKey,
    /// Its configuration revision before.
    pub expected_revision: u64,
    /// Its whole configuration after.
    pub session: Session,
    /// A new preamble, if it changes.
    pub preamble: Option<Preamble>,
    /// Whether the window gets a new revision.
    pub revise_window: bool,
    /// When.
    pub at: Micros,
}

/// Which sessions to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionQuery {
    /// Labels that they must have; at most [`crate::limits::FILTER_LABELS_MAX`].
    pub labels: Labels,
    /// Their path.
    pub path: Option<CompressionPath>,
    /// Created at this time or later.
    pub created_min: Option<Micros>,
    /// Created before this time.
    pub created_max: Option<Micros>,
    /// Last changed at this time or later.
    pub updated_min: Option<Micros>,
    /// Only those that come after this one, in the order of the list.
    pub after: Option<(Micros, SessionId)>,
    /// How many.
    pub limit: u32,
}

/// What became of a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoteOutcome {
    /// It is kept. Its time is that of the text, which may have been there before.
    Put(Note),
    /// The session is not live; nothing was written.
    SessionGone,
    /// The session would have so many notes, of so many bytes, which is too much;
    /// nothing was written.
    Full {
        /// How many.
        notes: u64,
        /// Their bytes.
        bytes: u64,
    },
}

/// A deletion that is not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenDeletion {
    /// The session.
    pub key: SessionKey,
    /// When it was asked for.
    pub deleted_at: Micros,
    /// Whether the bucket's ledger has it.
    pub in_ledger: bool,
}
