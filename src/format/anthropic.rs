//! Anthropic Messages messages.

use super::json::{Value, string_token};
use super::parts::Parts;
use super::reading::{Call, CallResult, MediaKind, OwnBlocks, ProviderBlock, Reading, Role, Serving};
use super::{Blocks, INTERRUPTED};
use crate::model::UnansweredCall;
use std::borrow::Cow;

pub(super) const BLOCKS: Blocks = Blocks {
    member: "content",
    user_message: (r#"{"role":"user","content":["#, "]}"),
    call_id: &["id"],
    result_id: &["tool_use_id"],
    result_content: &["content"],
};

pub(super) fn read(payload: Value<'_>) -> Reading<'_> {
    let [role, content] = payload.get(["role", "content"]);
    let role = match role.and_then(Value::text).unwrap_or_default().as_ref() {
        "user" => Role::User,
        "assistant" => Role::Model,
        "system" => Role::System,
        _ => return Reading::opaque(payload.source(), Serving::Omitted),
    };
    let mut parts = Parts::default();
    let mut reading = Reading::new(role);
    let mut own = OwnBlocks::default();
    for (index, value) in content.into_iter().flat_map(Value::elements).enumerate() {
        let block = Block::of(value);
        parts.block(value, |parts| block.collect(parts));
        let is_reasoning = block.is_reasoning();
        match block.kind.as_ref() {
            "tool_use" if role == Role::Model => reading.calls.push(block.call(index)),
            "tool_result" if role == Role::User => {
                let content = block.content.into_iter().flat_map(Value::elements);
                reading.has_blank_results |=
                    content.filter_map(|block| block.member("text")).any(Value::is_blank);
                reading.results.push(block.result(index));
                continue;
            }
            kind if role == Role::Model && kind.ends_with("_tool_use") => {
                reading.provider_blocks.extend(provider_block(block.id, index, false));
            }
            kind if role == Role::Model && kind.ends_with("_tool_result") => {
                reading.provider_blocks.extend(provider_block(block.tool_use_id, index, true));
            }
            "text" if block.text.is_some_and(Value::is_blank) => {
                reading.blank_blocks.push(index);
                continue;
            }
            _ => {}
        }
        own.add(is_reasoning);
    }
    if let Some(text) = content.filter(|content| content.is_string()) {
        parts.text(Some(text));
        if !text.is_blank() {
            own.add(false);
        }
    }
    parts.whole_if_empty(payload.source());
    Reading { parts: parts.0, ..reading }.of_blocks(own)
}

/// A block, with the members that tell what it is.
struct Block<'a> {
    kind: Cow<'a, str>,
    id: Option<Value<'a>>,
    name: Option<Value<'a>>,
    tool_use_id: Option<Value<'a>>,
    text: Option<Value<'a>>,
    content: Option<Value<'a>>,
    /// What is particular to the kind.
    rest: [Option<Value<'a>>; 6],
}

impl<'a> Block<'a> {
    fn of(value: Value<'a>) -> Self {
        let names = [
            "type",
            "id",
            "name",
            "tool_use_id",
            "text",
            "content",
            "input",
            "source",
            "thinking",
            "signature",
            "data",
            "title",
        ];
        let [kind, id, name, tool_use_id, text, content, rest @ ..] = value.get(names);
        Self {
            kind: kind.and_then(Value::text).unwrap_or_default(),
            id,
            name,
            tool_use_id,
            text,
            content,
            rest,
        }
    }

    fn call(self, index: usize) -> Call<'a> {
        Call {
            id: self.id.and_then(Value::text),
            name: self.name.and_then(Value::text).unwrap_or_default(),
            kind: Cow::Borrowed(""),
            index,
        }
    }

    fn result(self, index: usize) -> CallResult<'a> {
        let id = self.tool_use_id.and_then(Value::text);
        CallResult { id, name: Cow::Borrowed(""), kind: Cow::Borrowed(""), index }
    }

    fn is_reasoning(&self) -> bool {
        matches!(self.kind.as_ref(), "thinking" | "redacted_thinking")
    }

    fn collect(&self, parts: &mut Parts<'a>) {
        let [input, source, thinking, signature, data, title] = self.rest;
        match self.kind.as_ref() {
            "text" => parts.text(self.text),
            "thinking" => {
                parts.text(thinking);
                parts.opaque(signature);
            }
            "redacted_thinking" => parts.opaque(data),
            "compaction" => parts.text(self.content),
            "image" => collect_source(parts, source, MediaKind::Image),
            "document" => collect_source(parts, source, MediaKind::Document),
            "search_result" => {
                parts.text(title);
                collect_content(parts, self.content);
            }
            "tool_result" => collect_content(parts, self.content),
            "tool_use" => parts.json(input),
            kind if kind.ends_with("_tool_use") => {
                parts.text(self.name);
                parts.json(input);
            }
            // Much of it is encrypted.
            kind if kind.ends_with("_tool_result") => parts.opaque(self.content),
            _ => {}
        }
    }
}

fn provider_block(id: Option<Value<'_>>, index: usize, is_result: bool) -> Option<ProviderBlock<'_>> {
    Some(ProviderBlock { id: id?.text()?, index, is_result })
}

/// Collects the content of a result or document: text, or a list of blocks that
/// hold none of their kind.
fn collect_content<'a>(parts: &mut Parts<'a>, content: Option<Value<'a>>) {
    let Some(list) = content.filter(|content| content.is_array()) else {
        return parts.text(content);
    };
    for value in list.elements() {
        let [kind, text, source, title, content] = value.get(["type", "text", "source", "title", "content"]);
        parts.block(value, |parts| match kind.and_then(Value::text).unwrap_or_default().as_ref() {
            "text" => parts.text(text),
            "image" => collect_source(parts, source, MediaKind::Image),
            "document" => collect_source(parts, source, MediaKind::Document),
            "search_result" => {
                parts.text(title);
                parts.json(content);
            }
            _ => {}
        });
    }
}

fn collect_source<'a>(parts: &mut Parts<'a>, source: Option<Value<'a>>, kind: MediaKind) {
    let Some(source) = source else { return };
    let [form, data, content] = source.get(["type", "data", "content"]);
    match form.and_then(Value::text).unwrap_or_default().as_ref() {
        "text" => parts.text(data),
        "content" => parts.text(content),
        _ => parts.media(kind, data),
    }
}

pub(super) fn is_reasoning(block: Value<'_>) -> bool {
    Block::of(block).is_reasoning()
}

pub(super) fn interrupted_result(call: &UnansweredCall) -> String {
    let id = string_token(&call.call_id);
    format!(r#"{{"type":"tool_result","tool_use_id":{id},"content":"{INTERRUPTED}","is_error":true}}"#)
}
