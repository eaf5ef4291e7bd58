//! Reading as much of a log as its window shows, and assembling it.

use super::assembled::Assembled;
use crate::engine::leaving::briefer;
use crate::engine::log::Position;
use crate::engine::segments::Each;
use crate::engine::window_state::StateAt;
use crate::engine::{Engine, Error, compute};
use crate::limits::CUT_ATTEMPTS;
use crate::model::{Cut, Entry, Seq, WindowState};
use crate::store::meta::{SessionKey, Tip};
use crate::tokens::TokenCounter;
use crate::window::{Deepening, Prepared, atoms, long_results, preparation, with_shortened};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use std::sync::Arc;

/// Entries before a cut that are read at the same time.
const KEPT_READS: usize = 8;

impl Engine {
    /// Reads and assembles as much of a log as its window shows. The tip's journal
    /// rows are all of its branch's or none.
    pub(in crate::engine) async fn assemble_log(
        &self,
        key: &SessionKey,
        tip: &Tip,
        at: &Position,
        state: StateAt,
    ) -> Result<Assembled, Error> {
        let cut = state.state.cut.clone().unwrap_or_default();
        let (kept, entries) = self.shown(key, tip, at, &cut, preparing(tip, &state)).await?;
        Assembled::new(&tip.session, &tip.head, &at.turn, state, kept)
            .extended(entries, at.turn.version)
            .await
    }

    /// The entries before a cut that stay, and what `each` makes of those from it on.
    async fn shown<T: AsRef<Entry> + Send + 'static>(
        &self,
        key: &SessionKey,
        tip: &Tip,
        at: &Position,
        cut: &Cut,
        each: impl Each<T>,
    ) -> Result<(Vec<Entry>, Vec<T>), Error> {
        // The rows of the tip are of use if the version is on its branch.
        let journal = if at.turn.branch == tip.head.branch { tip.journal.clone() } else { vec![] };
        let last = at.turn.last_seq;
        let first = cut.first_kept.max(Seq(1));
        let body = async {
            if last < first {
                return Ok(vec![]);
            }
            self.each_entry(key, at, first, last, journal, each).await
        };
        let kept = cut.kept();
        futures::try_join!(self.kept_entries(key, at, &kept), body)
    }

    /// The entries of those seqs, which are in order.
    pub(in crate::engine) async fn kept_entries(
        &self,
        key: &SessionKey,
        at: &Position,
        seqs: &[Seq],
    ) -> Result<Vec<Entry>, Error> {
        let runs = seqs.chunk_by(|one, next| one.next() == *next);
        let reads: Vec<_> = runs
            .filter_map(|run| Some((*run.first()?, *run.last()?)))
            .map(|(first, last)| self.entries(key, at, first, last, vec![]))
            .collect();
        let read: Vec<_> = stream::iter(reads).buffered(KEPT_READS).try_collect().await?;
        Ok(read.into_iter().flatten().collect())
    }

    /// As [`Self::assemble_log`], with as many of the oldest steps left out as are
    /// needed for messages to take at most `tokens_max` tokens. If not even the last
    /// step fits, as many of its results as are needed are shown by their ends; then what
    /// stands for the steps that left is made as short as is needed.
    pub(in crate::engine) async fn assemble_cut(
        &self,
        key: &SessionKey,
        tip: &Tip,
        at: &Position,
        state: StateAt,
        tokens_max: u64,
        close_pending: bool,
    ) -> Result<Assembled, Error> {
        let mut assembled = self.assemble_log(key, tip, at, state.clone()).await?;
        let mut deepening = Deepening::to(tokens_max);
        loop {
            let tokens = assembled.assembler.window(close_pending).tokens();
            if tokens <= tokens_max {
                return Ok(assembled);
            }
            let Some(cut) = deepening.next(&assembled.assembler.window(false), tokens) else { break };
            let next = WindowState { cut: Some(cut), ..WindowState::clone(&assembled.state) };
            let next = StateAt { number: state.number, state: Arc::new(next) };
            assembled = self.assemble_log(key, tip, at, next).await?;
        }
        let cut = assembled.state.cut.clone().unwrap_or_default();
        let shown = self.shown(key, tip, at, &cut, |entries| entries).await?;
        let fits = |assembled: &Assembled| assembled.assembler.window(close_pending).tokens() <= tokens_max;
        let assembled = with_fewest_shortened(tip, at, assembled, shown.clone(), fits).await?;
        if fits(&assembled) {
            return Ok(assembled);
        }
        let assembled = with_briefer_summary(tip, at, assembled, shown, close_pending, tokens_max).await?;
        let window = assembled.assembler.window(close_pending);
        let tokens = window.tokens();
        if tokens <= tokens_max {
            return Ok(assembled);
        }
        let last = atoms(&window).last().map_or(0, |atom| atom.tokens);
        // As the provider would count them.
        let factor = tip.session.factor(assembled.state.calibration.as_ref());
        Err(Error::WindowCannotFit {
            session: key.session.clone(),
            context: tip.session.profile.context_window_tokens,
            rest: factor.reported(tokens_max),
            head: factor.reported(tokens.saturating_sub(last)),
            last: factor.reported(last),
        })
    }
}

