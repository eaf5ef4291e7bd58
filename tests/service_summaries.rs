//! The interactive path: snips, summaries and what stands in for them.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/accepted.rs"]
mod accepted;
#[path = "support/backends.rs"]
mod backends;
#[path = "support/checker.rs"]
mod checker;
#[path = "support/llm.rs"]
mod llm;
#[path = "support/messages.rs"]
mod messages;
#[path = "support/service.rs"]
mod service;

#[path = "service_summaries/answers.rs"]
mod answers;
#[path = "service_summaries/asked.rs"]
mod asked;
#[path = "service_summaries/relief.rs"]
mod relief;
#[path = "service_summaries/replicas.rs"]
mod replicas;

use backends::{Backend, on_all_backends, on_embedded_backend};
use llm::{Llm, Step, openai_answer, with_model};
use messages::{STRUCTURED, call, model, result, user};
use pb::WireFormat::{AnthropicMessages, OpenaiChat};
use pb::{CompactionKind, ItemOrigin};
use serde_json::json;
use service::{Restored, SESSION, Service, answer, of_format};
use std::time::Duration;
use turnkeep::clock;
use turnkeep::rpc::pb;
use turnkeep::settings::Settings;

on_all_backends!(a_summary_is_made_beforehand_and_taken_when_it_is_needed);

on_embedded_backend!(
    old_tool_results_are_snipped_and_the_newest_stay,
    results_are_not_snipped_before_the_model_has_seen_them,
    stale_results_are_snipped_before_older_ones,
    an_extract_stands_in_for_a_summary_that_fails,
    a_session_without_a_summarizer_is_collapsed_in_every_format,
    what_the_user_forbids_is_pinned_when_it_leaves,
    turns_that_land_while_a_summary_is_made_are_kept,
    a_worker_summarizes_with_its_own_model,
);

const CONTEXT: u64 = 4_000;
/// Less the default reserve, a quarter.
const USABLE: u64 = 3_000;

fn session(format: pb::WireFormat, context: u64) -> pb::Session {
    let profile = pb::ModelProfile { context_window_tokens: context, ..Default::default() };
    pb::Session { path: pb::CompressionPath::Interactive.into(), profile: Some(profile), ..of_format(format) }
}

fn with_models(url: &str) -> impl FnOnce(&mut Settings) + use<> {
    let with_model = with_model(url, "m");
    move |settings| {
        with_model(settings);
        settings.summarizer.attempt_seconds = 1;
        settings.compaction.wait_seconds = 1;
    }
}

fn step(format: pb::WireFormat, number: usize, text: &str) -> Vec<String> {
    let id = format!("call_{number}");
    vec![call(format, &id, "shell"), result(format, &id, "shell", &format!("{number}: {text}"))]
}

fn short() -> String {
    "lorem ipsum dolor ".repeat(20)
}

fn assert_accepted(format: pb::WireFormat, window: &Restored) {
    accepted::assert_accepted(format, window);
    assert_eq!(window.header.fits, Some(true));
}

async fn list(service: &Service) -> Vec<pb::Compaction> {
    let request = pb::ListCompactionsRequest { parent: SESSION.to_owned(), ..Default::default() };
    answer(service.client.transcripts.clone().list_compactions(request).await).unwrap().compactions
}

fn kinds(compactions: &[pb::Compaction]) -> Vec<CompactionKind> {
    compactions.iter().map(pb::Compaction::kind).collect()
}

fn summary(goal: &str) -> Step {
    Step::ok(&openai_answer(&format!("## Goal\n{goal}"), "stop"))
}

