//! Previews: the two ends of a text that is too large, with a marker in the
//! middle that says what is left out and where it is.
//!
//! Whole lines are shown where lines are sane, whole graphemes otherwise. Escape
//! sequences of terminals are left out of what is shown; content that is no text
//! is shown as a hex dump. The same content gives the same preview, however it
//! came in.

mod clean;
mod ends;
mod excerpt;
mod oversized;
mod oversized_media;
mod shortened;
mod tool_result;

pub use ends::{Ends, Scanner, Totals};
pub use oversized::{Oversized, no_result_can_be_oversized, oversized_results};
pub use oversized_media::{OversizedMedia, no_media_can_be_oversized, oversized_media};
pub use shortened::{long_result_tokens, shortened_results, shortened_texts};
pub use tool_result::ToolResult;

use crate::format::escaped_length;

/// How long a text is, by the limit that it must keep to.
pub trait Measure {
    /// Escaped characters that one unit of length stands for, as a first guess:
    /// what turns out too long is made shorter, what turns out short stays.
    fn escaped_per_unit(&self) -> u64;

    /// The length of `text` as it stands in a message.
    fn length(&self, text: &str) -> u64;
}

/// Length of a text in a JSON string whose writer escapes all that it may, in
/// characters: see [`escaped_length`]. As all of it is ASCII, it is as many bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Escaped;

impl Measure for Escaped {
    fn escaped_per_unit(&self) -> u64 {
        1
    }

    fn length(&self, text: &str) -> u64 {
        text.chars().map(escaped_length).sum()
    }
}

/// How many bytes at the beginning of `bytes` are, as text, no longer than
/// `escaped_max` by [`Escaped`]. No code point is cut.
pub fn fitting_prefix(bytes: &[u8], escaped_max: u64) -> usize {
    let (mut length, mut fitting) = (0, 0);
    let mut fits = |more: u64, bytes: usize| {
        length += more;
        let fits = length <= escaped_max;
        fitting += if fits { bytes } else { 0 };
        fits
    };
    for chunk in bytes.utf8_chunks() {
        if !chunk.valid().chars().all(|c| fits(escaped_length(c), c.len_utf8())) {
            break;
        }
        let invalid = chunk.invalid().len();
        if invalid > 0 && !fits(escaped_length(char::REPLACEMENT_CHARACTER), invalid) {
            break;
        }
    }
    fitting
}

/// How a preview is to be.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a, M> {
    /// The longest that it may be, marker included, by `measure`.
    pub length_max: u64,
    /// How length is measured.
    pub measure: &'a M,
    /// Share of what is shown that the beginning gets, in percent; the end gets
    /// the rest, and what the beginning has no use for.
    pub head_percent: u8,
    /// Name of the whole output.
    pub reference: &'a str,
}

/// A preview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// What stands in place of the content.
    pub text: String,
    /// The size of what lies between the ends that are shown.
    pub omitted: Totals,
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Head,
    Tail,
}

impl Ends {
    /// The preview of the content of which these are the ends. Nothing if not
    /// even the marker fits.
    pub fn preview<M: Measure>(&self, options: &Options<'_, M>) -> Option<Preview> {
        let whole = format!(
            "The whole output is {} (to read on, call read_tool_output with this ref and a range of lines or \
             bytes, or a pattern)",
            options.reference
        );
        self.preview_of(options, &whole)
    }

    /// As [`Self::preview`]; `whole` is the sentence that says where all of it is.
    fn preview_of<M: Measure>(&self, options: &Options<'_, M>, whole: &str) -> Option<Preview> {
        // With the largest numbers: the marker that is used is never longer.
        let marker_max = format!("\n{}\n", self.marker(&self.totals, &self.totals, whole));
        let room = options.length_max.checked_sub(options.measure.length(&marker_max))?;
        let mut body = room.saturating_mul(options.measure.escaped_per_unit());
        loop {
            let (made, shown) = self.preview_of_length(body, options, whole);
            let length = options.measure.length(&made.text);
            if length <= options.length_max {
                return Some(made);
            }
            if body == 0 {
                return None;
            }
            // As much as fits if the rest is like this; a tenth less at least, so
            // that this ends soon.
            let fitting = u128::from(shown) * u128::from(options.length_max) / u128::from(length);
            body = u64::try_from(fitting).unwrap_or(u64::MAX).min(body - body.div_ceil(10));
        }
    }

    /// The preview that shows at most `body` escaped characters of the content,
    /// with how many it shows.
    fn preview_of_length<M>(&self, body: u64, options: &Options<'_, M>, whole: &str) -> (Preview, u64) {
        let head_max = u128::from(body) * u128::from(options.head_percent.min(100)) / 100;
        let head = self.excerpt(Side::Head, 0, u64::try_from(head_max).unwrap_or(body));
        let tail = self.excerpt(Side::Tail, head.bytes.len(), body.saturating_sub(head.length));
        let before = Totals::of(head.bytes);
        let omitted = self.totals.minus(&before).minus(&Totals::of(tail.bytes));
        let marker = self.marker(&omitted, &before, whole);
        let line_break = if head.text.is_empty() || head.text.ends_with('\n') { "" } else { "\n" };
        let text = [&head.text, line_break, &marker, "\n", &tail.text].concat();
        (Preview { text, omitted }, head.length + tail.length)
    }

    /// What stands in the middle, on a line of its own; `before` is the size of
    /// what is shown before it.
    fn marker(&self, omitted: &Totals, before: &Totals, whole: &str) -> String {
        let Totals { bytes, characters, lines } = omitted;
        let what = if self.is_binary {
            format!("{bytes} of {} bytes of binary data left out", self.totals.bytes)
        } else {
            format!("{lines} lines, {characters} characters, {bytes} bytes left out")
        };
        format!("[... {what}, from byte {} in line {} on. {whole} ...]", before.bytes, before.lines + 1)
    }
}
