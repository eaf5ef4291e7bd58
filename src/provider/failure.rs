//! What a model provider's failure is, and what to do about it.
//!
//! Providers tell most of it in prose, which changes; codes and statuses are
//! shared by failures that want opposite things. So the text is searched for the
//! distinctive part of each known message, in an order in which the ones that
//! look like others come first, and the status decides what is left. The texts
//! are those of the providers' answers and of reports about them; each has its
//! line in the tests.

use crate::model::WireFormat;

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// The request has more tokens than the model takes.
    ContextOverflow,
    /// Too many requests or tokens in too short a time.
    RateLimit,
    /// The provider cannot answer for now, or failed.
    Overloaded,
    /// The key is missing, wrong or not good for this.
    Auth,
    /// Messages, calls and results do not stand as the API demands.
    Structure,
    /// Reasoning, a signature or another opaque block is not taken back.
    OpaqueContent,
    /// A picture, document or recording is too large, one too many, or not taken;
    /// or the request has too many bytes, which are theirs as a rule.
    Media,
    /// More output was asked for than the model gives, or than there is room for.
    OutputLimit,
    /// Request or answer offend against what the provider allows.
    ContentPolicy,
    /// The connection failed, or no answer came.
    Network,
    /// The account has no money or quota left.
    Quota,
    /// The request is wrong in some other way.
    BadRequest,
    /// The provider reports success, but there is no answer to be used.
    InvalidAnswer,
    /// None of these.
    Unknown,
}

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Make the window smaller, and call again.
    CompactAndRetry,
    /// Call again after a pause, which grows.
    BackOff,
    /// Restore the window anew: what it holds is not what the API takes.
    Repair,
    /// Leave opaque blocks out, as wholes, and call again.
    DropOpaque,
    /// Leave out or shrink pictures and documents, and call again.
    DropMedia,
    /// Ask for less output, and call again.
    ShrinkOutput,
    /// Nothing that the worker can do by itself.
    GiveUp,
}

impl FailureClass {
    /// What to do about it.
    pub fn action(self) -> Action {
        match self {
            Self::ContextOverflow => Action::CompactAndRetry,
            Self::RateLimit | Self::Overloaded | Self::Network | Self::InvalidAnswer | Self::Unknown => {
                Action::BackOff
            }
            Self::Structure => Action::Repair,
            Self::OpaqueContent => Action::DropOpaque,
            Self::Media => Action::DropMedia,
            Self::OutputLimit => Action::ShrinkOutput,
            Self::Auth | Self::ContentPolicy | Self::Quota | Self::BadRequest => Action::GiveUp,
        }
    }
}

/// What is known of a failure.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailureReport<'a> {
    /// Wire format of the request, if it is known.
    pub format: Option<WireFormat>,
    /// HTTP status, if there was an answer.
    pub status: Option<u16>,
    /// The provider's code or type, or the stop reason of an answer.
    pub code: &'a str,
    /// The message: a text, or the body of the answer.
    pub message: &'a str,
    /// Tokens of the request, more or less.
    pub tokens: Option<u64>,
    /// Tokens of the model's context window.
    pub context_window: Option<u64>,
    /// Whether the connection ended before the answer did.
    pub connection_lost: bool,
}

/// Bytes of a message that are looked at: the longest known ones have some
/// hundred.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// Levels of JSON inside JSON that are looked into: routers pass on a provider's
/// body as a string in theirs.
const NESTING_MAX: usize = 4;

/// Tokens over which a request may be why a connection broke without a word.
const LARGE_TOKENS: u64 = 120_000;
/// The same as a share of the context window, in percent.
const LARGE_PERCENT: u128 = 60;

/// Says what a failure is.
pub fn classify(report: &FailureReport<'_>) -> FailureClass {
    let text = searchable(report);
    // Gemini says this of its rate limits, OpenAI of an account without money.
    if report.format == Some(WireFormat::GeminiContents) && text.contains("exceeded your current quota") {
        return FailureClass::RateLimit;
    }
    if let Some(class) = by_code(report.code).or_else(|| by_sum(&text)).or_else(|| by_text(&text)) {
        return class;
    }
    match report.status {
        None => without_status(report, &text),
        Some(status) => by_status(status, report),
    }
}

/// Code and message in one: in lower case, with what is in nested JSON, and
/// without quotation marks, of which each server has its own.
fn searchable(report: &FailureReport<'_>) -> String {
    let end = report.message.floor_char_boundary(MESSAGE_BYTES_MAX);
    let message = report.message.get(..end).unwrap_or_default();
    let mut text = format!("{} {message}", report.code);
    unwrap(message, NESTING_MAX, &mut text);
    text.retain(|c| !matches!(c, '\'' | '"' | '`' | '\\' | '“' | '”'));
    text.to_lowercase()
}

/// Adds the strings in a text that is JSON.
fn unwrap(text: &str, levels: usize, found: &mut String) {
    if levels > 0
        && text.trim_start().starts_with(['{', '['])
        && let Ok(value) = serde_json::from_str(text)
    {
        strings(&value, levels, found);
    }
}

