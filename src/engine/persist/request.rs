//! What a persist is asked, what it answers, and the checks that need no session.

use crate::clock::Micros;
use crate::engine::{Error, SessionConfig, Stall};
use crate::format;
use crate::limits::{CHANGED_ENTRIES_BYTES_MAX, ENTRY_BYTES_MAX, SNAPSHOT_ENTRIES_MAX, TURN_ENTRIES_MAX};
use crate::model::{Digest, Entry, EntryKind, OutputId, RequestId, Seq, Usage, Version};
use crate::store::meta::SessionKey;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

/// An entry to be persisted.
#[derive(Clone, Debug)]
pub struct NewEntry {
    /// The JSON object.
    pub payload: Bytes,
    /// What it is for.
    pub kind: EntryKind,
    /// When it was made, if not now.
    pub at: Option<Micros>,
}

/// What a turn adds.
#[derive(Clone, Debug)]
pub enum Input {
    /// Entries to append.
    Append(Vec<NewEntry>),
    /// The worker's whole list.
    Snapshot {
        /// The list.
        entries: Vec<NewEntry>,
        /// The window that it began as; empty if it is the log itself.
        window_id: String,
        /// Whether the log may be rewound to where it parts from the list.
        allow_rewind: bool,
    },
}

impl Input {
    pub(super) fn entries(&self) -> &[NewEntry] {
        match self {
            Self::Append(entries) | Self::Snapshot { entries, .. } => entries,
        }
    }

    pub(super) fn began_as_window(&self) -> bool {
        matches!(self, Self::Snapshot { window_id, .. } if !window_id.is_empty())
    }

    pub(super) fn payload_bytes(&self) -> usize {
        self.entries().iter().map(|entry| entry.payload.len()).sum()
    }

    pub(super) fn field(&self) -> &'static str {
        match self {
            Self::Append(_) => "append.entries",
            Self::Snapshot { .. } => "snapshot.entries",
        }
    }
}

/// A turn to be persisted.
#[derive(Clone, Debug)]
pub struct PersistRequest {
    /// The session.
    pub key: SessionKey,
    /// The caller's key.
    pub request_id: RequestId,
    /// The version that the session must have.
    pub expected_version: Option<Version>,
    /// What the turn adds.
    pub input: Input,
    /// What the provider reported.
    pub usage: Option<Usage>,
    /// The worker's score of the step.
    pub score: Option<f64>,
    /// The worker's name for the kind of step.
    pub step_kind: String,
    /// Configuration of the session, should it not exist.
    pub create_if_missing: Option<SessionConfig>,
    /// The window that the worker sent to the model; empty if it names none.
    pub window_id: String,
    /// Whether tool results stay in the entries however long they are.
    pub keep_tool_results: bool,
}

/// Entries that were not stored, by what stripped them.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stripped {
    /// Their kind or the name of the rule set.
    pub rule: String,
    /// How many.
    pub count: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
}

/// The answer to a persist, as it is recorded with the turn.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PersistReply {
    /// The version that the turn made or, if nothing was new, the current one.
    pub version: Version,
    /// The receipt.
    pub receipt: Digest,
    /// Seq of the turn's first entry.
    pub first_seq: Seq,
    /// Seq of the newest entry after the turn.
    pub last_seq: Seq,
    /// What was stripped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stripped: Vec<Stripped>,
    /// Tokens of the turn's entries.
    pub turn_tokens: u64,
    /// Tokens of all entries of the log.
    pub log_tokens: u64,
    /// Tokens of log and preamble as a share of what is usable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_fill: Option<f64>,
    /// Whether the window wants compaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction: Option<Compaction>,
    /// That compactions bring no relief any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
    /// The request's window extended by this turn; empty if there is none, or if
    /// a rule stripped a message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub window_id: String,
    /// Version that the log was rewound to first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewound_to: Option<Version>,
    /// Tool results that gave way to previews, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offloaded: Vec<OffloadedResult>,
    /// The entries with those previews, as many as there is room for. They are read
    /// from the log when the answer is given again.
    #[serde(skip)]
    pub changed: Vec<Entry>,
}

