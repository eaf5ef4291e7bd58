//! A worker's calls, timed.

#![allow(dead_code, reason = "each benchmark uses its part of it")]

use super::turns;
use std::time::Duration;
use turnkeep::client::{Client, Window};
use turnkeep::clock::Stopwatch;
use turnkeep::rpc::pb;
use turnkeep::rpc::pb::persist_transcript_request::{Append, Input};

/// A worker and its session.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) client: Client,
    /// Resource name of the session.
    pub(crate) session: String,
    pub(crate) format: pb::WireFormat,
    pub(crate) version: u64,
    /// What the worker holds.
    pub(crate) window: Window,
}

impl Worker {
    /// Makes a session with the user's message in it.
    pub(crate) async fn begin(client: Client, id: &str, format: pb::WireFormat) -> anyhow::Result<Self> {
        let session = format!("sessions/{id}");
        let mut worker = Self { client, session, format, version: 0, window: Window::default() };
        worker.send(turns::opening()).await?;
        Ok(worker)
    }

    /// Persists one more typical turn.
    pub(crate) async fn persist(&mut self) -> anyhow::Result<Duration> {
        let entries = turns::typical(self.format, self.version);
        self.send(entries).await
    }

    /// Sends an echo the turn after a version, to keep it.
    pub(crate) async fn keep(&mut self, version: u64) -> anyhow::Result<()> {
        self.version = 0;
        self.send(turns::typical(self.format, version)).await.map(drop)
    }

    async fn send(&mut self, entries: Vec<pb::NewEntry>) -> anyhow::Result<Duration> {
        let create =
            (self.version == 0).then(|| pb::Session { format: self.format.into(), ..Default::default() });
        let request = pb::PersistTranscriptRequest {
            session: self.session.clone(),
            request_id: format!("turn-{}", self.version),
            expected_version: Some(self.version),
            input: Some(Input::Append(Append { entries: entries.clone() })),
            create_if_missing: create,
            window_id: self.window.id.clone(),
            ..Default::default()
        };
        let started = Stopwatch::start();
        let answer = self.client.transcripts.persist_transcript(request).await?.into_inner();
        let took = started.elapsed();
        self.version = answer.version;
        self.window.extend(&entries, &answer);
        Ok(took)
    }

    /// Restores what the worker lacks of the window `known`.
    pub(crate) async fn restore(&mut self, known: Window) -> anyhow::Result<Duration> {
        let request = pb::RestoreTranscriptRequest { session: self.session.clone(), ..Default::default() };
        self.window = known;
        let started = Stopwatch::start();
        self.client.restore(&mut self.window, request).await?;
        Ok(started.elapsed())
    }

    /// Bytes that the session's turns take in storage.
    pub(crate) async fn stored_bytes(&mut self) -> anyhow::Result<u64> {
        let request = pb::GetSessionRequest { name: self.session.clone() };
        Ok(self.client.sessions.get_session(request).await?.into_inner().stored_bytes())
    }
}
