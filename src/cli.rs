//! The command line: one verb a file.
//!
//! What can be piped goes to standard output, everything else to standard
//! error.

mod audit;
mod compact;
mod compactions;
mod episode;
mod fsck;
mod import;
mod memory;
mod migrate;
mod models;
mod note;
mod output;
mod pin;
mod replay;
mod serve;
mod session;
mod tool_output;
mod transcript;
mod window;

use crate::client::ClientError;
use crate::rpc::pb;
use crate::settings::Settings;
use crate::tokens::catalogue;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// A durable session service for tool-calling LLM agents.
#[derive(Debug, Parser)]
#[command(name = "turnkeep", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service
    Serve(serve::Serve),
    /// Bring the schema of the metadata store up to date
    Migrate(migrate::Migrate),
    /// Check the metadata against the blobs, or rebuild it from them
    Fsck(fsck::Fsck),
    /// List, show, change, fork, continue, rewind and delete sessions
    #[command(subcommand)]
    Session(session::Session),
    /// Show, search, export, import and follow transcripts
    #[command(subcommand)]
    Transcript(transcript::Transcript),
    /// Show what a model would be sent now, and what takes the room
    Window(window::Window),
    /// Leave the oldest steps out of a session's windows now
    Compact(compact::Compact),
    /// List, show and undo what was left out of a session's windows
    #[command(subcommand)]
    Compactions(compactions::Compactions),
    /// Say what each compaction of a session kept and lost, and what it cost
    Audit(audit::Audit),
    /// List, put and delete texts that every window of a session shows
    #[command(subcommand)]
    Pin(pin::Pin),
    /// List, read, put and delete the notes of a session
    #[command(subcommand)]
    Note(note::Note),
    /// List and show the summaries of what left a session's windows
    #[command(subcommand)]
    Episode(episode::Episode),
    /// Write what is remembered of a session as Markdown
    #[command(subcommand)]
    Memory(memory::Memory),
    /// List the models that the service knows
    Models(models::Models),
    /// List, show, search and download tool outputs
    #[command(subcommand)]
    Output(tool_output::ToolOutput),
    /// Play transcripts turn by turn against a service, and measure it
    Replay(replay::Replay),
}

/// Where the settings come from.
#[derive(Debug, Args)]
struct SettingsArgs {
    /// TOML file with settings
    #[arg(long, value_name = "FILE", env = "TURNKEEP_CONFIG")]
    config: Option<PathBuf>,
    /// A setting, such as server.listen=127.0.0.1:50051; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl SettingsArgs {
    fn load(&self) -> anyhow::Result<Settings> {
        // Variables that are not UTF-8 are none of ours.
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Ok(Settings::load(self.config.as_deref(), variables, &self.set)?)
    }
}

/// How to reach the service and what to print.
#[derive(Debug, Args)]
struct Remote {
    /// Address of the service, `http://HOST:PORT` or `HOST:PORT`
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "TURNKEEP_ADDRESS",
        default_value = "http://127.0.0.1:50051"
    )]
    address: String,
    /// Print JSON, one value a line
    #[arg(long, global = true)]
    json: bool,
}

impl Remote {
    async fn connect(&self) -> anyhow::Result<crate::client::Client> {
        let is_url = self.address.contains("://");
        let address = if is_url { self.address.clone() } else { format!("http://{}", self.address) };
        Ok(crate::client::Client::connect(&address).await?)
    }
}

/// The limits of the model that reads a session's windows.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model profile")]
struct ProfileArgs {
    /// A profile of the service's settings
    #[arg(long, value_name = "NAME", conflicts_with_all = ["model", "context_window", "max_output", "tokenizer", "image_bytes", "image_pixels", "document_bytes", "images", "documents"])]
    profile: Option<String>,
    /// Name of the model; what `turnkeep models` knows of it holds where nothing is given
    #[arg(long)]
    model: Option<String>,
    /// Tokens that the model takes, input and output together
    #[arg(long, value_name = "TOKENS")]
    context_window: Option<u64>,
    /// Its largest output
    #[arg(long, value_name = "TOKENS")]
    max_output: Option<u64>,
    /// How tokens are counted: o200k, cl100k or estimate
    #[arg(long, value_parser = parse_tokenizer)]
    tokenizer: Option<pb::Tokenizer>,
    /// Bytes of an inline picture that its API takes; 0 for the format's default
    #[arg(long, value_name = "BYTES")]
    image_bytes: Option<u64>,
    /// Pixels of a picture's longer edge that its API takes
    #[arg(long, value_name = "PIXELS")]
    image_pixels: Option<u64>,
    /// Bytes of an inline document that its API takes
    #[arg(long, value_name = "BYTES")]
    document_bytes: Option<u64>,
    /// Whether it takes pictures at all
    #[arg(long, value_name = "true|false")]
    images: Option<bool>,
    /// Whether it takes documents at all
    #[arg(long, value_name = "true|false")]
    documents: Option<bool>,
}

