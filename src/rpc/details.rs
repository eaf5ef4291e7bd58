//! Details for failures that never reach a service: what cannot be decoded, is
//! too large, or calls a method that does not exist.

use super::status::ERROR_DOMAIN;
use crate::limits::REQUEST_BYTES_MAX;
use std::collections::HashMap;
use tonic::codegen::http::Response;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// Reasons of such failures, each with the code that tonic gives it and what a
/// client is told.
#[cfg(test)]
pub(super) const TRANSPORT_REASONS: [(&str, Code, &str); 4] =
    [REQUEST_TOO_LARGE, UNKNOWN_METHOD, UNSUPPORTED_COMPRESSION, MALFORMED_REQUEST];

const REQUEST_TOO_LARGE: (&str, Code, &str) = (
    "REQUEST_TOO_LARGE",
    Code::OutOfRange,
    "the request is larger than 32 MiB: split the turn, or keep large tool output out of it",
);
const UNKNOWN_METHOD: (&str, Code, &str) = ("UNKNOWN_METHOD", Code::Unimplemented, "there is no such method");
const UNSUPPORTED_COMPRESSION: (&str, Code, &str) =
    ("UNSUPPORTED_COMPRESSION", Code::Unimplemented, "requests must not be compressed");
const MALFORMED_REQUEST: (&str, Code, &str) =
    ("MALFORMED_REQUEST", Code::Internal, "the request could not be decoded");

const _: () = assert!(REQUEST_BYTES_MAX == 32 << 20);

/// Gives a failed response its details, if it has none.
pub fn complete<B>(mut response: Response<B>) -> Response<B> {
    let Some(status) = Status::from_header_map(response.headers()) else { return response };
    if status.code() == Code::Ok || !status.details().is_empty() {
        return response;
    }
    let known = match status.code() {
        Code::OutOfRange => Some(REQUEST_TOO_LARGE),
        // Of a method that is not there nothing is said.
        Code::Unimplemented if status.message().is_empty() => Some(UNKNOWN_METHOD),
        Code::Unimplemented => Some(UNSUPPORTED_COMPRESSION),
        Code::Internal => Some(MALFORMED_REQUEST),
        _ => None,
    };
    if let Some((reason, code, message)) = known {
        let details = ErrorDetails::with_error_info(reason, ERROR_DOMAIN, HashMap::new());
        let completed = Status::with_error_details(code, message, details);
        // The old headers go out if these cannot be written.
        let mut headers = response.headers().clone();
        if completed.add_header(&mut headers).is_ok() {
            *response.headers_mut() = headers;
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(status: Status) -> Status {
        let response: Response<()> = complete(status.into_http());
        Status::from_header_map(response.headers()).unwrap()
    }

    #[test]
    fn a_failure_without_details_gets_them_and_others_stay() {
        for (reason, code, message) in TRANSPORT_REASONS {
            let bare = if reason == "UNKNOWN_METHOD" { "" } else { "bare" };
            let status = completed(Status::new(code, bare));
            let given = status.get_details_error_info().unwrap().reason;
            assert_eq!((given.as_str(), status.code(), status.message()), (reason, code, message));
        }
        let details = ErrorDetails::with_error_info("OURS", ERROR_DOMAIN, HashMap::new());
        let status = completed(Status::with_error_details(Code::Internal, "message", details));
        assert_eq!(status.get_details_error_info().unwrap().reason, "OURS");
        let response: Response<()> = complete(Response::new(()));
        assert!(response.headers().is_empty());
    }
}
