//! Receipts, by the formula of docs/receipts.md and by nothing of the service.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends, on_embedded_backend};
use pb::WireFormat::OpenaiChat;
use service::{SESSION, Service, append, append_entries, entry, fresh_id, message, of_format, snapshot};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use turnkeep::rpc::pb;

on_all_backends!(receipts_follow_from_what_was_persisted);
on_embedded_backend!(the_page_gives_the_receipts_of_its_example);

fn sha256(parts: &[&[u8]]) -> Vec<u8> {
    Sha256::digest(parts.concat()).to_vec()
}

fn first_receipt(session: &str) -> Vec<u8> {
    let id = session.strip_prefix("sessions/").unwrap();
    sha256(&[b"turnkeep session v1\n", id.as_bytes()])
}

fn entries_digest(entries: &[pb::Entry]) -> Vec<u8> {
    let entry = |entry: &pb::Entry| {
        [&entry.seq.to_be_bytes(), &entry.kind.to_be_bytes()[..], &sha256(&[&entry.payload[..]])].concat()
    };
    sha256(&[b"turnkeep entries v1\n", &entries.iter().map(entry).collect::<Vec<_>>().concat()])
}

fn receipt(before: &[u8], turn: &pb::Turn, entries: &[pb::Entry]) -> Vec<u8> {
    sha256(&[
        b"turnkeep turn v1\n",
        before,
        &turn.version.to_be_bytes(),
        &[u8::try_from(turn.kind).unwrap()],
        &turn.base_version.to_be_bytes(),
        &turn.last_seq.to_be_bytes(),
        &(turn.request_id.len() as u64).to_be_bytes(),
        turn.request_id.as_bytes(),
        &entries_digest(entries),
    ])
}

/// Computes the receipts of all of a session's versions and compares them with
/// those that the service lists and returns with reads.
async fn check(service: &Service, session: &str, first: Vec<u8>) {
    let mut receipts = BTreeMap::from([(0, first)]);
    let mut turns = service.turns(session).await;
    turns.reverse();
    for turn in &turns {
        let log = service.read_at(session, turn.version).await;
        assert_eq!(log.header.receipt, turn.receipt);
        let entries: Vec<_> = log.entries.into_iter().filter(|entry| entry.version == turn.version).collect();
        assert_eq!(entries.len() as u64, turn.last_seq + 1 - turn.first_seq);
        let before = match turn.kind() {
            pb::TurnKind::Persist => turn.version - 1,
            _ => turn.base_version,
        };
        let computed = receipt(&receipts[&before], turn, &entries);
        assert_eq!(turn.receipt, computed, "{turn:?}");
        receipts.insert(turn.version, computed);
    }
    assert_eq!(service.read_at(session, 0).await.header.receipt, receipts[&0]);
}

async fn receipts_follow_from_what_was_persisted(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let entries = vec![
        message("{\n\"a\":1}"),
        entry(pb::EntryKind::Meta, "{}"),
        entry(pb::EntryKind::Progress, "{}"),
        pb::NewEntry { kind: -1, ..message("{}") },
        pb::NewEntry { kind: 0, ..message("{}") },
    ];
    let answer = service.persist(append_entries(SESSION, "A:b.c-d_9", entries)).await.unwrap();
    assert_eq!(answer.receipt, service.turns(SESSION).await[0].receipt);
    service.append::<&str>(SESSION, &[]).await;
    service.append(SESSION, &["{}"]).await;
    service.rewind_to(SESSION, 1).await;
    service.append(SESSION, &["{}", "{}"]).await;
    let mut list = snapshot(SESSION, &[r#"{"a":1}"#, "{}"]);
    let Some(pb::persist_transcript_request::Input::Snapshot(input)) = &mut list.input else {
        unreachable!()
    };
    input.allow_rewind = true;
    assert_eq!(service.persist(list).await.unwrap().rewound_to_version, Some(0));
    check(&service, SESSION, first_receipt(SESSION)).await;

    let fork = pb::ForkSessionRequest {
        name: SESSION.to_owned(),
        version: Some(3),
        session_id: "f".to_owned(),
        request_id: fresh_id(),
        ..Default::default()
    };
    service.fork(fork).await.unwrap();
    service.append("sessions/f", &["{}"]).await;
    service.seal().await;
    let service = service.restart().await;
    check(&service, SESSION, first_receipt(SESSION)).await;
    check(&service, "sessions/f", first_receipt(SESSION)).await;
}

async fn the_page_gives_the_receipts_of_its_example(backend: Backend) {
    const PAGE: &str = include_str!("../docs/receipts.md");
    let service = Service::start(&backend).await;
    service.create("demo", of_format(OpenaiChat)).await;
    let (_, example) = PAGE.split_once("```json\n").unwrap();
    let (messages, _) = example.split_once("\n```").unwrap();
    let messages: Vec<_> = messages.lines().collect();
    let name = "sessions/demo";
    let first = service.persist(append(name, "step-1", &messages)).await.unwrap();
    let second = service.persist(append::<&str>(name, "step-2", &[])).await.unwrap();
    let log = service.read(name).await;
    let rows = [
        ("receipt of version 0", first_receipt(name)),
        ("entries digest of version 1", entries_digest(&log.entries)),
        ("receipt of version 1", first.receipt.to_vec()),
        ("entries digest of version 2", entries_digest(&[])),
        ("receipt of version 2", second.receipt.to_vec()),
    ];
    for (what, digest) in rows {
        let digest = turnkeep::model::Digest(digest.try_into().unwrap());
        let row = format!("| {what} | `{digest}` |");
        assert!(PAGE.lines().any(|line| line == row), "docs/receipts.md lacks {row}");
    }
}
