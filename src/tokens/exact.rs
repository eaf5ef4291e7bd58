//! Exact counts with OpenAI's vocabularies.
//!
//! A text is split into pieces, of words for the most part, and each piece into
//! tokens. The tables of a vocabulary take 70 MB, of which little is in the
//! processor's caches when a request comes in; but texts repeat their words, so
//! the counts of the pieces that were seen last are kept, and at first those that
//! are the vocabulary's most frequent tokens.

use bpe_openai::Tokenizer;
use std::cell::RefCell;

/// One of OpenAI's vocabularies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vocabulary {
    O200k,
    Cl100k,
}

thread_local! {
    static O200K: RefCell<Memo> = const { RefCell::new(Memo::empty()) };
    static CL100K: RefCell<Memo> = const { RefCell::new(Memo::empty()) };
}

/// Tokens of a text.
pub(super) fn tokens<'a>(text: &'a str, vocabulary: Vocabulary) -> u64 {
    let keyed = |(start, piece): (usize, &'a str)| (key(text.as_bytes(), start, piece.len()), piece);
    match vocabulary {
        Vocabulary::O200k => {
            let tokenizer = bpe_openai::o200k_base();
            O200K.with_borrow_mut(|memo| memo.count(tokenizer, o200k_pieces(tokenizer, text).map(keyed)))
        }
        Vocabulary::Cl100k => {
            let tokenizer = bpe_openai::cl100k_base();
            let mut start = 0;
            let pieces = tokenizer.split(text).map(|piece| {
                start += piece.len();
                (start - piece.len(), piece)
            });
            CL100K.with_borrow_mut(|memo| memo.count(tokenizer, pieces.map(keyed)))
        }
    }
}

/// Counts of pieces: 512 KiB, which a core's own cache holds. A piece's bytes
/// say in which set it is kept, which is a line of the cache; the one used last comes
/// first, and the last makes way. A piece that is not kept takes as long as 100
/// others, since nothing of the tables is at hand.
struct Memo(Vec<[u128; 4]>);

/// A piece with its key, which is 0 if it is not kept.
type Keyed<'a> = (u128, &'a str);

impl Memo {
    const SETS_LOG2: u32 = 13;
    /// Pieces whose places are fetched before the first is looked at.
    const BATCH: usize = 64;
    /// Tokens that are kept from the beginning: three quarters of the places.
    const FREQUENT: u32 = 3 << Self::SETS_LOG2;
    /// Longest piece that is kept: with its length and its count it takes 16
    /// bytes.
    const BYTES: usize = 14;
    const COUNT_SHIFT: u32 = 8 * 15;
    const KEY: u128 = !(u128::MAX << Self::COUNT_SHIFT);

    const fn empty() -> Self {
        Self(Vec::new())
    }

    /// Of pieces that are tokens of the vocabulary, which has the frequent ones first.
    fn of_frequent(tokenizer: &Tokenizer) -> Self {
        let mut memo = Self(vec![[0; 4]; 1 << Self::SETS_LOG2]);
        let tokens = u32::try_from(tokenizer.bpe.num_tokens()).map_or(0, |all| all.min(Self::FREQUENT));
        for token in (0..tokens).rev() {
            let key = key_alone(tokenizer.bpe.token_bytes(token));
            if key != 0
                && let Some(kept) = memo.0.get_mut(set(key))
            {
                kept.rotate_right(1);
                kept[0] = key | 1 << Self::COUNT_SHIFT;
            }
        }
        memo
    }

    fn count<'a>(&mut self, tokenizer: &Tokenizer, pieces: impl Iterator<Item = Keyed<'a>>) -> u64 {
        if self.0.is_empty() {
            *self = Self::of_frequent(tokenizer);
        }
        let mut pieces = pieces.fuse();
        let mut batch: [Keyed<'_>; Self::BATCH] = [(0, ""); Self::BATCH];
        let mut sum = 0;
        loop {
            let mut filled = 0;
            for (place, piece) in batch.iter_mut().zip(&mut pieces) {
                *place = piece;
                filled += 1;
            }
            // No place is needed before the next, so that all are fetched at once: half
            // of the time was spent with waiting for one after the other.
            let places = batch.iter().take(filled).filter_map(|(key, _)| self.0.get(set(*key)));
            std::hint::black_box(places.fold(0, |all, kept| all ^ kept[0]));
            let counts = batch.iter().take(filled).map(|piece| self.count_piece(tokenizer, *piece));
            sum += counts.sum::<u64>();
            if filled < Self::BATCH {
                return sum;
            }
        }
    }

    fn count_piece(&mut self, tokenizer: &Tokenizer, (key, piece): Keyed<'_>) -> u64 {
        let count = || tokenizer.bpe.count(piece.as_bytes()) as u64;
        // All numbers of up to three digits are tokens: they need no place.
        if piece.len() <= 3 && piece.bytes().all(|byte| byte.is_ascii_digit()) {
            return 1;
        }
        if key == 0 {
            return count();
        }
        let Some(kept) = self.0.get_mut(set(key)) else { return count() };
        let holds = |place: &u128| place & Self::KEY == key;
        // A place that is still free is no piece's: none is empty.
        if !kept.first().is_some_and(holds) {
            let at = kept.iter().position(holds).unwrap_or_else(|| {
                kept[3] = key | u128::from(count()) << Self::COUNT_SHIFT;
                3
            });
            if let Some(until) = kept.get_mut(..=at) {
                until.rotate_right(1);
            }
        }
        u64::from(kept[0].to_le_bytes()[15])
    }
}

