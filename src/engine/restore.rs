//! Restoring a window.

mod answer;
mod assembled;
mod assembly;

use super::error::Dependency;
use super::log::Position;
use super::window_state::StateAt;
use super::{Engine, Error, compute, log};
use crate::codec::window_id::{ReceiptPrefix, WindowId, receipt_prefix};
use crate::limits::{REPAIR_SEQS_MAX, REPAIRS_MAX};
use crate::model::{BranchId, Entry, Item, Preamble, Repair, Room, Seq, Turn, Version, WindowState};
use crate::store::meta::{BranchKey, SessionKey, Tip};
use crate::tokens::TokenCounter;
use crate::window::Message;
pub use answer::{Change, FullReason, Restored, WindowHeader};
pub(in crate::engine) use assembled::Assembled;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A window to be restored.
#[derive(Clone, Debug)]
pub struct RestoreRequest {
    /// The session.
    pub key: SessionKey,
    /// The version; the newest if not given.
    pub at_version: Option<Version>,
    /// The window that the worker holds; empty if it holds none.
    pub known_window: String,
    /// Output tokens to leave room for.
    pub reserve_tokens: Option<u64>,
    /// Tokens that the worker adds to each call.
    pub fixed_overhead_tokens: u64,
    /// Whether the unanswered calls of the last step get results that say that
    /// they were interrupted.
    pub close_pending: bool,
    /// Whether the whole log is shown, even if it does not fit.
    pub is_whole: bool,
}

/// A session's window, kept assembled.
#[derive(Debug)]
pub(super) struct LiveWindow {
    state: Mutex<Assembled>,
    bytes: AtomicUsize,
}

impl LiveWindow {
    fn new(state: Assembled) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::new(state.bytes), state: Mutex::new(state) })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Assembled> {
        // What a panic may have left half-done is made anew.
        self.state.lock().unwrap_or_else(|poisoned| {
            self.state.clear_poison();
            let mut state = PoisonError::into_inner(poisoned);
            state.forget();
            state
        })
    }
}

/// Times that a restore takes the window in memory, which others may be a turn
/// ahead of it with, before it makes one of its own.
const LIVE_ATTEMPTS: usize = 4;

/// What is to be done about a window before it is served.
enum Look {
    /// It takes so much of the room that it may be made smaller; whether that brought no
    /// relief of late.
    Pressed(Room, u64, bool),
    /// It has to be cut to so many tokens for this request.
    Over(u64),
}

impl Engine {
    /// Restores a window.
    pub async fn restore(&self, request: RestoreRequest) -> Result<Restored, Error> {
        let mut attempts = 0;
        let restored = loop {
            attempts += 1;
            if let Some(restored) = self.try_restore(&request, attempts).await? {
                break restored;
            }
        };
        let how = match restored.header.change {
            Change::Unchanged => "unchanged",
            Change::Delta { .. } => "delta",
            Change::Full(reason) => reason.as_str(),
        };
        metrics::counter!("turnkeep_restores_total", "change" => how).increment(1);
        let bytes: usize = restored.items.iter().map(|item| item.payload.len()).sum();
        metrics::counter!("turnkeep_restored_payload_bytes_total").increment(bytes as u64);
        Ok(restored)
    }

