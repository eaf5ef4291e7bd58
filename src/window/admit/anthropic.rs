//! Anthropic Messages messages.

use super::{
    ARGUMENTS, CONTENT, Mends, NO_OBJECT, NO_TEXT, Object, RESULT, WRONG_SPEAKER, admit_id, admit_name,
    admit_object, admit_string,
};
use crate::format::json::{Value, string_token};
use crate::format::{CallIds, text_block};
use crate::model::{RepairKind, WireFormat};

/// Longest name of a tool, in characters.
const NAME_CHARS_MAX: usize = 128;

/// Largest picture, in bytes: `image exceeds 5 MB maximum`.
const IMAGE_BYTES_MAX: usize = 5 * 1024 * 1024;

const UNSIGNED: &str = "reasoning that is not signed";
const MISPLACED: &str = "reasoning behind the calls of its message";
const PROVIDER_ID: &str = "call of the provider's own tool without an id that the API takes";
const IMAGE: &str = "a picture that is empty or larger than 5 MB";
const IMAGE_OMITTED: &str = "[a picture that the API does not take is left out]";
const CACHE_MARK: &str = "cache_control: a request may hold four, so whoever sends it sets them";

pub(super) fn admit(message: &mut Object<'_>, mends: &mut Mends) {
    let is_model = match message.text("role").as_deref() {
        Some("assistant") => true,
        Some("user") => false,
        _ => return,
    };
    let mut makes_calls = false;
    message.each("content", |block| {
        let kind = block.text("type").unwrap_or_default().into_owned();
        drop_cache_mark(block, mends);
        makes_calls |= is_model && kind == "tool_use";
        match kind.as_str() {
            "thinking" | "redacted_thinking" if is_model && makes_calls => mends.reasoning_omitted(MISPLACED),
            kind => admit_block(block, kind, is_model, mends),
        }
    });
}

fn admit_block(block: &mut Object<'_>, kind: &str, is_model: bool, mends: &mut Mends) -> bool {
    let has_text =
        |name: &str| block.get(name).and_then(Value::string_content).is_some_and(|text| !text.is_empty());
    let is_of_model = matches!(kind, "thinking" | "redacted_thinking" | "tool_use" | "compaction")
        || kind.ends_with("_tool_use")
        || kind.ends_with("_tool_result");
    let is_of_user = matches!(kind, "tool_result" | "image" | "document" | "search_result");
    match kind {
        "" => mends.omitted(NO_OBJECT),
        _ if (is_of_model && !is_model) || (is_of_user && is_model) => mends.omitted(WRONG_SPEAKER),
        "text" => block.is_string("text") || mends.omitted(NO_TEXT),
        "thinking" if !block.is_string("thinking") || !has_text("signature") => {
            mends.reasoning_omitted(UNSIGNED)
        }
        "redacted_thinking" if !has_text("data") => mends.reasoning_omitted(UNSIGNED),
        "tool_use" => {
            admit_id(block, "id", mends);
            admit_call(block, mends);
            true
        }
        "server_tool_use" | "mcp_tool_use" => {
            admit_call(block, mends);
            let id = block.text("id").unwrap_or_default();
            CallIds::PlainAndUniqueInList.allow(&id) || mends.omitted(PROVIDER_ID)
        }
        kind if kind.ends_with("_tool_result") => {
            block.is_string("tool_use_id") || mends.omitted(PROVIDER_ID)
        }
        "image" => {
            admit_image(block, mends);
            true
        }
        "tool_result" => {
            admit_result(block, mends);
            true
        }
        _ => true,
    }
}

fn admit_call(block: &mut Object<'_>, mends: &mut Mends) {
    admit_name(block, NAME_CHARS_MAX, mends);
    admit_object(block, "input", ARGUMENTS, mends);
}

fn admit_result(block: &mut Object<'_>, mends: &mut Mends) {
    let is_other = |content: Value<'_>| !content.is_string() && !content.is_null() && !content.is_array();
    if block.get("content").is_some_and(is_other) {
        admit_string(block, "content", "", CONTENT, mends);
    }
    block.each("content", |part| {
        drop_cache_mark(part, mends);
        match part.text("type").as_deref() {
            None | Some("") => as_text(part, mends),
            Some("text") if !part.is_string("text") => as_text(part, mends),
            Some("image") => {
                admit_image(part, mends);
                true
            }
            Some(_) => true,
        }
    });
}

/// Makes a part of a result that is nothing known a text that has it as JSON.
fn as_text(part: &mut Object<'_>, mends: &mut Mends) -> bool {
    let json = String::from_utf8_lossy(part.value().bytes()).into_owned();
    part.replace(text_block(WireFormat::AnthropicMessages, &string_token(&json)));
    mends.replaced(RESULT);
    true
}

fn admit_image(block: &mut Object<'_>, mends: &mut Mends) {
    let [kind, data] = block.get("source").map(|source| source.get(["type", "data"])).unwrap_or_default();
    let is_sound = match kind.and_then(Value::text).as_deref() {
        Some("base64") => {
            let bytes = data.and_then(Value::string_content).map_or(0, |data| data.len() / 4 * 3);
            (1..=IMAGE_BYTES_MAX).contains(&bytes)
        }
        Some("url" | "file") => true,
        _ => false,
    };
    if !is_sound {
        block.replace(text_block(WireFormat::AnthropicMessages, &string_token(IMAGE_OMITTED)));
        mends.replaced(IMAGE);
    }
}

/// Marks are no part of what was said, and a log soon holds more than a request
/// may.
fn drop_cache_mark(block: &mut Object<'_>, mends: &mut Mends) {
    if block.has("cache_control") {
        block.remove(&["cache_control"]);
        mends.add(RepairKind::CacheMarkOmitted, CACHE_MARK);
    }
}