/// The key of the piece of `text` that starts there.
fn key(text: &[u8], start: usize, len: usize) -> u128 {
    match text.get(start..).and_then(<[u8]>::first_chunk) {
        // Masked rather than copied: to copy some bytes is a call for each piece.
        Some(ahead) if (1..=Memo::BYTES).contains(&len) => {
            let after = u128::MAX << (8 * len);
            (u128::from_le_bytes(*ahead) & !after) | (len as u128) << (8 * Memo::BYTES)
        }
        _ => key_alone(text.get(start..start + len).unwrap_or_default()),
    }
}

/// The same of a piece without what follows it.
fn key_alone(piece: &[u8]) -> u128 {
    let (mut bytes, Ok(len)) = ([0; 16], u8::try_from(piece.len())) else { return 0 };
    if let Some(start) = bytes[..Memo::BYTES].get_mut(..piece.len()) {
        start.copy_from_slice(piece);
        bytes[Memo::BYTES] = len;
    } else if let Some((first, rest)) = piece.split_first()
        && rest.iter().all(|byte| byte == first)
    {
        // As an indentation is: its byte and length tell all, and no shorter
        // piece has such a length.
        bytes[0] = *first;
        bytes[1] = len;
        bytes[Memo::BYTES] = u8::MAX;
    }
    u128::from_le_bytes(bytes)
}

/// In which set a piece is kept.
fn set(key: u128) -> usize {
    // 2^64 divided by the golden ratio: Knuth's multiplicative hash.
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let [low, high] =
        [key, key >> 64].map(|half| u64::try_from(half & u128::from(u64::MAX)).unwrap_or_default());
    let hash = (low ^ high.rotate_left(29)).wrapping_mul(MULTIPLIER);
    usize::try_from(hash >> (64 - Memo::SETS_LOG2)).unwrap_or(0)
}

/// The pieces of a text for `o200k`: what the vocabulary's pattern gives, which
/// ASCII text is spared, with where each starts.
fn o200k_pieces<'a>(tokenizer: &'a Tokenizer, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = text.len() - rest.len();
        let piece = match ascii_piece(rest.as_bytes()) {
            Some(len) => rest.get(..len)?,
            None => tokenizer.split(rest).next()?,
        };
        rest = rest.get(piece.len()..)?;
        Some((start, piece))
    })
}

/// Length of the first piece of `text` if it, and what tells where it ends, is
/// ASCII.
///
/// For ASCII the pattern of `o200k` says, in this order:
///
/// - words: `[^\r\n A-Za-z0-9]?` that is, any one sign or blank, then
///   `[A-Z]*[a-z]*` with at least one letter, then `'s 't 're 've 'm 'll 'd`;
/// - `[0-9]{1,3}`;
/// - ` ?[^\sA-Za-z0-9]+[\r\n/]*`;
/// - `\s*[\r\n]+`, then `\s+` at the end of the text, then `\s+` but for the
///   last one, which goes to what follows, then `\s`.
fn ascii_piece(text: &[u8]) -> Option<usize> {
    let first = *text.first()?;
    let is_prefix = !first.is_ascii_alphanumeric() && !matches!(first, b'\r' | b'\n');
    let second = text.get(usize::from(is_prefix)).copied().unwrap_or(b' ');
    if second.is_ascii_alphabetic() {
        return word(text, usize::from(is_prefix));
    }
    if !first.is_ascii() || !second.is_ascii() {
        return None;
    }
    if first.is_ascii_digit() {
        let len = text.iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        return if len < 3 { ends_in_ascii(text, len) } else { Some(len) };
    }
    if is_sign(first) || (first == b' ' && is_sign(second)) {
        let len = run(text, 1, is_sign);
        let len = run(text, ends_in_ascii(text, len)?, |byte| matches!(byte, b'\r' | b'\n' | b'/'));
        return Some(len);
    }
    let len = ends_in_ascii(text, run(text, 0, is_blank))?;
    let blanks = text.get(..len)?;
    Some(match memchr::memrchr2(b'\r', b'\n', blanks) {
        Some(last_break) => last_break + 1,
        None if len == text.len() || len == 1 => len,
        None => len - 1,
    })
}

