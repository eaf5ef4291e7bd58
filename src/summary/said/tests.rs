use super::*;

/// Speaker, texts, calls, results.
type Parts = (Speaker, Vec<String>, Vec<[String; 3]>, Vec<(String, String, bool)>);

fn said(format: WireFormat, payload: &str) -> Parts {
    let said = Said::of(format, Seq(1), payload.as_bytes());
    (
        said.speaker,
        said.texts.into_iter().map(Cow::into_owned).collect(),
        said.calls
            .into_iter()
            .map(|call| [call.id, call.name, call.arguments].map(Cow::into_owned))
            .collect(),
        said.outcomes
            .into_iter()
            .map(|result| (result.id.into_owned(), result.text.into_owned(), result.is_error))
            .collect(),
    )
}

fn owned(parts: [&str; 3]) -> [String; 3] {
    parts.map(str::to_owned)
}

#[test]
fn each_format_gives_text_calls_and_results() {
    let calls = [
        (
            WireFormat::AnthropicMessages,
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"go"},{"type":"tool_use","id":"i","name":"n","input":{"a":1}}]}"#,
        ),
        (
            WireFormat::BedrockConverse,
            r#"{"role":"assistant","content":[{"text":"go"},{"toolUse":{"toolUseId":"i","name":"n","input":{"a":1}}}]}"#,
        ),
        (
            WireFormat::GeminiContents,
            r#"{"role":"model","parts":[{"text":"hm","thought":true},{"text":"go"},{"functionCall":{"id":"i","name":"n","args":{"a":1}}}]}"#,
        ),
        (
            WireFormat::OpenaiChat,
            r#"{"role":"assistant","content":"go","tool_calls":[{"id":"i","type":"function","function":{"name":"n","arguments":"{\"a\":1}"}}]}"#,
        ),
    ];
    for (format, payload) in calls {
        let expected = (Speaker::Model, vec!["go".to_owned()], vec![owned(["i", "n", r#"{"a":1}"#])], vec![]);
        assert_eq!(said(format, payload), expected, "{format}");
    }
    let results = [
        (
            WireFormat::AnthropicMessages,
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"i","is_error":true,"content":"no"}]}"#,
        ),
        (
            WireFormat::BedrockConverse,
            r#"{"role":"user","content":[{"toolResult":{"toolUseId":"i","status":"error","content":[{"text":"no"}]}}]}"#,
        ),
        (
            WireFormat::GeminiContents,
            r#"{"role":"user","parts":[{"functionResponse":{"id":"i","name":"n","response":{"error":"no"}}}]}"#,
        ),
    ];
    for (format, payload) in results {
        let expected = (Speaker::Tool, vec![], vec![], vec![("i".to_owned(), "no".to_owned(), true)]);
        assert_eq!(said(format, payload), expected, "{format}");
    }
}

#[test]
fn items_of_responses_give_arguments_of_every_kind() {
    for (payload, arguments) in [
        (r#"{"type":"function_call","call_id":"i","name":"n","arguments":"{\"a\":1}"}"#, r#"{"a":1}"#),
        (r#"{"type":"custom_tool_call","call_id":"i","name":"n","input":"free text"}"#, "free text"),
    ] {
        let expected = (Speaker::Model, vec![], vec![owned(["i", "n", arguments])], vec![]);
        assert_eq!(said(WireFormat::OpenaiResponses, payload), expected);
    }
    let shell = r#"{"type":"local_shell_call","call_id":"i","action":{"command":["ls"]}}"#;
    assert_eq!(
        said(WireFormat::OpenaiResponses, shell).2,
        [owned(["i", "local_shell_call", r#"{"command":["ls"]}"#])]
    );
    let output = r#"{"type":"function_call_output","call_id":"i","output":"done"}"#;
    assert_eq!(said(WireFormat::OpenaiResponses, output).3, [("i".to_owned(), "done".to_owned(), false)]);
}

#[test]
fn a_tool_message_is_no_text_and_legacy_calls_have_arguments() {
    let tool = r#"{"role":"tool","tool_call_id":"i","content":"out"}"#;
    assert_eq!(
        said(WireFormat::OpenaiChat, tool),
        (Speaker::Tool, vec![], vec![], vec![("i".to_owned(), "out".to_owned(), false)])
    );
    let legacy = r#"{"role":"assistant","content":null,"function_call":{"name":"n","arguments":"{}"}}"#;
    assert_eq!(said(WireFormat::OpenaiChat, legacy).2, [owned(["", "n", "{}"])]);
}

#[test]
fn what_has_no_structure_gives_its_strings() {
    let payload = r#"{"a":"x\ny","b":[1,"z",{"c" : "w\"q"}]}"#;
    assert_eq!(
        said(WireFormat::Opaque, payload),
        (Speaker::Tool, ["x\ny", "z", "w\"q"].map(str::to_owned).to_vec(), vec![], vec![])
    );
    assert_eq!(strings(br#"{"a":"torn\"#).len(), 1);
}
