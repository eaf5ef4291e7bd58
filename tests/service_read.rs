//! Reading the log: any range of any version, in messages that every client
//! takes.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends};
use pb::WireFormat::Opaque;
use pb::transcript_service_client::TranscriptServiceClient;
use prost::Message as _;
use service::{SESSION, Service, of_format};
use tonic::Code;
use turnkeep::rpc::pb;

on_all_backends!(
    a_read_begins_with_what_is_known_of_the_version,
    a_read_gives_the_entries_of_its_range,
    a_version_that_is_not_there_cannot_be_read,
    large_answers_come_in_messages_that_every_client_takes,
);

fn numbered(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|i| format!("{{\"i\":{i}}}")).collect()
}

async fn a_read_begins_with_what_is_known_of_the_version(backend: Backend) {
    let service = Service::start(&backend).await;
    let session = service.create("s", of_format(Opaque)).await;
    let empty = service.read(SESSION).await;
    assert_eq!((empty.header.version, empty.header.head_seq, empty.entries.len()), (0, 0, 0));
    assert_eq!(empty.header.version_time, session.create_time);
    for i in 0..3 {
        service.append(SESSION, &numbered(2 * i..2 * i + 2)).await;
    }
    service.rewind_to(SESSION, 2).await;
    for _ in 0..2 {
        for turn in service.turns(SESSION).await {
            let log = service.read_at(SESSION, turn.version).await;
            let expected = pb::ReadHeader {
                version: turn.version,
                format: Opaque.into(),
                head_seq: turn.last_seq,
                receipt: turn.receipt,
                version_time: turn.create_time,
            };
            assert_eq!(log.header, expected);
            assert_eq!(log.seqs(), (1..=turn.last_seq).collect::<Vec<_>>());
        }
        assert_eq!(service.read(SESSION).await, service.read_at(SESSION, 4).await);
        assert_eq!(service.read_at(SESSION, 0).await, empty);
        service.seal().await;
    }
}

async fn a_read_gives_the_entries_of_its_range(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(Opaque)).await;
    // Two segments, a rewound branch, and a journal of two turns.
    service.append(SESSION, &numbered(0..4)).await;
    service.seal().await;
    service.append(SESSION, &numbered(4..6)).await;
    service.append(SESSION, &numbered(90..99)).await;
    service.seal().await;
    service.rewind_to(SESSION, 2).await;
    service.append(SESSION, &numbered(6..9)).await;
    service.append(SESSION, &numbered(9..10)).await;
    let service = service.restart().await;
    let whole = service.read(SESSION).await;
    assert_eq!(whole.payloads(), numbered(0..10));
    let bounds = (0..=12).chain([u64::MAX]).map(Some).chain([None]);
    for first_seq in bounds.clone() {
        for last_seq in bounds.clone() {
            let request = pb::ReadTranscriptRequest {
                session: SESSION.to_owned(),
                first_seq,
                last_seq,
                at_version: None,
            };
            let read = service.try_read(request).await.unwrap();
            assert_eq!(read.header, whole.header);
            let (first, last) = (first_seq.unwrap_or(0), last_seq.unwrap_or(u64::MAX));
            let expected: Vec<_> =
                whole.entries.iter().filter(|entry| (first..=last).contains(&entry.seq)).cloned().collect();
            assert_eq!(read.entries, expected, "{first_seq:?} to {last_seq:?}");
        }
    }
    let rewound = pb::ReadTranscriptRequest {
        session: SESSION.to_owned(),
        first_seq: Some(6),
        last_seq: Some(8),
        at_version: Some(3),
    };
    let expected = [numbered(5..6), numbered(90..92)].concat();
    assert_eq!(service.try_read(rewound).await.unwrap().payloads(), expected);
}

async fn a_version_that_is_not_there_cannot_be_read(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(Opaque)).await;
    service.append(SESSION, &numbered(0..1)).await;
    for at_version in [2, u64::MAX].map(Some) {
        let read =
            pb::ReadTranscriptRequest { session: SESSION.to_owned(), at_version, ..Default::default() };
        let restore =
            pb::RestoreTranscriptRequest { session: SESSION.to_owned(), at_version, ..Default::default() };
        let refusals =
            [service.try_read(read).await.unwrap_err(), service.try_restore(restore).await.unwrap_err()];
        for refusal in refusals {
            assert_eq!(refusal.kind(), (Code::NotFound, "VERSION_NOT_FOUND"));
            assert_eq!(refusal.metadata("current_version"), "1");
        }
    }
}

async fn large_answers_come_in_messages_that_every_client_takes(backend: Backend) {
    const MESSAGE_BYTES_MAX: usize = 2 << 20;
    const DEFAULT_LIMIT: usize = 4 << 20;
    let service = Service::start(&backend).await;
    service.create("s", of_format(Opaque)).await;
    let mut expected = Vec::new();
    for kib in [1, 900, 900, 1_023, 1_500, 1, 1_024, 3_000, 1, 1] {
        let payload = format!(r#"{{"x":"{}"}}"#, "x".repeat(kib << 10));
        service.append(SESSION, std::slice::from_ref(&payload)).await;
        expected.push(payload);
    }
    let small = numbered(0..9_000);
    service.append(SESSION, &small).await;
    expected.extend(small);
    assert!(expected.iter().map(String::len).sum::<usize>() > 2 * DEFAULT_LIMIT);
    // With the limits that a client has by default.
    let mut client = TranscriptServiceClient::connect(service.grpc_url()).await.unwrap();

    let request = pb::ReadTranscriptRequest { session: SESSION.to_owned(), ..Default::default() };
    let mut parts = client.read_transcript(request).await.unwrap().into_inner();
    let mut read = Vec::new();
    while let Some(message) = parts.message().await.unwrap() {
        let bytes = message.encoded_len();
        if let Some(pb::read_transcript_response::Part::Entries(entries)) = message.part {
            assert!(bytes < MESSAGE_BYTES_MAX || entries.entries.len() == 1);
            read.extend(entries.entries.into_iter().map(|entry| service::text(&entry.payload)));
        }
    }
    assert_eq!(read, expected);

    let request = pb::RestoreTranscriptRequest { session: SESSION.to_owned(), ..Default::default() };
    let mut parts = client.restore_transcript(request).await.unwrap().into_inner();
    let mut restored = Vec::new();
    while let Some(message) = parts.message().await.unwrap() {
        let bytes = message.encoded_len();
        if let Some(pb::restore_transcript_response::Part::Items(items)) = message.part {
            assert!(bytes < MESSAGE_BYTES_MAX || items.items.len() == 1);
            restored.extend(items.items.into_iter().map(|item| service::text(&item.payload)));
        }
    }
    assert_eq!(restored, expected);
}
