//! Notes, episodes, and sessions that continue others.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/accepted.rs"]
mod accepted;
#[path = "support/backends.rs"]
mod backends;
#[path = "support/checker.rs"]
mod checker;
#[path = "support/messages.rs"]
mod messages;
#[path = "support/service.rs"]
mod service;

#[path = "service_memory/episodes.rs"]
mod episodes;
#[path = "service_memory/tools.rs"]
mod tools;

use accepted::assert_accepted;
use backends::{Backend, on_all_backends, on_embedded_backend};
use episodes::{episodes_are_the_chain_of_summaries, what_was_undone_or_rewound_is_no_episode};
use messages::{STRUCTURED, call, model, result, user};
use pb::ItemOrigin;
use pb::WireFormat::{Opaque, OpenaiChat};
use pb::window_change::Change;
use service::{Refusal, Restored, SESSION, Service, answer, fresh_id, of_format};
use tonic::Code;
use tools::{a_model_reads_entries_and_keeps_notes, what_a_model_reads_fits_a_tool_result};
use turnkeep::rpc::pb;

on_all_backends!(
    notes_are_put_read_listed_and_deleted,
    a_note_leaves_the_window_as_it_is_until_something_else_changes_it,
    forks_have_copies_of_notes_and_rewinds_leave_them,
    a_session_continues_another_with_its_pins_and_notes,
    notes_go_with_their_session,
    episodes_are_the_chain_of_summaries,
);

on_embedded_backend!(
    a_session_that_continues_another_is_accepted_in_every_format,
    what_cannot_be_continued_is_refused,
    a_note_that_may_not_be_is_refused,
    names_of_notes_take_one_line_of_bounded_length,
    pins_come_after_the_system_entries_of_a_log_that_begins_after_them,
    what_was_undone_or_rewound_is_no_episode,
    a_model_reads_entries_and_keeps_notes,
    what_a_model_reads_fits_a_tool_result,
);

const CONTEXT: u64 = 4_000;
const RULE: &str = "never touch migrations/";

fn session(format: pb::WireFormat, context: u64) -> pb::Session {
    let profile = pb::ModelProfile { context_window_tokens: context, ..Default::default() };
    pb::Session { path: pb::CompressionPath::Batch.into(), profile: Some(profile), ..of_format(format) }
}

async fn put(service: &Service, session: &str, name: &str, text: &str) -> Result<pb::Note, Refusal> {
    let note = pb::Note { name: name.to_owned(), text: text.to_owned(), update_time: None };
    let request = pb::PutNoteRequest { parent: session.to_owned(), note: Some(note) };
    answer(service.client.memory.clone().put_note(request).await)
}

async fn get(service: &Service, session: &str, name: &str) -> Result<pb::Note, Refusal> {
    let request = pb::GetNoteRequest { parent: session.to_owned(), note: name.to_owned() };
    answer(service.client.memory.clone().get_note(request).await)
}

async fn try_notes(service: &Service, session: &str) -> Result<Vec<pb::Note>, Refusal> {
    let request = pb::ListNotesRequest { parent: session.to_owned() };
    Ok(answer(service.client.memory.clone().list_notes(request).await)?.notes)
}

/// Names and texts of a session's notes.
async fn notes(service: &Service, session: &str) -> Vec<(String, String)> {
    let notes = try_notes(service, session).await.unwrap();
    notes.into_iter().map(|note| (note.name, note.text)).collect()
}

