//! The deterministic extract: what stands in a window for the entries that left
//! it while there is no summary, made without a model.
//!
//! It is kept in its parts and updated, never written around an older one.

use super::fit::{Section, fit, one_line};
use super::literals::{self, LiteralKind, Statement};
use super::said::{self, Said};
use super::{Measure, Speaker};
use crate::format::json::Value;
use crate::limits::{
    EXTRACT_ERRORS_MAX, EXTRACT_LINE_BYTES_MAX, EXTRACT_LITERALS_MAX, EXTRACT_REQUESTS_MAX,
    EXTRACT_STATEMENTS_MAX, LEDGER_PENDING_MAX,
};
use crate::model::Seq;
use std::borrow::Cow;

/// A line with the entry that it comes from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Line {
    text: String,
    seq: Seq,
}

/// A literal that was named.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Named {
    kind: LiteralKind,
    text: String,
    by: Speaker,
    seq: Seq,
    /// The last entry that named it.
    last: Seq,
    times: u64,
}

/// An error that a call met.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Failure {
    /// The call that met it, so that one that succeeds later clears it.
    call: String,
    text: String,
    seq: Seq,
}

/// A call whose result is not there.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Open {
    id: String,
    call: String,
    seq: Seq,
}

/// What was said in entries that left the window.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Extract {
    /// What the user asked for first.
    first: Option<Line>,
    requests: Vec<Line>,
    constraints: Vec<Statement>,
    decisions: Vec<Statement>,
    errors: Vec<Failure>,
    /// Steps of the last plan that are not done.
    plan: Vec<Line>,
    /// The last question of the model that the user has not answered.
    question: Option<Line>,
    open: Vec<Open>,
    literals: Vec<Named>,
    /// How many requests, constraints, decisions and errors were forgotten.
    forgotten: [u64; 4],
}

