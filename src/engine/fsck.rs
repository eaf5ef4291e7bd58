//! Checking metadata against blobs.

mod notes;
mod outputs;
mod window_states;

use super::error::digest_mismatch;
use super::{Engine, Error, keys, log};
use crate::codec::digest;
use crate::codec::segment::{BranchLine, Decoded};
use crate::model::invariants::{
    Violation, journal_holds_the_unsealed_turns, segments_cover_the_sealed_log_once, turns_follow_each_other,
};
use crate::model::{Branch, Digest, Entry, Segment, Seq, Turn, TurnKind, Version};
use crate::store::meta::{BranchKey, JournalRow, RecordedTurn, SessionKey};
use crate::store::{ErrorKind, StoreError};

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
    /// Tool outputs that were checked.
    pub outputs: u64,
    /// Window states that were checked.
    pub window_states: u64,
    /// Notes that were checked.
    pub notes: u64,
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
                let problem = self.check_session(&key).await?;
                for problem in problem.into_iter().chain(self.check_notes(&key, report).await?) {
                    let place = format!("{}/{}", key.tenant, key.session.resource_name());
                    report.findings.push(Finding { place, problem });
                }
            }
        }
    }

    /// What is wrong with a session's head; nothing if it was deleted meanwhile.
    async fn check_session(&self, key: &SessionKey) -> Result<Option<Violation>, Error> {
        let mut problem = None;
        for _ in 0..READ_ATTEMPTS {
            let Some(before) = self.inner.meta.tip(key, None).await? else {
                let is_deleted = self.inner.meta.deletion(key).await?.is_some();
                let missing = || "the head names a session, branch or turn that is not there".to_owned();
                return Ok((!is_deleted).then(missing));
            };
            let mut bytes = self.inner.meta.held_output_bytes(key).await?;
            for branch in self.inner.meta.branches_of_session(key).await? {
                let branch = BranchKey { tenant: key.tenant.clone(), branch: branch.id };
                let journal = self.inner.meta.journal(&branch, Version(0), Version(u64::MAX)).await?;
                bytes += journal.iter().map(|row| row.body.len() as u64).sum::<u64>();
            }
            let charged = before.head.journal_bytes;
            problem = if bytes != charged {
                Some(format!(
                    "journal and held outputs have {bytes} bytes, and the session is charged for {charged}"
                ))
            } else if before.head.receipt != before.turn.receipt {
                Some("the head has another receipt than its turn".to_owned())
            } else {
                None
            };
            let after = self.inner.meta.tip(key, None).await?;
            if problem.is_none() || after.is_some_and(|after| after.head == before.head) {
                break;
            }
        }
        Ok(problem)
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
        let place = format!("{}/{} branch {}", key.tenant, branch.session.resource_name(), key.branch);
        let mut findings = Vec::new();
        match self.rows(key, branch).await {
            Ok(Some(rows)) => {
                self.check_rows(key, &rows, &mut findings).await?;
                self.check_blobs(key, &rows, options, report, &mut findings).await?;
                self.check_outputs(key, branch, options, report, &mut findings).await?;
                self.check_window_states(key, &rows, report, &mut findings).await?;
                if options.deep {
                    check_journal(key, &rows, report, &mut findings).await;
                }
                report.branches += 1;
                report.turns += rows.turns.len() as u64;
                report.segments += rows.segments.len() as u64;
            }
            // It was erased meanwhile.
            Ok(None) => {}
            Err(Error::Internal { source: Some(source), .. }) if is_corrupt(source.as_ref()) => {
                findings.push(source.to_string());
            }
            Err(error) => return Err(error),
        }
        report.findings.extend(findings.into_iter().map(|problem| Finding { place: place.clone(), problem }));
        Ok(())
    }

    /// The rows of a branch, as of one moment: they are read again while the
    /// branch is sealed. Nothing if it is not there any more.
    async fn rows(&self, key: &BranchKey, branch: &Branch) -> Result<Option<Rows>, Error> {
        let session = SessionKey { tenant: key.tenant.clone(), session: branch.session.clone() };
        let current = async || {
            let branches = self.inner.meta.branches_of_session(&session).await?;
            Ok::<_, Error>(branches.into_iter().find(|found| found.id == branch.id))
        };
        let mut attempts = 0;
        loop {
            attempts += 1;
            let Some(before) = current().await? else { return Ok(None) };
            let turns = self.all_turns(key, &before).await?;
            let newest = turns.last().map_or(Version(0), |recorded| recorded.turn.version);
            let segments = self.inner.meta.segments(key, Seq(0), Seq(u64::MAX)).await?;
            // What was written after the turns were read is none of them.
            let journal = self.inner.meta.journal(key, Version(0), newest).await?;
            if current().await?.as_ref() == Some(&before) || attempts == READ_ATTEMPTS {
                return Ok(Some(Rows { branch: before, turns, segments, journal }));
            }
        }
    }

    /// Checks a branch's rows against each other.
    async fn check_rows(
        &self,
        key: &BranchKey,
        rows: &Rows,
        findings: &mut Vec<Violation>,
    ) -> Result<(), Error> {
        let Rows { branch, turns, segments, journal } = rows;
        let turns: Vec<_> = turns.iter().map(|recorded| recorded.turn.clone()).collect();
        let ranges: Vec<_> = journal.iter().map(|row| (row.first_seq, row.last_seq)).collect();
        let checked = [
            turns_follow_each_other(branch, &turns),
            segments_cover_the_sealed_log_once(branch, segments),
            journal_holds_the_unsealed_turns(branch, &turns, &ranges),
            self.check_chain(key, branch, &turns).await?,
        ];
        findings.extend(checked.into_iter().filter_map(Result::err));
        Ok(())
    }

    /// Checks that a branch's segments are there and, if the check is deep, that
    /// they hold what the turns say.
    async fn check_blobs(
        &self,
        key: &BranchKey,
        rows: &Rows,
        options: FsckOptions,
        report: &mut FsckReport,
        findings: &mut Vec<Violation>,
    ) -> Result<(), Error> {
        let session = SessionKey { tenant: key.tenant.clone(), session: rows.branch.session.clone() };
        for row in &rows.segments {
            let is_there =
                match self.in_time(self.inner.blobs.size(&row.key)).await.map_err(Error::of_objects)? {
                    None => false,
                    Some(bytes) if bytes != row.stored_bytes => {
                        findings
                            .push(format!("blob {} has {bytes} bytes, not {}", row.key, row.stored_bytes));
                        true
                    }
                    Some(_) if options.deep => match self.stored_segment(&session, row).await {
                        Ok(Some(decoded)) => {
                            report.entries += decoded.entries.len() as u64;
                            findings.extend(check_segment(rows, row, &decoded).err());
                            true
                        }
                        Ok(None) => false,
                        Err(error @ (Error::DataLoss { .. } | Error::NewerFormat { .. })) => {
                            findings.push(error.to_string());
                            true
                        }
                        Err(error) => return Err(error),
                    },
                    Some(_) => true,
                };
            // A roll-up may have taken its place.
            if !is_there {
                let current = self.inner.meta.segments(key, row.first_seq, row.last_seq).await?;
                let is_named = current.iter().any(|current| current.key == row.key);
                findings.extend(is_named.then(|| format!("blob {} is missing", row.key)));
            }
        }
        Ok(())
    }

    async fn all_turns(&self, key: &BranchKey, branch: &Branch) -> Result<Vec<RecordedTurn>, Error> {
        let mut turns = Vec::new();
        let mut first = branch.first_version;
        loop {
            let last = Version(first.0 + u64::from(BATCH) - 1);
            let page = self.inner.meta.turns(key, first, last, BATCH).await?;
            let is_last = page.len() < BATCH as usize;
            turns.extend(page);
            if is_last {
                return Ok(turns);
            }
            first = last.next();
        }
    }

    /// The receipts and token counts of a branch's turns chain from the turn
    /// that it begins after.
    async fn check_chain(
        &self,
        key: &BranchKey,
        branch: &Branch,
        turns: &[Turn],
    ) -> Result<Result<(), Violation>, Error> {
        let (mut receipt, mut log_tokens) = match &branch.parent {
            None => (digest::genesis(&branch.session), 0),
            Some(parent) => {
                let parent = BranchKey { tenant: key.tenant.clone(), branch: parent.clone() };
                match self.inner.meta.turn(&parent, branch.base_version).await? {
                    Some(recorded) => (recorded.turn.receipt, recorded.turn.log_tokens),
                    None => {
                        return Ok(Err(format!("turn {} of its parent is not there", branch.base_version)));
                    }
                }
            }
        };
        Ok(turns.iter().try_for_each(|turn| {
            check_receipt(&mut receipt, turn)?;
            log_tokens += turn.tokens;
            if turn.log_tokens == log_tokens {
                Ok(())
            } else {
                Err(format!(
                    "turn {} has a log of {} tokens, not {log_tokens}",
                    turn.version, turn.log_tokens
                ))
            }
        }))
    }
}

