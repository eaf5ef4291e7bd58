//! Literals in running text: one pass over its words.

use super::LiteralKind;
use super::words::{is_file_name, is_hex_hash, kind_of};
use crate::limits::LITERAL_BYTES_MAX;

/// Longest text between quotes that is a literal, in bytes.
const QUOTED_BYTES_MAX: usize = 120;

/// Longest symbol, in bytes.
const SYMBOL_BYTES_MAX: usize = 80;

/// Units that stand directly behind a number or after a space.
#[rustfmt::skip]
const UNITS: [&str; 73] = [
    "%", "b", "bit", "bits", "byte", "bytes", "kb", "mb", "gb", "tb", "pb", "kib", "mib", "gib", "tib",
    "ns", "us", "µs", "μs", "ms", "sec", "secs", "second", "seconds", "min", "mins", "minute", "minutes",
    "hour", "hours", "hrs", "day", "days", "week", "weeks", "month", "months", "year", "years", "hz", "khz",
    "mhz", "ghz", "rps", "qps", "tps", "fps", "px", "dpi", "token", "tokens", "line", "lines", "char",
    "chars", "characters", "row", "rows", "request", "requests", "req/s", "mb/s", "gb/s", "kb/s", "€",
    "eur", "usd", "dollars", "cents", "秒", "毫秒", "分钟", "小时",
];

/// Units that are one letter and stand directly behind the number.
const SHORT_UNITS: [&str; 6] = ["s", "m", "h", "d", "k", "x"];

/// What an exit code or status stands behind, with the codes that count there.
const CODE_PHRASES: [(&str, u32, u32); 9] = [
    ("exit code ", 1, 255),
    ("exit code: ", 1, 255),
    ("exit status ", 1, 255),
    ("exited with code ", 1, 255),
    ("exited with status ", 1, 255),
    ("status code ", 100, 599),
    ("status code: ", 100, 599),
    ("status ", 400, 599),
    ("http ", 100, 599),
];

