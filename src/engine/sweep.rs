//! The sweep: the only code that erases blobs.
//!
//! A blob goes if a tombstone for it is due, or if no row names it and the
//! writer generation in its key is fenced: then no transaction, past or future,
//! can name it. Age alone would not be safe, since a stalled writer can outlive
//! any grace period.

use super::upkeep::go_on;
use super::{Engine, Error, keys};
use crate::clock::Micros;
use crate::model::GenerationId;
use crate::store::ErrorKind;
use crate::store::meta::{OpenDeletion, Tombstone};
use std::collections::HashSet;
use std::time::Duration;

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Generations that were fenced.
    pub generations_fenced: usize,
    /// Blobs that were looked at.
    pub blobs_seen: usize,
    /// Orphans that were erased.
    pub orphans_erased: usize,
    /// Orphans that were left for the next sweep, since this one erased as many
    /// as it may.
    pub orphans_left: usize,
    /// Blobs of generations that the metadata does not know: it is older than
    /// the bucket. They are never erased.
    pub blobs_of_unknown_generations: usize,
}

/// How long a generation is remembered after its fence. A blob of it that
/// arrives later is never erased, as one of an unknown writer, so this is far
/// longer than a put can be under way.
const GENERATION_KEPT: Duration = Duration::from_hours(7 * 24);

/// Blobs that fail to be erased one after the other until the object store is
/// taken to be down: each may take as long as a call may.
const FAILURES_MAX: u32 = 16;

/// Rows and blobs that are looked at in one go.
const BATCH: u32 = 500;

impl Engine {
    /// Erases blobs whose tombstones are due, and moves deletions on. Returns
    /// how many blobs were erased. One that fails does not keep the others from
    /// it; its failure is returned at the end.
    pub async fn bury(&self) -> Result<usize, Error> {
        let erased = self.erase_due().await;
        let advanced = self.advance_deletions().await;
        advanced.and(erased)
    }

    async fn erase_due(&self) -> Result<usize, Error> {
        let mut erased = 0;
        let mut failures = 0;
        let mut failure = None;
        let mut after: Option<Tombstone> = None;
        loop {
            let due = self.inner.meta.due_tombstones(self.now(), after.as_ref(), BATCH).await?;
            let Some(last) = due.last() else { return failure.map_or(Ok(erased), Err) };
            after = Some(last.clone());
            for tombstone in due {
                let Err(error) = self.erase_buried(&tombstone).await else {
                    erased += 1;
                    failures = 0;
                    continue;
                };
                failures += 1;
                if failures == FAILURES_MAX {
                    return Err(error);
                }
                tracing::warn!(key = tombstone.key, error = %error, "a blob is not erased yet");
                failure = Some(error);
            }
        }
    }

    async fn erase_buried(&self, tombstone: &Tombstone) -> Result<(), Error> {
        self.erase(&tombstone.key).await?;
        self.inner.meta.remove_tombstone(tombstone).await?;
        metrics::counter!("turnkeep_blobs_erased_total", "why" => "tombstone").increment(1);
        Ok(())
    }

    async fn advance_deletions(&self) -> Result<(), Error> {
        let mut advanced = Ok(0);
        let mut after = Micros(i64::MIN);
        loop {
            let open = self.inner.meta.open_deletions(after, BATCH).await?;
            for deletion in &open {
                let one = self.advance_deletion(deletion).await.map(|()| 1);
                go_on(&mut advanced, &deletion.key.session, one)?;
            }
            match open.last() {
                // Deletions of one instant that fill a batch wait for others to
                // finish first.
                Some(last) if open.len() == BATCH as usize && last.deleted_at > after => {
                    after = last.deleted_at;
                }
                _ => return advanced.map(drop),
            }
        }
    }

    async fn advance_deletion(&self, deletion: &OpenDeletion) -> Result<(), Error> {
        if !deletion.in_ledger {
            self.enter_ledger(&deletion.key, deletion.deleted_at).await?;
        }
        let now = self.now();
        let grace = now.plus(self.inner.options.grace);
        self.inner.meta.advance_deletion(&deletion.key, now, grace).await?;
        Ok(())
    }

    async fn erase(&self, key: &str) -> Result<(), Error> {
        match self.in_time(self.inner.blobs.delete(key)).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::of_objects(error)),
        }
    }

    /// Fences generations whose processes are gone and erases the blobs that
    /// no row names.
    pub async fn sweep(&self) -> Result<SweepReport, Error> {
        let mut report = SweepReport::default();
        let began = self.now();
        for generation in self.inner.meta.expired_generations(self.now()).await? {
            if generation != self.inner.generation.current() {
                self.inner.meta.fence_generation(generation, self.now()).await?;
                report.generations_fenced += 1;
            }
        }
        let known = self.inner.meta.generations().await?;
        let fenced: HashSet<GenerationId> = known.iter().filter(|row| row.fenced).map(|row| row.id).collect();
        let live: HashSet<GenerationId> = known.iter().filter(|row| !row.fenced).map(|row| row.id).collect();
        let mut after: Option<String> = None;
        loop {
            let listed = self.inner.blobs.list("", after.as_deref(), BATCH as usize);
            let listed = self.in_time(listed).await.map_err(Error::of_objects)?;
            let Some(last) = listed.last() else { break };
            after = Some(last.key.clone());
            report.blobs_seen += listed.len();
            let mut candidates = Vec::new();
            for blob in listed {
                match keys::generation(&blob.key) {
                    Some(generation) if fenced.contains(&generation) => candidates.push(blob.key),
                    Some(generation) if !live.contains(&generation) => {
                        report.blobs_of_unknown_generations += 1;
                    }
                    _ => {}
                }
            }
            self.erase_orphans(candidates, &mut report).await?;
        }
        metrics::counter!("turnkeep_blobs_erased_total", "why" => "orphan")
            .increment(report.orphans_erased as u64);
        // All that the rows were for is done.
        if report.orphans_left == 0 {
            self.inner.meta.forget_generations(began.minus(GENERATION_KEPT)).await?;
        }
        Ok(report)
    }

    async fn erase_orphans(&self, candidates: Vec<String>, report: &mut SweepReport) -> Result<(), Error> {
        let named: HashSet<String> = self.inner.meta.referenced(&candidates).await?.into_iter().collect();
        for key in candidates.into_iter().filter(|key| !named.contains(key)) {
            if report.orphans_erased < self.inner.options.sweep_erase_max {
                tracing::info!(key, "erasing an orphan");
                self.erase(&key).await?;
                report.orphans_erased += 1;
            } else {
                report.orphans_left += 1;
            }
        }
        Ok(())
    }
}
