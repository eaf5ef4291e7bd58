//! What the text of a result says of how a call ended.

use crate::summary::fit::one_line;
use crate::summary::literals::{LiteralKind, literals_of};
use regex::Regex;
use std::sync::LazyLock;

/// Where a result says how it ended: bytes at its beginning.
const HEAD_BYTES: usize = 600;

/// And at its end.
const TAIL_BYTES: usize = 4_000;

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// With exit code 0.
    Exited,
    /// Nothing says that it failed.
    Done,
    /// It failed, with that exit code if it has one.
    Failed(Option<i32>),
    /// It was not carried out: the user or a rule stopped it.
    Refused,
    /// It goes on, under that name.
    Running(String),
}

impl Ending {
    /// Whether it did not do what it was to do.
    pub fn has_failed(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Refused)
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited | Self::Done => f.write_str("ok"),
            Self::Failed(Some(code)) => write!(f, "failed with exit code {code}"),
            Self::Failed(None) => f.write_str("failed"),
            Self::Refused => f.write_str("refused, not run"),
            Self::Running(_) => f.write_str("was still running"),
        }
    }
}

/// Tests of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TestCounts {
    /// Those that passed.
    pub passed: u64,
    /// Those that failed.
    pub failed: u64,
    /// Whether they are packages rather than tests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub are_packages: bool,
}

impl std::fmt::Display for TestCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.are_packages { "test packages" } else { "tests" };
        write!(f, "{} {what} passed, {} failed", self.passed, self.failed)
    }
}

#[expect(clippy::expect_used, reason = "the patterns are constants")]
fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a pattern of this file")
}

static CODE: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r#"(?m)(?:^(?:Process exited with code|Exit code:?|exit status|Command exited with code|Command failed with exit code:?)|\[The command completed with exit code|command finished with exit code|<returncode>|"exit_code": ?) ?(-?\d{1,10})"#,
    )
});
static SESSION: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?m)^(?:Process running with session ID|Script running with cell ID|Command running in background with ID:) ?([\w-]{1,40})",
    )
});

/// How texts begin that tell of a failure.
#[rustfmt::skip]
const FAILURES: [&str; 17] = [
    "<tool_use_error>", "error:", "error ", "error\n", "failed to", "failure",
    "no replacement was performed", "apply_patch verification failed", "invalid context", "script failed",
    "string to replace not found", "file has not been read yet", "file does not exist", "[error",
    "traceback (most recent call last)", "execution failed", "exec_command failed",
];

/// How texts begin that tell of a refusal.
const REFUSALS: [&str; 9] = [
    "the user doesn't want to proceed",
    "claude requested permissions",
    "permission to use",
    "request interrupted",
    "[request interrupted",
    "aborted by user",
    "aborted",
    "command rejected",
    "[no result: the call was interrupted",
];

/// How a call ended whose result has that text.
pub(super) fn ending(text: &str, is_error: bool) -> Ending {
    let head = beginning(text, HEAD_BYTES);
    let lower = head.trim_start().to_ascii_lowercase();
    if REFUSALS.iter().any(|refusal| lower.starts_with(refusal)) {
        return Ending::Refused;
    }
    // What comes after is what the command printed.
    let frame = head.find("\nOutput:").map_or(head, |end| head.get(..end).unwrap_or(head));
    let found = |regex: &Regex, text: &str| -> Option<String> {
        regex.captures_iter(text).last()?.get(1).map(|found| found.as_str().to_owned())
    };
    if let Some(session) = found(&SESSION, frame) {
        return Ending::Running(session);
    }
    let code = found(&CODE, frame).or_else(|| found(&CODE, end(text, 200)));
    match code.and_then(|code| code.parse().ok()) {
        Some(0) if !is_error => Ending::Exited,
        Some(0) => Ending::Failed(None),
        Some(code) => Ending::Failed(Some(code)),
        None if is_error || FAILURES.iter().any(|failure| lower.starts_with(failure)) => Ending::Failed(None),
        None => Ending::Done,
    }
}

/// The line that says why a call failed, if it did: the first that names an
/// error, else the last.
pub(super) fn failure(text: &str, is_error: bool) -> Option<&str> {
    let ending = ending(text, is_error);
    if !matches!(ending, Ending::Failed(_)) {
        return None;
    }
    let output = text.find("\nOutput:\n").and_then(|at| text.get(at + 9..)).unwrap_or(text);
    let lines = || output.lines().map(str::trim).filter(|line| line.chars().any(char::is_alphabetic));
    let names = |line: &&str| {
        let lower = beginning(line, 200).to_ascii_lowercase();
        let is_frame = CODE.is_match(line) && line.len() < 60;
        !is_frame
            && ["error", "failed", "panicked", "fatal", "exception", "cannot", "not found"]
                .iter()
                .any(|word| lower.contains(word))
    };
    lines().find(names).or_else(|| lines().next_back())
}

