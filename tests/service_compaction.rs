//! Compactions: windows that fit, that APIs accept, and that say what they leave out.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/accepted.rs"]
mod accepted;
#[path = "support/backends.rs"]
mod backends;
#[path = "support/checker.rs"]
mod checker;
#[path = "support/messages.rs"]
mod messages;
#[path = "support/service.rs"]
mod service;

use accepted::assert_accepted;
use backends::{Backend, on_all_backends, on_embedded_backend};
use messages::{STRUCTURED, call, model, result, user};
use pb::ItemOrigin;
use pb::WireFormat::OpenaiChat;
use service::{Refusal, Restored, SESSION, Service, answer, fresh_id, of_format, snapshot};
use tonic::Code;
use turnkeep::rpc::pb;

#[path = "service_compaction/one_request.rs"]
mod one_request;
#[path = "service_compaction/pins.rs"]
mod pins;
#[path = "service_compaction/relief.rs"]
mod relief;

on_all_backends!(
    a_batch_session_is_truncated_at_half_and_then_grows_again,
    a_truncated_window_is_the_same_from_cold,
    a_compaction_is_listed_and_undone,
    pins_are_in_every_window_after_forks_and_rewinds,
);

on_embedded_backend!(
    windows_of_every_format_fit_and_are_accepted,
    a_window_is_cut_for_one_request_alone,
    a_window_that_cannot_fit_says_what_takes_the_room,
    a_list_that_began_as_a_window_before_a_cut_is_still_taken,
    a_truncation_that_relieves_nothing_is_not_recorded,
    a_compaction_needs_to_know_the_context_window,
    wrong_requests_are_refused,
    a_sliding_window_keeps_the_newest_messages,
    a_compaction_tells_what_it_does_to_the_prompt_cache,
    a_rule_in_the_middle_of_a_long_first_message_is_pinned_when_its_ends_alone_are_shown,
    a_session_says_whether_statements_are_pinned_in_it,
);

const CONTEXT: u64 = 4_000;

fn of_path(format: pb::WireFormat, path: pb::CompressionPath, context: u64) -> pb::Session {
    let profile = pb::ModelProfile { context_window_tokens: context, ..Default::default() };
    pb::Session { path: path.into(), profile: Some(profile), ..of_format(format) }
}

/// A turn: the model calls a tool, and its result.
fn step(format: pb::WireFormat, number: usize) -> Vec<String> {
    let id = format!("call_{number}");
    let text = format!("{number}: {}", "lorem ipsum dolor ".repeat(20));
    vec![call(format, &id, "shell"), result(format, &id, "shell", &text)]
}

async fn compact(
    service: &Service,
    request: pb::CompactTranscriptRequest,
) -> Result<Option<pb::Compaction>, Refusal> {
    let answered = answer(service.client.transcripts.clone().compact_transcript(request).await)?;
    Ok(answered.compaction)
}

async fn truncate_to(service: &Service, tokens: u64) -> pb::Compaction {
    let request = pb::CompactTranscriptRequest {
        session: SESSION.to_owned(),
        target_tokens: Some(tokens),
        ..Default::default()
    };
    compact(service, request).await.unwrap().expect("something leaves")
}

async fn keep_last(service: &Service, messages: u64) -> pb::Compaction {
    let request = pb::CompactTranscriptRequest {
        session: SESSION.to_owned(),
        strategy: pb::CompactionStrategy::LastMessages.into(),
        messages,
        ..Default::default()
    };
    compact(service, request).await.unwrap().expect("something leaves")
}

async fn list(service: &Service) -> Vec<pb::Compaction> {
    let request = pb::ListCompactionsRequest { parent: SESSION.to_owned(), ..Default::default() };
    answer(service.client.transcripts.clone().list_compactions(request).await).unwrap().compactions
}

