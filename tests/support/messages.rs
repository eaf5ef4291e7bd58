//! What is said in a conversation, as a message or item of each wire format.

#![allow(dead_code, reason = "each test file uses its part of it")]

use serde_json::json;
use turnkeep::rpc::pb::WireFormat;

/// The formats whose structure is known.
pub(crate) const STRUCTURED: [WireFormat; 5] = [
    WireFormat::OpenaiChat,
    WireFormat::OpenaiResponses,
    WireFormat::AnthropicMessages,
    WireFormat::GeminiContents,
    WireFormat::BedrockConverse,
];

/// All formats.
pub(crate) const ALL: [WireFormat; 6] = [
    WireFormat::OpenaiChat,
    WireFormat::OpenaiResponses,
    WireFormat::AnthropicMessages,
    WireFormat::GeminiContents,
    WireFormat::BedrockConverse,
    WireFormat::Opaque,
];

/// The user says something.
pub(crate) fn user(format: WireFormat, text: &str) -> String {
    match format {
        WireFormat::OpenaiResponses => {
            json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
        }
        WireFormat::AnthropicMessages => {
            json!({"role": "user", "content": [{"type": "text", "text": text}]})
        }
        WireFormat::GeminiContents => json!({"role": "user", "parts": [{"text": text}]}),
        WireFormat::BedrockConverse => json!({"role": "user", "content": [{"text": text}]}),
        _ => json!({"role": "user", "content": text}),
    }
    .to_string()
}

/// The model answers.
pub(crate) fn model(format: WireFormat, text: &str) -> String {
    match format {
        WireFormat::OpenaiResponses => {
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
        }
        WireFormat::AnthropicMessages => {
            json!({"role": "assistant", "content": [{"type": "text", "text": text}]})
        }
        WireFormat::GeminiContents => json!({"role": "model", "parts": [{"text": text}]}),
        WireFormat::BedrockConverse => json!({"role": "assistant", "content": [{"text": text}]}),
        _ => json!({"role": "assistant", "content": text}),
    }
    .to_string()
}

/// The model calls a tool.
pub(crate) fn call(format: WireFormat, id: &str, tool: &str) -> String {
    match format {
        WireFormat::OpenaiResponses => {
            json!({"type": "function_call", "call_id": id, "name": tool, "arguments": "{}"})
        }
        WireFormat::AnthropicMessages => {
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": tool, "input": {}}]})
        }
        WireFormat::GeminiContents => {
            json!({"role": "model", "parts": [{"functionCall": {"id": id, "name": tool, "args": {}}}]})
        }
        WireFormat::BedrockConverse => {
            json!({"role": "assistant", "content": [{"toolUse": {"toolUseId": id, "name": tool, "input": {}}}]})
        }
        _ => json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": tool, "arguments": "{}"}},
        ]}),
    }
    .to_string()
}

/// A call's result.
pub(crate) fn result(format: WireFormat, id: &str, tool: &str, text: &str) -> String {
    match format {
        WireFormat::OpenaiResponses => json!({"type": "function_call_output", "call_id": id, "output": text}),
        WireFormat::AnthropicMessages => {
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}]})
        }
        WireFormat::GeminiContents => json!({"role": "user", "parts": [
            {"functionResponse": {"id": id, "name": tool, "response": {"output": text}}},
        ]}),
        WireFormat::BedrockConverse => json!({"role": "user", "content": [
            {"toolResult": {"toolUseId": id, "content": [{"text": text}]}},
        ]}),
        _ => json!({"role": "tool", "tool_call_id": id, "content": text}),
    }
    .to_string()
}
