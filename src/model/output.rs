//! Tool outputs that are kept whole outside the transcript.

use crate::clock::Micros;
use crate::model::{BranchId, Digest, InvalidName, OutputId, SessionId, Version};

/// A tool output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its id.
    pub id: OutputId,
    /// The branch that it belongs to.
    pub branch: BranchId,
    /// Newest turn of the session when it was stored: the entry that shows its
    /// preview comes later.
    pub version: Version,
    /// The call of which it is the result, as the caller named it.
    pub tool_call_id: String,
    /// The tool, as the caller named it.
    pub tool_name: String,
    /// Media type of the content, as the caller named it.
    pub content_type: String,
    /// Bytes of the content.
    pub bytes: u64,
    /// Its characters: bytes that do not continue a UTF-8 code point.
    pub characters: u64,
    /// Its lines: as many as line breaks, and one more if bytes follow the last.
    pub lines: u64,
    /// SHA-256 of the content.
    pub sha256: Digest,
    /// Key of its blob; none while the metadata store holds it.
    pub key: Option<String>,
    /// Bytes of its blob.
    pub stored_bytes: u64,
    /// Where in the blob its tail begins.
    pub tail_at: u64,
    /// Version of the blob's format.
    pub format: u32,
    /// When it was stored.
    pub created_at: Micros,
    /// The entry in which its preview stands, if a persist put it there.
    pub entry: Option<ChangedEntry>,
}

/// An entry that a persist stored with another content than it came in with:
/// canonical digests of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ChangedEntry {
    /// Of the entry as it was stored.
    pub stored: Digest,
    /// Of the entry as it was received.
    pub received: Digest,
}

/// The name of a tool output: a session that has it in its log, and its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputName {
    /// The session.
    pub session: SessionId,
    /// The output.
    pub output: OutputId,
}

impl OutputName {
    const FORM: &str = "sessions/{session}/outputs/{output}";
    const SCHEME: &str = "turnkeep://";

    /// The name in a resource name `sessions/{session}/outputs/{output}` or a
    /// storage ref, `turnkeep://` before one.
    pub fn parse(name: &str) -> Result<Self, InvalidName> {
        let form = || InvalidName::Form { form: Self::FORM };
        let path = name.strip_prefix(Self::SCHEME).unwrap_or(name);
        let (session, output) =
            path.strip_prefix("sessions/").and_then(|ids| ids.split_once("/outputs/")).ok_or_else(form)?;
        Ok(Self { session: SessionId::parse(session)?, output: OutputId::parse(output)? })
    }

    /// The resource name, `sessions/{session}/outputs/{output}`.
    pub fn resource_name(&self) -> String {
        format!("{}/outputs/{}", self.session.resource_name(), self.output)
    }

    /// The storage ref, which stands in previews.
    pub fn storage_ref(&self) -> String {
        format!("{}{}", Self::SCHEME, self.resource_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_refs_are_read_as_they_are_written() {
        let name =
            OutputName { session: SessionId::parse("a:b").unwrap(), output: OutputId::parse("0f").unwrap() };
        assert_eq!(name.storage_ref(), "turnkeep://sessions/a:b/outputs/0f");
        assert_eq!(OutputName::parse(&name.storage_ref()), Ok(name.clone()));
        assert_eq!(OutputName::parse(&name.resource_name()), Ok(name));
        let form = InvalidName::Form { form: OutputName::FORM };
        for other in ["", "0f", "sessions/a", "outputs/0f", "http://sessions/a/outputs/0f"] {
            assert_eq!(OutputName::parse(other), Err(form.clone()), "{other}");
        }
        assert_eq!(OutputName::parse("sessions/a/outputs/"), Err(InvalidName::Empty));
        assert_eq!(OutputName::parse("sessions/a/b/outputs/c"), Err(InvalidName::Character { found: '/' }));
    }
}
