//! How long a tool result is as the message that is sent to the model.

use super::{Escaped, Measure};
use crate::format;
use crate::limits::TOKEN_TEXT_BYTES_MAX;
use crate::model::{LengthUnit, ToolResultLimit, WireFormat};
use crate::tokens::TokenCounter;

/// The message with the result of a call, but for its text: it is the measure of
/// texts. Their length is that of the finished message, as the most verbose writer
/// would serialize it.
#[derive(Clone, Debug)]
pub struct ToolResult {
    format: WireFormat,
    call_id: String,
    tool_name: String,
    /// Counts the message if the limit is in tokens.
    counter: Option<TokenCounter>,
    /// Length of the message without text, in characters.
    envelope: u64,
}

/// What may stand around the text where an API takes a string or a list.
const LIST: &str = r#"[{"type": "input_text", "text": }]"#;

/// The longest id of a call that an API takes (`OpenAI` Responses), and as long as names
/// of tools are: what stands for one that is not known.
const UNKNOWN_NAME: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

impl ToolResult {
    /// The result of a call, for an API of that format; `counter` is the
    /// session's. An id or a name that is empty is taken for one that is not known
    /// yet.
    pub fn new(
        format: WireFormat,
        call_id: &str,
        tool_name: &str,
        unit: LengthUnit,
        counter: TokenCounter,
    ) -> Self {
        let [call_id, tool_name] =
            [call_id, tool_name].map(|name| if name.is_empty() { UNKNOWN_NAME } else { name });
        let empty = format::tool_result(format, r#""""#, r#""""#, r#""""#);
        let names = Escaped.length(call_id) + Escaped.length(tool_name);
        Self {
            format,
            call_id: call_id.to_owned(),
            tool_name: tool_name.to_owned(),
            counter: (unit == LengthUnit::Tokens).then_some(counter),
            envelope: (empty.len() + LIST.len()) as u64 + names,
        }
    }

    /// Length of the message without text.
    pub fn envelope(&self) -> u64 {
        self.length("")
    }

    /// Bytes of content over which it is certain to be longer than `length_max`,
    /// or taken to be.
    pub fn content_bytes_max(&self, length_max: u64) -> u64 {
        if self.counter.is_some() { length_max.saturating_mul(TOKEN_TEXT_BYTES_MAX) } else { length_max }
    }

    /// The length of the message with this content. Content that is no text is
    /// taken as the longer of what is shown for it and its Base64.
    pub fn length_of_content(&self, content: &[u8]) -> u64 {
        if let Ok(text) = std::str::from_utf8(content) {
            return self.length(text);
        }
        let base64 = "+".repeat(content.len().div_ceil(3) * 4);
        self.length(&String::from_utf8_lossy(content)).max(self.length(&base64))
    }

    /// Whether a message with this content keeps to a limit less its reserve, whatever
    /// of the usual its worker puts around it.
    pub fn fits(&self, content: &[u8], limit: &ToolResultLimit) -> bool {
        let length_max = limit.length_max_of_text();
        content.len() as u64 <= self.content_bytes_max(length_max)
            && self.length_of_content(content) <= length_max
    }
}

impl Measure for ToolResult {
    fn escaped_per_unit(&self) -> u64 {
        if self.counter.is_some() { 4 } else { 1 }
    }

    fn length(&self, text: &str) -> u64 {
        let Some(counter) = self.counter else { return self.envelope + Escaped.length(text) };
        let [id, name, text] =
            [&self.call_id, &self.tool_name, text].map(|text| serde_json::Value::from(text).to_string());
        let message = format::tool_result(self.format, &id, &name, &text);
        counter.count_entry(&format::read(self.format, message.as_bytes()))
    }
}
