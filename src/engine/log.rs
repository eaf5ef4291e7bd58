//! Reading a log: which rows and blobs hold a range of entries, and getting
//! them.

use super::segments::{self, Each, FetchError};
use super::{Engine, Error, compute};
use crate::clock;
use crate::codec::{frame, line};
use crate::limits::{LINEAGE_DEPTH_MAX, SEGMENT_RAW_BYTES_MAX};
use crate::model::{Branch, BranchId, Entry, Lineage, Segment, Seq, Turn, Version};
use crate::store::meta::{BranchKey, JournalRow, RecordedTurn, SessionKey, Tip};
use crate::store::{ErrorKind, StoreError};
use futures::{StreamExt as _, TryStreamExt as _};
use std::sync::Arc;

/// Blobs of one restore that are fetched at the same time.
const FETCHES: usize = 16;

/// A version of a session's log.
#[derive(Clone, Debug)]
pub(super) struct Position {
    /// The branches that make the log, of which the last one holds the version.
    pub(super) lineage: Arc<Lineage>,
    /// The turn that made the version, with its recorded reply.
    pub(super) turn: Turn,
    /// Segments hold the entries of the turn's branch at least up to this one.
    sealed_seq: Seq,
}

impl Position {
    /// The version that `turn` made of the session whose tip is `tip`, if that
    /// was read.
    pub(super) fn new(lineage: Arc<Lineage>, turn: Turn, tip: Option<&Tip>) -> Self {
        let branch = tip.map(|tip| &tip.branch).filter(|branch| branch.id == turn.branch);
        Self { lineage, sealed_seq: branch.map_or(Seq(0), |branch| branch.sealed_seq), turn }
    }
}

/// A stretch of the log in one row or blob.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    holder: Holder,
    /// Newest seq of its branch that is part of the log: what the row or blob
    /// holds beyond was rewound, or came after the fork.
    end: Seq,
}

#[derive(Clone, Debug)]
enum Holder {
    Journal(JournalRow),
    Segment(Segment),
}

impl Piece {
    pub(super) fn first_seq(&self) -> Seq {
        match &self.holder {
            Holder::Journal(row) => row.first_seq,
            Holder::Segment(segment) => segment.first_seq,
        }
    }

    pub(super) fn last_seq(&self) -> Seq {
        match &self.holder {
            Holder::Journal(row) => row.last_seq.min(self.end),
            Holder::Segment(segment) => segment.last_seq.min(self.end),
        }
    }
}

impl Engine {
    /// A live session as it stands, from the store.
    pub(super) async fn tip(&self, key: &SessionKey, journal_after: Option<Version>) -> Result<Tip, Error> {
        match self.inner.meta.tip(key, journal_after).await? {
            Some(tip) => Ok(tip),
            None => Err(Error::SessionNotFound { session: key.session.clone() }),
        }
    }

    /// A branch with those that it continues.
    pub(super) async fn lineage(&self, key: &BranchKey) -> Result<Arc<Lineage>, Error> {
        if let Some(lineage) = self.inner.caches.lineages.get(key) {
            return Ok(lineage);
        }
        let branches = self.inner.meta.lineage(key).await?;
        if branches.is_empty() {
            return Err(Error::internal(format!("branch {} is not there", key.branch)));
        }
        Ok(self.keep_lineage(key, &branches))
    }

    fn keep_lineage(&self, key: &BranchKey, branches: &[Branch]) -> Arc<Lineage> {
        let lineage = Arc::new(Lineage::from_root(branches));
        self.inner.caches.lineages.insert(key.clone(), lineage.clone());
        lineage
    }

    /// The lineage of a branch that is to be continued by another.
    pub(super) async fn lineage_to_extend(&self, key: &BranchKey) -> Result<Arc<Lineage>, Error> {
        let lineage = self.lineage(key).await?;
        if lineage.spans().len() >= LINEAGE_DEPTH_MAX {
            return Err(Error::LineageTooDeep { limit: LINEAGE_DEPTH_MAX });
        }
        Ok(lineage)
    }

