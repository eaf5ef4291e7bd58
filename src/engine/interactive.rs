//! The interactive path: windows are relieved lightest first. Old tool results are
//! snipped; then the middle is summarized, in the background if there is time; then
//! all but the last steps gives way to what code extracts.

use super::compact::Proposal;
use super::leaving::Text;
use super::summaries::{SummaryTask, report};
use super::{Engine, Error, compute};
use crate::clock::{self, Deadline, Micros};
use crate::limits::{
    SNIP_FLOOR_PERCENT, SUMMARIZER_CLAIM, SUMMARIZER_SOURCE_TOKENS, SUMMARIZER_SOURCE_TOKENS_MIN,
    TEND_PERCENT,
};
use crate::model::{
    BranchId, CompressionPath, RecordedState, Room, Seq, StateKind, SummarizerReport, Usage, Version,
    WindowState, percent,
};
use crate::provider::StopReason;
use crate::store::meta::{SessionKey, Tip};
use crate::summary::Said;
use crate::summary::ledger::stale_results;
use crate::window::{Window, cut_before, shown_entries, snippable, snips};
use std::time::Duration;

/// How the summarizer's provider fared of late, in this process.
#[derive(Debug, Default)]
pub(super) struct SummarizerHealth {
    failures: u32,
    /// When it is worth another try after too many.
    closed_until: Option<Micros>,
}

/// A summary that was made beforehand.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Prepared {
    /// The branch that it is of.
    branch: BranchId,
    /// Where the window began that it was made from.
    first_kept: Seq,
    /// Where it is to begin.
    kept: Seq,
    /// The summary.
    text: String,
    /// How it was made.
    report: SummarizerReport,
}

/// A summary of what comes before an entry, or why there is none.
pub(super) struct Summarized {
    pub(super) branch: BranchId,
    /// Where the window began that it was made from.
    pub(super) base: Seq,
    /// The first entry that is to stay.
    pub(super) first_kept: Seq,
    pub(super) text: Result<String, String>,
    pub(super) report: SummarizerReport,
}

impl Summarized {
    /// None, so that an extract takes its place; `is_wanting` if a model should have made
    /// one.
    pub(super) fn without(task: SummaryTask, why: &str, is_wanting: bool) -> Self {
        let SummaryTask { branch, base, first_kept, .. } = task;
        let failure = if is_wanting { why.to_owned() } else { String::new() };
        let report = SummarizerReport { failure, ..SummarizerReport::default() };
        Self { branch, base, first_kept, text: Err(why.to_owned()), report }
    }
}

/// How a summary is to be made.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    /// What is added to the prompt.
    pub(super) instructions: &'a str,
    /// Whether it is made however full the window is, and for who asks alone.
    pub(super) is_forced: bool,
    /// Whether there is so little time that to run out of it says nothing of the provider.
    pub(super) is_hurried: bool,
    pub(super) deadline: Deadline,
}

impl Ask<'static> {
    /// If the window wants one.
    fn if_due(deadline: Deadline) -> Self {
        Self { instructions: "", is_forced: false, is_hurried: false, deadline }
    }
}

/// How a summary is to be put in place.
#[derive(Clone, Copy, Default)]
pub(super) struct Terms {
    /// Whether a caller asked for it: then only if the window gets smaller by it.
    pub(super) is_asked_for: bool,
}

/// What an attempt at a summary says of the provider.
#[derive(Clone, Copy)]
enum Provider {
    Answers,
    Fails,
    Unknown,
}

/// What became of an attempt at a summary.
pub(super) enum Claimed {
    /// It was made, and waits to be adopted.
    Kept,
    /// It failed, or another has the claim by now: nobody else will put this in place.
    Made(Box<Summarized>),
    /// Another makes one.
    ByOthers,
    /// There is none to be had now.
    Nothing,
}

/// Stands for whoever holds a claim after a failure.
pub(super) const FAILED: &str = "failed";

/// Why an answer that reached its limit is not taken.
const CUT_OFF: &str = "the summary was cut off at the limit of the output";

/// Pause between looks whether a summary that another makes is there.
pub(super) const SUMMARY_POLL: Duration = Duration::from_millis(100);

fn first_kept(state: &WindowState) -> Seq {
    state.cut.as_ref().map_or(Seq(0), |cut| cut.first_kept)
}

