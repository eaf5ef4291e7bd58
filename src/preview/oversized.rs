//! Tool results in a message that are too long, and what stands in their place.

use super::{Ends, Escaped, Measure, Options, Preview};
use crate::format::json::Value;
use crate::format::{self, Part, ResultContent, result_contents};
use crate::limits::TOKEN_TEXT_BYTES_MAX;
use crate::model::{LengthUnit, ToolResultLimit, WireFormat};
use crate::tokens::{TokenCounter, with_few_escapes};
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
    /// The message without the value.
    around: Around,
    limit: ToolResultLimit,
}

/// Whether a payload is so short that no result in it is too long: a character of one
/// byte is never more than six, a token never less than one.
pub fn no_result_can_be_oversized(payload: &[u8], limit: ToolResultLimit) -> bool {
    let growth = if limit.unit == LengthUnit::Tokens { 1 } else { 6 };
    (payload.len() as u64).saturating_mul(growth) <= limit.length_max()
}

/// The values that make results in `payload` too long, in order; at most one for
/// each result. The length of a result is that of the message with it alone, without
/// the data of its pictures and documents, as the most verbose writer would serialize
/// it.
pub fn oversized_results(
    format: WireFormat,
    payload: &[u8],
    limit: ToolResultLimit,
    counter: TokenCounter,
) -> Vec<Oversized<'_>> {
    if no_result_can_be_oversized(payload, limit) {
        return vec![];
    }
    let counter = (limit.unit == LengthUnit::Tokens).then_some((format, counter));
    let results = result_contents(format, payload);
    results.into_iter().filter_map(|result| oversized(payload, result, limit, counter)).collect()
}

/// Counts the tokens of messages in a format.
type Counter = (WireFormat, TokenCounter);

fn oversized<'a>(
    payload: &[u8],
    result: ResultContent<'a>,
    limit: ToolResultLimit,
    counter: Option<Counter>,
) -> Option<Oversized<'a>> {
    let length_max = limit.length_max();
    // What has more bytes is too long, and how long need not be known.
    let bytes_max = counter.map_or(length_max, |_| length_max.saturating_mul(TOKEN_TEXT_BYTES_MAX));
    let length = |text: &Value<'_>| {
        let text = text.text().unwrap_or_default();
        let bytes = text.len() as u64;
        if counter.is_some() || bytes > bytes_max { bytes } else { Escaped.length(&text) }
    };
    let lengths: Vec<u64> = result.texts.iter().map(length).collect();
    let texts: u64 = lengths.iter().sum();
    let media: Vec<_> = result.media_data().collect();
    let inner = result.texts.iter().map(|text| inner(*text));
    let frame = characters(&cut(payload, &result.message, media.iter().cloned().chain(inner)));
    let total = match counter {
        None => frame + texts,
        Some(_) if texts > bytes_max => u64::MAX,
        Some(counter) => tokens(counter, &cut(payload, &result.message, media.iter().cloned())),
    };
    if total <= length_max {
        return None;
    }
    let outside = |value: Range<usize>| {
        [value.start..payload.len(), 0..value.end]
            .map(|other| cut(payload, &result.message, media.iter().cloned().chain([other])))
    };
    let largest = result.texts.iter().copied().zip(lengths).max_by_key(|(_, length)| *length);
    let largest = largest.map(|(text, length)| {
        let others = texts - length;
        let around = Around { json: outside(text.range()), length: frame + others, counter };
        let is_short = || others <= bytes_max && around.length("") <= length_max / 2;
        let is_to_blame = result.whole.is_string() || is_short();
        is_to_blame.then_some((text, around))
    });
    let (text, around) = if let Some((text, around)) = largest.flatten() {
        (Some(text), around)
    } else {
        let [before, after] = outside(result.whole.range());
        let [open, close] = result.around_text();
        let json = [[before, open].concat(), [close, after].concat()];
        // With the quotes of the text.
        let length = characters(&json.concat()) + 2;
        (None, Around { json, length, counter })
    };
    Some(Oversized { result, text, around, limit })
}

/// A message with one result and without the data of media, but for a text: the measure of the
/// texts that may stand there.
#[derive(Debug)]
struct Around {
    /// The JSON before and after the text with its quotes.
    json: [Vec<u8>; 2],
    /// Characters without the text.
    length: u64,
    /// Counts the message if the limit is in tokens.
    counter: Option<Counter>,
}

impl Measure for Around {
    fn escaped_per_unit(&self) -> u64 {
        if self.counter.is_some() { 4 } else { 1 }
    }

    fn length(&self, text: &str) -> u64 {
        let Some(counter) = self.counter else { return self.length + Escaped.length(text) };
        let token = serde_json::Value::from(text).to_string();
        let [before, after] = &self.json;
        tokens(counter, &[before, token.as_bytes(), after].concat())
    }
}

/// Tokens of a message, but for its media, and however its writer escapes.
fn tokens((format, counter): Counter, message: &[u8]) -> u64 {
    let message = with_few_escapes(message);
    let mut reading = format::read(format, message.as_bytes());
    reading.parts.retain(|part| !matches!(part, Part::Media { .. }));
    counter.count_entry(&reading)
}

/// What stands between the quotes of a string.
fn inner(string: Value<'_>) -> Range<usize> {
    let range = string.range();
    range.start + 1..range.end.saturating_sub(1)
}

/// The bytes of a payload in `pieces`, which are in order, but for what is left out.
fn cut(payload: &[u8], pieces: &[Range<usize>], left_out: impl Iterator<Item = Range<usize>>) -> Vec<u8> {
    let mut left_out: Vec<_> = left_out.collect();
    left_out.sort_by_key(|range| range.start);
    let mut kept = Vec::new();
    for piece in pieces {
        let mut from = piece.start;
        for range in &left_out {
            kept.extend_from_slice(payload.get(from..range.start.min(piece.end)).unwrap_or_default());
            from = from.max(range.end);
        }
        kept.extend_from_slice(payload.get(from..piece.end).unwrap_or_default());
    }
    kept
}

/// Length of JSON as the most verbose writer would write it, in characters. It may be
/// cut up.
fn characters(json: &[u8]) -> u64 {
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
    pub fn replaced(&self, content: &[u8], reference: &str) -> Option<(Preview, String)> {
        let around = self.around.length("");
        let wanted = self.limit.preview_length.map_or(u64::MAX, |wanted| wanted.saturating_add(around));
        let length_max = self.limit.length_max().min(wanted);
        let room = length_max.saturating_sub(around);
        let shown_max = room.saturating_mul(self.around.escaped_per_unit());
        let ends = Ends::of(content, usize::try_from(shown_max).unwrap_or(usize::MAX));
        let head_percent = self.limit.head_percent();
        let options = Options { length_max, measure: &self.around, head_percent, reference };
        let preview = ends.preview(&options)?;
        let token = serde_json::Value::from(preview.text.as_str()).to_string();
        let value = if self.text.is_some() { token } else { self.result.with_text(&token) };
        Some((preview, value))
    }
}
