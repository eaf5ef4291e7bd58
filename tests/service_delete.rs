//! Deletions: unreadable at once, erased afterwards, and what forks need stays.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends, on_embedded_backend};
use futures::future::join_all;
use pb::DeletionState::{Erased, Pending, RetainedByForks};
use pb::WireFormat::OpenaiChat;
use service::{Refusal, SESSION, Service, append, fresh_id, of_format, snapshot};
use sqlx::Connection as _;
use tonic::Code;
use turnkeep::rpc::pb;
use turnkeep::store::faulty::Fault;

on_all_backends!(
    a_deleted_session_is_gone_for_every_call_at_once,
    an_id_is_never_used_again,
    a_deletion_is_finished_once_all_blobs_are_erased,
    what_a_fork_needs_is_kept_until_the_fork_goes,
    a_deletion_takes_the_forks_along_if_it_is_asked_to,
    a_deletion_and_persists_at_the_same_time_leave_nothing,
);
on_embedded_backend!(
    a_deletion_waits_for_the_object_store,
    no_file_holds_anything_of_a_session_that_is_erased,
    what_never_was_has_no_receipt,
    a_fork_of_what_was_rewound_keeps_it,
);

fn numbered(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|i| format!(r#"{{"role":"user","content":"{i}"}}"#)).collect()
}

/// A service that erases without delay.
async fn start(backend: &Backend) -> Service {
    Service::start_with(backend, |settings| settings.sweep.grace_seconds = 0).await
}

async fn create(service: &Service, id: &str) {
    service.create(id, of_format(OpenaiChat)).await;
    service.append(&format!("sessions/{id}"), &numbered(0..3)).await;
}

async fn fork(service: &Service, source: &str, version: u64, id: &str) {
    let fork = pb::ForkSessionRequest {
        name: format!("sessions/{source}"),
        version: Some(version),
        session_id: id.to_owned(),
        request_id: fresh_id(),
        ..Default::default()
    };
    service.fork(fork).await.unwrap();
}

/// Erases all that may be erased: what one round releases the next one erases,
/// and the third finds that nothing is left.
async fn bury(service: &Service) {
    for _ in 0..3 {
        service.engine().bury().await.unwrap();
    }
}

fn is_not_found<T: std::fmt::Debug>(result: Result<T, Refusal>) {
    let refusal = result.unwrap_err();
    assert_eq!(refusal.kind(), (Code::NotFound, "SESSION_NOT_FOUND"));
    assert_eq!(refusal.metadata("session"), SESSION);
}

async fn a_deleted_session_is_gone_for_every_call_at_once(backend: Backend) {
    let service = Service::start(&backend).await;
    for is_sealed in [false, true] {
        let id = if is_sealed { "sealed" } else { "s" };
        let name = format!("sessions/{id}");
        create(&service, id).await;
        if is_sealed {
            service.seal().await;
        }
        let window_id = service.window(&name).await.header.window_id;
        let blobs = backend.blob_keys().await.len() as u64;
        let receipt = service.delete(&name, false).await.unwrap();
        let expected = pb::DeletionReceipt {
            session: name.clone(),
            state: Pending.into(),
            retained_by: vec![],
            objects_pending: blobs,
            delete_time: receipt.delete_time,
            erase_time: None,
        };
        assert_eq!(receipt, expected);
        assert!(receipt.delete_time.unwrap().seconds > 1_700_000_000);
        assert_eq!(service.receipt(&name).await.unwrap(), expected);
        assert_eq!(service.delete(&name, false).await.unwrap(), expected);
        assert_eq!(service.delete(&name, true).await.unwrap(), expected);
        assert_eq!(service.list(pb::ListSessionsRequest::default()).await.unwrap().sessions, []);
        if is_sealed {
            break;
        }
        is_not_found(service.try_get(SESSION).await);
        is_not_found(service.persist(append(SESSION, &fresh_id(), &["{}"])).await);
        is_not_found(service.persist(snapshot(SESSION, &numbered(0..3))).await);
        let restore = pb::RestoreTranscriptRequest { session: name.clone(), ..Default::default() };
        is_not_found(service.try_restore(restore.clone()).await);
        let known = pb::RestoreTranscriptRequest { known_window: window_id, ..restore.clone() };
        is_not_found(service.try_restore(known).await);
        is_not_found(
            service.try_restore(pb::RestoreTranscriptRequest { at_version: Some(1), ..restore }).await,
        );
        let read = pb::ReadTranscriptRequest { session: name.clone(), ..Default::default() };
        is_not_found(service.try_read(read).await);
        is_not_found(
            service.turns_page(pb::ListTurnsRequest { name: name.clone(), ..Default::default() }).await,
        );
        let session = pb::Session { name: name.clone(), ..Default::default() };
        is_not_found(service.update(session, &["labels"]).await);
        let fork =
            pb::ForkSessionRequest { name: name.clone(), request_id: fresh_id(), ..Default::default() };
        is_not_found(service.fork(fork).await);
        let rewind =
            pb::RewindSessionRequest { name: name.clone(), request_id: fresh_id(), ..Default::default() };
        is_not_found(service.rewind(rewind).await);
    }
}

async fn an_id_is_never_used_again(backend: Backend) {
    let mut service = start(&backend).await;
    create(&service, "s").await;
    create(&service, "t").await;
    service.delete(SESSION, false).await.unwrap();
    for _ in 0..2 {
        let taken = |result: Result<(), Refusal>| {
            assert_eq!(result.unwrap_err().kind(), (Code::AlreadyExists, "SESSION_EXISTS"));
        };
        taken(service.try_create("s", of_format(OpenaiChat)).await.map(drop));
        let creating = pb::PersistTranscriptRequest {
            create_if_missing: Some(of_format(OpenaiChat)),
            ..append(SESSION, &fresh_id(), &["{}"])
        };
        taken(service.persist(creating).await.map(drop));
        let fork = pb::ForkSessionRequest {
            name: "sessions/t".to_owned(),
            session_id: "s".to_owned(),
            request_id: fresh_id(),
            ..Default::default()
        };
        taken(service.fork(fork).await.map(drop));
        // And not when all of it is erased.
        bury(&service).await;
        service = service.restart().await;
    }
}

async fn a_deletion_is_finished_once_all_blobs_are_erased(backend: Backend) {
    let service = start(&backend).await;
    create(&service, "s").await;
    create(&service, "stays").await;
    service.seal().await;
    let of_both = backend.blob_keys().await;
    service.append(SESSION, &numbered(3..4)).await;
    service.rewind_to(SESSION, 1).await;
    service.append(SESSION, &numbered(4..5)).await;
    service.seal().await;
    service.append(SESSION, &numbered(5..6)).await;
    let sealed = backend.blob_keys().await;
    assert!(sealed.len() > of_both.len());
    let receipt = service.delete(SESSION, false).await.unwrap();
    assert_eq!(receipt.state(), Pending);
    assert!(receipt.objects_pending > 2, "{receipt:?}");
    assert_eq!(backend.blob_keys().await, sealed, "the call itself erases nothing");
    bury(&service).await;
    let erased = service.receipt(SESSION).await.unwrap();
    let expected = pb::DeletionReceipt {
        state: Erased.into(),
        objects_pending: 0,
        erase_time: erased.erase_time,
        ..receipt
    };
    assert_eq!(erased, expected);
    assert!(erased.erase_time.is_some());
    assert_eq!(service.delete(SESSION, false).await.unwrap(), expected);
    assert_eq!(backend.blob_keys().await.len(), 2, "segment and manifest of the other session");
    let service = service.restart().await;
    assert_eq!(service.receipt(SESSION).await.unwrap(), expected);
    assert_eq!(service.read("sessions/stays").await.payloads(), numbered(0..3));
}

async fn what_a_fork_needs_is_kept_until_the_fork_goes(backend: Backend) {
    let mut service = start(&backend).await;
    for is_sealed in [true, false] {
        let [source, near, far] = ["source", "near", "far"].map(|id| format!("{id}-{is_sealed}"));
        let [source_name, near_name, far_name] = [&source, &near, &far].map(|id| format!("sessions/{id}"));
        create(&service, &source).await;
        service.append(&source_name, &numbered(3..6)).await;
        if is_sealed {
            service.seal().await;
        }
        fork(&service, &source, 1, &near).await;
        service.append(&near_name, &numbered(10..11)).await;
        fork(&service, &near, 3, &far).await;
        service.append(&far_name, &numbered(20..21)).await;
        service.append(&source_name, &numbered(30..31)).await;
        let (near_log, far_log) = (service.read(&near_name).await, service.read(&far_name).await);
        let (near_window, far_window) = (service.window(&near_name).await, service.window(&far_name).await);

        let receipt = service.delete(&source_name, false).await.unwrap();
        assert_eq!(receipt.state(), RetainedByForks);
        assert_eq!(receipt.retained_by, [far_name.clone(), near_name.clone()]);
        bury(&service).await;
        service.seal().await;
        bury(&service).await;
        service = service.restart().await;
        assert_eq!(service.read(&near_name).await, near_log);
        assert_eq!(service.read(&far_name).await, far_log);
        assert_eq!(service.window(&near_name).await, near_window);
        assert_eq!(service.window(&far_name).await, far_window);

        service.delete(&near_name, false).await.unwrap();
        bury(&service).await;
        for name in [&source_name, &near_name] {
            let receipt = service.receipt(name).await.unwrap();
            assert_eq!(
                (receipt.state(), &receipt.retained_by[..]),
                (RetainedByForks, &[far_name.clone()][..])
            );
            assert_eq!(receipt.erase_time, None);
        }
        service = service.restart().await;
        assert_eq!(service.read(&far_name).await, far_log);
        service.append(&far_name, &numbered(40..41)).await;

        service.delete(&far_name, false).await.unwrap();
        bury(&service).await;
        for name in [&source_name, &near_name, &far_name] {
            let receipt = service.receipt(name).await.unwrap();
            assert_eq!((receipt.state(), receipt.retained_by.len()), (Erased, 0), "{name}");
        }
        assert_eq!(backend.blob_keys().await.len(), 0);
    }
    let rows = backend.rows().await;
    assert_eq!((rows.journal, rows.segments, rows.turns, rows.branches), (0, 0, 0, 0));
}

async fn a_deletion_takes_the_forks_along_if_it_is_asked_to(backend: Backend) {
    let service = start(&backend).await;
    create(&service, "root").await;
    fork(&service, "root", 1, "s").await;
    service.append(SESSION, &numbered(3..4)).await;
    fork(&service, "s", 3, "child").await;
    fork(&service, "child", 4, "grandchild").await;
    fork(&service, "root", 1, "sibling").await;
    service.seal().await;
    let receipt = service.delete(SESSION, true).await.unwrap();
    assert_eq!((receipt.state(), receipt.retained_by.len()), (Pending, 0));
    let listed = service.list(pb::ListSessionsRequest::default()).await.unwrap().sessions;
    assert_eq!(
        listed.iter().map(|session| &session.name).collect::<Vec<_>>(),
        ["sessions/sibling", "sessions/root"]
    );
    bury(&service).await;
    for name in [SESSION, "sessions/child", "sessions/grandchild"] {
        assert_eq!(service.receipt(name).await.unwrap().state(), Erased);
        assert_eq!(service.try_get(name).await.unwrap_err().code, Code::NotFound);
    }
    let service = service.restart().await;
    for name in ["sessions/root", "sessions/sibling"] {
        assert_eq!(service.read(name).await.payloads(), numbered(0..3));
    }
}

async fn a_deletion_and_persists_at_the_same_time_leave_nothing(backend: Backend) {
    let service = start(&backend).await;
    for round in 0..8 {
        let id = format!("s{round}");
        let name = format!("sessions/{id}");
        create(&service, &id).await;
        let persists = join_all((0..6).map(|_| service.persist(append(&name, &fresh_id(), &["{}"]))));
        let forking = pb::ForkSessionRequest {
            name: name.clone(),
            request_id: fresh_id(),
            session_id: format!("fork-{round}"),
            ..Default::default()
        };
        let (persists, forked, deleted, sealed) = futures::join!(
            persists,
            service.fork(forking),
            service.delete(&name, false),
            service.engine().seal_due(),
        );
        sealed.unwrap();
        for persisted in persists.into_iter().filter_map(Result::err) {
            assert_eq!(persisted.kind(), (Code::NotFound, "SESSION_NOT_FOUND"));
        }
        let is_retained = forked.is_ok();
        let receipt = service.receipt(&name).await.unwrap();
        assert_eq!(receipt.state() == RetainedByForks, is_retained, "{receipt:?} {deleted:?}");
        if is_retained {
            let fork = format!("sessions/fork-{round}");
            let log = service.read(&fork).await;
            assert_eq!(log.payloads()[..3], numbered(0..3));
            service.delete(&fork, false).await.unwrap();
        }
        bury(&service).await;
        assert_eq!(service.receipt(&name).await.unwrap().state(), Erased);
    }
    assert_eq!(backend.rows().await.turns, 0);
    // A seal that came too late has left its blobs behind.
    let service = service.restart().await;
    service.engine().sweep().await.unwrap();
    assert_eq!(backend.blob_keys().await.len(), 0);
}

async fn a_deletion_waits_for_the_object_store(backend: Backend) {
    let (service, faulty) =
        Service::start_faulty(&backend, |settings| settings.sweep.grace_seconds = 0).await;
    create(&service, "s").await;
    service.seal().await;
    faulty.set(Fault::Down);
    let receipt = service.delete(SESSION, false).await.unwrap();
    assert_eq!(receipt.state(), Pending);
    is_not_found(service.try_get(SESSION).await);
    service.engine().bury().await.unwrap_err();
    assert_eq!(service.receipt(SESSION).await.unwrap(), receipt);
    faulty.set(Fault::None);
    bury(&service).await;
    assert_eq!(service.receipt(SESSION).await.unwrap().state(), Erased);
    assert_eq!(backend.blob_keys().await.len(), 0);
}

/// Files of the embedded stores that hold a text.
fn files_with(backend: &Backend, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![backend.data_dir().to_owned()];
    while let Some(directory) = directories.pop() {
        for file in std::fs::read_dir(directory).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if std::fs::read(&path)
                .is_ok_and(|bytes| memchr::memmem::find(&bytes, text.as_bytes()).is_some())
            {
                // One that could not be read has gone meanwhile.
                found.push(path.file_name().unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// A session that has a word in all that a caller can write.
async fn with_word(service: &Service, id: &str, word: &str) {
    let session = pb::Session {
        labels: [("word".to_owned(), word.to_owned())].into(),
        preamble: Some(pb::Preamble {
            payload: format!(r#"{{"system":"{word} {}"}}"#, "x".repeat(3_000)).into(),
            ..Default::default()
        }),
        ..of_format(OpenaiChat)
    };
    service.create(id, session).await;
    for i in 0..5 {
        let call = format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"c{i}","type":"function","function":{{"name":"{word}","arguments":"{{}}"}}}}]}}"#
        );
        let mut turn = append(&format!("sessions/{id}"), &fresh_id(), &[call]);
        turn.step_kind = word.to_owned();
        turn.usage = Some(pb::Usage { model: word.to_owned(), ..Default::default() });
        service.persist(turn).await.unwrap();
    }
}

