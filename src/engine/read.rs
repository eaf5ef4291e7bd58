//! Reading a log as it was stored.

use super::log::{self, Piece, Position};
use super::{Engine, Error};
use crate::clock::Micros;
use crate::model::{Digest, Entry, Seq, Version, WireFormat};
use crate::store::meta::{SessionKey, Tip};
use futures::stream::{self, Stream, StreamExt as _};

/// Pieces of the log that are fetched ahead of the reader.
const AHEAD: usize = 4;

/// Which entries to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogRange {
    /// The first; the first of the log if not given.
    pub first: Option<Seq>,
    /// The last; the newest of the version if not given.
    pub last: Option<Seq>,
    /// The version; the newest if not given.
    pub at_version: Option<Version>,
}

/// What is known of a log before its entries are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadHeader {
    /// The version.
    pub version: Version,
    /// Wire format of the entries.
    pub format: WireFormat,
    /// Seq of the newest entry.
    pub head_seq: Seq,
    /// The receipt.
    pub receipt: Digest,
    /// When the version was made.
    pub at: Micros,
}

impl ReadHeader {
    pub(super) fn new(tip: &Tip, at: &Position) -> Self {
        Self {
            version: at.turn.version,
            format: tip.session.format,
            head_seq: at.turn.last_seq,
            receipt: at.turn.receipt,
            at: at.turn.created_at,
        }
    }
}

impl Engine {
    /// Reads entries of a session's log, a piece of it at a time.
    pub async fn read(
        &self,
        key: SessionKey,
        range: LogRange,
    ) -> Result<(ReadHeader, impl Stream<Item = Result<Vec<Entry>, Error>> + Send + use<>), Error> {
        let tip = self.tip(&key, None).await?;
        let version = range.at_version.unwrap_or(tip.head.version);
        let at = self.position(&key, &tip, version).await?;
        let header = ReadHeader::new(&tip, &at);
        let first = range.first.unwrap_or_default().max(Seq(1));
        let last = range.last.unwrap_or(Seq(u64::MAX)).min(at.turn.last_seq);
        let pieces = if first <= last { self.pieces(&key, &at, first, last, None).await? } else { vec![] };
        let reader = Reader { engine: self.clone(), key, at, last };
        let entries = stream::iter(pieces)
            .map({
                let reader = reader.clone();
                move |piece| reader.clone().load(piece)
            })
            .buffered(AHEAD)
            .scan((first, false), move |state, loaded| {
                let (next, failed) = *state;
                let kept = loaded.and_then(|entries| keep(&reader, entries, next));
                if let Ok(Some(last)) = kept.as_ref().map(|entries| entries.last()) {
                    state.0 = last.seq.next();
                }
                state.1 = kept.is_err();
                // The first failure is the last thing that is said.
                futures::future::ready((!failed).then_some(kept))
            });
        Ok((header, entries))
    }
}

/// Keeps the entries of a piece that are due, each once.
fn keep(reader: &Reader, mut entries: Vec<Entry>, next: Seq) -> Result<Vec<Entry>, Error> {
    log::retain_new(&mut entries, next, reader.last);
    match entries.first() {
        Some(first) if first.seq != next => Err(Error::DataLoss {
            session: reader.key.session.clone(),
            first: next,
            last: Seq(first.seq.0 - 1),
            problem: "no row or blob holds them".to_owned(),
        }),
        _ => Ok(entries),
    }
}

/// Loads pieces of a log.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) engine: Engine,
    pub(super) key: SessionKey,
    pub(super) at: Position,
    /// The last entry that is wanted.
    pub(super) last: Seq,
}

impl Reader {
    /// Entries of a piece. If its blob is gone by now, a roll-up has taken its
    /// place, and the rows are read anew.
    pub(super) async fn load(self, piece: Piece) -> Result<Vec<Entry>, Error> {
        if let Some(entries) = self.engine.piece(&self.key, &piece).await? {
            return Ok(entries);
        }
        let last = piece.last_seq().min(self.last);
        self.engine.entries(&self.key, &self.at, piece.first_seq(), last, vec![]).await
    }
}
