//! Forks and rewinds: they copy nothing, and what was rewound stays readable.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends};
use futures::future::join_all;
use pb::WireFormat::OpenaiChat;
use service::{SESSION, Service, append, fresh_id, of_format};
use std::collections::{BTreeSet, HashMap};
use tonic::Code;
use turnkeep::rpc::pb;

on_all_backends!(
    a_fork_begins_with_its_source_and_goes_its_own_way,
    a_fork_writes_as_many_rows_whatever_the_log,
    a_fork_begins_at_any_version_of_its_source,
    forks_of_forks_hold_all_that_came_before,
    a_fork_that_is_asked_for_again_is_the_same,
    a_fork_whose_source_is_gone_by_now_can_be_asked_for_again,
    a_rewind_is_a_turn_and_what_was_rewound_stays_readable,
    a_rewind_goes_to_what_was_rewound_too,
    a_rewind_that_is_asked_for_again_changes_nothing_more,
    of_rewinds_that_expect_one_version_one_wins,
    a_log_at_the_end_of_many_rewinds_is_still_served,
);

fn numbered(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|i| format!(r#"{{"role":"user","content":"{i}"}}"#)).collect()
}

fn fork_at(name: &str, version: impl Into<Option<u64>>, id: &str) -> pb::ForkSessionRequest {
    pb::ForkSessionRequest {
        name: name.to_owned(),
        version: version.into(),
        session_id: id.to_owned(),
        request_id: fresh_id(),
        ..Default::default()
    }
}

/// A service with a session of five turns, one message each, of which the last
/// two follow a rewind to the second.
async fn with_history(backend: &Backend) -> Service {
    let service = Service::start(backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    for i in 0..3 {
        service.append(SESSION, &numbered(i..i + 1)).await;
    }
    service.rewind_to(SESSION, 2).await;
    service.append(SESSION, &numbered(3..4)).await;
    service
}

/// Logs of the versions of [`with_history`].
fn history() -> [Vec<String>; 6] {
    let with_last = |last| [numbered(0..2), numbered(last)].concat();
    [vec![], numbered(0..1), numbered(0..2), with_last(2..3), numbered(0..2), with_last(3..4)]
}

async fn a_fork_begins_with_its_source_and_goes_its_own_way(backend: Backend) {
    let service = Service::start(&backend).await;
    let source = pb::Session {
        path: pb::CompressionPath::Batch.into(),
        profile: Some(pb::ModelProfile { context_window_tokens: 9_000, ..Default::default() }),
        labels: HashMap::from([("of".to_owned(), "source".to_owned())]),
        strip_rules: vec!["claude-code".to_owned()],
        preamble: Some(pb::Preamble { payload: "[1]".into(), ..Default::default() }),
        ..of_format(OpenaiChat)
    };
    service.create("s", source).await;
    service.append(SESSION, &numbered(0..3)).await;
    let source = service.get(SESSION).await;
    let labels = HashMap::from([("of".to_owned(), "fork".to_owned())]);
    let request = pb::ForkSessionRequest { labels: labels.clone(), ..fork_at(SESSION, None, "f") };
    let fork = service.fork(request.clone()).await.unwrap();
    let expected = pb::Session {
        name: "sessions/f".to_owned(),
        labels,
        etag: fork.etag.clone(),
        version: 2,
        create_time: fork.create_time,
        update_time: fork.create_time,
        forked_from: Some(pb::ForkOrigin { session: SESSION.to_owned(), version: 1 }),
        stored_bytes: Some(0),
        ..source.clone()
    };
    assert_eq!(fork, expected);
    assert_eq!(service.get(SESSION).await, source);
    let [turn, inherited] = service.turns("sessions/f").await.try_into().unwrap();
    assert_eq!([inherited], service.turns(SESSION).await[..]);
    let expected = pb::Turn {
        version: 2,
        kind: pb::TurnKind::Fork.into(),
        first_seq: 4,
        last_seq: 3,
        request_id: request.request_id,
        receipt: turn.receipt.clone(),
        create_time: fork.create_time,
        base_version: 1,
        ..Default::default()
    };
    assert_eq!(turn, expected);

    service.append("sessions/f", &numbered(10..12)).await;
    service.append(SESSION, &numbered(20..21)).await;
    for _ in 0..2 {
        let of_fork = [numbered(0..3), numbered(10..12)].concat();
        assert_eq!(service.read("sessions/f").await.payloads(), of_fork);
        assert_eq!(service.window("sessions/f").await.payloads(), of_fork);
        assert_eq!(service.read(SESSION).await.payloads(), [numbered(0..3), numbered(20..21)].concat());
        service.seal().await;
    }
}

async fn a_fork_writes_as_many_rows_whatever_the_log(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let mut blobs = BTreeSet::new();
    for i in 0..12 {
        service.append(SESSION, &numbered(i * 20..(i + 1) * 20)).await;
        if i == 6 {
            service.seal().await;
            blobs = backend.blob_keys().await;
        }
        let before = backend.rows().await;
        service.fork(fork_at(SESSION, None, "")).await.unwrap();
        let after = backend.rows().await;
        let expected = backends::Rows { turns: before.turns + 1, branches: before.branches + 1, ..before };
        assert_eq!(after, expected);
        service.rewind_to(SESSION, 0).await;
        let expected = backends::Rows { turns: after.turns + 1, branches: after.branches + 1, ..after };
        assert_eq!(backend.rows().await, expected);
        service.rewind_to(SESSION, service.get(SESSION).await.version - 1).await;
    }
    assert_eq!(backend.blob_keys().await, blobs);
}

async fn a_fork_begins_at_any_version_of_its_source(backend: Backend) {
    let service = with_history(&backend).await;
    for round in ["journal", "sealed"] {
        for (version, log) in (0..).zip(history()) {
            let id = format!("{round}-{version}");
            let fork = service.fork(fork_at(SESSION, version, &id)).await.unwrap();
            assert_eq!((fork.version, fork.head_seq), (version + 1, log.len() as u64));
            assert_eq!(fork.forked_from.unwrap().version, version);
            assert_eq!(service.read(&fork.name).await.payloads(), log);
            assert_eq!(service.read_at(&fork.name, version).await.payloads(), log);
            service.append(&fork.name, &numbered(100..102)).await;
        }
        service.seal().await;
    }
    let service = service.restart().await;
    for round in ["journal", "sealed"] {
        for (version, log) in (0..).zip(history()) {
            let name = format!("sessions/{round}-{version}");
            let expected = [log, numbered(100..102)].concat();
            assert_eq!(service.read(&name).await.payloads(), expected, "{name}");
            assert_eq!(service.window(&name).await.payloads(), expected, "{name}");
        }
    }
    let refusal = service.fork(fork_at(SESSION, 6, "none")).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::NotFound, "VERSION_NOT_FOUND"));
    assert_eq!(refusal.metadata("current_version"), "5");
    let refusal = service.fork(fork_at("sessions/none", None, "f")).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::NotFound, "SESSION_NOT_FOUND"));
}

