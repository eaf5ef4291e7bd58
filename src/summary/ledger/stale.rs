//! Results that show what a file was, where a later call shows what it is, or
//! changed it.

use super::calls::{Effect, PATH_LISTS, PATHS, effects, words};
use super::{FileState, outcome, shell};
use crate::format::json::Value;
use crate::limits::{LEDGER_PENDING_MAX, SNIP_CHARACTERS};
use crate::model::Seq;
use crate::summary::{Invocation, Outcome, Said, Speaker};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// How deep arguments are looked into.
const DEPTH_MAX: u32 = 8;

/// Arguments that name a folder, an editor's command, or say why.
const ASIDES: [&str; 8] =
    ["command", "workdir", "cwd", "working_directory", "explanation", "description", "reason", "encoding"];

/// The entries of which all long results show files that later calls read again or
/// changed, each with the entry of the call by which it became stale.
///
/// To read a part of a file makes nothing stale but the same part, read before, and
/// neither does an answer of less than half the length. What failed changes nothing. A
/// result that shows several files is stale once all are. What is not certain makes nothing
/// stale: commands that need not have run although the call succeeded, and names that the
/// shell makes or that are relative to a folder that may have become another.
pub fn stale_results<'a>(entries: impl IntoIterator<Item = &'a Said<'a>>) -> BTreeMap<Seq, Seq> {
    let mut found = Found::default();
    for entry in entries {
        for call in entry.calls.iter().filter(|_| entry.speaker == Speaker::Model) {
            found.call(call, entry.seq);
        }
        for outcome in &entry.outcomes {
            found.outcome(outcome, entry.seq);
        }
    }
    found.stale()
}

/// A call without a result.
struct Pending<'a> {
    call: &'a Invocation<'a>,
    effects: Vec<Effect>,
    /// Counts calls: results of parallel ones come in any order.
    number: u64,
    /// How many calls before it may have taken the shell to another folder.
    folder: u64,
    seq: Seq,
}

/// A result that shows files and nothing else.
struct Look<'a> {
    call: &'a Invocation<'a>,
    number: u64,
    /// Bytes of its result.
    length: usize,
    /// Of how many files it shows the last that is known.
    fresh: usize,
    /// The entry with the last call that took from that.
    later: Seq,
}

#[derive(Default)]
struct Found<'a> {
    calls: u64,
    /// How many of them may have taken the shell to another folder.
    folders: u64,
    pending: VecDeque<Pending<'a>>,
    looks: Vec<Look<'a>>,
    /// The looks that show the last that is known of a file, by its name.
    by_path: HashMap<String, Vec<usize>>,
    /// The long results of each entry: which look it is, if it is one.
    long: BTreeMap<Seq, Vec<Option<usize>>>,
}

impl<'a> Found<'a> {
    fn call(&mut self, call: &'a Invocation<'a>, seq: Seq) {
        self.calls += 1;
        let effects = effects(&call.name, &call.arguments);
        let folder = self.folders;
        // Whether it succeeds or not.
        let moves = |effect: &Effect| matches!(effect, Effect::Command { changes_folder: true, .. });
        self.folders += u64::from(effects.iter().any(moves));
        self.pending.push_back(Pending { call, effects, number: self.calls, folder, seq });
        if self.pending.len() > LEDGER_PENDING_MAX {
            self.pending.pop_front();
        }
    }

