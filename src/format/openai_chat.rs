//! OpenAI Chat Completions messages, and what others made of them.

use super::json::{Value, string_token};
use super::parts::Parts;
use super::reading::{Call, CallResult, Reading, Role, Serving};
use super::{INTERRUPTED, openai_content};
use crate::model::UnansweredCall;
use std::borrow::Cow;

/// Kind of the calls and results of the deprecated `function_call`, which have
/// no ids.
const FUNCTION: &str = "function";

pub(super) fn read(payload: Value<'_>) -> Reading<'_> {
    let message = Message::of(payload);
    match message.role.and_then(Value::text).unwrap_or_default().as_ref() {
        "system" | "developer" => message.read_content(Role::System),
        "user" => message.read_content(Role::User),
        "assistant" => message.read_answer(),
        "tool" => message.read_result(""),
        FUNCTION => message.read_result(FUNCTION),
        _ => Reading::opaque(payload.source(), Serving::Omitted),
    }
}

struct Message<'a> {
    payload: Value<'a>,
    role: Option<Value<'a>>,
    content: Option<Value<'a>>,
    name: Option<Value<'a>>,
    tool_call_id: Option<Value<'a>>,
    tool_calls: Option<Value<'a>>,
    function_call: Option<Value<'a>>,
    refusal: Option<Value<'a>>,
    audio: Option<Value<'a>>,
    /// Reasoning: not of the API, but of vendors that followed it.
    reasoning_content: Option<Value<'a>>,
    reasoning: Option<Value<'a>>,
    reasoning_details: Option<Value<'a>>,
}

impl<'a> Message<'a> {
    fn of(payload: Value<'a>) -> Self {
        let names = [
            "role",
            "content",
            "name",
            "tool_call_id",
            "tool_calls",
            "function_call",
            "refusal",
            "audio",
            "reasoning_content",
            "reasoning",
            "reasoning_details",
        ];
        let values = payload.get(names).map(|value| value.filter(|value| !value.is_null()));
        let [role, content, name, tool_call_id, tool_calls, function_call, refusal, audio, rest @ ..] =
            values;
        let [reasoning_content, reasoning, reasoning_details] = rest;
        Self {
            payload,
            role,
            content,
            name,
            tool_call_id,
            tool_calls,
            function_call,
            refusal,
            audio,
            reasoning_content,
            reasoning,
            reasoning_details,
        }
    }

    fn has_content(&self) -> bool {
        self.content.is_some_and(|content| !content.is_array() || content.elements().next().is_some())
    }

    fn read_content(self, role: Role) -> Reading<'a> {
        let mut parts = Parts::default();
        openai_content::collect(&mut parts, self.content);
        let serving = if self.has_content() { Serving::Shown } else { Serving::Omitted };
        self.finish(Reading { serving, ..Reading::new(role) }, parts)
    }

    fn read_answer(self) -> Reading<'a> {
        let mut parts = Parts::default();
        for reasoning in [self.reasoning_content, self.reasoning, self.reasoning_details] {
            parts.text(reasoning);
        }
        openai_content::collect(&mut parts, self.content);
        parts.text(self.refusal);
        parts.opaque(self.audio);
        let mut calls = Vec::new();
        for call in self.tool_calls.into_iter().flat_map(Value::elements) {
            let [id, function, custom] = call.get(["id", "function", "custom"]);
            let [name, arguments, input] = function
                .or(custom)
                .map(|called| called.get(["name", "arguments", "input"]))
                .unwrap_or_default();
            parts.block(call, |parts| [arguments, input].into_iter().for_each(|text| parts.text(text)));
            calls.push(Call { id: id.and_then(Value::text), ..called(name, "", calls.len()) });
        }
        if let Some(function) = self.function_call {
            let [name, arguments] = function.get(["name", "arguments"]);
            parts.block(function, |parts| parts.text(arguments));
            calls.push(called(name, FUNCTION, calls.len()));
        }
        let has_answer =
            !calls.is_empty() || self.has_content() || self.refusal.is_some() || self.audio.is_some();
        let serving = if has_answer { Serving::Shown } else { Serving::Omitted };
        self.finish(Reading { calls, serving, ..Reading::new(Role::Model) }, parts)
    }

    fn read_result(self, kind: &'static str) -> Reading<'a> {
        let mut parts = Parts::default();
        openai_content::collect(&mut parts, self.content);
        let result = CallResult {
            id: self.tool_call_id.and_then(Value::text),
            name: self.name.and_then(Value::text).unwrap_or_default(),
            kind: Cow::Borrowed(kind),
            index: 0,
        };
        self.finish(Reading { results: vec![result], ..Reading::new(Role::Results) }, parts)
    }

    /// An entry that says nothing is counted whole.
    fn finish(&self, reading: Reading<'a>, mut parts: Parts<'a>) -> Reading<'a> {
        parts.whole_if_empty(self.payload.source());
        Reading { parts: parts.0, ..reading }
    }
}

fn called<'a>(name: Option<Value<'a>>, kind: &'static str, index: usize) -> Call<'a> {
    let name = name.and_then(Value::text).unwrap_or_default();
    Call { id: None, name, kind: Cow::Borrowed(kind), index }
}

pub(super) fn interrupted_result(call: &UnansweredCall) -> String {
    let (role, key, value) = match call.kind.as_str() {
        FUNCTION => ("function", "name", &call.name),
        _ => ("tool", "tool_call_id", &call.call_id),
    };
    format!(r#"{{"role":"{role}","{key}":{},"content":"{INTERRUPTED}"}}"#, string_token(value))
}
