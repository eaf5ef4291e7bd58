//! Compactions: making a window smaller, telling of it, undoing it.

use super::leaving::{Text, audit_report, lost};
use super::log::Position;
use super::restore::Assembled;
use super::window_state::StateAt;
use super::{Engine, Error, compute};
use crate::limits::{APPEND_ATTEMPTS, UNRELIEVED_MAX, WINDOW_STATES_PAGE};
use crate::model::{
    AuditReport, CacheBreak, CompressionPath, Cost, Cut, Item, Pin, RecordedState, StateKind, StateRecord,
    SummarizerReport, Usage, Version, WindowState, WireFormat, percent,
};
use crate::store::meta::{CommitOutcome, NewWindowState, SessionKey, Tip};
use crate::summary::audit::Subject;
use crate::summary::literals::Findings;
use crate::tokens::catalogue;
use crate::window::{Deepening, Window, last_messages, least_tokens, opening, truncate};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// How a window is made smaller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The oldest steps leave until it has at most so many tokens with its preamble;
    /// if not given, the floor of truncation.
    Truncate {
        /// The tokens.
        target_tokens: Option<u64>,
    },
    /// So many of the newest messages stay, in whole steps.
    LastMessages {
        /// How many.
        messages: u64,
    },
    /// A summary takes the place of all but the newest steps, or an extract if there is
    /// none in time.
    Summarize {
        /// What is added to the prompt.
        instructions: String,
        /// How long the model may take.
        wait: Duration,
    },
}

/// A compaction to be made now.
#[derive(Clone, Debug)]
pub struct CompactRequest {
    /// The session.
    pub key: SessionKey,
    /// How.
    pub strategy: Strategy,
    /// The version that the session must have.
    pub expected_version: Option<Version>,
}

/// A page of compactions.
#[derive(Clone, Debug)]
pub struct CompactionPage {
    /// The newest first.
    pub compactions: Vec<RecordedState>,
    /// The number before which the next page begins; none if this is the last.
    pub next: Option<u64>,
}

/// A window state that is to follow another.
pub(super) struct Proposal {
    pub(super) kind: StateKind,
    pub(super) state: WindowState,
    pub(super) cause: String,
    pub(super) undone: Option<u64>,
    /// Tokens that messages may take after it; if they are more, it is cut deeper.
    pub(super) tokens_max: Option<u64>,
    /// Whether it is made only if the window gets smaller by it.
    pub(super) must_win: bool,
    /// What stands for the entries that leave.
    pub(super) text: Text,
    /// Pins that were found by code and gave way.
    pub(super) unpinned: Vec<Pin>,
    /// How a model was asked for that.
    pub(super) summarizer: Option<SummarizerReport>,
}

impl Proposal {
    /// A change by which no entry leaves.
    pub(super) fn keeping_all(kind: StateKind, state: WindowState, cause: String) -> Self {
        let (undone, tokens_max, text, summarizer) = (None, None, Text::AsBefore, None);
        Self { kind, state, cause, undone, tokens_max, must_win: false, text, unpinned: vec![], summarizer }
    }
}

impl Engine {
    /// Compacts a session's window. Gives the compaction; nothing if nothing could
    /// leave.
    pub async fn compact(&self, request: CompactRequest) -> Result<Option<RecordedState>, Error> {
        let engine = self.clone();
        self.detached(async move { engine.compact_detached(&request).await }).await
    }

    async fn compact_detached(&self, request: &CompactRequest) -> Result<Option<RecordedState>, Error> {
        let (key, expected) = (&request.key, request.expected_version);
        if let Strategy::Summarize { instructions, wait } = &request.strategy {
            return Box::pin(self.summarize_now(key, instructions, *wait, expected)).await;
        }
        self.revise_window(key, |tip, assembled| {
            expect_version(key, expected, tip)?;
            let window = assembled.assembler.window(false);
            match request.strategy {
                Strategy::Truncate { target_tokens } => {
                    let room = || tip.room();
                    let floor = || Some(self.inner.options.compaction.floor(room()?));
                    let target = target_tokens.or_else(floor);
                    let target =
                        target.ok_or_else(|| Error::ContextWindowUnknown { session: key.session.clone() })?;
                    let tokens_max = target.saturating_sub(tip.head.preamble_tokens).max(1);
                    let truncation = truncation(&window, assembled, tokens_max, "asked for");
                    Ok(truncation.map(|proposal| Proposal { must_win: true, ..proposal }))
                }
                Strategy::LastMessages { messages } => {
                    Ok(last_messages(&window, messages)
                        .map(|cut| proposal(assembled, cut, None, "asked for")))
                }
                Strategy::Summarize { .. } => Ok(None),
            }
        })
        .await
    }

