//! Writer generations: a number that the database can revoke.
//!
//! Every blob's key carries the generation of the process that wrote it, and
//! every transaction that names a blob holds that generation. So the sweep can
//! fence a generation and then know that no transaction, past or future, will
//! name one of its orphans; no clock is involved.
//!
//! The numbers are random, so that none is used again when the metadata was
//! rebuilt or taken back to an earlier time: what the bucket has of generations
//! that the metadata does not know may be the only copy of something.

use super::{Engine, Error, Options};
use crate::clock::Micros;
use crate::entropy::Entropy;
use crate::model::GenerationId;
use crate::store::MetaStore;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The generation under which this process writes.
#[derive(Debug)]
pub(super) struct Writer {
    current: Mutex<GenerationId>,
    /// The one before, which is not fenced yet: large outputs take a while from
    /// the key of their blob to the row that names it.
    previous: Mutex<Option<GenerationId>>,
    lease: Duration,
    entropy: Arc<Entropy>,
}

impl Writer {
    /// Registers the first generation.
    pub(super) async fn register(
        meta: &dyn MetaStore,
        entropy: Arc<Entropy>,
        now: Micros,
        options: &Options,
    ) -> Result<Self, Error> {
        // The lease only tells others when to try a fence. It outlasts two
        // rotations, after which the generation is fenced here.
        let lease = options.generation_rotation * 3;
        let id = mint(&entropy);
        meta.register_generation(id, now.plus(lease)).await?;
        Ok(Self { current: Mutex::new(id), previous: Mutex::default(), lease, entropy })
    }

    /// The current generation.
    pub(super) fn current(&self) -> GenerationId {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new generation and fences the one before the current: work that
    /// still uses it starts again.
    pub(super) async fn rotate(&self, meta: &dyn MetaStore, now: Micros) -> Result<(), Error> {
        let new = mint(&self.entropy);
        meta.register_generation(new, now.plus(self.lease)).await?;
        let old = std::mem::replace(&mut *self.current.lock().unwrap_or_else(PoisonError::into_inner), new);
        let older = self.previous.lock().unwrap_or_else(PoisonError::into_inner).replace(old);
        if let Some(older) = older {
            meta.fence_generation(older, now).await?;
        }
        Ok(())
    }

    /// Takes a new generation if `fenced` is still the current one.
    pub(super) async fn replace_fenced(
        &self,
        meta: &dyn MetaStore,
        fenced: GenerationId,
        now: Micros,
    ) -> Result<(), Error> {
        if self.current() == fenced {
            let new = mint(&self.entropy);
            meta.register_generation(new, now.plus(self.lease)).await?;
            *self.current.lock().unwrap_or_else(PoisonError::into_inner) = new;
        }
        Ok(())
    }

    /// Fences its generations at the end of the process. If that fails, the sweep
    /// does it when the lease has ended.
    pub(super) async fn release(&self, meta: &dyn MetaStore, now: Micros) {
        let previous = self.previous.lock().unwrap_or_else(PoisonError::into_inner).take();
        for id in previous.into_iter().chain([self.current()]) {
            if let Err(error) = meta.fence_generation(id, now).await {
                tracing::warn!(error = %error, "could not release the writer generation");
            }
        }
    }
}

impl Engine {
    /// Takes a new writer generation. Work that began under the one before may end
    /// under it; that under the one before that starts again.
    pub async fn rotate_generation(&self) -> Result<(), Error> {
        self.inner.generation.rotate(self.inner.meta.as_ref(), self.now()).await
    }
}

/// A number that was never used, and that JSON readers keep whole.
fn mint(entropy: &Entropy) -> GenerationId {
    const BITS: u32 = 53;
    GenerationId((u64::from_be_bytes(entropy.bytes()) >> (u64::BITS - BITS)).cast_signed())
}
