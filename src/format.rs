//! Wire formats: what each API demands of its message list, and what an entry
//! says.
//!
//! A format module reads; it never rewrites. All that the pairing and the
//! window know of an API stands in its [`Rules`].

pub mod calls;
pub mod canonical;
pub mod json;
pub mod payload;
pub mod reading;

mod anthropic;
mod bedrock;
mod gemini;
mod inline_media;
mod openai_chat;
mod openai_content;
mod openai_responses;
mod parts;
mod result_content;
mod shown;
mod texts;
mod tool_result;

pub use calls::{Answer, CallTracker, Pushed};
pub use canonical::canonical_digest;
pub use inline_media::{InlineMedia, inline_media};
pub use json::escaped_length;
pub use payload::{PayloadError, check_object, check_value, to_single_line};
pub use reading::{Call, CallResult, MediaKind, Part, ProviderBlock, Reading, Role, Serving};
pub use result_content::{ResultContent, result_contents, with_values};
pub use shown::{Shown, shown};
pub use texts::{Text, TextKind, texts};
pub use tool_result::tool_result;

use crate::limits::{CALL_ID_BYTES_MAX, SHORT_CALL_ID_CHARS_MAX};
use crate::model::{Seq, UnansweredCall, WireFormat};
use sha2::{Digest as _, Sha256};

/// What an API demands of its message list.
#[derive(Debug)]
pub struct Rules {
    /// Roles that have a place in the list. Entries of others are left out.
    pub roles: &'static [Role],
    /// How much of what the model says is one step.
    pub step: Step,
    /// Where the results of a step's calls stand.
    pub results: ResultPlace,
    /// What happens when two messages of one speaker meet.
    pub meeting: Meeting,
    /// Whether the list must begin with a message of the user that is no
    /// result.
    pub opens_with_user: bool,
    /// What the ids of calls must be.
    pub call_ids: CallIds,
    /// Whether calls and results without an id are paired by name and position.
    pub pairs_by_name: bool,
    /// How a message holds its blocks; none where entries are not made of
    /// blocks that can move.
    pub blocks: Option<&'static Blocks>,
}

/// How much of what the model says is one step, whose calls wait for results
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// One entry.
    Entry,
    /// All that it says without anybody else's word in between.
    Run,
}

/// Where the results of a step's calls stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultPlace {
    /// Entries of their own, directly after the step, in the order of the
    /// calls.
    InCallOrder,
    /// Entries of their own, anywhere after their call.
    Anywhere,
    /// All in the one user message directly after the step, before anything
    /// else in it.
    NextMessage,
    /// As [`Self::NextMessage`], in the order of the calls.
    NextMessageInCallOrder,
}

/// What the ids of calls must be. Those that are not get another, on the call
/// and on its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallIds {
    /// Anything, or nothing.
    Free,
    /// Different from those of the same step, and of at most
    /// [`SHORT_CALL_ID_CHARS_MAX`] characters.
    UniqueInStep,
    /// Different from all others of the list, and of at most
    /// [`CALL_ID_BYTES_MAX`] bytes.
    UniqueInList,
    /// As [`Self::UniqueInList`], of `A-Z a-z 0-9 _ -` alone.
    PlainAndUniqueInList,
}

impl CallIds {
    /// Whether an id may stand in the list at all.
    pub fn allow(self, id: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        match self {
            Self::Free => true,
            Self::UniqueInStep => (1..=SHORT_CALL_ID_CHARS_MAX).contains(&id.chars().count()),
            Self::UniqueInList => (1..=CALL_ID_BYTES_MAX).contains(&id.len()),
            Self::PlainAndUniqueInList => Self::UniqueInList.allow(id) && id.bytes().all(is_plain),
        }
    }
}

/// What happens when two messages of one speaker meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// They stay apart.
    Apart,
    /// They stay apart, but for two of the model of which the first cannot
    /// stand alone: the results of its calls would not come directly after it,
    /// the provider's own tool has not answered yet, or it ends with reasoning.
    /// The API joins neighbours by itself, so nothing else is demanded, and
    /// what is not merged stays as it was recorded.
    MergedIfIncomplete,
    /// They are merged: speakers must alternate.
    Merged,
}