async fn put_pin(service: &Service, name: &str, text: &str) -> Result<pb::Pin, Refusal> {
    // A place that a caller names does not make it a pin that may go with a rewind.
    let pin = pb::Pin { name: name.to_owned(), text: text.to_owned(), seq: 9 };
    let request = pb::PutPinRequest { parent: SESSION.to_owned(), pin: Some(pin) };
    answer(service.client.memory.clone().put_pin(request).await)
}

/// A turn by a list that began as a window; the extended window is asked for.
fn from_window(list: &[String], window_id: &str) -> pb::PersistTranscriptRequest {
    let mut request = snapshot(SESSION, list);
    request.window_id = window_id.to_owned();
    if let Some(pb::persist_transcript_request::Input::Snapshot(snapshot)) = &mut request.input {
        snapshot.window_id = window_id.to_owned();
    }
    request
}

fn origins(window: &Restored) -> Vec<ItemOrigin> {
    window.items.iter().map(pb::WindowItem::origin).collect()
}

/// Persists steps and restores after each; returns how often the window was cut.
async fn work(service: &Service, format: pb::WireFormat, steps: std::ops::Range<usize>) -> usize {
    let mut held: Option<Restored> = None;
    let mut cuts = 0;
    for number in steps {
        service.append(SESSION, &step(format, number)).await;
        let window = match &held {
            None => service.window(SESSION).await,
            Some(held) => service.restore_from(SESSION, &held.header.window_id).await,
        };
        cuts += usize::from(window.full_reason() == Some(pb::FullReason::Revised));
        let items = window.applied_to(held.as_ref().map_or(&[], |held| &held.items[..]));
        let whole = Restored { items, ..window };
        assert!(whole.header.tokens_after <= CONTEXT / 2, "{:?}", whole.header);
        assert_accepted(format, &whole);
        assert_eq!(whole.items, service.window(SESSION).await.items);
        held = Some(whole);
    }
    cuts
}

async fn a_batch_session_is_truncated_at_half_and_then_grows_again(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Batch, CONTEXT)).await;
    service.append(SESSION, &[user(OpenaiChat, "count to a hundred")]).await;
    let cuts = work(&service, OpenaiChat, 0..60).await;
    // From the floor to the ceiling there is room for several steps.
    assert!((3..20).contains(&cuts), "{cuts} cuts");
    let window = service.window(SESSION).await;
    assert_eq!(origins(&window)[..2], [ItemOrigin::Notice, ItemOrigin::Log]);
    assert!(window.payloads()[1].contains("count to a hundred"), "{:?}", window.payloads());
    let cut = window.header.cut.unwrap();
    assert_eq!((cut.omitted_entries, cut.for_this_request), (cut.first_kept_seq - 2, false));
    // The log is whole.
    assert_eq!(service.read(SESSION).await.entries.len(), 121);
    assert_eq!(list(&service).await.len(), cuts);
    let whole = pb::RestoreTranscriptRequest {
        session: SESSION.to_owned(),
        compression: pb::CompressionMode::None.into(),
        ..Default::default()
    };
    assert_eq!(service.restore(whole).await.items.len(), 121);
    // Earlier versions have the windows that they had.
    assert_eq!(service.window_at(SESSION, 3).await.header.cut, None);
}

async fn a_truncated_window_is_the_same_from_cold(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Automated, CONTEXT)).await;
    service.append(SESSION, &[user(OpenaiChat, "count to a hundred")]).await;
    work(&service, OpenaiChat, 0..30).await;
    let window = service.window(SESSION).await;
    service.seal().await;
    let service = service.restart().await;
    let cold = service.window(SESSION).await;
    assert_eq!(cold.items, window.items);
    assert_eq!(cold.header.window_id, window.header.window_id);
    work(&service, OpenaiChat, 30..40).await;
}

