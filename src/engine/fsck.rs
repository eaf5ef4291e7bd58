//! Checking metadata against blobs.

use super::error::digest_mismatch;
use super::{Engine, Error, keys, log};
use crate::codec::digest;
use crate::model::invariants::{
    Violation, journal_holds_the_unsealed_turns, segments_cover_the_sealed_log_once, turns_follow_each_other,
};
use crate::model::{Branch, Digest, Entry, Seq, Turn, TurnKind, Version};
use crate::store::meta::{BranchKey, SessionKey};

/// How thoroughly to check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsckOptions {
    /// Whether blobs are fetched, decoded and compared with the receipts.
    pub deep: bool,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// Where: the tenant, then the branch or session.
    pub place: String,
    /// What is wrong.
    pub problem: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FsckReport {
    /// Sessions that were checked.
    pub sessions: u64,
    /// Branches that were checked.
    pub branches: u64,
    /// Turns that were checked.
    pub turns: u64,
    /// Segments that were checked.
    pub segments: u64,
    /// Entries that were read and compared; 0 unless the check was deep.
    pub entries: u64,
    /// Blobs that no row names; the sweep erases them when it can know that no
    /// writer is about to name them.
    pub orphans: u64,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

const BATCH: u32 = 500;

impl Engine {
    /// Checks all sessions. `progress` is told how many branches are done.
    pub async fn fsck(
        &self,
        options: FsckOptions,
        mut progress: impl FnMut(u64) + Send,
    ) -> Result<FsckReport, Error> {
        let mut report = FsckReport::default();
        let mut after: Option<BranchKey> = None;
        loop {
            let branches = self.inner.meta.all_branches(after.as_ref(), BATCH).await?;
            let Some((tenant, last)) = branches.last() else { break };
            after = Some(BranchKey { tenant: tenant.clone(), branch: last.id.clone() });
            for (tenant, branch) in branches {
                let key = BranchKey { tenant, branch: branch.id.clone() };
                self.check_branch(&key, &branch, options, &mut report).await?;
                report.branches += 1;
                progress(report.branches);
            }
        }
        self.check_sessions(&mut report).await?;
        self.count_orphans(&mut report).await?;
        Ok(report)
    }

    async fn check_sessions(&self, report: &mut FsckReport) -> Result<(), Error> {
        let mut after: Option<SessionKey> = None;
        loop {
            let sessions = self.inner.meta.all_sessions(after.as_ref(), BATCH).await?;
            let Some(last) = sessions.last() else { return Ok(()) };
            after = Some(last.clone());
            for key in sessions {
                report.sessions += 1;
                if self.inner.meta.tip(&key, None).await?.is_none() {
                    let place = format!("{}/{}", key.tenant, key.session.resource_name());
                    let problem = "the head names a branch or turn that is not there".to_owned();
                    report.findings.push(Finding { place, problem });
                }
            }
        }
    }

    async fn count_orphans(&self, report: &mut FsckReport) -> Result<(), Error> {
        let mut after: Option<String> = None;
        loop {
            let listed = self.inner.blobs.list("", after.as_deref(), BATCH as usize);
            let listed = self.in_time(listed).await.map_err(Error::of_objects)?;
            let Some(last) = listed.last() else { return Ok(()) };
            after = Some(last.key.clone());
            let ours: Vec<_> =
                listed.into_iter().map(|blob| blob.key).filter(|key| keys::kind(key).is_some()).collect();
            report.orphans += (ours.len() - self.inner.meta.referenced(&ours).await?.len()) as u64;
        }
    }

    async fn check_branch(
        &self,
        key: &BranchKey,
        branch: &Branch,
        options: FsckOptions,
        report: &mut FsckReport,
    ) -> Result<(), Error> {
        let place = format!("{}/{}", key.tenant, key.branch);
        let mut note = |problem: Violation| report.findings.push(Finding { place: place.clone(), problem });
        let turns: Vec<_> = self.all_turns(key, branch).await?;
        let segments = self.inner.meta.segments(key, Seq(0), Seq(u64::MAX)).await?;
        let journal = self.inner.meta.journal(key, Version(0), Version(u64::MAX)).await?;
        let ranges: Vec<_> = journal.iter().map(|row| (row.first_seq, row.last_seq)).collect();
        for checked in [
            turns_follow_each_other(branch, &turns),
            segments_cover_the_sealed_log_once(branch, &segments),
            journal_holds_the_unsealed_turns(branch, &turns, &ranges),
            self.check_receipts(key, branch, &turns).await?,
        ] {
            checked.err().into_iter().for_each(&mut note);
        }
        let session = SessionKey { tenant: key.tenant.clone(), session: branch.session.clone() };
        for segment in &segments {
            match self.in_time(self.inner.blobs.size(&segment.key)).await.map_err(Error::of_objects)? {
                None => note(format!("blob {} is missing", segment.key)),
                Some(bytes) if bytes != segment.stored_bytes => {
                    note(format!("blob {} has {bytes} bytes, not {}", segment.key, segment.stored_bytes));
                }
                Some(_) if options.deep => match self.segment_whole(&session, segment).await {
                    Ok(Some(decoded)) => {
                        report.entries += decoded.entries.len() as u64;
                        check_entries(&turns, segment.first_seq, segment.last_seq, &decoded.entries)
                            .err()
                            .into_iter()
                            .for_each(&mut note);
                    }
                    Ok(None) => note(format!("blob {} is missing", segment.key)),
                    Err(error @ (Error::DataLoss { .. } | Error::NewerFormat { .. })) => {
                        note(error.to_string());
                    }
                    Err(error) => return Err(error),
                },
                Some(_) => {}
            }
        }
        if options.deep {
            for row in journal {
                let (first, last) = (row.first_seq, row.last_seq);
                match log::decode_journal(&session, row).await {
                    Ok(entries) => {
                        report.entries += entries.len() as u64;
                        check_entries(&turns, first, last, &entries).err().into_iter().for_each(&mut note);
                    }
                    Err(error) => note(error.to_string()),
                }
            }
        }
        report.turns += turns.len() as u64;
        report.segments += segments.len() as u64;
        Ok(())
    }

    async fn all_turns(&self, key: &BranchKey, branch: &Branch) -> Result<Vec<Turn>, Error> {
        let mut turns = Vec::new();
        let mut first = branch.first_version;
        loop {
            let last = Version(first.0 + u64::from(BATCH) - 1);
            let page = self.inner.meta.turns(key, first, last, BATCH).await?;
            let is_last = page.len() < BATCH as usize;
            turns.extend(page.into_iter().map(|recorded| recorded.turn));
            if is_last {
                return Ok(turns);
            }
            first = last.next();
        }
    }

    /// The receipts of a branch's turns chain from the turn that it begins
    /// after.
    async fn check_receipts(
        &self,
        key: &BranchKey,
        branch: &Branch,
        turns: &[Turn],
    ) -> Result<Result<(), Violation>, Error> {
        let mut previous = match &branch.parent {
            None => digest::genesis(&branch.session),
            Some(parent) => {
                let parent = BranchKey { tenant: key.tenant.clone(), branch: parent.clone() };
                match self.inner.meta.turn(&parent, branch.base_version).await? {
                    Some(recorded) => recorded.turn.receipt,
                    None => {
                        return Ok(Err(format!("turn {} of its parent is not there", branch.base_version)));
                    }
                }
            }
        };
        Ok(turns.iter().try_for_each(|turn| check_receipt(&mut previous, turn)))
    }
}

pub(super) fn check_receipt(previous: &mut Digest, turn: &Turn) -> Result<(), Violation> {
    let expected = if turn.kind == TurnKind::Genesis { *previous } else { digest::of_turn(*previous, turn) };
    *previous = turn.receipt;
    if expected == turn.receipt {
        Ok(())
    } else {
        Err(digest_mismatch(&format!("turn {}", turn.version), expected, turn.receipt))
    }
}

/// The entries of a segment or journal row are those whose digests the turns
/// have.
fn check_entries(turns: &[Turn], first: Seq, last: Seq, entries: &[Entry]) -> Result<(), Violation> {
    let in_order = entries.iter().map(|entry| entry.seq.0).eq(first.0..=last.0);
    if !in_order {
        return Err(format!("entries {first} to {last} are not all there"));
    }
    let of_range = turns.iter().filter(|turn| turn.first_seq >= first && turn.last_seq <= last);
    for turn in of_range.filter(|turn| turn.first_seq <= turn.last_seq) {
        let own = entries.iter().filter(|entry| (turn.first_seq..=turn.last_seq).contains(&entry.seq));
        let found = digest::of_entries(own);
        if found != turn.entries_digest {
            return Err(digest_mismatch(
                &format!("entries of turn {}", turn.version),
                turn.entries_digest,
                found,
            ));
        }
    }
    Ok(())
}
