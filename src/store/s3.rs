//! Blobs in S3 and what speaks its protocol: AWS, `SeaweedFS`, `MinIO`, Garage,
//! Ceph.

mod upload;

use crate::clock::{self, Micros};
use crate::codec::digest;
use crate::model::Digest;
use crate::store::blob::{
    BlobInfo, BlobStore, BlobUpload, PROBE_KEY, ends_early, probe_create_only, range_length,
    verifies_checksums,
};
use crate::store::{ErrorKind, StoreError};
use async_trait::async_trait;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{ResponseChecksumValidation, StalledStreamProtectionConfig};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use aws_smithy_http_client::Builder as HttpBuilder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_smithy_runtime_api::http::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::join_all;
use std::ops::Range;
use std::time::Duration;
use upload::S3Upload;

/// Where the blobs are. Credentials come from the environment or the machine's
/// role, as the AWS SDK finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Options {
    /// The bucket, which must exist.
    pub bucket: String,
    /// Put before each key; empty or with a slash at its end.
    pub prefix: String,
    /// URL of the server, if it is not AWS.
    pub endpoint: Option<String>,
    /// The region; the SDK's default if empty.
    pub region: Option<String>,
    /// Whether the bucket stands in the path and not in the host name.
    pub path_style: bool,
}

/// One attempt may take so long, and a second more for each MiB.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that are opened at the start.
const OPEN_CONNECTIONS: usize = 4;
/// Attempts of one call; the SDK's token bucket bounds them over all calls.
const ATTEMPTS: u32 = 3;

/// Blobs in an S3 bucket.
#[derive(Debug, Clone)]
pub struct S3Blobs {
    client: Client,
    /// The same for reads, whose attempts all may take the same time: a request
    /// that says so itself has its configuration made anew.
    reader: Client,
    bucket: String,
    prefix: String,
}