    /// The newest version of a session.
    pub(super) async fn newest(&self, key: &SessionKey, tip: &Tip) -> Result<Position, Error> {
        let branch = BranchKey { tenant: key.tenant.clone(), branch: tip.head.branch.clone() };
        let lineage = match self.inner.caches.lineages.get(&branch) {
            Some(lineage) => lineage,
            // It is all of its line, and need not be asked for.
            None if tip.branch.id == tip.head.branch && tip.branch.parent.is_none() => {
                self.keep_lineage(&branch, std::slice::from_ref(&tip.branch))
            }
            None => self.lineage(&branch).await?,
        };
        Ok(Position::new(lineage, tip.turn.clone(), Some(tip)))
    }

    /// Any version of a session, those included that were rewound or that its
    /// fork began with.
    pub(super) async fn position(
        &self,
        key: &SessionKey,
        tip: &Tip,
        version: Version,
    ) -> Result<Position, Error> {
        if version == tip.head.version {
            return self.newest(key, tip).await;
        }
        let recorded = self.recorded_turn(key, tip, version).await?;
        let branch = BranchKey { tenant: key.tenant.clone(), branch: recorded.turn.branch.clone() };
        Ok(Position::new(self.lineage(&branch).await?, recorded.turn, Some(tip)))
    }

    /// The turn of any version of a session.
    pub(super) async fn recorded_turn(
        &self,
        key: &SessionKey,
        tip: &Tip,
        version: Version,
    ) -> Result<RecordedTurn, Error> {
        let not_found =
            || Error::VersionNotFound { session: key.session.clone(), version, current: tip.head.version };
        let branch =
            if version > tip.head.version { None } else { self.branch_of(key, tip, version).await? };
        let Some(branch) = branch else { return Err(not_found()) };
        let branch = BranchKey { tenant: key.tenant.clone(), branch };
        self.inner.meta.turn(&branch, version).await?.ok_or_else(not_found)
    }

    /// The branch that holds a version of a session.
    async fn branch_of(
        &self,
        key: &SessionKey,
        tip: &Tip,
        version: Version,
    ) -> Result<Option<BranchId>, Error> {
        let branch = BranchKey { tenant: key.tenant.clone(), branch: tip.head.branch.clone() };
        if let Some(span) = self.lineage(&branch).await?.span_of_version(version) {
            return Ok(Some(span.branch.clone()));
        }
        // Versions only grow, so a version that the session made itself lies on
        // the branch that it was on at the time.
        let own = self.inner.meta.branches_of_session(key).await?;
        if let Some(branch) = own.iter().rev().find(|branch| branch.first_version <= version) {
            return Ok(Some(branch.id.clone()));
        }
        // A version that a fork has from its source, but that no branch of the
        // lineage leads to any more since the fork was rewound below it.
        for branch in &own {
            let branch = BranchKey { tenant: key.tenant.clone(), branch: branch.id.clone() };
            if let Some(span) = self.lineage(&branch).await?.span_of_version(version) {
                return Ok(Some(span.branch.clone()));
            }
        }
        Ok(None)
    }

    /// Entries of a version from `first` to `last`, both included. `journal` are
    /// rows of the newest branch that were read already.
    pub(super) async fn entries(
        &self,
        key: &SessionKey,
        at: &Position,
        first: Seq,
        last: Seq,
        journal: Vec<JournalRow>,
    ) -> Result<Vec<Entry>, Error> {
        self.each_entry(key, at, first, last, journal, |entries| entries).await
    }

