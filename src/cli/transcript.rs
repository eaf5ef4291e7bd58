//! `turnkeep transcript`.

mod search;

use super::import::Import;
use super::output::{Shown, harmless, hex, name, print, print_json, progress, say, time};
use super::{NO_CONTEXT_WINDOW, Remote, resource_name};
use crate::client::{Client, wire_format};
use crate::clock;
use crate::export::{self, Layout};
use crate::markdown;
use crate::rpc::pb;
use clap::{Args, Subcommand};
use pb::read_transcript_response::Part;
use std::path::PathBuf;
use std::time::Duration;

/// Show, search, export, import and follow transcripts.
#[derive(Debug, Subcommand)]
pub(super) enum Transcript {
    /// Show entries of the log, or the window that a model would be sent
    Show(Show),
    /// Find what was said, in the whole log and in the tool outputs
    Search(search::Search),
    /// Write the messages of the log to a file
    Export(Export),
    /// Make sessions of a foreign transcript
    Import(Import),
    /// Follow a session as it grows
    Tail(Tail),
}

impl Transcript {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Show(show) => show.run().await,
            Self::Search(search) => search.run().await,
            Self::Export(export) => export.run().await,
            Self::Import(import) => import.run().await,
            Self::Tail(tail) => tail.run().await,
        }
    }
}

/// Which part of the log.
#[derive(Debug, Args)]
struct Range {
    /// First entry
    #[arg(long, value_name = "SEQ")]
    first: Option<u64>,
    /// Last entry
    #[arg(long, value_name = "SEQ")]
    last: Option<u64>,
    /// Version of the log; the newest if not given
    #[arg(long, value_name = "VERSION")]
    at: Option<u64>,
}

impl Range {
    fn request(&self, session: &str) -> pb::ReadTranscriptRequest {
        pb::ReadTranscriptRequest {
            session: resource_name(session),
            first_seq: self.first,
            last_seq: self.last,
            at_version: self.at,
        }
    }
}

/// Reads a range and hands on each entry; returns the header.
pub(super) async fn read(
    client: &mut Client,
    request: pb::ReadTranscriptRequest,
    mut each: impl FnMut(pb::Entry) -> anyhow::Result<()>,
) -> anyhow::Result<pb::ReadHeader> {
    let mut parts = client.transcripts.read_transcript(request).await?.into_inner();
    let mut header = pb::ReadHeader::default();
    while let Some(message) = parts.message().await? {
        match message.part {
            Some(Part::Header(first)) => header = first,
            Some(Part::Entries(entries)) => entries.entries.into_iter().try_for_each(&mut each)?,
            None => {}
        }
    }
    Ok(header)
}

#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    #[command(flatten)]
    range: Range,
    /// Show the window instead of the log
    #[arg(long, conflicts_with_all = ["first", "last"])]
    window: bool,
    /// Characters of each payload to show; all if 0
    #[arg(long, default_value_t = 200)]
    width: usize,
}

impl Show {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        if self.window {
            return self.show_window(&mut client).await;
        }
        let request = self.range.request(&self.session);
        read(&mut client, request, |entry| print_entry(&entry, self.remote.json, self.width)).await?;
        Ok(())
    }

    async fn show_window(&self, client: &mut Client) -> anyhow::Result<()> {
        let mut window = crate::client::Window::default();
        let request = pb::RestoreTranscriptRequest {
            session: resource_name(&self.session),
            at_version: self.range.at,
            ..Default::default()
        };
        let header = client.restore(&mut window, request).await?;
        for item in &window.items {
            let origin = name(item.origin().as_str_name(), "ITEM_ORIGIN_");
            if self.remote.json {
                print(&String::from_utf8_lossy(&item.payload))?;
            } else {
                print(&format!(
                    "{:?} {origin} {} tokens {}",
                    item.seqs,
                    item.tokens,
                    excerpt(&item.payload, self.width)
                ))?;
            }
        }
        for repair in &header.repairs {
            let kind = name(repair.kind().as_str_name(), "REPAIR_KIND_");
            say(&format!("repair: {kind} entries {:?} {} {}", repair.seqs, repair.id, repair.detail));
        }
        for call in &header.unanswered_calls {
            say(&format!("unanswered: {} {} in entry {}", call.name, call.call_id, call.seq));
        }
        if let Some(preamble) = &header.preamble {
            say(&format!("preamble: {} tokens {}", preamble.tokens, excerpt(&preamble.payload, self.width)));
        }
        let fits = header.fits.map_or(NO_CONTEXT_WINDOW, |fits| if fits { "yes" } else { "no" });
        say(&format!(
            "version {}, {} items, {} tokens of {} in the log, fits: {fits}, next: {}",
            header.version,
            header.item_count,
            header.tokens_after,
            header.tokens_before,
            name(header.next().as_str_name(), "NEXT_STEP_"),
        ));
        Ok(())
    }
}

fn print_entry(entry: &pb::Entry, json: bool, width: usize) -> anyhow::Result<()> {
    let kind = pb::EntryKind::try_from(entry.kind)
        .map_or_else(|_| entry.kind.to_string(), |kind| name(kind.as_str_name(), "ENTRY_KIND_"));
    let at = time(entry.time.as_ref());
    if json {
        let payload: &serde_json::value::RawValue = serde_json::from_slice(&entry.payload)?;
        return print_json(&EntryLine {
            seq: entry.seq,
            version: entry.version,
            time: at,
            kind,
            tokens: entry.tokens,
            payload,
        });
    }
    print(&format!(
        "{} v{} {at} {kind} {} tokens {}",
        entry.seq,
        entry.version,
        entry.tokens,
        excerpt(&entry.payload, width)
    ))
}