impl Engine {
    /// After a turn of an interactive session: snips what is old, and has a summary
    /// made if one will be needed soon. A failure leaves the window as it is.
    pub(super) async fn tend(&self, key: &SessionKey) {
        let Some(cached) = self.inner.caches.tips.get(key) else { return };
        let tip = &cached.tip;
        let Some(room) = tip.room() else { return };
        if tip.session.path != CompressionPath::Interactive {
            return;
        }
        let options = &self.inner.options.compaction;
        let filled = tip.head.window_tokens(tip.turn.log_tokens).saturating_add(tip.head.preamble_tokens);
        let is_over = |share| filled > percent(room.usable(), share);
        if !is_over(options.snip_percent.min(options.prepare_percent)) {
            return;
        }
        // A look costs a query: not each turn is worth one.
        let last = self.inner.caches.tended.get(key);
        let next = last.map_or(0, |last| last.saturating_add(percent(room.usable(), TEND_PERCENT)));
        if filled < next && last.is_some_and(|last| last <= filled) {
            return;
        }
        self.inner.caches.tended.insert(key.clone(), filled);
        if is_over(options.snip_percent)
            && let Err(error) = self.snip(key, room).await
        {
            // The next turn tries again.
            self.inner.caches.tended.invalidate(key);
            tracing::warn!(session = %key.session, error = %error, "a window was not snipped");
        }
        if is_over(options.prepare_percent) && self.inner.options.summarizer.is_some() {
            let (engine, key) = (self.clone(), key.clone());
            self.inner.tasks.spawn(async move {
                if let Err(error) = engine.prepare_summary(&key).await {
                    tracing::warn!(session = %key.session, error = %error, "a summary was not prepared");
                }
            });
        }
    }

