//! Recorded transcripts through a running service: what goes in comes out,
//! turn by turn, as snapshots, and as the file that it was.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/recorded.rs"]
mod recorded;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_backend};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use pb::persist_transcript_request::Input;
use recorded::{entries_of, files, folder, format_of};
use service::{SESSION, Service, append_entries, of_format, snapshot};
use turnkeep::client::{Client, Window};
use turnkeep::export;
use turnkeep::format::canonical_digest;
use turnkeep::import::{Options, Thread, import};
use turnkeep::model::WireFormat;
use turnkeep::rpc::pb;
use turnkeep::settings::Seal;

on_backend!(
    sqlite_local,
    SqliteLocal,
    a_growing_session_is_fed_as_snapshots,
    successive_requests_are_fed_as_snapshots
);
on_backend!(
    postgres_s3,
    PostgresS3,
    a_growing_session_is_fed_as_snapshots,
    successive_requests_are_fed_as_snapshots
);

mod heavy {
    use super::{every_file_comes_back_byte_for_byte, every_transcript_comes_back_entry_by_entry};

    crate::backends::on_backend!(
        sqlite_local,
        SqliteLocal,
        every_transcript_comes_back_entry_by_entry,
        every_file_comes_back_byte_for_byte
    );
    crate::backends::on_backend!(
        postgres_s3,
        PostgresS3,
        every_transcript_comes_back_entry_by_entry,
        every_file_comes_back_byte_for_byte
    );
}

/// Files that are played at the same time.
const AT_ONCE: usize = 8;

/// Steps of the recorded conversation that are persisted as one turn, so that
/// twelve thousand of them take less than a minute.
const STEPS_IN_TURN: usize = 5;

/// Those files whose name holds a text.
fn files_of(text: &str) -> Vec<Bytes> {
    let Some(folder) = folder() else { return Vec::new() };
    let files = files(&folder).into_iter().filter(|(name, _)| name.contains(text));
    files.map(|(_, content)| content).collect()
}

/// A payload as it is stored.
fn on_one_line(payload: &Bytes) -> Bytes {
    payload.iter().map(|&byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }).collect()
}

/// Plays a thread as a worker would, and returns the window that it then holds.
async fn play(service: &Service, name: &str, thread: &Thread) -> Window {
    let mut client: Client = service.client.clone();
    let mut window = Window::default();
    let restore = pb::RestoreTranscriptRequest { session: name.to_owned(), ..Default::default() };
    for (version, steps) in (0..).zip(thread.turns.chunks(STEPS_IN_TURN)) {
        if version > 0 {
            client.restore(&mut window, restore.clone()).await.unwrap();
        }
        let entries: Vec<_> = steps.iter().flat_map(entries_of).collect();
        let preamble = thread.preamble.clone();
        let session = pb::Session {
            preamble: preamble.map(|payload| pb::Preamble { payload, ..Default::default() }),
            ..of_format(format_of(thread))
        };
        let request = pb::PersistTranscriptRequest {
            expected_version: Some(version),
            create_if_missing: (version == 0).then_some(session),
            window_id: window.id.clone(),
            keep_tool_results: true,
            ..append_entries(name, &format!("turn-{version}"), entries.clone())
        };
        let answer = service.persist(request).await.unwrap();
        assert_eq!(answer.version, version + 1);
        window.extend(&entries, &answer);
    }
    if !thread.turns.is_empty() {
        client.restore(&mut window, restore).await.unwrap();
    }
    window
}

/// Checks a session against the thread that it was made of.
async fn check(service: &Service, name: &str, thread: &Thread) {
    let log = service.read(name).await;
    let sent = thread.turns.iter().flat_map(entries_of);
    let stored = log.entries.iter().map(|entry| (entry.kind, entry.payload.clone()));
    assert!(stored.eq(sent.map(|entry| (entry.kind, on_one_line(&entry.payload)))), "{name}");
    assert!(log.seqs().into_iter().eq(1..=log.header.head_seq), "{name}");
}

