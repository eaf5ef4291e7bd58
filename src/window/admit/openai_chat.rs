//! OpenAI Chat Completions messages.

use super::{
    ARGUMENTS, CONTENT, Mends, NAME_CHARS_MAX, NO_OBJECT, NO_TEXT, Object, RESULT, admit_id, admit_name,
    admit_string,
};
use crate::format::json::{Value, string_token};

const CALLS: &str = "a list of calls that is none";
const BOTH: &str = "the deprecated call beside others";
const UNTYPED: &str = "the type of a call";
const NO_CALL: &str = "a call that is none";
const PART: &str = "a part of a type that the API does not take in a message of this role";
const ANSWER: &str = "a refusal or recording that is none";

pub(super) fn admit(message: &mut Object<'_>, mends: &mut Mends) {
    let role = message.text("role").unwrap_or_default().into_owned();
    match role.as_str() {
        "tool" => {
            admit_id(message, "tool_call_id", mends);
            admit_content(message, &["text"], mends);
            if is_empty_list(message, "content") || !message.has("content") {
                message.set("content", b"\"\"");
                mends.replaced(RESULT);
            }
        }
        "function" => {
            if message.has("name") {
                admit_name(message, NAME_CHARS_MAX, mends);
            }
            admit_string(message, "content", "", RESULT, mends);
        }
        "assistant" => admit_answer(message, mends),
        "system" | "developer" => admit_content(message, &["text"], mends),
        "user" => admit_content(message, &["text", "image_url", "input_audio", "file"], mends),
        _ => {}
    }
}

fn is_empty_list(message: &Object<'_>, name: &str) -> bool {
    message.get(name).is_some_and(|list| list.is_array() && list.elements().next().is_none())
}

fn admit_answer(message: &mut Object<'_>, mends: &mut Mends) {
    message.each("tool_calls", |call| admit_call(call, mends));
    let is_list = message.get("tool_calls").is_some_and(Value::is_array);
    if message.has("tool_calls") && (!is_list || is_empty_list(message, "tool_calls")) {
        message.remove(&["tool_calls"]);
        mends.replaced(CALLS);
    }
    let has_calls = message.has("tool_calls");
    let is_object = message.get("function_call").is_some_and(Value::is_object);
    if message.has("function_call") && (has_calls || !is_object) {
        message.remove(&["function_call"]);
        mends.replaced(BOTH);
    }
    message.within("function_call", |call| {
        admit_name(call, NAME_CHARS_MAX, mends);
        admit_string(call, "arguments", "{}", ARGUMENTS, mends);
    });
    let is_refusal = message.get("refusal").is_some_and(Value::is_string);
    let is_recording = message.get("audio").is_some_and(Value::is_object);
    for (name, is_sound) in [("refusal", is_refusal), ("audio", is_recording)] {
        if message.has(name) && !is_sound {
            message.remove(&[name]);
            mends.replaced(ANSWER);
        }
    }
    admit_content(message, &["text", "refusal"], mends);
    if is_empty_list(message, "content") && !has_calls && !message.has("function_call") {
        message.set("content", b"null");
        mends.replaced(CONTENT);
    }
}

fn admit_call(call: &mut Object<'_>, mends: &mut Mends) -> bool {
    let has = |kind: &str| call.get(kind).is_some_and(Value::is_object);
    let kind = match call.text("type").as_deref() {
        Some("custom") if has("custom") => "custom",
        _ if has("function") => "function",
        _ if has("custom") => "custom",
        _ => return mends.omitted(NO_CALL),
    };
    if call.text("type").as_deref() != Some(kind) {
        call.set("type", string_token(kind).as_bytes());
        mends.replaced(UNTYPED);
    }
    admit_id(call, "id", mends);
    let (body, otherwise) = if kind == "custom" { ("input", "") } else { ("arguments", "{}") };
    call.within(kind, |called| {
        admit_name(called, NAME_CHARS_MAX, mends);
        admit_string(called, body, otherwise, ARGUMENTS, mends);
    });
    true
}

/// Makes content a string or a list of parts of these types, if there is any.
fn admit_content(message: &mut Object<'_>, kinds: &[&str], mends: &mut Mends) {
    /// Types that are known: what others are is the API's business.
    const KNOWN: &[&str] = &["text", "image_url", "input_audio", "file", "refusal"];
    let is_list = message.get("content").is_some_and(Value::is_array);
    if message.has("content") && !is_list && !message.is_string("content") {
        admit_string(message, "content", "", CONTENT, mends);
    }
    message.each("content", |part| {
        let kind = part.text("type").unwrap_or_default().into_owned();
        match kind.as_str() {
            "" => mends.omitted(NO_OBJECT),
            "text" => part.is_string("text") || mends.omitted(NO_TEXT),
            kind if KNOWN.contains(&kind) && !kinds.contains(&kind) => {
                let text = string_token(&format!("[{kind}: left out, since the API takes none here]"));
                part.replace(format!(r#"{{"type":"text","text":{text}}}"#));
                mends.replaced(PART);
                true
            }
            _ => true,
        }
    });
}
