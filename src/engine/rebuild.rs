//! Making a candidate of the metadata from the blobs alone.
//!
//! What is sealed comes back; what was only in the journal does not. Where blobs
//! contradict each other on a turn, the one that a later turn follows was
//! committed: a turn is made on a committed one alone, and a manifest tells of
//! such alone. Where none or several are certain nothing is chosen: the branch
//! ends before the contradiction. The report tells of both, and of all that is
//! known to be missing.
//!
//! Tool outputs come back as the tails of their blobs say, on the branch of the turn
//! that brought them. One that no turn names is kept as well: its preview may stand in
//! an entry, or a worker hold its ref.

mod contested;
mod evidence;
mod outputs;
mod windows;

use super::fsck::{Finding, check_receipt};
use super::{Error, persist};
use crate::clock::Micros;
use crate::codec::digest;
use crate::codec::manifest::PreambleLine;
use crate::codec::segment::BranchLine;
use crate::model::{
    Branch, BranchId, Calibration, CompressionPath, Digest, Head, Labels, ModelProfile, Segment, Session,
    SessionId, TenantId, Turn, Version, WireFormat,
};
use crate::store::meta::{ManifestRow, RebuiltRows, RecordedTurn, SessionKey, Tombstone};
use crate::store::{BlobStore, MetaStore};
use contested::{Contested, Verdict};
use evidence::{Evidence, gather};
use outputs::place_outputs;
use std::collections::{BTreeMap, BTreeSet};
use windows::{place_states, window_of_head};

/// What a rebuild did.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RebuildReport {
    /// Blobs that were read.
    pub blobs: u64,
    /// Sessions that were made anew.
    pub sessions: u64,
    /// Sessions that the ledger says were deleted.
    pub deleted: u64,
    /// Branches that were made anew.
    pub branches: u64,
    /// Turns that were made anew.
    pub turns: u64,
    /// Segments that the new metadata names.
    pub segments: u64,
    /// Tool outputs that the new metadata names.
    pub outputs: u64,
    /// Window states that were made anew.
    pub window_states: u64,
    /// Notes that were made anew.
    pub notes: u64,
    /// Contradictions, damage, and what could not be made anew.
    pub findings: Vec<Finding>,
    /// What no blob ever tells of, so that no finding can.
    pub not_in_blobs: &'static str,
}

/// See [`RebuildReport::not_in_blobs`].
const NOT_IN_BLOBS: &str = "turns that were not sealed; sessions of which no turn was sealed; changes of \
                            configuration, preamble, pins, notes and compactions since a session's last seal, and \
                            all compactions but the newest of each branch; tool outputs that waited for the \
                            object store; deletions that had not reached the ledger";

/// Reads all blobs and writes what they say into `target`, a metadata store
/// with a schema and nothing else.
pub async fn rebuild(
    blobs: &dyn BlobStore,
    target: &dyn MetaStore,
    mut progress: impl FnMut(u64) + Send,
) -> Result<RebuildReport, Error> {
    let mut report = RebuildReport { not_in_blobs: NOT_IN_BLOBS, ..RebuildReport::default() };
    // Whoever has written to a store was a generation of it.
    if !target.all_branches(None, 1).await?.is_empty() || !target.generations().await?.is_empty() {
        return Err(Error::invalid("target", "is not empty; a rebuild goes into a new database"));
    }
    let evidence = gather(blobs, &mut report, &mut progress).await?;
    let branches = rebuild_branches(&evidence, &mut report);
    find_missing_turns(&evidence, &branches, &mut report);
    load(target, &evidence, branches, &mut report).await?;
    Ok(report)
}

/// A branch as far as the blobs tell it without contradiction.
struct Rebuilt {
    branch: Branch,
    turns: Vec<RecordedTurn>,
    segments: Vec<Segment>,
}

impl Rebuilt {
    fn newest(&self) -> Version {
        self.turns.last().map_or(Version(0), |recorded| recorded.turn.version)
    }
}

