//! What a worker lacks that holds a window.

use crate::backends::{Backend, on_all_backends, on_embedded_backend, on_shared_backend};
use crate::messages::{ALL, model, user};
use crate::service::{SESSION, Service, append, append_entries, entry, fresh_id, of_format, text};
use crate::{check_accepted, create, step};
use pb::FullReason;
use pb::WireFormat::{BedrockConverse, OpenaiChat};
use pb::window_change::Change;
use turnkeep::client::Window;
use turnkeep::rpc::pb;

on_all_backends!(
    a_worker_gets_what_it_lacks_and_nothing_else,
    a_persist_extends_the_window_that_it_names,
    each_reason_for_a_whole_window_is_told,
);
on_embedded_backend!(a_window_is_extended_by_messages_alone_and_only_if_all_of_them_were_kept);
on_shared_backend!(a_window_id_holds_on_every_replica);

async fn a_worker_gets_what_it_lacks_and_nothing_else(backend: Backend) {
    let service = Service::start(&backend).await;
    for format in ALL {
        let name = create(&service, format).await;
        let mut held = service.window(&name).await;
        let mut items = held.items.clone();
        for i in 0..3 {
            for payload in step(format, i) {
                service.append(&name, &[payload]).await;
                let change = service.restore_from(&name, &held.header.window_id).await;
                let now = service.window(&name).await;
                assert_eq!(change.applied_to(&items), now.items);
                assert_eq!(change.header, pb::WindowHeader { change: change.header.change, ..now.header });
                if !items.is_empty() {
                    let delta = pb::window_change::Delta { base_items: items.len() as u64 };
                    assert_eq!(change.change(), Change::Delta(delta), "none of them changes");
                }
                let stable = usize::try_from(held.header.stable_prefix_items).unwrap();
                assert_eq!(now.items[..stable], items[..stable]);
                items = now.items;
                held = service.restore_from(&name, &change.header.window_id).await;
                assert_eq!(held.change(), Change::Unchanged(pb::window_change::Unchanged {}));
                assert_eq!(held.items, []);
                assert_eq!(held.header.window_id, change.header.window_id);
            }
        }
        let early = service.window_at(&name, 2).await;
        let change = service.restore_from(&name, &early.header.window_id).await;
        assert_eq!(change.applied_to(&early.items), items, "many turns at once");
        assert_eq!(change.full_reason(), None);
    }
}

async fn a_persist_extends_the_window_that_it_names(backend: Backend) {
    let service = Service::start(&backend).await;
    for format in ALL {
        let name = create(&service, format).await;
        let from = |window_id: &str, payloads: &[String]| pb::PersistTranscriptRequest {
            window_id: window_id.to_owned(),
            ..append(&name, &fresh_id(), payloads)
        };
        let mut window_id = service.window(&name).await.header.window_id;
        let mut held: Vec<String> = Vec::new();
        for i in 0..3 {
            let [question, call, result, answer] = step(format, i);
            for payloads in [vec![question], vec![call, result], vec![answer]] {
                window_id = service.persist(from(&window_id, &payloads)).await.unwrap().window_id;
                held.extend(payloads);
                assert_ne!(window_id, "");
            }
            let change = service.restore_from(&name, &window_id).await;
            assert_eq!(change.change(), Change::Unchanged(pb::window_change::Unchanged {}), "{format:?}");
            assert_eq!(service.window(&name).await.payloads(), held);
        }
        let unnamed = service.append(&name, &[user(format, "more")]).await;
        assert_eq!(unnamed.window_id, "");
        let outdated = service.persist(from(&window_id, &[model(format, "even more")])).await.unwrap();
        assert_eq!(outdated.window_id, "", "it lacks the turn before");
        let foreign = service.persist(from("x", &[user(format, "and more")])).await.unwrap();
        assert_eq!(foreign.window_id, "");
        let change = service.restore_from(&name, &window_id).await;
        let delta = pb::window_change::Delta { base_items: held.len() as u64 };
        assert_eq!(change.change(), Change::Delta(delta));
        assert_eq!(change.items.len(), 3);
    }
}