    /// Shows old tool results by their ends, if that makes a difference.
    async fn snip(&self, key: &SessionKey, room: Room) -> Result<(), Error> {
        let options = &self.inner.options.compaction;
        let protected = options.snip_kept_tokens.min(room.usable() / 4);
        let snippable = |window: &Window<'_>| snippable(window, options.snip_over_characters, protected);
        let ceiling = percent(room.usable(), options.snip_percent);
        let over = |tip: &Tip, window: &Window<'_>| {
            let filled = window.tokens().saturating_add(tip.head.preamble_tokens);
            (filled > ceiling).then_some(filled)
        };
        let least = |window: &Window<'_>| percent(window.tokens(), options.snip_win_percent).max(1);
        let (tip, _, live) = self.current(key).await?;
        let entries = {
            let assembled = live.lock();
            let window = assembled.assembler.window(false);
            let win = snippable(&window).iter().fold(0, |win: u64, one| win.saturating_add(one.win));
            if over(&tip, &window).is_none() || win < least(&window) {
                return Ok(());
            }
            shown_entries(&window)
        };
        let (format, receipt) = (tip.session.format, tip.head.receipt);
        let bytes = entries.iter().map(|(_, payload)| payload.len()).sum();
        let stale = compute(bytes, move || {
            let said: Vec<_> = entries.iter().map(|(seq, payload)| Said::of(format, *seq, payload)).collect();
            stale_results(&said)
        });
        let stale = stale.await?;
        self.revise_window(key, |tip, assembled| {
            let window = assembled.assembler.window(false);
            let Some(filled) = over(tip, &window).filter(|_| tip.head.receipt == receipt) else {
                return Ok(None);
            };
            let aim = filled - percent(ceiling, SNIP_FLOOR_PERCENT).min(filled);
            let found = snippable(&window);
            let seqs = snips(&found, |seq| stale.contains_key(&seq), aim, least(&window));
            if seqs.is_empty() {
                return Ok(None);
            }
            let mut state = WindowState::clone(&assembled.state);
            state.stale.extend(seqs.iter().filter_map(|seq| stale.get_key_value(seq)));
            state.snipped.extend(seqs);
            state.snipped.sort_unstable();
            state.snipped.dedup();
            let cause = format!("over {} % of the usable window", options.snip_percent);
            let snip = Proposal::keeping_all(StateKind::Snip, state, cause);
            Ok(Some(Proposal { must_win: true, ..snip }))
        })
        .await?;
        Ok(())
    }

    /// Whether a restore of a window that takes so many tokens with its preamble is to
    /// look whether it can be made smaller.
    pub(super) fn wants_relief(&self, tip: &Tip, room: Room, filled: u64) -> bool {
        let share = self.inner.options.compaction.summarize_percent;
        tip.session.path == CompressionPath::Interactive && filled > percent(room.usable(), share)
    }

    /// Before a restore of an interactive session whose window takes so many tokens
    /// with its preamble: makes it smaller if it is time. If compactions brought no
    /// relief of late, all that is usable is made use of first.
    pub(super) async fn relieve(
        &self,
        key: &SessionKey,
        room: Room,
        filled: u64,
        is_stalled: bool,
    ) -> Result<(), Error> {
        let options = &self.inner.options.compaction;
        let over = |share| percent(room.usable(), share);
        let most = over(if is_stalled { 100 } else { options.collapse_percent });
        if filled <= over(options.summarize_percent)
            || self.adopt(key, Terms::default()).await?.is_some()
            || filled <= most
        {
            return Ok(());
        }
        let deadline = Deadline::after(options.wait());
        while !is_stalled && self.may_summarize() && !deadline.left().is_zero() {
            let (engine, claimer) = (self.clone(), key.clone());
            // A caller that goes leaves no claim behind for which others would wait.
            let claimed =
                self.detached(async move { engine.claimed_summary(&claimer, Ask::if_due(deadline)).await });
            match claimed.await? {
                Claimed::Kept => return self.adopt(key, Terms::default()).await.map(drop),
                Claimed::Made(made) => {
                    return self.replace_middle(key, *made, Terms::default()).await.map(drop);
                }
                Claimed::Nothing => break,
                Claimed::ByOthers => {
                    clock::sleep(SUMMARY_POLL).await;
                    if self.adopt(key, Terms::default()).await?.is_some() {
                        return Ok(());
                    }
                }
            }
        }
        let task = self.summary_task(key, "", self.inner.options.source_tokens, false).await?;
        let Some(task) = task.filter(|task| task.filled > most) else { return Ok(()) };
        let (why, is_wanting) = match () {
            () if is_stalled => ("summaries brought no relief", false),
            () if self.inner.options.summarizer.is_none() => ("there is no summarizer", false),
            () if task.source_tokens < SUMMARIZER_SOURCE_TOKENS_MIN => ("too little was said", false),
            () => ("no summary in time", true),
        };
        let made = Summarized::without(task, why, is_wanting);
        self.replace_middle(key, made, Terms::default()).await.map(drop)
    }

    /// Puts a summary or, if there is none, an extract in place of what comes before
    /// an entry, if the window still begins where it did.
    pub(super) async fn replace_middle(
        &self,
        key: &SessionKey,
        made: Summarized,
        terms: Terms,
    ) -> Result<Option<RecordedState>, Error> {
        let (kind, text, cause) = match &made.text {
            Ok(text) => {
                let covers = Seq(made.first_kept.0.saturating_sub(1));
                let text = Text::Summary { text: text.clone(), covers };
                let cause = if terms.is_asked_for { "summarized: asked for" } else { "summarized" };
                (StateKind::Summarize, text, cause.to_owned())
            }
            Err(failure) => (StateKind::Collapse, Text::Extract, format!("extracted: {failure}")),
        };
        let is_of_model = made.text.is_ok() || made.report != SummarizerReport::default();
        self.revise_window(key, |tip, assembled| {
            if tip.head.branch != made.branch || first_kept(&assembled.state) != made.base {
                return Ok(None);
            }
            let Some(cut) = cut_before(&assembled.assembler.window(false), made.first_kept) else {
                return Ok(None);
            };
            let state = WindowState { cut: Some(cut), ..WindowState::clone(&assembled.state) };
            let tokens_max = tip.room().map(|room| {
                let share = self.inner.options.compaction.target_percent;
                percent(room.usable(), share).saturating_sub(tip.head.preamble_tokens).max(1)
            });
            Ok(Some(Proposal {
                tokens_max,
                must_win: terms.is_asked_for || kind == StateKind::Collapse,
                text: text.clone(),
                summarizer: is_of_model.then(|| made.report.clone()),
                ..Proposal::keeping_all(kind, state, cause.clone())
            }))
        })
        .await
    }

    /// Adopts the summary that was prepared, if there is one that still goes with the
    /// window.
    pub(super) async fn adopt(&self, key: &SessionKey, terms: Terms) -> Result<Option<RecordedState>, Error> {
        let Some((token, Some(body))) = self.inner.meta.pending_summary(key).await? else {
            return Ok(None);
        };
        let adopted = match serde_json::from_str(&body) {
            Ok(Prepared { branch, first_kept: base, kept, text, report }) => {
                let made = Summarized { branch, base, first_kept: kept, text: Ok(text), report };
                self.replace_middle(key, made, terms).await?
            }
            Err(_) => None,
        };
        self.inner.meta.drop_summary(key, &token).await?;
        Ok(adopted)
    }

    /// Makes a summary beforehand. One replica at a time does; after a failure none
    /// does for a while.
    async fn prepare_summary(&self, key: &SessionKey) -> Result<(), Error> {
        let is_stalled = {
            let (tip, _, live) = self.current(key).await?;
            let assembled = live.lock();
            self.stall_of(&tip, &assembled).is_some()
        };
        // It saves the claim; under that it is looked at again.
        if !is_stalled && self.may_summarize() {
            self.claimed_summary(key, Ask::if_due(Deadline::after(SUMMARIZER_CLAIM))).await?;
        }
        Ok(())
    }

    /// Claims the making of a summary, has it made, and keeps it for whoever needs it
    /// first.
    async fn claimed_summary(&self, key: &SessionKey, ask: Ask<'_>) -> Result<Claimed, Error> {
        let meta = self.inner.meta.as_ref();
        let now = self.now();
        let token = self.inner.entropy.id(now);
        if !meta.claim_summary(key, &token, now, now.plus(SUMMARIZER_CLAIM)).await? {
            let standing = meta.pending_summary(key).await?;
            let has_failed = standing.is_some_and(|(token, body)| token == FAILED && body.is_none());
            return Ok(if has_failed { Claimed::Nothing } else { Claimed::ByOthers });
        }
        let claimed = self.summary_under_claim(key, &token, ask).await;
        if claimed.is_err()
            && let Err(error) = meta.drop_summary(key, &token).await
        {
            tracing::warn!(session = %key.session, error = %error, "a claim was not dropped");
        }
        claimed
    }

    /// Has a summary made under a claim, and keeps it, unless it is forced. After an error
    /// the claim stands, and with one that is not kept.
    pub(super) async fn summary_under_claim(
        &self,
        key: &SessionKey,
        token: &str,
        ask: Ask<'_>,
    ) -> Result<Claimed, Error> {
        let meta = self.inner.meta.as_ref();
        let Some(made) = clock::deadline(ask.deadline.left(), self.summarize(key, ask)).await else {
            self.note_summarizer(false, if ask.is_hurried { Provider::Unknown } else { Provider::Fails });
            self.rest(key, token, "no summary in time").await?;
            return Ok(Claimed::Nothing);
        };
        let Some(made) = made? else {
            meta.drop_summary(key, token).await?;
            return Ok(Claimed::Nothing);
        };
        let Ok(text) = &made.text else {
            self.rest(key, token, &made.report.failure).await?;
            return Ok(Claimed::Made(Box::new(made)));
        };
        if ask.is_forced {
            return Ok(Claimed::Made(Box::new(made)));
        }
        let prepared = Prepared {
            branch: made.branch.clone(),
            first_kept: made.base,
            kept: made.first_kept,
            text: text.clone(),
            report: made.report.clone(),
        };
        let body = serde_json::to_string(&prepared).map_err(|error| Error::Internal {
            context: "encode a summary".to_owned(),
            source: Some(error.into()),
        })?;
        let is_kept = meta.keep_summary(key, token, &body).await?;
        Ok(if is_kept { Claimed::Kept } else { Claimed::Made(Box::new(made)) })
    }

    /// Lets a session go without summaries for a while after one failed: a claim by
    /// nobody stands meanwhile, in place of that under which it failed.
    async fn rest(&self, key: &SessionKey, token: &str, failure: &str) -> Result<(), Error> {
        tracing::warn!(session = %key.session, failure, "a summary failed");
        let until = self.now().plus(self.inner.options.patience.cooldown);
        self.inner.meta.rest_summary(key, token, FAILED, until).await?;
        Ok(())
    }

    /// Has a model summarize all but the newest steps. Nothing is locked meanwhile.
    /// Nothing if there is nothing to summarize.
    async fn summarize(&self, key: &SessionKey, ask: Ask<'_>) -> Result<Option<Summarized>, Error> {
        let Some(models) = self.inner.options.summarizer.as_deref() else { return Ok(None) };
        let source_max = self.inner.options.source_tokens;
        let task = self.summary_task(key, ask.instructions, source_max, ask.is_forced).await?;
        let Some(task) = task else { return Ok(None) };
        // No answer would be shorter; asked all the same, the model would seem to fail. And
        // another replica may have put one in place since this was begun.
        if task.source_tokens < SUMMARIZER_SOURCE_TOKENS_MIN || !(task.is_due || ask.is_forced) {
            return Ok(None);
        }
        let answered = models.model_for(task.source_tokens).complete(&task.request, ask.deadline).await;
        let (mut report, text, provider) = match answered {
            Ok(answer) => {
                let mut report = report(&answer.usage);
                // The state of the work comes last.
                let is_cut_off = answer.stop_reason == StopReason::MaxTokens;
                let judged =
                    if is_cut_off { Err(CUT_OFF.to_owned()) } else { task.judge(&answer.text).await? };
                let text = judged.map(|unsupported| {
                    report.unsupported = unsupported;
                    answer.text
                });
                (report, text, Provider::Answers)
            }
            Err(failure) => {
                let is_out_of_time = ask.is_hurried && ask.deadline.left().is_zero();
                let is_of_provider = failure.is_of_provider() && !is_out_of_time;
                let provider = if is_of_provider { Provider::Fails } else { Provider::Unknown };
                let report = failure.usage.as_deref().map(report).unwrap_or_default();
                (report, Err(failure.to_string()), provider)
            }
        };
        self.note_summarizer(text.is_ok(), provider);
        report.failure = text.as_ref().err().cloned().unwrap_or_default();
        let SummaryTask { branch, base, first_kept, .. } = task;
        Ok(Some(Summarized { branch, base, first_kept, text, report }))
    }

    /// What a worker is to ask its own model, so that [`Self::commit_compaction`] can
    /// put the answer in place of the middle of the window. Nothing if the window has
    /// no middle. `instructions` are added to the prompt. The source has at most as many
    /// tokens as the model takes; as the operator's own may have, if that is not given.
    pub async fn plan_compaction(
        &self,
        key: &SessionKey,
        instructions: &str,
        source_max: Option<u64>,
    ) -> Result<Option<SummaryTask>, Error> {
        let source_max = match source_max {
            None => self.inner.options.source_tokens,
            Some(tokens) if tokens < SUMMARIZER_SOURCE_TOKENS_MIN => {
                let problem = format!(
                    "is {tokens}; must be at least {SUMMARIZER_SOURCE_TOKENS_MIN}, or 0 for the setting"
                );
                return Err(Error::invalid("source_tokens_max", problem));
            }
            Some(tokens) => tokens.min(self.planned_source_max()),
        };
        Box::pin(self.summary_task(key, instructions, source_max, false)).await
    }

    /// Most tokens of source that a plan has, whatever the worker's model takes.
    fn planned_source_max(&self) -> u64 {
        self.inner.options.source_tokens.max(SUMMARIZER_SOURCE_TOKENS)
    }

    /// Puts the summary that a worker's model made in place of what it is of, if the
    /// window still begins where it did when that was planned.
    pub async fn commit_compaction(
        &self,
        key: &SessionKey,
        plan: (Version, Seq, Seq),
        text: String,
        usage: Usage,
    ) -> Result<RecordedState, Error> {
        let (version, base, first) = plan;
        let (engine, key) = (self.clone(), key.clone());
        self.detached(async move {
            let stale = || Error::invalid("plan", "is of a window that has changed since; plan again");
            let task = engine.summary_task(&key, "", engine.planned_source_max(), false).await?;
            let task = task.ok_or_else(stale)?;
            // What was planned before a rewind may be of entries that are gone.
            let is_of_branch = (task.branch_since..=task.version).contains(&version);
            if task.base != base || !is_of_branch {
                return Err(stale());
            }
            let unsupported =
                task.judge(&text).await?.map_err(|problem| Error::invalid("summary", problem))?;
            let report = SummarizerReport { unsupported, ..report(&usage) };
            let made =
                Summarized { branch: task.branch.clone(), base, first_kept: first, text: Ok(text), report };
            engine.replace_middle(&key, made, Terms::default()).await?.ok_or_else(stale)
        })
        .await
    }

    /// Whether the summarizer is there and has not failed too often of late.
    pub(super) fn may_summarize(&self) -> bool {
        let health = self.inner.summarizer_health.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = self.now();
        // A clock that is set back makes it no longer.
        let latest = now.plus(self.inner.options.patience.pause);
        let is_closed = health.closed_until.is_some_and(|until| now < until && until <= latest);
        self.inner.options.summarizer.is_some() && !is_closed
    }

    /// Notes how an attempt went. An answer that is refused, and a request that the
    /// provider does not take, are their session's matter: other sessions go on.
    fn note_summarizer(&self, succeeded: bool, provider: Provider) {
        let outcome = if succeeded { "ok" } else { "failed" };
        metrics::counter!("turnkeep_summaries_total", "outcome" => outcome).increment(1);
        let mut health =
            self.inner.summarizer_health.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match provider {
            Provider::Answers => *health = SummarizerHealth::default(),
            Provider::Unknown => {}
            Provider::Fails => {
                health.failures = health.failures.saturating_add(1);
                let patience = self.inner.options.patience;
                if health.failures >= patience.failures {
                    health.closed_until = Some(self.now().plus(patience.pause));
                }
            }
        }
    }
}
