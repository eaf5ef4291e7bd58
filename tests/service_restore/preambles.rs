//! Preambles, which come with windows.

use crate::backends::{Backend, on_all_backends, on_embedded_backend};
use crate::messages::{model, user};
use crate::service::{SESSION, Service, append_entries, entry, fresh_id, of_format};
use pb::WireFormat::OpenaiChat;
use turnkeep::rpc::pb;

on_all_backends!(a_preamble_comes_with_whole_windows_and_is_that_of_the_version);
on_embedded_backend!(a_worker_gets_a_preamble_that_is_newer_than_its_window);

async fn a_preamble_comes_with_whole_windows_and_is_that_of_the_version(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let set = async |payload: &'static str| {
        let preamble = pb::Preamble { payload: payload.into(), ..Default::default() };
        let session = pb::Session { preamble: Some(preamble), ..service.get(SESSION).await };
        service.update(session, &["preamble"]).await.unwrap().preamble
    };
    service.append(SESSION, &[user(OpenaiChat, "0")]).await;
    let first = set("[\n1 ]").await;
    service.append(SESSION, &[model(OpenaiChat, "1")]).await;
    let second = set("[2]").await;
    let third = set("[3]").await;
    service.append(SESSION, &[user(OpenaiChat, "2")]).await;
    assert_eq!(first.as_ref().unwrap().payload, "[\n1 ]", "as it was given, unlike entries");
    let window = service.window(SESSION).await;
    assert_eq!(window.header.preamble, third);
    for (version, preamble) in [(0, &None), (1, &first), (2, &third), (3, &third)] {
        assert_eq!(&service.window_at(SESSION, version).await.header.preamble, preamble, "{version}");
    }
    assert_ne!(second, third);
    assert_eq!(service.restore_from(SESSION, &window.header.window_id).await.header.preamble, None);
    service.append(SESSION, &[model(OpenaiChat, "3")]).await;
    assert_eq!(service.restore_from(SESSION, &window.header.window_id).await.header.preamble, None);
    let fork = pb::ForkSessionRequest {
        name: SESSION.to_owned(),
        version: Some(1),
        session_id: "f".to_owned(),
        request_id: fresh_id(),
        ..Default::default()
    };
    assert_eq!(service.fork(fork).await.unwrap().preamble, first);
    assert_eq!(service.window("sessions/f").await.header.preamble, first);
}

async fn a_worker_gets_a_preamble_that_is_newer_than_its_window(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    service.append(SESSION, &[user(OpenaiChat, "0")]).await;
    let record = entry(pb::EntryKind::Meta, "{}");
    service.persist(append_entries(SESSION, &fresh_id(), vec![record])).await.unwrap();
    let preamble = pb::Preamble { payload: "[1]".into(), ..Default::default() };
    let session = pb::Session { preamble: Some(preamble), ..service.get(SESSION).await };
    let preamble = service.update(session, &["preamble"]).await.unwrap().preamble;
    for length in 1..=2 {
        let older = service.window_at(SESSION, 1).await;
        assert_eq!(older.header.preamble, None);
        let change = service.restore_from(SESSION, &older.header.window_id).await;
        assert_eq!(change.full_reason(), None);
        assert_eq!(change.header.preamble, preamble);
        assert_eq!(change.applied_to(&older.items).len(), length);
        service.append(SESSION, &[model(OpenaiChat, "1")]).await;
    }
}
