//! The limits of models.

use crate::limits::{
    COMPACTION_ADVISED_PERCENT, RESERVE_DIVISOR, TOOL_RESULT_CHARACTERS, TOOL_RESULT_LENGTH_MAX,
};
use crate::model::{Prices, WireFormat};

/// How tokens are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tokenizer {
    /// OpenAI's `o200k_base`.
    O200k,
    /// OpenAI's `cl100k_base`.
    Cl100k,
    /// An estimate from the characters' scripts.
    Estimate,
}

impl Tokenizer {
    /// The tokenizer that suits a wire format: exact where the vendor's is
    /// public.
    pub fn of_format(format: WireFormat) -> Self {
        match format {
            WireFormat::OpenaiChat | WireFormat::OpenaiResponses => Self::O200k,
            WireFormat::AnthropicMessages
            | WireFormat::GeminiContents
            | WireFormat::BedrockConverse
            | WireFormat::Opaque => Self::Estimate,
        }
    }
}

/// What the length of a tool result is counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LengthUnit {
    /// Characters of the serialized message.
    #[default]
    Characters,
    /// Bytes of the serialized message.
    Bytes,
    /// Tokens by the session's counter.
    Tokens,
}

/// How long the message with a tool result may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolResultLimit {
    /// The length that the model's API or framework takes.
    pub length: u64,
    /// What is kept free of it; a fifth of it if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<u64>,
    /// What both are counted in.
    #[serde(default)]
    pub unit: LengthUnit,
}

impl Default for ToolResultLimit {
    fn default() -> Self {
        Self { length: TOOL_RESULT_CHARACTERS, reserve: None, unit: LengthUnit::Characters }
    }
}

impl ToolResultLimit {
    /// The longest that a message may be that is not offloaded, and one with a
    /// preview.
    pub fn length_max(&self) -> u64 {
        let length = self.length.min(TOOL_RESULT_LENGTH_MAX);
        length.saturating_sub(self.reserve.unwrap_or(length / 5))
    }
}

/// The limits of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelProfile {
    /// Name of the model.
    #[serde(default)]
    pub model: String,
    /// Tokens that it takes, input and output together; 0 if not known.
    #[serde(default)]
    pub context_window_tokens: u64,
    /// Its largest output in tokens; 0 if not known.
    #[serde(default)]
    pub max_output_tokens: u64,
    /// How its tokens are counted, if not as the wire format suggests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Tokenizer>,
    /// How long the message with a tool result may be, if not the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_result_limit: Option<ToolResultLimit>,
    /// What its tokens cost, if not what the catalogue says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<Box<Prices>>,
}

/// How a context window is divided for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Tokens of the context window.
    pub context: u64,
    /// Tokens left for the output.
    pub reserve: u64,
    /// Tokens that the worker adds to each call.
    pub fixed_overhead: u64,
}

impl ModelProfile {
    /// Divides the context window; nothing if it is not known. Without a
    /// `reserve` it is the largest output or a quarter of the window, whichever
    /// is less.
    pub fn room(&self, reserve: Option<u64>, fixed_overhead: u64) -> Option<Room> {
        let context = self.context_window_tokens;
        if context == 0 {
            return None;
        }
        let quarter = context / RESERVE_DIVISOR;
        let default = match self.max_output_tokens {
            0 => quarter,
            max => max.min(quarter),
        };
        Some(Room { context, reserve: reserve.unwrap_or(default), fixed_overhead })
    }
}

impl Room {
    /// Tokens that window and preamble may take together.
    pub fn usable(self) -> u64 {
        self.context.saturating_sub(self.reserve).saturating_sub(self.fixed_overhead)
    }

    /// Whether window and preamble of so many tokens fit: exactly full is a
    /// fit.
    pub fn fits(self, tokens: u64) -> bool {
        tokens.saturating_add(self.reserve).saturating_add(self.fixed_overhead) <= self.context
    }

    /// Whether so many tokens are over the share at which compaction is
    /// advised.
    pub fn is_compaction_advised(self, tokens: u64) -> bool {
        u128::from(tokens) * 100 > u128::from(self.usable()) * u128::from(COMPACTION_ADVISED_PERCENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(context_window_tokens: u64, max_output_tokens: u64) -> ModelProfile {
        ModelProfile { context_window_tokens, max_output_tokens, ..ModelProfile::default() }
    }

    #[test]
    fn reserve_is_the_requests_else_the_largest_output_up_to_a_quarter() {
        assert_eq!(profile(200_000, 64_000).room(None, 0).unwrap().reserve, 50_000);
        assert_eq!(profile(200_000, 8_000).room(None, 0).unwrap().reserve, 8_000);
        assert_eq!(profile(200_000, 0).room(None, 0).unwrap().reserve, 50_000);
        assert_eq!(profile(200_000, 8_000).room(Some(1), 0).unwrap().reserve, 1);
        assert_eq!(profile(0, 8_000).room(None, 0), None);
    }

    #[test]
    fn a_window_fits_up_to_the_last_token() {
        let room = profile(1_000, 0).room(Some(200), 100).unwrap();
        assert_eq!(room.usable(), 700);
        assert!(room.fits(700));
        assert!(!room.fits(701));
        assert!(!room.fits(u64::MAX));
        assert!(!room.is_compaction_advised(420));
        assert!(room.is_compaction_advised(421));
    }
}