async fn a_compaction_is_listed_and_undone(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Interactive, 100_000)).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    for number in 0..10 {
        service.append(SESSION, &step(OpenaiChat, number)).await;
    }
    let before = service.window(SESSION).await;
    let first = truncate_to(&service, 800).await;
    let second = truncate_to(&service, 400).await;
    assert_eq!(first.kind(), pb::CompactionKind::Truncate);
    assert!(
        first.tokens_after <= 800
            && second.tokens_after <= 400
            && second.first_kept_seq > first.first_kept_seq
    );
    assert_eq!((second.tokens_before, &second.kept_seqs[..]), (first.tokens_after, &[1][..]));
    assert_eq!(service.window(SESSION).await.header.tokens_after, second.tokens_after);
    assert_eq!(list(&service).await, [second.clone(), first.clone()]);
    let undo = |name: &str| pb::UndoCompactionRequest { name: name.to_owned() };
    let transcripts = || service.client.transcripts.clone();
    let undone = answer(transcripts().undo_compaction(undo(&second.name)).await).unwrap();
    assert_eq!((undone.kind(), &undone.undone), (pb::CompactionKind::Undo, &second.name));
    assert_eq!(service.window(SESSION).await.header.tokens_after, first.tokens_after);
    answer(transcripts().undo_compaction(undo(&first.name)).await).unwrap();
    assert_eq!(service.window(SESSION).await.items, before.items);
    let got = pb::GetCompactionRequest { name: first.name.clone() };
    assert_eq!(answer(transcripts().get_compaction(got).await), Ok(first));
    let none = answer(transcripts().undo_compaction(undo("sessions/s/compactions/77")).await);
    assert_eq!(none.unwrap_err().kind(), (Code::NotFound, "COMPACTION_NOT_FOUND"));
    // Pages of one.
    let mut request =
        pb::ListCompactionsRequest { parent: SESSION.to_owned(), page_size: 1, page_token: String::new() };
    let mut paged = vec![];
    loop {
        let page = answer(transcripts().list_compactions(request.clone()).await).unwrap();
        paged.extend(page.compactions);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(paged, list(&service).await);
}

async fn pins_are_in_every_window_after_forks_and_rewinds(backend: Backend) {
    const RULE: &str = "never touch migrations/ — \"not even\" once";
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Interactive, CONTEXT)).await;
    let system = r#"{"role":"system","content":"be brief"}"#.to_owned();
    service.append(SESSION, &[system, user(OpenaiChat, "count")]).await;
    for number in 0..4 {
        service.append(SESSION, &step(OpenaiChat, number)).await;
    }
    put_pin(&service, "rule", RULE).await.unwrap();
    let shows = |window: &Restored, times: usize| {
        let escaped = serde_json::to_string(RULE).unwrap();
        let text = window.payloads().concat();
        assert_eq!(text.matches(escaped.trim_matches('"')).count(), times, "{text}");
        assert_accepted(OpenaiChat, window);
    };
    let window = service.window(SESSION).await;
    assert_eq!(origins(&window)[..3], [ItemOrigin::Log, ItemOrigin::Pin, ItemOrigin::Log]);
    shows(&window, 1);
    truncate_to(&service, 300).await;
    shows(&service.window(SESSION).await, 1);
    for compaction in list(&service).await {
        let request = pb::UndoCompactionRequest { name: compaction.name };
        answer(service.client.transcripts.clone().undo_compaction(request).await).unwrap();
        shows(&service.window(SESSION).await, 1);
    }
    // The versions before the pin are shown as they were.
    shows(&service.window_at(SESSION, 2).await, 0);
    let fork = pb::ForkSessionRequest {
        name: SESSION.to_owned(),
        version: Some(2),
        session_id: "f".to_owned(),
        request_id: fresh_id(),
        ..Default::default()
    };
    service.fork(fork).await.unwrap();
    let of_fork = service.window("sessions/f").await;
    shows(&of_fork, 1);
    assert_eq!(origins(&of_fork)[..3], [ItemOrigin::Log, ItemOrigin::Pin, ItemOrigin::Log]);
    service.rewind_to(SESSION, 3).await;
    shows(&service.window(SESSION).await, 1);
    // A list that goes back is a rewind as well.
    let mut kept = service.read(SESSION).await.payloads();
    kept.truncate(2);
    kept.push(user(OpenaiChat, "count again"));
    let mut back = snapshot(SESSION, &kept);
    if let Some(pb::persist_transcript_request::Input::Snapshot(snapshot)) = &mut back.input {
        snapshot.allow_rewind = true;
    }
    let version = service.persist(back).await.unwrap().version;
    let window = service.window(SESSION).await;
    assert_eq!((window.header.version, origins(&window)[1]), (version, ItemOrigin::Pin));
    shows(&window, 1);
    service.rewind_to(SESSION, 3).await;
    let service = service.restart().await;
    shows(&service.window(SESSION).await, 1);
    shows(&service.window("sessions/f").await, 1);
    put_pin(&service, "rule", "be kind").await.unwrap();
    put_pin(&service, "other", "be brief").await.unwrap();
    shows(&service.window(SESSION).await, 0);
    let memory = || service.client.memory.clone();
    let list = pb::ListPinsRequest { parent: SESSION.to_owned() };
    let pins = answer(memory().list_pins(list).await).unwrap().pins;
    let texts: Vec<_> = pins.iter().map(|pin| (&pin.name[..], &pin.text[..])).collect();
    assert_eq!(texts, [("rule", "be kind"), ("other", "be brief")]);
    for name in ["rule", "other"] {
        let request = pb::DeletePinRequest { parent: SESSION.to_owned(), pin: name.to_owned() };
        answer(memory().delete_pin(request).await).unwrap();
    }
    assert!(!origins(&service.window(SESSION).await).contains(&ItemOrigin::Pin));
}

