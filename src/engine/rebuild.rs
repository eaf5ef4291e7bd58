//! Making a candidate of the metadata from the blobs alone.
//!
//! What is sealed comes back; what was only in the journal does not. Where blobs
//! contradict each other on a turn, the one that a later turn follows was
//! committed: a turn is made on a committed one alone. Where none or several are
//! followed nothing is chosen: the branch ends before the contradiction. The
//! report tells of both.

use super::fsck::{Finding, check_receipt};
use super::keys::{self, Kind, LedgerEntry};
use super::{Error, persist};
use crate::clock::Micros;
use crate::codec::digest;
use crate::codec::manifest::{self, Manifest, PreambleLine};
use crate::codec::segment::{self, BranchLine, Header};
use crate::limits::SEGMENT_RAW_BYTES_MAX;
use crate::model::{
    Branch, BranchId, CompressionPath, Digest, Head, Labels, ModelProfile, Segment, Session, SessionId,
    TenantId, Turn, Version, WireFormat,
};
use crate::store::meta::{ManifestRow, RebuiltRows, RecordedTurn, SessionKey, Tombstone};
use crate::store::{BlobStore, MetaStore};
use std::collections::{BTreeMap, BTreeSet, HashMap};

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
    /// Contradictions, damage, and what could not be made anew.
    pub findings: Vec<Finding>,
}

/// A segment that was read: its row and its turns.
struct Found {
    row: Segment,
    turns: Vec<RecordedTurn>,
}

/// All that the blobs say.
#[derive(Default)]
struct Evidence {
    lines: BTreeMap<(TenantId, BranchId), (BranchLine, Option<BranchId>)>,
    formats: HashMap<(TenantId, SessionId), WireFormat>,
    segments: BTreeMap<(TenantId, BranchId), Vec<Found>>,
    manifests: BTreeMap<(TenantId, SessionId), (Manifest, String)>,
    /// Keys of all blobs of a session.
    blobs: BTreeMap<(TenantId, SessionId), Vec<String>>,
    deleted: BTreeMap<(TenantId, SessionId), Micros>,
}

/// Reads all blobs and writes what they say into `target`, a metadata store
/// with a schema and nothing else.
pub async fn rebuild(
    blobs: &dyn BlobStore,
    target: &dyn MetaStore,
    mut progress: impl FnMut(u64) + Send,
) -> Result<RebuildReport, Error> {
    let mut report = RebuildReport::default();
    // Whoever has written to a store was a generation of it.
    if !target.all_branches(None, 1).await?.is_empty() || !target.generations().await?.is_empty() {
        return Err(Error::invalid("target", "is not empty; a rebuild goes into a new database"));
    }
    let evidence = gather(blobs, &mut report, &mut progress).await?;
    let branches = rebuild_branches(&evidence, &mut report);
    load(target, &evidence, branches, &mut report).await?;
    Ok(report)
}

async fn gather(
    blobs: &dyn BlobStore,
    report: &mut RebuildReport,
    progress: &mut (impl FnMut(u64) + Send),
) -> Result<Evidence, Error> {
    const BATCH: usize = 1000;
    let mut evidence = Evidence::default();
    let mut after: Option<String> = None;
    loop {
        let listed = blobs.list("", after.as_deref(), BATCH).await.map_err(Error::of_objects)?;
        let Some(last) = listed.last() else { return Ok(evidence) };
        after = Some(last.key.clone());
        for blob in listed {
            let is_ledger = blob.key.starts_with(keys::LEDGER);
            let kind = keys::kind(&blob.key);
            if !is_ledger && kind.is_none() {
                continue;
            }
            let body = blobs.get(&blob.key).await.map_err(Error::of_objects)?;
            let read = match kind {
                None => evidence.add_ledger_entry(&body),
                Some(Kind::Segment) => evidence.add_segment(&blob.key, &body),
                Some(Kind::Manifest) => evidence.add_manifest(&blob.key, &body),
            };
            if let Err(problem) = read {
                report.findings.push(Finding { place: blob.key, problem });
            }
            report.blobs += 1;
            progress(report.blobs);
        }
    }
}

impl Evidence {
    fn add_ledger_entry(&mut self, body: &[u8]) -> Result<(), String> {
        let entry: LedgerEntry = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        self.deleted.insert((entry.tenant, entry.session), entry.deleted_at);
        Ok(())
    }

    fn add_manifest(&mut self, key: &str, body: &[u8]) -> Result<(), String> {
        let manifest = manifest::decode(body).map_err(|error| error.to_string())?;
        for (line, parent) in &manifest.branches {
            let id = (manifest.tenant.clone(), line.branch.clone());
            self.lines.insert(id, (line.clone(), parent.clone()));
        }
        let id = (manifest.tenant.clone(), manifest.session.clone());
        self.blobs.entry(id.clone()).or_default().push(key.to_owned());
        let is_newest = |(other, _): &(Manifest, String)| {
            (other.version, other.config_revision) < (manifest.version, manifest.config_revision)
        };
        if self.manifests.get(&id).is_none_or(is_newest) {
            self.manifests.insert(id, (manifest, key.to_owned()));
        }
        Ok(())
    }