/// Persists steps, and restores after each, until a compaction of that kind is there.
async fn work_until(
    service: &Service,
    format: pb::WireFormat,
    kind: CompactionKind,
    mut number: usize,
) -> usize {
    let known = list(service).await.len();
    loop {
        assert!(number < 400, "{:?}", list(service).await);
        service.append(SESSION, &step(format, number, &short())).await;
        number += 1;
        let window = service.window(SESSION).await;
        assert_accepted(format, &window);
        if list(service).await[..].iter().rev().skip(known).any(|compaction| compaction.kind() == kind) {
            return number;
        }
        // The background work has its turn.
        clock::sleep(Duration::from_millis(20)).await;
    }
}

async fn a_summary_is_made_beforehand_and_taken_when_it_is_needed(backend: Backend) {
    let llm = Llm::start([summary("count to a hundred"), summary("count on")]).await;
    let service = Service::start_with(&backend, with_models(&llm.url)).await;
    service.create("s", session(OpenaiChat, CONTEXT)).await;
    service.append(SESSION, &[user(OpenaiChat, "count to a hundred")]).await;
    let number = work_until(&service, OpenaiChat, CompactionKind::Summarize, 0).await;
    let first = list(&service).await.remove(0);
    assert!(first.tokens_before > USABLE * 6 / 10 && first.tokens_after < USABLE / 2, "{first:?}");
    assert!(first.summary.contains("count to a hundred") && first.ledger.is_empty(), "{first:?}");
    let by = first.summarizer.clone().unwrap();
    assert_eq!((by.model.as_str(), by.output_tokens, by.failure.as_str()), ("served-1", 20, ""));
    let window = service.window(SESSION).await;
    let at = window.items.iter().position(|item| item.origin() == ItemOrigin::Summary).unwrap();
    assert!(window.payloads()[at].contains("## Goal"));
    // The user's message comes after it, and nothing of it is to be done again.
    assert!(
        window.payloads()[at].contains("do not carry out anything in it again"),
        "{}",
        window.payloads()[at]
    );
    assert!(window.payloads()[at + 2].contains("count to a hundred"), "{:?}", window.payloads());
    // The next one has the first to update.
    let service = service.restart().await;
    work_until(&service, OpenaiChat, CompactionKind::Summarize, number).await;
    let requests = llm.received();
    assert_eq!(requests.len(), 2);
    let source = requests[1].body["messages"][1]["content"].as_str().unwrap();
    assert!(
        source.contains("previous summary") && source.contains("## Goal\ncount to a hundred"),
        "{source}"
    );
    let window = service.window(SESSION).await;
    let slots = window.items.iter().filter(|item| item.origin() == ItemOrigin::Summary).count();
    assert_eq!(slots, 1, "one slot, replaced and never stacked");
    assert!(window.payloads().concat().contains("count on"));
}

async fn old_tool_results_are_snipped_and_the_newest_stay(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, 20_000)).await;
    service.append(SESSION, &[user(OpenaiChat, "read")]).await;
    let lines: Vec<_> = (0..300).map(|line| format!("line {line} of the file\n")).collect();
    let long = lines.concat();
    for number in 0..4 {
        service.append(SESSION, &step(OpenaiChat, number, &long)).await;
    }
    let compactions = list(&service).await;
    assert_eq!(kinds(&compactions), [CompactionKind::Snip]);
    let snip = &compactions[0];
    assert_eq!((snip.omitted_entries, snip.first_kept_seq), (0, 0));
    assert!(!snip.snipped_seqs.is_empty() && !snip.snipped_seqs.contains(&9), "{:?}", snip.snipped_seqs);
    let window = service.window(SESSION).await;
    assert_accepted(OpenaiChat, &window);
    for item in &window.items {
        let is_snipped = snip.snipped_seqs.contains(&item.seqs[0]);
        assert_eq!(item.origin() == ItemOrigin::Snipped, is_snipped);
        let text = String::from_utf8_lossy(&item.payload);
        assert!(
            !is_snipped
                || text.contains("line 0 of") && text.contains("line 299 of") && text.contains("lines")
        );
    }
    assert!(service.read(SESSION).await.payloads()[2].contains("line 150 of"), "the log is whole");
}

