//! What each format reads in its messages and blocks.

use super::*;
use crate::format::read;
use crate::model::WireFormat;
use proptest::prelude::*;

/// A reading in one line: role, calls, results, parts, and what else is noted.
fn summary(format: WireFormat, payload: &str) -> String {
    let reading = read(format, payload.as_bytes());
    let mut words = vec![format!("{:?}", reading.role).to_lowercase()];
    let named = |sign: &str, id: &Option<Cow<'_, str>>, name: &str, kind: &str, index: usize| {
        let kind = if kind.is_empty() { String::new() } else { format!(":{kind}") };
        format!("{sign}{}/{name}{kind}@{index}", id.as_deref().unwrap_or("-"))
    };
    let calls = reading.calls.iter().map(|call| named("?", &call.id, &call.name, &call.kind, call.index));
    words.extend(calls);
    let results = reading.results.iter();
    words.extend(results.map(|result| named("!", &result.id, &result.name, &result.kind, result.index)));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    words.extend(reading.parts.iter().map(|part| match part {
        Part::Text(token) => format!("text{}", text(token)),
        Part::Json(token) => format!("json{}", text(token)),
        Part::Media { kind, base64 } => format!("{kind:?}({})", text(base64.unwrap_or(b"elsewhere"))),
        Part::Opaque(bytes) if *bytes == payload.as_bytes() => "opaque".to_owned(),
        Part::Opaque(bytes) => format!("opaque{}", text(bytes)),
    }));
    words.extend(reading.item_id.iter().map(|id| format!("id={id}")));
    words.extend(reading.blank_blocks.iter().map(|index| format!("blank@{index}")));
    words.extend(reading.has_blank_results.then(|| "blank-result".to_owned()));
    words.extend(reading.has_reasoning.then(|| "reasons".to_owned()));
    words.extend(reading.ends_with_reasoning.then(|| "ends-reasoning".to_owned()));
    words.extend(reading.provider_blocks.iter().map(|block| {
        format!("provider{}{}@{}", if block.is_result { "!" } else { "?" }, block.id, block.index)
    }));
    words
        .extend((reading.serving != Serving::Shown).then(|| format!("{:?}", reading.serving).to_lowercase()));
    words.join(" ")
}

fn check(format: WireFormat, cases: &[(&str, &str)]) {
    for (payload, expected) in cases {
        assert_eq!(summary(format, payload), *expected, "{payload}");
    }
}

