//! Episodes: the summaries and extracts that took the place of entries in a session's
//! windows, one after the other.

use super::{Engine, Error};
use crate::clock::Micros;
use crate::limits::WINDOW_STATES_PAGE;
use crate::model::{RecordedState, Seq, StateKind, SummarizerReport, Version};
use crate::store::meta::SessionKey;

/// A summary that took the place of entries in windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Episode {
    /// Number of the compaction that it came with.
    pub number: u64,
    /// The session's version then.
    pub version: Version,
    /// When that was.
    pub created_at: Micros,
    /// First of the entries that left with it.
    pub first: Seq,
    /// Last of them.
    pub last: Seq,
    /// What a model wrote, or code extracted, of them and of all that left before.
    pub text: String,
    /// What was done until then.
    pub ledger: String,
    /// The model that wrote the text; empty if code extracted it.
    pub model: String,
    /// What made the compaction necessary.
    pub cause: String,
}

/// A page of episodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpisodePage {
    /// The newest first.
    pub episodes: Vec<Episode>,
    /// Whether there are more.
    pub more: bool,
}

impl Episode {
    /// The episode of a state, if it is that of one. Where its entries begin, the state
    /// before it tells.
    fn of(state: RecordedState) -> Option<Self> {
        let RecordedState { number, version, kind, state, record, created_at, .. } = state;
        let summary = state.summary.filter(|summary| !summary.text.is_empty())?;
        let taken = |call: SummarizerReport| call.failure.is_empty().then_some(call.model);
        matches!(kind, StateKind::Summarize | StateKind::Collapse).then(|| Self {
            number,
            version,
            created_at,
            first: Seq(1),
            last: summary.covers,
            text: summary.text,
            ledger: summary.ledger,
            model: record.summarizer.and_then(taken).unwrap_or_default(),
            cause: record.cause,
        })
    }
}

/// The first entry that was left in the windows of a state.
fn first_kept(state: &RecordedState) -> Seq {
    state.state.cut.as_ref().map_or(Seq(1), |cut| cut.first_kept.max(Seq(1)))
}

impl Engine {
    /// A session's episodes with numbers under `before`, the newest first, without those
    /// that were undone or rewound.
    pub async fn list_episodes(
        &self,
        key: &SessionKey,
        before: Option<u64>,
        limit: u32,
    ) -> Result<EpisodePage, Error> {
        let limit = limit.min(WINDOW_STATES_PAGE) as usize;
        let before = before.unwrap_or(u64::MAX);
        let mut episodes = self.episodes(key, before, |found| found.len() > limit).await?;
        let more = episodes.len() > limit;
        episodes.truncate(limit);
        Ok(EpisodePage { episodes, more })
    }

    /// An episode of a session.
    pub async fn get_episode(&self, key: &SessionKey, number: u64) -> Result<Episode, Error> {
        let tip = self.tip(key, None).await?;
        let at = self.newest(key, &tip).await?;
        let newest = self.state_at(key, &tip, &at).await?;
        // It, and the state before.
        let mut states = self.states_before(key, &at, number.saturating_add(1), 2).await?.into_iter();
        let found = states.next().filter(|state| state.number == number && !newest.state.has_undone(number));
        let found = found.and_then(Episode::of).map(|episode| match states.next() {
            None => episode,
            Some(before) => Episode { first: first_kept(&before), ..episode },
        });
        found.ok_or_else(|| Error::CompactionNotFound { session: key.session.clone(), number })
    }

    /// Episodes with numbers under `before`, the newest first, until there are enough.
    async fn episodes(
        &self,
        key: &SessionKey,
        mut before: u64,
        are_enough: impl Fn(&[Episode]) -> bool,
    ) -> Result<Vec<Episode>, Error> {
        let tip = self.tip(key, None).await?;
        let at = self.newest(key, &tip).await?;
        let newest = self.state_at(key, &tip, &at).await?;
        let mut found: Vec<Episode> = Vec::new();
        // Whether the state before the last of them is still to come.
        let mut is_open = false;
        loop {
            let page = self.states_before(key, &at, before, WINDOW_STATES_PAGE).await?;
            let is_last = page.len() < WINDOW_STATES_PAGE as usize;
            for state in page {
                before = state.number;
                if newest.state.has_undone(state.number) {
                    continue;
                }
                if let Some(last) = found.last_mut().filter(|_| is_open) {
                    last.first = first_kept(&state);
                    is_open = false;
                }
                if are_enough(&found) {
                    return Ok(found);
                }
                let episode = Episode::of(state);
                is_open |= episode.is_some();
                found.extend(episode);
            }
            if is_last {
                return Ok(found);
            }
        }
    }
}
