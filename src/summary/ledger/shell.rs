//! What a command line does to files, as far as it can be read without being
//! run: names that are put together by the shell are left out.

mod parser;

use super::calls::Effect;
use super::{FileState, patch};
use crate::limits::{LEDGER_COMMAND_BYTES_MAX, LEDGER_EFFECTS_MAX};
use crate::summary::fit::one_line;
use parser::{Simple, parse};

/// Bytes of a command line that are read.
const READ_BYTES_MAX: usize = 64 * 1024;

/// How deep `bash -c` is followed.
const DEPTH_MAX: u32 = 3;

/// What the command line `text` does in `workdir`.
pub(super) fn effects(text: &str, workdir: Option<&str>) -> Vec<Effect> {
    let mut run = Run { cwd: workdir.map(str::to_owned), ..Run::default() };
    run.line(text, 0);
    run.finish(text)
}

/// What a command does that is given word by word.
pub(super) fn effects_of_words(words: Vec<String>, workdir: Option<&str>) -> Vec<Effect> {
    let text = match words.as_slice() {
        [shell, option, line, ..] if is_shell(shell) && option.ends_with('c') => line.clone(),
        _ => words.join(" "),
    };
    let mut run = Run { cwd: workdir.map(str::to_owned), ..Run::default() };
    run.simple(&Simple { words, ..Simple::default() }, 0);
    run.finish(&text)
}

/// Whether a command line that reads files shows all of each, as far as can be told.
pub(super) fn shows_whole_files(text: &str) -> bool {
    const WHOLE: [&str; 10] = ["cat", "nl", "bat", "less", "more", "cd", "pwd", "echo", "ls", "true"];
    let (commands, _) = parse(text);
    // A text that was cut off may go on with anything.
    let is_cut_off = text.len() >= LEDGER_COMMAND_BYTES_MAX - 4;
    !is_cut_off
        && !text.contains('|')
        && commands.iter().all(|simple| {
            if !simple.outputs.is_empty() {
                return false;
            }
            let name = program(&simple.words).first();
            name.is_none_or(|name| WHOLE.contains(&name.rsplit('/').next().unwrap_or(name)))
        })
}

/// What was found so far.
#[derive(Default)]
struct Run {
    cwd: Option<String>,
    /// Whether it is in another folder than `cwd` says.
    is_lost: bool,
    /// Whether it went to another folder.
    changes_folder: bool,
    /// Files, and whether each is what it is called and that was done if all succeeded.
    files: Vec<(String, FileState, bool)>,
    /// Whether not all commands ran although the line succeeded.
    is_broken: bool,
    /// Whether more is shown than files that are known.
    shows_other: bool,
    /// Whether what is done in a command that is read now is not known to have succeeded.
    is_doubtful: bool,
    mints: Vec<(String, String)>,
    commands: usize,
    does_something: bool,
    commits: bool,
    publishes: bool,
}

impl Run {
    fn finish(self, text: &str) -> Vec<Effect> {
        let is_alone = self.commands == 1;
        let is_look =
            !self.does_something && self.files.iter().all(|(_, state, _)| *state == FileState::Read);
        let text = one_line(text, LEDGER_COMMAND_BYTES_MAX);
        let Self { mints, commits, publishes, is_broken, changes_folder, .. } = self;
        let shows_files = is_look && !self.shows_other && !is_broken;
        let files = self.files.into_iter().map(|(path, state, is_sure)| Effect::File {
            path,
            state,
            is_alone,
            is_certain: is_sure && !is_broken,
        });
        let command =
            Effect::Command { text, is_look, mints, commits, publishes, shows_files, changes_folder };
        files.take(LEDGER_EFFECTS_MAX - 1).chain([command]).collect()
    }

    fn line(&mut self, text: &str, depth: u32) {
        let text = text.get(..text.floor_char_boundary(READ_BYTES_MAX)).unwrap_or(text);
        let (commands, is_chain) = parse(text);
        self.is_broken |= !is_chain;
        for simple in commands {
            self.simple(&simple, depth);
        }
    }

