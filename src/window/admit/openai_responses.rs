//! OpenAI Responses items.

use super::{
    ARGUMENTS, CONTENT, ID, Mends, NAME_CHARS_MAX, NO_OBJECT, Object, RESULT, admit_id, admit_name,
    admit_string,
};
use crate::format::CallIds;
use crate::format::json::Value;

const ITEM_ID: &str = "an item's id that the API does not take";
const SHELL_ID: &str = "the id of a shell call in the place of its call_id";
const SUMMARY: &str = "the summary of reasoning";
const TYPE: &str = "a type that is no word";
const PART: &str = "a part of a type that the API does not take in a message of this role";

pub(super) fn admit(item: &mut Object<'_>, mends: &mut Mends) {
    let kind = item.text("type").unwrap_or_default().into_owned();
    if kind.is_empty() && item.get("type").is_some() {
        item.remove(&["type"]);
        mends.replaced(TYPE);
    }
    match kind.as_str() {
        "" | "message" => admit_message(item, mends),
        "reasoning" if !is_list(item, "summary") => {
            item.set("summary", b"[]");
            mends.replaced(SUMMARY);
        }
        "function_call" => {
            admit_name(item, NAME_CHARS_MAX, mends);
            admit_string(item, "arguments", "{}", ARGUMENTS, mends);
            admit_id(item, "call_id", mends);
        }
        "custom_tool_call" => {
            admit_name(item, NAME_CHARS_MAX, mends);
            admit_string(item, "input", "", ARGUMENTS, mends);
            admit_id(item, "call_id", mends);
        }
        "local_shell_call" | "local_shell_call_output" => admit_shell_id(item, &kind, mends),
        // The provider's own have none.
        "tool_search_call" | "tool_search_output" if item.has("call_id") && !item.is_string("call_id") => {
            item.remove(&["call_id"]);
            mends.replaced(ID);
        }
        "shell_call" | "apply_patch_call" | "computer_call" => admit_id(item, "call_id", mends),
        "function_call_output" | "custom_tool_call_output" if !is_list(item, "output") => {
            admit_string(item, "output", "", RESULT, mends);
        }
        _ => {}
    }
    admit_item_id(item, &kind, mends);
}

fn is_list(item: &Object<'_>, name: &str) -> bool {
    item.get(name).is_some_and(Value::is_array)
}

/// Takes an id away that the API refuses. References are nothing without, and
/// approvals are paired by it.
fn admit_item_id(item: &mut Object<'_>, kind: &str, mends: &mut Mends) {
    let prefix = match kind {
        "item_reference" | "mcp_approval_request" => return,
        "" | "message" if item.text("role").as_deref() == Some("assistant") => "msg_",
        "reasoning" => "rs_",
        "function_call" => "fc_",
        _ => "",
    };
    let is_sound = |id: &str| id.starts_with(prefix) && CallIds::PlainAndUniqueInList.allow(id);
    if item.has("id") && !item.text("id").is_some_and(|id| is_sound(&id)) {
        item.remove(&["id"]);
        mends.replaced(ITEM_ID);
    }
}

/// Old shell calls and their outputs are paired by `id`, which names the item
/// now.
fn admit_shell_id(item: &mut Object<'_>, kind: &str, mends: &mut Mends) {
    if item.is_string("call_id") {
        return;
    }
    let is_call = kind == "local_shell_call";
    if let Some(id) = item.get("id").filter(|id| id.is_string()).map(|id| id.bytes().to_vec()) {
        item.set("call_id", &id);
        if !is_call {
            item.remove(&["id"]);
        }
        mends.replaced(SHELL_ID);
    } else if is_call {
        admit_id(item, "call_id", mends);
    }
}

fn admit_message(item: &mut Object<'_>, mends: &mut Mends) {
    /// Types that are known: what others are is the API's business.
    const KNOWN: &[&str] =
        &["text", "input_text", "output_text", "refusal", "input_image", "input_file", "input_audio"];
    let is_model = item.text("role").as_deref() == Some("assistant");
    let (text, others): (_, &[&str]) = if is_model {
        ("output_text", &["refusal"])
    } else {
        ("input_text", &["input_image", "input_file", "input_audio"])
    };
    let is_list = item.get("content").is_some_and(Value::is_array);
    if item.has("content") && !is_list && !item.is_string("content") {
        admit_string(item, "content", "", CONTENT, mends);
    }
    item.each("content", |part| {
        let kind = part.text("type").unwrap_or_default().into_owned();
        match kind.as_str() {
            "" => mends.omitted(NO_OBJECT),
            kind if kind == text || others.contains(&kind) || !KNOWN.contains(&kind) => true,
            kind if kind.ends_with("text") => {
                part.set("type", format!("\"{text}\"").as_bytes());
                mends.replaced(PART);
                true
            }
            _ => mends.omitted(PART),
        }
    });
}