    /// As [`Self::entries`], with what `each` makes of them.
    pub(super) async fn each_entry<T: AsRef<Entry> + Send + 'static>(
        &self,
        key: &SessionKey,
        at: &Position,
        first: Seq,
        last: Seq,
        journal: Vec<JournalRow>,
        each: impl Each<T>,
    ) -> Result<Vec<T>, Error> {
        let mut journal = Some(journal);
        let mut gone = (first, last);
        for _ in 0..2 {
            let pieces = self.pieces(key, at, first, last, journal.take()).await?;
            let loads: Vec<_> =
                pieces.iter().map(|piece| self.load(key, piece, first, each.clone())).collect();
            let loaded: Result<Vec<_>, FetchError> =
                futures::stream::iter(loads).buffered(FETCHES).try_collect().await;
            match loaded {
                Ok(loaded) => {
                    let mut made: Vec<_> = loaded.into_iter().flatten().flatten().collect();
                    retain_new(&mut made, first, last);
                    check_gapless(key, &made, first, last)?;
                    return Ok(made);
                }
                Err(FetchError::Failed(error)) => return Err(error),
                Err(FetchError::Gone(first, last)) => gone = (first, last),
            }
        }
        Err(missing(key, gone.0.max(first), gone.1.min(last)))
    }

    /// The pieces that hold entries from `first` to `last`, in order.
    pub(super) async fn pieces(
        &self,
        key: &SessionKey,
        at: &Position,
        first: Seq,
        last: Seq,
        journal: Option<Vec<JournalRow>>,
    ) -> Result<Vec<Piece>, Error> {
        let mut known_rows = journal;
        let mut pieces = Vec::new();
        for (i, span) in at.lineage.spans().iter().enumerate() {
            let is_tip = i + 1 == at.lineage.spans().len();
            let span_first = first.max(span.first_seq);
            let span_last = span.last_seq.map_or(last, |end| end.min(last));
            if span_first > span_last {
                continue;
            }
            let branch = BranchKey { tenant: key.tenant.clone(), branch: span.branch.clone() };
            let end = span.last_version.unwrap_or(at.turn.version);
            // The journal first: what is sealed between the two reads is then
            // found twice and not missed.
            let is_sealed = span_last <= at.sealed_seq;
            let rows = match known_rows.take_if(|rows| is_tip && (is_sealed || covers_end(rows, span_last))) {
                Some(rows) => rows,
                None => self.inner.meta.journal(&branch, span.first_version, end).await?,
            };
            let rows: Vec<_> = rows
                .into_iter()
                .filter(|row| {
                    row.first_seq <= row.last_seq && row.first_seq <= span_last && row.last_seq >= span_first
                })
                .collect();
            let sealed_last = rows.first().map_or(span_last, |row| Seq(row.first_seq.0 - 1));
            let piece = |holder| Piece { holder, end: span_last };
            if span_first <= sealed_last {
                let segments = self.inner.meta.segments(&branch, span_first, sealed_last).await?;
                let segments = segments.into_iter().filter(|segment| segment.first_seq <= segment.last_seq);
                pieces.extend(segments.map(Holder::Segment).map(piece));
            }
            pieces.extend(rows.into_iter().map(Holder::Journal).map(piece));
        }
        check_pieces(key, &pieces, first, last)?;
        Ok(pieces)
    }

    /// What `each` makes of the entries of a piece from `first` on, stretch by stretch.
    async fn load<T: Send + 'static>(
        &self,
        key: &SessionKey,
        piece: &Piece,
        first: Seq,
        each: impl Each<T>,
    ) -> Result<Vec<Vec<T>>, FetchError> {
        let end = piece.end;
        let each = move |mut entries: Vec<Entry>| {
            entries.truncate(entries.partition_point(|entry| entry.seq <= end));
            entries.drain(..entries.partition_point(|entry| entry.seq < first));
            each(entries)
        };
        match &piece.holder {
            Holder::Journal(row) => Ok(vec![each_of_journal(key, row.clone(), each).await?]),
            Holder::Segment(segment) => Ok(self.segment(key, segment, each).await?.1),
        }
    }

    /// Entries of a piece; nothing if its blob is not there.
    pub(super) async fn piece(&self, key: &SessionKey, piece: &Piece) -> Result<Option<Vec<Entry>>, Error> {
        let found = segments::or_none(self.load(key, piece, Seq(0), |entries| entries).await)?;
        Ok(found.map(|stretches| stretches.into_iter().flatten().collect()))
    }

    /// Gets a blob within the time that one may take.
    pub(super) async fn blob(&self, key: &str) -> Result<bytes::Bytes, StoreError> {
        self.in_time(self.inner.blobs.get(key)).await
    }

    /// Puts a blob within the time that one may take.
    pub(super) async fn put_blob(
        &self,
        key: &str,
        body: bytes::Bytes,
        sha256: crate::model::Digest,
    ) -> Result<(), StoreError> {
        self.in_time(self.inner.blobs.put_new(key, body, sha256)).await
    }

    /// Gives a call of the object store the time that one may take.
    pub(super) async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        clock::deadline(self.inner.options.blob_timeout, call)
            .await
            .unwrap_or_else(|| Err(StoreError::new(ErrorKind::Unavailable, "the object store timed out")))
    }
}

