//! Windows of a history of a million tokens whose entries were counted when they were
//! stored: assembling it, and deciding what leaves.
//!
//! `cargo bench --bench windows`
//!
//! Beside it, in the same rounds, a copy of the same payloads from one place in memory to
//! another.

#[path = "support/figures.rs"]
mod figures;
#[path = "support/turns.rs"]
mod turns;

use allocation_counter::{AllocationInfo, measure};
use bytes::Bytes;
use figures::{Samples, over_rounds, print_table, row};
use serde_json::json;
use std::hint::black_box;
use std::sync::Arc;
use turnkeep::clock::{Micros, Stopwatch};
use turnkeep::engine::CompactionOptions;
use turnkeep::format::read;
use turnkeep::model::{Cut, Entry, EntryKind, Seq, Tokenizer, Version, WindowState, WireFormat};
use turnkeep::rpc::pb;
use turnkeep::tokens::TokenCounter;
use turnkeep::window::{Assembler, snippable, tail, truncate};

/// Tokens of a history.
const TOKENS: u64 = 1_000_000;

/// What a window of so large a model is cut to: 0.8 of half of it.
const FLOOR: u64 = TOKENS / 2 * 8 / 10;

/// Times that everything is measured, in turn.
const ROUNDS: usize = 9;

/// Milliseconds that a decision may take.
const DECISION_MS_MAX: f64 = 10.0;

#[expect(clippy::print_stdout, reason = "the table is what a benchmark is for")]
fn main() {
    let mut slowest = 0_f64;
    for (name, format, entries) in histories() {
        let history = History::new(format, entries);
        let bytes: usize = history.entries.iter().map(|entry| entry.payload.len()).sum();
        let title = format!(
            "{name}: {} entries, {} tokens, {:.1} MiB",
            history.entries.len(),
            history.entries.iter().map(|entry| entry.tokens).sum::<u64>(),
            mib(bytes)
        );
        slowest = slowest.max(history.measured(&title));
    }
    println!("\nthe slowest decision takes {slowest:.2} ms; target: at most {DECISION_MS_MAX} ms");
}

/// A history in memory, as a restore finds it.
struct History {
    format: WireFormat,
    counter: TokenCounter,
    entries: Vec<Entry>,
}

/// One thing that is measured.
struct Work<'a> {
    name: &'static str,
    run: Box<dyn Fn() + 'a>,
    samples: Samples,
    ratios: Vec<f64>,
    /// Whether it decides what leaves.
    decides: bool,
}

impl<'a> Work<'a> {
    fn new<T>(name: &'static str, decides: bool, run: impl Fn() -> T + 'a) -> Self {
        let run = Box::new(move || drop(black_box(run())));
        Self { name, run, samples: Samples::default(), ratios: vec![], decides }
    }
}

impl History {
    fn new(format: WireFormat, payloads: Vec<Bytes>) -> Self {
        let counter = TokenCounter::new(format, Tokenizer::of_format(format));
        let entries = (1..).zip(payloads).map(|(seq, payload)| Entry {
            seq: Seq(seq),
            version: Version(seq),
            at: Micros(0),
            kind: EntryKind::Message,
            tokens: counter.count_entry(&read(format, &payload)),
            payload,
        });
        let mut tokens = 0;
        let entries = entries.take_while(|entry| {
            let is_short = tokens < TOKENS;
            tokens += entry.tokens;
            is_short
        });
        Self { format, counter, entries: entries.collect() }
    }

    fn assembler(&self, cut: Option<&Cut>) -> Assembler {
        let first = cut.map_or(Seq(0), |cut| cut.first_kept);
        let (before, body): (Vec<_>, Vec<_>) =
            self.entries.iter().cloned().partition(|entry| entry.seq < first);
        let kept = before.into_iter().filter(|entry| cut.is_some_and(|cut| cut.keeps(entry.seq)));
        let state = WindowState { cut: cut.cloned(), ..WindowState::default() };
        let mut assembler = Assembler::with_state(self.format, self.counter, Arc::new(state), kept.collect());
        for entry in body {
            assembler.push(entry);
        }
        assembler
    }

