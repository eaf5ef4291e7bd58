//! `turnkeep audit`: what compactions kept and lost of what was said, and their price.

use super::Remote;
use super::compactions::{
    PAGE, cache_json, cache_line, kind, loss_json, loss_line, number, page, summarizer_json, summarizer_line,
};
use super::output::{harmless, paged, print, print_json, table, time};
use crate::model::Cost;
use crate::rpc::pb;
use clap::Args;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Say what each compaction of a session kept and lost, and what it cost, the oldest first.
#[derive(Debug, Args)]
pub(super) struct Audit {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// Lost literals that are shown of each compaction; lost constraints and decisions all are
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    literals: usize,
}

impl Audit {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let compactions = self.compactions().await?;
        let mut sums = Sums::default();
        let taken_back = taken_back(&compactions);
        for compaction in &compactions {
            sums.add(compaction, taken_back.contains(number(compaction)));
            if self.remote.json {
                print_json(&self.json(compaction))?;
            } else {
                self.print(compaction)?;
            }
        }
        if self.remote.json { print_json(&sums.json()) } else { sums.print() }
    }

    /// All of the session's, the oldest first.
    async fn compactions(&self) -> anyhow::Result<Vec<pb::Compaction>> {
        let mut client = self.remote.connect().await?;
        let mut all = Vec::new();
        let page = async |size, token| page(&mut client, &self.session, size, token).await;
        let each = |compaction| {
            all.push(compaction);
            Ok(())
        };
        paged(0, PAGE, String::new(), page, each).await?;
        all.reverse();
        Ok(all)
    }

    /// The losses that are shown, and how many are not.
    fn losses<'c>(&self, compaction: &'c pb::Compaction) -> (Vec<&'c pb::AuditLoss>, u64) {
        let is_literal =
            |loss: &pb::AuditLoss| !["pin", "constraint", "decision"].contains(&loss.subject.as_str());
        let mut literals = 0;
        let shown = compaction.losses.iter().filter(|loss| {
            literals += usize::from(is_literal(loss));
            !is_literal(loss) || literals <= self.literals
        });
        let shown: Vec<_> = shown.collect();
        let lost: u64 = compaction.audit.iter().map(|tally| tally.lost).sum();
        let more = lost.saturating_sub(shown.len() as u64);
        (shown, more)
    }

    fn json(&self, compaction: &pb::Compaction) -> serde_json::Value {
        let (losses, more) = self.losses(compaction);
        json!({
            "compaction": compaction.name,
            "kind": kind(compaction),
            "version": compaction.version,
            "create_time": time(compaction.create_time.as_ref()),
            "cause": compaction.cause,
            "tokens_before": compaction.tokens_before,
            "tokens_after": compaction.tokens_after,
            "omitted_entries": compaction.omitted_entries,
            "stated": Tallies::of(compaction).json(),
            "losses": losses.into_iter().map(loss_json).collect::<Vec<_>>(),
            "losses_not_shown": more,
            "cache": compaction.cache.as_ref().map(cache_json),
            "summarizer": compaction.summarizer.as_ref().map(summarizer_json),
            "without_relief": compaction.without_relief,
        })
    }

    fn print(&self, compaction: &pb::Compaction) -> anyhow::Result<()> {
        print(&harmless(&format!(
            "compaction {}, {}, at version {}: {}",
            number(compaction),
            kind(compaction),
            compaction.version,
            compaction.cause
        )))?;
        let (before, after) = (compaction.tokens_before, compaction.tokens_after);
        let omitted = compaction.omitted_entries;
        print(&format!("  {before} to {after} tokens, {omitted} messages left out"))?;
        if compaction.without_relief > 0 {
            let in_a_row = compaction.without_relief;
            print(&format!("  no relief, {in_a_row} in a row: the window is still over what asks for it"))?;
        }
        if let Some(cache) = &compaction.cache {
            print(&format!("  prompt cache: {}", cache_line(cache)))?;
        }
        if let Some(call) = &compaction.summarizer {
            print(&harmless(&format!("  summary: {}", summarizer_line(call))))?;
            for claim in &call.unsupported {
                print(&harmless(&format!("  claimed and never said: {claim}")))?;
            }
        }
        Tallies::of(compaction).print()?;
        let (losses, more) = self.losses(compaction);
        for loss in losses {
            print(&harmless(&format!("  lost: {}", loss_line(loss))))?;
        }
        if more > 0 {
            print(&format!("  lost: {more} more"))?;
        }
        print("")
    }
}

/// How many things were said before cuts, and how many of them windows held after
/// these, by what they are.
#[derive(Debug, Default)]
struct Tallies(BTreeMap<String, (u64, u64)>);

impl Tallies {
    fn of(compaction: &pb::Compaction) -> Self {
        let mut tallies = Self::default();
        tallies.add(compaction);
        tallies
    }

    fn add(&mut self, compaction: &pb::Compaction) {
        for tally in &compaction.audit {
            let (kept, lost) = self.0.entry(tally.subject.clone()).or_default();
            *kept += tally.kept;
            *lost += tally.lost;
        }
    }

