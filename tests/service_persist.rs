//! Persisting: one turn, all of its entries or none, once.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends};
use futures::future::join_all;
use pb::EntryKind::{Heartbeat, Meta, Progress, Status};
use pb::WireFormat::{AnthropicMessages, OpenaiChat};
use pb::persist_transcript_request::{Append, Input, Snapshot};
use prost::Message as _;
use prost_types::Timestamp;
use service::{
    SESSION, Service, append, append_entries, entry, fresh_id, message, of_format, polled, snapshot, text,
};
use std::collections::{BTreeMap, BTreeSet};
use tonic::Code;
use turnkeep::rpc::pb;

on_all_backends!(
    an_append_is_a_turn_of_its_entries,
    an_append_of_nothing_is_a_turn_without_entries,
    entries_keep_the_time_that_they_were_given,
    line_breaks_between_tokens_become_spaces_and_nothing_else_changes,
    a_wrong_expected_version_writes_nothing,
    a_retry_gets_the_same_bytes_and_changes_nothing,
    no_digit_of_a_score_or_a_share_changes_by_being_stored,
    a_request_id_with_other_content_is_refused,
    retries_at_the_same_time_make_one_turn,
    a_missing_session_is_created_if_the_request_says_so,
    what_is_refused_creates_no_session,
    what_is_stripped_is_counted_and_not_stored,
    the_answer_says_how_full_the_window_is,
    appends_at_the_same_time_all_land_once,
    of_appends_that_expect_one_version_one_wins,
    a_call_that_is_cut_off_leaves_all_of_its_turn_or_nothing,
);

const HI: &str = r#"{"role":"user","content":"hi"}"#;
const HO: &str = r#"{"role":"assistant","content":"ho"}"#;

