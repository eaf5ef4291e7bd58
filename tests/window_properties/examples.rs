//! The rules by example: what becomes of a log.

use super::{assembler, serve};
use crate::histories::entry;
use turnkeep::model::{EntryKind, NextStep, WireFormat};
use turnkeep::window::Assembler;

const CHAT: WireFormat = WireFormat::OpenaiChat;
const RESPONSES: WireFormat = WireFormat::OpenaiResponses;
const ANTHROPIC: WireFormat = WireFormat::AnthropicMessages;
const BEDROCK: WireFormat = WireFormat::BedrockConverse;
const GEMINI: WireFormat = WireFormat::GeminiContents;

const NO_RESULT: &str = "[no result: the call was interrupted before its result was recorded]";

fn log(format: WireFormat, payloads: &[&str]) -> Assembler {
    let entries =
        payloads.iter().zip(1..).map(|(payload, seq)| entry(seq, EntryKind::Message, payload.to_string()));
    assembler(format, &entries.collect::<Vec<_>>())
}

/// The items' payloads.
fn items(log: &Assembler, close_pending: bool) -> Vec<String> {
    let items = serve(log, close_pending).items.into_iter();
    items.map(|item| String::from_utf8(item.payload.to_vec()).unwrap()).collect()
}

/// The repairs: kind, entries and id.
fn repairs(log: &Assembler) -> Vec<String> {
    let repairs = serve(log, false).repairs.into_iter();
    let line = |repair: turnkeep::model::Repair| {
        let seqs: Vec<_> = repair.seqs.iter().map(ToString::to_string).collect();
        format!("{:?} {} {}", repair.kind, seqs.join(","), repair.id).trim_end().to_owned()
    };
    repairs.map(line).collect()
}

fn next(log: &Assembler) -> (NextStep, Vec<String>) {
    let served = serve(log, false);
    (
        served.next,
        served.unanswered.into_iter().map(|call| format!("{}/{}", call.call_id, call.name)).collect(),
    )
}

/// `log` is served as the entries with these numbers, counted from 1.
fn assert_shows(format: WireFormat, log: &[&str], shown: &[usize], expected_repairs: &[&str]) {
    let assembler = self::log(format, log);
    let expected: Vec<_> = shown.iter().map(|entry| log[entry - 1]).collect();
    assert_eq!(items(&assembler, false), expected);
    assert_eq!(repairs(&assembler), expected_repairs);
}

const ASK: &str = r#"{"role":"user","content":"ask"}"#;
const STEER: &str = r#"{"role":"user","content":"not there"}"#;

