//! What holds of every preview, of any content at any limit.

#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use std::ops::Range;
use turnkeep::preview::{Ends, Escaped, Measure, Options, Preview, Scanner, Totals};
use unicode_segmentation::UnicodeSegmentation as _;

const REFERENCE: &str = "turnkeep://sessions/s-1/outputs/0198c0de";

/// A length at which the marker fits, whatever its numbers.
const MARKER_FITS: u64 = 320;

fn options(length_max: u64, head_percent: u8) -> Options<'static, Escaped> {
    Options { length_max, measure: &Escaped, head_percent, reference: REFERENCE }
}

/// The preview of `content` with the default share, from ends that are as long
/// as it may be.
fn preview(content: &[u8], length_max: u64) -> Preview {
    let shown_max = usize::try_from(length_max).unwrap();
    let made = Ends::of(content, shown_max).preview(&options(length_max, 50)).unwrap();
    assert!(Escaped.length(&made.text) <= length_max);
    made
}

/// A preview taken apart.
struct Parts<'a> {
    /// What is shown of the beginning, and perhaps a line break of the marker.
    head: &'a str,
    marker: &'a str,
    tail: &'a str,
    /// The bytes of the content that are left out.
    omitted: Range<usize>,
}

fn parts(preview: &Preview) -> Parts<'_> {
    let reference = preview.text.find(REFERENCE).unwrap();
    let (head, rest) = preview.text.split_at(preview.text[..reference].rfind("[... ").unwrap());
    let (marker, tail) = rest.split_once(" ...]\n").unwrap();
    let start = marker.split_once("from byte ").unwrap().1.split_once(' ').unwrap().0.parse().unwrap();
    let bytes = usize::try_from(preview.omitted.bytes).unwrap();
    Parts { head, marker, tail, omitted: start..start + bytes }
}

/// A piece of content, with what is shown for it.
type Piece = (Vec<u8>, String);

fn plain(text: impl Strategy<Value = String>) -> impl Strategy<Value = Piece> {
    text.prop_map(|text| (text.clone().into_bytes(), text))
}

fn hidden(bytes: &'static [u8]) -> impl Strategy<Value = Piece> {
    Just((bytes.to_vec(), String::new()))
}

/// Pieces that do not change one another's meaning.
fn piece() -> impl Strategy<Value = Piece> {
    let words = "[a-z]{5,9}( [a-z]{1,9}){0,9}";
    prop_oneof![
        // All of Unicode but for control characters.
        4 => plain("\\PC{0,40}"),
        4 => plain("[ -~]{0,80}\n"),
        1 => plain("[ -~]{0,80}\r\n"),
        1 => plain("[a-zA-Z0-9+/]{0,300}"),
        1 => plain("(\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}|e\u{301}|\u{1f1e9}\u{1f1ea} |\"|\\\\|\t){0,40}"),
        1 => plain((any::<char>(), 0_usize..200).prop_map(|(c, n)| {
            if c.is_control() { String::new() } else { c.to_string().repeat(n) }
        })),
        1 => hidden(b"\x1b[31m"),
        1 => hidden(b"\x1b(B\x1b[m"),
        1 => hidden(b"\x1b]8;;https://example.com/a\x07"),
        1 => hidden(b"\x1b]0;title\x1b\\"),
        1 => hidden(b"\x1bM"),
        1 => hidden(b"\x07"),
        1 => words.prop_map(|text| ([b"\xff", text.as_bytes()].concat(), format!("\u{fffd}{text}"))),
        1 => words.prop_map(|text| ([b"\0", text.as_bytes()].concat(), format!("\u{fffd}{text}"))),
    ]
}

/// Content, with what is shown for it.
fn content() -> impl Strategy<Value = Vec<Piece>> {
    let start = Just((b"The output begins here.\n".to_vec(), "The output begins here.\n".to_owned()));
    (start, prop::collection::vec(piece(), 0..80), 1_usize..8)
        .prop_map(|(start, pieces, times)| [vec![start], vec![pieces; times].concat()].concat())
}