/// `value` is no deeper than `serde_json` reads.
fn strings(value: &serde_json::Value, levels: usize, found: &mut String) {
    match value {
        serde_json::Value::String(text) => {
            found.push(' ');
            found.push_str(text);
            unwrap(text, levels - 1, found);
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| strings(value, levels, found)),
        serde_json::Value::Object(members) => {
            members.values().for_each(|value| strings(value, levels, found));
        }
        _ => {}
    }
}

/// Codes and stop reasons that are common words, so that no text is searched for
/// them.
fn by_code(code: &str) -> Option<FailureClass> {
    match code.to_ascii_lowercase().as_str() {
        "refusal" | "safety" | "recitation" | "blocklist" | "spii" => Some(FailureClass::ContentPolicy),
        _ => None,
    }
}

/// Anthropic's "input length and `max_tokens` exceed context limit: A + B > C":
/// if the input alone has room, less output is enough.
fn by_sum(text: &str) -> Option<FailureClass> {
    let (_, sum) = text.split_once("max_tokens exceed context limit:")?;
    let mut numbers = sum.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
    let (input, _, limit) = (numbers.next(), numbers.next(), numbers.next());
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    match (number(input), number(limit)) {
        (Some(input), Some(limit)) if input < limit => Some(FailureClass::OutputLimit),
        _ => Some(FailureClass::ContextOverflow),
    }
}

fn by_text(text: &str) -> Option<FailureClass> {
    let has_all = |parts: &&[&str]| parts.iter().all(|part| text.contains(part));
    RULES.iter().find(|(_, texts)| texts.iter().any(&has_all)).map(|(class, _)| *class)
}

fn without_status(report: &FailureReport<'_>, text: &str) -> FailureClass {
    let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let is_lost = report.connection_lost || has(LOST);
    if is_lost && is_large(report) == Some(true) && !has(TLS) && !has(SLOW) {
        FailureClass::ContextOverflow
    } else if is_lost || has(TLS) || has(SLOW) || has(UNREACHABLE) {
        FailureClass::Network
    } else {
        FailureClass::Unknown
    }
}

fn is_large(report: &FailureReport<'_>) -> Option<bool> {
    let tokens = report.tokens?;
    let is_large_share = report
        .context_window
        .filter(|window| *window > 0)
        .is_some_and(|window| u128::from(tokens) * 100 > u128::from(window) * LARGE_PERCENT);
    Some(tokens > LARGE_TOKENS || is_large_share)
}

fn by_status(status: u16, report: &FailureReport<'_>) -> FailureClass {
    // Cerebras and some of Mistral's answer an overflow with a status alone.
    let is_mute = report.message.trim().is_empty() && report.code.is_empty();
    match status {
        400 | 413 if is_mute && is_large(report) == Some(true) => FailureClass::ContextOverflow,
        413 if is_mute && is_large(report).is_none() => FailureClass::ContextOverflow,
        413 => FailureClass::Media,
        401 | 403 => FailureClass::Auth,
        402 => FailureClass::Quota,
        408 => FailureClass::Network,
        429 => FailureClass::RateLimit,
        300..=499 => FailureClass::BadRequest,
        500..=599 => FailureClass::Overloaded,
        _ => FailureClass::Unknown,
    }
}

/// A message by its parts, all of which must be there: in lower case, without
/// quotation marks.
type Parts = &'static [&'static str];