/// The end of a word that starts at `start`.
fn word(text: &[u8], start: usize) -> Option<usize> {
    let end = run(text, start, |byte| byte.is_ascii_uppercase());
    let end = ends_in_ascii(text, run(text, end, |byte| byte.is_ascii_lowercase()))?;
    let rest = text.get(end..)?;
    if rest.first() != Some(&b'\'') {
        return Some(end);
    }
    let [second, third] = [1, 2].map(|i| rest.get(i).copied().unwrap_or(b' '));
    match [second, third].map(|byte| byte.to_ascii_lowercase()) {
        [b's' | b't' | b'm' | b'd', _] => Some(end + 2),
        [b'r' | b'v', b'e'] | [b'l', b'l'] => Some(end + 3),
        // A long s counts as one.
        [letter, _] if !letter.is_ascii() => None,
        _ => Some(end),
    }
}

/// `len`, unless what follows is not ASCII and may belong to the piece.
fn ends_in_ascii(text: &[u8], len: usize) -> Option<usize> {
    text.get(len).is_none_or(u8::is_ascii).then_some(len)
}

/// The end of the run of such bytes from `start` on.
fn run(text: &[u8], start: usize, holds: impl Fn(u8) -> bool) -> usize {
    start + text.get(start..).unwrap_or_default().iter().take_while(|byte| holds(**byte)).count()
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | b' ')
}

fn is_sign(byte: u8) -> bool {
    byte.is_ascii() && !byte.is_ascii_alphanumeric() && !is_blank(byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str) {
        let tokenizer = bpe_openai::o200k_base();
        let pieces: Vec<_> = o200k_pieces(tokenizer, text).map(|(_, piece)| piece).collect();
        assert_eq!(pieces, tokenizer.split(text).collect::<Vec<_>>(), "{text:?}");
        assert_eq!(tokens(text, Vocabulary::O200k), tokenizer.count(text) as u64, "{text:?}");
        assert_eq!(
            tokens(text, Vocabulary::Cl100k),
            bpe_openai::cl100k_base().count(text) as u64,
            "{text:?}"
        );
    }

    #[test]
    fn every_short_text_of_signs_that_differ_is_split_as_the_pattern_says() {
        const SIGNS: [char; 16] =
            ['a', 'l', 's', 'R', 'E', '7', ' ', '\t', '\n', '\r', '\'', '/', '(', '\u{0}', 'é', '\u{17f}'];
        let mut texts = vec![String::new()];
        for _ in 0..4 {
            texts = texts.iter().flat_map(|text| SIGNS.map(|sign| format!("{text}{sign}"))).collect();
            for text in &texts {
                check(text);
            }
        }
    }

    #[test]
    fn a_key_of_a_piece_in_its_text_is_that_of_the_piece_alone() {
        let text = "one of seventeen characters and more, a\u{301}nd     blanks";
        for start in 0..text.len() {
            for end in start + 1..=text.len() {
                let piece = text.as_bytes().get(start..end).unwrap_or_default();
                assert_eq!(key(text.as_bytes(), start, end - start), key_alone(piece), "{start} to {end}");
            }
        }
    }

    #[test]
    fn numbers_of_up_to_three_digits_are_tokens() {
        for digits in 1..=3 {
            for number in 0..10_usize.pow(digits) {
                let text = format!("{number:0width$}", width = digits as usize);
                check(&text);
                check(&format!("{text} {text}{text}"));
            }
        }
    }

    #[test]
    fn this_file_is_counted_as_the_pattern_says() {
        check(include_str!("exact.rs"));
    }

    #[test]
    fn every_token_that_is_a_piece_counts_as_one() {
        for tokenizer in [bpe_openai::o200k_base(), bpe_openai::cl100k_base()] {
            for token in 0..u32::try_from(tokenizer.bpe.num_tokens()).unwrap() {
                assert_eq!(tokenizer.bpe.count(tokenizer.bpe.token_bytes(token)), 1, "{token}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_counted_as_the_pattern_says(
            text in "[ -~\\n\\t]{0,200}|[a-zA-Z' ]{0,60}|\\PC{0,100}|([ \\n\\r\\t]{1,4}[a-zA-Z/.(]{0,4}[0-9]{0,5}[é你\u{301} ]{0,2}){0,20}"
        ) {
            check(&text);
        }
    }
}
