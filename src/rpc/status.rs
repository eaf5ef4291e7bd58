//! Engine errors as gRPC statuses with google.rpc details.

use crate::engine::{Error, Reason};
use crate::entropy::Entropy;
use std::collections::HashMap;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// Domain of the reasons in `google.rpc.ErrorInfo`.
pub const ERROR_DOMAIN: &str = "turnkeep.dev";

/// What is told of a window that cannot fit.
const WINDOW_TOKENS: [&str; 4] =
    ["context_window_tokens", "message_tokens", "kept_tokens", "last_step_tokens"];

const MAKE_ROOM: &str = "shorten the last step, unpin, or choose a model with a larger window";

/// The status of an error. Text that is not meant for clients goes to the log,
/// under an id that the client gets.
pub fn to_status(error: &Error) -> Status {
    let reason = error.reason();
    let mut details = ErrorDetails::new();
    let mut metadata: HashMap<String, String> = HashMap::new();
    let mut tell = |name: &str, value: String| drop(metadata.insert(name.to_owned(), value));
    let mut message = error.to_string();
    match error {
        Error::InvalidField { field, problem } => {
            tell("field", field.clone());
            details.add_bad_request_violation(field, problem);
        }
        Error::SessionNotFound { session } | Error::SessionExists { session, .. } => {
            let name = session.resource_name();
            details.set_resource_info("turnkeep.v1.Session", &name, "", "");
            tell("session", name);
        }
        Error::OutputNotFound { name } => {
            let name = name.resource_name();
            details.set_resource_info("turnkeep.v1.ToolOutput", &name, "", "");
            tell("output", name);
        }
        Error::OutputLost { name, .. } => {
            let name = name.resource_name();
            message = format!("{name} cannot be read");
            tell("output", name);
        }
        Error::VersionNotFound { session, current, .. } => {
            tell("session", session.resource_name());
            tell("current_version", current.to_string());
        }
        Error::VersionMismatch { session, expected, current } => {
            tell("session", session.resource_name());
            tell("expected_version", expected.to_string());
            tell("current_version", current.to_string());
        }
        Error::EtagMismatch { session, current, .. } => {
            tell("session", session.resource_name());
            tell("current_etag", current.clone());
        }
        Error::RequestIdReused { version } => {
            tell("version", version.to_string());
            details.add_bad_request_violation("request_id", "was used for another request");
        }
        Error::SnapshotContradictsLog { index, problem, current } => {
            tell("index", index.to_string());
            tell("current_version", current.to_string());
            let subject = format!("snapshot.entries[{index}]");
            details.add_precondition_failure_violation("SNAPSHOT_CONTINUES_LOG", subject, *problem);
        }
        Error::JournalFull { session, bytes, limit } => {
            tell("session", session.resource_name());
            tell("limit_bytes", limit.to_string());
            let problem = format!("{bytes} bytes in the journal");
            details.add_quota_failure_violation(session.resource_name(), problem);
        }
        Error::WindowCannotFit { session, context, rest, head, last } => {
            tell("session", session.resource_name());
            let tokens = [context, rest, head, last];
            WINDOW_TOKENS.into_iter().zip(tokens).for_each(|(name, tokens)| tell(name, tokens.to_string()));
            details.add_precondition_failure_violation("WINDOW_FITS", session.resource_name(), MAKE_ROOM);
        }
        Error::CompactionNotFound { session, number } => {
            tell("session", session.resource_name());
            tell("compaction", number.to_string());
        }
        Error::Overloaded { limit } | Error::OutputTooLarge { limit } => {
            tell("limit_bytes", limit.to_string());
        }
        Error::Contention { session, .. }
        | Error::ContextWindowUnknown { session }
        | Error::NoteNotFound { session } => tell("session", session.resource_name()),
        Error::LineageTooDeep { limit } => {
            tell("limit", limit.to_string());
            details.add_precondition_failure_violation("LINEAGE_DEPTH", "session", "delete or start afresh");
        }
        Error::DataLoss { session, first, last, .. } => {
            tell("session", session.resource_name());
            tell("first_seq", first.to_string());
            tell("last_seq", last.to_string());
            message = format!("entries {first} to {last} of session {session} cannot be read");
        }
        Error::Internal { context, source } => {
            // Joins what the client is told with what the log says.
            let id = Entropy::of_process().hex::<8>();
            let source = source.as_ref().map(ToString::to_string);
            tracing::error!(error_id = id, context, source, "internal error");
            message = format!("internal error {id}");
            tell("error_id", id);
        }
        Error::Unavailable { .. }
        | Error::StorageFull { .. }
        | Error::OutcomeUnknown { .. }
        | Error::NewerFormat { .. }
        | Error::Draining
        | Error::DeadlineExceeded => {}
    }
    log(error, reason);
    details.set_error_info(reason.as_str(), ERROR_DOMAIN, metadata);
    if let Some(delay) = error.retry_after() {
        details.set_retry_info(Some(delay));
    }
    Status::with_error_details(code(reason), message, details)
}

