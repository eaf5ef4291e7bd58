//! Counted tokens are held against those that providers report.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/messages.rs"]
mod messages;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends, on_embedded_backend};
use messages::{call, model, result, user};
use pb::WireFormat::OpenaiChat;
use service::{SESSION, Service, answer, append, fresh_id, of_format};
use turnkeep::rpc::pb;

on_all_backends!(
    a_report_of_half_as_much_again_moves_the_cut,
    a_factor_moves_at_a_compaction_or_at_once_if_far_too_low,
);

on_embedded_backend!(
    a_factor_has_bounds,
    reports_that_say_nothing_are_ignored,
    what_was_said_with_the_window_and_what_the_worker_adds_is_counted,
    a_calibrated_window_fits_by_what_the_provider_counts,
    a_factor_is_of_one_model_and_stays_through_rewinds_forks_and_undos,
);

const CONTEXT: u64 = 8_000;
/// Half of the context.
const CEILING: u64 = 4_000;
const FLOOR: u64 = 3_200;

fn session(path: pb::CompressionPath) -> pb::Session {
    let profile = pb::ModelProfile { context_window_tokens: CONTEXT, ..Default::default() };
    pb::Session { path: path.into(), profile: Some(profile), ..of_format(OpenaiChat) }
}

fn usage(window: &str, input_tokens: u64) -> pb::Usage {
    pb::Usage { input_tokens, window_id: window.to_owned(), ..Default::default() }
}

/// A step of the model, from the window as it is, of which it reports so many
/// thousandths of the counted tokens.
async fn step(service: &Service, name: &str, number: usize, permille: u64) {
    let window = service.window(name).await;
    let id = format!("call_{number}");
    let text = format!("{number}: {}", "lorem ipsum dolor ".repeat(40));
    let entries = [call(OpenaiChat, &id, "shell"), result(OpenaiChat, &id, "shell", &text)];
    let reported = window.header.tokens_after * permille / 1_000;
    let request = pb::PersistTranscriptRequest {
        // Part of it comes from the provider's cache.
        usage: Some(pb::Usage {
            cache_read_tokens: reported / 3,
            cache_write_tokens: reported - 2 * (reported / 3),
            ..usage(&window.header.window_id, reported / 3)
        }),
        ..append(name, &fresh_id(), &entries)
    };
    service.persist(request).await.unwrap();
}

async fn compactions(service: &Service, name: &str) -> Vec<pb::Compaction> {
    let request = pb::ListCompactionsRequest { parent: name.to_owned(), ..Default::default() };
    answer(service.client.transcripts.clone().list_compactions(request).await).unwrap().compactions
}

/// What the newest turn reports.
async fn newest_usage(service: &Service, name: &str) -> pb::Usage {
    service.turns(name).await.remove(0).usage.unwrap()
}

async fn factor(service: &Service, name: &str) -> u64 {
    service.window(name).await.header.token_factor_permille
}

/// Works until a window was compacted; gives that compaction.
async fn until_compacted(service: &Service, name: &str, permille: u64) -> pb::Compaction {
    for number in 0..60 {
        step(service, name, number, permille).await;
        if let [compaction] = compactions(service, name).await.as_slice() {
            return compaction.clone();
        }
    }
    panic!("{:?}", service.window(name).await.header);
}

async fn compact_to(service: &Service, tokens: u64) -> pb::Compaction {
    let request = pb::CompactTranscriptRequest {
        session: SESSION.to_owned(),
        target_tokens: Some(tokens),
        ..Default::default()
    };
    let done = answer(service.client.transcripts.clone().compact_transcript(request).await).unwrap();
    done.compaction.expect("something leaves")
}

async fn a_report_of_half_as_much_again_moves_the_cut(backend: Backend) {
    let service = Service::start(&backend).await;
    let names = ["sessions/exact", "sessions/more"];
    for name in names {
        let id = name.strip_prefix("sessions/").unwrap();
        service.create(id, session(pb::CompressionPath::Batch)).await;
        service.append(name, &[user(OpenaiChat, "count")]).await;
    }
    let exact = until_compacted(&service, names[0], 1_000).await;
    assert!((CEILING..CEILING + 350).contains(&exact.tokens_before), "{exact:?}");
    assert!((FLOOR - 350..=FLOOR).contains(&exact.tokens_after), "{exact:?}");
    // Exact is exact: the division of small numbers aside.
    assert!((999..=1_000).contains(&exact.token_factor_permille), "{exact:?}");
    let more = until_compacted(&service, names[1], 1_500).await;
    let by_provider = |tokens: u64| tokens * 3 / 2;
    assert!((CEILING..CEILING + 525).contains(&by_provider(more.tokens_before)), "{more:?}");
    assert!((FLOOR - 525..=FLOOR + 10).contains(&by_provider(more.tokens_after)), "{more:?}");
    assert!((1_495..=1_500).contains(&more.token_factor_permille), "{more:?}");
    // Another process has the same, and so do earlier versions.
    let window = service.window(names[1]).await;
    let earlier = service.window_at(names[1], 8).await;
    assert_eq!(window.header.token_factor_permille, more.token_factor_permille);
    let service = service.restart().await;
    assert_eq!(service.window(names[1]).await, window);
    assert_eq!(service.window_at(names[1], 8).await, earlier);
    // What was counted is told with the turn.
    let usage = newest_usage(&service, names[1]).await;
    let reported = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens;
    assert_eq!(reported, usage.counted_tokens.unwrap() * 3 / 2);
    service.stop().await;
    assert_eq!(backend.fsck().await.findings, vec![]);
}

