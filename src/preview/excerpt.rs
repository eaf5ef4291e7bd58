//! What is shown of an end.

use super::clean::{CUT_MARGIN, clean};
use super::{Ends, Escaped, Measure as _, Side};
use unicode_segmentation::UnicodeSegmentation as _;

/// What is shown of an end.
#[derive(Debug)]
pub(super) struct Excerpt<'a> {
    pub(super) text: String,
    /// Escaped length of the text.
    pub(super) length: u64,
    /// The part of the content that it stands for.
    pub(super) bytes: &'a [u8],
}

/// Lines are sane if whole ones are at least one part in so many of what could
/// be shown.
const WHOLE_LINES_SHARE: u64 = 2;

/// Bytes over which a grapheme is cut between its code points. The longest
/// emoji have about 40; more is one that was made to be long.
const GRAPHEME_BYTES_MAX: usize = 256;

/// Bytes of a line of a hex dump.
const DUMP_LINE_BYTES: usize = 16;

impl Ends {
    /// The part of an end that has at most `length_max` escaped characters, but
    /// for the first `taken` bytes of the content.
    pub(super) fn excerpt(&self, side: Side, taken: usize, length_max: u64) -> Excerpt<'_> {
        let head = self.head.get(taken..).unwrap_or_default();
        let bytes = match (side, &self.tail) {
            (Side::Tail, Some(tail)) => tail,
            _ => head,
        };
        if self.is_binary {
            dump(bytes, side, self.totals.bytes, length_max)
        } else {
            text(bytes, side, self.tail.is_some(), length_max)
        }
    }
}

/// Whole lines, or whole graphemes where lines are not sane. If `is_cut`, the
/// content goes on at the inner side of `bytes`.
fn text(bytes: &[u8], side: Side, is_cut: bool, length_max: u64) -> Excerpt<'_> {
    let cleaned = clean(bytes);
    let mut graphemes: Vec<_> = graphemes(&cleaned.text).collect();
    if side == Side::Tail {
        graphemes.reverse();
    }
    let reach = cleaned.text_of_bytes(side, bytes.len().saturating_sub(if is_cut { CUT_MARGIN } else { 0 }));
    let (mut taken, mut length) = (0, 0);
    let mut lines = (0, 0);
    for grapheme in graphemes {
        let ends_line = grapheme.ends_with('\n');
        if ends_line && side == Side::Tail {
            lines = (taken, length);
        }
        let longer = length + Escaped.length(grapheme);
        if longer > length_max || taken + grapheme.len() > reach {
            break;
        }
        (taken, length) = (taken + grapheme.len(), longer);
        if ends_line && side == Side::Head {
            lines = (taken, length);
        }
    }
    if taken < cleaned.text.len() && lines.1 * WHOLE_LINES_SHARE >= length {
        (taken, length) = lines;
    }
    let stands_for = cleaned.bytes_of_text(side, taken);
    let (text, bytes) = match side {
        Side::Head => (cleaned.text.get(..taken), bytes.get(..stands_for)),
        Side::Tail => (cleaned.text.get(cleaned.text.len() - taken..), bytes.get(bytes.len() - stands_for..)),
    };
    Excerpt { text: text.unwrap_or_default().to_owned(), length, bytes: bytes.unwrap_or_default() }
}

/// The graphemes of a text; of one that is too long its code points.
fn graphemes(text: &str) -> impl Iterator<Item = &str> {
    text.graphemes(true).flat_map(|g| g.split_inclusive(move |_| g.len() > GRAPHEME_BYTES_MAX))
}

/// A hex dump.
fn dump(bytes: &[u8], side: Side, content_bytes: u64, length_max: u64) -> Excerpt<'_> {
    let (mut taken, mut length) = (0, 0);
    let mut lines = Vec::new();
    let mut rows = bytes.chunks(DUMP_LINE_BYTES);
    let mut last_rows = bytes.rchunks(DUMP_LINE_BYTES);
    while let Some(row) = if side == Side::Head { rows.next() } else { last_rows.next() } {
        let offset = match side {
            Side::Head => taken as u64,
            Side::Tail => content_bytes.saturating_sub((taken + row.len()) as u64),
        };
        let line = dump_line(offset, row);
        let longer = length + Escaped.length(&line);
        if longer > length_max {
            break;
        }
        (taken, length) = (taken + row.len(), longer);
        lines.push(line);
    }
    let bytes = match side {
        Side::Head => bytes.get(..taken),
        Side::Tail => {
            lines.reverse();
            bytes.get(bytes.len() - taken..)
        }
    };
    Excerpt { text: lines.concat(), length, bytes: bytes.unwrap_or_default() }
}

/// The offset, the bytes, and what of them is ASCII.
fn dump_line(offset: u64, row: &[u8]) -> String {
    let hex = row.iter().map(|byte| format!(" {byte:02x}")).collect::<Vec<_>>().concat();
    let ascii = row.iter().map(|byte| if matches!(byte, b' '..=b'~') { char::from(*byte) } else { '.' });
    let ascii: String = ascii.collect();
    format!("{offset:08x} {hex:width$}  {ascii}\n", width = 3 * DUMP_LINE_BYTES)
}
