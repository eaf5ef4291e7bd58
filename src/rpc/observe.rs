//! Counts and times calls.

use super::status::to_status;
use crate::clock::Stopwatch;
use crate::engine::Error;
use tonic::{Response, Status};

/// Runs a call, and counts and times it.
pub(super) async fn observe<T>(
    method: &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<Response<T>, Status> {
    let started = Stopwatch::start();
    let result = call.await;
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