async fn no_file_holds_anything_of_a_session_that_is_erased(backend: Backend) {
    const WORD: &str = "xyzzy-unspeakable";
    const OTHER: &str = "plugh-unharmed";
    let service = start(&backend).await;
    // Enough of them, side by side, that pages of all tables split and join.
    for i in 0..40 {
        with_word(&service, &format!("s{i}"), WORD).await;
        with_word(&service, &format!("o{i}"), OTHER).await;
        if i == 20 {
            service.seal().await;
            // What was in the WAL so far is in the file too now.
            let url = format!("sqlite://{}", backend.data_dir().join("turnkeep.db").display());
            let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
            sqlx::query("PRAGMA wal_checkpoint(PASSIVE)").execute(&mut connection).await.unwrap();
        }
    }
    assert_eq!(files_with(&backend, WORD), ["turnkeep.db", "turnkeep.db-wal"]);
    for i in 0..40 {
        service.delete(&format!("sessions/s{i}"), false).await.unwrap();
    }
    bury(&service).await;
    for i in 0..40 {
        assert_eq!(service.receipt(&format!("sessions/s{i}")).await.unwrap().state(), Erased);
    }
    assert_eq!(files_with(&backend, WORD), [""; 0]);
    assert_eq!(service.read("sessions/o7").await.entries.len(), 5);
    service.stop().await;
    assert_eq!(files_with(&backend, WORD), [""; 0]);
    assert_eq!(files_with(&backend, OTHER)[0], "turnkeep.db");
}

async fn what_never_was_has_no_receipt(backend: Backend) {
    let service = Service::start(&backend).await;
    is_not_found(service.delete(SESSION, false).await);
    is_not_found(service.receipt(SESSION).await);
    create(&service, "s").await;
    is_not_found(service.receipt(SESSION).await);
}

async fn a_fork_of_what_was_rewound_keeps_it(backend: Backend) {
    let service = start(&backend).await;
    create(&service, "s").await;
    service.append(SESSION, &numbered(3..5)).await;
    service.rewind_to(SESSION, 1).await;
    service.append(SESSION, &numbered(5..6)).await;
    service.seal().await;
    fork(&service, "s", 2, "f").await;
    service.delete(SESSION, false).await.unwrap();
    bury(&service).await;
    let service = service.restart().await;
    assert_eq!(service.read("sessions/f").await.payloads(), numbered(0..5));
    assert_eq!(service.receipt(SESSION).await.unwrap().retained_by, ["sessions/f"]);
}