/// One that has more than may be left alone, and many that have it together.
async fn results_are_not_snipped_before_the_model_has_seen_them(backend: Backend) {
    let service = Service::start(&backend).await;
    let lines: Vec<_> = (0..1_500).map(|line| format!("line {line} of the file, as it is now\n")).collect();
    let cases =
        STRUCTURED.map(|format| (format, 1)).into_iter().chain([(pb::WireFormat::OpenaiResponses, 12)]);
    for (number, (format, parallel)) in cases.enumerate() {
        service.create(&format!("s{number}"), session(format, 40_000)).await;
        let name = format!("sessions/s{number}");
        let said = lines.get(..lines.len() / parallel).unwrap().concat();
        let ids: Vec<_> = (0..parallel).map(|call| format!("c{call}")).collect();
        let mut turn = vec![user(format, "read")];
        turn.extend(ids.iter().map(|id| call(format, id, "read")));
        turn.extend(ids.iter().map(|id| result(format, id, "read", &said)));
        service.append(&name, &turn).await;
        let window = service.window(&name).await;
        assert_accepted(format, &window);
        let filled = window.header.tokens_after;
        assert!((15_001..27_000).contains(&filled), "{format:?}: {filled}");
        let whole = |window: &Restored| window.payloads().concat().matches("line 100 of").count();
        assert_eq!(whole(&window), parallel, "{format:?}");
        // Now it has.
        service.append(&name, &[model(format, &"I see. ".repeat(400))]).await;
        let window = service.window(&name).await;
        assert_accepted(format, &window);
        assert!(whole(&window) < parallel, "{format:?}");
        assert!(window.items.iter().any(|item| item.origin() == ItemOrigin::Snipped), "{format:?}");
    }
}

/// A look at a file of some 1,500 tokens.
fn look(number: usize, path: &str) -> Vec<String> {
    let id = format!("look_{number}");
    let call = json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": id, "type": "function",
         "function": {"name": "read_file", "arguments": json!({"path": path}).to_string()}},
    ]});
    let lines: Vec<_> = (0..132).map(|line| format!("line {line} of {path}, as of {number}\n")).collect();
    vec![call.to_string(), result(OpenaiChat, &id, "read_file", &lines.concat())]
}

async fn stale_results_are_snipped_before_older_ones(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, 20_000)).await;
    service.append(SESSION, &[user(OpenaiChat, "read")]).await;
    for (number, path) in ["old.rs", "a.rs", "b.rs", "a.rs", "b.rs"].into_iter().enumerate() {
        service.append(SESSION, &look(number, path)).await;
    }
    let snip = list(&service).await.remove(0);
    assert_eq!((snip.kind(), &snip.snipped_seqs), (CompactionKind::Snip, &snip.stale_seqs));
    assert_eq!(snip.stale_seqs, [5, 7], "{snip:?}");
    let window = service.window(SESSION).await;
    assert_accepted(OpenaiChat, &window);
    let shown = window.payloads();
    assert!(shown[4].contains("read again or changed in entry 8"), "{}", shown[4]);
    assert!(shown[2].contains("line 75 of old.rs"), "older, and the last that is known");
    // The oldest follow once there are no more stale ones.
    service.append(SESSION, &look(5, "c.rs")).await;
    service.append(SESSION, &look(6, "d.rs")).await;
    let snip = list(&service).await.remove(0);
    assert!(snip.snipped_seqs.contains(&3) && !snip.stale_seqs.contains(&3), "{snip:?}");
    let before = service.window(SESSION).await;
    let service = service.restart().await;
    assert_eq!(service.window(SESSION).await.payloads(), before.payloads());
}

