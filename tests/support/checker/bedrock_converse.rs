//! Amazon Bedrock Converse, with Claude behind it.

use super::{duplicate, elements, is_plain, text};
use serde_json::Value;

const ID_LENGTH_MAX: usize = 64;

const KINDS: &[&str] = &[
    "text",
    "image",
    "document",
    "video",
    "audio",
    "toolUse",
    "toolResult",
    "guardContent",
    "cachePoint",
    "reasoningContent",
    "citationsContent",
    "searchResult",
];
const RESULT_KINDS: &[&str] = &["json", "text", "image", "document", "video", "searchResult"];

pub(super) fn check(messages: &[Value], complete: bool) -> Result<(), String> {
    let mut call_ids: Vec<&str> = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let role = text(&message["role"]);
        check_role(index, messages)?;
        let content = elements(&message["content"]);
        if content.is_empty() {
            return Err(format!(
                "The content field in the Message object at messages.{index} is empty. Add a ContentBlock \
                 object to the content field and try again."
            ));
        }
        for (at, block) in content.iter().enumerate() {
            check_block(&format!("messages.{index}.content.{at}"), role, block)?;
        }
        if role == "user" {
            check_results(index, content, &open, index + 1 == messages.len() && !complete)?;
            open.clear();
        } else {
            open = check_answer(index, content, &mut call_ids)?;
        }
    }
    if complete && text(&messages[messages.len() - 1]["role"]) != "user" {
        if !open.is_empty() {
            return Err(expected_results(messages.len(), &open));
        }
        return Err(
            "This model does not support assistant message prefill. The conversation must end with a \
                    user message."
                .to_owned(),
        );
    }
    Ok(())
}

fn check_role(index: usize, messages: &[Value]) -> Result<(), String> {
    match (text(&messages[index]["role"]), index.checked_sub(1).map(|before| text(&messages[before]["role"])))
    {
        ("assistant", None) => {
            Err("A conversation must start with a user message. Try again with a conversation that starts \
                 with a user message."
                .to_owned())
        }
        ("user" | "assistant", before) if before == messages[index]["role"].as_str() => {
            Err("A conversation must alternate between user and assistant roles. Make sure the conversation \
                 alternates between user and assistant roles and try again."
                .to_owned())
        }
        ("user" | "assistant", _) => Ok(()),
        (other, _) => Err(format!(
            "Value '{other}' at 'messages.{index}.member.role' failed to satisfy constraint: Member must \
             satisfy enum value set: [user, assistant]"
        )),
    }
}

/// The one member that says what a block is.
fn kind<'a>(path: &str, block: &'a Value, kinds: &[&str]) -> Result<&'a str, String> {
    let members: Vec<_> = block.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    match members[..] {
        [name] if kinds.contains(&name) => Ok(name),
        [name] => Err(format!("Unknown member '{name}' of the ContentBlock object at {path}.")),
        _ => Err(format!(
            "The ContentBlock object at {path} must set one of the following keys: {}.",
            kinds.join(", ")
        )),
    }
}

fn check_block(path: &str, role: &str, block: &Value) -> Result<(), String> {
    let kind = kind(path, block, KINDS)?;
    let is_of_assistant = matches!(kind, "toolUse" | "reasoningContent");
    if (is_of_assistant && role != "assistant") || (kind == "toolResult" && role != "user") {
        return Err(format!("The {kind} block at {path} is not supported in a message of the {role}."));
    }
    match kind {
        "text" if text(&block["text"]).trim().is_empty() => Err(blank(path)),
        "toolUse" => check_call(path, &block["toolUse"]),
        "toolResult" => check_result(path, &block["toolResult"]),
        "reasoningContent" => check_reasoning(path, &block["reasoningContent"]),
        _ => Ok(()),
    }
}

fn blank(path: &str) -> String {
    format!(
        "The text field in the ContentBlock object at {path} is blank. Add text to the text field, and try \
         again."
    )
}

fn check_call(path: &str, call: &Value) -> Result<(), String> {
    check_id(path, call)?;
    let name = text(&call["name"]);
    if !is_plain(name) || 64 < name.len() {
        return Err(format!(
            "Value '{name}' at '{path}.toolUse.name' failed to satisfy constraint: [a-zA-Z0-9_-]+"
        ));
    }
    if !call["input"].is_object() {
        return Err(format!(
            "The format of the value at {path}.toolUse.input is invalid. Provide a json object for the \
             field and try again."
        ));
    }
    Ok(())
}

