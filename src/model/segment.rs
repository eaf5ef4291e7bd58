//! Rows about segments.

use crate::clock::Micros;
use crate::model::{BranchId, Digest, Seq, Version};

/// An immutable blob in object storage that holds a contiguous run of a
/// branch's entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The branch.
    pub branch: BranchId,
    /// Seq of its first entry.
    pub first_seq: Seq,
    /// Seq of its last entry; one less than `first_seq` if it holds only turns
    /// without entries.
    pub last_seq: Seq,
    /// First turn that it holds.
    pub first_version: Version,
    /// Last turn that it holds.
    pub last_version: Version,
    /// Its key in the blob store.
    pub key: String,
    /// SHA-256 of the stored bytes.
    pub sha256: Digest,
    /// Stored bytes.
    pub stored_bytes: u64,
    /// Bytes that it decodes to.
    pub raw_bytes: u64,
    /// Version of the segment format.
    pub format: u32,
    /// When it was written.
    pub created_at: Micros,
}
