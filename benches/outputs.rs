//! Offloading 1 GiB and reading it back: memory, time against compressing the same
//! bytes alone, and what a read of the middle fetches; and what the same
//! adds to the memory of a server, over a directory and over S3. Then turns
//! with a tool result of 1 MiB, which a persist keeps as an output, against turns with
//! the same bytes that stay in their entry.
//!
//! ```text
//! tests/services/with-services.sh cargo bench --bench outputs -- [MIB]
//! ```
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints and stops at the first failure"
)]

#[path = "support/process.rs"]
mod process;
#[path = "support/service.rs"]
mod service;

use bytes::Bytes;
use futures::{TryStreamExt as _, stream};
use pb::offload_tool_output_request::{Commit, Frame, Start};
use pb::offload_tool_output_response::Outcome;
use pb::persist_transcript_request::{Append, Input as Turn};
use service::{Backend, Service, Stores};
use sha2::{Digest as _, Sha256};
use std::io::Write as _;
use std::sync::Arc;
use turnkeep::client::Client;
use turnkeep::clock::{Stopwatch, SystemClock};
use turnkeep::engine::{
    Engine, Input, NewEntry, OffloadRequest, Offloaded, Options, OutputPart, OutputRange, PageSize,
    PersistRequest, ReadOutput, SessionConfig,
};
use turnkeep::entropy::Entropy;
use turnkeep::model::{
    CompressionPath, Digest, EntryKind, Labels, ModelProfile, RequestId, SessionId, TenantId, WireFormat,
};
use turnkeep::rpc::pb;
use turnkeep::store::MetaStore as _;
use turnkeep::store::faulty::FaultyBlobs;
use turnkeep::store::local::LocalBlobs;
use turnkeep::store::meta::SessionKey;
use turnkeep::store::sql::SqlMetaStore;

/// What a client sends at once.
const PART: usize = 1 << 20;

/// A log of a build: lines of words with numbers that differ.
fn part(index: usize) -> Bytes {
    let mut text = Vec::with_capacity(PART + 200);
    let mut state = index as u64 + 1;
    while text.len() < PART {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (file, line) = (state >> 45, state >> 33 & 0xfff);
        writeln!(
            text,
            "src/module_{file}.rs:{line}: warning: unused variable `value_{:x}` in this scope",
            state >> 20
        )
        .unwrap();
    }
    text.truncate(PART);
    text.into()
}

/// A part, and the seconds that it took to make it.
fn made(index: usize) -> (Bytes, f64) {
    let started = Stopwatch::start();
    (part(index), started.elapsed().as_secs_f64())
}

/// A figure of this process's memory, in KiB.
fn memory(name: &str) -> u64 {
    process::memory_kib(std::process::id(), name).unwrap()
}

async fn read(engine: &Engine, request: ReadOutput) -> (u64, f64) {
    let started = Stopwatch::start();
    let (_, parts) = engine.read_output(request).await.unwrap();
    let bytes = parts
        .try_fold(0, |bytes, part| {
            let more = match part {
                OutputPart::Piece(piece) => piece.bytes.len() as u64,
                OutputPart::End(_) => 0,
            };
            futures::future::ready(Ok(bytes + more))
        })
        .await
        .unwrap();
    (bytes, started.elapsed().as_secs_f64())
}

/// Offloads so many parts through gRPC; returns the name of the output.
async fn offload(client: &mut Client, parts: usize) -> String {
    let mut sha256 = Sha256::new();
    (0..parts).for_each(|i| sha256.update(part(i)));
    let commit = Commit { bytes: (parts * PART) as u64, sha256: sha256.finalize().to_vec().into() };
    let start = Start { session: "sessions/s".to_owned(), ..Default::default() };
    // A part is made when it is sent.
    let data = (0..parts).map(|i| Frame::Data(part(i)));
    let frames = std::iter::once(Frame::Start(start)).chain(data).chain([Frame::Commit(commit)]);
    let frames = frames.map(|frame| pb::OffloadToolOutputRequest { frame: Some(frame) });
    let answer = client.outputs.offload_tool_output(stream::iter(frames)).await.unwrap().into_inner();
    let Some(Outcome::Stored(stored)) = answer.outcome else { panic!("inline") };
    stored.output.unwrap().name
}

