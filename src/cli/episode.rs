//! `turnkeep episode`.

use super::output::{print, print_json, print_text, table, time};
use super::{Remote, resource_name};
use crate::client::Client;
use crate::rpc::pb;
use clap::{Args, Subcommand};

/// List and show the summaries of what left a session's windows.
#[derive(Debug, Subcommand)]
pub(super) enum Episode {
    /// List a session's episodes, the newest first
    List(List),
    /// Print the text of an episode
    Show(Show),
}

impl Episode {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::List(list) => list.run().await,
            Self::Show(show) => show.run().await,
        }
    }
}

/// All episodes of a session, the newest first.
pub(super) async fn all(client: &mut Client, session: &str) -> anyhow::Result<Vec<pb::Episode>> {
    let mut request = pb::ListEpisodesRequest { parent: resource_name(session), ..Default::default() };
    let mut episodes = Vec::new();
    loop {
        let page = client.memory.list_episodes(request.clone()).await?.into_inner();
        episodes.extend(page.episodes);
        if page.next_page_token.is_empty() {
            return Ok(episodes);
        }
        request.page_token = page.next_page_token;
    }
}

/// The number of an episode.
pub(super) fn number(episode: &pb::Episode) -> &str {
    episode.name.rsplit('/').next().unwrap_or_default()
}

fn json(episode: &pb::Episode) -> serde_json::Value {
    serde_json::json!({
        "name": episode.name,
        "compaction": episode.compaction,
        "version": episode.version,
        "create_time": time(episode.create_time.as_ref()),
        "first_seq": episode.first_seq,
        "last_seq": episode.last_seq,
        "text": episode.text,
        "ledger": episode.ledger,
        "model": episode.model,
        "cause": episode.cause,
    })
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
        let episodes = all(&mut client, &self.session).await?;
        if self.remote.json {
            return episodes.iter().try_for_each(|episode| print_json(&json(episode)));
        }
        if episodes.is_empty() {
            return Ok(());
        }
        let row = |episode: &pb::Episode| {
            let by = if episode.model.is_empty() { &episode.cause } else { &episode.model };
            vec![
                number(episode).to_owned(),
                format!("{}-{}", episode.first_seq, episode.last_seq),
                episode.version.to_string(),
                episode.text.len().to_string(),
                time(episode.create_time.as_ref()),
                by.clone(),
            ]
        };
        let head = ["episode", "entries", "version", "bytes", "time", "by"].map(str::to_owned).to_vec();
        print(&table(&std::iter::once(head).chain(episodes.iter().map(row)).collect::<Vec<_>>()))
    }
}

#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// Number of the episode
    number: u64,
}

impl Show {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let name = format!("{}/episodes/{}", resource_name(&self.session), self.number);
        let episode = client.memory.get_episode(pb::GetEpisodeRequest { name }).await?.into_inner();
        if self.remote.json { print_json(&json(&episode)) } else { print_text(&episode.text) }
    }
}
