//! Ten compactions in a row: what the user demanded stays word for word, what stands for
//! what left stays small, and each window is one that its API takes.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/accepted.rs"]
mod accepted;
#[path = "support/backends.rs"]
mod backends;
#[path = "support/checker.rs"]
mod checker;
#[path = "service_ten_compactions/conversation.rs"]
mod conversation;
#[path = "support/llm.rs"]
mod llm;
#[path = "support/messages.rs"]
mod messages;
#[path = "service_ten_compactions/passes.rs"]
mod passes;
#[path = "support/recorded.rs"]
mod recorded;
#[path = "support/service.rs"]
mod service;

use backends::Backend;
use conversation::{made_up, recordings};
use llm::{Llm, RealModel, Step, openai_answer, with_model};
use passes::{Play, print, ten_passes};
use pb::CompactionKind::{Collapse, Summarize, Truncate};
use pb::CompressionPath::{Batch, Interactive};
use serde_json::json;
use service::Service;
use std::time::Duration;
use turnkeep::clock::Stopwatch;
use turnkeep::rpc::pb;
use turnkeep::settings::Settings;

backends::on_backend!(
    embedded,
    SqliteLocal,
    a_real_model_keeps_what_was_demanded_through_ten_compactions,
    a_real_model_keeps_what_was_demanded_in_a_recording
);

mod heavy {
    use super::{
        truncations_keep_what_was_demanded, what_was_demanded_stays_with_a_summarizer_that_drops_everything,
        what_was_demanded_stays_with_a_summarizer_that_fails,
    };

    crate::backends::on_backend!(
        sqlite_local,
        SqliteLocal,
        truncations_keep_what_was_demanded,
        what_was_demanded_stays_with_a_summarizer_that_drops_everything,
        what_was_demanded_stays_with_a_summarizer_that_fails
    );
}

/// Context windows in tokens: the longest recordings fill this one a dozen times.
const CONTEXT: u64 = 40_000;
/// A small model on a small machine sums up this one in a minute.
const SMALL_CONTEXT: u64 = 8_000;

/// Tokens of a recording that a small model on a small machine is given to sum up,
const SOURCE_TOKENS: u64 = 1_500;
/// and of what is to come of it, with the ledger: in half a minute or so.
const SLOT_TOKENS: u64 = 300;

/// How long a real model may take.
const PATIENCE: Duration = Duration::from_mins(5);

/// What a summarizer says that drops everything.
const NOTHING: &str = "## Goal\nnone";

/// Plays each recording to a service of its own; returns the compactions of each.
async fn of_recordings(
    backend: Backend,
    path: pb::CompressionPath,
    adjust: impl Fn(&mut Settings),
) -> Vec<Vec<pb::Compaction>> {
    let (mut all, mut kept) = (Vec::new(), vec![backend]);
    for (name, format, turns) in recordings() {
        let service = Service::start_with(kept.last().unwrap(), &adjust).await;
        let play = Play { format, path, context: CONTEXT, turns, patience: Duration::ZERO };
        let passes = ten_passes(&service, play).await;
        print(&format!("{name}, {path:?}"), &passes);
        all.push(passes.into_iter().map(|pass| pass.compaction).collect());
        service.stop().await;
        kept.push(Backend::open(backends::Pair::SqliteLocal).await.unwrap());
    }
    all
}

async fn truncations_keep_what_was_demanded(backend: Backend) {
    for compactions in Box::pin(of_recordings(backend, Batch, |_| ())).await {
        for compaction in compactions {
            assert_eq!((compaction.kind(), compaction.summary.as_str()), (Truncate, ""));
        }
    }
}

async fn what_was_demanded_stays_with_a_summarizer_that_drops_everything(backend: Backend) {
    let llm = Llm::start([Step::ok(&openai_answer(NOTHING, "stop"))]).await;
    for compactions in Box::pin(of_recordings(backend, Interactive, with_model(&llm.url, "m"))).await {
        for compaction in compactions {
            assert_eq!((compaction.kind(), compaction.summary.as_str()), (Summarize, NOTHING));
        }
    }
}

async fn what_was_demanded_stays_with_a_summarizer_that_fails(backend: Backend) {
    let llm = Llm::start([Step::status(400, &json!({"error": {"message": "no"}}))]).await;
    for compactions in Box::pin(of_recordings(backend, Interactive, with_model(&llm.url, "m"))).await {
        for compaction in compactions {
            assert_eq!(compaction.kind(), Collapse);
            assert_ne!(compaction.summary, "", "the extract");
            assert_ne!(compaction.summarizer.unwrap().failure, "");
        }
    }
}

async fn a_real_model_keeps_what_was_demanded_through_ten_compactions(backend: Backend) {
    let (format, turns) = made_up();
    let name = "a conversation made up";
    Box::pin(of_a_real_model(backend, name, (format, turns), SMALL_CONTEXT, |_| ())).await;
}

async fn a_real_model_keeps_what_was_demanded_in_a_recording(backend: Backend) {
    let Some((name, format, turns)) = recordings().pop() else { return };
    let adjust = |settings: &mut Settings| {
        settings.summarizer.source_tokens = SOURCE_TOKENS;
        settings.compaction.slot_percent = 1;
        settings.compaction.slot_tokens_min = SLOT_TOKENS;
        // A step may take the window from where no summary is made to where one is waited for.
        settings.compaction.wait_seconds = PATIENCE.as_secs();
        // One that is late is no reason to do without the next.
        settings.summarizer.cooldown_seconds = 0;
        settings.summarizer.breaker_failures = u32::MAX;
    };
    Box::pin(of_a_real_model(backend, name, (format, turns), CONTEXT, adjust)).await;
}

/// What the model says is not looked at, but that it is taken, and what becomes of it.
async fn of_a_real_model(
    backend: Backend,
    title: &str,
    (format, turns): (pb::WireFormat, Vec<Vec<pb::NewEntry>>),
    context: u64,
    adjust: impl FnOnce(&mut Settings),
) {
    let Some(RealModel { endpoint, model, key }) = RealModel::named() else { return };
    let service = Service::start_with(&backend, |settings| {
        with_model(&endpoint, &model)(settings);
        settings.summarizer.key = key;
        settings.summarizer.attempt_seconds = PATIENCE.as_secs();
        adjust(settings);
    })
    .await;
    let play = Play { format, path: Interactive, context, turns, patience: PATIENCE };
    let playing = Stopwatch::start();
    let passes = ten_passes(&service, play).await;
    print(&format!("{title}, summed up by {model} at {endpoint}"), &passes);
    let by_model: Vec<_> = passes.iter().filter(|pass| pass.compaction.kind() == Summarize).collect();
    for pass in &by_model {
        let by = pass.compaction.summarizer.as_ref().unwrap();
        assert!(by.input_tokens > 100 && by.output_tokens > 0 && by.failure.is_empty(), "{by:?}");
        assert!(!pass.compaction.summary.is_empty());
        println!("{} to {} tokens: {:?}", by.input_tokens, by.output_tokens, pass.compaction.summary);
    }
    for pass in passes.iter().filter(|pass| pass.compaction.kind() != Summarize) {
        println!("pass {}: {}", pass.compaction.name, pass.compaction.cause);
    }
    let seconds = playing.elapsed().as_secs();
    println!("{} of {} summaries are the model's, in {seconds} s", by_model.len(), passes.len());
    assert!(!by_model.is_empty(), "no summary of the model was taken");
    service.stop().await;
}
