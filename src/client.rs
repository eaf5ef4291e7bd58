//! The Rust client: the generated stubs, windows that are kept up to date, and the
//! tools with which a model gets at what its window leaves out.

mod offload;
mod tools;

pub use tools::tools;

use crate::limits::REQUEST_BYTES_MAX;
use crate::model::WireFormat;
use crate::rpc::pb;
use pb::memory_service_client::MemoryServiceClient;
use pb::model_service_client::ModelServiceClient;
use pb::restore_transcript_response::Part;
use pb::session_service_client::SessionServiceClient;
use pb::tool_output_service_client::ToolOutputServiceClient;
use pb::transcript_service_client::TranscriptServiceClient;
use pb::window_change::Change;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is no URL, or nobody answers there.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The address.
        address: String,
        /// What happened.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The service refused or could not answer.
    #[error("{}", describe(.0))]
    Status(Box<Status>),
    /// The answer is not what the contract says.
    #[error("the service's answer breaks its contract: {0}")]
    Contract(&'static str),
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl ClientError {
    /// The reason of docs/errors.md, if the service gave one.
    pub fn reason(&self) -> Option<String> {
        let Self::Status(status) = self else { return None };
        status.get_details_error_info().map(|info| info.reason)
    }

    /// A value of the error's metadata, such as `current_version`.
    pub fn metadata(&self, name: &str) -> Option<String> {
        let Self::Status(status) = self else { return None };
        status.get_details_error_info().and_then(|info| info.metadata.get(name).cloned())
    }

    /// After what time the same call is worth another try; none if it is not.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status(status) => match status.get_details_retry_info().and_then(|info| info.retry_delay) {
                Some(delay) => Some(delay),
                None if status.code() == Code::Unavailable => Some(Duration::from_secs(1)),
                None => None,
            },
            Self::Connect { .. } => Some(Duration::from_secs(1)),
            Self::Contract(_) => None,
        }
    }
}

/// A status for people: its reason, if it has one, and its message.
fn describe(status: &Status) -> String {
    match status.get_details_error_info() {
        Some(info) => format!("{}: {}", info.reason, status.message()),
        None => format!("{:?}: {}", status.code(), status.message()),
    }
}

/// A connection to a service. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Client {
    /// Models and their providers.
    pub models: ModelServiceClient<Channel>,
    /// Sessions.
    pub sessions: SessionServiceClient<Channel>,
    /// Pins, notes and episodes.
    pub memory: MemoryServiceClient<Channel>,
    /// Tool outputs.
    pub outputs: ToolOutputServiceClient<Channel>,
    /// Transcripts.
    pub transcripts: TranscriptServiceClient<Channel>,
}

