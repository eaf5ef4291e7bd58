//! Literals in running text: one pass over its words.

use super::LiteralKind;

/// Longest text between quotes that is a literal, in bytes.
const QUOTED_BYTES_MAX: usize = 120;

/// Longest symbol, in bytes.
const SYMBOL_BYTES_MAX: usize = 80;

/// File names end with one of these where nothing else says that they are some.
#[rustfmt::skip]
const EXTENSIONS: [&str; 98] = [
    "adoc", "astro", "avro", "bash", "bat", "bats", "bib", "bin", "c", "cc", "cfg", "cjs", "clj", "cmake", "conf",
    "cpp", "cs", "css", "csv", "cxx", "dart", "db", "diff", "dockerfile", "docx", "env", "erl", "ex", "exs", "fish",
    "go", "gradle", "gql", "graphql", "gz", "h", "hcl", "hpp", "hs", "htm", "html", "ini", "ipynb", "java", "jpeg",
    "jpg", "js", "json", "jsonl", "jsx", "kt", "kts", "less", "lock", "log", "lua", "m", "md", "mdx", "mjs", "mod",
    "mts", "nix", "parquet", "patch", "pdf", "php", "pl", "png", "proto", "ps1", "py", "pyi", "r", "rb", "rs", "rst",
    "scala", "scss", "sh", "sql", "sqlite", "sum", "svelte", "svg", "swift", "tar", "tf", "tfvars", "toml", "ts",
    "tsx", "txt", "vue", "xlsx", "xml", "yaml", "yml",
];

/// File names that have no such end.
const FILE_NAMES: [&str; 22] = [
    "Makefile", "Dockerfile", "Gemfile", "Rakefile", "Procfile", "Justfile", "justfile", "Jenkinsfile", "LICENSE",
    "CODEOWNERS", ".gitignore", ".gitattributes", ".gitmodules", ".dockerignore", ".editorconfig", ".env", ".npmrc",
    ".nvmrc", ".python-version", ".tool-versions", ".prettierrc", ".eslintrc",
];

/// Units that stand directly behind a number or after a space.
const UNITS: [&str; 73] = [
    "%", "b", "bit", "bits", "byte", "bytes", "kb", "mb", "gb", "tb", "pb", "kib", "mib", "gib", "tib", "ns", "us",
    "µs", "μs", "ms", "sec", "secs", "second", "seconds", "min", "mins", "minute", "minutes", "hour", "hours", "hrs",
    "day", "days", "week", "weeks", "month", "months", "year", "years", "hz", "khz", "mhz", "ghz", "rps", "qps",
    "tps", "fps", "px", "dpi", "token", "tokens", "line", "lines", "char", "chars", "characters", "row", "rows",
    "request", "requests", "req/s", "mb/s", "gb/s", "kb/s", "€", "eur", "usd", "dollars", "cents", "秒", "毫秒",
    "分钟", "小时",
];

/// Units that are one letter and stand directly behind the number.
const SHORT_UNITS: [&str; 6] = ["s", "m", "h", "d", "k", "x"];

