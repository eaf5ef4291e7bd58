//! Sealing journals into segments, and rolling small segments up.

use super::{Engine, Error, compute, keys};
use crate::codec::manifest::{self, Manifest, PreambleLine};
use crate::codec::segment::{self, BranchLine, Encoded, Header, TurnLine};
use crate::codec::{digest, frame};
use crate::limits::{
    ROLL_UP_RAW_BYTES_MAX, ROLL_UP_SEGMENTS_MIN, ROLL_UP_SMALL_BYTES, SEAL_SEGMENT_RAW_BYTES_MAX,
    SEGMENT_RAW_BYTES_MAX,
};
use crate::model::{Branch, BranchId, GenerationId, Segment, Seq, Version, WireFormat};
use crate::store::meta::{
    BranchKey, CommitOutcome, JournalRow, ManifestRow, NewRollUp, NewSeal, RecordedTurn, SealCandidate,
    SealedRun, SessionKey,
};
use bytes::Bytes;

/// Turns of one segment: what their header lines take must stay small beside
/// the entries.
const SEGMENT_TURNS_MAX: u32 = 10_000;

impl Engine {
    /// Tells the sealer that a branch's journal is due. If the queue is full
    /// the next scan finds it.
    pub(super) fn due_for_seal(&self, branch: BranchKey) {
        let _ = self.inner.due.try_send(branch);
    }

    /// Seals a branch's journal as it stands. Returns how many segments were
    /// written.
    pub async fn seal_branch(&self, branch: &BranchKey) -> Result<usize, Error> {
        let mut segments = 0;
        loop {
            let Some(is_rest) = self.seal_once(branch).await? else { return Ok(segments) };
            segments += 1;
            if !is_rest {
                return Ok(segments);
            }
        }
    }

    /// Seals the journals that are due. Returns how many segments were written.
    /// A journal that cannot be sealed does not keep the others from it; its
    /// failure is returned at the end.
    pub async fn seal_due(&self) -> Result<usize, Error> {
        const BATCH: u32 = 100;
        let due = self.inner.meta.seal_candidates(self.inner.options.seal, self.now(), BATCH).await?;
        let mut segments = Ok(0);
        for SealCandidate { key, .. } in due {
            go_on(&mut segments, &key, self.seal_branch(&key).await)?;
        }
        segments
    }

