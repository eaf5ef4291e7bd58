//! Speed of token counting on one core, beside a pass over the same memory, and
//! whether the time grows with the length of the text.
//!
//! `cargo bench --bench tokens`

use std::hint::black_box;
use std::time::Duration;
use turnkeep::clock::Stopwatch;
use turnkeep::model::{Tokenizer, WireFormat};
use turnkeep::tokens::TokenCounter;

/// Bytes of each input; the larger has four times as many.
const BYTES: usize = 256 * 1024;

/// Times that a count is measured; the fastest counts.
const REPEATS: usize = 5;

const PROSE: &str = "The service keeps every entry of a session as it came and never rewrites it, so that a \
    worker which restarts finds the conversation where it was. If a summary fails, nothing is replaced; the \
    older messages stay in the window until they no longer fit, and what was cut can be read again. ";
const CODE: &str = r#"impl Counter {
    /// Adds `n` unless that is too much.
    pub fn add(&mut self, n: u64) -> Result<(), Overflow> {
        self.total = self.total.checked_add(n).ok_or(Overflow { at: self.total })?;
        for hook in self.hooks.iter() {
            hook.call("counter.add", &[("n", n), ("total", self.total)]);
        }
        Ok(())
    }
}

"#;
const CJK: &str = "服务会原样保存会话中的每一条消息，从不改写。工作进程重启之后，可以从中断的地方继续对话。\
    セッションの記録は失われません。要約が失敗しても、古いメッセージはそのまま残ります。";
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[expect(clippy::print_stdout, reason = "the table is what a bench is for")]
fn main() {
    let counters = [Tokenizer::O200k, Tokenizer::Cl100k, Tokenizer::Estimate].map(|tokenizer| {
        let counter = TokenCounter::new(WireFormat::AnthropicMessages, tokenizer);
        counter.warm_up();
        counter
    });
    println!("MiB/s on one core (time for 4 times the input / 4 times the time)");
    println!("{:12} {:>16} {:>16} {:>16} {:>16}", "text", "o200k", "cl100k", "estimate", "memory scan");
    for (name, text) in inputs() {
        let scan = row(&text, |text| text.bytes().fold(0_u64, |sum, byte| sum.wrapping_add(byte.into())));
        let [o200k, cl100k, estimate] = counters.map(|counter| row(&text, |text| counter.count_text(text)));
        println!("{name:12} {o200k:>16} {cl100k:>16} {estimate:>16} {scan:>16}");
    }
}

/// Texts of four times `BYTES`, each with its name.
fn inputs() -> Vec<(&'static str, String)> {
    let mut state = 1_u64;
    let base64 = (0..4 * BYTES).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(BASE64[usize::from(state.to_le_bytes()[3] % 64)])
    });
    let mut texts = vec![("base64", base64.collect())];
    for (name, piece) in [
        ("prose", PROSE),
        ("code", CODE),
        ("CJK", CJK),
        ("one letter", "a"),
        ("spaces", " "),
        ("line breaks", "\n"),
        ("one sign", "="),
        ("one emoji", "😀"),
        ("one accent", "\u{301}"),
        ("mixed", "aA1 é你\n"),
    ] {
        texts.push((name, piece.repeat(4 * BYTES / piece.len())));
    }
    texts
}

#[expect(clippy::cast_precision_loss, reason = "the inputs are small")]
fn row(text: &str, count: impl Fn(&str) -> u64) -> String {
    let part = &text[..text.floor_char_boundary(BYTES)];
    let (short, long) = (fastest(part, &count), fastest(text, &count));
    let rate = text.len() as f64 / (1024.0 * 1024.0) / long.as_secs_f64();
    let growth = long.as_secs_f64() / (4.0 * short.as_secs_f64());
    format!("{rate:.0} ({growth:.2})")
}

fn fastest(text: &str, count: impl Fn(&str) -> u64) -> Duration {
    let times = (0..REPEATS).map(|_| {
        let stopwatch = Stopwatch::start();
        black_box(count(black_box(text)));
        stopwatch.elapsed()
    });
    times.min().unwrap_or_default()
}