async fn each_reason_for_a_whole_window_is_told(backend: Backend) {
    let service = Service::start(&backend).await;
    let name = create(&service, OpenaiChat).await;
    service.create("other", of_format(OpenaiChat)).await;
    for name in [&name, "sessions/other"] {
        service.append(name, &step(OpenaiChat, 0)).await;
    }
    let reason = async |service: &Service, known: &str| {
        let restored = service.restore_from(&name, known).await;
        let reason = restored.full_reason();
        if reason.is_some() {
            assert_eq!(restored.items, service.window(&name).await.items);
        }
        reason
    };
    assert_eq!(reason(&service, "").await, Some(FullReason::NotConditional));
    let held = service.window(&name).await.header.window_id;
    let of_other = service.window("sessions/other").await.header.window_id;
    assert_eq!(reason(&service, &of_other).await, Some(FullReason::UnknownWindow));
    for (i, character) in held.char_indices() {
        let other = if character == 'A' { "B" } else { "A" };
        let altered = [&held[..i], other, &held[i + 1..]].concat();
        let is_unused_bits = i + 1 == held.len();
        if !is_unused_bits {
            assert_eq!(reason(&service, &altered).await, Some(FullReason::UnknownWindow), "{altered}");
        }
    }
    for junk in ["?", "AAAA", &held[1..], &"A".repeat(100_000)] {
        assert_eq!(reason(&service, junk).await, Some(FullReason::UnknownWindow));
    }

    let closing = |known: &str, close_pending| pb::RestoreTranscriptRequest {
        session: name.clone(),
        known_window: known.to_owned(),
        close_pending,
        ..Default::default()
    };
    let closed = service.restore(closing(&held, true)).await;
    assert_eq!(closed.full_reason(), Some(FullReason::ParametersChanged));
    let reopened = service.restore(closing(&closed.header.window_id, false)).await;
    assert_eq!(reopened.full_reason(), Some(FullReason::ParametersChanged));
    assert_eq!(reopened.header.window_id, held);

    service.append(&name, &step(OpenaiChat, 1)).await;
    let newest = service.window(&name).await.header.window_id;
    let older = pb::RestoreTranscriptRequest { at_version: Some(1), ..closing(&newest, false) };
    let older = service.restore(older).await;
    assert_eq!(older.full_reason(), Some(FullReason::ParametersChanged), "nothing was rewound");
    assert_eq!(older.header.window_id, held);
    let rewound = service.window(&name).await.header.window_id;
    service.rewind_to(&name, 1).await;
    assert_eq!(reason(&service, &rewound).await, Some(FullReason::Rewound));
    assert_eq!(reason(&service, &held).await, None, "what it holds was not rewound");
    service.rewind_to(&name, 2).await;
    assert_eq!(reason(&service, &rewound).await, None, "and is there again");

    for mask in ["profile", "path", "preamble"] {
        let held = service.window(&name).await.header.window_id;
        let session = pb::Session {
            profile: Some(pb::ModelProfile { context_window_tokens: 1_000, ..Default::default() }),
            path: pb::CompressionPath::Batch.into(),
            preamble: Some(pb::Preamble { payload: "{}".into(), ..Default::default() }),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            ..service.get(&name).await
        };
        let session = service.update(session, &[mask]).await.unwrap();
        assert_eq!(reason(&service, &held).await, Some(FullReason::Revised), "{mask}");
        let held = service.window(&name).await.header.window_id;
        service.update(session, &[mask]).await.unwrap();
        let again = (mask == "preamble").then_some(FullReason::Revised);
        assert_eq!(reason(&service, &held).await, again, "{mask} as it was");
        let session = service.get(&name).await;
        let held = service.window(&name).await.header.window_id;
        service.update(session, &["labels", "strip_rules"]).await.unwrap();
        assert_eq!(reason(&service, &held).await, None);
    }

    let merging = create(&service, BedrockConverse).await;
    service.append(&merging, &[user(BedrockConverse, "one")]).await;
    let held = service.window(&merging).await.header.window_id;
    service.append(&merging, &[user(BedrockConverse, "two")]).await;
    let restored = service.restore_from(&merging, &held).await;
    assert_eq!(restored.full_reason(), Some(FullReason::NothingInCommon));
    assert_eq!(restored.header.repairs[0].kind(), pb::RepairKind::Merged);
    assert_eq!(restored.items[0].seqs, [1, 2]);
    check_accepted(BedrockConverse, &restored, true);
}

