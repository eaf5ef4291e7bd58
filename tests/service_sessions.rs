//! Sessions: creating, getting, listing and changing them, and their turns.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends, on_embedded_backend, on_shared_backend};
use pb::WireFormat::{AnthropicMessages, OpenaiChat};
use prost_types::Timestamp;
use service::{
    Refusal, SESSION, Service, append, append_entries, entry, fresh_id, message, of_format, snapshot,
};
use std::collections::HashMap;
use tonic::Code;
use turnkeep::clock::{Clock as _, SystemClock};
use turnkeep::rpc::pb;

#[path = "service_sessions/profiles.rs"]
mod profiles;

on_all_backends!(
    a_session_is_returned_as_it_was_created,
    an_id_is_minted_if_none_is_given,
    a_taken_id_is_refused,
    a_list_has_the_newest_first_and_each_session_on_one_page,
    a_list_has_the_sessions_that_match_all_of_the_filter,
    a_list_leaves_out_preambles_and_stored_bytes,
    a_change_is_of_the_fields_in_the_mask_and_is_no_turn,
    of_two_changes_with_one_etag_the_second_is_refused,
    each_new_preamble_takes_the_next_revision,
    turns_are_listed_with_all_that_they_recorded,
    turns_are_listed_the_newest_first_and_each_on_one_page,
    every_version_that_is_listed_can_be_read,
);
on_embedded_backend!(pages_stay_within_what_every_client_takes,);
on_shared_backend!(a_change_holds_at_once_on_every_replica);

fn labels(labels: &[(&str, &str)]) -> HashMap<String, String> {
    labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn preamble(payload: &'static str) -> pb::Preamble {
    pb::Preamble { payload: payload.into(), ..Default::default() }
}

fn now() -> Timestamp {
    let now = SystemClock.now().0;
    Timestamp {
        seconds: now.div_euclid(1_000_000),
        nanos: i32::try_from(now.rem_euclid(1_000_000)).unwrap() * 1_000,
    }
}

async fn a_session_is_returned_as_it_was_created(backend: Backend) {
    let service = Service::start(&backend).await;
    let given = pb::Session {
        name: "sessions/ignored".to_owned(),
        format: AnthropicMessages.into(),
        path: pb::CompressionPath::Batch.into(),
        profile: Some(pb::ModelProfile {
            model: "m-1".to_owned(),
            context_window_tokens: 200_000,
            max_output_tokens: 64_000,
            tokenizer: pb::Tokenizer::Cl100k.into(),
            tool_result_limit: None,
            prices: Some(pb::Prices {
                input: 3_000_000,
                output: 15_000_001,
                cache_read: Some(0),
                cache_write: None,
                long: Some(pb::LongPrices { over_tokens: 200_000, input: 1, ..Default::default() }),
            }),
            media_limits: None,
        }),
        labels: labels(&[("team/a.b_c-1", "Zoë"), ("empty", "")]),
        strip_rules: vec!["codex-rollout".to_owned(), "claude-code".to_owned()],
        pin_statements: Some(false),
        preamble: Some(preamble("{\"system\" :\n\"\\u00e9\" }")),
        ..Default::default()
    };
    let before = now();
    let made = service.create("s", given.clone()).await;
    let (created, updated) = (made.create_time.unwrap(), made.update_time.unwrap());
    assert!((before.seconds, before.nanos) <= (created.seconds, created.nanos), "{before:?} {created:?}");
    assert_eq!(created, updated);
    let tokens = made.preamble.as_ref().unwrap().tokens;
    assert!(tokens > 0);
    let expected = pb::Session {
        name: SESSION.to_owned(),
        preamble: Some(pb::Preamble { revision: 1, tokens, ..given.preamble.clone().unwrap() }),
        etag: made.etag.clone(),
        window_revision: 1,
        stored_bytes: Some(0),
        create_time: Some(created),
        update_time: Some(updated),
        applied_limits: made.applied_limits,
        ..given
    };
    assert_ne!(made.etag, "");
    assert_eq!(made, expected);
    assert_eq!(service.get(SESSION).await, expected);
    let service = service.restart().await;
    assert_eq!(service.get(SESSION).await, expected);
}

async fn an_id_is_minted_if_none_is_given(backend: Backend) {
    let service = Service::start(&backend).await;
    let first = service.create("", of_format(OpenaiChat)).await;
    let second = service.create("", of_format(OpenaiChat)).await;
    assert_ne!(first.name, second.name);
    assert_eq!(first.path(), pb::CompressionPath::Interactive, "an unset path means so");
    assert_eq!(service.get(&first.name).await, first);
    assert_eq!(service.get(&second.name).await, second);
}

async fn a_taken_id_is_refused(backend: Backend) {
    let service = Service::start(&backend).await;
    let made = service.create("s", of_format(OpenaiChat)).await;
    let refusal = service.try_create("s", of_format(AnthropicMessages)).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::AlreadyExists, "SESSION_EXISTS"));
    assert_eq!(refusal.metadata("session"), SESSION);
    assert_eq!(service.get(SESSION).await, made);

    let rivals = (0..8).map(|_| service.try_create("rival", of_format(OpenaiChat)));
    let made = futures::future::join_all(rivals).await.into_iter().flatten().count();
    assert_eq!(made, 1, "of calls at the same time one makes the session");
}