impl S3Blobs {
    /// Connects. Nothing is sent before the first call.
    pub async fn connect(options: S3Options) -> Self {
        let http = HttpBuilder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
        let timeouts = TimeoutConfig::builder().connect_timeout(Duration::from_secs(3)).build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .http_client(http)
            .timeout_config(timeouts.clone())
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS));
        if let Some(region) = options.region {
            loader = loader.region(Region::new(region));
        }
        let config = loader.load().await;
        let mut builder = aws_sdk_s3::config::Builder::from(&config)
            .force_path_style(options.path_style)
            // What is read is checked by its digest, or its frame's checksum, before
            // it is decoded.
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
        if let Some(endpoint) = options.endpoint {
            builder = builder.endpoint_url(endpoint);
        }
        let client = Client::from_conf(builder.clone().build());
        let timeouts = timeouts.to_builder().operation_attempt_timeout(body_deadline(0)).build();
        // A body that stalls is noticed by its deadline.
        let stalled = StalledStreamProtectionConfig::disabled();
        let reader = builder.timeout_config(timeouts).stalled_stream_protection(stalled);
        let reader = Client::from_conf(reader.build());
        Self { client, reader, bucket: options.bucket, prefix: options.prefix }
    }

    /// A blob, or these bytes of it.
    async fn fetch(&self, key: &str, range: Option<&Range<u64>>) -> Result<Bytes, StoreError> {
        let context = || format!("get {key}");
        let got = self
            .reader
            .get_object()
            .bucket(&self.bucket)
            .key(self.full(key))
            .set_range(range.map(|range| format!("bytes={}-{}", range.start, range.end.saturating_sub(1))))
            .send()
            .await
            .map_err(|error| match range {
                Some(range) if status(&error) == Some(416) => ends_early(key, range),
                _ => classify(context(), error),
            })?;
        let length = got.content_length().and_then(|length| usize::try_from(length).ok());
        // The SDK's timeouts end with the headers.
        let body = clock::deadline(body_deadline(length.unwrap_or(0)), got.body.collect()).await;
        let body = match body {
            None => {
                return Err(StoreError::new(
                    ErrorKind::Unavailable,
                    format!("{}: the body stalled", context()),
                ));
            }
            Some(Err(error)) => return Err(StoreError::caused(ErrorKind::Unavailable, context(), error)),
            Some(Ok(body)) => body.into_bytes(),
        };
        if length.is_some_and(|length| length != body.len()) {
            return Err(StoreError::new(
                ErrorKind::Unavailable,
                format!("{}: the body was cut short", context()),
            ));
        }
        Ok(body)
    }

    fn full(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

/// Time for one attempt of a call that moves so many bytes.
fn attempt_timeout(bytes: usize) -> TimeoutConfig {
    TimeoutConfig::builder().operation_attempt_timeout(body_deadline(bytes)).build()
}

fn body_deadline(bytes: usize) -> Duration {
    ATTEMPT_TIMEOUT + Duration::from_secs(bytes as u64 >> 20)
}

#[async_trait]
impl BlobStore for S3Blobs {
    async fn put_new(&self, key: &str, body: Bytes, sha256: Digest) -> Result<(), StoreError> {
        let size = body.len();
        let put = self
            .client
            .put_object()
            .bucket(&self.bucket)
            .key(self.full(key))
            .if_none_match("*")
            .checksum_sha256(STANDARD.encode(sha256.0))
            .body(ByteStream::from(body))
            .customize()
            .config_override(aws_sdk_s3::config::Config::builder().timeout_config(attempt_timeout(size)))
            .send()
            .await;
        match put {
            Ok(_) => Ok(()),
            // Ours from an attempt before, or a defect: the bytes tell.
            Err(error) if status(&error) == Some(412) => {
                if digest::sha256(&self.get(key).await?) == sha256 {
                    Ok(())
                } else {
                    Err(StoreError::new(ErrorKind::KeyTaken, format!("put {key}")))
                }
            }
            Err(error) => Err(classify(format!("put {key}"), error)),
        }
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn BlobUpload>, StoreError> {
        Ok(Box::new(S3Upload::new(self.clone(), key.to_owned())))
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.fetch(key, None).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let length = range_length(key, &range)?;
        let body = self.fetch(key, Some(&range)).await?;
        if body.len() == length { Ok(body) } else { Err(ends_early(key, &range)) }
    }

    async fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        let head = self.client.head_object().bucket(&self.bucket).key(self.full(key)).send().await;
        match head {
            Ok(head) => {
                Ok(Some(head.content_length().and_then(|length| u64::try_from(length).ok()).unwrap_or(0)))
            }
            Err(error) => {
                let failed = classify(format!("head {key}"), error);
                if failed.kind != ErrorKind::NotFound {
                    return Err(failed);
                }
                // The answer to HEAD has no body that says what is not there.
                let bucket = self.client.head_bucket().bucket(&self.bucket).send().await;
                bucket.map_err(|error| {
                    StoreError::caused(ErrorKind::Unavailable, format!("head {key}"), error)
                })?;
                Ok(None)
            }
        }
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let deleted = self.client.delete_object().bucket(&self.bucket).key(self.full(key)).send().await;
        match deleted {
            Ok(_) => Ok(()),
            Err(error) => match classify(format!("delete {key}"), error) {
                failed if failed.kind == ErrorKind::NotFound => Ok(()),
                failed => Err(failed),
            },
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobInfo>, StoreError> {
        let page = self
            .client
            .list_objects_v2()
            .bucket(&self.bucket)
            .prefix(self.full(prefix))
            .set_start_after(after.map(|key| self.full(key)))
            .max_keys(i32::try_from(limit.min(1000)).unwrap_or(1000))
            .send()
            .await
            .map_err(|error| classify(format!("list {prefix}"), error))?;
        let blobs = page.contents().iter().filter_map(|object| {
            let key = object.key()?.strip_prefix(&self.prefix)?.to_owned();
            let bytes = object.size().and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
            let written_at = object.last_modified().map_or(0, |at| at.secs().saturating_mul(1_000_000));
            Some(BlobInfo { key, bytes, written_at: Micros(written_at) })
        });
        Ok(blobs.collect())
    }

    async fn probe(&self) -> Result<(), StoreError> {
        probe_create_only(self).await?;
        // A restore gets several blobs at once; the first one need not wait for
        // connections.
        join_all((0..OPEN_CONNECTIONS).map(|_| self.get(PROBE_KEY))).await;
        if !verifies_checksums(self).await? {
            tracing::warn!(bucket = self.bucket, "the object store does not verify SHA-256 checksums");
        }
        Ok(())
    }
}

fn status<E>(error: &SdkError<E, Response>) -> Option<u16> {
    error.raw_response().map(|response| response.status().as_u16())
}

fn classify<E>(context: String, error: SdkError<E, Response>) -> StoreError
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let kind = kind_of(status(&error), error.code());
    StoreError::caused(kind, context, error)
}

/// The kind of a failure: `Internal` are only requests that fail whenever they
/// are made. Credentials, policies and buckets are mended while the service
/// runs, and until then it does as in any other outage.
/// Source: <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>.
fn kind_of(status: Option<u16>, code: Option<&str>) -> ErrorKind {
    // Answers to HEAD have no code.
    const MENDABLE: [Option<&str>; 7] = [
        None,
        Some("AuthorizationHeaderMalformed"),
        Some("ExpiredToken"),
        Some("IncompleteBody"),
        Some("InvalidToken"),
        Some("RequestTimeout"),
        Some("TokenRefreshRequired"),
    ];
    match status {
        Some(404) if code == Some("NoSuchBucket") => ErrorKind::Unavailable,
        Some(404) => ErrorKind::NotFound,
        Some(507) => ErrorKind::Full,
        Some(301 | 307 | 401 | 403 | 408 | 409 | 429 | 500..) | None => ErrorKind::Unavailable,
        Some(400) if MENDABLE.contains(&code) => ErrorKind::Unavailable,
        Some(_) => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_operator_can_mend_is_an_outage_and_no_defect() {
        let table = [
            (None, None, ErrorKind::Unavailable),
            (Some(503), Some("SlowDown"), ErrorKind::Unavailable),
            (Some(403), Some("AccessDenied"), ErrorKind::Unavailable),
            (Some(403), Some("RequestTimeTooSkewed"), ErrorKind::Unavailable),
            (Some(401), None, ErrorKind::Unavailable),
            (Some(400), Some("ExpiredToken"), ErrorKind::Unavailable),
            (Some(400), Some("RequestTimeout"), ErrorKind::Unavailable),
            (Some(400), None, ErrorKind::Unavailable),
            (Some(404), Some("NoSuchBucket"), ErrorKind::Unavailable),
            (Some(404), Some("NoSuchKey"), ErrorKind::NotFound),
            (Some(404), None, ErrorKind::NotFound),
            (Some(507), None, ErrorKind::Full),
            (Some(400), Some("BadDigest"), ErrorKind::Internal),
            (Some(400), Some("InvalidArgument"), ErrorKind::Internal),
            (Some(405), Some("MethodNotAllowed"), ErrorKind::Internal),
        ];
        for (status, code, kind) in table {
            assert_eq!(kind_of(status, code), kind, "{status:?} {code:?}");
        }
    }
}