    /// Restores a window; nothing if it changed meanwhile, so that it is to be looked
    /// at afresh.
    async fn try_restore(&self, request: &RestoreRequest, attempt: usize) -> Result<Option<Restored>, Error> {
        let key = &request.key;
        let live = self.inner.caches.windows.get(key);
        let known = live.as_ref().map_or(Version(0), |live| live.lock().newest().0);
        let mut tip = self.tip(key, Some(known)).await?;
        let version = request.at_version.unwrap_or(tip.head.version);
        let shows_state = !request.is_whole || tip.head.window_state == 0;
        if version == tip.head.version && attempt <= LIVE_ATTEMPTS && shows_state {
            return self.restore_newest(request, attempt, tip, live).await;
        }
        let at = self.position(key, &tip, version).await?;
        if known != Version(0) {
            tip.journal.clear();
        }
        let preamble = self.inner.meta.preamble(key, version).await?;
        let held = self.held_window(request, &tip, &at, None).await?;
        let at_state = if request.is_whole {
            // Nothing but how its tokens compare with the provider's.
            let calibration = tip.head.calibration.clone();
            StateAt { number: 0, state: Arc::new(WindowState { calibration, ..WindowState::default() }) }
        } else {
            self.state_at(key, &tip, &at).await?
        };
        let state = self.assemble_log(key, &tip, &at, at_state.clone()).await?;
        let Some(over) = excess(request, &tip, preamble.as_ref(), &state) else {
            return Ok(Some(self.serve(request, &tip, &at, preamble.as_ref(), (&state, 0), held)));
        };
        let cut = self.assemble_cut(key, &tip, &at, at_state, over, request.close_pending).await?;
        Ok(Some(self.serve(request, &tip, &at, preamble.as_ref(), (&cut, over), held)))
    }

    /// Restores the window of the newest version, which is kept in memory.
    async fn restore_newest(
        &self,
        request: &RestoreRequest,
        attempt: usize,
        mut tip: Tip,
        live: Option<Arc<LiveWindow>>,
    ) -> Result<Option<Restored>, Error> {
        let key = &request.key;
        let live = self.live_window(key, &mut tip, live).await?;
        let at = self.newest(key, &tip).await?;
        let preamble = match tip.head.preamble_revision {
            0 => None,
            revision => Some(self.preamble(key, revision, tip.head.version).await?),
        };
        let preamble = preamble.as_deref();
        let held = self.held_window(request, &tip, &at, Some(&live)).await?;
        let look = {
            let state = live.lock();
            // A turn that was committed since the head was read may be in it already.
            if state.newest().0 != tip.head.version || !state.is_of(&tip.head) {
                return Ok(None);
            }
            let window = state.assembler.window(request.close_pending);
            let filled = window.tokens().saturating_add(preamble.map_or(0, |preamble| preamble.tokens));
            // Not the request's room: what it alone makes necessary is not recorded.
            match tip.room() {
                Some(room) if attempt == 1 && !request.is_whole && self.wants_relief(&tip, room, filled) => {
                    Look::Pressed(room, filled, self.stall_of(&tip, &state).is_some())
                }
                _ => match excess(request, &tip, preamble, &state) {
                    None => {
                        return Ok(Some(self.serve(request, &tip, &at, preamble, (&state, 0), held)));
                    }
                    Some(over) => Look::Over(over),
                },
            }
        };
        match look {
            Look::Pressed(room, filled, is_stalled) => {
                match Box::pin(self.relieve(key, room, filled, is_stalled)).await {
                    // What is in memory can be served all the same.
                    Err(error @ Error::Unavailable { what: Dependency::Objects, .. }) => {
                        tracing::warn!(session = %key.session, error = %error, "a window was not relieved");
                    }
                    relieved => relieved?,
                }
                Ok(None)
            }
            Look::Over(over) => {
                let at_state = self.state_at(key, &tip, &at).await?;
                let cut = self.assemble_cut(key, &tip, &at, at_state, over, request.close_pending).await?;
                Ok(Some(self.serve(request, &tip, &at, preamble, (&cut, over), held)))
            }
        }
    }

    /// A session as it stands, with its window.
    pub(super) async fn current(&self, key: &SessionKey) -> Result<(Tip, Position, Arc<LiveWindow>), Error> {
        let mut attempts = 0;
        loop {
            let live = self.inner.caches.windows.get(key);
            let known = live.as_ref().map_or(Version(0), |live| live.lock().newest().0);
            let mut tip = self.tip(key, Some(known)).await?;
            let live = self.live_window(key, &mut tip, live).await?;
            let at = self.newest(key, &tip).await?;
            let is_current = {
                let state = live.lock();
                state.newest().0 == tip.head.version && state.is_of(&tip.head)
            };
            attempts += 1;
            if is_current {
                tip.journal.clear();
                return Ok((tip, at, live));
            }
            if attempts >= LIVE_ATTEMPTS {
                return Err(Error::Contention { session: key.session.clone(), attempts });
            }
        }
    }

