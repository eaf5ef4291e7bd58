//! The tail of a tool output's blob: where its frames lie and which lines they
//! hold.
//!
//! All numbers are little-endian, of 32 bits if nothing else is said:
//!
//! ```text
//! line index   0x184D2A54, bytes that follow in this frame,
//!              "turnkeep output\n", format, bytes of the next,
//!              what the output is, as JSON,
//!              for each zstd frame: its line breaks,
//!              SHA-256 of all other bytes of the tail
//! seek table   0x184D2A5E, bytes that follow in this frame,
//!              for each zstd frame and the line index: stored bytes, raw bytes,
//!              how many those are, a zero byte (no checksums: frames have their
//!              own), 0x8F92EAB1
//! ```
//!
//! The seek table is that of zstd's `contrib/seekable_format`. It is written here,
//! because the crate that does it, zeekstd, reserves memory for as many frames as
//! a table claims to have, and would save a few lines; a test reads blobs with it.

use super::{About, FORMAT};
use crate::codec::{CodecError, digest, frame};
use crate::limits::{OUTPUT_ABOUT_BYTES_MAX, OUTPUT_FRAME_RAW_BYTES, OUTPUT_RAW_BYTES_MAX};
use bytes::Bytes;
use std::ops::Range;

/// Begins the line index: a skippable frame that other readers have no use for.
const INDEX_MAGIC: u32 = 0x184D_2A54;
/// Begins the seek table, a skippable frame as well.
const SEEK_TABLE_MAGIC: u32 = 0x184D_2A5E;
/// Ends the seek table.
const SEEKABLE_MAGIC: u32 = 0x8F92_EAB1;

const NAME: &[u8; 16] = b"turnkeep output\n";
const NAME_AT: usize = 8;
const FORMAT_AT: usize = NAME_AT + NAME.len();
const ABOUT_BYTES_AT: usize = FORMAT_AT + 4;
const ABOUT_AT: usize = ABOUT_BYTES_AT + 4;
/// Bytes between the line breaks and the entries of the seek table: the SHA-256,
/// magic number and size.
const MIDDLE_BYTES: usize = 32 + 8;
/// Bytes after the entries of frames: the index's entry and the footer. They tell how
/// long the tail is.
pub const END_BYTES: usize = 8 + 9;
/// Bytes for each frame: its line breaks and its entry.
const FRAME_BYTES: usize = 4 + 8;

/// What the tail says of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSizes {
    pub(super) stored: u32,
    pub(super) raw: u32,
    pub(super) line_breaks: u32,
}

/// The tail of a blob of that output, with these frames.
pub(super) fn encode_tail(about: &[u8], frames: &[FrameSizes]) -> Vec<u8> {
    let line_breaks: Vec<_> = frames.iter().flat_map(|frame| frame.line_breaks.to_le_bytes()).collect();
    let index_bytes = ABOUT_AT + about.len() + line_breaks.len() + 32;
    let index = [
        &INDEX_MAGIC.to_le_bytes()[..],
        &number(index_bytes - 8),
        NAME,
        &FORMAT.to_le_bytes(),
        &number(about.len()),
        about,
        &line_breaks,
    ]
    .concat();
    let entries = frames.iter().flat_map(|frame| [frame.stored.to_le_bytes(), frame.raw.to_le_bytes()]);
    let entries: Vec<_> = entries.chain([number(index_bytes), number(0)]).flatten().collect();
    let seek_table = [
        &SEEK_TABLE_MAGIC.to_le_bytes()[..],
        &number(entries.len() + 9),
        &entries,
        &number(frames.len() + 1),
        &[0],
        &SEEKABLE_MAGIC.to_le_bytes(),
    ]
    .concat();
    let sha256 = digest::sha256(&[&index[..], &seek_table].concat());
    [&index[..], &sha256.0, &seek_table].concat()
}

/// Bytes of the tail of a blob that ends with these bytes, [`END_BYTES`] at least.
pub fn tail_bytes(end: &[u8]) -> Result<u64, CodecError> {
    /// Most frames that a blob may have.
    const FRAMES_MAX: u64 = OUTPUT_RAW_BYTES_MAX / OUTPUT_FRAME_RAW_BYTES as u64;
    let damaged = || CodecError::damaged("the end of a tool output");
    let end = end.last_chunk::<END_BYTES>().ok_or_else(damaged)?;
    let number = |at: usize| number_at(end, at).map(u64::from);
    let (index, frames) = (number(0).ok_or_else(damaged)?, number(8).ok_or_else(damaged)?);
    let index_max = ABOUT_AT as u64 + OUTPUT_ABOUT_BYTES_MAX as u64 + 4 * FRAMES_MAX + 32;
    if number(13) != Some(u64::from(SEEKABLE_MAGIC)) || index > index_max || frames > FRAMES_MAX + 1 {
        return Err(damaged());
    }
    Ok(index + 8 + 8 * frames + 9)
}

/// A number of the tail. That of an output of the largest size is near 2^20.
fn number(number: usize) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks::<4>().0.iter().map(|number| u32::from_le_bytes(*number))
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|number| u32::from_le_bytes(*number))
}

/// The frames of a blob that hold its content, in order, and what it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    frames: Vec<Frame>,
    about: Vec<u8>,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Where it lies in the blob.
    pub stored: Range<u64>,
    /// The bytes of the content that it holds.
    pub raw: Range<u64>,
    /// The line of its first byte; the first line of the content is 1.
    pub first_line: u64,
    /// Line breaks that it holds.
    pub line_breaks: u32,
}

