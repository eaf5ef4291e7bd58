//! OpenAI Responses items.

use super::json::{Value, string_token};
use super::parts::Parts;
use super::reading::{Call, CallResult, MediaKind, Part, Reading, Role, Serving};
use super::{INTERRUPTED, openai_content};
use crate::model::UnansweredCall;
use std::borrow::Cow;

/// Calls that the worker answers, each with the items that answer it.
const PAIRS: &[(&str, &[&str])] = &[
    ("function_call", &["function_call_output"]),
    ("custom_tool_call", &["custom_tool_call_output"]),
    // Codex answers it as a function.
    ("local_shell_call", &["local_shell_call_output", "function_call_output"]),
    ("shell_call", &["shell_call_output"]),
    ("apply_patch_call", &["apply_patch_call_output"]),
    ("computer_call", &["computer_call_output"]),
    // The provider's own search has no `call_id` and pairs with nothing.
    ("tool_search_call", &["tool_search_output"]),
    ("mcp_approval_request", &["mcp_approval_response"]),
];

/// What the model does with the provider's own tools. It pairs with nothing.
const HOSTED: &[&str] = &[
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "program",
    "program_output",
    "compaction",
    "tool_search_call",
    "tool_search_output",
];

/// Members that name an item or tell its state, and the one that Codex adds for
/// itself.
const ENVELOPE: &[&str] = &[
    "type",
    "id",
    "call_id",
    "approval_request_id",
    "status",
    "server_label",
    "execution",
    "internal_chat_message_metadata_passthrough",
];

/// Whether a result of the one kind answers a call of the other.
pub(super) fn answers(result_kind: &str, call_kind: &str) -> bool {
    PAIRS.iter().any(|(call, results)| *call == call_kind && results.contains(&result_kind))
}

pub(super) fn read(item: Value<'_>) -> Reading<'_> {
    let [kind, id, call_id, approval_id, name] =
        item.get(["type", "id", "call_id", "approval_request_id", "name"]);
    let [kind, id, call_id, approval_id, name] =
        [kind, id, call_id, approval_id, name].map(|value| value.and_then(Value::text));
    let kind = kind.unwrap_or_default();
    // What pairs the item, and what names it.
    let (pair_id, item_id) = match kind.as_ref() {
        "" | "message" => return read_message(item),
        // It refers to nothing.
        "item_reference" if id.is_none() => return Reading::opaque(item.source(), Serving::Omitted),
        "mcp_approval_request" => (id, None),
        "mcp_approval_response" => (approval_id, id),
        "local_shell_call" | "local_shell_call_output" if call_id.is_none() => (id, None),
        _ => (call_id, id),
    };
    let is_call = PAIRS.iter().any(|(call, _)| *call == kind);
    let is_result = PAIRS.iter().any(|(_, results)| results.contains(&kind.as_ref()));
    let is_hosted = HOSTED.contains(&kind.as_ref());
    let name = name.unwrap_or_default();
    let reading = if kind == "reasoning" {
        Reading { serving: Serving::WithNext, ..Reading::new(Role::Model) }
    } else if is_call && pair_id.is_some() {
        Reading { calls: vec![Call { id: pair_id, name, kind, index: 0 }], ..Reading::new(Role::Model) }
    } else if is_result && (pair_id.is_some() || !is_hosted) {
        let result = CallResult { id: pair_id, name: Cow::Borrowed(""), kind, index: 0 };
        Reading { results: vec![result], ..Reading::new(Role::Results) }
    } else if is_call || is_hosted {
        Reading::new(Role::Model)
    } else {
        // Neither is it known who speaks nor what is in it: it stands in its
        // place, and the API judges it.
        return Reading { item_id, ..Reading::opaque(item.source(), Serving::Shown) };
    };
    Reading { item_id, parts: collect(item, !reading.calls.is_empty()), ..reading }
}

fn read_message(message: Value<'_>) -> Reading<'_> {
    let [id, role, content] = message.get(["id", "role", "content"]);
    let content = content.filter(|content| !content.is_null());
    let role = match role.and_then(Value::text).unwrap_or_default().as_ref() {
        "user" => Role::User,
        "assistant" => Role::Model,
        "system" | "developer" => Role::System,
        _ => Role::Unknown,
    };
    let is_shown = content.is_some() && role != Role::Unknown;
    let serving = if is_shown { Serving::Shown } else { Serving::Omitted };
    let mut parts = Parts::default();
    openai_content::collect(&mut parts, content);
    parts.whole_if_empty(message.source());
    Reading { serving, parts: parts.0, item_id: id.and_then(Value::text), ..Reading::new(role) }
}

fn collect(item: Value<'_>, is_call: bool) -> Vec<Part<'_>> {
    let mut parts = Parts::default();
    for (key, value) in item.members() {
        match key.text().unwrap_or_default().as_ref() {
            key if ENVELOPE.contains(&key) => {}
            "name" if is_call => {}
            "encrypted_content" => parts.opaque(Some(value)),
            "content" | "summary" | "output" => openai_content::collect(&mut parts, Some(value)),
            // An image that was generated.
            "result" if value.is_string() => parts.media(MediaKind::Image, Some(value)),
            _ => parts.text(Some(value)),
        }
    }
    parts.whole_if_empty(item.source());
    parts.0
}

/// The smallest picture there is, for the output of a `computer_call`, which
/// must be one.
const BLANK_SCREENSHOT: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

pub(super) fn interrupted_result(call: &UnansweredCall) -> String {
    let id = string_token(&call.call_id);
    let kind = PAIRS.iter().find(|(kind, _)| *kind == call.kind).and_then(|(_, results)| results.first());
    let kind = kind.copied().unwrap_or("function_call_output");
    let members = match kind {
        "shell_call_output" => {
            let outcome = r#"{"type":"exit","exit_code":1}"#;
            format!(
                r#""call_id":{id},"output":[{{"stdout":"","stderr":"{INTERRUPTED}","outcome":{outcome}}}]"#
            )
        }
        "apply_patch_call_output" => format!(r#""call_id":{id},"status":"failed","output":"{INTERRUPTED}""#),
        "computer_call_output" => {
            let screenshot = format!(r#"{{"type":"computer_screenshot","image_url":"{BLANK_SCREENSHOT}"}}"#);
            format!(r#""call_id":{id},"output":{screenshot}"#)
        }
        "tool_search_output" => {
            format!(r#""call_id":{id},"execution":"client","status":"completed","tools":[]"#)
        }
        "mcp_approval_response" => {
            format!(r#""approval_request_id":{id},"approve":false,"reason":"{INTERRUPTED}""#)
        }
        _ => format!(r#""call_id":{id},"output":"{INTERRUPTED}""#),
    };
    format!(r#"{{"type":"{kind}",{members}}}"#)
}
