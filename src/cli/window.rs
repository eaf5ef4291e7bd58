//! `turnkeep window`: what a model would be sent, and what takes its room.

use super::compactions::{stall_json, stall_line};
use super::output::{harmless, name, print, print_json, say, table};
use super::{NO_CONTEXT_WINDOW, Remote, resource_name};
use crate::format::{Role, read, texts};
use crate::model::WireFormat;
use crate::rpc::pb;
use clap::Args;
use pb::ItemOrigin;
use serde_json::value::RawValue;

/// Show what a model would be sent now, a line an item: where it comes from, its
/// entries, its tokens and the beginning of its text; and what takes the room
///
/// An item that merges several messages, where the API takes no two in a row, counts
/// with what the service wrote into it.
#[derive(Debug, Args)]
pub(super) struct Window {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// The window of this version; of the newest if not given
    #[arg(long, value_name = "VERSION")]
    at: Option<u64>,
    /// Output tokens to leave room for; the profile's largest output, or a quarter of
    /// its context window if that is less, if not given
    #[arg(long, value_name = "TOKENS")]
    reserve: Option<u64>,
    /// All of the log, also what was left out, and even if it does not fit
    #[arg(long)]
    whole: bool,
}

impl Window {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let compression = if self.whole { pb::CompressionMode::None } else { pb::CompressionMode::Auto };
        let request = pb::RestoreTranscriptRequest {
            session: resource_name(&self.session),
            at_version: self.at,
            reserve_tokens: self.reserve,
            compression: compression.into(),
            ..Default::default()
        };
        let mut window = crate::client::Window::default();
        let header = client.restore(&mut window, request).await?;
        let format = name(header.format().as_str_name(), "WIRE_FORMAT_");
        let format = WireFormat::ALL.into_iter().find(|known| known.as_str() == format);
        let format = format.unwrap_or(WireFormat::Opaque);
        let uses = uses(format, &window.items);
        let room = Room::new(&header, &window.items, &uses);
        if self.remote.json {
            return print_json(&json(&header, &window.items, &uses, &room)?);
        }
        for (item, used) in window.items.iter().zip(&uses) {
            print(&line(format, item, used.role))?;
        }
        print(&format!("\n{}\n{}", room.bar(), room.legend()))?;
        say(&told(&header));
        if let Some(stall) = &header.stall {
            say(&stall_line(stall));
        }
        Ok(())
    }
}

/// Columns of a terminal.
const COLUMNS: usize = 80;

/// What a part of the room is used for, with the character that stands for it and its
/// name, in the order of the bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Preamble,
    System,
    Memory,
    Notice,
    FirstUser,
    LastUser,
    OtherUser,
    Steps,
    Free,
    Reserve,
}