    /// Truncates the window of a session on a path without summaries, if a turn took
    /// it over the ceiling. A failure is for the next turn to mend: the turn stands.
    pub(super) async fn truncate_if_over(&self, key: &SessionKey) {
        let Some(cached) = self.inner.caches.tips.get(key) else { return };
        let tip = &cached.tip;
        let options = &self.inner.options.compaction;
        let over = |tokens: u64, tip: &Tip| {
            let room = tip.room()?;
            (tokens.saturating_add(tip.head.preamble_tokens) > options.ceiling(room)).then_some(room)
        };
        let is_truncated = tip.session.path != CompressionPath::Interactive;
        if !is_truncated || over(tip.head.window_tokens(tip.turn.log_tokens), tip).is_none() {
            return;
        }
        let propose = |tip: &Tip, assembled: &Assembled| {
            let window = assembled.assembler.window(false);
            let Some(room) = over(window.tokens(), tip) else { return Ok(None) };
            let mut floor = options.floor(room);
            // Where what must stay takes more than that, as a long message of the user
            // may, each turn would be over it: all that is usable is made use of.
            let least = least_tokens(&window);
            if least >= window.tokens() {
                return Ok(None);
            }
            let least = least.saturating_add(tip.head.preamble_tokens);
            if least > floor {
                if room.fits(window.tokens().saturating_add(tip.head.preamble_tokens)) {
                    return Ok(None);
                }
                let share = options.floor_percent;
                floor = least.saturating_add(percent(room.usable().saturating_sub(least), share));
            }
            let tokens_max = floor.saturating_sub(tip.head.preamble_tokens).max(1);
            let cause = format!("over {} % of the context window", options.ceiling_percent);
            let truncation = truncation(&window, assembled, tokens_max, &cause);
            Ok(truncation.map(|proposal| Proposal { must_win: true, ..proposal }))
        };
        // The window in memory, which the turn has extended already.
        let in_memory = || self.inner.caches.windows.get(key);
        let is_of_tip = |window: &Assembled| window.is_of(&tip.head) && window.newest().0 == tip.head.version;
        let is_known_to_stay = in_memory().is_some_and(|live| {
            let window = live.lock();
            is_of_tip(&window) && matches!(propose(tip, &window), Ok(None))
        });
        if is_known_to_stay {
            return;
        }
        match self.revise_window(key, propose).await {
            Ok(Some(_)) => {}
            // Nothing can leave. If another replica was faster, the head in memory is out
            // of date.
            Ok(None) => {
                if !in_memory().is_some_and(|live| live.lock().is_of(&tip.head)) {
                    self.inner.caches.tips.invalidate(key);
                }
            }
            Err(error) => {
                tracing::warn!(session = %key.session, error = %error, "a window was not truncated");
            }
        }
    }

