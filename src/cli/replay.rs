//! `turnkeep replay`.

mod windows;

use super::Remote;
use super::import::{new_entries, parse_source, read_file, session, usage};
use super::output::{bytes, print, print_json, progress, say, table};
use super::session::{fresh_request_id, parse_path};
use super::transcript::read;
use crate::client::{Client, ClientError, Window};
use crate::clock::Stopwatch;
use crate::export;
use crate::format::to_single_line;
use crate::import::{self, ImportedTurn, Options, Source, Thread};
use crate::rpc::pb;
use bytes::Bytes;
use clap::Args;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;
use windows::{OfThread, Windows};

/// Play transcripts turn by turn against a service: persist, restore, and at the
/// end compare what comes back with what was sent. Exits with 1 if anything
/// differs. A restore that is refused since no window fits is counted.
#[derive(Debug, Args)]
pub(super) struct Replay {
    #[command(flatten)]
    remote: Remote,
    /// The files
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// What wrote them; found out if not given
    #[arg(long, value_parser = parse_source)]
    source: Option<Source>,
    /// Persist the files' bytes as well, and compare the export with the file
    #[arg(long)]
    verbatim: bool,
    /// Tokens of the context window that the sessions get
    #[arg(long)]
    context_window: Option<u64>,
    /// The compression path that they get: interactive, batch or automated
    #[arg(long, value_parser = parse_path)]
    path: Option<pb::CompressionPath>,
    /// Write what a model would have been sent after each turn: JSON Lines, one for
    /// each restore
    #[arg(long, value_name = "FILE")]
    windows: Option<PathBuf>,
    /// Keep the sessions that were made
    #[arg(long)]
    keep: bool,
}

/// What a replay measured.
#[derive(Default)]
struct Measured {
    threads: usize,
    turns: usize,
    restores: Vec<Duration>,
    /// Restores that no window fitted.
    refused: usize,
    persists: Vec<Duration>,
    bytes_in: u64,
    bytes_stored: u64,
    differences: Vec<String>,
}

impl Replay {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let header = [
            "file",
            "threads",
            "turns",
            "turns/s",
            "restore p50",
            "p99",
            "persist p50",
            "p99",
            "refused",
            "bytes in",
            "stored",
            "differences",
        ];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        let mut differences = 0;
        let mut windows = self.windows.as_deref().map(Windows::create).transpose()?;
        for file in &self.files {
            let name = file.display().to_string();
            let content = read_file(file)?;
            let imported = import::import(&content, self.source, Options { verbatim: self.verbatim })?;
            let mut measured = Measured::default();
            let turns = imported.threads.iter().map(|thread| thread.turns.len() as u64).sum();
            let bar = progress(Some(turns), "turns");
            for (i, thread) in imported.threads.iter().enumerate() {
                let session = format!("sessions/replay-{}", fresh_request_id());
                let file = (self.verbatim && i == 0).then_some(&content);
                let of_thread = windows.as_mut().map(|windows| windows.of_thread(&name, i));
                self.play(&mut client, &session, thread, &mut measured, of_thread, &bar).await?;
                if !thread.turns.is_empty() {
                    compare_log(&mut client, &session, thread, file, &mut measured).await?;
                    if !self.keep {
                        let request = pb::DeleteSessionRequest { name: session, include_forks: false };
                        client.sessions.delete_session(request).await?;
                    }
                }
            }
            bar.finish_and_clear();
            measured.differences.iter().for_each(|difference| say(&format!("{name}: {difference}")));
            differences += measured.differences.len();
            if self.remote.json {
                print_json(&measured.json(&name))?;
            } else {
                rows.push(measured.row(name));
            }
        }
        if !self.remote.json {
            print(&table(&rows))?;
        }
        anyhow::ensure!(differences == 0, "{differences} differences");
        Ok(())
    }

    /// Gives a session the context window and path that were asked for.
    fn configure(&self, session: Option<&mut pb::Session>) {
        let Some(session) = session else { return };
        if let Some(path) = self.path {
            session.path = path.into();
        }
        if let Some(tokens) = self.context_window {
            session.profile.get_or_insert_default().context_window_tokens = tokens;
        }
    }

    async fn play(
        &self,
        client: &mut Client,
        name: &str,
        thread: &Thread,
        measured: &mut Measured,
        mut windows: Option<OfThread<'_>>,
        bar: &indicatif::ProgressBar,
    ) -> anyhow::Result<()> {
        measured.threads += 1;
        let mut window = Window::default();
        let (mut version, mut is_served) = (0, false);
        for turn in &thread.turns {
            let entries = new_entries(turn);
            let mut request = persist_request(name, version, thread, turn, entries.clone(), &window.id);
            self.configure(request.create_if_missing.as_mut());
            measured.bytes_in += entries.iter().map(|entry| entry.payload.len() as u64).sum::<u64>();
            let started = Stopwatch::start();
            let answer = client.transcripts.persist_transcript(request).await?.into_inner();
            measured.persists.push(started.elapsed());
            window.extend(&entries, &answer);
            version = answer.version;
            measured.turns += 1;

            let started = Stopwatch::start();
            let restored = restore(client, name, &mut window).await?;
            is_served = restored.is_ok();
            match &restored {
                Ok(_) => measured.restores.push(started.elapsed()),
                Err(_) => measured.refused += 1,
            }
            if let Some(windows) = &mut windows {
                windows.write(version, &restored, &window.items)?;
            }
            bar.inc(1);
        }
        if is_served && !is_as_restored_whole(client, name, window).await? {
            measured
                .differences
                .push("the window that grew is not the one that is restored whole".to_owned());
        }
        Ok(())
    }
}