async fn an_extract_stands_in_for_a_summary_that_fails(backend: Backend) {
    let long = Step::ok(&openai_answer(&"word ".repeat(2_000), "stop"));
    let failures: [(&str, Vec<Step>); 8] = [
        ("hangs", vec![Step::Hang; 40]),
        ("is limited", vec![Step::status(429, &json!({"error": {"message": "slow down"}})); 40]),
        ("is broken", vec![Step::status(500, &json!({})); 40]),
        ("resets", vec![Step::Reset; 40]),
        ("says nothing", vec![Step::ok(&openai_answer("", "stop")); 40]),
        ("is no JSON", vec![Step::Answer(200, vec![], "<html>".to_owned()); 40]),
        ("is too long", vec![long; 40]),
        ("drips", vec![Step::Drip("{".repeat(100), Duration::from_millis(200)); 40]),
    ];
    let mut kept = vec![backend];
    for (what, steps) in failures {
        let llm = Llm::start(steps).await;
        let service = Service::start_with(kept.last().unwrap(), with_models(&llm.url)).await;
        service.create("s", session(OpenaiChat, CONTEXT)).await;
        service.append(SESSION, &[user(OpenaiChat, "Count. Never skip 13.")]).await;
        work_until(&service, OpenaiChat, CompactionKind::Collapse, 0).await;
        let collapse = list(&service).await.remove(0);
        let by = collapse.summarizer.unwrap();
        assert!(!by.failure.is_empty(), "{what}");
        assert!(collapse.tokens_after < USABLE * 7 / 10, "{what}: {}", collapse.tokens_after);
        assert!(service.window(SESSION).await.payloads().concat().contains("Never skip 13."), "{what}");
        service.stop().await;
        kept.push(Backend::open(backends::Pair::SqliteLocal).await.unwrap());
    }
}

async fn a_session_without_a_summarizer_is_collapsed_in_every_format(backend: Backend) {
    let mut kept = vec![backend];
    for format in STRUCTURED {
        let service = Service::start(kept.last().unwrap()).await;
        service.create("s", session(format, CONTEXT)).await;
        service.append(SESSION, &[user(format, "Count. You must not skip 13.")]).await;
        let number = work_until(&service, format, CompactionKind::Collapse, 0).await;
        let collapse = list(&service).await.remove(0);
        assert_eq!(
            (collapse.cause.as_str(), collapse.summarizer),
            ("extracted: there is no summarizer", None)
        );
        service
            .append(
                SESSION,
                &[model(format, "done"), user(format, "We go with Postgres because of its licence.")],
            )
            .await;
        work_until(&service, format, CompactionKind::Collapse, number).await;
        let text = service.window(SESSION).await.payloads().concat();
        assert!(text.contains("You must not skip 13."), "{format:?}");
        service.stop().await;
        kept.push(Backend::open(backends::Pair::SqliteLocal).await.unwrap());
    }
}

async fn what_the_user_forbids_is_pinned_when_it_leaves(backend: Backend) {
    const RULE: &str = "Never touch the files in migrations/.";
    const DECISION: &str = "We go with Postgres because of its licence.";
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, CONTEXT)).await;
    service.append(SESSION, &[user(OpenaiChat, "Count.")]).await;
    let said = [
        user(OpenaiChat, RULE),
        model(OpenaiChat, "ok"),
        user(OpenaiChat, DECISION),
        model(OpenaiChat, "ok"),
        user(OpenaiChat, "Go on."),
    ];
    service.append(SESSION, &said).await;
    let number = work_until(&service, OpenaiChat, CompactionKind::Collapse, 0).await;
    let collapse = list(&service).await.remove(0);
    let pins: Vec<_> = collapse.pins.iter().map(|pin| (pin.text.as_str(), pin.seq)).collect();
    assert_eq!(pins, [(RULE, 2), (DECISION, 4)]);
    for tally in
        collapse.audit.iter().filter(|tally| ["constraint", "decision"].contains(&tally.subject.as_str()))
    {
        assert_eq!((tally.kept, tally.lost), (1, 0), "{tally:?}");
    }
    work_until(&service, OpenaiChat, CompactionKind::Collapse, number).await;
    let text = service.window(SESSION).await.payloads().concat();
    assert!(text.contains(RULE) && text.contains(DECISION), "{text}");
}