/// Names of system errors.
#[rustfmt::skip]
const ERRNOS: [&str; 40] = [
    "EACCES", "EADDRINUSE", "EADDRNOTAVAIL", "EAGAIN", "EBADF", "EBUSY", "ECANCELED", "ECONNABORTED",
    "ECONNREFUSED", "ECONNRESET", "EDEADLK", "EEXIST", "EFAULT", "EFBIG", "EHOSTUNREACH", "EINTR", "EINVAL", "EIO",
    "EISDIR", "ELOOP", "EMFILE", "ENAMETOOLONG", "ENETUNREACH", "ENFILE", "ENODEV", "ENOENT", "ENOEXEC", "ENOMEM",
    "ENOSPC", "ENOSYS", "ENOTDIR", "ENOTEMPTY", "ENOTFOUND", "ENOTSUP", "EPERM", "EPIPE", "ERANGE", "EROFS",
    "ETIMEDOUT", "EXDEV",
];

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
        if is_quote(c) && !joins(before) {
            if let Some(skipped) = quoted(rest, c, found) {
                at += skipped;
                before = c;
                continue;
            }
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
    ('\u{2e80}'..='\u{9fff}').contains(&c) || ('\u{ac00}'..='\u{d7af}').contains(&c) || c > '\u{1f000}' || ('\u{f900}'..='\u{faff}').contains(&c)
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
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => at += 1,
            b'_' | b'-' | b'.' | b'/' | b':' | b'@' | b'#' | b'%' | b'~' | b'+' | b'$' => at += 1,
            b'\\' if at >= 2 && bytes.get(1) == Some(&b':') && bytes.first().is_some_and(u8::is_ascii_alphabetic) => {
                at += 1;
            }
            0..=0x7f => return at,
            _ => {
                let Some(c) = rest.get(at..).and_then(|rest| rest.chars().next()) else { return at };
                let before = rest.get(..at).and_then(|before| before.chars().next_back());
                let in_name = before.is_some_and(|before| before == '/' || before == '\\' || is_wide(before));
                let is_part = if is_wide(c) { in_name && c.is_alphanumeric() } else { c.is_alphanumeric() || c == '€' };
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

/// What a word is that stands by itself.
fn kind_of(name: &str) -> Option<LiteralKind> {
    let shape = Shape::of(name);
    if shape.has_digit {
        if is_uuid(name) || is_hex_hash(name) || hash_with_name(name) {
            return Some(LiteralKind::Hash);
        }
        if is_code(name) {
            return Some(LiteralKind::ErrorCode);
        }
        if is_id(name) {
            return Some(LiteralKind::Id);
        }
    }
    if shape.is_name && (ERRNOS.binary_search(&name).is_ok() || is_error_name(name)) {
        return Some(LiteralKind::ErrorCode);
    }
    ((shape.has_slash || shape.has_dot || name.starts_with(|c: char| c.is_ascii_uppercase() || c == 'j'))
        && is_path(name, &shape))
    .then_some(LiteralKind::Path)
}

/// What a word is made of.
struct Shape {
    has_digit: bool,
    has_slash: bool,
    has_dot: bool,
    /// Whether it is letters, digits and underscores alone.
    is_name: bool,
}

impl Shape {
    fn of(name: &str) -> Self {
        let mut shape = Self { has_digit: false, has_slash: false, has_dot: false, is_name: true };
        for byte in name.bytes() {
            match byte {
                b'0'..=b'9' => shape.has_digit = true,
                b'/' | b'\\' => (shape.has_slash, shape.is_name) = (true, false),
                b'.' => (shape.has_dot, shape.is_name) = (true, false),
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => {}
                _ => shape.is_name = false,
            }
        }
        shape
    }
}

fn is_uuid(name: &str) -> bool {
    name.len() == 36
        && name.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// Seven hex digits at least, of one case, with a digit and a letter among them.
fn is_hex_hash(name: &str) -> bool {
    let of = |test: fn(&u8) -> bool| name.as_bytes().iter().filter(|byte| test(byte)).count();
    let (digits, lower, upper) =
        (of(u8::is_ascii_digit), of(|byte| matches!(byte, b'a'..=b'f')), of(|byte| matches!(byte, b'A'..=b'F')));
    (7..=128).contains(&name.len())
        && digits > 0
        && (lower == 0) != (upper == 0)
        && digits + lower + upper == name.len()
}

fn hash_with_name(name: &str) -> bool {
    name.split_once(':').is_some_and(|(algorithm, hash)| {
        matches!(algorithm, "sha1" | "sha256" | "sha512" | "blake3" | "md5") && is_hex_hash(hash)
    })
}

/// Codes of compilers and systems: `E0382`, `TS2345`, `0x80070005`.
fn is_code(name: &str) -> bool {
    let digits = |rest: &str, from: usize, to: usize| {
        (from..=to).contains(&rest.len()) && rest.bytes().all(|byte| byte.is_ascii_digit())
    };
    let behind = |prefix: &str, from, to| name.strip_prefix(prefix).is_some_and(|rest| digits(rest, from, to));
    behind("E", 4, 4)
        || behind("TS", 4, 5)
        || behind("CS", 4, 4)
        || behind("ORA-", 5, 5)
        || behind("PLR", 4, 4)
        || name.strip_prefix("0x8").is_some_and(|rest| rest.len() == 7 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Names of exceptions and constants of errors.
fn is_error_name(name: &str) -> bool {
    if let Some(rest) = name.strip_prefix("ERR_") {
        return rest.len() >= 3 && rest.bytes().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b'_' | b'0'..=b'9'));
    }
    if matches!(name, "SIGSEGV" | "SIGKILL" | "SIGABRT" | "SIGBUS" | "SIGILL" | "SIGPIPE") {
        return true;
    }
    let stem = name.strip_suffix("Error").or_else(|| name.strip_suffix("Exception"));
    stem.is_some_and(|stem| {
        stem.len() >= 2 && stem.starts_with(|c: char| c.is_ascii_uppercase()) && !stem.contains('_')
    })
}

/// Ids of issues and calls: `ABC-123`, `#123`, `toolu_01AbC…`.
fn is_id(name: &str) -> bool {
    /// What looks like the id of an issue and is a name.
    const NAMES: [&str; 16] = [
        "UTF", "SHA", "ISO", "RFC", "GPT", "AES", "HTTP", "ES", "MD", "RSA", "TLS", "IPV", "H", "COVID", "EC", "UCS",
    ];
    if let Some(number) = name.strip_prefix('#') {
        return (1..=7).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
    }
    if let Some((project, number)) = name.rsplit_once('-') {
        let is_issue = (2..=10).contains(&project.len())
            && project.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
            && project.starts_with(|c: char| c.is_ascii_uppercase())
            && (1..=7).contains(&number.len())
            && number.bytes().all(|byte| byte.is_ascii_digit());
        if is_issue && !NAMES.contains(&project) || name.starts_with("CVE-") && number.len() >= 4 {
            return true;
        }
    }
    if let Some((prefix, rest)) = name.split_once('_') {
        let is_random = rest.len() >= 8
            && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && rest.bytes().any(|byte| byte.is_ascii_digit())
            && rest.bytes().filter(u8::is_ascii_alphabetic).count() >= 3;
        return is_random && prefix.len() <= 12 && prefix.bytes().all(|byte| byte.is_ascii_lowercase());
    }
    let of = |test: fn(&u8) -> bool| name.as_bytes().iter().filter(|byte| test(byte)).count();
    (20..=64).contains(&name.len())
        && of(u8::is_ascii_alphanumeric) == name.len()
        && of(u8::is_ascii_digit) >= 3
        && of(u8::is_ascii_uppercase) >= 3
}

fn is_file_name(name: &str) -> bool {
    if FILE_NAMES.contains(&name) || name.starts_with(".env.") {
        return true;
    }
    let Some((stem, extension)) = name.rsplit_once('.') else { return false };
    let is_known = EXTENSIONS.binary_search(&extension.to_ascii_lowercase().as_str()).is_ok();
    let is_code = matches!(name, "console.log" | "e.g" | "i.e" | "process.env" | "import.meta.env");
    // A name with one letter behind a dot is more often a member than a file.
    let is_member = extension.len() == 1 && (stem.len() < 3 || stem.contains('.'));
    let is_stem = !is_member && stem.chars().any(char::is_alphanumeric);
    is_known && is_stem && !is_code && !stem.contains('(')
}

/// Whether a word names a file or folder, perhaps with a line.
fn is_path(name: &str, shape: &Shape) -> bool {
    let path = without_line(name);
    if path.contains(['$', '%', '+']) && !shape.has_slash || path.contains("//") || path.contains("::") {
        return false;
    }
    if !shape.has_slash {
        return !path.contains([':', '@', '#']) && is_file_name(path);
    }
    if path.contains(['$', ':', '#']) && !is_windows(path) || path.starts_with(['/', '.']) && path.len() < 4 {
        return false;
    }
    let pieces: Vec<_> = path.split(['/', '\\']).collect();
    let is_number = |piece: &&str| piece.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if pieces.iter().all(is_number) || matches!(pieces.first(), Some(&("application" | "text" | "image" | "audio" | "video" | "multipart" | "and" | "n"))) {
        return false;
    }
    let last = pieces.last().copied().unwrap_or_default();
    let has_extension = last.rsplit_once('.').is_some_and(|(stem, extension)| {
        !stem.is_empty()
            && (1..=8).contains(&extension.len())
            && extension.starts_with(|c: char| c.is_ascii_alphabetic())
            && extension.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    let is_rooted = path.starts_with("./") || path.starts_with("../") || path.starts_with("~/") || is_windows(path);
    // A line of context that grep shows: `file.go-12`.
    if last.rsplit_once('-').is_some_and(|(file, line)| {
        is_file_name(file) && line.bytes().all(|byte| byte.is_ascii_digit())
    }) {
        return false;
    }
    let named = pieces.iter().filter(|piece| !piece.is_empty()).count();
    let is_folder = last.is_empty() && named >= 1 && pieces.first().is_some_and(|first| !first.is_empty() && first.len() >= 2);
    is_rooted && named >= 2
        || has_extension
        || is_folder
        || FILE_NAMES.contains(&last)
        || path.starts_with('/') && named >= 2
        // Alternatives such as yes/no/maybe are short and lie nowhere.
        || named >= 3 && pieces.iter().all(|piece| piece.len() >= 2) && path.contains(['_', '-', '.']) 
        || named >= 3 && matches!(pieces.first(), Some(&("src" | "tests" | "test" | "docs" | "lib" | "cmd" | "internal" | "pkg" | "app" | "crates" | "packages" | "scripts" | "e2e" | "usr" | "etc" | "var" | "home")))
}

fn is_windows(path: &str) -> bool {
    let bytes = path.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.get(1) == Some(&b':')
        && matches!(bytes.get(2), Some(b'\\' | b'/'))
        && !path.get(2..).is_some_and(|rest| rest.contains(':'))
}

/// A path without the line and column behind it: `:12`, `:12:5`, `#L12`.
pub(super) fn without_line(name: &str) -> &str {
    if let Some((path, line)) = name.rsplit_once('#')
        && line.strip_prefix('L').is_some_and(|line| line.starts_with(|c: char| c.is_ascii_digit()))
    {
        return path;
    }
    let mut path = name;
    for _ in 0..2 {
        match path.rsplit_once(':') {
            Some((before, line))
                if !line.is_empty()
                    && line.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
                    && before.len() > 1 =>
            {
                path = before;
            }
            _ => break,
        }
    }
    path
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
    let length = wide.map_or_else(|| unit.find(|c: char| !is_part(c)).unwrap_or(unit.len()), |unit| unit.len());
    let word = unit.get(..length)?;
    if word.is_empty() || word.len() > 12 || unit.get(length..)?.starts_with(|c: char| c.is_ascii_digit() || c == '_') {
        return None;
    }
    let lower = word.to_lowercase();
    let is_unit = UNITS.contains(&lower.as_str()) && (space == 0 || lower != "b")
        || space == 0 && SHORT_UNITS.contains(&word)
        || space == 0 && matches!(word, "K" | "M" | "G" | "B");
    is_unit.then_some(at + space + length)
}