impl Use {
    const ALL: [(Self, char, &'static str); 10] = [
        (Self::Preamble, 'P', "preamble"),
        (Self::System, 'S', "system"),
        (Self::Memory, '+', "pins and summary"),
        (Self::Notice, 'N', "notice"),
        (Self::FirstUser, '1', "first user message"),
        (Self::LastUser, 'L', "last user message"),
        (Self::OtherUser, 'U', "other user messages"),
        (Self::Steps, '=', "steps"),
        (Self::Free, '.', "free"),
        (Self::Reserve, '#', "reserve"),
    ];
}

/// Who speaks in an item, and what it is for.
#[derive(Clone, Copy, Debug)]
struct Used {
    role: Role,
    by: Use,
}

/// What the items of a window are for.
fn uses(format: WireFormat, items: &[pb::WindowItem]) -> Vec<Used> {
    let roles: Vec<_> = items.iter().map(|item| read(format, &item.payload).role).collect();
    let is_users = |at: usize| roles.get(at) == Some(&Role::User) && items.get(at).is_some_and(is_of_log);
    let first = (0..items.len()).find(|at| is_users(*at));
    let last = (0..items.len()).rfind(|at| is_users(*at));
    let by = |at: usize, role: Role, origin: ItemOrigin| match (origin, role) {
        (ItemOrigin::Pin | ItemOrigin::Summary, _) => Use::Memory,
        (ItemOrigin::Notice, _) => Use::Notice,
        (_, Role::System) => Use::System,
        (_, Role::User) if Some(at) == first => Use::FirstUser,
        (_, Role::User) if Some(at) == last => Use::LastUser,
        (_, Role::User) => Use::OtherUser,
        (_, Role::Model | Role::Results | Role::Unknown) => Use::Steps,
    };
    let used = roles.iter().zip(items).enumerate();
    used.map(|(at, (role, item))| Used { role: *role, by: by(at, *role, item.origin()) }).collect()
}

fn is_of_log(item: &pb::WindowItem) -> bool {
    matches!(item.origin(), ItemOrigin::Log | ItemOrigin::Snipped)
}

/// An item in a line that fits a terminal.
fn line(format: WireFormat, item: &pb::WindowItem, role: Role) -> String {
    let origin = name(item.origin().as_str_name(), "ITEM_ORIGIN_");
    let line = format!("{origin:<7} {:>11} {:>8}  ", ranges(&item.seqs), item.tokens);
    let who = match role {
        Role::System => "system: ",
        Role::User => "user: ",
        Role::Model => "model: ",
        Role::Results => "result: ",
        Role::Unknown => "",
    };
    let left = COLUMNS.saturating_sub(line.chars().count());
    line + &beginning(&(who.to_owned() + &text(format, &item.payload, left)), left)
}

/// The beginning of what a payload says, and at least so many characters of it if
/// there are so many.
fn text(format: WireFormat, payload: &[u8], characters: usize) -> String {
    let mut said = String::new();
    for text in texts(format, payload) {
        for word in text.content.split_whitespace() {
            if said.chars().count() > characters {
                return said;
            }
            said.push_str(word);
            said.push(' ');
        }
    }
    if said.is_empty() { String::from_utf8_lossy(payload).into_owned() } else { said }
}

/// As much of a text as a line has room for, with nothing that a terminal acts on.
fn beginning(text: &str, characters: usize) -> String {
    let text = harmless(text.trim_end());
    match text.char_indices().nth(characters) {
        None => text,
        Some(_) => text.chars().take(characters.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Seqs, with those that follow each other as a range.
fn ranges(seqs: &[u64]) -> String {
    let runs = seqs.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let runs = runs.filter_map(|run| Some((run.first()?, run.last()?)));
    let ranges =
        runs.map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
    match ranges.collect::<Vec<_>>().join(",") {
        none if none.is_empty() => "-".to_owned(),
        ranges => ranges,
    }
}

/// What takes the room of a context window; free and reserve are nothing if that is
/// not known.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Room {
    tokens: [u64; Use::ALL.len()],
}

impl Room {
    fn new(header: &pb::WindowHeader, items: &[pb::WindowItem], uses: &[Used]) -> Self {
        let context = header.profile.as_ref().map_or(0, |profile| profile.context_window_tokens);
        let preamble = header.preamble.as_ref().map_or(0, |preamble| preamble.tokens);
        let of = |wanted: Use| {
            let of_use = items.iter().zip(uses).filter(|(_, used)| used.by == wanted);
            of_use.map(|(item, _)| item.tokens).fold(0, u64::saturating_add)
        };
        // As the provider counts them, which counts the context window and the reserve.
        let reported = |counted: u64| {
            let tokens = u128::from(counted) * u128::from(factor(header)) / 1_000;
            u64::try_from(tokens).unwrap_or(u64::MAX)
        };
        let mut tokens =
            Use::ALL.map(|(by, _, _)| reported(if by == Use::Preamble { preamble } else { of(by) }));
        let filled = tokens.iter().copied().fold(0, u64::saturating_add);
        let reserve = if context == 0 { 0 } else { header.reserve_tokens };
        for (tokens, (by, _, _)) in tokens.iter_mut().zip(Use::ALL) {
            match by {
                Use::Free => *tokens = context.saturating_sub(filled).saturating_sub(reserve),
                Use::Reserve => *tokens = reserve,
                _ => {}
            }
        }
        Self { tokens }
    }

    fn total(&self) -> u64 {
        self.tokens.iter().copied().fold(0, u64::saturating_add)
    }

    /// A bar as wide as a terminal.
    fn bar(&self) -> String {
        let widths = shares(&self.tokens, COLUMNS - 2);
        let filled = Use::ALL.iter().zip(widths);
        let filled: String =
            filled.map(|((_, character, _), width)| character.to_string().repeat(width)).collect();
        format!("[{filled}]")
    }

    /// What its characters stand for.
    fn legend(&self) -> String {
        let total = self.total().max(1);
        let taken = Use::ALL.iter().zip(self.tokens).filter(|(_, tokens)| *tokens > 0);
        let row = |label: String, tokens: u64| {
            let tenths = u128::from(tokens) * 1_000 / u128::from(total);
            vec![label, tokens.to_string(), format!("{}.{} %", tenths / 10, tenths % 10)]
        };
        let mut rows: Vec<_> =
            taken.map(|((_, character, name), tokens)| row(format!("{character} {name}"), tokens)).collect();
        rows.push(row("  together".to_owned(), self.total()));
        table(&rows)
    }
}

/// How many of `width` characters each number gets: its share, and one at least if it
/// is not 0.
fn shares(numbers: &[u64], width: usize) -> Vec<usize> {
    let total: u128 = numbers.iter().map(|number| u128::from(*number)).sum();
    let share = |number: u64| {
        let whole = u128::from(number) * width as u128 / total.max(1);
        usize::try_from(whole).unwrap_or(width).max(usize::from(number > 0))
    };
    let mut shares: Vec<_> = numbers.iter().map(|number| share(*number)).collect();
    // What is over or missing, the widest gives or gets.
    let taken: usize = shares.iter().sum();
    if let Some(widest) = shares.iter_mut().max().filter(|widest| **widest > 0) {
        *widest = (*widest + width).saturating_sub(taken);
    }
    shares
}

/// Thousandths of a token of the provider that a counted one is.
fn factor(header: &pb::WindowHeader) -> u64 {
    // A service that knows of none says nothing.
    if header.token_factor_permille == 0 { 1_000 } else { header.token_factor_permille }
}

/// The window in a sentence.
fn told(header: &pb::WindowHeader) -> String {
    let cut = header.cut.as_ref().map_or_else(String::new, |cut| {
        let why = if cut.for_this_request { ", for this request alone" } else { "" };
        format!(
            ", shown from entry {}: {} messages of {} tokens are left out{why}",
            cut.first_kept_seq, cut.omitted_entries, cut.omitted_tokens
        )
    });
    let factor = match factor(header) {
        1_000 => String::new(),
        permille => {
            format!(", which the provider counts as {}.{:03} each", permille / 1_000, permille % 1_000)
        }
    };
    let estimated = if header.tokens_estimated { ", estimated" } else { "" };
    let fits = header.fits.map_or(NO_CONTEXT_WINDOW, |fits| if fits { "yes" } else { "no" });
    format!(
        "version {}, {} items, {} tokens of {} in the log{estimated}{factor}{cut}, fits: {fits}, next: {}",
        header.version,
        header.item_count,
        header.tokens_after,
        header.tokens_before,
        name(header.next().as_str_name(), "NEXT_STEP_"),
    )
}

#[derive(serde::Serialize)]
struct ItemJson<'a> {
    origin: String,
    r#use: &'static str,
    seqs: &'a [u64],
    tokens: u64,
    payload: &'a RawValue,
}

#[derive(serde::Serialize)]
struct WindowJson<'a> {
    version: u64,
    window_id: &'a str,
    format: String,
    items: Vec<ItemJson<'a>>,
    room: serde_json::Value,
    cut: Option<serde_json::Value>,
    stall: Option<serde_json::Value>,
    fits: Option<bool>,
    token_factor_permille: u64,
    next: String,
}

fn json<'a>(
    header: &'a pb::WindowHeader,
    items: &'a [pb::WindowItem],
    uses: &[Used],
    room: &Room,
) -> anyhow::Result<WindowJson<'a>> {
    let key = |by: Use| Use::ALL.iter().find(|(known, _, _)| *known == by).map_or("", |(_, _, name)| *name);
    let items = items.iter().zip(uses).map(|(item, used)| {
        Ok(ItemJson {
            origin: name(item.origin().as_str_name(), "ITEM_ORIGIN_"),
            r#use: key(used.by),
            seqs: &item.seqs,
            tokens: item.tokens,
            payload: serde_json::from_slice(&item.payload)?,
        })
    });
    let named = Use::ALL.iter().zip(room.tokens);
    Ok(WindowJson {
        version: header.version,
        window_id: &header.window_id,
        format: name(header.format().as_str_name(), "WIRE_FORMAT_"),
        items: items.collect::<anyhow::Result<_>>()?,
        room: named
            .map(|((_, _, name), tokens)| ((*name).to_owned(), serde_json::Value::from(tokens)))
            .collect(),
        cut: header.cut.as_ref().map(cut_json),
        stall: header.stall.as_ref().map(stall_json),
        fits: header.fits,
        token_factor_permille: factor(header),
        next: name(header.next().as_str_name(), "NEXT_STEP_"),
    })
}

