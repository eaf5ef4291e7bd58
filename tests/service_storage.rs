//! Where turns lie: journal, segments, rolled-up segments. Nothing of it shows
//! in what is read.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends, on_embedded_backend};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pb::WireFormat::Opaque;
use service::{SESSION, Service, append, append_entries, entry, fresh_id, of_format, text};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tonic::Code;
use turnkeep::entropy::Entropy;
use turnkeep::rpc::pb;
use turnkeep::settings::SealWhen;
use turnkeep::store::faulty::Fault;

on_all_backends!(
    a_large_turn_goes_to_the_object_store_with_the_turns_before_it,
    each_turn_is_in_the_object_store_before_it_is_acknowledged_if_so_set,
    a_roll_up_changes_nothing_that_is_read,
    readers_never_see_a_gap_while_all_else_goes_on,
);
on_embedded_backend!(
    turns_go_on_without_the_object_store,
    a_large_turn_goes_to_the_journal_while_the_object_store_is_down,
    a_turn_too_large_for_the_journal_waits_for_the_object_store,
    every_turn_waits_for_the_object_store_if_it_must_be_there,
    a_journal_takes_no_more_than_it_may,
    damaged_entries_are_never_served,
    a_blob_that_was_put_all_the_same_does_no_harm,
);

fn numbered(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|i| format!("{{\"i\":{i}}}")).collect()
}

/// A payload that takes so many KiB when it is compressed, and a third more
/// before.
fn noise(kib: usize) -> String {
    let entropy = Entropy::from_os();
    // Base64 in pieces that end where its digits do.
    let text: String = (0..kib.div_ceil(3)).map(|_| STANDARD.encode(entropy.bytes::<3072>())).collect();
    format!(r#"{{"noise":"{text}"}}"#)
}

/// Everything that is known of a session but how much it stores.
async fn all_of(service: &Service, name: &str) -> impl PartialEq + std::fmt::Debug + use<> {
    let session = pb::Session { stored_bytes: None, ..service.get(name).await };
    let turns = service.turns(name).await;
    let mut logs = vec![service.read(name).await];
    for turn in &turns {
        logs.push(service.read_at(name, turn.version).await);
    }
    (session, turns, logs, service.window(name).await)
}

async fn a_large_turn_goes_to_the_object_store_with_the_turns_before_it(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(Opaque)).await;
    service.append(SESSION, &numbered(0..2)).await;
    assert_eq!((backend.blob_keys().await.len(), backend.rows().await.journal), (0, 1));
    let large = [noise(1_500), numbered(2..3).remove(0)];
    let request = append(SESSION, "large", &large);
    let answer = service.persist(request.clone()).await.unwrap();
    assert_eq!((answer.version, answer.first_seq, answer.last_seq), (2, 3, 4));
    assert_eq!((backend.rows().await.journal, backend.rows().await.segments), (0, 1));
    assert_eq!(backend.blob_keys().await.len(), 2, "a segment and a manifest");
    assert_eq!(service.persist(request.clone()).await.unwrap(), answer, "again");
    service.append(SESSION, &numbered(3..4)).await;
    assert_eq!(backend.rows().await.journal, 1);
    service.rewind_to(SESSION, 2).await;
    let other = [noise(1_500)];
    let on_new_branch = service.append(SESSION, &other).await;
    assert_eq!((on_new_branch.version, on_new_branch.first_seq), (5, 5));
    let expected = [&numbered(0..2)[..], &large, &other].concat();
    let before = all_of(&service, SESSION).await;
    let service = service.restart().await;
    assert_eq!(service.read(SESSION).await.payloads(), expected);
    assert_eq!(all_of(&service, SESSION).await, before);
    assert_eq!(service.persist(request).await.unwrap(), answer, "and after a restart");

    let rivals = (0..3).map(|_| [noise(1_100)]).collect::<Vec<_>>();
    let answers = futures::future::join_all(
        rivals.iter().map(async |rival| service.persist(append(SESSION, &fresh_id(), rival)).await),
    )
    .await;
    for (rival, answer) in rivals.iter().zip(answers) {
        match answer {
            Ok(answer) => {
                let range = pb::ReadTranscriptRequest {
                    session: SESSION.to_owned(),
                    first_seq: Some(answer.first_seq),
                    last_seq: Some(answer.last_seq),
                    at_version: None,
                };
                assert_eq!(service.try_read(range).await.unwrap().payloads(), *rival);
            }
            Err(refusal) => assert_eq!(refusal.kind(), (Code::Aborted, "CONTENTION")),
        }
    }
}

