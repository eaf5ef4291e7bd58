//! Windows to which summaries bring no relief: no model is asked for one after the other.

use super::*;
use crate::service::Refusal;

on_all_backends!(a_window_that_a_long_message_fills_is_not_summarized_turn_after_turn);

on_embedded_backend!(
    a_window_beside_a_large_preamble_is_not_summarized_turn_after_turn,
    a_stalled_session_is_summarized_again_once_there_is_relief_to_be_had,
    a_compaction_that_is_asked_for_says_what_keeps_the_window_over_its_target,
    a_window_has_at_most_the_target_after_a_summary_and_what_fits_into_it_stays,
);

const WIDE: u64 = 16_000;
const WIDE_USABLE: u64 = 12_000;
const TURNS: usize = 10;

/// Only the newest step stays, if need be.
fn thrifty(url: &str) -> impl FnOnce(&mut Settings) + use<> {
    let with_models = with_models(url);
    move |settings| {
        with_models(settings);
        settings.compaction.tail_percent = 1;
    }
}

/// So many tokens, about.
fn words(tokens: usize) -> String {
    "harbour ".repeat(tokens)
}

/// A step in which the model says something and calls a tool.
fn step_with(number: usize, text: &str) -> [String; 2] {
    let id = format!("call_{number}");
    let said = json!({"role": "assistant", "content": text, "tool_calls": [
        {"id": id, "type": "function", "function": {"name": "shell", "arguments": "{}"}},
    ]});
    [said.to_string(), result(OpenaiChat, &id, "shell", &format!("{number} is done"))]
}

/// A step of about 4 % of what is usable.
async fn turn(service: &Service, number: usize) -> (pb::PersistTranscriptResponse, Restored) {
    let reply = service.append(SESSION, &step_with(number, &words(440))).await;
    let window = service.window(SESSION).await;
    assert_accepted(OpenaiChat, &window);
    (reply, window)
}

fn filled(window: &Restored) -> u64 {
    let preamble = window.header.preamble.as_ref().map_or(0, |preamble| preamble.tokens);
    window.header.tokens_after + preamble
}

/// Turns of a session that is over 90 % whatever leaves.
async fn work_under_pressure(backend: &Backend, session: pb::Session, message: String) -> Service {
    let llm = Llm::start([summary("unload the ships")]).await;
    let service = Service::start_with(backend, thrifty(&llm.url)).await;
    service.create("s", session).await;
    service.append(SESSION, &[user(OpenaiChat, &message)]).await;
    let mut service = Some(service);
    let mut stalls = Vec::new();
    for number in 0..TURNS {
        let (reply, window) = turn(service.as_ref().unwrap(), number).await;
        assert!(filled(&window) > WIDE_USABLE * 9 / 10, "{}", filled(&window));
        // What a turn is told is of the window before it is relieved.
        stalls.push((reply.stall.is_some(), window.header.stall.is_some()));
        // A process that was just started knows as much.
        service = Some(service.unwrap().restart().await);
    }
    let service = service.unwrap();
    // The first turn leaves too little to be summarized.
    let told: Vec<_> = (0..TURNS).map(|number| (number > 2, number > 1)).collect();
    assert_eq!(stalls, told);
    assert_eq!(llm.received().len(), 2, "{:?}", list(&service).await);
    let compactions = list(&service).await;
    let (summaries, extracts): (Vec<_>, Vec<_>) =
        compactions.iter().rev().partition(|compaction| compaction.kind() == CompactionKind::Summarize);
    assert_eq!(summaries.len(), 2);
    // The window still fits, by what code does, and not in each turn.
    assert!((2..=4).contains(&extracts.len()), "{extracts:#?}");
    assert!(extracts.iter().all(|extract| extract.cause == "extracted: summaries brought no relief"));
    assert!(extracts.iter().all(|extract| extract.summarizer.is_none()), "no model was asked");
    let in_a_row = summaries.iter().chain(&extracts).map(|made| made.without_relief as usize);
    assert_eq!(in_a_row.collect::<Vec<_>>(), (1..=compactions.len()).collect::<Vec<_>>());
    service
}

async fn a_window_that_a_long_message_fills_is_not_summarized_turn_after_turn(backend: Backend) {
    let message = format!("Unload the ships. {}", words(10_400));
    let service = Box::pin(work_under_pressure(&backend, session(OpenaiChat, WIDE), message)).await;
    let newest = list(&service).await.remove(0);
    let stall = service.window(SESSION).await.header.stall.unwrap();
    assert_eq!(u64::from(stall.compactions), list(&service).await.len() as u64);
    assert_eq!((stall.limit_tokens, stall.preamble_tokens), (WIDE_USABLE * 6 / 10, 0));
    assert_eq!(stall.window_tokens, newest.tokens_after);
    assert!((440..500).contains(&stall.last_step_tokens), "{stall:?}");
    // A fork has it from there, and a rewind to before takes it back.
    let fork = pb::ForkSessionRequest {
        name: SESSION.to_owned(),
        session_id: "fork".to_owned(),
        request_id: "fork".to_owned(),
        ..Default::default()
    };
    service.fork(fork).await.unwrap();
    assert_eq!(service.window("sessions/fork").await.header.stall, Some(stall));
    service.rewind_to(SESSION, 3).await;
    assert_eq!(service.window(SESSION).await.header.stall, None);
    service.stop().await;
}

