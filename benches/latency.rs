//! What calls take through a real server, beside what the stores and the
//! network take by themselves.
//!
//! `tests/services/with-services.sh cargo bench --bench latency`
//!
//! Floors and calls are measured in turn, one sample each, so that whatever else
//! the machine does falls on both. A ratio is one of medians of the same round.

#[path = "support/blobs.rs"]
mod blobs;
#[path = "support/echo.rs"]
mod echo;
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

use bytes::Bytes;
use echo::EchoProcess;
use figures::{Samples, over_rounds, print_table, row};
use floors::Floors;
use service::{Backend, Service, Stores};
use std::time::Duration;
use turnkeep::client::{Client, Window};
use turnkeep::clock::Stopwatch;
use turnkeep::rpc::pb;
use worker::Worker;

const ROUNDS: usize = 9;
/// Samples of each kind in a round.
const SAMPLES: usize = 60;
/// Turns of a short session: 64 KiB.
const SHORT_TURNS: usize = 8;
const OBJECT_BYTES: usize = 64 << 10;
const FORMATS: [(&str, pb::WireFormat); 2] =
    [("estimated tokens", pb::WireFormat::AnthropicMessages), ("exact tokens", pb::WireFormat::OpenaiChat)];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if echo::is_role() {
        return echo::play_role().await;
    }
    for backend in Backend::available() {
        measure(backend).await?;
    }
    Ok(())
}

/// Samples of a call, and of the two that make its floor.
#[derive(Default)]
struct Round {
    store: Samples,
    echo: Samples,
    call: Samples,
}

impl Round {
    fn ratio(&self) -> f64 {
        self.call.p50_ms() / (self.store.p50_ms() + self.echo.p50_ms())
    }
}

async fn measure(backend: Backend) -> anyhow::Result<()> {
    let stores = Stores::new(backend).await?;
    let service = Service::start(&stores, &[]).await?;
    let echo = EchoProcess::start()?;
    let mut floors = Floors::open(&stores).await?;
    let clients = (service.client().await?, Client::connect(&echo.address).await?);
    let mut rows =
        vec![row(["call", "store p50", "echo p50", "call p50", "call p99", "call ÷ floor", "target"])];
    for (name, format) in FORMATS {
        let (mut of_service, mut of_echo) = begin(&clients, name, format).await?;
        let rounds = in_rounds(
            async || time(floors.commit()).await,
            async || of_echo.persist().await,
            async || of_service.persist().await,
        );
        rows.push(summary(&format!("persist of 8 KiB, {name}"), &rounds.await?, "≤ 1.5"));
    }
    let (mut of_service, mut of_echo) = begin(&clients, "short", FORMATS[0].1).await?;
    for _ in 0..SHORT_TURNS {
        of_echo.keep(of_service.version).await?;
        of_service.persist().await?;
    }
    let rounds = in_rounds(
        async || time(floors.read()).await,
        async || of_echo.restore(Window::default()).await,
        async || of_service.restore(Window::default()).await,
    );
    rows.push(summary("restore of 64 KiB", &rounds.await?, "≤ 1.5"));
    let held = of_echo.window.clone();
    of_echo.keep(of_service.version).await?;
    let rounds = in_rounds(
        async || time(floors.read()).await,
        async || of_echo.restore(held.clone()).await,
        async || {
            let held = of_service.window.clone();
            of_service.persist().await?;
            of_service.restore(held).await
        },
    );
    rows.push(summary("conditional restore of one turn", &rounds.await?, "≤ 2"));
    print_table(
        &format!("{backend}: milliseconds, medians; the ratio's least and greatest of {ROUNDS} rounds"),
        &rows,
    );
    objects(&floors).await
}

/// A worker of the service and one of the echo.
async fn begin(
    (service, echo): &(Client, Client),
    name: &str,
    format: pb::WireFormat,
) -> anyhow::Result<(Worker, Worker)> {
    let id = name.replace(' ', "-");
    Ok((Worker::begin(service.clone(), &id, format).await?, Worker::begin(echo.clone(), &id, format).await?))
}

/// Takes samples of all three in turn.
async fn in_rounds(
    mut store: impl AsyncFnMut() -> anyhow::Result<Duration>,
    mut echo: impl AsyncFnMut() -> anyhow::Result<Duration>,
    mut call: impl AsyncFnMut() -> anyhow::Result<Duration>,
) -> anyhow::Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut round = Round::default();
        for _ in 0..SAMPLES {
            round.store.push(store().await?);
            round.echo.push(echo().await?);
            round.call.push(call().await?);
        }
        rounds.push(round);
    }
    Ok(rounds)
}

fn summary(name: &str, rounds: &[Round], target: &str) -> Vec<String> {
    let all = |samples: fn(&Round) -> &Samples| {
        let mut all = Samples::default();
        for round in rounds {
            all.extend(samples(round));
        }
        all
    };
    let (store, echo, call) = (all(|round| &round.store), all(|round| &round.echo), all(|round| &round.call));
    let ratios: Vec<_> = rounds.iter().map(Round::ratio).collect();
    let ms = |value: f64| format!("{value:.3}");
    vec![
        name.to_owned(),
        ms(store.p50_ms()),
        ms(echo.p50_ms()),
        ms(call.p50_ms()),
        ms(call.quantile_ms(0.99)),
        over_rounds(&ratios),
        target.to_owned(),
    ]
}

/// What an object takes, for comparison: no call above touches one.
async fn objects(floors: &Floors) -> anyhow::Result<()> {
    let body = Bytes::from(vec![b'x'; OBJECT_BYTES]);
    let (mut puts, mut gets) = (Samples::default(), Samples::default());
    for _ in 0..2 * SAMPLES {
        let started = Stopwatch::start();
        let key = floors.put(&body).await?;
        puts.push(started.elapsed());
        let started = Stopwatch::start();
        floors.get(&key).await?;
        gets.push(started.elapsed());
    }
    let ms = |samples: &Samples| format!("{:.3}", samples.p50_ms());
    print_table("an object of 64 KiB, ms", &[row(["put p50", "get p50"]), vec![ms(&puts), ms(&gets)]]);
    Ok(())
}

async fn time<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<Duration> {
    let started = Stopwatch::start();
    work.await?;
    Ok(started.elapsed())
}
