//! What is written and read of tool outputs.

use super::{BranchKey, SessionKey};
use crate::model::{GenerationId, Output, OutputId};
use bytes::Bytes;

/// A tool output that a turn brings.
#[derive(Clone, Debug)]
pub struct TurnOutput {
    /// The output, on the branch of the turn.
    pub output: Output,
    /// The bytes of its blob, if it names none. One that it names is durable.
    pub held: Option<Bytes>,
    /// The writer generation that wrote the blob.
    pub generation: GenerationId,
}

/// A tool output to be kept.
#[derive(Clone, Debug)]
pub struct NewOutput {
    /// The session.
    pub key: SessionKey,
    /// The output, whose branch and version are found when it is written.
    pub output: Output,
    /// The bytes of its blob, if it names none. The session is charged for them as
    /// for its journal.
    pub held: Option<Bytes>,
    /// Most encoded bytes that the session may have in the journal after that.
    pub journal_bytes_max: u64,
    /// The writer generation that wrote the blob.
    pub generation: GenerationId,
}

/// A tool output whose blob the metadata store holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOutput {
    /// Its branch.
    pub branch: BranchKey,
    /// Its id.
    pub output: OutputId,
    /// Bytes of the blob.
    pub stored_bytes: u64,
}

/// A held output whose blob is durable in the blob store.
#[derive(Clone, Debug)]
pub struct OutputMove {
    /// The output.
    pub held: HeldOutput,
    /// Key of the blob.
    pub blob_key: String,
    /// The writer generation that wrote it.
    pub generation: GenerationId,
}
