//! zstd frames: their checksums on, their output bounded.

use crate::codec::CodecError;
use crate::limits::ZSTD_WINDOW_LOG_MAX;
use bytes::Bytes;
use std::cell::RefCell;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, DParameter, get_frame_content_size};

/// What `zstd` itself uses: higher levels win 6 to 12 % of space for several
/// times the work.
const LEVEL: i32 = 3;

/// For the journal, whose frames live until the next seal: 3 % larger, in two
/// thirds of the time.
const JOURNAL_LEVEL: i32 = 1;

/// Entries of a journal compressor's table, as a power of two. The level's own
/// choice is eight times that, which at the size of a turn wins half a percent, and
/// waits for memory.
const JOURNAL_HASH_LOG: u32 = 12;

/// Bytes up to which a thread keeps its compressor, whose tables grow with what
/// it compresses: making it anew takes longer than compressing a turn.
const KEPT_COMPRESSOR_RAW_BYTES: usize = 64 << 10;

type Kept<T> = RefCell<Option<T>>;

thread_local! {
    static COMPRESSOR: Kept<Compressor<'static>> = const { RefCell::new(None) };
    static JOURNAL_COMPRESSOR: Kept<Compressor<'static>> = const { RefCell::new(None) };
    static DECOMPRESSOR: Kept<Decompressor<'static>> = const { RefCell::new(None) };
    static VERIFIED_DECOMPRESSOR: Kept<Decompressor<'static>> = const { RefCell::new(None) };
}

/// Compresses into one frame that carries its content size and checksum.
pub fn compress(raw: &[u8]) -> Result<Bytes, CodecError> {
    if raw.len() > KEPT_COMPRESSOR_RAW_BYTES {
        return compressor()?.compress(raw).map(Bytes::from).map_err(CodecError::damaged);
    }
    COMPRESSOR.with_borrow_mut(|kept| compress_with(kept, compressor, raw))
}

/// The same for a journal row.
pub fn compress_for_journal(raw: &[u8]) -> Result<Bytes, CodecError> {
    if raw.len() > KEPT_COMPRESSOR_RAW_BYTES {
        return compressor_at(JOURNAL_LEVEL)?.compress(raw).map(Bytes::from).map_err(CodecError::damaged);
    }
    let small = || {
        let mut compressor = compressor_at(JOURNAL_LEVEL)?;
        compressor.set_parameter(CParameter::HashLog(JOURNAL_HASH_LOG)).map_err(CodecError::damaged)?;
        Ok(compressor)
    };
    JOURNAL_COMPRESSOR.with_borrow_mut(|kept| compress_with(kept, small, raw))
}

fn compress_with(
    kept: &mut Option<Compressor<'static>>,
    make: impl FnOnce() -> Result<Compressor<'static>, CodecError>,
    raw: &[u8],
) -> Result<Bytes, CodecError> {
    let compressor = match kept {
        Some(compressor) => compressor,
        None => kept.insert(make()?),
    };
    compressor.compress(raw).map(Bytes::from).map_err(CodecError::damaged)
}

/// A compressor that [`compress`] would use.
pub(super) fn compressor() -> Result<Compressor<'static>, CodecError> {
    compressor_at(LEVEL)
}

fn compressor_at(level: i32) -> Result<Compressor<'static>, CodecError> {
    let mut compressor = Compressor::new(level).map_err(CodecError::damaged)?;
    compressor.set_parameter(CParameter::ChecksumFlag(true)).map_err(CodecError::damaged)?;
    Ok(compressor)
}

/// Decompresses exactly one frame of at most `limit` bytes.
pub fn decompress(stored: &[u8], limit: usize) -> Result<Bytes, CodecError> {
    let size = content_size(stored, limit)?;
    DECOMPRESSOR.with_borrow_mut(|kept| decompress_with(kept, decompressor, stored, size))
}

/// The same, of bytes that a digest was checked of: the checksum, which takes a
/// quarter of the time, would tell nothing new.
pub fn decompress_verified(stored: &[u8], limit: usize) -> Result<Bytes, CodecError> {
    let size = content_size(stored, limit)?;
    let without_checksum = || {
        let mut decompressor = decompressor()?;
        decompressor.set_parameter(DParameter::ForceIgnoreChecksum(true)).map_err(CodecError::damaged)?;
        Ok(decompressor)
    };
    VERIFIED_DECOMPRESSOR.with_borrow_mut(|kept| decompress_with(kept, without_checksum, stored, size))
}

/// One of several frames that are stored one after the other.
#[derive(Clone, Debug)]
pub struct Frame {
    stored: Bytes,
    raw_bytes: usize,
}

impl Frame {
    /// Bytes that it decompresses to.
    pub fn raw_bytes(&self) -> usize {
        self.raw_bytes
    }

    /// As [`decompress`].
    pub fn decompress(&self) -> Result<Bytes, CodecError> {
        decompress(&self.stored, self.raw_bytes)
    }

