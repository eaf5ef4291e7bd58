//! `turnkeep compactions`.

use super::output::{Listing, harmless, name, paged, print, print_json, say, time};
use super::{Remote, resource_name};
use crate::model::Cost;
use crate::rpc::pb;
use clap::{Args, Subcommand};

/// List, show and undo what was left out of a session's windows.
#[derive(Debug, Subcommand)]
pub(super) enum Compactions {
    /// List a session's compactions, the newest first
    List(List),
    /// Show a compaction: what it left out, and what stands for it
    Show(Show),
    /// Take a compaction back, and those after it
    Undo(Undo),
}

impl Compactions {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::List(list) => list.run().await,
            Self::Show(show) => show.run().await,
            Self::Undo(undo) => undo.run().await,
        }
    }
}

/// Compactions that are asked for at a time.
pub(super) const PAGE: usize = 100;

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// At most so many; all if 0
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Where an earlier list ended
    #[arg(long, value_name = "TOKEN", default_value = "")]
    page_token: String,
}

impl List {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let columns = ["number", "kind", "version", "before", "after", "left out", "shown from", "time"];
        let mut list = Listing::new(&self.remote, &columns);
        let page = async |size, token| page(&mut client, &self.session, size, token).await;
        let next =
            paged(self.limit, PAGE, self.page_token, page, |compaction| list.add(&compaction, json, row));
        let next = next.await?;
        list.end()?;
        if !next.is_empty() {
            say(&format!("there may be more: --page-token {next}"));
        }
        Ok(())
    }
}

fn row(compaction: &pb::Compaction) -> Vec<String> {
    vec![
        number(compaction).to_owned(),
        kind(compaction),
        compaction.version.to_string(),
        compaction.tokens_before.to_string(),
        compaction.tokens_after.to_string(),
        compaction.omitted_entries.to_string(),
        compaction.first_kept_seq.to_string(),
        time(compaction.create_time.as_ref()),
    ]
}

/// The number in the name of a compaction.
pub(super) fn number(compaction: &pb::Compaction) -> &str {
    compaction.name.rsplit('/').next().unwrap_or_default()
}

pub(super) fn kind(compaction: &pb::Compaction) -> String {
    name(compaction.kind().as_str_name(), "COMPACTION_KIND_")
}

/// A compaction as JSON.
fn json(compaction: &pb::Compaction) -> serde_json::Value {
    serde_json::json!({
        "name": compaction.name,
        "kind": kind(compaction),
        "version": compaction.version,
        "create_time": time(compaction.create_time.as_ref()),
        "cause": compaction.cause,
        "tokens_before": compaction.tokens_before,
        "tokens_after": compaction.tokens_after,
        "first_kept_seq": compaction.first_kept_seq,
        "kept_seqs": compaction.kept_seqs,
        "omitted_entries": compaction.omitted_entries,
        "omitted_tokens": compaction.omitted_tokens,
        "snipped_seqs": compaction.snipped_seqs,
        "stale_seqs": compaction.stale_seqs,
        "summary": compaction.summary,
        "ledger": compaction.ledger,
        "pins": compaction.pins.iter().map(super::pin::json).collect::<Vec<_>>(),
        "undone": compaction.undone,
        "cache": compaction.cache.as_ref().map(cache_json),
        "token_factor_permille": compaction.token_factor_permille,
        "summarizer": compaction.summarizer.as_ref().map(summarizer_json),
        "audit": compaction.audit.iter().map(|tally| {
            serde_json::json!({"subject": tally.subject, "kept": tally.kept, "lost": tally.lost})
        }).collect::<Vec<_>>(),
        "losses": compaction.losses.iter().map(loss_json).collect::<Vec<_>>(),
        "without_relief": compaction.without_relief,
    })
}

/// What became of the prompt cache, as JSON.
pub(super) fn cache_json(cache: &pb::CacheBreak) -> serde_json::Value {
    serde_json::json!({
        "kept_tokens": cache.kept_tokens,
        "resent_tokens": cache.resent_tokens,
        "cost": cache.cost_picodollars.map(|cost| Cost(cost).to_string()),
    })
}

/// The same for people.
pub(super) fn cache_line(cache: &pb::CacheBreak) -> String {
    let cost =
        cache.cost_picodollars.map_or_else(|| "unknown cost".to_owned(), |cost| Cost(cost).to_string());
    format!("{} tokens stay, {} to be sent again, {cost}", cache.kept_tokens, cache.resent_tokens)
}

/// That compactions bring a window no relief, for people.
pub(super) fn stall_line(stall: &pb::CompactionStall) -> String {
    let others = stall.window_tokens.saturating_sub(stall.last_step_tokens);
    let in_a_row = match stall.compactions {
        0 => String::new(),
        in_a_row => format!("; {in_a_row} compactions in a row brought no relief"),
    };
    format!(
        "the window is over {} tokens: {} are taken by the preamble, {others} by what must stay and {} by the \
         newest step{in_a_row}",
        stall.limit_tokens, stall.preamble_tokens, stall.last_step_tokens
    )
}