/// Calls `found` with each literal in `text`, in order; what one holds may be
/// found too. Linear in the length.
pub fn literals_of<'t>(text: &'t str, found: &mut dyn FnMut(LiteralKind, &'t str)) {
    let mut at = 0;
    let mut before = ' ';
    while let Some(rest) = text.get(at..) {
        let Some(c) = rest.chars().next() else { break };
        if let Some(length) = code_phrase(rest, before) {
            found(LiteralKind::ErrorCode, rest.get(..length).unwrap_or_default());
            at += length;
            before = '0';
            continue;
        }
        if is_quote(c)
            && !joins(before)
            && let Some(skipped) = quoted(rest, c, found)
        {
            at += skipped;
            before = c;
            continue;
        }
        let length = word_length(rest);
        if length == 0 {
            at += c.len_utf8();
            before = c;
            continue;
        }
        let (word, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
        let taken = take_word(rest, word, after, before, found);
        at += taken.max(1);
        before = text.get(..at).and_then(|taken| taken.chars().next_back()).unwrap_or(' ');
    }
}

/// Whether what follows `before` goes on with a word.
fn joins(before: char) -> bool {
    before.is_alphanumeric() && !is_wide(before)
}

fn is_wide(c: char) -> bool {
    ('\u{2e80}'..='\u{9fff}').contains(&c)
        || ('\u{ac00}'..='\u{d7af}').contains(&c)
        || c > '\u{1f000}'
        || ('\u{f900}'..='\u{faff}').contains(&c)
        || ('\u{ff00}'..='\u{ffef}').contains(&c)
}

/// How long the word is that `rest` begins with: letters, digits and the signs
/// that paths, URLs and names are made of. Chinese, Japanese and Korean, which
/// put no spaces between words, are no part of one but in the name of a file.
fn word_length(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 0;
    loop {
        let Some(&byte) = bytes.get(at) else { return at };
        match byte {
            b'a'..=b'z'
            | b'A'..=b'Z'
            | b'0'..=b'9'
            | b'_'
            | b'-'
            | b'.'
            | b'/'
            | b':'
            | b'@'
            | b'#'
            | b'%'
            | b'~'
            | b'+'
            | b'$' => at += 1,
            b'\\'
                if at >= 2
                    && bytes.get(1) == Some(&b':')
                    && bytes.first().is_some_and(u8::is_ascii_alphabetic) =>
            {
                at += 1;
            }
            0..=0x7f => return at,
            _ => {
                let Some(c) = rest.get(at..).and_then(|rest| rest.chars().next()) else { return at };
                let before = rest.get(..at).and_then(|before| before.chars().next_back());
                let in_name = before.is_some_and(|before| before == '/' || before == '\\' || is_wide(before));
                let is_part = if is_wide(c) {
                    in_name && c.is_alphanumeric()
                } else {
                    c.is_alphanumeric() || c == '€'
                };
                if !is_part {
                    return at;
                }
                at += c.len_utf8();
            }
        }
    }
}

fn is_quote(c: char) -> bool {
    matches!(c, '"' | '\'' | '`' | '“' | '«' | '「')
}

/// What stands between quotes. How many bytes need not be looked at again.
fn quoted<'t>(rest: &'t str, c: char, found: &mut dyn FnMut(LiteralKind, &'t str)) -> Option<usize> {
    if rest.starts_with("```") {
        return Some(3);
    }
    let closing = match c {
        '“' => '”',
        '«' => '»',
        '「' => '」',
        same => same,
    };
    let inner = rest.get(c.len_utf8()..)?;
    let (end, _) = inner
        .char_indices()
        .take_while(|(at, found)| *at <= QUOTED_BYTES_MAX && *found != '\n')
        .find(|(_, found)| *found == closing)?;
    let (inside, after) = (inner.get(..end)?, inner.get(end + closing.len_utf8()..)?);
    let is_word = inside.chars().any(char::is_alphabetic) && inside.trim() == inside && inside.len() >= 2;
    if !is_word || c == '\'' && after.starts_with(char::is_alphanumeric) {
        return None;
    }
    if c == '`' && is_symbol(inside) {
        found(LiteralKind::Symbol, inside);
        return Some(c.len_utf8() + end + closing.len_utf8());
    }
    let kind = if word_length(inside) == inside.len() { kind_of(inside) } else { None };
    if kind.is_none() {
        found(LiteralKind::Quoted, inside);
    }
    // What is in it is looked at as well.
    None
}

/// Whether a name between backticks is one of code: an identifier, perhaps with
/// what it belongs to and an argument list.
fn is_symbol(name: &str) -> bool {
    let bare = name.split_once('(').map_or(name, |(bare, _)| bare);
    let is_call = bare.len() == name.len() || name.ends_with(')');
    let pieces = bare.split("::").flat_map(|piece| piece.split('.'));
    is_call
        && name.len() <= SYMBOL_BYTES_MAX
        && bare.len() >= 2
        && pieces.clone().all(is_identifier)
        && !is_file_name(bare)
        && !is_hex_hash(bare)
}

fn is_identifier(piece: &str) -> bool {
    piece.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && piece.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// An exit code or HTTP status with the words before it, at the beginning of
/// `rest`.
fn code_phrase(rest: &str, before: char) -> Option<usize> {
    if joins(before) || !rest.starts_with(['e', 'E', 's', 'S', 'h', 'H']) {
        return None;
    }
    CODE_PHRASES.iter().find_map(|(phrase, least, most)| {
        let start = rest.get(..phrase.len())?;
        let digits = rest.get(phrase.len()..)?;
        let length = digits.bytes().take_while(u8::is_ascii_digit).count();
        let ends = !digits.get(length..)?.starts_with(|c: char| c.is_alphanumeric() || c == '-');
        let code: u32 = digits.get(..length)?.parse().ok()?;
        (start.eq_ignore_ascii_case(phrase) && ends && (*least..=*most).contains(&code))
            .then_some(phrase.len() + length)
    })
}

/// Takes in the word that `rest` begins with. How long it turned out to be.
fn take_word<'t>(
    rest: &'t str,
    word: &'t str,
    after: &'t str,
    before: char,
    found: &mut dyn FnMut(LiteralKind, &'t str),
) -> usize {
    let starts_number = word.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '$' | '€'));
    if word.len() < 2 && !starts_number {
        return word.len();
    }
    if let Some(scheme) = word.find("://")
        && word.get(..scheme).is_some_and(|scheme| {
            scheme.len() >= 2 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+')
        })
    {
        let length = url_length(rest);
        if length > scheme + 3 {
            found(LiteralKind::Url, rest.get(..length).unwrap_or_default());
        }
        return length.max(word.len());
    }
    // Too long for any literal; and what is looked at more than once must be
    // short.
    if word.len() > LITERAL_BYTES_MAX {
        return word.len();
    }
    if starts_number
        && !joins(before)
        && let Some(length) = number_length(rest)
    {
        found(LiteralKind::Number, rest.get(..length).unwrap_or_default());
        return length;
    }
    let trimmed = word.trim_end_matches(['.', ':', '-', '/', '%', '+', '~', '@', '#']);
    // A folder keeps its slash.
    let trimmed = match word.as_bytes().get(trimmed.len()) {
        Some(b'/') if !trimmed.is_empty() => word.get(..=trimmed.len()).unwrap_or(trimmed),
        _ => trimmed,
    };
    let start = trimmed.len() - trimmed.trim_start_matches(['-', ':', '+', '%']).len();
    let name = trimmed.get(start..).unwrap_or_default();
    if name.len() < 2 {
        return word.len();
    }
    if let Some(kind) = kind_of(name) {
        // `https` and such without what follows.
        found(kind, name);
    } else if is_called(name, after, word) {
        found(LiteralKind::Symbol, name);
    }
    word.len()
}