fn named(notes: &[(&str, &str)]) -> Vec<(String, String)> {
    notes.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

async fn delete(service: &Service, session: &str, name: &str) -> Result<(), Refusal> {
    let request = pb::DeleteNoteRequest { parent: session.to_owned(), note: name.to_owned() };
    answer(service.client.memory.clone().delete_note(request).await)
}

async fn pin(service: &Service, session: &str, name: &str, text: &str) {
    let pin = pb::Pin { name: name.to_owned(), text: text.to_owned(), seq: 0 };
    let request = pb::PutPinRequest { parent: session.to_owned(), pin: Some(pin) };
    answer(service.client.memory.clone().put_pin(request).await).unwrap();
}

/// Names, texts and seqs of a session's pins.
async fn pins(service: &Service, session: &str) -> Vec<(String, String, u64)> {
    let request = pb::ListPinsRequest { parent: session.to_owned() };
    let pins = answer(service.client.memory.clone().list_pins(request).await).unwrap().pins;
    pins.into_iter().map(|pin| (pin.name, pin.text, pin.seq)).collect()
}

async fn continue_from(
    service: &Service,
    source: &str,
    id: &str,
    session: Option<pb::Session>,
) -> Result<pb::Session, Refusal> {
    let request =
        pb::CreateSessionRequest { session_id: id.to_owned(), session, continue_from: source.to_owned() };
    answer(service.client.sessions.clone().create_session(request).await)
}

/// Leaves all but the newest step out of a session's windows.
async fn cut(service: &Service, session: &str) {
    let request = pb::CompactTranscriptRequest {
        session: session.to_owned(),
        strategy: pb::CompactionStrategy::LastMessages.into(),
        messages: 1,
        ..Default::default()
    };
    let cut = answer(service.client.transcripts.clone().compact_transcript(request).await).unwrap();
    assert!(cut.compaction.is_some());
}

/// A turn: the model calls a tool, and its result.
fn step(format: pb::WireFormat, number: usize) -> Vec<String> {
    let id = format!("call_{number}");
    let text = format!("{number}: {}", "lorem ipsum dolor ".repeat(20));
    vec![call(format, &id, "shell"), result(format, &id, "shell", &text)]
}

/// The line of a window that names notes.
fn notes_line(window: &Restored) -> Option<String> {
    let text = window.payloads().concat();
    let (_, line) = text.split_once("Notes that were kept, which get_note reads: ")?;
    line.split_once("\\n").map(|(line, _)| line.to_owned())
}

async fn notes_are_put_read_listed_and_deleted(backend: Backend) {
    let service = Service::start(&backend).await;
    let created = service.create("s", session(OpenaiChat, CONTEXT)).await;
    assert_eq!(try_notes(&service, SESSION).await.unwrap(), []);
    let port = put(&service, SESSION, "port", "5433").await.unwrap();
    assert!(port.update_time.is_some());
    let why = put(&service, SESSION, "Why Postgres?", "licence\n- \"ü\"\n").await.unwrap();
    assert_eq!(try_notes(&service, SESSION).await.unwrap(), [why, port.clone()]);
    assert_eq!(get(&service, SESSION, "port").await.unwrap(), port);
    // The same again is the same; another text takes its place.
    assert_eq!(put(&service, SESSION, "port", "5433").await.unwrap(), port);
    put(&service, SESSION, "port", "5434").await.unwrap();
    let service = service.restart().await;
    let expected = named(&[("Why Postgres?", "licence\n- \"ü\"\n"), ("port", "5434")]);
    assert_eq!(notes(&service, SESSION).await, expected);
    delete(&service, SESSION, "port").await.unwrap();
    for refused in [get(&service, SESSION, "port").await.map(drop), delete(&service, SESSION, "port").await] {
        assert_eq!(refused.unwrap_err().kind(), (Code::NotFound, "NOTE_NOT_FOUND"));
    }
    // It is no turn and no change of the configuration.
    assert_eq!(service.get(SESSION).await, created);
    for refused in [
        get(&service, "sessions/other", "port").await.map(drop),
        try_notes(&service, "sessions/other").await.map(drop),
        delete(&service, "sessions/other", "port").await,
        put(&service, "sessions/other", "port", "1").await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), (Code::NotFound, "SESSION_NOT_FOUND"));
    }
}

async fn a_note_leaves_the_window_as_it_is_until_something_else_changes_it(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, CONTEXT)).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    for number in 0..4 {
        service.append(SESSION, &step(OpenaiChat, number)).await;
    }
    let before = service.window(SESSION).await;
    put(&service, SESSION, "port", "5433").await.unwrap();
    let again = service.restore_from(SESSION, &before.header.window_id).await;
    assert!(matches!(again.change(), Change::Unchanged(_)), "{:?}", again.change());
    assert_eq!(notes_line(&service.window(SESSION).await), None);
    cut(&service, SESSION).await;
    let cut_window = service.window(SESSION).await;
    assert_eq!(notes_line(&cut_window).as_deref(), Some("`port`"));
    assert_accepted(OpenaiChat, &cut_window);
    // A further note, or one that goes, is seen with the next change.
    put(&service, SESSION, "a`b, c", "x").await.unwrap();
    delete(&service, SESSION, "port").await.unwrap();
    let service = service.restart().await;
    assert_eq!(service.window(SESSION).await.items, cut_window.items);
    pin(&service, SESSION, "rule", RULE).await;
    let pinned = service.window(SESSION).await;
    assert_eq!(notes_line(&pinned).as_deref(), Some("``a`b, c``"));
    let service = service.restart().await;
    assert_eq!(service.window(SESSION).await.items, pinned.items);
    // The window of an earlier version is as it was.
    assert_eq!(notes_line(&service.window_at(SESSION, 3).await), None);
}