/// Plays every file, and checks what came of it after a restart.
async fn play_all(backend: &Backend, options: Options) {
    let Some(folder) = folder() else { return };
    let mut service = Service::start_with(backend, |settings| settings.seal = Seal::default()).await;
    let files: Vec<_> = files(&folder)
        .into_iter()
        .enumerate()
        .map(|(i, (file, content))| {
            let threads = import(&content, None, options).unwrap().threads;
            let played = threads.into_iter().filter(|thread| !thread.turns.is_empty());
            let named = played.enumerate().map(|(t, thread)| (format!("sessions/{i}-{t}"), thread));
            (file, content, named.collect::<Vec<_>>())
        })
        .collect();
    assert!(files.len() > 100, "{} files", files.len());
    let windows: Vec<Vec<_>> = stream::iter(&files)
        .map(async |(_, _, threads)| {
            let mut windows = Vec::new();
            for (name, thread) in threads {
                windows.push(play(&service, name, thread).await);
            }
            windows
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    service = service.restart().await;
    let checks = stream::iter(files.iter().zip(&windows)).map(async |((file, content, threads), windows)| {
        for ((name, thread), window) in threads.iter().zip(windows) {
            check(&service, name, thread).await;
            let whole = service.window(name).await;
            let held = window.items.iter().map(|item| on_one_line(&item.payload));
            assert!(held.eq(whole.items.iter().map(|item| item.payload.clone())), "{file}: window of {name}");
            let change = service.restore_from(name, &window.id).await;
            assert_eq!((change.items.len(), change.full_reason()), (0, None), "{file}: {name}");
        }
        if options.verbatim {
            let log = service.read(&threads[0].0).await;
            let exported = export::verbatim(log.entries.iter().map(|entry| entry.payload.as_ref()));
            assert!(exported.unwrap() == *content, "{file} is not as it was");
        }
    });
    checks.buffered(AT_ONCE).collect::<()>().await;
}

async fn every_transcript_comes_back_entry_by_entry(backend: Backend) {
    Box::pin(play_all(&backend, Options { verbatim: false })).await;
}

async fn every_file_comes_back_byte_for_byte(backend: Backend) {
    Box::pin(play_all(&backend, Options { verbatim: true })).await;
}

/// Feeds lists of one conversation as snapshots. One that contradicts the one
/// before it rewinds the log.
async fn feed(service: &Service, lists: &[Vec<pb::NewEntry>]) {
    let content = |entry: &pb::NewEntry| canonical_digest(&entry.payload);
    let contradicts = |pair: &[Vec<pb::NewEntry>]| {
        let same = pair[0].iter().zip(&pair[1]).take_while(|(a, b)| content(a) == content(b)).count();
        same < pair[0].len()
    };
    let expected = lists.windows(2).filter(|pair| contradicts(pair)).count();
    let mut rewound = 0;
    let mut versions = Vec::new();
    for list in lists {
        let mut request = snapshot::<&str>(SESSION, &[]);
        let Some(Input::Snapshot(input)) = &mut request.input else { unreachable!() };
        (input.entries, input.allow_rewind) = (list.clone(), true);
        request.keep_tool_results = true;
        let answer = service.persist(request.clone()).await.unwrap();
        assert_eq!(service.persist(request).await.unwrap(), answer);
        rewound += usize::from(answer.rewound_to_version.is_some());
        versions.push(answer.version);
        service.seal().await;
        let again = snapshot::<&str>(SESSION, &[]);
        let input = Some(Input::Snapshot(pb::persist_transcript_request::Snapshot {
            entries: list.clone(),
            ..Default::default()
        }));
        let again = pb::PersistTranscriptRequest { input, ..again };
        assert_eq!(service.persist(again).await.unwrap().version, answer.version, "nothing is new");
    }
    for (list, version) in lists.iter().zip(versions) {
        let log = service.read_at(SESSION, version).await;
        let stored = log.entries.into_iter().map(|entry| (entry.kind, entry.payload));
        let same = |(kind, payload): &(i32, Bytes), sent: &pb::NewEntry| {
            *kind == sent.kind && canonical_digest(payload) == content(sent)
        };
        let stored: Vec<_> = stored.collect();
        assert_eq!(stored.len(), list.len());
        assert!(stored.iter().zip(list).all(|(stored, sent)| same(stored, sent)));
    }
    assert_eq!(rewound, expected);
}

fn lists_of(files: &[Bytes]) -> Vec<Vec<pb::NewEntry>> {
    let list = |content| {
        let imported = import(content, None, Options::default()).unwrap();
        imported.threads[0].turns.iter().flat_map(entries_of).collect()
    };
    files.iter().map(list).collect()
}

async fn a_growing_session_is_fed_as_snapshots(backend: Backend) {
    let files = files_of("claude-code-growth/cc432c40-cp");
    if files.is_empty() {
        return;
    }
    assert_eq!(files.len(), 5);
    let lists = lists_of(&files);
    let service = Service::start(&backend).await;
    service.create("s", of_format(pb::WireFormat::AnthropicMessages)).await;
    feed(&service, &lists).await;
}

async fn successive_requests_are_fed_as_snapshots(backend: Backend) {
    let files = files_of("openai-chat/ohsdk-claude-sonnet-");
    if files.is_empty() {
        return;
    }
    let lists = lists_of(&files);
    assert!(lists.windows(2).all(|pair| pair[0].len() < pair[1].len()), "each has more than the one before");
    let service = Service::start(&backend).await;
    service.create("s", of_format(pb::WireFormat::OpenaiChat)).await;
    feed(&service, &lists).await;
}

/// Members that name things, tell a state, or hold what only the provider or the eye
/// can read.
const NO_TEXT: [&str; 25] = [
    "type",
    "role",
    "id",
    "name",
    "call_id",
    "tool_call_id",
    "tool_use_id",
    "toolUseId",
    "status",
    "stop_reason",
    "model",
    "phase",
    "signature",
    "thoughtSignature",
    "encrypted_content",
    "cache_control",
    "caller",
    "data",
    "image_url",
    "media_type",
    "mimeType",
    "citations",
    "source",
    "tool_name",
    "detail",
];

/// Members of messages and items that hold what they say; others are clients' own.
const CONTENT: [&str; 12] = [
    "content",
    "parts",
    "tool_calls",
    "function_call",
    "reasoning_content",
    "reasoning",
    "refusal",
    "output",
    "arguments",
    "input",
    "summary",
    "action",
];

/// The strings that a message says: of arguments that hold JSON those in it.
fn said<'a>(value: &'a serde_json::Value, strings: &mut Vec<std::borrow::Cow<'a, str>>) {
    use serde_json::Value;
    match value {
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inner @ (Value::Object(_) | Value::Array(_))) if text.starts_with(['{', '[']) => {
                let mut within = Vec::new();
                said(&inner, &mut within);
                strings.extend(within.into_iter().map(|text| text.into_owned().into()));
            }
            _ => strings.push(text.into()),
        },
        Value::Array(elements) => elements.iter().for_each(|element| said(element, strings)),
        Value::Object(members) => members
            .iter()
            .filter(|(key, _)| !NO_TEXT.contains(&key.as_str()))
            .for_each(|(_, value)| said(value, strings)),
        _ => {}
    }
}

