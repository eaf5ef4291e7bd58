//! Recorded transcripts through small windows: whatever leaves them, by whatever path,
//! every window that is served fits, and its API would take it.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/checker.rs"]
mod checker;
#[path = "support/command.rs"]
mod command;
#[path = "support/llm.rs"]
mod llm;
#[path = "support/recorded.rs"]
mod recorded;
#[path = "service_recorded_windows/replayed.rs"]
mod replayed;
#[path = "support/service.rs"]
mod service;

use backends::Backend;
use futures::{StreamExt as _, stream};
use llm::{Llm, Step, openai_answer, with_model};
use recorded::{entries_of, files, folder, format_of};
use serde_json::{Value, json};
use service::{Restored, Service, answer, append_entries, of_format};
use std::collections::{BTreeMap, BTreeSet};
use turnkeep::format::{Role, read};
use turnkeep::import::{Options, Thread, import};
use turnkeep::model::WireFormat;
use turnkeep::rpc::pb;
use turnkeep::settings::Settings;

mod heavy {
    use super::{
        on_the_batch_path, on_the_interactive_path_with_a_summarizer_that_drops_everything,
        on_the_interactive_path_with_a_summarizer_that_fails,
    };

    crate::backends::on_backend!(
        sqlite_local,
        SqliteLocal,
        on_the_batch_path,
        on_the_interactive_path_with_a_summarizer_that_drops_everything,
        on_the_interactive_path_with_a_summarizer_that_fails
    );
}

/// A context window that most recordings do not fit into.
const CONTEXT: u64 = 16_000;

/// Files that are played at the same time.
const AT_ONCE: usize = 4;

/// Steps of a recording that are persisted as one turn, so that twelve thousand of them
/// take a minute or two.
const STEPS_IN_TURN: usize = 10;

/// Tokens of the context window without the default reserve.
const USABLE: u64 = 12_000;

/// Files whose uncut logs hold what the judge does not know, and what it says of it.
const UNJUDGED: [(&str, &str); 1] = [
    // A block of the client's own, which it writes anew for the API.
    ("anthropic-messages/cline-session.messages.json", "Input tag 'file'"),
];

/// Threads with restores that are refused, and their number if each turn is restored. What
/// has to stay is larger than the room.
const REFUSED: [(&str, u64); 7] = [
    // In one step the model says 17,490 tokens.
    ("anthropic-messages/vercel-anthropic-pptx-skill.json #0", 1),
    // The only message, what a command printed, has 12,370 tokens.
    ("claude-code-per-type/user__bash_output.jsonl #0", 1),
    // The newest step has 13,854 tokens.
    ("gemini/vct-gemini-cli-jsonl.jsonl #0", 1),
    // Opaque entries of 49,313 to 72,802 tokens.
    ("openai-chat/openhands-multi-swe-output.jsonl #0", 3),
    ("openai-chat/toolbench-g3-13.json #0", 1),
    // Newest steps of 23,523 and 23,382 tokens.
    ("openai-chat/whoandwhen-hand-30.json #0", 2),
    // Opaque entries of 12,808 to 29,053 tokens.
    ("pi-session/pi-before-compaction.jsonl #0", 8),
];

/// Tokens up to which the user's first message is shown, and at most those of results that
/// are shown by their ends.
const SHOWN_TOKENS: u64 = 2_000;

/// What a summarizer says that drops everything.
const NOTHING: &str = "## Goal\nnone";

/// What each session has pinned.
const PIN: &str = "Leave C:\\data\\*.bak and \"main\" alone — 保持不变.\n\tSee §7.";

/// What was served.
#[derive(Debug, Default)]
struct Served {
    windows: usize,
    /// Windows that leave something out.
    cut: usize,
    /// Threads with restores that were refused.
    refused: BTreeSet<String>,
    /// Files of windows that the judge does not take.
    unjudged: BTreeSet<String>,
    compactions: Vec<pb::Compaction>,
}

impl Served {
    fn add(&mut self, other: Self) {
        self.windows += other.windows;
        self.cut += other.cut;
        self.refused.extend(other.refused);
        self.unjudged.extend(other.unjudged);
        self.compactions.extend(other.compactions);
    }

    fn kinds(&self) -> BTreeMap<&str, usize> {
        let mut kinds = BTreeMap::new();
        for compaction in &self.compactions {
            *kinds.entry(compaction.kind().as_str_name()).or_insert(0) += 1;
        }
        kinds
    }
}

