//! What a tool output's blob says of itself.

use crate::clock::Micros;
use crate::codec::CodecError;
use crate::codec::output::FORMAT;
use crate::model::{BranchId, ChangedEntry, Digest, Output, OutputId, SessionId, TenantId, Version};

/// What a tool output is, so that its row can be made anew from the blob alone.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct About {
    /// Its owner.
    pub tenant: TenantId,
    /// The session that made its branch.
    pub session: SessionId,
    /// The branch that its session was on when the blob was written. The row may name
    /// another, if the session left that before the row was written.
    pub branch: BranchId,
    /// The session's version then. That of the row may be later.
    pub version: Version,
    /// Its id.
    pub output: OutputId,
    /// The call of which it is the result.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tool_call_id: String,
    /// The tool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tool_name: String,
    /// Media type of the content.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    /// Bytes of the content.
    pub bytes: u64,
    /// Its characters.
    pub characters: u64,
    /// Its lines.
    pub lines: u64,
    /// SHA-256 of the content.
    pub sha256: Digest,
    /// When it was stored.
    pub created_at: Micros,
    /// The entry in which its preview stands, if a persist put it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<ChangedEntry>,
}

impl About {
    /// The output, of which this is known beside: where its blob lies, the size of
    /// that and where its tail begins.
    pub fn into_output(self, key: Option<String>, stored_bytes: u64, tail_at: u64) -> Output {
        Output {
            id: self.output,
            branch: self.branch,
            version: self.version,
            tool_call_id: self.tool_call_id,
            tool_name: self.tool_name,
            content_type: self.content_type,
            bytes: self.bytes,
            characters: self.characters,
            lines: self.lines,
            sha256: self.sha256,
            key,
            stored_bytes,
            tail_at,
            format: FORMAT,
            created_at: self.created_at,
            entry: self.entry,
        }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, CodecError> {
        serde_json::to_vec(self).map_err(CodecError::damaged)
    }

    pub(super) fn decode(json: &[u8]) -> Result<Self, CodecError> {
        serde_json::from_slice(json)
            .map_err(|error| CodecError::damaged(format_args!("what a tool output is: {error}")))
    }
}
