//! Deletions of sessions.

use crate::clock::Micros;
use crate::model::SessionId;

/// How far a deletion has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeletionState {
    /// Unreadable, not all erased yet.
    Pending,
    /// All erased.
    Erased,
    /// What forks still reach is kept.
    RetainedByForks,
}

/// Proof of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// The session that was deleted.
    pub session: SessionId,
    /// How far it has come.
    pub state: DeletionState,
    /// Sessions that still reach entries of it.
    pub retained_by: Vec<SessionId>,
    /// Objects still to be erased.
    pub objects_pending: u64,
    /// When it was asked for.
    pub deleted_at: Micros,
    /// When the last object was erased.
    pub erased_at: Option<Micros>,
}
