//! Snapshots: a worker sends its whole list, and what is new of it is appended.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/messages.rs"]
mod messages;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends, on_embedded_backend, on_shared_backend};
use messages::{ALL, STRUCTURED, call, model, user};
use pb::WireFormat::{AnthropicMessages, OpenaiChat};
use pb::persist_transcript_request::Input;
use service::{Refusal, SESSION, Service, append, entry, fresh_id, message, of_format, snapshot};
use tonic::Code;
use turnkeep::rpc::pb;

on_all_backends!(
    a_list_with_nothing_new_makes_no_turn,
    what_is_new_of_a_list_is_appended,
    a_list_that_contradicts_the_log_is_refused_with_the_first_index,
    a_list_that_may_rewind_replaces_what_contradicts_it,
    a_list_that_began_as_a_window_is_compared_with_that,
);
on_embedded_backend!(
    order_of_keys_and_spelling_of_strings_do_not_matter_and_numbers_do,
    indices_count_what_was_stripped,
    a_list_may_create_its_session,
    a_list_that_began_as_a_window_with_repairs_keeps_them_out_of_the_log,
    a_window_that_a_list_cannot_have_begun_as_is_refused,
    a_list_that_is_refused_creates_no_session,
);
on_shared_backend!(a_list_is_compared_with_what_other_replicas_wrote);

fn numbered(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|i| user(OpenaiChat, &i.to_string())).collect()
}

