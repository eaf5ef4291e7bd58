//! OpenAI Chat Completions.

use super::{duplicate, is_plain, text};
use serde_json::Value;

/// Longest id of a call, by the API's `string_above_max_length` answers.
const ID_LENGTH_MAX: usize = 40;

/// What the step that is open waits for.
enum Open<'a> {
    Nothing,
    /// Results of `tool_calls`, by id.
    Tools(Vec<&'a str>),
    /// The result of a deprecated `function_call`, by name.
    Function(&'a str),
}

pub(super) fn check(messages: &[Value], complete: bool) -> Result<(), String> {
    let mut open = Open::Nothing;
    let mut answered: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        match text(&message["role"]) {
            "tool" => check_result(index, message, &mut open, &mut answered)?,
            "function" => check_function_result(index, message, &mut open)?,
            role => {
                close(&open)?;
                answered.clear();
                open = match role {
                    "assistant" => check_assistant(index, message)?,
                    "system" | "developer" | "user" => {
                        check_content(index, message, role)?;
                        Open::Nothing
                    }
                    other => return Err(invalid_role(index, other)),
                };
            }
        }
    }
    if complete { close(&open) } else { Ok(()) }
}

fn invalid_role(index: usize, role: &str) -> String {
    format!(
        "Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', \
         and 'developer'. (messages[{index}].role)"
    )
}

/// Refuses to leave a step whose calls are not all answered.
fn close(open: &Open<'_>) -> Result<(), String> {
    match open {
        Open::Tools(ids) if !ids.is_empty() => Err(format!(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each \
             'tool_call_id'. The following tool_call_ids did not have response messages: {}",
            ids.join(", ")
        )),
        Open::Function(name) => Err(format!(
            "An assistant message with 'function_call' must be followed by a function message of '{name}'"
        )),
        Open::Tools(_) | Open::Nothing => Ok(()),
    }
}

fn check_result<'a>(
    index: usize,
    message: &'a Value,
    open: &mut Open<'a>,
    answered: &mut Vec<&'a str>,
) -> Result<(), String> {
    let Open::Tools(ids) = open else {
        return Err(format!(
            "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with \
             'tool_calls'. (messages.[{index}].role)"
        ));
    };
    let id = message["tool_call_id"]
        .as_str()
        .ok_or_else(|| format!("Missing required parameter: 'messages[{index}].tool_call_id'."))?;
    check_id(&format!("messages[{index}].tool_call_id"), id)?;
    if answered.contains(&id) {
        return Err(format!(
            "Invalid parameter: 'tool_call_id' of '{id}' has more than one response message."
        ));
    }
    let at = ids.iter().position(|open| *open == id).ok_or_else(|| {
        format!("Invalid parameter: 'tool_call_id' of '{id}' not found in 'tool_calls' of previous message.")
    })?;
    ids.remove(at);
    answered.push(id);
    check_content(index, message, "tool")
}

fn check_function_result(index: usize, message: &Value, open: &mut Open<'_>) -> Result<(), String> {
    let name = message["name"]
        .as_str()
        .ok_or_else(|| format!("Missing required parameter: 'messages[{index}].name'."))?;
    match open {
        Open::Function(called) if *called == name => *open = Open::Nothing,
        _ => {
            return Err(format!(
                "Invalid parameter: messages with role 'function' must be a response to a preceeding \
                 message with 'function_call'. (messages.[{index}].role)"
            ));
        }
    }
    match &message["content"] {
        Value::String(_) => Ok(()),
        other => Err(unexpected_content(index, other)),
    }
}

