//! Tool results in a message that are too long, and what stands in their place.

use super::{Ends, Escaped, Measure as _, Options, Preview, ToolResult};
use crate::format::json::Value;
use crate::format::{Part, Reading, ResultContent, Role, result_contents};
use crate::limits::TOOL_RESULT_WRAPPING_MAX;
use crate::model::{LengthUnit, ToolResultLimit, WireFormat};
use crate::tokens::TokenCounter;
use std::borrow::Cow;
use std::ops::Range;

/// A value of a message that makes a tool result too long: its largest text or, if
/// no text by itself is to blame, the whole content of the result.
#[derive(Debug)]
pub struct Oversized<'a> {
    /// The result.
    result: ResultContent<'a>,
    /// The text; none if it is the whole content.
    text: Option<Value<'a>>,
    /// Length of all that stays in the message beside it, without the envelope.
    others: u64,
    /// The message with the result alone.
    measure: ToolResult,
    limit: ToolResultLimit,
}

/// The values that make results in `payload` too long, in order; at most one for
/// each result. A result is measured without its names and without what is usual
/// around its text, so that none is found of which an offload said that it is
/// short enough, nor a preview that an offload made.
pub fn oversized_results(
    format: WireFormat,
    payload: &[u8],
    limit: ToolResultLimit,
    counter: TokenCounter,
) -> Vec<Oversized<'_>> {
    // The shortest payload that can be too long: a character of one byte is never
    // more than six, a token never less than one.
    let length_max = limit.length_max();
    let growth = if limit.unit == LengthUnit::Tokens { 1 } else { 6 };
    if (payload.len() as u64).saturating_mul(growth) <= length_max {
        return vec![];
    }
    let results = result_contents(format, payload);
    let found = results.into_iter().filter_map(|result| {
        let nameless = ToolResult::new(measured_as(&result, format), "", "", limit.unit, counter);
        oversized(result, format, limit, counter, &nameless)
    });
    found.collect()
}

fn oversized<'a>(
    result: ResultContent<'a>,
    format: WireFormat,
    limit: ToolResultLimit,
    counter: TokenCounter,
    nameless: &ToolResult,
) -> Option<Oversized<'a>> {
    let length_max = limit.length_max();
    let envelope = nameless.envelope();
    let length = |text: &Value<'_>| {
        let text = text.text().unwrap_or_default();
        // What is longer than that by far need not be counted.
        if text.len() as u64 > nameless.content_bytes_max(length_max) {
            return length_max.max(text.len() as u64 / TEXT_BYTES_PER_UNIT);
        }
        nameless.length(&text).saturating_sub(envelope)
    };
    let lengths: Vec<u64> = result.texts.iter().map(length).collect();
    let texts: u64 = lengths.iter().sum();
    let wrapping = wrapping(&result, limit.unit, counter);
    let counted = wrapping.saturating_sub(TOOL_RESULT_WRAPPING_MAX);
    if envelope + texts + counted <= length_max {
        return None;
    }
    let largest = result.texts.iter().copied().zip(lengths).max_by_key(|(_, length)| *length);
    let alone = result.whole.is_string();
    let text = largest.filter(|(_, length)| {
        alone || (wrapping + texts - length).saturating_add(envelope) <= length_max / 2
    });
    let others = match text {
        Some((_, length)) => wrapping + texts - length,
        None => wrapping_of_text(&result, limit.unit, counter),
    };
    // A text takes the place of the whole.
    let format = if text.is_some() { measured_as(&result, format) } else { format };
    let measure = ToolResult::new(format, &result.call_id, &result.tool_name, limit.unit, counter);
    Some(Oversized { text: text.map(|(text, _)| text), result, others, measure, limit })
}

/// The format whose results are as this one: Gemini's are JSON.
fn measured_as(result: &ResultContent<'_>, format: WireFormat) -> WireFormat {
    if result.is_json { WireFormat::GeminiContents } else { format }
}

/// Bytes of text that are taken for one unit of length at most where they are not
/// counted: a guess that only tells which text is the largest.
const TEXT_BYTES_PER_UNIT: u64 = 8;