impl PersistReply {
    /// Of a turn's entries those that changed, up to the size that an answer may
    /// have; further ones are named in [`Self::offloaded`] alone.
    pub(super) fn changed_of(&self, entries: &[Entry]) -> Vec<Entry> {
        let mut bytes = 0;
        let is_changed = |entry: &&Entry| {
            self.offloaded.binary_search_by_key(&entry.seq, |offloaded| offloaded.seq).is_ok()
        };
        let fits = |entry: &&Entry| {
            bytes += entry.payload.len();
            bytes <= CHANGED_ENTRIES_BYTES_MAX
        };
        entries.iter().filter(is_changed).take_while(fits).cloned().collect()
    }
}

/// A tool result for which a persist put a preview.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OffloadedResult {
    /// Seq of the entry.
    pub seq: Seq,
    /// The output that holds the result.
    pub output: OutputId,
    /// Id of the call, as far as labels go.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tool_call_id: String,
    /// Bytes of the output.
    pub bytes: u64,
}

/// Whether a window wants compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compaction {
    /// No.
    None,
    /// Soon.
    Advised,
    /// It does not fit.
    Required,
}

/// The field that names the window that a snapshot began as.
pub(in crate::engine) const WINDOW_FIELD: &str = "snapshot.window_id";

/// A window id that the session did not give, as none did that is yet to be
/// created.
pub(in crate::engine) fn unknown_window() -> Error {
    Error::invalid(WINDOW_FIELD, "is not a window of this session")
}

/// Checks what can be checked without the session.
pub(super) fn check(input: &Input) -> Result<(), Error> {
    let (entries, field) = (input.entries(), input.field());
    let limit = match input {
        Input::Append(_) => TURN_ENTRIES_MAX,
        Input::Snapshot { .. } => SNAPSHOT_ENTRIES_MAX,
    };
    if entries.len() > limit {
        return Err(Error::invalid(
            field,
            format!("has {} entries; at most {limit} are allowed", entries.len()),
        ));
    }
    if input.began_as_window() && matches!(input, Input::Snapshot { allow_rewind: true, .. }) {
        return Err(Error::invalid("snapshot.allow_rewind", "cannot be combined with window_id"));
    }
    entries.iter().enumerate().try_for_each(|(index, entry)| check_payload(entry, field, index))
}

fn check_payload(entry: &NewEntry, field: &str, index: usize) -> Result<(), Error> {
    let problem = if entry.payload.len() > ENTRY_BYTES_MAX {
        format!("has {} bytes; at most {ENTRY_BYTES_MAX} are allowed", entry.payload.len())
    } else {
        match format::check_object(&entry.payload) {
            Ok(()) => return Ok(()),
            Err(error) => error.to_string(),
        }
    };
    Err(Error::invalid(format!("{field}[{index}].payload"), problem))
}

/// Digest of a request as it was received, whose payloads have these digests: what makes
/// a repetition the same.
pub(super) fn digest_of(request: &PersistRequest, payloads: &[Digest]) -> Digest {
    let mut hash = Sha256::new_with_prefix(b"turnkeep persist request v1\n");
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(&request.expected_version.map_or([0xff; 8], |version| version.0.to_be_bytes()));
    match &request.input {
        Input::Append(_) => part(b"append"),
        Input::Snapshot { window_id, allow_rewind, .. } => {
            part(b"snapshot");
            part(window_id.as_bytes());
            part(&[u8::from(*allow_rewind)]);
        }
    }
    for (entry, payload) in request.input.entries().iter().zip(payloads) {
        part(&entry.kind.number().to_be_bytes());
        part(&entry.at.map_or([0xff; 8], |at| at.0.to_be_bytes()));
        part(&payload.0);
    }
    let report = (&request.usage, request.score.map(f64::to_bits), &request.step_kind);
    part(serde_json::to_string(&report).unwrap_or_default().as_bytes());
    part(request.window_id.as_bytes());
    part(&[u8::from(request.keep_tool_results)]);
    Digest(hash.finalize().into())
}
