//! What a call does, by its name and arguments.
//!
//! The vocabularies of the common agents are known; of other tools the verb in
//! the name and the names of the arguments tell.

use super::{FileState, patch, shell};
use crate::format::json::Value;
use crate::limits::{LEDGER_EFFECTS_MAX, LEDGER_PATH_BYTES_MAX};
use std::borrow::Cow;

/// One thing that a call does.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Effect {
    /// Something with a file.
    File {
        path: String,
        state: FileState,
        /// Whether it is all that the call does, so that it did not happen if the
        /// call failed.
        is_alone: bool,
        /// Whether it is certain, if the call succeeded, that this was done to the file
        /// of that name.
        #[serde(default)]
        is_certain: bool,
    },
    /// A command is run.
    Command {
        text: String,
        /// Whether it changes nothing.
        is_look: bool,
        /// Names that it makes, if it does what it is to do.
        mints: Vec<(String, String)>,
        /// Whether it says which commit it made.
        commits: bool,
        /// Whether it says where the page is that it made.
        publishes: bool,
        /// Whether it shows files and nothing else, and all of them are known.
        #[serde(default)]
        shows_files: bool,
        /// Whether the shell may be in another folder after it.
        #[serde(default)]
        changes_folder: bool,
    },
    /// More is asked of a command that runs.
    Continue { session: String },
    /// Something is made, whose name is in the result.
    Create { what: String },
}

/// Arguments that name a file, the likeliest first.
#[rustfmt::skip]
pub(super) const PATHS: [&str; 13] = [
    "file_path", "path", "filename", "file", "filepath", "filePath", "file_name", "notebook_path",
    "target_file", "absolute_path", "relative_path", "TargetFile", "uri",
];

/// Arguments that name several.
pub(super) const PATH_LISTS: [&str; 3] = ["paths", "file_paths", "files"];

/// What the call of that tool with those arguments does.
pub(super) fn effects(tool: &str, arguments: &str) -> Vec<Effect> {
    let value = Value::of(arguments.as_bytes());
    let own = tool.rsplit("__").next().unwrap_or(tool).rsplit(['.', ':', '/']).next().unwrap_or(tool);
    let words = words(own);
    let mut found =
        if value.is_object() { of_object(own, &words, value) } else { of_text(&words, arguments) };
    found.truncate(LEDGER_EFFECTS_MAX);
    found.retain(|effect| !matches!(effect, Effect::File { path, .. } if path.len() > LEDGER_PATH_BYTES_MAX));
    found
}

/// The words of a name in snake case, kebab case or camel case, in lower case.
pub(super) fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars().take(128) {
        let is_break = !c.is_alphanumeric() || c.is_uppercase() && was_lower;
        if is_break {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase() || c.is_ascii_digit();
    }
    words.retain(|word| !word.is_empty());
    words
}

fn has(words: &[String], any: &[&str]) -> bool {
    words.iter().any(|word| any.contains(&word.as_str()))
}

fn file(path: &str, state: FileState) -> Effect {
    Effect::File { path: shell::clean(None, path), state, is_alone: true, is_certain: true }
}

/// Free text: a patch, or a script that runs commands.
fn of_text(words: &[String], text: &str) -> Vec<Effect> {
    let files = patch::files(text);
    if !files.is_empty() {
        return files.into_iter().map(|(path, state)| file(&path, state)).collect();
    }
    match of_script(text) {
        Some(effects) => effects,
        None if has(words, &["bash", "shell", "sh", "zsh"]) => shell::effects(text, None),
        None => vec![],
    }
}

