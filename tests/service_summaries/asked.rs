//! Summaries that a caller asks for: made now, however full the window is.

use super::*;
use crate::service::Refusal;
use tonic::{Code, Request};
use turnkeep::clock::Stopwatch;

on_embedded_backend!(
    a_summary_is_made_under_all_thresholds_and_heeds_instructions,
    an_extract_takes_the_place_if_the_model_fails_and_the_next_request_asks_it_again,
    a_summary_that_cannot_be_asked_for_is_refused,
    turns_land_while_the_model_is_asked,
    the_callers_deadline_bounds_the_wait,
    one_summary_is_made_at_a_time,
    answers_that_are_refused_close_the_summarizer_to_nobody,
    a_provider_that_fails_is_left_alone_for_a_while,
);

const WIDE: u64 = 16_000;
const WIDE_USABLE: u64 = 12_000;

/// A step in which the model says something.
fn said(number: usize) -> Vec<String> {
    let id = format!("call_{number}");
    let call = json!({"role": "assistant", "content": format!("{number}: {}", "harbour ".repeat(150)),
        "tool_calls": [{"id": id, "type": "function", "function": {"name": "shell", "arguments": "{}"}}]});
    vec![call.to_string(), result(OpenaiChat, &id, "shell", "done")]
}

fn of(session: &str) -> pb::CompactTranscriptRequest {
    pb::CompactTranscriptRequest {
        session: session.to_owned(),
        strategy: pb::CompactionStrategy::Summarize.into(),
        ..Default::default()
    }
}

async fn summarize(
    service: &Service,
    request: impl tonic::IntoRequest<pb::CompactTranscriptRequest>,
) -> Result<Option<pb::Compaction>, Refusal> {
    let answered = service.client.transcripts.clone().compact_transcript(request).await;
    Ok(answer(answered)?.compaction)
}

/// A session of about a sixth of what is usable.
async fn begin(service: &Service, name: &str) -> String {
    service.create(name, session(OpenaiChat, WIDE)).await;
    let name = format!("sessions/{name}");
    let mut turn = vec![user(OpenaiChat, "Unload the ships.")];
    turn.extend((0..12).flat_map(said));
    service.append(&name, &turn).await;
    name
}

async fn a_summary_is_made_under_all_thresholds_and_heeds_instructions(backend: Backend) {
    let llm = Llm::start([summary("unload the ships"), summary("go on")]).await;
    let service = Service::start_with(&backend, with_models(&llm.url)).await;
    service.create("s", session(OpenaiChat, WIDE)).await;
    service.append(SESSION, &[user(OpenaiChat, "Unload the ships.")]).await;
    assert_eq!(summarize(&service, of(SESSION)).await, Ok(None), "nothing could leave");
    service.append(SESSION, &(0..12).flat_map(said).collect::<Vec<_>>()).await;
    let before = service.window(SESSION).await;
    assert!(before.header.tokens_after < WIDE_USABLE * 3 / 10, "{}", before.header.tokens_after);
    assert_eq!((list(&service).await, llm.received().len()), (vec![], 0));
    let asked = pb::CompactTranscriptRequest {
        instructions: "Mind the tides at Vlissingen.".to_owned(),
        expected_version: Some(before.header.version),
        ..of(SESSION)
    };
    let made = summarize(&service, asked).await.unwrap().unwrap();
    assert_eq!((made.kind(), made.cause.as_str()), (CompactionKind::Summarize, "summarized: asked for"));
    assert!(made.tokens_after < made.tokens_before / 2, "{made:?}");
    let requests = llm.received();
    assert_eq!(requests.len(), 1);
    let told = |number: usize| llm.received()[number].body["messages"][0]["content"].to_string();
    assert!(told(0).contains("Mind the tides at Vlissingen."), "{}", told(0));
    let window = service.window(SESSION).await;
    assert_accepted(OpenaiChat, &window);
    let text = window.payloads().concat();
    assert!(text.contains("unload the ships") && text.contains("11: harbour"), "{text}");
    assert!(!text.contains("\"0: harbour"), "{text}");
    // And again, without.
    service.append(SESSION, &(20..30).flat_map(said).collect::<Vec<_>>()).await;
    let again = summarize(&service, of(SESSION)).await.unwrap().unwrap();
    assert!(again.summary.contains("go on"), "{again:?}");
    assert!(!told(1).contains("Vlissingen"));
    assert_eq!(list(&service).await, [again, made]);
    service.stop().await;
}

