//! Gemini contents.

use super::{elements, text};
use serde_json::Value;

/// Members of a part that hold its data, one of them in each part. The API
/// takes both spellings.
const DATA: &[(&str, &str)] = &[
    ("text", "text"),
    ("inlineData", "inline_data"),
    ("fileData", "file_data"),
    ("functionCall", "function_call"),
    ("functionResponse", "function_response"),
    ("executableCode", "executable_code"),
    ("codeExecutionResult", "code_execution_result"),
];

pub(super) fn check(contents: &[Value], complete: bool) -> Result<(), String> {
    for (index, content) in contents.iter().enumerate() {
        let parts = elements(&content["parts"]);
        if parts.is_empty() {
            return Err(format!(
                "GenerateContentRequest.contents[{index}].parts: contents.parts must not be empty."
            ));
        }
        for (at, part) in parts.iter().enumerate() {
            check_part(&format!("contents[{index}].parts[{at}]"), text(&content["role"]), part)?;
        }
        check_turn(index, contents, index + 1 == contents.len() && !complete)?;
    }
    check_signatures(contents)?;
    let last = &contents[contents.len() - 1];
    if complete && !calls(last).is_empty() {
        return Err(unequal());
    }
    if complete && text(&last["role"]) == "model" {
        return Err(
            "Please ensure that multiturn requests ends with a user role or a function response.".to_owned()
        );
    }
    Ok(())
}

/// A member by either spelling.
fn member<'a>(value: &'a Value, name: &str) -> &'a Value {
    let snake = DATA.iter().find(|(camel, _)| *camel == name).map_or(name, |(_, snake)| snake);
    if value[name].is_null() { &value[snake] } else { &value[name] }
}

fn calls(content: &Value) -> Vec<&Value> {
    parts_with(content, "functionCall")
}

fn responses(content: &Value) -> Vec<&Value> {
    parts_with(content, "functionResponse")
}

fn parts_with<'a>(content: &'a Value, name: &str) -> Vec<&'a Value> {
    elements(&content["parts"])
        .iter()
        .map(|part| member(part, name))
        .filter(|data| data.is_object())
        .collect()
}

fn check_part(path: &str, role: &str, part: &Value) -> Result<(), String> {
    let set: Vec<_> =
        DATA.iter().map(|(name, _)| *name).filter(|name| !member(part, name).is_null()).collect();
    let name = match set[..] {
        [] => {
            return Err(format!("{path}.data: required oneof field 'data' must have one initialized field"));
        }
        [name] => name,
        [_, second, ..] => {
            return Err(format!("{path}: oneof field 'data' is already set. Cannot set '{second}'"));
        }
    };
    let data = member(part, name);
    let is_sound = match name {
        "text" => data.is_string(),
        "inlineData" => {
            let mime = if data["mimeType"].is_null() { &data["mime_type"] } else { &data["mimeType"] };
            !text(mime).is_empty() && data["data"].is_string()
        }
        "functionCall" => data["args"].is_object() || data["args"].is_null(),
        "functionResponse" => data["response"].is_object(),
        _ => data.is_object(),
    };
    if !is_sound {
        return Err(format!("Invalid JSON payload received. Invalid value at '{path}.{name}'"));
    }
    match (name, role) {
        ("functionCall" | "functionResponse", _) if text(&data["name"]).is_empty() => {
            Err(format!("GenerateContentRequest.{path}.{name}.name: Name cannot be empty."))
        }
        ("functionCall", "user" | "function") | ("functionResponse", "model") => {
            Err(format!("GenerateContentRequest.{path}: {name} is not allowed in a turn of role '{role}'."))
        }
        (_, "function") if name != "functionResponse" => {
            Err(format!("GenerateContentRequest.{path}: {name} is not allowed in a turn of role 'function'."))
        }
        _ => Ok(()),
    }
}

