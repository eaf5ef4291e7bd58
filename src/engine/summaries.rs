//! What a model is asked to summarize, and whether its answer will do.

use super::{Engine, Error, compute};
use crate::limits::AUDIT_LOSSES_MAX;
use crate::model::{
    BranchId, Cut, Entry, ModelProfile, Seq, SummarizerReport, Usage, Version, WireFormat, percent,
};
use crate::provider::CompletionRequest;
use crate::store::meta::SessionKey;
use crate::summary::Said;
use crate::summary::audit::unsupported_claims;
use crate::summary::literals;
use crate::summary::prompt::{PROMPT, instructions, render_source};
use crate::tokens::{TokenCounter, catalogue};
use crate::window::tail;

/// What a model is to be asked so that the middle of a window can give way to its
/// answer.
#[derive(Clone, Debug)]
pub struct SummaryTask {
    /// Version of the session.
    pub version: Version,
    /// Where the window begins now; 0 if with the log.
    pub base: Seq,
    /// The first entry that is to stay.
    pub first_kept: Seq,
    /// System and user text, and the output that it may take.
    pub request: CompletionRequest,
    /// Most tokens of a summary that is taken.
    pub tokens_max: u64,
    pub(super) branch: BranchId,
    /// Version with which the branch began.
    pub(super) branch_since: Version,
    pub(super) source_tokens: u64,
    /// Tokens of window and preamble.
    pub(super) filled: u64,
    /// Whether these ask for a summary, and the last ones brought relief.
    pub(super) is_due: bool,
    entries: Vec<Entry>,
    previous: Option<String>,
    format: WireFormat,
    counter: TokenCounter,
}

impl Engine {
    /// What is to be summarized of a session's window: all but the newest steps.
    /// Nothing if there is nothing else. `more` is added to the prompt; `source_max` are
    /// the tokens that the source may have. If it is forced, something leaves however few
    /// tokens the window has: what stays is measured by it.
    pub(super) async fn summary_task(
        &self,
        key: &SessionKey,
        more: &str,
        source_max: u64,
        is_forced: bool,
    ) -> Result<Option<SummaryTask>, Error> {
        let (tip, at, live) = self.current(key).await?;
        let Some(room) = tip.room() else {
            return Err(Error::ContextWindowUnknown { session: key.session.clone() });
        };
        let options = &self.inner.options.compaction;
        let (is_stalled, before, filled, cut) = {
            let assembled = live.lock();
            let window = assembled.assembler.window(false);
            let filled = window.tokens().saturating_add(tip.head.preamble_tokens);
            let is_stalled = self.stall_of(&tip, &assembled).is_some();
            let mut stays = options.tail_tokens(room);
            if is_forced {
                stays = stays.min(percent(window.tokens(), options.tail_percent));
            }
            (is_stalled, assembled.state.clone(), filled, tail(&window, stays))
        };
        let Some(cut) = cut else { return Ok(None) };
        let old = before.cut.clone().unwrap_or_default();
        // What left beyond what a summary is of is in none yet.
        let since = before.summary.as_ref().map_or(old.first_kept, |summary| summary.covers.next());
        let unseen = Cut { first_kept: old.first_kept.min(since), ..old.clone() };
        let entries = self.leaving_entries(key, &at, &unseen, &cut).await?;
        let format = tip.session.format;
        let counter = TokenCounter::new(format, tip.session.tokenizer());
        let tokens_max = options.slot_tokens(Some(room));
        let target = tokens_max - options.ledger_tokens(tokens_max);
        let previous = before.summary.as_ref().map(|summary| summary.text.clone());
        let bytes = entries.iter().map(|entry| entry.payload.len()).sum();
        let rendered = compute(bytes, {
            let (entries, previous) = (entries.clone(), previous.clone());
            move || {
                let measure = |text: &str| counter.count_text(text);
                let source =
                    render_source(&said(format, &entries), previous.as_deref(), source_max, &measure);
                (measure(&source.text), source)
            }
        });
        let (source_tokens, source) = rendered.await?;
        let prompt = options.prompt.as_deref().unwrap_or(PROMPT);
        Ok(Some(SummaryTask {
            version: tip.head.version,
            base: old.first_kept,
            first_kept: cut.first_kept,
            request: CompletionRequest {
                system: instructions(prompt, &source, target, more),
                user: source.text.clone(),
                max_output_tokens: target.saturating_mul(2),
            },
            tokens_max,
            branch: tip.head.branch.clone(),
            branch_since: tip.branch.first_version,
            source_tokens,
            filled,
            is_due: !is_stalled && filled > options.summary_limit(room),
            entries,
            previous,
            format,
            counter,
        }))
    }
}

fn said(format: WireFormat, entries: &[Entry]) -> Vec<Said<'_>> {
    entries.iter().map(|entry| Said::of(format, entry.seq, &entry.payload)).collect()
}

impl SummaryTask {
    /// Literals in an answer that the entries never had, or why it cannot be taken.
    pub(super) async fn judge(&self, text: &str) -> Result<Result<Vec<String>, String>, Error> {
        let (task, text) = (self.clone(), text.to_owned());
        let bytes = self.entries.iter().map(|entry| entry.payload.len()).sum::<usize>();
        compute(bytes.saturating_add(text.len()), move || task.judged(&text)).await
    }

    fn judged(&self, text: &str) -> Result<Vec<String>, String> {
        let tokens = self.counter.count_text(text);
        if text.trim().is_empty() {
            return Err("the summary is empty".to_owned());
        }
        if tokens > self.tokens_max {
            return Err(format!("the summary has {tokens} tokens; at most {} are allowed", self.tokens_max));
        }
        if tokens >= self.source_tokens {
            let source = self.source_tokens;
            return Err(format!("the summary has {tokens} tokens, no fewer than the {source} that it is of"));
        }
        let said = said(self.format, &self.entries);
        let findings = literals::find(&said);
        let texts: Vec<_> = said.iter().flat_map(Said::all_texts).collect();
        let known = texts.iter().map(AsRef::as_ref).chain(self.previous.as_deref());
        let unsupported = unsupported_claims(text, &findings, known).into_iter();
        Ok(unsupported.map(|(_, literal)| literal).take(AUDIT_LOSSES_MAX).collect())
    }
}

/// What a call of a model took.
pub(super) fn report(usage: &Usage) -> SummarizerReport {
    let profile = ModelProfile { model: usage.model.clone(), ..ModelProfile::default() };
    SummarizerReport {
        model: usage.model.clone(),
        input_tokens: usage
            .input_tokens
            .saturating_add(usage.cache_read_tokens)
            .saturating_add(usage.cache_write_tokens),
        output_tokens: usage.output_tokens,
        cost: catalogue::prices(&profile, &usage.model).map(|prices| prices.cost(usage)),
        ..SummarizerReport::default()
    }
}