    /// The session's window in memory, brought up to the tip or made anew.
    async fn live_window(
        &self,
        key: &SessionKey,
        tip: &mut Tip,
        live: Option<Arc<LiveWindow>>,
    ) -> Result<Arc<LiveWindow>, Error> {
        if let Some(live) = live {
            let (is_of_tip, (version, seq), receipt) = {
                let state = live.lock();
                (state.is_of(&tip.head), state.newest(), state.receipt)
            };
            let is_ahead = version > tip.head.version;
            let receipt = receipt_prefix(receipt);
            if is_of_tip
                && (is_ahead || self.has_turn(key, &tip.turn, &tip.head.branch, version, receipt).await?)
            {
                if version >= tip.head.version {
                    live.lock().extend_to(vec![], tip);
                    metrics::counter!("turnkeep_window_cache_total", "outcome" => "hit").increment(1);
                    return Ok(live);
                }
                metrics::counter!("turnkeep_window_cache_total", "outcome" => "extended").increment(1);
                let entries = self.entries_after(key, tip, seq).await?;
                live.lock().extend_to(entries.into_iter().map(|entry| (entry, None)), tip);
                self.keep(key, &live);
                return Ok(live);
            }
            // The rows that were read are only those that it lacked.
            tip.journal.clear();
        }
        metrics::counter!("turnkeep_window_cache_total", "outcome" => "miss").increment(1);
        let at = self.newest(key, tip).await?;
        let at_state = self.state_at(key, tip, &at).await?;
        let state = self.assemble_log(key, tip, &at, at_state).await?;
        let live = LiveWindow::new(state);
        self.keep(key, &live);
        Ok(live)
    }

    /// Keeps a window that was made anew.
    pub(super) fn keep_assembled(&self, key: &SessionKey, state: Assembled) {
        self.keep(key, &LiveWindow::new(state));
    }

    /// Weighs a window anew.
    fn keep(&self, key: &SessionKey, live: &Arc<LiveWindow>) {
        live.bytes.store(live.lock().bytes, Ordering::Relaxed);
        self.inner.caches.windows.insert(key.clone(), live.clone());
    }

    /// Entries after `seq` up to the tip, which read some journal rows already.
    async fn entries_after(&self, key: &SessionKey, tip: &Tip, seq: Seq) -> Result<Vec<Entry>, Error> {
        let first = seq.next();
        if tip.journal.first().is_some_and(|row| row.first_seq <= first) {
            let mut entries = Vec::new();
            for row in &tip.journal {
                entries.extend(log::decode_journal(key, row.clone()).await?);
            }
            log::retain_new(&mut entries, first, tip.turn.last_seq);
            if entries.last().is_some_and(|last| last.seq == tip.turn.last_seq) {
                return Ok(entries);
            }
        }
        if first > tip.turn.last_seq {
            return Ok(vec![]);
        }
        let at = self.newest(key, tip).await?;
        self.entries(key, &at, first, tip.turn.last_seq, vec![]).await
    }

    /// The items of a window that was served before; nothing if its state is not of
    /// this log.
    pub(super) async fn window_items(
        &self,
        key: &SessionKey,
        tip: &Tip,
        at: &Position,
        window: &WindowId,
    ) -> Result<Option<Vec<Item>>, Error> {
        let recorded = match window.window_state {
            0 => Some(StateAt::default()),
            number => self.state_numbered(key, at, number).await?.map(StateAt::new),
        };
        let Some(state) = recorded else { return Ok(None) };
        let close_pending = window.close_pending;
        let assembled = match window.cut_to {
            0 => self.assemble_log(key, tip, at, state).await?,
            tokens_max => self.assemble_cut(key, tip, at, state, tokens_max, close_pending).await?,
        };
        Ok(Some(assembled.assembler.window(close_pending).items_from(0).collect()))
    }