async fn a_factor_moves_at_a_compaction_or_at_once_if_far_too_low(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(pb::CompressionPath::Batch)).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    for number in 0..14 {
        step(&service, SESSION, number, 800).await;
        assert_eq!(factor(&service, SESSION).await, 1_000, "too high can wait");
    }
    let compacted = compact_to(&service, 1_500).await.token_factor_permille;
    assert!((795..=800).contains(&compacted), "{compacted}");
    step(&service, SESSION, 14, 870).await;
    assert_eq!(factor(&service, SESSION).await, compacted, "a little too low can wait");
    let before = service.window(SESSION).await;
    step(&service, SESSION, 15, 950).await;
    let low = factor(&service, SESSION).await;
    assert!((945..=950).contains(&low), "{low}");
    // It is a change of the window that shows nothing else.
    let window = service.window(SESSION).await;
    assert_eq!(window.payloads()[..before.items.len()], before.payloads()[..]);
    let next = service.restore_from(SESSION, &before.header.window_id).await;
    assert_eq!(next.full_reason(), Some(pb::FullReason::Revised));
    assert_eq!(compactions(&service, SESSION).await.len(), 1, "and no compaction");
}

async fn a_factor_has_bounds(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(pb::CompressionPath::Interactive)).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    for number in 0..12 {
        step(&service, SESSION, number, 300).await;
    }
    compact_to(&service, 1_400).await;
    assert_eq!(factor(&service, SESSION).await, 700);
    step(&service, SESSION, 12, 5_000).await;
    assert_eq!(factor(&service, SESSION).await, 2_000);
    step(&service, SESSION, 13, 7_000).await;
    assert_eq!(factor(&service, SESSION).await, 2_000);
}

async fn reports_that_say_nothing_are_ignored(backend: Backend) {
    let service = Service::start(&backend).await;
    for id in ["s", "other"] {
        service.create(id, session(pb::CompressionPath::Interactive)).await;
        service.append(&format!("sessions/{id}"), &[user(OpenaiChat, "count")]).await;
    }
    // Of a small window, what providers add is too much.
    step(&service, SESSION, 0, 3_000).await;
    assert_eq!(factor(&service, SESSION).await, 1_000);
    for number in 1..14 {
        step(&service, SESSION, number, 1_000).await;
    }
    let other = service.window("sessions/other").await.header.window_id;
    let old = service.window_at(SESSION, 10).await.header.window_id;
    let cut = pb::RestoreTranscriptRequest {
        session: SESSION.to_owned(),
        reserve_tokens: Some(CONTEXT - 1_200),
        ..Default::default()
    };
    let cases = [
        ("nothing", None, 0),
        ("absurd", None, 100_000),
        ("no window", Some(String::new()), 4_000),
        ("no window's id", Some("AAAA".to_owned()), 4_000),
        ("another session's", Some(other), 4_000),
        ("an older one", Some(old), 4_000),
        ("one that was cut", Some(service.restore(cut).await.header.window_id), 4_000),
    ];
    for (what, id, input_tokens) in cases {
        let is_own = id.is_none();
        let id = match id {
            Some(id) => id,
            None => service.window(SESSION).await.header.window_id,
        };
        let request = pb::PersistTranscriptRequest {
            usage: Some(usage(&id, input_tokens)),
            ..append(SESSION, &fresh_id(), &[model(OpenaiChat, "on")])
        };
        service.persist(request).await.unwrap();
        assert_eq!(factor(&service, SESSION).await, 1_000, "{what}");
        let counted = newest_usage(&service, SESSION).await.counted_tokens;
        assert_eq!(counted.is_some(), is_own, "{what}");
        service.append(SESSION, &[user(OpenaiChat, "go on")]).await;
    }
    // A turn that does not tell what the model was asked.
    let id = service.window(SESSION).await.header.window_id;
    let request = pb::PersistTranscriptRequest {
        usage: Some(usage(&id, 4_000)),
        ..append(SESSION, &fresh_id(), &[user(OpenaiChat, "and on")])
    };
    service.persist(request).await.unwrap();
    assert_eq!(factor(&service, SESSION).await, 1_000);
    // At a compaction the newest report counts that says something.
    compact_to(&service, 1_400).await;
    assert!((999..=1_000).contains(&factor(&service, SESSION).await));
}

