//! A blob store that counts what is got from it, and in how many rounds.

#![allow(dead_code, reason = "each benchmark uses its part of it")]

use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use turnkeep::clock;
use turnkeep::model::Digest;
use turnkeep::store::blob::{BlobInfo, BlobUpload};
use turnkeep::store::{BlobStore, StoreError};

/// What was got since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gets {
    pub(crate) objects: u64,
    /// Length of the longest chain of requests of which each began after the one
    /// before had been answered.
    pub(crate) rounds: u64,
}

/// A store whose requests are counted and can be made slower.
#[derive(Debug)]
pub(crate) struct CountedBlobs {
    inner: Arc<dyn BlobStore>,
    gets: Mutex<Gets>,
    delay_ms: AtomicU64,
}

impl CountedBlobs {
    pub(crate) fn new(inner: Arc<dyn BlobStore>) -> Self {
        Self { inner, gets: Mutex::default(), delay_ms: AtomicU64::new(0) }
    }

    /// Makes each request take so much longer.
    pub(crate) fn delay(&self, delay: Duration) {
        self.delay_ms.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> Gets {
        std::mem::take(&mut *self.gets.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes of all objects, and of those of them that are segments.
    pub(crate) async fn bytes(&self) -> Result<(u64, u64), StoreError> {
        const PAGE: usize = 1_000;
        let (mut all, mut segments, mut after) = (0, 0, None::<String>);
        loop {
            let listed = self.inner.list("", after.as_deref(), PAGE).await?;
            for blob in &listed {
                all += blob.bytes;
                segments += if blob.key.contains("/s-") { blob.bytes } else { 0 };
            }
            match listed.into_iter().next_back() {
                Some(last) => after = Some(last.key),
                None => return Ok((all, segments)),
            }
        }
    }

    async fn wait(&self) {
        match self.delay_ms.load(Ordering::Relaxed) {
            0 => {}
            delay => clock::sleep(Duration::from_millis(delay)).await,
        }
    }
}

#[async_trait]
impl BlobStore for CountedBlobs {
    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        let round = self.gets.lock().unwrap_or_else(PoisonError::into_inner).rounds + 1;
        self.wait().await;
        let body = self.inner.get(key).await;
        let mut gets = self.gets.lock().unwrap_or_else(PoisonError::into_inner);
        gets.objects += 1;
        gets.rounds = gets.rounds.max(round);
        body
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.wait().await;
        self.inner.get_range(key, range).await
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn BlobUpload>, StoreError> {
        self.wait().await;
        self.inner.begin(key).await
    }

    async fn put_new(&self, key: &str, body: Bytes, sha256: Digest) -> Result<(), StoreError> {
        self.wait().await;
        self.inner.put_new(key, body, sha256).await
    }

    async fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        self.wait().await;
        self.inner.size(key).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.wait().await;
        self.inner.delete(key).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobInfo>, StoreError> {
        self.wait().await;
        self.inner.list(prefix, after, limit).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.inner.probe().await
    }
}
