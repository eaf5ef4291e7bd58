//! Of a message with tool results that are too long, one value of each changes and
//! no other byte.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/json_writers.rs"]
mod json_writers;

use json_writers::as_python;
use proptest::prelude::*;
use serde_json::{Value, json};
use turnkeep::format::{self, with_values};
use turnkeep::model::{LengthUnit, Tokenizer, ToolResultLimit, WireFormat};
use turnkeep::preview::{Oversized, oversized_results};
use turnkeep::tokens::TokenCounter;

const FORMATS: [WireFormat; 5] = [
    WireFormat::OpenaiChat,
    WireFormat::OpenaiResponses,
    WireFormat::AnthropicMessages,
    WireFormat::GeminiContents,
    WireFormat::BedrockConverse,
];

const REFERENCE: &str = "turnkeep://sessions/s/outputs/0123456789abcdef0123456789abcdef";

/// What a result holds, in terms that all formats share.
#[derive(Clone, Debug)]
enum Content {
    Text(String),
    /// Texts and, where the format has them, pictures.
    List(Vec<Option<String>>),
    Members(Vec<(String, String)>),
}

const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

fn members(members: &[(String, String)]) -> Value {
    Value::Object(members.iter().map(|(key, text)| (key.clone(), Value::from(text.as_str()))).collect())
}

/// The message with a result of that content.
fn message(format: WireFormat, content: &Content) -> Value {
    let list = |text: &dyn Fn(&str) -> Value, picture: Value| match content {
        Content::Text(text) => Value::from(text.as_str()),
        Content::List(list) => {
            list.iter().map(|element| element.as_deref().map_or_else(|| picture.clone(), text)).collect()
        }
        Content::Members(found) => json!([text(&members(found).to_string())]),
    };
    match format {
        WireFormat::OpenaiChat | WireFormat::Opaque => {
            let picture = json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{PICTURE}")}});
            let content = list(&|text| json!({"type": "text", "text": text}), picture);
            json!({"role": "tool", "tool_call_id": "call_1", "content": content})
        }
        WireFormat::OpenaiResponses => {
            let picture =
                json!({"type": "input_image", "image_url": format!("data:image/png;base64,{PICTURE}")});
            let content = list(&|text| json!({"type": "input_text", "text": text}), picture);
            json!({"type": "function_call_output", "call_id": "call_1", "output": content})
        }
        WireFormat::AnthropicMessages => {
            let source = json!({"type": "base64", "media_type": "image/png", "data": PICTURE});
            let picture = json!({"type": "image", "source": source});
            let content = list(&|text| json!({"type": "text", "text": text}), picture);
            json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": content},
                {"type": "text", "text": "and what do you say?"}]})
        }
        WireFormat::GeminiContents => {
            let response = match content {
                Content::Text(text) => json!({"output": text}),
                Content::List(list) => json!({"list": list}),
                Content::Members(found) => members(found),
            };
            json!({"role": "user", "parts": [{"functionResponse": {"name": "grep", "response": response}}]})
        }
        WireFormat::BedrockConverse => {
            let picture = json!({"image": {"format": "png", "source": {"bytes": PICTURE}}});
            let content = match content {
                Content::Text(text) => json!([{"text": text}]),
                Content::List(_) => list(&|text| json!({"text": text}), picture),
                Content::Members(found) => json!([{"json": members(found)}]),
            };
            json!({"role": "user", "content": [{"toolResult": {"toolUseId": "call_1", "content": content}}]})
        }
    }
}

fn text() -> impl Strategy<Value = String> {
    let unit = prop_oneof![
        "\\PC{0,60}\n",
        any::<String>(),
        Just("\u{1b}[31mred\u{1b}[0m\r\n".to_owned()),
        Just("\0\0name\0".to_owned()),
        Just("\"\\\u{1}\u{7f}</script>&\t".to_owned()),
        Just("👩‍👩‍👧‍👦é漢字\u{2028}".to_owned()),
        Just("QUJDREVGR0g=".to_owned()),
    ];
    (proptest::collection::vec(unit, 0..4), 1_usize..250)
        .prop_map(|(units, times)| units.concat().repeat(times))
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        text().prop_map(Content::Text),
        proptest::collection::vec(proptest::option::weighted(0.8, text()), 0..5).prop_map(Content::List),
        (text(), 0_usize..200)
            .prop_map(|(text, times)| { Content::List(vec![Some(text.chars().take(40).collect()); times]) }),
        proptest::collection::vec(("[a-z]{1,9}", text()), 0..4).prop_map(Content::Members),
    ]
}

