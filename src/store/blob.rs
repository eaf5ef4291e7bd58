//! The blob store: immutable bytes under keys.

use crate::clock::Micros;
use crate::codec::digest;
use crate::model::Digest;
use crate::store::{ErrorKind, StoreError};
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;

/// A blob in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobInfo {
    /// Its key.
    pub key: String,
    /// Its size.
    pub bytes: u64,
    /// When it was written, by the store's clock.
    pub written_at: Micros,
}

/// Keeps immutable blobs. The bytes at a key never change.
///
/// Keys are lower-case ASCII of `a-z 0-9 - _ . /`, made by the service and never
/// by a caller.
#[async_trait]
pub trait BlobStore: std::fmt::Debug + Send + Sync + 'static {
    /// Writes a blob under a key that no other blob has. `sha256` is that of the
    /// body; the store verifies it where it can.
    ///
    /// On success the blob is durable. Repeating the call with the same body is
    /// safe and succeeds. If the key holds other bytes it fails with `KeyTaken`.
    /// After any other failure the blob may be there or not.
    async fn put_new(&self, key: &str, body: Bytes, sha256: Digest) -> Result<(), StoreError>;

    /// Begins a blob that is written in parts, under a key that no other blob
    /// has. Nothing is seen of it before [`BlobUpload::finish`], and nothing ever
    /// if it is dropped before.
    async fn begin(&self, key: &str) -> Result<Box<dyn BlobUpload>, StoreError>;

    /// Returns a blob whole; `NotFound` if there is none.
    async fn get(&self, key: &str) -> Result<Bytes, StoreError>;

    /// Returns these bytes of a blob, of which there must be one at least;
    /// `NotFound` if there is no blob, `Corrupt` if it ends before them.
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError>;

    /// Returns the size of a blob; nothing if there is none.
    async fn size(&self, key: &str) -> Result<Option<u64>, StoreError>;

    /// Erases a blob. One that is not there is erased already. Only the sweep
    /// may call it.
    async fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// Lists blobs in the order of their keys: those that begin with `prefix`
    /// and come after the key `after`, at most `limit` of them, which the store
    /// may lower. An empty answer means that there are no more.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobInfo>, StoreError>;

    /// Checks that the store can be used and keeps its promises, above all that
    /// it refuses to overwrite. Called once at start-up. What the service can do
    /// without is told in the log.
    async fn probe(&self) -> Result<(), StoreError>;
}

/// A blob that is being written. It takes memory of some parts of 5 MiB, however
/// large it gets.
#[async_trait]
pub trait BlobUpload: std::fmt::Debug + Send {
    /// Appends bytes, as many as there are. After a failure only failures follow.
    async fn write(&mut self, part: Bytes) -> Result<(), StoreError>;

    /// Ends the blob. `sha256` is that of all of it.
    ///
    /// On success the blob is durable. If the key holds other bytes it fails with
    /// `KeyTaken`. After any other failure the blob may be there or not.
    async fn finish(self: Box<Self>, sha256: Digest) -> Result<(), StoreError>;
}

/// The length of a range, which must have bytes.
pub(super) fn range_length(key: &str, range: &Range<u64>) -> Result<usize, StoreError> {
    let length = range.end.checked_sub(range.start).and_then(|length| usize::try_from(length).ok());
    length
        .filter(|length| *length > 0)
        .ok_or_else(|| StoreError::new(ErrorKind::Internal, format!("not a range of {key}: {range:?}")))
}

/// That a blob ends before the bytes that were asked for.
pub(super) fn ends_early(key: &str, range: &Range<u64>) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("{key} ends before byte {}", range.end))
}

/// A blob that is there after [`probe_create_only`].
pub(super) const PROBE_KEY: &str = "probe/create-only";

/// Checks that a store refuses to overwrite: the seal protocol rests on it, and
/// some S3 servers ignore the condition.
pub(super) async fn probe_create_only(store: &dyn BlobStore) -> Result<(), StoreError> {
    let (first, other) = (Bytes::from_static(b"turnkeep"), Bytes::from_static(b"another"));
    store.put_new(PROBE_KEY, first.clone(), digest::sha256(&first)).await?;
    match store.put_new(PROBE_KEY, other.clone(), digest::sha256(&other)).await {
        Err(error) if error.kind == ErrorKind::KeyTaken => {}
        Err(error) => return Err(error),
        Ok(()) => {
            return Err(StoreError::new(ErrorKind::Internal, "the blob store lets a blob be overwritten"));
        }
    }
    if store.get(PROBE_KEY).await? == first {
        Ok(())
    } else {
        Err(StoreError::new(ErrorKind::Internal, "the blob store does not return what was put"))
    }
}

/// Whether a store refuses bytes that do not have the digest that was given for
/// them. Without that, what is damaged on its way is found only when it is read.
pub async fn verifies_checksums(store: &dyn BlobStore) -> Result<bool, StoreError> {
    const KEY: &str = "probe/checksum";
    match store.put_new(KEY, Bytes::from_static(b"turnkeep"), digest::sha256(b"another")).await {
        // If the key is taken the store let it in at an earlier start.
        Ok(()) => Ok(false),
        Err(error) if error.kind == ErrorKind::KeyTaken => Ok(false),
        Err(error) if error.is_retryable() => Err(error),
        Err(_) => Ok(true),
    }
}