/// The rows of a branch.
struct Rows {
    branch: Branch,
    turns: Vec<RecordedTurn>,
    segments: Vec<Segment>,
    journal: Vec<JournalRow>,
}

/// Times that rows are read when they change meanwhile.
const READ_ATTEMPTS: usize = 10;

fn is_corrupt(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    error.downcast_ref::<StoreError>().is_some_and(|error| error.kind == ErrorKind::Corrupt)
}

/// Checks the entries of a branch's journal.
async fn check_journal(key: &BranchKey, rows: &Rows, report: &mut FsckReport, findings: &mut Vec<Violation>) {
    let session = SessionKey { tenant: key.tenant.clone(), session: rows.branch.session.clone() };
    for row in &rows.journal {
        match log::decode_journal(&session, row.clone()).await {
            Ok(entries) => {
                report.entries += entries.len() as u64;
                findings.extend(check_entries(&rows.turns, row.first_seq, row.last_seq, &entries).err());
            }
            Err(error) => findings.push(error.to_string()),
        }
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

/// A segment holds the entries whose digests the turns have, and tells the same
/// of the turns as their rows: a rebuild goes by it.
fn check_segment(rows: &Rows, row: &Segment, decoded: &Decoded) -> Result<(), Violation> {
    if decoded.raw_bytes() != row.raw_bytes {
        return Err(format!(
            "blob {} decodes to {} bytes, not {}",
            row.key,
            decoded.raw_bytes(),
            row.raw_bytes
        ));
    }
    check_entries(&rows.turns, row.first_seq, row.last_seq, &decoded.entries)?;
    let header = decoded.header().map_err(|error| error.to_string())?;
    if header.lineage.last() != Some(&BranchLine::from(&rows.branch)) {
        return Err(format!("blob {} tells of the branch otherwise than its row", row.key));
    }
    let versions = header.turns.iter().map(|line| line.version.0);
    if !versions.eq(row.first_version.0..=row.last_version.0) {
        return Err(format!(
            "blob {} has other turns than {} to {}",
            row.key, row.first_version, row.last_version
        ));
    }
    for line in &header.turns {
        let own =
            decoded.entries.iter().filter(|entry| (line.first_seq..=line.last_seq).contains(&entry.seq));
        let own: Vec<_> = own.cloned().collect();
        let sealed = line.to_turn(&rows.branch.id, &own);
        let same = rows.turns.iter().find(|recorded| recorded.turn.version == line.version);
        let is_same =
            same.is_some_and(|recorded| sealed == recorded.turn && recorded.reply == line.reply.get());
        if !is_same {
            return Err(format!("blob {} tells of turn {} otherwise than its row", row.key, line.version));
        }
    }
    Ok(())
}

/// The entries of a segment or journal row are those whose digests the turns
/// have.
fn check_entries(turns: &[RecordedTurn], first: Seq, last: Seq, entries: &[Entry]) -> Result<(), Violation> {
    let in_order = entries.iter().map(|entry| entry.seq.0).eq(first.0..=last.0);
    if !in_order {
        return Err(format!("entries {first} to {last} are not all there"));
    }
    let of_range = turns
        .iter()
        .map(|recorded| &recorded.turn)
        .filter(|turn| turn.first_seq >= first && turn.last_seq <= last && turn.first_seq <= turn.last_seq);
    for turn in of_range {
        let own = entries.iter().filter(|entry| (turn.first_seq..=turn.last_seq).contains(&entry.seq));
        let found = digest::of_entries(own.clone());
        if found != turn.entries_digest {
            let what = format!("entries of turn {}", turn.version);
            return Err(digest_mismatch(&what, turn.entries_digest, found));
        }
        let tokens: u64 = own.clone().map(|entry| entry.tokens).sum();
        let bytes: u64 = own.map(|entry| entry.payload.len() as u64).sum();
        if (tokens, bytes) != (turn.tokens, turn.payload_bytes) {
            return Err(format!(
                "entries of turn {} have {tokens} tokens and {bytes} bytes, not {} and {}",
                turn.version, turn.tokens, turn.payload_bytes
            ));
        }
    }
    Ok(())
}
