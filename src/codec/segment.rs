//! Segments: zstd of JSON Lines, a header line and then a line per entry. A large one is
//! several zstd frames of whole lines, which are decoded side by side.
//!
//! `zstdcat SEGMENT | jq` reads one without this crate. The header names all
//! that is needed to make the metadata anew: the branch with its lineage and the
//! turns with their receipts.

use crate::clock::Micros;
use crate::codec::frame::Frame;
use crate::codec::{CodecError, digest, frame, line};
use crate::limits::{SEGMENT_FRAME_RAW_BYTES, SEGMENT_RAW_BYTES_MAX};
use crate::model::{
    Branch, BranchId, CallState, Digest, Entry, GenerationId, RequestId, Seq, SessionId, TenantId, Turn,
    TurnKind, Usage, Version, WireFormat,
};
use bytes::Bytes;
use serde_json::value::RawValue;

/// The segment format that this version writes and the newest that it reads.
pub const FORMAT: u32 = 1;

/// First line of a segment.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Header {
    /// Always `segment`.
    pub turnkeep: String,
    /// Version of the format.
    pub format: u32,
    /// Oldest version of the format that a reader must know.
    pub min_reader: u32,
    /// Owner of the session.
    pub tenant: TenantId,
    /// Wire format of the entries.
    pub wire_format: WireFormat,
    /// The branch, after those that it continues: from the root.
    pub lineage: Vec<BranchLine>,
    /// Seq of the first entry.
    pub first_seq: Seq,
    /// Seq of the last entry.
    pub last_seq: Seq,
    /// The turns, in order.
    pub turns: Vec<TurnLine>,
    /// The writer generation that made it.
    pub writer: GenerationId,
}

/// A branch in a header.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BranchLine {
    /// Its id.
    pub branch: BranchId,
    /// The session that made it.
    pub session: SessionId,
    /// Newest version of the branch before it that belongs to it.
    pub base_version: Version,
    /// Newest seq of the branch before it that belongs to it.
    pub base_seq: Seq,
    /// Version of its own first turn.
    pub first_version: Version,
    /// When it was made.
    pub created_at: Micros,
}

/// A turn in a header: its row, but for what the entries tell.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct TurnLine {
    /// The version that it made.
    pub version: Version,
    /// What kind of change it was.
    pub kind: TurnKind,
    /// The version that it goes back to.
    #[serde(default)]
    pub base_version: Version,
    /// Seq of its first entry.
    pub first_seq: Seq,
    /// Seq of the newest entry after it.
    pub last_seq: Seq,
    /// The caller's key.
    pub request_id: RequestId,
    /// Digest of the request.
    pub request_digest: Digest,
    /// Its receipt.
    pub receipt: Digest,
    /// Rolling digest of contents.
    pub prefix_digest: Digest,
    /// Calls without a result.
    #[serde(default)]
    pub calls: CallState,
    /// Tokens of its entries.
    pub tokens: u64,
    /// Tokens of the log after it.
    pub log_tokens: u64,
    /// What the worker reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The worker's score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// The worker's name for the kind of step.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub step_kind: String,
    /// When it was committed.
    pub at: Micros,
    /// The recorded reply, as it is stored.
    pub reply: Box<RawValue>,
}

impl From<&Branch> for BranchLine {
    fn from(branch: &Branch) -> Self {
        Self {
            branch: branch.id.clone(),
            session: branch.session.clone(),
            base_version: branch.base_version,
            base_seq: branch.base_seq,
            first_version: branch.first_version,
            created_at: branch.created_at,
        }
    }
}

impl TurnLine {
    /// The line of a turn with its recorded reply, which must be JSON.
    pub fn new(turn: &Turn, reply: &str) -> Result<Self, CodecError> {
        let reply = RawValue::from_string(reply.to_owned()).map_err(CodecError::damaged)?;
        let turn = turn.clone();
        Ok(Self {
            version: turn.version,
            kind: turn.kind,
            base_version: turn.base_version,
            first_seq: turn.first_seq,
            last_seq: turn.last_seq,
            request_id: turn.request_id,
            request_digest: turn.request_digest,
            receipt: turn.receipt,
            prefix_digest: turn.prefix_digest,
            calls: turn.calls,
            tokens: turn.tokens,
            log_tokens: turn.log_tokens,
            usage: turn.usage,
            score: turn.score,
            step_kind: turn.step_kind,
            at: turn.created_at,
            reply,
        })
    }

    /// Bytes that it takes in a header.
    pub fn raw_bytes(&self) -> Result<u64, CodecError> {
        serde_json::to_vec(self).map(|json| json.len() as u64 + 1).map_err(CodecError::damaged)
    }

    /// The row of the turn on `branch`, given its entries.
    pub fn to_turn(&self, branch: &BranchId, entries: &[Entry]) -> Turn {
        Turn {
            branch: branch.clone(),
            version: self.version,
            kind: self.kind,
            base_version: self.base_version,
            first_seq: self.first_seq,
            last_seq: self.last_seq,
            request_id: self.request_id.clone(),
            request_digest: self.request_digest,
            entries_digest: digest::of_entries(entries),
            receipt: self.receipt,
            prefix_digest: self.prefix_digest,
            calls: self.calls.clone(),
            tokens: self.tokens,
            log_tokens: self.log_tokens,
            payload_bytes: entries.iter().map(|entry| entry.payload.len() as u64).sum(),
            usage: self.usage.clone(),
            score: self.score,
            step_kind: self.step_kind.clone(),
            created_at: self.at,
        }
    }
}

