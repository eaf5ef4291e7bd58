//! What an entry says, taken apart: who speaks, their own text, what they call
//! and with which arguments, and how calls ended.

use crate::format::json::Value;
use crate::format::{Role, read, result_contents};
use crate::model::{Seq, WireFormat};
use memchr::memchr2;
use std::borrow::Cow;
use std::collections::HashSet;

/// Who a text comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Speaker {
    /// A tool, or a record of no known structure.
    Tool,
    /// The model: its text and the arguments of its calls.
    Model,
    /// System or developer text.
    System,
    /// The user.
    User,
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq)]
pub struct Said<'a> {
    /// Its place in the log.
    pub seq: Seq,
    /// Who speaks.
    pub speaker: Speaker,
    /// Text of their own, in order: no reasoning, no arguments, no results.
    pub texts: Vec<Cow<'a, str>>,
    /// The calls that it makes.
    pub calls: Vec<Invocation<'a>>,
    /// The results that it gives.
    pub outcomes: Vec<Outcome<'a>>,
}

/// A call with its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Invocation<'a> {
    /// Its id; empty if there is none.
    pub id: Cow<'a, str>,
    /// The tool's name.
    pub name: Cow<'a, str>,
    /// Its arguments: JSON, or free text where the tool takes that.
    pub arguments: Cow<'a, str>,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome<'a> {
    /// The call's id; empty if there is none.
    pub id: Cow<'a, str>,
    /// The tool's name, where the result gives it; else empty.
    pub name: Cow<'a, str>,
    /// Its text.
    pub text: Cow<'a, str>,
    /// Whether the format marks it as an error.
    pub is_error: bool,
}

impl<'a> Said<'a> {
    /// What `payload` says. Any payload says something, if only nothing.
    pub fn of(format: WireFormat, seq: Seq, payload: &'a [u8]) -> Self {
        let value = Value::of(payload);
        let reading = read(format, payload);
        let speaker = match reading.role {
            Role::User => Speaker::User,
            Role::Model => Speaker::Model,
            Role::System => Speaker::System,
            Role::Results | Role::Unknown => Speaker::Tool,
        };
        let blocks = blocks(format, value);
        let calls = reading.calls.into_iter().map(|call| Invocation {
            arguments: arguments(format, value, blocks.get(call.index).copied(), &call.kind),
            name: if call.name.is_empty() { call.kind } else { call.name },
            id: call.id.unwrap_or_default(),
        });
        let texts = match (format, reading.role) {
            (WireFormat::Opaque, _) => strings(payload),
            _ => own_texts(format, value),
        };
        let calls = calls.collect();
        Self { seq, speaker, texts, calls, outcomes: outcomes(format, value, &blocks) }
    }
}

impl Said<'_> {
    /// All its texts, decoded: its own, the strings of its arguments, and those of
    /// its results.
    pub fn all_texts(&self) -> Vec<Cow<'_, str>> {
        let own = self.texts.iter().map(|text| Cow::Borrowed(text.as_ref()));
        let arguments = self.calls.iter().flat_map(Invocation::texts);
        let results = self.outcomes.iter().map(|outcome| Cow::Borrowed(outcome.text.as_ref()));
        own.chain(arguments).chain(results).collect()
    }
}

impl Invocation<'_> {
    /// The texts of its arguments, decoded: the strings in JSON, or all of a free
    /// text.
    pub fn texts(&self) -> Vec<Cow<'_, str>> {
        if self.arguments.starts_with(['{', '[']) {
            strings(self.arguments.as_bytes())
        } else {
            vec![Cow::Borrowed(self.arguments.as_ref())]
        }
    }
}

