//! Amazon Bedrock Converse messages.

use super::json::{Value, string_token};
use super::parts::Parts;
use super::reading::{Call, CallResult, MediaKind, OwnBlocks, Reading, Role, Serving};
use super::{Blocks, INTERRUPTED};
use crate::model::UnansweredCall;
use std::borrow::Cow;

pub(super) const BLOCKS: Blocks = Blocks {
    member: "content",
    user_message: (r#"{"role":"user","content":["#, "]}"),
    call_id: &["toolUse", "toolUseId"],
    result_id: &["toolResult", "toolUseId"],
    result_content: &["toolResult", "content"],
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
    for (index, block) in content.into_iter().flat_map(Value::elements).enumerate() {
        parts.block(block, |parts| collect_block(parts, block));
        let [text, call, result] = block.get(["text", "toolUse", "toolResult"]);
        if let Some(call) = call.filter(|_| role == Role::Model) {
            let [id, name] = call.get(["toolUseId", "name"]).map(|value| value.and_then(Value::text));
            let name = name.unwrap_or_default();
            reading.calls.push(Call { id, name, kind: Cow::Borrowed(""), index });
        } else if let Some(result) = result.filter(|_| role == Role::User) {
            let [id, content] = result.get(["toolUseId", "content"]);
            let id = id.and_then(Value::text);
            let content = content.into_iter().flat_map(Value::elements);
            reading.has_blank_results |=
                content.filter_map(|block| block.member("text")).any(Value::is_blank);
            reading.results.push(CallResult { id, name: Cow::Borrowed(""), kind: Cow::Borrowed(""), index });
            continue;
        } else if text.is_some_and(Value::is_blank) {
            reading.blank_blocks.push(index);
            continue;
        }
        own.add(is_reasoning(block));
    }
    parts.whole_if_empty(payload.source());
    Reading { parts: parts.0, ..reading }.of_blocks(own)
}

pub(super) fn is_reasoning(block: Value<'_>) -> bool {
    block.member("reasoningContent").is_some()
}

/// Collects the parts of a block: an object whose first member says what it is.
fn collect_block<'a>(parts: &mut Parts<'a>, block: Value<'a>) {
    let Some((kind, value)) = block.members().next() else { return };
    match kind.text().unwrap_or_default().as_ref() {
        "toolUse" => parts.json(value.member("input")),
        "toolResult" => {
            let content = value.member("content").into_iter().flat_map(Value::elements);
            content.for_each(|block| parts.block(block, |parts| collect_content(parts, block)));
        }
        "reasoningContent" => {
            let [text, redacted] = value.get(["reasoningText", "redactedContent"]);
            let [text, signature] = text.map(|text| text.get(["text", "signature"])).unwrap_or_default();
            parts.text(text);
            parts.opaque(signature);
            parts.opaque(redacted);
        }
        _ => collect_content(parts, block),
    }
}

/// Collects what may stand in messages and in results.
fn collect_content<'a>(parts: &mut Parts<'a>, block: Value<'a>) {
    let [text, json, image, document, video, audio] =
        block.get(["text", "json", "image", "document", "video", "audio"]);
    parts.text(text);
    parts.json(json);
    let media = [
        (image, MediaKind::Image),
        (document, MediaKind::Document),
        (video, MediaKind::Recording),
        (audio, MediaKind::Recording),
    ];
    for (source, kind) in media {
        let Some(source) = source.and_then(|media| media.member("source")) else { continue };
        match source.get(["text", "content"]) {
            [None, None] => parts.media(kind, source.member("bytes")),
            [text, content] => {
                parts.text(text);
                parts.json(content);
            }
        }
    }
}

pub(super) fn interrupted_result(call: &UnansweredCall) -> String {
    let id = string_token(&call.call_id);
    format!(
        r#"{{"toolResult":{{"toolUseId":{id},"content":[{{"text":"{INTERRUPTED}"}}],"status":"error"}}}}"#
    )
}