async fn a_window_is_extended_by_messages_alone_and_only_if_all_of_them_were_kept(backend: Backend) {
    let service = Service::start(&backend).await;
    let session = pb::Session { strip_rules: vec!["claude-code".to_owned()], ..of_format(OpenaiChat) };
    service.create("s", session).await;
    service.append(SESSION, &[user(OpenaiChat, "q")]).await;
    let mut client = service.client.clone();
    let mut held = Window::default();
    let restore = pb::RestoreTranscriptRequest { session: SESSION.to_owned(), ..Default::default() };
    client.restore(&mut held, restore.clone()).await.unwrap();
    let of_kind = |kind: i32, payload: &str| pb::NewEntry { kind, ..entry(pb::EntryKind::Message, payload) };
    let noise = r#"{"type":"progress","data":{}}"#;
    let kept = vec![
        of_kind(pb::EntryKind::Progress.into(), "{}"),
        of_kind(pb::EntryKind::Unspecified.into(), &model(OpenaiChat, "one")),
        of_kind(1_000, r#"{"role":"user","content":"not this"}"#),
        of_kind(pb::EntryKind::Meta.into(), r#"{"role":"user","content":"nor this"}"#),
        of_kind(pb::EntryKind::Message.into(), &user(OpenaiChat, "two")),
    ];
    let with_noise = |kind: pb::EntryKind| {
        let mut entries = kept.clone();
        entries.insert(2, entry(kind, noise));
        entries
    };
    // The seqs are known where no record was stripped.
    for (entries, seqs) in
        [(kept.clone(), vec![vec![2], vec![5]]), (with_noise(pb::EntryKind::Meta), vec![vec![]; 2])]
    {
        let request = pb::PersistTranscriptRequest {
            window_id: held.id.clone(),
            ..append_entries(SESSION, &fresh_id(), entries.clone())
        };
        let answer = service.persist(request).await.unwrap();
        assert_ne!(answer.window_id, "");
        let before = held.items.len();
        held.extend(&entries, &answer);
        assert_eq!(held.items[before..].iter().map(|item| item.seqs.clone()).collect::<Vec<_>>(), seqs);
        let header = client.restore(&mut held, restore.clone()).await.unwrap();
        assert_eq!(header.change.unwrap().change, Some(Change::Unchanged(pb::window_change::Unchanged {})));
        let payloads =
            |items: &[pb::WindowItem]| items.iter().map(|item| text(&item.payload)).collect::<Vec<_>>();
        assert_eq!(payloads(&held.items), service.window(SESSION).await.payloads());
    }
    let entries = with_noise(pb::EntryKind::Message);
    let request = pb::PersistTranscriptRequest {
        window_id: held.id.clone(),
        ..append_entries(SESSION, "noisy", entries.clone())
    };
    let answer = service.persist(request.clone()).await.unwrap();
    assert_eq!(answer.window_id, "");
    assert_eq!(service.persist(request).await.unwrap(), answer, "nor is it by a retry");
    let before = held.items.len();
    held.extend(&entries, &answer);
    assert_eq!(held.items.len(), before);
    let header = client.restore(&mut held, restore).await.unwrap();
    let delta = pb::window_change::Delta { base_items: before as u64 };
    assert_eq!(header.change.unwrap().change, Some(Change::Delta(delta)));
    let payloads: Vec<_> = held.items.iter().map(|item| text(&item.payload)).collect();
    assert_eq!(payloads, service.window(SESSION).await.payloads());
}

async fn a_window_id_holds_on_every_replica(backend: Backend) {
    let one = Service::start(&backend).await;
    let other = Service::start(&backend).await;
    one.create("s", of_format(OpenaiChat)).await;
    one.append(SESSION, &step(OpenaiChat, 0)).await;
    let mut held = one.window(SESSION).await;
    let mut items = held.items.clone();
    for i in 1..6 {
        let (writer, reader) = if i % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let request = pb::PersistTranscriptRequest {
            window_id: held.header.window_id.clone(),
            ..append(SESSION, &fresh_id(), &step(OpenaiChat, i))
        };
        let extended = writer.persist(request).await.unwrap().window_id;
        let change = reader.restore_from(SESSION, &held.header.window_id).await;
        items = change.applied_to(&items);
        assert_eq!(change.full_reason(), None);
        assert_eq!(items, writer.window(SESSION).await.items);
        held = reader.restore_from(SESSION, &extended).await;
        assert_eq!(held.change(), Change::Unchanged(pb::window_change::Unchanged {}));
    }
}
