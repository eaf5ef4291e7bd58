//! `turnkeep session`.

use super::output::{
    Listing, bytes, harmless, hex, name, paged, print, print_json, progress, say, session_json, table, time,
};
use super::{ProfileArgs, Remote, resource_name};
use crate::client::Client;
use crate::clock;
use crate::rpc::pb;
use clap::{Args, Subcommand};
use std::collections::HashMap;
use std::time::Duration;

/// List, show, change, fork, continue, rewind and delete sessions.
#[derive(Debug, Subcommand)]
pub(super) enum Session {
    /// List sessions, the newest first
    List(List),
    /// Show a session and its newest turns
    Show(Show),
    /// Change a session's labels, model profile, compression path or pinning
    Update(Update),
    /// Create a session whose log begins with another's
    Fork(Fork),
    /// Create a session with an empty log, and the pins and notes of another
    Continue(Continue),
    /// Take a session back to an earlier version
    Rewind(Rewind),
    /// Delete a session
    Delete(Delete),
}

impl Session {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::List(list) => list.run().await,
            Self::Show(show) => show.run().await,
            Self::Update(update) => update.run().await,
            Self::Fork(fork) => fork.run().await,
            Self::Continue(continued) => continued.run().await,
            Self::Rewind(rewind) => rewind.run().await,
            Self::Delete(delete) => delete.run().await,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct List {
    #[command(flatten)]
    remote: Remote,
    /// Only sessions with this label; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// At most so many; all if 0
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Where an earlier list ended
    #[arg(long, value_name = "TOKEN", default_value = "")]
    page_token: String,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl List {
    async fn run(self) -> anyhow::Result<()> {
        const PAGE: usize = 1_000;
        let mut client = self.remote.connect().await?;
        let filter = pb::SessionFilter { labels: self.labels.into_iter().collect(), ..Default::default() };
        let page = async |page_size, page_token| {
            let request = pb::ListSessionsRequest { page_size, page_token, filter: Some(filter.clone()) };
            let page = client.sessions.list_sessions(request).await?.into_inner();
            Ok((page.sessions, page.next_page_token))
        };
        let columns = ["session", "format", "version", "entries", "tokens", "changed"];
        let mut list = Listing::new(&self.remote, &columns);
        let next = paged(self.limit, PAGE, self.page_token, page, |session| {
            list.add(&session, session_json, |session| {
                vec![
                    session.name.trim_start_matches("sessions/").to_owned(),
                    name(session.format().as_str_name(), "WIRE_FORMAT_"),
                    session.version.to_string(),
                    session.head_seq.to_string(),
                    session.log_tokens.to_string(),
                    time(session.update_time.as_ref()),
                ]
            })
        });
        let next = next.await?;
        list.end()?;
        if !next.is_empty() {
            say(&format!("there are more: --page-token {next}"));
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// How many of the newest turns to show
    #[arg(long, default_value_t = 10)]
    turns: u16,
}

impl Show {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let session_name = resource_name(&self.session);
        let session = client
            .sessions
            .get_session(pb::GetSessionRequest { name: session_name.clone() })
            .await?
            .into_inner();
        let turns = newest_turns(&mut client, &session_name, self.turns).await?;
        if self.remote.json {
            let mut json = session_json(&session);
            json["turns"] = turns.iter().map(turn_json).collect();
            return print_json(&json);
        }
        print_configuration(&self.remote, &session)?;
        let mut rows = vec![
            ["version", "kind", "entries", "tokens", "bytes", "time", "request"].map(str::to_owned).to_vec(),
        ];
        rows.extend(turns.iter().map(|turn| {
            vec![
                turn.version.to_string(),
                name(turn.kind().as_str_name(), "TURN_KIND_"),
                (turn.last_seq + 1 - turn.first_seq).to_string(),
                turn.tokens.to_string(),
                bytes(turn.payload_bytes),
                time(turn.create_time.as_ref()),
                shortened(&turn.request_id),
            ]
        }));
        print("")?;
        print(&table(&rows))
    }
}

/// A request id in a table, which long ones would make too wide for a terminal.
fn shortened(id: &str) -> String {
    const CHARS: usize = 32;
    match id.char_indices().nth(CHARS) {
        None => id.to_owned(),
        Some((end, _)) => id.get(..end).unwrap_or(id).to_owned() + "…",
    }
}

async fn newest_turns(client: &mut Client, session: &str, limit: u16) -> anyhow::Result<Vec<pb::Turn>> {
    const PAGE: usize = 1_000;
    let mut turns = Vec::new();
    if limit > 0 {
        let page = async |page_size, page_token| {
            let request = pb::ListTurnsRequest { name: session.to_owned(), page_size, page_token };
            let page = client.sessions.list_turns(request).await?.into_inner();
            Ok((page.turns, page.next_page_token))
        };
        let each = |turn| {
            turns.push(turn);
            Ok(())
        };
        paged(limit.into(), PAGE, String::new(), page, each).await?;
    }
    Ok(turns)
}

fn turn_json(turn: &pb::Turn) -> serde_json::Value {
    serde_json::json!({
        "version": turn.version,
        "kind": name(turn.kind().as_str_name(), "TURN_KIND_"),
        "base_version": turn.base_version,
        "first_seq": turn.first_seq,
        "last_seq": turn.last_seq,
        "request_id": turn.request_id,
        "receipt": hex(&turn.receipt),
        "tokens": turn.tokens,
        "payload_bytes": turn.payload_bytes,
        "create_time": time(turn.create_time.as_ref()),
        "score": turn.score,
        "step_kind": turn.step_kind,
    })
}

/// Change a session's labels, model profile, compression path or pinning; what is
/// not given stays as it is.
#[derive(Debug, Args)]
pub(super) struct Update {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// A label to set; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// A label to remove; may be repeated
    #[arg(long = "remove-label", value_name = "KEY")]
    removed_labels: Vec<String>,
    /// The compression path: interactive, batch or automated
    #[arg(long, value_parser = parse_path)]
    path: Option<pb::CompressionPath>,
    /// Whether statements that leave windows are pinned; `default` for as the service does
    #[arg(long, value_name = "true|false|default", value_parser = parse_setting)]
    pin_statements: Option<Setting>,
    #[command(flatten)]
    profile: ProfileArgs,
}

/// A yes or no of a session, or the service's.
#[derive(Clone, Copy, Debug)]
struct Setting(Option<bool>);

fn parse_setting(typed: &str) -> Result<Setting, String> {
    match typed {
        "default" => Ok(Setting(None)),
        other => other
            .parse()
            .map(|value| Setting(Some(value)))
            .map_err(|_| "must be true, false or default".to_owned()),
    }
}

pub(super) fn parse_path(name: &str) -> Result<pb::CompressionPath, String> {
    let full = format!("COMPRESSION_PATH_{}", name.to_ascii_uppercase());
    pb::CompressionPath::from_str_name(&full)
        .filter(|path| *path != pb::CompressionPath::Unspecified)
        .ok_or_else(|| "must be interactive, batch or automated".to_owned())
}

impl Update {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let request = pb::GetSessionRequest { name: resource_name(&self.session) };
        // Its etag goes back with the change, so that no other change is undone.
        let mut session = client.sessions.get_session(request).await?.into_inner();
        let mut paths = Vec::new();
        if !self.labels.is_empty() || !self.removed_labels.is_empty() {
            session.labels.retain(|key, _| !self.removed_labels.contains(key));
            session.labels.extend(self.labels);
            paths.push("labels".to_owned());
        }
        if let Some(path) = self.path {
            session.path = path.into();
            paths.push("path".to_owned());
        }
        if let Some(Setting(pin_statements)) = self.pin_statements {
            session.pin_statements = pin_statements;
            paths.push("pin_statements".to_owned());
        }
        let current = session.profile.clone().unwrap_or_default();
        if let Some(profile) = self.profile.change(&current) {
            session.profile = Some(profile);
            paths.push("profile".to_owned());
        }
        anyhow::ensure!(!paths.is_empty(), "nothing to change: see --help");
        let update_mask = Some(prost_types::FieldMask { paths });
        let request = pb::UpdateSessionRequest { session: Some(session), update_mask };
        let session = client.sessions.update_session(request).await?.into_inner();
        print_configuration(&self.remote, &session)
    }
}

/// All that is known of a session, a field a line.
fn print_configuration(remote: &Remote, session: &pb::Session) -> anyhow::Result<()> {
    let json = session_json(session);
    if remote.json {
        return print_json(&json);
    }
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    for (field, value) in json.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        print(&harmless(&format!("{field:<22} {}", text(value))))?;
    }
    Ok(())
}

#[derive(Debug, Args)]
pub(super) struct Fork {
    #[command(flatten)]
    remote: Remote,
    /// The source session
    session: String,
    /// Id of the new session; minted if not given
    #[arg(long)]
    id: Option<String>,
    /// Version of the source; its newest if not given
    #[arg(long)]
    version: Option<u64>,
    /// A label of the new session; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
}

impl Fork {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let request = pb::ForkSessionRequest {
            name: resource_name(&self.session),
            version: self.version,
            session_id: self.id.unwrap_or_default(),
            labels: self.labels.into_iter().collect::<HashMap<_, _>>(),
            request_id: fresh_request_id(),
        };
        let session = client.sessions.fork_session(request).await?.into_inner();
        print_session(&self.remote, &session)
    }
}

