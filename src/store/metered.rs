//! A blob store that counts its requests, bytes and latencies.

use crate::clock::Stopwatch;
use crate::model::Digest;
use crate::store::StoreError;
use crate::store::blob::{BlobInfo, BlobStore, BlobUpload};
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// Counts `turnkeep_blob_requests_total`, `turnkeep_blob_bytes_total` and
/// `turnkeep_blob_request_seconds`, by operation.
#[derive(Debug)]
pub struct MeteredBlobs {
    inner: Arc<dyn BlobStore>,
}

impl MeteredBlobs {
    /// Counts what `inner` is asked.
    pub fn new(inner: Arc<dyn BlobStore>) -> Self {
        Self { inner }
    }
}

fn record<T>(operation: &'static str, started: Stopwatch, bytes: usize, result: &Result<T, StoreError>) {
    let outcome = match result {
        Ok(_) => "ok",
        Err(error) if error.is_retryable() => "unavailable",
        Err(_) => "error",
    };
    metrics::counter!("turnkeep_blob_requests_total", "operation" => operation, "outcome" => outcome)
        .increment(1);
    metrics::counter!("turnkeep_blob_bytes_total", "operation" => operation).increment(bytes as u64);
    metrics::histogram!("turnkeep_blob_request_seconds", "operation" => operation)
        .record(started.elapsed().as_secs_f64());
}

#[async_trait]
impl BlobStore for MeteredBlobs {
    async fn put_new(&self, key: &str, body: Bytes, sha256: Digest) -> Result<(), StoreError> {
        let (started, bytes) = (Stopwatch::start(), body.len());
        let result = self.inner.put_new(key, body, sha256).await;
        record("put", started, bytes, &result);
        result
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn BlobUpload>, StoreError> {
        let started = Stopwatch::start();
        let result = self.inner.begin(key).await;
        record("begin", started, 0, &result);
        Ok(Box::new(MeteredUpload { inner: result? }))
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        let started = Stopwatch::start();
        let result = self.inner.get(key).await;
        record("get", started, result.as_ref().map_or(0, Bytes::len), &result);
        result
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let started = Stopwatch::start();
        let result = self.inner.get_range(key, range).await;
        record("get_range", started, result.as_ref().map_or(0, Bytes::len), &result);
        result
    }

    async fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        let started = Stopwatch::start();
        let result = self.inner.size(key).await;
        record("head", started, 0, &result);
        result
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let started = Stopwatch::start();
        let result = self.inner.delete(key).await;
        record("delete", started, 0, &result);
        result
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobInfo>, StoreError> {
        let started = Stopwatch::start();
        let result = self.inner.list(prefix, after, limit).await;
        record("list", started, 0, &result);
        result
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.inner.probe().await
    }
}

/// An upload whose parts are counted.
#[derive(Debug)]
struct MeteredUpload {
    inner: Box<dyn BlobUpload>,
}

#[async_trait]
impl BlobUpload for MeteredUpload {
    async fn write(&mut self, part: Bytes) -> Result<(), StoreError> {
        let (started, bytes) = (Stopwatch::start(), part.len());
        let result = self.inner.write(part).await;
        record("write", started, bytes, &result);
        result
    }

    async fn finish(self: Box<Self>, sha256: Digest) -> Result<(), StoreError> {
        let started = Stopwatch::start();
        let result = self.inner.finish(sha256).await;
        record("finish", started, 0, &result);
        result
    }
}
