//! `turnkeep transcript import`.

mod growth;

use super::output::{print, print_json, progress, say, table};
use super::{ProfileArgs, Remote};
use crate::client::{Client, ClientError};
use crate::import::{self, ImportedTurn, Options, ParentThread, Source, Thread};
use crate::model::{SessionId, WireFormat};
use crate::rpc::pb;
use anyhow::Context as _;
use bytes::Bytes;
use clap::Args;
use growth::Continuation;
use indicatif::ProgressBar;
use pb::persist_transcript_request::{Append, Input};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Make sessions of foreign transcripts, one for each thread in them.
///
/// Importing the same file again changes nothing, and a longer version of the
/// file continues where the shorter one ended. A model profile is given to
/// sessions that are new.
#[derive(Debug, Args)]
pub(super) struct Import {
    #[command(flatten)]
    remote: Remote,
    /// The files
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// What wrote it: claude-code, codex, openai-chat, openai-responses,
    /// anthropic, gemini, bedrock, json or text; found out if not given
    #[arg(long, value_parser = parse_source)]
    source: Option<Source>,
    /// Id of the session, for a single file; what the file calls it, or the
    /// file's name, if not given
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Keep the file's bytes as well, so that export gives the same file
    #[arg(long)]
    verbatim: bool,
    #[command(flatten)]
    profile: ProfileArgs,
}

pub(super) fn parse_source(name: &str) -> Result<Source, String> {
    Source::from_name(name).ok_or_else(|| {
        let names: Vec<_> = Source::ALL.iter().map(|source| source.as_str()).collect();
        format!("must be one of {}", names.join(", "))
    })
}

impl Import {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        anyhow::ensure!(self.session.is_none() || self.files.len() == 1, "--session is for a single file");
        let mut client = self.remote.connect().await?;
        let columns = ["session", "format", "turns", "entries", "done", "turns added"];
        let mut rows = vec![columns.map(str::to_owned).to_vec()];
        for file in &self.files {
            self.import(&mut client, file, &mut rows).await.with_context(|| file.display().to_string())?;
        }
        if !self.remote.json {
            print(&table(&rows))?;
        }
        Ok(())
    }

    async fn import(
        &self,
        client: &mut Client,
        file: &Path,
        rows: &mut Vec<Vec<String>>,
    ) -> anyhow::Result<()> {
        let bytes = read_file(file)?;
        let imported = import::import(&bytes, self.source, Options { verbatim: self.verbatim })?;
        let ids = session_ids(&imported.threads, self.session.as_deref(), file)?;
        let turns = imported.threads.iter().map(|thread| thread.turns.len() as u64).sum();
        let bar = progress(Some(turns), "turns");
        for (thread, id) in imported.threads.iter().zip(&ids) {
            let labels = labels(thread, imported.source, &ids);
            let session = pb::Session { profile: self.profile.of_new(), ..session(thread, labels) };
            let Outcome { done, added } = import_thread(client, id, &session, thread, &bar).await?;
            let entries: usize = thread.turns.iter().map(|turn| turn.entries.len()).sum();
            let format = thread.format.to_string();
            if self.remote.json {
                print_json(&serde_json::json!({
                    "session": id.resource_name(), "format": format, "turns": thread.turns.len(), "entries": entries,
                    "done": done, "turns_added": added,
                }))?;
            }
            let counts =
                [thread.turns.len().to_string(), entries.to_string(), done.to_owned(), added.to_string()];
            rows.push([id.to_string(), format].into_iter().chain(counts).collect());
        }
        bar.finish_and_clear();
        for (what, times) in &imported.stripped {
            say(&format!("left out: {times} × {what}"));
        }
        for warning in &imported.warnings {
            say(&format!("line {}: {} (× {})", warning.line, warning.message, warning.times));
        }
        Ok(())
    }
}

/// Reads a file whole.
pub(super) fn read_file(file: &Path) -> anyhow::Result<Bytes> {
    Ok(std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?.into())
}

/// An id for each thread's session.
fn session_ids(threads: &[Thread], given: Option<&str>, file: &Path) -> anyhow::Result<Vec<SessionId>> {
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let fallback: String = stem
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._:-".contains(c) { c } else { '-' })
        .take(100)
        .collect();
    let main = match (given, threads.first().and_then(|thread| thread.id_hint.clone())) {
        (Some(given), _) => SessionId::parse(given.strip_prefix("sessions/").unwrap_or(given))?,
        (None, Some(hint)) => hint,
        (None, None) => {
            SessionId::parse(&fallback).context("the file's name is no session id: give --session")?
        }
    };
    let mut ids = vec![main.clone()];
    for (i, thread) in threads.iter().enumerate().skip(1) {
        let hint = thread.id_hint.clone().filter(|hint| given.is_none() && !ids.contains(hint));
        ids.push(match hint {
            Some(hint) => hint,
            None => SessionId::parse(&format!("{main}-{i}"))?,
        });
    }
    Ok(ids)
}

