//! Anthropic Messages.

use super::{duplicate, elements, is_plain, text};
use serde_json::Value;

const ID_LENGTH_MAX: usize = 64;
const NAME_LENGTH_MAX: usize = 128;
const CACHE_MARKS_MAX: usize = 4;
const IMAGES_MAX: usize = 100;
const IMAGE_BYTES_MAX: usize = 5 * 1024 * 1024;

const USER_KINDS: &[&str] =
    &["text", "image", "document", "search_result", "tool_result", "container_upload"];
const RESULT_KINDS: &[&str] = &["document", "search_result", "tool_reference"];
const THINKING_KINDS: &[&str] = &["thinking", "redacted_thinking"];
const SERVER_CALL_KINDS: &[&str] = &["server_tool_use", "mcp_tool_use"];

pub(super) fn check(messages: &[Value], complete: bool) -> Result<(), String> {
    if text(&messages[0]["role"]) == "assistant" {
        return Err("messages: first message must use the \"user\" role".to_owned());
    }
    let mut call_ids: Vec<&str> = Vec::new();
    // Calls of the message before, and tools that the provider still runs.
    let mut open: Vec<&str> = Vec::new();
    let mut running: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let is_last = index + 1 == messages.len();
        check_content(index, message, is_last && text(&message["role"]) == "assistant")?;
        match text(&message["role"]) {
            "user" => {
                refuse_running(&running)?;
                let may_lack = is_last && !complete;
                check_results(index, message, &open, may_lack)?;
                open.clear();
            }
            "assistant" => {
                check_results(index, message, &open, false)?;
                open = check_answer(index, message, &mut call_ids, &mut running)?;
            }
            other => {
                return Err(format!(
                    "messages.{index}: Unexpected role \"{other}\". Allowed roles are \"user\" or \
                     \"assistant\"."
                ));
            }
        }
    }
    check_total(messages)?;
    if complete { check_end(messages, &open, &running) } else { Ok(()) }
}

/// Checks how a list that is sent as it is ends. Only an answer that the
/// provider interrupted to run a tool may come last.
fn check_end(messages: &[Value], open: &[&str], running: &[&str]) -> Result<(), String> {
    let index = messages.len() - 1;
    if text(&messages[index]["role"]) == "user" || (open.is_empty() && !running.is_empty()) {
        return Ok(());
    }
    if !open.is_empty() {
        return Err(without_results(index, open));
    }
    let content = &messages[index]["content"];
    let end = content.as_str().or_else(|| elements(content).last().and_then(|block| block["text"].as_str()));
    if end.is_some_and(|end| end.ends_with(char::is_whitespace)) {
        return Err("messages: final assistant content cannot end with trailing whitespace".to_owned());
    }
    Err("This model does not support assistant message prefill. The conversation must end with a user \
         message."
        .to_owned())
}

fn without_results(index: usize, ids: &[&str]) -> String {
    format!(
        "messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. \
         Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
        ids.join(", ")
    )
}

fn refuse_running(running: &[&str]) -> Result<(), String> {
    match running.first() {
        None => Ok(()),
        Some(id) => {
            Err(format!("tool use with id `{id}` was found without a corresponding tool result block"))
        }
    }
}

/// Checks what all messages have in common: content that is there and no blank
/// text.
fn check_content(index: usize, message: &Value, is_final_answer: bool) -> Result<(), String> {
    let blocks = match &message["content"] {
        Value::String(text) if text.is_empty() && is_final_answer => return Ok(()),
        Value::Array(blocks) if blocks.is_empty() && is_final_answer => return Ok(()),
        Value::String(text) if !text.is_empty() => return check_text("messages", text),
        Value::Array(blocks) if !blocks.is_empty() => blocks,
        Value::String(_) | Value::Array(_) => {
            return Err(format!(
                "messages.{index}: all messages must have non-empty content except for the optional final \
                 assistant message"
            ));
        }
        _ => return Err(format!("messages.{index}.content: Input should be a valid list")),
    };
    blocks.iter().filter(|block| block["type"] == "text").try_for_each(|block| match &block["text"] {
        Value::String(text) => check_text("messages", text),
        _ => Err(format!("messages.{index}.content: text: Field required")),
    })
}