/// A script in JavaScript that calls tools, as Codex's `exec` takes it: its
/// commands and patches, which stand in it as strings. Nothing if it is none.
fn of_script(text: &str) -> Option<Vec<Effect>> {
    if !text.contains("tools.") {
        return None;
    }
    let mut found = Vec::new();
    let strings: Vec<_> = script_strings(text).collect();
    let workdir = strings.iter().find(|(key, _)| key == "workdir").map(|(_, value)| value.clone());
    for (key, string) in strings {
        if key == "cmd" || key == "command" {
            found.extend(shell::effects(&string, workdir.as_deref()));
        } else {
            found.extend(patch::files(&string).into_iter().map(|(path, state)| file(&path, state)));
        }
    }
    // Which of several calls were made, nobody knows who does not run it.
    let is_one_call = text.matches("tools.").count() == 1;
    for effect in &mut found {
        match effect {
            Effect::File { is_alone, is_certain, .. } => {
                *is_alone = false;
                *is_certain &= is_one_call;
            }
            Effect::Command { shows_files, .. } => *shows_files &= is_one_call,
            _ => {}
        }
    }
    if let Some(at) = text.find("write_stdin")
        && let Some(session) =
            text.get(at..).and_then(|call| call.split_once("session_id:")?.1.split([',', '}']).next())
    {
        found.push(Effect::Continue { session: session.trim().to_owned() });
    }
    Some(found)
}

/// The strings of a script with the key before each: `cmd:"ls"`, `"cmd":"ls"`.
fn script_strings(text: &str) -> impl Iterator<Item = (String, String)> {
    let mut rest = text;
    let mut last = String::new();
    std::iter::from_fn(move || {
        let (before, quoted) = rest.split_at_checked(rest.find(['"', '\'', '`'])?)?;
        let bare = before.trim().strip_suffix(':');
        let key = match bare {
            Some("") => last.clone(),
            Some(bare) => bare.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?.to_owned(),
            None => String::new(),
        };
        let mut characters = quoted.chars();
        let quote = characters.next()?;
        let mut string = String::new();
        while let Some(c) = characters.next().filter(|c| *c != quote) {
            let escaped = if c == '\\' { characters.next() } else { None };
            string.push(match escaped {
                None => c,
                Some('n') => '\n',
                Some('t') => '\t',
                Some(c) => c,
            });
        }
        rest = characters.as_str();
        last.clone_from(&string);
        Some((key, string))
    })
}

const SHELLS: [&str; 12] = [
    "bash",
    "shell",
    "sh",
    "exec",
    "execute",
    "terminal",
    "command",
    "cmd",
    "run",
    "zsh",
    "powershell",
    "console",
];
const CHANGES: [&str; 10] =
    ["edit", "multiedit", "replace", "insert", "patch", "update", "append", "modify", "apply", "undo"];
const WRITES: [&str; 5] = ["write", "create", "save", "overwrite", "add"];
const REMOVES: [&str; 4] = ["delete", "remove", "rm", "unlink"];
const MOVES: [&str; 3] = ["move", "rename", "mv"];
#[rustfmt::skip]
const SEARCHES: [&str; 16] = [
    "glob", "grep", "ls", "list", "search", "find", "dir", "directory", "folder", "tree", "stat",
    "codebase", "symbols", "outline", "exists", "permissions",
];