async fn each_turn_is_in_the_object_store_before_it_is_acknowledged_if_so_set(backend: Backend) {
    let service = Service::start_with(&backend, |settings| settings.seal.when = SealWhen::EveryTurn).await;
    service.create("s", of_format(Opaque)).await;
    for i in 0..5 {
        service.append(SESSION, &numbered(2 * i..2 * i + 2)).await;
        let rows = backend.rows().await;
        assert_eq!((rows.journal, rows.segments), (0, i64::try_from(i).unwrap() + 1));
    }
    service.append::<&str>(SESSION, &[]).await;
    service.rewind_to(SESSION, 3).await;
    service.append(SESSION, &numbered(10..11)).await;
    assert_eq!(backend.rows().await.journal, 0);
    let service = service.restart().await;
    assert_eq!(service.read(SESSION).await.payloads(), [numbered(0..6), numbered(10..11)].concat());
    assert_eq!(service.read_at(SESSION, 6).await.payloads(), numbered(0..10));
}

async fn a_roll_up_changes_nothing_that_is_read(backend: Backend) {
    let service = Service::start_with(&backend, |settings| settings.sweep.grace_seconds = 0).await;
    service.create("s", of_format(Opaque)).await;
    for i in 0..10 {
        service.append(SESSION, &numbered(3 * i..3 * i + 3)).await;
        service.append::<&str>(SESSION, &[]).await;
        service.seal().await;
    }
    let fork = pb::ForkSessionRequest {
        name: SESSION.to_owned(),
        version: Some(9),
        session_id: "f".to_owned(),
        request_id: fresh_id(),
        ..Default::default()
    };
    service.fork(fork).await.unwrap();
    service.append("sessions/f", &numbered(100..102)).await;
    service.seal().await;
    let window_id = service.window(SESSION).await.header.window_id;
    let before = (all_of(&service, SESSION).await, all_of(&service, "sessions/f").await);
    let (rows, blobs) = (backend.rows().await, backend.blob_keys().await);
    assert_eq!(service.engine().roll_up_due().await.unwrap(), 1);
    let rolled = backend.rows().await;
    assert_eq!(rolled.segments, rows.segments - 9, "ten became one");
    assert_eq!((rolled.turns, rolled.branches), (rows.turns, rows.branches));
    assert!(backend.blob_keys().await.is_superset(&blobs), "others may still read the old ones");
    assert_eq!((all_of(&service, SESSION).await, all_of(&service, "sessions/f").await), before);

    service.engine().bury().await.unwrap();
    let left = backend.blob_keys().await;
    assert!(left.len() <= 4, "two segments and two manifests: {left:?}");
    let service = service.restart().await;
    assert_eq!((all_of(&service, SESSION).await, all_of(&service, "sessions/f").await), before);
    let change = service.restore_from(SESSION, &window_id).await;
    assert_eq!((change.items.len(), change.full_reason()), (0, None));
}

