//! The judges of message lists are judged: by a table for each rule, and by
//! requests that providers took.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/checker.rs"]
mod checker;

#[path = "support/checker/anthropic_messages_cases.rs"]
mod anthropic_messages_cases;
#[path = "support/checker/bedrock_converse_cases.rs"]
mod bedrock_converse_cases;
#[path = "support/checker/gemini_contents_cases.rs"]
mod gemini_contents_cases;
#[path = "support/checker/openai_chat_cases.rs"]
mod openai_chat_cases;
#[path = "support/checker/openai_responses_cases.rs"]
mod openai_responses_cases;
#[path = "support/recorded.rs"]
mod recorded;

use checker::accepts;
use serde_json::{Value, json};
use turnkeep::model::WireFormat;

/// A message list and what the API says to it.
struct Case {
    messages: &'static str,
    /// The answer while something is still added at the end; empty if it is
    /// taken.
    open: &'static str,
    /// The answer if it is sent as it is; empty if it is taken.
    complete: &'static str,
}

impl Case {
    /// Taken as it is.
    const fn taken(messages: &'static str) -> Self {
        Self { messages, open: "", complete: "" }
    }

    /// Not to be sent as it is, but nothing is wrong with it so far.
    const fn open(messages: &'static str, complete: &'static str) -> Self {
        Self { messages, open: "", complete }
    }

    /// Refused, whatever is added.
    const fn refused(messages: &'static str, reason: &'static str) -> Self {
        Self { messages, open: reason, complete: reason }
    }
}

fn check_cases(format: WireFormat, cases: &[Case]) {
    for case in cases {
        let messages: Vec<Value> = serde_json::from_str(case.messages).expect(case.messages);
        for (complete, reason) in [(false, case.open), (true, case.complete)] {
            let answer = accepts(format, &messages, complete);
            let is_expected = match &answer {
                Ok(()) => reason.is_empty(),
                Err(error) => !reason.is_empty() && error.contains(reason),
            };
            assert!(
                is_expected,
                "{answer:?} instead of {reason:?} (complete: {complete}) for {}",
                case.messages
            );
        }
    }
}

#[test]
fn chat_lists_are_refused_for_the_reason_stated_and_no_other() {
    check_cases(WireFormat::OpenaiChat, openai_chat_cases::CASES);
}

#[test]
fn responses_lists_are_refused_for_the_reason_stated_and_no_other() {
    check_cases(WireFormat::OpenaiResponses, openai_responses_cases::CASES);
}

#[test]
fn anthropic_lists_are_refused_for_the_reason_stated_and_no_other() {
    check_cases(WireFormat::AnthropicMessages, anthropic_messages_cases::CASES);
}

#[test]
fn anthropic_media_are_refused_over_their_limits() {
    let image = |data: String| json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
    let of = |blocks: Vec<Value>| {
        accepts(WireFormat::AnthropicMessages, &[json!({"role":"user","content":blocks})], true)
    };
    assert_eq!(of(vec![image("A".repeat(6_990_504))]), Ok(()));
    let error = of(vec![image("A".repeat(6_990_512))]).unwrap_err();
    assert_eq!(error, "image exceeds 5 MB maximum: 5242884 bytes > 5242880 bytes");
    assert_eq!(of(vec![image("AAAA".to_owned()); 100]), Ok(()));
    let error = of(vec![image("AAAA".to_owned()); 101]).unwrap_err();
    assert_eq!(error, "Too much media: 0 document pages + 101 images > 100");
}

#[test]
fn converse_lists_are_refused_for_the_reason_stated_and_no_other() {
    check_cases(WireFormat::BedrockConverse, bedrock_converse_cases::CASES);
}

#[test]
fn gemini_lists_are_refused_for_the_reason_stated_and_no_other() {
    check_cases(WireFormat::GeminiContents, gemini_contents_cases::CASES);
}

#[test]
fn opaque_lists_are_always_taken() {
    assert_eq!(accepts(WireFormat::Opaque, &[], true), Ok(()));
    assert_eq!(accepts(WireFormat::Opaque, &[json!(1)], true), Ok(()));
}

// --- Recorded requests ---------------------------------------------------------

/// The files of a folder with that ending.
fn files(folder: &str, ending: &str) -> Option<Vec<(String, String)>> {
    let entries = std::fs::read_dir(recorded::folder()?.join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.to_string_lossy().ends_with(ending)).map(|path| {
        (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read_to_string(path).unwrap())
    });
    Some(files.collect())
}

fn assert_taken(name: &str, format: WireFormat, messages: &[Value]) {
    for complete in [true, false] {
        let answer = accepts(format, messages, complete);
        assert_eq!(answer, Ok(()), "{name}, {format}, {} messages, complete: {complete}", messages.len());
    }
}

