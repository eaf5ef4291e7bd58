//! Telling whose API a list of messages is written for.

use super::json::{Object, elements};
use crate::model::WireFormat;

/// The API that takes all of `messages`; none if no API does, or there are
/// none. Text alone is taken by several: then `hint` decides, if it is one of
/// them.
pub(super) fn format(messages: &[&str], hint: Option<WireFormat>) -> Option<WireFormat> {
    let mut marks = Marks::default();
    for message in messages {
        marks.look_at(&Object::parse(message)?)?;
    }
    marks.verdict(hint)
}

/// Whether `messages` may be meant for an API, for a caller who says so.
pub(super) fn may_be(messages: &[&str], format: WireFormat) -> bool {
    let is_known = |message: &Object<'_>| {
        message.text("role").is_some() || message.text("type").is_some_and(|kind| is_item(&kind))
    };
    let mut known = 0;
    let all = messages.iter().all(|raw| {
        Object::parse(raw).is_some_and(|message| {
            known += usize::from(is_known(&message));
            match format {
                WireFormat::GeminiContents => message.elements("parts").is_some(),
                // Among items there may be such of a newer version.
                WireFormat::OpenaiResponses => is_known(&message) || message.get("type").is_some(),
                WireFormat::Opaque => true,
                WireFormat::OpenaiChat | WireFormat::AnthropicMessages | WireFormat::BedrockConverse => {
                    message.text("role").is_some()
                }
            }
        })
    });
    let is_any = known > 0 || matches!(format, WireFormat::GeminiContents | WireFormat::Opaque);
    all && is_any && !messages.is_empty()
}

/// What was seen that only some APIs take.
#[derive(Debug, Default)]
struct Marks {
    /// Messages with a role.
    messages: usize,
    /// Gemini contents.
    contents: usize,
    /// Items of OpenAI Responses.
    items: usize,
    /// Calls and results as Chat Completions writes them.
    chat_calls: usize,
    /// Roles and parts of Chat Completions.
    chat: usize,
    /// Calls and results as Anthropic Messages writes them.
    anthropic_calls: usize,
    /// Blocks of Anthropic Messages.
    anthropic: usize,
    /// Blocks of Bedrock Converse.
    bedrock: usize,
    /// Contents that are arrays.
    arrays: usize,
}

impl Marks {
    /// None if no API takes the message.
    fn look_at(&mut self, message: &Object<'_>) -> Option<()> {
        let kind = message.text("type");
        if message.elements("parts").is_some() {
            let role = message.text("role");
            self.contents += 1;
            return matches!(role.as_deref(), None | Some("user" | "model" | "function" | "system"))
                .then_some(());
        }
        let Some(role) = message.text("role") else {
            self.items += 1;
            return kind.is_some_and(|kind| is_item(&kind)).then_some(());
        };
        self.messages += 1;
        match &*role {
            "user" | "assistant" => {}
            "system" | "developer" => self.chat += 1,
            "tool" => {
                self.chat_calls += 1;
                tool_call_id(message)?;
            }
            "function" => self.chat_calls += 1,
            _ => return None,
        }
        if kind.as_deref() == Some("message") {
            // A response of Anthropic Messages is no message that it takes.
            message.get("stop_reason").is_none().then_some(())?;
            self.items += 1;
        }
        if let Some(calls) = message.elements("tool_calls") {
            self.chat_calls += calls.len();
            calls.iter().all(|call| is_chat_call(call)).then_some(())?;
        }
        let calls = ["tool_calls", "function_call"].iter().any(|key| message.value(key).is_some());
        self.chat_calls += usize::from(message.value("function_call").is_some());
        match message.get("content") {
            Some(text) if text.starts_with('"') => Some(()),
            Some(blocks) if blocks.starts_with('[') => {
                self.arrays += 1;
                elements(blocks)?.iter().try_for_each(|block| self.look_at_block(&Object::parse(block)?))
            }
            Some("null") | None => (calls && role == "assistant").then_some(()),
            Some(_) => None,
        }
    }

    fn look_at_block(&mut self, block: &Object<'_>) -> Option<()> {
        let Some(kind) = block.text("type") else {
            self.bedrock += 1;
            let is_bedrock = |key: &str| {
                matches!(
                    key,
                    "text"
                        | "toolUse"
                        | "toolResult"
                        | "image"
                        | "document"
                        | "video"
                        | "reasoningContent"
                        | "cachePoint"
                        | "guardContent"
                        | "citationsContent"
                )
            };
            return block.keys().all(is_bedrock).then_some(());
        };
        match &*kind {
            "input_text" | "output_text" | "input_image" | "input_file" | "summary_text" => self.items += 1,
            "image_url" | "input_audio" => self.chat += 1,
            "tool_use" | "tool_result" | "server_tool_use" => self.anthropic_calls += 1,
            "image" | "document" => {
                block.object("source")?;
                self.anthropic += 1;
            }
            "thinking" | "redacted_thinking" | "compaction" => self.anthropic += 1,
            // A block of any of them, or of none that is known.
            _ => {}
        }
        Some(())
    }

