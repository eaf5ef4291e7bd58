//! A service with our messages that does nothing: it keeps what it is sent in
//! memory and gives it back. What a call of it takes, gRPC and the loopback
//! take.

#![allow(dead_code, reason = "each benchmark uses its part of it")]

use anyhow::Context as _;
use futures::stream::{self, Stream, StreamExt as _};
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use turnkeep::limits::REQUEST_BYTES_MAX;
use turnkeep::rpc::pb;
use turnkeep::rpc::pb::transcript_service_server::{TranscriptService, TranscriptServiceServer};

/// Bytes of a message of a stream, as in the service.
const CHUNK_BYTES: usize = turnkeep::limits::STREAM_CHUNK_BYTES;

#[derive(Debug, Default)]
struct Echo {
    /// What each session was sent, turn by turn.
    sessions: Mutex<HashMap<String, Vec<Vec<pb::NewEntry>>>>,
}

/// As long as the service's.
fn window_id() -> String {
    "w".repeat(142)
}

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl TranscriptService for Echo {
    /// Answers with as many bytes as the service does.
    async fn persist_transcript(
        &self,
        request: Request<pb::PersistTranscriptRequest>,
    ) -> Result<Response<pb::PersistTranscriptResponse>, Status> {
        use pb::persist_transcript_request::{Append, Input};
        let request = request.into_inner();
        if let Some(Input::Append(Append { entries })) = request.input {
            let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            let turns = sessions.entry(request.session).or_default();
            // A measured session does not fill the memory.
            if request.create_if_missing.is_none() {
                turns.clear();
            }
            turns.push(entries);
        }
        Ok(Response::new(pb::PersistTranscriptResponse {
            version: 1_000,
            receipt: vec![7; 32].into(),
            first_seq: 2_000,
            last_seq: 2_001,
            turn_tokens: 3_000,
            log_tokens: 300_000,
            window_id: window_id(),
            ..Default::default()
        }))
    }

    type RestoreTranscriptStream = Messages<pb::RestoreTranscriptResponse>;

    /// A header and all entries of the session, or those of its last turn if a
    /// known window is named.
    async fn restore_transcript(
        &self,
        request: Request<pb::RestoreTranscriptRequest>,
    ) -> Result<Response<Self::RestoreTranscriptStream>, Status> {
        use pb::restore_transcript_response::Part;
        use pb::window_change::Change;
        let request = request.into_inner();
        let turns = {
            let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.get(&request.session).cloned().unwrap_or_default()
        };
        let kept_turns = if request.known_window.is_empty() { 0 } else { turns.len().saturating_sub(1) };
        let base_items = turns.iter().take(kept_turns).flatten().count() as u64;
        let item_count = turns.iter().flatten().count() as u64;
        let items = turns.into_iter().skip(kept_turns).flatten().map(|entry| pb::WindowItem {
            payload: entry.payload,
            origin: pb::ItemOrigin::Log.into(),
            seqs: vec![2_000],
            tokens: 1_000,
        });
        let change = match kept_turns {
            0 => Change::Full(pb::window_change::Full::default()),
            _ => Change::Delta(pb::window_change::Delta { base_items }),
        };
        let header = pb::WindowHeader {
            version: 1_000,
            window_id: window_id(),
            change: Some(pb::WindowChange { change: Some(change) }),
            item_count,
            stable_prefix_items: item_count,
            tokens_before: 300_000,
            tokens_after: 300_000,
            profile: Some(pb::ModelProfile::default()),
            ..Default::default()
        };
        let mut messages = vec![Part::Header(header)];
        let mut chunk = pb::WindowItems::default();
        let mut bytes = 0;
        for item in items {
            if bytes + item.payload.len() > CHUNK_BYTES {
                messages.push(Part::Items(std::mem::take(&mut chunk)));
                bytes = 0;
            }
            bytes += item.payload.len();
            chunk.items.push(item);
        }
        messages.push(Part::Items(chunk));
        let messages =
            messages.into_iter().map(|part| Ok(pb::RestoreTranscriptResponse { part: Some(part) }));
        Ok(Response::new(stream::iter(messages).boxed()))
    }

    type ReadTranscriptStream = Messages<pb::ReadTranscriptResponse>;

    async fn read_transcript(
        &self,
        _: Request<pb::ReadTranscriptRequest>,
    ) -> Result<Response<Self::ReadTranscriptStream>, Status> {
        Err(Status::unimplemented("the echo has no log"))
    }

    type SearchTranscriptStream = Messages<pb::SearchTranscriptResponse>;

    async fn search_transcript(
        &self,
        _: Request<pb::SearchTranscriptRequest>,
    ) -> Result<Response<Self::SearchTranscriptStream>, Status> {
        Err(Status::unimplemented("the echo has no log"))
    }

    async fn compact_transcript(
        &self,
        _: Request<pb::CompactTranscriptRequest>,
    ) -> Result<Response<pb::CompactTranscriptResponse>, Status> {
        Err(Status::unimplemented("not measured"))
    }

    async fn plan_compaction(
        &self,
        _: Request<pb::PlanCompactionRequest>,
    ) -> Result<Response<pb::PlanCompactionResponse>, Status> {
        Err(Status::unimplemented("not measured"))
    }

    async fn commit_compaction(
        &self,
        _: Request<pb::CommitCompactionRequest>,
    ) -> Result<Response<pb::Compaction>, Status> {
        Err(Status::unimplemented("not measured"))
    }

    async fn list_compactions(
        &self,
        _: Request<pb::ListCompactionsRequest>,
    ) -> Result<Response<pb::ListCompactionsResponse>, Status> {
        Err(Status::unimplemented("not measured"))
    }

    async fn get_compaction(
        &self,
        _: Request<pb::GetCompactionRequest>,
    ) -> Result<Response<pb::Compaction>, Status> {
        Err(Status::unimplemented("not measured"))
    }

    async fn undo_compaction(
        &self,
        _: Request<pb::UndoCompactionRequest>,
    ) -> Result<Response<pb::Compaction>, Status> {
        Err(Status::unimplemented("not measured"))
    }
}

/// Serves on a free port for as long as the process lives.
pub(crate) async fn serve() -> anyhow::Result<String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = format!("http://{}", listener.local_addr()?);
    let service = TranscriptServiceServer::new(Echo::default())
        .max_decoding_message_size(REQUEST_BYTES_MAX)
        .max_encoding_message_size(2 * REQUEST_BYTES_MAX);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    Ok(address)
}

/// An argument that makes a benchmark's process an echo.
const ROLE: &str = "serve-echo";

/// Whether this process is to be an echo.
pub(crate) fn is_role() -> bool {
    std::env::args().nth(1).is_some_and(|argument| argument == ROLE)
}

/// What a process does that is to be an echo: serves until its parent closes
/// its standard input.
#[expect(clippy::print_stdout, reason = "the parent reads the address")]
pub(crate) async fn play_role() -> anyhow::Result<()> {
    println!("{}", serve().await?);
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())).await??;
    Ok(())
}

/// An echo in a process of its own, as the service is; it ends with this value.
#[derive(Debug)]
pub(crate) struct EchoProcess {
    process: Child,
    pub(crate) address: String,
}

impl EchoProcess {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let command = &mut Command::new(std::env::current_exe()?);
        let mut process = command.arg(ROLE).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut address = String::new();
        let said = process.stdout.take().context("standard output is piped")?;
        BufReader::new(said).read_line(&mut address)?;
        Ok(Self { process, address: address.trim().to_owned() })
    }
}

impl Drop for EchoProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
