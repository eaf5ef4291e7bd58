//! Getting segments, from memory or the object store.

use super::error::digest_mismatch;
use super::{Engine, Error, compute};
use crate::codec::segment::{self, Decoded, StoredPart};
use crate::codec::{CodecError, digest};
use crate::model::{Entry, Segment, Seq};
use crate::store::ErrorKind;
use crate::store::meta::SessionKey;
use bytes::Bytes;
use futures::future::try_join_all;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;

/// Times that a blob is fetched when its bytes are not what the row says.
const FETCH_ATTEMPTS: usize = 3;

/// Threads that work on one segment.
const AT_ONCE: usize = 4;

/// Bytes of entries in memory that are worked on at once: smaller batches lose more to
/// the change of threads than they win.
const BATCH_BYTES: usize = 2 << 20;

/// What an entry takes beside its payload, roughly.
const ENTRY_BYTES: usize = 256;

/// Makes something of entries while they are in the processor's cache: the thread that
/// decodes them calls it, for a part of a segment at a time.
pub(super) trait Each<T>: Fn(Vec<Entry>) -> Vec<T> + Clone + Send + Sync + 'static {}

impl<T, F: Fn(Vec<Entry>) -> Vec<T> + Clone + Send + Sync + 'static> Each<T> for F {}

/// Why a segment could not be read.
pub(super) enum FetchError {
    /// Its blob is not there: a roll-up may have merged these entries into another in its
    /// place.
    Gone(Seq, Seq),
    Failed(Error),
}

impl From<Error> for FetchError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Nothing if the blob is not there.
pub(super) fn or_none<T>(fetched: Result<T, FetchError>) -> Result<Option<T>, Error> {
    match fetched {
        Ok(found) => Ok(Some(found)),
        Err(FetchError::Gone(..)) => Ok(None),
        Err(FetchError::Failed(error)) => Err(error),
    }
}

impl Engine {
    /// A segment, decoded; nothing if its blob is not there.
    pub(super) async fn segment_whole(
        &self,
        key: &SessionKey,
        row: &Segment,
    ) -> Result<Option<Arc<Decoded>>, Error> {
        let found = or_none(self.segment(key, row, nothing).await)?;
        Ok(found.map(|(decoded, _)| decoded))
    }

    /// A segment as it is stored, whatever is in memory; nothing if its blob is
    /// not there.
    pub(super) async fn stored_segment(
        &self,
        key: &SessionKey,
        row: &Segment,
    ) -> Result<Option<Arc<Decoded>>, Error> {
        let found = or_none(self.fetch_segment(key, row, nothing).await)?;
        Ok(found.map(|(decoded, _)| decoded))
    }

    /// A segment, with what `each` makes of its entries, stretch by stretch.
    pub(super) async fn segment<T: Send + 'static>(
        &self,
        key: &SessionKey,
        row: &Segment,
        each: impl Each<T>,
    ) -> Result<(Arc<Decoded>, Vec<Vec<T>>), FetchError> {
        let mut made = None;
        let fetch = async {
            let (decoded, new) = self.fetch_segment(key, row, each.clone()).await?;
            made = Some(new);
            Ok(decoded)
        };
        let fetched = self.inner.caches.segments.entry_by_ref(&row.key).or_try_insert_with(fetch).await;
        let decoded = match fetched {
            Ok(entry) => {
                let outcome = if entry.is_fresh() { "miss" } else { "hit" };
                metrics::counter!("turnkeep_segment_cache_total", "outcome" => outcome).increment(1);
                entry.into_value()
            }
            Err(error) => match Arc::try_unwrap(error) {
                Ok(error) => return Err(error),
                // Another request waited for the same blob and has the error.
                Err(_) => return self.fetch_segment(key, row, each).await,
            },
        };
        let made = match made {
            Some(made) => made,
            None => side_by_side(batches(&decoded.entries).collect(), each).await?,
        };
        Ok((decoded, made))
    }

    /// Gets a segment's blob, checks it against its row and decodes it.
    async fn fetch_segment<T: Send + 'static>(
        &self,
        key: &SessionKey,
        row: &Segment,
        each: impl Each<T>,
    ) -> Result<(Arc<Decoded>, Vec<Vec<T>>), FetchError> {
        if row.format > segment::FORMAT {
            let problem = format!("segment {} has format {}", row.key, row.format);
            return Err(Error::NewerFormat { problem }.into());
        }
        let mut problem = String::new();
        for _ in 0..FETCH_ATTEMPTS {
            let stored = match self.blob(&row.key).await {
                Ok(stored) => stored,
                Err(error) if error.kind == ErrorKind::NotFound => {
                    return Err(FetchError::Gone(row.first_seq, row.last_seq));
                }
                Err(error) => return Err(Error::of_objects(error).into()),
            };
            // The digest is taken while the parts are decoded: what they give counts only if
            // it is the row's.
            let (found, decoded) = futures::join!(
                compute(stored.len(), {
                    let stored = stored.clone();
                    move || digest::sha256(&stored)
                }),
                decode(&stored, row.raw_bytes, each.clone())
            );
            let found = found?;
            problem = if found == row.sha256 {
                match decoded? {
                    Ok((decoded, made)) => return Ok((Arc::new(decoded), made)),
                    Err(error) => error.to_string(),
                }
            } else {
                digest_mismatch(&row.key, row.sha256, found)
            };
            metrics::counter!("turnkeep_damaged_blobs_total").increment(1);
        }
        Err(Error::DataLoss {
            session: key.session.clone(),
            first: row.first_seq,
            last: row.last_seq,
            problem,
        }
        .into())
    }
}

