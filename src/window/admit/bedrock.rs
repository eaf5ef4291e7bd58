//! Amazon Bedrock Converse messages.

use super::{
    ARGUMENTS, Mends, NAME_CHARS_MAX, NO_OBJECT, NO_TEXT, Object, RESULT, WRONG_SPEAKER, admit_id,
    admit_name, admit_object,
};
use crate::format::json::{Value, string_token};

/// Members that say what a block is, one in each.
const KINDS: &[&str] = &[
    "toolUse",
    "toolResult",
    "reasoningContent",
    "text",
    "json",
    "image",
    "document",
    "video",
    "audio",
    "guardContent",
    "cachePoint",
    "citationsContent",
    "searchResult",
];

/// Those that no result holds.
const OF_MESSAGES: &[&str] =
    &["toolUse", "toolResult", "reasoningContent", "audio", "guardContent", "cachePoint", "citationsContent"];

const SEVERAL: &str = "a block that is of several kinds";
const UNTOLD: &str = "reasoning without text or data";
const MISPLACED: &str = "reasoning behind the calls of its message";
const STATUS: &str = "the status of a result";

pub(super) fn admit(message: &mut Object<'_>, mends: &mut Mends) {
    let is_model = match message.text("role").as_deref() {
        Some("assistant") => true,
        Some("user") => false,
        _ => return,
    };
    let mut makes_calls = false;
    message.each("content", |block| {
        let Some(kind) = admit_kind(block, mends) else { return mends.omitted(NO_OBJECT) };
        makes_calls |= is_model && kind == "toolUse";
        match kind {
            "toolUse" | "reasoningContent" if !is_model => mends.omitted(WRONG_SPEAKER),
            "toolResult" if is_model => mends.omitted(WRONG_SPEAKER),
            "reasoningContent" if makes_calls => mends.reasoning_omitted(MISPLACED),
            "reasoningContent" => is_told(block) || mends.reasoning_omitted(UNTOLD),
            "text" => block.is_string("text") || mends.omitted(NO_TEXT),
            "json" => mends.omitted(WRONG_SPEAKER),
            "toolUse" => {
                admit_object(block, "toolUse", ARGUMENTS, mends);
                block.within("toolUse", |call| {
                    admit_id(call, "toolUseId", mends);
                    admit_name(call, NAME_CHARS_MAX, mends);
                    admit_object(call, "input", ARGUMENTS, mends);
                });
                true
            }
            "toolResult" => {
                block.within("toolResult", |result| admit_result(result, mends));
                true
            }
            _ => true,
        }
    });
}

/// What a block is; empty if that is not known, none if it is nothing. One that
/// is several things becomes the first.
fn admit_kind(block: &mut Object<'_>, mends: &mut Mends) -> Option<&'static str> {
    let count = block.members();
    let kind = KINDS.iter().copied().find(|kind| block.get(kind).is_some());
    if let Some(value) = kind.and_then(|kind| block.get(kind)).filter(|_| count > 1) {
        let only = [b"{\"", kind.unwrap_or_default().as_bytes(), b"\":", value.bytes(), b"}"].concat();
        block.replace(only);
        mends.replaced(SEVERAL);
    }
    (count > 0).then(|| kind.unwrap_or_default())
}

fn is_told(block: &Object<'_>) -> bool {
    let reasoning = block.get("reasoningContent");
    let [text, redacted] =
        reasoning.map(|reasoning| reasoning.get(["reasoningText", "redactedContent"])).unwrap_or_default();
    let text = text.and_then(|text| text.member("text"));
    [text, redacted].into_iter().flatten().any(Value::is_string)
}

fn admit_result(result: &mut Object<'_>, mends: &mut Mends) {
    if result.has("status") && !matches!(result.text("status").as_deref(), Some("success" | "error")) {
        result.remove(&["status"]);
        mends.replaced(STATUS);
    }
    if !result.get("content").is_some_and(Value::is_array) {
        let content = match result.get("content") {
            Some(text) if text.is_string() => [b"[{\"text\":", text.bytes(), b"}]"].concat(),
            Some(json) if json.is_object() => [b"[{\"json\":", json.bytes(), b"}]"].concat(),
            Some(other) if !other.is_null() => [b"[{\"text\":", token(other).as_bytes(), b"}]"].concat(),
            _ => b"[]".to_vec(),
        };
        result.set("content", &content);
        mends.replaced(RESULT);
    }
    result.each("content", |part| {
        let is_sound = match admit_kind(part, mends) {
            kind if kind.is_none_or(|kind| OF_MESSAGES.contains(&kind)) => false,
            Some("text") => part.is_string("text"),
            Some("json") => {
                if let Some(json) = part.get("json").filter(|json| !json.is_object()) {
                    let text = [b"{\"text\":", token(json).as_bytes(), b"}"].concat();
                    part.replace(text);
                    mends.replaced(RESULT);
                }
                true
            }
            _ => true,
        };
        is_sound || mends.omitted(RESULT)
    });
}

/// JSON as a string.
fn token(value: Value<'_>) -> String {
    string_token(&String::from_utf8_lossy(value.bytes()))
}