/// Checks an assistant message, and says what it waits for.
fn check_assistant(index: usize, message: &Value) -> Result<Open<'_>, String> {
    let calls = match &message["tool_calls"] {
        Value::Null => None,
        Value::Array(calls) if calls.is_empty() => {
            return Err(empty_array(&format!("messages[{index}].tool_calls")));
        }
        Value::Array(calls) => Some(calls),
        _ => return Err(format!("Invalid type for 'messages[{index}].tool_calls': expected an array.")),
    };
    let function = message["function_call"].as_object();
    match (&message["content"], calls.is_some() || function.is_some()) {
        (Value::Null, true) => {}
        // An empty list beside calls was taken in a recorded request.
        (Value::Array(parts), true) if parts.is_empty() => {}
        (Value::Null, false) if message["refusal"].is_string() || message["audio"].is_object() => {}
        _ => check_content(index, message, "assistant")?,
    }
    match (calls, function) {
        (None, None) => Ok(Open::Nothing),
        (Some(calls), None) => check_calls(index, calls).map(Open::Tools),
        (None, Some(function)) => {
            let name = function.get("name").map_or("", text);
            let arguments = function.get("arguments").unwrap_or(&Value::Null);
            check_name(&format!("messages[{index}].function_call.name"), name)?;
            check_string(&format!("messages[{index}].function_call.arguments"), arguments)?;
            Ok(Open::Function(name))
        }
        (Some(_), Some(_)) => {
            Err(format!("Only one of 'function_call' and 'tool_calls' can be given. (messages[{index}])"))
        }
    }
}

fn check_calls(index: usize, calls: &[Value]) -> Result<Vec<&str>, String> {
    for (at, call) in calls.iter().enumerate() {
        let path = format!("messages[{index}].tool_calls[{at}]");
        check_id(&format!("{path}.id"), text(&call["id"]))?;
        let (kind, body) = match text(&call["type"]) {
            "function" => ("function", "arguments"),
            "custom" => ("custom", "input"),
            other => {
                return Err(format!(
                    "Invalid value: '{other}'. Supported values are: 'function' and 'custom'. ({path}.type)"
                ));
            }
        };
        check_name(&format!("{path}.{kind}.name"), text(&call[kind]["name"]))?;
        check_string(&format!("{path}.{kind}.{body}"), &call[kind][body])?;
    }
    let ids: Vec<_> = calls.iter().map(|call| text(&call["id"])).collect();
    match duplicate(&ids) {
        Some(id) => Err(format!("Invalid 'messages[{index}].tool_calls': the id '{id}' is not unique.")),
        None => Ok(ids),
    }
}

fn check_content(index: usize, message: &Value, role: &str) -> Result<(), String> {
    let kinds: &[&str] = match role {
        "user" => &["text", "image_url", "input_audio", "file"],
        "assistant" => &["text", "refusal"],
        _ => &["text"],
    };
    match &message["content"] {
        Value::String(_) => Ok(()),
        Value::Array(parts) if parts.is_empty() => Err(empty_array(&format!("messages[{index}].content"))),
        Value::Array(parts) => parts.iter().enumerate().try_for_each(|(at, part)| {
            let kind = text(&part["type"]);
            let path = format!("messages[{index}].content[{at}]");
            if !kinds.contains(&kind) {
                let kinds = kinds.join("', '");
                return Err(format!(
                    "Invalid value: '{kind}'. Supported values are: '{kinds}'. ({path}.type)"
                ));
            }
            if kind == "text" { check_string(&format!("{path}.text"), &part["text"]) } else { Ok(()) }
        }),
        other => Err(unexpected_content(index, other)),
    }
}

fn unexpected_content(index: usize, content: &Value) -> String {
    let got = if content.is_null() { "null" } else { "another type" };
    format!("Invalid value for 'content': expected a string, got {got}. (messages.[{index}].content)")
}

fn empty_array(path: &str) -> String {
    format!(
        "Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty array \
         instead."
    )
}

fn check_id(path: &str, id: &str) -> Result<(), String> {
    match id.chars().count() {
        0 => Err(format!("Invalid '{path}': empty string. Expected a string with minimum length 1.")),
        length if length > ID_LENGTH_MAX => Err(format!(
            "Invalid '{path}': string too long. Expected a string with maximum length {ID_LENGTH_MAX}, but \
             got a string with length {length} instead."
        )),
        _ => Ok(()),
    }
}

fn check_name(path: &str, name: &str) -> Result<(), String> {
    if is_plain(name) && name.len() <= 64 {
        return Ok(());
    }
    Err(format!("Invalid '{path}': string does not match pattern. Expected '^[a-zA-Z0-9_-]{{1,64}}$'."))
}

fn check_string(path: &str, value: &Value) -> Result<(), String> {
    if value.is_string() { Ok(()) } else { Err(format!("Invalid type for '{path}': expected a string.")) }
}