/// A session of three turns with 2, 0 and 3 messages.
async fn with_log(backend: &Backend) -> Service {
    let service = Service::start(backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    service.append(SESSION, &numbered(0..2)).await;
    service.append::<&str>(SESSION, &[]).await;
    service.append(SESSION, &numbered(2..5)).await;
    service
}

fn allowing_rewind(mut request: pb::PersistTranscriptRequest) -> pb::PersistTranscriptRequest {
    let Some(Input::Snapshot(list)) = &mut request.input else { unreachable!() };
    list.allow_rewind = true;
    request
}

fn from_window(mut request: pb::PersistTranscriptRequest, window_id: &str) -> pb::PersistTranscriptRequest {
    let Some(Input::Snapshot(list)) = &mut request.input else { unreachable!() };
    window_id.clone_into(&mut list.window_id);
    request
}

fn is_contradiction(refusal: &Refusal, index: usize, version: u64) {
    assert_eq!(refusal.kind(), (Code::FailedPrecondition, "SNAPSHOT_CONTRADICTS_LOG"));
    assert_eq!(refusal.metadata("index"), index.to_string());
    assert_eq!(refusal.metadata("current_version"), version.to_string());
}

async fn a_list_with_nothing_new_makes_no_turn(backend: Backend) {
    let service = with_log(&backend).await;
    for list in [snapshot(SESSION, &numbered(0..5)), allowing_rewind(snapshot(SESSION, &numbered(0..5)))] {
        let before = (service.get(SESSION).await, service.turns(SESSION).await);
        let answer = service.persist(list).await.unwrap();
        let expected = pb::PersistTranscriptResponse {
            version: 3,
            receipt: before.1[0].receipt.clone(),
            first_seq: 6,
            last_seq: 5,
            log_tokens: before.0.log_tokens,
            ..Default::default()
        };
        assert_eq!(answer, expected);
        assert_eq!((service.get(SESSION).await, service.turns(SESSION).await), before);
        service.seal().await;
    }
    service.create("empty", of_format(OpenaiChat)).await;
    let answer = service.persist(snapshot::<&str>("sessions/empty", &[])).await.unwrap();
    assert_eq!((answer.version, answer.first_seq, answer.last_seq), (0, 1, 0));
}

async fn what_is_new_of_a_list_is_appended(backend: Backend) {
    let service = with_log(&backend).await;
    for (version, length) in (4..).zip([6, 7, 10, 400]) {
        let list = pb::PersistTranscriptRequest {
            expected_version: Some(version - 1),
            ..snapshot(SESSION, &numbered(0..length))
        };
        let before = service.get(SESSION).await;
        let answer = service.persist(list).await.unwrap();
        assert_eq!((answer.version, answer.first_seq), (version, before.head_seq + 1));
        assert_eq!((answer.last_seq, answer.rewound_to_version), (length as u64, None));
        assert_eq!(answer.log_tokens, before.log_tokens + answer.turn_tokens);
        assert_eq!(service.read(SESSION).await.payloads(), numbered(0..length));
        if length == 7 {
            service.seal().await;
        }
    }
    let turn = service.turns(SESSION).await.remove(0);
    assert_eq!((turn.kind(), turn.base_version, turn.first_seq), (pb::TurnKind::Persist, 0, 11));
}

async fn a_list_that_contradicts_the_log_is_refused_with_the_first_index(backend: Backend) {
    let service = with_log(&backend).await;
    let before = (service.get(SESSION).await, service.read(SESSION).await, service.turns(SESSION).await);
    for round in 0..2 {
        for index in 0..5 {
            let mut list = numbered(0..7);
            list[index] = "{}".to_owned();
            is_contradiction(&service.persist(snapshot(SESSION, &list)).await.unwrap_err(), index, 3);
            list.truncate(index + 1);
            is_contradiction(&service.persist(snapshot(SESSION, &list)).await.unwrap_err(), index, 3);
            list.truncate(index);
            is_contradiction(&service.persist(snapshot(SESSION, &list)).await.unwrap_err(), index, 3);
        }
        if round == 0 {
            service.seal().await;
        }
    }
    let session = pb::Session { stored_bytes: before.0.stored_bytes, ..service.get(SESSION).await };
    assert_eq!((session, service.read(SESSION).await, service.turns(SESSION).await), before);

    let list = snapshot(SESSION, &["[]"]);
    assert_eq!(service.persist(list).await.unwrap_err().metadata("field"), "snapshot.entries[0].payload");
    let list =
        pb::PersistTranscriptRequest { expected_version: Some(2), ..snapshot(SESSION, &numbered(0..5)) };
    assert_eq!(service.persist(list).await.unwrap_err().kind(), (Code::Aborted, "VERSION_MISMATCH"));
}

async fn a_list_that_may_rewind_replaces_what_contradicts_it(backend: Backend) {
    let service = with_log(&backend).await;
    // What the list holds of the log, then what else; and to which version the
    // log goes back.
    let table = [
        (5, 0, None),
        (5, 1, None),
        (5, 3, None),
        (4, 1, Some(2)),
        (2, 0, Some(2)),
        (1, 3, Some(0)),
        (0, 0, Some(0)),
    ];
    let mut versions = vec![(3, numbered(0..5))];
    for (same, other, rewound_to) in table {
        if rewound_to.is_some() {
            service.rewind_to(SESSION, 3).await;
        }
        let before = service.get(SESSION).await;
        let list = [numbered(0..same), numbered(100..100 + other)].concat();
        let answer = service.persist(allowing_rewind(snapshot(SESSION, &list))).await.unwrap();
        assert_eq!(answer.rewound_to_version, rewound_to, "{same} {other}");
        let first = match rewound_to {
            None => before.head_seq + 1,
            Some(0) => 1,
            Some(_) => 3,
        };
        assert_eq!((answer.first_seq, answer.last_seq), (first, list.len() as u64));
        let turn = service.turns(SESSION).await.remove(0);
        let kind = if rewound_to.is_some() { pb::TurnKind::Rewind } else { turn.kind() };
        assert_eq!((turn.kind(), turn.base_version), (kind, rewound_to.unwrap_or(turn.base_version)));
        assert_eq!(service.read(SESSION).await.payloads(), list);
        assert_eq!(service.window(SESSION).await.payloads(), list);
        versions.push((answer.version, list));
        if same == 4 {
            service.seal().await;
        }
    }
    let service = service.restart().await;
    for (version, log) in versions {
        assert_eq!(service.read_at(SESSION, version).await.payloads(), log, "version {version}");
    }
}

async fn a_list_that_began_as_a_window_is_compared_with_that(backend: Backend) {
    let service = Service::start(&backend).await;
    for format in ALL {
        let name = service.create("", of_format(format)).await.name;
        let exchange = |i: usize| [user(format, &format!("q{i}")), model(format, &format!("a{i}"))];
        service.append(&name, &exchange(0)).await;
        let window = service.window(&name).await;
        let window_id = &window.header.window_id;
        let mut list = window.payloads();
        list.extend(exchange(1));
        let answer = service.persist(from_window(snapshot(&name, &list), window_id)).await.unwrap();
        assert_eq!((answer.version, answer.first_seq, answer.last_seq), (2, 3, 4), "{format:?}");
        let nothing_new = service.persist(from_window(snapshot(&name, &list), window_id)).await.unwrap();
        assert_eq!(nothing_new.version, 2);
        service.seal().await;
        list.extend(exchange(2));
        let answer = service.persist(from_window(snapshot(&name, &list), window_id)).await.unwrap();
        assert_eq!((answer.version, answer.first_seq, answer.last_seq), (3, 5, 6));
        assert_eq!(service.read(&name).await.payloads(), list);
        for index in 0..6 {
            let mut other = list.clone();
            other[index] = "{}".to_owned();
            let refusal = service.persist(from_window(snapshot(&name, &other), window_id)).await.unwrap_err();
            is_contradiction(&refusal, index, 3);
            other.truncate(index);
            let refusal = service.persist(from_window(snapshot(&name, &other), window_id)).await.unwrap_err();
            is_contradiction(&refusal, index, 3);
        }
    }
}

async fn order_of_keys_and_spelling_of_strings_do_not_matter_and_numbers_do(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let stored = r#"{"a":{"x":[1.0,"é/\n😀"],"y":null},"b":"\u0000"}"#;
    service.append(SESSION, &[stored]).await;
    let same = [
        r#" { "b" : "\u0000" , "a" : { "y" : null , "x" : [ 1.0 , "é/\n😀" ] } } "#,
        "{\"a\":\n{\"x\":[1.0,\"\\u00E9\\/\\u000a\\ud83d\\uDE00\"],\"y\":null},\r\n\"b\":\"\\u0000\"}",
    ];
    for list in same {
        let answer = service.persist(snapshot(SESSION, &[list])).await.unwrap();
        assert_eq!(answer.version, 1, "{list}");
    }
    let other = [
        r#"{"a":{"x":[1,"é/\n😀"],"y":null},"b":"\u0000"}"#,
        r#"{"a":{"x":[1.00,"é/\n😀"],"y":null},"b":"\u0000"}"#,
        r#"{"a":{"x":[10e-1,"é/\n😀"],"y":null},"b":"\u0000"}"#,
        r#"{"a":{"x":["1.0","é/\n😀"],"y":null},"b":"\u0000"}"#,
        r#"{"a":{"x":["é/\n😀",1.0],"y":null},"b":"\u0000"}"#,
        r#"{"a":{"x":[1.0,"e/\n😀"],"y":null},"b":"\u0000"}"#,
        r#"{"a":{"x":[1.0,"é/\\n😀"],"y":null},"b":"\u0000"}"#,
        r#"{"a":{"x":[1.0,"é/\n😀"]},"b":"\u0000"}"#,
        r#"{"a":{"x":[1.0,"é/\n😀"],"y":false},"b":"\u0000"}"#,
        r#"{"a":{"x":[1.0,"é/\n😀"],"y":null},"b":"\u0000","b":"\u0000"}"#,
        r#"{"A":{"x":[1.0,"é/\n😀"],"y":null},"b":"\u0000"}"#,
    ];
    for list in other {
        is_contradiction(&service.persist(snapshot(SESSION, &[list])).await.unwrap_err(), 0, 1);
    }
    assert_eq!(service.read(SESSION).await.payloads(), [stored], "what came first is kept");
}

async fn indices_count_what_was_stripped(backend: Backend) {
    let service = with_log(&backend).await;
    let mut entries: Vec<_> = numbered(0..5).iter().map(message).collect();
    entries.insert(0, entry(pb::EntryKind::Progress, "{}"));
    entries.insert(4, entry(pb::EntryKind::Status, "{}"));
    let list = |entries: &[pb::NewEntry]| {
        let mut request = snapshot::<&str>(SESSION, &[]);
        let Some(Input::Snapshot(list)) = &mut request.input else { unreachable!() };
        list.entries = entries.to_vec();
        request
    };
    let answer = service.persist(list(&entries)).await.unwrap();
    let stripped: Vec<_> =
        answer.stripped.iter().map(|stripped| (&stripped.rule[..], stripped.count)).collect();
    assert_eq!((answer.version, &stripped[..]), (3, &[("PROGRESS", 1), ("STATUS", 1)][..]));
    let shorter = &entries[..5];
    is_contradiction(&service.persist(list(shorter)).await.unwrap_err(), 4, 3);
    entries[5] = message("{}");
    is_contradiction(&service.persist(list(&entries)).await.unwrap_err(), 5, 3);
}

async fn a_list_may_create_its_session(backend: Backend) {
    let service = Service::start(&backend).await;
    let list = pb::PersistTranscriptRequest {
        create_if_missing: Some(of_format(AnthropicMessages)),
        expected_version: Some(0),
        ..snapshot(SESSION, &numbered(0..3))
    };
    assert_eq!(service.persist(list).await.unwrap().version, 1);
    assert_eq!(service.get(SESSION).await.format(), AnthropicMessages);
    assert_eq!(service.read(SESSION).await.payloads(), numbered(0..3));
}

async fn a_list_that_began_as_a_window_with_repairs_keeps_them_out_of_the_log(backend: Backend) {
    let service = Service::start(&backend).await;
    for format in STRUCTURED {
        let name = service.create("", of_format(format)).await.name;
        let interrupted = [user(format, "q"), call(format, "c1", "ls"), user(format, "never mind")];
        service.append(&name, &interrupted).await;
        let window = service.window(&name).await;
        assert_ne!(window.header.repairs, [], "{format:?}");
        let list = [window.payloads(), vec![model(format, "fine")]].concat();
        let request = from_window(snapshot(&name, &list), &window.header.window_id);
        let answer = service.persist(request).await.unwrap();
        assert_eq!((answer.first_seq, answer.last_seq), (4, 4));
        let log = [&interrupted[..], &[model(format, "fine")]].concat();
        assert_eq!(service.read(&name).await.payloads(), log);

        service.append(&name, &[user(format, "q2"), call(format, "c2", "ls")]).await;
        let closing =
            pb::RestoreTranscriptRequest { session: name.clone(), close_pending: true, ..Default::default() };
        let closed = service.restore(closing).await;
        let list = [closed.payloads(), vec![model(format, "without it")]].concat();
        let request = from_window(snapshot(&name, &list), &closed.header.window_id);
        assert_eq!(service.persist(request).await.unwrap().first_seq, 7);
        let log = service.read(&name).await.payloads();
        assert_eq!(log.last(), Some(&model(format, "without it")));
        assert_eq!(log.len(), 7, "{format:?}");
    }
}

async fn a_window_that_a_list_cannot_have_begun_as_is_refused(backend: Backend) {
    let service = with_log(&backend).await;
    service.create("other", of_format(OpenaiChat)).await;
    let of_other = service.window("sessions/other").await.header.window_id;
    let held = service.window(SESSION).await.header.window_id;
    let list = || snapshot(SESSION, &numbered(0..6));
    let is_refused = async |window_id: &str| {
        let refusal = service.persist(from_window(list(), window_id)).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::InvalidArgument, "INVALID_FIELD"));
        assert_eq!(refusal.metadata("field"), "snapshot.window_id");
    };
    for unknown in ["x", &of_other, &held[1..]] {
        is_refused(unknown).await;
    }
    service.rewind_to(SESSION, 1).await;
    is_refused(&held).await;
    service.rewind_to(SESSION, 3).await;
    let path = pb::CompressionPath::Batch.into();
    service.update(pb::Session { path, ..service.get(SESSION).await }, &["path"]).await.unwrap();
    is_refused(&held).await;
    let held = service.window(SESSION).await.header.window_id;
    assert_eq!(service.persist(from_window(list(), &held)).await.unwrap().first_seq, 6);
}

