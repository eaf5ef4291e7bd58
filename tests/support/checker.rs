//! Judges of message lists: whether a provider's API would take them.
//!
//! Written from what the providers document and answer, and on nothing of the
//! service but its name for a format, so that the service's own idea of the
//! rules is not judged by itself. Where the APIs are known to differ by model or
//! server, the stricter holds.
//!
//! What cannot be judged from the list alone is left out: whether an opaque
//! block was altered, whether a reasoning item that led to a later item is
//! missing, what depends on the rest of the request (tools, thinking), how many
//! pixels a picture has, and lone surrogates, which a `Value` cannot hold.

#[path = "checker/anthropic_messages.rs"]
mod anthropic_messages;
#[path = "checker/bedrock_converse.rs"]
mod bedrock_converse;
#[path = "checker/gemini_contents.rs"]
mod gemini_contents;
#[path = "checker/openai_chat.rs"]
mod openai_chat;
#[path = "checker/openai_responses.rs"]
mod openai_responses;

use serde_json::Value;
use turnkeep::model::WireFormat;

/// Whether the API would take the list, or else what it would answer.
///
/// A `complete` list is sent as it is, so it has to end as the API demands.
/// Otherwise something is still added at its end: it may be empty, may end with
/// the model's words, and the calls of its last step may be without results;
/// everything else holds.
pub(crate) fn accepts(format: WireFormat, messages: &[Value], complete: bool) -> Result<(), String> {
    let check = match format {
        WireFormat::OpenaiChat => openai_chat::check,
        WireFormat::OpenaiResponses => openai_responses::check,
        WireFormat::AnthropicMessages => anthropic_messages::check,
        WireFormat::GeminiContents => gemini_contents::check,
        WireFormat::BedrockConverse => bedrock_converse::check,
        WireFormat::Opaque => return Ok(()),
    };
    if messages.is_empty() {
        return if complete { Err("messages: at least one message is required".to_owned()) } else { Ok(()) };
    }
    check(messages, complete)
}

/// A list's elements; none if it is absent or no list.
fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A string; empty if it is absent or no string.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Whether a name or id has only the characters that all APIs allow.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// The first element that stands in the list a second time.
fn duplicate<'a>(names: &[&'a str]) -> Option<&'a str> {
    names.iter().enumerate().find(|(index, name)| names[..*index].contains(name)).map(|(_, name)| *name)
}