    /// Takes the entries of a turn that was just committed into the session's
    /// window, if that is in memory and ends with the turn before.
    pub(super) fn extend_window(
        &self,
        key: &SessionKey,
        tip: &Tip,
        previous: &Turn,
        entries: impl IntoIterator<Item = (Entry, Option<Message>)>,
    ) {
        let Some(live) = self.inner.caches.windows.get(key) else { return };
        let mut state = live.lock();
        let follows = state.newest().0 == previous.version && state.receipt == previous.receipt;
        if follows && state.is_of(&tip.head) {
            state.extend_to(entries, tip);
            drop(state);
            self.keep(key, &live);
        }
    }

    /// Whether a branch of the log that ends with the turn `last` has a turn of
    /// that version and receipt.
    async fn has_turn(
        &self,
        key: &SessionKey,
        last: &Turn,
        branch: &BranchId,
        version: Version,
        receipt: ReceiptPrefix,
    ) -> Result<bool, Error> {
        if version == last.version {
            return Ok(receipt_prefix(last.receipt) == receipt);
        }
        let branch = BranchKey { tenant: key.tenant.clone(), branch: branch.clone() };
        let found = self.inner.meta.turn(&branch, version).await?;
        Ok(found.is_some_and(|found| receipt_prefix(found.turn.receipt) == receipt))
    }

    /// The window that the worker holds, if it can be built upon. `live` is the
    /// session's at the tip.
    async fn held_window(
        &self,
        request: &RestoreRequest,
        tip: &Tip,
        at: &Position,
        live: Option<&LiveWindow>,
    ) -> Result<Result<WindowId, FullReason>, Error> {
        if request.known_window.is_empty() {
            return Ok(Err(FullReason::NotConditional));
        }
        let SessionKey { tenant, session } = &request.key;
        let held = self.inner.window_ids.decode(tenant, session, &request.known_window);
        let Some(held) = held else { return Ok(Err(FullReason::UnknownWindow)) };
        if let Err(reason) = check_held(request, tip, at, &held) {
            return Ok(Err(reason));
        }
        if live.is_some_and(|live| live.lock().earlier.contains(&(held.known, held.receipt))) {
            return Ok(Ok(held));
        }
        // The receipt chains all turns before it, so the rest needs no look.
        let is_known = self.has_turn(&request.key, &at.turn, &held.branch, held.known, held.receipt).await?;
        Ok(if is_known { Ok(held) } else { Err(FullReason::UnknownWindow) })
    }

