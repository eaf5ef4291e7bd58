//! What a payload shows to a reader: its texts, with reasoning told apart, and where
//! media stand.

use super::json::Value;
use super::reading::{MediaKind, Part};
use super::texts::{Text, TextKind, placed_texts};
use super::{is_reasoning, read_value, rules};
use crate::model::WireFormat;
use std::ops::Range;

/// A piece of what a payload shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown<'a> {
    /// Something that was said, a call, or a result.
    Text(Text<'a>),
    /// Something that the model thought.
    Reasoning(Text<'a>),
    /// A picture, document or recording.
    Media(MediaKind),
}

/// What a payload shows, in reading order.
pub fn shown(format: WireFormat, payload: &[u8]) -> Vec<Shown<'_>> {
    let value = Value::of(payload);
    let reading = read_value(format, value);
    let reasoning = reasoning(format, value);
    let texts = placed_texts(format, value, &reading).into_iter().map(|(at, text)| {
        let is_reasoning = text.kind == TextKind::Said && reasoning.iter().any(|range| range.contains(&at));
        (at, if is_reasoning { Shown::Reasoning(text) } else { Shown::Text(text) })
    });
    let mut shown: Vec<_> = texts.collect();
    let mut at = 0;
    for part in &reading.parts {
        let token = match part {
            Part::Text(token) | Part::Json(token) | Part::Opaque(token) => Some(*token),
            Part::Media { base64, .. } => *base64,
        };
        // The parts are slices of the payload; what lies elsewhere stands after the one
        // before it.
        at = token.map_or(at, |token| token.as_ptr().addr().saturating_sub(payload.as_ptr().addr()));
        if let Part::Media { kind, .. } = part {
            shown.push((at, Shown::Media(*kind)));
        }
    }
    shown.sort_by_key(|(at, _)| *at);
    shown.into_iter().map(|(_, shown)| shown).collect()
}

/// Where the model thinks.
fn reasoning(format: WireFormat, payload: Value<'_>) -> Vec<Range<usize>> {
    match format {
        WireFormat::OpenaiChat => {
            let members = payload.get(["reasoning_content", "reasoning", "reasoning_details"]);
            members.into_iter().flatten().map(Value::range).collect()
        }
        WireFormat::OpenaiResponses => {
            let is_reasoning = payload.member("type").is_some_and(|kind| kind.is_text("reasoning"));
            is_reasoning.then(|| payload.range()).into_iter().collect()
        }
        _ => {
            let blocks = rules(format).blocks.and_then(|blocks| payload.member(blocks.member));
            let blocks = blocks.into_iter().flat_map(Value::elements);
            let is_thought = |block: &Value<'_>| {
                is_reasoning(format, *block)
                    || block.member("thought").is_some_and(|thought| thought.bytes() == b"true")
            };
            blocks.filter(is_thought).map(Value::range).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(format: WireFormat, payload: &str) -> Vec<String> {
        let told = |shown: Shown<'_>| match shown {
            Shown::Text(text) => format!("{:?} {}", text.kind, text.content),
            Shown::Reasoning(text) => format!("Reasoning {}", text.content),
            Shown::Media(kind) => format!("{kind:?}"),
        };
        shown(format, payload.as_bytes()).into_iter().map(told).collect()
    }

    #[test]
    fn reasoning_is_told_apart_and_media_stand_in_their_place() {
        use WireFormat::{AnthropicMessages, BedrockConverse, GeminiContents, OpenaiChat, OpenaiResponses};
        let image = r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}"#;
        let payload = format!(
            r#"{{"role":"user","content":[{{"type":"text","text":"a"}},{image},{{"type":"text","text":"b"}}]}}"#
        );
        assert_eq!(told(AnthropicMessages, &payload), ["Said a", "Image", "Said b"]);
        let payload = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
            {"type":"text","text":"yes"},{"type":"tool_use","id":"c","name":"ls","input":{"p":"."}}]}"#;
        let calls = ["Reasoning hm", "Said yes", "CallName ls", r#"CallArguments {"p":"."}"#];
        assert_eq!(told(AnthropicMessages, payload), calls);
        let payload = r#"{"role":"assistant","content":[{"reasoningContent":{"reasoningText":{"text":"hm"}}},
            {"text":"yes"}]}"#;
        assert_eq!(told(BedrockConverse, payload), ["Reasoning hm", "Said yes"]);
        let payload = r#"{"role":"model","parts":[{"text":"hm","thought":true},{"text":"yes"}]}"#;
        assert_eq!(told(GeminiContents, payload), ["Reasoning hm", "Said yes"]);
        let payload = r#"{"role":"assistant","reasoning_content":"hm","content":"yes"}"#;
        assert_eq!(told(OpenaiChat, payload), ["Reasoning hm", "Said yes"]);
        let payload = r#"{"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"hm"}]}"#;
        assert_eq!(told(OpenaiResponses, payload), ["Reasoning hm"]);
    }
}