/// The classes with their messages. What may hold the words of an overflow and is
/// none comes first.
const RULES: &[(FailureClass, &[Parts])] = &[
    // Gemini's, if its format is not known.
    (FailureClass::RateLimit, &[&["exceeded your current quota", "resource_exhausted"]]),
    (
        FailureClass::Quota,
        &[
            &["credit balance"],
            &["insufficient_quota"],
            &["exceeded your current quota"],
            &["insufficient balance"],
            &["insufficient credits"],
            &["billing hard limit"],
            &["billing_hard_limit"],
            &["payment required"],
            &["spending limit"],
            &["spend limit"],
            // A tier of the account, for requests that would otherwise be taken.
            &["extra usage", "long context"],
        ],
    ),
    (
        FailureClass::RateLimit,
        &[
            &["tokens per min"],
            &["requests per min"],
            &["tokens per day"],
            &["requests per day"],
            &["(tpm)"],
            &["rate limit"],
            &["rate_limit"],
            &["ratelimit"],
            &["too many requests"],
            &["too many tokens, please wait"],
            &["throttling"],
            &["resource_exhausted"],
            &["resource has been exhausted"],
        ],
    ),
    (
        FailureClass::ContentPolicy,
        &[
            &["content_policy"],
            &["content policy"],
            &["content management policy"],
            &["content_filter"],
            &["content filter"],
            &["responsibleaipolicyviolation"],
            &["prohibited_content"],
            &["safety system"],
            &["due to safety"],
            &["requires moderation"],
            &["was flagged"],
            &["usage polic"],
        ],
    ),
    (
        FailureClass::Media,
        &[
            &["image exceeds"],
            &["image dimensions exceed"],
            &["too much media"],
            &["could not process image"],
            &["could not process pdf"],
            &["maximum of", "pdf pages"],
            &["unsupported image"],
            &["invalid image"],
            &["image too large"],
            &["request_too_large"],
            &["request exceeds the maximum size"],
            // Servers of Chat Completions that take no pictures in results.
            &["expected string, got list"],
            &["text is not set"],
        ],
    ),
    (
        FailureClass::Structure,
        &[&["string too long"], &["string_above_max_length"], &["tool call id was", "with a length of 9"]],
    ),
    (FailureClass::BadRequest, &[&["minimum token count to start caching"]]),
    (
        FailureClass::OutputLimit,
        &[
            &["maximum allowed number of output tokens"],
            &["maximum tokens you requested exceeds the model limit"],
            &["max_tokens", "range"],
            &["max_tokens", "too large"],
            &["max_tokens", "provided"],
            &["max_tokens", "at most"],
            &["max_tokens", "less than or equal"],
            &["max_completion_tokens", "range"],
            &["max_completion_tokens", "at most"],
            &["max_completion_tokens", "less than or equal"],
            &["max_completion_tokens", "too large"],
            &["max_output_tokens", "range"],
            &["max_output_tokens", "at most"],
            &["max_output_tokens", "less than or equal"],
            &["maxoutputtokens", "range"],
        ],
    ),
    (
        FailureClass::ContextOverflow,
        &[
            &["prompt is too long"],
            &["prompt too long"],
            &["exceed context limit"],
            &["model_context_window_exceeded"],
            &["context_length_exceeded"],
            &["exceed_context_size_error"],
            &["input is too long for requested model"],
            &["input token count", "exceeds the maximum number of tokens"],
            &["maximum context length"],
            &["exceeds the context window"],
            &["context window exceeds limit"],
            &["exceeds the available context size"],
            &["greater than the context length"],
            &["max_model_len"],
            &["maximum prompt length is"],
            &["reduce the length of the messages"],
            &["prompt token count of", "exceeds the limit"],
            &["exceeded model token limit"],
            &["range of input length should be"],
            &["超过最大长度"],
        ],
    ),
    (
        FailureClass::OpaqueContent,
        &[
            &["thinking", "cannot be modified"],
            &["invalid signature in thinking"],
            &["invalid data in redacted_thinking"],
            &["invalid_encrypted_content"],
            &["encrypted content", "could not be verified"],
            &["could not decode the compaction blob"],
            &["corrupted thought signature"],
            &["invalid thought signature"],
            &["reasoning_content", "extra inputs are not permitted"],
        ],
    ),
    (
        FailureClass::Structure,
        &[
            &["must be followed by tool messages"],
            &["insufficient tool messages"],
            &["messages with role tool must be a response"],
            &["no tool output found for function call"],
            &["no tool call found for function call output"],
            &["duplicate item found with id"],
            &["expected an id that begins with"],
            &["without its required"],
            &["tool_use ids were found without tool_result"],
            &["unexpected tool_use_id found in tool_result"],
            &["each tool_use must have a single result"],
            &["tool_use ids must be unique"],
            &["text content blocks must be non-empty"],
            &["cannot end with trailing whitespace"],
            &["does not support assistant message prefill"],
            &["expected thinking or redacted_thinking"],
            &["expected toolresult blocks"],
            &["number of toolresult blocks"],
            &["contentblock object at", "is blank"],
            &["number of function response parts"],
            &["function call turn comes immediately after"],
            &["function response turn comes immediately after"],
            &["missing a thought_signature"],
            &["not the same number of function calls and responses"],
            &["failed to parse tool call arguments"],
            &["invalid function arguments json string"],
            &["request body is not valid json"],
            &["no low surrogate"],
            &["roles must alternate"],
        ],
    ),
    (
        FailureClass::Auth,
        &[
            &["authentication_error"],
            &["permission_error"],
            &["invalid_api_key"],
            &["incorrect api key"],
            &["invalid x-api-key"],
            &["api key not valid"],
            &["accessdenied"],
            &["unrecognizedclient"],
            &["expiredtoken"],
        ],
    ),
    (
        FailureClass::Overloaded,
        &[
            &["overloaded"],
            &["service unavailable"],
            &["serviceunavailable"],
            &["temporarily unavailable"],
            &["internal server error"],
            &["internalserverexception"],
            &["server_error"],
            &["model is currently loading"],
            &["modelnotready"],
        ],
    ),
];

/// What is said of a connection that ended before the answer did.
const LOST: &[&str] = &[
    "server disconnected",
    "peer closed connection",
    "connection reset",
    "connection closed",
    "connection aborted",
    "incomplete chunked read",
    "incomplete message",
    "broken pipe",
    "unexpected eof",
];
/// The connection could not be secured, whatever was to be sent.
const TLS: &[&str] = &["tls", "ssl", "certificate", "handshake"];
/// A model that thinks long.
const SLOW: &[&str] = &["timed out", "timeout", "deadline exceeded"];
const UNREACHABLE: &[&str] =
    &["connection refused", "connection error", "dns error", "name resolution", "network is unreachable"];

#[cfg(test)]
mod tests;
