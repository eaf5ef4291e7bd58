//! Refusals: what is wrong is named, with its limit, and nothing is written.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends, on_embedded_backend};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pb::WireFormat::OpenaiChat;
use pb::persist_transcript_request::Input;
use prost_types::{FieldMask, Timestamp};
use service::{
    Refusal, SESSION, Service, append, append_entries, entry, fresh_id, message, of_format, snapshot,
};
use std::collections::HashMap;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use turnkeep::limits::{
    ENTRY_BYTES_MAX, PREAMBLE_BYTES_MAX, SNAPSHOT_ENTRIES_MAX, TOKENS_MAX, TURN_ENTRIES_MAX,
};
use turnkeep::rpc::pb;

on_all_backends!(a_turn_with_one_wrong_entry_is_refused_whole, what_is_just_within_the_limits_is_taken);
on_embedded_backend!(
    wrong_persists_are_refused,
    wrong_sessions_are_refused,
    wrong_changes_are_refused,
    wrong_lists_are_refused,
    wrong_restores_are_refused,
    wrong_forks_and_rewinds_are_refused,
    wrong_names_are_refused_by_every_call,
    a_missing_session_is_not_found_by_any_call,
    an_error_repeats_little_of_what_was_sent,
    a_request_that_is_too_large_or_not_known_has_a_reason,
    failures_carry_all_their_details,
);

