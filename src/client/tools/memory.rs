//! Answers to calls of the tools that read entries, and read and keep notes. What they
//! read comes in pages that fit a tool result.

use crate::client::{Client, wire_format};
use crate::format::escaped_length;
use crate::limits::TRANSCRIPT_PAGE_CHARACTERS;
use crate::markdown::Transcript;
use crate::rpc::pb;
use pb::read_transcript_response::Part;
use serde::Deserialize;
use tonic::Status;

/// Arguments of `read_transcript`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EntriesArguments {
    first_seq: u64,
    last_seq: Option<u64>,
    first_character: Option<usize>,
}

/// Arguments of `get_note`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GetNoteArguments {
    name: Option<String>,
    first_character: Option<usize>,
}

/// Arguments of `put_note`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PutNoteArguments {
    name: String,
    text: String,
}

/// What a page has room for.
struct Room {
    /// Characters of the text.
    characters: usize,
    /// Characters as they are written in the message.
    escaped: u64,
}

impl Room {
    /// Takes as much of a text as fits.
    fn take<'t>(&mut self, text: &'t str) -> &'t str {
        let end = text.char_indices().find(|(_, c)| {
            let more = escaped_length(*c);
            let fits = self.characters > 0 && more <= self.escaped;
            if fits {
                self.characters -= 1;
                self.escaped -= more;
            }
            !fits
        });
        end.and_then(|(end, _)| text.get(..end)).unwrap_or(text)
    }
}

/// A text without its first characters.
fn from_character(text: &str, first: usize) -> &str {
    text.char_indices().nth(first).and_then(|(start, _)| text.get(start..)).unwrap_or_default()
}

impl Client {
    /// The room of a page that a model of a session reads, without the line that says
    /// where to go on.
    async fn room(&mut self, session: &str) -> Result<Room, Status> {
        /// A place has two numbers at most.
        const GO_ON_CHARACTERS: u64 = 100;
        let request = pb::GetSessionRequest { name: session.to_owned() };
        let session = self.sessions.get_session(request).await?.into_inner();
        let page = session.applied_limits.map_or(0, |limits| limits.page_characters);
        Ok(Room {
            characters: TRANSCRIPT_PAGE_CHARACTERS,
            escaped: page.saturating_sub(GO_ON_CHARACTERS).max(GO_ON_CHARACTERS),
        })
    }

    pub(super) async fn read_entries(
        &mut self,
        session: &str,
        arguments: EntriesArguments,
    ) -> Result<String, Status> {
        let EntriesArguments { first_seq, last_seq, first_character } = arguments;
        let request = pb::ReadTranscriptRequest {
            session: session.to_owned(),
            first_seq: Some(first_seq),
            last_seq,
            at_version: None,
        };
        let mut parts = self.transcripts.read_transcript(request).await?.into_inner();
        let mut room = self.room(session).await?;
        let (mut format, mut newest) = (pb::WireFormat::Unspecified, 0);
        let mut skipped = first_character.unwrap_or_default();
        let mut text = String::new();
        while let Some(message) = parts.message().await? {
            let entries = match message.part {
                Some(Part::Header(header)) => {
                    (format, newest) = (header.format(), header.head_seq);
                    continue;
                }
                Some(Part::Entries(entries)) => entries.entries,
                None => continue,
            };
            for entry in entries.into_iter().filter(|entry| entry.kind() == pb::EntryKind::Message) {
                // By itself each entry is told in the same words, wherever a page begins.
                let told = Transcript::new(wire_format(format)).entry(entry.seq, &entry.payload);
                let between = if text.is_empty() { "" } else { "\n" };
                let rest = format!("{between}{}", from_character(&told, skipped));
                let part = room.take(&rest);
                if part.len() < rest.len() {
                    let seq = entry.seq;
                    if !text.is_empty() {
                        return Ok(format!("{text}\n[go on with first_seq {seq}]"));
                    }
                    let end = skipped + part.chars().count();
                    return Ok(format!("{part}\n[go on with first_seq {seq} and first_character {end}]"));
                }
                text.push_str(&rest);
                skipped = 0;
            }
        }
        Ok(if text.is_empty() { format!("[nothing: the newest entry is {newest}]") } else { text })
    }

    pub(super) async fn get_note(
        &mut self,
        session: &str,
        arguments: GetNoteArguments,
    ) -> Result<String, Status> {
        let parent = session.to_owned();
        let text = if let Some(note) = arguments.name {
            self.memory.get_note(pb::GetNoteRequest { parent, note }).await?.into_inner().text
        } else {
            let notes = self.memory.list_notes(pb::ListNotesRequest { parent }).await?.into_inner().notes;
            let lines = notes.iter().map(|note| format!("{} ({} bytes)", note.name, note.text.len()));
            lines.collect::<Vec<_>>().join("\n")
        };
        if text.is_empty() {
            return Ok("[no notes]".to_owned());
        }
        let first = arguments.first_character.unwrap_or_default();
        let rest = from_character(&text, first);
        if rest.is_empty() {
            return Ok(format!("[nothing: it has {} characters]", text.chars().count()));
        }
        let part = self.room(session).await?.take(rest).to_owned();
        if part.len() == rest.len() {
            return Ok(part);
        }
        let end = first + part.chars().count();
        Ok(format!("{part}\n[go on with first_character {end}]"))
    }

    pub(super) async fn put_note(
        &mut self,
        session: &str,
        arguments: PutNoteArguments,
    ) -> Result<String, Status> {
        let PutNoteArguments { name, text } = arguments;
        let note = pb::Note { name, text, update_time: None };
        let request = pb::PutNoteRequest { parent: session.to_owned(), note: Some(note) };
        self.memory.put_note(request).await?;
        Ok("[kept]".to_owned())
    }
}