/// Rebuilds all branches, parents first.
fn rebuild_branches(
    evidence: &Evidence,
    report: &mut RebuildReport,
) -> BTreeMap<(TenantId, BranchId), Rebuilt> {
    let mut done: BTreeMap<(TenantId, BranchId), Rebuilt> = BTreeMap::new();
    let mut open: Vec<_> = evidence.lines.keys().cloned().collect();
    let contested = Contested::new(evidence);
    loop {
        let before = open.len();
        open.retain(|id| {
            let Some((line, parent)) = evidence.lines.get(id) else { return false };
            let start = match parent {
                None => Some(persist::genesis(&line.session, line.branch.clone(), line.created_at).receipt),
                Some(parent) => {
                    let Some(parent) = done.get(&(id.0.clone(), parent.clone())) else { return true };
                    let base =
                        parent.turns.iter().find(|recorded| recorded.turn.version == line.base_version);
                    base.map(|recorded| recorded.turn.receipt)
                }
            };
            if let Some(start) = start {
                let rebuilt = rebuild_branch(id, line, parent.as_ref(), start, evidence, &contested, report);
                // Without a turn it is none that a session went to, or all of it is lost.
                if !rebuilt.turns.is_empty() {
                    done.insert(id.clone(), rebuilt);
                }
            } else {
                let problem = format!("turn {} that it begins after is not there", line.base_version);
                report.findings.push(Finding { place: place(id), problem });
            }
            false
        });
        if open.len() == before {
            for id in open {
                let problem = "its parent could not be made anew".to_owned();
                report.findings.push(Finding { place: place(&id), problem });
            }
            return done;
        }
    }
}

fn place((tenant, branch): &(TenantId, BranchId)) -> String {
    format!("{tenant}/{branch}")
}

fn session_place((tenant, session): &(TenantId, SessionId)) -> String {
    format!("{tenant}/{}", session.resource_name())
}

fn rebuild_branch(
    id: &(TenantId, BranchId),
    line: &BranchLine,
    parent: Option<&BranchId>,
    start: Digest,
    evidence: &Evidence,
    contested: &Contested<'_>,
    report: &mut RebuildReport,
) -> Rebuilt {
    let mut rebuilt = Rebuilt {
        branch: Branch {
            id: line.branch.clone(),
            session: line.session.clone(),
            parent: parent.cloned(),
            base_version: line.base_version,
            base_seq: line.base_seq,
            first_version: line.first_version,
            sealed_seq: line.base_seq,
            sealed_version: Version(line.first_version.0.saturating_sub(1)),
            created_at: line.created_at,
        },
        turns: vec![],
        segments: vec![],
    };
    if parent.is_none() {
        let turn = persist::genesis(&line.session, line.branch.clone(), line.created_at);
        rebuilt.turns.push(RecordedTurn { turn, reply: "{}".to_owned() });
    }
    let found = evidence.segments.get(id).map(Vec::as_slice).unwrap_or_default();
    let check = |found| contested.check(&id.0, &line.session, found);
    let mut previous = start;
    loop {
        let next = rebuilt.branch.sealed_version.next().max(line.first_version).max(Version(1));
        let candidates = found.iter().filter(|found| found.row.first_version == next);
        let mut problem = None;
        let sound = candidates.filter(|found| match check(found) {
            Verdict::Sound => true,
            Verdict::Lost => false,
            Verdict::Open(version) => {
                problem =
                    Some(format!("blobs contradict each other on turn {version}; the branch ends before it"));
                false
            }
        });
        // Where a roll-up and what it replaced are both there, the roll-up.
        let best = sound.max_by_key(|found| found.row.last_version);
        let mut note = |problem| report.findings.push(Finding { place: place(id), problem });
        let Some(best) = best else {
            problem.into_iter().for_each(&mut note);
            break;
        };
        let broken =
            best.turns.iter().find_map(|recorded| check_receipt(&mut previous, &recorded.turn).err());
        if let Some(problem) = broken {
            note(format!("{problem}; the branch ends before blob {}", best.row.key));
            break;
        }
        rebuilt.branch.sealed_version = best.row.last_version;
        rebuilt.branch.sealed_seq = best.row.last_seq;
        rebuilt.turns.extend(best.turns.iter().cloned());
        rebuilt.segments.push(best.row.clone());
    }
    for found in found {
        let Segment { key, first_version, last_version, .. } = &found.row;
        let problem = if matches!(check(found), Verdict::Lost) {
            format!("has another turn {last_version} than the one that was committed")
        } else if *last_version > rebuilt.branch.sealed_version {
            format!("turns {first_version} to {last_version} cannot be reached")
        } else {
            continue;
        };
        report.findings.push(Finding { place: key.clone(), problem });
    }
    rebuilt
}