async fn forks_have_copies_of_notes_and_rewinds_leave_them(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, CONTEXT)).await;
    let system = r#"{"role":"system","content":"be brief"}"#.to_owned();
    service.append(SESSION, &[system, user(OpenaiChat, "count")]).await;
    for number in 0..3 {
        service.append(SESSION, &step(OpenaiChat, number)).await;
    }
    put(&service, SESSION, "port", "5433").await.unwrap();
    let fork = |id: &str, version| pb::ForkSessionRequest {
        name: SESSION.to_owned(),
        version: Some(version),
        session_id: id.to_owned(),
        request_id: fresh_id(),
        ..Default::default()
    };
    service.fork(fork("f", 2)).await.unwrap();
    assert_eq!(notes(&service, "sessions/f").await, named(&[("port", "5433")]));
    let shown = |window: &Restored| {
        let origins: Vec<_> = window.items.iter().map(pb::WindowItem::origin).collect();
        assert_eq!(origins[..3], [ItemOrigin::Log, ItemOrigin::Pin, ItemOrigin::Log]);
        assert_eq!(notes_line(window).as_deref(), Some("`port`"));
        assert_accepted(OpenaiChat, window);
    };
    shown(&service.window("sessions/f").await);
    assert_eq!(notes_line(&service.window(SESSION).await), None, "the source is as it was");
    service.rewind_to(SESSION, 2).await;
    shown(&service.window(SESSION).await);
    // Each has its own from then on.
    put(&service, "sessions/f", "port", "1").await.unwrap();
    put(&service, SESSION, "more", "x").await.unwrap();
    let service = service.restart().await;
    assert_eq!(notes(&service, "sessions/f").await, named(&[("port", "1")]));
    assert_eq!(notes(&service, SESSION).await, named(&[("more", "x"), ("port", "5433")]));
    shown(&service.window("sessions/f").await);
    // A session without pins and notes has no state for a rewind to record.
    service.create("plain", session(OpenaiChat, CONTEXT)).await;
    service.append("sessions/plain", &[user(OpenaiChat, "count")]).await;
    let revision = service.rewind_to("sessions/plain", 0).await.window_revision;
    assert_eq!(service.window("sessions/plain").await.items, []);
    assert_eq!(service.get("sessions/plain").await.window_revision, revision);
}

async fn a_session_continues_another_with_its_pins_and_notes(backend: Backend) {
    let service = Service::start(&backend).await;
    let preamble =
        pb::Preamble { payload: r#"{"system":"be brief"}"#.as_bytes().to_vec().into(), ..Default::default() };
    let config = pb::Session {
        preamble: Some(preamble),
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        ..session(OpenaiChat, CONTEXT)
    };
    service.create("s", config).await;
    service.append(SESSION, &[user(OpenaiChat, "count"), model(OpenaiChat, "1")]).await;
    pin(&service, SESSION, "rule", RULE).await;
    put(&service, SESSION, "port", "5433").await.unwrap();
    let source = service.get(SESSION).await;

    let made = continue_from(&service, SESSION, "next", None).await.unwrap();
    let origin = pb::ForkOrigin { session: SESSION.to_owned(), version: source.version };
    assert_eq!(made.continued_from, Some(origin));
    assert_eq!((made.version, made.head_seq, &made.forked_from), (0, 0, &None));
    assert_eq!((made.format, made.path), (source.format, source.path));
    assert_eq!((&made.profile, &made.preamble), (&source.profile, &source.preamble));
    assert!(made.labels.is_empty());
    assert_eq!(pins(&service, &made.name).await, [("rule".to_owned(), RULE.to_owned(), 0)]);
    assert_eq!(notes(&service, &made.name).await, named(&[("port", "5433")]));
    // Its window shows them from the start, and waits for the user.
    let opening = service.window(&made.name).await;
    assert_eq!(opening.items.iter().map(pb::WindowItem::origin).collect::<Vec<_>>(), [ItemOrigin::Pin]);
    assert_eq!(opening.header.next(), pb::NextStep::UserInput);
    assert_eq!(notes_line(&opening).as_deref(), Some("`port`"));
    assert!(opening.payloads()[0].contains(RULE));
    let persisted = service.append(&made.name, &[user(OpenaiChat, "go on")]).await;
    let window = service.window(&made.name).await;
    assert_eq!(window.items[..1], opening.items);
    assert_eq!(window.header.next(), pb::NextStep::Model);
    assert_accepted(OpenaiChat, &window);
    assert_eq!(persisted.first_seq, 1);
    // They are its own.
    put(&service, SESSION, "port", "1").await.unwrap();
    pin(&service, SESSION, "rule", "none").await;
    service.delete(SESSION, false).await.unwrap();
    let service = service.restart().await;
    assert_eq!(service.window(&made.name).await.items, window.items);
    assert_eq!(notes(&service, &made.name).await, named(&[("port", "5433")]));
    assert_eq!(service.get(&made.name).await.continued_from.unwrap().session, SESSION);
    // A source without anything gives nothing, and the configuration may be another.
    service.create("plain", session(OpenaiChat, CONTEXT)).await;
    let other = session(pb::WireFormat::AnthropicMessages, 9_000);
    let made = continue_from(&service, "sessions/plain", "", Some(other)).await.unwrap();
    assert_eq!(made.format(), pb::WireFormat::AnthropicMessages);
    assert_eq!(service.window(&made.name).await.items, []);
    // What it has, a fork of it has.
    let fork = pb::ForkSessionRequest {
        name: "sessions/next".to_owned(),
        session_id: "f".to_owned(),
        version: Some(0),
        request_id: fresh_id(),
        ..Default::default()
    };
    let fork = service.fork(fork).await.unwrap();
    assert_eq!(fork.continued_from, None);
    assert_eq!(notes_line(&service.window("sessions/f").await).as_deref(), Some("`port`"));
    assert_eq!(pins(&service, "sessions/f").await.len(), 1);
}

async fn notes_go_with_their_session(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, CONTEXT)).await;
    put(&service, SESSION, "port", "5433").await.unwrap();
    service.delete(SESSION, false).await.unwrap();
    for refused in [
        get(&service, SESSION, "port").await.map(drop),
        try_notes(&service, SESSION).await.map(drop),
        put(&service, SESSION, "port", "1").await.map(drop),
        continue_from(&service, SESSION, "next", None).await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), (Code::NotFound, "SESSION_NOT_FOUND"));
    }
}

