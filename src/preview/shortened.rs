//! Entries of which long texts are shown by their two ends.

use super::{Ends, Measure, Options};
use crate::format::{Part, read, result_contents, with_values};
use crate::limits::{SNIP_CHARACTERS, SNIPPED_CHARACTERS};
use crate::model::{Seq, WireFormat};
use crate::tokens::TokenCounter;
use bytes::Bytes;
use std::ops::Range;

/// Share of a shortened text that its beginning gets, in percent.
const HEAD_PERCENT: u8 = 50;

/// Characters as they are.
struct Characters;

impl Measure for Characters {
    fn escaped_per_unit(&self) -> u64 {
        1
    }

    fn length(&self, text: &str) -> u64 {
        text.chars().count() as u64
    }
}

/// Tokens.
struct Tokens(TokenCounter);

impl Measure for Tokens {
    fn escaped_per_unit(&self) -> u64 {
        4
    }

    fn length(&self, text: &str) -> u64 {
        self.0.count_text(text)
    }
}

/// The entry with the ends of its long tool results in place of them; nothing if
/// none has more than [`SNIP_CHARACTERS`]. Only those values change. `later` is the
/// entry that made the results stale, if one did. `only` are the places of the results
/// that are shown so, if not all are.
pub fn shortened_results(
    format: WireFormat,
    payload: &Bytes,
    seq: Seq,
    later: Option<Seq>,
    only: Option<&[u32]>,
) -> Option<Bytes> {
    let whole = match later {
        None => whole_of(seq),
        Some(later) => format!("{}; what it shows was read again or changed in entry {later}", whole_of(seq)),
    };
    let results = result_contents(format, payload);
    let shown = (0..).zip(&results).filter(|(place, _)| only.is_none_or(|only| only.contains(place)));
    let texts = shown.flat_map(|(_, result)| &result.texts).filter_map(|text| {
        let content = text.text()?;
        let shown = is_long(&content)
            .then(|| shortened(&content, SNIPPED_CHARACTERS, &Characters, &whole))
            .flatten()?;
        Some((text.range(), shown))
    });
    changed(payload, &texts.collect::<Vec<_>>())
}

/// Tokens of those texts of each result in a payload that [`shortened_results`] would
/// show by their ends, in order.
pub fn long_result_tokens(format: WireFormat, payload: &[u8], counter: TokenCounter) -> Vec<u64> {
    let results = result_contents(format, payload);
    let tokens = results.iter().map(|result| {
        let texts = result.texts.iter().filter_map(|text| text.text()).filter(|text| is_long(text));
        texts.fold(0, |sum: u64, text| sum.saturating_add(counter.count_text(&text)))
    });
    tokens.collect()
}

/// Whether a text of a result is shown by its ends.
fn is_long(text: &str) -> bool {
    // No text has more characters than bytes.
    text.len() as u64 > SNIP_CHARACTERS && Characters.length(text) > SNIP_CHARACTERS
}

/// The entry with its texts shortened so that they have at most `tokens_max` tokens;
/// nothing if they have no more. Only those values change.
pub fn shortened_texts(
    format: WireFormat,
    payload: &Bytes,
    seq: Seq,
    tokens_max: u64,
    counter: TokenCounter,
) -> Option<Bytes> {
    let reading = read(format, payload);
    let mut texts: Vec<(Range<usize>, String, u64)> = Vec::new();
    for part in &reading.parts {
        let Part::Text(token) = part else { continue };
        let start = token.as_ptr().addr().checked_sub(payload.as_ptr().addr())?;
        // A lone surrogate makes a text that cannot be shown; it stays.
        let Ok(text) = serde_json::from_slice::<String>(token) else { continue };
        let tokens = counter.count_text(&text);
        texts.push((start..start + token.len(), text, tokens));
    }
    let mut excess = texts.iter().map(|(_, _, tokens)| tokens).sum::<u64>().checked_sub(tokens_max)?;
    if excess == 0 {
        return None;
    }
    // The longest first: mostly there is one that is to blame.
    texts.sort_by_key(|(place, _, tokens)| (std::cmp::Reverse(*tokens), place.start));
    let mut values = Vec::new();
    for (place, text, tokens) in texts {
        if excess == 0 {
            break;
        }
        let room = tokens.saturating_sub(excess).max(tokens_max / 4);
        let Some(shown) = shortened(&text, room, &Tokens(counter), &whole_of(seq)) else { continue };
        excess = excess.saturating_sub(tokens.saturating_sub(room));
        values.push((place, shown));
    }
    values.sort_by_key(|(place, _)| place.start);
    changed(payload, &values)
}

/// A JSON string of the ends of `text`; nothing if not even the marker fits.
fn shortened(text: &str, length_max: u64, measure: &impl Measure, whole: &str) -> Option<String> {
    let shown_max = length_max.saturating_mul(measure.escaped_per_unit());
    let ends = Ends::of(text.as_bytes(), usize::try_from(shown_max).unwrap_or(usize::MAX));
    let options = Options { length_max, measure, head_percent: HEAD_PERCENT, reference: "" };
    let preview = ends.preview_of(&options, whole)?;
    (preview.text.len() < text.len()).then(|| serde_json::Value::from(preview.text).to_string())
}

/// Says where all of an entry is.
fn whole_of(seq: Seq) -> String {
    format!("The whole of it is in entry {seq} of the log, which search_transcript searches")
}

fn changed(payload: &Bytes, values: &[(Range<usize>, String)]) -> Option<Bytes> {
    (!values.is_empty()).then(|| Bytes::from(with_values(payload, values)))
}
