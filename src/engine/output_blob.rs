//! Reading the blob of a tool output: its tail, then the frames that hold what is
//! wanted.

use super::{Engine, Error, compute};
use crate::codec::output::{FORMAT, Frame, Index};
use crate::limits::{OUTPUT_FETCH_RAW_BYTES_MAX, OUTPUT_FRAME_RAW_BYTES};
use crate::model::{Output, OutputName, TenantId};
use crate::store::{ErrorKind, StoreError};
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;

/// Times that bytes are got which are damaged: on their way, perhaps.
const FETCH_ATTEMPTS: usize = 2;

/// Frames that are fetched at once at most.
const BATCH_MAX: usize = OUTPUT_FETCH_RAW_BYTES_MAX / OUTPUT_FRAME_RAW_BYTES;

/// An output whose tail is read.
#[derive(Debug)]
pub(super) struct OutputBlob {
    engine: Engine,
    name: OutputName,
    pub(super) output: Output,
    pub(super) index: Index,
    /// The whole blob, if the metadata store holds it.
    held: Option<Bytes>,
}

impl Engine {
    /// Reads the tail of an output's blob.
    pub(super) async fn open_output(
        &self,
        tenant: &TenantId,
        name: &OutputName,
    ) -> Result<OutputBlob, Error> {
        let mut output = self.get_output(tenant, name).await?;
        loop {
            if output.format > FORMAT {
                let problem = format!("{} has format {}", name.resource_name(), output.format);
                return Err(Error::NewerFormat { problem });
            }
            let held = match output.key {
                Some(_) => None,
                None => self.inner.meta.held_output(tenant, &output.id).await?,
            };
            let index = Index::default();
            let mut blob = OutputBlob { engine: self.clone(), name: name.clone(), output, index, held };
            match blob.read_index().await {
                Ok(index) => {
                    blob.index = index;
                    return Ok(blob);
                }
                Err(error @ Error::OutputLost { .. }) => {
                    // It may have been moved or deleted since the row was read.
                    let current = self.get_output(tenant, name).await?;
                    if current.key == blob.output.key {
                        return Err(error);
                    }
                    output = current;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl OutputBlob {
    async fn read_index(&self) -> Result<Index, Error> {
        let Output { tail_at, stored_bytes, .. } = self.output;
        self.fetch(tail_at..stored_bytes, move |tail| Index::decode(&tail, tail_at)).await
    }

    /// Frames of the output, to be read in order.
    pub(super) fn frames(self, frames: Vec<Frame>) -> Frames {
        Frames { blob: self, rest: frames.into(), decoded: VecDeque::new(), batch: 1 }
    }

    /// Gets bytes of the blob and decodes them.
    async fn fetch<T: Send + 'static>(
        &self,
        range: Range<u64>,
        decode: impl Fn(Bytes) -> Result<T, crate::codec::CodecError> + Clone + Send + 'static,
    ) -> Result<T, Error> {
        let mut problem = String::new();
        for _ in 0..FETCH_ATTEMPTS {
            let stored = match self.stored(range.clone()).await {
                Ok(stored) => stored,
                Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Corrupt) => {
                    return Err(self.lost(error.to_string()));
                }
                Err(error) => return Err(Error::of_objects(error)),
            };
            let decode = decode.clone();
            match compute(usize::MAX, move || decode(stored)).await? {
                Ok(decoded) => return Ok(decoded),
                Err(error @ crate::codec::CodecError::NewerFormat { .. }) => return Err(error.into()),
                Err(error) => problem = error.to_string(),
            }
            metrics::counter!("turnkeep_damaged_blobs_total").increment(1);
        }
        Err(self.lost(problem))
    }

    async fn stored(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let missing = || StoreError::new(ErrorKind::Corrupt, "no bytes are there");
        match (&self.output.key, &self.held) {
            (Some(key), _) => self.engine.in_time(self.engine.inner.blobs.get_range(key, range)).await,
            (None, Some(held)) => {
                let ends = [range.start, range.end].map(|end| usize::try_from(end).unwrap_or(usize::MAX));
                let [start, end] = ends;
                held.get(start..end).map(|part| held.slice_ref(part)).ok_or_else(missing)
            }
            (None, None) => Err(missing()),
        }
    }

    fn lost(&self, problem: String) -> Error {
        Error::OutputLost { name: self.name.clone(), problem }
    }
}

/// Frames of an output, read in order: one at first, then more and more at once.
#[derive(Debug)]
pub(super) struct Frames {
    blob: OutputBlob,
    rest: VecDeque<Frame>,
    decoded: VecDeque<(Frame, Bytes)>,
    batch: usize,
}

impl Frames {
    /// The next frame with its content.
    pub(super) async fn next(&mut self) -> Result<Option<(Frame, Bytes)>, Error> {
        if self.decoded.is_empty() && !self.rest.is_empty() {
            let batch: Vec<Frame> = self.rest.drain(..self.batch.min(self.rest.len())).collect();
            self.batch = (self.batch * 2).min(BATCH_MAX);
            let start = batch.first().map_or(0, |frame| frame.stored.start);
            let end = batch.last().map_or(0, |frame| frame.stored.end);
            let decoded = self.blob.fetch(start..end, move |stored| {
                let mut rest = stored;
                let decode = |frame: &Frame| {
                    let bytes = usize::try_from(frame.stored.end - frame.stored.start).unwrap_or(usize::MAX);
                    let raw = frame.decode(&rest.split_to(bytes.min(rest.len())))?;
                    Ok((frame.clone(), raw))
                };
                batch.iter().map(decode).collect::<Result<VecDeque<_>, _>>()
            });
            self.decoded = decoded.await?;
        }
        Ok(self.decoded.pop_front())
    }
}
