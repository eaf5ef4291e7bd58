//! Answers to calls of the tools that read entries, and read and keep notes.

use crate::client::{Client, wire_format};
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
}

/// Arguments of `put_note`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PutNoteArguments {
    name: String,
    text: String,
}

impl Client {
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
        let (mut format, mut newest) = (pb::WireFormat::Unspecified, 0);
        let mut skipped = first_character.unwrap_or_default();
        let mut text = String::new();
        let mut room = TRANSCRIPT_PAGE_CHARACTERS;
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
                let rest: String = told.chars().skip(skipped).collect();
                let characters = rest.chars().count();
                if characters > room && text.is_empty() {
                    let end = skipped + room;
                    let part: String = rest.chars().take(room).collect();
                    return Ok(format!(
                        "{part}\n[go on with first_seq {} and first_character {end}]",
                        entry.seq
                    ));
                }
                if characters > room {
                    return Ok(format!("{text}\n[go on with first_seq {}]", entry.seq));
                }
                if !text.is_empty() {
                    text.push('\n');
                }
                text.push_str(&rest);
                room -= characters;
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
        if let Some(note) = arguments.name {
            let request = pb::GetNoteRequest { parent, note };
            return Ok(self.memory.get_note(request).await?.into_inner().text);
        }
        let notes = self.memory.list_notes(pb::ListNotesRequest { parent }).await?.into_inner().notes;
        let lines: Vec<_> =
            notes.iter().map(|note| format!("{} ({} bytes)", note.name, note.text.len())).collect();
        Ok(if lines.is_empty() { "[no notes]".to_owned() } else { lines.join("\n") })
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