impl Extract {
    /// Takes in entries, which follow those that it knows.
    pub fn absorb<'a>(&mut self, entries: impl IntoIterator<Item = &'a Said<'a>>) {
        for entry in entries {
            self.take(entry);
        }
    }

    fn take(&mut self, entry: &Said<'_>) {
        let found = literals::find([entry]);
        for (mine, new, forgotten) in
            [(&mut self.constraints, found.constraints, 1), (&mut self.decisions, found.decisions, 2)]
        {
            for statement in new {
                if mine.iter().all(|known| known.text != statement.text) {
                    mine.push(statement);
                }
            }
            let over = mine.len().saturating_sub(EXTRACT_STATEMENTS_MAX);
            mine.drain(..over);
            if let Some(forgotten) = self.forgotten.get_mut(forgotten) {
                *forgotten += over as u64;
            }
        }
        for literal in found.literals {
            self.name(literal);
        }
        self.bound_literals();
        match entry.speaker {
            Speaker::User => self.asked(entry),
            Speaker::Model => self.spoke(entry),
            Speaker::System | Speaker::Tool => {}
        }
        for call in &entry.calls {
            self.called(call, entry.seq);
        }
        for outcome in &entry.outcomes {
            self.answered(outcome, entry.seq);
        }
    }

    fn name(&mut self, literal: literals::Literal) {
        let known =
            self.literals.iter_mut().find(|known| known.kind == literal.kind && known.text == literal.text);
        match known {
            Some(known) => {
                known.times = known.times.saturating_add(literal.times);
                known.by = known.by.max(literal.by);
                known.last = literal.seq;
            }
            None if literal.text.len() <= EXTRACT_LINE_BYTES_MAX => self.literals.push(Named {
                kind: literal.kind,
                text: literal.text,
                by: literal.by,
                seq: literal.seq,
                last: literal.seq,
                times: literal.times,
            }),
            None => {}
        }
        if self.literals.len() > 2 * EXTRACT_LITERALS_MAX {
            self.bound_literals();
        }
    }

    fn bound_literals(&mut self) {
        if self.literals.len() > EXTRACT_LITERALS_MAX {
            // What people name stays before what tools print, then what came
            // last. The order is total: kind and text differ.
            self.literals.sort_by(|a, b| {
                let rank = |named: &Named| (named.by, named.last, named.times, named.seq);
                rank(b).cmp(&rank(a)).then_with(|| (a.kind, &a.text).cmp(&(b.kind, &b.text)))
            });
            self.literals.truncate(EXTRACT_LITERALS_MAX);
        }
    }

    fn asked(&mut self, entry: &Said<'_>) {
        let lines = entry.texts.iter().filter_map(|text| literals::sentences(text).into_iter().next());
        let Some(first) = lines.into_iter().next() else { return };
        let line = Line { text: one_line(first, EXTRACT_LINE_BYTES_MAX), seq: entry.seq };
        self.question = None;
        if self.first.is_none() {
            self.first = Some(line);
            return;
        }
        self.requests.push(line);
        if self.requests.len() > EXTRACT_REQUESTS_MAX {
            self.requests.remove(0);
            self.forgotten[0] += 1;
        }
    }

    fn spoke(&mut self, entry: &Said<'_>) {
        let Some(text) = entry.texts.last() else { return };
        let last = literals::sentences(text).into_iter().next_back();
        let question = last.filter(|sentence| sentence.ends_with(['?', '？']));
        self.question =
            question.map(|text| Line { text: one_line(text, EXTRACT_LINE_BYTES_MAX), seq: entry.seq });
    }

    fn called(&mut self, call: &said::Invocation<'_>, seq: Seq) {
        if let Some(plan) = plan(&call.arguments) {
            self.plan = plan.into_iter().map(|text| Line { text, seq }).collect();
        }
        let text = call.texts().into_iter().next().unwrap_or_default();
        let text = one_line(&format!("{}: {text}", call.name), EXTRACT_LINE_BYTES_MAX);
        self.open.push(Open { id: one_line(&call.id, EXTRACT_LINE_BYTES_MAX), call: text, seq });
        if self.open.len() > LEDGER_PENDING_MAX {
            self.open.remove(0);
        }
    }

    fn answered(&mut self, outcome: &said::Outcome<'_>, seq: Seq) {
        let id = one_line(&outcome.id, EXTRACT_LINE_BYTES_MAX);
        let Some(place) = self.open.iter().position(|open| open.id == id) else { return };
        let call = self.open.remove(place).call;
        self.errors.retain(|error| error.call != call);
        if let Some(text) = super::ledger::failure(&outcome.text, outcome.is_error) {
            self.errors.push(Failure { call, text: one_line(text, EXTRACT_LINE_BYTES_MAX), seq });
            if self.errors.len() > EXTRACT_ERRORS_MAX {
                self.errors.remove(0);
                self.forgotten[3] += 1;
            }
        }
    }

    /// What the user demands or forbids, oldest first.
    pub fn constraints(&self) -> &[Statement] {
        &self.constraints
    }

    /// What was decided, oldest first.
    pub fn decisions(&self) -> &[Statement] {
        &self.decisions
    }

    /// The extract as text of at most `budget` tokens. Empty if there is nothing
    /// in it.
    pub fn render(&self, budget: u64, measure: Measure<'_>) -> String {
        let statement = |statement: &Statement| format!("- {} [{}]", quoted(&statement.text), statement.seq);
        let line = |line: &Line| format!("- {} [{}]", line.text, line.seq);
        let failure = |error: &Failure| format!("- {} ({}) [{}]", error.text, error.call, error.seq);
        let open = self.open.iter().map(|open| format!("- no result yet: {} [{}]", open.call, open.seq));
        let plan = self.plan.iter().map(|step| format!("- not done: {} [{}]", step.text, step.seq));
        let question =
            self.question.iter().map(|asked| format!("- not answered: {} [{}]", asked.text, asked.seq));
        let section = |title, share, lines, omitted| Section { title, share, lines, omitted };
        let [requests, constraints, decisions, errors] = self.forgotten;
        let newest = |statements: &[Statement]| statements.iter().rev().map(statement).collect();
        let sections = [
            section("The task, as the user put it first:", 10, self.first.iter().map(line).collect(), 0),
            section("What the user demands, word for word:", 25, newest(&self.constraints), constraints),
            section("Decisions, word for word, newest first:", 15, newest(&self.decisions), decisions),
            section("Not finished:", 15, question.chain(plan).chain(open).collect(), 0),
            section(
                "Errors that were not seen to be fixed, newest first:",
                10,
                self.errors.iter().rev().map(failure).collect(),
                errors,
            ),
            section(
                "What the user asked for since, newest first:",
                15,
                self.requests.iter().rev().map(line).collect(),
                requests,
            ),
            section("Named most:", 10, self.named(), 0),
        ];
        fit(&sections, budget, measure)
    }

    fn named(&self) -> Vec<String> {
        // What one tool printed once is one of many.
        let counts = |named: &&Named| {
            named.kind != LiteralKind::Quoted && (named.by > Speaker::Tool || named.times > 1)
        };
        let mut named: Vec<_> = self.literals.iter().filter(counts).collect();
        named.sort_by(|a, b| {
            let rank = |named: &Named| (named.by, named.times, named.last);
            rank(b).cmp(&rank(a)).then_with(|| (a.kind, &a.text).cmp(&(b.kind, &b.text)))
        });
        named.iter().map(|named| format!("- {} [{}]", named.text, named.seq)).collect()
    }
}