async fn start(backend: &Backend) -> Service {
    let service = Service::start(backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    service
}

async fn an_append_is_a_turn_of_its_entries(backend: Backend) {
    let service = start(&backend).await;
    let entries = vec![message(HI), entry(Meta, r#"{"note":1}"#), message(HO)];
    let answer = service.persist(append_entries(SESSION, "r1", entries)).await.unwrap();
    let log = service.read(SESSION).await;
    let tokens = log.entries.iter().map(|entry| entry.tokens).sum();
    let expected = pb::PersistTranscriptResponse {
        version: 1,
        receipt: log.header.receipt.clone(),
        first_seq: 1,
        last_seq: 3,
        turn_tokens: tokens,
        log_tokens: tokens,
        ..Default::default()
    };
    assert_eq!(answer, expected);
    let at = log.header.version_time;
    let stored = |seq, kind: pb::EntryKind, tokens, payload: &str| pb::Entry {
        seq,
        version: 1,
        time: at,
        kind: kind.into(),
        tokens,
        payload: payload.to_owned().into(),
    };
    let [first, _, third] = &log.entries[..] else { panic!("{log:?}") };
    assert!(first.tokens > 0 && third.tokens > 0);
    let expected = [
        stored(1, pb::EntryKind::Message, first.tokens, HI),
        stored(2, Meta, 0, r#"{"note":1}"#),
        stored(3, pb::EntryKind::Message, third.tokens, HO),
    ];
    assert_eq!(log.entries, expected);

    let second = service.append(SESSION, &[HI]).await;
    assert_eq!((second.version, second.first_seq, second.last_seq), (2, 4, 4));
    assert_eq!(second.turn_tokens, first.tokens);
    assert_eq!(second.log_tokens, tokens + first.tokens);
    let session = service.get(SESSION).await;
    assert_eq!((session.version, session.head_seq, session.log_tokens), (2, 4, second.log_tokens));
}

async fn an_append_of_nothing_is_a_turn_without_entries(backend: Backend) {
    let service = start(&backend).await;
    service.append(SESSION, &[HI]).await;
    for version in [2, 3] {
        let answer = service.append::<&str>(SESSION, &[]).await;
        assert_eq!((answer.version, answer.first_seq, answer.last_seq), (version, 2, 1));
        assert_eq!(answer.turn_tokens, 0);
    }
    assert_eq!(service.read(SESSION).await.payloads(), [HI]);
    service.seal().await;
    service.append(SESSION, &[HO]).await;
    let service = service.restart().await;
    assert_eq!(service.read(SESSION).await.payloads(), [HI, HO]);
    assert_eq!(service.turns(SESSION).await.len(), 4);
}

async fn entries_keep_the_time_that_they_were_given(backend: Backend) {
    let service = start(&backend).await;
    let times = [
        Timestamp { seconds: -62_135_596_800, nanos: 0 },
        Timestamp { seconds: -1, nanos: 999_999_000 },
        Timestamp { seconds: 253_402_300_799, nanos: 999_999_000 },
    ];
    let at = |time: &Timestamp| pb::NewEntry { time: Some(*time), ..message("{}") };
    let request = append_entries(SESSION, "r1", times.iter().map(at).collect());
    service.persist(request).await.unwrap();
    for _ in 0..2 {
        let read = service.read(SESSION).await.entries.into_iter().map(|entry| entry.time.unwrap());
        assert_eq!(read.collect::<Vec<_>>(), times);
        service.seal().await;
    }
}

async fn line_breaks_between_tokens_become_spaces_and_nothing_else_changes(backend: Backend) {
    let service = start(&backend).await;
    let sent = "\r\n{\n\t\"content\" :\r\"a\\n\\r\\u000a\u{2028}\u{85}\",\"n\": 1.0E+1 }\n";
    let answer = service.append(SESSION, &[sent]).await;
    assert_eq!(answer.changed_entries, []);
    let stored = "  { \t\"content\" : \"a\\n\\r\\u000a\u{2028}\u{85}\",\"n\": 1.0E+1 } ";
    assert_eq!(service.read(SESSION).await.payloads(), [stored]);
}

async fn a_wrong_expected_version_writes_nothing(backend: Backend) {
    let service = start(&backend).await;
    let expecting = |expected_version, payload| pb::PersistTranscriptRequest {
        expected_version: Some(expected_version),
        ..append(SESSION, &fresh_id(), &[payload])
    };
    service.persist(expecting(0, HI)).await.unwrap();
    service.persist(expecting(1, HO)).await.unwrap();
    let before = (service.get(SESSION).await, service.read(SESSION).await, service.turns(SESSION).await);
    for wrong in [0, 1, 3, u64::MAX] {
        let refusal = service.persist(expecting(wrong, "{}")).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::Aborted, "VERSION_MISMATCH"));
        let metadata = [
            ("current_version", "2".to_owned()),
            ("expected_version", wrong.to_string()),
            ("session", SESSION.to_owned()),
        ];
        assert_eq!(refusal.metadata, BTreeMap::from(metadata.map(|(name, value)| (name.to_owned(), value))));
        assert_eq!(refusal.retry_after, None, "the same request would fail again");
    }
    let after = (service.get(SESSION).await, service.read(SESSION).await, service.turns(SESSION).await);
    assert_eq!(after, before);
}

/// A request that sets all there is.
fn full_request() -> pb::PersistTranscriptRequest {
    let entries = vec![
        message(HI),
        pb::NewEntry { time: Some(Timestamp { seconds: 7, nanos: 0 }), ..entry(Meta, "{\n}") },
        entry(Progress, "{}"),
    ];
    pb::PersistTranscriptRequest {
        expected_version: Some(0),
        usage: Some(pb::Usage { model: "m".to_owned(), input_tokens: 1, ..Default::default() }),
        score: Some(0.1),
        step_kind: "plan".to_owned(),
        window_id: "none".to_owned(),
        create_if_missing: Some(of_format(OpenaiChat)),
        ..append_entries(SESSION, "r1", entries)
    }
}

async fn a_retry_gets_the_same_bytes_and_changes_nothing(backend: Backend) {
    let service = Service::start(&backend).await;
    let profile = pb::ModelProfile { context_window_tokens: 1_000, ..Default::default() };
    let with_profile = pb::Session { profile: Some(profile), ..of_format(OpenaiChat) };
    let request = pb::PersistTranscriptRequest { create_if_missing: Some(with_profile), ..full_request() };
    let first = service.persist(request.clone()).await.unwrap().encode_to_vec();
    let retry = async |service: &Service| {
        let retried = service.persist(request.clone()).await.unwrap();
        assert_eq!(retried.encode_to_vec(), first);
    };
    retry(&service).await;
    let turns = service.turns(SESSION).await;
    assert_eq!(turns.len(), 1);
    let service = service.restart().await;
    retry(&service).await;

    let by_snapshot = snapshot(SESSION, &[HI, "{}", HO]);
    let second = service.persist(by_snapshot.clone()).await.unwrap();
    assert_eq!((second.version, second.first_seq, second.last_seq), (2, 3, 3));
    assert_eq!(service.persist(by_snapshot.clone()).await.unwrap(), second);
    service.append(SESSION, &[HO, HO]).await;
    service.seal().await;
    let smaller = pb::Session { profile: Some(pb::ModelProfile::default()), ..service.get(SESSION).await };
    service.update(smaller, &["profile"]).await.unwrap();
    service.rewind_to(SESSION, 0).await;
    let expected = (service.get(SESSION).await, service.turns(SESSION).await);
    let service = service.restart().await;
    retry(&service).await;
    assert_eq!(service.persist(by_snapshot.clone()).await.unwrap(), second);
    assert_eq!((service.get(SESSION).await, service.turns(SESSION).await), expected);
}

async fn no_digit_of_a_score_or_a_share_changes_by_being_stored(backend: Backend) {
    let service = Service::start(&backend).await;
    // Shares and scores that take all seventeen digits to write.
    let profile = pb::ModelProfile { context_window_tokens: 99_991, ..Default::default() };
    service.create("s", pb::Session { profile: Some(profile), ..of_format(OpenaiChat) }).await;
    let requests: Vec<_> = (0..60u32)
        .map(|i| pb::PersistTranscriptRequest {
            score: Some((f64::from(i) + 0.1).sqrt() * 10f64.powi(i.cast_signed() - 30)),
            ..append(SESSION, &format!("r{i}"), &[HI])
        })
        .collect();
    let mut first = Vec::new();
    for request in &requests {
        first.push(service.persist(request.clone()).await.unwrap().encode_to_vec());
    }
    let scores: Vec<_> = requests.iter().rev().map(|request| request.score.unwrap().to_bits()).collect();
    // And the check that follows compares what is sealed with the rows, exactly.
    for is_sealed in [false, true] {
        if is_sealed {
            service.seal().await;
        }
        for (request, first) in requests.iter().zip(&first) {
            assert_eq!(&service.persist(request.clone()).await.unwrap().encode_to_vec(), first);
        }
        let turns = service.turns(SESSION).await;
        assert_eq!(turns.iter().map(|turn| turn.score.unwrap().to_bits()).collect::<Vec<_>>(), scores);
    }
}

async fn a_request_id_with_other_content_is_refused(backend: Backend) {
    let service = Service::start(&backend).await;
    let made = service.persist(full_request()).await.unwrap();
    let Some(Input::Append(Append { entries })) = full_request().input else { unreachable!() };
    let with_entries = |change: &dyn Fn(&mut Vec<pb::NewEntry>)| {
        let mut entries = entries.clone();
        change(&mut entries);
        Some(Input::Append(Append { entries }))
    };
    let list = |allow_rewind, window_id: &str| {
        let window_id = window_id.to_owned();
        Some(Input::Snapshot(Snapshot { entries: entries.clone(), window_id, allow_rewind }))
    };
    let other_inputs = [
        with_entries(&Vec::clear),
        with_entries(&|entries| entries.swap(0, 1)),
        with_entries(&|entries| drop(entries.pop())),
        with_entries(&|entries| entries.push(message("{}"))),
        with_entries(&|entries| entries[0].payload = format!(" {HI}").into()),
        with_entries(&|entries| entries[1].payload = "{ }".into()),
        with_entries(&|entries| entries[0].kind = Meta.into()),
        with_entries(&|entries| entries[1].time = None),
        with_entries(&|entries| entries[2].kind = Status.into()),
        list(false, ""),
        list(true, ""),
    ];
    let mut others: Vec<_> = other_inputs
        .into_iter()
        .map(|input| pb::PersistTranscriptRequest { input, ..full_request() })
        .collect();
    let changes: [fn(&mut pb::PersistTranscriptRequest); 8] = [
        |request| request.expected_version = None,
        |request| request.expected_version = Some(1),
        |request| request.usage = None,
        |request| request.usage.as_mut().unwrap().input_tokens += 1,
        |request| request.score = Some(0.2),
        |request| request.score = None,
        |request| request.step_kind.clear(),
        |request| request.window_id.clear(),
    ];
    for change in changes {
        let mut request = full_request();
        change(&mut request);
        others.push(request);
    }
    for request in others {
        let refusal = service.persist(request.clone()).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::InvalidArgument, "REQUEST_ID_REUSED"), "{request:?}");
        assert_eq!(refusal.metadata("version"), "1");
        assert_eq!(refusal.fields[0].0, "request_id");
    }
    assert_eq!(service.persist(full_request()).await.unwrap(), made);

    let mut rewind = pb::RewindSessionRequest {
        name: SESSION.to_owned(),
        version: 1,
        expected_version: None,
        request_id: "r1".to_owned(),
    };
    let refusal = service.rewind(rewind.clone()).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::InvalidArgument, "REQUEST_ID_REUSED"));
    rewind.request_id = "r2".to_owned();
    service.rewind(rewind).await.unwrap();
    let refusal = service.persist(append(SESSION, "r2", &[HI])).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::InvalidArgument, "REQUEST_ID_REUSED"));
    assert_eq!(service.turns(SESSION).await.len(), 2);
}

