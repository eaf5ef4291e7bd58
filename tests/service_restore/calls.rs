//! Calls that wait for results, were interrupted, or are answered late.

use crate::backends::{Backend, on_embedded_backend};
use crate::messages::{self, STRUCTURED, call, model, result, user};
use crate::service::{Restored, SESSION, Service, append, fresh_id, of_format, text};
use crate::{check_accepted, create, step};
use pb::FullReason;
use pb::WireFormat;
use pb::window_change::Change;
use turnkeep::rpc::pb;

on_embedded_backend!(
    calls_of_the_last_step_are_listed_or_closed,
    an_interrupted_call_gets_a_result_until_its_own_comes,
    a_late_result_changes_the_window_from_its_call_on,
    all_calls_that_wait_are_listed_and_more_than_a_header_holds_are_refused,
);

async fn calls_of_the_last_step_are_listed_or_closed(backend: Backend) {
    let service = Service::start(&backend).await;
    for format in STRUCTURED {
        let name = create(&service, format).await;
        service.append(&name, &[user(format, "q"), call(format, "c1", "ls")]).await;
        let open = service.window(&name).await;
        let waiting = pb::UnansweredCall { call_id: "c1".to_owned(), name: "ls".to_owned(), seq: 2 };
        assert_eq!(open.header.unanswered_calls, [waiting]);
        assert_eq!(open.header.next(), pb::NextStep::ToolResults);
        assert_eq!((open.items.len(), &open.header.repairs[..]), (2, &[][..]));
        check_accepted(format, &open, false);

        let request =
            pb::RestoreTranscriptRequest { session: name.clone(), close_pending: true, ..Default::default() };
        let closed = service.restore(request.clone()).await;
        assert_eq!(closed.header.unanswered_calls, []);
        assert_eq!(closed.header.next(), pb::NextStep::Model);
        let [repair] = &closed.header.repairs[..] else { panic!("{closed:?}") };
        assert_eq!(
            (repair.kind(), &repair.seqs[..], &repair.id[..]),
            (pb::RepairKind::ResultAdded, &[2][..], "c1")
        );
        assert_eq!(closed.items[..2], open.items);
        let [added] = &closed.items[2..] else { panic!("{closed:?}") };
        assert_eq!((added.origin(), &added.seqs[..]), (pb::ItemOrigin::Repair, &[][..]));
        assert!(added.tokens > 0);
        check_accepted(format, &closed, true);
        assert_eq!(service.read(&name).await.entries.len(), 2, "in the window, not in the log");
        let known =
            pb::RestoreTranscriptRequest { known_window: closed.header.window_id.clone(), ..request.clone() };
        let unchanged = service.restore(known).await;
        assert_eq!(unchanged.change(), Change::Unchanged(pb::window_change::Unchanged {}));

        service.append(&name, &[result(format, "c1", "ls", "ok")]).await;
        let answered = service.window(&name).await;
        assert_eq!(answered.header.unanswered_calls, []);
        assert_eq!(answered.header.next(), pb::NextStep::Model);
        assert_eq!(answered.header.repairs, []);
        check_accepted(format, &answered, true);
    }
}

async fn an_interrupted_call_gets_a_result_until_its_own_comes(backend: Backend) {
    let service = Service::start(&backend).await;
    for format in STRUCTURED {
        let name = create(&service, format).await;
        service.append(&name, &[user(format, "q"), call(format, "c1", "ls")]).await;
        let waiting = service.window(&name).await;
        let request = pb::PersistTranscriptRequest {
            window_id: waiting.header.window_id.clone(),
            ..append(&name, &fresh_id(), &[user(format, "never mind"), model(format, "fine")])
        };
        service.persist(request).await.unwrap();
        let interrupted = service.window(&name).await;
        let kinds =
            |window: &Restored| window.header.repairs.iter().map(pb::Repair::kind).collect::<Vec<_>>();
        assert!(kinds(&interrupted).contains(&pb::RepairKind::ResultAdded), "{interrupted:?}");
        assert_eq!(interrupted.header.unanswered_calls, []);
        check_accepted(format, &interrupted, false);
        let change = service.restore_from(&name, &waiting.header.window_id).await;
        assert_eq!(change.applied_to(&waiting.items), interrupted.items);

        let revision = service.get(&name).await.window_revision;
        let answer = service.append(&name, &[result(format, "c1", "ls", "the late one")]).await;
        assert_eq!(service.get(&name).await.window_revision, revision + 1);
        let revised = service.window(&name).await;
        assert!(!kinds(&revised).contains(&pb::RepairKind::ResultAdded), "{revised:?}");
        let place = revised.items.iter().find(|item| text(&item.payload).contains("the late one")).unwrap();
        assert!(place.seqs.contains(&answer.last_seq));
        check_accepted(format, &revised, false);
        let service_log = service.read(&name).await.payloads();
        assert_eq!(service_log.last().unwrap(), &result(format, "c1", "ls", "the late one"));
        let before = service.window_at(&name, 2).await;
        assert_eq!(before.items, interrupted.items, "the version before is as it was");
    }
}

