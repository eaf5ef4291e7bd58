//! The first restore of a long session by a process that has seen nothing of it,
//! beside a gRPC stream of the same bytes.
//!
//! `tests/services/with-services.sh cargo bench --bench cold_restore`
//!
//! Service, echo and client are in this process, so that objects and rounds can
//! be counted and slowed down.

#[path = "support/blobs.rs"]
mod blobs;
#[path = "support/echo.rs"]
mod echo;
#[path = "support/figures.rs"]
mod figures;
#[path = "support/in_process.rs"]
mod in_process;
#[path = "support/process.rs"]
mod process;
#[path = "support/service.rs"]
mod service;
#[path = "support/turns.rs"]
mod turns;
#[path = "support/worker.rs"]
mod worker;

use blobs::Gets;
use figures::{Samples, over_rounds, print_table, row};
use in_process::InProcess;
use service::{Backend, Stores};
use std::time::Duration;
use turnkeep::client::{Client, Window};
use turnkeep::clock;
use turnkeep::rpc::pb;
use worker::Worker;

const ROUNDS: usize = 9;
const TURNS: u64 = 1_000;
const FORMAT: pb::WireFormat = pb::WireFormat::AnthropicMessages;
/// What a service needs until it is all idle.
const STARTED: Duration = Duration::from_millis(100);
/// What a distant object store adds to a request.
const DISTANCE: Duration = Duration::from_millis(30);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    for backend in Backend::available() {
        measure(backend).await?;
    }
    Ok(())
}

async fn measure(backend: Backend) -> anyhow::Result<()> {
    let stores = Stores::new(backend).await?;
    let echo = Client::connect(&echo::serve().await?).await?;
    let mut of_echo = Worker::begin(echo, "long", FORMAT).await?;
    let service = InProcess::start(&stores).await?;
    let mut of_service = Worker::begin(service.client().await?, "long", FORMAT).await?;
    while of_service.version < TURNS {
        of_echo.keep(of_service.version).await?;
        of_service.persist().await?;
    }
    service.settle().await?;
    service.stop().await;
    let mut rows = vec![row([
        "object store",
        "objects",
        "rounds",
        "raw",
        "stream p50",
        "restore p50",
        "restore ÷ stream",
        "target",
    ])];
    for (name, delay, target) in [("as it is", Duration::ZERO, "≤ 2"), ("30 ms further away", DISTANCE, "–")]
    {
        let (mut streams, mut restores, mut ratios) = (Samples::default(), Samples::default(), Vec::new());
        let (mut gets, mut raw) = (Gets::default(), 0);
        for _ in 0..ROUNDS {
            let service = InProcess::start(&stores).await?;
            of_service.client = service.client().await?;
            // What a start does in the background must not fall on the calls.
            clock::sleep(STARTED).await;
            service.blobs.delay(delay);
            service.blobs.take();
            let stream = of_echo.restore(Window::default()).await?;
            let restore = of_service.restore(Window::default()).await?;
            gets = service.blobs.take();
            raw = bytes_of(&of_service.window);
            anyhow::ensure!(raw == bytes_of(&of_echo.window), "both give the same bytes");
            ratios.push(restore.as_secs_f64() / stream.as_secs_f64());
            streams.push(stream);
            restores.push(restore);
            service.stop().await;
        }
        let ms = |samples: &Samples| format!("{:.1} ms", samples.p50_ms());
        rows.push(vec![
            name.to_owned(),
            gets.objects.to_string(),
            gets.rounds.to_string(),
            format!("{} KiB", raw >> 10),
            ms(&streams),
            ms(&restores),
            over_rounds(&ratios),
            target.to_owned(),
        ]);
    }
    print_table(&format!("{backend}: a sealed session of {TURNS} turns, nothing in memory"), &rows);
    Ok(())
}

fn bytes_of(window: &Window) -> usize {
    window.items.iter().map(|item| item.payload.len()).sum()
}
