//! How much of each request to a model is the unchanged beginning of the one before, which
//! a prompt cache holds, and what the requests cost with that.
//!
//! `TURNKEEP_TRANSCRIPTS=directory cargo bench --bench prefix`
//!
//! Recordings are replayed turn by turn, and a request is made after each: with the window
//! of each path, and with what a worker sends that keeps, each time anew, the newest steps
//! that fit. A cache is taken to hold all of the request before, and nothing else.

#[path = "support/figures.rs"]
mod figures;
#[expect(clippy::unwrap_used, clippy::print_stdout, reason = "it is the tests'")]
#[path = "../tests/support/llm.rs"]
mod llm;
#[path = "support/process.rs"]
mod process;
#[expect(clippy::unwrap_used, clippy::print_stdout, reason = "it is the tests'")]
#[path = "../tests/support/recorded.rs"]
mod recorded;
#[path = "support/service.rs"]
mod service;

use anyhow::Context as _;
use bytes::Bytes;
use figures::{print_table, row};
use llm::{Llm, Step, openai_answer};
use pb::CompressionPath::{Batch, Interactive};
use pb::restore_transcript_response::Part;
use service::{Backend, Service, Stores};
use std::time::Duration;
use turnkeep::client::Client;
use turnkeep::clock::{self, Micros};
use turnkeep::format::read;
use turnkeep::import::{ImportedTurn, Options, import};
use turnkeep::model::{
    Cost, Entry, EntryKind, ModelProfile, Prices, Seq, Tokenizer, Usage, Version, WireFormat,
};
use turnkeep::rpc::pb;
use turnkeep::tokens::{TokenCounter, catalogue};
use turnkeep::window::{Assembler, AtomKind, atoms};

/// Recordings that are played one after the other in one session, and a model whose
/// prices are taken.
const SESSIONS: [(&[&str], &str); 2] = [
    (
        &[
            "claude-code/cli-6113e919-compactions.jsonl",
            "claude-code/cli-9e2434f3-2331entries.jsonl",
            "claude-code/ccv-fe5e1c67-sidechain.jsonl",
            "claude-code/cli-e8106766-image480k.jsonl",
            "claude-code/cli-170cebcc-fffd.jsonl",
        ],
        "claude-sonnet-5-5",
    ),
    (
        &["codex-rollout/gitsync-019d6d29-longest.jsonl", "codex-rollout/mise-019f2016-compacted3.jsonl"],
        "gpt-5.2",
    ),
];

/// Turns that are replayed of each session.
const TURNS: usize = 500;

/// Context window in tokens, over which the recordings go several times.
const CONTEXT: u64 = 64_000;
/// On the batch path windows are truncated over this many tokens, down to 0.8 of it.
const CEILING: u64 = CONTEXT / 2;

/// How long a summary that is made in the background is waited for.
const SUMMARY: Duration = Duration::from_millis(30);

/// A sentence of a summary, and how often it stands there.
const SAID: (&str, usize) = ("The handler in src/daemon.rs:120 was read, mended and tested. ", 30);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = recorded::folder().context("there are no recordings")?;
    for (files, model) in SESSIONS {
        let mut threads = Vec::new();
        for file in files {
            let content = std::fs::read(folder.join(file))?.into();
            let imported = import(&content, None, Options { verbatim: false })?.threads.into_iter();
            threads.extend(imported.max_by_key(|thread| thread.turns.len()));
        }
        let first = threads.first().context("recordings have threads")?;
        let (format, wire) = (first.format, recorded::format_of(first));
        let turns: Vec<_> = threads.into_iter().flat_map(|thread| thread.turns).take(TURNS).collect();
        let prices = catalogue::prices(&ModelProfile::default(), model).context("the model has prices")?;
        let replay = Replay {
            format,
            wire,
            counter: TokenCounter::new(format, Tokenizer::of_format(format)),
            prices,
            turns,
        };
        replay
            .print(&format!("{}, {} turns, at the prices of {model}", files[0], replay.turns.len()))
            .await?;
    }
    Ok(())
}