    /// Seals one segment's worth of a branch's journal and tells whether that
    /// left a rest; nothing if there was nothing to seal or another was faster.
    async fn seal_once(&self, branch: &BranchKey) -> Result<Option<bool>, Error> {
        let lineage = self.inner.meta.lineage(branch).await?;
        let Some(tip) = lineage.last() else { return Ok(None) };
        let session = SessionKey { tenant: branch.tenant.clone(), session: tip.session.clone() };
        let Some((run, is_rest)) = self.put_run(&session, branch, None, None).await? else { return Ok(None) };
        let seal = NewSeal { key: branch.clone(), session: session.session.clone(), run };
        let (bytes, generation) = (seal.run.segment.raw_bytes, seal.run.generation);
        match self.inner.meta.commit_seal(seal).await {
            Ok(CommitOutcome::Committed) => {
                metrics::counter!("turnkeep_seals_total").increment(1);
                metrics::counter!("turnkeep_sealed_raw_bytes_total").increment(bytes);
                Ok(Some(is_rest))
            }
            Ok(CommitOutcome::NotAsExpected) => Ok(None),
            Err(error) if error.kind == crate::store::ErrorKind::Fenced => {
                self.inner
                    .generation
                    .replace_fenced(self.inner.meta.as_ref(), generation, self.now())
                    .await?;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Puts a segment of a branch's journal, and of a turn that is not
    /// committed yet, into the object store, with the session's manifest. The
    /// turn may begin a new branch. Tells whether the journal has more than one
    /// segment should hold. Nothing if there is nothing to seal, or if the
    /// journal does not lead up to the turn.
    pub(super) async fn put_run(
        &self,
        session: &SessionKey,
        branch: &BranchKey,
        new_branch: Option<&Branch>,
        new: Option<(RecordedTurn, Bytes)>,
    ) -> Result<Option<(SealedRun, bool)>, Error> {
        let (lineage, material) = loop {
            let lineage = self.lineage_of_run(branch, new_branch).await?;
            let Some(tip) = lineage.last() else { return Ok(None) };
            match self.material(branch, tip, new.clone()).await? {
                Found::Nothing => return Ok(None),
                Found::Material(material) => break (lineage, material),
                // What an outage has left in the journal gets segments of its own.
                Found::TooMuch => drop(Box::pin(self.seal_branch(branch)).await?),
            }
        };
        let Some(tip) = lineage.last() else { return Ok(None) };
        let generation = self.inner.generation.current();
        let (manifest_row, manifest) = match self.manifest(session, generation).await? {
            Some((row, body)) => (Some(row), Some(body)),
            None => (None, None),
        };
        let format = self.wire_format(session, &lineage).await?;
        let header = Header {
            turnkeep: "segment".to_owned(),
            format: segment::FORMAT,
            min_reader: segment::FORMAT,
            tenant: branch.tenant.clone(),
            wire_format: format,
            lineage: lineage.iter().map(BranchLine::from).collect(),
            first_seq: material.first_seq,
            last_seq: material.last_seq,
            turns: material.turns,
            writer: generation,
        };
        let (first_version, last_version) = (material.first_version, material.last_version);
        let key =
            keys::segment(&self.inner.entropy, &branch.tenant, &branch.branch, header.first_seq, generation);
        let row = self
            .put_segment(&branch.branch, &key, header, material.lines, (first_version, last_version))
            .await?;
        if let (Some(row), Some(body)) = (&manifest_row, manifest) {
            let sha256 = digest::sha256(&body);
            self.put_blob(&row.key, body, sha256).await.map_err(Error::of_objects)?;
        }
        let run = SealedRun {
            segment: row,
            expected_sealed_version: tip.sealed_version,
            journal_bytes: material.journal_bytes,
            manifest: manifest_row,
            erase_not_before: self.now().plus(self.inner.options.grace),
            generation,
        };
        Ok(Some((run, material.is_rest)))
    }

    /// A branch that is there, or is to be made, after those that it continues.
    async fn lineage_of_run(&self, key: &BranchKey, new: Option<&Branch>) -> Result<Vec<Branch>, Error> {
        let Some(new) = new else { return Ok(self.inner.meta.lineage(key).await?) };
        let mut lineage = match &new.parent {
            None => vec![],
            Some(parent) => {
                let parent = BranchKey { tenant: key.tenant.clone(), branch: parent.clone() };
                self.inner.meta.lineage(&parent).await?
            }
        };
        lineage.push(new.clone());
        Ok(lineage)
    }

    /// Encodes a segment and puts it; returns its row.
    async fn put_segment(
        &self,
        branch: &BranchId,
        key: &str,
        header: Header,
        lines: Vec<Bytes>,
        (first_version, last_version): (Version, Version),
    ) -> Result<Segment, Error> {
        let (first_seq, last_seq) = (header.first_seq, header.last_seq);
        let bytes = lines.iter().map(Bytes::len).sum();
        let encoded: Encoded = compute(bytes, move || segment::encode(&header, &lines)).await??;
        let stored_bytes = encoded.stored.len() as u64;
        self.put_blob(key, encoded.stored, encoded.sha256).await.map_err(Error::of_objects)?;
        Ok(Segment {
            branch: branch.clone(),
            first_seq,
            last_seq,
            first_version,
            last_version,
            key: key.to_owned(),
            sha256: encoded.sha256,
            stored_bytes,
            raw_bytes: encoded.raw_bytes,
            format: segment::FORMAT,
            created_at: self.now(),
        })
    }

    /// What the next segment of a branch is made of.
    async fn material(
        &self,
        branch: &BranchKey,
        tip: &Branch,
        new: Option<(RecordedTurn, Bytes)>,
    ) -> Result<Found, Error> {
        let first = tip.sealed_version.next().max(tip.first_version);
        let end =
            new.as_ref().map_or(Version(u64::MAX), |(recorded, _)| Version(recorded.turn.version.0 - 1));
        let meta = &self.inner.meta;
        let rows = meta.journal(branch, first, end).await?;
        let all = rows.len();
        let mut taken = take_rows(rows);
        let is_rest = taken.len() < all;
        if is_rest && new.is_some() {
            return Ok(Found::TooMuch);
        }
        let last = match (&new, taken.last()) {
            (Some(_), _) => end,
            (None, Some(row)) => row.version,
            (None, None) => return Ok(Found::Nothing),
        };
        let mut turns =
            if first <= last { meta.turns(branch, first, last, SEGMENT_TURNS_MAX).await? } else { vec![] };
        if turns.first().is_some_and(|recorded| recorded.turn.version != first) {
            return Err(Error::internal(format!("branch {} has too many turns to seal", branch.branch)));
        }
        let journal_bytes = taken.iter().map(|row| row.body.len() as u64).sum();
        let bytes = taken.iter().map(|row| usize::try_from(row.raw_bytes).unwrap_or(usize::MAX)).sum();
        let mut lines = compute(bytes, move || {
            let decode = |row: JournalRow| {
                let limit = usize::try_from(row.raw_bytes).unwrap_or(usize::MAX).min(SEGMENT_RAW_BYTES_MAX);
                frame::decompress(&row.body, limit)
            };
            taken.drain(..).map(decode).collect::<Result<Vec<_>, _>>()
        })
        .await??;
        if let Some((recorded, text)) = new {
            turns.push(recorded);
            lines.push(text);
        }
        let (Some(oldest), Some(newest)) = (turns.first(), turns.last()) else { return Ok(Found::Nothing) };
        // A head that moved meanwhile has turns between the journal and the new
        // one.
        if newest.turn.version.0 - oldest.turn.version.0 + 1 != turns.len() as u64 {
            return Ok(Found::Nothing);
        }
        Ok(Found::Material(Material {
            first_seq: oldest.turn.first_seq,
            last_seq: newest.turn.last_seq,
            first_version: oldest.turn.version,
            last_version: newest.turn.version,
            turns: turns.iter().map(|r| TurnLine::new(&r.turn, &r.reply)).collect::<Result<_, _>>()?,
            lines,
            journal_bytes,
            is_rest,
        }))
    }

    /// The manifest of a live session, encoded, with its row.
    async fn manifest(
        &self,
        key: &SessionKey,
        generation: GenerationId,
    ) -> Result<Option<(ManifestRow, Bytes)>, Error> {
        let Some(tip) = self.inner.meta.tip(key, None).await? else { return Ok(None) };
        let preambles = self.inner.meta.preambles(key).await?;
        let branches = self.inner.meta.branches_of_session(key).await?;
        let manifest = Manifest {
            turnkeep: "manifest".to_owned(),
            format: manifest::FORMAT,
            tenant: key.tenant.clone(),
            session: key.session.clone(),
            config: (&tip.session).into(),
            created_at: tip.session.created_at,
            version: tip.head.version,
            branch: tip.head.branch.clone(),
            config_revision: tip.head.config_revision,
            window_revision: tip.head.window_revision,
            branches: branches
                .iter()
                .map(|branch| (BranchLine::from(branch), branch.parent.clone()))
                .collect(),
            preambles: preambles.iter().map(PreambleLine::new).collect::<Result<_, _>>()?,
            writer: generation,
        };
        let row = ManifestRow {
            session: key.session.clone(),
            key: keys::manifest(
                &self.inner.entropy,
                &key.tenant,
                &tip.head.branch,
                tip.head.version,
                generation,
            ),
            version: tip.head.version,
        };
        Ok(Some((row, manifest::encode(&manifest)?)))
    }

    /// Wire format of a branch's entries. A deleted session that forks still
    /// need has no configuration any more; then a fork's tells it.
    async fn wire_format(&self, session: &SessionKey, lineage: &[Branch]) -> Result<WireFormat, Error> {
        for owner in std::iter::once(&session.session).chain(lineage.iter().map(|branch| &branch.session)) {
            let key = SessionKey { tenant: session.tenant.clone(), session: owner.clone() };
            if let Some(tip) = self.inner.meta.tip(&key, None).await? {
                return Ok(tip.session.format);
            }
        }
        Ok(WireFormat::Opaque)
    }

    /// Rolls up small segments wherever there are enough of them. Returns how
    /// many roll-ups were made. A failure keeps no other branch from it, as in
    /// [`Engine::seal_due`].
    pub async fn roll_up_due(&self) -> Result<usize, Error> {
        const BATCH: u32 = 100;
        let segments_min = u32::try_from(ROLL_UP_SEGMENTS_MIN).unwrap_or(u32::MAX);
        let branches = self.inner.meta.roll_up_candidates(ROLL_UP_SMALL_BYTES, segments_min, BATCH).await?;
        let mut done = Ok(0);
        for branch in branches {
            go_on(&mut done, &branch, self.roll_up_branch(&branch).await.map(usize::from))?;
        }
        done
    }

    /// Merges the first run of small adjacent segments of a branch that is long
    /// enough; false if there is none or another was faster.
    pub async fn roll_up_branch(&self, branch: &BranchKey) -> Result<bool, Error> {
        let segments = self.inner.meta.segments(branch, Seq(0), Seq(u64::MAX)).await?;
        let lineage = self.inner.meta.lineage(branch).await?;
        let (Some(run), Some(tip)) = (small_run(&segments), lineage.last()) else { return Ok(false) };
        let session = SessionKey { tenant: branch.tenant.clone(), session: tip.session.clone() };
        let generation = self.inner.generation.current();
        let mut merged: Option<Header> = None;
        let mut lines = Vec::with_capacity(run.len());
        for segment in run {
            let Some(decoded) = self.segment_whole(&session, segment).await? else { return Ok(false) };
            let header = decoded.header()?;
            lines.push(decoded.lines.clone());
            merged = Some(match merged {
                None => Header {
                    lineage: lineage.iter().map(BranchLine::from).collect(),
                    writer: generation,
                    ..header
                },
                Some(mut merged) => {
                    merged.turns.extend(header.turns);
                    merged.last_seq = header.last_seq;
                    merged
                }
            });
        }
        let (Some(header), Some(first), Some(last)) = (merged, run.first(), run.last()) else {
            return Ok(false);
        };
        let key =
            keys::segment(&self.inner.entropy, &branch.tenant, &branch.branch, header.first_seq, generation);
        let versions = (first.first_version, last.last_version);
        let new = self.put_segment(&branch.branch, &key, header, lines, versions).await?;
        let roll_up = NewRollUp {
            key: branch.clone(),
            session: session.session,
            old: run.to_vec(),
            new,
            generation,
            erase_not_before: self.now().plus(self.inner.options.grace),
        };
        match self.inner.meta.commit_roll_up(roll_up).await {
            Ok(outcome) => {
                metrics::counter!("turnkeep_roll_ups_total").increment(1);
                Ok(outcome == CommitOutcome::Committed)
            }
            Err(error) if error.kind == crate::store::ErrorKind::Fenced => {
                self.inner
                    .generation
                    .replace_fenced(self.inner.meta.as_ref(), generation, self.now())
                    .await?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Adds what became of one branch to what became of those before it. Fails if a
/// store cannot be reached, since no other branch would fare better.
fn go_on(all: &mut Result<usize, Error>, branch: &BranchKey, one: Result<usize, Error>) -> Result<(), Error> {
    match one {
        Ok(more) => all.as_mut().map_or((), |all| *all += more),
        Err(error @ (Error::Unavailable { .. } | Error::StorageFull { .. })) => return Err(error),
        Err(error) => {
            tracing::error!(branch = %branch.branch, error = %error, "a branch is left as it is");
            *all = Err(error);
        }
    }
    Ok(())
}

/// What a branch has for its next segment.
enum Found {
    Nothing,
    /// More in the journal than one segment should hold, before the new turn.
    TooMuch,
    Material(Material),
}

/// What a segment is made of.
struct Material {
    first_seq: Seq,
    last_seq: Seq,
    first_version: Version,
    last_version: Version,
    turns: Vec<TurnLine>,
    lines: Vec<Bytes>,
    journal_bytes: u64,
    is_rest: bool,
}

/// The journal rows that go into the next segment: all of them, or as many as
/// one segment should hold.
fn take_rows(rows: Vec<JournalRow>) -> Vec<JournalRow> {
    let mut raw_bytes = 0;
    rows.into_iter()
        .take_while(|row| {
            let fits = raw_bytes == 0 || raw_bytes + row.raw_bytes <= SEAL_SEGMENT_RAW_BYTES_MAX as u64;
            raw_bytes += row.raw_bytes;
            fits
        })
        .collect()
}

/// The first run of small adjacent segments that is worth a roll-up and stays
/// within the size of one. A first segment that is as large as the others
/// together waits until they have grown, so that each byte is written again a
/// few times only, however long the branch gets.
fn small_run(segments: &[Segment]) -> Option<&[Segment]> {
    let mut start = 0;
    while start < segments.len() {
        let mut raw_bytes = 0;
        let run = segments[start..].iter().take_while(|segment| {
            raw_bytes += segment.raw_bytes;
            segment.stored_bytes < ROLL_UP_SMALL_BYTES && raw_bytes <= ROLL_UP_RAW_BYTES_MAX
        });
        let len = run.count();
        let run = &segments[start..start + len];
        let largest = run.first().map_or(0, |first| first.raw_bytes);
        if len >= ROLL_UP_SEGMENTS_MIN && largest * 2 <= run.iter().map(|segment| segment.raw_bytes).sum() {
            return Some(run);
        }
        start += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Micros;
    use crate::model::Digest;

    fn segment(stored_bytes: u64, raw_bytes: u64) -> Segment {
        Segment {
            branch: BranchId::parse("b").unwrap(),
            first_seq: Seq(1),
            last_seq: Seq(1),
            first_version: Version(1),
            last_version: Version(1),
            key: String::new(),
            sha256: Digest::default(),
            stored_bytes,
            raw_bytes,
            format: 1,
            created_at: Micros(0),
        }
    }

    #[test]
    fn a_run_is_small_adjacent_and_within_the_size_of_one_segment() {
        let small = || segment(1_000, 10_000);
        let large = || segment(ROLL_UP_SMALL_BYTES, 5_000_000);
        assert_eq!(small_run(&[]), None);
        assert_eq!(small_run(&[small(), small(), small()]), None);
        assert_eq!(small_run(&[small(), large(), small(), small(), small()]), None);
        let segments = [small(), large(), small(), small(), small(), small(), large()];
        assert_eq!(small_run(&segments), Some(&segments[2..6]));
        let grown = segment(1_000, 40_000);
        assert_eq!(small_run(&[grown.clone(), small(), small(), small()]), None);
        let segments = [grown, small(), small(), small(), small()];
        assert_eq!(small_run(&segments), Some(&segments[..]));
        let halves = [segment(1, ROLL_UP_RAW_BYTES_MAX / 2), segment(1, ROLL_UP_RAW_BYTES_MAX / 2)];
        assert_eq!(small_run(&[halves.clone(), halves].concat()), None);
    }
}
