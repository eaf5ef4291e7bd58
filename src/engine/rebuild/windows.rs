//! What windows are made with besides the log, as the manifests tell it.

use super::evidence::Evidence;
use super::{RebuildReport, Rebuilt, session_place};
use crate::engine::fsck::Finding;
use crate::model::{BranchId, Calibration, RecordedState, Seq, TenantId, Version, WindowState};
use crate::store::meta::SessionKey;
use std::collections::BTreeMap;

/// The newest window state of each branch that has one.
pub(super) type States = BTreeMap<(TenantId, BranchId), RecordedState>;

/// The window states of the branches that came back, with no more than these have.
pub(super) fn place_states(
    evidence: &Evidence,
    branches: &BTreeMap<(TenantId, BranchId), Rebuilt>,
    report: &mut RebuildReport,
) -> States {
    let mut states = States::new();
    for (session, (manifest, _)) in &evidence.manifests {
        if evidence.deleted.contains_key(session) {
            continue;
        }
        for state in &manifest.window_states {
            let RecordedState { number, version, .. } = state;
            let id = (session.0.clone(), state.branch.clone());
            let (placed, problem) = match branches.get(&id) {
                Some(rebuilt) if *version <= rebuilt.newest() => (Some(state.clone()), None),
                Some(rebuilt) => {
                    let newest = rebuilt.newest();
                    let problem = format!(
                        "its window state {number} was recorded at version {version} and comes back at {newest}, \
                         without what refers to later entries"
                    );
                    (Some(taken_back(state.clone(), rebuilt)), Some(problem))
                }
                None => {
                    let problem = format!("its window state {number} is lost with branch {}", state.branch);
                    (None, Some(problem))
                }
            };
            states.extend(placed.map(|state| (id, state)));
            let place = || session_place(session);
            report.findings.extend(problem.map(|problem| Finding { place: place(), problem }));
        }
    }
    states
}

/// A window state for the newest turn of a branch that was longer when it was
/// recorded.
fn taken_back(mut recorded: RecordedState, rebuilt: &Rebuilt) -> RecordedState {
    let turn = rebuilt.turns.last().map(|recorded| &recorded.turn);
    let last = turn.map_or(Seq(0), |turn| turn.last_seq);
    recorded.version = rebuilt.newest();
    let WindowState { cut, snipped, partly, stale, summary, pins, unrelieved, .. } = &mut recorded.state;
    if cut.as_ref().is_some_and(|cut| cut.first_kept > last) {
        *cut = None;
        recorded.record.tokens_after = turn.map_or(0, |turn| turn.log_tokens);
    }
    snipped.retain(|seq| *seq <= last);
    partly.retain(|seq, _| *seq <= last);
    stale.retain(|seq, later| *seq <= last && *later <= last);
    if cut.is_none() {
        (*summary, *unrelieved) = (None, None);
    }
    pins.retain(|pin| pin.seq.is_none_or(|seq| seq <= last));
    recorded
}

/// Number of a session's newest window state, and tokens of the window that it has on
/// a branch less those of its log, and the calibration.
pub(super) fn window_of_head(
    key: &SessionKey,
    head: &Rebuilt,
    evidence: &Evidence,
    branches: &BTreeMap<(TenantId, BranchId), Rebuilt>,
    states: &States,
) -> (u64, i64, Option<Calibration>) {
    let id = |branch: &BranchId| (key.tenant.clone(), branch.clone());
    let manifest = evidence.manifests.get(&(key.tenant.clone(), key.session.clone()));
    let own = manifest.into_iter().flat_map(|(manifest, _)| &manifest.window_states);
    let number = own.map(|state| state.number).max().unwrap_or(0);
    // The state is that of the branch, or of the nearest one that it continues.
    let mut line = Some((head, head.newest()));
    while let Some((rebuilt, last)) = line {
        if let Some(state) = states.get(&id(&rebuilt.branch.id)).filter(|state| state.version <= last) {
            let number = number.max(state.number);
            return (number, offset(rebuilt, state), state.state.calibration.clone());
        }
        let parent = rebuilt.branch.parent.as_ref().and_then(|parent| branches.get(&id(parent)));
        line = parent.map(|parent| (parent, rebuilt.branch.base_version));
    }
    (number, 0, None)
}

fn offset(rebuilt: &Rebuilt, state: &RecordedState) -> i64 {
    let version = |version: Version| rebuilt.turns.iter().find(|recorded| recorded.turn.version == version);
    let log = version(state.version).map_or(0, |recorded| recorded.turn.log_tokens);
    let size = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
    size(state.record.tokens_after) - size(log)
}