fn limit() -> impl Strategy<Value = ToolResultLimit> {
    let unit = prop_oneof![Just(LengthUnit::Characters), Just(LengthUnit::Bytes), Just(LengthUnit::Tokens)];
    let reserve = prop_oneof![3 => Just(0), 1 => 0_u64..700];
    let limit = |(length, reserve, unit)| ToolResultLimit {
        length,
        reserve: Some(reserve),
        unit,
        ..ToolResultLimit::default()
    };
    (2_000_u64..20_000, reserve, unit).prop_map(limit)
}

fn pictures(message: &[u8]) -> usize {
    std::str::from_utf8(message).unwrap().matches(PICTURE).count()
}

/// Length of the message with the result alone and so many pictures left out, as a limit
/// counts it, by the most verbose of writers.
fn length(
    format: WireFormat,
    message: &[u8],
    left_out: usize,
    limit: &ToolResultLimit,
    counter: TokenCounter,
) -> u64 {
    let mut message: Value = serde_json::from_slice(message).unwrap();
    if format == WireFormat::AnthropicMessages {
        message["content"].as_array_mut().unwrap().truncate(1);
    }
    let is_openai = matches!(format, WireFormat::OpenaiChat | WireFormat::OpenaiResponses);
    let picture = if is_openai { format!("data:image/png;base64,{PICTURE}") } else { PICTURE.to_owned() };
    let written =
        [message.to_string(), as_python(&message)].map(|text| text.replacen(&picture, "", left_out));
    let length = |text: &String| match limit.unit {
        LengthUnit::Characters => text.chars().count() as u64,
        LengthUnit::Bytes => text.len() as u64,
        LengthUnit::Tokens => {
            let mut reading = format::read(format, text.as_bytes());
            reading.parts.retain(|part| !matches!(part, format::Part::Media { .. }));
            counter.count_entry(&reading)
        }
    };
    // To a counter of tokens it is all the same how much is escaped.
    let known = if limit.unit == LengthUnit::Tokens { &written[..1] } else { &written };
    known.iter().map(length).max().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_value_changes_and_no_other_byte_and_the_message_keeps_to_the_limit(
        content in content(),
        format in proptest::sample::select(&FORMATS[..]),
        limit in limit(),
        is_pretty in any::<bool>(),
    ) {
        let original = message(format, &content);
        let payload = if is_pretty { format!("{original:#}").replace('\n', " ") } else { original.to_string() };
        let payload = payload.as_bytes();
        let counter = TokenCounter::new(format, Tokenizer::Estimate);
        let found = oversized_results(format, payload, limit, counter);
        prop_assert!(found.len() <= 1);
        let Some(oversized) = found.first() else {
            let length = length(format, payload, pictures(payload), &limit, counter);
            prop_assert!(length <= limit.length_max(), "{length} of {limit:?}");
            return Ok(());
        };
        let content = oversized.content().into_owned();
        let Some((preview, value)) = oversized.replaced(&content, REFERENCE) else {
            return Err(TestCaseError::fail("no room"));
        };
        prop_assert!(preview.text.contains(REFERENCE));
        let place = oversized.place();
        let changed = with_values(payload, &[(place.clone(), value.clone())]);
        prop_assert_eq!(&changed[..place.start], &payload[..place.start]);
        prop_assert_eq!(&changed[place.start..place.start + value.len()], value.as_bytes());
        prop_assert_eq!(&changed[place.start + value.len()..], &payload[place.end..]);
        // What is kept is what was there.
        let was = &payload[place];
        let text = serde_json::from_slice::<String>(was).ok();
        prop_assert_eq!(text.as_ref().map_or(was, |text| text.as_bytes()), &content[..]);
        let parsed: Value = serde_json::from_slice(&changed).unwrap();
        prop_assert!(parsed.is_object());
        // They are shown, and those of a list may be in its preview too.
        prop_assert!(pictures(&changed) >= pictures(payload));
        let length = length(format, &changed, pictures(payload), &limit, counter);
        prop_assert!(length <= limit.length_max(), "{length} of {limit:?}");
        // And it is not found again.
        prop_assert!(oversized_results(format, &changed, limit, counter).is_empty());
        let (before, after) = (format::read(format, payload), format::read(format, &changed));
        prop_assert_eq!((before.role, before.results), (after.role, after.results));
    }
}