    fn touch(&mut self, path: &str, state: FileState) {
        if is_plain(path) && self.files.len() < LEDGER_EFFECTS_MAX {
            // What was shown was read.
            let is_done = state == FileState::Read || !self.is_doubtful;
            let is_sure = is_done && (!self.is_lost || is_absolute(path));
            let path = clean(self.cwd.as_deref(), path);
            self.files.push((path, state, is_sure));
        } else if !path.starts_with("/dev/") {
            self.shows_other = true;
        }
    }

    /// Goes to the folder that a command names, if it can be told which it is.
    fn go(&mut self, simple: &Simple, name: &str, rest: &[String]) {
        self.changes_folder = true;
        let folder = operands(rest, &[]).first().copied();
        let folder = match folder {
            // Home.
            None if name == "cd" && !rest.iter().any(|word| word == "-") => Some("~"),
            folder => folder.filter(|folder| is_plain(folder) && !folder.starts_with('+')),
        };
        match folder.filter(|_| name != "popd" && !simple.feeds && !simple.is_fed) {
            Some(folder) => {
                self.is_lost &= !is_absolute(folder);
                self.cwd = Some(clean(self.cwd.as_deref(), folder));
            }
            None => self.is_lost = true,
        }
    }

    fn simple(&mut self, simple: &Simple, depth: u32) {
        self.commands += 1;
        // Whether it succeeded does not show, or it is to fail.
        self.is_doubtful = simple.feeds;
        self.is_broken |= simple.words.iter().take_while(|word| word.as_str() == "!").count() > 0;
        for (path, appends) in &simple.outputs {
            self.touch(path, if *appends { FileState::Edited } else { FileState::Written });
        }
        for path in &simple.inputs {
            self.touch(path, FileState::Read);
        }
        let words = program(&simple.words);
        let Some((name, rest)) = words.split_first() else { return };
        let name = name.rsplit('/').next().unwrap_or(name);
        if is_shell(name)
            && let Some(option) = rest.iter().position(|word| word.starts_with('-') && word.ends_with('c'))
        {
            if let Some(line) = rest.get(option + 1).filter(|_| depth < DEPTH_MAX) {
                self.commands -= 1;
                self.line(line, depth + 1);
            }
            return;
        }
        let is_look = is_look(name, rest);
        self.does_something |= !is_look;
        self.shows_other |= !(is_look && (shows_nothing_else(name) || simple.is_fed));
        // What these leave need not be another than it was.
        self.is_doubtful |= matches!(name, "touch" | "sed" | "perl") || is_formatter(name);
        match name {
            "cd" | "pushd" | "popd" => self.go(simple, name, rest),
            "git" => {
                let before = (self.cwd.clone(), self.is_lost);
                self.git(rest);
                (self.cwd, self.is_lost) = before;
            }
            "gh" | "glab" | "hub" | "tea" => {
                self.publishes |= rest.iter().take(2).any(|word| word == "create" || word == "new");
            }
            "apply_patch" | "applypatch" => {
                let text = rest.first().unwrap_or(&simple.document);
                for (path, state) in patch::files(text) {
                    self.touch(&path, state);
                }
            }
            _ => self.program(name, rest),
        }
    }

    fn all(&mut self, paths: &[&str], state: &FileState) {
        for path in paths {
            self.touch(path, state.clone());
        }
    }

