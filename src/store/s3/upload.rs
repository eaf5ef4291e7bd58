//! Multipart uploads.

use super::{S3Blobs, attempt_timeout, classify, status};
use crate::codec::digest;
use crate::model::Digest;
use crate::store::blob::{BlobStore as _, BlobUpload};
use crate::store::{ErrorKind, StoreError};
use async_trait::async_trait;
use aws_sdk_s3::config::Builder;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Size of a part: the least that S3 takes.
const PART_BYTES: usize = 5 << 20;

/// A blob that goes up in parts: one on its way while the next is gathered. A blob
/// that is smaller than a part is put as others are.
#[derive(Debug)]
pub(super) struct S3Upload {
    blobs: S3Blobs,
    key: String,
    /// What is not a whole part yet.
    pending: BytesMut,
    /// Bytes of the parts that were sent.
    sent_bytes: u64,
    /// The server's name of the upload; none before there is a whole part.
    id: Option<String>,
    on_its_way: Option<JoinHandle<Result<CompletedPart, StoreError>>>,
    parts: Vec<CompletedPart>,
    is_broken: bool,
}

impl S3Upload {
    pub(super) fn new(blobs: S3Blobs, key: String) -> Self {
        Self {
            blobs,
            key,
            pending: BytesMut::new(),
            sent_bytes: 0,
            id: None,
            on_its_way: None,
            parts: Vec::new(),
            is_broken: false,
        }
    }

    fn context(&self) -> String {
        format!("put {} in parts", self.key)
    }

    async fn gather(&mut self, part: &[u8]) -> Result<(), StoreError> {
        self.pending.extend_from_slice(part);
        while self.pending.len() >= PART_BYTES {
            let body = self.pending.split_to(PART_BYTES).freeze();
            self.send(body).await?;
        }
        Ok(())
    }

    /// Sends a part once the one before is there.
    async fn send(&mut self, body: Bytes) -> Result<(), StoreError> {
        let id = match &self.id {
            Some(id) => id.clone(),
            None => self.create().await?,
        };
        self.arrived().await?;
        self.sent_bytes += body.len() as u64;
        let number = i32::try_from(self.parts.len() + 1).unwrap_or(i32::MAX);
        let (blobs, key, context) = (self.blobs.clone(), self.key.clone(), self.context());
        self.on_its_way = Some(tokio::spawn(async move {
            let sha256 = STANDARD.encode(digest::sha256(&body).0);
            let timeout = attempt_timeout(body.len());
            let sent = blobs
                .client
                .upload_part()
                .bucket(&blobs.bucket)
                .key(blobs.full(&key))
                .upload_id(id)
                .part_number(number)
                .checksum_sha256(&sha256)
                .body(ByteStream::from(body))
                .customize()
                .config_override(Builder::new().timeout_config(timeout))
                .send()
                .await
                .map_err(|error| classify(context, error))?;
            Ok(CompletedPart::builder()
                .part_number(number)
                .set_e_tag(sent.e_tag)
                .checksum_sha256(sha256)
                .build())
        }));
        Ok(())
    }

    async fn create(&mut self) -> Result<String, StoreError> {
        let created = self
            .blobs
            .client
            .create_multipart_upload()
            .bucket(&self.blobs.bucket)
            .key(self.blobs.full(&self.key))
            .checksum_algorithm(ChecksumAlgorithm::Sha256)
            .customize()
            .config_override(Builder::new().timeout_config(attempt_timeout(0)))
            .send()
            .await
            .map_err(|error| classify(self.context(), error))?;
        let id = created
            .upload_id
            .ok_or_else(|| StoreError::new(ErrorKind::Unavailable, format!("{}: no id", self.context())))?;
        Ok(self.id.insert(id).clone())
    }