#[test]
fn nothing_that_a_recorded_message_says_is_hidden_from_a_search() {
    let Some(folder) = folder() else { return };
    let (mut found, mut hidden) = (0, Vec::new());
    for (file, content) in files(&folder) {
        for thread in import(&content, None, Options::default()).unwrap().threads {
            let entries = thread.turns.iter().flat_map(|turn| &turn.entries);
            for entry in entries.filter(|entry| entry.kind == turnkeep::model::EntryKind::Message) {
                let texts = turnkeep::format::texts(thread.format, &entry.payload);
                // What is JSON within a text is found as it stands there, too.
                let decoded: Vec<serde_json::Value> =
                    texts.iter().filter_map(|text| serde_json::from_str(&text.content).ok()).collect();
                let mut within = Vec::new();
                for value in &decoded {
                    said(value, &mut within);
                }
                let payload: serde_json::Value = serde_json::from_slice(&entry.payload).unwrap();
                let mut strings = Vec::new();
                // SWE-agent has an `action` of its own beside the call.
                let is_content =
                    |name: &&str| *name != "action" || thread.format == WireFormat::OpenaiResponses;
                let names = CONTENT.into_iter().filter(is_content);
                names.filter_map(|name| payload.get(name)).for_each(|value| said(value, &mut strings));
                for string in strings {
                    let is_found = texts.iter().any(|text| text.content.contains(string.as_ref()))
                        || within.contains(&string);
                    if is_found {
                        found += 1;
                    } else if hidden.len() < 20 {
                        hidden.push(format!("{file}: {string:.200}\n  in {:.300}", payload.to_string()));
                    }
                }
            }
        }
    }
    assert!(found > 10_000, "{found}");
    assert!(hidden.is_empty(), "{}", hidden.join("\n"));
}