/// Entries before a cut that stay, and those from it on.
type ShownEntries = (Vec<Entry>, Vec<Entry>);

/// Prepares entries for the window of a state.
fn preparing(tip: &Tip, at: &StateAt) -> impl Each<Prepared> {
    let session = &tip.session;
    let counter = TokenCounter::new(session.format, session.tokenizer());
    let prepare = preparation(session.format, counter, at.state.clone());
    move |entries| entries.into_iter().map(&prepare).collect()
}

async fn assembled(
    tip: &Tip,
    at: &Position,
    state: StateAt,
    (kept, entries): ShownEntries,
) -> Result<Assembled, Error> {
    let prepare = preparing(tip, &state);
    let bytes = entries.iter().map(|entry| entry.payload.len()).sum();
    let prepared = compute(bytes, move || prepare(entries)).await?;
    let assembled = Assembled::new(&tip.session, &tip.head, &at.turn, state, kept);
    assembled.extended(prepared, at.turn.version).await
}

/// A window with as few of its results shown by their ends as are needed for it to fit,
/// the longest first; with all of them if it does not fit even so.
async fn with_fewest_shortened(
    tip: &Tip,
    at: &Position,
    whole: Assembled,
    shown: ShownEntries,
    fits: impl Fn(&Assembled) -> bool,
) -> Result<Assembled, Error> {
    let (number, state, format) = (whole.state_number, whole.state.clone(), tip.session.format);
    let counter = TokenCounter::new(format, tip.session.tokenizer());
    let long = {
        let (entries, state) = (shown.1.clone(), state.clone());
        let bytes = entries.iter().map(|entry| entry.payload.len()).sum();
        compute(bytes, move || long_results(format, &entries, &state, counter)).await?
    };
    let shortened = |count: usize| {
        let state = with_shortened(&state, long.get(..count).unwrap_or(&long));
        assembled(tip, at, StateAt { number, state: Arc::new(state) }, shown.clone())
    };
    let mut shortest = shortened(long.len()).await?;
    if !fits(&shortest) {
        return Ok(shortest);
    }
    let (mut fits_not, mut fewest) = (0, long.len());
    while fits_not + 1 < fewest {
        let count = fits_not.midpoint(fewest);
        let next = shortened(count).await?;
        if fits(&next) {
            (fewest, shortest) = (count, next);
        } else {
            fits_not = count;
        }
    }
    Ok(shortest)
}

/// A window with a summary that is short enough for it to fit; with none if it does not fit
/// even so.
async fn with_briefer_summary(
    tip: &Tip,
    at: &Position,
    whole: Assembled,
    shown: ShownEntries,
    close_pending: bool,
    tokens_max: u64,
) -> Result<Assembled, Error> {
    let Some(summary) = whole.state.summary.clone() else { return Ok(whole) };
    let number = whole.state_number;
    let with = |summary| {
        let state = WindowState { summary, ..WindowState::clone(&whole.state) };
        assembled(tip, at, StateAt { number, state: Arc::new(state) }, shown.clone())
    };
    let without = with(None).await?;
    let tokens = |assembled: &Assembled| assembled.assembler.window(close_pending).tokens();
    let Some(mut room) = tokens_max.checked_sub(tokens(&without)) else { return Ok(without) };
    // What stands around it may take more than was reckoned.
    for _ in 0..CUT_ATTEMPTS {
        let Some(summary) = briefer(&tip.session, &summary, room) else { break };
        let next = with(Some(summary)).await?;
        match tokens(&next).checked_sub(tokens_max) {
            None | Some(0) => return Ok(next),
            Some(excess) => room = room.saturating_sub(excess),
        }
    }
    Ok(without)
}
