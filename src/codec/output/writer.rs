//! Writing the blob of a tool output.

use super::About;
use super::index::{FrameSizes, encode_tail};
use crate::codec::frame;
use crate::limits::{OUTPUT_ABOUT_BYTES_MAX, OUTPUT_FRAME_RAW_BYTES, OUTPUT_RAW_BYTES_MAX};
use crate::model::{Digest, Output};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::io::{Error, ErrorKind, Result, Write};
use zstd::bulk::Compressor;
use zstd::zstd_safe::compress_bound;

/// What is known of a tool output once its blob is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of the output.
    pub raw_bytes: u64,
    /// SHA-256 of the output.
    pub raw_sha256: Digest,
    /// Line breaks of the output.
    pub line_breaks: u64,
    /// Lines: as many as line breaks, and one more if bytes follow the last.
    pub lines: u64,
    /// Bytes of the blob.
    pub stored_bytes: u64,
    /// SHA-256 of the blob.
    pub stored_sha256: Digest,
    /// Where in the blob its tail begins.
    pub tail_at: u64,
}

impl Summary {
    /// The output, of which this is known beside.
    pub fn output(&self, about: About, key: Option<String>) -> Output {
        let about = About { bytes: self.raw_bytes, lines: self.lines, sha256: self.raw_sha256, ..about };
        about.into_output(key, self.stored_bytes, self.tail_at)
    }
}

/// Writes the blob of a tool output that comes in parts, in memory that grows by
/// 12 bytes for each 256 KiB. Without [`Writer::finish`] it is no blob.
pub struct Writer<W> {
    to: W,
    compressor: Compressor<'static>,
    /// What is not a whole frame yet.
    raw: Vec<u8>,
    /// The newest frame.
    stored: Vec<u8>,
    frames: Vec<FrameSizes>,
    raw_sha256: Sha256,
    stored_sha256: Sha256,
    last_byte: Option<u8>,
    /// Whether a write failed, of which a part may have been done.
    is_broken: bool,
}

impl<W: Write> Writer<W> {
    /// A writer of the blob to `to`.
    pub fn new(to: W) -> Result<Self> {
        Ok(Self {
            to,
            compressor: frame::compressor().map_err(Error::other)?,
            raw: Vec::with_capacity(OUTPUT_FRAME_RAW_BYTES),
            stored: Vec::with_capacity(compress_bound(OUTPUT_FRAME_RAW_BYTES)),
            frames: Vec::new(),
            raw_sha256: Sha256::new(),
            stored_sha256: Sha256::new(),
            last_byte: None,
            is_broken: false,
        })
    }

    /// What it writes to, for a caller that takes from there what was written.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.to
    }

    /// Takes in the next part, of any size. After an error only errors follow.
    pub fn push(&mut self, part: &[u8]) -> Result<()> {
        self.raw_sha256.update(part);
        self.last_byte = part.last().copied().or(self.last_byte);
        let mut rest = part;
        while !rest.is_empty() {
            if self.raw.len() == OUTPUT_FRAME_RAW_BYTES {
                self.write_frame()?;
            }
            let missing = OUTPUT_FRAME_RAW_BYTES.saturating_sub(self.raw.len()).min(rest.len());
            let (next, others) = rest.split_at(missing);
            self.raw.extend_from_slice(next);
            rest = others;
        }
        Ok(())
    }

    /// Writes what is left and the tail, with what the output is: its `bytes`, `lines`
    /// and `sha256` become those of the content that came. The caller flushes or syncs
    /// `to`.
    pub fn finish(mut self, about: About) -> Result<(W, Summary)> {
        if !self.raw.is_empty() {
            self.write_frame()?;
        }
        let sum =
            |of: fn(&FrameSizes) -> u32| self.frames.iter().map(|frame| u64::from(of(frame))).sum::<u64>();
        let raw_bytes = sum(|frame| frame.raw);
        let line_breaks = sum(|frame| frame.line_breaks);
        let tail_at = sum(|frame| frame.stored);
        let is_line_open = self.last_byte.is_some_and(|byte| byte != b'\n');
        let lines = line_breaks + u64::from(is_line_open);
        let raw_sha256 = Digest(self.raw_sha256.finalize_reset().into());
        let about = About { bytes: raw_bytes, lines, sha256: raw_sha256, ..about };
        let about = about.encode().map_err(Error::other)?;
        if about.len() > OUTPUT_ABOUT_BYTES_MAX {
            return Err(Error::new(ErrorKind::InvalidInput, "what the tool output is takes too many bytes"));
        }
        self.stored = encode_tail(&about, &self.frames);
        self.write_stored()?;
        let summary = Summary {
            raw_bytes,
            raw_sha256,
            line_breaks,
            lines,
            stored_bytes: tail_at + self.stored.len() as u64,
            stored_sha256: Digest(self.stored_sha256.finalize().into()),
            tail_at,
        };
        Ok((self.to, summary))
    }

    /// Writes `raw` as a frame.
    fn write_frame(&mut self) -> Result<()> {
        let raw_before = self.frames.len() as u64 * OUTPUT_FRAME_RAW_BYTES as u64;
        if raw_before + self.raw.len() as u64 > OUTPUT_RAW_BYTES_MAX {
            return Err(Error::new(ErrorKind::FileTooLarge, "the tool output is too large"));
        }
        self.compressor.compress_to_buffer(&self.raw, &mut self.stored)?;
        self.write_stored()?;
        let line_breaks = memchr::memchr_iter(b'\n', &self.raw).count();
        self.frames.push(FrameSizes {
            stored: u32::try_from(self.stored.len()).map_err(Error::other)?,
            raw: u32::try_from(self.raw.len()).map_err(Error::other)?,
            line_breaks: u32::try_from(line_breaks).map_err(Error::other)?,
        });
        self.raw.clear();
        Ok(())
    }

    fn write_stored(&mut self) -> Result<()> {
        if self.is_broken {
            return Err(Error::other("an earlier write failed"));
        }
        self.is_broken = true;
        self.to.write_all(&self.stored)?;
        self.is_broken = false;
        self.stored_sha256.update(&self.stored);
        Ok(())
    }
}

impl<W> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("frames", &self.frames.len()).finish_non_exhaustive()
    }
}
