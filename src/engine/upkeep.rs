//! Background work: seals, roll-ups, held outputs, deletions, sweeps, generations.

use super::{Engine, Error};
use crate::clock;
use crate::store::meta::BranchKey;
use std::time::Duration;
use tokio::sync::mpsc;

/// Starts the background work. It ends when the engine drains.
pub(super) fn start(engine: &Engine, due: mpsc::Receiver<BranchKey>) {
    let options = &engine.inner.options;
    let (seal, deletion) = (options.seal_interval, options.deletion_interval);
    let (sweep, rotation) = (options.sweep_interval, options.generation_rotation);
    spawn(engine, seal_as_told(engine.clone(), due));
    spawn(
        engine,
        repeat(engine.clone(), "seal", seal, |engine| async move {
            let sealed = engine.seal_due().await;
            engine.roll_up_due().await.and(sealed).map(drop)
        }),
    );
    spawn(
        engine,
        repeat(engine.clone(), "outputs", seal, |engine| async move {
            engine.move_held_outputs().await.map(drop)
        }),
    );
    spawn(
        engine,
        repeat(engine.clone(), "deletions", deletion, |engine| async move { engine.bury().await.map(drop) }),
    );
    spawn(
        engine,
        repeat(engine.clone(), "sweep", sweep, |engine| async move { engine.sweep().await.map(drop) }),
    );
    spawn(
        engine,
        repeat(
            engine.clone(),
            "generation",
            rotation,
            |engine| async move { engine.rotate_generation().await },
        ),
    );
}

fn spawn(engine: &Engine, work: impl Future<Output = ()> + Send + 'static) {
    engine.inner.tasks.spawn(work);
}

/// Does some work again and again, a little irregularly, so that replicas which
/// start together do not stay in step.
async fn repeat<F, W>(engine: Engine, name: &'static str, interval: Duration, work: W)
where
    F: Future<Output = Result<(), Error>> + Send,
    W: Fn(Engine) -> F + Send,
{
    loop {
        let [jitter] = engine.inner.entropy.bytes();
        let pause = interval.mul_f64(0.75 + f64::from(jitter) / 512.0);
        tokio::select! {
            () = engine.inner.stop.cancelled() => return,
            () = clock::sleep(pause) => {}
        }
        let result = tokio::select! {
            // At any point a crash is safe, and so is an end.
            () = engine.inner.stop.cancelled() => return,
            result = work(engine.clone()) => result,
        };
        if let Err(error) = result {
            failed(name);
            tracing::warn!(work = name, error = %error, "background work failed and will be tried again");
        }
    }
}

fn failed(work: &'static str) {
    metrics::counter!("turnkeep_upkeep_failures_total", "work" => work).increment(1);
}

/// Adds what became of one thing to what became of those before it. Fails if a
/// store cannot be reached, since no other would fare better.
pub(super) fn go_on(
    all: &mut Result<usize, Error>,
    what: impl std::fmt::Display,
    one: Result<usize, Error>,
) -> Result<(), Error> {
    match one {
        Ok(more) => all.as_mut().map_or((), |all| *all += more),
        Err(error @ (Error::Unavailable { .. } | Error::StorageFull { .. })) => return Err(error),
        Err(error) => {
            tracing::error!(%what, error = %error, "left as it is for now");
            *all = Err(error);
        }
    }
    Ok(())
}

/// Seals branches as persists find them due.
async fn seal_as_told(engine: Engine, due: mpsc::Receiver<BranchKey>) {
    tokio::select! {
        () = engine.inner.stop.cancelled() => {}
        () = seal_all(&engine, due) => {}
    }
}

async fn seal_all(engine: &Engine, mut due: mpsc::Receiver<BranchKey>) {
    while let Some(branch) = due.recv().await {
        if let Err(error) = engine.seal_branch(&branch).await {
            failed("seal");
            tracing::warn!(branch = %branch.branch, error = %error, "seal failed and will be tried again");
            // The object store may be down: the periodic scan goes on from here.
            clock::sleep(Duration::from_secs(1)).await;
        }
    }
}
