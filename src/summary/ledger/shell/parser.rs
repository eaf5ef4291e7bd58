//! The commands of a command line, without what the shell would put in.

/// A command of a command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Simple {
    pub(super) words: Vec<String>,
    /// Files that its output goes to, and whether it is appended.
    pub(super) outputs: Vec<(String, bool)>,
    pub(super) inputs: Vec<String>,
    /// Text that it is given in the line itself.
    pub(super) document: String,
    /// Whether it reads what the command before it writes.
    pub(super) is_fed: bool,
    /// Whether the command after it reads what it writes.
    pub(super) feeds: bool,
}

/// The commands of a line, and whether all of them ran if it succeeded: they are joined by
/// `&&` and `|` alone.
pub(super) fn parse(text: &str) -> (Vec<Simple>, bool) {
    let mut parser = Parser { rest: text, ..Parser::default() };
    parser.run();
    (parser.commands, !parser.is_broken)
}

#[derive(Default)]
struct Parser<'a> {
    rest: &'a str,
    commands: Vec<Simple>,
    current: Simple,
    word: Option<String>,
    /// What the word that is read will be.
    target: Option<Target>,
    /// Ends of documents that begin at the next line.
    documents: Vec<String>,
    /// Whether commands are joined by more than `&&` and `|`.
    is_broken: bool,
    /// Whether they are if there is one more.
    has_ended: bool,
}

#[derive(Clone, Copy)]
enum Target {
    Output { appends: bool },
    Input,
    Document,
    Nothing,
}

impl Parser<'_> {
    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let c = characters.next()?;
        self.rest = characters.as_str();
        Some(c)
    }

    /// Whether the next is that sign, which is passed then.
    fn take(&mut self, sign: char) -> bool {
        let rest = self.rest.strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn run(&mut self) {
        while let Some(c) = self.next() {
            match c {
                '\'' => {
                    let end = self.rest.find('\'').unwrap_or(self.rest.len());
                    let (inside, after) = self.rest.split_at_checked(end).unwrap_or((self.rest, ""));
                    self.word.get_or_insert_default().push_str(inside);
                    self.rest = after.strip_prefix('\'').unwrap_or(after);
                }
                '"' => self.quoted(),
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some(c) => self.word.get_or_insert_default().push(c),
                },
                '$' if self.rest.starts_with('(') => self.substitution(),
                '#' if self.word.is_none() => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = self.rest.get(end..).unwrap_or_default();
                }
                '>' | '<' => self.redirect(c),
                '&' if self.rest.starts_with('>') => {}
                '\n' => {
                    self.end_command();
                    self.read_documents();
                    self.has_ended |= !self.commands.is_empty();
                }
                ';' => {
                    self.end_command();
                    self.has_ended |= !self.commands.is_empty();
                }
                '&' if self.take('&') => self.end_command(),
                '|' if !self.take('|') => {
                    self.take('&');
                    self.current.feeds = true;
                    self.end_command();
                }
                '&' | '|' | '(' | ')' => {
                    self.is_broken = true;
                    self.end_command();
                }
                c if c.is_whitespace() => self.end_word(),
                c => self.word.get_or_insert_default().push(c),
            }
        }
        self.end_command();
    }

    fn quoted(&mut self) {
        self.word.get_or_insert_default();
        while let Some(c) = self.next() {
            match c {
                '"' => return,
                '\\' => match self.next() {
                    Some(c @ ('"' | '\\' | '$' | '`')) => self.word.get_or_insert_default().push(c),
                    Some('\n') | None => {}
                    Some(c) => self.word.get_or_insert_default().extend(['\\', c]),
                },
                '$' if self.rest.starts_with('(') => self.substitution(),
                c => self.word.get_or_insert_default().push(c),
            }
        }
    }

    /// `$( … )` stays in the word, so that nobody takes that for a name.
    fn substitution(&mut self) {
        let mut depth = 0_usize;
        let word = self.word.get_or_insert_default();
        word.push('$');
        let mut end = self.rest.len();
        for (at, c) in self.rest.char_indices() {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                end = at + 1;
                break;
            }
        }
        self.rest = self.rest.get(end..).unwrap_or_default();
    }

    fn redirect(&mut self, c: char) {
        // A number before it is that of a stream.
        if self.word.as_ref().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        let is_double = self.take(c);
        self.target = Some(if c == '>' {
            let to_stream = self.take('&');
            self.take('|');
            if to_stream { Target::Nothing } else { Target::Output { appends: is_double } }
        } else if !is_double {
            if self.take('(') || self.take('&') { Target::Nothing } else { Target::Input }
        } else if self.take('<') {
            Target::Nothing
        } else {
            self.take('-');
            Target::Document
        });
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        match self.target.take() {
            None => self.current.words.push(word),
            Some(Target::Output { appends }) => self.current.outputs.push((word, appends)),
            Some(Target::Input) => self.current.inputs.push(word),
            Some(Target::Document) => self.documents.push(word),
            Some(Target::Nothing) => {}
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.target = None;
        let mut current = std::mem::take(&mut self.current);
        if current == Simple::default() || current == (Simple { feeds: true, ..Simple::default() }) {
            return;
        }
        self.is_broken |= self.has_ended;
        current.is_fed = self.commands.last().is_some_and(|before| before.feeds);
        self.commands.push(current);
    }

    /// The documents that begin on this line belong to the last command.
    fn read_documents(&mut self) {
        for end in std::mem::take(&mut self.documents) {
            let mut length = 0;
            let mut document_end = self.rest.len();
            for line in self.rest.split_inclusive('\n') {
                if line.trim() == end {
                    document_end = length;
                    length += line.len();
                    break;
                }
                length += line.len();
            }
            let document = self.rest.get(..document_end).unwrap_or_default();
            if let Some(command) = self.commands.last_mut() {
                command.document.push_str(document);
            }
            self.rest = self.rest.get(length..).unwrap_or_default();
        }
    }
}