fn labels(thread: &Thread, source: Source, ids: &[SessionId]) -> HashMap<String, String> {
    let mut labels = HashMap::from([("import.source".to_owned(), source.to_string())]);
    if let Some(parent) = &thread.parent {
        let session = match &parent.thread {
            ParentThread::Here(index) => ids.get(*index),
            ParentThread::Elsewhere(id) => Some(id),
        };
        labels.extend(session.map(|id| ("import.parent".to_owned(), id.to_string())));
        let call = parent.call_id.clone().filter(|id| id.len() <= crate::limits::LABEL_VALUE_BYTES_MAX);
        labels.extend(call.map(|id| ("import.parent-call".to_owned(), id)));
        labels.extend(parent.seq.map(|seq| ("import.parent-seq".to_owned(), seq.to_string())));
    }
    labels
}

/// The session that a thread becomes.
pub(super) fn session(thread: &Thread, labels: HashMap<String, String>) -> pb::Session {
    let format = match thread.format {
        WireFormat::OpenaiChat => pb::WireFormat::OpenaiChat,
        WireFormat::OpenaiResponses => pb::WireFormat::OpenaiResponses,
        WireFormat::AnthropicMessages => pb::WireFormat::AnthropicMessages,
        WireFormat::GeminiContents => pb::WireFormat::GeminiContents,
        WireFormat::BedrockConverse => pb::WireFormat::BedrockConverse,
        WireFormat::Opaque => pb::WireFormat::Opaque,
    };
    pb::Session {
        format: format.into(),
        labels,
        preamble: thread.preamble.clone().map(|payload| pb::Preamble { payload, ..Default::default() }),
        ..Default::default()
    }
}

/// A turn's entries as a request has them.
pub(super) fn new_entries(turn: &ImportedTurn) -> Vec<pb::NewEntry> {
    let entry = |entry: &import::ImportedEntry| pb::NewEntry {
        payload: entry.payload.clone(),
        kind: entry.kind.number(),
        time: entry.at.map(|at| prost_types::Timestamp {
            seconds: at.0.div_euclid(1_000_000),
            nanos: i32::try_from(at.0.rem_euclid(1_000_000) * 1000).unwrap_or(0),
        }),
    };
    turn.entries.iter().map(entry).collect()
}

/// What a provider reported, as a request has it.
pub(super) fn usage(turn: &ImportedTurn) -> Option<pb::Usage> {
    turn.usage.clone().map(|usage| pb::Usage {
        model: usage.model,
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cache_read_tokens: usage.cache_read_tokens,
        cache_write_tokens: usage.cache_write_tokens,
        window_id: usage.window_id,
        counted_tokens: None,
    })
}

/// What became of a session.
struct Outcome {
    /// In a word, for people.
    done: &'static str,
    /// Turns of the file that it had not before.
    added: usize,
}

/// Persists what the session lacks of a thread.
async fn import_thread(
    client: &mut Client,
    id: &SessionId,
    session: &pb::Session,
    thread: &Thread,
    bar: &ProgressBar,
) -> anyhow::Result<Outcome> {
    let name = id.resource_name();
    let ids = growth::request_ids(&thread.turns);
    let found = growth::find(client, &name, &thread.turns, &ids).await?;
    let mut create = found.is_none().then(|| session.clone());
    let done = match &found {
        None => "new",
        Some(Continuation { back_to: Some(_), .. }) => "rewound and continued",
        Some(Continuation { known, .. }) if *known < thread.turns.len() => "continued",
        Some(_) => "unchanged",
    };
    let Continuation { known, mut version, back_to } =
        found.unwrap_or(Continuation { known: 0, version: 0, back_to: None });
    if let (Some(back_to), Some(next)) = (back_to, ids.get(known)) {
        let request = pb::RewindSessionRequest {
            name: name.clone(),
            version: back_to,
            expected_version: Some(version),
            request_id: format!("{next}-{version}-back"),
        };
        version = client.sessions.rewind_session(request).await?.into_inner().version;
    }
    bar.inc(known as u64);
    for (turn, request_id) in thread.turns.iter().zip(&ids).skip(known) {
        let request = pb::PersistTranscriptRequest {
            session: name.clone(),
            request_id: format!("{request_id}-{version}"),
            expected_version: Some(version),
            input: Some(Input::Append(Append { entries: new_entries(turn) })),
            usage: usage(turn),
            create_if_missing: create.take(),
            keep_tool_results: true,
            ..Default::default()
        };
        let persisted = client.transcripts.persist_transcript(request).await;
        let persisted =
            persisted.map_err(ClientError::from).with_context(|| format!("turn {} of {id}", version + 1))?;
        version = persisted.into_inner().version;
        bar.inc(1);
    }
    Ok(Outcome { done, added: thread.turns.len() - known })
}