async fn a_session_that_continues_another_is_accepted_in_every_format(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, CONTEXT)).await;
    pin(&service, SESSION, "rule", RULE).await;
    put(&service, SESSION, "port", "5433").await.unwrap();
    for format in STRUCTURED {
        let made = continue_from(&service, SESSION, "", Some(session(format, CONTEXT))).await.unwrap();
        service.append(&made.name, &[user(format, "count to a hundred")]).await;
        for number in 0..12 {
            service.append(&made.name, &step(format, number)).await;
            let window = service.window(&made.name).await;
            assert_accepted(format, &window);
            assert_eq!(notes_line(&window).as_deref(), Some("`port`"), "{format:?}");
            assert!(window.payloads().concat().contains(RULE), "{format:?}");
        }
        service.append(&made.name, &[model(format, "done"), user(format, "and again")]).await;
        assert_accepted(format, &service.window(&made.name).await);
    }
    let opaque = continue_from(&service, SESSION, "opaque", Some(of_format(Opaque))).await.unwrap_err();
    assert_eq!(
        (opaque.kind(), opaque.metadata("field")),
        ((Code::InvalidArgument, "INVALID_FIELD"), "continue_from")
    );
    assert!(opaque.message.contains("opaque"), "{}", opaque.message);
}

async fn what_cannot_be_continued_is_refused(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, 100_000)).await;
    let long = "never again ".repeat(200);
    pin(&service, SESSION, "rule", &long).await;
    let small = || Some(session(OpenaiChat, 4_000));
    let refused = continue_from(&service, SESSION, "next", small()).await.unwrap_err();
    assert_eq!(
        (refused.kind(), refused.metadata("field")),
        ((Code::InvalidArgument, "INVALID_FIELD"), "continue_from")
    );
    assert!(refused.message.contains("at most 300"), "{}", refused.message);
    for (source, kind) in [
        ("sessions/other", (Code::NotFound, "SESSION_NOT_FOUND")),
        ("other", (Code::InvalidArgument, "INVALID_FIELD")),
    ] {
        assert_eq!(continue_from(&service, source, "next", small()).await.unwrap_err().kind(), kind);
    }
    let wrong = pb::Session { strip_rules: vec!["none".to_owned()], ..of_format(OpenaiChat) };
    let refused = continue_from(&service, SESSION, "next", Some(wrong)).await.unwrap_err();
    assert_eq!(refused.metadata("field"), "session.strip_rules[0]");
    assert_eq!(service.try_get("sessions/next").await.unwrap_err().reason, "SESSION_NOT_FOUND");
    continue_from(&service, SESSION, "next", None).await.unwrap();
    let taken = continue_from(&service, SESSION, "next", None).await.unwrap_err();
    assert_eq!(taken.kind(), (Code::AlreadyExists, "SESSION_EXISTS"));
    // Sessions of opaque entries have notes, which windows cannot name.
    service.create("o", of_format(Opaque)).await;
    put(&service, "sessions/o", "port", "5433").await.unwrap();
    let made = continue_from(&service, "sessions/o", "o2", None).await.unwrap();
    assert_eq!(notes(&service, &made.name).await, named(&[("port", "5433")]));
    assert_eq!(service.window(&made.name).await.items, []);
}

