//! Where the blob of an output goes as it is written: to the object store or, if
//! that fails and the blob is small enough, to be held in the metadata store.

use crate::clock;
use crate::codec::output::Summary;
use crate::engine::{Engine, Error};
use crate::limits::JOURNAL_TURN_BYTES_MAX;
use crate::store::blob::BlobUpload;
use crate::store::{ErrorKind, StoreError};
use bytes::Bytes;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Destination {
    /// The way to the object store, or why there is none any more.
    upload: Result<Box<dyn BlobUpload>, StoreError>,
    /// All of the blob so far, as long as it may be held.
    kept: Option<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    parts: Vec<Bytes>,
    bytes: usize,
}

impl Destination {
    /// Begins a blob.
    pub(super) async fn begin(engine: &Engine, key: &str) -> Result<Self, Error> {
        let upload = engine.in_time(engine.inner.blobs.begin(key)).await;
        let kept = Some(Kept::default()).filter(|_| !engine.inner.options.seal_every_turn);
        Self { upload, kept }.checked(engine)
    }

    /// Appends bytes. After a failure only failures follow.
    pub(super) async fn write(&mut self, engine: &Engine, part: Bytes) -> Result<(), Error> {
        if let Some(kept) = &mut self.kept {
            kept.bytes += part.len();
            kept.parts.push(part.clone());
        }
        self.kept.take_if(|kept| kept.bytes > JOURNAL_TURN_BYTES_MAX);
        if let Ok(upload) = &mut self.upload
            && let Err(error) = engine.in_time(upload.write(part)).await
        {
            self.upload = Err(error);
        }
        self.check(engine)
    }

    /// Ends the blob: if the object store has it not, it is what is to be held.
    pub(super) async fn finish(mut self, engine: &Engine, summary: &Summary) -> Result<Option<Bytes>, Error> {
        let gone = Err(StoreError::new(ErrorKind::Internal, "the upload has ended"));
        self.upload = match std::mem::replace(&mut self.upload, gone) {
            Ok(upload) => {
                // Some stores put the parts together now.
                let time =
                    engine.inner.options.blob_timeout + Duration::from_secs(summary.stored_bytes >> 24);
                let finished = clock::deadline(time, upload.finish(summary.stored_sha256)).await;
                match finished {
                    Some(Ok(())) => return Ok(None),
                    Some(Err(error)) => Err(error),
                    None => Err(StoreError::new(ErrorKind::Unavailable, "the object store timed out")),
                }
            }
            failed => failed,
        };
        self.check(engine)?;
        let kept = self.kept.ok_or_else(|| Error::internal("an output is not kept"))?;
        if let Err(error) = &self.upload {
            tracing::warn!(error = %error, "a tool output is held");
        }
        Ok(Some(kept.parts.concat().into()))
    }

    /// Fails if the blob can neither be put nor held.
    fn check(&mut self, engine: &Engine) -> Result<(), Error> {
        let Err(error) = &mut self.upload else { return Ok(()) };
        if self.kept.is_some() && engine.may_hold(error) {
            return Ok(());
        }
        self.kept = None;
        let again = StoreError::new(error.kind, "the upload has failed");
        Err(Error::of_objects(std::mem::replace(error, again)))
    }

    fn checked(mut self, engine: &Engine) -> Result<Self, Error> {
        self.check(engine)?;
        Ok(self)
    }
}