async fn retries_at_the_same_time_make_one_turn(backend: Backend) {
    let service = Service::start(&backend).await;
    let unconditional = pb::PersistTranscriptRequest { expected_version: None, ..full_request() };
    let list =
        pb::PersistTranscriptRequest { request_id: "r2".to_owned(), ..snapshot(SESSION, &[HI, "{}", HO]) };
    for (version, request) in [(1, unconditional), (2, list)] {
        let calls = join_all((0..8).map(|_| service.persist(request.clone()))).await;
        let answers: BTreeSet<_> = calls.into_iter().map(|answer| answer.unwrap().encode_to_vec()).collect();
        assert_eq!(answers.len(), 1);
        assert_eq!(service.get(SESSION).await.version, version);
    }
}

async fn a_missing_session_is_created_if_the_request_says_so(backend: Backend) {
    let service = Service::start(&backend).await;
    let request = |name: &str, expected_version| pb::PersistTranscriptRequest {
        expected_version,
        create_if_missing: Some(pb::Session {
            name: "sessions/ignored".to_owned(),
            strip_rules: vec!["claude-code".to_owned()],
            ..of_format(AnthropicMessages)
        }),
        ..append(name, &fresh_id(), &[HI])
    };
    for (name, expected_version) in [("sessions/a", None), ("sessions/b", Some(0))] {
        let answer = service.persist(request(name, expected_version)).await.unwrap();
        assert_eq!(answer.version, 1);
        let made = service.get(name).await;
        assert_eq!((made.format(), made.strip_rules), (AnthropicMessages, vec!["claude-code".to_owned()]));
    }
    let refusal = service.persist(request(SESSION, Some(1))).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::NotFound, "SESSION_NOT_FOUND"), "another version was expected");
    let refusal = service.persist(append(SESSION, "r", &[HI])).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::NotFound, "SESSION_NOT_FOUND"));
    assert_eq!(refusal.metadata("session"), SESSION);

    let other = pb::PersistTranscriptRequest {
        create_if_missing: Some(of_format(OpenaiChat)),
        ..append("sessions/a", &fresh_id(), &[HO])
    };
    assert_eq!(service.persist(other).await.unwrap().version, 2);
    assert_eq!(service.get("sessions/a").await.format(), AnthropicMessages, "it was there already");

    let calls = join_all((0..8).map(|_| service.persist(request("sessions/c", None)))).await;
    let versions: BTreeSet<_> = calls.into_iter().map(|answer| answer.unwrap().version).collect();
    assert_eq!(versions, (1..=8).collect());

    service.delete("sessions/a", false).await.unwrap();
    let refusal = service.persist(request("sessions/a", None)).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::AlreadyExists, "SESSION_EXISTS"), "ids are never used again");
}

