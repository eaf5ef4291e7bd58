//! Versions that blobs tell of in several ways.
//!
//! A writer that lost a race, or crashed before its commit, leaves the blob of a
//! turn that never was: another turn of the branch, or one on a branch that the
//! session never went to. A session has each version once.

use super::evidence::{Evidence, Found};
use crate::codec::digest;
use crate::model::{BranchId, Digest, SessionId, TenantId, Version};
use crate::store::meta::RecordedTurn;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// A turn that blobs tell of: its branch and receipt. No receipt if it is known
/// only that the version lies on the branch.
type Claim<'a> = (&'a BranchId, Option<Digest>);

/// The contested versions of sessions, and of each the claims that are certain.
pub(super) struct Contested<'a> {
    certain: BTreeMap<(&'a TenantId, &'a SessionId, Version), BTreeSet<Claim<'a>>>,
}

/// What is to be thought of a segment.
pub(super) enum Verdict {
    /// No turn of it is contested, or it has those that were committed.
    Sound,
    /// It has a turn in whose place another was committed.
    Lost,
    /// Nothing tells which was committed.
    Open(Version),
}

impl<'a> Contested<'a> {
    pub(super) fn new(evidence: &'a Evidence) -> Self {
        // Of each version the branches on which it may lie, with its receipts.
        let mut claims: BTreeMap<_, BTreeMap<&BranchId, BTreeSet<Digest>>> = BTreeMap::new();
        for ((tenant, branch), found) in &evidence.segments {
            let Some(session) = evidence.session(tenant, branch) else { continue };
            for RecordedTurn { turn, .. } in found.iter().flat_map(|found| &found.turns) {
                let of_version = claims.entry((tenant, session, turn.version)).or_default();
                of_version.entry(branch).or_default().insert(turn.receipt);
            }
        }
        let mut told = HashSet::new();
        for (tenant, session, branch, version) in evidence.certain_places() {
            claims.entry((tenant, session, version)).or_default().entry(branch).or_default();
            told.insert((tenant, branch, version));
        }
        claims
            .retain(|_, branches| branches.len() > 1 || branches.values().any(|receipts| receipts.len() > 1));
        let mut certain = BTreeMap::new();
        for ((tenant, session, version), branches) in claims {
            let mut of_version = BTreeSet::new();
            for (branch, receipts) in branches {
                let all: Vec<_> = receipts.into_iter().collect();
                let mut sure: Vec<_> = all
                    .iter()
                    .copied()
                    .filter(|r| is_followed(evidence, tenant, branch, version, *r))
                    .collect();
                if sure.is_empty() && told.contains(&(tenant, branch, version)) {
                    sure = all;
                    if sure.is_empty() {
                        of_version.insert((branch, None));
                    }
                }
                of_version.extend(sure.into_iter().map(|receipt| (branch, Some(receipt))));
            }
            certain.insert((tenant, session, version), of_version);
        }
        Self { certain }
    }

    /// What is to be thought of a segment of a session.
    pub(super) fn check(&self, tenant: &TenantId, session: &SessionId, found: &Found) -> Verdict {
        for RecordedTurn { turn, .. } in &found.turns {
            match self.certain.get(&(tenant, session, turn.version)) {
                Some(certain) if certain.len() != 1 => return Verdict::Open(turn.version),
                Some(certain) if !certain.contains(&(&turn.branch, Some(turn.receipt))) => {
                    return Verdict::Lost;
                }
                Some(_) | None => {}
            }
        }
        Verdict::Sound
    }
}

/// Whether a turn was made on this one: it follows it on its branch, or begins
/// another branch there.
fn is_followed(
    evidence: &Evidence,
    tenant: &TenantId,
    branch: &BranchId,
    version: Version,
    receipt: Digest,
) -> bool {
    let turns = |branch: &BranchId| {
        let found = evidence.segments.get(&(tenant.clone(), branch.clone())).into_iter().flatten();
        found.flat_map(|found| &found.turns).map(|recorded| &recorded.turn)
    };
    let follows = |turn: &crate::model::Turn| digest::of_turn(receipt, turn) == turn.receipt;
    turns(branch).any(|turn| turn.version == version.next() && follows(turn))
        || evidence.lines.iter().any(|((of, child), (line, parent))| {
            of == tenant
                && parent.as_ref() == Some(branch)
                && line.base_version == version
                && turns(child).any(|turn| turn.version == line.first_version && follows(turn))
        })
}
