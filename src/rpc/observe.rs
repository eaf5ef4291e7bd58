//! Counts and times calls.

use super::status::to_status;
use crate::clock::{self, Stopwatch};
use crate::engine::Error;
use std::time::Duration;
use tonic::metadata::MetadataMap;
use tonic::{Response, Status};

/// Longest time until the answer, or the first message of one. A client's own
/// deadline holds if it is shorter.
const DEADLINE: Duration = Duration::from_mins(2);

/// The time that a call may take, by its client's deadline too.
pub(super) fn allowed(metadata: &MetadataMap) -> Duration {
    let timeout = metadata.get("grpc-timeout").and_then(|value| value.to_str().ok());
    timeout.and_then(read_timeout).map_or(DEADLINE, |timeout| timeout.min(DEADLINE))
}

/// A timeout as gRPC writes it, such as `250m` for 250 milliseconds.
fn read_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_hours(number),
        "M" => Duration::from_mins(number),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_may_take_what_its_client_says_and_two_minutes_at_most() {
        let of = |timeout: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", timeout.parse().unwrap());
            allowed(&metadata)
        };
        assert_eq!(allowed(&MetadataMap::new()), DEADLINE);
        assert_eq!(of("3S"), Duration::from_secs(3));
        assert_eq!(of("2500000u"), Duration::from_millis(2_500));
        assert_eq!(of("250m"), Duration::from_millis(250));
        for more in ["1H", "99999999H", "", "S", "3", "x3S", "-1S", "123456789n"] {
            assert_eq!(of(more), DEADLINE, "{more}");
        }
    }
}
