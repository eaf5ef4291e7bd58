//! Windows that a compaction could not relieve, or relieved of the wrong things.

use super::*;
use pb::WireFormat::AnthropicMessages;
use turnkeep::store::faulty::Fault;

on_embedded_backend!(
    system_messages_that_come_with_every_turn_do_not_pile_up,
    a_long_first_message_leaves_room_for_more_than_the_last_step,
    an_undone_compaction_is_undone_beside_pins_and_notes,
    many_short_results_are_not_snipped,
    a_plan_from_before_a_rewind_is_refused,
    a_summary_says_what_it_is_of_and_is_not_lost_to_an_extract,
    a_look_at_the_whole_log_changes_no_window,
    a_window_in_memory_is_served_while_the_object_store_is_down,
    an_undo_that_leaves_no_room_for_the_pins_since_is_refused,
    calls_without_results_are_one_step_that_may_not_fit,
);

fn system(text: &str) -> String {
    serde_json::json!({"role": "system", "content": text}).to_string()
}

/// An interactive session without a summarizer.
async fn interactive(backend: &Backend, format: pb::WireFormat, context: u64) -> Service {
    let service = Service::start(backend).await;
    service.create("s", of_path(format, pb::CompressionPath::Interactive, context)).await;
    service
}

async fn system_messages_that_come_with_every_turn_do_not_pile_up(backend: Backend) {
    for path in [pb::CompressionPath::Batch, pb::CompressionPath::Interactive] {
        let service = Service::start(&backend).await;
        let name = format!("s{}", path as i32);
        service.create(&name, of_path(OpenaiChat, path, 8_000)).await;
        let session = format!("sessions/{name}");
        service.append(&session, &[system("You are a careful agent."), user(OpenaiChat, "count")]).await;
        for number in 0..160 {
            let reminder = format!("Reminder {number}: {}", "keep to the plan of today, ".repeat(12));
            let mut turn = vec![system(&reminder)];
            turn.extend(step(OpenaiChat, number));
            service.append(&session, &turn).await;
            let window = service.window(&session).await;
            assert_eq!(window.header.fits, Some(true));
            assert_accepted(OpenaiChat, &window);
            let shown = window.payloads().concat();
            assert!(shown.contains("You are a careful agent.") && shown.contains(&reminder), "{number}");
            let steps = window.payloads().iter().filter(|item| item.contains("tool_calls")).count();
            assert!(number < 10 || steps >= 5, "{steps} steps after {number}");
        }
    }
}

async fn a_long_first_message_leaves_room_for_more_than_the_last_step(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Batch, 16_000)).await;
    // As the last message as well, it stays whole.
    let long = "The report is about the harbour and its ships. ".repeat(900);
    service.append(SESSION, &[user(OpenaiChat, &long)]).await;
    for number in 0..80 {
        service.append(SESSION, &step(OpenaiChat, number)).await;
        let window = service.window(SESSION).await;
        assert_eq!(window.header.fits, Some(true));
        let shown = window.payloads().iter().filter(|item| item.contains("lorem")).count();
        assert!(shown > number.min(8), "{shown} steps after {number}");
    }
    let cuts = list(&service).await.len();
    assert!((1..30).contains(&cuts), "{cuts} cuts");
}

async fn an_undone_compaction_is_undone_beside_pins_and_notes(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Batch, 50_000)).await;
    let said = [
        system("be brief"),
        user(OpenaiChat, "one"),
        model(OpenaiChat, "1"),
        user(OpenaiChat, "two"),
        model(OpenaiChat, "2"),
        system("mind the gap"),
        user(OpenaiChat, "three"),
        model(OpenaiChat, "3"),
    ];
    service.append(SESSION, &said).await;
    let number = keep_last(&service, 3).await;
    assert!(service.window(SESSION).await.header.cut.is_some_and(|cut| cut.omitted_entries > 0));
    put_pin(&service, "rule", "count in words").await.unwrap();
    let undo = pb::UndoCompactionRequest { name: number.name };
    answer(service.client.transcripts.clone().undo_compaction(undo).await).unwrap();
    let window = service.window(SESSION).await;
    let shown = window.payloads();
    assert!(shown[0].contains("be brief") && shown[1].contains("count in words"), "{shown:#?}");
    let shown: Vec<_> = window.items.iter().flat_map(|item| item.seqs.clone()).collect();
    assert_eq!(shown, [1, 2, 3, 4, 5, 6, 7, 8]);
}