    /// Records what `propose` makes of a session's window, if it makes anything.
    pub(super) async fn revise_window(
        &self,
        key: &SessionKey,
        propose: impl Fn(&Tip, &Assembled) -> Result<Option<Proposal>, Error>,
    ) -> Result<Option<RecordedState>, Error> {
        for _ in 0..APPEND_ATTEMPTS {
            let (mut tip, at, live) = self.current(key).await?;
            let (mut proposal, before, tokens_before, shown) = {
                let assembled = live.lock();
                let Some(proposal) = propose(&tip, &assembled)? else { return Ok(None) };
                let window = assembled.assembler.window(false);
                let shown: Vec<_> = window.items_from(0).map(|item| item.payload).collect();
                (proposal, assembled.state.clone(), window.tokens(), shown)
            };
            proposal.state.calibration = match proposal.kind {
                kind if kind.is_compaction() || kind == StateKind::Calibrate => {
                    self.newest_calibration(key, &tip).await?
                }
                _ => tip.head.calibration.clone(),
            };
            if proposal.kind != StateKind::Calibrate {
                proposal.state.notes = self.note_names(key).await?;
            }
            let number = tip.head.window_state + 1;
            (tip.head.window_state, tip.head.window_revision) = (number, tip.head.window_revision + 1);
            tip.head.calibration.clone_from(&proposal.state.calibration);
            let (mut next, findings) = self.revised(key, &tip, &at, before, &proposal).await?;
            let window = next.assembler.window(false);
            let tokens_after = window.tokens();
            // What is left may be one large step, and the message that it answers.
            if proposal.must_win && tokens_after >= tokens_before {
                return Ok(None);
            }
            let items: Vec<_> = window.items_from(0).collect();
            let cache = cache_break(&tip, &shown, &items);
            let known = (proposal.kind, &proposal.state);
            let unrelieved = self.unrelieved(&tip, known, tokens_before, &window);
            next.state = Arc::new(WindowState { unrelieved, ..WindowState::clone(&next.state) });
            let audit = audited(tip.session.format, findings, items).await?;
            let recorded = RecordedState {
                branch: tip.head.branch.clone(),
                number,
                version: tip.head.version,
                kind: proposal.kind,
                state: WindowState::clone(&next.state),
                record: StateRecord {
                    tokens_before,
                    tokens_after,
                    cause: proposal.cause,
                    undone: proposal.undone,
                    summarizer: proposal.summarizer,
                    audit,
                    cache,
                },
                created_at: self.now(),
            };
            let new = NewWindowState {
                key: key.clone(),
                state: recorded.clone(),
                window_offset: difference(tokens_after, tip.turn.log_tokens),
            };
            let outcome = self.inner.meta.commit_window_state(new).await;
            self.inner.caches.forget(key);
            match outcome? {
                CommitOutcome::Committed => {
                    self.keep_assembled(key, next);
                    metrics::counter!("turnkeep_window_states_total", "kind" => recorded.kind.as_str())
                        .increment(1);
                    tell_losses(key, number, &recorded.record.audit);
                    tell_stall(key, &recorded);
                    return Ok(Some(recorded));
                }
                CommitOutcome::NotAsExpected => {}
            }
        }
        Err(Error::Contention { session: key.session.clone(), attempts: APPEND_ATTEMPTS })
    }

    /// The window after a proposal, and what was found in the entries that left. It
    /// is cut until its messages have at most as many tokens as they may: what stands
    /// in place of what left may take more than was reckoned.
    async fn revised(
        &self,
        key: &SessionKey,
        tip: &Tip,
        at: &Position,
        before: Arc<WindowState>,
        proposal: &Proposal,
    ) -> Result<(Assembled, Findings), Error> {
        let number = tip.head.window_state;
        let mut state = proposal.state.clone();
        let mut findings = Findings::default();
        let mut deepening = Deepening::to(proposal.tokens_max.unwrap_or(u64::MAX));
        let base = WindowState { cut: before.cut.clone(), ..proposal.state.clone() };
        let mut reached = before.cut.clone().unwrap_or_default();
        let mut gone = Vec::new();
        loop {
            let cut = state.cut.clone().filter(|_| state.cut != before.cut && proposal.undone.is_none());
            if let Some(cut) = cut {
                // What left at the cut before is gone already.
                gone.extend(self.leaving_entries(key, at, &reached, &cut).await?);
                gone.sort_by_key(|entry| entry.seq);
                reached = cut.clone();
                let left = self.leave(&tip.session, &base, cut, gone.clone(), proposal.text.clone()).await?;
                (state, findings) = (left.state, left.findings);
            }
            let at_state = StateAt { number, state: Arc::new(state.clone()) };
            let assembled = self.assemble_log(key, tip, at, at_state).await?;
            let window = assembled.assembler.window(false);
            // What windows remember comes after the system entries with which the log
            // begins.
            if state.cut.is_none()
                && state.shows_memory()
                && let Some(cut) = opening(&window)
            {
                state.cut = Some(cut);
                continue;
            }
            let Some(cut) = deepening.next(&window, window.tokens()) else {
                findings.unpinned.extend(proposal.unpinned.iter().cloned().map(lost));
                return Ok((assembled, findings));
            };
            state.cut = Some(cut);
        }
    }

