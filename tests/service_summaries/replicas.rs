//! Replicas over the same stores: of several, one at a time has a summary made.

use super::*;
use crate::backends::on_shared_backend;

on_shared_backend!(replicas_under_pressure_at_once_have_one_summary_made);

/// One that takes a second or two.
fn slow(goal: &str) -> Step {
    let answer = openai_answer(&format!("## Goal\n{goal}"), "stop");
    Step::Drip(answer.to_string(), Duration::from_millis(4))
}

fn steps(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.flat_map(|number| step(OpenaiChat, number, &short())).collect()
}

async fn replica(backend: &Backend, llm: &Llm) -> Service {
    Service::start_with(backend, |settings| {
        with_models(&llm.url)(settings);
        settings.summarizer.attempt_seconds = 30;
        settings.compaction.wait_seconds = 30;
    })
    .await
}

async fn replicas_under_pressure_at_once_have_one_summary_made(backend: Backend) {
    let llm = Llm::start([slow("the first"), slow("the second"), slow("one too many")]).await;
    let plain = Service::start(&backend).await;
    let (one, two) = (replica(&backend, &llm).await, replica(&backend, &llm).await);
    plain.create("s", session(OpenaiChat, CONTEXT)).await;
    plain.append(SESSION, &[user(OpenaiChat, "count to a hundred")]).await;
    // Over 90 %, and nobody has looked.
    plain.append(SESSION, &steps(0..30)).await;
    let windows = tokio::join!(one.window(SESSION), two.window(SESSION));
    for window in [&windows.0, &windows.1] {
        assert_accepted(OpenaiChat, window);
        assert!(window.payloads().concat().contains("the first"), "{:?}", window.payloads());
    }
    assert_eq!(windows.0.items, windows.1.items);
    assert_eq!((llm.received().len(), kinds(&list(&one).await)), (1, vec![CompactionKind::Summarize]));
    // Turns land at both, and both have it prepared.
    let (here, there) = (steps(100..110), steps(200..210));
    tokio::join!(one.append(SESSION, &here), two.append(SESSION, &there));
    let windows = tokio::join!(one.window(SESSION), two.window(SESSION));
    for window in [&windows.0, &windows.1] {
        assert_accepted(OpenaiChat, window);
        assert!(window.payloads().concat().contains("the second"), "{:?}", window.payloads());
    }
    assert_eq!(windows.0.items, windows.1.items);
    let both = vec![CompactionKind::Summarize; 2];
    assert_eq!((llm.received().len(), kinds(&list(&two).await)), (2, both));
    assert_eq!(llm.most_at_once(), 1);
    let log = one.read(SESSION).await;
    assert_eq!(log.seqs(), (1..=101).collect::<Vec<_>>(), "the log is whole");
    for service in [plain, one, two] {
        service.stop().await;
    }
}
