//! OpenAI Responses items.

use super::{elements, is_plain, text};
use serde_json::Value;

/// Longest id of an item and of a call, by the API's answers.
const ID_LENGTH_MAX: usize = 64;

/// Items that need no other one.
const LONE_KINDS: &[&str] = &[
    "item_reference",
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "compaction",
    // Between agents, and what calls functions for the model; of the API's own description.
    "agent_message",
    "program",
    "program_output",
    // Seen in a recorded request.
    "additional_tools",
];

/// Calls with the kinds of items that answer them.
const CALL_KINDS: &[(&str, &[&str])] = &[
    ("function_call", &["function_call_output"]),
    ("custom_tool_call", &["custom_tool_call_output"]),
    // Codex answers it like a function.
    ("local_shell_call", &["local_shell_call_output", "function_call_output"]),
    ("shell_call", &["shell_call_output"]),
    ("apply_patch_call", &["apply_patch_call_output"]),
    ("computer_call", &["computer_call_output"]),
    ("tool_search_call", &["tool_search_output"]),
];

/// A call that has no result yet.
struct OpenCall<'a> {
    index: usize,
    kind: &'a str,
    id: &'a str,
}

pub(super) fn check(items: &[Value], complete: bool) -> Result<(), String> {
    let mut item_ids: Vec<&str> = Vec::new();
    let mut call_ids: Vec<&str> = Vec::new();
    let mut open: Vec<OpenCall<'_>> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let kind = kind(item);
        check_item_id(index, item, kind, &mut item_ids)?;
        match kind {
            "message" => check_message(index, item)?,
            "reasoning" => check_reasoning(index, items)?,
            _ if is_call(kind) => open.extend(check_call(index, item, kind, &mut call_ids)?),
            _ if is_output(kind) => check_output(index, item, kind, &mut open)?,
            _ if LONE_KINDS.contains(&kind) => {}
            other => return Err(format!("Invalid value: '{other}'. (input[{index}].type)")),
        }
    }
    let unanswered = open.iter().find(|call| complete || !is_in_last_step(items, call.index));
    unanswered.map_or(Ok(()), |call| {
        let kind = call.kind.replace('_', " ");
        Err(format!("No tool output found for {kind} {}.", call.id))
    })
}

/// The kind of an item; a message may leave it out.
fn kind(item: &Value) -> &str {
    match item["type"].as_str() {
        None if item["role"].is_string() => "message",
        kind => kind.unwrap_or_default(),
    }
}

fn is_call(kind: &str) -> bool {
    CALL_KINDS.iter().any(|(call, _)| *call == kind)
}

fn is_output(kind: &str) -> bool {
    CALL_KINDS.iter().any(|(_, outputs)| outputs.contains(&kind))
}

/// Whether the model made the item.
fn is_of_model(item: &Value) -> bool {
    match kind(item) {
        "message" => text(&item["role"]) == "assistant",
        "reasoning"
        | "web_search_call"
        | "file_search_call"
        | "code_interpreter_call"
        | "image_generation_call"
        | "mcp_list_tools"
        | "mcp_call"
        | "mcp_approval_request"
        | "program"
        | "program_output"
        // It may refer to anything.
        | "item_reference" => true,
        // A tool search that the provider ran is answered by the provider.
        "tool_search_output" => item["call_id"].is_null(),
        kind => is_call(kind),
    }
}

/// Whether nothing but the rest of the model's answer and then results come
/// after a call.
fn is_in_last_step(items: &[Value], call: usize) -> bool {
    let mut rest = items[call + 1..].iter().skip_while(|item| is_of_model(item));
    rest.all(|item| is_output(kind(item)))
}

fn check_item_id<'a>(
    index: usize,
    item: &'a Value,
    kind: &str,
    seen: &mut Vec<&'a str>,
) -> Result<(), String> {
    let Some(id) = item["id"].as_str() else {
        return match &item["id"] {
            Value::Null if kind == "item_reference" => {
                Err(format!("Missing required parameter: 'input[{index}].id'."))
            }
            Value::Null => Ok(()),
            _ => Err(format!("Invalid type for 'input[{index}].id': expected a string.")),
        };
    };
    check_length(&format!("input[{index}].id"), id)?;
    if !is_plain(id) {
        return Err(format!(
            "Invalid 'input[{index}].id': '{id}'. Expected an ID that contains letters, numbers, \
             underscores, or dashes, but this value contained additional characters."
        ));
    }
    let prefix = match kind {
        "message" if text(&item["role"]) == "assistant" => "msg_",
        "reasoning" => "rs_",
        "function_call" => "fc_",
        _ => "",
    };
    if !id.starts_with(prefix) {
        let prefix = prefix.trim_end_matches('_');
        return Err(format!(
            "Invalid 'input[{index}].id': '{id}'. Expected an ID that begins with '{prefix}'."
        ));
    }
    if seen.contains(&id) {
        return Err(format!(
            "Duplicate item found with id {id}. Remove duplicate items from your input and try again."
        ));
    }
    seen.push(id);
    Ok(())
}