impl Index {
    /// Decodes the tail of a blob, of which the content's frames end at `tail_at`.
    pub fn decode(tail: &[u8], tail_at: u64) -> Result<Self, CodecError> {
        let damaged = || CodecError::damaged("the tail of a tool output");
        let (start, rest) = tail.split_at_checked(ABOUT_AT).ok_or_else(damaged)?;
        if start.get(NAME_AT..FORMAT_AT) == Some(NAME)
            && let Some(found) = number_at(start, FORMAT_AT).filter(|found| *found > FORMAT)
        {
            return Err(CodecError::NewerFormat { found, newest: FORMAT });
        }
        let about_bytes = number_at(start, ABOUT_BYTES_AT).and_then(|bytes| usize::try_from(bytes).ok());
        let about_bytes = about_bytes.filter(|bytes| *bytes <= OUTPUT_ABOUT_BYTES_MAX).ok_or_else(damaged)?;
        let (about, rest) = rest.split_at_checked(about_bytes).ok_or_else(damaged)?;
        let count = rest.len().saturating_sub(MIDDLE_BYTES + END_BYTES) / FRAME_BYTES;
        if count as u64 * OUTPUT_FRAME_RAW_BYTES as u64 > OUTPUT_RAW_BYTES_MAX {
            return Err(CodecError::damaged("the tail of a tool output is too large"));
        }
        let (line_breaks, rest) = rest.split_at_checked(4 * count).ok_or_else(damaged)?;
        let entries = rest.get(MIDDLE_BYTES..).ok_or_else(damaged)?;
        let sizes: Vec<_> = numbers(line_breaks)
            .zip(numbers(entries).step_by(2).zip(numbers(entries).skip(1).step_by(2)))
            .map(|(line_breaks, (stored, raw))| FrameSizes { stored, raw, line_breaks })
            .collect();
        // All else in a tail follows from these.
        if encode_tail(about, &sizes) != tail {
            return Err(damaged());
        }
        let mut frames = Vec::with_capacity(count);
        let (mut stored, mut raw, mut first_line) = (0, 0, 1);
        for (i, frame) in sizes.iter().enumerate() {
            let is_full = frame.raw as usize == OUTPUT_FRAME_RAW_BYTES;
            let is_last = i + 1 == count && (1..OUTPUT_FRAME_RAW_BYTES).contains(&(frame.raw as usize));
            if !(is_full || is_last) || frame.line_breaks > frame.raw {
                return Err(damaged());
            }
            let (stored_end, raw_end) = (stored + u64::from(frame.stored), raw + u64::from(frame.raw));
            let line_breaks = frame.line_breaks;
            frames.push(Frame { stored: stored..stored_end, raw: raw..raw_end, first_line, line_breaks });
            (stored, raw, first_line) = (stored_end, raw_end, first_line + u64::from(line_breaks));
        }
        if stored != tail_at {
            return Err(damaged());
        }
        Ok(Self { frames, about: about.to_vec() })
    }

    /// What the blob says that it is.
    pub fn about(&self) -> Result<About, CodecError> {
        About::decode(&self.about)
    }

    /// All frames, in order.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The frames that hold these bytes of the content, counted from 0.
    pub fn frames_of_bytes(&self, bytes: Range<u64>) -> &[Frame] {
        let start = self.frames.partition_point(|frame| frame.raw.end <= bytes.start);
        let end = self.frames.partition_point(|frame| frame.raw.start < bytes.end);
        self.frames.get(start..end).unwrap_or_default()
    }

    /// The frames that hold these lines of the content, counted from 1, with their
    /// line breaks; one more if a line begins with a frame.
    pub fn frames_of_lines(&self, lines: Range<u64>) -> &[Frame] {
        let start = self.frames.partition_point(|frame| frame.last_line() < lines.start);
        let end = self.frames.partition_point(|frame| frame.first_line < lines.end);
        self.frames.get(start..end).unwrap_or_default()
    }
}

impl Frame {
    /// The line that follows its last line break, perhaps in the next frame.
    fn last_line(&self) -> u64 {
        self.first_line + u64::from(self.line_breaks)
    }

    /// Decodes the frame from its bytes of the blob.
    pub fn decode(&self, stored: &[u8]) -> Result<Bytes, CodecError> {
        if stored.len() as u64 != self.stored.end - self.stored.start {
            return Err(CodecError::damaged("a frame of a tool output is cut short"));
        }
        let raw = frame::decompress(stored, OUTPUT_FRAME_RAW_BYTES)?;
        let line_breaks = memchr::memchr_iter(b'\n', &raw).count();
        if raw.len() as u64 != self.raw.end - self.raw.start || line_breaks != self.line_breaks as usize {
            return Err(CodecError::damaged("a frame of a tool output is not as its index says"));
        }
        Ok(raw)
    }

    /// Where in `raw`, which this frame decodes to, a line begins: its start if
    /// the line begins before it, its end if after it. What the frame holds of the
    /// lines `a..b` lies between where `a` and where `b` begins.
    pub fn start_of_line(&self, raw: &[u8], line: u64) -> usize {
        let Some(breaks_before) = line.checked_sub(self.first_line).filter(|breaks| *breaks > 0) else {
            return 0;
        };
        let last_break = usize::try_from(breaks_before - 1).ok();
        last_break.and_then(|n| memchr::memchr_iter(b'\n', raw).nth(n)).map_or(raw.len(), |at| at + 1)
    }
}
