//! Anthropic's Messages API.

use super::{CompletionRequest, Reading, StopReason};
use crate::model::Usage;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

pub(super) const KEY_HEADER: HeaderName = HeaderName::from_static("x-api-key");
pub(super) const VERSION_HEADER: HeaderName = HeaderName::from_static("anthropic-version");

pub(super) fn headers() -> HeaderMap {
    HeaderMap::from_iter([(VERSION_HEADER, HeaderValue::from_static("2023-06-01"))])
}

pub(super) fn body(model: &str, request: &CompletionRequest) -> Value {
    let mut body = json!({
        "model": model,
        "max_tokens": request.max_output_tokens,
        "messages": [{"role": "user", "content": request.user}],
    });
    if !request.system.is_empty() {
        body["system"] = request.system.as_str().into();
    }
    body
}

pub(super) fn read(answer: &Value) -> Option<Reading> {
    let blocks = answer.get("content")?.as_array()?;
    let texts =
        blocks.iter().filter(|block| block["type"] == "text").filter_map(|block| block["text"].as_str());
    let stop = answer["stop_reason"].as_str().unwrap_or_default();
    let tokens = |name: &str| answer["usage"][name].as_u64().unwrap_or(0);
    Some(Reading {
        text: texts.collect(),
        usage: Usage {
            model: answer["model"].as_str().unwrap_or_default().to_owned(),
            input_tokens: tokens("input_tokens"),
            output_tokens: tokens("output_tokens"),
            cache_read_tokens: tokens("cache_read_input_tokens"),
            cache_write_tokens: tokens("cache_creation_input_tokens"),
            ..Usage::default()
        },
        stop: stop.to_owned(),
        stop_reason: match stop {
            "end_turn" | "stop_sequence" => StopReason::End,
            "max_tokens" => StopReason::MaxTokens,
            other => StopReason::Other(other.to_owned()),
        },
    })
}
