//! Sessions.

use crate::clock::Micros;
use crate::model::{
    BranchId, Calibration, Digest, ModelProfile, Room, SessionId, TokenFactor, Tokenizer, Version, WireFormat,
};
use bytes::Bytes;
use std::collections::BTreeMap;

/// A session's labels.
pub type Labels = BTreeMap<String, String>;

/// Which compression a session's windows get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompressionPath {
    /// A person waits: summarized.
    #[default]
    Interactive,
    /// A pipeline: truncated.
    Batch,
    /// An agent on its own: truncated.
    Automated,
}

impl CompressionPath {
    /// Its name in storage and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Batch => "batch",
            Self::Automated => "automated",
        }
    }

    /// The path of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Interactive, Self::Batch, Self::Automated].into_iter().find(|path| path.as_str() == name)
    }
}

/// The place in another session at which a fork begins, or from which a session goes on.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ForkOrigin {
    /// The source session.
    pub session: SessionId,
    /// Its version.
    pub version: Version,
}

/// A session's configuration: all of it that is no turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Wire format of its entries.
    pub format: WireFormat,
    /// Which compression its windows get.
    pub path: CompressionPath,
    /// Limits of its model.
    pub profile: ModelProfile,
    /// The caller's labels.
    pub labels: Labels,
    /// Strip rule sets that are applied to what is persisted.
    pub strip_rules: Vec<String>,
    /// Whether statements that leave its windows are pinned, if not as the service does.
    pub pin_statements: Option<bool>,
    /// Where it was forked.
    pub forked_from: Option<ForkOrigin>,
    /// The session whose pins and notes it began with.
    pub continued_from: Option<ForkOrigin>,
    /// Whether tokens of its log or preamble were counted by another tokenizer
    /// than its profile's: they are counted once, when they are stored.
    pub has_other_counts: bool,
    /// When it was created.
    pub created_at: Micros,
}

impl Session {
    /// How its tokens are counted.
    pub fn tokenizer(&self) -> Tokenizer {
        self.profile.tokenizer.unwrap_or_else(|| Tokenizer::of_format(self.format))
    }

    /// What a counted token is to the provider. What was found for another model or
    /// tokenizer says nothing.
    pub fn factor(&self, calibration: Option<&Calibration>) -> TokenFactor {
        let is_of_this = |calibration: &&Calibration| {
            calibration.model == self.profile.model && calibration.tokenizer == self.tokenizer()
        };
        calibration.filter(is_of_this).map_or_else(TokenFactor::default, |calibration| calibration.permille)
    }

    /// As [`ModelProfile::room`], in tokens as they are counted here.
    pub fn room(
        &self,
        calibration: Option<&Calibration>,
        reserve: Option<u64>,
        fixed_overhead: u64,
    ) -> Option<Room> {
        let room = self.profile.room(reserve, fixed_overhead)?;
        Some(room.counted(self.factor(calibration)))
    }
}

/// The part of a session that changes with its turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Version of the newest turn.
    pub version: Version,
    /// The branch that the session is on.
    pub branch: BranchId,
    /// Receipt of the newest turn.
    pub receipt: Digest,
    /// Revision of the configuration.
    pub config_revision: u64,
    /// Revision of the window.
    pub window_revision: u64,
    /// Revision of the newest preamble; 0 if there is none.
    pub preamble_revision: u64,
    /// Tokens of the newest preamble.
    pub preamble_tokens: u64,
    /// Encoded bytes that the session has in the journal, held tool outputs included.
    pub journal_bytes: u64,
    /// Raised by whoever reads back a commit whose outcome is not known, so that
    /// it cannot come later.
    pub fence: u64,
    /// When the session last changed.
    pub updated_at: Micros,
    /// Number of the newest window state; 0 if there is none.
    pub window_state: u64,
    /// Tokens of the window when that was recorded, less those of the log.
    pub window_offset: i64,
    /// How counted tokens compare with those that the provider reported: as in the
    /// newest window state.
    pub calibration: Option<Calibration>,
}

impl Head {
    /// Tokens of the window of a log of so many tokens, as far as can be told
    /// without making it.
    pub fn window_tokens(&self, log_tokens: u64) -> u64 {
        log_tokens.saturating_add_signed(self.window_offset)
    }

    /// Whether what windows take from the configuration is as it was at these
    /// revisions. Labels and the like revise the configuration alone, a late
    /// result the window alone; all else revises both.
    pub fn is_configured_as(&self, window_revision: u64, config_revision: u64) -> bool {
        self.window_revision == window_revision || self.config_revision == config_revision
    }
}

/// System text and tool definitions that are kept outside the message list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// Counts a session's preambles from 1.
    pub revision: u64,
    /// The JSON value, byte for byte.
    pub payload: Bytes,
    /// Its tokens by the session's counter.
    pub tokens: u64,
    /// Version of the session when it was set.
    pub since_version: Version,
}
