//! One POST over HTTP/1.1, with TLS where the URL wants it.

use super::InvalidOptions;
use crate::clock::Micros;
use crate::limits::PROVIDER_RESPONSE_BYTES_MAX;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

/// How long a connection is kept that is not used: less than what usual servers
/// and balancers keep it, so that none is used that they are about to close.
const IDLE: Duration = Duration::from_secs(30);
/// Pings of the operating system find out that the other end is gone.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    /// The connection could not be made, or ended too early.
    #[error("{0}")]
    Connection(String),
    /// The answer is longer than any may be.
    #[error("the answer has more than {PROVIDER_RESPONSE_BYTES_MAX} bytes")]
    TooLarge,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Bytes,
    pub(super) request_id: Option<String>,
    headers: HeaderMap,
}

impl Answer {
    /// The pause that the server asks for: in milliseconds, as OpenAI has it, in
    /// seconds, or until a time.
    pub(super) fn retry_after(&self, now: Micros) -> Option<Duration> {
        let text = |name: &str| self.headers.get(name)?.to_str().ok().map(str::trim);
        let number = |name: &str| text(name)?.parse::<f64>().ok().filter(|number| *number >= 0.0);
        let until = || {
            let until =
                jiff::fmt::rfc2822::parse(text(RETRY_AFTER.as_str())?).ok()?.timestamp().as_microsecond();
            Some(Duration::from_micros(u64::try_from(until.saturating_sub(now.0)).unwrap_or(0)))
        };
        let milliseconds = number("retry-after-ms").map(|milliseconds| milliseconds / 1000.0);
        let seconds = milliseconds.or_else(|| number(RETRY_AFTER.as_str()));
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).or_else(until)
    }
}

/// Posts to one URL.
#[derive(Debug)]
pub(super) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    headers: HeaderMap,
}

impl Http {
    /// A client for the URL that `path` makes of an endpoint.
    pub(super) fn new(
        endpoint: &str,
        path: &str,
        mut headers: HeaderMap,
        connect_timeout: Duration,
    ) -> Result<Self, InvalidOptions> {
        let url = url(endpoint, path).ok_or(InvalidOptions::Endpoint)?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(connect_timeout));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_nodelay(true);
        let tls = HttpsConnectorBuilder::new();
        let tls = if url.scheme_str() == Some("https") {
            tls.with_provider_and_native_roots(ring::default_provider())
                .map_err(InvalidOptions::Certificates)?
        } else {
            // It is never used, and the machine need not have certificates.
            let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(InvalidOptions::Tls)?;
            tls.with_tls_config(config.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
        };
        let connector = tls.https_or_http().enable_http1().wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self { client, url, headers })
    }

    /// Posts a body, and reads the whole answer.
    pub(super) async fn post(&self, body: Bytes) -> Result<Answer, HttpError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.headers.clone();
        let response =
            self.client.request(request).await.map_err(|error| HttpError::Connection(told(&error)))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, PROVIDER_RESPONSE_BYTES_MAX).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                HttpError::TooLarge
            } else {
                HttpError::Connection(told(error.as_ref()))
            }
        })?;
        let request_id = ["request-id", "x-request-id"].iter().find_map(|name| parts.headers.get(*name));
        Ok(Answer {
            status: parts.status.as_u16(),
            body: body.to_bytes(),
            request_id: request_id.and_then(|id| id.to_str().ok()).map(str::to_owned),
            headers: parts.headers,
        })
    }
}

/// An endpoint with a path added to its own, before its query.
fn url(endpoint: &str, path: &str) -> Option<Uri> {
    if endpoint.contains('#') {
        return None;
    }
    let endpoint: Uri = endpoint.parse().ok()?;
    let authority = endpoint.authority()?;
    if !matches!(endpoint.scheme_str(), Some("http" | "https")) || authority.as_str().contains('@') {
        return None;
    }
    let query = endpoint.query().map_or_else(String::new, |query| format!("?{query}"));
    let path = format!("{}{path}{query}", endpoint.path().trim_end_matches('/'));
    Uri::builder()
        .scheme(endpoint.scheme()?.clone())
        .authority(authority.clone())
        .path_and_query(path)
        .build()
        .ok()
}

/// An error with its causes.
fn told(error: &(dyn StdError + 'static)) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        told.push_str(": ");
        told.push_str(&error.to_string());
        cause = error.source();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_added_to_the_endpoint_s_own() {
        let table = [
            ("https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
            ("https://api.anthropic.com/", "https://api.anthropic.com/v1/messages"),
            ("http://[::1]:8080/proxy/", "http://[::1]:8080/proxy/v1/messages"),
            ("https://h/a?api-version=1", "https://h/a/v1/messages?api-version=1"),
        ];
        for (endpoint, expected) in table {
            assert_eq!(url(endpoint, "/v1/messages").unwrap().to_string(), expected);
        }
        for wrong in [
            "",
            "api.anthropic.com",
            "/v1",
            "ftp://h",
            "http://",
            "http://user:pass@h",
            "http://h/#a",
            "http://h h",
        ] {
            assert_eq!(url(wrong, "/v1/messages"), None, "{wrong}");
        }
    }

    #[test]
    fn a_pause_is_asked_for_in_milliseconds_in_seconds_or_until_a_time() {
        let asked = |headers: &[(&'static str, &'static str)]| {
            let headers =
                headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
            let answer =
                Answer { status: 429, body: Bytes::new(), request_id: None, headers: headers.collect() };
            // 1994-11-06 08:49:37.
            answer.retry_after(Micros(784_111_777_000_000))
        };
        let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
        assert_eq!(asked(&[("retry-after", "7")]), seconds(7.0));
        assert_eq!(asked(&[("retry-after", " 0.5 ")]), seconds(0.5));
        assert_eq!(asked(&[("retry-after", "2"), ("retry-after-ms", "1500")]), seconds(1.5));
        assert_eq!(asked(&[("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT")]), seconds(10.0));
        assert_eq!(asked(&[("retry-after", "Sun, 06 Nov 1994 08:49:30 GMT")]), seconds(0.0));
        for nothing in ["", "-1", "soon", "1e300", "inf", "NaN"] {
            assert_eq!(asked(&[("retry-after", nothing)]), None, "{nothing}");
        }
        assert_eq!(asked(&[]), None);
    }
}