fn string(value: Option<Value<'_>>) -> Option<Cow<'_, str>> {
    value.filter(|value| value.is_string()).and_then(Value::text)
}

fn scalar(value: Value<'_>) -> Option<String> {
    let is_scalar = !value.is_array() && !value.is_object() && !value.is_null();
    let text = || value.text().unwrap_or_else(|| String::from_utf8_lossy(value.bytes()));
    is_scalar.then(|| text().into_owned()).filter(|text| text.len() <= 64)
}

fn of_object(tool: &str, words: &[String], value: Value<'_>) -> Vec<Effect> {
    let [command, cmd, commands, workdir, cwd, working_directory] =
        value.get(["command", "cmd", "commands", "workdir", "cwd", "working_directory"]);
    let paths: Vec<_> = value.get(PATHS).into_iter().find_map(string).into_iter().collect();
    let run = cmd.or(command).or(commands);
    if let (Some(command), Some(path)) = (string(command), paths.first())
        && let Some(effects) = of_editor(&command, path, value)
    {
        return effects;
    }
    let workdir = string(workdir.or(cwd).or(working_directory));
    if let Some(run) = run.filter(|_| has(words, &SHELLS) || paths.is_empty()) {
        return of_command(run, workdir.as_deref());
    }
    let [session, bash, shell, cell] = value.get(["session_id", "bash_id", "shell_id", "cell_id"]);
    if let Some(session) = session.or(bash).or(shell).or(cell).and_then(scalar) {
        return if has(words, &["kill", "stop"]) { vec![] } else { vec![Effect::Continue { session }] };
    }
    let [input, patch_text, diff] = value.get(["input", "patch", "diff"]);
    if has(words, &["patch"]) {
        let text = string(input.or(patch_text).or(diff)).unwrap_or_default();
        let files = patch::files(&text);
        if !files.is_empty() {
            return files.into_iter().map(|(path, state)| file(&path, state)).collect();
        }
    }
    if has(words, &SEARCHES) {
        return vec![];
    }
    of_verb(tool, words, value, paths)
}

/// An editor that is told what to do by an argument.
fn of_editor(command: &str, path: &str, value: Value<'_>) -> Option<Vec<Effect>> {
    let state = match command {
        "view" | "read" | "open" => FileState::Read,
        "create" | "write" | "overwrite" => FileState::Written,
        "str_replace" | "insert" | "undo_edit" | "edit" | "replace" | "append" => FileState::Edited,
        "delete" => FileState::Deleted,
        "rename" => {
            let [new_path, old_path] = value.get(["new_path", "old_path"]);
            let from = string(old_path).unwrap_or(Cow::Borrowed(path));
            return Some(moved(&from, &string(new_path)?));
        }
        _ => return None,
    };
    Some(vec![file(path, state)])
}

fn moved(from: &str, to: &str) -> Vec<Effect> {
    let target = shell::clean(None, to);
    vec![file(from, FileState::MovedTo(target)), file(to, FileState::Written)]
}

fn of_command(run: Value<'_>, workdir: Option<&str>) -> Vec<Effect> {
    if run.is_string() {
        return shell::effects(&run.text().unwrap_or_default(), workdir);
    }
    let words: Vec<_> = run.elements().filter_map(|word| string(Some(word))).map(Cow::into_owned).collect();
    match words.first().map(String::as_str) {
        None => vec![],
        // A list of commands rather than of words.
        Some(first) if first.contains(' ') => {
            words.iter().flat_map(|command| shell::effects(command, workdir)).collect()
        }
        Some(_) => shell::effects_of_words(words, workdir),
    }
}

/// A tool whose name says what it does.
fn of_verb<'a>(tool: &str, words: &[String], value: Value<'a>, mut paths: Vec<Cow<'a, str>>) -> Vec<Effect> {
    if has(words, &MOVES) {
        let [source, src, from, old] = value.get(["source", "src", "from", "old_path"]);
        let [destination, dest, to, new] = value.get(["destination", "dest", "to", "new_path"]);
        let from = string(source.or(src).or(from).or(old));
        let to = string(destination.or(dest).or(to).or(new));
        return match (from, to) {
            (Some(from), Some(to)) => moved(&from, &to),
            _ => vec![],
        };
    }
    for list in value.get(PATH_LISTS).into_iter().flatten() {
        paths.extend(
            list.elements().filter_map(|path| {
                string(Some(path)).or_else(|| path.get(PATHS).into_iter().find_map(string))
            }),
        );
    }
    if let Some(operation) = value.member("type").and_then(|kind| string(Some(kind)))
        && let Some(path) = paths.first()
    {
        let state = match operation.as_ref() {
            "create_file" => Some(FileState::Written),
            "update_file" => Some(FileState::Edited),
            "delete_file" => Some(FileState::Deleted),
            _ => None,
        };
        if let Some(state) = state {
            return vec![file(path, state)];
        }
    }
    if paths.is_empty() {
        let is_new = words.first().is_some_and(|word| word == "create") || has(words, &["create"]);
        return if is_new { vec![Effect::Create { what: tool.to_owned() }] } else { vec![] };
    }
    let has_content = value
        .get([
            "content",
            "contents",
            "new_string",
            "new_str",
            "file_text",
            "new_source",
            "edits",
            "code_edit",
        ])
        .into_iter()
        .any(|argument| argument.is_some());
    let state = if has(words, &REMOVES) {
        FileState::Deleted
    } else if has(words, &CHANGES) {
        FileState::Edited
    } else if has(words, &WRITES) {
        FileState::Written
    } else if has_content {
        FileState::Edited
    } else {
        FileState::Read
    };
    paths.iter().map(|path| file(path, state.clone())).collect()
}
