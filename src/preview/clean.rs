//! Content as text to be shown: without escape sequences, and with
//! [`REPLACEMENT`] for what is no text.

use super::Side;
use std::ops::RangeInclusive;

/// Bytes up to which an escape sequence is one. Terminals take hyperlinks of
/// about 2,000, the longest that are in use.
const SEQUENCE_BYTES_MAX: usize = 2048;

/// Bytes that are not shown beside a cut: they may be the rest of a code
/// point, escape sequence or grapheme of which the cut took the beginning.
pub(super) const CUT_MARGIN: usize = 2 * SEQUENCE_BYTES_MAX;

/// Stands for a NUL, which often separates names, and for bytes that are no
/// UTF-8.
const REPLACEMENT: &str = "\u{fffd}";

/// Text that is shown for bytes.
#[derive(Debug, Default)]
pub(super) struct Cleaned {
    pub(super) text: String,
    runs: Vec<Run>,
}

/// So many bytes are so many bytes of text. The bytes are the text if the
/// numbers are equal.
#[derive(Clone, Copy, Debug)]
struct Run {
    bytes: usize,
    text: usize,
}

impl Cleaned {
    fn push(&mut self, bytes: usize, text: &str) {
        self.text.push_str(text);
        self.runs.push(Run { bytes, text: text.len() });
    }

    /// How many bytes the outermost `text` bytes of the text stand for; escape
    /// sequences beside them are among those.
    pub(super) fn bytes_of_text(&self, side: Side, text: usize) -> usize {
        self.counterpart(side, text, |run| (run.text, run.bytes))
    }

    /// How many bytes of text are shown for the outermost `bytes` bytes.
    pub(super) fn text_of_bytes(&self, side: Side, bytes: usize) -> usize {
        self.counterpart(side, bytes, |run| (run.bytes, run.text))
    }

    /// Translates one length into the other; `lengths` gives those of a run.
    fn counterpart(&self, side: Side, length: usize, lengths: impl Fn(&Run) -> (usize, usize)) -> usize {
        let (mut left, mut found) = (length, 0);
        let mut runs = self.runs.iter();
        while let Some(run) = if side == Side::Head { runs.next() } else { runs.next_back() } {
            let (from, to) = lengths(run);
            if from > left {
                return if from == to { found + left } else { found };
            }
            left -= from;
            found += to;
        }
        found
    }
}

/// The text that is shown for `bytes`.
pub(super) fn clean(bytes: &[u8]) -> Cleaned {
    let mut cleaned = Cleaned::default();
    for chunk in bytes.utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some((plain, from_control)) = rest.find(is_hidden).and_then(|at| rest.split_at_checked(at))
        {
            cleaned.push(plain.len(), plain);
            let (length, text) = control(from_control);
            cleaned.push(length, text);
            rest = from_control.get(length..).unwrap_or_default();
        }
        cleaned.push(rest.len(), rest);
        if !chunk.invalid().is_empty() {
            cleaned.push(chunk.invalid().len(), REPLACEMENT);
        }
    }
    cleaned
}

/// Whether a character is not shown as it is.
fn is_hidden(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\r' | '\t')
}

/// Whether a character is found in binary data and not in what is written to a
/// terminal.
pub(super) fn is_strange(c: char) -> bool {
    is_hidden(c) && !matches!(c, '\u{7}' | '\u{8}' | '\u{c}' | '\u{1b}')
}

/// How many bytes the control character or escape sequence at the beginning of
/// `text` has, and what is shown for it.
fn control(text: &str) -> (usize, &'static str) {
    match text.chars().next() {
        Some('\0') => (1, REPLACEMENT),
        Some('\u{1b}') => (sequence_length(text.as_bytes()), ""),
        other => (other.map_or(text.len(), char::len_utf8), ""),
    }
}

/// Bytes of the escape sequence (ECMA-48) at the beginning of `text`. Of one that
/// is not complete only the introducer counts, so that a stray one does not hide
/// what follows.
fn sequence_length(text: &[u8]) -> usize {
    let Some(second) = text.get(1) else { return 1 };
    match second {
        b'[' => with_final(text, 2, 0x20..=0x3f, 0x40..=0x7e).unwrap_or(2),
        b']' | b'P' | b'X' | b'^' | b'_' => string_length(text).unwrap_or(2),
        0x20..=0x2f => with_final(text, 1, 0x20..=0x2f, 0x30..=0x7e).unwrap_or(1),
        0x30..=0x7e => 2,
        _ => 1,
    }
}

/// Length up to the first byte that is not among `inner`, from `start` on, if
/// that is one of `last`.
fn with_final(
    text: &[u8],
    start: usize,
    inner: RangeInclusive<u8>,
    last: RangeInclusive<u8>,
) -> Option<usize> {
    let mut candidates = text.iter().enumerate().take(SEQUENCE_BYTES_MAX).skip(start);
    let (at, byte) = candidates.find(|(_, byte)| !inner.contains(byte))?;
    last.contains(byte).then_some(at + 1)
}

/// Length of a control string, such as a window's title or a hyperlink, up to its
/// terminator; it has no line breaks.
fn string_length(text: &[u8]) -> Option<usize> {
    let known = text.get(..SEQUENCE_BYTES_MAX).unwrap_or(text);
    let at = 2 + memchr::memchr3(b'\n', 0x07, 0x1b, known.get(2..)?)?;
    match (text.get(at)?, text.get(at + 1)) {
        (0x07, _) => Some(at + 1),
        (0x1b, Some(b'\\')) => Some(at + 2),
        _ => None,
    }
}
