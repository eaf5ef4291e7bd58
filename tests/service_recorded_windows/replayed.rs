//! What `turnkeep replay` was served after each turn of every recording.

use crate::backends::{Backend, Pair};
use crate::command::{self, Served};
use crate::llm::{Llm, Step, openai_answer};
use crate::recorded::{files, folder};
use crate::{CONTEXT, NOTHING, REFUSED, UNJUDGED, checker};
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::Arc;
use turnkeep::model::WireFormat;

mod heavy {
    use super::{
        every_window_of_a_sample_is_accepted, every_window_on_the_batch_path_is_accepted,
        every_window_with_a_summarizer_that_drops_everything_is_accepted,
        every_window_with_a_summarizer_that_fails_is_accepted,
    };

    crate::backends::on_backend!(
        sqlite_local,
        SqliteLocal,
        every_window_on_the_batch_path_is_accepted,
        every_window_with_a_summarizer_that_drops_everything_is_accepted,
        every_window_with_a_summarizer_that_fails_is_accepted
    );
    crate::backends::on_backend!(postgres_s3, PostgresS3, every_window_of_a_sample_is_accepted);
}

/// Recordings of clients whose preamble alone takes most of [`CONTEXT`].
const LARGE_PREAMBLE: &str = "codex-rollout/";

/// Replays at the same time.
const AT_ONCE: usize = 2;

/// One of so many files, and their bytes at most, where those of all would take long.
const SAMPLE: (usize, usize) = (6, 400_000);

/// What was served.
#[derive(Debug, Default)]
struct Judged {
    turns: u64,
    windows: u64,
    /// Windows that leave something out.
    cut: u64,
    /// Windows with [`NOTHING`] as their summary.
    of_nothing: u64,
    /// Windows with another one.
    of_extracts: u64,
    /// Restores that were refused, by file and thread.
    refused: BTreeMap<String, u64>,
    /// Files of windows that the judge does not take.
    unjudged: BTreeSet<String>,
}

impl Judged {
    fn add(&mut self, other: Self) {
        self.turns += other.turns;
        self.windows += other.windows;
        self.cut += other.cut;
        self.of_nothing += other.of_nothing;
        self.of_extracts += other.of_extracts;
        self.refused.extend(other.refused);
        self.unjudged.extend(other.unjudged);
    }

    /// Judges a line of what a replay of a file wrote.
    fn judge(&mut self, file: &str, line: &str) {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let (thread, version) = (format!("{file} #{}", line["thread"]), line["version"].clone());
        if let Some(refused) = line.get("refused") {
            assert!(refused.as_str().unwrap().starts_with("WINDOW_CANNOT_FIT: "), "{refused}");
            *self.refused.entry(thread).or_default() += 1;
            return;
        }
        assert_eq!(line["fits"], true, "{thread} at {version}");
        self.windows += 1;
        self.cut += u64::from(!line["cut"].is_null());
        let Value::Array(mut items) = line["items"].take() else { panic!("{thread} at {version}: no items") };
        if let Some(summary) = items.iter().find(|item| item["origin"] == "summary") {
            let is_nothing = summary["payload"].to_string().contains(&NOTHING.replace('\n', "\\n"));
            *if is_nothing { &mut self.of_nothing } else { &mut self.of_extracts } += 1;
        }
        let items: Vec<Value> = items.iter_mut().map(|item| item["payload"].take()).collect();
        let format = WireFormat::ALL.into_iter().find(|format| format.as_str() == line["format"]).unwrap();
        if let Err(problem) = checker::accepts(format, &items, line["next"] == "model") {
            let known = UNJUDGED.iter().any(|(of, what)| *of == file && problem.contains(what));
            assert!(known, "{thread} at {version}: {problem}: {items:#?}");
            self.unjudged.insert(file.to_owned());
        }
    }
}

/// Replays a file, and judges what its model would have been sent after each turn.
fn replay(served: &Served, folder: &Path, file: &str, path: &str, windows: &Path) -> Judged {
    let context = if file.starts_with(LARGE_PREAMBLE) { 2 * CONTEXT } else { CONTEXT }.to_string();
    let name = folder.join(file);
    let [name, windows] = [&*name, windows].map(|path| path.to_str().unwrap());
    let args = ["--path", path, "--context-window", &context, "--windows", windows];
    let ran = served.run(&[&["replay", name, "--json"], &args[..]].concat());
    assert!(ran.status.success(), "{file}: {} {:#?}", ran.stderr, served.log.so_far());
    let [measured] = ran.json().try_into().unwrap();
    let mut judged = Judged { turns: measured["turns"].as_u64().unwrap(), ..Judged::default() };
    for line in BufReader::new(File::open(windows).unwrap()).lines() {
        judged.judge(file, &line.unwrap());
    }
    fs::remove_file(windows).unwrap();
    let refused = judged.refused.values().sum::<u64>();
    assert_eq!((judged.windows + refused, &json!(refused)), (judged.turns, &measured["refused"]), "{file}");
    judged
}