fn beginning(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

fn end(text: &str, bytes: usize) -> &str {
    text.get(text.ceil_char_boundary(text.len().saturating_sub(bytes))..).unwrap_or(text)
}

static CARGO: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?m)^test result: \w+\. (\d+) passed; (\d+) failed"));
static NEXTEST: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^\s*Summary \[.*\] .*tests? run: (.*)$"));
static PYTEST: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?m)^(?:=+ )?((?:\d+ (?:passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?|rerun)(?:, )?)+) in [\d.]+s",
    )
});
static JEST: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^\s*Tests:? +((?:\d+ \w+(?:,| \|)? ?)+)"));
static MOCHA: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^\s*(\d+ (?:passing|failing))\b"));
static GO_TEST: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^\s*--- (PASS|FAIL): "));
static GO_PACKAGE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?m)^(ok|FAIL)\s+[\w./-]+\s+(?:[\d.]+s|\(cached\)|\[)"));
static UNITTEST: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^Ran (\d+) tests? in "));
static UNITTEST_FAILED: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?m)^FAILED \((?:failures=(\d+))?(?:, )?(?:errors=(\d+))?"));
static COUNT: LazyLock<Regex> = LazyLock::new(|| regex(r"(\d+) (\w+)"));

/// The counts of tests in the output of a run.
pub(super) fn tests(text: &str) -> Option<TestCounts> {
    let text = plain(text);
    let number = |found: &regex::Captures<'_>, index| -> u64 {
        found.get(index).and_then(|number| number.as_str().parse().ok()).unwrap_or(0)
    };
    let cargo = CARGO.captures_iter(&text).map(|found| (number(&found, 1), number(&found, 2)));
    if let Some(counts) = cargo.reduce(|a, b| (a.0.saturating_add(b.0), a.1.saturating_add(b.1))) {
        return Some(TestCounts { passed: counts.0, failed: counts.1, are_packages: false });
    }
    for summary in [&*NEXTEST, &*PYTEST, &*JEST] {
        if let Some(line) = summary.captures_iter(&text).last().and_then(|found| found.get(1)) {
            return counted([line.as_str()].into_iter());
        }
    }
    let mocha: Vec<_> = MOCHA.find_iter(&text).map(|line| line.as_str()).collect();
    if !mocha.is_empty() {
        return counted(mocha.into_iter());
    }
    if let Some(run) = UNITTEST.captures_iter(&text).last() {
        let failed = UNITTEST_FAILED
            .captures_iter(&text)
            .last()
            .map_or(0, |found| number(&found, 1).saturating_add(number(&found, 2)));
        return Some(TestCounts {
            passed: number(&run, 1).saturating_sub(failed),
            failed,
            are_packages: false,
        });
    }
    for (lines, pass, are_packages) in [(&*GO_TEST, "PASS", false), (&*GO_PACKAGE, "ok", true)] {
        let (mut passed, mut failed) = (0, 0);
        for found in lines.captures_iter(&text) {
            let is_pass = found.get(1).is_some_and(|found| found.as_str() == pass);
            *if is_pass { &mut passed } else { &mut failed } += 1;
        }
        if passed + failed > 0 {
            return Some(TestCounts { passed, failed, are_packages });
        }
    }
    None
}

fn counted<'a>(lines: impl Iterator<Item = &'a str>) -> Option<TestCounts> {
    let mut counts = TestCounts::default();
    let mut is_any = false;
    for line in lines {
        for found in COUNT.captures_iter(line) {
            let group = |index| found.get(index).map_or("", |group: regex::Match<'_>| group.as_str());
            let number: u64 = group(1).parse().unwrap_or(0);
            let count = match group(2) {
                "passed" | "passing" => &mut counts.passed,
                "failed" | "failing" | "error" | "errors" | "timed" => &mut counts.failed,
                _ => continue,
            };
            *count = count.saturating_add(number);
            is_any = true;
        }
    }
    is_any.then_some(counts)
}

/// The end of an output, where the counts stand, without the colours of a
/// terminal.
fn plain(text: &str) -> String {
    static COLOUR: LazyLock<Regex> = LazyLock::new(|| regex("\u{1b}\\[[0-9;]*[A-Za-z]"));
    COLOUR.replace_all(end(text, TAIL_BYTES * 16), "").replace("\r\n", "\n")
}

static COMMIT: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^\[[^\]\n]{1,200} ([0-9a-f]{7,40})\] \S"));
static NEW_PAGE: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"https?://[\w.-]+/[\w./-]+/(pull|pulls|issues|merge_requests|releases/tag|gist)/[\w.-]+")
});
/// The names that a command's output says it made.
pub(super) fn minted(commits: bool, publishes: bool, output: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let tail = end(output, TAIL_BYTES);
    if commits {
        let commits = COMMIT.captures_iter(tail).filter_map(|commit| commit.get(1));
        found.extend(commits.map(|commit| ("commit".to_owned(), commit.as_str().to_owned())));
    }
    if publishes {
        let pages = NEW_PAGE.captures_iter(tail).filter_map(|page| Some((page.get(0)?, page.get(1)?)));
        found.extend(pages.map(|(url, kind)| {
            let what = match kind.as_str() {
                "issues" => "issue",
                "merge_requests" => "merge request",
                "releases/tag" => "release",
                "gist" => "gist",
                _ => "pull request",
            };
            (what.to_owned(), one_line(url.as_str(), 512))
        }));
    }
    found
}