/// How a message holds its blocks.
#[derive(Debug)]
pub struct Blocks {
    /// Name of the member that holds them.
    pub member: &'static str,
    /// A user message without its blocks: what stands before and after them.
    pub user_message: (&'static str, &'static str),
    /// Where the id stands in a call's block, member by member.
    pub call_id: &'static [&'static str],
    /// Where the call's id stands in a result's block.
    pub result_id: &'static [&'static str],
    /// Where the content stands in a result's block.
    pub result_content: &'static [&'static str],
}

const CONVERSATION: &[Role] = &[Role::User, Role::Model, Role::Results];
const WITH_SYSTEM: &[Role] = &[Role::System, Role::User, Role::Model, Role::Results];
const ALL: &[Role] = &[Role::System, Role::User, Role::Model, Role::Results, Role::Unknown];

/// What the API of `format` demands. The last entry of a list is never made
/// up; what must come next follows from it ([`crate::model::NextStep`]).
#[rustfmt::skip]
pub fn rules(format: WireFormat) -> &'static Rules {
    match format {
        WireFormat::OpenaiChat => &Rules {
            roles: WITH_SYSTEM,
            step: Step::Entry,
            results: ResultPlace::InCallOrder,
            meeting: Meeting::Apart,
            opens_with_user: false,
            call_ids: CallIds::UniqueInStep,
            pairs_by_name: false,
            blocks: None,
        },
        // A typed item that is not known here is the API's business.
        WireFormat::OpenaiResponses => &Rules {
            roles: ALL,
            step: Step::Run,
            results: ResultPlace::Anywhere,
            meeting: Meeting::Apart,
            opens_with_user: false,
            call_ids: CallIds::UniqueInList,
            pairs_by_name: false,
            blocks: None,
        },
        WireFormat::AnthropicMessages => &Rules {
            roles: CONVERSATION,
            step: Step::Run,
            results: ResultPlace::NextMessage,
            meeting: Meeting::MergedIfIncomplete,
            opens_with_user: true,
            call_ids: CallIds::PlainAndUniqueInList,
            pairs_by_name: false,
            blocks: Some(&anthropic::BLOCKS),
        },
        WireFormat::BedrockConverse => &Rules {
            roles: CONVERSATION,
            step: Step::Run,
            results: ResultPlace::NextMessage,
            meeting: Meeting::Merged,
            opens_with_user: true,
            call_ids: CallIds::PlainAndUniqueInList,
            pairs_by_name: false,
            blocks: Some(&bedrock::BLOCKS),
        },
        WireFormat::GeminiContents => &Rules {
            roles: CONVERSATION,
            step: Step::Run,
            results: ResultPlace::NextMessageInCallOrder,
            meeting: Meeting::Merged,
            opens_with_user: true,
            call_ids: CallIds::Free,
            pairs_by_name: true,
            blocks: Some(&gemini::BLOCKS),
        },
        WireFormat::Opaque => &Rules {
            roles: ALL,
            step: Step::Entry,
            results: ResultPlace::Anywhere,
            meeting: Meeting::Apart,
            opens_with_user: false,
            call_ids: CallIds::Free,
            pairs_by_name: false,
            blocks: None,
        },
    }
}

/// What `payload` says. Any payload has a reading: what is not understood is an
/// opaque part of it.
pub fn read(format: WireFormat, payload: &[u8]) -> Reading<'_> {
    read_value(format, json::Value::of(payload))
}