async fn what_was_said_with_the_window_and_what_the_worker_adds_is_counted(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(pb::CompressionPath::Interactive)).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    for number in 0..10 {
        step(&service, SESSION, number, 1_000).await;
    }
    let request = pb::RestoreTranscriptRequest {
        session: SESSION.to_owned(),
        fixed_overhead_tokens: 2_000,
        ..Default::default()
    };
    let window = service.restore(request).await;
    let question = user(OpenaiChat, &"what then ".repeat(100));
    let asked = window.header.tokens_after + 200;
    let request = pb::PersistTranscriptRequest {
        usage: Some(usage(&window.header.window_id, asked + 2_000)),
        ..append(SESSION, &fresh_id(), &[question, model(OpenaiChat, "that")])
    };
    service.persist(request).await.unwrap();
    let counted = newest_usage(&service, SESSION).await.counted_tokens.unwrap();
    assert!(counted.abs_diff(asked) < 20, "{counted} of {asked}");
    assert_eq!(factor(&service, SESSION).await, 1_000);
}

async fn a_calibrated_window_fits_by_what_the_provider_counts(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(pb::CompressionPath::Interactive)).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    for number in 0..10 {
        step(&service, SESSION, number, 2_000).await;
    }
    let whole = service.window(SESSION).await.header;
    assert!((1_995..=2_000).contains(&whole.token_factor_permille), "{whole:?}");
    assert_eq!((whole.fits, whole.cut), (Some(true), None));
    // Counted, the window would fit with this reserve.
    let reserve = CONTEXT - whole.tokens_after - 100;
    let request = |reserve_tokens| pb::RestoreTranscriptRequest {
        session: SESSION.to_owned(),
        reserve_tokens: Some(reserve_tokens),
        ..Default::default()
    };
    let cut = service.restore(request(reserve)).await.header;
    assert!(cut.cut.unwrap().for_this_request);
    assert!(cut.tokens_after * 2 + reserve <= CONTEXT + 10 && cut.reserve_tokens == reserve, "{cut:?}");
    let none = pb::CompressionMode::None.into();
    let forced = pb::RestoreTranscriptRequest { compression: none, ..request(reserve) };
    assert_eq!(service.restore(forced).await.header.fits, Some(false));
    // A refusal speaks of the provider's tokens.
    let refusal = service.try_restore(request(CONTEXT - 100)).await.unwrap_err();
    let figure = |name: &str| refusal.metadata(name).parse::<u64>().unwrap();
    assert_eq!(figure("context_window_tokens"), CONTEXT);
    assert!((98..=100).contains(&figure("message_tokens")), "{refusal:?}");
    assert!(figure("last_step_tokens") > 200, "{refusal:?}");
    // So does the share that a persist tells of.
    let filled = service.append(SESSION, &[model(OpenaiChat, "done")]).await.window_fill.unwrap();
    let share = |tokens: u64| f64::from(u32::try_from(tokens).unwrap()) / 6_000.0;
    assert!((filled - 2.0 * share(whole.tokens_after)).abs() < 0.2, "{filled}");
}

async fn a_factor_is_of_one_model_and_stays_through_rewinds_forks_and_undos(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(pb::CompressionPath::Interactive)).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    for number in 0..12 {
        step(&service, SESSION, number, 1_400).await;
    }
    let done = compact_to(&service, 1_200).await;
    let before = factor(&service, SESSION).await;
    assert!((1_390..=1_400).contains(&before), "{before}");
    let undo = pb::UndoCompactionRequest { name: done.name };
    answer(service.client.transcripts.clone().undo_compaction(undo).await).unwrap();
    assert_eq!(factor(&service, SESSION).await, before);
    let fork = pb::ForkSessionRequest {
        name: SESSION.to_owned(),
        session_id: "f".to_owned(),
        request_id: fresh_id(),
        ..Default::default()
    };
    service.fork(fork).await.unwrap();
    assert_eq!(factor(&service, "sessions/f").await, before);
    service.rewind_to(SESSION, 9).await;
    assert_eq!(factor(&service, SESSION).await, before);
    let service = service.restart().await;
    assert_eq!(factor(&service, SESSION).await, before);
    // Another model counts otherwise, and what was reported of the first is no news.
    let profile =
        pb::ModelProfile { model: "gpt-4o".to_owned(), context_window_tokens: CONTEXT, ..Default::default() };
    let update = pb::Session { profile: Some(profile), ..service.get(SESSION).await };
    service.update(update, &["profile"]).await.unwrap();
    assert_eq!(factor(&service, SESSION).await, 1_000);
    compact_to(&service, 1_000).await;
    assert_eq!(factor(&service, SESSION).await, 1_000);
}