/// What is replayed.
struct Replay {
    format: WireFormat,
    wire: pb::WireFormat,
    counter: TokenCounter,
    prices: Prices,
    turns: Vec<ImportedTurn>,
}

/// A message of a request, with its tokens.
type Message = (Bytes, u64);

/// Requests, one after the other.
#[derive(Debug, Default)]
struct Requests {
    count: u64,
    before: Vec<Message>,
    tokens: u64,
    cached: u64,
    cost: Cost,
    /// What summaries cost.
    summaries: Cost,
    compactions: usize,
}

impl Requests {
    fn send(&mut self, prices: &Prices, request: Vec<Message>) {
        let tokens = request.iter().map(|(_, tokens)| tokens).sum::<u64>();
        let same = self.before.iter().zip(&request).take_while(|(one, other)| one == other);
        let cached = same.map(|((_, tokens), _)| tokens).sum::<u64>();
        let usage =
            Usage { cache_read_tokens: cached, cache_write_tokens: tokens - cached, ..Usage::default() };
        self.cost = [self.cost, prices.cost(&usage)].into_iter().sum();
        self.count += 1;
        self.tokens += tokens;
        self.cached += cached;
        self.before = request;
    }

    fn row(&self, name: &str, others: &[&Self]) -> Vec<String> {
        let dollars = |cost: Cost| ratio(cost.0, 1_000_000_000_000);
        let all = |requests: &Self| requests.cost.0 + requests.summaries.0;
        let mut cells = vec![
            name.to_owned(),
            self.compactions.to_string(),
            (self.tokens / self.count.max(1)).to_string(),
            format!("{:.1} %", 100.0 * ratio(self.cached, self.tokens)),
            format!("{:.2}", dollars(self.cost)),
            format!("{:.2}", dollars(self.summaries)),
        ];
        cells.extend(others.iter().map(|other| format!("{:.2}", ratio(all(self), all(other)))));
        cells
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn ratio(one: u64, other: u64) -> f64 {
    one as f64 / other as f64
}

impl Replay {
    async fn print(&self, title: &str) -> anyhow::Result<()> {
        let batch = self.served(Batch).await?;
        let interactive = self.served(Interactive).await?;
        let ceiling = self.cut_anew(CEILING);
        let floor = self.cut_anew(CEILING * 8 / 10);
        let header = [
            "",
            "compactions",
            "tokens a request",
            "unchanged",
            "input, $",
            "summaries, $",
            "all ÷ cut anew to the ceiling",
            "÷ to the floor",
        ];
        let others = [&ceiling, &floor];
        let rows = vec![
            row(header),
            batch.row("batch", &others),
            interactive.row("interactive", &others),
            ceiling.row("cut anew each turn, to the ceiling", &others),
            floor.row("cut anew each turn, to the floor", &others),
        ];
        print_table(title, &rows);
        Ok(())
    }

    /// Replays to a service, and asks for the window after each turn.
    async fn served(&self, path: pb::CompressionPath) -> anyhow::Result<Requests> {
        let (sentence, times) = SAID;
        let summary = sentence.repeat(times);
        let llm = Llm::start([Step::ok(&openai_answer(&summary, "stop"))]).await;
        let stores = Stores::new(Backend::Embedded).await?;
        let endpoint = format!("summarizer.endpoint={}", llm.url);
        let settings = ["summarizer.api=openai", "summarizer.model=scripted", &endpoint];
        let service = Service::start(&stores, &settings).await?;
        let mut client = service.client().await?;
        let mut requests = Requests::default();
        for (version, turn) in (0..).zip(&self.turns) {
            let profile = pb::ModelProfile { context_window_tokens: CONTEXT, ..Default::default() };
            let (format, path) = (self.wire.into(), path.into());
            let session = pb::Session { format, path, profile: Some(profile), ..Default::default() };
            let append = pb::persist_transcript_request::Append { entries: recorded::entries_of(turn) };
            let request = pb::PersistTranscriptRequest {
                session: SESSION.to_owned(),
                request_id: format!("turn-{version}"),
                create_if_missing: (version == 0).then_some(session),
                input: Some(pb::persist_transcript_request::Input::Append(append)),
                ..Default::default()
            };
            let reply = client.transcripts.persist_transcript(request).await?.into_inner();
            if path == i32::from(Interactive) && reply.compaction() != pb::CompactionAdvice::None {
                clock::sleep(SUMMARY).await;
            }
            requests.send(&self.prices, window(&mut client).await?);
        }
        let list = pb::ListCompactionsRequest { parent: SESSION.to_owned(), ..Default::default() };
        let listed = client.transcripts.list_compactions(list).await?.into_inner();
        requests.compactions = listed.compactions.len();
        let asked = llm.received().into_iter().map(|received| {
            let messages = received.body["messages"].as_array().cloned().unwrap_or_default();
            let said = messages.iter().filter_map(|message| message["content"].as_str());
            let usage = Usage {
                input_tokens: said.map(|text| self.counter.count_text(text)).sum(),
                output_tokens: self.counter.count_text(&summary),
                ..Usage::default()
            };
            self.prices.cost(&usage)
        });
        requests.summaries = asked.sum();
        Ok(requests)
    }

    /// Requests of a worker that sends, each time anew, system messages and the newest
    /// steps that fit.
    fn cut_anew(&self, tokens_max: u64) -> Requests {
        let mut requests = Requests::default();
        let mut assembler = Assembler::new(self.format, self.counter);
        let mut log: Vec<Message> = Vec::new();
        for turn in &self.turns {
            for entry in &turn.entries {
                let payload = entry.payload.clone();
                let is_message = entry.kind == EntryKind::Message;
                let counted = || self.counter.count_entry(&read(self.format, &payload));
                let tokens = if is_message { counted() } else { 0 };
                log.push((if is_message { payload.clone() } else { Bytes::new() }, tokens));
                let (seq, kind) = (Seq(log.len() as u64), entry.kind);
                assembler.push(Entry { seq, version: Version(1), at: Micros(0), kind, tokens, payload });
            }
            let window = assembler.window(false);
            let atoms = atoms(&window);
            let is_system = |kind| kind == AtomKind::System;
            let system = atoms.iter().filter(|atom| is_system(atom.kind)).map(|atom| atom.tokens);
            let mut left = tokens_max.saturating_sub(system.sum());
            let newest = atoms.iter().rev().filter(|atom| !is_system(atom.kind)).take_while(|atom| {
                let fits = atom.tokens <= left;
                left = left.saturating_sub(atom.tokens);
                fits
            });
            let first = newest.last().or(atoms.last()).map_or(Seq(1), |atom| atom.first);
            let kept = atoms.iter().filter(|atom| is_system(atom.kind) && atom.first < first);
            let kept = kept.map(|atom| atom.first.0).chain(first.0..=log.len() as u64);
            let entries = kept.filter_map(|seq| log.get(usize::try_from(seq).ok()?.checked_sub(1)?));
            requests
                .send(&self.prices, entries.filter(|(payload, _)| !payload.is_empty()).cloned().collect());
        }
        requests
    }
}

const SESSION: &str = "sessions/s";

/// The window of the newest version.
async fn window(client: &mut Client) -> anyhow::Result<Vec<Message>> {
    let request = pb::RestoreTranscriptRequest { session: SESSION.to_owned(), ..Default::default() };
    let mut parts = client.transcripts.restore_transcript(request).await?.into_inner();
    let mut items = Vec::new();
    while let Some(message) = parts.message().await? {
        if let Some(Part::Items(more)) = message.part {
            items.extend(more.items.into_iter().map(|item| (item.payload, item.tokens)));
        }
    }
    Ok(items)
}