async fn turns_that_land_while_a_summary_is_made_are_kept(backend: Backend) {
    let slow = Step::Drip(openai_answer("## Goal\ncount", "stop").to_string(), Duration::from_millis(2));
    let llm = Llm::start([slow]).await;
    let service = Service::start_with(&backend, |settings| {
        with_models(&llm.url)(settings);
        settings.summarizer.attempt_seconds = 30;
        // However many turns land: none has to leave.
        settings.compaction.target_percent = settings.compaction.summarize_percent;
    })
    .await;
    service.create("s", session(OpenaiChat, CONTEXT)).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    let mut number = 0;
    while llm.received().is_empty() {
        service.append(SESSION, &step(OpenaiChat, number, &short())).await;
        number += 1;
        clock::sleep(Duration::from_millis(10)).await;
    }
    // A turn lands while the model writes.
    service.append(SESSION, &step(OpenaiChat, 1_000, "in between")).await;
    work_until(&service, OpenaiChat, CompactionKind::Summarize, number).await;
    let window = service.window(SESSION).await;
    assert!(window.payloads().concat().contains("in between"));
    assert_eq!(llm.received().len(), 1, "one at a time");
}

async fn a_worker_summarizes_with_its_own_model(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", session(OpenaiChat, CONTEXT)).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    let transcripts = || service.client.transcripts.clone();
    let plan = || pb::PlanCompactionRequest {
        session: SESSION.to_owned(),
        instructions: "Mind the numbers.".to_owned(),
        ..Default::default()
    };
    assert_eq!(
        answer(transcripts().plan_compaction(plan()).await).unwrap().plan,
        None,
        "nothing to summarize"
    );
    for number in 0..15 {
        service.append(SESSION, &step(OpenaiChat, number, &short())).await;
    }
    let planned = answer(transcripts().plan_compaction(plan()).await).unwrap().plan.unwrap();
    assert!(planned.system.contains("Mind the numbers.") && planned.source.contains("shell"), "{planned:?}");
    let commit = |summary: &str| pb::CommitCompactionRequest {
        session: SESSION.to_owned(),
        plan: Some(pb::CompactionPlan { system: String::new(), source: String::new(), ..planned.clone() }),
        summary: summary.to_owned(),
        usage: Some(pb::Usage { model: "gpt-4o".to_owned(), input_tokens: 1_000_000, ..Default::default() }),
    };
    let before = service.window(SESSION).await;
    for (summary, problem) in [(" ", "is empty"), (&"word ".repeat(1_000)[..], "at most")] {
        let refusal = answer(transcripts().commit_compaction(commit(summary)).await).unwrap_err();
        assert!(refusal.metadata("field") == "summary" && refusal.message.contains(problem), "{refusal:?}");
    }
    assert_eq!(service.window(SESSION).await, before);
    // What lands meanwhile is kept.
    service.append(SESSION, &step(OpenaiChat, 99, "in between")).await;
    let done =
        answer(transcripts().commit_compaction(commit("Counted to 13 in src/lib.rs:7.")).await).unwrap();
    assert_eq!((done.kind(), done.first_kept_seq), (CompactionKind::Summarize, planned.first_kept_seq));
    let by = done.summarizer.unwrap();
    assert_eq!((by.model.as_str(), by.unsupported), ("gpt-4o", vec!["src/lib.rs:7".to_owned()]));
    assert!(by.cost_picodollars.unwrap() > 0);
    let window = service.window(SESSION).await;
    assert_accepted(OpenaiChat, &window);
    let text = window.payloads().concat();
    assert!(text.contains("Counted to 13") && text.contains("in between"));
    let stale = answer(transcripts().commit_compaction(commit("Once more.")).await).unwrap_err();
    assert_eq!(stale.metadata("field"), "plan");
}
