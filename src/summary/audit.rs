//! What a compaction kept word for word, what it lost, and what a summary says
//! that nobody said.

use super::Speaker;
use super::literals::{Findings, LiteralKind, literals_of};
use crate::model::Seq;
use memchr::memmem;
use std::collections::{BTreeMap, HashSet};

/// What was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A statement that was pinned before and gave way to newer ones.
    Pin,
    /// What the user demands or forbids.
    Constraint,
    /// A decision.
    Decision,
    /// A literal of that kind.
    Literal(LiteralKind),
}

impl Subject {
    /// Its name in records and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pin => "pin",
            Self::Constraint => "constraint",
            Self::Decision => "decision",
            Self::Literal(kind) => kind.as_str(),
        }
    }
}

/// How many were kept and lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Tally {
    /// Those that the window still holds, byte for byte.
    pub kept: u64,
    /// Those that it does not.
    pub lost: u64,
}

/// Something that the window does not hold any more.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Loss {
    /// What it is.
    pub subject: Subject,
    /// Its text, as it stood.
    pub text: String,
    /// The entry in which it came first.
    pub seq: Seq,
    /// Who said it.
    pub by: Speaker,
}

/// What became of what was found in the entries that left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// By what it is; only what there was.
    pub tallies: BTreeMap<Subject, Tally>,
    /// Pins that gave way first, the oldest of them first, then constraints, decisions, and
    /// literals in their order.
    pub losses: Vec<Loss>,
}

/// Compares what was found in the entries that left with the texts, decoded, that
/// the window still holds.
pub fn audit<'t>(found: &Findings, window: impl IntoIterator<Item = &'t str>) -> Audit {
    let window = Texts::new(window);
    let mut audit = Audit::default();
    let mut judge = |subject, text: &str, seq, by, is_kept: bool| {
        let tally = audit.tallies.entry(subject).or_default();
        if is_kept {
            tally.kept += 1;
        } else {
            tally.lost += 1;
            audit.losses.push(Loss { subject, text: text.to_owned(), seq, by });
        }
    };
    for (subject, statements) in [
        (Subject::Pin, &found.unpinned),
        (Subject::Constraint, &found.constraints),
        (Subject::Decision, &found.decisions),
    ] {
        for statement in statements {
            judge(
                subject,
                &statement.text,
                statement.seq,
                statement.by,
                window.hold_sentence(&statement.text),
            );
        }
    }
    for literal in &found.literals {
        let is_kept = window.hold(literal.kind, &literal.text, true);
        judge(Subject::Literal(literal.kind), &literal.text, literal.seq, literal.by, is_kept);
    }
    audit
}

/// Literals in `summary` that the entries which it is of never had: neither among
/// what was found in them nor in their `texts`, decoded. A hash may be shortened.
/// Quotes are left out, since a summary puts its own.
pub fn unsupported_claims<'t>(
    summary: &str,
    found: &Findings,
    texts: impl IntoIterator<Item = &'t str>,
) -> Vec<(LiteralKind, String)> {
    let known: HashSet<_> = found.literals.iter().map(|literal| literal.text.as_str()).collect();
    let source = Texts::new(texts);
    let mut claims = Vec::new();
    let mut seen = HashSet::new();
    literals_of(summary, &mut |kind, literal| {
        let is_new = kind != LiteralKind::Quoted && seen.insert(literal);
        let is_hash = kind == LiteralKind::Hash;
        let is_known = || {
            known.contains(literal)
                || is_hash && known.iter().any(|known| known.starts_with(literal))
                || source.hold(kind, literal, !is_hash)
        };
        if is_new && !is_known() {
            claims.push((kind, literal.to_owned()));
        }
    });
    claims
}

/// Texts in which to look for pieces.
struct Texts<'t> {
    all: Vec<&'t str>,
    /// All their words: what is not made of such is in none.
    words: HashSet<&'t str>,
    /// What of words of a script without spaces is ASCII, which may be words of its own.
    within: HashSet<&'t str>,
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_of_word(c)).filter(|word| !word.is_empty())
}