async fn a_late_result_changes_the_window_from_its_call_on(backend: Backend) {
    let mut service = Service::start(&backend).await;
    for format in STRUCTURED {
        let name = create(&service, format).await;
        service.append(&name, &step(format, 0)).await;
        service.append(&name, &[user(format, "q"), call(format, "c1", "ls"), user(format, "stop")]).await;
        service.append(&name, &[model(format, "fine")]).await;
        let held = service.window(&name).await;
        let request = pb::PersistTranscriptRequest {
            window_id: held.header.window_id.clone(),
            ..append(&name, &fresh_id(), &[result(format, "c1", "ls", "late")])
        };
        let extended = service.persist(request).await.unwrap().window_id;
        service.append(&name, &[user(format, "more")]).await;
        let whole = service.window(&name).await;
        assert!(whole.payloads().iter().any(|item| item.contains("late")));
        service = service.restart().await;
        assert_eq!(service.window(&name).await, whole, "{format:?}: as if made at once");
        for known in [&held.header.window_id, &extended] {
            let change = service.restore_from(&name, known).await;
            let Change::Delta(delta) = change.change() else { panic!("{format:?} {:?}", change.change()) };
            assert!(delta.base_items >= 5, "{format:?} {delta:?}");
            assert_eq!(change.applied_to(&held.items), whole.items);
            let is_told =
                |repair: &&pb::Repair| repair.id == "c1" && repair.kind() == pb::RepairKind::ResultMoved;
            let told = whole.header.repairs.iter().filter(is_told);
            assert!(told.eq(change.header.repairs.iter().filter(is_told)), "{change:?}");
        }
        let session = pb::Session { path: pb::CompressionPath::Batch.into(), ..service.get(&name).await };
        service.update(session, &["path"]).await.unwrap();
        let change = service.restore_from(&name, &held.header.window_id).await;
        assert_eq!(change.full_reason(), Some(FullReason::Revised));
    }
}

async fn all_calls_that_wait_are_listed_and_more_than_a_header_holds_are_refused(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(WireFormat::OpenaiResponses)).await;
    let call = |i: usize| call(WireFormat::OpenaiResponses, &format!("call_{i}"), "ls");
    let result = |i: usize| result(WireFormat::OpenaiResponses, &format!("call_{i}"), "ls", "ok");
    let append = |payloads: Vec<String>| append(SESSION, &fresh_id(), &payloads);
    service.persist(append((0..1_000).map(call).collect())).await.unwrap();
    let waiting = service.window(SESSION).await.header.unanswered_calls;
    let expected = (0..1_000).map(|i| format!("call_{i}"));
    assert!(waiting.iter().map(|call| call.call_id.clone()).eq(expected));
    let refusal = service.persist(append(vec![call(1_000)])).await.unwrap_err();
    assert_eq!((&refusal.reason[..], refusal.metadata("field")), ("INVALID_FIELD", "append.entries"));
    service.persist(append(vec![call(1_000), result(0)])).await.unwrap();
    service.persist(append((1..1_001).map(result).collect())).await.unwrap();
    let many = (2_000..4_000).map(call).chain((2_000..4_000).map(result)).collect();
    assert_eq!(service.persist(append(many)).await.unwrap().version, 4, "answered in the same turn");
    let long = messages::call(WireFormat::OpenaiResponses, &"x".repeat(64 << 10), "ls");
    let refusal = service.persist(append(vec![long])).await.unwrap_err();
    assert_eq!(refusal.metadata("field"), "append.entries");
}