/// A thread of a recording.
struct Recording {
    file: String,
    number: usize,
    thread: Thread,
}

/// The threads of all files that hold a model's messages.
fn recordings() -> Vec<Recording> {
    let Some(folder) = folder() else { return vec![] };
    let mut recordings = Vec::new();
    for (file, content) in files(&folder) {
        if file.rsplit('.').next() == Some("md") {
            continue;
        }
        let imported = import(&content, None, Options { verbatim: false });
        let threads = imported.unwrap_or_else(|error| panic!("{file}: {error}")).threads;
        let threads = threads.into_iter().enumerate().filter(|(_, thread)| !thread.turns.is_empty());
        recordings.extend(threads.map(|(number, thread)| Recording { file: file.clone(), number, thread }));
    }
    recordings
}

/// All strings in a value, decoded.
fn strings(value: &Value, text: &mut String) {
    match value {
        Value::String(string) => text.extend([string, "\n"]),
        Value::Array(list) => list.iter().for_each(|element| strings(element, text)),
        Value::Object(object) => object.values().for_each(|element| strings(element, text)),
        _ => {}
    }
}

/// Tokens of what stays whatever leaves: system messages before all else, the user's first
/// and last message, and the newest step, with its results by their ends.
fn tokens_that_stay(format: WireFormat, whole: &Restored) -> u64 {
    let roles: Vec<_> = whole.items.iter().map(|item| read(format, &item.payload).role).collect();
    let tokens = |at: usize| whole.items[at].tokens;
    let is = |at: &usize, role: Role| roles[*at] == role;
    if format == WireFormat::Opaque {
        return roles.len().checked_sub(1).map_or(0, tokens);
    }
    let system: u64 = (0..roles.len()).take_while(|at| is(at, Role::System)).map(tokens).sum();
    let user = |at: Option<usize>| at.map_or(0, tokens);
    let [first, last] = [
        roles.iter().position(|role| *role == Role::User),
        roles.iter().rposition(|role| *role == Role::User),
    ];
    let first = if first == last { 0 } else { user(first).min(SHOWN_TOKENS) };
    let newest = || (0..roles.len()).rev();
    let results = newest().take_while(|at| is(at, Role::Results));
    let results: u64 = results.map(|at| tokens(at).min(SHOWN_TOKENS)).sum();
    let said = newest().skip_while(|at| is(at, Role::Results)).take_while(|at| is(at, Role::Model));
    system + first + user(last) + said.map(tokens).sum::<u64>() + results
}

async fn play(service: &Service, id: &str, recording: &Recording, path: pb::CompressionPath) -> Served {
    let Recording { file, number, thread } = recording;
    let (name, told) = (format!("sessions/{id}"), format!("{file} #{number}"));
    let mut served = Served::default();
    let profile = pb::ModelProfile { context_window_tokens: CONTEXT, ..Default::default() };
    let session = pb::Session { path: path.into(), profile: Some(profile), ..of_format(format_of(thread)) };
    service.create(id, session).await;
    let has_pin = thread.format != WireFormat::Opaque;
    if has_pin {
        let pin = pb::Pin { name: "rule".to_owned(), text: PIN.to_owned(), seq: 0 };
        let request = pb::PutPinRequest { parent: name.clone(), pin: Some(pin) };
        answer(service.client.memory.clone().put_pin(request).await).unwrap();
    }
    let restore = pb::RestoreTranscriptRequest { session: name.clone(), ..Default::default() };
    for (version, steps) in thread.turns.chunks(STEPS_IN_TURN).enumerate() {
        let entries: Vec<_> = steps.iter().flat_map(entries_of).collect();
        service.persist(append_entries(&name, &format!("turn-{version}"), entries)).await.unwrap();
        let window = match service.try_restore(restore.clone()).await {
            Ok(window) => window,
            Err(refusal) => {
                assert_eq!(refusal.reason, "WINDOW_CANNOT_FIT", "{refusal:?}");
                let compression = pb::CompressionMode::None.into();
                let whole =
                    service.restore(pb::RestoreTranscriptRequest { compression, ..restore.clone() }).await;
                let stays = tokens_that_stay(thread.format, &whole);
                assert!(stays > USABLE, "{told} at {version}: {stays} tokens: {refusal:?}");
                served.refused.insert(told.clone());
                continue;
            }
        };
        served.windows += 1;
        served.cut += usize::from(window.header.cut.is_some());
        assert_eq!(window.header.fits, Some(true));
        let items: Vec<Value> =
            window.items.iter().map(|item| serde_json::from_slice(&item.payload).unwrap()).collect();
        if has_pin {
            let mut text = String::new();
            for item in &items {
                strings(item, &mut text);
            }
            assert!(text.contains(PIN), "{told} at {version}: {items:#?}");
        }
        let is_complete = window.header.next() == pb::NextStep::Model;
        if let Err(problem) = checker::accepts(thread.format, &items, is_complete) {
            let known = UNJUDGED.iter().any(|(of, what)| of == file && problem.contains(what));
            assert!(known, "{told} at {version}: {problem}: {items:#?}");
            served.unjudged.insert(file.clone());
        }
    }
    let log = service.read(&name).await;
    assert_eq!(log.entries.len(), thread.turns.iter().map(|turn| turn.entries.len()).sum::<usize>());
    let request = pb::ListCompactionsRequest { parent: name, page_size: 1_000, ..Default::default() };
    let listed = answer(service.client.transcripts.clone().list_compactions(request).await).unwrap();
    assert_eq!(listed.next_page_token, "");
    if has_pin {
        served.compactions = listed.compactions;
    } else {
        // Nothing stands for opaque entries.
        assert!(listed.compactions.iter().all(|compaction| compaction.summary.is_empty()));
    }
    served
}

