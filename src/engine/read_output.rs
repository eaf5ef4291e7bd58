//! Reading parts of tool outputs.

use super::output_blob::Frames;
use super::{Engine, Error};
use crate::codec::output::{Frame, Index};
use crate::limits::OUTPUT_PAGE_BYTES_MAX;
use crate::model::{LengthUnit, Output, OutputName, TenantId, Tokenizer, ToolResultLimit, WireFormat};
use crate::preview::{Escaped, Measure as _, ToolResult, fitting_prefix};
use crate::store::meta::SessionKey;
use crate::tokens::TokenCounter;
use crate::tokens::provider_limits::tool_result_limit;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use std::ops::Range;

/// Which part of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputRange {
    /// Bytes.
    Bytes {
        /// The first, counted from 0; from the end if negative.
        start: i64,
        /// How many; all that follow if not given.
        count: Option<u64>,
    },
    /// Lines, with their line breaks.
    Lines {
        /// The first, counted from 1; from the end if negative.
        start: i64,
        /// How many; all that follow if not given.
        count: Option<u64>,
    },
}

/// How much of a range is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// What fits a tool result of the session.
    ToolResult,
    /// So many bytes.
    Bytes(usize),
    /// All of it.
    Unlimited,
}

/// A part of an output to be read.
#[derive(Clone, Debug)]
pub struct ReadOutput {
    /// The caller.
    pub tenant: TenantId,
    /// The output.
    pub name: OutputName,
    /// Which part.
    pub range: OutputRange,
    /// How much of it.
    pub page: PageSize,
}

/// Bytes of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPiece {
    /// Where they begin, counted from 0.
    pub byte: u64,
    /// The line in which they begin, counted from 1.
    pub line: u64,
    /// The bytes.
    pub bytes: Bytes,
}

impl OutputPiece {
    /// Where what follows begins.
    fn end(&self) -> PageEnd {
        PageEnd {
            byte: self.byte + self.bytes.len() as u64,
            line: self.line + memchr::memchr_iter(b'\n', &self.bytes).count() as u64,
        }
    }
}

/// Where a page ends: the place of the first byte that is not on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEnd {
    /// Its number, counted from 0.
    pub byte: u64,
    /// The line that it is in, counted from 1.
    pub line: u64,
}

/// A part of the answer to a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPart {
    /// The next bytes.
    Piece(OutputPiece),
    /// The last part: where the rest of the range begins, if there is one.
    End(Option<PageEnd>),
}

impl Engine {
    /// Reads a part of an output: what is known of it, and then its bytes.
    pub async fn read_output(
        &self,
        request: ReadOutput,
    ) -> Result<(Output, impl Stream<Item = Result<OutputPart, Error>> + Send + use<>), Error> {
        let blob = self.open_output(&request.tenant, &request.name).await?;
        let output = blob.output.clone();
        let room = match request.page {
            PageSize::ToolResult => {
                let key =
                    SessionKey { tenant: request.tenant.clone(), session: request.name.session.clone() };
                Room::Escaped(self.page_characters(&key).await?)
            }
            PageSize::Bytes(bytes) => Room::Bytes(bytes.min(OUTPUT_PAGE_BYTES_MAX)),
            PageSize::Unlimited => Room::Unlimited,
        };
        let bounds = Bounds::of(request.range, &output)?;
        let frames = bounds.frames(&blob.index);
        let reader = Reader { frames: blob.frames(frames), bounds };
        let parts = stream::try_unfold(Some((reader, room)), |state| async move {
            match state {
                Some((reader, room)) => parts_of(reader, room).await.map(Some),
                None => Ok(None),
            }
        });
        Ok((output, parts.map_ok(|parts| stream::iter(parts).map(Ok)).try_flatten()))
    }

    /// Characters that a page may have in a session.
    pub(super) async fn page_characters(&self, key: &SessionKey) -> Result<u64, Error> {
        let tip = self.inner.meta.tip(key, None).await?;
        // A deleted session, of which a fork still has the output, has no profile.
        let format = tip.as_ref().map_or(WireFormat::Opaque, |tip| tip.session.format);
        let limit = tip.map_or_else(ToolResultLimit::default, |tip| tool_result_limit(&tip.session.profile));
        Ok(page_characters(format, &limit))
    }
}

/// Characters that a page may have, as they are written in a tool result, of a session
/// with that limit. A token is a character at least.
pub fn page_characters(format: WireFormat, limit: &ToolResultLimit) -> u64 {
    /// A page has that many at least, whatever the limit.
    const LEAST: u64 = 256;
    let counter = TokenCounter::new(format, Tokenizer::of_format(format));
    let result = ToolResult::new(format, "", "", LengthUnit::Characters, counter);
    limit.length_max_of_text().saturating_sub(result.envelope()).max(LEAST)
}

/// The next parts of an answer, and what the others are made of.
async fn parts_of(
    mut reader: Reader,
    room: Room,
) -> Result<(Vec<OutputPart>, Option<(Reader, Room)>), Error> {
    if room != Room::Unlimited {
        let (piece, end) = reader.page(room).await?;
        let piece = piece.map(OutputPart::Piece);
        return Ok((piece.into_iter().chain([OutputPart::End(end)]).collect(), None));
    }
    Ok(match reader.next().await? {
        Some(piece) => (vec![OutputPart::Piece(piece)], Some((reader, room))),
        None => (vec![OutputPart::End(None)], None),
    })
}