/// Whether `name` is that of a function which is called or named as one, or is
/// qualified.
fn is_called(name: &str, after: &str, word: &str) -> bool {
    if name.len() > SYMBOL_BYTES_MAX || !name.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
        return false;
    }
    let pieces = || name.split("::").flat_map(|piece| piece.split('.'));
    let is_qualified = name.contains("::");
    let is_call = after.starts_with('(') && name.len() == word.len();
    let is_named = || {
        after.starts_with("()")
            || name.contains('_')
            || name.chars().skip(1).any(char::is_uppercase) && name.chars().any(char::is_lowercase)
    };
    (is_qualified || is_call && name.len() >= 4 && is_named()) && pieces().all(is_identifier)
}

/// How long the URL is that `rest` begins with.
fn url_length(rest: &str) -> usize {
    let mut open = 0_i32;
    let mut end = 0;
    for (at, c) in rest.char_indices() {
        match c {
            '(' | '[' => open += 1,
            ')' | ']' if open > 0 => open -= 1,
            ')' | ']' | '"' | '\'' | '<' | '>' | '`' | '{' | '}' | '|' | '\\' | '^' => break,
            c if c.is_whitespace() || c.is_control() || is_wide(c) => break,
            _ => {}
        }
        end = at + c.len_utf8();
    }
    let url = rest.get(..end).unwrap_or_default();
    url.trim_end_matches(['.', ',', ';', ':', '!', '?', '*', '_', '(', '[', '…']).len()
}

/// How long the number with a unit is that `rest` begins with.
fn number_length(rest: &str) -> Option<usize> {
    let currency = rest.chars().next().filter(|c| matches!(c, '$' | '€')).map_or(0, char::len_utf8);
    let bytes = rest.as_bytes();
    let mut at = currency;
    let mut seen = 0;
    while let Some(byte) = bytes.get(at) {
        let next_is_digit = bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
        match byte {
            b'0'..=b'9' => seen += 1,
            b'.' | b',' | b'_' if seen > 0 && next_is_digit => {}
            _ => break,
        }
        at += 1;
        if at > currency + 32 {
            return None;
        }
    }
    let after = rest.get(at..)?;
    if currency > 0 {
        return (seen > 0 && !after.starts_with(|c: char| c.is_alphanumeric() || c == '_')).then_some(at);
    }
    let space = usize::from(after.starts_with([' ', '\u{a0}', '-']));
    let space = if after.starts_with('\u{a0}') { 2 } else { space };
    let unit = after.get(space..)?;
    let is_part = |c: char| c.is_alphabetic() || matches!(c, '%' | '/' | '€');
    let wide = UNITS.iter().find(|known| known.starts_with(is_wide) && unit.starts_with(**known));
    let length =
        wide.map_or_else(|| unit.find(|c: char| !is_part(c)).unwrap_or(unit.len()), |unit| unit.len());
    let word = unit.get(..length)?;
    if word.is_empty()
        || word.len() > 12
        || unit.get(length..)?.starts_with(|c: char| c.is_ascii_digit() || c == '_')
    {
        return None;
    }
    let lower = word.to_lowercase();
    let is_unit = UNITS.contains(&lower.as_str()) && (space == 0 || lower != "b")
        || space == 0 && SHORT_UNITS.contains(&word)
        || space == 0 && matches!(word, "K" | "M" | "G" | "B");
    is_unit.then_some(at + space + length)
}