    /// Waits for the part that is on its way.
    async fn arrived(&mut self) -> Result<(), StoreError> {
        if let Some(part) = &mut self.on_its_way {
            let part = part.await.unwrap_or_else(|error| {
                Err(StoreError::caused(ErrorKind::Internal, "a part of an upload", error))
            });
            self.on_its_way = None;
            self.parts.push(part?);
        }
        Ok(())
    }

    async fn complete(&mut self, sha256: Digest) -> Result<(), StoreError> {
        if !self.pending.is_empty() {
            let rest = self.pending.split().freeze();
            self.send(rest).await?;
        }
        self.arrived().await?;
        let parts =
            CompletedMultipartUpload::builder().set_parts(Some(std::mem::take(&mut self.parts))).build();
        let size = usize::try_from(self.sent_bytes).unwrap_or(usize::MAX);
        let completed = self
            .blobs
            .client
            .complete_multipart_upload()
            .bucket(&self.blobs.bucket)
            .key(self.blobs.full(&self.key))
            .set_upload_id(self.id.clone())
            .if_none_match("*")
            .multipart_upload(parts)
            .customize()
            // Some servers put the parts together then.
            .config_override(Builder::new().timeout_config(attempt_timeout(size)))
            .send()
            .await;
        match completed {
            Ok(_) => {
                self.id = None;
                Ok(())
            }
            // Ours from an attempt before, or a defect: the bytes tell.
            Err(error) if matches!(status(&error), Some(404 | 412)) => {
                if self.blobs.size(&self.key).await? != Some(self.sent_bytes) {
                    return Err(match status(&error) {
                        Some(412) => StoreError::new(ErrorKind::KeyTaken, self.context()),
                        _ => StoreError::caused(ErrorKind::Unavailable, self.context(), error),
                    });
                }
                if self.stored_sha256().await? == sha256 {
                    Ok(())
                } else {
                    Err(StoreError::new(ErrorKind::KeyTaken, self.context()))
                }
            }
            Err(error) => Err(classify(self.context(), error)),
        }
    }

    /// SHA-256 of what is at the key, which is as large as what was sent.
    async fn stored_sha256(&self) -> Result<Digest, StoreError> {
        let mut sha256 = Sha256::new();
        let mut at = 0;
        while at < self.sent_bytes {
            let end = self.sent_bytes.min(at + PART_BYTES as u64);
            sha256.update(self.blobs.get_range(&self.key, at..end).await?);
            at = end;
        }
        Ok(Digest(sha256.finalize().into()))
    }
}

#[async_trait]
impl BlobUpload for S3Upload {
    async fn write(&mut self, part: Bytes) -> Result<(), StoreError> {
        if std::mem::replace(&mut self.is_broken, true) {
            let problem = format!("{}: an earlier write failed", self.context());
            return Err(StoreError::new(ErrorKind::Unavailable, problem));
        }
        self.gather(&part).await?;
        self.is_broken = false;
        Ok(())
    }

    async fn finish(mut self: Box<Self>, sha256: Digest) -> Result<(), StoreError> {
        self.write(Bytes::new()).await?;
        if self.id.is_none() {
            let body = self.pending.split().freeze();
            return self.blobs.put_new(&self.key, body, sha256).await;
        }
        self.complete(sha256).await
    }
}

impl Drop for S3Upload {
    fn drop(&mut self) {
        if let Some(part) = self.on_its_way.take() {
            part.abort();
        }
        let (Some(id), Ok(runtime)) = (self.id.take(), Handle::try_current()) else { return };
        // What a crash leaves of uploads is the bucket's lifecycle rule to remove.
        let (blobs, key) = (self.blobs.clone(), self.key.clone());
        runtime.spawn(async move {
            let aborted = blobs
                .client
                .abort_multipart_upload()
                .bucket(&blobs.bucket)
                .key(blobs.full(&key))
                .upload_id(id)
                .send()
                .await;
            if let Err(error) = aborted {
                tracing::debug!(key, %error, "an upload that was given up stays until the bucket removes it");
            }
        });
    }
}