async fn forks_of_forks_hold_all_that_came_before(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s0", of_format(OpenaiChat)).await;
    let mut log = Vec::new();
    for i in 0..6 {
        let name = format!("sessions/s{i}");
        service.append(&name, &numbered(3 * i..3 * i + 2)).await;
        log.extend(numbered(3 * i..3 * i + 2));
        let version = service.get(&name).await.version;
        // What comes after the fork is none of the fork's.
        service.append(&name, &numbered(3 * i + 2..3 * i + 3)).await;
        if i % 2 == 0 {
            service.seal().await;
        }
        service.fork(fork_at(&name, version, &format!("s{}", i + 1))).await.unwrap();
        assert_eq!(service.read(&format!("sessions/s{}", i + 1)).await.payloads(), log);
    }
    let service = service.restart().await;
    assert_eq!(service.window("sessions/s6").await.payloads(), log);
    let origin = service.get("sessions/s6").await.forked_from.unwrap();
    assert_eq!(origin.session, "sessions/s5");
}

async fn a_fork_that_is_asked_for_again_is_the_same(backend: Backend) {
    let service = with_history(&backend).await;
    for id in ["f", ""] {
        let request = fork_at(SESSION, None, id);
        let calls = join_all((0..4).map(|_| service.fork(request.clone()))).await;
        let made: Vec<_> = calls.into_iter().map(Result::unwrap).collect();
        assert!(made.iter().all(|fork| *fork == made[0]), "{made:?}");
        service.append(SESSION, &numbered(9..10)).await;
        assert_eq!(service.fork(request.clone()).await.unwrap(), made[0]);
        let other = pb::ForkSessionRequest { version: Some(1), ..request.clone() };
        let refusal = service.fork(other).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::InvalidArgument, "REQUEST_ID_REUSED"));
        let labels = HashMap::from([("a".to_owned(), "b".to_owned())]);
        let refusal = service.fork(pb::ForkSessionRequest { labels, ..request.clone() }).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::InvalidArgument, "REQUEST_ID_REUSED"));
    }
    let taken = [fork_at(SESSION, None, "f"), fork_at(SESSION, None, "s")];
    for request in taken {
        let refusal = service.fork(request).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::AlreadyExists, "SESSION_EXISTS"));
    }
    let request = fork_at(SESSION, None, "g");
    service.fork(request.clone()).await.unwrap();
    service.delete("sessions/g", false).await.unwrap();
    let refusal = service.fork(request).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::AlreadyExists, "SESSION_EXISTS"), "a fork that was deleted");
}

