//! Session manifests: what the segments do not tell of a session, so that the
//! metadata can be made anew from the blobs alone.

use crate::clock::Micros;
use crate::codec::segment::BranchLine;
use crate::codec::{CodecError, frame};
use crate::limits::{PREAMBLE_BYTES_MAX, SEGMENT_RAW_BYTES_MAX};
use crate::model::{
    BranchId, CompressionPath, ForkOrigin, GenerationId, Labels, ModelProfile, Note, Preamble, RecordedState,
    Session, SessionId, TenantId, Version, WireFormat,
};
use bytes::Bytes;

/// The manifest format that this version writes and the newest that it reads.
pub const FORMAT: u32 = 1;

/// A session's manifest.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Manifest {
    /// Always `manifest`.
    pub turnkeep: String,
    /// Version of the format.
    pub format: u32,
    /// Owner of the session.
    pub tenant: TenantId,
    /// The session.
    pub session: SessionId,
    /// Its configuration.
    pub config: Config,
    /// When it was created.
    pub created_at: Micros,
    /// Its version when the manifest was written.
    pub version: Version,
    /// The branch that it was on.
    pub branch: BranchId,
    /// Revision of its configuration.
    pub config_revision: u64,
    /// Revision of its window.
    pub window_revision: u64,
    /// Sum of the versions up to which its own branches were sealed: of several manifests
    /// that were written without another change of the session, the newest has the most.
    #[serde(default)]
    pub sealed: u64,
    /// When it was written, by the clock of its writer.
    #[serde(default)]
    pub written_at: Micros,
    /// Its own branches, the oldest first, each with its parent.
    pub branches: Vec<(BranchLine, Option<BranchId>)>,
    /// Its preambles, the oldest first.
    pub preambles: Vec<PreambleLine>,
    /// The newest window state of each of its newest branches, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub window_states: Vec<RecordedState>,
    /// Its notes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// The writer generation that made it.
    pub writer: GenerationId,
}

/// A session's configuration as it is stored, in manifests and in the session's
/// row.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Config {
    /// Wire format of its entries.
    pub format: WireFormat,
    /// Which compression its windows get.
    pub path: CompressionPath,
    /// Limits of its model.
    pub profile: ModelProfile,
    /// The caller's labels.
    #[serde(default)]
    pub labels: Labels,
    /// Strip rule sets.
    #[serde(default)]
    pub strip_rules: Vec<String>,
    /// Whether statements that leave its windows are pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin_statements: Option<bool>,
    /// Where it was forked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkOrigin>,
    /// Whose pins and notes it began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continued_from: Option<ForkOrigin>,
    /// Whether tokens were counted by another tokenizer than the profile's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_other_counts: bool,
}

/// A preamble in a manifest.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct PreambleLine {
    /// Counts a session's preambles from 1.
    pub revision: u64,
    /// Version of the session when it was set.
    pub since_version: Version,
    /// Its tokens.
    pub tokens: u64,
    /// The JSON value as text, byte for byte: white space around it included.
    pub payload: String,
}

impl From<&Session> for Config {
    fn from(session: &Session) -> Self {
        let Session {
            id: _,
            format,
            path,
            profile,
            labels,
            strip_rules,
            pin_statements,
            forked_from,
            continued_from,
            has_other_counts,
            created_at: _,
        } = session;
        Self {
            format: *format,
            path: *path,
            profile: profile.clone(),
            labels: labels.clone(),
            strip_rules: strip_rules.clone(),
            pin_statements: *pin_statements,
            forked_from: forked_from.clone(),
            continued_from: continued_from.clone(),
            has_other_counts: *has_other_counts,
        }
    }
}

impl Config {
    /// The session that has this configuration.
    pub fn into_session(self, id: SessionId, created_at: Micros) -> Session {
        let Self {
            format,
            path,
            profile,
            labels,
            strip_rules,
            pin_statements,
            forked_from,
            continued_from,
            has_other_counts,
        } = self;
        Session {
            id,
            format,
            path,
            profile,
            labels,
            strip_rules,
            pin_statements,
            forked_from,
            continued_from,
            has_other_counts,
            created_at,
        }
    }
}

impl PreambleLine {
    /// The line of a preamble, whose payload must be UTF-8.
    pub fn new(preamble: &Preamble) -> Result<Self, CodecError> {
        let payload = String::from_utf8(preamble.payload.to_vec()).map_err(CodecError::damaged)?;
        Ok(Self {
            revision: preamble.revision,
            since_version: preamble.since_version,
            tokens: preamble.tokens,
            payload,
        })
    }

    /// The preamble.
    pub fn to_preamble(&self) -> Preamble {
        Preamble {
            revision: self.revision,
            payload: Bytes::copy_from_slice(self.payload.as_bytes()),
            tokens: self.tokens,
            since_version: self.since_version,
        }
    }
}

/// Encodes a manifest.
pub fn encode(manifest: &Manifest) -> Result<Bytes, CodecError> {
    frame::compress(&serde_json::to_vec(manifest).map_err(CodecError::damaged)?)
}

/// Decodes a manifest.
pub fn decode(stored: &[u8]) -> Result<Manifest, CodecError> {
    const _: () = assert!(PREAMBLE_BYTES_MAX < SEGMENT_RAW_BYTES_MAX);
    let raw = frame::decompress(stored, SEGMENT_RAW_BYTES_MAX)?;
    let manifest: Manifest = serde_json::from_slice(&raw)
        .map_err(|error| CodecError::damaged(format_args!("manifest: {error}")))?;
    if manifest.turnkeep != "manifest" {
        return Err(CodecError::damaged("not a manifest"));
    }
    if manifest.format > FORMAT {
        return Err(CodecError::NewerFormat { found: manifest.format, newest: FORMAT });
    }
    Ok(manifest)
}