/// What an offload and a download add to the memory of a server at most.
async fn measure_server(backend: Backend, parts: usize) {
    let stores = Stores::new(backend).await.unwrap();
    let service = Service::start(&stores, &[]).await.unwrap();
    let mut client = service.client().await.unwrap();
    let session = pb::Session { format: pb::WireFormat::OpenaiChat.into(), ..Default::default() };
    let create =
        pb::CreateSessionRequest { session_id: "s".to_owned(), session: Some(session), ..Default::default() };
    client.sessions.create_session(create).await.unwrap();
    // What is allocated once is not of interest, nor is the vocabulary, which a count
    // of tokens waits for.
    let entry = pb::NewEntry { payload: r#"{"role":"user","content":"hello"}"#.into(), ..Default::default() };
    let turn = pb::PersistTranscriptRequest {
        session: "sessions/s".to_owned(),
        request_id: "hello".to_owned(),
        input: Some(Turn::Append(Append { entries: vec![entry] })),
        ..Default::default()
    };
    client.transcripts.persist_transcript(turn).await.unwrap();
    offload(&mut client, 1).await;

    let before = service.memory_kib("VmRSS").unwrap();
    let grown = || service.memory_kib("VmHWM").unwrap().saturating_sub(before) / 1024;
    let started = Stopwatch::start();
    let name = offload(&mut client, parts).await;
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{backend}, {parts} MiB through gRPC: offload {seconds:.1} s, memory grew by {} MiB at most",
        grown()
    );
    let started = Stopwatch::start();
    let request = pb::ReadToolOutputRequest { name, unlimited: true, ..Default::default() };
    let mut answer = client.outputs.read_tool_output(request).await.unwrap().into_inner();
    while answer.message().await.unwrap().is_some() {}
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{backend}, {parts} MiB through gRPC: download {seconds:.1} s, memory grew by {} MiB at most",
        grown()
    );
}

/// Turns of each kind.
const TURNS: usize = 40;

/// A turn with one entry.
async fn persist(engine: &Engine, key: &SessionKey, id: String, payload: String, keep: bool) -> (f64, usize) {
    let entry = NewEntry { payload: payload.into(), kind: EntryKind::Message, at: None };
    let request = PersistRequest {
        key: key.clone(),
        request_id: RequestId::parse(&id).unwrap(),
        expected_version: None,
        input: Input::Append(vec![entry]),
        usage: None,
        score: None,
        step_kind: String::new(),
        create_if_missing: None,
        window_id: String::new(),
        keep_tool_results: keep,
    };
    let started = Stopwatch::start();
    let reply = engine.persist(request).await.unwrap();
    (started.elapsed().as_secs_f64() * 1_000.0, reply.offloaded.len())
}