/// Tells of the turns that sessions had between those that are there: a branch
/// goes on to where the session left it for the next one.
fn find_missing_turns(
    evidence: &Evidence,
    branches: &BTreeMap<(TenantId, BranchId), Rebuilt>,
    report: &mut RebuildReport,
) {
    let mut sessions: BTreeMap<(&TenantId, &SessionId), Vec<(Version, &BranchId)>> = BTreeMap::new();
    for (id, (line, _)) in &evidence.lines {
        if evidence.named.contains(id) || branches.contains_key(id) {
            let own = sessions.entry((&id.0, &line.session)).or_default();
            own.push((line.first_version, &line.branch));
        }
    }
    for ((tenant, session), mut own) in sessions {
        if evidence.deleted.contains_key(&(tenant.clone(), session.clone())) {
            continue;
        }
        own.sort_unstable();
        for ((first, branch), (next, _)) in own.iter().zip(own.iter().skip(1)) {
            let id = (tenant.clone(), (*branch).clone());
            let missing = branches.get(&id).map_or(*first, |rebuilt| rebuilt.newest().next());
            let end = Version(next.0.saturating_sub(1));
            if missing <= end {
                let problem = format!("its turns {missing} to {end} are not there");
                report.findings.push(Finding { place: place(&id), problem });
            }
        }
    }
}

/// The branches of live sessions, and those that they continue.
fn needed_branches(
    evidence: &Evidence,
    branches: &BTreeMap<(TenantId, BranchId), Rebuilt>,
) -> BTreeSet<(TenantId, BranchId)> {
    let mut needed = BTreeSet::new();
    for (id, rebuilt) in branches {
        let is_live = !evidence.deleted.contains_key(&(id.0.clone(), rebuilt.branch.session.clone()));
        let mut next = is_live.then(|| id.clone());
        while let Some(id) = next.take() {
            let parent = branches.get(&id).and_then(|rebuilt| rebuilt.branch.parent.clone());
            next = parent.map(|parent| (id.0.clone(), parent));
            needed.insert(id);
        }
    }
    needed
}

/// The branches that live sessions are on.
fn newest_branches<'a>(
    evidence: &Evidence,
    branches: &'a BTreeMap<(TenantId, BranchId), Rebuilt>,
) -> BTreeMap<(TenantId, SessionId), &'a Rebuilt> {
    let mut newest: BTreeMap<(TenantId, SessionId), &Rebuilt> = BTreeMap::new();
    for (id, rebuilt) in branches {
        let session = (id.0.clone(), rebuilt.branch.session.clone());
        let is_newest = newest.get(&session).is_none_or(|other| other.newest() < rebuilt.newest());
        if !evidence.deleted.contains_key(&session) && is_newest {
            newest.insert(session, rebuilt);
        }
    }
    newest
}

/// Writes what was rebuilt, session by session.
async fn load(
    target: &dyn MetaStore,
    evidence: &Evidence,
    branches: BTreeMap<(TenantId, BranchId), Rebuilt>,
    report: &mut RebuildReport,
) -> Result<(), Error> {
    // Branches of deleted sessions stay where a live one continues them.
    let needed = needed_branches(evidence, &branches);
    let newest = newest_branches(evidence, &branches);
    let mut outputs = place_outputs(evidence, &branches, &needed, &newest, report);
    let states = place_states(evidence, &branches, report);
    let used: BTreeSet<_> = branches
        .iter()
        .filter(|(id, _)| needed.contains(id))
        .flat_map(|(_, rebuilt)| rebuilt.segments.iter().map(|segment| segment.key.clone()))
        .chain(outputs.values().flatten().filter_map(|output| output.key.clone()))
        .collect();
    for ((tenant, session), at) in &evidence.deleted {
        report.deleted += 1;
        let blobs = evidence.blobs.get(&(tenant.clone(), session.clone())).into_iter().flatten();
        // What is left of them is erased, as the deletion would have.
        let tombstones = blobs.filter(|key| !used.contains(*key)).map(|key| Tombstone {
            tenant: tenant.clone(),
            key: key.clone(),
            session: session.clone(),
            not_before: Micros::default(),
        });
        let rows = RebuiltRows {
            tenant: Some(tenant.clone()),
            deleted: Some((session.clone(), *at)),
            tombstones: tombstones.collect(),
            ..RebuiltRows::default()
        };
        target.load(rows).await?;
    }
    for (id, rebuilt) in branches.iter().filter(|(id, _)| needed.contains(id)) {
        let outputs = outputs.remove(id).unwrap_or_default();
        report.outputs += outputs.len() as u64;
        report.branches += 1;
        report.turns += rebuilt.turns.len() as u64;
        report.segments += rebuilt.segments.len() as u64;
        let state = states.get(id).map(|state| (rebuilt.branch.session.clone(), state.clone()));
        report.window_states += u64::from(state.is_some());
        let turns = rebuilt.turns.iter().map(|turn| (rebuilt.branch.session.clone(), turn.clone())).collect();
        let rows = RebuiltRows {
            tenant: Some(id.0.clone()),
            branches: vec![rebuilt.branch.clone()],
            turns,
            segments: rebuilt.segments.clone(),
            outputs,
            window_states: state.into_iter().collect(),
            ..RebuiltRows::default()
        };
        target.load(rows).await?;
    }
    let known = evidence.sessions();
    for id in known.iter().filter(|id| !newest.contains_key(id) && !evidence.deleted.contains_key(id)) {
        let problem = "nothing of it could be made anew".to_owned();
        report.findings.push(Finding { place: session_place(id), problem });
    }
    for ((tenant, session), rebuilt) in newest {
        let key = SessionKey { tenant, session };
        let window = window_of_head(&key, rebuilt, evidence, &branches, &states);
        target.load(session_rows(&key, rebuilt, evidence, window, report)).await?;
        report.sessions += 1;
    }
    Ok(())
}

