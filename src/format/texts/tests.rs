use super::*;
use WireFormat::{AnthropicMessages, BedrockConverse, GeminiContents, Opaque, OpenaiChat, OpenaiResponses};

/// Kind, role, tool, call and text of each.
fn told(format: WireFormat, payload: &str) -> Vec<String> {
    let tell = |text: Text<'_>| {
        let Text { kind, role, tool_name, call_id, content } = text;
        format!("{kind:?} {role:?} [{tool_name}] [{call_id}] {content}")
    };
    texts(format, payload.as_bytes()).into_iter().map(tell).collect()
}

#[test]
fn calls_have_names_and_arguments_whose_strings_are_decoded() {
    let expected = [
        "Said Model [] [] I look",
        "CallName Model [grep] [c1] grep",
        "CallArguments Model [grep] [c1] {\"q\":\"a\nb \"é\"\"}",
        "CallName Model [now] [c2] now",
        "CallArguments Model [now] [c2] {}",
    ];
    let chat = r#"{"role":"assistant","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"grep","arguments":"{\"q\":\"a\\nb \\\"\\u00e9\\\"\"}"}},
        {"id":"c2","type":"function","function":{"name":"now","arguments":"{}"}}],"content":"I look"}"#;
    let mut told_chat = told(OpenaiChat, chat);
    told_chat.rotate_right(1);
    assert_eq!(told_chat, expected, "in the order in which they stand");
    let anthropic = r#"{"role":"assistant","content":[{"type":"text","text":"I look"},
        {"type":"thinking","thinking":"","signature":"c2ln"},
        {"type":"tool_use","id":"c1","name":"grep","input":{"q":"a\nb \"\u00e9\""}},
        {"type":"tool_use","id":"c2","name":"now","input":{}}]}"#;
    let mut told_anthropic = told(AnthropicMessages, anthropic);
    assert_eq!(told_anthropic.remove(1), "Said Model [] [] ", "reasoning without its signature");
    assert_eq!(told_anthropic, expected);
    let bedrock = r#"{"role":"assistant","content":[{"text":"I look"},
        {"toolUse":{"toolUseId":"c1","name":"grep","input":{"q":"a\nb \"\u00e9\""}}},
        {"toolUse":{"toolUseId":"c2","name":"now","input":{}}}]}"#;
    assert_eq!(told(BedrockConverse, bedrock), expected);
    let gemini = r#"{"role":"model","parts":[{"text":"I look"},
        {"functionCall":{"id":"c1","name":"grep","args":{"q":"a\nb \"\u00e9\""}},"thoughtSignature":"c2ln"},
        {"functionCall":{"id":"c2","name":"now","args":{}}}]}"#;
    assert_eq!(told(GeminiContents, gemini), expected);
    let responses = r#"{"type":"function_call","call_id":"c1","id":"fc_1","name":"grep",
        "arguments":"{\"q\":\"a\\nb \\\"\\u00e9\\\"\"}","status":"completed"}"#;
    assert_eq!(told(OpenaiResponses, responses), expected[1..3]);
    let custom =
        r#"{"type":"custom_tool_call","call_id":"c1","name":"patch","input":"*** Begin\n{not json}"}"#;
    let expected =
        ["CallName Model [patch] [c1] patch", "CallArguments Model [patch] [c1] *** Begin\n{not json}"];
    assert_eq!(told(OpenaiResponses, custom), expected);
    let legacy =
        r#"{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{not json"}}"#;
    let expected = ["CallName Model [f] [] f", "CallArguments Model [f] [] {not json"];
    assert_eq!(told(OpenaiChat, legacy), expected);
}

#[test]
fn results_are_the_tool_s_in_whosever_message_they_stand() {
    let anthropic = r#"{"role":"user","content":[
        {"type":"tool_result","tool_use_id":"c1","content":"caf\u00e9"},
        {"type":"tool_result","tool_use_id":"c2","content":[{"type":"text","text":"a"},
            {"type":"image","source":{"type":"base64","data":"aGF5"}}]},
        {"type":"text","text":"go on"}]}"#;
    let expected = ["Result Results [] [c1] café", "Result Results [] [c2] a", "Said User [] [] go on"];
    assert_eq!(told(AnthropicMessages, anthropic), expected);
    let chat = r#"{"role":"tool","tool_call_id":"c1","name":"grep","content":"{\"a\":\"\\n\"}"}"#;
    assert_eq!(told(OpenaiChat, chat), [r#"Result Results [grep] [c1] {"a":"\n"}"#]);
    let responses =
        r#"{"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"x"}]}"#;
    assert_eq!(told(OpenaiResponses, responses), ["Result Results [] [c1] x"]);
    let gemini =
        r#"{"role":"user","parts":[{"functionResponse":{"name":"grep","response":{"output":"1\n2"}}}]}"#;
    assert_eq!(told(GeminiContents, gemini), ["Result Results [grep] [] {\"output\":\"1\n2\"}"]);
    let bedrock = r#"{"role":"user","content":[{"toolResult":{"toolUseId":"c1","content":[{"text":"x"},{"json":{"a":1}}]}}]}"#;
    assert_eq!(
        told(BedrockConverse, bedrock),
        ["Result Results [] [c1] x", r#"Result Results [] [c1] {"a":1}"#]
    );
}

#[test]
fn what_is_not_known_is_its_json() {
    let payload = r#"{ "event":"tool \u4e2d\u6587", "data":["\ud800","C:\\dir"] , "n":1.50 }"#;
    let expected = [r#"Said Unknown [] [] { "event":"tool 中文", "data":["\ud800","C:\dir"] , "n":1.50 }"#];
    assert_eq!(told(Opaque, payload), expected);
    let block = r#"{"role":"user","content":[{"type":"new","words":"a\tb"},{"type":"text","text":"x"}]}"#;
    let expected = ["Said User [] [] {\"type\":\"new\",\"words\":\"a\tb\"}", "Said User [] [] x"];
    assert_eq!(told(AnthropicMessages, block), expected);
    // Nothing is assumed of what it is given.
    for broken in ["", "{", "{\"role\":\"user\",\"content\":\"\\", "[1"] {
        let _ = WireFormat::ALL.map(|format| texts(format, broken.as_bytes()).len());
    }
}
