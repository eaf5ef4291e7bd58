//! Windows whose newest step alone is too large for one request.

use super::*;
use pb::WireFormat::AnthropicMessages;
use serde_json::json;

on_embedded_backend!(of_the_newest_step_only_as_many_results_are_shortened_as_it_takes);

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