#[test]
fn of_several_results_in_a_message_each_is_judged_by_itself() {
    let limit = ToolResultLimit { length: 2_000, reserve: Some(0), ..ToolResultLimit::default() };
    let format = WireFormat::AnthropicMessages;
    let result = |id: &str, length: usize| json!({"type": "tool_result", "tool_use_id": id, "content": "x".repeat(length)});
    let results: Vec<_> =
        [("a", 1_000), ("b", 3_000), ("c", 1_500), ("d", 2_500)].map(|(id, n)| result(id, n)).into();
    let payload = json!({"role": "user", "content": results}).to_string();
    let counter = TokenCounter::new(format, Tokenizer::Estimate);
    let found = oversized_results(format, payload.as_bytes(), limit, counter);
    let ids: Vec<_> = found.iter().map(Oversized::call_id).collect();
    assert_eq!(ids, ["b", "d"]);
}

#[test]
fn outputs_of_a_shell_keep_their_form() {
    let limit = ToolResultLimit { length: 2_000, reserve: Some(0), ..ToolResultLimit::default() };
    let format = WireFormat::OpenaiResponses;
    let counter = TokenCounter::new(format, Tokenizer::Estimate);
    for (stdout, stderr) in [(5_000, 10), (10, 5_000), (5_000, 5_000)] {
        let outcome = json!({"type": "exit", "exit_code": 3});
        let command = json!({"stdout": "o".repeat(stdout), "stderr": "e".repeat(stderr), "outcome": outcome});
        let item = json!({"type": "shell_call_output", "call_id": "c", "output": [command]});
        let payload = item.to_string();
        let found = oversized_results(format, payload.as_bytes(), limit, counter);
        let [oversized] = &found[..] else { panic!("{found:?}") };
        let (_, value) = oversized.replaced(&oversized.content(), REFERENCE).unwrap();
        let changed = with_values(payload.as_bytes(), &[(oversized.place(), value)]);
        let changed: serde_json::Value = serde_json::from_slice(&changed).unwrap();
        let command = changed["output"][0].as_object().unwrap();
        assert_eq!(command.keys().collect::<Vec<_>>(), ["outcome", "stderr", "stdout"]);
        assert_eq!(command["outcome"], outcome);
        assert_eq!(changed["output"].as_array().unwrap().len(), 1);
        assert!(changed.to_string().len() <= 2_000);
    }
}

/// Windows show them as the API takes them, at whatever length.
#[test]
fn responses_that_are_no_objects_give_way_too() {
    let limit = ToolResultLimit { length: 2_000, reserve: Some(0), ..ToolResultLimit::default() };
    let format = WireFormat::GeminiContents;
    let counter = TokenCounter::new(format, Tokenizer::Estimate);
    let numbers: Vec<_> = (0..2_000).collect();
    for (response, kept) in
        [(json!("x".repeat(5_000)), "x".repeat(5_000)), (json!(numbers), json!(numbers).to_string())]
    {
        let message =
            json!({"role": "user", "parts": [{"functionResponse": {"name": "grep", "response": response}}]});
        let payload = message.to_string();
        let found = oversized_results(format, payload.as_bytes(), limit, counter);
        let [oversized] = &found[..] else { panic!("{found:?}") };
        assert_eq!(oversized.content(), kept.as_bytes());
        let (preview, value) = oversized.replaced(&oversized.content(), REFERENCE).unwrap();
        let changed = with_values(payload.as_bytes(), &[(oversized.place(), value)]);
        let changed: Value = serde_json::from_slice(&changed).unwrap();
        let response = &changed["parts"][0]["functionResponse"]["response"];
        let expected =
            if response.is_string() { json!(preview.text) } else { json!({"output": preview.text}) };
        assert_eq!(*response, expected);
        assert!(changed.to_string().len() <= 2_000);
    }
}
