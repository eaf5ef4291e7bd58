//! Model providers: calls of a model over HTTP, for summaries, and what their
//! failures mean.
//!
//! A call is one request with one answer: nothing is streamed, and no redirect is
//! followed. It ends by its deadline, with an answer or a failure that says what
//! kind it is.

mod anthropic;
pub mod failure;
mod http;
mod openai;

use self::http::{Answer, Http, HttpError};
use crate::clock::{self, Clock as _, Deadline, SystemClock};
use crate::entropy::Entropy;
use crate::limits::{PROVIDER_ATTEMPTS_MAX, PROVIDER_BACKOFF, PROVIDER_MESSAGE_BYTES_MAX};
use crate::model::{Usage, WireFormat};
use ::http::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    HeaderValue, TRANSFER_ENCODING,
};
use failure::{FailureClass, FailureReport, classify};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The APIs that are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// Anthropic's Messages.
    Anthropic,
    /// OpenAI's Chat Completions, which most other servers speak too.
    Openai,
}

impl Api {
    /// The vendor's own endpoint.
    pub fn default_endpoint(self) -> &'static str {
        match self {
            Self::Anthropic => "https://api.anthropic.com",
            Self::Openai => "https://api.openai.com/v1",
        }
    }

    fn format(self) -> WireFormat {
        match self {
            Self::Anthropic => WireFormat::AnthropicMessages,
            Self::Openai => WireFormat::OpenaiChat,
        }
    }
}

/// How to reach a model.
#[derive(Clone, Debug)]
pub struct LlmOptions {
    /// The API that it is behind.
    pub api: Api,
    /// URL of the API, as that API's own clients take it: for OpenAI with the
    /// `/v1` at its end, for Anthropic without. A query in it stays, such as Azure's
    /// `?api-version=…`.
    pub endpoint: String,
    /// The model's name.
    pub model: String,
    /// The key, if it wants one.
    pub key: Option<SecretString>,
    /// The header that has the key and nothing else, if it is not the API's own: Azure
    /// wants `api-key`.
    pub key_header: Option<String>,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long one attempt may take.
    pub attempt_timeout: Duration,
}

/// Why a model cannot be reached with such options.
#[derive(Debug, thiserror::Error)]
pub enum InvalidOptions {
    /// The endpoint is no URL to be called.
    #[error("the endpoint must be an http:// or https:// URL without a user or a fragment")]
    Endpoint,
    /// The key cannot stand in a header.
    #[error("the key has characters that no header can have")]
    Key,
    /// There is no such header.
    #[error("the key's header must be the name of one, and of none that a request has anyway")]
    KeyHeader,
    /// There are no certificates to trust.
    #[error("no certificates of authorities are installed on this machine: {0}")]
    Certificates(std::io::Error),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(rustls::Error),
}

/// What a model is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionRequest {
    /// The system text; none if empty.
    pub system: String,
    /// The user's text.
    pub user: String,
    /// Tokens of output that it may have at most.
    pub max_output_tokens: u64,
}

/// Why an answer ends where it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model was done.
    End,
    /// It had used up its output.
    MaxTokens,
    /// Anything else, in the API's word.
    Other(String),
}

/// A model's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Its text; never empty.
    pub text: String,
    /// What the provider counted, and the model as it names it.
    pub usage: Usage,
    /// Why it ends where it does.
    pub stop_reason: StopReason,
    /// Calls that it took.
    pub attempts: u32,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "{class:?} after {attempts} attempts{}{}: {message}",
    status.map_or_else(String::new, |status| format!(", status {status}")),
    request_id.as_deref().map_or_else(String::new, |id| format!(", request {id}"))
)]
pub struct ProviderFailure {
    /// What kind of failure it is.
    pub class: FailureClass,
    /// HTTP status, if there was an answer.
    pub status: Option<u16>,
    /// What the provider says, without the key.
    pub message: String,
    /// The provider's id of the request.
    pub request_id: Option<String>,
    /// The pause that the provider asks for.
    pub retry_after: Option<Duration>,
    /// What the last call cost all the same, if the provider says so.
    pub usage: Option<Box<Usage>>,
    /// Calls that were made.
    pub attempts: u32,
}

impl ProviderFailure {
    fn new(class: FailureClass, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { class, status: None, message, request_id: None, retry_after: None, usage: None, attempts: 0 }
    }

    /// Whether another call would fail as this one did, whatever it asks for.
    pub fn is_of_provider(&self) -> bool {
        self.may_pass()
            || matches!(self.class, FailureClass::Auth | FailureClass::Quota)
            || self.status.is_some_and(|status| status == 429 || status >= 500)
    }

