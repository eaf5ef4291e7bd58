//! Entries of the log.

use crate::clock::Micros;
use bytes::Bytes;

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The next one.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

counter! {
    /// Position of an entry in the log: from 1, without gaps. 0 is "before the
    /// first".
    Seq
}
counter! {
    /// Number of a turn in its session: it grows and is never used again. 0 is
    /// "before the first".
    Version
}

/// Whose API a session's entries are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WireFormat {
    /// OpenAI Chat Completions messages.
    OpenaiChat,
    /// OpenAI Responses items.
    OpenaiResponses,
    /// Anthropic Messages messages.
    AnthropicMessages,
    /// Gemini contents.
    GeminiContents,
    /// Amazon Bedrock Converse messages.
    BedrockConverse,
    /// JSON objects of no known structure.
    Opaque,
}

impl WireFormat {
    /// All formats.
    pub const ALL: [Self; 6] = [
        Self::OpenaiChat,
        Self::OpenaiResponses,
        Self::AnthropicMessages,
        Self::GeminiContents,
        Self::BedrockConverse,
        Self::Opaque,
    ];

    /// Its name in storage, settings and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenaiChat => "openai-chat",
            Self::OpenaiResponses => "openai-responses",
            Self::AnthropicMessages => "anthropic-messages",
            Self::GeminiContents => "gemini-contents",
            Self::BedrockConverse => "bedrock-converse",
            Self::Opaque => "opaque",
        }
    }

    /// The format of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.as_str() == name)
    }
}

impl std::fmt::Display for WireFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A message or item of the session's wire format.
    Message,
    /// A client's own record: kept, never in a window.
    Meta,
    /// Progress of something that runs: stripped.
    Progress,
    /// A sign of life: stripped.
    Heartbeat,
    /// A state of the client's display: stripped.
    Status,
    /// A kind that this version does not know: kept, never in a window.
    Other(i32),
}

impl EntryKind {
    /// Its number on the wire and in storage.
    pub fn number(self) -> i32 {
        match self {
            Self::Message => 1,
            Self::Meta => 2,
            Self::Progress => 3,
            Self::Heartbeat => 4,
            Self::Status => 5,
            Self::Other(number) => number,
        }
    }

    /// The kind with that number.
    pub fn from_number(number: i32) -> Self {
        match number {
            0 | 1 => Self::Message,
            2 => Self::Meta,
            3 => Self::Progress,
            4 => Self::Heartbeat,
            5 => Self::Status,
            other => Self::Other(other),
        }
    }

    /// The name under which a persist counts entries of this kind that it
    /// stripped; none if the kind is kept.
    pub fn stripped_as(self) -> Option<&'static str> {
        match self {
            Self::Progress => Some("PROGRESS"),
            Self::Heartbeat => Some("HEARTBEAT"),
            Self::Status => Some("STATUS"),
            Self::Message | Self::Meta | Self::Other(_) => None,
        }
    }
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Position in the log.
    pub seq: Seq,
    /// The turn that appended it.
    pub version: Version,
    /// When it was made.
    pub at: Micros,
    /// What it is for.
    pub kind: EntryKind,
    /// Its tokens, by the session's counter when it was stored.
    pub tokens: u64,
    /// The JSON object, byte for byte.
    pub payload: Bytes,
}

impl AsRef<Self> for Entry {
    fn as_ref(&self) -> &Self {
        self
    }
}