fn persist_request(
    name: &str,
    version: u64,
    thread: &Thread,
    turn: &ImportedTurn,
    entries: Vec<pb::NewEntry>,
    window_id: &str,
) -> pb::PersistTranscriptRequest {
    use pb::persist_transcript_request::{Append, Input};
    pb::PersistTranscriptRequest {
        session: name.to_owned(),
        request_id: format!("replay-{version}"),
        expected_version: Some(version),
        input: Some(Input::Append(Append { entries })),
        usage: usage(turn),
        create_if_missing: (version == 0).then(|| session(thread, HashMap::new())),
        window_id: window_id.to_owned(),
        keep_tool_results: true,
        ..Default::default()
    }
}

/// Brings a window up to date. Gives the refusal if none fits; it stays as it is then.
async fn restore(
    client: &mut Client,
    name: &str,
    window: &mut Window,
) -> Result<Result<pb::WindowHeader, ClientError>, ClientError> {
    let request = pb::RestoreTranscriptRequest { session: name.to_owned(), ..Default::default() };
    match client.restore(window, request).await {
        Ok(header) => Ok(Ok(header)),
        Err(refusal) if refusal.reason().as_deref() == Some("WINDOW_CANNOT_FIT") => Ok(Err(refusal)),
        Err(error) => Err(error),
    }
}

/// Whether the window that grew turn by turn is the one that is restored whole.
async fn is_as_restored_whole(client: &mut Client, name: &str, mut grown: Window) -> anyhow::Result<bool> {
    // A summary that was made meanwhile may come between the two.
    const TRIES: usize = 3;
    let payload = |item: &pb::WindowItem| to_single_line(item.payload.clone());
    for _ in 0..TRIES {
        let mut whole = Window::default();
        let served = [restore(client, name, &mut whole).await?, restore(client, name, &mut grown).await?];
        let [Ok(_), Ok(_)] = served else { continue };
        if grown.items.iter().map(payload).eq(whole.items.iter().map(payload)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Compares the log with what was sent, and the export with the file.
async fn compare_log(
    client: &mut Client,
    name: &str,
    thread: &Thread,
    file: Option<&Bytes>,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    let sent = thread.turns.iter().flat_map(|turn| &turn.entries);
    let mut sent = sent.map(|entry| (entry.kind.number(), to_single_line(entry.payload.clone())));
    let mut metas = Vec::new();
    let request = pb::ReadTranscriptRequest { session: name.to_owned(), ..Default::default() };
    read(client, request, |entry| {
        if sent.next() != Some((entry.kind, entry.payload.clone())) {
            measured.differences.push(format!("entry {} is not what was sent", entry.seq));
        }
        if entry.kind == i32::from(pb::EntryKind::Meta) {
            metas.push(entry.payload);
        }
        Ok(())
    })
    .await?;
    let missing = sent.count();
    if missing > 0 {
        measured.differences.push(format!("{missing} entries did not come back"));
    }
    if let Some(file) = file
        && export::verbatim(metas.iter().map(AsRef::as_ref))? != *file
    {
        measured.differences.push("the export is not the file".to_owned());
    }
    let session =
        client.sessions.get_session(pb::GetSessionRequest { name: name.to_owned() }).await?.into_inner();
    measured.bytes_stored += session.stored_bytes();
    Ok(())
}

/// The value below which a share of the values lies, in milliseconds.
fn quantile_ms(values: &mut [Duration], share: f64) -> f64 {
    values.sort_unstable();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index of a short list"
    )]
    let index = ((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1));
    values.get(index).map_or(0.0, |value| value.as_secs_f64() * 1e3)
}

impl Measured {
    fn turns_per_second(&self) -> f64 {
        let busy: Duration = self.restores.iter().chain(&self.persists).sum();
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more digits")]
        let turns = self.turns as f64;
        turns / busy.as_secs_f64().max(f64::EPSILON)
    }

    fn row(mut self, name: String) -> Vec<String> {
        let rate = format!("{:.0}", self.turns_per_second());
        let mut ms = |restores: bool, share| {
            let values = if restores { &mut self.restores } else { &mut self.persists };
            format!("{:.2} ms", quantile_ms(values, share))
        };
        let quantiles = [ms(true, 0.5), ms(true, 0.99), ms(false, 0.5), ms(false, 0.99)];
        let mut row = vec![name, self.threads.to_string(), self.turns.to_string(), rate];
        row.extend(quantiles);
        row.extend([
            self.refused.to_string(),
            bytes(self.bytes_in),
            bytes(self.bytes_stored),
            self.differences.len().to_string(),
        ]);
        row
    }

    fn json(&mut self, name: &str) -> serde_json::Value {
        serde_json::json!({
            "file": name,
            "threads": self.threads,
            "turns": self.turns,
            "turns_per_second": self.turns_per_second(),
            "restore_p50_ms": quantile_ms(&mut self.restores, 0.5),
            "restore_p99_ms": quantile_ms(&mut self.restores, 0.99),
            "persist_p50_ms": quantile_ms(&mut self.persists, 0.5),
            "persist_p99_ms": quantile_ms(&mut self.persists, 0.99),
            "refused": self.refused,
            "bytes_in": self.bytes_in,
            "bytes_stored": self.bytes_stored,
            "differences": self.differences,
        })
    }
}