async fn a_list_has_the_newest_first_and_each_session_on_one_page(backend: Backend) {
    let service = Service::start(&backend).await;
    assert_eq!(service.list(pb::ListSessionsRequest::default()).await.unwrap().sessions, []);
    let mut expected = Vec::new();
    for i in 0..7 {
        expected.insert(0, service.create(&format!("s{i}"), of_format(OpenaiChat)).await.name);
    }
    for page_size in [1, 2, 3, 7, 8, 0, 100_000] {
        let mut listed = Vec::new();
        let mut request = pb::ListSessionsRequest { page_size, ..Default::default() };
        loop {
            let page = service.list(request.clone()).await.unwrap();
            let most = if page_size == 0 { 100 } else { usize::try_from(page_size).unwrap() };
            assert!(page.sessions.len() <= most);
            listed.extend(page.sessions.into_iter().map(|session| session.name));
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        assert_eq!(listed, expected, "pages of {page_size}");
    }
}

async fn a_list_has_the_sessions_that_match_all_of_the_filter(backend: Backend) {
    let service = Service::start(&backend).await;
    let session = |path: pb::CompressionPath, of: &[(&str, &str)]| pb::Session {
        path: path.into(),
        labels: labels(of),
        ..of_format(OpenaiChat)
    };
    let (batch, automated) = (pb::CompressionPath::Batch, pb::CompressionPath::Automated);
    let a = service.create("a", session(batch, &[("team", "x"), ("env", "prod")])).await;
    let b = service.create("b", session(batch, &[("team", "x"), ("env", "test")])).await;
    let c = service.create("c", session(automated, &[("team", "y"), ("env", "prod")])).await;
    let names = async |filter: pb::SessionFilter| {
        let request = pb::ListSessionsRequest { filter: Some(filter), ..Default::default() };
        let page = service.list(request).await.unwrap();
        page.sessions.into_iter().map(|session| session.name).collect::<Vec<_>>()
    };
    let by_label = |of: &[(&str, &str)]| pb::SessionFilter { labels: labels(of), ..Default::default() };
    assert_eq!(names(pb::SessionFilter::default()).await, ["sessions/c", "sessions/b", "sessions/a"]);
    assert_eq!(names(by_label(&[("team", "x")])).await, ["sessions/b", "sessions/a"]);
    assert_eq!(names(by_label(&[("team", "x"), ("env", "prod")])).await, ["sessions/a"]);
    assert_eq!(names(by_label(&[("team", "prod")])).await, [""; 0]);
    assert_eq!(names(by_label(&[("team", "x"), ("a", ""), ("b", ""), ("c", "")])).await, [""; 0]);
    let by_path = pb::SessionFilter { path: automated.into(), ..by_label(&[("env", "prod")]) };
    assert_eq!(names(by_path).await, ["sessions/c"]);

    let from_b = pb::SessionFilter { create_time_min: b.create_time, ..Default::default() };
    assert_eq!(names(from_b).await, ["sessions/c", "sessions/b"]);
    let before_b = pb::SessionFilter { create_time_max: b.create_time, ..Default::default() };
    assert_eq!(names(before_b).await, ["sessions/a"]);
    service.append(&a.name, &["{}"]).await;
    let changed = service.get(&a.name).await;
    let since = pb::SessionFilter { update_time_min: changed.update_time, ..Default::default() };
    assert_eq!(names(since).await, ["sessions/a"]);
    let none = pb::SessionFilter { create_time_min: c.create_time, ..by_label(&[("team", "x")]) };
    assert_eq!(names(none).await, [""; 0]);
}

async fn a_list_leaves_out_preambles_and_stored_bytes(backend: Backend) {
    let service = Service::start(&backend).await;
    let session = pb::Session { preamble: Some(preamble("[1]")), ..of_format(OpenaiChat) };
    service.create("s", session).await;
    service.append(SESSION, &["{}"]).await;
    let got = service.get(SESSION).await;
    assert!(got.stored_bytes.unwrap() > 0 && got.preamble.is_some());
    let page = service.list(pb::ListSessionsRequest::default()).await.unwrap();
    assert_eq!(page.sessions, [pb::Session { preamble: None, stored_bytes: None, ..got }]);
}

async fn a_change_is_of_the_fields_in_the_mask_and_is_no_turn(backend: Backend) {
    let service = Service::start(&backend).await;
    let session = pb::Session { labels: labels(&[("a", "1"), ("b", "2")]), ..of_format(OpenaiChat) };
    service.create("s", session).await;
    service.append(SESSION, &[r#"{"role":"user","content":"hi"}"#]).await;
    let before = service.get(SESSION).await;
    let wanted = pb::Session {
        name: SESSION.to_owned(),
        path: pb::CompressionPath::Batch.into(),
        labels: labels(&[("c", "3")]),
        profile: Some(pb::ModelProfile { context_window_tokens: 9, ..Default::default() }),
        strip_rules: vec!["claude-code".to_owned()],
        pin_statements: Some(true),
        preamble: Some(preamble("{}")),
        ..Default::default()
    };
    let after = service.update(wanted.clone(), &["labels"]).await.unwrap();
    assert_ne!(after.etag, before.etag);
    assert_ne!(after.update_time, before.update_time);
    let expected = pb::Session {
        labels: wanted.labels.clone(),
        etag: after.etag.clone(),
        update_time: after.update_time,
        ..before.clone()
    };
    assert_eq!(after, expected, "labels alone, and no revision of the window");
    assert_eq!(service.get(SESSION).await, expected);

    let mask = ["path", "profile", "strip_rules", "pin_statements", "preamble"];
    let after = service.update(wanted.clone(), &mask).await.unwrap();
    let tokens = after.preamble.as_ref().unwrap().tokens;
    let expected = pb::Session {
        path: wanted.path,
        profile: wanted.profile,
        strip_rules: wanted.strip_rules,
        pin_statements: wanted.pin_statements,
        preamble: Some(pb::Preamble { payload: "{}".into(), revision: 1, tokens }),
        etag: after.etag.clone(),
        update_time: after.update_time,
        window_revision: before.window_revision + 1,
        ..expected
    };
    assert_eq!(after, expected);
    assert_eq!(service.turns(SESSION).await.len(), 1);
}

async fn of_two_changes_with_one_etag_the_second_is_refused(backend: Backend) {
    let service = Service::start(&backend).await;
    let made = service.create("s", of_format(OpenaiChat)).await;
    service.append(SESSION, &["{}"]).await;
    let change = |value| pb::Session { labels: labels(&[("by", value)]), ..made.clone() };
    let first = service.update(change("first"), &["labels"]).await.unwrap();
    let refusal = service.update(change("second"), &["labels"]).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::Aborted, "ETAG_MISMATCH"), "a turn changes no etag, a change does");
    assert_eq!(refusal.metadata("current_etag"), first.etag);
    assert_eq!(service.get(SESSION).await, first);

    let changes = (0..8).map(|i| {
        let change = pb::Session { labels: labels(&[("by", &i.to_string())]), ..first.clone() };
        service.update(change, &["labels"])
    });
    let changes = futures::future::join_all(changes.collect::<Vec<_>>()).await;
    let mut made = changes.iter().filter_map(|change| change.as_ref().ok());
    assert_eq!(*made.next().unwrap(), service.get(SESSION).await);
    assert_eq!(made.next(), None, "of calls at the same time one makes its change");
}

async fn each_new_preamble_takes_the_next_revision(backend: Backend) {
    let service = Service::start(&backend).await;
    let mut session = service.create("s", of_format(OpenaiChat)).await;
    assert_eq!(session.preamble, None);
    for (revision, payload) in (1..).zip(["{\"a\" : 1}", "\"text\"", "[]", "{\"a\" : 1}"]) {
        session.preamble = Some(preamble(payload));
        session = service.update(session, &["preamble"]).await.unwrap();
        let got = session.preamble.clone().unwrap();
        assert_eq!((got.revision, got.payload), (revision, payload.into()));
    }
}

async fn turns_are_listed_with_all_that_they_recorded(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let payloads = [r#"{"role":"user","content":"hi"}"#, r#"{"role":"assistant","content":"ho"}"#];
    let usage = pb::Usage {
        model: "m-1".to_owned(),
        input_tokens: 1 << 40,
        output_tokens: 2,
        cache_read_tokens: 3,
        cache_write_tokens: 4,
        window_id: "any".to_owned(),
        counted_tokens: None,
    };
    let request = pb::PersistTranscriptRequest {
        usage: Some(usage.clone()),
        score: Some(-0.1),
        step_kind: "edit\u{0}é".to_owned(),
        ..append(SESSION, "A-z0.9_:", &payloads)
    };
    let before = now();
    let answer = service.persist(request).await.unwrap();
    let [turn] = service.turns(SESSION).await.try_into().unwrap();
    let at = turn.create_time.unwrap();
    assert!((before.seconds, before.nanos) <= (at.seconds, at.nanos));
    let expected = pb::Turn {
        version: 1,
        kind: pb::TurnKind::Persist.into(),
        first_seq: 1,
        last_seq: 2,
        request_id: "A-z0.9_:".to_owned(),
        receipt: answer.receipt,
        tokens: answer.turn_tokens,
        payload_bytes: payloads.iter().map(|payload| payload.len() as u64).sum(),
        create_time: Some(at),
        usage: Some(usage),
        score: Some(-0.1),
        step_kind: "edit\u{0}é".to_owned(),
        base_version: 0,
    };
    assert_eq!(turn, expected);
    service.seal().await;
    assert_eq!(service.turns(SESSION).await, [expected]);
}

async fn turns_are_listed_the_newest_first_and_each_on_one_page(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    assert_eq!(service.turns(SESSION).await, []);
    for _ in 0..3 {
        service.append(SESSION, &["{}"]).await;
    }
    service.rewind_to(SESSION, 1).await;
    service.append(SESSION, &["{}"]).await;
    service.seal().await;
    service.append(SESSION, &["{}"]).await;
    let expected = service.turns(SESSION).await;
    assert_eq!(expected.iter().map(|turn| turn.version).collect::<Vec<_>>(), [6, 5, 4, 3, 2, 1]);
    for page_size in [1, 2, 3, 6, 7, 0, 100_000] {
        let mut listed = Vec::new();
        let mut request = pb::ListTurnsRequest { name: SESSION.to_owned(), page_size, ..Default::default() };
        loop {
            let page = service.turns_page(request.clone()).await.unwrap();
            listed.extend(page.turns);
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        assert_eq!(listed, expected, "pages of {page_size}");
    }
}

/// Of a session, and of forks at any of its versions, rewound ones included.
async fn every_version_that_is_listed_can_be_read(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    for i in 0..3 {
        service.append(SESSION, &[format!("{{\"i\":{i}}}")]).await;
    }
    service.rewind_to(SESSION, 1).await;
    service.append(SESSION, &["{}"]).await;
    for version in 0..=5 {
        let request = pb::ForkSessionRequest {
            name: SESSION.to_owned(),
            version: Some(version),
            session_id: format!("fork-{version}"),
            request_id: fresh_id(),
            ..Default::default()
        };
        let fork = service.fork(request).await.unwrap();
        service.append(&fork.name, &["{}"]).await;
        service.rewind_to(&fork.name, version).await;
    }
    for name in [SESSION.to_owned()].into_iter().chain((0..=5).map(|i| format!("sessions/fork-{i}"))) {
        for turn in service.turns(&name).await {
            let log = service.read_at(&name, turn.version).await;
            assert_eq!((log.header.head_seq, log.header.receipt), (turn.last_seq, turn.receipt), "{name}");
        }
    }
}

async fn pages_stay_within_what_every_client_takes(backend: Backend) {
    let service = Service::start(&backend).await;
    let many = (0..32).map(|i| (format!("{i:063}"), "x".repeat(255))).collect();
    let session = pb::Session { labels: many, ..of_format(OpenaiChat) };
    let mut expected = Vec::new();
    for i in 0..420 {
        expected.insert(0, service.create(&format!("s{i}"), session.clone()).await.name);
    }
    let (mut listed, mut pages) = (Vec::new(), 0);
    let mut request = pb::ListSessionsRequest { page_size: 1_000, ..Default::default() };
    loop {
        let page = service.list(request.clone()).await.unwrap();
        listed.extend(page.sessions.into_iter().map(|session| session.name));
        pages += 1;
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(listed, expected);
    assert!(pages > 1, "all of them take more than 4 MiB");
}

async fn a_change_holds_at_once_on_every_replica(backend: Backend) {
    let one = Service::start(&backend).await;
    let other = Service::start(&backend).await;
    one.create("s", of_format(OpenaiChat)).await;
    let progress = || append(SESSION, &fresh_id(), &[r#"{"type":"progress"}"#]);
    assert_eq!(one.persist(progress()).await.unwrap().last_seq, 1);
    let rules = pb::Session {
        name: SESSION.to_owned(),
        strip_rules: vec!["claude-code".to_owned()],
        ..Default::default()
    };
    other.update(rules, &["strip_rules"]).await.unwrap();
    let answer = one.persist(progress()).await.unwrap();
    assert_eq!((answer.last_seq, answer.stripped.len()), (1, 1), "{answer:?}");

    let rewound = other.rewind_to(SESSION, 0).await;
    let request = snapshot(SESSION, &["{}"]);
    assert_eq!(one.persist(request).await.unwrap().version, rewound.version + 1);
    other.delete(SESSION, false).await.unwrap();
    let not_found = |result: Result<(), Refusal>| assert_eq!(result.unwrap_err().code, Code::NotFound);
    not_found(one.try_get(SESSION).await.map(drop));
    let request = append_entries(SESSION, &fresh_id(), vec![message("{}"), entry(pb::EntryKind::Meta, "{}")]);
    not_found(one.persist(request).await.map(drop));
}