/// Appends, rewinds, seals and roll-ups, and meanwhile reads and restores, of
/// which each must be a version as it was made.
async fn readers_never_see_a_gap_while_all_else_goes_on(backend: Backend) {
    const TURNS: usize = 60;
    let service = Service::start(&backend).await;
    service.create("s", of_format(Opaque)).await;
    let is_done = AtomicBool::new(false);
    let is_going_on = || !is_done.load(Ordering::Relaxed);
    let writer = async {
        let mut versions = BTreeMap::from([(0, Vec::new())]);
        let mut log = Vec::new();
        for i in 0..TURNS {
            if i % 13 == 12 {
                let back_to = service.get(SESSION).await.version - 3;
                log.clone_from(&versions[&back_to]);
                versions.insert(service.rewind_to(SESSION, back_to).await.version, log.clone());
            }
            let new = numbered(3 * i..3 * i + 3);
            log.extend(new.iter().cloned());
            versions.insert(service.append(SESSION, &new).await.version, log.clone());
        }
        is_done.store(true, Ordering::Relaxed);
        versions
    };
    let sealer = async {
        while is_going_on() {
            service.engine().seal_due().await.unwrap();
            service.engine().roll_up_due().await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let reader = async {
        let mut seen = Vec::new();
        while is_going_on() {
            let log = service.read(SESSION).await;
            assert_eq!(log.seqs(), (1..=log.header.head_seq).collect::<Vec<_>>());
            seen.push((log.header.version, log.payloads()));
        }
        seen
    };
    let restorer = async |is_conditional: bool| {
        let (mut seen, mut window_id, mut items) = (Vec::new(), String::new(), Vec::new());
        while is_going_on() {
            let restored = service.restore_from(SESSION, &window_id).await;
            items = restored.applied_to(&items);
            let payloads = items.iter().map(|item| text(&item.payload)).collect::<Vec<_>>();
            seen.push((restored.header.version, payloads));
            if is_conditional {
                window_id = restored.header.window_id;
            }
        }
        seen
    };
    let (versions, (), read, whole, changes) =
        futures::join!(writer, sealer, reader, restorer(false), restorer(true));
    for (what, seen) in [("read", read), ("whole window", whole), ("window by changes", changes)] {
        assert!(!seen.is_empty());
        for (version, log) in seen {
            assert_eq!(log, versions[&version], "{what} of version {version}");
        }
    }
}

async fn turns_go_on_without_the_object_store(backend: Backend) {
    let (service, faulty) = Service::start_faulty(&backend, |_| ()).await;
    service.create("s", of_format(Opaque)).await;
    service.append(SESSION, &numbered(0..2)).await;
    service.seal().await;
    service.create("journaled", of_format(Opaque)).await;
    let service = service.restart().await;
    faulty.set(Fault::Down);
    for name in [SESSION, "sessions/journaled"] {
        service.append(name, &numbered(2..3)).await;
        service.get(name).await;
    }
    assert_eq!(service.read("sessions/journaled").await.payloads(), numbered(2..3));
    assert_eq!(service.window("sessions/journaled").await.payloads(), numbered(2..3));
    service.rewind_to(SESSION, 1).await;
    service.engine().seal_due().await.unwrap_err();
    let restore = pb::RestoreTranscriptRequest { session: SESSION.to_owned(), ..Default::default() };
    let refusal = service.try_restore(restore).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::Unavailable, "OBJECTS_UNAVAILABLE"));
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
    let read = pb::ReadTranscriptRequest { session: SESSION.to_owned(), ..Default::default() };
    let refusal = service.try_read(read).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::Unavailable, "OBJECTS_UNAVAILABLE"));
    faulty.set(Fault::None);
    assert_eq!(service.window(SESSION).await.payloads(), numbered(0..2));
    faulty.set(Fault::Down);
    assert_eq!(service.window(SESSION).await.payloads(), numbered(0..2), "it is in memory now");
    faulty.set(Fault::None);
    assert!(service.seal().await >= 1);
}

async fn a_large_turn_goes_to_the_journal_while_the_object_store_is_down(backend: Backend) {
    for fault in [Fault::Down, Fault::ReadOnly] {
        let (service, faulty) = Service::start_faulty(&backend, |_| ()).await;
        let name = service.create("", of_format(Opaque)).await.name;
        faulty.set(fault);
        let large = [noise(2_000)];
        assert_eq!(service.append(&name, &large).await.version, 1);
        assert_eq!(service.window(&name).await.payloads(), large);
        faulty.set(Fault::None);
        service.seal().await;
        assert_eq!(backend.rows().await.journal, 0);
        let service = service.restart().await;
        assert_eq!(service.read(&name).await.payloads(), large);
        service.stop().await;
    }
}

async fn a_turn_too_large_for_the_journal_waits_for_the_object_store(backend: Backend) {
    let (service, faulty) = Service::start_faulty(&backend, |_| ()).await;
    service.create("s", of_format(Opaque)).await;
    faulty.set(Fault::Down);
    let request = append(SESSION, "large", &[noise(9 << 10)]);
    let refusal = service.persist(request.clone()).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::Unavailable, "OBJECTS_UNAVAILABLE"));
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
    assert_eq!(service.turns(SESSION).await, []);
    faulty.set(Fault::None);
    assert_eq!(service.persist(request).await.unwrap().version, 1);
}