/// A segment, encoded.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// The bytes to store.
    pub stored: Bytes,
    /// Their SHA-256.
    pub sha256: Digest,
    /// Bytes that they decode to.
    pub raw_bytes: u64,
}

/// Encodes a segment of `lines`, which hold the entries of the header's turns.
pub fn encode(header: &Header, lines: &[Bytes]) -> Result<Encoded, CodecError> {
    let mut raw = serde_json::to_vec(header).map_err(CodecError::damaged)?;
    raw.push(b'\n');
    raw.reserve(lines.iter().map(Bytes::len).sum());
    for text in lines {
        raw.extend_from_slice(text);
    }
    if raw.len() > SEGMENT_RAW_BYTES_MAX {
        return Err(CodecError::TooLarge { limit: SEGMENT_RAW_BYTES_MAX });
    }
    let mut stored = Vec::new();
    for lines in frames_of(&raw) {
        stored.extend_from_slice(&frame::compress(lines)?);
    }
    Ok(Encoded { sha256: digest::sha256(&stored), stored: stored.into(), raw_bytes: raw.len() as u64 })
}

/// Divides lines into what a frame each holds.
fn frames_of(raw: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = raw;
    std::iter::from_fn(move || {
        let tail = rest.get(SEGMENT_FRAME_RAW_BYTES..).and_then(|tail| memchr::memchr(b'\n', tail));
        let end = tail.map_or(rest.len(), |end| SEGMENT_FRAME_RAW_BYTES + end + 1);
        let (lines, after) = rest.split_at(end);
        rest = after;
        (!lines.is_empty()).then_some(lines)
    })
}

/// A segment, decoded.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// The header line, not parsed yet.
    header: Bytes,
    /// The entries' lines, as the frames hold them.
    pub lines: Vec<Bytes>,
    /// The entries; their payloads share the memory of `lines`.
    pub entries: Vec<Entry>,
}

/// What a frame of a segment holds, decoded.
#[derive(Clone, Debug)]
pub struct Part {
    /// The header line, if it begins the segment.
    header: Option<Bytes>,
    lines: Bytes,
    /// The entries; their payloads share the memory of the lines.
    pub entries: Vec<Entry>,
}

/// A frame of a segment.
#[derive(Clone, Debug)]
pub struct StoredPart {
    frame: Frame,
    is_first: bool,
}

/// The frames of a segment of at most `raw_bytes`.
pub fn parts(stored: &Bytes, raw_bytes: u64) -> Result<Vec<StoredPart>, CodecError> {
    let limit = usize::try_from(raw_bytes).unwrap_or(usize::MAX).min(SEGMENT_RAW_BYTES_MAX);
    let frames = frame::split(stored, limit)?.into_iter().enumerate();
    Ok(frames.map(|(i, frame)| StoredPart { frame, is_first: i == 0 }).collect())
}

/// Decodes a segment of at most `raw_bytes`, which must hold what its header says.
pub fn decode(stored: &Bytes, raw_bytes: u64) -> Result<Decoded, CodecError> {
    let parts = parts(stored, raw_bytes)?;
    let parts = parts.iter().map(|part| part.read(part.frame.decompress()?));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let decoded = Decoded::of(parts)?;
    let header = decoded.header()?;
    let ends = |entries: &[Entry]| Some((entries.first()?.seq, entries.last()?.seq));
    let named = (header.first_seq <= header.last_seq).then_some((header.first_seq, header.last_seq));
    if ends(&decoded.entries) != named {
        return Err(CodecError::damaged("entries that the header names are not there"));
    }
    Ok(decoded)
}

impl StoredPart {
    /// Bytes that it decodes to.
    pub fn raw_bytes(&self) -> usize {
        self.frame.raw_bytes()
    }

    /// Decodes it. Its checksum is not looked at: the caller checks the SHA-256 of the
    /// whole.
    pub fn decode_verified(&self) -> Result<Part, CodecError> {
        self.read(self.frame.decompress_verified()?)
    }

    fn read(&self, raw: Bytes) -> Result<Part, CodecError> {
        let (header, lines) = if self.is_first {
            let end = memchr::memchr(b'\n', &raw);
            let end = end.ok_or_else(|| CodecError::damaged("the segment has no header line"))?;
            (Some(raw.slice(..end)), raw.slice(end + 1..))
        } else {
            (None, raw)
        };
        Ok(Part { header, entries: line::read_all(&lines)?, lines })
    }
}

impl Decoded {
    /// Puts the parts of a segment together.
    pub fn of(parts: impl IntoIterator<Item = Part>) -> Result<Self, CodecError> {
        let mut parts = parts.into_iter();
        let first = parts.next().and_then(|part| Some((part.header?, part.lines, part.entries)));
        let (header, lines, entries) = first.ok_or_else(|| CodecError::damaged("the segment is empty"))?;
        let mut decoded = Self { header, lines: vec![lines], entries };
        for part in parts {
            decoded.lines.push(part.lines);
            decoded.entries.extend(part.entries);
        }
        Ok(decoded)
    }

    /// Bytes that it decoded to.
    pub fn raw_bytes(&self) -> u64 {
        (self.header.len() + 1 + self.lines.iter().map(Bytes::len).sum::<usize>()) as u64
    }

    /// The header.
    pub fn header(&self) -> Result<Header, CodecError> {
        let header: Header = serde_json::from_slice(&self.header)
            .map_err(|error| CodecError::damaged(format_args!("segment header: {error}")))?;
        if header.turnkeep != "segment" {
            return Err(CodecError::damaged("not a segment"));
        }
        if header.min_reader > FORMAT {
            return Err(CodecError::NewerFormat { found: header.min_reader, newest: FORMAT });
        }
        Ok(header)
    }
}