#[derive(Debug, Args)]
pub(super) struct Rewind {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// The version to go back to
    #[arg(long)]
    version: u64,
    /// The version that the session must have
    #[arg(long)]
    expected_version: Option<u64>,
}

impl Rewind {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let request = pb::RewindSessionRequest {
            name: resource_name(&self.session),
            version: self.version,
            expected_version: self.expected_version,
            request_id: fresh_request_id(),
        };
        let session = client.sessions.rewind_session(request).await?.into_inner();
        print_session(&self.remote, &session)
    }
}

#[derive(Debug, Args)]
pub(super) struct Continue {
    #[command(flatten)]
    remote: Remote,
    /// The session whose pins and notes the new one begins with
    source: String,
    /// Id of the new session; minted if not given
    #[arg(default_value = "")]
    new: String,
    /// A label of the new session; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    #[command(flatten)]
    profile: ProfileArgs,
}

impl Continue {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let source = resource_name(&self.source);
        let get = pb::GetSessionRequest { name: source.clone() };
        let old = client.sessions.get_session(get).await?.into_inner();
        let profile = self.profile.change(old.profile.as_ref().unwrap_or(&pb::ModelProfile::default()));
        // Nothing that is given makes a configuration of its own necessary.
        let session = (profile.is_some() || !self.labels.is_empty()).then(|| pb::Session {
            format: old.format,
            path: old.path,
            profile: profile.or(old.profile),
            labels: self.labels.into_iter().collect(),
            strip_rules: old.strip_rules,
            pin_statements: old.pin_statements,
            preamble: old.preamble,
            ..Default::default()
        });
        let request = pb::CreateSessionRequest { session_id: self.new, session, continue_from: source };
        let session = client.sessions.create_session(request).await?.into_inner();
        print_session(&self.remote, &session)
    }
}