    /// Whether the same call may succeed a little later.
    fn may_pass(&self) -> bool {
        matches!(self.class, FailureClass::RateLimit | FailureClass::Overloaded | FailureClass::Network)
    }
}

/// What an answer of an API says, if it is one.
struct Reading {
    text: String,
    usage: Usage,
    /// The API's word for why it ends.
    stop: String,
    stop_reason: StopReason,
}

/// A model that can be called.
#[derive(Debug)]
pub struct LlmClient {
    options: LlmOptions,
    http: Http,
    /// Whether this OpenAI-compatible server has asked for the newer name of the
    /// output's limit. Half of them know only the older.
    new_limit_name: AtomicBool,
}

impl LlmClient {
    /// A client; nothing is sent before the first call.
    pub fn new(options: LlmOptions) -> Result<Self, InvalidOptions> {
        let (path, mut headers, own, before) = match options.api {
            Api::Anthropic => ("/v1/messages", anthropic::headers(), anthropic::KEY_HEADER, ""),
            Api::Openai => ("/chat/completions", HeaderMap::new(), AUTHORIZATION, "Bearer "),
        };
        let (name, before) = match &options.key_header {
            None => (own, before),
            Some(name) => (key_header(name)?, ""),
        };
        if let Some(key) = &options.key {
            let key = format!("{before}{}", key.expose_secret());
            let mut key = HeaderValue::from_str(&key).map_err(|_| InvalidOptions::Key)?;
            key.set_sensitive(true);
            headers.insert(name, key);
        }
        let http = Http::new(&options.endpoint, path, headers, options.connect_timeout)?;
        Ok(Self { options, http, new_limit_name: AtomicBool::new(false) })
    }

    /// The model's name.
    pub fn model(&self) -> &str {
        &self.options.model
    }

