//! Eight sessions at once, beside what Postgres commits for eight clients of
//! pgbench.
//!
//! `tests/services/with-services.sh cargo bench --bench throughput`
//!
//! Both run in turn, some seconds each. On `SQLite`, which has one writer, the
//! floor is one client that commits row after row.

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

use anyhow::Context as _;
use figures::{Samples, over_rounds, print_table, row};
use floors::Floors;
use service::{Backend, Service, Stores};
use std::process::Command;
use std::time::Duration;
use tokio::task::JoinSet;
use turnkeep::clock::Stopwatch;
use turnkeep::rpc::pb;
use worker::Worker;

const ROUNDS: usize = 5;
const SESSIONS: usize = 8;
/// How long each side runs in a round.
const SECONDS: u64 = 4;
const FORMAT: pb::WireFormat = pb::WireFormat::AnthropicMessages;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    for backend in Backend::available() {
        measure(backend).await?;
    }
    Ok(())
}

/// What eight sessions did in a round.
#[derive(Default)]
struct Round {
    turns: u32,
    seconds: f64,
    persists: Samples,
    /// Processor time of this process, which is the client.
    client_cpu: Duration,
    service_cpu: Duration,
}

impl Round {
    fn rate(&self) -> f64 {
        f64::from(self.turns) / self.seconds
    }

    fn cpu_ms_per_turn(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() * 1e3 / f64::from(self.turns)
    }
}

async fn measure(backend: Backend) -> anyhow::Result<()> {
    let stores = Stores::new(backend).await?;
    let service = Service::start(&stores, &[]).await?;
    let mut floors = Floors::open(&stores).await?;
    let mut workers = Vec::new();
    for session in 0..SESSIONS {
        workers.push(Worker::begin(service.client().await?, &format!("s{session}"), FORMAT).await?);
    }
    let (mut commits, mut rounds) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        commits.push(match backend {
            Backend::Embedded => commit_rate(&mut floors).await?,
            Backend::Networked => pgbench_rate(&stores.postgres)?,
        });
        rounds.push(persist_at_once(&service, &mut workers).await?);
    }
    print(backend, &commits, &rounds);
    Ok(())
}

/// Rows that one client commits in a second.
async fn commit_rate(floors: &mut Floors) -> anyhow::Result<f64> {
    let (running, mut commits) = (Stopwatch::start(), 0);
    while running.elapsed() < Duration::from_secs(SECONDS) {
        floors.commit().await?;
        commits += 1;
    }
    Ok(f64::from(commits) / running.elapsed().as_secs_f64())
}

/// Rows that pgbench's clients commit in a second, by pgbench's own count.
fn pgbench_rate(url: &str) -> anyhow::Result<f64> {
    let script = tempfile::NamedTempFile::new()?;
    std::fs::write(script.path(), floors::PGBENCH_SCRIPT)?;
    let clients = SESSIONS.to_string();
    let output = Command::new("pgbench")
        .args(["--no-vacuum", "--protocol=prepared", "--jobs=2", "--client", &clients])
        .args(["--time", &SECONDS.to_string(), "--file"])
        .args([script.path().as_os_str(), url.as_ref()])
        .output()
        .context("pgbench, which tests/services/with-services.sh puts on the PATH")?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout)?;
    let rate = said.lines().find_map(|line| line.strip_prefix("tps = ")).context("pgbench's rate")?;
    let (rate, _) = rate.split_once(' ').context("a number")?;
    Ok(rate.parse()?)
}

/// Each worker persists turn after turn.
async fn persist_at_once(service: &Service, workers: &mut Vec<Worker>) -> anyhow::Result<Round> {
    let this = std::process::id();
    let before = (process::cpu(this)?, service.cpu()?);
    let running = Stopwatch::start();
    let mut tasks = JoinSet::new();
    for mut worker in workers.drain(..) {
        tasks.spawn(async move {
            let mut persists = Samples::default();
            while running.elapsed() < Duration::from_secs(SECONDS) {
                persists.push(worker.persist().await?);
            }
            // A window that grew for ever would measure the client's memory.
            worker.window = turnkeep::client::Window::default();
            anyhow::Ok((worker, persists))
        });
    }
    let mut round = Round::default();
    while let Some(done) = tasks.join_next().await {
        let (worker, persists) = done??;
        round.turns += u32::try_from(persists.len())?;
        round.persists.extend(&persists);
        workers.push(worker);
    }
    round.seconds = running.elapsed().as_secs_f64();
    round.client_cpu = process::cpu(this)?.saturating_sub(before.0);
    round.service_cpu = service.cpu()?.saturating_sub(before.1);
    Ok(round)
}

fn print(backend: Backend, commits: &[f64], rounds: &[Round]) {
    let median = |mut values: Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let of_rounds = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
    let ratios: Vec<_> = rounds.iter().zip(commits).map(|(round, commits)| round.rate() / commits).collect();
    let tails: Vec<_> =
        rounds.iter().map(|round| round.persists.quantile_ms(0.99) / round.persists.p50_ms()).collect();
    let mut all = Samples::default();
    for round in rounds {
        all.extend(&round.persists);
    }
    let header = [
        "commits/s",
        "turns/s",
        "turns ÷ commits",
        "p50 ms",
        "p99 ms",
        "p99 ÷ p50",
        "client CPU ms/turn",
        "service CPU ms/turn",
    ];
    let cells = vec![
        format!("{:.0}", median(commits.to_vec())),
        format!("{:.0}", of_rounds(Round::rate)),
        over_rounds(&ratios),
        format!("{:.3}", all.p50_ms()),
        format!("{:.3}", all.quantile_ms(0.99)),
        over_rounds(&tails),
        format!("{:.3}", of_rounds(|round| round.cpu_ms_per_turn(round.client_cpu))),
        format!("{:.3}", of_rounds(|round| round.cpu_ms_per_turn(round.service_cpu))),
    ];
    print_table(
        &format!("{backend}: {SESSIONS} sessions persist turns of 8 KiB; medians of {ROUNDS} rounds"),
        &[row(header), cells],
    );
}