async fn every_turn_waits_for_the_object_store_if_it_must_be_there(backend: Backend) {
    let (service, faulty) =
        Service::start_faulty(&backend, |settings| settings.seal.when = SealWhen::EveryTurn).await;
    service.create("s", of_format(Opaque)).await;
    service.append(SESSION, &numbered(0..1)).await;
    faulty.set(Fault::Down);
    let request = append(SESSION, "r2", &numbered(1..2));
    let refusal = service.persist(request.clone()).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::Unavailable, "OBJECTS_UNAVAILABLE"));
    assert_eq!(service.turns(SESSION).await.len(), 1);
    let empty = service.persist(append::<&str>(SESSION, "empty", &[])).await.unwrap_err();
    assert_eq!(empty.kind(), (Code::Unavailable, "OBJECTS_UNAVAILABLE"));
    faulty.set(Fault::None);
    assert_eq!(service.persist(request).await.unwrap().version, 2);
    assert_eq!(service.read(SESSION).await.payloads(), numbered(0..2));
}

async fn a_journal_takes_no_more_than_it_may(backend: Backend) {
    let (service, faulty) = Service::start_faulty(&backend, |_| ()).await;
    service.create("s", of_format(Opaque)).await;
    faulty.set(Fault::Down);
    // Of 64 MiB. A record, since what it says need not be counted.
    let large = entry(pb::EntryKind::Meta, noise(7 << 10));
    let request = || append_entries(SESSION, &fresh_id(), vec![large.clone()]);
    let refusal = loop {
        match service.persist(request()).await {
            Ok(answer) => assert!(answer.version < 12, "without end"),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal.kind(), (Code::Unavailable, "JOURNAL_FULL"));
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(5)));
    assert_eq!(refusal.metadata("limit_bytes"), "67108864");
    let turns = service.turns(SESSION).await.len();
    assert!((8..12).contains(&turns), "{turns}");
    service.create("other", of_format(Opaque)).await;
    service.append("sessions/other", &numbered(0..1)).await;
    faulty.set(Fault::None);
    // The service seals too, and whoever is second finds nothing to do.
    while backend.rows().await.journal > 0 {
        service.seal().await;
    }
    assert_eq!(service.persist(request()).await.unwrap().version, turns as u64 + 1);
}

async fn damaged_entries_are_never_served(backend: Backend) {
    let (mut service, faulty) = Service::start_faulty(&backend, |_| ()).await;
    service.create("s", of_format(Opaque)).await;
    service.append(SESSION, &numbered(0..3)).await;
    service.seal().await;
    let first_segment = backend.blob_keys().await.into_iter().find(|key| key.contains("/s-")).unwrap();
    service.append(SESSION, &numbered(3..5)).await;
    for fault in [Some(Fault::FlippedBit), Some(Fault::CutShort), None] {
        match fault {
            Some(fault) => faulty.set(fault),
            None => faulty.hide(&first_segment),
        }
        service = service.restart().await;
        let restore = pb::RestoreTranscriptRequest { session: SESSION.to_owned(), ..Default::default() };
        let read = pb::ReadTranscriptRequest { session: SESSION.to_owned(), ..Default::default() };
        let refusals =
            [service.try_restore(restore).await.unwrap_err(), service.try_read(read).await.unwrap_err()];
        for refusal in refusals {
            assert_eq!(refusal.kind(), (Code::DataLoss, "DATA_LOSS"), "{fault:?}");
            assert_eq!((refusal.metadata("first_seq"), refusal.metadata("last_seq")), ("1", "3"));
            assert_eq!(refusal.retry_after, None);
        }
        let undamaged = pb::ReadTranscriptRequest {
            session: SESSION.to_owned(),
            first_seq: Some(4),
            ..Default::default()
        };
        assert_eq!(service.try_read(undamaged).await.unwrap().payloads(), numbered(3..5));
        service.append(SESSION, &[r#"{"more":1}"#; 0]).await;
        faulty.set(Fault::None);
    }
}

async fn a_blob_that_was_put_all_the_same_does_no_harm(backend: Backend) {
    let (service, faulty) = Service::start_faulty(&backend, |_| ()).await;
    service.create("s", of_format(Opaque)).await;
    let large = [noise(1_500)];
    faulty.set(Fault::LostAnswers);
    service.append(SESSION, &large).await;
    service.engine().seal_due().await.unwrap_err();
    faulty.set(Fault::None);
    service.seal().await;
    let service = service.restart().await;
    assert_eq!(service.read(SESSION).await.payloads(), large);
    // The orphans go, and nothing else.
    service.engine().sweep().await.unwrap();
    assert_eq!(backend.blob_keys().await.len(), 2);
    assert_eq!(service.restart().await.read(SESSION).await.payloads(), large);
}