/// As [`read`], of a payload that was scanned before.
pub fn read_value(format: WireFormat, payload: json::Value<'_>) -> Reading<'_> {
    let mut reading = match format {
        WireFormat::OpenaiChat => openai_chat::read(payload),
        WireFormat::OpenaiResponses => openai_responses::read(payload),
        WireFormat::AnthropicMessages => anthropic::read(payload),
        WireFormat::BedrockConverse => bedrock::read(payload),
        WireFormat::GeminiContents => gemini::read(payload),
        WireFormat::Opaque => Reading::opaque(payload.source(), Serving::Shown),
    };
    if !rules(format).roles.contains(&reading.role) {
        reading.serving = Serving::Omitted;
    }
    reading
}

/// What stands in a window for the result of a call that was interrupted.
pub const INTERRUPTED: &str = "[no result: the call was interrupted before its result was recorded]";

/// Opens a window whose log begins with the model.
pub const OPENING: &str = "[the conversation begins with the model's message]";

/// The result of a call that was interrupted: an entry, or a block where
/// messages have blocks.
pub fn interrupted_result(format: WireFormat, call: &UnansweredCall) -> String {
    match format {
        WireFormat::OpenaiResponses => openai_responses::interrupted_result(call),
        WireFormat::AnthropicMessages => anthropic::interrupted_result(call),
        WireFormat::BedrockConverse => bedrock::interrupted_result(call),
        WireFormat::GeminiContents => gemini::interrupted_result(call),
        WireFormat::OpenaiChat | WireFormat::Opaque => openai_chat::interrupted_result(call),
    }
}

/// A block of text for the user's messages and results of `format`: `token` is a JSON
/// string.
pub fn text_block(format: WireFormat, token: &str) -> String {
    match format {
        WireFormat::AnthropicMessages | WireFormat::OpenaiChat => {
            format!(r#"{{"type":"text","text":{token}}}"#)
        }
        WireFormat::OpenaiResponses => format!(r#"{{"type":"input_text","text":{token}}}"#),
        WireFormat::BedrockConverse | WireFormat::GeminiContents | WireFormat::Opaque => {
            format!(r#"{{"text":{token}}}"#)
        }
    }
}

/// A message of the user with one text: `token` is a JSON string. Nothing where the
/// format has no structure.
pub fn user_message(format: WireFormat, token: &str) -> Option<String> {
    match format {
        WireFormat::OpenaiChat | WireFormat::AnthropicMessages => {
            Some(format!(r#"{{"role":"user","content":{token}}}"#))
        }
        WireFormat::OpenaiResponses => {
            Some(format!(r#"{{"type":"message","role":"user","content":{token}}}"#))
        }
        WireFormat::BedrockConverse | WireFormat::GeminiContents => {
            let (head, tail) = rules(format).blocks?.user_message;
            Some([head, &text_block(format, token), tail].concat())
        }
        WireFormat::Opaque => None,
    }
}

/// Whether a block is reasoning that cannot end a message.
pub fn is_reasoning(format: WireFormat, block: json::Value<'_>) -> bool {
    match format {
        WireFormat::AnthropicMessages => anthropic::is_reasoning(block),
        WireFormat::BedrockConverse => bedrock::is_reasoning(block),
        _ => false,
    }
}

/// Hex digits at the end of a replacement id: with the prefix they are the 40
/// characters that the strictest API takes.
const REPLACEMENT_DIGITS: usize = 28;

/// The id that a call or item gets whose own cannot be used: the same whenever
/// and wherever it is made. It keeps the typed prefix.
pub fn replacement_id(id: &str, seq: Seq, index: u32) -> String {
    /// Longest typed prefix that is kept, such as `msg_` or `toolu_`.
    const PREFIX_BYTES_MAX: usize = 12;
    let mut hasher = Sha256::new();
    hasher.update(seq.0.to_be_bytes());
    hasher.update(index.to_be_bytes());
    hasher.update(id.as_bytes());
    let hash = crate::model::Digest(hasher.finalize().into()).to_string();
    let prefix = id.split_inclusive('_').next().filter(|prefix| {
        prefix.ends_with('_')
            && prefix.len() <= PREFIX_BYTES_MAX
            && CallIds::PlainAndUniqueInList.allow(prefix)
    });
    [prefix.unwrap_or_default(), hash.get(..REPLACEMENT_DIGITS).unwrap_or_default()].concat()
}

/// Whether [`replacement_id`] could have made `id`.
fn may_be_replacement(id: &str) -> bool {
    id.len() >= REPLACEMENT_DIGITS
        && id.bytes().rev().take(REPLACEMENT_DIGITS).all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacement_ids_are_ids_that_differ_by_entry_and_keep_the_prefix() {
        for id in ["toolu_01AbC", "msg_", "", "é", &"x".repeat(300), "a b_c", "averylongprefix_1"] {
            let new = replacement_id(id, Seq(7), 0);
            assert!(CallIds::PlainAndUniqueInList.allow(&new) && may_be_replacement(&new), "{id} {new}");
            assert_eq!(new, replacement_id(id, Seq(7), 0));
            assert_ne!(new, replacement_id(id, Seq(8), 0));
            assert_ne!(new, replacement_id(id, Seq(7), 1));
        }
        assert!(replacement_id("toolu_01AbC", Seq(7), 0).starts_with("toolu_"));
        assert!(!replacement_id("a b_c", Seq(7), 0).contains('_'));
    }
}
