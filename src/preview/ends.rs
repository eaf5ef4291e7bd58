//! The two ends of a content, and its size, found in one pass.

use super::clean::{CUT_MARGIN, is_strange};

/// The size of a content or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes.
    pub bytes: u64,
    /// Bytes that do not continue a UTF-8 code point: the code points, if the
    /// content is UTF-8.
    pub characters: u64,
    /// Line breaks.
    pub lines: u64,
}

impl Totals {
    /// The size of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut totals = Self { bytes: bytes.len() as u64, ..Self::default() };
        // So few at a time that a byte holds the counts, of which a vector
        // register then has many.
        for part in bytes.chunks(192) {
            let (mut characters, mut lines) = (0_u8, 0_u8);
            for byte in part {
                characters += u8::from(byte & 0xc0 != 0x80);
                lines += u8::from(*byte == b'\n');
            }
            totals.characters += u64::from(characters);
            totals.lines += u64::from(lines);
        }
        totals
    }

    fn add(&mut self, part: &Self) {
        self.bytes += part.bytes;
        self.characters += part.characters;
        self.lines += part.lines;
    }

    /// The size of the rest.
    pub(super) fn minus(&self, part: &Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(part.bytes),
            characters: self.characters.saturating_sub(part.characters),
            lines: self.lines.saturating_sub(part.lines),
        }
    }
}

/// The two ends of a content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Its size.
    pub totals: Totals,
    /// Its beginning, or the whole.
    pub(super) head: Vec<u8>,
    /// Its end, if the beginning is not the whole.
    pub(super) tail: Option<Vec<u8>>,
    /// Whether more than a tenth of the ends is no text: no UTF-8, or control
    /// characters that terminals have no use for.
    pub(super) is_binary: bool,
}

impl Ends {
    /// The ends of a content that is at hand. See [`Scanner::new`].
    pub fn of(content: &[u8], shown_max: usize) -> Self {
        let mut scanner = Scanner::new(shown_max);
        scanner.push(content);
        scanner.finish()
    }
}

/// Finds the ends and the size of a content that comes in parts.
#[derive(Clone, Debug)]
pub struct Scanner {
    end_max: usize,
    head: Vec<u8>,
    /// What follows the head; of that the newest bytes, at most twice as many as
    /// are needed.
    tail: Vec<u8>,
    totals: Totals,
}

impl Scanner {
    /// A scanner that keeps enough to show `shown_max` bytes of each end; it takes
    /// three times that and some KiB. A preview of so many escaped characters
    /// never shows more, unless escape sequences are left out of it: content that
    /// is full of them may then not fill its preview.
    pub fn new(shown_max: usize) -> Self {
        let end_max = shown_max.saturating_add(CUT_MARGIN);
        Self { end_max, head: Vec::new(), tail: Vec::new(), totals: Totals::default() }
    }

    /// Takes in the next part, of any size.
    pub fn push(&mut self, part: &[u8]) {
        self.totals.add(&Totals::of(part));
        let missing = self.end_max.saturating_sub(self.head.len()).min(part.len());
        let (head, rest) = part.split_at(missing);
        self.head.extend_from_slice(head);
        // Of a part that is larger than the tail only its end can matter.
        let (_, rest) = rest.split_at(rest.len().saturating_sub(self.end_max));
        if self.tail.len() + rest.len() > self.end_max.saturating_mul(2) {
            self.tail.drain(..self.tail.len().saturating_sub(self.end_max));
        }
        self.tail.extend_from_slice(rest);
    }

    /// The size so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// The ends.
    pub fn finish(self) -> Ends {
        let Self { end_max, mut head, mut tail, totals } = self;
        tail.drain(..tail.len().saturating_sub(end_max));
        let is_whole = (head.len() + tail.len()) as u64 == totals.bytes;
        if is_whole {
            head.append(&mut tail);
        }
        let is_binary = (strange_bytes(&head) + strange_bytes(&tail)) * 10 > head.len() + tail.len();
        Ends { totals, head, tail: (!is_whole).then_some(tail), is_binary }
    }
}

/// How many bytes are no text.
fn strange_bytes(bytes: &[u8]) -> usize {
    let chunks = bytes.utf8_chunks();
    chunks.map(|c| c.invalid().len() + c.valid().chars().filter(|c| is_strange(*c)).count()).sum()
}
