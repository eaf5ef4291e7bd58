//! OpenAI's Chat Completions API, as others speak it too.

use super::{CompletionRequest, Reading, StopReason};
use crate::model::Usage;
use serde_json::{Value, json};

/// OpenAI's reasoning models take the limit of the output only by its new name,
/// other servers only by the old one.
pub(super) fn body(model: &str, request: &CompletionRequest, new_limit_name: bool) -> Value {
    let user = json!({"role": "user", "content": request.user});
    let messages = if request.system.is_empty() {
        json!([user])
    } else {
        json!([{"role": "system", "content": request.system}, user])
    };
    let limit = if new_limit_name { "max_completion_tokens" } else { "max_tokens" };
    json!({"model": model, "messages": messages, limit: request.max_output_tokens})
}

pub(super) fn read(answer: &Value) -> Option<Reading> {
    let choice = answer.get("choices")?.as_array()?.first()?;
    let message = choice.get("message")?;
    let text = match &message["content"] {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        content => content.as_str().unwrap_or_default().to_owned(),
    };
    let is_refusal = text.is_empty() && message["refusal"].is_string();
    let stop = if is_refusal { "refusal" } else { choice["finish_reason"].as_str().unwrap_or_default() };
    let usage = &answer["usage"];
    let tokens = |value: &Value| value.as_u64().unwrap_or(0);
    let cached = tokens(&usage["prompt_tokens_details"]["cached_tokens"]);
    Some(Reading {
        text,
        usage: Usage {
            model: answer["model"].as_str().unwrap_or_default().to_owned(),
            input_tokens: tokens(&usage["prompt_tokens"]).saturating_sub(cached),
            output_tokens: tokens(&usage["completion_tokens"]),
            cache_read_tokens: cached,
            ..Usage::default()
        },
        stop: stop.to_owned(),
        stop_reason: match stop {
            "stop" => StopReason::End,
            "length" => StopReason::MaxTokens,
            other => StopReason::Other(other.to_owned()),
        },
    })
}