async fn a_window_beside_a_large_preamble_is_not_summarized_turn_after_turn(backend: Backend) {
    let preamble = pb::Preamble {
        payload: json!([{"role": "system", "content": words(10_400)}]).to_string().into(),
        ..Default::default()
    };
    let session = pb::Session { preamble: Some(preamble), ..session(OpenaiChat, WIDE) };
    let service = Box::pin(work_under_pressure(&backend, session, "Unload the ships.".to_owned())).await;
    let stall = service.window(SESSION).await.header.stall.unwrap();
    assert!(stall.preamble_tokens > 10_400 && stall.window_tokens < 1_200, "{stall:?}");
    service.stop().await;
}

async fn a_stalled_session_is_summarized_again_once_there_is_relief_to_be_had(backend: Backend) {
    let llm = Llm::start([summary("unload the ships")]).await;
    let service = Service::start_with(&backend, thrifty(&llm.url)).await;
    service.create("s", session(OpenaiChat, WIDE)).await;
    service.append(SESSION, &[user(OpenaiChat, &words(10_400))]).await;
    for number in 0..4 {
        turn(&service, number).await;
    }
    let (reply, window) = turn(&service, 4).await;
    assert!(reply.stall.is_some() && window.header.stall.is_some());
    assert_eq!(llm.received().len(), 2);
    // A model with more room: what the compactions left is little to it.
    let wider = |context| session(OpenaiChat, context);
    let other = pb::Session { name: SESSION.to_owned(), ..wider(2 * WIDE) };
    service.update(other, &["profile"]).await.unwrap();
    assert_eq!(service.window(SESSION).await.header.stall, None);
    let other = pb::Session { name: SESSION.to_owned(), ..wider(WIDE) };
    service.update(other, &["profile"]).await.unwrap();
    assert!(service.window(SESSION).await.header.stall.is_some());
    assert_eq!(llm.received().len(), 2);
    // The user says something else: what took the room can leave.
    let reply = service.append(SESSION, &[user(OpenaiChat, &words(200))]).await;
    assert!(reply.stall.is_some(), "not yet");
    for number in 5..8 {
        turn(&service, number).await;
    }
    let window = service.window(SESSION).await;
    assert_eq!(window.header.stall, None);
    assert!(filled(&window) < WIDE_USABLE * 6 / 10, "{}", filled(&window));
    let newest = list(&service).await.remove(0);
    assert_eq!(newest.without_relief, 0, "{newest:?}");
    service.stop().await;
}

async fn compact(service: &Service, tokens: u64) -> Result<pb::CompactTranscriptResponse, Refusal> {
    let request = pb::CompactTranscriptRequest {
        session: SESSION.to_owned(),
        target_tokens: Some(tokens),
        ..Default::default()
    };
    answer(service.client.transcripts.clone().compact_transcript(request).await)
}

async fn a_compaction_that_is_asked_for_says_what_keeps_the_window_over_its_target(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, WIDE)).await;
    service.append(SESSION, &[user(OpenaiChat, &words(3_000))]).await;
    for number in 0..4 {
        turn(&service, number).await;
    }
    let nothing = compact(&service, 8_000).await.unwrap();
    assert_eq!((nothing.compaction, nothing.stall), (None, None), "nothing has to leave");
    let first = compact(&service, 2_000).await.unwrap();
    let made = first.compaction.unwrap();
    assert!(made.tokens_after > 3_000, "{made:?}");
    let told = pb::CompactionStall {
        compactions: 0,
        limit_tokens: 2_000,
        window_tokens: made.tokens_after,
        last_step_tokens: first.stall.unwrap().last_step_tokens,
        preamble_tokens: 0,
    };
    assert!((440..500).contains(&told.last_step_tokens), "{told:?}");
    assert_eq!(first.stall, Some(told));
    for _ in 0..2 {
        let again = compact(&service, 2_000).await.unwrap();
        assert_eq!((again.compaction, again.stall), (None, Some(told)));
    }
    let reached = compact(&service, 5_000).await.unwrap();
    assert_eq!((reached.compaction, reached.stall), (None, None));
    service.stop().await;
}

async fn a_window_has_at_most_the_target_after_a_summary_and_what_fits_into_it_stays(backend: Backend) {
    let mut kept = Vec::new();
    let targets = [20, 40, 60];
    for (target, name) in targets.into_iter().zip(["low", "middle", "high"]) {
        let llm = Llm::start([summary("unload the ships")]).await;
        let service = Service::start_with(&backend, |settings| {
            with_models(&llm.url)(settings);
            settings.compaction.target_percent = target;
            // More than any of these lets stay.
            settings.compaction.tail_percent = 80;
        })
        .await;
        let session_name = format!("sessions/{name}");
        service.create(name, session(OpenaiChat, WIDE)).await;
        let mut said = vec![user(OpenaiChat, "Unload the ships.")];
        said.extend((0..26).flat_map(|number| step_with(number, &words(440))));
        service.append(&session_name, &said).await;
        let window = service.window(&session_name).await;
        assert_accepted(OpenaiChat, &window);
        assert_eq!(llm.received().len(), 1);
        let percent = filled(&window) * 100 / WIDE_USABLE;
        // A step is 4 %.
        assert!((target - 4..=target).contains(&percent), "{percent} % for {target}");
        kept.push(window.payloads().iter().filter(|item| item.contains("harbour")).count());
        assert_eq!(window.header.stall, None);
        service.stop().await;
    }
    assert!(kept.is_sorted() && kept[0] * 2 < kept[1] && kept[0] * 3 < kept[2], "{kept:?}");
}