/// The names in the answer of a tool that makes something.
pub(super) fn created(text: &str) -> Vec<String> {
    const NAMES: [&str; 6] = ["html_url", "web_url", "url", "identifier", "key", "id"];
    let value = crate::format::json::Value::of(text.as_bytes());
    if value.is_object() {
        let found = value.get(NAMES).into_iter().flatten().next();
        let name = found
            .map(|name| name.text().unwrap_or_else(|| String::from_utf8_lossy(name.bytes())).into_owned());
        return name.into_iter().map(|name| one_line(&name, 512)).filter(|name| !name.is_empty()).collect();
    }
    let mut first = None;
    literals_of(beginning(text, HEAD_BYTES), &mut |kind, literal| {
        if first.is_none() && matches!(kind, LiteralKind::Url | LiteralKind::Id | LiteralKind::Hash) {
            first = Some(literal.to_owned());
        }
    });
    first.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_read_from_the_frames_of_each_client() {
        for (text, is_error, expected) in [
            (
                "Chunk ID: 1\nWall time: 0\nProcess exited with code 0\nOutput:\nExit code 3\n",
                false,
                Ending::Exited,
            ),
            ("Process exited with code 101\nOutput:\n", false, Ending::Failed(Some(101))),
            (
                "Wall time: 3\nProcess running with session ID 99248\nOutput:\n",
                false,
                Ending::Running("99248".to_owned()),
            ),
            ("Exit code 1\nboom", true, Ending::Failed(Some(1))),
            (r#"{"output":"x","metadata":{"exit_code":0}}"#, false, Ending::Exited),
            ("out\n[The command completed with exit code 2.]", false, Ending::Failed(Some(2))),
            ("<returncode>0</returncode>\n<output>\n", false, Ending::Exited),
            ("anything", false, Ending::Done),
            ("anything", true, Ending::Failed(None)),
            ("ERROR: No such file", false, Ending::Failed(None)),
            ("The user doesn't want to proceed with this tool use.", true, Ending::Refused),
            ("the error: is here", false, Ending::Done),
        ] {
            assert_eq!(ending(text, is_error), expected, "{text}");
        }
    }

    #[test]
    fn counts_of_tests_are_read_from_the_summaries_of_each_runner() {
        for (text, passed, failed, are_packages) in [
            ("=== 3 failed, 10 passed, 1 skipped in 0.12s ===", 10, 3, false),
            ("1 passed in 0.01s", 1, 0, false),
            (
                "test result: ok. 12 passed; 0 failed; 1 ignored\ntest result: FAILED. 3 passed; 2 failed;",
                15,
                2,
                false,
            ),
            ("     Summary [   0.379s] 9/18 tests run: 7 passed, 2 failed, 82 skipped", 7, 2, false),
            (
                "Summary [   9.1s] 5 tests run: 2 passed (1 slow), 1 failed, 2 timed out, 0 skipped",
                2,
                3,
                false,
            ),
            ("Tests:       1 failed, 5 passed, 6 total", 5, 1, false),
            (" Tests  1 failed | 5 passed (6)", 5, 1, false),
            ("\u{1b}[32m  5 passing\u{1b}[0m (3ms)\n  1 failing", 5, 1, false),
            ("--- PASS: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)", 1, 1, false),
            ("ok  \tx.io/a\t0.5s\nFAIL\tx.io/b\t0.1s\nok  \tx.io/c\t(cached)", 2, 1, true),
            ("Ran 5 tests in 0.1s\n\nFAILED (failures=1, errors=1)", 3, 2, false),
        ] {
            assert_eq!(tests(text), Some(TestCounts { passed, failed, are_packages }), "{text}");
        }
        assert_eq!(tests("no tests here, 5 passed the exam"), None);
    }

    #[test]
    fn new_names_are_read_where_a_command_makes_some() {
        let commit = "[main 8b4d61d] Add videos\n 1 file changed";
        assert_eq!(minted(true, false, commit), [("commit".to_owned(), "8b4d61d".to_owned())]);
        assert_eq!(minted(false, true, commit), []);
        let page = "https://github.com/a/b/pull/31\n";
        assert_eq!(minted(false, true, page)[0].0, "pull request");
        assert_eq!(minted(true, false, page), []);
        assert_eq!(created(r#"{"id":7,"url":"https://x.io/7"}"#), ["https://x.io/7"]);
        assert_eq!(created("Created ENT-258."), ["ENT-258"]);
    }
}
