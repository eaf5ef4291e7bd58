//! What a word is by its form: a path, a hash, an id, the code of an error.

use super::LiteralKind;

/// File names end with one of these where nothing else says that they are some.
#[rustfmt::skip]
const EXTENSIONS: [&str; 98] = [
    "adoc", "astro", "avro", "bash", "bat", "bats", "bib", "bin", "c", "cc", "cfg", "cjs", "clj", "cmake",
    "conf", "cpp", "cs", "css", "csv", "cxx", "dart", "db", "diff", "dockerfile", "docx", "env", "erl",
    "ex", "exs", "fish", "go", "gql", "gradle", "graphql", "gz", "h", "hcl", "hpp", "hs", "htm", "html",
    "ini", "ipynb", "java", "jpeg", "jpg", "js", "json", "jsonl", "jsx", "kt", "kts", "less", "lock", "log",
    "lua", "m", "md", "mdx", "mjs", "mod", "mts", "nix", "parquet", "patch", "pdf", "php", "pl", "png",
    "proto", "ps1", "py", "pyi", "r", "rb", "rs", "rst", "scala", "scss", "sh", "sql", "sqlite", "sum",
    "svelte", "svg", "swift", "tar", "tf", "tfvars", "toml", "ts", "tsx", "txt", "vue", "xlsx", "xml",
    "yaml", "yml",
];

/// File names that have no such end.
#[rustfmt::skip]
const FILE_NAMES: [&str; 22] = [
    "Makefile", "Dockerfile", "Gemfile", "Rakefile", "Procfile", "Justfile", "justfile", "Jenkinsfile",
    "LICENSE", "CODEOWNERS", ".gitignore", ".gitattributes", ".gitmodules", ".dockerignore",
    ".editorconfig", ".env", ".npmrc", ".nvmrc", ".python-version", ".tool-versions", ".prettierrc",
    ".eslintrc",
];

/// Names of system errors.
#[rustfmt::skip]
const ERRNOS: [&str; 40] = [
    "EACCES", "EADDRINUSE", "EADDRNOTAVAIL", "EAGAIN", "EBADF", "EBUSY", "ECANCELED", "ECONNABORTED",
    "ECONNREFUSED", "ECONNRESET", "EDEADLK", "EEXIST", "EFAULT", "EFBIG", "EHOSTUNREACH", "EINTR", "EINVAL",
    "EIO", "EISDIR", "ELOOP", "EMFILE", "ENAMETOOLONG", "ENETUNREACH", "ENFILE", "ENODEV", "ENOENT",
    "ENOEXEC", "ENOMEM", "ENOSPC", "ENOSYS", "ENOTDIR", "ENOTEMPTY", "ENOTFOUND", "ENOTSUP", "EPERM",
    "EPIPE", "ERANGE", "EROFS", "ETIMEDOUT", "EXDEV",
];

/// What a word is that stands by itself.
pub(super) fn kind_of(name: &str) -> Option<LiteralKind> {
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
pub(super) fn is_hex_hash(name: &str) -> bool {
    let of = |test: fn(&u8) -> bool| name.as_bytes().iter().filter(|byte| test(byte)).count();
    let (digits, lower, upper) = (
        of(u8::is_ascii_digit),
        of(|byte| matches!(byte, b'a'..=b'f')),
        of(|byte| matches!(byte, b'A'..=b'F')),
    );
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
    let behind =
        |prefix: &str, from, to| name.strip_prefix(prefix).is_some_and(|rest| digits(rest, from, to));
    behind("E", 4, 4)
        || behind("TS", 4, 5)
        || behind("CS", 4, 4)
        || behind("ORA-", 5, 5)
        || behind("PLR", 4, 4)
        || name
            .strip_prefix("0x8")
            .is_some_and(|rest| rest.len() == 7 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Names of exceptions and constants of errors.
fn is_error_name(name: &str) -> bool {
    if let Some(rest) = name.strip_prefix("ERR_") {
        return rest.len() >= 3
            && rest.bytes().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b'_' | b'0'..=b'9'));
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
        "UTF", "SHA", "ISO", "RFC", "GPT", "AES", "HTTP", "ES", "MD", "RSA", "TLS", "IPV", "H", "COVID",
        "EC", "UCS",
    ];
    if let Some(number) = name.strip_prefix('#') {
        return (1..=7).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
    }
    if let Some((project, number)) = name.rsplit_once('-') {
        let is_issue = (2..=10).contains(&project.len())
            && project.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
            && project.starts_with(|c: char| c.is_ascii_uppercase())
            && !NAMES.contains(&project)
            && (1..=7).contains(&number.len());
        let is_cve = project.starts_with("CVE-") && number.len() >= 4;
        if (is_issue || is_cve) && number.bytes().all(|byte| byte.is_ascii_digit()) {
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

pub(super) fn is_file_name(name: &str) -> bool {
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
    if pieces.iter().all(is_number)
        || matches!(
            pieces.first(),
            Some(&("application" | "text" | "image" | "audio" | "video" | "multipart" | "and" | "n"))
        )
    {
        return false;
    }
    let last = pieces.last().copied().unwrap_or_default();
    let has_extension = last.rsplit_once('.').is_some_and(|(stem, extension)| {
        !stem.is_empty()
            && (1..=8).contains(&extension.len())
            && extension.starts_with(|c: char| c.is_ascii_alphabetic())
            && extension.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    let is_rooted =
        path.starts_with("./") || path.starts_with("../") || path.starts_with("~/") || is_windows(path);
    // A line of context that grep shows: `file.go-12`.
    if last
        .rsplit_once('-')
        .is_some_and(|(file, line)| is_file_name(file) && line.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return false;
    }
    let named = pieces.iter().filter(|piece| !piece.is_empty()).count();
    let is_folder = last.is_empty()
        && named >= 1
        && pieces.first().is_some_and(|first| !first.is_empty() && first.len() >= 2);
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
fn without_line(name: &str) -> &str {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_are_searched_by_halves_are_in_order() {
        assert!(EXTENSIONS.is_sorted() && ERRNOS.is_sorted());
    }
}
