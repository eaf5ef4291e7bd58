//! The ledger: what was done, built from the calls that leave a window and from
//! what came of them.
//!
//! A call counts once its result is there. Calls that wait for theirs are part of
//! the ledger, so that it does not matter where the entries are divided. Files go
//! by the names that the calls give them; a relative name is one of the folder
//! that the call names, if it names one.

mod calls;
mod outcome;
mod patch;
mod shell;
mod stale;

pub use outcome::{Ending, TestCounts};
pub use stale::stale_results;

use super::fit::{Section, fit, one_line};
use super::said::{Invocation, Outcome, Said};
use super::{Measure, Speaker};
use crate::limits::{
    LEDGER_COMMAND_BYTES_MAX, LEDGER_COMMANDS_MAX, LEDGER_FILES_MAX, LEDGER_MINTED_MAX,
    LEDGER_PATH_BYTES_MAX, LEDGER_PENDING_MAX,
};
use crate::model::Seq;
use calls::{Effect, effects};

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileState {
    /// It was looked at.
    Read,
    /// It was made or written anew.
    Written,
    /// It was changed.
    Edited,
    /// It was removed.
    Deleted,
    /// It has another name now.
    MovedTo(String),
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FileRecord {
    /// Its name.
    pub path: String,
    /// What became of it last. To look at it changes nothing.
    pub state: FileState,
    /// The entry with the call that did it.
    pub seq: Seq,
    /// Whether it is not sure: one of several commands failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unsure: bool,
}

/// A command that was run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CommandRecord {
    /// The command, or its beginning.
    pub command: String,
    /// The entry with the last call of it.
    pub seq: Seq,
    /// How it ended.
    pub ending: Ending,
    /// The tests that it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests: Option<TestCounts>,
    /// How often it was run.
    pub times: u64,
}

/// A name that did not exist before: a commit, a branch, a pull request.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Minted {
    /// What it is: "commit", "branch", "tag", "pull request", or the tool that
    /// made it.
    pub what: String,
    /// The name.
    pub name: String,
    /// The entry with the call that made it.
    pub seq: Seq,
}

/// A call that has no result yet.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Pending {
    id: String,
    tool: String,
    seq: Seq,
    effects: Vec<Effect>,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// Files, the one that was last touched last.
    files: Vec<FileRecord>,
    /// Commands, the one that was last run last. Those that only look are left
    /// out.
    commands: Vec<CommandRecord>,
    /// New names, the newest last.
    minted: Vec<Minted>,
    pending: Vec<Pending>,
    /// How many files, commands and names were forgotten.
    forgotten: [u64; 3],
}

impl Ledger {
    /// Files, the one that was last touched first.
    pub fn files(&self) -> impl Iterator<Item = &FileRecord> {
        self.files.iter().rev()
    }

    /// Commands, the one that was last run first.
    pub fn commands(&self) -> impl Iterator<Item = &CommandRecord> {
        self.commands.iter().rev()
    }

    /// New names, the newest first.
    pub fn minted(&self) -> impl Iterator<Item = &Minted> {
        self.minted.iter().rev()
    }

    /// Calls that have no result: the tool's name and the entry, oldest first.
    pub fn unanswered(&self) -> impl Iterator<Item = (&str, Seq)> {
        self.pending.iter().map(|pending| (pending.tool.as_str(), pending.seq))
    }

