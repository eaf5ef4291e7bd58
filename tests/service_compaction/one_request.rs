//! Windows whose newest step alone is too large for one request.

use super::*;
use pb::WireFormat::AnthropicMessages;
use serde_json::json;

on_embedded_backend!(
    of_the_newest_step_only_as_many_results_are_shortened_as_it_takes,
    what_stands_for_what_left_gives_way_before_a_request_is_refused,
);

const WIDE: u64 = 16_000;

/// Words of the results, in the order of their calls.
const WORDS: [usize; 5] = [500, 1_200, 700, 1_200, 60];

fn said(number: usize, words: usize) -> String {
    let half = "word ".repeat(words / 2);
    format!("{half}middle-{number} {half}")
}

/// A step with parallel calls, whose results are entries each or blocks of one.
fn parallel(format: pb::WireFormat) -> Vec<String> {
    let calls = 0..WORDS.len();
    let results = WORDS.iter().enumerate().map(|(number, words)| (number, said(number, *words)));
    if format == AnthropicMessages {
        let uses =
            calls.map(|call| json!({"type": "tool_use", "id": format!("c{call}"), "name": "t", "input": {}}));
        let results = results.map(|(number, said)| {
            json!({"type": "tool_result", "tool_use_id": format!("c{number}"), "content": said})
        });
        let uses = json!({"role": "assistant", "content": uses.collect::<Vec<_>>()});
        return vec![
            uses.to_string(),
            json!({"role": "user", "content": results.collect::<Vec<_>>()}).to_string(),
        ];
    }
    let calls = calls.map(|call| {
        json!({"id": format!("c{call}"), "type": "function", "function": {"name": "t", "arguments": "{}"}})
    });
    let calls = json!({"role": "assistant", "content": null, "tool_calls": calls.collect::<Vec<_>>()});
    let results = results.map(|(number, said)| result(format, &format!("c{number}"), "t", &said));
    std::iter::once(calls.to_string()).chain(results).collect()
}

/// A restore that leaves so many tokens for messages.
fn leaving(session: &str, tokens: u64) -> pb::RestoreTranscriptRequest {
    let reserve_tokens = Some(WIDE - tokens);
    pb::RestoreTranscriptRequest { session: session.to_owned(), reserve_tokens, ..Default::default() }
}

/// Numbers of the results of which a window shows the ends alone.
fn shortened(window: &Restored) -> Vec<usize> {
    let shown = window.payloads().concat();
    let is_whole = |number: usize| shown.contains(&said(number, WORDS[number]));
    (0..WORDS.len()).filter(|number| !is_whole(*number)).collect()
}

async fn of_the_newest_step_only_as_many_results_are_shortened_as_it_takes(backend: Backend) {
    let mut service = Service::start(&backend).await;
    for (number, format) in [OpenaiChat, AnthropicMessages].into_iter().enumerate() {
        let name = format!("sessions/s{number}");
        service.create(&format!("s{number}"), of_path(format, pb::CompressionPath::Batch, WIDE)).await;
        let mut turn = vec![user(format, "look at all of it")];
        turn.extend(parallel(format));
        service.append(&name, &turn).await;
        let whole = service.window(&name).await;
        let all = whole.header.tokens_after;
        assert_eq!((shortened(&whole), whole.header.cut), (vec![], None));
        // The longest first, of two the older, and then as many more as it takes. One that
        // is short enough to be shown whole is.
        let mut cuts = Vec::new();
        for (words, expected) in [
            (1, vec![1]),
            (900, vec![1]),
            (1_400, vec![1, 3]),
            (2_300, vec![1, 2, 3]),
            (2_700, vec![0, 1, 2, 3]),
        ] {
            let less = words * all / WORDS.iter().sum::<usize>() as u64;
            let request = leaving(&name, all - less);
            let cut = service.restore(request.clone()).await;
            assert_accepted(format, &cut);
            assert_eq!(shortened(&cut), expected, "{format:?}: {less} of {all}");
            assert!(cut.header.fits == Some(true) && cut.header.tokens_after <= all - less);
            assert!(cut.items.iter().any(|item| item.origin() == ItemOrigin::Snipped));
            service = service.restart().await;
            assert_eq!(service.restore(request).await.payloads(), cut.payloads(), "{format:?}: {less}");
            cuts.push(cut);
        }
        let least = cuts.iter().map(|cut| cut.header.tokens_after).min().unwrap();
        let refusal = service.try_restore(leaving(&name, least - 1)).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::FailedPrecondition, "WINDOW_CANNOT_FIT"));
        // Nothing of it is recorded, and what was served is known by its id.
        assert_eq!(service.window(&name).await.payloads(), whole.payloads());
        let mut list = cuts[2].payloads();
        list.push(model(format, "done"));
        let mut snapshot = from_window(&list, &cuts[2].header.window_id);
        snapshot.session.clone_from(&name);
        let persisted = service.persist(snapshot).await.unwrap();
        assert_eq!(persisted.first_seq, persisted.last_seq, "{format:?}");
    }
}