async fn an_extract_takes_the_place_if_the_model_fails_and_the_next_request_asks_it_again(backend: Backend) {
    let wrong = Step::status(400, &json!({"error": {"message": "no such parameter"}}));
    let llm = Llm::start([wrong]).await;
    let service = Service::start_with(&backend, with_models(&llm.url)).await;
    let name = begin(&service, "s").await;
    let extract = summarize(&service, of(&name)).await.unwrap().unwrap();
    assert_eq!(extract.kind(), CompactionKind::Collapse);
    assert!(extract.cause.starts_with("extracted: ") && extract.tokens_after < extract.tokens_before);
    assert!(extract.summarizer.unwrap().failure.contains("no such parameter"));
    assert_accepted(OpenaiChat, &service.window(&name).await);
    // The session rests, but not if a summary is asked for.
    llm.script([summary("unload the rest")]);
    service.append(&name, &(20..30).flat_map(said).collect::<Vec<_>>()).await;
    let made = summarize(&service, of(&name)).await.unwrap().unwrap();
    assert_eq!((made.kind(), llm.received().len()), (CompactionKind::Summarize, 2));
    service.stop().await;
    // Where there is no model.
    let service = Service::start(&backend).await;
    let name = begin(&service, "without").await;
    let extract = summarize(&service, of(&name)).await.unwrap().unwrap();
    assert_eq!((extract.cause.as_str(), extract.summarizer), ("extracted: there is no summarizer", None));
    service.stop().await;
}

async fn a_summary_that_cannot_be_asked_for_is_refused(backend: Backend) {
    let llm = Llm::start([summary("too soon")]).await;
    let service = Service::start_with(&backend, with_models(&llm.url)).await;
    let name = begin(&service, "s").await;
    for (number, path) in [pb::CompressionPath::Batch, pb::CompressionPath::Automated].into_iter().enumerate()
    {
        let id = format!("other{number}");
        service.create(&id, pb::Session { path: path.into(), ..session(OpenaiChat, WIDE) }).await;
        let refusal = summarize(&service, of(&format!("sessions/{id}"))).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::InvalidArgument, "INVALID_FIELD"));
        assert_eq!(refusal.metadata("field"), "strategy");
    }
    let long = "x".repeat(8 * 1024 + 1);
    let truncate = pb::CompactionStrategy::Truncate.into();
    for (wrong, field) in [
        (pb::CompactTranscriptRequest { target_tokens: Some(1_000), ..of(&name) }, "target_tokens"),
        (pb::CompactTranscriptRequest { messages: 1, ..of(&name) }, "messages"),
        (pb::CompactTranscriptRequest { instructions: long, ..of(&name) }, "instructions"),
        (
            pb::CompactTranscriptRequest {
                strategy: truncate,
                instructions: "Mind it.".to_owned(),
                ..of(&name)
            },
            "instructions",
        ),
    ] {
        let refusal = summarize(&service, wrong).await.unwrap_err();
        assert_eq!(
            (refusal.kind(), refusal.metadata("field")),
            ((Code::InvalidArgument, "INVALID_FIELD"), field)
        );
    }
    let stale = pb::CompactTranscriptRequest { expected_version: Some(7), ..of(&name) };
    assert_eq!(summarize(&service, stale).await.unwrap_err().kind(), (Code::Aborted, "VERSION_MISMATCH"));
    assert_eq!((list(&service).await, llm.received().len()), (vec![], 0));
    service.stop().await;
}

/// One that takes a second or so.
fn slow(goal: &str) -> Step {
    let answer = openai_answer(&format!("## Goal\n{goal}"), "stop");
    Step::Drip(answer.to_string(), Duration::from_millis(4))
}

fn patient(url: &str) -> impl FnOnce(&mut Settings) + use<> {
    let with_models = with_models(url);
    move |settings| {
        with_models(settings);
        settings.summarizer.attempt_seconds = 30;
    }
}

async fn turns_land_while_the_model_is_asked(backend: Backend) {
    let llm = Llm::start([slow("unload the ships")]).await;
    let service = Service::start_with(&backend, patient(&llm.url)).await;
    let name = begin(&service, "s").await;
    let in_between = async |number: usize, before: usize| {
        while llm.received().len() < number {
            clock::sleep(Duration::from_millis(5)).await;
        }
        let reply = service.append(&name, &step(OpenaiChat, 1_000 + number, "in between")).await;
        assert_eq!(list(&service).await.len(), before, "the model is not done");
        reply.version
    };
    let assert_kept = async |made: Result<Option<pb::Compaction>, Refusal>, version: u64, number: usize| {
        let made = made.unwrap().unwrap();
        assert_eq!((made.kind(), made.version), (CompactionKind::Summarize, version));
        assert_eq!(llm.received().len(), number, "it was asked once");
        let window = service.window(&name).await;
        assert_accepted(OpenaiChat, &window);
        let text = window.payloads().concat();
        let kept = format!("{}: in between", 1_000 + number);
        assert!(text.contains("unload the ships") && text.contains(&kept), "{text}");
        made
    };
    let (made, version) = tokio::join!(summarize(&service, of(&name)), in_between(1, 0));
    let first = assert_kept(made, version, 1).await;
    // What a caller saw is what it was when it asked.
    service.append(&name, &(20..30).flat_map(said).collect::<Vec<_>>()).await;
    let seen = service.window(&name).await.header.version;
    let minding = |version| pb::CompactTranscriptRequest { expected_version: Some(version), ..of(&name) };
    let refused = summarize(&service, minding(version)).await.unwrap_err();
    assert_eq!((refused.kind(), llm.received().len()), ((Code::Aborted, "VERSION_MISMATCH"), 1));
    llm.script([slow("unload the ships")]);
    let (made, version) = tokio::join!(summarize(&service, minding(seen)), in_between(2, 1));
    assert_eq!(version, seen + 1);
    let second = assert_kept(made, version, 2).await;
    assert_eq!(list(&service).await, [second, first]);
    service.stop().await;
}