/// What a window leaves out, as JSON.
pub(super) fn cut_json(cut: &pb::WindowCut) -> serde_json::Value {
    serde_json::json!({
        "compaction": cut.compaction,
        "first_kept_seq": cut.first_kept_seq,
        "omitted_entries": cut.omitted_entries,
        "omitted_tokens": cut.omitted_tokens,
        "for_this_request": cut.for_this_request,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fill_the_width_and_show_what_is_little() {
        assert_eq!(shares(&[1, 0, 999_999], 78), [1, 0, 77]);
        assert_eq!(shares(&[1, 1], 78), [39, 39]);
        assert_eq!(shares(&[1, 1, 1], 10), [3, 3, 4]);
        assert_eq!(shares(&[1, 1, 1, 1, 1, 100], 6), [1, 1, 1, 1, 1, 1]);
        assert_eq!(shares(&[u64::MAX; 4], 8), [2; 4]);
        assert_eq!(shares(&[0, 0], 78), [0, 0]);
    }

    #[test]
    fn seqs_are_ranges() {
        assert_eq!(ranges(&[3, 5, 6, 7, 9]), "3,5-7,9");
        assert_eq!(ranges(&[]), "-");
    }

    #[test]
    fn a_line_fits_a_terminal() {
        let payload = serde_json::json!({"role": "user", "content": "a\u{1b}b\n".repeat(200)}).to_string();
        let item = pb::WindowItem {
            payload: payload.into(),
            origin: ItemOrigin::Log.into(),
            seqs: vec![12],
            tokens: 345,
        };
        let shown = line(WireFormat::OpenaiChat, &item, Role::User);
        assert!(shown.starts_with("log              12      345  user: a\\u{1b}b a\\u{1b}b"), "{shown}");
        assert_eq!(shown.chars().count(), COLUMNS);
    }
}