impl Client {
    /// Connects to `http://host:port`.
    pub async fn connect(address: &str) -> Result<Self, ClientError> {
        let failed = |source: tonic::transport::Error| ClientError::Connect {
            address: address.to_owned(),
            source: source.into(),
        };
        let endpoint = Endpoint::from_shared(address.to_owned()).map_err(failed)?;
        let channel = endpoint
            .connect_timeout(Duration::from_secs(5))
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(30))
            .connect()
            .await
            .map_err(failed)?;
        Ok(Self::over(channel))
    }

    /// A client over a channel of the caller's.
    pub fn over(channel: Channel) -> Self {
        // A single large entry may need more than the 4 MiB that gRPC clients
        // accept by default.
        const MESSAGE_BYTES_MAX: usize = 2 * REQUEST_BYTES_MAX;
        Self {
            models: ModelServiceClient::new(channel.clone()),
            sessions: SessionServiceClient::new(channel.clone()),
            memory: MemoryServiceClient::new(channel.clone()),
            outputs: ToolOutputServiceClient::new(channel.clone()),
            transcripts: TranscriptServiceClient::new(channel)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
        }
    }

    /// Brings a window up to date: asks for what it lacks and applies it. The
    /// session of the request may be any; its `known_window` is the window's.
    pub async fn restore(
        &mut self,
        window: &mut Window,
        mut request: pb::RestoreTranscriptRequest,
    ) -> Result<pb::WindowHeader, ClientError> {
        request.known_window.clone_from(&window.id);
        let mut parts = self.transcripts.restore_transcript(request).await?.into_inner();
        let first = parts.message().await?;
        let Some(pb::RestoreTranscriptResponse { part: Some(Part::Header(header)) }) = first else {
            return Err(ClientError::Contract("a restore begins with a header"));
        };
        let keep = match header.change.as_ref().and_then(|change| change.change.as_ref()) {
            Some(Change::Unchanged(_)) => window.items.len(),
            Some(Change::Delta(delta)) => usize::try_from(delta.base_items).unwrap_or(usize::MAX),
            Some(Change::Full(_)) => 0,
            None => return Err(ClientError::Contract("a header says how the window changed")),
        };
        if keep > window.items.len() {
            return Err(ClientError::Contract("a change keeps no more items than there are"));
        }
        // Until all items are here the window is of no use.
        window.id.clear();
        window.items.truncate(keep);
        while let Some(message) = parts.message().await? {
            match message.part {
                Some(Part::Items(items)) => window.items.extend(items.items),
                _ => return Err(ClientError::Contract("items follow the header")),
            }
        }
        if window.items.len() as u64 != header.item_count {
            return Err(ClientError::Contract("the items make a window of the length that the header says"));
        }
        window.id.clone_from(&header.window_id);
        Ok(header)
    }
}

/// A format on the wire as the one of the library; one that is not known has no
/// structure.
pub fn wire_format(format: pb::WireFormat) -> WireFormat {
    let name = format.as_str_name().trim_start_matches("WIRE_FORMAT_").to_ascii_lowercase().replace('_', "-");
    WireFormat::ALL.into_iter().find(|format| format.as_str() == name).unwrap_or(WireFormat::Opaque)
}

/// A window that a worker holds; the default one is empty and holds nothing yet.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Its id; empty if it must be restored whole.
    pub id: String,
    /// Its items.
    pub items: Vec<pb::WindowItem>,
}

impl Window {
    /// Extends the window by entries that were appended, as the answer to the
    /// persist allows; else it stays the one before them, which the next restore
    /// brings up to date.
    pub fn extend(&mut self, entries: &[pb::NewEntry], answer: &pb::PersistTranscriptResponse) {
        if answer.window_id.is_empty() {
            return;
        }
        self.id.clone_from(&answer.window_id);
        let kind = |entry: &pb::NewEntry| pb::EntryKind::try_from(entry.kind);
        let is_message = |entry: &pb::NewEntry| {
            matches!(kind(entry), Ok(pb::EntryKind::Unspecified | pb::EntryKind::Message))
        };
        let is_stored = |entry: &&pb::NewEntry| {
            is_message(entry) || matches!(kind(entry), Ok(pb::EntryKind::Meta) | Err(_))
        };
        let stored: Vec<_> = entries.iter().filter(is_stored).collect();
        // Records may have been stripped, and the answer does not say which.
        let is_all =
            answer.last_seq.checked_sub(answer.first_seq).map(|more| more + 1) == Some(stored.len() as u64);
        let messages = stored.into_iter().zip(answer.first_seq..).filter(|(entry, _)| is_message(entry));
        self.items.extend(messages.map(|(entry, seq)| pb::WindowItem {
            payload: entry.payload.clone(),
            origin: pb::ItemOrigin::Log.into(),
            seqs: if is_all { vec![seq] } else { vec![] },
            tokens: 0,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_on_the_wire_are_those_of_the_library() {
        let all = (1..=6).filter_map(|number| pb::WireFormat::try_from(number).ok()).map(wire_format);
        assert_eq!(all.collect::<Vec<_>>(), WireFormat::ALL);
        assert_eq!(wire_format(pb::WireFormat::Unspecified), WireFormat::Opaque);
    }
}
