//! Restoring: the window, what a worker lacks of it, and what is said about it.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/checker.rs"]
mod checker;
#[path = "support/messages.rs"]
mod messages;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends, on_embedded_backend, on_shared_backend};
use messages::{ALL, STRUCTURED, call, model, result, user};
use pb::FullReason;
use pb::WireFormat::{self, BedrockConverse, OpenaiChat};
use pb::window_change::Change;
use service::{Restored, SESSION, Service, append, append_entries, entry, fresh_id, of_format, text};
use turnkeep::client::Window;
use turnkeep::rpc::pb;

on_all_backends!(
    a_restore_gives_the_window_and_all_that_is_known_of_it,
    a_worker_gets_what_it_lacks_and_nothing_else,
    a_persist_extends_the_window_that_it_names,
    each_reason_for_a_whole_window_is_told,
    a_preamble_comes_with_whole_windows_and_is_that_of_the_version,
    a_window_is_the_same_bytes_wherever_its_log_lies,
    a_window_of_turns_that_the_metadata_lost_is_not_built_upon,
);
on_embedded_backend!(
    calls_of_the_last_step_are_listed_or_closed,
    an_interrupted_call_gets_a_result_until_its_own_comes,
    repairs_are_listed,
    records_are_in_no_window,
    a_window_is_extended_by_messages_alone_and_only_if_all_of_them_were_kept,
    a_window_says_whether_it_fits,
    a_late_result_changes_the_window_from_its_call_on,
    a_header_lists_the_newest_repairs_and_counts_all,
    all_calls_that_wait_are_listed_and_more_than_a_header_holds_are_refused,
    counts_of_another_tokenizer_are_told,
    a_worker_gets_a_preamble_that_is_newer_than_its_window,
);
on_shared_backend!(a_window_id_holds_on_every_replica, a_replica_forgets_turns_that_the_metadata_lost);

/// A session `sessions/{format}`.
async fn create(service: &Service, format: WireFormat) -> String {
    service.create(&name_of(format)["sessions/".len()..], of_format(format)).await.name
}

fn name_of(format: WireFormat) -> String {
    format!("sessions/{}", format.as_str_name())
}

/// A step of the model with its result, and its answer.
fn step(format: WireFormat, i: usize) -> [String; 4] {
    let id = format!("call_{i}");
    [
        user(format, &format!("question {i}")),
        call(format, &id, "ls"),
        result(format, &id, "ls", &format!("result {i}")),
        model(format, &format!("answer {i}")),
    ]
}

/// Whether the provider would take a window, with nothing to be added.
fn check_accepted(format: WireFormat, window: &Restored, is_complete: bool) {
    let format = turnkeep::model::WireFormat::ALL
        .into_iter()
        .find(|known| format.as_str_name().ends_with(&known.as_str().to_uppercase().replace('-', "_")));
    let items: Vec<_> =
        window.items.iter().map(|item| serde_json::from_slice(&item.payload).unwrap()).collect();
    assert_eq!(checker::accepts(format.unwrap(), &items, is_complete), Ok(()), "{items:?}");
}