async fn windows_of_every_format_fit_and_are_accepted(backend: Backend) {
    let mut service = Service::start(&backend).await;
    let mut backends = vec![backend];
    for format in STRUCTURED {
        service.create("s", of_path(format, pb::CompressionPath::Batch, CONTEXT)).await;
        service.append(SESSION, &[user(format, "count to a hundred")]).await;
        assert!(work(&service, format, 0..40).await >= 2, "{format:?}");
        service.append(SESSION, &[model(format, "done"), user(format, "and again")]).await;
        work(&service, format, 40..50).await;
        service.stop().await;
        let fresh = Backend::open(backends::Pair::SqliteLocal).await.unwrap();
        service = Service::start(&fresh).await;
        backends.push(fresh);
    }
}

async fn a_window_is_cut_for_one_request_alone(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Interactive, CONTEXT)).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    for number in 0..15 {
        service.append(SESSION, &step(OpenaiChat, number)).await;
    }
    let whole = service.window(SESSION).await;
    assert_eq!(whole.header.cut, None);
    let request = |reserve, known: &str| pb::RestoreTranscriptRequest {
        session: SESSION.to_owned(),
        reserve_tokens: Some(reserve),
        known_window: known.to_owned(),
        ..Default::default()
    };
    let reserve = CONTEXT - whole.header.tokens_after / 2;
    let cut = service.restore(request(reserve, "")).await;
    assert_accepted(OpenaiChat, &cut);
    assert!(
        cut.header.tokens_after + reserve <= CONTEXT && cut.header.fits == Some(true),
        "{:?}",
        cut.header
    );
    assert!(cut.header.cut.unwrap().for_this_request);
    assert_eq!(service.restore(request(reserve, "")).await, cut, "the same request, the same bytes");
    // Nothing of it is recorded.
    assert_eq!((service.window(SESSION).await, list(&service).await), (whole.clone(), vec![]));
    // A worker that holds it gets the next window whole, and can persist what it holds.
    let next = service.restore_from(SESSION, &cut.header.window_id).await;
    assert_eq!(next.full_reason(), Some(pb::FullReason::ParametersChanged));
    let mut list = cut.payloads();
    list.push(model(OpenaiChat, "done"));
    let persisted = service.persist(from_window(&list, &cut.header.window_id)).await.unwrap();
    assert_eq!(persisted.first_seq, persisted.last_seq);
}

