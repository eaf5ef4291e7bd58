//! Speed of previews on one core, beside a scan of the same memory.
//!
//! `cargo bench --bench preview`
//!
//! The content comes in parts, as an offload's stream brings it; the time is that
//! of all parts and of the preview itself. The scan looks for a byte that is not
//! there.

use std::hint::black_box;
use std::time::Duration;
use turnkeep::clock::Stopwatch;
use turnkeep::preview::{Escaped, Options, Scanner};

/// Bytes of each content.
const BYTES: usize = 100_000_000;

/// Bytes of a part.
const PART_BYTES: usize = 64 << 10;

/// Longest preview: a tool-result limit of 100,000 characters less a reserve.
const LENGTH_MAX: usize = 80_000;

/// Times that each is measured; the fastest counts.
const REPEATS: usize = 5;

/// A byte that no content has.
const ABSENT: u8 = 0xff;

#[expect(clippy::print_stdout, reason = "the table is what a bench is for")]
fn main() {
    println!("GB/s of {} MB on one core", BYTES / 1_000_000);
    println!(
        "{:16} {:>8} {:>8} {:>12} {:>14}",
        "content", "preview", "scan", "preview/scan", "its making, ms"
    );
    for (name, piece) in [
        ("log lines", "2026-01-31T12:00:00Z INFO worker: step 1 of 200 done in 35 ms\n"),
        ("short lines", "src\n"),
        ("one line of JSON", r#"{"id":17,"name":"turnkeep","tags":["a","b"]},"#),
        ("CJK", "服务会原样保存会话中的每一条消息，从不改写。\n"),
        ("emoji", "👨‍👩‍👧"),
        ("colours", "\u{1b}[32mok\u{1b}[0m \u{1b}[1mtest\u{1b}[0m name\n"),
        ("one letter", "a"),
        ("NUL", "\0"),
    ] {
        let content = piece.as_bytes().repeat(BYTES.div_ceil(piece.len()));
        let preview = fastest(|| preview(&content));
        let making = fastest(|| preview_of_ends(&content));
        let scan = fastest(|| memchr::memchr(ABSENT, black_box(&content)));
        println!(
            "{name:16} {:>8.1} {:>8.1} {:>12.2} {:>14.1}",
            rate(&content, preview),
            rate(&content, scan),
            preview.as_secs_f64() / scan.as_secs_f64(),
            making.as_secs_f64() * 1e3,
        );
    }
}

/// The length of the preview of `content`.
fn preview(content: &[u8]) -> Option<usize> {
    let mut scanner = Scanner::new(LENGTH_MAX);
    for part in black_box(content).chunks(PART_BYTES) {
        scanner.push(part);
    }
    let options = Options {
        length_max: LENGTH_MAX as u64,
        measure: &Escaped,
        head_percent: 50,
        reference: "turnkeep://sessions/s/outputs/o",
    };
    Some(scanner.finish().preview(&options)?.text.len())
}

/// The same of the ends alone: what a preview takes however small the rest is.
fn preview_of_ends(content: &[u8]) -> Option<usize> {
    preview(content.get(..4 * LENGTH_MAX)?)
}

#[expect(clippy::cast_precision_loss, reason = "the inputs are small")]
fn rate(content: &[u8], time: Duration) -> f64 {
    content.len() as f64 / 1e9 / time.as_secs_f64()
}

fn fastest<T>(run: impl Fn() -> T) -> Duration {
    let times = (0..REPEATS).map(|_| {
        let stopwatch = Stopwatch::start();
        black_box(run());
        stopwatch.elapsed()
    });
    times.min().unwrap_or_default()
}