#[derive(serde::Serialize)]
struct EntryLine<'a> {
    seq: u64,
    version: u64,
    time: String,
    kind: String,
    tokens: u64,
    payload: &'a serde_json::value::RawValue,
}

/// The beginning of a payload.
fn excerpt(payload: &[u8], width: usize) -> String {
    let text = String::from_utf8_lossy(payload);
    if width == 0 || text.chars().count() <= width {
        return harmless(&text);
    }
    harmless(&text.chars().take(width).chain(['…']).collect::<String>())
}

#[derive(Debug, Args)]
pub(super) struct Export {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    #[command(flatten)]
    range: Range,
    /// Write the file that was imported with --verbatim, byte for byte
    #[arg(long)]
    verbatim: bool,
    /// One array instead of a message a line
    #[arg(long, conflicts_with = "verbatim")]
    array: bool,
    /// Write the conversation as Markdown, for people to read
    #[arg(long, conflicts_with_all = ["verbatim", "array"])]
    markdown: bool,
    /// Where to write; standard output if not given
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Export {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let bar = progress(None, "entries");
        let mut payloads = Vec::new();
        let wanted = if self.verbatim { pb::EntryKind::Meta } else { pb::EntryKind::Message };
        let request = self.range.request(&self.session);
        let header = read(&mut client, request, |entry| {
            bar.inc(1);
            if entry.kind == i32::from(wanted) {
                payloads.push((entry.seq, entry.payload));
            }
            Ok(())
        })
        .await?;
        bar.finish_and_clear();
        let bytes = payloads.iter().map(|(_, payload)| payload.as_ref());
        let written = if self.verbatim {
            export::verbatim(bytes)?
        } else if self.markdown {
            let mut transcript = markdown::Transcript::new(wire_format(header.format()));
            let title = format!("# {}, version {}\n", resource_name(&self.session), header.version);
            let entries = payloads.iter().map(|(seq, payload)| transcript.entry(*seq, payload));
            std::iter::once(title).chain(entries).collect::<Vec<_>>().join("\n").into_bytes()
        } else {
            let layout = if self.array { Layout::JsonArray } else { Layout::JsonLines };
            export::plain(bytes, layout)
        };
        match &self.output {
            None => {
                let mut shown = Shown::to_stdout();
                shown.write(&written)?;
                shown.finish()?;
            }
            Some(file) => std::fs::write(file, &written)?,
        }
        say(&format!(
            "{} messages, {} bytes, receipt {}",
            payloads.len(),
            written.len(),
            hex(&header.receipt)
        ));
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(super) struct Tail {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// How many of the newest entries to begin with
    #[arg(long, short = 'n', default_value_t = 10)]
    entries: u64,
    /// Characters of each payload to show; all if 0
    #[arg(long, default_value_t = 200)]
    width: usize,
    /// Stop once nothing has come for so many seconds; never if 0
    #[arg(long, default_value_t = 0)]
    idle_seconds: u64,
}

impl Tail {
    async fn run(self) -> anyhow::Result<()> {
        const PAUSE: Duration = Duration::from_millis(500);
        let mut client = self.remote.connect().await?;
        let name = resource_name(&self.session);
        let mut get =
            async || client.sessions.get_session(pb::GetSessionRequest { name: name.clone() }).await;
        let session = get().await?.into_inner();
        let (mut version, mut next) = (0, session.head_seq.saturating_sub(self.entries) + 1);
        let mut idle = Duration::ZERO;
        loop {
            let session =
                client.sessions.get_session(pb::GetSessionRequest { name: name.clone() }).await?.into_inner();
            if session.version == version {
                if self.idle_seconds > 0 && idle.as_secs() >= self.idle_seconds {
                    return Ok(());
                }
                clock::sleep(PAUSE).await;
                idle += PAUSE;
                continue;
            }
            idle = Duration::ZERO;
            if let Some(kept) = rewound_to(&mut client, &name, version, &session).await?
                && kept + 1 < next
            {
                say(&format!("rewound to entry {kept}"));
                next = kept + 1;
            }
            version = session.version;
            let request = pb::ReadTranscriptRequest {
                session: name.clone(),
                first_seq: Some(next),
                last_seq: None,
                at_version: Some(version),
            };
            read(&mut client, request, |entry| {
                next = entry.seq + 1;
                print_entry(&entry, self.remote.json, self.width)
            })
            .await?;
        }
    }
}

/// The newest entry that no rewind after `version` took back; nothing if there
/// was none.
async fn rewound_to(
    client: &mut Client,
    name: &str,
    version: u64,
    session: &pb::Session,
) -> anyhow::Result<Option<u64>> {
    // At the start there is nothing to take back.
    if version == 0 {
        return Ok(None);
    }
    let mut request = pb::ListTurnsRequest { name: name.to_owned(), ..Default::default() };
    let mut kept = None;
    loop {
        let page = client.sessions.list_turns(request).await?.into_inner();
        let new = page.turns.iter().take_while(|turn| turn.version > version);
        let new = new.filter(|turn| turn.version <= session.version);
        let rewinds = new.filter(|turn| turn.kind() == pb::TurnKind::Rewind).map(|turn| turn.last_seq);
        kept = kept.into_iter().chain(rewinds).min();
        let is_all = page.turns.last().is_none_or(|turn| turn.version <= version);
        if is_all || page.next_page_token.is_empty() {
            return Ok(kept);
        }
        request = pb::ListTurnsRequest {
            name: name.to_owned(),
            page_token: page.next_page_token,
            ..Default::default()
        };
    }
}