async fn a_window_that_cannot_fit_says_what_takes_the_room(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Batch, 1_000)).await;
    service.append(SESSION, &[user(OpenaiChat, &"word ".repeat(3_000))]).await;
    let request = pb::RestoreTranscriptRequest { session: SESSION.to_owned(), ..Default::default() };
    let refusal = service.try_restore(request.clone()).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::FailedPrecondition, "WINDOW_CANNOT_FIT"));
    assert_eq!(refusal.metadata("context_window_tokens"), "1000");
    let none = pb::CompressionMode::None.into();
    let whole = service.restore(pb::RestoreTranscriptRequest { compression: none, ..request.clone() }).await;
    assert_eq!(whole.header.fits, Some(false));
    // A result that is too large is shown by its ends.
    let long = "word\n".repeat(3_000);
    service.create("t", of_path(OpenaiChat, pb::CompressionPath::Batch, 1_500)).await;
    let turn = [user(OpenaiChat, "go"), call(OpenaiChat, "a", "sh"), result(OpenaiChat, "a", "sh", &long)];
    service.append("sessions/t", &turn).await;
    let window = service.window("sessions/t").await;
    assert_eq!(window.items.last().unwrap().origin(), ItemOrigin::Snipped);
    assert_accepted(OpenaiChat, &window);
    assert_eq!(window.header.fits, Some(true));
}

async fn a_list_that_began_as_a_window_before_a_cut_is_still_taken(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Interactive, CONTEXT)).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    for number in 0..6 {
        service.append(SESSION, &step(OpenaiChat, number)).await;
    }
    let held = service.window(SESSION).await;
    truncate_to(&service, 400).await;
    let mut list = held.payloads();
    list.push(model(OpenaiChat, "done"));
    let persisted = service.persist(from_window(&list, &held.header.window_id)).await.unwrap();
    assert_eq!((persisted.first_seq, persisted.last_seq), (14, 14));
    let window = service.restore_from(SESSION, &persisted.window_id).await;
    assert_eq!(window.full_reason(), Some(pb::FullReason::Revised));
    assert!(window.payloads().last().unwrap().contains("done"));
}

async fn a_truncation_that_relieves_nothing_is_not_recorded(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Batch, CONTEXT)).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    let long = |number: usize| {
        let id = format!("call_{number}");
        let text = "lorem ipsum dolor ".repeat(800);
        [call(OpenaiChat, &id, "shell"), result(OpenaiChat, &id, "shell", &text)]
    };
    service.append(SESSION, &long(0)).await;
    service.append(SESSION, &[user(OpenaiChat, "go on")]).await;
    service.append(SESSION, &long(1)).await;
    // The last step alone is over the ceiling; what it answers stays.
    let compactions = list(&service).await;
    let left: Vec<_> = compactions.iter().map(|one| (one.tokens_before, one.tokens_after)).collect();
    assert!(left.iter().all(|(before, after)| after < before), "{left:?}");
    service.append(SESSION, &[user(OpenaiChat, "go on")]).await;
    service.append(SESSION, &step(OpenaiChat, 2)).await;
    let more = list(&service).await;
    assert!(more.iter().all(|one| one.tokens_after < one.tokens_before), "{more:#?}");
}

