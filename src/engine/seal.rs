//! Sealing journals into segments.

use super::upkeep::go_on;
use super::{Engine, Error, compute, keys};
use crate::codec::manifest::{self, Manifest, PreambleLine};
use crate::codec::segment::{self, BranchLine, Encoded, Header, TurnLine};
use crate::codec::{digest, frame};
use crate::limits::{
    MANIFEST_WINDOW_STATES_MAX, OBJECT_FIRST_ATTEMPTS, SEAL_SEGMENT_RAW_BYTES_MAX, SEGMENT_RAW_BYTES_MAX,
};
use crate::model::{Branch, BranchId, GenerationId, RecordedState, Segment, Seq, Version, WireFormat};
use crate::store::meta::{
    BranchKey, CommitOutcome, JournalRow, ManifestRow, NewSeal, RecordedTurn, SealCandidate, SealedRun,
    SessionKey, Tip,
};
use bytes::Bytes;

/// Most turns of one segment: a restore reads the header with the entries.
const SEGMENT_TURNS_MAX: usize = 10_000;

/// Turns that are read at once. Their rows have no bound of their own, but for
/// what a request may hold.
const TURNS_PAGE: u32 = 100;

impl Engine {
    /// Tells the sealer that a branch's journal is due. If the queue is full
    /// the next scan finds it.
    pub(super) fn due_for_seal(&self, branch: BranchKey) {
        let _ = self.inner.due.try_send(branch);
    }