/// A sentence of several lines on one.
fn quoted(text: &str) -> Cow<'_, str> {
    if text.contains('\n') { Cow::Owned(one_line(text, usize::MAX)) } else { Cow::Borrowed(text) }
}

/// The steps of a plan that are not done, if the arguments are those of a tool
/// that keeps one.
fn plan(arguments: &str) -> Option<Vec<String>> {
    const STEPS_MAX: usize = 50;
    let [todos, plan] = Value::of(arguments.as_bytes()).get(["todos", "plan"]);
    let steps = todos.or(plan).filter(|steps| steps.is_array())?;
    let left = steps.elements().filter_map(|step| {
        let [status, content, text] = step.get(["status", "content", "step"]);
        let status = status.and_then(Value::text)?;
        let text = content.or(text).and_then(Value::text)?;
        let is_done = matches!(status.as_ref(), "completed" | "done" | "cancelled");
        (!is_done).then(|| one_line(&text, EXTRACT_LINE_BYTES_MAX))
    });
    Some(left.take(STEPS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::WireFormat;
    use proptest::prelude::*;
    use serde_json::json;

    fn said(payloads: &[String]) -> Vec<Said<'_>> {
        let numbered = payloads.iter().zip(1..);
        numbered
            .map(|(payload, seq)| Said::of(WireFormat::AnthropicMessages, Seq(seq), payload.as_bytes()))
            .collect()
    }

    fn words(text: &str) -> u64 {
        text.split_whitespace().count() as u64
    }

    fn user(text: &str) -> String {
        json!({"role": "user", "content": text}).to_string()
    }

    fn model(text: &str) -> String {
        json!({"role": "assistant", "content": text}).to_string()
    }

    fn call(id: &str, tool: &str, input: &serde_json::Value) -> String {
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": tool, "input": input}]})
            .to_string()
    }

    fn result(id: &str, text: &str, is_error: bool) -> String {
        let block = json!({"type": "tool_result", "tool_use_id": id, "content": text, "is_error": is_error});
        json!({"role": "user", "content": [block]}).to_string()
    }

    #[test]
    fn an_extract_tells_what_stands_and_nothing_that_is_settled() {
        let todos = json!({"todos": [
            {"content": "write tests", "status": "in_progress"}, {"content": "read", "status": "completed"}
        ]});
        let test = json!({"command": "cargo test"});
        let payloads = [
            user("Fix the leak in src/a.rs. Do not touch migrations/."),
            call("1", "Bash", &test),
            result("1", "Exit code 101\nerror[E0382]: use of moved value", true),
            model("We go with Rc, because it is simple."),
            call("2", "TodoWrite", &todos),
            result("2", "ok", false),
            user("Also the docs please."),
            call("3", "Bash", &json!({"command": "make"})),
            result("3", "Exit code 2\nmake: *** [all] Error 1", true),
            call("4", "Bash", &test),
            result("4", "Exit code 0", false),
            call("5", "Write", &json!({"file_path": "/b"})),
            model("Shall I push?"),
        ];
        let mut extract = Extract::default();
        extract.absorb(&said(&payloads));
        let text = extract.render(1_000, &words);
        let (said, named) = text.split_once("Named most:\n").unwrap();
        assert_eq!(
            said,
            "The task, as the user put it first:\n- Fix the leak in src/a.rs. [1]\n\
             What the user demands, word for word:\n- Do not touch migrations/. [1]\n\
             Decisions, word for word, newest first:\n- We go with Rc, because it is simple. [4]\n\
             Not finished:\n- not answered: Shall I push? [13]\n- not done: write tests [5]\n\
             - no result yet: Write: /b [12]\n\
             Errors that were not seen to be fixed, newest first:\n\
             - make: *** [all] Error 1 (Bash: make) [9]\n\
             What the user asked for since, newest first:\n- Also the docs please. [7]\n"
        );
        let named: Vec<_> = named.lines().collect();
        assert_eq!(named[..2], ["- migrations/ [1]", "- src/a.rs [1]"]);
        assert_eq!(named.len(), 2, "what a tool named once is left out: {named:?}");
    }

    #[test]
    fn a_question_is_open_until_the_user_says_something_or_the_model_goes_on() {
        for (next, is_open) in [(None, true), (Some(user("Yes.")), false), (Some(model("Done.")), false)] {
            let payloads: Vec<_> = [model("Shall I push?")].into_iter().chain(next).collect();
            let mut extract = Extract::default();
            extract.absorb(&said(&payloads));
            assert_eq!(extract.render(100, &words).contains("- not answered: Shall I push? [1]"), is_open);
        }
    }

    #[test]
    fn an_extract_is_bounded_however_long_a_session_is() {
        let payloads: Vec<_> = (0..600)
            .flat_map(|i| {
                [
                    user(&format!("Do not touch file{i}.rs at all.")),
                    model(&format!("We go with variant{i} because of reason{i}.")),
                    call(&format!("c{i}"), "Bash", &json!({"command": format!("make {i}")})),
                    result(&format!("c{i}"), "Exit code 2\nboom", true),
                ]
            })
            .collect();
        let mut extract = Extract::default();
        extract.absorb(&said(&payloads));
        assert_eq!(extract.constraints.len(), EXTRACT_STATEMENTS_MAX);
        assert_eq!(extract.errors.len(), EXTRACT_ERRORS_MAX);
        assert!(extract.literals.len() <= EXTRACT_LITERALS_MAX);
        assert!(serde_json::to_string(&extract).unwrap().len() < 256 * 1024);
        let text = extract.render(300, &words);
        assert!(words(&text) <= 300 && text.contains("Do not touch file599.rs at all."), "{text}");
    }

    proptest! {
        #[test]
        fn it_does_not_matter_where_entries_are_divided(
            texts in prop::collection::vec(("[a-d]", "\\PC{0,60}|(do not touch|use) [a-z]{1,8}\\.rs (because of it|now)[.?]", 0_u8..4), 0..30),
            cuts in prop::collection::vec(1_usize..6, 0..20),
            budget in 0_u64..150,
        ) {
            let payloads: Vec<_> = texts.iter().map(|(id, text, kind)| match kind {
                0 => user(text),
                1 => model(text),
                2 => call(id, "Bash", &json!({"command": text})),
                _ => result(id, text, text.len() % 2 == 0),
            }).collect();
            let entries = said(&payloads);
            let mut whole = Extract::default();
            whole.absorb(&entries);
            let mut pieces = Extract::default();
            let mut rest = entries.as_slice();
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.absorb(piece);
                pieces = serde_json::from_str(&serde_json::to_string(&pieces).unwrap()).unwrap();
                rest = after;
            }
            prop_assert_eq!(&pieces, &whole);
            let text = whole.render(budget, &words);
            prop_assert!(words(&text) <= budget);
            prop_assert_eq!(text, pieces.render(budget, &words));
        }
    }
}