    fn json(&self) -> serde_json::Value {
        let tally = |(subject, (kept, lost)): (&String, &(u64, u64))| {
            (subject.clone(), json!({"before": kept + lost, "kept": kept, "lost": lost}))
        };
        self.0.iter().map(tally).collect::<serde_json::Map<_, _>>().into()
    }

    fn print(&self) -> anyhow::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut rows = vec![["  stated", "before", "kept", "lost"].map(str::to_owned).to_vec()];
        rows.extend(self.0.iter().map(|(subject, (kept, lost))| {
            vec![format!("  {subject}"), (kept + lost).to_string(), kept.to_string(), lost.to_string()]
        }));
        print(&table(&rows))
    }
}

/// What all compactions of a session come to.
#[derive(Debug, Default)]
struct Sums {
    compactions: u64,
    freed_tokens: u64,
    tallies: Tallies,
    unsupported: u64,
    calls: u64,
    failures: u64,
    input_tokens: u64,
    output_tokens: u64,
    cost: Cost,
    /// Calls of which the price is not known.
    unpriced: u64,
    resent_tokens: u64,
    cache_cost: Cost,
    /// Compactions of which it is not known what sending tokens again costs.
    cache_unpriced: u64,
}

/// Numbers of the compactions that were undone, of those that came after them, and of
/// what undid them: none of these has an effect on the window any more.
fn taken_back(compactions: &[pb::Compaction]) -> BTreeSet<&str> {
    let mut back = BTreeSet::new();
    for (at, undo) in compactions.iter().enumerate().rev() {
        if undo.kind() != pb::CompactionKind::Undo || back.contains(number(undo)) {
            continue;
        }
        let first = compactions.iter().position(|compaction| compaction.name == undo.undone).unwrap_or(at);
        back.extend(compactions.get(first..=at).unwrap_or_default().iter().map(number));
    }
    back
}

impl Sums {
    /// What a compaction cost it cost, undone or not.
    fn add(&mut self, compaction: &pb::Compaction, is_taken_back: bool) {
        if !is_taken_back {
            self.compactions += 1;
            self.freed_tokens += compaction.tokens_before.saturating_sub(compaction.tokens_after);
            self.tallies.add(compaction);
        }
        if let Some(cache) = &compaction.cache {
            self.resent_tokens += cache.resent_tokens;
            self.cache_cost = [self.cache_cost, Cost(cache.cost_picodollars.unwrap_or(0))].into_iter().sum();
            self.cache_unpriced += u64::from(cache.cost_picodollars.is_none());
        }
        let Some(call) = &compaction.summarizer else { return };
        self.calls += 1;
        self.failures += u64::from(!call.failure.is_empty());
        self.unsupported += call.unsupported.len() as u64;
        self.input_tokens += call.input_tokens;
        self.output_tokens += call.output_tokens;
        self.cost = [self.cost, Cost(call.cost_picodollars.unwrap_or(0))].into_iter().sum();
        let has_tokens = call.input_tokens + call.output_tokens > 0;
        self.unpriced += u64::from(has_tokens && call.cost_picodollars.is_none());
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "compactions": self.compactions,
            "freed_tokens": self.freed_tokens,
            "stated": self.tallies.json(),
            "unsupported": self.unsupported,
            "summaries": self.calls,
            "failures": self.failures,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost": self.cost.to_string(),
            "unpriced": self.unpriced,
            "resent_tokens": self.resent_tokens,
            "cache_cost": self.cache_cost.to_string(),
            "cache_unpriced": self.cache_unpriced,
        })
    }

    fn print(&self) -> anyhow::Result<()> {
        print(&format!("together: {} compactions, {} tokens less", self.compactions, self.freed_tokens))?;
        print(&format!(
            "  prompt cache: {} tokens sent again, {}; price unknown of {}",
            self.resent_tokens, self.cache_cost, self.cache_unpriced
        ))?;
        if self.calls > 0 {
            print(&format!(
                "  summaries: {}, of which {} failed; {} tokens read, {} written, {}; price unknown of {}",
                self.calls, self.failures, self.input_tokens, self.output_tokens, self.cost, self.unpriced
            ))?;
            print(&format!("  claimed and never said: {}", self.unsupported))?;
        }
        self.tallies.print()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_undone_counts_for_its_cost_alone() {
        let name = |number: u64| format!("sessions/s/compactions/{number}");
        let of = |number: u64, kind: pb::CompactionKind, undone: u64| pb::Compaction {
            name: name(number),
            kind: kind.into(),
            tokens_before: 1_000,
            tokens_after: 400,
            undone: if undone > 0 { name(undone) } else { String::new() },
            ..pb::Compaction::default()
        };
        let (cut, undo) = (pb::CompactionKind::Truncate, pb::CompactionKind::Undo);
        let compactions = [of(1, cut, 0), of(2, cut, 0), of(3, cut, 0), of(5, undo, 2), of(6, cut, 0)];
        let back = taken_back(&compactions);
        assert_eq!(back, BTreeSet::from(["2", "3", "5"]));
        let mut sums = Sums::default();
        for compaction in &compactions {
            sums.add(compaction, back.contains(number(compaction)));
        }
        assert_eq!((sums.compactions, sums.freed_tokens), (2, 1_200));
    }
}