    /// Seals a branch's turns as they stand, those without entries as well.
    /// Returns how many segments were written.
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
            go_on(&mut segments, &key.branch, self.seal_branch(&key).await)?;
        }
        segments
    }

    /// Seals a branch up to a version of it, if it is not yet.
    pub(super) async fn seal_up_to(&self, branch: &BranchKey, version: Version) -> Result<(), Error> {
        let mut attempts = 0;
        loop {
            let lineage = self.inner.meta.lineage(branch).await?;
            // Nothing is left to be sealed of one that was deleted meanwhile.
            let Some(tip) = lineage.last().filter(|tip| tip.sealed_version < version) else { return Ok(()) };
            if attempts == OBJECT_FIRST_ATTEMPTS {
                return Err(Error::Contention { session: tip.session.clone(), attempts });
            }
            self.seal_branch(branch).await?;
            attempts += 1;
        }
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
        let Some((lineage, material)) = self.run(branch, new_branch, new).await? else { return Ok(None) };
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

    /// The lineage of a branch, and what its next segment is made of.
    async fn run(
        &self,
        branch: &BranchKey,
        new_branch: Option<&Branch>,
        new: Option<(RecordedTurn, Bytes)>,
    ) -> Result<Option<(Vec<Branch>, Material)>, Error> {
        for _ in 0..OBJECT_FIRST_ATTEMPTS {
            let lineage = self.lineage_of_run(branch, new_branch).await?;
            let Some(tip) = lineage.last() else { return Ok(None) };
            match self.material(branch, tip, new.clone()).await? {
                Found::Nothing => return Ok(None),
                Found::Material(material) => return Ok(Some((lineage, material))),
                // What an outage has left in the journal gets segments of its own.
                Found::TooMuch => drop(Box::pin(self.seal_branch(branch)).await?),
            }
        }
        Ok(None)
    }

    /// A branch that is there, or is to be made, after those that it continues.
    /// If each turn is to be in the object store, then so is what it continues:
    /// the setting may not always have been so.
    async fn lineage_of_run(&self, key: &BranchKey, new: Option<&Branch>) -> Result<Vec<Branch>, Error> {
        let mut lineage = match new {
            None => self.inner.meta.lineage(key).await?,
            Some(Branch { parent: None, .. }) => vec![],
            Some(Branch { parent: Some(parent), .. }) => {
                let parent = BranchKey { tenant: key.tenant.clone(), branch: parent.clone() };
                self.inner.meta.lineage(&parent).await?
            }
        };
        lineage.extend(new.cloned());
        if self.inner.options.seal_every_turn {
            for (parent, child) in lineage.iter().zip(lineage.iter().skip(1)) {
                if parent.sealed_version < child.base_version {
                    let parent = BranchKey { tenant: key.tenant.clone(), branch: parent.id.clone() };
                    Box::pin(self.seal_up_to(&parent, child.base_version)).await?;
                }
            }
        }
        Ok(lineage)
    }

    /// Encodes a segment and puts it; returns its row.
    pub(super) async fn put_segment(
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

    /// What the next segment of a branch is made of: its oldest turns that are
    /// not sealed, as many as one should hold.
    async fn material(
        &self,
        branch: &BranchKey,
        tip: &Branch,
        new: Option<(RecordedTurn, Bytes)>,
    ) -> Result<Found, Error> {
        let first = tip.sealed_version.next().max(tip.first_version);
        let end =
            new.as_ref().map_or(Version(u64::MAX), |(recorded, _)| Version(recorded.turn.version.0 - 1));
        let (lines, mut is_rest) = self.unsealed(branch, first, end).await?;
        let rows = match lines.last() {
            Some(newest) => self.inner.meta.journal(branch, first, newest.version).await?,
            None => vec![],
        };
        let with_entries = lines.iter().filter(|line| line.first_seq <= line.last_seq);
        if !with_entries.map(|line| line.version).eq(rows.iter().map(|row| row.version)) {
            let now = self.inner.meta.lineage(branch).await?;
            // Another has sealed them meanwhile, or the branch is gone.
            if now.last().is_none_or(|now| now.sealed_version != tip.sealed_version) {
                return Ok(Found::Nothing);
            }
            let problem = format!("the journal of branch {} is not that of its turns", branch.branch);
            return Err(Error::internal(problem));
        }
        let (mut turns, rows, is_cut) = take(lines, rows)?;
        is_rest |= is_cut;
        if is_rest && new.is_some() {
            return Ok(Found::TooMuch);
        }
        let journal_bytes = rows.iter().map(|row| row.body.len() as u64).sum();
        let mut lines = decode_rows(rows).await?;
        if let Some((recorded, text)) = new {
            turns.push(TurnLine::new(&recorded.turn, &recorded.reply)?);
            lines.push(text);
        }
        let (Some(oldest), Some(newest)) = (turns.first(), turns.last()) else { return Ok(Found::Nothing) };
        // A head that moved meanwhile has turns between the journal and the new
        // one.
        if oldest.version != first || newest.version.0 - oldest.version.0 + 1 != turns.len() as u64 {
            return Ok(Found::Nothing);
        }
        Ok(Found::Material(Material {
            first_seq: oldest.first_seq,
            last_seq: newest.last_seq,
            first_version: oldest.version,
            last_version: newest.version,
            turns,
            lines,
            journal_bytes,
            is_rest,
        }))
    }

    /// Turns of a branch from `first` on, to no more than `end` and what one
    /// segment should hold of them; and whether there may be more.
    async fn unsealed(
        &self,
        branch: &BranchKey,
        first: Version,
        end: Version,
    ) -> Result<(Vec<TurnLine>, bool), Error> {
        let mut lines = Vec::new();
        let mut bytes = 0;
        let mut next = first;
        while next <= end {
            // Versions of a branch have no gaps, so these are its oldest.
            let last = Version(next.0.saturating_add(u64::from(TURNS_PAGE) - 1)).min(end);
            let page = self.inner.meta.turns(branch, next, last, TURNS_PAGE).await?;
            let is_last = page.last().is_none_or(|recorded| recorded.turn.version < last);
            for RecordedTurn { turn, reply } in page {
                let line = TurnLine::new(&turn, &reply)?;
                bytes += line.raw_bytes()?;
                lines.push(line);
            }
            if is_last {
                break;
            }
            next = last.next();
            if lines.len() >= SEGMENT_TURNS_MAX || bytes > SEAL_SEGMENT_RAW_BYTES_MAX as u64 {
                return Ok((lines, next <= end));
            }
        }
        Ok((lines, false))
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
            sealed: branches.iter().fold(0, |sum: u64, branch| sum.saturating_add(branch.sealed_version.0)),
            written_at: self.now(),
            branches: branches
                .iter()
                .map(|branch| (BranchLine::from(branch), branch.parent.clone()))
                .collect(),
            preambles: preambles.iter().map(PreambleLine::new).collect::<Result<_, _>>()?,
            window_states: self.newest_states(key, &tip, &branches).await?,
            notes: self.inner.meta.notes(key).await?,
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

    /// The newest window state of each of a session's newest branches, the oldest
    /// branch first.
    async fn newest_states(
        &self,
        key: &SessionKey,
        tip: &Tip,
        branches: &[Branch],
    ) -> Result<Vec<RecordedState>, Error> {
        if tip.head.window_state == 0 {
            return Ok(vec![]);
        }
        let (mut states, newest) = (Vec::new(), Version(i64::MAX.unsigned_abs()));
        for branch in branches.iter().skip(branches.len().saturating_sub(MANIFEST_WINDOW_STATES_MAX)) {
            let branch = BranchKey { tenant: key.tenant.clone(), branch: branch.id.clone() };
            states.extend(self.inner.meta.window_states(&branch, newest, u64::MAX, 1).await?);
        }
        Ok(states)
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

/// As many turns, with their journal rows, as one segment should hold, and at
/// least one; and whether that leaves some.
fn take(
    lines: Vec<TurnLine>,
    rows: Vec<JournalRow>,
) -> Result<(Vec<TurnLine>, Vec<JournalRow>, bool), Error> {
    let (mut turns, mut taken) = (Vec::with_capacity(lines.len()), Vec::with_capacity(rows.len()));
    let mut rows = rows.into_iter().peekable();
    let mut raw_bytes = 0;
    for line in lines {
        let row_bytes = rows.peek().filter(|row| row.version == line.version).map_or(0, |row| row.raw_bytes);
        raw_bytes += line.raw_bytes()? + row_bytes;
        if !turns.is_empty() && raw_bytes > SEAL_SEGMENT_RAW_BYTES_MAX as u64 {
            return Ok((turns, taken, true));
        }
        taken.extend(rows.next_if(|row| row.version == line.version));
        turns.push(line);
    }
    Ok((turns, taken, false))
}

/// The entries' lines of journal rows.
async fn decode_rows(rows: Vec<JournalRow>) -> Result<Vec<Bytes>, Error> {
    let size = |row: &JournalRow| usize::try_from(row.raw_bytes).unwrap_or(usize::MAX);
    let bytes = rows.iter().map(size).fold(0, usize::saturating_add);
    let decode = move |row: &JournalRow| frame::decompress(&row.body, size(row).min(SEGMENT_RAW_BYTES_MAX));
    let lines = compute(bytes, move || rows.iter().map(decode).collect::<Result<Vec<_>, _>>()).await?;
    Ok(lines?)
}