/// Content of which nothing is known.
fn any_content() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<String>().prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..60),
        "[ -~]{0,80}(\r\n|\n|\0)".prop_map(String::into_bytes),
        "(\x1b|\\[|\\]|;|[0-9]|m|\x07|\\\\|\n|é){0,40}".prop_map(String::into_bytes),
        (any::<u8>(), 0_usize..400).prop_map(|(byte, n)| vec![byte; n]),
    ];
    (prop::collection::vec(piece, 0..60), 0_usize..12)
        .prop_map(|(pieces, times)| pieces.concat().repeat(times))
}

/// Where each byte of the cleaned text lies in the content; one more for its end.
fn origins(pieces: &[Piece]) -> (Vec<u8>, String, Vec<Range<usize>>) {
    let (mut raw, mut cleaned, mut origins) = (Vec::new(), String::new(), Vec::new());
    for (bytes, text) in pieces {
        for i in 0..text.len() {
            // What is shown for one byte takes three.
            let at = if text.len() > bytes.len() { i.saturating_sub(2) } else { i };
            origins.push(raw.len() + at..raw.len() + at + 1);
        }
        raw.extend_from_slice(bytes);
        cleaned.push_str(text);
    }
    (raw, cleaned, origins)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_preview_keeps_to_its_length_and_counts_all_that_it_leaves_out(
        content in any_content(),
        length_max in 0_u64..6_000,
        shown_max in 0_usize..3_000,
        head_percent in 0_u8..=100,
    ) {
        let ends = Ends::of(&content, shown_max);
        let options = options(length_max, head_percent);
        let made = ends.preview(&options);
        prop_assert_eq!(&ends.preview(&options), &made);
        let Some(made) = made else {
            prop_assert!(length_max < MARKER_FITS);
            return Ok(());
        };
        prop_assert!(Escaped.length(&made.text) <= length_max);
        let omitted = parts(&made).omitted;
        prop_assert_eq!(made.omitted, Totals::of(&content[omitted]));
    }

    #[test]
    fn the_head_begins_and_the_tail_ends_what_the_content_shows(
        pieces in content(),
        length_max in MARKER_FITS..6_000,
        shown_max in 0_usize..2_000,
        head_percent in 0_u8..=100,
    ) {
        let (raw, cleaned, origins) = origins(&pieces);
        let made = Ends::of(&raw, shown_max).preview(&options(length_max, head_percent)).unwrap();
        let Parts { head, tail, omitted, .. } = parts(&made);
        let tail_start = cleaned.len() - tail.len();
        let is_boundary = |at: usize| {
            let mut graphemes = cleaned.grapheme_indices(true);
            let around = graphemes.find(|(start, grapheme)| (start + 1..start + grapheme.len()).contains(&at));
            around.is_none_or(|(_, grapheme)| grapheme.len() > 256)
        };
        // What is left out begins and ends there, and in no escape sequence.
        let is_at = |at: usize, byte: usize| {
            let end_before = if at == 0 { 0 } else { origins[at - 1].end };
            let start = origins.get(at).map_or(raw.len(), |origin| origin.start);
            (end_before..=start).contains(&byte)
        };
        prop_assert!(cleaned.ends_with(tail));
        prop_assert!(is_boundary(tail_start) && is_at(tail_start, omitted.end));
        // The last line break is of the head or of the marker.
        let mut heads = [Some(head), head.strip_suffix('\n')].into_iter().flatten();
        let is_right = heads.any(|head| {
            let at = head.len();
            cleaned.starts_with(head) && at <= tail_start && is_boundary(at) && is_at(at, omitted.start)
        });
        prop_assert!(is_right);
    }

    #[test]
    fn lines_are_whole_where_they_are_sane(
        lines in prop::collection::vec("[ -~é世]{0,40}", 1..20),
        line_break in "\r?\n",
        times in 20_usize..60,
        length_max in 2_000_u64..6_000,
    ) {
        let content = (lines.join(&line_break) + &line_break).repeat(times);
        let made = preview(content.as_bytes(), length_max);
        let Parts { head, tail, omitted, .. } = parts(&made);
        prop_assert_eq!(head, &content[..omitted.start]);
        prop_assert_eq!(tail, &content[omitted.end..]);
        prop_assert!(head.ends_with('\n'));
        prop_assert!(content[..omitted.end].ends_with('\n'));
    }

    #[test]
    fn the_ends_do_not_depend_on_the_parts_in_which_a_content_comes(
        content in any_content(),
        shown_max in 0_usize..3_000,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(content.len() + 1)).collect();
        cuts.extend([0, content.len()]);
        cuts.sort_unstable();
        let mut scanner = Scanner::new(shown_max);
        for part in cuts.windows(2) {
            scanner.push(&content[part[0]..part[1]]);
        }
        prop_assert_eq!(scanner.totals(), Totals::of(&content));
        prop_assert_eq!(scanner.finish(), Ends::of(&content, shown_max));
    }

    #[test]
    fn totals_are_what_a_plain_count_gives(content in any_content()) {
        let text = String::from_utf8_lossy(&content).into_owned();
        prop_assert_eq!(Totals::of(text.as_bytes()), Totals {
            bytes: text.len() as u64,
            characters: text.chars().count() as u64,
            lines: text.matches('\n').count() as u64,
        });
    }

    #[test]
    fn one_repeated_character_shows_at_both_ends(c in any::<char>(), length_max in MARKER_FITS + 50..2_000) {
        prop_assume!(!c.is_control());
        let content = c.to_string().repeat(20_000);
        let made = preview(content.as_bytes(), length_max);
        let Parts { head, tail, omitted, .. } = parts(&made);
        prop_assert_eq!(head.strip_suffix('\n').unwrap(), &content[..omitted.start]);
        prop_assert_eq!(tail, &content[omitted.end..]);
        prop_assert!(!tail.is_empty() && omitted.start > 0);
    }

    #[test]
    fn binary_content_is_dumped_byte_for_byte_with_its_offsets(
        seed in prop::collection::vec(any::<u8>(), 200..400),
        times in 1_usize..60,
        length_max in 600_u64..6_000,
    ) {
        let content = [seed, vec![0; 100]].concat().repeat(times);
        let made = preview(&content, length_max);
        prop_assert!(made.text.contains("binary data"));
        let Parts { head, tail, omitted, .. } = parts(&made);
        for (dump, start, shown) in [(head, 0, &content[..omitted.start]), (tail, omitted.end, &content[omitted.end..])] {
            let mut bytes: Vec<u8> = Vec::new();
            for line in dump.lines() {
                let (offset, rest) = line.split_at(8);
                prop_assert_eq!(usize::from_str_radix(offset, 16).unwrap(), start + bytes.len());
                bytes.extend(rest[..50].split_whitespace().map(|hex| u8::from_str_radix(hex, 16).unwrap()));
            }
            prop_assert_eq!(bytes, shown);
        }
    }

    #[test]
    fn any_other_measure_is_kept_as_well(content in any_content(), length_max in 150_u64..2_000) {
        /// As tokens go: some characters take several, words take one.
        struct Tokens;
        impl Measure for Tokens {
            fn escaped_per_unit(&self) -> u64 {
                4
            }
            fn length(&self, text: &str) -> u64 {
                text.split_word_bounds().map(|word| 1 + word.bytes().filter(|b| !b.is_ascii()).count() as u64).sum()
            }
        }
        let options = Options { length_max, measure: &Tokens, head_percent: 50, reference: REFERENCE };
        let made = Ends::of(&content, 8_000).preview(&options).unwrap();
        prop_assert!(Tokens.length(&made.text) <= length_max);
    }
}

