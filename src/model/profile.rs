//! The limits of models.

use crate::limits::{
    COMPACTION_ADVISED_PERCENT, MEDIA_LIMIT_BYTES_MIN, PREVIEW_HEAD_PERCENT, PREVIEW_LENGTH_MIN,
    RESERVE_DIVISOR, TOOL_RESULT_CHARACTERS, TOOL_RESULT_LENGTH_MAX, TOOL_RESULT_WRAPPING_MAX,
};
use crate::model::{Prices, TokenFactor, WireFormat};

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
    /// What all of these are counted in.
    #[serde(default)]
    pub unit: LengthUnit,
    /// Most that a preview may have, with its marker; as much as fits if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_length: Option<u64>,
    /// How much of a preview is from the beginning, in percent; half if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_percent: Option<u8>,
}

impl Default for ToolResultLimit {
    fn default() -> Self {
        Self {
            length: TOOL_RESULT_CHARACTERS,
            reserve: None,
            unit: LengthUnit::Characters,
            preview_length: None,
            head_percent: None,
        }
    }
}

impl ToolResultLimit {
    /// The longest that a message may be that is not offloaded, and one with a
    /// preview.
    pub fn length_max(&self) -> u64 {
        let length = self.length.min(TOOL_RESULT_LENGTH_MAX);
        length.saturating_sub(self.reserve.unwrap_or(length / 5))
    }

    /// How much of a preview is from the beginning, in percent.
    pub fn head_percent(&self) -> u8 {
        self.head_percent.unwrap_or(PREVIEW_HEAD_PERCENT)
    }

    /// As [`Self::length_max`], for a text that is measured before a worker makes a
    /// message of it: less by what it may put around it.
    pub fn length_max_of_text(&self) -> u64 {
        let length_max = self.length_max();
        length_max - TOOL_RESULT_WRAPPING_MAX.min(length_max / 8)
    }
}

/// What is taken of pictures and documents whose data stand in the messages. 0 stands for
/// what is known of the model and its API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MediaLimits {
    /// Bytes of a picture, without the Base64.
    pub image_bytes: u64,
    /// Pixels of the longer edge of a picture.
    pub image_pixels: u64,
    /// Bytes of a document, without the Base64.
    pub document_bytes: u64,
    /// Whether pictures are taken at all, if that is said or known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<bool>,
    /// Whether documents are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<bool>,
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
    /// How large inline pictures and documents may be, if not the defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_limits: Option<MediaLimits>,
    /// What its tokens cost, if not what the catalogue says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<Box<Prices>>,
}

/// So many percent of some tokens.
pub fn percent(tokens: u64, share: u64) -> u64 {
    u64::try_from(u128::from(tokens) * u128::from(share) / 100).unwrap_or(u64::MAX)
}

/// How a context window is divided for one request, in tokens of the provider or as
/// they are counted here: see [`Self::counted`].
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
    /// Checks the limits of tool results and media; fails with the path of a field and
    /// what is wrong with it.
    pub fn check_limits(&self) -> Result<(), (&'static str, String)> {
        if let Some(ToolResultLimit { length, reserve, preview_length, head_percent, .. }) =
            self.tool_result_limit
        {
            if !(1..=TOOL_RESULT_LENGTH_MAX).contains(&length) {
                let problem = format!("is {length}; must be from 1 to {TOOL_RESULT_LENGTH_MAX}");
                return Err(("tool_result_limit.length", problem));
            }
            if let Some(reserve) = reserve.filter(|reserve| *reserve >= length) {
                let problem = format!("is {reserve}; must be less than the length, {length}");
                return Err(("tool_result_limit.reserve", problem));
            }
            if let Some(wanted) = preview_length.filter(|wanted| *wanted < PREVIEW_LENGTH_MIN) {
                let problem = format!("is {wanted}; must be at least {PREVIEW_LENGTH_MIN}");
                return Err(("tool_result_limit.preview_length", problem));
            }
            if let Some(percent) = head_percent.filter(|percent| *percent > 100) {
                let problem = format!("is {percent}; must be from 0 to 100");
                return Err(("tool_result_limit.head_percent", problem));
            }
        }
        let MediaLimits { image_bytes, document_bytes, .. } = self.media_limits.unwrap_or_default();
        for (field, bytes) in
            [("media_limits.image_bytes", image_bytes), ("media_limits.document_bytes", document_bytes)]
        {
            if (1..MEDIA_LIMIT_BYTES_MIN).contains(&bytes) {
                return Err((field, format!("is {bytes}; must be 0 or at least {MEDIA_LIMIT_BYTES_MIN}")));
            }
        }
        Ok(())
    }

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
    /// The same room in tokens as they are counted here, of which each is so many of
    /// the provider's: what fits into it fits there.
    #[must_use]
    pub fn counted(self, factor: TokenFactor) -> Self {
        let at_least = |tokens: u64| {
            let counted = factor.counted(tokens);
            if factor.reported(counted) < tokens { counted + 1 } else { counted }
        };
        Self {
            context: factor.counted(self.context),
            reserve: at_least(self.reserve),
            fixed_overhead: at_least(self.fixed_overhead),
        }
    }

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