/// The message list of a request's body, and its format.
fn messages_of(body: &Value) -> Option<(WireFormat, &Vec<Value>)> {
    let is_anthropic = body["max_tokens"].is_u64() && body["model"].as_str()?.starts_with("claude");
    let (format, messages) = match body {
        Value::Object(members) if members.contains_key("input") => {
            (WireFormat::OpenaiResponses, &members["input"])
        }
        Value::Object(members) if is_anthropic => (WireFormat::AnthropicMessages, members.get("messages")?),
        Value::Object(members) => (WireFormat::OpenaiChat, members.get("messages")?),
        _ => return None,
    };
    Some((format, messages.as_array()?))
}

#[test]
fn requests_in_recorded_exchanges_are_taken() {
    let mut counted = 0;
    for folder in ["anthropic-messages", "openai-responses", "openai-chat", "gemini"] {
        let Some(cassettes) = files(folder, ".yaml") else { return };
        for (name, yaml) in cassettes {
            let cassette: Value = serde_saphyr::from_str(&yaml).unwrap();
            for exchange in cassette["interactions"].as_array().unwrap() {
                let body = &exchange["request"]["parsed_body"];
                assert_eq!(exchange["response"]["status"]["code"], 200, "{name}");
                let of_gemini =
                    body["contents"].as_array().map(|contents| (WireFormat::GeminiContents, contents));
                if let Some((format, messages)) = of_gemini.or_else(|| messages_of(body)) {
                    assert_taken(&name, format, messages);
                    counted += 1;
                }
            }
        }
    }
    assert_eq!(counted, 27);
}

#[test]
fn requests_in_recorded_logs_are_taken() {
    let Some(exchanges) = files("anthropic-messages", "anthropic-sdk-runner-32da.json") else { return };
    let exchanges: Value = serde_json::from_str(&exchanges[0].1).unwrap();
    for exchange in exchanges.as_array().unwrap() {
        let (format, messages) = messages_of(&exchange["request"]["body"]).unwrap();
        assert_taken("anthropic-sdk-runner-32da.json", format, messages);
    }
    let logs = files("openai-chat", ".json").unwrap();
    let logs: Vec<_> = logs.iter().filter(|(name, _)| name.starts_with("ohsdk-")).collect();
    assert_eq!(logs.len(), 4);
    for (name, log) in logs {
        let log: Value = serde_json::from_str(log).unwrap();
        assert_taken(name, WireFormat::OpenaiChat, log["messages"].as_array().unwrap());
    }
}

#[test]
fn recorded_conversations_are_taken_as_they_were_before_each_answer() {
    let Some(files_of_chat) = files("openai-chat", "tau-bench-gpt-4o-airline.json") else { return };
    let trajectories: Value = serde_json::from_str(&files_of_chat[0].1).unwrap();
    let trajectories = trajectories.as_array().unwrap().iter().map(|run| &run["traj"]);
    check_before_each_answer("tau-bench", WireFormat::OpenaiChat, trajectories, "assistant", 2_454);
    let scenarios = files("gemini-compression-scenarios", ".json").unwrap();
    let scenarios: Vec<Value> =
        scenarios.iter().map(|(_, text)| serde_json::from_str(text).unwrap()).collect();
    let histories = scenarios.iter().map(|scenario| &scenario["history"]);
    check_before_each_answer("scenarios", WireFormat::GeminiContents, histories, "model", 537);
}

#[test]
fn recorded_items_are_taken_as_they_were_before_each_answer() {
    let Some(rollouts) = files("codex-rollout", ".jsonl") else { return };
    let mut counted = 0;
    // One recording is a sample of lines, no session.
    for (name, lines) in rollouts.iter().filter(|(name, _)| name != "as-codex-small-trimmed.jsonl") {
        let mut items: Vec<Value> = Vec::new();
        let lines = lines.lines().flat_map(|line| serde_json::Deserializer::from_str(line).into_iter());
        for line in lines.map(Result::<Value, _>::unwrap) {
            let payload = &line["payload"];
            match line["type"].as_str() {
                Some("compacted") => items = payload["replacement_history"].as_array().unwrap().clone(),
                Some("response_item") => {
                    if is_of_model(payload) && !items.last().is_some_and(is_of_model) {
                        assert_taken(name, WireFormat::OpenaiResponses, &items);
                        counted += 1;
                    }
                    items.push(payload.clone());
                }
                _ => {}
            }
        }
    }
    assert_eq!(counted, 1_213);
}

fn is_of_model(item: &Value) -> bool {
    item["role"] == "assistant"
        || item["type"] == "reasoning"
        || item["type"].as_str().unwrap().ends_with("_call")
}

fn check_before_each_answer<'a>(
    name: &str,
    format: WireFormat,
    conversations: impl Iterator<Item = &'a Value>,
    answerer: &str,
    expected: usize,
) {
    let mut counted = 0;
    for conversation in conversations {
        let messages = conversation.as_array().unwrap();
        let answers = messages.iter().enumerate().filter(|(_, message)| message["role"] == answerer);
        for (at, _) in answers {
            assert_taken(name, format, &messages[..at]);
            assert_eq!(accepts(format, &messages[..=at], false), Ok(()), "{name}, {at}");
            counted += 1;
        }
    }
    assert_eq!(counted, expected, "{name}");
}