fn print_session(remote: &Remote, session: &pb::Session) -> anyhow::Result<()> {
    if remote.json {
        print_json(&session_json(session))
    } else {
        print(&format!("{} version {} entries {}", session.name, session.version, session.head_seq))
    }
}

/// A request id for a call that a person makes once.
pub(super) fn fresh_request_id() -> String {
    crate::entropy::Entropy::of_process().hex::<16>()
}

#[derive(Debug, Args)]
pub(super) struct Delete {
    #[command(flatten)]
    remote: Remote,
    /// The session
    session: String,
    /// Delete its forks as well, and theirs
    #[arg(long)]
    include_forks: bool,
    /// Wait until everything is erased: that takes the service's
    /// `sweep.grace_seconds`, 10 minutes by default, and about one more
    #[arg(long)]
    wait: bool,
}

impl Delete {
    async fn run(self) -> anyhow::Result<()> {
        let mut client = self.remote.connect().await?;
        let session = resource_name(&self.session);
        let request = pb::DeleteSessionRequest { name: session.clone(), include_forks: self.include_forks };
        let mut receipt = client.sessions.delete_session(request).await?.into_inner();
        if self.wait && receipt.state() == pb::DeletionState::Pending {
            say(&format!("unreadable from now on; {} objects are to be erased", receipt.objects_pending));
        }
        let bar = progress(None, "objects to erase");
        while self.wait && receipt.state() == pb::DeletionState::Pending {
            bar.set_position(receipt.objects_pending);
            clock::sleep(Duration::from_secs(1)).await;
            let request = pb::GetDeletionReceiptRequest { name: session.clone() };
            receipt = client.sessions.get_deletion_receipt(request).await?.into_inner();
        }
        bar.finish_and_clear();
        let state = name(receipt.state().as_str_name(), "DELETION_STATE_");
        if self.remote.json {
            return print_json(&serde_json::json!({
                "session": receipt.session,
                "state": state,
                "retained_by": receipt.retained_by,
                "objects_pending": receipt.objects_pending,
                "delete_time": time(receipt.delete_time.as_ref()),
                "erase_time": time(receipt.erase_time.as_ref()),
            }));
        }
        print(&format!("{} {state}, {} objects to erase", receipt.session, receipt.objects_pending))?;
        receipt.retained_by.iter().try_for_each(|fork| print(&format!("retained by {fork}")))
    }
}