async fn the_callers_deadline_bounds_the_wait(backend: Backend) {
    let llm = Llm::start([Step::Hang]).await;
    let service = Service::start_with(&backend, |settings| {
        patient(&llm.url)(settings);
        settings.compaction.wait_seconds = 30;
    })
    .await;
    for number in 0..6 {
        let name = begin(&service, &format!("s{number}")).await;
        let mut request = Request::new(of(&name));
        request.set_timeout(Duration::from_secs(4));
        let started = Stopwatch::start();
        let extract = summarize(&service, request).await.unwrap().unwrap();
        assert!(started.elapsed() < Duration::from_secs(4));
        assert_eq!(extract.kind(), CompactionKind::Collapse);
        // That callers have little time is no failure of the provider's.
        assert_eq!(llm.received().len(), number + 1, "{extract:?}");
    }
    service.stop().await;
}

async fn one_summary_is_made_at_a_time(backend: Backend) {
    let llm = Llm::start([slow("the first"), slow("the second")]).await;
    let service = Service::start_with(&backend, patient(&llm.url)).await;
    let name = begin(&service, "s").await;
    let (one, two) = tokio::join!(summarize(&service, of(&name)), summarize(&service, of(&name)));
    let made = [one.unwrap(), two.unwrap()].into_iter().flatten().collect::<Vec<_>>();
    assert!(made.iter().any(|made| made.summary.contains("the first")), "{made:?}");
    assert_eq!((llm.most_at_once(), list(&service).await.len()), (1, made.len()));
    assert_accepted(OpenaiChat, &service.window(&name).await);
    service.stop().await;
}

async fn answers_that_are_refused_close_the_summarizer_to_nobody(backend: Backend) {
    let long = Step::ok(&openai_answer(&"word ".repeat(4_000), "stop"));
    let cut_off = Step::ok(&openai_answer("## Goal\nunload", "length"));
    let empty = Step::ok(&openai_answer("", "stop"));
    let wrong = Step::status(400, &json!({"error": {"message": "no such parameter"}}));
    let steps = [&long, &long, &cut_off, &cut_off, &empty, &empty, &wrong, &wrong].map(Clone::clone);
    let llm = Llm::start(steps.into_iter().chain([summary("unload the ships")])).await;
    let service = Service::start_with(&backend, with_models(&llm.url)).await;
    for number in 0..8 {
        let name = begin(&service, &format!("s{number}")).await;
        let extract = summarize(&service, of(&name)).await.unwrap().unwrap();
        assert_eq!((extract.kind(), llm.received().len()), (CompactionKind::Collapse, number + 1));
    }
    let name = begin(&service, "good").await;
    let made = summarize(&service, of(&name)).await.unwrap().unwrap();
    assert_eq!(made.kind(), CompactionKind::Summarize, "{made:?}");
    service.stop().await;
}

async fn a_provider_that_fails_is_left_alone_for_a_while(backend: Backend) {
    let failures = [
        Step::status(401, &json!({"error": {"message": "wrong key"}})),
        Step::status(429, &json!({"error": {"message": "slow down"}})),
        Step::status(500, &json!({})),
        Step::Reset,
    ];
    let llm = Llm::start([Step::Reset]).await;
    let service = Service::start_with(&backend, with_models(&llm.url)).await;
    let ask = async |number: usize| {
        let name = begin(&service, &format!("s{number}")).await;
        summarize(&service, of(&name)).await.unwrap().unwrap()
    };
    for number in 0..5 {
        llm.script([failures[number % failures.len()].clone()]);
        let extract = ask(number).await;
        assert!(!extract.summarizer.unwrap().failure.contains("too often"), "{number}");
    }
    let asked = llm.received().len();
    llm.script([summary("unload the ships")]);
    let extract = ask(5).await;
    assert_eq!(extract.cause, "extracted: the summarizer failed too often of late");
    assert_eq!(llm.received().len(), asked, "no model was asked");
    service.stop().await;
}