#[test]
fn the_marker_names_the_ref_what_is_left_out_and_how_to_read_on() {
    let content: Vec<_> = (1..=1_000).map(|i| format!("line {i}\n")).collect();
    let content = content.concat();
    let made = preview(content.as_bytes(), 330);
    assert_eq!(
        made.text,
        "line 1\nline 2\nline 3\nline 4\n\
         [... 992 lines, 8828 characters, 8828 bytes left out, from byte 28 in line 5 on. The whole output is \
         turnkeep://sessions/s-1/outputs/0198c0de (to read on, call read_tool_output with this ref and a range \
         of lines or bytes, or a pattern) ...]\n\
         line 997\nline 998\nline 999\nline 1000\n"
    );
    assert_eq!(made.omitted, Totals { bytes: 8_828, characters: 8_828, lines: 992 });
}

#[test]
fn a_line_of_json_of_5_mb_shows_both_ends() {
    let content = format!("{{\"first\":\"{}\",\"last\":true}}", "é".repeat(2_500_000));
    let made = preview(content.as_bytes(), 80_000);
    let Parts { head, marker, tail, omitted } = parts(&made);
    assert!(head.starts_with("{\"first\":\"ééé") && tail.ends_with("ééé\",\"last\":true}"));
    assert_eq!(head.strip_suffix('\n').unwrap(), &content[..omitted.start]);
    assert_eq!(tail, &content[omitted.end..]);
    assert!(marker.starts_with("[... 0 lines, 24867"), "{marker}");
    // Not a whole character more would fit on either side.
    assert!(Escaped.length(&made.text) > 80_000 - 20);
}