    /// A session's compactions with numbers under `before`, the newest first.
    pub async fn list_compactions(
        &self,
        key: &SessionKey,
        before: Option<u64>,
        limit: u32,
    ) -> Result<CompactionPage, Error> {
        let tip = self.tip(key, None).await?;
        let at = self.newest(key, &tip).await?;
        let limit = limit.min(WINDOW_STATES_PAGE) as usize;
        let mut before = before.unwrap_or(u64::MAX);
        let mut compactions = Vec::new();
        loop {
            let found = self.states_before(key, &at, before, WINDOW_STATES_PAGE).await?;
            let is_last = found.len() < WINDOW_STATES_PAGE as usize;
            for state in found {
                before = state.number;
                if state.kind.is_compaction() || state.kind == StateKind::Undo {
                    compactions.push(state);
                }
                if compactions.len() == limit {
                    return Ok(CompactionPage { compactions, next: Some(before) });
                }
            }
            if is_last {
                return Ok(CompactionPage { compactions, next: None });
            }
        }
    }

    /// A compaction of a session.
    pub async fn get_compaction(&self, key: &SessionKey, number: u64) -> Result<RecordedState, Error> {
        let tip = self.tip(key, None).await?;
        let at = self.newest(key, &tip).await?;
        let found = self.state_numbered(key, &at, number).await?;
        let found = found.filter(|state| state.kind.is_compaction() || state.kind == StateKind::Undo);
        found.ok_or_else(|| Error::CompactionNotFound { session: key.session.clone(), number })
    }

    /// Takes a compaction back, and those that came after it: the window is again
    /// what it was before, with what was said and pinned since.
    pub async fn undo_compaction(&self, key: &SessionKey, number: u64) -> Result<RecordedState, Error> {
        let (engine, key) = (self.clone(), key.clone());
        self.detached(async move { engine.undo_detached(&key, number).await }).await
    }

    async fn undo_detached(&self, key: &SessionKey, number: u64) -> Result<RecordedState, Error> {
        for _ in 0..APPEND_ATTEMPTS {
            if let Some(undone) = self.try_undo(key, number).await? {
                return Ok(undone);
            }
        }
        Err(Error::Contention { session: key.session.clone(), attempts: APPEND_ATTEMPTS })
    }

    /// Nothing if the session was rewound meanwhile: what is to be shown again may be gone.
    async fn try_undo(&self, key: &SessionKey, number: u64) -> Result<Option<RecordedState>, Error> {
        let undone = self.get_compaction(key, number).await?;
        let tip = self.tip(key, None).await?;
        let at = self.newest(key, &tip).await?;
        let before = self.states_before(key, &at, undone.number, 1).await?.pop();
        let pins = self.state_at(key, &tip, &at).await?.state.pins.clone();
        let before = WindowState { pins, ..before.map(|state| state.state).unwrap_or_default() };
        // A window that cannot be sent is not recorded.
        let state = StateAt { number, state: Arc::new(before.clone()) };
        let window = self.assemble_log(key, &tip, &at, state).await?;
        let tokens = window.assembler.window(false).tokens();
        if let Some(room) = tip.room() {
            let rest = room.usable().saturating_sub(tip.head.preamble_tokens);
            if tokens > rest {
                // As the provider would count them.
                let factor = tip.session.factor(tip.head.calibration.as_ref());
                return Err(Error::WindowCannotFit {
                    session: key.session.clone(),
                    context: tip.session.profile.context_window_tokens,
                    rest: factor.reported(rest),
                    head: factor.reported(tokens),
                    last: 0,
                });
            }
        }
        // It may wait still, if its adoption was cut off, and would go with the window again.
        if let Some((token, Some(_))) = self.inner.meta.pending_summary(key).await? {
            self.inner.meta.drop_summary(key, &token).await?;
        }
        let branch = &tip.head.branch;
        self.revise_window(key, |tip, assembled| {
            if tip.head.branch != *branch {
                return Ok(None);
            }
            let mut state = WindowState { pins: assembled.state.pins.clone(), ..before.clone() };
            state.take_back(number, tip.head.window_state + 1);
            let cause = format!("compaction {number} was undone");
            let kind = StateKind::Undo;
            Ok(Some(Proposal { undone: Some(number), ..Proposal::keeping_all(kind, state, cause) }))
        })
        .await
    }
}