/// Plays all recordings; none, with a word about it, if they are not there.
async fn play_all(
    backend: Backend,
    path: pb::CompressionPath,
    adjust: impl FnOnce(&mut Settings),
) -> Option<Served> {
    let recordings = recordings();
    if recordings.is_empty() {
        return None;
    }
    let service = Service::start_with(&backend, adjust).await;
    let plays = recordings.iter().enumerate().map(|(i, recording)| {
        let service = &service;
        async move { play(service, &format!("t{i}"), recording, path).await }
    });
    let mut plays = stream::iter(plays).buffer_unordered(AT_ONCE);
    let mut served = Served::default();
    while let Some(one) = plays.next().await {
        served.add(one);
    }
    drop(plays);
    let Served { windows, cut, refused, unjudged, .. } = &served;
    println!("{windows} windows, {cut} cut, {:?}", served.kinds());
    assert!(*windows > 1_000 && *cut > windows / 4, "{windows} windows, {cut} cut");
    assert_eq!(*unjudged, UNJUDGED.iter().map(|(file, _)| (*file).to_owned()).collect());
    assert!(refused.iter().all(|thread| REFUSED.iter().any(|(known, _)| known == thread)), "{refused:?}");
    Some(served)
}

async fn on_the_batch_path(backend: Backend) {
    let Some(served) = Box::pin(play_all(backend, pb::CompressionPath::Batch, |_| ())).await else { return };
    assert_eq!(served.kinds().into_keys().collect::<Vec<_>>(), ["COMPACTION_KIND_TRUNCATE"]);
}

async fn on_the_interactive_path_with_a_summarizer_that_drops_everything(backend: Backend) {
    let llm = Llm::start([Step::ok(&openai_answer(NOTHING, "stop"))]).await;
    let served =
        Box::pin(play_all(backend, pb::CompressionPath::Interactive, with_model(&llm.url, "m"))).await;
    let Some(served) = served else { return };
    assert!(llm.received().len() > 100, "{}", llm.received().len());
    let kind = pb::CompactionKind::Summarize;
    let summaries = served.compactions.iter().filter(|compaction| compaction.kind() == kind);
    let count = summaries.inspect(|compaction| assert_eq!(compaction.summary, NOTHING)).count();
    assert!(count > 100, "{:?}", served.kinds());
}

async fn on_the_interactive_path_with_a_summarizer_that_fails(backend: Backend) {
    let llm = Llm::start([Step::status(400, &json!({"error": {"message": "no"}}))]).await;
    let served =
        Box::pin(play_all(backend, pb::CompressionPath::Interactive, with_model(&llm.url, "m"))).await;
    let Some(served) = served else { return };
    assert!(!llm.received().is_empty(), "the summarizer was asked");
    assert!(!served.kinds().contains_key("COMPACTION_KIND_SUMMARIZE"), "{:?}", served.kinds());
    let kind = pb::CompactionKind::Collapse;
    let extracts: Vec<_> = served.compactions.iter().filter(|compaction| compaction.kind() == kind).collect();
    assert!(extracts.len() > 100, "{:?}", served.kinds());
    for extract in extracts {
        assert_ne!(extract.summarizer.as_ref().map(|by| by.failure.as_str()), Some(""), "{extract:?}");
    }
}