impl<'t> Texts<'t> {
    fn new(texts: impl IntoIterator<Item = &'t str>) -> Self {
        let all: Vec<_> = texts.into_iter().collect();
        let words: HashSet<_> = all.iter().flat_map(|text| words(text)).collect();
        let within = words.iter().filter(|word| !word.is_ascii());
        let within = within.flat_map(|word| word.split(|c: char| !c.is_ascii()));
        let within = within.filter(|run| !run.is_empty()).collect();
        Self { all, words, within }
    }

    /// Whether a sentence is in one of them.
    fn hold_sentence(&self, sentence: &str) -> bool {
        // The first and the last word may be parts of others there.
        let inner = words(sentence).skip(1).collect::<Vec<_>>();
        let inner = inner.split_last().map_or(&[][..], |(_, inner)| inner);
        inner.iter().all(|word| self.words.contains(word)) && {
            let finder = memmem::Finder::new(sentence);
            self.all.iter().any(|text| finder.find(text.as_bytes()).is_some())
        }
    }

    /// Whether a literal is in one of them by itself, not as a part of another. If
    /// it need not be `whole`, it may be the beginning of one.
    fn hold(&self, kind: LiteralKind, literal: &str, whole: bool) -> bool {
        // What is written without spaces may have its end anywhere.
        let is_wide = !literal.is_ascii();
        if whole && !is_wide && !words(literal).all(|word| self.may_hold(word)) {
            return false;
        }
        let finder = memmem::Finder::new(literal);
        self.all.iter().any(|text| {
            finder.find_iter(text.as_bytes()).any(|at| {
                let before = text.get(..at).and_then(|before| before.chars().next_back());
                let mut after = text.get(at + literal.len()..).unwrap_or_default().chars();
                let next = after.next();
                let joins =
                    |c: Option<char>| c.is_some_and(|c| is_of_word(c) && (c.is_ascii() || !is_cjk(c)));
                let starts_apart = !literal.starts_with(is_of_word) || !joins(before);
                let ends_apart = !whole || !literal.ends_with(is_of_word) || !joins(next);
                let goes_on = whole
                    && kind == LiteralKind::Path
                    && next == Some('.')
                    && after.next().is_some_and(|c| c.is_ascii_alphanumeric());
                starts_apart && ends_apart && !goes_on
            })
        })
    }

    /// Whether a word, which is ASCII, is one of theirs, or could stand within one of a
    /// script without spaces.
    fn may_hold(&self, word: &str) -> bool {
        self.words.contains(word) || self.within.iter().any(|run| run.contains(word))
    }
}