#[test]
fn a_content_little_larger_than_the_limit_shows_nearly_all_of_it_at_both_ends() {
    let content = "0123456789".repeat(9_000);
    let made = preview(content.as_bytes(), 80_000);
    let Parts { head, tail, .. } = parts(&made);
    assert!(head.len().abs_diff(tail.len()) <= 10, "{} and {}", head.len(), tail.len());
    assert!(Escaped.length(&made.text) > 80_000 - 20);
}

#[test]
fn the_share_of_the_head_is_kept_and_what_it_has_no_use_for_goes_to_the_tail() {
    let content = "x".repeat(100_000);
    let shown = |head_percent| {
        let made = Ends::of(content.as_bytes(), 10_000).preview(&options(10_300, head_percent)).unwrap();
        let Parts { omitted, .. } = parts(&made);
        (omitted.start, content.len() - omitted.end)
    };
    assert_eq!(
        [0, 25, 50, 100, 200].map(shown).map(|(head, tail)| (head / 100, tail / 100)),
        [(0, 100), (25, 75), (50, 50), (100, 0), (100, 0)]
    );
    let content = format!("{}\n{}", "a".repeat(30), "b".repeat(9_000));
    let made = Ends::of(content.as_bytes(), 10_000).preview(&options(5_000, 1)).unwrap();
    assert_eq!(parts(&made).head, format!("{}\n", "a".repeat(30)));
}

#[test]
fn control_sequences_do_not_show_and_stray_ones_hide_nothing() {
    let shown = |content: &str| {
        let made = preview(content.as_bytes(), 2_000);
        let Parts { head, tail, .. } = parts(&made);
        format!("{}{tail}", head.strip_suffix('\n').unwrap_or(head))
    };
    for (content, expected) in [
        ("\x1b[1;31merror\x1b[0m: no", "error: no"),
        ("\x1b]8;;https://example.com\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title\x07$", "$"),
        ("\x1bPq#0;2;0;0;0#0~~\x1b\\image", "image"),
        ("\x1b(B\x1b[m\x1b=\x1b7plain", "plain"),
        ("ding\x07 ba\x08ack\x7f", "ding baack"),
        // Not complete, so no sequence.
        ("\x1b]0;no end", "0;no end"),
        ("\x1b[31é", "31é"),
        ("\x1b[", ""),
        ("end\x1b", "end"),
        ("\x1bé", "é"),
        ("src/main.rs\0src/lib.rs\0", "src/main.rs\u{fffd}src/lib.rs\u{fffd}"),
    ] {
        assert_eq!(shown(content), expected, "{content:?}");
    }
}

#[test]
fn a_preview_that_cannot_hold_the_marker_is_none() {
    let ends = Ends::of(b"text", 100);
    assert_eq!(ends.preview(&options(100, 50)), None);
    assert!(ends.preview(&options(MARKER_FITS, 50)).is_some());
}

#[test]
fn no_content_takes_long() {
    // Each of these makes a simple algorithm quadratic.
    for piece in [
        "\x1b]",
        "\x1b[",
        "\u{301}",
        "\u{1f1e9}",
        "\u{200d}",
        "\u{1f468}\u{200d}",
        "\u{915}\u{94d}",
        "\r",
        "\0",
    ] {
        let content = piece.repeat(4_000_000 / piece.len());
        let stopwatch = turnkeep::clock::Stopwatch::start();
        preview(content.as_bytes(), 80_000);
        assert!(stopwatch.elapsed().as_secs() < 5, "{piece:?}");
    }
}
