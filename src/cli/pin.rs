//! `turnkeep pin`.

use super::output::{harmless, print, print_json};
use super::{Remote, resource_name};
use crate::rpc::pb;
use clap::{Args, Subcommand};

/// List, put and delete texts that every window of a session shows word for word.
#[derive(Debug, Subcommand)]
pub(super) enum Pin {
    /// List a session's pins, as windows show them
    List(List),
    /// Pin a text, in place of that of the same name
    Put(Put),
    /// Unpin a text
    Delete(Delete),
}

impl Pin {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::List(list) => list.run().await,
            Self::Put(put) => put.run().await,
            Self::Delete(delete) => delete.run().await,
        }
    }
}

/// A pin as JSON.
pub(super) fn json(pin: &pb::Pin) -> serde_json::Value {
    serde_json::json!({"name": pin.name, "text": pin.text, "seq": pin.seq})
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
        // There are so few that they come at once.
        let request = pb::ListPinsRequest { parent: resource_name(&self.session) };
        let pins = client.memory.list_pins(request).await?.into_inner().pins;
        if self.remote.json {
            return pins.iter().try_for_each(|pin| print_json(&json(pin)));
        }
        let width = pins.iter().map(|pin| pin.name.chars().count()).max().unwrap_or(0);
        pins.iter().try_for_each(|pin| print(&harmless(&format!("{:<width$}  {}", pin.name, pin.text))))
    }
}

#[derive(Debug, Args)]
pub(super) struct Put {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// Name of the pin
    name: String,
    /// The text
    text: String,
}

impl Put {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let pin = pb::Pin { name: self.name, text: self.text, seq: 0 };
        let request = pb::PutPinRequest { parent: resource_name(&self.session), pin: Some(pin) };
        let pin = client.memory.put_pin(request).await?.into_inner();
        if self.remote.json {
            return print_json(&json(&pin));
        }
        print(&harmless(&format!("{}  {}", pin.name, pin.text)))
    }
}

#[derive(Debug, Args)]
pub(super) struct Delete {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// Name of the pin
    name: String,
}

impl Delete {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let request = pb::DeletePinRequest { parent: resource_name(&self.session), pin: self.name };
        client.memory.delete_pin(request).await?;
        Ok(())
    }
}