fn parse_tokenizer(name: &str) -> Result<pb::Tokenizer, String> {
    let full = format!("TOKENIZER_{}", name.to_ascii_uppercase());
    pb::Tokenizer::from_str_name(&full)
        .filter(|tokenizer| *tokenizer != pb::Tokenizer::Unspecified)
        .ok_or_else(|| "must be o200k, cl100k or estimate".to_owned())
}

impl ProfileArgs {
    /// A profile with what was typed; none if nothing was.
    fn change(&self, current: &pb::ModelProfile) -> Option<pb::ModelProfile> {
        if let Some(model) = self.profile.clone() {
            return Some(pb::ModelProfile { model, ..Default::default() });
        }
        // The limits of another model are its own, where they are known.
        let is_other = |model: &String| *model != current.model && catalogue::find(model).is_some();
        let kept = match &self.model {
            Some(model) if is_other(model) => pb::ModelProfile {
                model: model.clone(),
                tool_result_limit: current.tool_result_limit,
                ..Default::default()
            },
            Some(model) => pb::ModelProfile { model: model.clone(), ..current.clone() },
            None => current.clone(),
        };
        let changed = pb::ModelProfile {
            context_window_tokens: self.context_window.unwrap_or(kept.context_window_tokens),
            max_output_tokens: self.max_output.unwrap_or(kept.max_output_tokens),
            tokenizer: self.tokenizer.map_or(kept.tokenizer, i32::from),
            media_limits: self.media_limits(kept.media_limits),
            ..kept
        };
        (changed != *current).then_some(changed)
    }

    fn media_limits(&self, current: Option<pb::MediaLimits>) -> Option<pb::MediaLimits> {
        let before = current.unwrap_or_default();
        let changed = pb::MediaLimits {
            image_bytes: self.image_bytes.unwrap_or(before.image_bytes),
            image_pixels: self.image_pixels.unwrap_or(before.image_pixels),
            document_bytes: self.document_bytes.unwrap_or(before.document_bytes),
            images: self.images.or(before.images),
            documents: self.documents.or(before.documents),
        };
        if changed == before { current } else { Some(changed) }
    }

    /// The profile of a new session.
    fn of_new(&self) -> Option<pb::ModelProfile> {
        self.change(&pb::ModelProfile::default())
    }
}

impl Cli {
    /// Does what the command line says.
    pub async fn run(self) -> anyhow::Result<()> {
        let done = match self.command {
            Command::Serve(serve) => serve.run().await,
            Command::Migrate(migrate) => migrate.run().await,
            Command::Fsck(fsck) => fsck.run().await,
            Command::Session(session) => session.run().await,
            Command::Transcript(transcript) => transcript.run().await,
            Command::Window(window) => window.run().await,
            Command::Compact(compact) => compact.run().await,
            Command::Compactions(compactions) => compactions.run().await,
            Command::Audit(audit) => audit.run().await,
            Command::Pin(pin) => pin.run().await,
            Command::Note(note) => note.run().await,
            Command::Episode(episode) => episode.run().await,
            Command::Memory(memory) => memory.run().await,
            Command::Models(models) => models.run(),
            Command::Output(output) => output.run().await,
            Command::Replay(replay) => replay.run().await,
        };
        // A refusal of the service is told with its reason.
        done.map_err(|error| match error.downcast::<tonic::Status>() {
            Ok(status) => ClientError::from(status).into(),
            Err(error) => error,
        })
    }
}

/// Whether a window fits if the session's profile has no context window.
const NO_CONTEXT_WINDOW: &str = "unknown (no context window: see `turnkeep session update --help`)";

/// A session's resource name from what a person types: `sessions/x` or `x`.
fn resource_name(typed: &str) -> String {
    if typed.starts_with("sessions/") { typed.to_owned() } else { format!("sessions/{typed}") }
}