async fn a_note_that_may_not_be_is_refused(backend: Backend) {
    use turnkeep::limits::{NAME_CHARS_MAX, NOTE_BYTES_MAX, NOTES_BYTES_MAX, NOTES_MAX};
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, CONTEXT)).await;
    let (long_name, long_text) = ("n".repeat(NAME_CHARS_MAX), "x".repeat(NOTE_BYTES_MAX));
    put(&service, SESSION, &long_name, &long_text).await.unwrap();
    for (name, text, field) in [
        ("", "x", "note.name"),
        ("a/b", "x", "note.name"),
        ("a\nb", "x", "note.name"),
        (&format!("{long_name}n")[..], "x", "note.name"),
        ("a", "", "note.text"),
        ("a", " \n", "note.text"),
        ("a", "x\0", "note.text"),
        ("a", &format!("{long_text}x")[..], "note.text"),
    ] {
        let refused = put(&service, SESSION, name, text).await.unwrap_err();
        assert_eq!((refused.kind().1, refused.metadata("field")), ("INVALID_FIELD", field), "{name:?}");
    }
    for number in 1..NOTES_BYTES_MAX / NOTE_BYTES_MAX {
        put(&service, SESSION, &number.to_string(), &long_text).await.unwrap();
    }
    let refused = put(&service, SESSION, "one more byte", "x").await.unwrap_err();
    assert_eq!(refused.metadata("field"), "note.text");
    assert!(refused.message.contains(&NOTES_BYTES_MAX.to_string()), "{}", refused.message);
    // All of them come in one answer, to a client with the usual limits.
    assert_eq!(try_notes(&service, SESSION).await.unwrap().len(), NOTES_BYTES_MAX / NOTE_BYTES_MAX);
    service.create("many", session(OpenaiChat, CONTEXT)).await;
    for number in 0..NOTES_MAX {
        put(&service, "sessions/many", &number.to_string(), "x").await.unwrap();
    }
    let refused = put(&service, "sessions/many", "one more", "x").await.unwrap_err();
    assert_eq!(refused.metadata("field"), "note");
}

async fn names_of_notes_take_one_line_of_bounded_length(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, 100_000)).await;
    let name = |number| format!("{number:03} {}", "n".repeat(60));
    for number in 0..100 {
        put(&service, SESSION, &name(number), "x").await.unwrap();
    }
    let made = continue_from(&service, SESSION, "next", None).await.unwrap();
    let line = notes_line(&service.window(&made.name).await).unwrap();
    assert!(line.starts_with(&format!("`{}`, `{}`", name(0), name(1))), "{line}");
    assert!(line.ends_with("and 68 more") && line.len() < 2_300, "{line}");
}

async fn pins_come_after_the_system_entries_of_a_log_that_begins_after_them(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, CONTEXT)).await;
    pin(&service, SESSION, "rule", RULE).await;
    let system = |text: &str| format!(r#"{{"role":"system","content":"{text}"}}"#);
    service.append(SESSION, &[system("be brief")]).await;
    service.append(SESSION, &[system("be kind"), user(OpenaiChat, "count")]).await;
    let window = service.window(SESSION).await;
    let origins: Vec<_> = window.items.iter().map(|item| (item.origin(), item.seqs.clone())).collect();
    let of_log = |seq| (ItemOrigin::Log, vec![seq]);
    assert_eq!(origins, [of_log(1), of_log(2), (ItemOrigin::Pin, vec![]), of_log(3)]);
    // From then on it stays.
    let revision = service.get(SESSION).await.window_revision;
    service.append(SESSION, &[model(OpenaiChat, "1")]).await;
    assert_eq!(service.get(SESSION).await.window_revision, revision);
    let grown = service.window(SESSION).await;
    assert_eq!(grown.items[..4], window.items);
    assert_accepted(OpenaiChat, &grown);
}
