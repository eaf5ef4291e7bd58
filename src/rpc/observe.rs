//! Counts and times calls.

use super::status::to_status;
use crate::clock::{self, Stopwatch};
use crate::engine::Error;
use std::time::Duration;
use tonic::{Response, Status};

/// Longest time until the answer, or the first message of one. A client's own
/// deadline holds if it is shorter.
const DEADLINE: Duration = Duration::from_mins(2);

/// Runs a call, and counts and times it.
pub(super) fn observe<T>(
    method: &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> impl Future<Output = Result<Response<T>, Status>> {
    observe_within(method, DEADLINE, call)
}

/// The same, of a call that may take longer.
pub(super) async fn observe_within<T>(
    method: &'static str,
    time: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<Response<T>, Status> {
    let started = Stopwatch::start();
    let result = clock::deadline(time, call).await.unwrap_or(Err(Error::DeadlineExceeded));
    let (outcome, code) = match result {
        Ok(answer) => (Ok(Response::new(answer)), tonic::Code::Ok),
        Err(error) => {
            let status = to_status(&error);
            let code = status.code();
            (Err(status), code)
        }
    };
    let code = format!("{code:?}");
    metrics::counter!("turnkeep_requests_total", "method" => method, "code" => code.clone()).increment(1);
    metrics::histogram!("turnkeep_request_seconds", "method" => method)
        .record(started.elapsed().as_secs_f64());
    tracing::debug!(method, code, elapsed_us = started.elapsed().as_micros(), "call");
    outcome
}