    /// Takes in entries, which follow those that it knows.
    pub fn absorb<'a>(&mut self, entries: impl IntoIterator<Item = &'a Said<'a>>) {
        for entry in entries {
            for call in entry.calls.iter().filter(|_| entry.speaker == Speaker::Model) {
                self.call(call, entry.seq);
            }
            for outcome in &entry.outcomes {
                self.outcome(outcome);
            }
        }
    }

    fn call(&mut self, call: &Invocation<'_>, seq: Seq) {
        let effects = effects(&call.name, &call.arguments);
        let (id, tool) = (one_line(&call.id, LEDGER_PATH_BYTES_MAX), one_line(&call.name, 64));
        self.pending.push(Pending { id, tool, seq, effects });
        if self.pending.len() > LEDGER_PENDING_MAX {
            self.pending.remove(0);
        }
    }

    fn outcome(&mut self, outcome: &Outcome<'_>) {
        let id = one_line(&outcome.id, LEDGER_PATH_BYTES_MAX);
        // Where results have no ids they come in the order of the calls.
        let answers = |pending: &Pending| {
            if outcome.id.is_empty() && pending.id.is_empty() {
                outcome.name.is_empty() || one_line(&outcome.name, 64) == pending.tool
            } else {
                pending.id == id
            }
        };
        let Some(place) = self.pending.iter().position(answers) else { return };
        let pending = self.pending.remove(place);
        let ending = outcome::ending(&outcome.text, outcome.is_error);
        let commands =
            pending.effects.iter().filter(|effect| matches!(effect, Effect::Command { .. })).count();
        for effect in pending.effects {
            match effect {
                Effect::File { path, state, is_alone, .. } => {
                    if !ending.has_failed() {
                        self.touch(path, state, pending.seq, false);
                    } else if !is_alone {
                        self.touch(path, state, pending.seq, true);
                    }
                }
                Effect::Command { text, is_look, mints, commits, publishes, .. } => {
                    if !ending.has_failed() {
                        for (what, name) in mints {
                            self.mint(what, name, pending.seq);
                        }
                    }
                    for (what, name) in outcome::minted(commits, publishes, &outcome.text) {
                        self.mint(what, name, pending.seq);
                    }
                    // A search that finds nothing ends as if it had failed.
                    if !is_look {
                        let tests = outcome::tests(&outcome.text).filter(|_| commands == 1);
                        self.ran(&text, pending.seq, ending.clone(), tests);
                    }
                }
                Effect::Continue { session } => self.went_on(&session, &ending, &outcome.text),
                Effect::Create { what } => {
                    if !ending.has_failed() {
                        for name in outcome::created(&outcome.text) {
                            self.mint(what.clone(), name, pending.seq);
                        }
                    }
                }
            }
        }
    }

    fn touch(&mut self, path: String, state: FileState, seq: Seq, is_unsure: bool) {
        let path = if path.len() > LEDGER_PATH_BYTES_MAX { return } else { path };
        let known = self.files.iter().position(|file| file.path == path);
        let mut record = FileRecord { path, state, seq, is_unsure };
        if let Some(place) = known {
            let before = self.files.remove(place);
            // Results of parallel calls come in any order.
            let is_older = before.seq > record.seq && before.state != FileState::Read;
            let is_look = record.state == FileState::Read && before.state != FileState::Read;
            if is_older || is_look {
                record = FileRecord { seq: before.seq, ..before };
            }
        }
        self.files.push(record);
        if self.files.len() > LEDGER_FILES_MAX {
            // What was only read can be read again.
            let oldest = self.files.iter().position(|file| file.state == FileState::Read).unwrap_or(0);
            self.files.remove(oldest);
            self.forgotten[0] += 1;
        }
    }

    fn ran(&mut self, command: &str, seq: Seq, ending: Ending, tests: Option<TestCounts>) {
        let command = one_line(command, LEDGER_COMMAND_BYTES_MAX);
        let known = self.commands.iter().position(|known| known.command == command);
        let times = known.map_or(0, |place| self.commands.remove(place).times).saturating_add(1);
        self.commands.push(CommandRecord { command, seq, ending, tests, times });
        if self.commands.len() > LEDGER_COMMANDS_MAX {
            self.commands.remove(0);
            self.forgotten[1] += 1;
        }
    }

    /// A command that was still running has said more, or has ended.
    fn went_on(&mut self, session: &str, ending: &Ending, text: &str) {
        let is_it =
            |command: &CommandRecord| matches!(&command.ending, Ending::Running(own) if own == session);
        let found = self.commands.iter_mut().rev().find(|command| is_it(command));
        let Some((seq, commits, publishes)) = found.map(|command| {
            let is_known = matches!(ending, Ending::Failed(_) | Ending::Exited);
            if is_known {
                command.ending = ending.clone();
            }
            command.tests = outcome::tests(text).or(command.tests.take());
            let has = |words: &str| command.command.contains(words);
            (command.seq, has("git commit"), has(" create"))
        }) else {
            return;
        };
        for (what, name) in outcome::minted(commits, publishes, text) {
            self.mint(what, name, seq);
        }
    }

    fn mint(&mut self, what: String, name: String, seq: Seq) {
        if self.minted.iter().any(|known| known.what == what && known.name == name) {
            return;
        }
        self.minted.push(Minted { what, name, seq });
        if self.minted.len() > LEDGER_MINTED_MAX {
            self.minted.remove(0);
            self.forgotten[2] += 1;
        }
    }

    /// The ledger as text of at most `budget` tokens, newest first. Empty if there
    /// is nothing in it.
    pub fn render(&self, budget: u64, measure: Measure<'_>) -> String {
        let changed = self.files().filter(|file| file.state != FileState::Read).map(FileRecord::line);
        let read = self.files().filter(|file| file.state == FileState::Read);
        let section = |title, share, lines, omitted| Section { title, share, lines, omitted };
        let [files, commands, names] = self.forgotten;
        let sections = [
            section("Files changed, newest first:", 45, changed.collect(), files),
            section("Made:", 15, self.minted().map(Minted::line).collect(), names),
            section(
                "Commands run, newest first:",
                25,
                self.commands().map(CommandRecord::line).collect(),
                commands,
            ),
            section(
                "Calls without a result:",
                5,
                self.unanswered().map(|(tool, seq)| format!("- {tool} [{seq}]")).collect(),
                0,
            ),
            section(
                "Files read, newest first:",
                10,
                read.map(|file| format!("- {} [{}]", file.path, file.seq)).collect(),
                0,
            ),
        ];
        fit(&sections, budget, measure)
    }
}

impl FileRecord {
    fn line(&self) -> String {
        let state = match &self.state {
            FileState::Read => "read".to_owned(),
            FileState::Written => "written".to_owned(),
            FileState::Edited => "edited".to_owned(),
            FileState::Deleted => "deleted".to_owned(),
            FileState::MovedTo(to) => format!("moved to {to}"),
        };
        let unsure = if self.is_unsure { ", perhaps: a command of the same call failed" } else { "" };
        format!("- {}: {state}{unsure} [{}]", self.path, self.seq)
    }
}

impl CommandRecord {
    fn line(&self) -> String {
        let times = if self.times > 1 { format!(", run {} times", self.times) } else { String::new() };
        let tests = self.tests.as_ref().map_or_else(String::new, |tests| format!(", {tests}"));
        format!("- {}: {}{tests}{times} [{}]", self.command, self.ending, self.seq)
    }
}

impl Minted {
    fn line(&self) -> String {
        format!("- {}: {} [{}]", self.what, self.name, self.seq)
    }
}

/// The line that says why a call failed whose result has that text; nothing if it
/// did not.
pub(super) fn failure(text: &str, is_error: bool) -> Option<&str> {
    outcome::failure(text, is_error)
}

#[cfg(test)]
mod tests;