async fn start(backend: &Backend) -> Service {
    let service = Service::start(backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    service
}

/// Checks that a refusal is of a field, and that docs/errors.md has its reason.
fn is_of_field<T: std::fmt::Debug>(result: Result<T, Refusal>, field: &str, problem: &str) {
    let refusal = result.unwrap_err();
    assert_eq!(refusal.kind(), (Code::InvalidArgument, "INVALID_FIELD"), "{refusal:?}");
    assert_eq!(refusal.metadata("field"), field, "{refusal:?}");
    assert_eq!(refusal.retry_after, None);
    let [(path, description)] = &refusal.fields[..] else { panic!("{refusal:?}") };
    assert_eq!(path, field);
    assert!(description.contains(problem), "{description:?} lacks {problem:?}");
    assert_eq!(refusal.message, format!("{field}: {description}"));
}

async fn a_turn_with_one_wrong_entry_is_refused_whole(backend: Backend) {
    let service = start(&backend).await;
    service.append(SESSION, &["{}"]).await;
    let before = (service.get(SESSION).await, service.read(SESSION).await, service.turns(SESSION).await);
    let wrong: [(&[u8], &str); 11] = [
        (b"", "is not one JSON value"),
        (b"[{}]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b"\"{}\"", "is not a JSON object"),
        (b"{", "is not one JSON value: EOF"),
        (b"{}{}", "is not one JSON value: trailing characters at line 1 column 3"),
        (b"{\"a\":NaN}", "is not one JSON value"),
        (b"{\"a\":\"\n\"}", "is not one JSON value: control character"),
        (b"{\"a\":\"\\ud8\"}", "is not one JSON value"),
        (b"{\"a\":\"\xff\"}", "is not UTF-8 from byte 6 on"),
        (b"\xef\xbb\xbf{}", "is not one JSON value"),
    ];
    for (payload, problem) in wrong {
        for kind in [pb::EntryKind::Message, pb::EntryKind::Meta, pb::EntryKind::Progress] {
            let entries = vec![message("{}"), message("{}"), entry(kind, payload), message("{}")];
            let result = service.persist(append_entries(SESSION, "r", entries.clone())).await;
            is_of_field(result, "append.entries[2].payload", problem);
            let mut list = snapshot::<&str>(SESSION, &[]);
            let Some(Input::Snapshot(input)) = &mut list.input else { unreachable!() };
            input.entries = entries;
            is_of_field(service.persist(list).await, "snapshot.entries[2].payload", problem);
        }
    }
    let oversize = format!(r#"{{"x":"{}"}}"#, "x".repeat(ENTRY_BYTES_MAX - 7));
    let problem = format!("has {} bytes; at most {ENTRY_BYTES_MAX} are allowed", ENTRY_BYTES_MAX + 1);
    let result = service.persist(append(SESSION, "r", &["{}", &oversize])).await;
    is_of_field(result, "append.entries[1].payload", &problem);
    let too_many = vec!["{}"; TURN_ENTRIES_MAX + 1];
    let result = service.persist(append(SESSION, "r", &too_many)).await;
    is_of_field(result, "append.entries", "has 10001 entries; at most 10000 are allowed");
    let too_many = vec!["{}"; SNAPSHOT_ENTRIES_MAX + 1];
    let result = service.persist(snapshot(SESSION, &too_many)).await;
    is_of_field(result, "snapshot.entries", "has 100001 entries; at most 100000 are allowed");
    let after = (service.get(SESSION).await, service.read(SESSION).await, service.turns(SESSION).await);
    assert_eq!(after, before);
    assert_eq!(
        service.persist(append(SESSION, "r", &["{}"])).await.unwrap().version,
        2,
        "the id is free still"
    );
}

async fn what_is_just_within_the_limits_is_taken(backend: Backend) {
    let service = Service::start(&backend).await;
    let id = "s".repeat(128);
    let name = format!("sessions/{id}");
    let session = pb::Session {
        profile: Some(pb::ModelProfile {
            model: "m".repeat(128),
            context_window_tokens: TOKENS_MAX,
            max_output_tokens: TOKENS_MAX,
            tokenizer: pb::Tokenizer::Estimate.into(),
            tool_result_limit: None,
            prices: None,
            media_limits: None,
        }),
        labels: (0..32).map(|i| (format!("{i:063}"), "é".repeat(127) + "x")).collect(),
        strip_rules: vec!["claude-code".to_owned(); 16],
        preamble: Some(pb::Preamble {
            payload: format!("\"{}\"", "x".repeat(PREAMBLE_BYTES_MAX - 2)).into(),
            ..Default::default()
        }),
        ..of_format(OpenaiChat)
    };
    let made = service.create(&id, session.clone()).await;
    assert_eq!((made.profile, made.labels), (session.profile, session.labels.clone()));
    assert_eq!(made.preamble.unwrap().payload, session.preamble.unwrap().payload);
    let request = pb::PersistTranscriptRequest {
        usage: Some(pb::Usage {
            model: "m".repeat(128),
            input_tokens: TOKENS_MAX,
            output_tokens: TOKENS_MAX,
            cache_read_tokens: TOKENS_MAX,
            cache_write_tokens: TOKENS_MAX,
            window_id: "w".repeat(512),
            counted_tokens: None,
        }),
        score: Some(f64::MAX),
        step_kind: "k".repeat(64),
        ..append(&name, &"r".repeat(128), &vec![r#"{"role":"user","content":"x"}"#; TURN_ENTRIES_MAX])
    };
    let answer = service.persist(request.clone()).await.unwrap();
    assert_eq!(answer.last_seq, TURN_ENTRIES_MAX as u64);
    let turn = service.turns(&name).await.remove(0);
    assert_eq!((turn.usage, turn.score, turn.step_kind), (request.usage, request.score, request.step_kind));
    let filter =
        pb::SessionFilter { labels: session.labels.into_iter().take(4).collect(), ..Default::default() };
    let request = pb::ListSessionsRequest { filter: Some(filter), page_size: i32::MAX, ..Default::default() };
    assert_eq!(service.list(request).await.unwrap().sessions.len(), 1);
    let fork = pb::ForkSessionRequest {
        name: name.clone(),
        request_id: "r".repeat(128),
        session_id: "f".repeat(128),
        ..Default::default()
    };
    assert_eq!(service.fork(fork).await.unwrap().head_seq, TURN_ENTRIES_MAX as u64);
    let restore = pb::RestoreTranscriptRequest {
        session: name,
        reserve_tokens: Some(TOKENS_MAX),
        fixed_overhead_tokens: TOKENS_MAX,
        // Nothing fits beside them.
        compression: pb::CompressionMode::None.into(),
        ..Default::default()
    };
    assert_eq!(service.restore(restore).await.items.len(), TURN_ENTRIES_MAX);
}

async fn wrong_persists_are_refused(backend: Backend) {
    let service = start(&backend).await;
    let time = |seconds, nanos| pb::NewEntry { time: Some(Timestamp { seconds, nanos }), ..message("{}") };
    let times = [
        (253_402_300_800, 0),
        (-62_135_596_801, 0),
        (i64::MAX, 0),
        (i64::MIN, 0),
        (0, -1),
        (0, 1_000_000_000),
    ];
    for (seconds, nanos) in times {
        let entries = vec![message("{}"), time(seconds, nanos)];
        let result = service.persist(append_entries(SESSION, "r", entries)).await;
        is_of_field(result, "append.entries[1].time", "is not within the years 1 to 9999");
    }
    let too_long = "has 129 characters; at most 128 are allowed";
    for (request_id, problem) in [
        ("", "must not be empty"),
        ("a b", "only letters, digits and `. _ : -` are allowed"),
        ("a/b", "holds '/'"),
        ("é", "holds 'é'"),
        ("a\n", "holds '\\n'"),
        ("a\u{0}", "holds '\\0'"),
        (&"r".repeat(129), too_long),
    ] {
        is_of_field(service.persist(append(SESSION, request_id, &["{}"])).await, "request_id", problem);
    }
    for score in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let request = pb::PersistTranscriptRequest { score: Some(score), ..append(SESSION, "r", &["{}"]) };
        is_of_field(service.persist(request).await, "score", "must be a finite number");
    }
    let request = pb::PersistTranscriptRequest { input: None, ..append(SESSION, "r", &["{}"]) };
    is_of_field(service.persist(request).await, "input", "must be set");
    let request = pb::PersistTranscriptRequest { step_kind: "k".repeat(65), ..append(SESSION, "r", &["{}"]) };
    is_of_field(service.persist(request).await, "step_kind", "has 65 bytes; at most 64 are allowed");
    let over = TOKENS_MAX + 1;
    let usages = [
        ("model", "has 129 bytes; at most 128", pb::Usage { model: "m".repeat(129), ..Default::default() }),
        ("model", "has 130 bytes", pb::Usage { model: "é".repeat(65), ..Default::default() }),
        (
            "window_id",
            "has 513 bytes; at most 512",
            pb::Usage { window_id: "w".repeat(513), ..Default::default() },
        ),
        ("input_tokens", "at most 1099511627776", pb::Usage { input_tokens: over, ..Default::default() }),
        ("output_tokens", "at most 1099511627776", pb::Usage { output_tokens: over, ..Default::default() }),
        ("cache_read_tokens", "at most", pb::Usage { cache_read_tokens: u64::MAX, ..Default::default() }),
        ("cache_write_tokens", "at most", pb::Usage { cache_write_tokens: u64::MAX, ..Default::default() }),
    ];
    for (field, problem, usage) in usages {
        let request = pb::PersistTranscriptRequest { usage: Some(usage), ..append(SESSION, "r", &["{}"]) };
        is_of_field(service.persist(request).await, &format!("usage.{field}"), problem);
    }
    assert_eq!(service.turns(SESSION).await, []);
}

/// Sessions that cannot be, with the field that is wrong and what is said of it.
fn wrong_sessions() -> Vec<(pb::Session, &'static str, String)> {
    let profile = |profile| pb::Session { profile: Some(profile), ..of_format(OpenaiChat) };
    let labels = |labels: HashMap<String, String>| pb::Session { labels, ..of_format(OpenaiChat) };
    let label = |key: &str, value: &str| labels([(key.to_owned(), value.to_owned())].into());
    let rules = |strip_rules| pb::Session { strip_rules, ..of_format(OpenaiChat) };
    let preamble = |payload: Vec<u8>| pb::Session {
        preamble: Some(pb::Preamble { payload: payload.into(), ..Default::default() }),
        ..of_format(OpenaiChat)
    };
    let model = |model: String, context_window_tokens, max_output_tokens, tokenizer| {
        profile(pb::ModelProfile {
            model,
            context_window_tokens,
            max_output_tokens,
            tokenizer,
            tool_result_limit: None,
            prices: None,
            media_limits: None,
        })
    };
    let key_problem = "is not 1 to 63 characters of `a-z 0-9 . _ / -`";
    let value_problem = "is not up to 255 bytes without NUL";
    let tokens_problem = "at most 1099511627776 are allowed";
    let table = [
        (pb::Session { path: 99, ..of_format(OpenaiChat) }, "path", "is 99, which is not a known path"),
        (pb::Session { path: -1, ..of_format(OpenaiChat) }, "path", "is -1"),
        (model("m".repeat(129), 1, 0, 0), "profile.model", "has 129 bytes; at most 128 are allowed"),
        (
            model("unheard-of".to_owned(), 0, 0, 0),
            "profile.model",
            "is not a profile in the service's settings",
        ),
        (model(String::new(), TOKENS_MAX + 1, 0, 0), "profile.context_window_tokens", tokens_problem),
        (model(String::new(), 0, u64::MAX, 0), "profile.max_output_tokens", tokens_problem),
        (model(String::new(), 1, 0, 99), "profile.tokenizer", "is 99, which is not a known tokenizer"),
        (
            labels((0..33).map(|i| (i.to_string(), String::new())).collect()),
            "labels",
            "has 33 labels; at most 32",
        ),
        (label("", ""), "labels", key_problem),
        (label("A", ""), "labels", key_problem),
        (label("a b", ""), "labels", key_problem),
        (label("é", ""), "labels", key_problem),
        (label(&"k".repeat(64), ""), "labels", key_problem),
        (label("k", &"v".repeat(256)), "labels", value_problem),
        (label("k", "a\u{0}"), "labels", value_problem),
        (rules(vec!["claude-code".to_owned(); 17]), "strip_rules", "has 17 names; at most 16 are allowed"),
        (rules(vec!["claude-code".to_owned(), "x".to_owned()]), "strip_rules[1]", "is not a rule set"),
        (
            preamble(vec![b' '; PREAMBLE_BYTES_MAX + 1]),
            "preamble.payload",
            "has 2097153 bytes; at most 2097152",
        ),
        (preamble(b"{".to_vec()), "preamble.payload", "is not one JSON value"),
        (preamble(b"\"\xff\"".to_vec()), "preamble.payload", "is not UTF-8 from byte 1 on"),
    ];
    table.map(|(session, field, problem)| (session, field, problem.to_owned())).into()
}

async fn wrong_sessions_are_refused(backend: Backend) {
    let service = Service::start(&backend).await;
    for format in [0, 99, -1] {
        let session = pb::Session { format, ..Default::default() };
        let result = service.try_create("s", session).await;
        is_of_field(result, "session.format", "is required and must be a known format");
    }
    for (session, field, problem) in wrong_sessions() {
        let result = service.try_create("s", session.clone()).await;
        is_of_field(result, &format!("session.{field}"), &problem);
        let request = pb::PersistTranscriptRequest {
            create_if_missing: Some(session),
            ..append(SESSION, "r", &["{}"])
        };
        is_of_field(service.persist(request).await, &format!("create_if_missing.{field}"), &problem);
    }
    for (id, problem) in [("a/b", "holds '/'"), (" ", "holds ' '"), (&"s".repeat(129), "has 129 characters")]
    {
        is_of_field(service.try_create(id, of_format(OpenaiChat)).await, "session_id", problem);
    }
    let request =
        pb::CreateSessionRequest { session_id: "s".to_owned(), session: None, ..Default::default() };
    let status = service.client.sessions.clone().create_session(request).await.unwrap_err();
    is_of_field(Err::<(), _>(Refusal::from(status)), "session", "is required");
    assert_eq!(service.list(pb::ListSessionsRequest::default()).await.unwrap().sessions, []);
}

async fn wrong_changes_are_refused(backend: Backend) {
    let service = start(&backend).await;
    let before = service.get(SESSION).await;
    let named = |session| pb::Session { name: SESSION.to_owned(), ..session };
    for (session, field, problem) in wrong_sessions() {
        let mask = field.split(['.', '[']).next().unwrap();
        let result = service.update(named(session), &["path", "profile", "labels", "strip_rules"]).await;
        if mask == "preamble" {
            result.unwrap();
        } else {
            is_of_field(result, &format!("session.{field}"), &problem);
        }
    }
    let before = pb::Session { etag: service.get(SESSION).await.etag, ..before };
    for (session, field, problem) in wrong_sessions() {
        let mask = field.split(['.', '[']).next().unwrap();
        is_of_field(service.update(named(session), &[mask]).await, &format!("session.{field}"), &problem);
    }
    let result = service.update(named(of_format(OpenaiChat)), &["preamble"]).await;
    is_of_field(result, "session.preamble.payload", "is required");
    for path in ["format", "name", "etag", "version", "*", "", "Labels", "labels.a", "profile.model"] {
        let result = service.update(named(of_format(OpenaiChat)), &["labels", path]).await;
        is_of_field(result, "update_mask", "which is not a field that can be changed");
    }
    is_of_field(service.update(before.clone(), &[]).await, "update_mask", "names no field");
    for (session, update_mask, field) in [
        (Some(before.clone()), None, "update_mask"),
        (None, Some(FieldMask { paths: vec!["labels".to_owned()] }), "session"),
    ] {
        let request = pb::UpdateSessionRequest { session, update_mask };
        let status = service.client.sessions.clone().update_session(request).await.unwrap_err();
        is_of_field(Err::<(), _>(Refusal::from(status)), field, "");
    }
    assert_eq!(service.get(SESSION).await.etag, before.etag, "nothing was changed");
}

async fn wrong_lists_are_refused(backend: Backend) {
    let service = start(&backend).await;
    for _ in 0..3 {
        service.append(SESSION, &["{}"]).await;
    }
    service.create("t", of_format(OpenaiChat)).await;
    let list = pb::ListSessionsRequest { page_size: 1, ..Default::default() };
    let turns = pb::ListTurnsRequest { name: SESSION.to_owned(), page_size: 1, ..Default::default() };
    let of_sessions = service.list(list.clone()).await.unwrap().next_page_token;
    let of_turns = service.turns_page(turns.clone()).await.unwrap().next_page_token;
    assert!(!of_sessions.is_empty() && !of_turns.is_empty());
    let encoded = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let junk =
        ["?", "AA", &encoded("x"), &encoded("/"), &encoded("1/a b"), &encoded("99999999999999999999/a")];
    for page_token in junk.into_iter().map(str::to_owned).chain([of_turns, "A".repeat(10_000)]) {
        let request = pb::ListSessionsRequest { page_token, ..list.clone() };
        is_of_field(service.list(request).await, "page_token", "is not one that this list has given");
    }
    let junk = ["?", "AA", &encoded("-1"), &encoded("1.0"), &encoded("99999999999999999999")];
    for page_token in junk.into_iter().map(str::to_owned).chain([of_sessions]) {
        let request = pb::ListTurnsRequest { page_token, ..turns.clone() };
        is_of_field(service.turns_page(request).await, "page_token", "is not one that this list has given");
    }
    for page_size in [-1, i32::MIN] {
        let request = pb::ListSessionsRequest { page_size, ..list.clone() };
        is_of_field(service.list(request).await, "page_size", "must not be negative");
        let request = pb::ListTurnsRequest { page_size, ..turns.clone() };
        is_of_field(service.turns_page(request).await, "page_size", "must not be negative");
    }
    let label = |key: &str, value: &str| HashMap::from([(key.to_owned(), value.to_owned())]);
    let far = Some(Timestamp { seconds: i64::MAX, nanos: 0 });
    let filters = [
        (pb::SessionFilter { path: 99, ..Default::default() }, "path", "is 99"),
        (
            pb::SessionFilter {
                labels: (0..5).map(|i| (i.to_string(), String::new())).collect(),
                ..Default::default()
            },
            "labels",
            "has 5 labels; at most 4",
        ),
        (pb::SessionFilter { labels: label("a", "\u{0}"), ..Default::default() }, "labels", "without NUL"),
        (pb::SessionFilter { labels: label("\u{0}", "a"), ..Default::default() }, "labels", "is not 1 to 63"),
        (
            pb::SessionFilter { create_time_min: far, ..Default::default() },
            "create_time_min",
            "years 1 to 9999",
        ),
        (
            pb::SessionFilter { create_time_max: far, ..Default::default() },
            "create_time_max",
            "years 1 to 9999",
        ),
        (
            pb::SessionFilter { update_time_min: far, ..Default::default() },
            "update_time_min",
            "years 1 to 9999",
        ),
    ];
    for (filter, field, problem) in filters {
        let request = pb::ListSessionsRequest { filter: Some(filter), ..Default::default() };
        is_of_field(service.list(request).await, &format!("filter.{field}"), problem);
    }
}

async fn wrong_restores_are_refused(backend: Backend) {
    let service = start(&backend).await;
    let request = pb::RestoreTranscriptRequest { session: SESSION.to_owned(), ..Default::default() };
    for tokens in [TOKENS_MAX + 1, u64::MAX] {
        let wrong = pb::RestoreTranscriptRequest { reserve_tokens: Some(tokens), ..request.clone() };
        is_of_field(service.try_restore(wrong).await, "reserve_tokens", "at most 1099511627776 are allowed");
        let wrong = pb::RestoreTranscriptRequest { fixed_overhead_tokens: tokens, ..request.clone() };
        is_of_field(service.try_restore(wrong).await, "fixed_overhead_tokens", "at most 1099511627776");
    }
    for compression in [99, -1] {
        let wrong = pb::RestoreTranscriptRequest { compression, ..request.clone() };
        is_of_field(service.try_restore(wrong).await, "compression", "which is not a known mode");
    }
}

async fn wrong_forks_and_rewinds_are_refused(backend: Backend) {
    let service = start(&backend).await;
    let fork =
        pb::ForkSessionRequest { name: SESSION.to_owned(), request_id: fresh_id(), ..Default::default() };
    for request_id in [String::new(), "r".repeat(129), "a b".to_owned()] {
        let wrong = pb::ForkSessionRequest { request_id: request_id.clone(), ..fork.clone() };
        is_of_field(service.fork(wrong).await, "request_id", "");
        let wrong = pb::RewindSessionRequest { name: SESSION.to_owned(), request_id, ..Default::default() };
        is_of_field(service.rewind(wrong).await, "request_id", "");
    }
    let wrong = pb::ForkSessionRequest { session_id: "a/b".to_owned(), ..fork.clone() };
    is_of_field(service.fork(wrong).await, "session_id", "holds '/'");
    let labels = HashMap::from([("A".to_owned(), String::new())]);
    is_of_field(service.fork(pb::ForkSessionRequest { labels, ..fork }).await, "labels", "is not 1 to 63");
    assert_eq!(service.turns(SESSION).await, []);
}

/// The refusals of all calls that name a session.
async fn refusals(service: &Service, name: &str) -> Vec<(&'static str, Refusal)> {
    let name = || name.to_owned();
    let restore = pb::RestoreTranscriptRequest { session: name(), ..Default::default() };
    let read = pb::ReadTranscriptRequest { session: name(), ..Default::default() };
    let fork = pb::ForkSessionRequest { name: name(), request_id: fresh_id(), ..Default::default() };
    let rewind = pb::RewindSessionRequest { name: name(), request_id: fresh_id(), ..Default::default() };
    let session = pb::Session { name: name(), ..Default::default() };
    vec![
        ("name", service.try_get(&name()).await.unwrap_err()),
        ("name", service.delete(&name(), true).await.unwrap_err()),
        ("name", service.receipt(&name()).await.unwrap_err()),
        (
            "name",
            service
                .turns_page(pb::ListTurnsRequest { name: name(), ..Default::default() })
                .await
                .unwrap_err(),
        ),
        ("name", service.fork(fork).await.unwrap_err()),
        ("name", service.rewind(rewind).await.unwrap_err()),
        ("session.name", service.update(session, &["labels"]).await.unwrap_err()),
        ("session", service.persist(append(&name(), "r", &["{}"])).await.unwrap_err()),
        ("session", service.persist(snapshot(&name(), &["{}"])).await.unwrap_err()),
        ("session", service.try_restore(restore).await.unwrap_err()),
        ("session", service.try_read(read).await.unwrap_err()),
    ]
}

async fn wrong_names_are_refused_by_every_call(backend: Backend) {
    let service = start(&backend).await;
    let form = "must have the form `sessions/{session}`";
    for (name, problem) in [
        ("", form),
        ("s", form),
        ("Sessions/s", form),
        ("/sessions/s", form),
        ("sessions/", "must not be empty"),
        ("sessions/a/b", "holds '/'"),
        ("sessions/é", "holds 'é'"),
        ("sessions/a\u{0}", "holds '\\0'"),
        (&format!("sessions/{}", "s".repeat(129)), "has 129 characters; at most 128 are allowed"),
    ] {
        for (field, refusal) in refusals(&service, name).await {
            is_of_field(Err::<(), _>(refusal), field, problem);
        }
    }
}

async fn a_missing_session_is_not_found_by_any_call(backend: Backend) {
    let service = Service::start(&backend).await;
    for (_, refusal) in refusals(&service, SESSION).await {
        assert_eq!(refusal.kind(), (Code::NotFound, "SESSION_NOT_FOUND"));
        assert_eq!(refusal.metadata("session"), SESSION);
        assert_eq!(refusal.message, "session s not found");
    }
}

async fn an_error_repeats_little_of_what_was_sent(backend: Backend) {
    let service = start(&backend).await;
    let long = "é".repeat(1 << 20);
    let session = pb::Session { name: SESSION.to_owned(), ..Default::default() };
    is_of_field(service.update(session.clone(), &[&long]).await, "update_mask", "ééé");
    let labels = HashMap::from([(long.clone(), long.clone())]);
    is_of_field(
        service.update(pb::Session { labels, ..session.clone() }, &["labels"]).await,
        "session.labels",
        "ééé",
    );
    let labels = HashMap::from([("a".to_owned(), long.clone())]);
    is_of_field(
        service.update(pb::Session { labels, ..session }, &["labels"]).await,
        "session.labels",
        "255 bytes",
    );
    for (field, refusal) in refusals(&service, &format!("sessions/{long}")).await {
        is_of_field(Err::<(), _>(refusal), field, "holds 'é'");
    }
    is_of_field(service.persist(append(SESSION, &long, &["{}"])).await, "request_id", "holds 'é'");
    let payload = format!("{{\"a\":\"{long}\",}}");
    let result = service.persist(append(SESSION, "r", &[payload])).await;
    is_of_field(result, "append.entries[0].payload", "is not one JSON value");
    let list = pb::ListSessionsRequest { page_token: long, ..Default::default() };
    is_of_field(service.list(list).await, "page_token", "is not one");
}

async fn a_request_that_is_too_large_or_not_known_has_a_reason(backend: Backend) {
    let service = start(&backend).await;
    let half = format!(r#"{{"x":"{}"}}"#, "x".repeat(17 << 20));
    let refusal = service.persist(append(SESSION, "r", &[&half, &half])).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::OutOfRange, "REQUEST_TOO_LARGE"));
    assert!(refusal.message.contains("larger than 32 MiB: split the turn"), "{refusal:?}");
    assert_eq!(service.turns(SESSION).await, []);

    let channel = service.channel().await;
    for method in ["/turnkeep.v1.SessionService/Nothing", "/turnkeep.v2.SessionService/GetSession"] {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<pb::GetSessionRequest, pb::Session>::default();
        let request = tonic::Request::new(pb::GetSessionRequest::default());
        let status = client.unary(request, method.parse().unwrap(), codec).await.unwrap_err();
        assert_eq!(Refusal::from(status).kind(), (Code::Unimplemented, "UNKNOWN_METHOD"));
    }

    let mut compressed = tonic::Request::new(pb::GetSessionRequest { name: SESSION.to_owned() });
    compressed.metadata_mut().insert("grpc-encoding", "gzip".parse().unwrap());
    let status = service.client.sessions.clone().get_session(compressed).await.unwrap_err();
    assert_eq!(Refusal::from(status).kind(), (Code::Unimplemented, "UNSUPPORTED_COMPRESSION"));
}

async fn failures_carry_all_their_details(backend: Backend) {
    let service = start(&backend).await;
    service.append(SESSION, &["{}"]).await;
    let sessions = || service.client.sessions.clone();
    let resource = |status: Status| {
        let resource = status.get_details_resource_info().unwrap();
        (resource.resource_type, resource.resource_name)
    };
    let get = pb::GetSessionRequest { name: "sessions/none".to_owned() };
    let session_type = "turnkeep.v1.Session".to_owned();
    let status = sessions().get_session(get).await.unwrap_err();
    assert_eq!(resource(status), (session_type.clone(), "sessions/none".to_owned()));
    let create = pb::CreateSessionRequest {
        session_id: "s".to_owned(),
        session: Some(of_format(OpenaiChat)),
        ..Default::default()
    };
    let status = sessions().create_session(create).await.unwrap_err();
    assert_eq!(resource(status), (session_type, SESSION.to_owned()));
    let list = snapshot(SESSION, &[r#"{"a":1}"#]);
    let status = service.client.transcripts.clone().persist_transcript(list).await.unwrap_err();
    let violations = status.get_details_precondition_failure().unwrap().violations;
    let [violation] = &violations[..] else { panic!("{violations:?}") };
    assert_eq!(
        (&violation.r#type[..], &violation.subject[..]),
        ("SNAPSHOT_CONTINUES_LOG", "snapshot.entries[0]")
    );
    assert_eq!(violation.description, "their contents differ");
}