/// What the index of a call counts: the blocks of a message or its tool calls.
fn blocks(format: WireFormat, message: Value<'_>) -> Vec<Value<'_>> {
    let list = match format {
        WireFormat::AnthropicMessages | WireFormat::BedrockConverse => "content",
        WireFormat::GeminiContents => "parts",
        WireFormat::OpenaiChat => "tool_calls",
        WireFormat::OpenaiResponses | WireFormat::Opaque => return vec![],
    };
    message.member(list).into_iter().flat_map(Value::elements).collect()
}

fn text(value: Option<Value<'_>>) -> Cow<'_, str> {
    value.and_then(Value::text).unwrap_or_default()
}

/// A string's text; anything else as it stands.
fn text_or_json(value: Value<'_>) -> Cow<'_, str> {
    value.text().unwrap_or_else(|| String::from_utf8_lossy(value.bytes()))
}

fn arguments<'a>(
    format: WireFormat,
    message: Value<'a>,
    block: Option<Value<'a>>,
    kind: &str,
) -> Cow<'a, str> {
    let found = match format {
        WireFormat::AnthropicMessages => block.and_then(|block| block.member("input")),
        WireFormat::BedrockConverse => block.and_then(|block| block.member("toolUse")?.member("input")),
        WireFormat::GeminiContents => block.and_then(|block| {
            let [camel, snake] = block.get(["functionCall", "function_call"]);
            camel.or(snake)?.member("args")
        }),
        WireFormat::OpenaiChat => {
            let called = match kind {
                "" => block.and_then(|call| {
                    let [function, custom] = call.get(["function", "custom"]);
                    function.or(custom)
                }),
                _ => message.member("function_call"),
            };
            called.and_then(|called| {
                let [arguments, input] = called.get(["arguments", "input"]);
                arguments.or(input)
            })
        }
        WireFormat::OpenaiResponses => {
            message.get(["arguments", "input", "action", "operation"]).into_iter().flatten().next()
        }
        WireFormat::Opaque => None,
    };
    found.map(text_or_json).unwrap_or_default()
}

fn own_texts(format: WireFormat, message: Value<'_>) -> Vec<Cow<'_, str>> {
    let [kind, role, content, parts] = message.get(["type", "role", "content", "parts"]);
    let is_message = match format {
        WireFormat::OpenaiResponses => kind.is_none_or(|kind| kind.is_text("message")),
        // A tool's or function's content is a result.
        WireFormat::OpenaiChat => !role.is_some_and(|role| role.is_text("tool") || role.is_text("function")),
        _ => true,
    };
    let list = if format == WireFormat::GeminiContents { parts } else { content };
    let Some(list) = list.filter(|_| is_message) else { return vec![] };
    if list.is_string() {
        return vec![text(Some(list))];
    }
    let texts = list.elements().filter_map(|block| {
        let [kind, text, thought] = block.get(["type", "text", "thought"]);
        let is_text = kind
            .is_none_or(|kind| ["text", "input_text", "output_text"].iter().any(|known| kind.is_text(known)));
        let is_thought = thought.is_some_and(|thought| thought.bytes() == b"true");
        text.filter(|text| text.is_string() && is_text && !is_thought)
    });
    texts.filter_map(Value::text).collect()
}

fn outcomes<'a>(format: WireFormat, message: Value<'a>, blocks: &[Value<'a>]) -> Vec<Outcome<'a>> {
    let failed: HashSet<_> = blocks.iter().filter_map(|block| failed_call(format, *block)).collect();
    let has_failed = message.member("status").is_some_and(|status| status.is_text("failed"));
    let found = result_contents(format, message.source()).into_iter();
    found
        .map(|result| {
            let texts: Vec<_> = result.texts.iter().filter_map(|text| text.text()).collect();
            let text = match (texts.len(), result.whole.is_object()) {
                (1, _) => texts.into_iter().next().unwrap_or_default(),
                // A response in JSON without strings of its own.
                (0, true) => String::from_utf8_lossy(result.whole.bytes()),
                _ => Cow::Owned(texts.join("\n")),
            };
            let is_error = match format {
                WireFormat::GeminiContents => {
                    result.whole.member("error").is_some_and(|error| !error.is_null())
                }
                _ => has_failed || failed.contains(&result.call_id),
            };
            Outcome { id: result.call_id, name: result.tool_name, text, is_error }
        })
        .collect()
}

/// Id of the call of which a block says that it failed.
fn failed_call(format: WireFormat, block: Value<'_>) -> Option<Cow<'_, str>> {
    let (id, has_failed) = match format {
        WireFormat::AnthropicMessages => {
            let [id, is_error] = block.get(["tool_use_id", "is_error"]);
            (id, is_error?.bytes() == b"true")
        }
        WireFormat::BedrockConverse => {
            let [id, status] = block.member("toolResult")?.get(["toolUseId", "status"]);
            (id, status?.is_text("error"))
        }
        _ => return None,
    };
    has_failed.then(|| text(id))
}

/// The strings in a JSON text that are not keys, in order, whatever they are in.
pub(super) fn strings(json: &[u8]) -> Vec<Cow<'_, str>> {
    let mut found = Vec::new();
    let mut rest = json;
    while let Some(start) = memchr::memchr(b'"', rest) {
        let token = rest.get(start..).unwrap_or_default();
        let end = string_end(token);
        let (token, after) = token.split_at_checked(end).unwrap_or((token, &[]));
        let is_key = after.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b':');
        if !is_key {
            found.extend(Value::of(token).text());
        }
        rest = after;
    }
    found
}

/// Where the string ends that `token` begins with.
fn string_end(token: &[u8]) -> usize {
    let mut at = 1;
    while let Some(found) = memchr2(b'"', b'\\', token.get(at..).unwrap_or_default()) {
        at += found;
        if token.get(at) == Some(&b'"') {
            return at + 1;
        }
        at += 2;
    }
    token.len()
}

#[cfg(test)]
mod tests;