    fn program(&mut self, name: &str, rest: &[String]) {
        let has = |flags: &[&str]| rest.iter().any(|word| flags.contains(&word.as_str()));
        match name {
            "cat" | "less" | "more" | "nl" | "bat" | "tac" | "wc" => {
                self.all(&operands(rest, &[]), &FileState::Read);
            }
            "head" | "tail" => {
                self.all(&operands(rest, &["-n", "-c", "--lines", "--bytes"]), &FileState::Read);
            }
            "xxd" | "od" => {
                let valued = ["-g", "-l", "-s", "-c", "-N", "-A", "-t", "-w", "-j"];
                self.all(&operands(rest, &valued), &FileState::Read);
            }
            "jq" | "awk" | "yq" => {
                let given = operands(rest, &["-F", "-v", "--arg", "-f"]);
                self.all(given.get(1..).unwrap_or_default(), &FileState::Read);
            }
            "sed" | "perl" => {
                let is_script =
                    |word: &String| !word.starts_with("--") && word.starts_with('-') && word.ends_with('e');
                let has_script = rest.iter().any(is_script);
                let in_place = rest.iter().any(|word| {
                    word.starts_with("-i")
                        || word == "--in-place"
                        || name == "perl" && word.starts_with("-pi")
                });
                let scripts: Vec<_> =
                    rest.iter().filter(|word| is_script(word)).map(String::as_str).collect();
                let given = operands(rest, &scripts);
                let files = given.get(usize::from(!has_script)..).unwrap_or_default();
                if in_place || name == "sed" {
                    self.all(files, if in_place { &FileState::Edited } else { &FileState::Read });
                }
            }
            "tee" => {
                let state = if has(&["-a", "--append"]) { FileState::Edited } else { FileState::Written };
                self.all(&operands(rest, &[]), &state);
            }
            "touch" => self.all(&operands(rest, &["-d", "-t", "-r"]), &FileState::Written),
            "rm" | "unlink" | "trash" | "shred" => self.all(&operands(rest, &[]), &FileState::Deleted),
            "cp" | "mv" | "install" | "ln" => {
                self.copy(name == "mv", &operands(rest, &["-m", "-t", "-o", "-g"]));
            }
            "curl" | "wget" => {
                let option = rest.iter().position(|word| matches!(word.as_str(), "-o" | "--output" | "-O"));
                let target = option.and_then(|at| rest.get(at + 1)).filter(|path| !path.contains("://"));
                if let Some(path) = target {
                    self.touch(path, FileState::Written);
                }
            }
            name if is_formatter(name) => {
                let writes = matches!(name, "rustfmt" | "black" | "isort")
                    || has(&["-w", "--write", "--fix", "format"]);
                if writes && !has(&["--check"]) {
                    let given = operands(rest, &["--config"]);
                    let files: Vec<_> = given.into_iter().filter(|path| has_extension(path)).collect();
                    self.all(&files, &FileState::Edited);
                }
            }
            _ => {}
        }
    }

    fn copy(&mut self, moves: bool, paths: &[&str]) {
        let Some((&target, sources)) = paths.split_last() else { return };
        let is_folder = sources.len() > 1 || target.ends_with('/') || matches!(target, "." | "..");
        for source in sources {
            let name = source.trim_end_matches('/').rsplit('/').next().unwrap_or(source);
            let to =
                if is_folder { [target.trim_end_matches('/'), name].join("/") } else { target.to_owned() };
            if !is_plain(&to) {
                continue;
            }
            let state =
                if moves { FileState::MovedTo(clean(self.cwd.as_deref(), &to)) } else { FileState::Read };
            self.touch(source, state);
            self.touch(&to, FileState::Written);
        }
    }

