//! Gemini contents.

use super::json::{Value, string_token};
use super::parts::Parts;
use super::reading::{Call, CallResult, MediaKind, OwnBlocks, Reading, Role, Serving};
use super::{Blocks, INTERRUPTED};
use crate::model::UnansweredCall;
use std::borrow::Cow;

pub(super) const BLOCKS: Blocks = Blocks {
    member: "parts",
    user_message: (r#"{"role":"user","parts":["#, "]}"),
    call_id: &["functionCall", "id"],
    result_id: &["functionResponse", "id"],
    result_content: &["functionResponse", "response"],
};

pub(super) fn read(payload: Value<'_>) -> Reading<'_> {
    let [role, list] = payload.get(["role", "parts"]);
    let role = match role.and_then(Value::text) {
        // A content without a role is the user's.
        None => Role::User,
        Some(role) => match role.as_ref() {
            "user" | "function" => Role::User,
            "model" => Role::Model,
            "system" => Role::System,
            _ => return Reading::opaque(payload.source(), Serving::Omitted),
        },
    };
    let mut parts = Parts::default();
    let mut reading = Reading::new(role);
    let mut own = OwnBlocks::default();
    for (index, value) in list.into_iter().flat_map(Value::elements).enumerate() {
        let part = ContentPart::of(value);
        parts.block(value, |parts| part.collect(parts));
        if let Some(call) = part.call.filter(|_| role == Role::Model) {
            let (id, name) = id_and_name(call);
            reading.calls.push(Call { id, name, kind: Cow::Borrowed(""), index });
        } else if let Some(result) = part.result.filter(|_| role == Role::User) {
            let (id, name) = id_and_name(result);
            reading.results.push(CallResult { id, name, kind: Cow::Borrowed(""), index });
            continue;
        }
        own.add(false);
    }
    parts.whole_if_empty(payload.source());
    Reading { parts: parts.0, ..reading }.of_blocks(own)
}

fn id_and_name(value: Value<'_>) -> (Option<Cow<'_, str>>, Cow<'_, str>) {
    let [id, name] = value.get(["id", "name"]).map(|value| value.and_then(Value::text));
    (id, name.unwrap_or_default())
}

/// A part, with its members in either spelling that the API takes.
struct ContentPart<'a> {
    text: Option<Value<'a>>,
    call: Option<Value<'a>>,
    result: Option<Value<'a>>,
    signature: Option<Value<'a>>,
    inline: Option<Value<'a>>,
    file: Option<Value<'a>>,
    code: Option<Value<'a>>,
    code_result: Option<Value<'a>>,
}

impl<'a> ContentPart<'a> {
    fn of(value: Value<'a>) -> Self {
        let [text, camel @ ..] = value.get([
            "text",
            "functionCall",
            "functionResponse",
            "thoughtSignature",
            "inlineData",
            "fileData",
            "executableCode",
            "codeExecutionResult",
        ]);
        let snake = value.get([
            "function_call",
            "function_response",
            "thought_signature",
            "inline_data",
            "file_data",
            "executable_code",
            "code_execution_result",
        ]);
        let [call, result, signature, inline, file, code, code_result] =
            std::array::from_fn(|i| camel.get(i).copied().flatten().or(snake.get(i).copied().flatten()));
        Self { text, call, result, signature, inline, file, code, code_result }
    }

    fn collect(&self, parts: &mut Parts<'a>) {
        parts.text(self.text);
        parts.json(self.call.and_then(|call| call.member("args")));
        if let Some(result) = self.result {
            let [response, media] = result.get(["response", "parts"]);
            parts.json(response);
            for part in media.into_iter().flat_map(Value::elements) {
                let [camel, snake] = part.get(["inlineData", "inline_data"]);
                parts.block(part, |parts| collect_data(parts, camel.or(snake)));
            }
        }
        collect_data(parts, self.inline);
        if let Some(file) = self.file {
            parts.media(media_kind(file), None);
        }
        parts.json(self.code);
        parts.json(self.code_result);
        parts.opaque(self.signature);
    }
}

fn collect_data<'a>(parts: &mut Parts<'a>, data: Option<Value<'a>>) {
    if let Some(data) = data {
        parts.media(media_kind(data), data.member("data"));
    }
}

/// The kind of media that inline or file data are of.
fn media_kind(data: Value<'_>) -> MediaKind {
    let [camel, snake] = data.get(["mimeType", "mime_type"]);
    let mime_type = camel.or(snake).and_then(Value::text).unwrap_or_default();
    match mime_type.split('/').next() {
        Some("image") => MediaKind::Image,
        Some("audio" | "video") => MediaKind::Recording,
        _ => MediaKind::Document,
    }
}

pub(super) fn interrupted_result(call: &UnansweredCall) -> String {
    let id = if call.call_id.is_empty() {
        String::new()
    } else {
        format!(r#""id":{},"#, string_token(&call.call_id))
    };
    let name = string_token(&call.name);
    format!(r#"{{"functionResponse":{{{id}"name":{name},"response":{{"error":"{INTERRUPTED}"}}}}}}"#)
}
