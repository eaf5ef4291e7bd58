//! `turnkeep note`.

use super::output::{Listing, print_json, print_text, time};
use super::{Remote, resource_name};
use crate::rpc::pb;
use clap::{Args, Subcommand};
use std::io::Read as _;

/// List, read, put and delete the notes of a session.
#[derive(Debug, Subcommand)]
pub(super) enum Note {
    /// List a session's notes
    List(List),
    /// Print the text of a note
    Get(Get),
    /// Keep a note, in place of that of the same name
    Put(Put),
    /// Delete a note
    Delete(Delete),
}

impl Note {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::List(list) => list.run().await,
            Self::Get(get) => get.run().await,
            Self::Put(put) => put.run().await,
            Self::Delete(delete) => delete.run().await,
        }
    }
}

fn json(note: &pb::Note) -> serde_json::Value {
    serde_json::json!({"name": note.name, "text": note.text, "update_time": time(note.update_time.as_ref())})
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
}

impl List {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let request = pb::ListNotesRequest { parent: resource_name(&self.session) };
        let notes = client.memory.list_notes(request).await?.into_inner().notes;
        let mut list = Listing::new(&self.remote, &["note", "bytes", "put"]);
        let row = |note: &pb::Note| {
            vec![note.name.clone(), note.text.len().to_string(), time(note.update_time.as_ref())]
        };
        notes.iter().try_for_each(|note| list.add(note, json, row))?;
        list.end()
    }
}

#[derive(Debug, Args)]
pub(super) struct Get {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// Name of the note
    name: String,
}

impl Get {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let request = pb::GetNoteRequest { parent: resource_name(&self.session), note: self.name };
        let note = client.memory.get_note(request).await?.into_inner();
        if self.remote.json { print_json(&json(&note)) } else { print_text(&note.text) }
    }
}

#[derive(Debug, Args)]
pub(super) struct Put {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// Name of the note
    name: String,
    /// The text; standard input if not given
    text: Option<String>,
}

impl Put {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let mut text = self.text.clone().unwrap_or_default();
        if self.text.is_none() {
            std::io::stdin().lock().read_to_string(&mut text)?;
        }
        let note = pb::Note { name: self.name, text, update_time: None };
        let request = pb::PutNoteRequest { parent: resource_name(&self.session), note: Some(note) };
        let note = client.memory.put_note(request).await?.into_inner();
        if self.remote.json { print_json(&json(&note)) } else { Ok(()) }
    }
}

#[derive(Debug, Args)]
pub(super) struct Delete {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// Name of the note
    name: String,
}

impl Delete {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let request = pb::DeleteNoteRequest { parent: resource_name(&self.session), note: self.name };
        client.memory.delete_note(request).await?;
        Ok(())
    }
}
