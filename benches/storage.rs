//! What recorded transcripts take in the object store once they are sealed.
//!
//! `TURNKEEP_TRANSCRIPTS=directory cargo bench --bench storage`
//!
//! Beside it, each session's payloads as one zstd frame: what the same
//! compression makes of the same bytes if nobody wants to read a part of them.

#[path = "support/blobs.rs"]
mod blobs;
#[path = "support/figures.rs"]
mod figures;
#[path = "support/in_process.rs"]
mod in_process;
#[path = "support/process.rs"]
mod process;
#[path = "support/service.rs"]
mod service;

use figures::{print_table, row};
use in_process::InProcess;
use service::{Backend, Stores};
use std::fs;
use std::path::{Path, PathBuf};
use turnkeep::client::Client;
use turnkeep::rpc::pb;
use turnkeep::rpc::pb::read_transcript_response::Part;

/// zstd's own default level.
const LEVEL: i32 = 3;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let transcripts = std::env::var_os("TURNKEEP_TRANSCRIPTS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/transcripts"), PathBuf::from);
    let mut groups: Vec<_> =
        fs::read_dir(&transcripts)?.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<_>>()?;
    groups.retain(|group| group.is_dir());
    groups.sort();
    let header = [
        "transcripts",
        "sessions",
        "payloads",
        "segments",
        "all objects",
        "all ÷ payloads",
        "one frame ÷ payloads",
    ];
    let mut rows = vec![row(header)];
    let mut total = Measured::default();
    for group in groups {
        let measured = measure(&group).await?;
        rows.push(measured.row(&group.file_name().unwrap_or_default().to_string_lossy()));
        total.add(&measured);
    }
    rows.push(total.row("all"));
    print_table("bytes of recorded transcripts, replayed and sealed", &rows);
    Ok(())
}

#[derive(Debug, Default)]
struct Measured {
    sessions: u64,
    payload_bytes: u64,
    /// Bytes of all payloads of a session as one frame.
    frame_bytes: u64,
    segment_bytes: u64,
    object_bytes: u64,
}

impl Measured {
    fn add(&mut self, other: &Self) {
        self.sessions += other.sessions;
        self.payload_bytes += other.payload_bytes;
        self.frame_bytes += other.frame_bytes;
        self.segment_bytes += other.segment_bytes;
        self.object_bytes += other.object_bytes;
    }

    fn row(&self, name: &str) -> Vec<String> {
        let kib = |bytes: u64| format!("{} KiB", bytes.div_ceil(1024));
        #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more digits")]
        let ratio = |bytes: u64| format!("{:.3}", bytes as f64 / self.payload_bytes as f64);
        vec![
            name.to_owned(),
            self.sessions.to_string(),
            kib(self.payload_bytes),
            kib(self.segment_bytes),
            kib(self.object_bytes),
            ratio(self.object_bytes),
            ratio(self.frame_bytes),
        ]
    }
}

/// Replays the files of a directory into an empty service and seals them.
async fn measure(group: &Path) -> anyhow::Result<Measured> {
    let stores = Stores::new(Backend::Embedded).await?;
    let service = InProcess::start(&stores).await?;
    let replay = service::turnkeep()
        .args(["replay", "--keep", "--address", &service.address()])
        .args(files(group)?)
        .output()?;
    anyhow::ensure!(replay.status.success(), "{}", String::from_utf8_lossy(&replay.stderr));
    service.settle().await?;
    let mut measured = Measured::default();
    (measured.object_bytes, measured.segment_bytes) = service.blobs.bytes().await?;
    let mut client = service.client().await?;
    for session in sessions(&mut client).await? {
        let payloads = payloads(&mut client, session).await?;
        measured.sessions += 1;
        measured.payload_bytes += payloads.len() as u64;
        measured.frame_bytes += zstd::bulk::compress(&payloads, LEVEL)?.len() as u64;
    }
    service.stop().await;
    Ok(measured)
}

/// All files below a directory but those that are about the others.
fn files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if path.extension().is_none_or(|extension| extension != "md") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Names of all sessions.
async fn sessions(client: &mut Client) -> anyhow::Result<Vec<String>> {
    let (mut names, mut request) = (Vec::new(), pb::ListSessionsRequest::default());
    loop {
        let page = client.sessions.list_sessions(request.clone()).await?.into_inner();
        names.extend(page.sessions.into_iter().map(|session| session.name));
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok(names);
        }
    }
}

/// All payloads of a session, one after the other.
async fn payloads(client: &mut Client, session: String) -> anyhow::Result<Vec<u8>> {
    let request = pb::ReadTranscriptRequest { session, ..Default::default() };
    let mut parts = client.transcripts.read_transcript(request).await?.into_inner();
    let mut payloads = Vec::new();
    while let Some(message) = parts.message().await? {
        if let Some(Part::Entries(entries)) = message.part {
            payloads.extend(entries.entries.iter().flat_map(|entry| entry.payload.iter()));
        }
    }
    Ok(payloads)
}
