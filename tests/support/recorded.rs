//! Recorded transcripts, as threads of turns.

#![allow(dead_code, reason = "each test file uses its part of it")]

use bytes::Bytes;
use std::fs;
use std::path::{Path, PathBuf};
use turnkeep::import::{ImportedTurn, Thread};
use turnkeep::model::WireFormat;
use turnkeep::rpc::pb;

/// The folder of recorded transcripts; none if it is not there and need not be.
pub(crate) fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("TURNKEEP_TRANSCRIPTS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/transcripts"), PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    let required = std::env::var("TURNKEEP_REQUIRE_TRANSCRIPTS").is_ok_and(|value| value == "1");
    assert!(!required, "{} is not there", folder.display());
    println!("skipped: {} is not there", folder.display());
    None
}

/// Files of all folders, with their names.
pub(crate) fn files(folder: &Path) -> Vec<(String, Bytes)> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|file| file.unwrap().path()));
        }
    }
    paths.sort();
    let name = |path: &Path| path.strip_prefix(folder).unwrap().display().to_string();
    paths.iter().map(|path| (name(path), fs::read(path).unwrap().into())).collect()
}

pub(crate) fn format_of(thread: &Thread) -> pb::WireFormat {
    match thread.format {
        WireFormat::OpenaiChat => pb::WireFormat::OpenaiChat,
        WireFormat::OpenaiResponses => pb::WireFormat::OpenaiResponses,
        WireFormat::AnthropicMessages => pb::WireFormat::AnthropicMessages,
        WireFormat::GeminiContents => pb::WireFormat::GeminiContents,
        WireFormat::BedrockConverse => pb::WireFormat::BedrockConverse,
        WireFormat::Opaque => pb::WireFormat::Opaque,
    }
}

pub(crate) fn entries_of(turn: &ImportedTurn) -> Vec<pb::NewEntry> {
    let entry = |entry: &turnkeep::import::ImportedEntry| pb::NewEntry {
        payload: entry.payload.clone(),
        kind: entry.kind.number(),
        time: entry.at.map(|at| prost_types::Timestamp {
            seconds: at.0.div_euclid(1_000_000),
            nanos: i32::try_from(at.0.rem_euclid(1_000_000) * 1_000).unwrap(),
        }),
    };
    turn.entries.iter().map(entry).collect()
}
