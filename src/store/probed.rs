//! A blob store that could not be tried when the service started.

use crate::model::Digest;
use crate::store::StoreError;
use crate::store::blob::{BlobInfo, BlobStore, BlobUpload};
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Writes nothing before the store was tried: one that lets blobs be overwritten must
/// not be given any.
#[derive(Debug)]
pub struct ProbedBlobs {
    inner: Arc<dyn BlobStore>,
    is_tried: OnceCell<()>,
}

impl ProbedBlobs {
    /// Tries `inner` before it is first written to, as often as it takes.
    pub fn new(inner: Arc<dyn BlobStore>) -> Self {
        Self { inner, is_tried: OnceCell::new() }
    }

    async fn tried(&self) -> Result<&dyn BlobStore, StoreError> {
        self.is_tried.get_or_try_init(|| self.inner.probe()).await?;
        Ok(self.inner.as_ref())
    }
}

#[async_trait]
impl BlobStore for ProbedBlobs {
    async fn put_new(&self, key: &str, body: Bytes, sha256: Digest) -> Result<(), StoreError> {
        self.tried().await?.put_new(key, body, sha256).await
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn BlobUpload>, StoreError> {
        self.tried().await?.begin(key).await
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.inner.get(key).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.inner.get_range(key, range).await
    }

    async fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        self.inner.size(key).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.tried().await?.delete(key).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobInfo>, StoreError> {
        self.inner.list(prefix, after, limit).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.tried().await.map(drop)
    }
}