    fn git(&mut self, rest: &[String]) {
        let mut rest = rest;
        while let Some(flag) = rest.first().filter(|word| word.starts_with('-')) {
            let skip = if matches!(flag.as_str(), "-C" | "-c") { 2 } else { 1 };
            if let (Some(folder), "-C") = (rest.get(1), flag.as_str()) {
                self.is_lost |= !is_plain(folder);
                self.cwd = Some(clean(self.cwd.as_deref(), folder));
            }
            rest = rest.get(skip..).unwrap_or_default();
        }
        let Some((verb, rest)) = rest.split_first() else { return };
        let given = operands(rest, &["-b", "-B", "-c", "-C", "-m", "-s", "--source", "-u"]);
        let named = |flags: &[&str]| {
            rest.iter().position(|word| flags.contains(&word.as_str())).and_then(|at| rest.get(at + 1))
        };
        let mut branch = None;
        match verb.as_str() {
            "rm" if !rest.iter().any(|word| word == "--cached") => self.all(&given, &FileState::Deleted),
            "mv" => self.copy(true, &given),
            "restore" if !rest.iter().any(|word| word == "--staged") => self.all(&given, &FileState::Edited),
            "checkout" => {
                branch = named(&["-b", "-B"]);
                if let Some(at) = rest.iter().position(|word| word == "--") {
                    let files = operands(rest.get(at + 1..).unwrap_or_default(), &[]);
                    self.all(&files, &FileState::Edited);
                }
            }
            "commit" | "cherry-pick" | "revert" | "merge" => self.commits = true,
            "switch" => branch = named(&["-c", "-C"]),
            "worktree" => branch = named(&["-b", "-B"]),
            "tag" | "branch" => {
                let name = made(verb, rest);
                if verb == "tag" {
                    self.mints.extend(
                        name.filter(|name| is_plain(name)).map(|name| ("tag".to_owned(), name.clone())),
                    );
                } else {
                    branch = name;
                }
            }
            _ => {}
        }
        let branch = branch.filter(|branch| is_plain(branch) && !branch.is_empty());
        self.mints.extend(branch.map(|branch| ("branch".to_owned(), branch.clone())));
    }
}

/// The name that `git tag` or `git branch` makes, if no option says that it does something
/// else.
fn made<'a>(verb: &str, words: &'a [String]) -> Option<&'a String> {
    const TAG_VALUED: [&str; 8] = ["-m", "-am", "-sm", "-F", "-u", "--message", "--file", "--local-user"];
    const TAG: [&str; 8] = ["-a", "-s", "-as", "-f", "--annotate", "--sign", "--no-sign", "--force"];
    const BRANCH: [&str; 7] = ["-f", "-t", "-q", "--force", "--track", "--no-track", "--quiet"];
    let is_tag = verb == "tag";
    let options: &[&str] = if is_tag { &TAG } else { &BRANCH };
    let (mut name, mut words) = (None, words.iter());
    while let Some(word) = words.next() {
        if is_tag && TAG_VALUED.contains(&word.as_str()) {
            words.next();
        } else if !word.starts_with('-') {
            name = name.or(Some(word));
        } else if !(options.contains(&word.as_str()) || is_tag && word.starts_with("--message=")) {
            return None;
        }
    }
    name
}

/// Whether a command that looks shows files, if any, and what it was told to say.
fn shows_nothing_else(name: &str) -> bool {
    const FILES: [&str; 13] =
        ["cat", "less", "more", "nl", "bat", "tac", "wc", "head", "tail", "xxd", "od", "sed", "jq"];
    const NOTHING: [&str; 11] =
        ["cd", "pushd", "popd", "true", "set", "test", "[", "sleep", "echo", "printf", "pwd"];
    FILES.contains(&name) || NOTHING.contains(&name)
}

fn is_formatter(name: &str) -> bool {
    const FORMATTERS: [&str; 9] =
        ["gofmt", "goimports", "shfmt", "rustfmt", "black", "isort", "prettier", "eslint", "ruff"];
    FORMATTERS.contains(&name)
}

fn is_shell(name: &str) -> bool {
    matches!(name.rsplit('/').next().unwrap_or(name), "bash" | "sh" | "zsh" | "dash")
}

fn has_extension(path: &str) -> bool {
    path.rsplit('/').next().unwrap_or(path).contains('.') && path != "." && !path.ends_with("...")
}

/// Whether a name is what it looks like: nothing in it is for the shell to fill
/// in, and it is a file.
fn is_plain(path: &str) -> bool {
    !path.is_empty()
        && path != "-"
        && !path.contains(['$', '`', '*', '?', '{', '<', '>', '\n', '|', ';', '\0'])
        && !path.starts_with("/dev/")
        && !path.starts_with("http")
}