async fn a_fork_whose_source_is_gone_by_now_can_be_asked_for_again(backend: Backend) {
    let service = with_history(&backend).await;
    let request = fork_at(SESSION, 3, "");
    let fork = service.fork(request.clone()).await.unwrap();
    service.delete(SESSION, false).await.unwrap();
    assert_eq!(service.fork(request).await.unwrap(), fork);
    let refusal = service.fork(fork_at(SESSION, 3, "")).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::NotFound, "SESSION_NOT_FOUND"));
}

async fn a_rewind_is_a_turn_and_what_was_rewound_stays_readable(backend: Backend) {
    let service = with_history(&backend).await;
    let before = service.get(SESSION).await;
    let request = pb::RewindSessionRequest {
        name: SESSION.to_owned(),
        version: 1,
        expected_version: Some(5),
        request_id: "back".to_owned(),
    };
    let after = service.rewind(request).await.unwrap();
    let first = service.read(SESSION).await.entries;
    let expected = pb::Session {
        version: 6,
        head_seq: 1,
        log_tokens: first.iter().map(|entry| entry.tokens).sum(),
        update_time: after.update_time,
        ..before
    };
    assert_eq!(after, expected);
    let turn = service.turns(SESSION).await.remove(0);
    let expected = pb::Turn {
        version: 6,
        kind: pb::TurnKind::Rewind.into(),
        first_seq: 2,
        last_seq: 1,
        request_id: "back".to_owned(),
        receipt: turn.receipt.clone(),
        create_time: after.update_time,
        base_version: 1,
        ..Default::default()
    };
    assert_eq!(turn, expected);
    service.append(SESSION, &numbered(4..6)).await;
    let mut logs = history().to_vec();
    logs.extend([numbered(0..1), [numbered(0..1), numbered(4..6)].concat()]);
    let check = async |service: &Service| {
        for (version, log) in (0..).zip(&logs) {
            assert_eq!(service.read_at(SESSION, version).await.payloads(), *log, "version {version}");
            assert_eq!(service.window_at(SESSION, version).await.payloads(), *log, "version {version}");
        }
    };
    check(&service).await;
    service.seal().await;
    check(&service).await;
    check(&service.restart().await).await;
}