/// Persists results that are too long, the same whole, and the same bytes as a message
/// of the user's, in turn: whatever else the machine does falls on all.
async fn persist_results(engine: &Engine, config: SessionConfig) {
    let kinds = ["1 MiB result, offloaded", "1 MiB result, kept whole", "1 MiB of a message"];
    let mut samples: [Vec<f64>; 3] = Default::default();
    let session = SessionId::parse("results").unwrap();
    let key = SessionKey { tenant: TenantId::default_tenant(), session };
    engine.create_session(key.clone(), config).await.unwrap();
    for turn in 0..TURNS {
        let text = serde_json::Value::from(String::from_utf8(part(turn).to_vec()).unwrap());
        let result = format!(r#"{{"role":"tool","tool_call_id":"call_1","content":{text}}}"#);
        let message = format!(r#"{{"role":"user","content":{text}}}"#);
        let payloads = [(result.clone(), false), (result, true), (message, false)];
        for (kind, (payload, keep)) in payloads.into_iter().enumerate() {
            let (milliseconds, offloaded) =
                persist(engine, &key, format!("{turn}-{kind}"), payload, keep).await;
            assert_eq!(offloaded, usize::from(kind == 0));
            samples[kind].push(milliseconds);
        }
    }
    let median = |samples: &mut Vec<f64>| {
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    };
    let [offloaded, whole, message] = samples.each_mut().map(median);
    for (kind, median) in kinds.iter().zip([offloaded, whole, message]) {
        println!("{kind:24} {median:.1} ms, {:.2} x", median / message);
    }
}

#[tokio::main]
async fn main() {
    let parts: usize = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(1024);
    measure_in_process(parts).await;
    for backend in Backend::available() {
        measure_server(backend, parts).await;
    }
}

async fn measure_in_process(parts: usize) {
    let directory = tempfile::tempdir().unwrap();
    let entropy = Arc::new(Entropy::from_os());
    let meta = Arc::new(SqlMetaStore::sqlite(&directory.path().join("db")).await.unwrap());
    meta.migrate().await.unwrap();
    let local = LocalBlobs::open(&directory.path().join("blobs"), entropy.clone()).unwrap();
    let blobs = Arc::new(FaultyBlobs::new(Arc::new(local)));
    let engine =
        Engine::without_upkeep(meta, blobs.clone(), Arc::new(SystemClock), entropy, Options::default())
            .await
            .unwrap();
    let key = SessionKey { tenant: TenantId::default_tenant(), session: SessionId::parse("s").unwrap() };
    let config = SessionConfig {
        format: WireFormat::OpenaiChat,
        path: CompressionPath::Interactive,
        profile: ModelProfile::default(),
        labels: Labels::new(),
        strip_rules: vec![],
        pin_statements: None,
        preamble: Bytes::new(),
    };
    engine.create_session(key.clone(), config.clone()).await.unwrap();

    // The same bytes through zstd alone, to a file that is synced.
    let started = Stopwatch::start();
    let file = std::fs::File::create(directory.path().join("alone.zst")).unwrap();
    let mut encoder = zstd::Encoder::new(file, 3).unwrap();
    let mut making = 0.0;
    for i in 0..parts {
        let (part, seconds) = made(i);
        making += seconds;
        encoder.write_all(&part).unwrap();
    }
    encoder.finish().unwrap().sync_all().unwrap();
    let alone = started.elapsed().as_secs_f64() - making;
    println!("zstd -3 alone            {alone:.2} s");

    let before = memory("VmRSS");
    let started = Stopwatch::start();
    let request = OffloadRequest {
        key: key.clone(),
        tool_call_id: "call_1".to_owned(),
        tool_name: "cargo".to_owned(),
        content_type: "text/plain".to_owned(),
        preview_length_max: None,
        head_percent: None,
    };
    let mut offload = engine.begin_offload(request).await.unwrap();
    let mut sha256 = Sha256::new();
    let mut clients = 0.0;
    for i in 0..parts {
        let (part, seconds) = made(i);
        let hashed = Stopwatch::start();
        sha256.update(&part);
        clients += seconds + hashed.elapsed().as_secs_f64();
        offload.write(part).await.unwrap();
    }
    let all = (parts * PART) as u64;
    let offloaded = offload.commit(all, Digest(sha256.finalize().into())).await.unwrap();
    let took = started.elapsed().as_secs_f64() - clients;
    println!("offload                  {took:.2} s, {:.2} x", took / alone);
    println!("memory grew by           {} MiB at most", (memory("VmHWM") - before) / 1024);

    let Offloaded::Stored { output, name, .. } = offloaded else { panic!("inline") };
    let middle = i64::try_from(output.lines / 2).unwrap();
    let tenant = TenantId::default_tenant();
    for (what, range, page) in [
        (
            "200 lines in the middle",
            OutputRange::Lines { start: middle, count: Some(200) },
            PageSize::ToolResult,
        ),
        ("all of it", OutputRange::Bytes { start: 0, count: None }, PageSize::Unlimited),
    ] {
        let got = blobs.bytes_got();
        let request = ReadOutput { tenant: tenant.clone(), name: name.clone(), range, page };
        let (bytes, seconds) = read(&engine, request).await;
        let fetched = blobs.bytes_got() - got;
        println!("{what:24} {:.1} ms, {bytes} bytes, {fetched} fetched", seconds * 1_000.0);
    }
    persist_results(&engine, config).await;
}