async fn a_list_that_is_refused_creates_no_session(backend: Backend) {
    let service = with_log(&backend).await;
    let name = "sessions/new";
    let held = service.window(SESSION).await.header.window_id;
    let create = |request| pb::PersistTranscriptRequest {
        create_if_missing: Some(of_format(pb::WireFormat::OpenaiChat)),
        ..request
    };
    let list = || snapshot(name, &numbered(0..2));
    let of_other = service.persist(create(from_window(list(), &held))).await.unwrap_err();
    assert_eq!(of_other.metadata("field"), "snapshot.window_id");
    let both = allowing_rewind(from_window(snapshot(SESSION, &numbered(0..2)), &held));
    for request in [both, create(allowing_rewind(from_window(list(), &held)))] {
        let refusal = service.persist(request).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::InvalidArgument, "INVALID_FIELD"));
        assert_eq!(refusal.metadata("field"), "snapshot.allow_rewind");
    }
    assert_eq!(service.try_get(name).await.unwrap_err().reason, "SESSION_NOT_FOUND");
}

async fn a_list_is_compared_with_what_other_replicas_wrote(backend: Backend) {
    let one = with_log(&backend).await;
    let other = Service::start(&backend).await;
    other.append(SESSION, &numbered(5..6)).await;
    let answer = one.persist(snapshot(SESSION, &numbered(0..6))).await.unwrap();
    assert_eq!(answer.version, 4, "all of it is there by now");
    is_contradiction(&other.persist(snapshot(SESSION, &numbered(0..5))).await.unwrap_err(), 5, 4);
    other.rewind_to(SESSION, 1).await;
    other.persist(append(SESSION, &fresh_id(), &numbered(7..8))).await.unwrap();
    let list = [numbered(0..2), numbered(7..9)].concat();
    assert_eq!(one.persist(snapshot(SESSION, &list)).await.unwrap().version, 7);
    assert_eq!(one.read(SESSION).await.payloads(), list);
}