    /// Asks the model. What may pass is tried again, with pauses that grow or that
    /// the provider asks for, as long as the deadline allows.
    pub async fn complete(
        &self,
        request: &CompletionRequest,
        deadline: Deadline,
    ) -> Result<Completion, ProviderFailure> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let time = deadline.left().min(self.options.attempt_timeout);
            let failure = match clock::deadline(time, self.attempt(request)).await {
                Some(Ok(completion)) => return Ok(Completion { attempts, ..completion }),
                Some(Err(failure)) => ProviderFailure { attempts, ..failure },
                None => {
                    let message = format!("timed out: no answer in {:.1} s", time.as_secs_f64());
                    ProviderFailure { attempts, ..ProviderFailure::new(FailureClass::Network, message) }
                }
            };
            let pause = pause(attempts, failure.retry_after);
            if !failure.may_pass() || attempts >= PROVIDER_ATTEMPTS_MAX || pause >= deadline.left() {
                return Err(failure);
            }
            tracing::debug!(model = self.options.model, %failure, ?pause, "a model's provider failed");
            clock::sleep(pause).await;
        }
    }

    async fn attempt(&self, request: &CompletionRequest) -> Result<Completion, ProviderFailure> {
        let new_name = self.new_limit_name.load(Ordering::Relaxed);
        let result = self.call(request, new_name).await;
        match result {
            Err(failure) if !new_name && self.asks_for_new_name(&failure) => {
                self.new_limit_name.store(true, Ordering::Relaxed);
                self.call(request, true).await
            }
            result => result,
        }
    }

    fn asks_for_new_name(&self, failure: &ProviderFailure) -> bool {
        self.options.api == Api::Openai
            && failure.class == FailureClass::BadRequest
            && failure.message.contains("max_completion_tokens")
    }

    async fn call(&self, request: &CompletionRequest, new_name: bool) -> Result<Completion, ProviderFailure> {
        let model = &self.options.model;
        let body = match self.options.api {
            Api::Anthropic => anthropic::body(model, request),
            Api::Openai => openai::body(model, request, new_name),
        };
        let answer = match self.http.post(body.to_string().into()).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.no_answer(&error)),
        };
        if !(200..300).contains(&answer.status) {
            return Err(self.failure(&answer, None, &String::from_utf8_lossy(&answer.body)));
        }
        let invalid = |problem: &str| {
            self.failure(&answer, Some(FailureClass::InvalidAnswer), &format!("the answer {problem}"))
        };
        let value: Value = serde_json::from_slice(&answer.body).map_err(|_| invalid("is not JSON"))?;
        // Routers report a provider's failure with success.
        if value.get("error").is_some_and(|error| !error.is_null()) {
            return Err(self.failure(&answer, None, &value.to_string()));
        }
        let reading = match self.options.api {
            Api::Anthropic => anthropic::read(&value),
            Api::Openai => openai::read(&value),
        };
        let reading = reading.ok_or_else(|| invalid("is not what the API answers with"))?;
        self.completion(&answer, reading)
    }

    fn completion(&self, answer: &Answer, reading: Reading) -> Result<Completion, ProviderFailure> {
        let Reading { text, mut usage, stop, stop_reason } = reading;
        if usage.model.is_empty() {
            usage.model.clone_from(&self.options.model);
        }
        let report = FailureReport { status: Some(answer.status), code: &stop, ..FailureReport::default() };
        let class = match classify(&report) {
            FailureClass::Unknown if !text.trim().is_empty() => {
                return Ok(Completion { text, usage, stop_reason, attempts: 0 });
            }
            FailureClass::Unknown if stop_reason == StopReason::MaxTokens => FailureClass::OutputLimit,
            FailureClass::Unknown => FailureClass::InvalidAnswer,
            class => class,
        };
        let problem = format!("the answer ends with {stop:?} and is not to be used");
        let failure = self.failure(answer, Some(class), &problem);
        Err(ProviderFailure { usage: Some(Box::new(usage)), ..failure })
    }

    fn failure(&self, answer: &Answer, class: Option<FailureClass>, message: &str) -> ProviderFailure {
        let report = FailureReport {
            format: Some(self.options.api.format()),
            status: Some(answer.status),
            message,
            ..FailureReport::default()
        };
        ProviderFailure {
            class: class.unwrap_or_else(|| classify(&report)),
            status: Some(answer.status),
            message: self.printable(message),
            request_id: answer.request_id.as_deref().map(|id| self.printable(id)),
            retry_after: answer.retry_after(SystemClock.now()),
            usage: None,
            attempts: 0,
        }
    }

    fn no_answer(&self, error: &HttpError) -> ProviderFailure {
        let class = match error {
            HttpError::TooLarge => FailureClass::InvalidAnswer,
            HttpError::Connection(_) => FailureClass::Network,
        };
        ProviderFailure::new(class, self.printable(&error.to_string()))
    }

    /// A text of a provider for logs: short, on one line, and without the key,
    /// which some repeat.
    fn printable(&self, text: &str) -> String {
        let mut text = text.to_owned();
        if let Some(key) =
            self.options.key.as_ref().map(SecretString::expose_secret).filter(|key| !key.is_empty())
        {
            text = text.replace(key, "[key]");
        }
        text.truncate(text.floor_char_boundary(PROVIDER_MESSAGE_BYTES_MAX));
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// The header of that name, if it is one that a request need not have without a key.
fn key_header(name: &str) -> Result<HeaderName, InvalidOptions> {
    const OTHERS: [HeaderName; 7] = [
        ACCEPT,
        CONNECTION,
        CONTENT_LENGTH,
        CONTENT_TYPE,
        HOST,
        TRANSFER_ENCODING,
        anthropic::VERSION_HEADER,
    ];
    let name = name.parse().map_err(|_| InvalidOptions::KeyHeader)?;
    if OTHERS.contains(&name) { Err(InvalidOptions::KeyHeader) } else { Ok(name) }
}

/// Time before the next attempt: what the provider asks for and a little, or one
/// that doubles with each attempt.
fn pause(attempts: u32, asked: Option<Duration>) -> Duration {
    let [chance] = Entropy::of_process().bytes();
    let chance = f64::from(chance) / 256.0;
    match asked {
        Some(asked) => asked.saturating_add(PROVIDER_BACKOFF.mul_f64(chance / 2.0)),
        None => PROVIDER_BACKOFF
            .saturating_mul(1 << attempts.saturating_sub(1).min(8))
            .mul_f64(0.5 + chance / 2.0),
    }
}

/// The models that summaries are made with: a cheap one, and one for those that
/// are too long for it.
#[derive(Debug)]
pub struct Summarizer {
    /// The one for most.
    pub cheap: LlmClient,
    /// The one for long inputs, if it is another.
    pub capable: Option<LlmClient>,
    /// Tokens of input over which it is taken.
    pub capable_over_tokens: u64,
}

impl Summarizer {
    /// The model for an input of so many tokens.
    pub fn model_for(&self, tokens: u64) -> &LlmClient {
        match &self.capable {
            Some(capable) if tokens > self.capable_over_tokens => capable,
            _ => &self.cheap,
        }
    }
}