fn check_text(path: &str, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("{path}: text content blocks must be non-empty"));
    }
    if text.trim().is_empty() {
        return Err(format!("{path}: text content blocks must contain non-whitespace text"));
    }
    Ok(())
}

/// Checks the message after one with calls: all results in it, before anything
/// else, each once.
fn check_results(index: usize, message: &Value, open: &[&str], may_lack: bool) -> Result<(), String> {
    let blocks = elements(&message["content"]);
    let is_user = text(&message["role"]) == "user";
    let leading = blocks.iter().take_while(|block| is_user && block["type"] == "tool_result");
    let leading: Vec<_> = leading.map(|block| text(&block["tool_use_id"])).collect();
    let is_foreign = |id: &&&str| !open.contains(*id);
    if let Some(id) = leading.iter().find(is_foreign) {
        return Err(unexpected_result(index, id));
    }
    if let Some(id) = duplicate(&leading) {
        return Err(format!(
            "messages.{index}: each tool_use must have a single result. Found multiple `tool_result` blocks \
             with id: {id}"
        ));
    }
    let lacking: Vec<_> = open.iter().copied().filter(|id| !leading.contains(id)).collect();
    let may_lack = may_lack && leading.len() == blocks.len();
    if !lacking.is_empty() && !may_lack {
        return Err(without_results(index - 1, &lacking));
    }
    if let Some(late) = blocks[leading.len()..].iter().find(|block| is_user && block["type"] == "tool_result")
    {
        return Err(unexpected_result(index, text(&late["tool_use_id"])));
    }
    if !is_user {
        return Ok(());
    }
    blocks.iter().enumerate().try_for_each(|(at, block)| check_user_block(index, at, block))
}

fn unexpected_result(index: usize, id: &str) -> String {
    format!(
        "messages.{index}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` \
         block must have a corresponding `tool_use` block in the previous message."
    )
}

fn check_user_block(index: usize, at: usize, block: &Value) -> Result<(), String> {
    let kind = text(&block["type"]);
    if matches!(kind, "tool_use" | "thinking" | "redacted_thinking") {
        return Err(format!("messages.{index}: `{kind}` blocks can only be in `assistant` messages"));
    }
    if !USER_KINDS.contains(&kind) {
        return Err(unexpected_tag(index, at, kind));
    }
    if kind == "image" {
        check_image(block)?;
    }
    if kind != "tool_result" {
        return Ok(());
    }
    check_id(&format!("messages.{index}.content.{at}.tool_result.tool_use_id"), text(&block["tool_use_id"]))?;
    let path = format!("messages.{index}.content.{at}.tool_result");
    match &block["content"] {
        Value::Null | Value::String(_) => Ok(()),
        Value::Array(parts) => parts.iter().try_for_each(|part| match text(&part["type"]) {
            "text" => check_text(&path, text(&part["text"])),
            "image" => check_image(part),
            kind if RESULT_KINDS.contains(&kind) => Ok(()),
            other => Err(unexpected_tag(index, at, other)),
        }),
        _ => Err(format!("{path}.content: Input should be a valid list")),
    }
}

fn unexpected_tag(index: usize, at: usize, kind: &str) -> String {
    format!(
        "messages.{index}.content.{at}: Input tag '{kind}' found using 'type' does not match any of the \
         expected tags"
    )
}

fn check_image(block: &Value) -> Result<(), String> {
    let source = &block["source"];
    let bytes = text(&source["data"]).len() / 4 * 3;
    match text(&source["type"]) {
        "base64" if IMAGE_BYTES_MAX < bytes => {
            Err(format!("image exceeds 5 MB maximum: {bytes} bytes > {IMAGE_BYTES_MAX} bytes"))
        }
        "base64" if bytes == 0 => Err("Could not process image".to_owned()),
        "base64" | "url" | "file" => Ok(()),
        other => Err(format!("image.source: Input tag '{other}' found using 'type' does not match")),
    }
}

