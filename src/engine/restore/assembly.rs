//! Reading as much of a log as its window shows, and assembling it.

use super::assembled::Assembled;
use crate::engine::log::Position;
use crate::engine::window_state::StateAt;
use crate::engine::{Engine, Error};
use crate::model::{Entry, Seq, WindowState};
use crate::store::meta::{SessionKey, Tip};
use crate::tokens::TokenCounter;
use crate::window::{Deepening, atoms, preparation};
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
        // The rows of the tip are of use if the version is on its branch.
        let journal = if at.turn.branch == tip.head.branch { tip.journal.clone() } else { vec![] };
        let last = at.turn.last_seq;
        let cut = state.state.cut.clone().unwrap_or_default();
        let first = cut.first_kept.max(Seq(1));
        let session = &tip.session;
        let counter = TokenCounter::new(session.format, session.tokenizer());
        let prepare = preparation(session.format, counter, state.state.clone());
        let each = move |entries: Vec<Entry>| entries.into_iter().map(&prepare).collect();
        let body = async {
            if last < first {
                return Ok(vec![]);
            }
            self.each_entry(key, at, first, last, journal, each).await
        };
        let kept = cut.kept();
        let (kept, entries) = futures::try_join!(self.kept_entries(key, at, &kept), body)?;
        Assembled::new(session, &tip.head, &at.turn, state, kept).extended(entries, at.turn.version).await
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
    /// step fits, its results are shown by their ends.
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
        let first = assembled.state.cut.as_ref().map_or(Seq(1), |cut| cut.first_kept);
        let snipped = (first.0..=at.turn.last_seq.0).map(Seq).collect();
        let next = WindowState { snipped, ..WindowState::clone(&assembled.state) };
        let next = StateAt { number: state.number, state: Arc::new(next) };
        assembled = self.assemble_log(key, tip, at, next).await?;
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