fn check_message(index: usize, item: &Value) -> Result<(), String> {
    let role = text(&item["role"]);
    let kinds: &[&str] = match role {
        "assistant" => &["output_text", "refusal"],
        "user" | "system" | "developer" => &["input_text", "input_image", "input_file", "input_audio"],
        other => {
            return Err(format!(
                "Invalid value: '{other}'. Supported values are: 'assistant', 'system', 'developer', and \
                 'user'. (input[{index}].role)"
            ));
        }
    };
    if item["content"].is_string() {
        return Ok(());
    }
    if !item["content"].is_array() {
        return Err(format!("Invalid type for 'input[{index}].content': expected an array or a string."));
    }
    elements(&item["content"]).iter().enumerate().try_for_each(|(at, part)| {
        let kind = text(&part["type"]);
        if kinds.contains(&kind) {
            return Ok(());
        }
        let kinds = kinds.join("', '");
        Err(format!(
            "Invalid value: '{kind}'. Supported values are: '{kinds}'. (input[{index}].content[{at}].type)"
        ))
    })
}

fn check_reasoning(index: usize, items: &[Value]) -> Result<(), String> {
    let item = &items[index];
    if !item["summary"].is_array() {
        return Err(format!("Missing required parameter: 'input[{index}].summary'."));
    }
    let mut following = items[index + 1..].iter().skip_while(|item| kind(item) == "reasoning");
    if following.next().is_some_and(is_of_model) {
        return Ok(());
    }
    let id = text(&item["id"]);
    Err(format!("Item '{id}' of type 'reasoning' was provided without its required following item."))
}

/// Checks a call; it is open unless the provider ran it.
fn check_call<'a>(
    index: usize,
    item: &'a Value,
    kind: &'a str,
    call_ids: &mut Vec<&'a str>,
) -> Result<Option<OpenCall<'a>>, String> {
    let body = match kind {
        "function_call" => Some("arguments"),
        "custom_tool_call" => Some("input"),
        _ => None,
    };
    if let Some(body) = body {
        let name = text(&item["name"]);
        if !is_plain(name) {
            return Err(format!(
                "Invalid 'input[{index}].name': string does not match pattern '^[a-zA-Z0-9_-]+$'."
            ));
        }
        if !item[body].is_string() {
            return Err(format!("Invalid type for 'input[{index}].{body}': expected a string."));
        }
    }
    if kind == "tool_search_call" && item["call_id"].is_null() {
        return Ok(None);
    }
    let id = text(&item["call_id"]);
    check_length(&format!("input[{index}].call_id"), id)?;
    if call_ids.contains(&id) {
        return Err(format!(
            "Duplicate call_id '{id}'. Each {kind} must have exactly one matching {kind}_output"
        ));
    }
    call_ids.push(id);
    Ok(Some(OpenCall { index, kind, id }))
}

fn check_output(index: usize, item: &Value, kind: &str, open: &mut Vec<OpenCall<'_>>) -> Result<(), String> {
    if kind == "tool_search_output" && item["call_id"].is_null() {
        return Ok(());
    }
    // OpenAI's own definition of a local shell's output names the call by `id`.
    let by_id = kind == "local_shell_call_output" && item["call_id"].is_null();
    let id = text(&item[if by_id { "id" } else { "call_id" }]);
    check_length(&format!("input[{index}].call_id"), id)?;
    let answers = |call: &OpenCall<'_>| {
        call.id == id && CALL_KINDS.iter().any(|(of, kinds)| *of == call.kind && kinds.contains(&kind))
    };
    let Some(at) = open.iter().position(answers) else {
        return Err(format!("No tool call found for {} with call_id {id}.", kind.replace('_', " ")));
    };
    open.remove(at);
    let output = &item["output"];
    let is_told = match kind {
        "function_call_output" | "custom_tool_call_output" => output.is_string() || output.is_array(),
        _ => true,
    };
    if is_told { Ok(()) } else { Err(format!("Missing required parameter: 'input[{index}].output'.")) }
}

fn check_length(path: &str, id: &str) -> Result<(), String> {
    match id.chars().count() {
        0 => Err(format!("Invalid '{path}': empty string. Expected a string with minimum length 1.")),
        length if length > ID_LENGTH_MAX => Err(format!(
            "Invalid '{path}': string too long. Expected a string with maximum length {ID_LENGTH_MAX}, but \
             got a string with length {length} instead."
        )),
        _ => Ok(()),
    }
}