/// The words from the program on.
fn program(words: &[String]) -> &[String] {
    let mut rest = words;
    loop {
        let Some(first) = rest.first() else { return rest };
        let skip = match first.as_str() {
            "sudo" | "env" | "time" | "nohup" | "command" | "builtin" | "exec" | "then" | "do" | "else"
            | "{" | "!" | "if" | "while" | "elif" => 1,
            "timeout" => 2,
            "nice" => 3,
            word if is_assignment(word) => 1,
            _ => return rest,
        };
        rest = rest.get(skip..).unwrap_or_default();
    }
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// The words that are no options. `valued` are options that take the next word.
fn operands<'a>(words: &'a [String], valued: &[&str]) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        if valued.contains(&word) {
            words.next();
        } else if word.len() > 1 && word.starts_with('-') || word.is_empty() {
        } else {
            found.push(word);
        }
    }
    found
}

/// Whether a program only looks.
fn is_look(name: &str, rest: &[String]) -> bool {
    const LOOKS: [&str; 50] = [
        "cat", "head", "tail", "less", "more", "ls", "grep", "egrep", "rg", "ag", "find", "fd", "awk", "wc",
        "pwd", "echo", "printf", "which", "type", "cd", "pushd", "popd", "tree", "file", "stat", "nl",
        "sort", "uniq", "cut", "tr", "jq", "yq", "true", "false", "env", "date", "du", "df", "ps", "sleep",
        "test", "[", "read", "diff", "cmp", "xxd", "od", "set", "done", "fi",
    ];
    const GIT_LOOKS: [&str; 15] = [
        "status",
        "diff",
        "log",
        "show",
        "ls-files",
        "rev-parse",
        "remote",
        "blame",
        "grep",
        "describe",
        "ls-tree",
        "cat-file",
        "merge-base",
        "rev-list",
        "shortlog",
    ];
    let second = |at: usize| rest.get(at).map_or("", String::as_str);
    match name {
        "git" => {
            let verb = rest.iter().find(|word| !word.starts_with('-')).map_or("", String::as_str);
            GIT_LOOKS.contains(&verb)
                || verb == "branch" && rest.len() <= 2 && !rest.iter().skip(1).any(|w| !w.starts_with('-'))
        }
        "gh" => matches!(second(1), "view" | "list" | "checks" | "diff" | "status"),
        "sed" => !rest.iter().any(|word| word.starts_with("-i") || word == "--in-place"),
        "find" => !rest.iter().any(|word| matches!(word.as_str(), "-delete" | "-exec")),
        "for" => true,
        "xargs" => rest.iter().find(|word| !word.starts_with('-')).is_some_and(|name| is_look(name, &[])),
        _ => LOOKS.contains(&name),
    }
}

/// Whether a path does not depend on the folder that it is named in.
pub(super) fn is_absolute(path: &str) -> bool {
    path.starts_with(['/', '~']) || path.get(1..3).is_some_and(|drive| drive == ":\\" || drive == ":/")
}

/// A path with what the shell would put before it, and without `.` and `..`.
pub(super) fn clean(cwd: Option<&str>, path: &str) -> String {
    let is_absolute = is_absolute(path);
    let path = path.strip_prefix("file://").unwrap_or(path);
    let whole = match cwd {
        Some(cwd) if !is_absolute => [cwd.trim_end_matches('/'), path].join("/"),
        _ => path.to_owned(),
    };
    if !whole.contains("./") && !whole.contains("//") && !whole.ends_with("/.") && !whole.ends_with("/..") {
        return whole;
    }
    let mut pieces: Vec<&str> = Vec::new();
    for piece in whole.split('/') {
        match piece {
            "" | "." => {}
            ".." if pieces.last().is_some_and(|last| *last != "..") => drop(pieces.pop()),
            piece => pieces.push(piece),
        }
    }
    let root = if whole.starts_with('/') { "/" } else { "" };
    [root, &pieces.join("/")].concat()
}

#[cfg(test)]
mod tests;