async fn a_compaction_needs_to_know_the_context_window(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let long = "lorem ipsum ".repeat(100);
    service.append(SESSION, &[user(OpenaiChat, "a"), model(OpenaiChat, &long), user(OpenaiChat, "c")]).await;
    let request = pb::CompactTranscriptRequest { session: SESSION.to_owned(), ..Default::default() };
    let refusal = compact(&service, request.clone()).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::FailedPrecondition, "CONTEXT_WINDOW_UNKNOWN"));
    let to_one = pb::CompactTranscriptRequest { target_tokens: Some(1), ..request };
    let compaction = compact(&service, to_one.clone()).await.unwrap().unwrap();
    assert_eq!((compaction.first_kept_seq, compaction.omitted_entries), (3, 1));
    assert_eq!(compact(&service, to_one).await, Ok(None), "nothing more can leave");
}

async fn wrong_requests_are_refused(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Interactive, CONTEXT)).await;
    service.append(SESSION, &[user(OpenaiChat, "a"), model(OpenaiChat, "b")]).await;
    let request = || pb::CompactTranscriptRequest { session: SESSION.to_owned(), ..Default::default() };
    for (wrong, field) in [
        (pb::CompactTranscriptRequest { target_tokens: Some(0), ..request() }, "target_tokens"),
        (pb::CompactTranscriptRequest { strategy: 2, ..request() }, "messages"),
        (pb::CompactTranscriptRequest { strategy: 99, ..request() }, "strategy"),
    ] {
        let refusal = compact(&service, wrong).await.unwrap_err();
        assert_eq!(
            (refusal.kind(), refusal.metadata("field")),
            ((Code::InvalidArgument, "INVALID_FIELD"), field)
        );
    }
    let stale =
        pb::CompactTranscriptRequest { expected_version: Some(7), target_tokens: Some(1), ..request() };
    assert_eq!(compact(&service, stale).await.unwrap_err().kind(), (Code::Aborted, "VERSION_MISMATCH"));
    for (name, text, field) in [
        ("", "a", "pin.name"),
        ("a/b", "a", "pin.name"),
        ("a", " ", "pin.text"),
        ("a", &"word ".repeat(1_000), "pin.text"),
        ("a", &"x".repeat(9_000), "pin.text"),
    ] {
        let refusal = put_pin(&service, name, text).await.unwrap_err();
        assert_eq!(
            (refusal.kind(), refusal.metadata("field")),
            ((Code::InvalidArgument, "INVALID_FIELD"), field)
        );
    }
}

async fn a_sliding_window_keeps_the_newest_messages(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    for number in 0..6 {
        service.append(SESSION, &step(OpenaiChat, number)).await;
    }
    let compaction = keep_last(&service, 5).await;
    assert_eq!((compaction.first_kept_seq, compaction.omitted_entries), (10, 8));
    assert_accepted(OpenaiChat, &service.window(SESSION).await);
}

async fn a_compaction_tells_what_it_does_to_the_prompt_cache(backend: Backend) {
    let service = Service::start(&backend).await;
    for (id, name) in [("s", "gpt-4o"), ("t", "unheard-of")] {
        let mut session = of_path(OpenaiChat, pb::CompressionPath::Batch, CONTEXT);
        session.profile.as_mut().unwrap().model = name.to_owned();
        service.create(id, session).await;
        let session = format!("sessions/{id}");
        let rules = r#"{"role":"system","content":"You count."}"#.to_owned();
        service.append(&session, &[rules, user(OpenaiChat, "count to a hundred")]).await;
        for number in 0..8 {
            service.append(&session, &step(OpenaiChat, number)).await;
        }
    }
    let before = service.window(SESSION).await;
    let compaction = truncate_to(&service, 700).await;
    let after = service.window(SESSION).await;
    let same = before.payloads().iter().zip(after.payloads()).take_while(|(one, two)| **one == *two).count();
    assert_eq!(same, 1, "the system message");
    let kept_tokens = after.items[0].tokens;
    let resent_tokens = after.header.tokens_after - kept_tokens;
    // A million tokens are 2.50 dollars, or 1.25 from the cache.
    let cost_picodollars = Some(resent_tokens * 1_250_000);
    assert_eq!(compaction.cache, Some(pb::CacheBreak { kept_tokens, resent_tokens, cost_picodollars }));
    // What is taken back has to be sent again as well.
    let undo = pb::UndoCompactionRequest { name: compaction.name };
    let undone = answer(service.client.transcripts.clone().undo_compaction(undo).await).unwrap();
    assert_eq!(undone.cache.unwrap().resent_tokens, before.header.tokens_after - kept_tokens);
    // Without prices there are the tokens.
    let request = pb::CompactTranscriptRequest {
        session: "sessions/t".to_owned(),
        target_tokens: Some(700),
        ..Default::default()
    };
    let unpriced = compact(&service, request).await.unwrap().unwrap().cache.unwrap();
    assert_eq!((unpriced.resent_tokens, unpriced.cost_picodollars), (resent_tokens, None));
}

