//! Reads Rust source as far as the layers need it: which paths and names a file
//! has.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A source file.
#[derive(Debug)]
pub(crate) struct Module {
    /// Its path in the crate, such as `engine::persist`.
    pub(crate) name: String,
    /// Its path in the repository.
    pub(crate) file: String,
    pub(crate) lines: usize,
    /// All paths into the crate, from its root.
    pub(crate) paths: BTreeSet<String>,
    /// All identifiers.
    pub(crate) idents: BTreeSet<String>,
}

fn source_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// All source files but lib.rs, sorted.
pub(crate) fn modules() -> Vec<Module> {
    let mut files = Vec::new();
    find(&source_directory(), &mut files);
    files.sort();
    files.iter().filter(|file| !file.ends_with("src/lib.rs")).map(|file| read(file)).collect()
}

/// The modules that a file declares, in order.
pub(crate) fn declared(file: &str) -> Vec<String> {
    let tokens = tokens(&fs::read_to_string(source_directory().join(file)).unwrap());
    tokens.windows(2).filter(|pair| pair[0] == "mod").map(|pair| pair[1].clone()).collect()
}

fn find(directory: &Path, files: &mut Vec<PathBuf>) {
    for file in fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            find(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn read(path: &Path) -> Module {
    let text = fs::read_to_string(path).unwrap();
    let relative = path.strip_prefix(source_directory()).unwrap().with_extension("");
    let segments: Vec<_> = relative.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    let tokens = without_tests(&tokens(&text));
    Module {
        file: format!("src/{}.rs", segments.join("/")),
        lines: text.lines().count(),
        paths: paths(&tokens, &segments),
        idents: tokens.into_iter().filter(|token| is_ident(token)).collect(),
        name: segments.join("::"),
    }
}

fn is_ident(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Identifiers, `::` and other characters, without comments and literals.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("//") {
            rest = comment.split_once('\n').map_or("", |(_, rest)| rest);
        } else if rest.starts_with("/*") {
            rest = rest.split_once("*/").unwrap().1;
        } else if let Some(raw) = raw_string(rest) {
            rest = raw;
        } else if let Some(body) = ["b\"", "c\"", "\""].iter().find_map(|open| rest.strip_prefix(open)) {
            rest = after_string(body);
        } else if c == '\'' {
            rest = after_quote(&rest[1..]);
        } else if c.is_alphanumeric() || c == '_' {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            tokens.push(rest[..end].to_owned());
            rest = &rest[end..];
        } else if let Some(after) = rest.strip_prefix("::") {
            tokens.push("::".to_owned());
            rest = after;
        } else {
            if !c.is_whitespace() {
                tokens.push(c.to_string());
            }
            rest = &rest[c.len_utf8()..];
        }
    }
    tokens
}

/// What follows a raw string, if the text begins with one.
fn raw_string(text: &str) -> Option<&str> {
    let opened = ["r", "br", "cr"].iter().find_map(|prefix| text.strip_prefix(prefix))?;
    let body = opened.trim_start_matches('#');
    let close = format!("\"{}", "#".repeat(opened.len() - body.len()));
    body.strip_prefix('"')?.split_once(&close).map(|(_, rest)| rest)
}

fn after_string(body: &str) -> &str {
    let mut is_escaped = false;
    let end = body.find(|c| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    });
    &body[end.unwrap() + 1..]
}

/// What follows a character literal, or the quote of a lifetime.
fn after_quote(body: &str) -> &str {
    let mut chars = body.chars();
    match chars.next() {
        Some('\\') => body[2..].split_once('\'').unwrap().1,
        Some(_) if chars.next() == Some('\'') => chars.as_str(),
        _ => body,
    }
}

/// Leaves out what is compiled for tests only.
fn without_tests(tokens: &[String]) -> Vec<String> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        if tokens[i..].iter().zip(TEST).filter(|(token, expected)| token == expected).count() < TEST.len() {
            kept.push(tokens[i].clone());
            i += 1;
            continue;
        }
        i += TEST.len();
        let mut depth = 0;
        loop {
            match tokens[i].as_str() {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            i += 1;
            let ended = &tokens[i - 1];
            if depth == 0 && (ended == ";" || ended == "}") {
                break;
            }
        }
    }
    kept
}

/// All paths into the crate, from its root.
fn paths(tokens: &[String], module: &[String]) -> BTreeSet<String> {
    let mut found = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        if tokens[i] == "use" {
            let end = i + tokens[i..].iter().position(|token| token == ";").unwrap();
            leaves(&tokens[i + 1..end], &[], &mut found);
            i = end;
        } else if ["crate", "super", "self"].contains(&tokens[i].as_str()) {
            let mut path = vec![tokens[i].clone()];
            while tokens.get(i + 1).is_some_and(|token| token == "::") && is_ident(&tokens[i + 2]) {
                path.push(tokens[i + 2].clone());
                i += 2;
            }
            found.push(path);
        }
        i += 1;
    }
    found.iter().filter_map(|path| from_root(path, module)).collect()
}

/// The paths of a use tree.
fn leaves(tree: &[String], prefix: &[String], found: &mut Vec<Vec<String>>) {
    let mut path = prefix.to_vec();
    for (i, token) in tree.iter().enumerate() {
        match token.as_str() {
            "{" => {
                let mut depth = 0;
                let mut start = i + 1;
                for (j, token) in tree.iter().enumerate().skip(i) {
                    match token.as_str() {
                        "{" => depth += 1,
                        "}" => depth -= 1,
                        _ => {}
                    }
                    if (token == "," && depth == 1) || depth == 0 {
                        if start < j {
                            leaves(&tree[start..j], &path, found);
                        }
                        start = j + 1;
                    }
                }
                return;
            }
            "as" => break,
            "::" => {}
            _ => path.push(token.clone()),
        }
    }
    found.push(path);
}

/// A path from the crate's root; nothing if it leads elsewhere.
fn from_root(path: &[String], module: &[String]) -> Option<String> {
    let mut base = module.to_vec();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => base.clear(),
        "self" => {}
        "super" => drop(base.pop()),
        _ => return None,
    }
    rest = &rest[1..];
    while rest.first().is_some_and(|segment| segment == "super") {
        base.pop();
        rest = &rest[1..];
    }
    base.extend(rest.iter().cloned());
    (!base.is_empty()).then(|| base.join("::"))
}

#[test]
fn source_is_read_as_it_is_meant() {
    let text = r##"
        use crate::{a::{self, b as c}, d}; // use crate::comment;
        use super::e::*;
        pub(super) fn f<'a>(x: &'a str) { "use crate::text; \""; 'x'; '\''; r#"crate::raw"#; crate::g::h::<u8>() }
        #[cfg(test)]
        mod tests { use crate::i; fn g() { loop {} } }
        use std::fs;
        #[cfg(test)]
        const X: [u8; 2] = [1; 2];
        self::j();
    "##;
    let module = ["m".to_owned(), "n".to_owned()];
    let found = paths(&without_tests(&tokens(text)), &module);
    let expected = ["a::b", "a::self", "d", "g::h", "m", "m::e::*", "m::n::j"];
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}
