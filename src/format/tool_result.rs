//! Finished messages with the result of a call.

use crate::model::WireFormat;

/// A message that holds a result of text and nothing else, with the optional fields
/// that its API takes, and spaces after commas and colons as Python's `json` writes
/// them. The arguments are JSON strings.
pub fn tool_result(format: WireFormat, call_id: &str, tool_name: &str, text: &str) -> String {
    match format {
        WireFormat::OpenaiResponses => format!(
            r#"{{"type": "function_call_output", "id": null, "call_id": {call_id}, "output": {text}, "status": "completed"}}"#
        ),
        WireFormat::AnthropicMessages => format!(
            r#"{{"role": "user", "content": [{{"type": "tool_result", "tool_use_id": {call_id}, "content": [{{"type": "text", "text": {text}}}], "is_error": false, "cache_control": {{"type": "ephemeral", "ttl": "5m"}}}}]}}"#
        ),
        WireFormat::BedrockConverse => format!(
            r#"{{"role": "user", "content": [{{"toolResult": {{"toolUseId": {call_id}, "content": [{{"text": {text}}}], "status": "success"}}}}, {{"cachePoint": {{"type": "default"}}}}]}}"#
        ),
        WireFormat::GeminiContents => format!(
            r#"{{"role": "function", "parts": [{{"functionResponse": {{"id": {call_id}, "name": {tool_name}, "response": {{"output": {text}}}}}}}]}}"#
        ),
        WireFormat::OpenaiChat | WireFormat::Opaque => format!(
            r#"{{"role": "tool", "tool_call_id": {call_id}, "name": {tool_name}, "content": {text}}}"#
        ),
    }
}