/// Checks a turn against the one before it. A response turn at the end of a
/// list that is still added to may lack responses.
fn check_turn(index: usize, contents: &[Value], may_lack: bool) -> Result<(), String> {
    let content = &contents[index];
    let before = index.checked_sub(1).map(|before| &contents[before]);
    let role = text(&content["role"]);
    if !matches!(role, "user" | "model" | "function") {
        return Err("Please use a valid role: user, model.".to_owned());
    }
    let made = responses(content);
    let wanted = before.map(calls).unwrap_or_default();
    if wanted.is_empty() && !made.is_empty() {
        return Err(
            "Please ensure that function response turn comes immediately after a function call turn."
                .to_owned(),
        );
    }
    let may_lack = may_lack && made.len() == elements(&content["parts"]).len();
    if wanted.len() < made.len() || (made.len() < wanted.len() && !may_lack) {
        return Err(unequal());
    }
    check_pairs(&wanted, &made)?;
    let Some(before) = before else {
        return match role {
            "user" => Ok(()),
            "model" if !calls(content).is_empty() => Err(misplaced_call()),
            _ => Err("Please ensure that multiturn requests begin with a user role.".to_owned()),
        };
    };
    let is_after_model = text(&before["role"]) == "model";
    match role {
        "model" if is_after_model && !calls(content).is_empty() => Err(misplaced_call()),
        // A user's turn right after responses was taken in a recorded request.
        "user" if !is_after_model && responses(before).is_empty() => Err(not_alternating()),
        "model" if is_after_model => Err(not_alternating()),
        _ => Ok(()),
    }
}

fn unequal() -> String {
    "Please ensure that the number of function response parts is equal to the number of function call parts \
     of the function call turn."
        .to_owned()
}

fn misplaced_call() -> String {
    "Please ensure that function call turn comes immediately after a user turn or after a function response \
     turn."
        .to_owned()
}

fn not_alternating() -> String {
    "Please ensure that multiturn requests alternate between user and model.".to_owned()
}

/// Checks that each response has a call of its own: that of its id if it has
/// one, else one of its name.
fn check_pairs(wanted: &[&Value], made: &[&Value]) -> Result<(), String> {
    let mut wanted = wanted.to_vec();
    let by_id = made.iter().filter(|response| !response["id"].is_null());
    let by_name = made.iter().filter(|response| response["id"].is_null());
    for response in by_id.chain(by_name) {
        let is_pair = |call: &&Value| {
            call["name"] == response["name"]
                && (response["id"].is_null() || call["id"].is_null() || call["id"] == response["id"])
        };
        let Some(at) = wanted.iter().position(is_pair) else {
            return Err(format!(
                "Please ensure that function response '{}' has a function call in the function call turn.",
                text(&response["name"])
            ));
        };
        wanted.remove(at);
    }
    Ok(())
}

/// Checks the signatures of the current turn: those after the user's last
/// message with content of its own. If the model signs its calls, the first
/// call of each step has to have its signature.
fn check_signatures(contents: &[Value]) -> Result<(), String> {
    let is_prompt = |content: &Value| {
        text(&content["role"]) == "user"
            && elements(&content["parts"]).iter().any(|part| part["text"].is_string())
    };
    let start = contents.iter().rposition(is_prompt).unwrap_or_default();
    let is_signed = |part: &&Value| !signature(part).is_null();
    let call_parts = |content: &'_ Value| -> Vec<Value> {
        let parts = elements(&content["parts"]).iter();
        parts.filter(|part| !member(part, "functionCall").is_null()).cloned().collect()
    };
    let parts = contents.iter().flat_map(|content| elements(&content["parts"]));
    for part in parts.filter(is_signed) {
        let signature = text(signature(part));
        let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/-_=".contains(&byte);
        if signature.is_empty() || !signature.bytes().all(is_base64) {
            return Err("Corrupted thought signature.".to_owned());
        }
    }
    let steps: Vec<_> =
        contents.iter().enumerate().skip(start).map(|(at, content)| (at, call_parts(content))).collect();
    if !steps.iter().flat_map(|(_, parts)| parts).any(|part| is_signed(&part)) {
        return Ok(());
    }
    match steps.iter().find(|(_, parts)| parts.first().is_some_and(|part| !is_signed(&part))) {
        None => Ok(()),
        Some((at, parts)) => {
            let name = text(&member(&parts[0], "functionCall")["name"]);
            Err(format!(
                "Function call `{name}` in the {}. content block is missing a `thought_signature`.",
                at + 1
            ))
        }
    }
}

fn signature(part: &Value) -> &Value {
    if part["thoughtSignature"].is_null() { &part["thought_signature"] } else { &part["thoughtSignature"] }
}
