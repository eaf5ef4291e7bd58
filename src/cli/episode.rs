//! `turnkeep episode`.

use super::output::{Listing, paged, print_json, print_text, time};
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

/// Episodes that are asked for at a time.
const PAGE: usize = 100;

/// All episodes of a session, the newest first.
pub(super) async fn all(client: &mut Client, session: &str) -> anyhow::Result<Vec<pb::Episode>> {
    let parent = resource_name(session);
    let page = async |page_size, page_token| {
        let request = pb::ListEpisodesRequest { parent: parent.clone(), page_size, page_token };
        let page = client.memory.list_episodes(request).await?.into_inner();
        Ok((page.episodes, page.next_page_token))
    };
    let mut episodes = Vec::new();
    let each = |episode| {
        episodes.push(episode);
        Ok(())
    };
    paged(0, PAGE, String::new(), page, each).await?;
    Ok(episodes)
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
        let mut list = Listing::new(&self.remote, &["episode", "entries", "version", "bytes", "time", "by"]);
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
        episodes.iter().try_for_each(|episode| list.add(episode, json, row))?;
        list.end()
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
