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

#[path = "service_restore/calls.rs"]
mod calls;
#[path = "service_restore/known_windows.rs"]
mod known_windows;
#[path = "service_restore/lost_turns.rs"]
mod lost_turns;
#[path = "service_restore/preambles.rs"]
mod preambles;
#[path = "service_restore/repairs.rs"]
mod repairs;

use backends::{Backend, on_all_backends, on_embedded_backend};
use messages::{ALL, call, model, result, user};
use pb::FullReason;
use pb::WireFormat::{self, OpenaiChat};
use pb::window_change::Change;
use service::{Restored, SESSION, Service, append_entries, entry, fresh_id, of_format};
use turnkeep::rpc::pb;

on_all_backends!(
    a_restore_gives_the_window_and_all_that_is_known_of_it,
    a_window_is_the_same_bytes_wherever_its_log_lies,
);
on_embedded_backend!(
    records_are_in_no_window,
    a_window_says_whether_it_fits,
    counts_of_another_tokenizer_are_told,
);

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
            stall: None,
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
