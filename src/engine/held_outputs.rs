//! Tool outputs that the metadata store holds while the object store fails, and
//! moving them there.
//!
//! A held output is charged to its session's journal, whose bounds are its own. It
//! is moved as a journal is sealed: its blob is put under a fresh key, then one
//! transaction lets the row name it and no longer holds it. Whoever loses a race or
//! ends between the two leaves an orphan for the sweep.

use super::upkeep::go_on;
use super::{Engine, Error, compute, keys};
use crate::codec::digest;
use crate::store::meta::{CommitOutcome, HeldOutput, OutputMove};
use crate::store::{ErrorKind, StoreError};
use futures::{StreamExt as _, stream};

/// Outputs that are moved at the same time: each is in memory meanwhile.
const MOVES: usize = 4;

impl Engine {
    /// Whether an output that cannot be put for this reason is to be held.
    pub(super) fn may_hold(&self, error: &StoreError) -> bool {
        let is_outage = matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Unknown);
        is_outage && !self.inner.options.seal_every_turn
    }

    /// Moves all held outputs to the object store. Returns how many this call moved.
    /// One that cannot be moved does not keep the others from it; its failure is
    /// returned at the end.
    pub async fn move_held_outputs(&self) -> Result<usize, Error> {
        if self.count_held_outputs().await? == 0 {
            return Ok(0);
        }
        let moved = self.move_all().await;
        self.count_held_outputs().await?;
        moved
    }

    async fn count_held_outputs(&self) -> Result<u64, Error> {
        let held = self.inner.meta.held_output_count().await?;
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        metrics::gauge!("turnkeep_outputs_held").set(held as f64);
        Ok(held)
    }

    async fn move_all(&self) -> Result<usize, Error> {
        const BATCH: u32 = 100;
        let mut moved = Ok(0);
        let mut after: Option<HeldOutput> = None;
        loop {
            let page = self.inner.meta.held_outputs(after.as_ref(), BATCH).await?;
            let Some(last) = page.last() else { return moved };
            after = Some(last.clone());
            let moves = page.into_iter().map(|held| async move {
                let output = held.output.clone();
                (output, self.move_output(held).await.map(usize::from))
            });
            let mut moves = stream::iter(moves).buffered(MOVES);
            while let Some((output, one)) = moves.next().await {
                go_on(&mut moved, output, one)?;
            }
        }
    }

    /// Moves an output; false if another did, or it was deleted.
    async fn move_output(&self, held: HeldOutput) -> Result<bool, Error> {
        let tenant = &held.branch.tenant;
        let Some(body) = self.inner.meta.held_output(tenant, &held.output).await? else { return Ok(false) };
        let generation = self.inner.generation.current();
        let blob_key =
            keys::output(&self.inner.entropy, tenant, &held.branch.branch, &held.output, generation);
        let hashed = body.clone();
        let sha256 = compute(body.len(), move || digest::sha256(&hashed)).await?;
        self.put_blob(&blob_key, body, sha256).await.map_err(Error::of_objects)?;
        match self.inner.meta.commit_output_move(OutputMove { held, blob_key, generation }).await {
            Ok(CommitOutcome::Committed) => {
                metrics::counter!("turnkeep_outputs_moved_total").increment(1);
                Ok(true)
            }
            Ok(CommitOutcome::NotAsExpected) => Ok(false),
            Err(error) if error.kind == ErrorKind::Fenced => {
                let (meta, now) = (self.inner.meta.as_ref(), self.now());
                self.inner.generation.replace_fenced(meta, generation, now).await?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}
