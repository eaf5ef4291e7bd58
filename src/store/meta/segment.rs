//! What is written and read of segments, and of blobs that are to go.

use super::{BranchKey, ManifestRow, RecordedTurn};
use crate::clock::Micros;
use crate::model::{
    Branch, GenerationId, Head, Note, Output, Preamble, RecordedState, Segment, Session, SessionId, TenantId,
    Version,
};

/// A segment that takes the place of journal rows.
#[derive(Clone, Debug)]
pub struct SealedRun {
    /// The segment, whose blob is durable.
    pub segment: Segment,
    /// The branch's sealed version before.
    pub expected_sealed_version: Version,
    /// Encoded bytes of the journal rows that go.
    pub journal_bytes: u64,
    /// The manifest, whose blob is durable, if one was written.
    pub manifest: Option<ManifestRow>,
    /// When the manifest that it replaces may be erased.
    pub erase_not_before: Micros,
    /// The writer generation that wrote the blobs.
    pub generation: GenerationId,
}

/// A branch whose journal is to be sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealCandidate {
    /// The branch.
    pub key: BranchKey,
    /// Raw bytes in its journal.
    pub raw_bytes: u64,
}

/// When a journal is due to be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealPolicy {
    /// At so many raw bytes.
    pub raw_bytes: u64,
    /// At so many raw bytes once the oldest turn is `old_seconds` old.
    pub old_raw_bytes: u64,
    /// See `old_raw_bytes`.
    pub old_seconds: u64,
    /// At any size once the oldest turn is so old.
    pub max_seconds: u64,
}

/// A journal to be sealed: rows that go and the segment in their place.
#[derive(Clone, Debug)]
pub struct NewSeal {
    /// The branch.
    pub key: BranchKey,
    /// The session that is charged for the journal.
    pub session: SessionId,
    /// The segment and what it replaces.
    pub run: SealedRun,
}

/// Segments to be merged into one.
#[derive(Clone, Debug)]
pub struct NewRollUp {
    /// The branch.
    pub key: BranchKey,
    /// The session whose deletion covers the old blobs.
    pub session: SessionId,
    /// The segments that go.
    pub old: Vec<Segment>,
    /// The segment in their place, whose blob is durable.
    pub new: Segment,
    /// The writer generation that wrote it.
    pub generation: GenerationId,
    /// When the old blobs may be erased.
    pub erase_not_before: Micros,
}

/// Which adjacent segments are worth a roll-up: as many as
/// [`crate::limits::ROLL_UP_SEGMENTS_MIN`] that are all small and together within
/// the size of one, and of which the first is no larger than the others together.
/// So each byte is written again a few times only, however long the branch gets. Once a
/// branch is idle, any two that fit into one are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollUpPolicy {
    /// Stored bytes under which a segment is small.
    pub small_bytes: u64,
    /// Most raw bytes of the segment in their place.
    pub raw_bytes_max: u64,
    /// A branch is idle if its newest segment was made before.
    pub idle_before: Micros,
}

/// A blob to be erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// Its owner.
    pub tenant: TenantId,
    /// Its key.
    pub key: String,
    /// The session that it belonged to.
    pub session: SessionId,
    /// When it may be erased.
    pub not_before: Micros,
}

/// A writer generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationRow {
    /// Its number.
    pub id: GenerationId,
    /// Whether it may no longer name blobs.
    pub fenced: bool,
}

/// Rows of one session or branch that were made anew from blobs.
#[derive(Clone, Debug, Default)]
pub struct RebuiltRows {
    /// Their owner.
    pub tenant: Option<TenantId>,
    /// A session with its head and preambles.
    pub session: Option<(Session, Head, Vec<Preamble>)>,
    /// A session that was deleted.
    pub deleted: Option<(SessionId, Micros)>,
    /// Branches.
    pub branches: Vec<Branch>,
    /// Turns, each with the session that made it.
    pub turns: Vec<(SessionId, RecordedTurn)>,
    /// Window states, each with the session that made it.
    pub window_states: Vec<(SessionId, RecordedState)>,
    /// Notes of the session.
    pub notes: Vec<Note>,
    /// Segments.
    pub segments: Vec<Segment>,
    /// Tool outputs.
    pub outputs: Vec<Output>,
    /// The manifest.
    pub manifest: Option<ManifestRow>,
    /// Blobs that may be erased.
    pub tombstones: Vec<Tombstone>,
}
