//! Whether a call takes longer, or writes more, as its session grows.
//!
//! `tests/services/with-services.sh cargo bench --bench flatness`
//!
//! Calls on a session of ten thousand turns and on sessions of ten turns are
//! measured in turn, one sample each.

#[path = "support/blobs.rs"]
mod blobs;
#[path = "support/figures.rs"]
mod figures;
#[path = "support/floors.rs"]
mod floors;
#[path = "support/process.rs"]
mod process;
#[path = "support/service.rs"]
mod service;
#[path = "support/turns.rs"]
mod turns;
#[path = "support/worker.rs"]
mod worker;

use figures::{Samples, over_rounds, print_table, row};
use floors::Floors;
use service::{Backend, Service, Stores};
use std::time::Duration;
use turnkeep::client::{Client, Window};
use turnkeep::rpc::pb;
use worker::Worker;

const ROUNDS: usize = 9;
/// Samples of each kind in a round.
const SAMPLES: usize = 60;
/// Turns after which a session is called young, and up to which it stays so.
const YOUNG_TURNS: u64 = 10;
const YOUNG_TURNS_MAX: u64 = 30;
const OLD_TURNS: u64 = 10_000;
/// Turns over which written bytes are counted.
const COUNTED_TURNS: u64 = 1_000;
const FORMAT: pb::WireFormat = pb::WireFormat::AnthropicMessages;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    for backend in Backend::available() {
        Box::pin(measure(backend)).await?;
    }
    Ok(())
}

async fn measure(backend: Backend) -> anyhow::Result<()> {
    let stores = Stores::new(backend).await?;
    let service = Service::start(&stores, &[]).await?;
    let floors = Floors::open(&stores).await?;
    let mut old = Worker::begin(service.client().await?, "old", FORMAT).await?;
    persist_until(&mut old, YOUNG_TURNS).await?;
    let encoded = old.stored_bytes().await? / YOUNG_TURNS;
    let early = count(&service, &floors, &mut old).await?;
    persist_until(&mut old, OLD_TURNS - COUNTED_TURNS).await?;
    let late = count(&service, &floors, &mut old).await?;
    print_written(backend, encoded, &early, &late);
    print_latency(backend, service.client().await?, old).await
}

async fn persist_until(worker: &mut Worker, version: u64) -> anyhow::Result<()> {
    while worker.version < version {
        worker.persist().await?;
    }
    Ok(())
}

/// Bytes that some turns wrote.
struct Written {
    metadata: u64,
    objects: u64,
}

async fn count(service: &Service, floors: &Floors, worker: &mut Worker) -> anyhow::Result<Written> {
    let so_far = async || -> anyhow::Result<Written> {
        let objects = floors.object_bytes().await?;
        // What one process writes to disk there are rows, WAL and objects of.
        let metadata = match floors.postgres_bytes().await? {
            Some(bytes) => bytes,
            None => service.written_bytes()?.saturating_sub(objects),
        };
        Ok(Written { metadata, objects })
    };
    let before = so_far().await?;
    persist_until(worker, worker.version + COUNTED_TURNS).await?;
    let after = so_far().await?;
    Ok(Written { metadata: after.metadata - before.metadata, objects: after.objects - before.objects })
}

fn print_written(backend: Backend, encoded: u64, early: &Written, late: &Written) {
    let mut rows = vec![row(["turns", "encoded", "rows and WAL", "objects", "written", "limit"])];
    let names = [
        format!("{YOUNG_TURNS} to {}", YOUNG_TURNS + COUNTED_TURNS),
        format!("{} to {OLD_TURNS}", OLD_TURNS - COUNTED_TURNS),
    ];
    for (name, written) in names.into_iter().zip([early, late]) {
        let [metadata, objects] = [written.metadata, written.objects].map(|bytes| bytes / COUNTED_TURNS);
        let limit = (24 << 10) + 2 * encoded;
        let bytes = [encoded, metadata, objects, metadata + objects, limit];
        rows.push([name].into_iter().chain(bytes.map(|bytes| format!("{bytes} B"))).collect());
    }
    print_table(&format!("{backend}: bytes written a turn"), &rows);
}

#[derive(Default)]
struct Round {
    young: Samples,
    old: Samples,
}

async fn print_latency(backend: Backend, client: Client, mut old: Worker) -> anyhow::Result<()> {
    old.restore(Window::default()).await?;
    let mut young = Young { client, sessions: 0, worker: None };
    let (mut persists, mut restores) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut round = Round::default();
        for _ in 0..SAMPLES {
            round.young.push(young.worker().await?.persist().await?);
            round.old.push(old.persist().await?);
        }
        persists.push(round);
        let mut round = Round::default();
        for _ in 0..SAMPLES {
            round.young.push(restore_one_turn(young.worker().await?).await?);
            round.old.push(restore_one_turn(&mut old).await?);
        }
        restores.push(round);
    }
    let mut rows = vec![row(["call", "young p50", "old p50", "old ÷ young", "target"])];
    rows.push(summary("persist of 8 KiB", &persists));
    rows.push(summary("conditional restore of one turn", &restores));
    print_table(
        &format!(
            "{backend}: milliseconds at {YOUNG_TURNS} to {YOUNG_TURNS_MAX} turns and after {OLD_TURNS}; \
             the ratio's least and greatest of {ROUNDS} rounds"
        ),
        &rows,
    );
    Ok(())
}

/// Restores the window as it was before the newest turn.
async fn restore_one_turn(worker: &mut Worker) -> anyhow::Result<Duration> {
    let (id, items) = (worker.window.id.clone(), worker.window.items.len());
    worker.persist().await?;
    let mut held = std::mem::take(&mut worker.window);
    held.items.truncate(items);
    held.id = id;
    worker.restore(held).await
}

/// A worker whose session is replaced before it is old.
struct Young {
    client: Client,
    sessions: u64,
    worker: Option<Worker>,
}

impl Young {
    async fn worker(&mut self) -> anyhow::Result<&mut Worker> {
        let worker = match self.worker.take() {
            Some(worker) if worker.version < YOUNG_TURNS_MAX => worker,
            _ => {
                self.sessions += 1;
                let id = format!("young-{}", self.sessions);
                let mut worker = Worker::begin(self.client.clone(), &id, FORMAT).await?;
                persist_until(&mut worker, YOUNG_TURNS).await?;
                worker.restore(Window::default()).await?;
                worker
            }
        };
        Ok(self.worker.insert(worker))
    }
}

fn summary(name: &str, rounds: &[Round]) -> Vec<String> {
    let (mut young, mut old) = (Samples::default(), Samples::default());
    for round in rounds {
        young.extend(&round.young);
        old.extend(&round.old);
    }
    let ratios: Vec<_> = rounds.iter().map(|round| round.old.p50_ms() / round.young.p50_ms()).collect();
    let ms = |samples: &Samples| format!("{:.3}", samples.p50_ms());
    vec![name.to_owned(), ms(&young), ms(&old), over_rounds(&ratios), "≤ 1.1".to_owned()]
}
