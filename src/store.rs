//! Where sessions are kept: metadata in Postgres or `SQLite`, blobs in S3 or a
//! directory.

pub mod blob;
pub mod faulty;
pub mod local;
pub mod meta;
pub mod metered;
pub mod probed;
#[cfg(feature = "s3")]
pub mod s3;
pub mod sql;

pub use blob::BlobStore;
pub use meta::MetaStore;

/// What a caller of a store can do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The store cannot be reached or is overloaded; nothing was written. Try
    /// again.
    Unavailable,
    /// Transactions got in each other's way; nothing was written. Try again.
    Contention,
    /// Whether a commit or write took effect is not known. Read it back.
    Unknown,
    /// What was asked for is not there.
    NotFound,
    /// The key holds other bytes.
    KeyTaken,
    /// A unique key is taken already; nothing was written.
    Duplicate,
    /// The writer generation was fenced; nothing was written. Take a new
    /// generation and fresh keys.
    Fenced,
    /// The disk is full; nothing was written.
    Full,
    /// What is stored is not what it should be.
    Corrupt,
    /// A defect: of the statement, the schema or this program.
    Internal,
}

/// A failure of a store.
#[derive(Debug, thiserror::Error)]
#[error("{context}: {kind:?}")]
pub struct StoreError {
    /// What a caller can do about it.
    pub kind: ErrorKind,
    /// What was being done.
    pub context: String,
    /// What happened below.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    /// A failure without a cause below.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    /// A failure with its cause.
    pub fn caused(
        kind: ErrorKind,
        context: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, context: context.into(), source: Some(source.into()) }
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::Contention | ErrorKind::Unknown)
    }
}
