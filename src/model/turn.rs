//! Turns: the committed changes of a session.

use crate::clock::Micros;
use crate::model::window::UnansweredCall;
use crate::model::{BranchId, Digest, RequestId, Seq, Version};

/// What kind of change a turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TurnKind {
    /// The beginning: version 0, with no entries.
    Genesis,
    /// Entries were appended.
    Persist,
    /// The session went back to an earlier version.
    Rewind,
    /// The session began as a fork.
    Fork,
}

impl TurnKind {
    /// Its name in storage.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Genesis => "genesis",
            Self::Persist => "persist",
            Self::Rewind => "rewind",
            Self::Fork => "fork",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Genesis, Self::Persist, Self::Rewind, Self::Fork]
            .into_iter()
            .find(|kind| kind.as_str() == name)
    }
}

/// What a provider reported for a model call, and what the worker says of it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// Name of the model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Input tokens that were not read from a cache.
    #[serde(default)]
    pub input_tokens: u64,
    /// Output tokens.
    #[serde(default)]
    pub output_tokens: u64,
    /// Input tokens that were read from a cache.
    #[serde(default)]
    pub cache_read_tokens: u64,
    /// Input tokens that were written to a cache.
    #[serde(default)]
    pub cache_write_tokens: u64,
    /// The window that the call was made from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub window_id: String,
    /// Tokens that the service counted for that call without what the worker adds to
    /// each, if it can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_tokens: Option<u64>,
}

/// Calls without a result at one point of the log: all that pairing needs to
/// know of what came before.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CallState {
    /// Calls of the last step that still wait for a result.
    #[serde(default, rename = "p", skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<UnansweredCall>,
    /// Calls that the conversation went on without, the newest last; at most
    /// [`crate::limits::INTERRUPTED_CALLS_MAX`].
    #[serde(default, rename = "i", skip_serializing_if = "Vec::is_empty")]
    pub interrupted: Vec<UnansweredCall>,
    /// Whether the last entry was the model's, so that a further one of its
    /// entries continues the step.
    #[serde(default, rename = "m", skip_serializing_if = "std::ops::Not::not")]
    pub in_model_run: bool,
}

/// One turn: a row about it, without its entries.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// The branch that it lies on.
    pub branch: BranchId,
    /// The version that it made.
    pub version: Version,
    /// What kind of change it was.
    pub kind: TurnKind,
    /// Of a rewind or fork: the version that it goes back to.
    pub base_version: Version,
    /// Seq of its first entry; `last_seq + 1` if it has none.
    pub first_seq: Seq,
    /// Seq of the newest entry after it.
    pub last_seq: Seq,
    /// The caller's key.
    pub request_id: RequestId,
    /// Digest of the request as received.
    pub request_digest: Digest,
    /// Digest of the turn's payloads as stored.
    pub entries_digest: Digest,
    /// The receipt: chains all turns from the first.
    pub receipt: Digest,
    /// Rolling digest of the contents of all entries, as received.
    pub prefix_digest: Digest,
    /// Calls without a result after it.
    pub calls: CallState,
    /// Tokens of the turn's entries.
    pub tokens: u64,
    /// Tokens of all entries of the log after it.
    pub log_tokens: u64,
    /// Bytes of the turn's payloads.
    pub payload_bytes: u64,
    /// What the worker reported.
    pub usage: Option<Usage>,
    /// The worker's score.
    pub score: Option<f64>,
    /// The worker's name for the kind of step.
    pub step_kind: String,
    /// When it was committed.
    pub created_at: Micros,
}