    /// Prints what everything takes; returns the milliseconds of the slowest decision.
    fn measured(&self, title: &str) -> f64 {
        let assembler = self.assembler(None);
        let cut = truncate(&assembler.window(false), FLOOR).unwrap_or_default();
        let window = || assembler.window(false);
        let mut works = [
            Work::new("assemble all of it", false, || self.assembler(None)),
            Work::new("decide: to the floor", true, || truncate(&window(), FLOOR)),
            Work::new("decide: to almost nothing", true, || truncate(&window(), 1)),
            Work::new("decide: what a summary leaves", true, || tail(&window(), 20_000)),
            Work::new("decide: what is snipped", true, || {
                let options = CompactionOptions::default();
                snippable(&window(), options.snip_over_characters, options.snip_kept_tokens)
            }),
            Work::new("assemble what is left", false, || self.assembler(Some(&cut))),
        ];
        let mut floor = Samples::default();
        for _ in 0..ROUNDS {
            let copied = self.copied();
            floor.push(copied);
            for work in &mut works {
                let stopwatch = Stopwatch::start();
                (work.run)();
                let time = stopwatch.elapsed();
                work.samples.push(time);
                work.ratios.push(time.as_secs_f64() / copied.as_secs_f64());
            }
        }
        let header = ["", "ms", "÷ copy (least–greatest)", "allocations", "KiB allocated"];
        let mut rows = vec![row(header)];
        rows.push(row(["copy of the payloads", &ms(&floor), "1", "", ""]));
        for work in &works {
            let AllocationInfo { count_total, bytes_total, .. } = measure(|| (work.run)());
            rows.push(vec![
                work.name.to_owned(),
                ms(&work.samples),
                over_rounds(&work.ratios),
                count_total.to_string(),
                bytes_total.div_ceil(1024).to_string(),
            ]);
        }
        print_table(title, &rows);
        let decisions = works.iter().filter(|work| work.decides).map(|work| work.samples.p50_ms());
        decisions.fold(0.0, f64::max)
    }

    /// How long it takes to copy all payloads to memory that was touched before.
    fn copied(&self) -> std::time::Duration {
        let bytes = self.entries.iter().map(|entry| entry.payload.len()).sum();
        let mut copy = vec![1_u8; bytes];
        let stopwatch = Stopwatch::start();
        let mut rest = copy.as_mut_slice();
        for entry in &self.entries {
            let (place, after) = rest.split_at_mut(entry.payload.len());
            place.copy_from_slice(&entry.payload);
            rest = after;
        }
        let time = stopwatch.elapsed();
        black_box(&copy);
        time
    }
}

/// Payloads of more than a million tokens each.
fn histories() -> Vec<(&'static str, WireFormat, Vec<Bytes>)> {
    let steps = |format: pb::WireFormat| {
        let turns = (0..1_000).flat_map(move |number| turns::typical(format, number));
        let all = turns::opening().into_iter().chain(turns);
        all.map(|entry| entry.payload).collect::<Vec<_>>()
    };
    let short = (0..60_000_u64).map(|number| {
        let message = match number % 4 {
            0 => json!({"role": "user", "content": format!("And what of case {number}? Say it in a few words.")}),
            1 => json!({"role": "assistant", "content": null, "tool_calls": [{
                "id": format!("call_{number:08}"), "type": "function",
                "function": {"name": "look_up", "arguments": format!("{{\"case\":{number}}}")},
            }]}),
            2 => json!({"role": "tool", "tool_call_id": format!("call_{:08}", number - 1),
                "content": format!("case {number}: open, owner 17, due on the 3rd")}),
            _ => json!({"role": "assistant", "content": format!("Case {number} is open and due on the 3rd.")}),
        };
        Bytes::from(message.to_string())
    });
    vec![
        ("steps of 8 KiB, Chat Completions", WireFormat::OpenaiChat, steps(pb::WireFormat::OpenaiChat)),
        (
            "steps of 8 KiB, Anthropic",
            WireFormat::AnthropicMessages,
            steps(pb::WireFormat::AnthropicMessages),
        ),
        ("short messages, Chat Completions", WireFormat::OpenaiChat, short.collect()),
    ]
}

fn ms(samples: &Samples) -> String {
    format!("{:.2}", samples.p50_ms())
}

#[expect(clippy::cast_precision_loss, reason = "a size for people")]
fn mib(bytes: usize) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}