async fn a_rewind_goes_to_what_was_rewound_too(backend: Backend) {
    let service = with_history(&backend).await;
    service.seal().await;
    let [.., rewound, _, newest] = history();
    assert_eq!(service.rewind_to(SESSION, 3).await.version, 6);
    assert_eq!(service.window(SESSION).await.payloads(), rewound);
    service.append(SESSION, &numbered(4..5)).await;
    assert_eq!(service.window(SESSION).await.payloads(), [rewound.clone(), numbered(4..5)].concat());
    assert_eq!(service.rewind_to(SESSION, 5).await.version, 8);
    assert_eq!(service.window(SESSION).await.payloads(), newest);
    assert_eq!(service.rewind_to(SESSION, 0).await.head_seq, 0);
    assert_eq!(service.window(SESSION).await.payloads(), [""; 0]);
    assert_eq!(service.rewind_to(SESSION, 9).await.version, 10, "to the version that it has");
    assert_eq!(service.rewind_to(SESSION, 7).await.head_seq, 4);
    assert_eq!(service.read(SESSION).await.payloads(), [rewound, numbered(4..5)].concat());
}

async fn a_rewind_that_is_asked_for_again_changes_nothing_more(backend: Backend) {
    let service = with_history(&backend).await;
    let request = pb::RewindSessionRequest {
        name: SESSION.to_owned(),
        version: 1,
        expected_version: Some(5),
        request_id: fresh_id(),
    };
    let calls = join_all((0..4).map(|_| service.rewind(request.clone()))).await;
    assert!(
        calls.iter().all(|session| session.as_ref().is_ok_and(|session| session.version == 6)),
        "{calls:?}"
    );
    service.append(SESSION, &numbered(9..10)).await;
    let as_it_stands = service.get(SESSION).await;
    assert_eq!(service.rewind(request.clone()).await.unwrap(), as_it_stands);
    for other in [
        pb::RewindSessionRequest { version: 2, ..request.clone() },
        pb::RewindSessionRequest { expected_version: None, ..request.clone() },
    ] {
        let refusal = service.rewind(other).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::InvalidArgument, "REQUEST_ID_REUSED"));
    }
    let stale = pb::RewindSessionRequest { request_id: fresh_id(), ..request.clone() };
    let refusal = service.rewind(stale).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::Aborted, "VERSION_MISMATCH"));
    assert_eq!(refusal.metadata("current_version"), "7");
    for version in [8, u64::MAX] {
        let unknown = pb::RewindSessionRequest {
            version,
            expected_version: None,
            request_id: fresh_id(),
            ..request.clone()
        };
        let refusal = service.rewind(unknown).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::NotFound, "VERSION_NOT_FOUND"));
    }
    assert_eq!(service.get(SESSION).await, as_it_stands);
}

async fn of_rewinds_that_expect_one_version_one_wins(backend: Backend) {
    let service = with_history(&backend).await;
    let rewind = |version| pb::RewindSessionRequest {
        name: SESSION.to_owned(),
        version,
        expected_version: Some(5),
        request_id: fresh_id(),
    };
    let persist =
        pb::PersistTranscriptRequest { expected_version: Some(5), ..append(SESSION, &fresh_id(), &["{}"]) };
    let (rewinds, persisted) = futures::join!(
        join_all((0..5).map(|version| service.rewind(rewind(version)))),
        service.persist(persist)
    );
    let won = rewinds.iter().filter(|session| session.is_ok()).count() + usize::from(persisted.is_ok());
    assert_eq!(won, 1);
    assert_eq!(service.turns(SESSION).await.len(), 6);
}

async fn a_log_at_the_end_of_many_rewinds_is_still_served(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let mut log = Vec::new();
    for i in 0..200 {
        // The second message of each turn is rewound with its turn.
        let version = service.append(SESSION, &numbered(2 * i..2 * i + 1)).await.version;
        service.append(SESSION, &numbered(2 * i + 1..2 * i + 2)).await;
        service.rewind_to(SESSION, version).await;
        log.extend(numbered(2 * i..2 * i + 1));
        if i == 100 {
            service.seal().await;
        }
    }
    assert_eq!(service.window(SESSION).await.payloads(), log);
    let service = service.restart().await;
    assert_eq!(service.window(SESSION).await.payloads(), log);
    assert_eq!(service.read(SESSION).await.payloads(), log);
    let mut list = service::snapshot(SESSION, &[log, numbered(1_000..1_001)].concat());
    list.expected_version = Some(600);
    assert_eq!(service.persist(list).await.unwrap().first_seq, 201);
}
