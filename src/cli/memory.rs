//! `turnkeep memory`.

use super::output::{print_text, time};
use super::{Remote, episode, resource_name};
use crate::client::{Client, wire_format};
use crate::format::{Role, Shown, TextKind, read, shown};
use crate::markdown::{self, Memory as Document};
use crate::rpc::pb;
use clap::{Args, Subcommand};
use pb::read_transcript_response::Part;
use std::path::PathBuf;

/// Write what is remembered of a session to a file.
#[derive(Debug, Subcommand)]
pub(super) enum Memory {
    /// Write first request, pins, notes, what was done, and episodes as Markdown
    Export(Export),
}

impl Memory {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Export(export) => export.run().await,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Export {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// Where to write; standard output if not given
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Export {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let session = resource_name(&self.session);
        let parent = || session.clone();
        let pins = client.memory.list_pins(pb::ListPinsRequest { parent: parent() }).await?.into_inner().pins;
        let notes =
            client.memory.list_notes(pb::ListNotesRequest { parent: parent() }).await?.into_inner().notes;
        let episodes = episode::all(&mut client, &session).await?;
        let newest = pb::ListCompactionsRequest { parent: parent(), page_size: 1, ..Default::default() };
        let newest = client.transcripts.list_compactions(newest).await?.into_inner().compactions.pop();
        let ledger = newest.map(|compaction| compaction.ledger).unwrap_or_default();
        let written = Document {
            goal: first_request(&mut client, session.clone()).await?,
            session,
            pins: pins.into_iter().map(|pin| (pin.name, pin.text)).collect(),
            notes: notes.into_iter().map(|note| (note.name, note.text)).collect(),
            ledger,
            episodes: episodes.into_iter().map(told).collect(),
        }
        .render();
        match &self.output {
            None => print_text(&written),
            Some(file) => Ok(std::fs::write(file, written)?),
        }
    }
}

fn told(episode: pb::Episode) -> markdown::Episode {
    markdown::Episode {
        number: episode::number(&episode).to_owned(),
        entries: (episode.first_seq, episode.last_seq),
        time: time(episode.create_time.as_ref()),
        model: episode.model,
        text: episode.text,
    }
}

/// What the user asked first; empty if they said nothing yet.
async fn first_request(client: &mut Client, session: String) -> anyhow::Result<String> {
    let request = pb::ReadTranscriptRequest { session, ..Default::default() };
    let mut parts = client.transcripts.read_transcript(request).await?.into_inner();
    let mut format = pb::WireFormat::Unspecified;
    while let Some(message) = parts.message().await? {
        let entries = match message.part {
            Some(Part::Header(header)) => {
                format = header.format();
                continue;
            }
            Some(Part::Entries(entries)) => entries.entries,
            None => continue,
        };
        let format = wire_format(format);
        let is_asked = |entry: &&pb::Entry| {
            entry.kind() == pb::EntryKind::Message && read(format, &entry.payload).role == Role::User
        };
        if let Some(entry) = entries.iter().find(is_asked) {
            let said = shown(format, &entry.payload).into_iter().filter_map(|shown| match shown {
                Shown::Text(text) if text.kind == TextKind::Said => Some(text.content.into_owned()),
                _ => None,
            });
            return Ok(said.collect::<Vec<_>>().join("\n\n"));
        }
    }
    Ok(String::new())
}
