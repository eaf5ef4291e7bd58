//! Checking what windows are made with besides the log.

use super::{FsckReport, Rows};
use crate::engine::{Engine, Error};
use crate::limits::WINDOW_STATES_PAGE;
use crate::model::invariants::Violation;
use crate::model::{RecordedState, Seq, Version};
use crate::store::ErrorKind;
use crate::store::meta::BranchKey;

impl Engine {
    /// Checks that the window states of a branch can be read, belong to turns of it,
    /// and refer to entries of its log.
    pub(super) async fn check_window_states(
        &self,
        key: &BranchKey,
        rows: &Rows,
        report: &mut FsckReport,
        findings: &mut Vec<Violation>,
    ) -> Result<(), Error> {
        let mut before = u64::MAX;
        loop {
            let last = Version(i64::MAX.unsigned_abs());
            let page = match self.inner.meta.window_states(key, last, before, WINDOW_STATES_PAGE).await {
                Ok(page) => page,
                Err(error) if error.kind == ErrorKind::Corrupt => {
                    findings.push(format!("its window states: {error}"));
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            };
            let Some(oldest) = page.last() else { return Ok(()) };
            before = oldest.number;
            for state in &page {
                report.window_states += 1;
                findings.extend(self.check_window_state(key, rows, state).await?.err());
            }
        }
    }

    async fn check_window_state(
        &self,
        key: &BranchKey,
        rows: &Rows,
        state: &RecordedState,
    ) -> Result<Result<(), Violation>, Error> {
        let known = rows.turns.iter().find(|recorded| recorded.turn.version == state.version);
        let last_seq = match known {
            Some(recorded) => recorded.turn.last_seq,
            // It may be younger than the turns that were read, or its branch gone.
            None => match self.inner.meta.turn(key, state.version).await? {
                Some(recorded) => recorded.turn.last_seq,
                None if self.inner.meta.lineage(key).await?.is_empty() => return Ok(Ok(())),
                None => {
                    let problem = format!(
                        "window state {} is of turn {}, which is not there",
                        state.number, state.version
                    );
                    return Ok(Err(problem));
                }
            },
        };
        Ok(refers_to_entries(state, last_seq))
    }
}

/// What a window state refers to is there, and in its order: what a cut keeps lies
/// before it. Where a pin was found is as its caller says.
fn refers_to_entries(recorded: &RecordedState, last_seq: Seq) -> Result<(), Violation> {
    let RecordedState { number, version, state, .. } = recorded;
    let cut = state.cut.as_ref();
    let stale = state.stale.iter().flat_map(|(seq, later)| [*seq, *later]);
    let ends = cut.iter().map(|cut| cut.first_kept).chain(state.snipped.iter().copied()).chain(stale);
    let covered = state.summary.iter().map(|summary| summary.covers);
    if !state.partly.keys().all(|seq| state.snipped.binary_search(seq).is_ok()) {
        return Err(format!("window state {number} of turn {version} shortens parts of what it shows whole"));
    }
    if !ends.chain(covered).all(|seq| (Seq(1)..=last_seq).contains(&seq)) {
        return Err(format!("window state {number} of turn {version} refers to entries that are not there"));
    }
    let is_before = |cut: &crate::model::Cut| {
        cut.kept().first() != Some(&Seq(0)) && cut.kept().last().is_none_or(|last| *last < cut.first_kept)
    };
    if cut.is_none_or(is_before) {
        Ok(())
    } else {
        Err(format!("window state {number} of turn {version} keeps entries that are not before its cut"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Micros;
    use crate::model::{BranchId, Pin, StateKind, StateRecord, Summary, WindowState};

    #[test]
    fn a_state_of_pins_alone_is_sound_before_the_first_entry_and_one_with_a_summary_is_not() {
        let recorded = |summary| RecordedState {
            branch: BranchId::parse("b").unwrap(),
            number: 1,
            version: Version(0),
            kind: StateKind::Pins,
            state: WindowState {
                pins: vec![Pin { name: "rule".to_owned(), text: "be kind".to_owned(), seq: None }],
                summary,
                ..WindowState::default()
            },
            record: StateRecord::default(),
            created_at: Micros(0),
        };
        assert_eq!(refers_to_entries(&recorded(None), Seq(0)), Ok(()));
        let summary = Summary { covers: Seq(1), ..Summary::default() };
        assert!(refers_to_entries(&recorded(Some(summary)), Seq(0)).is_err());
    }
}