async fn a_restore_gives_the_window_and_all_that_is_known_of_it(backend: Backend) {
    let service = Service::start(&backend).await;
    for format in ALL {
        let name = name_of(format);
        let profile = pb::ModelProfile {
            model: "m".to_owned(),
            context_window_tokens: 10_000,
            max_output_tokens: 100,
            tokenizer: pb::Tokenizer::Unspecified.into(),
            tool_result_limit: None,
            prices: None,
            media_limits: None,
        };
        let preamble = pb::Preamble { payload: r#"{"system":"Be kind."}"#.into(), ..Default::default() };
        let session =
            pb::Session { profile: Some(profile.clone()), preamble: Some(preamble), ..of_format(format) };
        let session = service.create(&name["sessions/".len()..], session).await;
        let payloads = step(format, 0);
        let tokens = service.append(&name, &payloads).await.log_tokens;
        let window = service.window(&name).await;
        let log = service.read(&name).await;
        let expected = pb::WindowHeader {
            version: 1,
            window_id: window.header.window_id.clone(),
            change: Some(full(FullReason::NotConditional)),
            item_count: 4,
            stable_prefix_items: window.header.stable_prefix_items,
            format: format.into(),
            profile: Some(profile),
            preamble: session.preamble,
            tokens_before: tokens,
            tokens_after: tokens,
            reserve_tokens: 100,
            fits: Some(true),
            repairs: vec![],
            repair_count: 0,
            cut: None,
            unanswered_calls: vec![],
            next: if format == WireFormat::Opaque {
                pb::NextStep::Unspecified.into()
            } else {
                pb::NextStep::UserInput.into()
            },
            tokens_estimated: !matches!(format, WireFormat::OpenaiChat | WireFormat::OpenaiResponses),
            token_factor_permille: 1_000,
        };
        assert_eq!(window.header, expected);
        assert_ne!(window.header.window_id, "");
        assert!((3..=4).contains(&window.header.stable_prefix_items), "{format:?}");
        let items: Vec<_> = log
            .entries
            .iter()
            .map(|entry| pb::WindowItem {
                payload: entry.payload.clone(),
                origin: pb::ItemOrigin::Log.into(),
                seqs: vec![entry.seq],
                tokens: entry.tokens,
            })
            .collect();
        assert_eq!(window.items, items);
        check_accepted(format, &window, false);
    }
}

fn full(reason: FullReason) -> pb::WindowChange {
    let full = pb::window_change::Full { reason: reason.into() };
    pb::WindowChange { change: Some(Change::Full(full)) }
}

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

async fn a_window_is_the_same_bytes_wherever_its_log_lies(backend: Backend) {
    let mut service = Service::start(&backend).await;
    let mut expected = Vec::new();
    for format in ALL {
        let name = create(&service, format).await;
        for i in 0..3 {
            service.append(&name, &step(format, i)).await;
        }
        // An interrupted call, and one that waits.
        service.append(&name, &[user(format, "q"), call(format, "c1", "ls"), user(format, "stop")]).await;
        service.append(&name, &[call(format, "c2", "ls")]).await;
        expected.push(service.window(&name).await);
    }
    for seal in [false, true, false] {
        if seal {
            assert!(service.seal().await >= ALL.len());
        }
        for (format, expected) in ALL.into_iter().zip(&expected) {
            let name = name_of(format);
            assert_eq!(service.window(&name).await, *expected, "{format:?}");
            assert_eq!(service.window_at(&name, 5).await, *expected, "{format:?}");
            let change = service.restore_from(&name, &expected.header.window_id).await;
            assert_eq!(change.change(), Change::Unchanged(pb::window_change::Unchanged {}));
        }
        service = service.restart().await;
    }
}

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

async fn repairs_are_listed(backend: Backend) {
    let service = Service::start(&backend).await;
    for format in STRUCTURED {
        let name = create(&service, format).await;
        let [question, call, result, answer] = step(format, 0);
        let orphan = messages::result(format, "nobody", "cat", "?");
        let payloads = [orphan, question, call, result.clone(), result, answer];
        service.append(&name, &payloads).await;
        let window = service.window(&name).await;
        let repairs: Vec<_> = window
            .header
            .repairs
            .iter()
            .map(|repair| (repair.kind(), repair.seqs.clone(), &repair.id[..]))
            .collect();
        let expected = [
            (pb::RepairKind::OrphanResultOmitted, vec![1], "nobody"),
            (pb::RepairKind::DuplicateResultOmitted, vec![5], "call_0"),
        ];
        assert_eq!(repairs, expected, "{format:?}");
        assert!(window.header.repairs.iter().all(|repair| !repair.detail.is_empty()));
        assert_eq!(window.items.iter().flat_map(|item| item.seqs.clone()).collect::<Vec<_>>(), [2, 3, 4, 6]);
        check_accepted(format, &window, false);

        let unchanged = service.restore_from(&name, &window.header.window_id).await;
        assert_eq!((unchanged.header.repairs, unchanged.items), (vec![], vec![]), "the worker was told");
        let [question, call, result, answer] = step(format, 1);
        service.append(&name, &[question, call, result.clone(), result, answer]).await;
        let change = service.restore_from(&name, &window.header.window_id).await;
        let repairs: Vec<_> = change.header.repairs.iter().map(|repair| &repair.seqs[..]).collect();
        assert_eq!((repairs, change.full_reason()), (vec![&[10][..]], None), "what is new of them");
        assert_eq!(change.applied_to(&window.items), service.window(&name).await.items);
    }
}

async fn records_are_in_no_window(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    service.append(SESSION, &[user(OpenaiChat, "q")]).await;
    let held = service.window(SESSION).await;
    let record = || entry(pb::EntryKind::Meta, r#"{"role":"user","content":"not this"}"#);
    let unknown = pb::NewEntry { kind: 1_000, ..record() };
    let request = pb::PersistTranscriptRequest {
        window_id: held.header.window_id.clone(),
        ..append_entries(SESSION, &fresh_id(), vec![record(), unknown])
    };
    let answer = service.persist(request).await.unwrap();
    assert_eq!(answer.turn_tokens, 0);
    for known in [&held.header.window_id, &answer.window_id] {
        let change = service.restore_from(SESSION, known).await;
        assert_eq!(change.change(), Change::Unchanged(pb::window_change::Unchanged {}));
        assert_eq!(change.header.version, 2);
    }
    let now = service.window(SESSION).await;
    assert_eq!((now.items, now.header.tokens_before), (held.items, held.header.tokens_before));
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

async fn a_window_says_whether_it_fits(backend: Backend) {
    let service = Service::start(&backend).await;
    let profile =
        pb::ModelProfile { context_window_tokens: 1_000, max_output_tokens: 300, ..Default::default() };
    let preamble = pb::Preamble { payload: r#"{"system":"Be kind."}"#.into(), ..Default::default() };
    let with_limits =
        pb::Session { profile: Some(profile), preamble: Some(preamble), ..of_format(OpenaiChat) };
    let session = service.create("s", with_limits).await;
    service.create("t", of_format(OpenaiChat)).await;
    for name in [SESSION, "sessions/t"] {
        service.append(name, &[user(OpenaiChat, &"word ".repeat(300))]).await;
    }
    let window = service.window(SESSION).await;
    let filled = window.header.tokens_after + session.preamble.unwrap().tokens;
    let left = 1_000 - filled;
    // Reserve and overhead of the request; then the reserve that is used, and
    // whether all fits.
    let table = [
        (None, 0, 250, Some(250 <= left)),
        (Some(left), 0, left, Some(true)),
        (Some(left + 1), 0, left + 1, Some(false)),
        (Some(left - 7), 7, left - 7, Some(true)),
        (Some(left - 7), 8, left - 7, Some(false)),
        (Some(0), left, 0, Some(true)),
        (Some(1 << 40), 1 << 40, 1 << 40, Some(false)),
    ];
    for (reserve_tokens, fixed_overhead_tokens, reserve, fits) in table {
        let request = |name: &str| pb::RestoreTranscriptRequest {
            session: name.to_owned(),
            reserve_tokens,
            fixed_overhead_tokens,
            ..Default::default()
        };
        for compression in [pb::CompressionMode::Auto, pb::CompressionMode::None] {
            let request =
                pb::RestoreTranscriptRequest { compression: compression.into(), ..request(SESSION) };
            if compression == pb::CompressionMode::Auto && fits == Some(false) {
                // There is one step alone, and nothing of it to be shortened.
                assert_eq!(service.try_restore(request).await.unwrap_err().reason, "WINDOW_CANNOT_FIT");
                continue;
            }
            let restored = service.restore(request).await;
            assert_eq!((restored.header.reserve_tokens, restored.header.fits), (reserve, fits));
            assert_eq!(restored.items, window.items, "it is served whole all the same");
            // The id says what the worker adds, and that alone makes no other window of it.
            let is_same_id = restored.header.window_id == window.header.window_id;
            assert_eq!(is_same_id, fixed_overhead_tokens == 0);
            let held = service.restore_from(SESSION, &restored.header.window_id).await;
            assert_eq!(held.full_reason(), None);
            assert_eq!(held.items, vec![], "unchanged");
        }
        let without_limits = service.restore(request("sessions/t")).await.header;
        assert_eq!(without_limits.fits, None);
        assert_eq!(without_limits.reserve_tokens, reserve_tokens.unwrap_or(0));
    }
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

async fn a_window_of_turns_that_the_metadata_lost_is_not_built_upon(backend: Backend) {
    let mut service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let log = ["one", "two", "other", "next"].map(|text| user(OpenaiChat, text));
    for payload in &log[..2] {
        service.append(SESSION, &[payload]).await;
    }
    let kept = service.window(SESSION).await;
    service.append(SESSION, &[user(OpenaiChat, "lost")]).await;
    let held = service.window(SESSION).await;
    backend.take_back(2).await;
    for length in 2..=log.len() {
        if length > 2 {
            service.append(SESSION, &[&log[length - 1]]).await;
        }
        told_of_loss(&service, &held, &kept, &log[..length]).await;
        service = service.restart().await;
        told_of_loss(&service, &held, &kept, &log[..length]).await;
    }
}

/// A worker that holds a turn that was lost gets the whole log, and one that
/// does not hold it what it lacks.
async fn told_of_loss(service: &Service, held: &Restored, kept: &Restored, log: &[String]) {
    let told = service.restore_from(SESSION, &held.header.window_id).await;
    assert_eq!(told.full_reason(), Some(FullReason::UnknownWindow), "{}", log.len());
    assert_eq!(told.payloads(), log);
    let told = service.restore_from(SESSION, &kept.header.window_id).await;
    assert_eq!((told.full_reason(), &told.payloads()[..]), (None, &log[2..]));
}

async fn a_replica_forgets_turns_that_the_metadata_lost(backend: Backend) {
    let one = Service::start(&backend).await;
    let other = Service::start(&backend).await;
    one.create("s", of_format(OpenaiChat)).await;
    let log = ["one", "two", "other", "next"].map(|text| user(OpenaiChat, text));
    one.append(SESSION, &log[..1]).await;
    one.append(SESSION, &log[1..2]).await;
    let kept = other.window(SESSION).await;
    one.append(SESSION, &[user(OpenaiChat, "lost")]).await;
    let held = one.window(SESSION).await;
    backend.take_back(2).await;
    other.append(SESSION, &log[2..3]).await;
    for service in [&one, &other] {
        told_of_loss(service, &held, &kept, &log[..3]).await;
    }
    // It has the lost turn in mind as the newest, which has the same version.
    one.append(SESSION, &log[3..]).await;
    for service in [&one, &other] {
        told_of_loss(service, &held, &kept, &log).await;
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

async fn a_header_lists_the_newest_repairs_and_counts_all(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let orphan = |i: usize| result(OpenaiChat, &format!("{i:05}{}", "é".repeat(150)), "ls", "?");
    for first in [0, 1_500] {
        service.append(SESSION, &(first..first + 1_500).map(orphan).collect::<Vec<_>>()).await;
    }
    let window = service.window(SESSION).await;
    assert_eq!((window.header.repair_count, window.items.len()), (3_000, 0));
    let told: Vec<_> =
        window.header.repairs.iter().map(|repair| (&repair.seqs[..], &repair.id[..])).collect();
    let expected: Vec<_> = (2_000..3_000).map(|i| ([i + 1], format!("{i:05}{}", "é".repeat(125)))).collect();
    let expected: Vec<_> = expected.iter().map(|(seqs, id)| (&seqs[..], &id[..])).collect();
    assert_eq!(told, expected);

    let merging = create(&service, BedrockConverse).await;
    let words: Vec<_> = (0..100).map(|i| user(BedrockConverse, &i.to_string())).collect();
    service.append(&merging, &words).await;
    let window = service.window(&merging).await;
    assert_eq!(window.header.repairs[0].seqs, (1..=32).collect::<Vec<_>>());
    assert_eq!(window.items[0].seqs.len(), 100);
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

async fn counts_of_another_tokenizer_are_told(backend: Backend) {
    let service = Service::start(&backend).await;
    let with = |tokenizer: pb::Tokenizer| {
        let profile =
            pb::ModelProfile { model: "m".to_owned(), tokenizer: tokenizer.into(), ..Default::default() };
        pb::Session { profile: Some(profile), ..of_format(OpenaiChat) }
    };
    let switch = async |name: &str, tokenizer| {
        let session = pb::Session { profile: with(tokenizer).profile, ..service.get(name).await };
        service.update(session, &["profile"]).await.unwrap();
    };
    service.create("empty", with(pb::Tokenizer::Estimate)).await;
    switch("sessions/empty", pb::Tokenizer::O200k).await;
    service.append("sessions/empty", &[user(OpenaiChat, "q")]).await;
    assert!(!service.window("sessions/empty").await.header.tokens_estimated, "all is counted exactly");

    service.create("s", with(pb::Tokenizer::Estimate)).await;
    service.append(SESSION, &[user(OpenaiChat, "q")]).await;
    let estimated = service.window(SESSION).await.header;
    switch(SESSION, pb::Tokenizer::O200k).await;
    let switched = service.window(SESSION).await.header;
    assert_eq!((switched.tokens_after, switched.tokens_estimated), (estimated.tokens_after, true));
    let service = service.restart().await;
    assert!(service.window(SESSION).await.header.tokens_estimated);
}