/// Length of a content without its texts and media.
fn wrapping(result: &ResultContent<'_>, unit: LengthUnit, counter: TokenCounter) -> u64 {
    if result.whole.is_string() {
        return 0;
    }
    let mut left_out: Vec<_> = result.texts.iter().chain(&result.media).map(|value| value.range()).collect();
    left_out.sort_by_key(|range| range.start);
    let (whole, first) = (result.whole.bytes(), result.whole.range().start);
    let (mut rest, mut from) = (Vec::new(), 0);
    for range in left_out {
        rest.extend_from_slice(whole.get(from..range.start.saturating_sub(first)).unwrap_or_default());
        from = range.end.saturating_sub(first);
    }
    rest.extend_from_slice(whole.get(from..).unwrap_or_default());
    json_length(&rest, unit, counter)
}

/// Length of what stands around a text that takes the place of all but the media.
fn wrapping_of_text(result: &ResultContent<'_>, unit: LengthUnit, counter: TokenCounter) -> u64 {
    let mut json = result.with_text("");
    for media in &result.media {
        json = json.replacen(&*String::from_utf8_lossy(media.bytes()), "", 1);
    }
    json_length(json.as_bytes(), unit, counter)
}

/// Length of JSON, which may be cut up.
fn json_length(json: &[u8], unit: LengthUnit, counter: TokenCounter) -> u64 {
    match unit {
        LengthUnit::Tokens => {
            counter.count_entry(&Reading { parts: vec![Part::Json(json)], ..Reading::new(Role::Results) })
        }
        LengthUnit::Characters | LengthUnit::Bytes => raw_length(json),
    }
}

/// Length of JSON as the most verbose writer would write it, in characters.
fn raw_length(json: &[u8]) -> u64 {
    let length = |chunk: &str| {
        // What [`Escaped`] takes for escaped is escaped already, and spaces follow
        // separators.
        let escaped = chunk.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
        let separators = chunk.bytes().filter(|byte| matches!(byte, b',' | b':')).count();
        Escaped.length(chunk) + separators as u64 - escaped as u64
    };
    String::from_utf8_lossy(json).lines().map(length).sum()
}

impl Oversized<'_> {
    /// Id of the result's call; empty if it has none.
    pub fn call_id(&self) -> &str {
        &self.result.call_id
    }

    /// Name of the tool, where the result gives it; else empty.
    pub fn tool_name(&self) -> &str {
        &self.result.tool_name
    }

    /// Where the value stands in the payload.
    pub fn place(&self) -> Range<usize> {
        self.text.unwrap_or(self.result.whole).range()
    }

    /// What is to be kept: the text, or the content's JSON.
    pub fn content(&self) -> Cow<'_, [u8]> {
        let whole = self.result.whole.bytes();
        match self.text.map(|text| text.text().unwrap_or_default()) {
            Some(Cow::Borrowed(text)) => Cow::Borrowed(text.as_bytes()),
            Some(Cow::Owned(text)) => Cow::Owned(text.into_bytes()),
            None => Cow::Borrowed(whole),
        }
    }

    /// Media type of what is to be kept.
    pub fn content_type(&self) -> &'static str {
        if self.text.is_some() { "text/plain; charset=utf-8" } else { "application/json" }
    }

    /// The preview of `content`, and the value that stands in place of this one.
    /// Nothing if the limit leaves no room for a preview.
    pub fn replaced(&self, content: &[u8], head_percent: u8, reference: &str) -> Option<(Preview, String)> {
        let length_max = self.limit.length_max().saturating_sub(self.others);
        let shown_max = length_max.saturating_mul(self.measure.escaped_per_unit());
        let ends = Ends::of(content, usize::try_from(shown_max).unwrap_or(usize::MAX));
        let options = Options { length_max, measure: &self.measure, head_percent, reference };
        let preview = ends.preview(&options)?;
        let token = serde_json::Value::from(preview.text.as_str()).to_string();
        let value = if self.text.is_some() { token } else { self.result.with_text(&token) };
        Some((preview, value))
    }
}
