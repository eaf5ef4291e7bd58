//! Recorded transcripts through small windows: whatever leaves them, by whatever path,
//! every window that is served fits, and its API would take it.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/checker.rs"]
mod checker;
#[path = "support/llm.rs"]
mod llm;
#[path = "support/recorded.rs"]
mod recorded;
#[path = "support/service.rs"]
mod service;

use backends::Backend;
use futures::{StreamExt as _, stream};
use llm::{Llm, Step, openai_answer};
use recorded::{entries_of, files, folder, format_of};
use serde_json::{Value, json};
use service::{Restored, Service, append_entries, of_format};
use std::sync::atomic::{AtomicUsize, Ordering};
use turnkeep::import::{Options, Thread, import};
use turnkeep::model::WireFormat;
use turnkeep::provider::Api;
use turnkeep::rpc::pb;
use turnkeep::settings::Settings;

mod heavy {
    use super::{
        on_the_batch_path, on_the_interactive_path_with_a_summarizer_that_drops_everything,
        on_the_interactive_path_with_a_summarizer_that_fails,
    };

    crate::backends::on_backend!(
        sqlite_local,
        SqliteLocal,
        on_the_batch_path,
        on_the_interactive_path_with_a_summarizer_that_drops_everything,
        on_the_interactive_path_with_a_summarizer_that_fails
    );
}

/// A context window that most recordings do not fit into.
const CONTEXT: u64 = 16_000;

/// Files that are played at the same time.
const AT_ONCE: usize = 4;

/// Steps of a recording that are persisted as one turn, so that twelve thousand of them
/// take a minute or two.
const STEPS_IN_TURN: usize = 10;

/// What was served.
#[derive(Debug, Default)]
struct Served {
    windows: AtomicUsize,
    /// Windows that leave something out.
    cut: AtomicUsize,
    /// Windows that hold what the judge does not know.
    unjudged: AtomicUsize,
    /// Restores that were refused because the last step alone is too large.
    refused: AtomicUsize,
}

fn add(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn verdict(format: WireFormat, window: &Restored) -> Result<(), String> {
    let items: Vec<Value> =
        window.items.iter().map(|item| serde_json::from_slice(&item.payload).unwrap()).collect();
    checker::accepts(format, &items, window.header.next() == pb::NextStep::Model)
}

async fn play(service: &Service, name: &str, thread: &Thread, path: pb::CompressionPath, served: &Served) {
    let restore = pb::RestoreTranscriptRequest { session: name.to_owned(), ..Default::default() };
    for (version, steps) in (0..).zip(thread.turns.chunks(STEPS_IN_TURN)) {
        let entries: Vec<_> = steps.iter().flat_map(entries_of).collect();
        let profile = pb::ModelProfile { context_window_tokens: CONTEXT, ..Default::default() };
        let session =
            pb::Session { path: path.into(), profile: Some(profile), ..of_format(format_of(thread)) };
        let request = pb::PersistTranscriptRequest {
            expected_version: Some(version),
            create_if_missing: (version == 0).then_some(session),
            ..append_entries(name, &format!("turn-{version}"), entries)
        };
        service.persist(request).await.unwrap();
        let window = match service.try_restore(restore.clone()).await {
            Ok(window) => window,
            Err(refusal) => {
                assert_eq!(refusal.reason, "WINDOW_CANNOT_FIT", "{refusal:?}");
                println!(
                    "REFUSED {name} {version} {:?} kept {} last {} of {}",
                    thread.format,
                    refusal.metadata("kept_tokens"),
                    refusal.metadata("last_step_tokens"),
                    refusal.metadata("message_tokens")
                );
                add(&served.refused);
                continue;
            }
        };
        add(&served.windows);
        assert_eq!(window.header.fits, Some(true));
        if window.header.cut.is_some() {
            add(&served.cut);
        }
        if let Err(problem) = verdict(thread.format, &window) {
            // What the judge does not know of the whole log is not the cut's fault.
            let none = pb::CompressionMode::None.into();
            let whole =
                service.restore(pb::RestoreTranscriptRequest { compression: none, ..restore.clone() }).await;
            assert!(
                verdict(thread.format, &whole).is_err(),
                "{name} at {version}: {problem} {:#?}",
                window.payloads()
            );
            add(&served.unjudged);
        }
    }
    let log = service.read(name).await;
    assert_eq!(log.entries.len(), thread.turns.iter().map(|turn| turn.entries.len()).sum::<usize>());
}

async fn play_all(backend: Backend, path: pb::CompressionPath, adjust: impl FnOnce(&mut Settings)) {
    let Some(folder) = folder() else { return };
    let service = Service::start_with(&backend, adjust).await;
    let served = Served::default();
    let mut threads = Vec::new();
    for (file, content) in files(&folder) {
        if file.rsplit('.').next() == Some("md") {
            continue;
        }
        let Ok(imported) = import(&content, None, Options { verbatim: false }) else { continue };
        threads.extend(imported.threads.into_iter().filter(|thread| !thread.turns.is_empty()));
    }
    let plays = threads.iter().enumerate().map(|(i, thread)| {
        let (service, served) = (&service, &served);
        async move { play(service, &format!("sessions/t{i}"), thread, path, served).await }
    });
    stream::iter(plays).buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
    let [windows, cut, unjudged, refused] = [&served.windows, &served.cut, &served.unjudged, &served.refused]
        .map(|count| count.load(Ordering::Relaxed));
    println!("{windows} windows, {cut} cut, {unjudged} unjudged, {refused} refused");
    assert!(
        windows > 1_000 && cut > windows / 4 && unjudged < windows / 20 && refused < windows / 20,
        "{served:?}"
    );
}

async fn on_the_batch_path(backend: Backend) {
    play_all(backend, pb::CompressionPath::Batch, |_| ()).await;
}

fn with_models(url: &str) -> impl FnOnce(&mut Settings) + use<> {
    let url = url.to_owned();
    move |settings| {
        settings.summarizer.api = Some(Api::Openai);
        settings.summarizer.endpoint = Some(url);
        settings.summarizer.model = "m".to_owned();
    }
}

async fn on_the_interactive_path_with_a_summarizer_that_drops_everything(backend: Backend) {
    let llm = Llm::start([Step::ok(&openai_answer("## Goal\nnone", "stop"))]).await;
    play_all(backend, pb::CompressionPath::Interactive, with_models(&llm.url)).await;
    assert!(llm.received().len() > 100, "{}", llm.received().len());
}

async fn on_the_interactive_path_with_a_summarizer_that_fails(backend: Backend) {
    let llm = Llm::start([Step::status(400, &json!({"error": {"message": "no"}}))]).await;
    play_all(backend, pb::CompressionPath::Interactive, with_models(&llm.url)).await;
}