#[test]
fn a_chat_call_that_was_interrupted_gets_a_result_that_says_so_until_its_own_comes() {
    let call = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]}"#;
    let result_b = r#"{"role":"tool","tool_call_id":"b","content":"B"}"#;
    let result_a = r#"{"role":"tool","tool_call_id":"a","content":"A"}"#;
    let open = log(CHAT, &[ASK, call, result_b]);
    assert_eq!(items(&open, false), [ASK, call, result_b]);
    assert_eq!(next(&open), (NextStep::ToolResults, vec!["a/f".to_owned()]));
    let added = format!(r#"{{"role":"tool","tool_call_id":"a","content":"{NO_RESULT}"}}"#);
    assert_eq!(items(&open, true), [ASK, call, &added, result_b]);

    let interrupted = log(CHAT, &[ASK, call, result_b, STEER]);
    assert_eq!(items(&interrupted, false), [ASK, call, &added, result_b, STEER]);
    assert_eq!(repairs(&interrupted), ["ResultAdded 2 a"]);
    assert_eq!(next(&interrupted), (NextStep::Model, vec![]));

    assert_shows(CHAT, &[ASK, call, result_b, STEER, result_a], &[1, 2, 5, 3, 4], &["ResultMoved 5 a"]);
    let repeated =
        [ASK, call, result_a, result_b, result_a, r#"{"role":"tool","tool_call_id":"x","content":"X"}"#];
    assert_shows(CHAT, &repeated, &[1, 2, 3, 4], &["DuplicateResultOmitted 5 a", "OrphanResultOmitted 6 x"]);
}

#[test]
fn chat_messages_without_a_role_or_content_that_the_api_takes_are_left_out() {
    let developer = r#"{"role":"developer","content":"be brief"}"#;
    let log = [
        r#"{"role":"system","content":"be kind"}"#,
        ASK,
        r#"{"role":"critic","content":"meh"}"#,
        r#"{"role":"assistant","content":null}"#,
        r#"{"role":"assistant","content":""}"#,
        developer,
    ];
    assert_shows(CHAT, &log, &[1, 2, 5, 6], &["EntryOmitted 3", "EntryOmitted 4"]);
    assert_eq!(next(&self::log(CHAT, &log)), (NextStep::UserInput, vec![]));
}

#[test]
fn responses_reasoning_is_shown_before_the_item_that_it_led_to_or_not_at_all() {
    let reasoning = r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gA"}"#;
    let answer = r#"{"type":"message","role":"assistant","id":"msg_1","content":[{"type":"output_text","text":"so"}]}"#;
    assert_shows(RESPONSES, &[ASK, reasoning], &[1], &["ReasoningOmitted 2"]);
    assert_shows(RESPONSES, &[ASK, reasoning, answer], &[1, 2, 3], &[]);
    assert_shows(RESPONSES, &[ASK, reasoning, STEER, answer], &[1, 3, 4], &["ReasoningOmitted 2 rs_1"]);
    // It comes once more, since the first try was cut off.
    assert_shows(
        RESPONSES,
        &[ASK, reasoning, STEER, reasoning, answer],
        &[1, 3, 4, 5],
        &["ReasoningOmitted 2 rs_1"],
    );

    let call = r#"{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}"#;
    let output = r#"{"type":"function_call_output","call_id":"a","output":"A"}"#;
    let other = r#"{"type":"reasoning","id":"rs_2","summary":[],"encrypted_content":"gB"}"#;
    assert_shows(RESPONSES, &[ASK, call, reasoning, output, answer], &[1, 2, 4, 3, 5], &[]);
    let omitted = ["ReasoningOmitted 3 rs_1"];
    assert_shows(RESPONSES, &[ASK, call, reasoning, output, other, answer], &[1, 2, 4, 5, 6], &omitted);
}

#[test]
fn responses_items_and_calls_have_ids_of_their_own() {
    let answer = r#"{"type":"message","role":"assistant","id":"msg_1","content":[{"type":"output_text","text":"so"}]}"#;
    let respelled = r#"{"id":"msg_1","role":"assistant","type":"message","content":[{"text":"s\u006f","type":"output_text"}]}"#;
    assert_shows(RESPONSES, &[ASK, answer, respelled], &[1, 2], &["DuplicateItemOmitted 3 msg_1"]);

    let call = r#"{"type":"function_call","id":"fc_1","call_id":"a","name":"f","arguments":"1"}"#;
    let output = r#"{"type":"function_call_output","call_id":"a","output":"A"}"#;
    let again = log(RESPONSES, &[ASK, call, output, &call.replace('1', "2"), output]);
    let items = items(&again, false);
    let renamed = next(&log(RESPONSES, &[ASK, call, output, &call.replace('1', "2")])).1.remove(0);
    let renamed = renamed.strip_suffix("/f").unwrap();
    assert_eq!(items[..3], [ASK, call, output]);
    assert_eq!(items[3], call.replace('1', "2").replace(r#""a""#, &format!("\"{renamed}\"")));
    assert_eq!(items[4], output.replace(r#""a""#, &format!("\"{renamed}\"")));
    assert_eq!(repairs(&again), ["IdRenamed 4 a"]);
    // A worker that has the call from the window answers by the id it has there.
    let answered = output.replace(r#""a""#, &format!("\"{renamed}\""));
    let resumed = log(RESPONSES, &[ASK, call, output, &call.replace('1', "2"), &answered]);
    assert_eq!(self::items(&resumed, false), items);
}

#[test]
fn a_responses_turn_that_was_persisted_twice_is_shown_twice_but_for_its_words() {
    let call = r#"{"type":"function_call","id":"fc_1","call_id":"a","name":"f","arguments":"1"}"#;
    let output = r#"{"type":"function_call_output","call_id":"a","output":"A"}"#;
    let answer = r#"{"type":"message","role":"assistant","id":"msg_1","content":[{"type":"output_text","text":"so"}]}"#;
    let twice = log(RESPONSES, &[ASK, call, output, answer, call, output, answer]);
    // Which calls wait must not depend on how far back one looks.
    assert_eq!(repairs(&twice), ["IdRenamed 5 a", "IdRenamed 5 fc_1", "DuplicateItemOmitted 7 msg_1"]);
    let items = items(&twice, false);
    assert_eq!(items[..4], [ASK, call, output, answer]);
    assert!(items[4].starts_with(r#"{"type":"function_call","id":"fc_"#) && items[4] != call);
    assert!(items[5].starts_with(r#"{"type":"function_call_output","call_id":""#) && items[5] != output);
    assert_eq!(items.len(), 6);
}

#[test]
fn responses_items_of_unknown_types_stand_where_they_stood() {
    let call = r#"{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}"#;
    let log = [
        ASK,
        call,
        r#"{"type":"mystery","n":1.0}"#,
        r#"{"type":"function_call_output","call_id":"a","output":"A"}"#,
    ];
    assert_shows(RESPONSES, &log, &[1, 2, 3, 4], &[]);
}

fn anthropic(role: &str, blocks: &[&str]) -> String {
    format!(r#"{{"role":"{role}","content":[{}]}}"#, blocks.join(","))
}

const USE_A: &str = r#"{"type":"tool_use","id":"toolu_a","name":"f","input":{}}"#;
const USE_B: &str = r#"{"type":"tool_use","id":"toolu_b","name":"g","input":{}}"#;
const RESULT_A: &str = r#"{"type":"tool_result","tool_use_id":"toolu_a","content":"A"}"#;
const RESULT_B: &str = r#"{"type":"tool_result","tool_use_id":"toolu_b","content":"B"}"#;
const TEXT: &str = r#"{"type":"text","text":"t"}"#;
const THINKING: &str = r#"{"type":"thinking","thinking":"","signature":"S"}"#;

#[test]
fn anthropic_results_of_a_step_stand_in_the_one_next_message() {
    let [model, user] = ["assistant", "user"];
    let both = anthropic(model, &[THINKING, USE_A, USE_B]);
    let split = [ASK, &both, &anthropic(user, &[RESULT_B]), &anthropic(user, &[RESULT_A, TEXT]), STEER];
    let merged = anthropic(user, &[RESULT_A, RESULT_B, TEXT]);
    assert_eq!(items(&log(ANTHROPIC, &split), false), [ASK, &both, &merged, STEER]);
    assert_eq!(repairs(&log(ANTHROPIC, &split)), ["Merged 4,3"]);

    let added = format!(
        r#"{{"type":"tool_result","tool_use_id":"toolu_a","content":"{NO_RESULT}","is_error":true}}"#
    );
    let lost = log(ANTHROPIC, &[ASK, &both, &anthropic(user, &[RESULT_B, TEXT])]);
    assert_eq!(items(&lost, false), [ASK, &both, &anthropic(user, &[&added, RESULT_B, TEXT])]);
    let late =
        [ASK, &anthropic(model, &[USE_A]), STEER, &anthropic(user, &[RESULT_A]), &anthropic(model, &[TEXT])];
    assert_shows(ANTHROPIC, &late, &[1, 2, 4, 3, 5], &["ResultMoved 4 toolu_a"]);
}

#[test]
fn anthropic_messages_of_one_step_are_merged_only_where_results_demand_it() {
    let [model, user] = ["assistant", "user"];
    let results = anthropic(user, &[RESULT_A, RESULT_B]);
    let parts = [
        ASK,
        &anthropic(model, &[THINKING, TEXT]),
        &anthropic(model, &[USE_A]),
        &anthropic(model, &[USE_B]),
        &results,
    ];
    let expected = [ASK, parts[1], &anthropic(model, &[USE_A, USE_B]), &results];
    assert_eq!(items(&log(ANTHROPIC, &parts), false), expected);
    // Reasoning alone waits for what it leads to, and results are not that.
    let lone = anthropic(model, &[THINKING]);
    let text = anthropic(model, &[TEXT]);
    let result = anthropic(user, &[RESULT_A]);
    let lost = [ASK, &anthropic(model, &[USE_A]), &lone, &result, &text];
    assert_shows(ANTHROPIC, &lost, &[1, 2, 4, 5], &["ReasoningOmitted 3"]);
    let led = log(ANTHROPIC, &[ASK, &lone, &text]);
    assert_eq!(items(&led, false), [ASK, &anthropic(model, &[THINKING, TEXT])]);
    // Reasoning cannot stand behind a call, so the second message is a step.
    let steps = [ASK, &anthropic(model, &[THINKING, USE_A]), &anthropic(model, &[THINKING, USE_B]), &results];
    let expected = [ASK, steps[1], &anthropic(user, &[RESULT_A]), steps[2], &anthropic(user, &[RESULT_B])];
    assert_eq!(items(&log(ANTHROPIC, &steps), false), expected);
}

#[test]
fn anthropic_call_ids_are_unique_and_blank_text_is_dropped() {
    let [model, user] = ["assistant", "user"];
    let blank = r#"{"type":"text","text":" "}"#;
    let log = [
        ASK,
        &anthropic(model, &[USE_A]),
        &anthropic(user, &[RESULT_A]),
        &anthropic(model, &[blank, USE_A]),
        &anthropic(
            user,
            &[
                r#"{"type":"tool_result","tool_use_id":"toolu_a","content":[{"type":"text","text":""}]}"#,
                blank,
            ],
        ),
        &anthropic(user, &[blank]),
        r#"{"role":"system","content":"s"}"#,
    ];
    let log = self::log(ANTHROPIC, &log);
    let items = items(&log, false);
    let new = items[3].split('"').find(|word| word.starts_with("toolu_")).unwrap();
    assert_eq!(items[3], anthropic(model, &[&USE_A.replace("toolu_a", new)]));
    assert_eq!(
        items[4],
        anthropic(user, &[&format!(r#"{{"type":"tool_result","tool_use_id":"{new}","content":[]}}"#)])
    );
    assert_eq!(items.len(), 5);
    let expected = [
        "EmptyBlockOmitted 4",
        "IdRenamed 4 toolu_a",
        "EmptyBlockOmitted 5",
        "EmptyBlockOmitted 5 toolu_a",
        "EntryOmitted 6",
        "EntryOmitted 7",
    ];
    assert_eq!(repairs(&log), expected);
}

#[test]
fn an_anthropic_message_that_is_paused_is_resumed_or_freed_of_its_open_call() {
    let model = "assistant";
    let search = r#"{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}"#;
    let found = r#"{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]}"#;
    let paused = anthropic(model, &[TEXT, search]);
    assert_shows(ANTHROPIC, &[ASK, &paused], &[1, 2], &[]);
    assert_eq!(next(&log(ANTHROPIC, &[ASK, &paused])), (NextStep::Model, vec![]));
    let resumed = log(ANTHROPIC, &[ASK, &paused, &anthropic(model, &[found, TEXT])]);
    assert_eq!(items(&resumed, false), [ASK, &anthropic(model, &[TEXT, search, found, TEXT])]);
    let twice = log(ANTHROPIC, &[ASK, &paused, &paused]);
    assert_eq!(items(&twice, false), [ASK, &anthropic(model, &[TEXT, TEXT, search])]);
    assert_eq!(next(&twice), (NextStep::Model, vec![]));
    let abandoned = log(ANTHROPIC, &[ASK, &paused, STEER]);
    assert_eq!(items(&abandoned, false), [ASK, &anthropic(model, &[TEXT]), STEER]);
    assert_eq!(repairs(&abandoned), ["EntryOmitted 2 srvtoolu_1"]);
}

#[test]
fn bedrock_roles_alternate() {
    let text =
        |role: &str, text: &str| format!(r#"{{"role":"{role}","content":[{{"text":"{text}"}}],"x":1.0}}"#);
    let call = r#"{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]}"#;
    let log = log(
        BEDROCK,
        &[call, &text("user", "u"), &text("user", "v"), &text("assistant", "m"), &text("assistant", "n")],
    );
    let expected = [
        r#"{"role":"user","content":[{"text":"[the conversation begins with the model's message]"}]}"#,
        call,
        &format!(
            r#"{{"role":"user","content":[{{"toolResult":{{"toolUseId":"a","content":[{{"text":"{NO_RESULT}"}}],"status":"error"}}}},{{"text":"u"}},{{"text":"v"}}],"x":1.0}}"#
        ),
        r#"{"role":"assistant","content":[{"text":"m"},{"text":"n"}],"x":1.0}"#,
    ];
    assert_eq!(items(&log, false), expected);
    assert_eq!(repairs(&log), ["OpeningAdded", "ResultAdded 1 a", "Merged 2,3", "Merged 4,5"]);
}

#[test]
fn gemini_responses_stand_in_the_next_content_in_call_order_and_as_many_as_calls() {
    let ask = r#"{"role":"user","parts":[{"text":"ask"}]}"#;
    let calls = r#"{"role":"model","parts":[{"functionCall":{"name":"f","args":{}},"thoughtSignature":"S"},{"functionCall":{"name":"g","args":{}}},{"functionCall":{"name":"f","args":{"n":2}}}]}"#;
    let response = |name: &str, text: &str| {
        format!(r#"{{"functionResponse":{{"name":"{name}","response":{{"output":"{text}"}}}}}}"#)
    };
    let content =
        |role: &str, parts: &[&str]| format!(r#"{{"role":"{role}","parts":[{}]}}"#, parts.join(","));
    let [g, f1] = [response("g", "G"), response("f", "F1")];
    let text = r#"{"text":"stop"}"#;
    let log = log(GEMINI, &[ask, calls, &content("function", &[&g]), &content("user", &[&f1, text])]);
    let lost = format!(r#"{{"functionResponse":{{"name":"f","response":{{"error":"{NO_RESULT}"}}}}}}"#);
    assert_eq!(items(&log, false), [ask, calls, &content("user", &[&f1, &g, &lost, text])]);
    assert_eq!(repairs(&log), ["ResultAdded 2", "Merged 4,3"]);
    assert_eq!(next(&log), (NextStep::Model, vec![]));
}

#[test]
fn chat_calls_have_short_ids_and_types_of_their_own() {
    let call = |id: &str, rest: &str| {
        format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{{id}{rest}"function":{{"name":"a.b","arguments":{{"n":1.0}}}}}}]}}"#
        )
    };
    let long = "c".repeat(45);
    let log = log(
        CHAT,
        &[
            ASK,
            &call(&format!(r#""id":"{long}","#), ""),
            &format!(r#"{{"role":"tool","tool_call_id":"{long}","content":null}}"#),
            r#"{"role":"assistant","content":"so","tool_calls":[]}"#,
            &call("", ""),
        ],
    );
    let items = items(&log, false);
    let new = items[2].split('"').find(|word| word.len() == 28).unwrap();
    let expected = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"NEW","type":"function","function":{"name":"a_b","arguments":"{\"n\":1.0}"}}]}"#;
    assert_eq!(
        items[1],
        expected.replace(r#""id":"NEW","type":"function""#, &format!(r#""type":"function","id":"{new}""#))
    );
    assert_eq!(items[2], format!(r#"{{"role":"tool","tool_call_id":"{new}","content":""}}"#));
    assert_eq!(items[3], r#"{"role":"assistant","content":"so"}"#);
    let (next, unanswered) = next(&log);
    assert_eq!((next, unanswered.len()), (NextStep::ToolResults, 1));
    let id = unanswered[0].strip_suffix("/a_b").unwrap();
    assert_eq!((id.len(), items[4].contains(&format!(r#""id":"{id}""#))), (28, true));
    let expected = [
        "IdRenamed 2 ccccccccccccccccccccccccccccccccccccccccccccc",
        "ValueReplaced 2",
        "ValueReplaced 2",
        "ValueReplaced 2",
        "ValueReplaced 3",
        "ValueReplaced 4",
        "IdRenamed 5",
        "ValueReplaced 5",
        "ValueReplaced 5",
        "ValueReplaced 5",
        "ValueReplaced 5",
    ];
    assert_eq!(repairs(&log), expected);
}

#[test]
fn anthropic_messages_have_no_cache_marks_and_no_reasoning_that_is_not_signed() {
    let [model, user] = ["assistant", "user"];
    let mark = r#","cache_control":{"type":"ephemeral"}}"#;
    let marked = |block: &str| block.replacen('}', mark, 1);
    let unsigned = r#"{"type":"thinking","thinking":"hm"}"#;
    let log = log(
        ANTHROPIC,
        &[
            &anthropic(user, &[&marked(TEXT)]),
            &anthropic(model, &[unsigned, &USE_A.replace("{}", "null")]),
            &anthropic(
                user,
                &[&format!(
                    r#"{{"type":"tool_result","tool_use_id":"toolu_a","content":[{}]}}"#,
                    marked(TEXT)
                )],
            ),
            &anthropic(model, &[TEXT, unsigned]),
        ],
    );
    let result = format!(r#"{{"type":"tool_result","tool_use_id":"toolu_a","content":[{TEXT}]}}"#);
    let expected = [
        anthropic(user, &[TEXT]),
        anthropic(model, &[USE_A]),
        anthropic(user, &[&result]),
        anthropic(model, &[TEXT]),
    ];
    assert_eq!(items(&log, false), expected);
    let expected = [
        "CacheMarkOmitted 1",
        "ReasoningOmitted 2",
        "ValueReplaced 2",
        "CacheMarkOmitted 3",
        "ReasoningOmitted 4",
    ];
    assert_eq!(repairs(&log), expected);
}

#[test]
fn gemini_parts_hold_one_thing_and_signatures_that_are_some() {
    let log = log(
        GEMINI,
        &[
            r#"{"parts":[{"text":"ask"}]}"#,
            r#"{"role":"model","parts":[{"text":"","functionCall":{"name":"f","args":null},"thoughtSignature":"S"},{}]}"#,
            r#"{"role":"function","parts":[{"functionResponse":{"name":"f","response":7}},{"text":"and"}]}"#,
            r#"{"role":"model","parts":[{"text":"so","thoughtSignature":"?"},{"thoughtSignature":"T"}]}"#,
        ],
    );
    let expected = [
        r#"{"role":"user","parts":[{"text":"ask"}]}"#,
        r#"{"role":"model","parts":[{"functionCall":{"name":"f","args":null},"thoughtSignature":"S"}]}"#,
        r#"{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"output":7}}},{"text":"and"}]}"#,
        r#"{"role":"model","parts":[{"text":"so"},{"text":"","thoughtSignature":"T"}]}"#,
    ];
    assert_eq!(items(&log, false), expected);
}