    fn outcome(&mut self, outcome: &Outcome<'a>, seq: Seq) {
        // Where results have no ids they come in the order of the calls.
        let answers = |pending: &Pending<'_>| {
            if outcome.id.is_empty() && pending.call.id.is_empty() {
                outcome.name.is_empty() || outcome.name == pending.call.name
            } else {
                pending.call.id == outcome.id
            }
        };
        let place = self.pending.iter().position(answers);
        let pending = place.and_then(|place| self.pending.remove(place));
        let has_failed =
            outcome::ending(&outcome.text, outcome.is_error).has_failed() || says_failed(&outcome.text);
        let pending = pending.filter(|_| !has_failed);
        let look = pending.and_then(|pending| self.done(&pending, outcome.text.len()));
        if outcome.text.len() as u64 > SNIP_CHARACTERS {
            self.long.entry(seq).or_default().push(look);
        }
    }

    /// Takes in a call that did what it was to do; gives the look that its result is.
    fn done(&mut self, pending: &Pending<'a>, length: usize) -> Option<usize> {
        let Pending { call, effects, folder, .. } = pending;
        let is_whole = is_whole(call, effects);
        let is_command = effects.iter().any(|effect| matches!(effect, Effect::Command { .. }));
        let mut paths = Vec::new();
        for effect in effects {
            if let Effect::File { path, state, is_certain: true, .. } = effect {
                // A folder of the shell's need not be that of other tools.
                let is_relative = is_command && !shell::is_absolute(path);
                let path = if is_relative { format!("\0{folder}\0{path}") } else { path.clone() };
                let shown = (*state == FileState::Read).then_some(length);
                self.touch(&path, pending, is_whole, shown);
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
        }
        let shows_more = effects.iter().any(|effect| match effect {
            Effect::File { is_certain, .. } => !is_certain,
            Effect::Command { shows_files, .. } => !shows_files,
            Effect::Continue { .. } | Effect::Create { .. } => true,
        });
        if paths.is_empty() || shows_more {
            return None;
        }
        let look = self.looks.len();
        let number = pending.number;
        self.looks.push(Look { call, number, length, fresh: paths.len(), later: Seq(0) });
        for path in paths {
            self.by_path.entry(path).or_default().push(look);
        }
        Some(look)
    }

    /// A file was changed, or so many bytes of it were shown. A look that does not show
    /// all of it makes only those stale that show the same.
    fn touch(&mut self, path: &str, by: &Pending<'_>, is_whole: bool, shown: Option<usize>) {
        let Some(open) = self.by_path.get_mut(path) else { return };
        open.retain(|look| {
            let Some(look) = self.looks.get_mut(*look) else { return false };
            let is_same = look.call.name == by.call.name && look.call.arguments == by.call.arguments;
            let shows_it = |shown: usize| (is_whole || is_same) && shown.saturating_mul(2) >= look.length;
            if look.number >= by.number || !shown.is_none_or(shows_it) {
                return true;
            }
            look.fresh = look.fresh.saturating_sub(1);
            look.later = look.later.max(by.seq);
            false
        });
    }

    fn stale(self) -> BTreeMap<Seq, Seq> {
        let later = |look: &Option<usize>| {
            self.looks.get((*look)?).filter(|look| look.fresh == 0).map(|look| look.later)
        };
        let entries = self.long.iter();
        entries
            .filter_map(|(entry, looks)| {
                let laters: Option<Vec<_>> = looks.iter().map(later).collect();
                Some((*entry, laters?.into_iter().max()?))
            })
            .collect()
    }
}

/// Whether a result says by itself that the call did nothing.
fn says_failed(text: &str) -> bool {
    const PROGRAMS: [&str; 9] = ["cat", "rm", "sed", "mv", "cp", "tee", "bash", "sh", "/bin/sh"];
    let said = Value::of(text.as_bytes());
    if said.is_object() {
        let [error, success, ok] = said.get(["error", "success", "ok"]);
        let is_false = |value: Option<Value<'_>>| value.is_some_and(|value| value.bytes() == b"false");
        return error.is_some_and(|error| !error.is_null()) || is_false(success) || is_false(ok);
    }
    text.split_once(": ").is_some_and(|(program, _)| PROGRAMS.contains(&program))
}