fn check_result(path: &str, result: &Value) -> Result<(), String> {
    check_id(path, result)?;
    if !matches!(result["status"].as_str(), Some("success" | "error")) && !result["status"].is_null() {
        return Err(format!(
            "Value at '{path}.toolResult.status' failed to satisfy constraint: [success, error]"
        ));
    }
    let Value::Array(content) = &result["content"] else {
        return Err(format!(
            "Value at '{path}.toolResult.content' failed to satisfy constraint: Member must not be null"
        ));
    };
    content.iter().enumerate().try_for_each(|(at, block)| {
        let path = format!("{path}.toolResult.content.{at}");
        match kind(&path, block, RESULT_KINDS)? {
            "text" if text(&block["text"]).trim().is_empty() => Err(blank(&path)),
            "json" if !block["json"].is_object() => Err(format!(
                "The format of the value at {path}.json is invalid. Provide a json object for the field and \
                 try again."
            )),
            _ => Ok(()),
        }
    })
}

fn check_id(path: &str, block: &Value) -> Result<(), String> {
    let id = text(&block["toolUseId"]);
    if is_plain(id) && id.len() <= ID_LENGTH_MAX {
        return Ok(());
    }
    Err(format!(
        "Value '{id}' at '{path}.toolUseId' failed to satisfy constraint: Member must satisfy regular \
         expression pattern: [a-zA-Z0-9_-]+ and have length less than or equal to 64"
    ))
}

fn check_reasoning(path: &str, reasoning: &Value) -> Result<(), String> {
    if reasoning["reasoningText"]["text"].is_string() || reasoning["redactedContent"].is_string() {
        return Ok(());
    }
    Err(format!(
        "The reasoningContent at {path} must set one of the following keys: reasoningText, redactedContent."
    ))
}

/// Checks an assistant message, and gives the ids of its calls.
fn check_answer<'a>(
    index: usize,
    content: &'a [Value],
    call_ids: &mut Vec<&'a str>,
) -> Result<Vec<&'a str>, String> {
    let mut open: Vec<&str> = Vec::new();
    for (at, block) in content.iter().enumerate() {
        let path = format!("messages.{index}.content.{at}");
        if block["reasoningContent"].is_object() {
            if !open.is_empty() {
                return Err(format!("{path}: Expected `thinking` or `redacted_thinking` before `tool_use`"));
            }
            if at + 1 == content.len() {
                return Err(format!(
                    "messages.{index}: The final block in an assistant message cannot be `thinking`."
                ));
            }
        }
        if block["toolUse"].is_object() {
            let id = text(&block["toolUse"]["toolUseId"]);
            if call_ids.contains(&id) {
                return Err(format!("{path}: `tool_use` ids must be unique"));
            }
            call_ids.push(id);
            open.push(id);
        }
    }
    Ok(open)
}

fn expected_results(index: usize, ids: &[&str]) -> String {
    let ids = ids.join(", ");
    format!("Expected toolResult blocks at messages.{index}.content for the following Ids: {ids}")
}

/// Checks the message after one with calls: all results in it, before anything
/// else, each once.
fn check_results(index: usize, content: &[Value], open: &[&str], may_lack: bool) -> Result<(), String> {
    let ids = content.iter().filter(|block| block["toolResult"].is_object());
    let ids: Vec<_> = ids.map(|block| text(&block["toolResult"]["toolUseId"])).collect();
    if let Some(id) = duplicate(&ids) {
        return Err(format!("The toolResult blocks at messages.{index}.content contain duplicate Ids: {id}"));
    }
    if open.len() < ids.len() {
        return Err(format!(
            "The number of toolResult blocks at messages.{index}.content exceeds the number of toolUse \
             blocks of previous turn."
        ));
    }
    let lacking: Vec<_> = open.iter().copied().filter(|id| !ids.contains(id)).collect();
    let is_foreign = ids.iter().any(|id| !open.contains(id));
    let is_mixed = content[..ids.len()].iter().any(|block| !block["toolResult"].is_object());
    let may_lack = may_lack && !is_foreign && ids.len() == content.len();
    if (is_mixed || !lacking.is_empty()) && !may_lack {
        return Err(expected_results(index, if lacking.is_empty() { open } else { &lacking }));
    }
    Ok(())
}