/// Logs what an operator has to know of an error and a client is not told.
fn log(error: &Error, reason: Reason) {
    match error {
        Error::OutputLost { name, problem } => {
            let output = name.resource_name();
            tracing::error!(output, problem, "a stored tool output cannot be read");
        }
        Error::DataLoss { session, first, last, problem } => {
            tracing::error!(%session, %first, %last, problem, "stored entries cannot be read");
        }
        Error::Unavailable { source, .. } => {
            let source = source.as_ref().map(chain);
            tracing::warn!(reason = reason.as_str(), source, "a request failed");
        }
        Error::StorageFull { source } | Error::OutcomeUnknown { source } => {
            tracing::warn!(reason = reason.as_str(), source = chain(source), "a request failed");
        }
        _ => {}
    }
}

/// An error with all that caused it, for the log.
fn chain(error: &impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// The code of a reason; docs/errors.md has the same table.
pub(super) fn code(reason: Reason) -> Code {
    match reason {
        Reason::InvalidField | Reason::RequestIdReused => Code::InvalidArgument,
        Reason::SessionNotFound
        | Reason::VersionNotFound
        | Reason::OutputNotFound
        | Reason::CompactionNotFound
        | Reason::NoteNotFound => Code::NotFound,
        Reason::SessionExists => Code::AlreadyExists,
        Reason::OutputTooLarge => Code::OutOfRange,
        Reason::VersionMismatch | Reason::EtagMismatch | Reason::Contention => Code::Aborted,
        Reason::SnapshotContradictsLog
        | Reason::LineageTooDeep
        | Reason::NewerFormat
        | Reason::WindowCannotFit
        | Reason::ContextWindowUnknown => Code::FailedPrecondition,
        Reason::JournalFull
        | Reason::MetadataUnavailable
        | Reason::ObjectsUnavailable
        | Reason::OutcomeUnknown
        | Reason::Overloaded
        | Reason::Draining => Code::Unavailable,
        Reason::StorageFull => Code::ResourceExhausted,
        Reason::DeadlineExceeded => Code::DeadlineExceeded,
        Reason::DataLoss => Code::DataLoss,
        Reason::Internal => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::super::details::TRANSPORT_REASONS;
    use super::*;

    /// docs/errors.md is the operators' and clients' table: it must name every
    /// reason, with its code, and none that does not exist.
    #[test]
    fn every_reason_is_documented_with_its_code() {
        let page = include_str!("../../docs/errors.md");
        let rows: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("| `")).collect();
        let engine = Reason::ALL.map(|reason| (reason.as_str(), code(reason)));
        let reasons: Vec<_> =
            engine.into_iter().chain(TRANSPORT_REASONS.map(|(reason, code, _)| (reason, code))).collect();
        for (reason, code) in &reasons {
            let row = rows.iter().find(|row| row.starts_with(&format!("{reason}`")));
            let row = row.unwrap_or_else(|| panic!("{reason} has no row"));
            let wire = row.split('|').nth(1).unwrap().trim().replace('_', "").to_lowercase();
            assert_eq!(wire, format!("{code:?}").to_lowercase(), "{reason}");
        }
        assert_eq!(rows.len(), reasons.len());
    }
}