/// The same as JSON.
pub(super) fn stall_json(stall: &pb::CompactionStall) -> serde_json::Value {
    serde_json::json!({
        "compactions": stall.compactions,
        "limit_tokens": stall.limit_tokens,
        "window_tokens": stall.window_tokens,
        "last_step_tokens": stall.last_step_tokens,
        "preamble_tokens": stall.preamble_tokens,
    })
}

/// How a model was asked for a summary, as JSON.
pub(super) fn summarizer_json(call: &pb::SummarizerCall) -> serde_json::Value {
    serde_json::json!({
        "model": call.model,
        "input_tokens": call.input_tokens,
        "output_tokens": call.output_tokens,
        "cost": call.cost_picodollars.map(|cost| Cost(cost).to_string()),
        "failure": call.failure,
        "unsupported": call.unsupported,
    })
}

/// The same for people.
pub(super) fn summarizer_line(call: &pb::SummarizerCall) -> String {
    let model = if call.model.is_empty() { "no model answered" } else { &call.model };
    let cost = call.cost_picodollars.map_or_else(|| "unknown cost".to_owned(), |cost| Cost(cost).to_string());
    let (read, written) = (call.input_tokens, call.output_tokens);
    let failed = if call.failure.is_empty() { String::new() } else { format!("; failed: {}", call.failure) };
    format!("{model}, {read} tokens read, {written} written, {cost}{failed}")
}

/// Something that a window does not hold any more, as JSON.
pub(super) fn loss_json(loss: &pb::AuditLoss) -> serde_json::Value {
    serde_json::json!({"subject": loss.subject, "text": loss.text, "seq": loss.seq})
}

/// The same for people.
pub(super) fn loss_line(loss: &pb::AuditLoss) -> String {
    format!("{} of entry {}: {}", loss.subject, loss.seq, loss.text)
}

fn tally_line(tally: &pb::AuditTally) -> String {
    format!("{}: {} kept, {} lost", tally.subject, tally.kept, tally.lost)
}

/// Lists a session's compactions after a page token; gives the next token.
pub(super) async fn page(
    client: &mut crate::client::Client,
    session: &str,
    page_size: i32,
    page_token: String,
) -> Result<(Vec<pb::Compaction>, String), tonic::Status> {
    let request = pb::ListCompactionsRequest { parent: resource_name(session), page_size, page_token };
    let page = client.transcripts.list_compactions(request).await?.into_inner();
    Ok((page.compactions, page.next_page_token))
}

/// Prints what a compaction did, in a line.
pub(super) fn print_compaction(remote: &Remote, compaction: &pb::Compaction) -> anyhow::Result<()> {
    if remote.json {
        return print_json(&json(compaction));
    }
    print(&format!(
        "{} {} {} to {} tokens, {} messages left out, shown from entry {}",
        compaction.name,
        kind(compaction),
        compaction.tokens_before,
        compaction.tokens_after,
        compaction.omitted_entries,
        compaction.first_kept_seq,
    ))
}

/// A compaction of a session.
#[derive(Debug, Args)]
struct Which {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// The compaction's number
    number: u64,
}

impl Which {
    fn name(&self) -> String {
        format!("{}/compactions/{}", resource_name(&self.session), self.number)
    }
}

#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    which: Which,
}

impl Show {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.which.remote.connect().await?;
        let request = pb::GetCompactionRequest { name: self.which.name() };
        let compaction = client.transcripts.get_compaction(request).await?.into_inner();
        let json = json(&compaction);
        if self.which.remote.json {
            return print_json(&json);
        }
        for (field, value) in json.as_object().into_iter().flatten() {
            let text = match field.as_str() {
                "summarizer" => compaction.summarizer.as_ref().map(summarizer_line).unwrap_or_default(),
                "cache" => compaction.cache.as_ref().map(cache_line).unwrap_or_default(),
                "audit" => compaction.audit.iter().map(tally_line).collect::<Vec<_>>().join("\n"),
                "losses" => compaction.losses.iter().map(loss_line).collect::<Vec<_>>().join("\n"),
                _ => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
            };
            // Texts of several lines are for people to read.
            let mut lines = text.lines();
            print(&harmless(format!("{field:<16} {}", lines.next().unwrap_or_default()).trim_end()))?;
            lines.try_for_each(|line| print(&harmless(&format!("{:<16} {line}", ""))))?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(super) struct Undo {
    #[command(flatten)]
    which: Which,
}

impl Undo {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.which.remote.connect().await?;
        let request = pb::UndoCompactionRequest { name: self.which.name() };
        let undone = client.transcripts.undo_compaction(request).await?.into_inner();
        print_compaction(&self.which.remote, &undone)
    }
}
