//! Whatever a tool gives out, the message with it or with its preview keeps to the
//! limit.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/json_writers.rs"]
mod json_writers;

use json_writers::as_python;
use proptest::prelude::*;
use serde_json::{Value, json};
use turnkeep::format;
use turnkeep::model::{LengthUnit, Tokenizer, ToolResultLimit, WireFormat};
use turnkeep::preview::{Ends, Measure, Options, ToolResult, fitting_prefix, oversized_results};
use turnkeep::tokens::TokenCounter;

const FORMATS: [WireFormat; 6] = [
    WireFormat::OpenaiChat,
    WireFormat::OpenaiResponses,
    WireFormat::AnthropicMessages,
    WireFormat::GeminiContents,
    WireFormat::BedrockConverse,
    WireFormat::Opaque,
];

const REFERENCE: &str = "turnkeep://sessions/s/outputs/0123456789abcdef0123456789abcdef";

/// The messages that a worker may make of a text.
fn messages(format: WireFormat, id: &str, name: &str, text: &str) -> Vec<Value> {
    match format {
        WireFormat::OpenaiChat | WireFormat::Opaque => vec![
            json!({"role": "tool", "tool_call_id": id, "content": text}),
            json!({"role": "tool", "tool_call_id": id, "name": name, "content": text}),
            json!({"role": "tool", "tool_call_id": id, "content": [{"type": "text", "text": text}]}),
        ],
        WireFormat::OpenaiResponses => vec![
            json!({"type": "function_call_output", "call_id": id, "output": text}),
            json!({"type": "function_call_output", "call_id": id, "output": text, "status": "completed"}),
            json!({"type": "function_call_output", "call_id": id,
                "output": [{"type": "input_text", "text": text}]}),
        ],
        WireFormat::AnthropicMessages => vec![
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "is_error": false,
                "content": [{"type": "text", "text": text}]}]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id,
                "content": [{"type": "text", "text": text}], "cache_control": {"type": "ephemeral"}}]}),
        ],
        WireFormat::GeminiContents => vec![
            json!({"role": "user", "parts": [{"functionResponse": {"name": name,
                "response": {"output": text}}}]}),
            json!({"role": "user", "parts": [{"functionResponse": {"id": id, "name": name,
                "response": {"result": text}}}]}),
        ],
        WireFormat::BedrockConverse => {
            vec![json!({"role": "user", "content": [{"toolResult": {"toolUseId": id,
                "content": [{"text": text}], "status": "success"}}]})]
        }
    }
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    let unit = prop_oneof![
        "\\PC{0,60}\n".prop_map(String::into_bytes),
        any::<String>().prop_map(String::into_bytes),
        Just(b"\x1b[31mred\x1b[0m and \x1b]8;;http://x\x07link\x1b]8;;\x07\r\n".to_vec()),
        Just(b"\0\0\0name\0other\0".to_vec()),
        Just("\"\\\u{1}\u{7f}</script>&\t\n".as_bytes().to_vec()),
        Just("👩‍👩‍👧‍👦é漢字\u{2028}".as_bytes().to_vec()),
        Just(b"\xff\xfe\x80\xe2\x82".to_vec()),
        Just(b"QUJDREVGR0g=".to_vec()),
        Just(b"/////////////".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..80),
    ];
    (proptest::collection::vec(unit, 1..6), 1_usize..400)
        .prop_map(|(units, times)| units.concat().repeat(times))
}

fn unit() -> impl Strategy<Value = (LengthUnit, Tokenizer)> {
    prop_oneof![
        Just((LengthUnit::Characters, Tokenizer::Estimate)),
        Just((LengthUnit::Bytes, Tokenizer::Estimate)),
        Just((LengthUnit::Tokens, Tokenizer::Estimate)),
        Just((LengthUnit::Tokens, Tokenizer::O200k)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_content_the_finished_message_keeps_to_the_limit(
        content in content(),
        format in proptest::sample::select(&FORMATS[..]),
        (unit, tokenizer) in unit(),
        (length, reserve) in (2_000_u64..20_000, prop_oneof![Just(Some(0)), Just(None), (0_u64..1_000).prop_map(Some)]),
        id in "[a-zA-Z0-9_\"\\\\é-]{0,64}",
        name in "[a-z_]{1,40}",
        head_percent in 0_u8..=100,
    ) {
        let limit = ToolResultLimit { length, reserve, unit, ..ToolResultLimit::default() };
        let length_max = limit.length_max_of_text();
        prop_assert!(length_max < limit.length_max());
        let counter = TokenCounter::new(format, tokenizer);
        let result = ToolResult::new(format, &id, &name, unit, counter);
        let text = if result.fits(&content, &limit) {
            String::from_utf8_lossy(&content).into_owned()
        } else {
            let shown_max = usize::try_from(length_max * result.escaped_per_unit()).unwrap();
            let options = Options { length_max, measure: &result, head_percent, reference: REFERENCE };
            Ends::of(&content, shown_max).preview(&options).unwrap().text
        };
        for message in messages(format, &id, &name, &text) {
            // A persist does not take it for too long, however it is written.
            for written in [message.to_string(), as_python(&message)] {
                let found = oversized_results(format, written.as_bytes(), limit, counter);
                prop_assert!(found.is_empty(), "{written}");
            }
            match unit {
                LengthUnit::Characters | LengthUnit::Bytes => {
                    prop_assert!(message.to_string().len() as u64 <= length_max, "{message}");
                    prop_assert!(as_python(&message).len() as u64 <= length_max, "{message}");
                }
                LengthUnit::Tokens => {
                    let message = message.to_string();
                    let tokens = counter.count_entry(&format::read(format, message.as_bytes()));
                    prop_assert!(tokens <= length_max, "{format:?} {tokenizer:?} measured {} is {tokens} of {length_max}: {message}", result.length(&text));
                }
            }
        }
    }

    #[test]
    fn a_fitting_prefix_fits_and_one_more_character_would_not(content in content(), max in 0_u64..5_000) {
        let bytes = fitting_prefix(&content, max);
        let escaped = |bytes: &[u8]| turnkeep::preview::Escaped.length(&String::from_utf8_lossy(bytes));
        prop_assert!(escaped(&content[..bytes]) <= max);
        if let Some(rest) = content.get(bytes..).filter(|rest| !rest.is_empty()) {
            let chunk = rest.utf8_chunks().next().unwrap();
            let next = chunk.valid().chars().next().map_or(chunk.invalid().len(), char::len_utf8);
            prop_assert!(escaped(&content[..bytes]) + escaped(&rest[..next]) > max);
        }
    }
}

#[test]
fn by_default_a_text_of_80_000_characters_less_what_stands_around_it_is_the_longest() {
    let limit = ToolResultLimit::default();
    assert_eq!((limit.length, limit.length_max(), limit.length_max_of_text()), (100_000, 80_000, 79_488));
    let counter = TokenCounter::new(WireFormat::OpenaiChat, Tokenizer::O200k);
    let result = ToolResult::new(WireFormat::OpenaiChat, "call_1", "grep", limit.unit, counter);
    let most = usize::try_from(79_488 - result.envelope()).unwrap();
    assert!((79_300..79_488).contains(&most), "{most}");
    assert!(result.fits(&vec![b'x'; most], &limit));
    assert!(!result.fits(&vec![b'x'; most + 1], &limit));
    // Each line break takes two.
    assert!(result.fits(&vec![b'\n'; most / 2], &limit));
    assert!(!result.fits(&vec![b'\n'; most / 2 + 1], &limit));
    assert!(!result.fits(&vec![0xff; most * 3 / 4], &limit));
}