    /// As [`decompress_verified`].
    pub fn decompress_verified(&self) -> Result<Bytes, CodecError> {
        decompress_verified(&self.stored, self.raw_bytes)
    }
}

/// Finds the frames in what is stored, which decompress to at most `limit` bytes
/// together.
pub fn split(stored: &Bytes, limit: usize) -> Result<Vec<Frame>, CodecError> {
    let (mut rest, mut left) = (stored.clone(), limit);
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let stored = rest.split_to(frame_len(&rest)?);
        let raw_bytes = raw_size(&stored)?;
        left = left.checked_sub(raw_bytes).ok_or(CodecError::TooLarge { limit })?;
        frames.push(Frame { stored, raw_bytes });
    }
    Ok(frames)
}

/// What a frame decompresses to, if it is one, whole, and of at most `limit`
/// bytes.
fn content_size(stored: &[u8], limit: usize) -> Result<usize, CodecError> {
    let size = raw_size(stored)?;
    if size > limit {
        return Err(CodecError::TooLarge { limit });
    }
    if frame_len(stored)? != stored.len() {
        return Err(CodecError::damaged("bytes follow the zstd frame"));
    }
    Ok(size)
}

/// What the first frame says that it decompresses to.
fn raw_size(stored: &[u8]) -> Result<usize, CodecError> {
    match get_frame_content_size(stored) {
        Ok(Some(size)) => Ok(usize::try_from(size).unwrap_or(usize::MAX)),
        Ok(None) => Err(CodecError::damaged("the frame does not tell its size")),
        Err(_) => Err(CodecError::damaged("not a zstd frame")),
    }
}

/// Bytes of the first frame.
fn frame_len(stored: &[u8]) -> Result<usize, CodecError> {
    match zstd::zstd_safe::find_frame_compressed_size(stored) {
        Ok(len) if len > 0 && len <= stored.len() => Ok(len),
        _ => Err(CodecError::damaged("the zstd frame is cut short")),
    }
}

fn decompress_with(
    kept: &mut Option<Decompressor<'static>>,
    make: impl FnOnce() -> Result<Decompressor<'static>, CodecError>,
    stored: &[u8],
    size: usize,
) -> Result<Bytes, CodecError> {
    let decompressor = match kept {
        Some(decompressor) => decompressor,
        None => kept.insert(make()?),
    };
    let raw = decompressor.decompress(stored, size).map_err(CodecError::damaged)?;
    if raw.len() != size {
        return Err(CodecError::damaged("the frame holds less than it says"));
    }
    Ok(raw.into())
}

fn decompressor() -> Result<Decompressor<'static>, CodecError> {
    let mut decompressor = Decompressor::new().map_err(CodecError::damaged)?;
    decompressor.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX)).map_err(CodecError::damaged)?;
    Ok(decompressor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let raw: Vec<u8> = (0..2_000u32).flat_map(|i| (i * i % 251).to_le_bytes()).collect();
        let stored = compress(&raw).unwrap();
        assert_eq!(decompress(&stored, raw.len()).unwrap(), raw);
        for i in 0..stored.len() * 8 {
            let mut flipped = stored.to_vec();
            flipped[i / 8] ^= 1 << (i % 8);
            // One bit of the frame header is unused; the content is then whole.
            if let Ok(decoded) = decompress(&flipped, raw.len()) {
                assert_eq!(decoded, raw, "bit {i}");
            }
        }
        for len in 0..stored.len() {
            assert!(decompress(&stored[..len], raw.len()).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn verified_bytes_are_decompressed_whatever_their_checksum() {
        let raw: Vec<u8> = (0..2_000u32).flat_map(|i| (i * i % 251).to_le_bytes()).collect();
        let mut stored = compress(&raw).unwrap().to_vec();
        assert_eq!(decompress_verified(&stored, raw.len()).unwrap(), raw);
        let last = stored.len() - 1;
        stored[last] ^= 1;
        assert!(decompress(&stored, raw.len()).is_err());
        assert_eq!(decompress_verified(&stored, raw.len()).unwrap(), raw);
    }

    #[test]
    fn output_is_bounded_before_it_is_made() {
        let bomb = compress(&vec![0; 1 << 20]).unwrap();
        assert_eq!(decompress(&bomb, (1 << 20) - 1), Err(CodecError::TooLarge { limit: (1 << 20) - 1 }));
        assert_eq!(
            decompress_verified(&bomb, (1 << 20) - 1),
            Err(CodecError::TooLarge { limit: (1 << 20) - 1 })
        );
    }

    #[test]
    fn concatenated_frames_and_trailing_bytes_are_refused() {
        let frame = compress(b"{}").unwrap();
        let twice = [frame.as_ref(), frame.as_ref()].concat();
        assert!(decompress(&twice, 100).is_err());
        let trailing = [frame.as_ref(), b"x"].concat();
        assert!(decompress(&trailing, 100).is_err());
    }
}