async fn what_is_refused_creates_no_session(backend: Backend) {
    let service = Service::start(&backend).await;
    let wrong_payload = pb::PersistTranscriptRequest {
        create_if_missing: Some(of_format(OpenaiChat)),
        ..append(SESSION, "r", &[HI, "[]"])
    };
    let wrong_format = pb::PersistTranscriptRequest {
        create_if_missing: Some(pb::Session::default()),
        ..append(SESSION, "r", &[HI])
    };
    let wrong_rules = pb::PersistTranscriptRequest {
        create_if_missing: Some(pb::Session { strip_rules: vec!["x".to_owned()], ..of_format(OpenaiChat) }),
        ..append(SESSION, "r", &[HI])
    };
    for (request, field) in [
        (wrong_payload, "append.entries[1].payload"),
        (wrong_format, "create_if_missing.format"),
        (wrong_rules, "create_if_missing.strip_rules[0]"),
    ] {
        let refusal = service.persist(request).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::InvalidArgument, "INVALID_FIELD"));
        assert_eq!(refusal.metadata("field"), field);
        assert_eq!(service.try_get(SESSION).await.unwrap_err().code, Code::NotFound, "{field}");
    }
}

async fn what_is_stripped_is_counted_and_not_stored(backend: Backend) {
    let service = Service::start(&backend).await;
    let strip_rules = vec!["codex-rollout".to_owned(), "claude-code".to_owned()];
    service.create("s", pb::Session { strip_rules, ..of_format(OpenaiChat) }).await;
    let unknown_kind = pb::NewEntry { kind: 42, ..message(r#"{"kind":42}"#) };
    let negative_kind = pb::NewEntry { kind: -7, ..message(r#"{"kind":-7}"#) };
    let entries = vec![
        entry(Progress, "{}"),
        message(HI),
        entry(Heartbeat, r#"{"a":1}"#),
        unknown_kind,
        entry(Status, r#"{"type":"progress"}"#),
        message(r#"{"type":"progress","data":{}}"#),
        entry(Meta, r#"{"type":"event_msg","payload":{"type":"token_count"}}"#),
        entry(Progress, r#"{"bb":22}"#),
        negative_kind,
        entry(Meta, r#"{"type":"event_msg","payload":{"type":"other"}}"#),
    ];
    let answer = service.persist(append_entries(SESSION, "r1", entries)).await.unwrap();
    let stripped = |rule: &str, count, payload_bytes| pb::StrippedEntries {
        rule: rule.to_owned(),
        count,
        payload_bytes,
    };
    let expected = [
        stripped("HEARTBEAT", 1, 7),
        stripped("PROGRESS", 2, 11),
        stripped("STATUS", 1, 19),
        stripped("claude-code", 1, 29),
        stripped("codex-rollout", 1, 53),
    ];
    assert_eq!(answer.stripped, expected);
    assert_eq!((answer.first_seq, answer.last_seq), (1, 4));
    let stored = service.read(SESSION).await.entries;
    let stored: Vec<_> = stored.iter().map(|entry| (entry.seq, entry.kind, text(&entry.payload))).collect();
    let other = r#"{"type":"event_msg","payload":{"type":"other"}}"#;
    let expected = [(1, 1, HI), (2, 42, r#"{"kind":42}"#), (3, -7, r#"{"kind":-7}"#), (4, 2, other)];
    assert_eq!(stored, expected.map(|(seq, kind, payload)| (seq, kind, payload.to_owned())));
    assert_eq!(service.window(SESSION).await.payloads(), [HI], "windows hold messages of known kinds alone");

    let answer = service.persist(append_entries(SESSION, "r2", vec![entry(Status, "{}")])).await.unwrap();
    assert_eq!((answer.version, answer.first_seq, answer.last_seq), (2, 5, 4), "a turn all the same");
}

async fn the_answer_says_how_full_the_window_is(backend: Backend) {
    let service = start(&backend).await;
    let tokens = service.append(SESSION, &[HI]).await.turn_tokens;
    let preamble = pb::Preamble { payload: r#""Be kind.""#.into(), ..Default::default() };
    let with_preamble = pb::Session { preamble: Some(preamble), ..service.get(SESSION).await };
    let session = service.update(with_preamble, &["preamble"]).await.unwrap();
    let filled = 2 * tokens + session.preamble.as_ref().unwrap().tokens;
    // Each context window with what the answer must say when two messages and
    // the preamble are there; a quarter of it is kept for the output.
    let advised = filled * 100 / 60;
    let needed = |usable: u64| (usable..=2 * usable).find(|context| context - context / 4 >= usable).unwrap();
    let table = [
        (0, pb::CompactionAdvice::Unspecified),
        (needed(filled) - 1, pb::CompactionAdvice::Required),
        (needed(filled), pb::CompactionAdvice::Advised),
        (needed(advised) - 1, pb::CompactionAdvice::Advised),
        (needed(advised + 1), pb::CompactionAdvice::None),
        (1 << 40, pb::CompactionAdvice::None),
    ];
    for (context_window_tokens, advice) in table {
        service.rewind_to(SESSION, 1).await;
        let profile = Some(pb::ModelProfile { context_window_tokens, ..Default::default() });
        let session = pb::Session { profile, ..service.get(SESSION).await };
        service.update(session, &["profile"]).await.unwrap();
        let answer = service.append(SESSION, &[HI]).await;
        assert_eq!(answer.log_tokens, 2 * tokens);
        assert_eq!(answer.compaction(), advice, "{filled} of {context_window_tokens}");
        let usable = context_window_tokens - context_window_tokens / 4;
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
        let fill = (usable > 0).then(|| filled as f64 / usable as f64);
        assert_eq!(answer.window_fill, fill);
    }
}

async fn appends_at_the_same_time_all_land_once(backend: Backend) {
    let service = start(&backend).await;
    let payloads = |writer: usize| [0, 1, 2].map(|i| format!(r#"{{"writer":{writer},"i":{i}}}"#));
    let calls = join_all((0..16).map(async |writer| service.append(SESSION, &payloads(writer)).await)).await;
    let log = service.read(SESSION).await;
    assert_eq!(log.seqs(), (1..=48).collect::<Vec<_>>());
    let mut versions = BTreeSet::new();
    for (writer, answer) in calls.iter().enumerate() {
        versions.insert(answer.version);
        let own = log.entries.iter().filter(|entry| entry.version == answer.version);
        assert!(own.clone().map(|entry| entry.seq).eq(answer.first_seq..=answer.last_seq));
        assert_eq!(own.map(|entry| text(&entry.payload)).collect::<Vec<_>>(), payloads(writer));
    }
    assert_eq!(versions, (1..=16).collect());
}

async fn of_appends_that_expect_one_version_one_wins(backend: Backend) {
    let service = start(&backend).await;
    let request = |writer| pb::PersistTranscriptRequest {
        expected_version: Some(0),
        ..append(SESSION, &format!("r{writer}"), &[format!(r#"{{"writer":{writer}}}"#)])
    };
    let calls = join_all((0..16).map(|writer| service.persist(request(writer)))).await;
    let (mut won, mut lost) = (Vec::new(), 0);
    for (writer, call) in calls.into_iter().enumerate() {
        match call {
            Ok(answer) => won.push((writer, answer)),
            Err(refusal) => {
                assert_eq!(refusal.kind(), (Code::Aborted, "VERSION_MISMATCH"));
                assert_eq!(refusal.metadata("current_version"), "1");
                lost += 1;
            }
        }
    }
    let [(writer, answer)] = &won[..] else { panic!("{won:?}") };
    assert_eq!((answer.version, lost), (1, 15));
    assert_eq!(service.read(SESSION).await.payloads(), [format!(r#"{{"writer":{writer}}}"#)]);
}

async fn a_call_that_is_cut_off_leaves_all_of_its_turn_or_nothing(backend: Backend) {
    let service = start(&backend).await;
    let payloads = |call: usize| [0, 1, 2].map(|i| format!(r#"{{"call":{call},"i":{i}}}"#));
    let request = |call| append(SESSION, &format!("r{call}"), &payloads(call));
    let whole_turns = async || {
        let log = service.read(SESSION).await;
        let mut turns: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for entry in &log.entries {
            turns.entry(entry.version).or_default().push(text(&entry.payload));
        }
        assert!(turns.keys().copied().eq(1..=log.header.version), "{turns:?}");
        turns.into_values().collect::<Vec<_>>()
    };
    for call in 0..24 {
        let _ = polled(call / 2, service.persist(request(call))).await;
        for turn in whole_turns().await {
            let first = turn[0].split(['{', ':', ',']).nth(2).unwrap().parse().unwrap();
            assert_eq!(turn, payloads(first));
        }
    }
    for call in 0..24 {
        service.persist(request(call)).await.unwrap();
    }
    let expected: BTreeSet<_> = (0..24).map(|call| payloads(call).to_vec()).collect();
    let turns = whole_turns().await;
    assert_eq!(turns.len(), 24);
    assert_eq!(turns.into_iter().collect::<BTreeSet<_>>(), expected);
}