    fn add_segment(&mut self, key: &str, body: &[u8]) -> Result<(), String> {
        let decoded =
            segment::decode(body, SEGMENT_RAW_BYTES_MAX as u64).map_err(|error| error.to_string())?;
        let header: Header = decoded.header().map_err(|error| error.to_string())?;
        let Some(tip) = header.lineage.last() else { return Err("its lineage is empty".to_owned()) };
        let branch = tip.branch.clone();
        let session = (header.tenant.clone(), tip.session.clone());
        self.blobs.entry(session.clone()).or_default().push(key.to_owned());
        self.formats.insert(session, header.wire_format);
        let mut parent = None;
        for line in &header.lineage {
            let id = (header.tenant.clone(), line.branch.clone());
            self.lines.insert(id, (line.clone(), parent));
            parent = Some(line.branch.clone());
        }
        let mut turns = Vec::with_capacity(header.turns.len());
        for line in &header.turns {
            let own =
                decoded.entries.iter().filter(|entry| (line.first_seq..=line.last_seq).contains(&entry.seq));
            let own: Vec<_> = own.cloned().collect();
            let reply = line.reply.get().to_owned();
            turns.push(RecordedTurn { turn: line.to_turn(&branch, &own), reply });
        }
        let (Some(first), Some(last)) = (turns.first(), turns.last()) else {
            return Err("it has no turns".to_owned());
        };
        let row = Segment {
            branch: branch.clone(),
            first_seq: header.first_seq,
            last_seq: header.last_seq,
            first_version: first.turn.version,
            last_version: last.turn.version,
            key: key.to_owned(),
            sha256: digest::sha256(body),
            stored_bytes: body.len() as u64,
            raw_bytes: decoded.raw_bytes(),
            format: header.format,
            created_at: last.turn.created_at,
        };
        self.segments.entry((header.tenant, branch)).or_default().push(Found { row, turns });
        Ok(())
    }
}

/// A branch as far as the blobs tell it without contradiction.
struct Rebuilt {
    branch: Branch,
    turns: Vec<RecordedTurn>,
    segments: Vec<Segment>,
}