/// The summary of a window as its texts; empty if it has none.
fn summary(window: &Restored) -> String {
    let of_summary = |item: &&pb::WindowItem| item.origin() == ItemOrigin::Summary;
    window.items.iter().find(of_summary).map_or_else(String::new, |item| text(&item.payload))
}

/// A call of a shell.
fn shell(format: pb::WireFormat, id: &str, command: &str) -> String {
    let arguments = json!({ "command": command }).to_string();
    let as_text = json!(arguments).to_string();
    call(format, id, "shell").replace(r#""{}""#, &as_text).replace(":{}", &format!(":{arguments}"))
}

fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(payload).replace("\\n", "\n")
}

async fn what_stands_for_what_left_gives_way_before_a_request_is_refused(backend: Backend) {
    const RULE: &str = "Do not touch migrations/.";
    let mut service = Service::start(&backend).await;
    let paths = [pb::CompressionPath::Interactive, pb::CompressionPath::Batch];
    let cases = STRUCTURED.into_iter().flat_map(|format| paths.map(|path| (format, path)));
    for (number, (format, path)) in cases.enumerate() {
        let is_summarized = path == pb::CompressionPath::Interactive;
        let name = format!("sessions/s{number}");
        service.create(&format!("s{number}"), of_path(format, path, WIDE)).await;
        let filler = "word ".repeat(300);
        for number in 0..8 {
            let rule = if number == 1 { RULE } else { "" };
            service.append(&name, &[user(format, &format!("Look at part {number}, please. {rule}"))]).await;
            let id = format!("call_{number}");
            let said = result(format, &id, "shell", &format!("error: part {number} is missing {filler}"));
            let ran = shell(format, &id, &format!("make part-{number}"));
            service.append(&name, &[ran, said]).await;
        }
        // Larger than a step: what stands for the rest is in its way.
        let last = format!("Now this. {}", "word ".repeat(3_000));
        service.append(&name, &[user(format, &last), model(format, "I look.")]).await;
        let strategy =
            if is_summarized { pb::CompactionStrategy::Summarize } else { pb::CompactionStrategy::Truncate };
        let request = pb::CompactTranscriptRequest {
            session: name.clone(),
            strategy: strategy.into(),
            target_tokens: (!is_summarized).then_some(1),
            ..Default::default()
        };
        // On the batch path the last turn may have cut the window as deep as it goes.
        compact(&service, request).await.unwrap();
        let whole = service.window(&name).await;
        let tokens = whole.header.tokens_after;
        let all = summary(&whole);
        for part in [RULE, "\nDone so far", "[End of what stands"] {
            assert!(all.contains(part), "{format:?} {path:?}: {part} in {all}");
        }
        for part in ["\nSummary:\n", "part 7, please"] {
            assert_eq!(all.contains(part), is_summarized, "{format:?} {path:?}: {part} in {all}");
        }
        // Less and less of it stands there, and at last nothing does.
        let mut served = vec![];
        for left in (0..tokens).rev().step_by(11) {
            match service.try_restore(leaving(&name, left)).await {
                Ok(window) => served.push((left, window)),
                Err(refusal) => {
                    assert_eq!(refusal.kind(), (Code::FailedPrecondition, "WINDOW_CANNOT_FIT"));
                    break;
                }
            }
        }
        // What stood there, and nothing else.
        assert!(is_summarized || served.iter().all(|(_, window)| !summary(window).contains("\nSummary:\n")));
        let mut lengths = vec![all.len()];
        for (left, window) in &served {
            assert_accepted(format, window);
            let cut = window.header.cut.unwrap();
            assert!(window.header.fits == Some(true) && cut.for_this_request, "{:?}", window.header);
            assert!(window.header.tokens_after <= *left, "{format:?}: {left}");
            assert!(text(&window.payloads().concat().into_bytes()).contains(RULE), "{format:?}: {left}");
            lengths.push(summary(window).len());
        }
        lengths.dedup();
        assert!(lengths.len() > 5 && lengths.last() == Some(&0), "{format:?}: {lengths:?}");
        // What was done goes first.
        let is_without_ledger = |(_, window): &(u64, Restored)| {
            let brief = summary(window);
            !brief.is_empty() && !brief.contains("\nDone so far")
        };
        assert_eq!(served.iter().any(is_without_ledger), is_summarized, "{format:?} {path:?}");
        // The same request gets the same bytes, from cold too; nothing was recorded.
        service = service.restart().await;
        for (left, window) in served.iter().step_by(20) {
            assert_eq!(service.restore(leaving(&name, *left)).await.payloads(), window.payloads());
        }
        assert_eq!(service.window(&name).await.payloads(), whole.payloads());
        let (_, held) = &served[served.len() / 2];
        let mut list = held.payloads();
        list.push(user(format, "done"));
        let mut snapshot = from_window(&list, &held.header.window_id);
        snapshot.session.clone_from(&name);
        let persisted = service.persist(snapshot).await.unwrap();
        assert_eq!(persisted.first_seq, persisted.last_seq, "{format:?}");
    }
}