fn is_cjk(c: char) -> bool {
    c >= '\u{2e80}'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::WireFormat;
    use crate::summary::{Said, literals};
    use proptest::prelude::*;

    fn found(texts: &[&str]) -> Findings {
        let payloads: Vec<_> = texts
            .iter()
            .map(|text| serde_json::json!({"role": "user", "content": text}).to_string())
            .collect();
        let said = payloads.iter().zip(1..);
        let said: Vec<_> = said
            .map(|(payload, seq)| Said::of(WireFormat::OpenaiChat, Seq(seq), payload.as_bytes()))
            .collect();
        literals::find(&said)
    }

    #[test]
    fn what_is_kept_byte_for_byte_is_told_from_what_is_lost() {
        let found = found(&[
            "Do not touch migrations/ or src/a at all. See src/b.rs:12, it took 3 ms, E0382.",
            "Never push to main.",
        ]);
        let audit =
            audit(&found, ["…in src/a.rs and src/b.rs:12 after 13 ms.", "So: Never push to main.", "E0382"]);
        let tally = |kept, lost| Tally { kept, lost };
        assert_eq!(
            audit.tallies,
            BTreeMap::from([
                (Subject::Constraint, tally(1, 1)),
                (Subject::Literal(LiteralKind::Path), tally(1, 1)),
                (Subject::Literal(LiteralKind::ErrorCode), tally(1, 0)),
                (Subject::Literal(LiteralKind::Number), tally(0, 1)),
            ])
        );
        let lost: Vec<_> = audit.losses.iter().map(|loss| (loss.text.as_str(), loss.seq)).collect();
        assert_eq!(
            lost,
            [
                ("Do not touch migrations/ or src/a at all.", Seq(1)),
                ("migrations/", Seq(1)),
                ("3 ms", Seq(1)),
            ]
        );
    }

    #[test]
    fn a_literal_that_a_longer_one_holds_is_lost() {
        let found = found(&["In `src/a/mod` and #12 and 8b4d61d, go.mod"]);
        let lost =
            |window| audit(&found, [window]).losses.into_iter().map(|loss| loss.text).collect::<Vec<_>>();
        assert_eq!(lost("src/a/mod, #12: 8b4d61d; 修改go.mod文件"), Vec::<String>::new());
        let all = ["src/a/mod", "#12", "8b4d61d", "go.mod"];
        assert_eq!(lost("src/a/mod.rs #123 8b4d61d9 cargo.mod"), all);
    }

    #[test]
    fn what_a_summary_makes_up_is_told() {
        let found = found(&["Fix src/a.rs:12; commit 8b4d61dabc123."]);
        let texts = ["It ran 40 tests in crates/x/lib.rs"];
        let claims = unsupported_claims(
            "Fixed src/a.rs:12 and crates/x/lib.rs in 8b4d61d, but src/zz.rs:9 gave E0999 in `some words`",
            &found,
            texts,
        );
        assert_eq!(
            claims,
            [(LiteralKind::Path, "src/zz.rs:9".to_owned()), (LiteralKind::ErrorCode, "E0999".to_owned())]
        );
    }

    #[test]
    fn text_without_spaces_is_looked_through_once_and_not_for_each_literal() {
        let ideograph = |number: u32| char::from_u32(0x4e00 + number % 20_000).unwrap();
        let sentence = |number: u32| (0..12).map(|at| ideograph(number * 7 + at)).chain(['。']).collect();
        let text: Vec<String> = (0..40_000).map(sentence).collect();
        let text = text.concat() + "修改go.mod文件" + "运行lib_1文件";
        let names: Vec<_> = (0..900).map(|number| format!("src/module_{number}/lib.rs")).collect();
        let found = found(&[&names.join(" "), "go.mod"]);
        let audit = audit(&found, [text.as_str()]);
        let path = Subject::Literal(LiteralKind::Path);
        assert_eq!(audit.tallies[&path], Tally { kept: 1, lost: 900 });
        let texts = Texts::new([text.as_str()]);
        assert_eq!(texts.within, HashSet::from(["go", "mod", "lib_1"]));
        assert!(texts.words.len() > 10_000);
        // Nor is it looked through for what has one word of it.
        assert!(texts.may_hold("lib") && !texts.may_hold("module_7"));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_where_everything_stands(texts in prop::collection::vec("(\\PC|[ \n`\"./:#0-9a-f_])*", 0..4)) {
            let texts: Vec<_> = texts.iter().map(String::as_str).collect();
            let found = found(&texts);
            let kept = audit(&found, texts.iter().copied());
            let lost: Vec<_> = kept.losses.iter().filter(|loss| matches!(loss.subject, Subject::Constraint | Subject::Decision)).collect();
            prop_assert!(lost.is_empty(), "{lost:?}");
            prop_assert_eq!(unsupported_claims(&texts.join("\n"), &found, texts.iter().copied()).len() as u64, 0);
            let none = audit(&found, []);
            prop_assert!(none.tallies.values().all(|tally| tally.kept == 0));
        }
    }
}
