//! Bytes and their meaning: entry lines, segments, tool outputs, digests, tokens
//! that name windows. CPU only.

pub mod digest;
pub mod frame;
pub mod line;
pub mod manifest;
pub mod output;
pub mod segment;
pub mod window_id;

/// Why stored bytes could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// They are damaged or were never ours.
    #[error("damaged: {0}")]
    Damaged(String),
    /// They are larger than the row or the limit allows.
    #[error("decodes to more than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// A newer version of the service wrote them.
    #[error("has format {found}; this version reads up to {newest}")]
    NewerFormat {
        /// The format that is needed.
        found: u32,
        /// The newest that this version reads.
        newest: u32,
    },
}

impl CodecError {
    fn damaged(what: impl std::fmt::Display) -> Self {
        Self::Damaged(what.to_string())
    }
}
