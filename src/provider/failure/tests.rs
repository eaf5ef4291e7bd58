use super::*;
use FailureClass::{
    Auth, BadRequest, ContentPolicy, ContextOverflow, Media, Network, OpaqueContent, OutputLimit, Overloaded,
    Quota, RateLimit, Structure, Unknown,
};

fn of(status: u16, message: &str) -> FailureClass {
    classify(&FailureReport { status: Some(status), message, ..FailureReport::default() })
}

/// Status, text, class. Texts with an ellipsis are as they have been reported.
const TABLE: &[(u16, &str, FailureClass)] = &[
    // OpenAI Chat Completions.
    (
        400,
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: call_1",
        Structure,
    ),
    (400, "(insufficient tool messages following tool_calls message)", Structure),
    (
        400,
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
        Structure,
    ),
    (
        400,
        r#"messages with role "tool" must be a response to a preceeding message with "tool_calls"."#,
        Structure,
    ),
    (400, "failed to parse tool call arguments as json", Structure),
    (400, "invalid function arguments json string", Structure),
    (400, "expected string, got list", Media),
    (400, "text is not set", Media),
    (
        400,
        "Invalid 'messages[3].tool_call_id': string too long. Expected a string with maximum length 40, but got a string with length 64 instead.",
        Structure,
    ),
    (400, "messages.1.reasoning_content: Extra inputs are not permitted", OpaqueContent),
    (400, "messages.1.cache: Extra inputs are not permitted", BadRequest),
    // OpenAI Responses.
    (400, "Invalid 'input[5].id': 'x'. Expected an ID that begins with 'rs_'.", Structure),
    (
        400,
        "Duplicate item found with id fc_1. Remove duplicate items from your input and try again.",
        Structure,
    ),
    (
        400,
        "Invalid 'input[2].call_id': string too long. Expected a string with maximum length 64, but got a string with length 68 instead.",
        Structure,
    ),
    (400, "No tool output found for function call call_1.", Structure),
    (400, "No tool call found for function call output with call_id call_1.", Structure),
    (400, "Item 'rs_1' of type 'reasoning' was provided without its required following item.", Structure),
    (
        400,
        "Item 'msg_1' of type 'message' was provided without its required 'reasoning' item: 'rs_1'.",
        Structure,
    ),
    (
        400,
        r#"{"error":{"message":"The encrypted content gAAA… could not be verified.","code":"invalid_encrypted_content"}}"#,
        OpaqueContent,
    ),
    (
        400,
        "Could not decode the compaction blob. Ensure it is unmodified from the compact response.",
        OpaqueContent,
    ),
    // Anthropic Messages.
    (
        400,
        "messages.3: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
        Structure,
    ),
    (
        400,
        "messages.4.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1. Each `tool_result` block must have a corresponding `tool_use` block in the previous message.",
        Structure,
    ),
    (
        400,
        "each tool_use must have a single result. Found multiple `tool_result` blocks with id: toolu_1",
        Structure,
    ),
    (400, "messages.5.content.1: `tool_use` ids must be unique", Structure),
    (400, "messages: text content blocks must be non-empty", Structure),
    (400, "messages: final assistant content cannot end with trailing whitespace", Structure),
    (
        400,
        "This model does not support assistant message prefill. The conversation must end with a user message.",
        Structure,
    ),
    (
        400,
        "messages.1.content.0: The `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must remain as they were in the original response.",
        OpaqueContent,
    ),
    (400, "messages.1.content.0: Invalid `signature` in `thinking` block", OpaqueContent),
    (400, "messages.1.content.0: Invalid `data` in `redacted_thinking` block", OpaqueContent),
    (
        400,
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`. When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks).",
        Structure,
    ),
    (
        400,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 207547 tokens > 200000 maximum"}}"#,
        ContextOverflow,
    ),
    (
        400,
        "input length and `max_tokens` exceed context limit: 180000 + 64000 > 200000, decrease input length or `max_tokens` and try again",
        OutputLimit,
    ),
    (
        400,
        "input length and `max_tokens` exceed context limit: 201000 + 64000 > 200000, decrease input length or `max_tokens` and try again",
        ContextOverflow,
    ),
    (400, "input length and `max_tokens` exceed context limit", ContextOverflow),
    (413, r#"{"error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#, Media),
    (429, "Extra usage is required for long context requests.", Quota),
    (
        400,
        "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 5316852 bytes > 5242880 bytes",
        Media,
    ),
    (400, "At least one of the image dimensions exceed max allowed size: 8000 pixels", Media),
    (
        400,
        "At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels",
        Media,
    ),
    (400, "Too much media: 0 document pages + 101 images > 100", Media),
    (400, "Could not process image", Media),
    (
        400,
        "The request body is not valid JSON: no low surrogate in string: line 1 column 9 (char 8)",
        Structure,
    ),
    (
        400,
        "max_tokens: 128000 > 64000, which is the maximum allowed number of output tokens for claude-x",
        OutputLimit,
    ),
    // Bedrock Converse.
    (
        400,
        "ValidationException: Expected toolResult blocks at messages.2.content for the following Ids: tooluse_1",
        Structure,
    ),
    (
        400,
        "The number of toolResult blocks at messages.2.content exceeds the number of toolUse blocks of previous turn.",
        Structure,
    ),
    (
        400,
        "The text field in the ContentBlock object at messages.0.content.0 is blank. Add text to the text field, and try again.",
        Structure,
    ),
    (400, "ValidationException: Input is too long for requested model", ContextOverflow),
    (400, "The maximum tokens you requested exceeds the model limit of 8192.", OutputLimit),
    (429, "ThrottlingException: Too many tokens, please wait before trying again.", RateLimit),
    // Gemini.
    (
        400,
        "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.",
        Structure,
    ),
    (
        400,
        "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
        Structure,
    ),
    (400, "Function call `f` in the 2. content block is missing a `thought_signature`.", Structure),
    (
        400,
        "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly",
        Structure,
    ),
    (400, "Corrupted thought signature.", OpaqueContent),
    (400, "Invalid thought signature", OpaqueContent),
    (
        400,
        r#"{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#,
        ContextOverflow,
    ),
    (
        429,
        r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED"}}"#,
        RateLimit,
    ),
    (
        400,
        "Unable to submit request because it has a maxOutputTokens value of 128000 but the supported range is from 1 (inclusive) to 65537 (exclusive).",
        OutputLimit,
    ),
    // Other servers.
    (
        400,
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens. Please reduce the length of the messages.",
        ContextOverflow,
    ),
    (400, r#"{"error":{"message":"x","code":"context_length_exceeded"}}"#, ContextOverflow),
    (400, "Your input exceeds the context window of this model", ContextOverflow),
    (
        400,
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 tokens",
        ContextOverflow,
    ),
    (
        502,
        r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"prompt is too long: 9 tokens > 8 maximum\"}}"}}}"#,
        ContextOverflow,
    ),
    (
        400,
        "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
        ContextOverflow,
    ),
    (400, "Please reduce the length of the messages or completion", ContextOverflow),
    (400, "the request exceeds the available context size, try increasing it", ContextOverflow),
    (
        400,
        "The number of tokens to keep from the initial prompt is greater than the context length.",
        ContextOverflow,
    ),
    (
        400,
        "The decoder prompt (length 9000) is longer than the maximum model length; see max_model_len",
        ContextOverflow,
    ),
    (400, "prompt token count of 140000 exceeds the limit of 128000", ContextOverflow),
    (400, "invalid params, context window exceeds limit (2013)", ContextOverflow),
    (400, "Invalid request: Your request exceeded model token limit: 131072", ContextOverflow),
    (
        400,
        "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
        ContextOverflow,
    ),
    (400, r#"{"code":3230,"message":"Not the same number of function calls and responses"}"#, Structure),
    (
        400,
        r#"{"code":3280,"message":"Tool call id was call_123 but must be a-z, A-Z, 0-9, with a length of 9."}"#,
        Structure,
    ),
    (400, r#"{"error":{"message":"\u8d85\u8fc7\u6700\u5927\u957f\u5ea6"}}"#, ContextOverflow),
    (400, "Range of input length should be [1, 30720]", ContextOverflow),
    // What only looks like an overflow.
    (400, "Invalid value for max_tokens: must be at most 65536, provided 128000", OutputLimit),
    (400, "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", OutputLimit),
    (
        400,
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the `context_window` for this model",
        OutputLimit,
    ),
    (
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        BadRequest,
    ),
    (
        429,
        "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 40000. The input or output tokens must be reduced in order to run successfully.",
        RateLimit,
    ),
    (429, "Rate limit reached for requests", RateLimit),
    (
        400,
        "The cached content is of 900 tokens. The minimum token count to start caching is 2048.",
        BadRequest,
    ),
    (400, "Your credit balance is too low to access the Anthropic API.", Quota),
    (
        429,
        r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","code":"insufficient_quota"}}"#,
        Quota,
    ),
    (402, "Insufficient Balance", Quota),
    // The rest.
    (401, r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#, Auth),
    (400, "API key not valid. Please pass a valid API key.", Auth),
    (403, "", Auth),
    (403, "The input was flagged by moderation", ContentPolicy),
    (
        400,
        "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        ContentPolicy,
    ),
    (400, "Output blocked by content filtering policy", ContentPolicy),
    (529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, Overloaded),
    (200, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, Overloaded),
    (500, "Internal server error", Overloaded),
    (503, "", Overloaded),
    (429, "", RateLimit),
    (402, "", Quota),
    (404, "model not found", BadRequest),
    (422, "x", BadRequest),
    (302, "", BadRequest),
    (408, "", Network),
    (413, "too big", Media),
    (200, "", Unknown),
];

#[test]
fn every_known_message_has_its_class() {
    let wrong: Vec<_> = TABLE
        .iter()
        .filter(|(status, text, class)| of(*status, text) != *class)
        .map(|(status, text, class)| (status, text, class, of(*status, text)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_code_or_stop_reason_is_enough() {
    let of = |code| classify(&FailureReport { status: Some(200), code, ..FailureReport::default() });
    assert_eq!(of("model_context_window_exceeded"), ContextOverflow);
    assert_eq!([of("refusal"), of("SAFETY"), of("content_filter")], [ContentPolicy; 3]);
    assert_eq!(of("string_above_max_length"), Structure);
    assert_eq!(of("stop"), Unknown);
}

/// A server that breaks off without a word has been given too much, if it was
/// given much.
#[test]
fn a_lost_connection_is_an_overflow_only_of_a_large_request() {
    let lost = |message, tokens, context_window| {
        classify(&FailureReport {
            message,
            tokens,
            context_window,
            connection_lost: true,
            ..FailureReport::default()
        })
    };
    assert_eq!(lost("", Some(120_001), None), ContextOverflow);
    assert_eq!(lost("", Some(120_000), None), Network);
    assert_eq!(lost("", Some(6_001), Some(10_000)), ContextOverflow);
    assert_eq!(lost("", Some(6_000), Some(10_000)), Network);
    assert_eq!(lost("", Some(1), Some(0)), Network);
    assert_eq!(lost("", None, Some(10_000)), Network);
    assert_eq!(lost("received fatal alert: TLS handshake failure", Some(200_000), None), Network);
    assert_eq!(lost("The read operation timed out", Some(200_000), None), Network);
    for text in [
        "Server disconnected without sending a response.",
        "peer closed connection without sending complete message body (incomplete chunked read)",
        "Connection reset by peer",
    ] {
        let of = |tokens| {
            classify(&FailureReport { message: text, tokens: Some(tokens), ..FailureReport::default() })
        };
        assert_eq!((of(200_000), of(2_000)), (ContextOverflow, Network), "{text}");
    }
    // With a status there was an answer.
    let answered = FailureReport {
        status: Some(500),
        tokens: Some(200_000),
        connection_lost: true,
        ..FailureReport::default()
    };
    assert_eq!(classify(&answered), Overloaded);
    let refused = FailureReport { message: "connection refused", ..FailureReport::default() };
    assert_eq!(classify(&refused), Network);
    assert_eq!(classify(&FailureReport::default()), Unknown);
}

#[test]
fn a_status_without_a_body_is_an_overflow_of_a_large_request() {
    let of = |status, tokens| {
        classify(&FailureReport { status: Some(status), tokens, ..FailureReport::default() })
    };
    assert_eq!([of(400, Some(130_000)), of(413, Some(130_000)), of(413, None)], [ContextOverflow; 3]);
    assert_eq!([of(400, Some(100)), of(400, None)], [BadRequest; 2]);
    assert_eq!(of(413, Some(100)), Media);
}

#[test]
fn each_class_says_what_to_do() {
    let actions = [
        (ContextOverflow, Action::CompactAndRetry),
        (RateLimit, Action::BackOff),
        (Overloaded, Action::BackOff),
        (Network, Action::BackOff),
        (Structure, Action::Repair),
        (OpaqueContent, Action::DropOpaque),
        (Media, Action::DropMedia),
        (OutputLimit, Action::ShrinkOutput),
        (Auth, Action::GiveUp),
        (Quota, Action::GiveUp),
    ];
    for (class, action) in actions {
        assert_eq!(class.action(), action, "{class:?}");
    }
}

#[test]
fn any_message_is_looked_at_in_bounded_time() {
    let nested = (0..10).fold("prompt is too long".to_owned(), |inner, _| {
        serde_json::to_string(&serde_json::json!({"error": {"message": inner}})).unwrap()
    });
    for message in ["é".repeat(20_000), "[".repeat(20_000), "{\"a\":".repeat(500), nested] {
        of(400, &message);
    }
}