/// A range as it lies in an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bounds {
    /// Counted from 0.
    Bytes(Range<u64>),
    /// Counted from 1.
    Lines(Range<u64>),
}

impl Bounds {
    pub(super) fn of(range: OutputRange, output: &Output) -> Result<Self, Error> {
        let resolve = |start: i64, first: u64, count: Option<u64>, all: u64| {
            let end = first + all;
            let start = match u64::try_from(start) {
                Ok(start) => start.clamp(first, end),
                Err(_) => end.saturating_sub(start.unsigned_abs()).max(first),
            };
            start..start.saturating_add(count.unwrap_or(u64::MAX)).min(end)
        };
        Ok(match range {
            OutputRange::Bytes { start, count } => Self::Bytes(resolve(start, 0, count, output.bytes)),
            OutputRange::Lines { start: 0, .. } => {
                return Err(Error::invalid("lines.start", "is 0; lines are counted from 1"));
            }
            OutputRange::Lines { start, count } => Self::Lines(resolve(start, 1, count, output.lines)),
        })
    }

    pub(super) fn frames(&self, index: &Index) -> Vec<Frame> {
        match self {
            Self::Bytes(bytes) if bytes.is_empty() => vec![],
            Self::Lines(lines) if lines.is_empty() => vec![],
            Self::Bytes(bytes) => index.frames_of_bytes(bytes.clone()).to_vec(),
            Self::Lines(lines) => index.frames_of_lines(lines.clone()).to_vec(),
        }
    }

    /// What a frame holds of it.
    pub(super) fn piece(&self, frame: &Frame, raw: &Bytes) -> OutputPiece {
        let within = match self {
            Self::Bytes(bytes) => {
                let place = |byte: u64| {
                    let before = byte.saturating_sub(frame.raw.start);
                    usize::try_from(before).unwrap_or(usize::MAX).min(raw.len())
                };
                place(bytes.start)..place(bytes.end)
            }
            Self::Lines(lines) => frame.start_of_line(raw, lines.start)..frame.start_of_line(raw, lines.end),
        };
        let (before, rest) = raw.split_at_checked(within.start).unwrap_or_default();
        let bytes = raw.slice_ref(rest.get(..within.len()).unwrap_or_default());
        OutputPiece {
            byte: frame.raw.start + before.len() as u64,
            line: frame.first_line + memchr::memchr_iter(b'\n', before).count() as u64,
            bytes,
        }
    }
}

/// Reads a range, a frame at a time.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) frames: Frames,
    pub(super) bounds: Bounds,
}

/// How much a page takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Escaped(u64),
    Bytes(usize),
    Unlimited,
}

impl Room {
    /// How many bytes of `bytes` fit, whole characters; they take their part of it.
    fn take(&mut self, bytes: &[u8]) -> usize {
        match self {
            Self::Unlimited => bytes.len(),
            Self::Escaped(room) => {
                let fitting = fitting_prefix(bytes, *room);
                let taken = String::from_utf8_lossy(bytes.get(..fitting).unwrap_or_default());
                *room = room.saturating_sub(Escaped.length(&taken));
                fitting
            }
            Self::Bytes(room) if bytes.len() <= *room => {
                *room -= bytes.len();
                bytes.len()
            }
            Self::Bytes(room) => whole_characters(bytes, *room),
        }
    }
}

/// How many of the first `max` bytes are whole characters; all, if there is no
/// other way to go on.
fn whole_characters(bytes: &[u8], max: usize) -> usize {
    let is_inside = |at: usize| bytes.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
    (max.saturating_sub(3)..=max).rev().find(|at| !is_inside(*at)).filter(|at| *at > 0).unwrap_or(max)
}

impl Reader {
    /// The next bytes of the range.
    pub(super) async fn next(&mut self) -> Result<Option<OutputPiece>, Error> {
        while let Some((frame, raw)) = self.frames.next().await? {
            let piece = self.bounds.piece(&frame, &raw);
            if !piece.bytes.is_empty() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// As much of the range as there is room for, and where the rest begins. Of
    /// lines it is whole ones, if one fits.
    async fn page(&mut self, mut room: Room) -> Result<(Option<OutputPiece>, Option<PageEnd>), Error> {
        let Some(first) = self.next().await? else { return Ok((None, None)) };
        let (byte, line) = (first.byte, first.line);
        let mut page = BytesMut::new();
        let mut next = Some(first);
        let mut is_cut = false;
        while let Some(piece) = next {
            let fitting = room.take(&piece.bytes);
            page.extend_from_slice(piece.bytes.get(..fitting).unwrap_or_default());
            if fitting < piece.bytes.len() {
                is_cut = true;
                break;
            }
            next = self.next().await?;
        }
        if is_cut
            && matches!(self.bounds, Bounds::Lines(_))
            && let Some(at) = memchr::memrchr(b'\n', &page)
        {
            page.truncate(at + 1);
        }
        let piece = OutputPiece { byte, line, bytes: page.freeze() };
        let end = is_cut.then(|| piece.end());
        Ok((Some(piece), end))
    }
}