/// Fails if a session has not the version that it must have.
pub(super) fn expect_version(key: &SessionKey, expected: Option<Version>, tip: &Tip) -> Result<(), Error> {
    let current = tip.head.version;
    match expected.filter(|expected| *expected != current) {
        None => Ok(()),
        Some(expected) => Err(Error::VersionMismatch { session: key.session.clone(), expected, current }),
    }
}

fn truncation(window: &Window<'_>, assembled: &Assembled, tokens_max: u64, cause: &str) -> Option<Proposal> {
    if window.tokens() <= tokens_max {
        return None;
    }
    let cut = truncate(window, tokens_max)?;
    Some(proposal(assembled, cut, Some(tokens_max), cause))
}

fn proposal(assembled: &Assembled, cut: Cut, tokens_max: Option<u64>, cause: &str) -> Proposal {
    let state = WindowState { cut: Some(cut), ..WindowState::clone(&assembled.state) };
    Proposal { tokens_max, ..Proposal::keeping_all(StateKind::Truncate, state, cause.to_owned()) }
}

/// What became of what was found in the entries that left, in a window of those items.
async fn audited(format: WireFormat, findings: Findings, items: Vec<Item>) -> Result<AuditReport, Error> {
    if findings == Findings::default() {
        return Ok(AuditReport::default());
    }
    let bytes = items.iter().map(|item| item.payload.len()).sum();
    let payloads = move || audit_report(format, &findings, items.iter().map(|item| item.payload.as_ref()));
    compute(bytes, payloads).await
}

/// What it does to the prompt cache that a window of those payloads gives way to one of
/// those items.
fn cache_break(tip: &Tip, before: &[Bytes], after: &[Item]) -> CacheBreak {
    let same = before.iter().zip(after).take_while(|(before, after)| **before == after.payload).count();
    let (kept, resent) = after.split_at(same);
    let sum = |items: &[Item]| items.iter().fold(0, |sum: u64, item| sum.saturating_add(item.tokens));
    let (kept_tokens, resent_tokens) = (sum(kept), sum(resent));
    let factor = tip.session.factor(tip.head.calibration.as_ref());
    let held = factor.reported(kept_tokens.saturating_add(tip.head.preamble_tokens));
    let sent = factor.reported(resent_tokens);
    let cost = catalogue::prices(&tip.session.profile, "").map(|prices| {
        let cost = |input_tokens, cache_read_tokens| {
            prices.cost(&Usage { input_tokens, cache_read_tokens, ..Usage::default() }).0
        };
        Cost(cost(sent, held).saturating_sub(cost(0, held.saturating_add(sent))))
    });
    CacheBreak { kept_tokens, resent_tokens, cost }
}

/// Counts what a compaction lost, and warns of constraints and decisions among it. Their
/// texts are in the record and not in the log.
fn tell_losses(key: &SessionKey, number: u64, audit: &AuditReport) {
    for tally in audit.tallies.iter().filter(|tally| tally.lost > 0) {
        metrics::counter!("turnkeep_audit_losses_total", "subject" => tally.subject.clone())
            .increment(tally.lost);
    }
    let lost = |subject: Subject| {
        let mut tallies = audit.tallies.iter().filter(|tally| tally.subject == subject.as_str());
        tallies.next().map_or(0, |tally| tally.lost)
    };
    let (constraints, decisions) = (lost(Subject::Constraint), lost(Subject::Decision));
    let pins = lost(Subject::Pin);
    if constraints > 0 || decisions > 0 || pins > 0 {
        tracing::warn!(
            session = %key.session,
            compaction = number,
            constraints,
            decisions,
            pins,
            "a compaction lost what was demanded or decided"
        );
    }
}

/// Warns once of a window that compactions bring no relief any more.
fn tell_stall(key: &SessionKey, recorded: &RecordedState) {
    let is_tried = matches!(recorded.kind, StateKind::Summarize | StateKind::Collapse);
    let found = recorded.state.unrelieved.filter(|found| is_tried && found.in_a_row == UNRELIEVED_MAX);
    if let Some(found) = found {
        metrics::counter!("turnkeep_stalls_total").increment(1);
        tracing::warn!(
            session = %key.session,
            compaction = recorded.number,
            tokens = found.tokens,
            last_step_tokens = found.last,
            "compactions bring a window no relief any more, and no model is asked for more of them"
        );
    }
}

/// `a` less `b`.
pub(super) fn difference(a: u64, b: u64) -> i64 {
    let size = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
    size(a) - size(b)
}