fn session_rows(
    key: &SessionKey,
    rebuilt: &Rebuilt,
    evidence: &Evidence,
    (window_state, window_offset, calibration): (u64, i64, Option<Calibration>),
    report: &mut RebuildReport,
) -> RebuiltRows {
    let id = (key.tenant.clone(), key.session.clone());
    let tip = rebuilt.turns.last().map(|recorded| &recorded.turn);
    let (version, at) =
        tip.map_or((Version(0), Micros::default()), |turn: &Turn| (turn.version, turn.created_at));
    let receipt = tip.map_or_else(|| digest::genesis(&key.session), |turn| turn.receipt);
    let found = evidence.manifests.get(&id);
    let mut note = |problem| {
        report.findings.push(Finding { place: session_place(&id), problem });
    };
    let session = if let Some((manifest, _)) = found {
        if manifest.version > version {
            note(format!("was at version {} and comes back at {version}", manifest.version));
        }
        manifest.config.clone().into_session(key.session.clone(), manifest.created_at)
    } else {
        note("no manifest: its configuration is lost".to_owned());
        Session {
            id: key.session.clone(),
            format: evidence.formats.get(&id).copied().unwrap_or(WireFormat::Opaque),
            path: CompressionPath::default(),
            profile: ModelProfile::default(),
            labels: Labels::new(),
            strip_rules: vec![],
            pin_statements: None,
            forked_from: None,
            continued_from: None,
            has_other_counts: false,
            created_at: rebuilt.branch.created_at,
        }
    };
    let manifest = found.map(|(manifest, _)| manifest);
    let preambles: Vec<_> =
        manifest.map(|m| m.preambles.iter().map(PreambleLine::to_preamble).collect()).unwrap_or_default();
    let preamble = preambles.last();
    let notes = manifest.map(|manifest| manifest.notes.as_slice()).unwrap_or_default();
    report.notes += notes.len() as u64;
    let head = Head {
        version,
        branch: rebuilt.branch.id.clone(),
        receipt,
        config_revision: manifest.map_or(1, |manifest| manifest.config_revision),
        window_revision: manifest.map_or(1, |manifest| manifest.window_revision) + 1,
        preamble_revision: preamble.map_or(0, |preamble| preamble.revision),
        preamble_tokens: preamble.map_or(0, |preamble| preamble.tokens),
        journal_bytes: 0,
        fence: 0,
        updated_at: at,
        window_state,
        window_offset,
        calibration,
    };
    let row = found.map(|(manifest, blob)| ManifestRow {
        session: key.session.clone(),
        key: blob.clone(),
        version: manifest.version,
    });
    RebuiltRows {
        tenant: Some(key.tenant.clone()),
        session: Some((session, head, preambles)),
        notes: notes.to_vec(),
        manifest: row,
        ..RebuiltRows::default()
    }
}