    fn verdict(&self, hint: Option<WireFormat>) -> Option<WireFormat> {
        let Self { messages, contents, items, chat_calls, chat, anthropic_calls, anthropic, bedrock, arrays } =
            *self;
        if contents > 0 {
            return (messages + items == 0).then_some(WireFormat::GeminiContents);
        }
        if items > 0 {
            let other = chat_calls + anthropic_calls + anthropic + bedrock;
            return (other == 0).then_some(WireFormat::OpenaiResponses);
        }
        if messages == 0 {
            return None;
        }
        if bedrock > 0 {
            let other = chat_calls + chat + anthropic_calls + anthropic;
            return (other == 0).then_some(WireFormat::BedrockConverse);
        }
        match (chat_calls > 0, anthropic_calls > 0) {
            (true, true) => None,
            (false, true) => Some(WireFormat::AnthropicMessages),
            (false, false) if chat == 0 && anthropic == 0 && is_of_messages(hint) => hint,
            (false, false) if chat == 0 && anthropic + arrays > 0 => Some(WireFormat::AnthropicMessages),
            (true | false, false) => Some(WireFormat::OpenaiChat),
        }
    }
}

fn is_of_messages(hint: Option<WireFormat>) -> bool {
    matches!(hint, Some(WireFormat::AnthropicMessages | WireFormat::OpenaiChat))
}

/// The raw id of the call that a tool message answers. SWE-agent writes it as
/// the only element of `tool_call_ids`.
pub(super) fn tool_call_id<'a>(message: &Object<'a>) -> Option<&'a str> {
    message.value("tool_call_id").or_else(|| {
        let ids = message.elements("tool_call_ids")?;
        (ids.len() == 1).then(|| ids.first().copied())?
    })
}

/// Whether a call is written as Chat Completions takes it. Frameworks also
/// write the function's name where the API has an object.
fn is_chat_call(raw: &str) -> bool {
    Object::parse(raw).is_some_and(|call| call.object("function").or(call.object("custom")).is_some())
}

/// Whether a type is one of an item of OpenAI Responses that has no role.
pub(super) fn is_item(kind: &str) -> bool {
    kind.ends_with("_call")
        || kind.ends_with("_call_output")
        || matches!(
            kind,
            "agent_message"
                | "reasoning"
                | "item_reference"
                | "compaction"
                | "mcp_list_tools"
                | "mcp_approval_request"
                | "mcp_approval_response"
                | "tool_search_output"
                | "program"
                | "program_output"
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use WireFormat::{AnthropicMessages, BedrockConverse, GeminiContents, OpenaiChat, OpenaiResponses};

    #[test]
    fn a_list_is_told_by_what_only_one_api_takes() {
        let text = r#"{"role":"user","content":"hi"}"#;
        let blocks = r#"{"role":"user","content":[{"type":"text","text":"hi"}]}"#;
        let with = |message: &str| format(&[text, message], None);
        assert_eq!(format(&[], None), None);
        assert_eq!(format(&[text], None), Some(OpenaiChat));
        assert_eq!(with(blocks), Some(AnthropicMessages));
        assert_eq!(
            format(&[blocks, r#"{"role":"system","content":"x"}"#], Some(AnthropicMessages)),
            Some(OpenaiChat)
        );
        assert_eq!(
            with(r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a","function":{}}]}"#),
            Some(OpenaiChat)
        );
        assert_eq!(with(r#"{"role":"tool","tool_call_id":"a","content":"x"}"#), Some(OpenaiChat));
        assert_eq!(with(r#"{"role":"tool","tool_call_ids":["a"],"content":"x"}"#), Some(OpenaiChat));
        assert_eq!(
            with(r#"{"role":"user","content":[{"type":"tool_result"},{"type":"file","content":"x"}]}"#),
            Some(AnthropicMessages)
        );
        assert_eq!(with(r#"{"role":"user","content":[{"text":"x"}]}"#), Some(BedrockConverse));
        assert_eq!(with(r#"{"type":"function_call_output","call_id":"a"}"#), Some(OpenaiResponses));
        assert_eq!(
            format(&[r#"{"parts":[]}"#, r#"{"role":"model","parts":[]}"#], None),
            Some(GeminiContents)
        );
        assert_eq!(format(&[text], Some(AnthropicMessages)), Some(AnthropicMessages));
        assert_eq!(format(&[blocks], Some(OpenaiChat)), Some(OpenaiChat));
        assert_eq!(format(&[blocks], Some(GeminiContents)), Some(AnthropicMessages));
    }

    #[test]
    fn a_list_that_no_api_takes_is_of_none() {
        let text = r#"{"role":"user","content":"hi"}"#;
        for other in [
            "1",
            "{}",
            r#"{"role":"human","content":"x"}"#,
            r#"{"role":"user"}"#,
            r#"{"role":"user","content":7}"#,
            r#"{"role":"user","content":["x"]}"#,
            r#"{"role":"tool","content":"x"}"#,
            r#"{"role":"tool","tool_call_ids":["a","b"],"content":"x"}"#,
            r#"{"role":"assistant","content":"","tool_calls":[{"id":"a","function":"f","arguments":{}}]}"#,
            r#"{"role":"user","content":[{"type":"image","image":"data:"}]}"#,
            r#"{"role":"user","parts":[]}"#,
            r#"{"type":"message","role":"assistant","content":[],"stop_reason":"end_turn"}"#,
        ] {
            assert_eq!(format(&[text, other], None), None, "{other}");
        }
    }
}