async fn many_short_results_are_not_snipped(backend: Backend) {
    let service = interactive(&backend, AnthropicMessages, 40_000).await;
    service.append(SESSION, &[user(AnthropicMessages, "count")]).await;
    let text = "lorem ipsum dolor ".repeat(66);
    for turn in 0..8 {
        let ids: Vec<_> = (0..8).map(|part| format!("c{turn}_{part}")).collect();
        let calls: Vec<_> = ids
            .iter()
            .map(|id| serde_json::json!({"type": "tool_use", "id": id, "name": "shell", "input": {}}))
            .collect();
        let results: Vec<_> = ids
            .iter()
            .map(|id| serde_json::json!({"type": "tool_result", "tool_use_id": id, "content": text}))
            .collect();
        let entries = [
            serde_json::json!({"role": "assistant", "content": calls}),
            serde_json::json!({"role": "user", "content": results}),
        ];
        service.append(SESSION, &entries.map(|entry| entry.to_string())).await;
    }
    let filled = service.window(SESSION).await.header.tokens_after;
    assert!(filled > 16_000, "{filled}");
    assert_eq!(list(&service).await, []);
}

async fn plan(service: &Service) -> pb::CompactionPlan {
    let request = pb::PlanCompactionRequest { session: SESSION.to_owned(), ..Default::default() };
    answer(service.client.transcripts.clone().plan_compaction(request).await).unwrap().plan.unwrap()
}

async fn commit(
    service: &Service,
    plan: pb::CompactionPlan,
    summary: &str,
) -> Result<pb::Compaction, Refusal> {
    let request = pb::CommitCompactionRequest {
        session: SESSION.to_owned(),
        plan: Some(plan),
        summary: summary.to_owned(),
        ..Default::default()
    };
    answer(service.client.transcripts.clone().commit_compaction(request).await)
}

async fn a_plan_from_before_a_rewind_is_refused(backend: Backend) {
    let service = interactive(&backend, OpenaiChat, 16_000).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    for number in 0..60 {
        service.append(SESSION, &step(OpenaiChat, number)).await;
    }
    let old = plan(&service).await;
    service.rewind_to(SESSION, 2).await;
    for number in 100..160 {
        service.append(SESSION, &step(OpenaiChat, number)).await;
    }
    let refusal = commit(&service, old, "what was counted before").await.unwrap_err();
    assert_eq!((refusal.kind().1, refusal.metadata("field")), ("INVALID_FIELD", "plan"));
    let new = plan(&service).await;
    commit(&service, new, "what is counted now").await.unwrap();
}

async fn a_summary_says_what_it_is_of_and_is_not_lost_to_an_extract(backend: Backend) {
    const DECIDED: &str = "DECIDED: keep the LR tables because of the licence.";
    let service = interactive(&backend, OpenaiChat, 16_000).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    let mut number = 0;
    let mut work = async |until: u64| {
        while service.window(SESSION).await.header.tokens_after < until {
            service.append(SESSION, &step(OpenaiChat, number)).await;
            number += 1;
        }
    };
    work(8_000).await;
    let planned = plan(&service).await;
    let last = planned.first_kept_seq - 1;
    service.append(SESSION, &[user(OpenaiChat, "Remember the remark about the harbour.")]).await;
    service.append(SESSION, &[model(OpenaiChat, "yes"), user(OpenaiChat, "go on")]).await;
    // More is said meanwhile than the window has room for.
    work(10_500).await;
    commit(&service, planned, DECIDED).await.unwrap();
    let episodes = pb::ListEpisodesRequest { parent: SESSION.to_owned(), ..Default::default() };
    let episodes = answer(service.client.memory.clone().list_episodes(episodes).await).unwrap().episodes;
    assert_eq!((episodes[0].first_seq, episodes[0].last_seq), (1, last));
    // What left beyond that is in the next source.
    work(8_000).await;
    let next = plan(&service).await;
    assert!(next.source.contains(DECIDED));
    assert!(next.base_seq > last + 1 && next.source.contains("the remark about the harbour"), "{last}");
    // A window that fills without a summarizer is extracted, beside what was written.
    while !list(&service).await.iter().any(|found| found.kind() == pb::CompactionKind::Collapse) {
        service.append(SESSION, &step(OpenaiChat, 900)).await;
        service.window(SESSION).await;
    }
    assert!(service.window(SESSION).await.payloads().concat().contains(DECIDED));
}