/// Rebuilds all branches, parents first.
fn rebuild_branches(
    evidence: &Evidence,
    report: &mut RebuildReport,
) -> BTreeMap<(TenantId, BranchId), Rebuilt> {
    let mut done: BTreeMap<(TenantId, BranchId), Rebuilt> = BTreeMap::new();
    let mut open: Vec<_> = evidence.lines.keys().cloned().collect();
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
                let rebuilt = rebuild_branch(id, line, parent.as_ref(), start, evidence, report);
                done.insert(id.clone(), rebuilt);
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

fn rebuild_branch(
    id: &(TenantId, BranchId),
    line: &BranchLine,
    parent: Option<&BranchId>,
    start: Digest,
    evidence: &Evidence,
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
    let contested = Contested::new(found);
    let mut previous = start;
    loop {
        let next = rebuilt.branch.sealed_version.next().max(line.first_version).max(Version(1));
        let candidates = found.iter().filter(|found| found.row.first_version == next);
        let mut problem = None;
        let sound = candidates.filter(|found| match contested.check(found) {
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
        let problem = if *last_version > rebuilt.branch.sealed_version {
            format!("turns {first_version} to {last_version} cannot be reached")
        } else if matches!(contested.check(found), Verdict::Lost) {
            format!("has another turn {last_version} than the one that a later turn follows")
        } else {
            continue;
        };
        report.findings.push(Finding { place: key.clone(), problem });
    }
    rebuilt
}

/// Versions that blobs have with different receipts: writers that lost a race
/// leave such blobs.
struct Contested {
    /// Of each version the receipts that a later turn follows.
    followed: BTreeMap<Version, BTreeSet<Digest>>,
}

enum Verdict {
    /// No turn of it is contested, or it has those that were committed.
    Sound,
    /// It has a turn in whose place another was committed.
    Lost,
    /// Nothing tells which was committed.
    Open(Version),
}

impl Contested {
    fn new(found: &[Found]) -> Self {
        let mut receipts: BTreeMap<Version, BTreeSet<Digest>> = BTreeMap::new();
        let turns = || found.iter().flat_map(|found| &found.turns).map(|recorded| &recorded.turn);
        for turn in turns() {
            receipts.entry(turn.version).or_default().insert(turn.receipt);
        }
        receipts.retain(|_, receipts| receipts.len() > 1);
        let mut followed = BTreeMap::new();
        for (version, receipts) in receipts {
            let follows = |receipt: &Digest| {
                turns().any(|turn| {
                    turn.version == version.next() && digest::of_turn(*receipt, turn) == turn.receipt
                })
            };
            followed.insert(version, receipts.into_iter().filter(follows).collect());
        }
        Self { followed }
    }

    fn check(&self, found: &Found) -> Verdict {
        for RecordedTurn { turn, .. } in &found.turns {
            match self.followed.get(&turn.version) {
                Some(followed) if followed.len() != 1 => return Verdict::Open(turn.version),
                Some(followed) if !followed.contains(&turn.receipt) => return Verdict::Lost,
                Some(_) | None => {}
            }
        }
        Verdict::Sound
    }
}

/// Writes what was rebuilt, session by session.
async fn load(
    target: &dyn MetaStore,
    evidence: &Evidence,
    branches: BTreeMap<(TenantId, BranchId), Rebuilt>,
    report: &mut RebuildReport,
) -> Result<(), Error> {
    // Branches of deleted sessions stay where a live one continues them.
    let mut needed: BTreeSet<(TenantId, BranchId)> = BTreeSet::new();
    for (id, rebuilt) in &branches {
        let is_live = !evidence.deleted.contains_key(&(id.0.clone(), rebuilt.branch.session.clone()));
        let mut next = is_live.then(|| id.clone());
        while let Some(id) = next.take() {
            let parent = branches.get(&id).and_then(|rebuilt| rebuilt.branch.parent.clone());
            next = parent.map(|parent| (id.0.clone(), parent));
            needed.insert(id);
        }
    }
    let used: BTreeSet<_> = branches
        .iter()
        .filter(|(id, _)| needed.contains(id))
        .flat_map(|(_, rebuilt)| rebuilt.segments.iter().map(|segment| &segment.key))
        .collect();
    for ((tenant, session), at) in &evidence.deleted {
        report.deleted += 1;
        let blobs = evidence.blobs.get(&(tenant.clone(), session.clone())).into_iter().flatten();
        // What is left of them is erased, as the deletion would have.
        let tombstones = blobs.filter(|key| !used.contains(key)).map(|key| Tombstone {
            tenant: tenant.clone(),
            key: key.clone(),
            session: session.clone(),
        });
        let rows = RebuiltRows {
            tenant: Some(tenant.clone()),
            deleted: Some((session.clone(), *at)),
            tombstones: tombstones.collect(),
            ..RebuiltRows::default()
        };
        target.load(rows).await?;
    }
    let mut newest: BTreeMap<(TenantId, SessionId), &Rebuilt> = BTreeMap::new();
    for (id, rebuilt) in branches.iter().filter(|(id, _)| needed.contains(id)) {
        report.branches += 1;
        report.turns += rebuilt.turns.len() as u64;
        report.segments += rebuilt.segments.len() as u64;
        let turns = rebuilt.turns.iter().map(|turn| (rebuilt.branch.session.clone(), turn.clone())).collect();
        let rows = RebuiltRows {
            tenant: Some(id.0.clone()),
            branches: vec![rebuilt.branch.clone()],
            turns,
            segments: rebuilt.segments.clone(),
            ..RebuiltRows::default()
        };
        target.load(rows).await?;
        let session = (id.0.clone(), rebuilt.branch.session.clone());
        if !evidence.deleted.contains_key(&session) && !rebuilt.turns.is_empty() {
            let version = |rebuilt: &Rebuilt| rebuilt.turns.last().map(|recorded| recorded.turn.version);
            if newest.get(&session).is_none_or(|other| version(other) < version(rebuilt)) {
                newest.insert(session, rebuilt);
            }
        }
    }
    for ((tenant, session), rebuilt) in newest {
        let key = SessionKey { tenant, session };
        target.load(session_rows(&key, rebuilt, evidence, report)).await?;
        report.sessions += 1;
    }
    Ok(())
}

fn session_rows(
    key: &SessionKey,
    rebuilt: &Rebuilt,
    evidence: &Evidence,
    report: &mut RebuildReport,
) -> RebuiltRows {
    let id = (key.tenant.clone(), key.session.clone());
    let tip = rebuilt.turns.last().map(|recorded| &recorded.turn);
    let (version, at) =
        tip.map_or((Version(0), Micros::default()), |turn: &Turn| (turn.version, turn.created_at));
    let found = evidence.manifests.get(&id);
    let mut note = |problem| {
        let place = format!("{}/{}", key.tenant, key.session.resource_name());
        report.findings.push(Finding { place, problem });
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
            forked_from: None,
            has_other_counts: false,
            created_at: rebuilt.branch.created_at,
        }
    };
    let manifest = found.map(|(manifest, _)| manifest);
    let preambles: Vec<_> =
        manifest.map(|m| m.preambles.iter().map(PreambleLine::to_preamble).collect()).unwrap_or_default();
    let preamble = preambles.last();
    let head = Head {
        version,
        branch: rebuilt.branch.id.clone(),
        config_revision: manifest.map_or(1, |manifest| manifest.config_revision),
        window_revision: manifest.map_or(1, |manifest| manifest.window_revision) + 1,
        preamble_revision: preamble.map_or(0, |preamble| preamble.revision),
        preamble_tokens: preamble.map_or(0, |preamble| preamble.tokens),
        journal_bytes: 0,
        updated_at: at,
    };
    let row = found.map(|(manifest, blob)| ManifestRow {
        session: key.session.clone(),
        key: blob.clone(),
        version: manifest.version,
    });
    RebuiltRows {
        tenant: Some(key.tenant.clone()),
        session: Some((session, head, preambles)),
        manifest: row,
        ..RebuiltRows::default()
    }
}
