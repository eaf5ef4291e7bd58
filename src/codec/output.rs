//! Tool outputs as blobs: seekable zstd, with an index of lines.
//!
//! ```text
//! zstd frame          of 256 KiB raw each, the last of what is left
//! …
//! skippable frame     the line index, and what the output is
//! skippable frame     the seek table of the zstd seekable format
//! ```
//!
//! `zstdcat` reads the whole without this crate, and readers of the zstd seekable
//! format any part of it. The last two frames are the *tail*, [`Index`] in memory;
//! a reader gets it first, then the frames that hold what it wants.

mod about;
mod index;
mod writer;

pub use about::About;
pub use index::{END_BYTES, Frame, Index, tail_bytes};
pub use writer::{Summary, Writer};

/// The format that this version writes and the newest that it reads.
pub const FORMAT: u32 = 1;