async fn a_look_at_the_whole_log_changes_no_window(backend: Backend) {
    let service = interactive(&backend, OpenaiChat, CONTEXT).await;
    let said: Vec<_> = (0..32).flat_map(|number| step(OpenaiChat, number)).collect();
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    service.append(SESSION, &said).await;
    let whole = pb::RestoreTranscriptRequest {
        session: SESSION.to_owned(),
        compression: pb::CompressionMode::None.into(),
        ..Default::default()
    };
    for _ in 0..2 {
        assert_eq!(service.restore(whole.clone()).await.items.len(), 65);
        assert_eq!(list(&service).await, []);
    }
    assert!(service.window(SESSION).await.items.len() < 65);
    assert_eq!(list(&service).await.len(), 1);
}

async fn a_window_in_memory_is_served_while_the_object_store_is_down(backend: Backend) {
    let (service, faulty) = Service::start_faulty(&backend, |settings| {
        settings.cache.segment_bytes = 0;
        settings.seal.when = turnkeep::settings::SealWhen::EveryTurn;
    })
    .await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Interactive, CONTEXT)).await;
    let said: Vec<_> = (0..15).flat_map(|number| step(OpenaiChat, number)).collect();
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    service.append(SESSION, &said).await;
    service.window(SESSION).await;
    let said: Vec<_> = (15..30).flat_map(|number| step(OpenaiChat, number)).collect();
    service.append(SESSION, &said).await;
    faulty.set(Fault::Down);
    let window = service.window(SESSION).await;
    assert_eq!((window.header.fits, window.items.len()), (Some(true), 61));
    assert_eq!(list(&service).await, []);
    faulty.set(Fault::None);
    assert!(service.window(SESSION).await.items.len() < 61);
    assert_eq!(list(&service).await.len(), 1);
}

async fn an_undo_that_leaves_no_room_for_the_pins_since_is_refused(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Interactive, CONTEXT)).await;
    let said: Vec<_> = (0..31).flat_map(|number| step(OpenaiChat, number)).collect();
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    service.append(SESSION, &said).await;
    let made = truncate_to(&service, 1_000).await;
    put_pin(&service, "rule", &"count in words, ".repeat(60)).await.unwrap();
    let undo = pb::UndoCompactionRequest { name: made.name };
    let undone = answer(service.client.transcripts.clone().undo_compaction(undo.clone()).await);
    assert_eq!(undone.unwrap_err().kind().1, "WINDOW_CANNOT_FIT");
    let request = pb::DeletePinRequest { parent: SESSION.to_owned(), pin: "rule".to_owned() };
    answer(service.client.memory.clone().delete_pin(request).await).unwrap();
    answer(service.client.transcripts.clone().undo_compaction(undo).await).unwrap();
}

async fn calls_without_results_are_one_step_that_may_not_fit(backend: Backend) {
    let service = Service::start(&backend).await;
    let tool = |number: usize| format!("look_at_number_{number}");
    for format in STRUCTURED {
        for with_results in [false, true] {
            let id = format!("s{}-{with_results}", format as i32);
            let name = format!("sessions/{id}");
            service.create(&id, of_path(format, pb::CompressionPath::Batch, 1_000)).await;
            service.append(&name, &[user(format, "look at all")]).await;
            for number in 0..45 {
                service.append(&name, &[call(format, &format!("call_{number}"), &tool(number))]).await;
            }
            if with_results {
                let results = (0..45).map(|at| result(format, &format!("call_{at}"), &tool(at), "ok"));
                service.append(&name, &results.collect::<Vec<_>>()).await;
            }
            for close_pending in [false, true] {
                let request = pb::RestoreTranscriptRequest {
                    session: name.clone(),
                    close_pending,
                    ..Default::default()
                };
                let refused = service.try_restore(request).await.err().map(|refusal| refusal.reason);
                // There each call is a step of its own.
                let expected = (format != OpenaiChat).then(|| "WINDOW_CANNOT_FIT".to_owned());
                assert_eq!(refused, expected, "{format:?}, closed: {close_pending}");
            }
            // It is no longer the newest, and leaves.
            service.append(&name, &[user(format, "go on")]).await;
            let window = service.window(&name).await;
            assert_accepted(format, &window);
            assert_eq!(window.header.fits, Some(true));
        }
    }
}