async fn a_rule_in_the_middle_of_a_long_first_message_is_pinned_when_its_ends_alone_are_shown(
    backend: Backend,
) {
    const RULE: &str = "You must never write to the folder migrations/legacy.";
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Batch, 20_000)).await;
    let filler = "The report is about the harbour and its ships. ".repeat(150);
    let first = format!("{filler}{RULE} {filler}");
    service.append(SESSION, &[user(OpenaiChat, &first)]).await;
    let shows = async |text: &str| service.window(SESSION).await.payloads().concat().contains(text);
    for number in 0..100 {
        service.append(SESSION, &step(OpenaiChat, number)).await;
    }
    // It is the last message as well, and therefore whole.
    let cuts = list(&service).await.len();
    assert!(cuts > 0 && shows(&first).await);
    service.append(SESSION, &[user(OpenaiChat, "go on")]).await;
    for number in 100..200 {
        service.append(SESSION, &step(OpenaiChat, number)).await;
        assert!(shows(RULE).await, "after step {number}");
    }
    assert!(list(&service).await.len() > cuts && !shows(&first).await);
}

async fn a_session_says_whether_statements_are_pinned_in_it(backend: Backend) {
    const RULE: &str = "Never touch the migrations folder.";
    for by_default in [true, false] {
        let service = Service::start_with(&backend, |settings| {
            settings.compaction.pin_statements = by_default;
        })
        .await;
        for (own, id) in [(None, "none"), (Some(true), "yes"), (Some(false), "no")] {
            let (id, name) = (format!("{by_default}-{id}"), format!("sessions/{by_default}-{id}"));
            let of_batch = of_path(OpenaiChat, pb::CompressionPath::Batch, CONTEXT);
            service.create(&id, pb::Session { pin_statements: own, ..of_batch }).await;
            service.append(&name, &[user(OpenaiChat, "count")]).await;
            // The last message of the user's does not leave.
            let said = |text| [user(OpenaiChat, text), model(OpenaiChat, "yes"), user(OpenaiChat, "go on")];
            service.append(&name, &said(RULE)).await;
            let cut_with_pins = async || {
                for number in 0..30 {
                    service.append(&name, &step(OpenaiChat, number)).await;
                }
                let request = pb::ListPinsRequest { parent: name.clone() };
                let pins = answer(service.client.memory.clone().list_pins(request).await).unwrap().pins;
                !pins.is_empty()
            };
            assert_eq!(cut_with_pins().await, own.unwrap_or(by_default), "{id}");
            // It can be changed, and holds for what leaves from then on.
            let changed = !own.unwrap_or(by_default);
            let session =
                pb::Session { name: name.clone(), pin_statements: Some(changed), ..Default::default() };
            service.update(session, &["pin_statements"]).await.unwrap();
            service.append(&name, &said("You must always write to docs/ in English.")).await;
            cut_with_pins().await;
            let request = pb::ListPinsRequest { parent: name.clone() };
            let pins = answer(service.client.memory.clone().list_pins(request).await).unwrap().pins;
            assert_eq!(pins.iter().any(|pin| pin.text.contains("English")), changed, "{id}");
        }
        service.stop().await;
    }
}