/// Decodes the entries of a journal row.
pub(super) async fn decode_journal(key: &SessionKey, row: JournalRow) -> Result<Vec<Entry>, Error> {
    each_of_journal(key, row, |entries| entries).await
}

async fn each_of_journal<T: Send + 'static>(
    key: &SessionKey,
    row: JournalRow,
    each: impl Each<T>,
) -> Result<Vec<T>, Error> {
    let (first, last) = (row.first_seq, row.last_seq);
    let raw_bytes = usize::try_from(row.raw_bytes).unwrap_or(usize::MAX);
    let made = compute(raw_bytes, move || {
        frame::decompress(&row.body, raw_bytes.min(SEGMENT_RAW_BYTES_MAX))
            .and_then(|text| line::read_all(&text))
            .map(each)
    })
    .await?;
    made.map_err(|error| Error::DataLoss {
        session: key.session.clone(),
        first,
        last,
        problem: format!("journal: {error}"),
    })
}

/// Keeps the entries from `first` to `last`, each once: what was sealed while
/// the rows were read is found in the journal and in a segment.
pub(super) fn retain_new(entries: &mut Vec<impl AsRef<Entry>>, first: Seq, last: Seq) {
    let mut next = first;
    entries.retain(|entry| {
        let entry = entry.as_ref();
        let is_new = entry.seq >= next && entry.seq <= last;
        if is_new {
            next = entry.seq.next();
        }
        is_new
    });
}

/// Whether journal rows reach to `last`, so that nothing newer is missing.
fn covers_end(rows: &[JournalRow], last: Seq) -> bool {
    rows.last().is_some_and(|row| row.last_seq >= last)
}

fn missing(key: &SessionKey, first: Seq, last: Seq) -> Error {
    Error::DataLoss {
        session: key.session.clone(),
        first,
        last,
        problem: "no row or blob holds them".to_owned(),
    }
}

fn check_pieces(key: &SessionKey, pieces: &[Piece], first: Seq, last: Seq) -> Result<(), Error> {
    let mut next = first;
    for piece in pieces {
        if piece.first_seq() > next {
            return Err(missing(key, next, Seq(piece.first_seq().0 - 1)));
        }
        next = next.max(piece.last_seq().next());
    }
    if next <= last { Err(missing(key, next, last)) } else { Ok(()) }
}

fn check_gapless(
    key: &SessionKey,
    entries: &[impl AsRef<Entry>],
    first: Seq,
    last: Seq,
) -> Result<(), Error> {
    let expected = (last.0 + 1).saturating_sub(first.0);
    let in_order = entries.iter().zip(first.0..).all(|(entry, seq)| entry.as_ref().seq.0 == seq);
    if in_order && entries.len() as u64 == expected { Ok(()) } else { Err(missing(key, first, last)) }
}
