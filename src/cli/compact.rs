//! `turnkeep compact`.

use super::compactions::{print_compaction, stall_line};
use super::output::say;
use super::{Remote, resource_name};
use crate::rpc::pb;
use clap::Args;

/// Leave the oldest steps out of a session's windows now: the log stays whole, and no
/// model is called but with --summarize
#[derive(Debug, Args)]
pub(super) struct Compact {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// Tokens that window and preamble may take afterwards; 0.8 times half the context
    /// window if not given
    #[arg(long, value_name = "TOKENS")]
    to: Option<u64>,
    /// Keep so many of the newest messages, in whole steps
    #[arg(long, value_name = "MESSAGES", conflicts_with = "to")]
    last: Option<u64>,
    /// Put a summary in place of all but the newest steps, however full the window is, or
    /// an extract if the model fails; for interactive sessions
    #[arg(long, conflicts_with_all = ["to", "last"])]
    summarize: bool,
    /// What the summarizer is told on top of its prompt, at most 8 KiB
    #[arg(long, value_name = "TEXT", requires = "summarize")]
    instructions: Option<String>,
    /// The version that the session must have
    #[arg(long)]
    expected_version: Option<u64>,
}

impl Compact {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let strategy = match self.last {
            None if self.summarize => pb::CompactionStrategy::Summarize,
            None => pb::CompactionStrategy::Truncate,
            Some(_) => pb::CompactionStrategy::LastMessages,
        };
        let request = pb::CompactTranscriptRequest {
            session: resource_name(&self.session),
            strategy: strategy.into(),
            target_tokens: self.to,
            messages: self.last.unwrap_or_default(),
            expected_version: self.expected_version,
            instructions: self.instructions.unwrap_or_default(),
        };
        let compacted = client.transcripts.compact_transcript(request).await?.into_inner();
        if let Some(stall) = &compacted.stall {
            say(&stall_line(stall));
        }
        let Some(compaction) = compacted.compaction else {
            say("nothing had to be left out, or nothing could");
            return Ok(());
        };
        print_compaction(&self.remote, &compaction)
    }
}