/// Decodes the parts of a segment side by side, and has something made of the entries of
/// each.
async fn decode<T: Send + 'static>(
    stored: &Bytes,
    raw_bytes: u64,
    each: impl Each<T>,
) -> Result<Result<(Decoded, Vec<Vec<T>>), CodecError>, Error> {
    let parts = match segment::parts(stored, raw_bytes) {
        Ok(parts) => parts,
        Err(error) => return Ok(Err(error)),
    };
    let parts = parts.into_iter().map(|part| (part.raw_bytes(), part)).collect();
    let decoded = side_by_side(parts, move |part: StoredPart| {
        let part = part.decode_verified()?;
        let made = each(part.entries.clone());
        Ok((part, made))
    });
    let decoded = decoded.await?.into_iter().collect::<Result<(Vec<_>, Vec<_>), _>>();
    Ok(decoded.and_then(|(parts, made)| Ok((Decoded::of(parts)?, made))))
}

/// Works on each of the values, which have so many bytes, and gives what came of them in
/// their order. Each processor takes one after the other: to wake a thread for each would
/// take as long as the work.
async fn side_by_side<T: Send + 'static, M: Send + 'static>(
    values: Vec<(usize, T)>,
    work: impl Fn(T) -> M + Clone + Send + 'static,
) -> Result<Vec<M>, Error> {
    let bytes = values.iter().map(|(bytes, _)| bytes).sum();
    let processors = Handle::current().metrics().num_workers().clamp(1, AT_ONCE);
    let threads = processors.min(values.len());
    let queue = Arc::new(Mutex::new(values.into_iter().enumerate()));
    let jobs = (0..threads).map(|_| {
        let (queue, work) = (queue.clone(), work.clone());
        let next = move || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let job = move || std::iter::from_fn(next).map(|(i, (_, value))| (i, work(value))).collect();
        compute(bytes, job)
    });
    let mut made: Vec<_> = try_join_all(jobs).await?.into_iter().flat_map(|made: Vec<_>| made).collect();
    made.sort_unstable_by_key(|(i, _)| *i);
    Ok(made.into_iter().map(|(_, made)| made).collect())
}

/// Divides entries into batches of [`BATCH_BYTES`], each with what it takes.
fn batches(entries: &[Entry]) -> impl Iterator<Item = (usize, Vec<Entry>)> {
    let mut entries = entries.iter();
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let mut batch = Vec::new();
        while bytes < BATCH_BYTES
            && let Some(entry) = entries.next()
        {
            bytes += entry.payload.len() + ENTRY_BYTES;
            batch.push(entry.clone());
        }
        (!batch.is_empty()).then_some((bytes, batch))
    })
}

fn nothing(_: Vec<Entry>) -> Vec<()> {
    vec![]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Micros;
    use crate::model::{EntryKind, Version};

    #[test]
    fn batches_hold_all_entries_in_their_order_and_end_once_they_are_full() {
        let sizes = [1, BATCH_BYTES, 0, 3 * BATCH_BYTES, BATCH_BYTES / 2, BATCH_BYTES / 2, 7];
        let entry = |(seq, size)| Entry {
            seq: Seq(seq),
            version: Version(1),
            at: Micros(0),
            kind: EntryKind::Message,
            tokens: 0,
            payload: vec![b'x'; size].into(),
        };
        let entries: Vec<_> = (1..).zip(sizes).map(entry).collect();
        let batches: Vec<Vec<_>> = batches(&entries)
            .map(|(bytes, batch)| {
                let held = batch.iter().map(|entry| entry.payload.len() + ENTRY_BYTES);
                assert_eq!(held.sum::<usize>(), bytes);
                batch.iter().map(|entry| entry.seq.0).collect()
            })
            .collect();
        assert_eq!(batches, [vec![1, 2], vec![3, 4], vec![5, 6], vec![7]]);
    }
}