    fn serve(
        &self,
        request: &RestoreRequest,
        tip: &Tip,
        at: &Position,
        preamble: Option<&Preamble>,
        (state, cut_to): (&Assembled, u64),
        held: Result<WindowId, FullReason>,
    ) -> Restored {
        let held = held.and_then(|held| match held.window_state == state.state_number {
            _ if held.cut_to != 0 || cut_to != 0 => Err(FullReason::ParametersChanged),
            true => Ok(held),
            false => Err(FullReason::Revised),
        });
        let SessionKey { tenant, session } = &request.key;
        let window = state.assembler.window(request.close_pending);
        // The preamble that was current at the version that was served is another
        // if it was set later.
        let is_preamble_new =
            |served| preamble.is_some_and(|preamble: &Preamble| preamble.since_version > served);
        let (change, told, lacks_preamble) = match held {
            Err(reason) => (Change::Full(reason), None, true),
            Ok(held) => {
                let served = state.seq_of(held.served);
                let common = window.common_prefix(served, state.seq_of(held.known));
                let lacks_preamble = is_preamble_new(held.served);
                match common.items {
                    _ if common.is_unchanged && !lacks_preamble => (Change::Unchanged, Some(served), false),
                    0 => (Change::Full(FullReason::NothingInCommon), None, true),
                    base_items => {
                        let told = Some(window.changed_since(served));
                        (Change::Delta { base_items }, told, lacks_preamble)
                    }
                }
            }
        };
        let (items, repairs) = match change {
            Change::Unchanged => (vec![], vec![]),
            Change::Delta { base_items } => (window.items_from(base_items).collect(), window.repairs(told)),
            Change::Full(_) => (window.items_from(0).collect(), window.repairs(None)),
        };
        let repair_count = repairs.len();
        let id = WindowId {
            branch: at.turn.branch.clone(),
            served: at.turn.version,
            known: at.turn.version,
            window_revision: tip.head.window_revision,
            config_revision: tip.head.config_revision,
            window_state: state.state_number,
            cut_to,
            fixed_overhead: request.fixed_overhead_tokens,
            close_pending: request.close_pending,
            receipt: receipt_prefix(at.turn.receipt),
        };
        let profile = &tip.session.profile;
        let calibration = state.state.calibration.as_ref();
        let (reserve, overhead) = (request.reserve_tokens, request.fixed_overhead_tokens);
        let room = tip.session.room(calibration, reserve, overhead);
        let tokens = window.tokens();
        let filled = tokens.saturating_add(preamble.map_or(0, |preamble| preamble.tokens));
        let counter = TokenCounter::new(tip.session.format, tip.session.tokenizer());
        Restored {
            header: WindowHeader {
                version: at.turn.version,
                window_id: self.inner.window_ids.encode(tenant, session, &id),
                change,
                item_count: window.len(),
                stable_prefix_items: window.stable_prefix_items(),
                format: tip.session.format,
                profile: profile.clone(),
                preamble: preamble.filter(|_| lacks_preamble).cloned(),
                tokens_before: at.turn.log_tokens,
                tokens_after: tokens,
                reserve: profile.room(reserve, overhead).map_or(reserve.unwrap_or(0), |room| room.reserve),
                fits: room.map(|room| room.fits(filled)),
                factor: tip.session.factor(calibration),
                repairs: newest_repairs(repairs),
                repair_count,
                unanswered: window.unanswered().clone(),
                next: window.next(),
                tokens_estimated: !counter.is_exact() || tip.session.has_other_counts,
                window_state: state.state_number,
                cut: state.state.cut.clone().filter(|cut| cut.omitted_entries > 0),
                is_cut_for_request: cut_to != 0,
                stall: self.stall(
                    &tip.session,
                    preamble.map_or(0, |preamble| preamble.tokens),
                    &state.state,
                    tokens,
                ),
            },
            items,
        }
    }
}

/// The tokens that messages may take, if those of a window are more.
fn excess(
    request: &RestoreRequest,
    tip: &Tip,
    preamble: Option<&Preamble>,
    state: &Assembled,
) -> Option<u64> {
    if request.is_whole {
        return None;
    }
    let calibration = state.state.calibration.as_ref();
    let room = tip.session.room(calibration, request.reserve_tokens, request.fixed_overhead_tokens)?;
    let rest = room.usable().saturating_sub(preamble.map_or(0, |preamble| preamble.tokens));
    (state.assembler.window(request.close_pending).tokens() > rest).then_some(rest.max(1))
}

/// The repairs that a header lists.
fn newest_repairs(mut repairs: Vec<Repair>) -> Vec<Repair> {
    let mut newest = repairs.split_off(repairs.len().saturating_sub(REPAIRS_MAX));
    for repair in &mut newest {
        repair.seqs.truncate(REPAIR_SEQS_MAX);
    }
    newest
}

/// Whether the window that the worker holds can be built upon, as far as can be
/// told without its receipt.
fn check_held(request: &RestoreRequest, tip: &Tip, at: &Position, held: &WindowId) -> Result<(), FullReason> {
    if held.known > tip.head.version {
        // The metadata were taken back to before it.
        return Err(FullReason::UnknownWindow);
    }
    if held.known > at.turn.version {
        return Err(FullReason::ParametersChanged);
    }
    if !at.lineage.contains(&held.branch, held.known) {
        return Err(FullReason::Rewound);
    }
    if !held.is_of_config(&tip.head) {
        return Err(FullReason::Revised);
    }
    // A window in which pending calls were closed does not grow from its end.
    if held.close_pending != request.close_pending || (held.close_pending && held.known != held.served) {
        return Err(FullReason::ParametersChanged);
    }
    Ok(())
}
