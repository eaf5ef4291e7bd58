//! A blob store that fails on demand, for tests and benchmarks.

use crate::clock;
use crate::model::Digest;
use crate::store::blob::{BlobInfo, BlobStore, BlobUpload};
use crate::store::{ErrorKind, StoreError};
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Every call fails.
    Down,
    /// Writes fail, reads do not.
    ReadOnly,
    /// Writes take effect and are reported as failed.
    LostAnswers,
    /// Calls never return.
    Hang,
    /// Calls take so much longer.
    Slow(Duration),
    /// Reads return bytes of which one bit is flipped.
    FlippedBit,
    /// Reads return all bytes but the last.
    CutShort,
}

/// A blob store with faults that can be switched on and off. It also counts
/// its calls.
#[derive(Debug)]
pub struct FaultyBlobs {
    inner: Arc<dyn BlobStore>,
    fault: Arc<Mutex<Fault>>,
    hidden: Mutex<HashSet<String>>,
    gets: AtomicU64,
    bytes_got: AtomicU64,
    puts: AtomicU64,
}

impl FaultyBlobs {
    /// A store without faults so far.
    pub fn new(inner: Arc<dyn BlobStore>) -> Self {
        Self {
            inner,
            fault: Arc::default(),
            hidden: Mutex::default(),
            gets: AtomicU64::new(0),
            bytes_got: AtomicU64::new(0),
            puts: AtomicU64::new(0),
        }
    }

    /// Switches to a fault.
    pub fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Makes a blob look as if it were not there.
    pub fn hide(&self, key: &str) {
        self.hidden.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned());
    }

    /// Calls of `get` and `get_range` so far.
    pub fn gets(&self) -> u64 {
        self.gets.load(Ordering::Relaxed)
    }

    /// Bytes that those returned.
    pub fn bytes_got(&self) -> u64 {
        self.bytes_got.load(Ordering::Relaxed)
    }

    /// Calls of `put_new` and `begin` so far.
    pub fn puts(&self) -> u64 {
        self.puts.load(Ordering::Relaxed)
    }

    async fn before(&self, writes: bool) -> Result<Fault, StoreError> {
        go_wrong(&self.fault, writes).await
    }

    /// The bytes that a read returns.
    fn got(&self, body: Bytes, fault: Fault) -> Bytes {
        self.bytes_got.fetch_add(body.len() as u64, Ordering::Relaxed);
        match fault {
            Fault::FlippedBit => {
                let mut flipped = body.to_vec();
                let middle = flipped.len() / 2;
                if let Some(byte) = flipped.get_mut(middle) {
                    *byte ^= 1;
                }
                flipped.into()
            }
            Fault::CutShort => body.slice(..body.len().saturating_sub(1)),
            _ => body,
        }
    }

    fn is_hidden(&self, key: &str) -> bool {
        self.hidden.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }
}

async fn go_wrong(fault: &Mutex<Fault>, writes: bool) -> Result<Fault, StoreError> {
    let fault = *fault.lock().unwrap_or_else(PoisonError::into_inner);
    match fault {
        Fault::Down => Err(down()),
        Fault::ReadOnly if writes => Err(down()),
        Fault::Hang => std::future::pending().await,
        Fault::Slow(delay) => {
            clock::sleep(delay).await;
            Ok(fault)
        }
        _ => Ok(fault),
    }
}

fn down() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "injected fault")
}

#[async_trait]
impl BlobStore for FaultyBlobs {
    async fn put_new(&self, key: &str, body: Bytes, sha256: Digest) -> Result<(), StoreError> {
        self.puts.fetch_add(1, Ordering::Relaxed);
        let fault = self.before(true).await?;
        self.inner.put_new(key, body, sha256).await?;
        if fault == Fault::LostAnswers { Err(down()) } else { Ok(()) }
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn BlobUpload>, StoreError> {
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.before(true).await?;
        let inner = self.inner.begin(key).await?;
        Ok(Box::new(FaultyUpload { inner, fault: self.fault.clone() }))
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        let fault = self.before(false).await?;
        if self.is_hidden(key) {
            return Err(StoreError::new(ErrorKind::NotFound, format!("get {key}")));
        }
        Ok(self.got(self.inner.get(key).await?, fault))
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        let fault = self.before(false).await?;
        if self.is_hidden(key) {
            return Err(StoreError::new(ErrorKind::NotFound, format!("get {key}")));
        }
        Ok(self.got(self.inner.get_range(key, range).await?, fault))
    }

    async fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        self.before(false).await?;
        if self.is_hidden(key) { Ok(None) } else { self.inner.size(key).await }
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.before(true).await?;
        self.inner.delete(key).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobInfo>, StoreError> {
        self.before(false).await?;
        self.inner.list(prefix, after, limit).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.before(true).await?;
        self.inner.probe().await
    }
}

/// An upload that has the faults of its store.
#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn BlobUpload>,
    fault: Arc<Mutex<Fault>>,
}

#[async_trait]
impl BlobUpload for FaultyUpload {
    async fn write(&mut self, part: Bytes) -> Result<(), StoreError> {
        go_wrong(&self.fault, true).await?;
        self.inner.write(part).await
    }

    async fn finish(self: Box<Self>, sha256: Digest) -> Result<(), StoreError> {
        let fault = go_wrong(&self.fault, true).await?;
        self.inner.finish(sha256).await?;
        if fault == Fault::LostAnswers { Err(down()) } else { Ok(()) }
    }
}