#[test]
fn openai_chat_messages() {
    let cases = [
        (r#"{"role":"system","content":"a"}"#, r#"system text"a""#),
        (r#"{"role":"developer","content":[{"type":"text","text":"a"}]}"#, r#"system text"a""#),
        (r#"{"content":"a\u0000","role":"us\u0065r","name":"n"}"#, r#"user text"a\u0000""#),
        (r#"{"role":"user","content":""}"#, r#"user text"""#),
        (r#"{"role":"user","content":null}"#, "user opaque omitted"),
        (r#"{"role":"user","content":[]}"#, "user opaque omitted"),
        (
            r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,QQ=="}},{"type":"image_url","image_url":{"url":"https://x"}},{"type":"input_audio","input_audio":{"data":"QQ","format":"wav"}},{"type":"file","file":{"file_id":"f"}},{"type":"file","file":{"file_data":"data:application/pdf;base64,UQ"}},{"type":"odd","x":1}]}"#,
            r#"user Image(QQ==) Image(elsewhere) Recording(QQ) Document(elsewhere) Document(UQ) opaque{"type":"odd","x":1}"#,
        ),
        (
            r#"{"role":"assistant","reasoning_content":"r","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":"}},{"id":"b","type":"custom","custom":{"name":"g","input":"i"}}]}"#,
            r#"model ?a/f@0 ?b/g@1 text"r" text"{\"x\":" text"i""#,
        ),
        (
            r#"{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}"#,
            r#"model ?-/f:function@0 text"{}""#,
        ),
        (r#"{"role":"assistant","content":null,"refusal":"no"}"#, r#"model text"no""#),
        (r#"{"role":"assistant","audio":{"id":"au"}}"#, r#"model opaque{"id":"au"}"#),
        (r#"{"role":"assistant","content":null,"tool_calls":[]}"#, "model opaque omitted"),
        (
            r#"{"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"t"}]}"#,
            r#"results !a/@0 text"t""#,
        ),
        (r#"{"role":"function","name":"f","content":"t"}"#, r#"results !-/f:function@0 text"t""#),
        (r#"{"role":"critic","content":"a"}"#, "unknown opaque omitted"),
        (r#"{"role":1}"#, "unknown opaque omitted"),
        ("{}", "unknown opaque omitted"),
    ];
    check(WireFormat::OpenaiChat, &cases);
}

#[test]
fn openai_responses_items() {
    let cases = [
        (r#"{"role":"user","content":"a"}"#, r#"user text"a""#),
        (
            r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"data:image/png;base64,QQ"},{"type":"input_image","file_id":"f"},{"type":"input_file","file_data":"data:application/pdf;base64,UQ"},{"type":"input_audio","input_audio":{"data":"UQ"}}]}"#,
            r#"user text"a" Image(QQ) Image(elsewhere) Document(UQ) Recording(UQ)"#,
        ),
        (
            r#"{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[]},{"type":"refusal","refusal":"no"}]}"#,
            r#"model text"a" text"no" id=msg_1"#,
        ),
        (r#"{"type":"message","role":"developer","content":"a"}"#, r#"system text"a""#),
        (r#"{"type":"message","role":"critic","content":"a"}"#, r#"unknown text"a" omitted"#),
        (r#"{"role":"critic","content":"a"}"#, r#"unknown text"a" omitted"#),
        (r#"{"type":"message","role":"user"}"#, "user opaque omitted"),
        (
            r#"{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"s"}],"content":[{"type":"reasoning_text","text":"c"}],"encrypted_content":"gA"}"#,
            r#"model text"s" text"c" opaque"gA" id=rs_1 withnext"#,
        ),
        (
            r#"{"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":"{}","status":"completed"}"#,
            r#"model ?c/f:function_call@0 text"{}" id=fc_1"#,
        ),
        (
            r#"{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"o"},{"type":"input_image","image_url":"https://x"}]}"#,
            r#"results !c/:function_call_output@0 text"o" Image(elsewhere)"#,
        ),
        (
            r#"{"type":"custom_tool_call","call_id":"c","name":"f","input":"i"}"#,
            r#"model ?c/f:custom_tool_call@0 text"i""#,
        ),
        (
            r#"{"type":"custom_tool_call_output","call_id":"c","output":"o"}"#,
            r#"results !c/:custom_tool_call_output@0 text"o""#,
        ),
        (
            r#"{"type":"local_shell_call","id":"l","action":{"command":["ls"]}}"#,
            r#"model ?l/:local_shell_call@0 json{"command":["ls"]}"#,
        ),
        (
            r#"{"type":"local_shell_call_output","id":"l","output":"o"}"#,
            r#"results !l/:local_shell_call_output@0 text"o""#,
        ),
        (
            r#"{"type":"shell_call","call_id":"c","action":{"commands":["ls"]}}"#,
            r#"model ?c/:shell_call@0 json{"commands":["ls"]}"#,
        ),
        (
            r#"{"type":"shell_call_output","call_id":"c","output":[{"stdout":"o"}]}"#,
            r#"results !c/:shell_call_output@0 opaque{"stdout":"o"}"#,
        ),
        (
            r#"{"type":"apply_patch_call","call_id":"c","operation":{"diff":"d"}}"#,
            r#"model ?c/:apply_patch_call@0 json{"diff":"d"}"#,
        ),
        (
            r#"{"type":"computer_call_output","call_id":"c","output":{"type":"computer_screenshot","image_url":"data:image/png;base64,QQ"}}"#,
            "results !c/:computer_call_output@0 Image(QQ)",
        ),
        (
            r#"{"type":"tool_search_call","call_id":"c","execution":"client","arguments":{"q":1}}"#,
            r#"model ?c/:tool_search_call@0 json{"q":1}"#,
        ),
        (r#"{"type":"tool_search_call","id":"t","call_id":null,"arguments":{}}"#, "model json{} id=t"),
        (r#"{"type":"tool_search_output","call_id":null,"tools":[1]}"#, "model json[1]"),
        (r#"{"type":"function_call_output","output":"o"}"#, r#"results !-/:function_call_output@0 text"o""#),
        (
            r#"{"type":"mcp_approval_request","id":"m","name":"f","arguments":"{}"}"#,
            r#"model ?m/f:mcp_approval_request@0 text"{}""#,
        ),
        (
            r#"{"type":"mcp_approval_response","approval_request_id":"m","approve":true}"#,
            "results !m/:mcp_approval_response@0 jsontrue",
        ),
        (
            r#"{"type":"mcp_call","id":"m","name":"f","arguments":"{}","output":"o","error":null}"#,
            r#"model text"f" text"{}" text"o" id=m"#,
        ),
        (r#"{"type":"web_search_call","id":"w","action":{"q":1}}"#, r#"model json{"q":1} id=w"#),
        (r#"{"type":"image_generation_call","id":"i","result":"QQ"}"#, "model Image(QQ) id=i"),
        (r#"{"type":"compaction","id":"k","encrypted_content":"gA"}"#, r#"model opaque"gA" id=k"#),
        (r#"{"type":"item_reference","id":"r"}"#, "unknown opaque id=r"),
        (r#"{"type":"mystery","id":"x","role":"user"}"#, "unknown opaque id=x"),
        ("{}", "unknown opaque omitted"),
    ];
    check(WireFormat::OpenaiResponses, &cases);
}

#[test]
fn anthropic_messages() {
    let cases = [
        (r#"{"role":"user","content":"a"}"#, r#"user text"a""#),
        (r#"{"role":"user","content":" \n"}"#, r#"user text" \n" omitted"#),
        (r#"{"role":"user","content":[]}"#, "user opaque omitted"),
        (r#"{"role":"system","content":"a"}"#, r#"system text"a" omitted"#),
        (r#"{"role":"critic","content":"a"}"#, "unknown opaque omitted"),
        (
            r#"{"role":"user","content":[{"type":"text","text":""},{"type":"image","source":{"type":"base64","data":"QQ"}},{"type":"image","source":{"type":"url","url":"u"}},{"type":"document","source":{"type":"text","data":"d"}},{"type":"document","source":{"type":"base64","data":"UQ"}},{"type":"search_result","title":"t","content":[{"type":"text","text":"s"}]},{"type":"odd"}]}"#,
            r#"user text"" Image(QQ) Image(elsewhere) text"d" Document(UQ) text"t" text"s" opaque{"type":"odd"} blank@0"#,
        ),
        (
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"r"},{"type":"tool_result","tool_use_id":"b","content":[{"type":"text","text":""},{"type":"image","source":{"type":"base64","data":"QQ"}}]},{"type":"tool_result","tool_use_id":"c"}]}"#,
            r#"results !a/@0 !b/@1 !c/@2 text"r" text"" Image(QQ) opaque{"type":"tool_result","tool_use_id":"c"} blank-result"#,
        ),
        (
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"r"},{"type":"text","text":"t"}]}"#,
            r#"user !a/@0 text"r" text"t""#,
        ),
        (
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"S"},{"type":"redacted_thinking","data":"D"},{"type":"text","text":"t"},{"id":"a","input":{"x":1.0},"name":"f","type":"tool_use"}]}"#,
            r#"model ?a/f@3 text"" opaque"S" opaque"D" text"t" json{"x":1.0} reasons"#,
        ),
        (
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"h","signature":"S"},{"type":"text","text":" "}]}"#,
            r#"model text"h" opaque"S" text" " blank@1 reasons ends-reasoning withnext"#,
        ),
        (
            r#"{"role":"assistant","content":[{"type":"server_tool_use","id":"s","name":"web_search","input":{}},{"type":"web_search_tool_result","tool_use_id":"s","content":[1]},{"type":"mcp_tool_use","id":"m","name":"n","input":{}},{"type":"compaction","content":"c"}]}"#,
            r#"model text"web_search" json{} opaque[1] text"n" json{} text"c" provider?s@0 provider!s@1 provider?m@2"#,
        ),
    ];
    check(WireFormat::AnthropicMessages, &cases);
}

#[test]
fn bedrock_messages() {
    let cases = [
        (
            r#"{"role":"user","content":[{"text":"a"},{"text":""},{"image":{"source":{"bytes":"QQ"}}},{"document":{"source":{"s3Location":{}}}},{"document":{"source":{"text":"d"}}},{"video":{"source":{"bytes":"UQ"}}},{"cachePoint":{"type":"default"}},{"odd":1}]}"#,
            r#"user text"a" text"" Image(QQ) Document(elsewhere) text"d" Recording(UQ) opaque{"cachePoint":{"type":"default"}} opaque{"odd":1} blank@1"#,
        ),
        (
            r#"{"role":"assistant","content":[{"reasoningContent":{"reasoningText":{"text":"h","signature":"S"}}},{"reasoningContent":{"redactedContent":"R"}},{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]}"#,
            r#"model ?a/f@2 text"h" opaque"S" opaque"R" json{} reasons"#,
        ),
        (
            r#"{"role":"assistant","content":[{"reasoningContent":{"reasoningText":{"text":"h"}}}]}"#,
            r#"model text"h" reasons ends-reasoning withnext"#,
        ),
        (
            r#"{"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[{"text":" "},{"json":{"x":1}}],"status":"success"}}]}"#,
            r#"results !a/@0 text" " json{"x":1} blank-result"#,
        ),
        (r#"{"role":"user","content":[]}"#, "user opaque omitted"),
        (r#"{"role":"system","content":[{"text":"a"}]}"#, r#"system text"a" omitted"#),
    ];
    check(WireFormat::BedrockConverse, &cases);
}

#[test]
fn gemini_contents() {
    let cases = [
        (r#"{"parts":[{"text":"a"}]}"#, r#"user text"a""#),
        (r#"{"role":"user","parts":[]}"#, "user opaque omitted"),
        (r#"{"role":"system","parts":[{"text":"a"}]}"#, r#"system text"a" omitted"#),
        (
            r#"{"role":"user","parts":[{"inlineData":{"mimeType":"image/png","data":"QQ"}},{"inline_data":{"mime_type":"audio/wav","data":"UQ"}},{"fileData":{"mimeType":"application/pdf","fileUri":"u"}},{"odd":1}]}"#,
            r#"user Image(QQ) Recording(UQ) Document(elsewhere) opaque{"odd":1}"#,
        ),
        (
            r#"{"role":"model","parts":[{"text":"h","thought":true},{"functionCall":{"name":"f","args":{"x":1}},"thoughtSignature":"S"},{"function_call":{"id":"1","name":"g"}},{"executableCode":{"code":"c"}},{"text":"","thoughtSignature":"T"}]}"#,
            r#"model ?-/f@1 ?1/g@2 text"h" json{"x":1} opaque"S" opaque{"function_call":{"id":"1","name":"g"}} json{"code":"c"} text"" opaque"T""#,
        ),
        (
            r#"{"role":"function","parts":[{"functionResponse":{"name":"f","response":{"output":"o"}}},{"function_response":{"id":"1","name":"g","response":{},"parts":[{"inlineData":{"mimeType":"image/png","data":"QQ"}}]}}]}"#,
            r#"results !-/f@0 !1/g@1 json{"output":"o"} json{} Image(QQ)"#,
        ),
        (
            r#"{"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}},{"text":"t"}]}"#,
            r#"user !-/f@0 json{} text"t""#,
        ),
    ];
    check(WireFormat::GeminiContents, &cases);
}

#[test]
fn opaque_entries() {
    check(
        WireFormat::Opaque,
        &[(r#"{"role":"user","content":"a"}"#, "unknown opaque"), ("{}", "unknown opaque")],
    );
}

#[test]
fn an_id_that_is_no_text_is_its_token() {
    let payload = r#"{"role":"tool","tool_call_id":"\ud800","content":""}"#;
    assert_eq!(summary(WireFormat::OpenaiChat, payload), r#"results !"\ud800"/@0 text"""#);
}

/// Values made of the words that formats know.
fn payload() -> impl Strategy<Value = serde_json::Value> {
    const KEYS: &[&str] = &[
        "role",
        "content",
        "parts",
        "type",
        "text",
        "id",
        "call_id",
        "tool_calls",
        "tool_call_id",
        "tool_use_id",
        "toolUse",
        "toolResult",
        "toolUseId",
        "functionCall",
        "functionResponse",
        "name",
        "input",
        "args",
        "output",
        "source",
        "data",
        "summary",
        "image_url",
        "url",
        "function",
        "arguments",
        "thinking",
        "reasoningContent",
    ];
    const WORDS: &[&str] = &[
        "user",
        "assistant",
        "model",
        "tool",
        "function",
        "system",
        "text",
        "tool_use",
        "tool_result",
        "thinking",
        "function_call",
        "function_call_output",
        "reasoning",
        "message",
        "image",
        "document",
        "a",
        "",
        " ",
        "server_tool_use",
        "web_search_tool_result",
        "item_reference",
        "data:image/png;base64,",
    ];
    let scalar = prop_oneof![
        6 => prop::sample::select(WORDS).prop_map(serde_json::Value::from),
        1 => Just(serde_json::Value::Null),
        1 => any::<i32>().prop_map(serde_json::Value::from),
    ];
    let object = |value: BoxedStrategy<serde_json::Value>| {
        prop::collection::btree_map(prop::sample::select(KEYS).prop_map(str::to_owned), value, 0..6)
            .prop_map(|members| members.into_iter().collect::<serde_json::Value>())
    };
    let value = scalar.prop_recursive(4, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            object(inner.boxed())
        ]
    });
    object(value.boxed())
}

proptest! {
    #[test]
    fn every_payload_has_a_reading_that_counts_something(payload in payload()) {
        let payload = payload.to_string();
        for format in WireFormat::ALL {
            let reading = read(format, payload.as_bytes());
            prop_assert!(!reading.parts.is_empty(), "{} {}", format, payload);
            prop_assert!(reading.calls.is_empty() || reading.role == Role::Model);
            prop_assert!(reading.results.is_empty() || matches!(reading.role, Role::User | Role::Results));
        }
    }

    #[test]
    fn any_bytes_have_a_reading(payload: Vec<u8>, json in r#"\{"(role|type|content|parts)":[\[\]{}",:\\a-f ]{0,40}"#) {
        for format in WireFormat::ALL {
            read(format, &payload);
            read(format, json.as_bytes());
        }
    }
}