/// Whether a call that looks at files shows all of them: one of a tool that is there to
/// show files, and of which no more is asked.
fn is_whole(call: &Invocation<'_>, effects: &[Effect]) -> bool {
    const READS: [&str; 5] = ["read", "view", "open", "cat", "show"];
    let mut commands = effects.iter().filter_map(|effect| match effect {
        Effect::Command { text, .. } => Some(text.as_str()),
        _ => None,
    });
    if let Some(first) = commands.next() {
        return shell::shows_whole_files(first) && commands.all(shell::shows_whole_files);
    }
    let words = words(&call.name);
    let arguments = Value::of(call.arguments.as_bytes());
    let is_view = arguments.member("command").is_some_and(|command| command.is_text("view"));
    (is_view || READS.iter().any(|verb| words.iter().any(|word| word == verb)))
        && !names_part(arguments, DEPTH_MAX)
}

/// Whether arguments may say which part of a file is meant: anything but its name.
fn names_part(value: Value<'_>, depth: u32) -> bool {
    if depth == 0 {
        return true;
    }
    if value.is_object() {
        return value.members().any(|(key, value)| {
            let is = |names: &[&str]| names.iter().any(|name| key.is_text(name));
            let is_name = value.is_string() && (is(&PATHS) || is(&ASIDES));
            let are_names = is(&PATH_LISTS)
                && value.elements().all(|path| path.is_string() || !names_part(path, depth - 1));
            !is_name && !are_names && names_part(value, depth - 1)
        });
    }
    if value.is_array() {
        return value.elements().any(|value| names_part(value, depth - 1));
    }
    !matches!(value.bytes(), b"null" | b"true" | b"false" | b"\"\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::WireFormat;
    use proptest::prelude::*;
    use serde_json::json;

    /// A call and its result, of which two are one step, as entries of Anthropic.
    fn step(number: usize, tool: &str, input: &serde_json::Value, result: &str) -> [String; 2] {
        [
            json!({"role": "assistant", "content": [
                {"type": "tool_use", "id": format!("c{number}"), "name": tool, "input": input}]}),
            json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": format!("c{number}"), "content": result}]}),
        ]
        .map(|entry| entry.to_string())
    }

    /// The stale results of steps whose results are long, by the numbers of the steps,
    /// each with the step that made it so.
    fn stale(steps: &[(&str, serde_json::Value)]) -> Vec<(usize, usize)> {
        let long = "a line of the file\n".repeat(100);
        stale_with(
            &steps.iter().map(|(tool, input)| (*tool, input.clone(), long.as_str())).collect::<Vec<_>>(),
        )
    }

    fn stale_with(steps: &[(&str, serde_json::Value, &str)]) -> Vec<(usize, usize)> {
        let entries: Vec<_> = steps
            .iter()
            .enumerate()
            .flat_map(|(number, (tool, input, result))| step(number, tool, input, result))
            .collect();
        let said: Vec<_> = entries
            .iter()
            .zip(1..)
            .map(|(entry, seq)| Said::of(WireFormat::AnthropicMessages, Seq(seq), entry.as_bytes()))
            .collect();
        let number = |seq: Seq| (usize::try_from(seq.0).unwrap() - 1) / 2;
        stale_results(&said).into_iter().map(|(look, by)| (number(look), number(by))).collect()
    }

    fn read(path: &str) -> (&'static str, serde_json::Value) {
        ("Read", json!({"file_path": path}))
    }

    fn part(path: &str, offset: u64) -> (&'static str, serde_json::Value) {
        ("Read", json!({"file_path": path, "offset": offset, "limit": 50}))
    }

    #[test]
    fn a_look_is_stale_once_its_file_is_read_again_or_changed() {
        let edit = ("Edit", json!({"file_path": "/a1.rs", "old_string": "x", "new_string": "y1"}));
        let write = ("Write", json!({"file_path": "/a1.rs", "content": "1"}));
        let shell = |command: &str| ("Bash", json!({"command": command, "description": "step 7"}));
        let view = |range: serde_json::Value| {
            ("str_replace_based_edit_tool", json!({"command": "view", "path": "/a1.rs", "view_range": range}))
        };
        for (steps, expected) in [
            (vec![read("/a1.rs"), read("/b1.rs")], vec![]),
            (vec![read("/a1.rs"), read("/a1.rs")], vec![(0, 1)]),
            (vec![read("/a1.rs"), edit.clone()], vec![(0, 1)]),
            (vec![read("/a1.rs"), edit, write, read("/b1.rs")], vec![(0, 1), (1, 2)]),
            // To see a part of a file does not show the rest.
            (vec![read("/a1.rs"), part("/a1.rs", 1)], vec![]),
            (vec![part("/a1.rs", 1), part("/a1.rs", 51)], vec![]),
            (vec![part("/a1.rs", 1), part("/a1.rs", 1)], vec![(0, 1)]),
            (vec![part("/a1.rs", 1), part("/a1.rs", 51), read("/a1.rs")], vec![(0, 2), (1, 2)]),
            (vec![view(json!([1, 9])), view(json!([10, 19]))], vec![]),
            (vec![view(json!([1, 9])), view(json!(null))], vec![(0, 1)]),
            // In a shell.
            (vec![shell("cat /a1.rs"), shell("sed -n 1,9p /a1.rs")], vec![]),
            (vec![shell("sed -n 1,9p /a1.rs"), shell("cd / && cat /a1.rs")], vec![(0, 1)]),
            (vec![shell("cat /a1.rs"), shell("cat /a1.rs | head -3")], vec![]),
            (vec![shell("cat /a1.rs"), shell("sed -i s/x/y/ /a1.rs")], vec![]),
            (vec![shell("cat /a1.rs"), shell("rm /a1.rs")], vec![(0, 1)]),
            (vec![shell("cat /a1.rs && make"), shell("rm /a1.rs")], vec![]),
            (vec![shell("cat /a1.rs /b1.rs"), read("/a1.rs")], vec![]),
            (vec![shell("cat /a1.rs /b1.rs"), read("/b1.rs"), read("/a1.rs")], vec![(0, 2)]),
            (vec![shell("cat /a1.rs"), shell("cat /a1.rs > /tmp/copy")], vec![]),
            (vec![read("/a1.rs"), ("run_tests", json!({"path": "/a1.rs"}))], vec![]),
            (vec![read("/a1.rs"), ("read_symbol", json!({"path": "/a1.rs", "symbol": "main"}))], vec![]),
            (vec![read("/a1.rs"), ("read_file", json!({"path": "/a1.rs"}))], vec![(0, 1)]),
            (vec![("Grep", json!({"pattern": "x", "path": "/a1.rs"})), read("/a1.rs")], vec![]),
        ] {
            assert_eq!(stale(&steps), expected, "{steps:?}");
        }
    }

    /// A look that is certain, and a call after it.
    #[test]
    fn what_need_not_have_run_makes_nothing_stale() {
        let shell = |command: &str| ("Bash", json!({"command": command}));
        for (command, is_certain) in [
            ("rm /a.rs", true),
            ("cd /x && rm /a.rs", true),
            ("make && rm /a.rs", true),
            ("sed -n 1,5p /b.rs > /a.rs", true),
            ("echo 1 | tee /a.rs", true),
            ("cat > /a.rs <<'EOF'\nrm b; rm c\nEOF\n", true),
            ("rm /a.rs;", true),
            ("make 2>&1 | cat && rm /a.rs", true),
            ("bash -c 'rm /a.rs'", true),
            // It ran only if another command failed, or need not have succeeded.
            ("test -d /x || rm /a.rs", false),
            ("rm /a.rs || true", false),
            ("rm /a.rs; echo done", false),
            ("make; rm /a.rs", false),
            ("rm /a.rs\necho done", false),
            ("rm /a.rs | cat", false),
            ("rm /a.rs &", false),
            ("(rm /a.rs)", false),
            ("! rm /a.rs", false),
            ("if make; then rm /a.rs; fi", false),
            ("for f in x; do rm /a.rs; done", false),
            ("bash -c 'make || rm /a.rs'", false),
            // It may leave the file as it was.
            ("touch /a.rs", false),
            ("sed -i s/x/y/ /a.rs", false),
            ("make && sed -i.bak -e s/x/y/ /a.rs", false),
            ("perl -pi -e s/x/y/ /a.rs", false),
            ("rustfmt /a.rs", false),
            ("cat /a.rs; git log", false),
            ("cat /a.rs || cat /b.rs", false),
        ] {
            let expected: &[(usize, usize)] = if is_certain { &[(0, 1)] } else { &[] };
            assert_eq!(stale(&[read("/a.rs"), shell(command)]), expected, "{command}");
        }
    }

    #[test]
    fn a_result_that_may_show_more_than_known_files_is_not_stale() {
        let shell = |command: &str| ("Bash", json!({"command": command}));
        for (command, is_known) in [
            ("cat /a.rs", true),
            ("cd /x && cat /a.rs", true),
            ("echo here: && cat /a.rs | head -n 50", true),
            ("cat /a.rs | grep -n fn", true),
            ("sed -n 1,50p /a.rs", true),
            ("cat /a.rs && git log", false),
            ("cat /a.rs && ls", false),
            ("cat /a.rs *.rs", false),
            ("cat /a.rs $OTHER", false),
            ("cat /a.rs $(git ls-files)", false),
            ("cat /a.rs < $OTHER", false),
            ("cat /a.rs; make", false),
            ("cat /a.rs || git log", false),
        ] {
            let expected: &[(usize, usize)] = if is_known { &[(0, 1)] } else { &[] };
            assert_eq!(stale(&[shell(command), read("/a.rs")]), expected, "{command}");
        }
    }

    #[test]
    fn relative_names_are_of_the_same_file_only_if_the_folder_is_certain() {
        let shell = |command: &str| ("Bash", json!({"command": command}));
        let inside = |folder: &str, command: &str| ("Bash", json!({"command": command, "workdir": folder}));
        for (steps, expected) in [
            (vec![shell("cat a.rs"), shell("cat a.rs")], vec![(0, 1)]),
            (vec![shell("cd /x && cat a.rs"), read("/x/a.rs")], vec![(0, 1)]),
            (vec![read("/x/y/a.rs"), shell("cd /x && cd y && rm a.rs")], vec![(0, 1)]),
            (vec![inside("/x", "cat a.rs"), inside("/x", "rm a.rs")], vec![(0, 1)]),
            (vec![inside("/x", "cat a.rs"), inside("/y", "rm a.rs")], vec![]),
            // A shell stays where it went; another begins where the first did.
            (vec![shell("cat a.rs"), shell("cd x && make"), shell("rm a.rs")], vec![]),
            (vec![shell("cd x && cat a.rs"), shell("cd x && rm a.rs")], vec![]),
            (vec![shell("cat a.rs"), shell("cd x"), shell("cat a.rs"), shell("cat a.rs")], vec![(2, 3)]),
            (vec![shell("cd /x && cat a.rs"), shell("cd /x && rm a.rs")], vec![(0, 1)]),
            // Other tools have a folder of their own.
            (vec![read("a.rs"), shell("rm a.rs")], vec![]),
            (vec![read("a.rs"), read("./a.rs")], vec![(0, 1)]),
            // Where these lead is not known.
            (vec![read("/x/a.rs"), shell("cd /x && cd $Y && rm a.rs")], vec![]),
            (vec![read("/x/a.rs"), shell("cd /x && cd - && rm a.rs")], vec![]),
            (vec![read("/x/a.rs"), shell("cd /x && popd && rm a.rs")], vec![]),
            (vec![read("/x/a.rs"), shell("cd /x && cd && rm a.rs")], vec![]),
            (vec![read("/x/a.rs"), shell("cd /x && cd $Y && rm /x/a.rs")], vec![(0, 1)]),
            // A folder of one command is none of the next.
            (vec![read("/x/a.rs"), shell("git -C /x status && rm a.rs")], vec![]),
            (vec![read("/x/a.rs"), shell("cd -P /x && rm a.rs")], vec![(0, 1)]),
        ] {
            assert_eq!(stale(&steps), expected, "{steps:?}");
        }
    }

    #[test]
    fn what_failed_makes_nothing_stale_and_short_results_are_left_alone() {
        let long = "a line of the file\n".repeat(100);
        let look = |text| ("Read", json!({"file_path": "/a"}), text);
        let failed = ("Bash", json!({"command": "rm /a"}), "Exit code 1\nrm: /a: not permitted");
        assert_eq!(stale_with(&[look(long.as_str()), failed]), []);
        assert_eq!(stale_with(&[look("short"), look(long.as_str())]), []);
        assert_eq!(stale_with(&[look(long.as_str()), look("unchanged since it was read")]), []);
        let write = |said| ("Write", json!({"file_path": "/a", "content": "1"}), said);
        assert_eq!(stale_with(&[look(long.as_str()), write("done")]), [(0, 1)]);
        for refused in [r#"{"error":"permission denied"}"#, r#"{"success": false}"#, "sed: no such file"] {
            assert_eq!(stale_with(&[look(long.as_str()), write(refused)]), [], "{refused}");
        }
    }

    #[test]
    fn results_of_one_entry_are_stale_together_and_parallel_calls_in_their_order() {
        let long = "a line of the file\n".repeat(100);
        let call = |id: &str, path: &str| json!({"type": "tool_use", "id": id, "name": "Read", "input": {"file_path": path}});
        let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": long});
        let both = |one: serde_json::Value, two: serde_json::Value| json!([one, two]);
        let entries = [
            json!({"role": "assistant", "content": both(call("a", "/a"), call("b", "/b"))}),
            // The second of parallel calls may answer first.
            json!({"role": "user", "content": both(result("b"), result("a"))}),
            json!({"role": "assistant", "content": [call("c", "/a")]}),
            json!({"role": "user", "content": [result("c")]}),
            json!({"role": "assistant", "content": both(call("d", "/c"), call("e", "/b"))}),
            json!({"role": "user", "content": both(result("e"), result("d"))}),
            json!({"role": "assistant", "content": both(call("f", "/z"), call("g", "/z"))}),
            json!({"role": "user", "content": both(result("g"), result("f"))}),
        ]
        .map(|entry| entry.to_string());
        let said: Vec<_> = entries
            .iter()
            .zip(1..)
            .map(|(entry, seq)| Said::of(WireFormat::AnthropicMessages, Seq(seq), entry.as_bytes()))
            .collect();
        assert_eq!(stale_results(&said[..4]), BTreeMap::new(), "/b is still as it was shown");
        assert_eq!(stale_results(&said), BTreeMap::from([(Seq(2), Seq(5))]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_last_whole_look_at_each_file_is_never_stale(
            touched in prop::collection::vec((0_usize..4, 0_u8..3), 0..24),
        ) {
            let path = |file: usize| format!("/f{file}.rs");
            let steps: Vec<_> = touched
                .iter()
                .map(|(file, what)| match what {
                    0 => read(&path(*file)),
                    1 => part(&path(*file), 7),
                    _ => ("Write", json!({"file_path": path(*file), "content": ""})),
                })
                .collect();
            let found = stale(&steps);
            for (number, (file, what)) in touched.iter().enumerate() {
                let covers = |later: &(usize, u8)| later.0 == *file && (later.1 != 1 || *what == 1);
                let expected = touched.iter().rposition(covers).filter(|later| *later > number);
                let told = found.iter().find(|(look, _)| *look == number).map(|(_, later)| *later);
                // The first that makes it stale is enough.
                prop_assert_eq!(told.is_some(), expected.is_some(), "{} of {:?}", number, &touched);
                prop_assert!(told.is_none_or(|later| covers(&touched[later]) && later > number));
            }
        }
    }
}