/// Checks an assistant message, and gives the ids of its calls.
fn check_answer<'a>(
    index: usize,
    message: &'a Value,
    call_ids: &mut Vec<&'a str>,
    running: &mut Vec<&'a str>,
) -> Result<Vec<&'a str>, String> {
    let blocks = elements(&message["content"]);
    let mut open: Vec<&str> = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        let path = format!("messages.{index}.content.{at}");
        match text(&block["type"]) {
            kind if THINKING_KINDS.contains(&kind) => {
                check_thinking(&path, kind, block)?;
                if !open.is_empty() {
                    return Err(format!(
                        "{path}: Expected `thinking` or `redacted_thinking` before `tool_use`, but found it \
                         after"
                    ));
                }
            }
            kind if kind == "tool_use" || SERVER_CALL_KINDS.contains(&kind) => {
                check_call(&path, kind, block)?;
                let id = text(&block["id"]);
                if call_ids.contains(&id) {
                    return Err(format!("{path}: `tool_use` ids must be unique"));
                }
                call_ids.push(id);
                if kind == "tool_use" { &mut open } else { &mut *running }.push(id);
            }
            "tool_result" => {
                return Err(format!("messages.{index}: `tool_result` blocks can only be in `user` messages"));
            }
            kind if kind.ends_with("_tool_result") => {
                let id = text(&block["tool_use_id"]);
                let of = running.iter().position(|call| *call == id);
                running.remove(of.ok_or_else(|| {
                    format!("{path}: unexpected `tool_use_id` found in `{kind}` blocks: {id}")
                })?);
            }
            // Another model went on from here.
            "fallback" => check_fallback(&path, block)?,
            "text" | "compaction" | "container_upload" => {}
            other => return Err(unexpected_tag(index, at, other)),
        }
    }
    match blocks.last().map(|block| text(&block["type"])) {
        Some(kind) if THINKING_KINDS.contains(&kind) => {
            Err(format!("messages.{index}: The final block in an assistant message cannot be `{kind}`."))
        }
        _ => Ok(open),
    }
}

fn check_fallback(path: &str, block: &Value) -> Result<(), String> {
    let lacks = |end: &&str| text(&block[*end]["model"]).is_empty();
    let lacking = ["from", "to"].into_iter().find(lacks);
    lacking.map_or(Ok(()), |end| Err(format!("{path}.fallback.{end}.model: Field required")))
}

fn check_thinking(path: &str, kind: &str, block: &Value) -> Result<(), String> {
    if kind == "redacted_thinking" {
        let has_data = !text(&block["data"]).is_empty();
        return if has_data {
            Ok(())
        } else {
            Err(format!("{path}: Invalid `data` in `redacted_thinking` block"))
        };
    }
    if !block["thinking"].is_string() {
        return Err(format!("{path}.thinking.thinking: Field required"));
    }
    if text(&block["signature"]).is_empty() {
        return Err(format!("{path}: Invalid `signature` in `thinking` block"));
    }
    Ok(())
}

fn check_call(path: &str, kind: &str, block: &Value) -> Result<(), String> {
    check_id(&format!("{path}.{kind}.id"), text(&block["id"]))?;
    let name = text(&block["name"]);
    if !is_plain(name) || NAME_LENGTH_MAX < name.len() {
        return Err(format!("{path}.{kind}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"));
    }
    if !block["input"].is_object() {
        return Err(format!("{path}.{kind}.input: Input should be a valid dictionary"));
    }
    Ok(())
}

fn check_id(path: &str, id: &str) -> Result<(), String> {
    if !is_plain(id) {
        return Err(format!("{path}: String should match pattern '^[a-zA-Z0-9_-]+$'"));
    }
    if ID_LENGTH_MAX < id.len() {
        return Err(format!("{path}: String should have at most {ID_LENGTH_MAX} characters"));
    }
    Ok(())
}

/// Checks what is limited over the whole request.
fn check_total(messages: &[Value]) -> Result<(), String> {
    let blocks = || messages.iter().flat_map(|message| elements(&message["content"]));
    let nested = || blocks().flat_map(|block| elements(&block["content"]));
    let marks = blocks().chain(nested()).filter(|block| block["cache_control"].is_object()).count();
    if CACHE_MARKS_MAX < marks {
        return Err(format!("A maximum of 4 blocks with cache_control may be provided. Found {marks}."));
    }
    let images = blocks().chain(nested()).filter(|block| block["type"] == "image").count();
    if IMAGES_MAX < images {
        return Err(format!("Too much media: 0 document pages + {images} images > {IMAGES_MAX}"));
    }
    Ok(())
}
