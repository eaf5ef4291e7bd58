//! Logs and metrics.

use crate::clock;
use crate::settings::{Log, LogFormat};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use std::io::IsTerminal as _;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Buckets of latencies, in seconds: from what an embedded store takes to what
/// a deadline allows.
const LATENCY_BUCKETS: &[f64] =
    &[0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];

/// Sends logs to standard error from now on.
pub fn start_logs(log: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&log.level)?;
    let is_for_people = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(is_for_people)
        .with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|error| anyhow::anyhow!(error))
}

/// How often the samples of histograms are summed up.
pub const METRICS_UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Sums up the samples of histograms again and again until it is told to stop.
/// A scrape does it too; but without one, samples would pile up in memory.
pub async fn keep_metrics(metrics: PrometheusHandle, interval: Duration, stop: CancellationToken) {
    while stop.run_until_cancelled(clock::sleep(interval)).await.is_some() {
        metrics.run_upkeep();
    }
}

/// Collects metrics from now on; [`keep_metrics`] must run beside.
pub fn start_metrics() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), LATENCY_BUCKETS)?
        .install_recorder()?;
    describe();
    Ok(handle)
}

/// The counters: name, help, and label with its values if these are known
/// beforehand. docs/operations.md lists them for operators.
///
/// Those are there from the start, at 0: the increase of a counter that begins
/// with its first event does not show that event. The others, by method and
/// operation, begin with it.
const COUNTERS: &[(&str, &str, Labels)] = &[
    ("turnkeep_turns_total", "Turns that were committed by a persist", Labels::None),
    ("turnkeep_persisted_payload_bytes_total", "Bytes of the payloads that were committed", Labels::None),
    (
        "turnkeep_restores_total",
        "Restores, by how the window was sent",
        Labels::Of(
            "change",
            &[
                "unchanged",
                "delta",
                "not_conditional",
                "unknown_window",
                "rewound",
                "revised",
                "parameters_changed",
                "nothing_in_common",
            ],
        ),
    ),
    ("turnkeep_outputs_total", "Tool outputs that were kept", Labels::None),
    ("turnkeep_output_raw_bytes_total", "Bytes of those tool outputs", Labels::None),
    (
        "turnkeep_outputs_moved_total",
        "Tool outputs that the metadata store held and that are in the object store since",
        Labels::None,
    ),
    ("turnkeep_restored_payload_bytes_total", "Bytes of the window items that were sent", Labels::None),
    ("turnkeep_requests_total", "gRPC calls, by method and status", Labels::Unlisted),
    ("turnkeep_overloaded_total", "Requests that were refused for want of room in memory", Labels::None),
    ("turnkeep_version_conflicts_total", "Persists that expected another version", Labels::None),
    (
        "turnkeep_replayed_requests_total",
        "Requests that got the recorded answer of an earlier one",
        Labels::None,
    ),
    ("turnkeep_unknown_commits_total", "Commits whose outcome had to be read back", Labels::None),
    (
        "turnkeep_segment_cache_total",
        "Segments that a restore needed, by whether they were in memory",
        Labels::Of("outcome", &["hit", "miss"]),
    ),
    (
        "turnkeep_window_cache_total",
        "Restores, by whether the session's window was in memory",
        Labels::Of("outcome", &["hit", "extended", "miss"]),
    ),
    (
        "turnkeep_window_states_total",
        "Recorded changes of what windows leave out and pin, by kind",
        Labels::Of(
            "kind",
            &["pins", "truncate", "snip", "summarize", "collapse", "undo", "rewind", "calibrate"],
        ),
    ),
    (
        "turnkeep_summaries_total",
        "Attempts at a summary by a model, by outcome",
        Labels::Of("outcome", &["ok", "failed"]),
    ),
    ("turnkeep_stalls_total", "Windows to which compactions brought no relief twice in a row", Labels::None),
    (
        "turnkeep_audit_losses_total",
        "What was said in entries that a compaction left out and that the window does not hold any more",
        Labels::Of(
            "subject",
            &[
                "pin",
                "constraint",
                "decision",
                "path",
                "url",
                "hash",
                "id",
                "symbol",
                "error-code",
                "number",
                "quoted",
            ],
        ),
    ),
    ("turnkeep_damaged_blobs_total", "Blobs whose bytes were not what the row says", Labels::None),
    ("turnkeep_blob_requests_total", "Calls of the object store, by operation and outcome", Labels::Unlisted),
    ("turnkeep_blob_bytes_total", "Bytes that were put and got, by operation", Labels::Unlisted),
    ("turnkeep_seals_total", "Segments that were written from journals", Labels::None),
    ("turnkeep_sealed_raw_bytes_total", "Bytes of those segments before compression", Labels::None),
    ("turnkeep_roll_ups_total", "Segments that were written from smaller ones", Labels::None),
    (
        "turnkeep_blobs_erased_total",
        "Blobs that were erased, by why",
        Labels::Of("why", &["tombstone", "orphan"]),
    ),
    (
        "turnkeep_upkeep_failures_total",
        "Failures of background work, by which",
        Labels::Of("work", &["seal", "outputs", "deletions", "sweep", "generation"]),
    ),
];

/// The label of a counter.
enum Labels {
    None,
    /// A label and all its values.
    Of(&'static str, &'static [&'static str]),
    /// Labels whose values come with events.
    Unlisted,
}

/// Makes the metrics known, with their help texts.
fn describe() {
    use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge};
    for (name, help, labels) in COUNTERS {
        describe_counter!(*name, *help);
        match labels {
            Labels::None => drop(counter!(*name)),
            Labels::Of(label, values) => {
                values.iter().for_each(|value| drop(counter!(*name, *label => *value)));
            }
            Labels::Unlisted => {}
        }
    }
    describe_histogram!("turnkeep_request_seconds", "Time until the answer or its first message, by method");
    describe_histogram!("turnkeep_blob_request_seconds", "Time of calls of the object store, by operation");
    describe_gauge!(
        "turnkeep_outputs_held",
        "Tool outputs of the whole service that wait for the object store, when this replica looked last"
    );
    gauge!("turnkeep_outputs_held").set(0.0);
    describe_gauge!("turnkeep_build_info", "Always 1; the version is in the label");
    gauge!("turnkeep_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of this process that is in use.
    fn resident_bytes() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn samples_that_nobody_scrapes_take_no_memory() {
        const SAMPLES: u64 = 4_000_000;
        let recorder = PrometheusBuilder::new().build_recorder();
        let sample = metrics::with_local_recorder(&recorder, || metrics::histogram!("seconds"));
        let stop = CancellationToken::new();
        let kept = tokio::spawn(keep_metrics(recorder.handle(), Duration::from_millis(1), stop.clone()));
        let before = resident_bytes();
        for _ in 0..SAMPLES {
            sample.record(0.1);
        }
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < SAMPLES * 8 / 2, "{grown} bytes for {SAMPLES} samples of 8");
        stop.cancel();
        kept.await.unwrap();
    }
}