/// Replays one of so many recordings of at most so many bytes; none, with a word about it,
/// if they are not there.
async fn replay_some(
    backend: &Backend,
    (one_of, bytes_max): (usize, usize),
    path: &'static str,
    settings: &[&str],
) -> Option<Judged> {
    let folder = folder()?;
    if matches!(backend.pair, Pair::PostgresLocal | Pair::PostgresS3) {
        command::run(&["migrate"], &backend.variables()).output();
    }
    // A busy machine is not what this is about.
    let settings = [&["store.acquire_seconds=30"], settings].concat();
    let served = Arc::new(Served::start(&backend.variables(), &settings).await);
    let mut files = files(&folder);
    files.retain(|(file, content)| file.rsplit('.').next() != Some("md") && content.len() <= bytes_max);
    let replays = files.into_iter().step_by(one_of).enumerate().map(|(i, (file, _))| {
        let (served, folder) = (served.clone(), folder.clone());
        let windows = backend.data_dir().join(format!("windows-{i}.jsonl"));
        async move {
            let judged = move || replay(&served, &folder, &file, path, &windows);
            tokio::task::spawn_blocking(judged).await.unwrap()
        }
    });
    let mut replays = stream::iter(replays).buffer_unordered(AT_ONCE);
    let mut judged = Judged::default();
    while let Some(one) = replays.next().await {
        judged.add(one);
    }
    drop(replays);
    Arc::into_inner(served).unwrap().stop();
    println!("{path}: {judged:#?}");
    Some(judged)
}

async fn replay_all(backend: &Backend, path: &'static str, settings: &[&str]) -> Option<Judged> {
    let judged = replay_some(backend, (1, usize::MAX), path, settings).await?;
    assert!(judged.windows > 10_000 && judged.cut > judged.windows / 4, "{judged:#?}");
    assert_eq!(judged.unjudged, UNJUDGED.iter().map(|(file, _)| (*file).to_owned()).collect());
    Some(judged)
}

/// Threads with restores that are refused, and their number.
fn known_refusals() -> BTreeMap<String, u64> {
    REFUSED.iter().map(|(thread, times)| ((*thread).to_owned(), *times)).collect()
}

fn with_model(llm: &Llm) -> [String; 3] {
    ["api=openai", "model=m", &format!("endpoint={}", llm.url)].map(|set| format!("summarizer.{set}"))
}

async fn every_window_on_the_batch_path_is_accepted(backend: Backend) {
    let Some(judged) = Box::pin(replay_all(&backend, "batch", &[])).await else { return };
    assert_eq!(judged.refused, known_refusals());
    // What stands in the summary's place tells what left.
    assert!(judged.of_nothing == 0 && judged.of_extracts > 1_000, "{judged:#?}");
}

async fn every_window_with_a_summarizer_that_drops_everything_is_accepted(backend: Backend) {
    let llm = Llm::start([Step::ok(&openai_answer(NOTHING, "stop"))]).await;
    let settings = with_model(&llm);
    let judged =
        Box::pin(replay_all(&backend, "interactive", &settings.each_ref().map(String::as_str))).await;
    let Some(judged) = judged else { return };
    assert_eq!(judged.refused, known_refusals());
    assert!(judged.of_nothing > 1_000, "{judged:#?}");
}

async fn every_window_with_a_summarizer_that_fails_is_accepted(backend: Backend) {
    let llm = Llm::start([Step::status(400, &json!({"error": {"message": "no"}}))]).await;
    let settings = with_model(&llm);
    let judged =
        Box::pin(replay_all(&backend, "interactive", &settings.each_ref().map(String::as_str))).await;
    let Some(judged) = judged else { return };
    assert!(!llm.received().is_empty(), "the summarizer was asked");
    // An extract takes more than a summary of a few words, and gives way where it must.
    assert_eq!(judged.refused, known_refusals());
    assert!(judged.of_nothing == 0 && judged.of_extracts > 1_000, "{judged:#?}");
}

async fn every_window_of_a_sample_is_accepted(backend: Backend) {
    for path in ["batch", "interactive"] {
        let Some(judged) = Box::pin(replay_some(&backend, SAMPLE, path, &[])).await else { return };
        assert!(judged.windows > 200 && judged.cut > 20, "{judged:#?}");
    }
}
