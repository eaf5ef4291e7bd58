//! What Responses takes and refuses.

use super::Case;

pub(super) const CASES: &[Case] = &[
    Case::taken(r#"[{"role":"user","content":"hi"}]"#),
    Case::taken(
        r#"[{"type":"message","role":"developer","content":[{"type":"input_text","text":"d"}]},
        {"type":"message","role":"user","content":[{"type":"input_text","text":"u"},{"type":"input_image","image_url":"u"}]},
        {"type":"message","role":"assistant","id":"msg_1","phase":"final_answer","content":[{"type":"output_text","text":"a"},{"type":"refusal","refusal":"no"}]}]"#,
    ),
    // Parallel calls, results in another order and not adjacent.
    Case::taken(
        r#"[{"role":"user","content":"hi"},{"type":"reasoning","id":"rs_1","summary":[]},
        {"type":"function_call","id":"fc_1","call_id":"a","name":"f","arguments":"{"},
        {"type":"custom_tool_call","call_id":"b","name":"g","input":"x"},
        {"type":"custom_tool_call_output","call_id":"b","output":[{"type":"input_text","text":"2"}]},
        {"role":"user","content":"wait"},
        {"type":"function_call_output","call_id":"a","output":""}]"#,
    ),
    Case::taken(
        r#"[{"type":"reasoning","id":"rs_1","summary":[]},{"type":"reasoning","summary":[],"encrypted_content":"e"},
        {"role":"assistant","content":"a"},{"type":"compaction","encrypted_content":"e"},{"type":"item_reference","id":"msg_2"}]"#,
    ),
    // Tools that the provider ran.
    Case::taken(
        r#"[{"type":"reasoning","id":"rs_1","summary":[]},{"type":"tool_search_call","id":"tsc_1","call_id":null,"execution":"server"},
        {"type":"tool_search_output","id":"tso_1","call_id":null,"execution":"server","tools":[]},
        {"type":"web_search_call","id":"ws_1"},{"type":"additional_tools","role":"developer","tools":[]}]"#,
    ),
    // A program of the model's that calls a function, and a message of another agent.
    Case::taken(
        r#"[{"role":"user","content":"hi"},{"type":"agent_message","author":"a","recipient":"b","content":[]},
        {"type":"reasoning","id":"rs_1","summary":[]},{"type":"program","id":"p_1","call_id":"a","code":"f()","fingerprint":"x"},
        {"type":"function_call","call_id":"b","name":"f","arguments":"{}","caller":{"type":"program"}},
        {"type":"function_call_output","call_id":"b","output":"1"},
        {"type":"program_output","id":"po_1","call_id":"a","result":"1","status":"completed"}]"#,
    ),
    Case::taken(
        r#"[{"type":"local_shell_call","id":"lsh_1","call_id":"a","action":{}},{"type":"function_call_output","call_id":"a","output":"1"},
        {"type":"local_shell_call","call_id":"b","action":{}},{"type":"local_shell_call_output","id":"b","output":"1"},
        {"type":"computer_call","call_id":"c"},{"type":"computer_call_output","call_id":"c","output":{"type":"computer_screenshot"}}]"#,
    ),
    Case::open(
        r#"[{"role":"user","content":"hi"},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},
        {"type":"function_call","call_id":"b","name":"f","arguments":"{}"},{"role":"assistant","content":"x"},
        {"type":"function_call_output","call_id":"b","output":"1"}]"#,
        "No tool output found for function call a.",
    ),
    Case::open("[]", "at least one message"),
    Case::refused(
        r#"[{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"role":"user","content":"hi"}]"#,
        "No tool output found for function call a.",
    ),
    Case::refused(
        r#"[{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},
        {"type":"function_call","call_id":"b","name":"f","arguments":"{}"},
        {"type":"function_call_output","call_id":"b","output":"1"},{"role":"assistant","content":"x"}]"#,
        "No tool output found for function call a.",
    ),
    Case::refused(
        r#"[{"type":"custom_tool_call","call_id":"a","name":"f","input":""},{"role":"user","content":"hi"}]"#,
        "No tool output found for custom tool call a.",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"type":"function_call_output","call_id":"a","output":"1"}]"#,
        "No tool call found for function call output with call_id a.",
    ),
    Case::refused(
        r#"[{"type":"function_call_output","call_id":"a","output":"1"},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}]"#,
        "No tool call found for function call output with call_id a.",
    ),
    Case::refused(
        r#"[{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"1"},
        {"type":"function_call_output","call_id":"a","output":"2"}]"#,
        "No tool call found for function call output with call_id a.",
    ),
    Case::refused(
        r#"[{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"custom_tool_call_output","call_id":"a","output":"1"}]"#,
        "No tool call found for custom tool call output with call_id a.",
    ),
    Case::refused(
        r#"[{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},
        {"type":"function_call_output","call_id":"a","output":"1"}]"#,
        "Duplicate call_id 'a'. Each function_call must have exactly one matching function_call_output",
    ),
    Case::refused(
        r#"[{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"1"},
        {"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"2"}]"#,
        "Duplicate call_id 'a'.",
    ),
    Case::refused(
        r#"[{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a"}]"#,
        "Missing required parameter: 'input[1].output'",
    ),
    Case::refused(
        r#"[{"type":"function_call","call_id":"a","name":"f","arguments":{}},{"type":"function_call_output","call_id":"a","output":"1"}]"#,
        "Invalid type for 'input[0].arguments'",
    ),
    Case::refused(
        r#"[{"type":"function_call","call_id":"a","name":"","arguments":"{}"}]"#,
        "Invalid 'input[0].name': string does not match pattern",
    ),
    Case::refused(
        r#"[{"type":"function_call","name":"f","arguments":"{}"}]"#,
        "Invalid 'input[0].call_id': empty string",
    ),
    Case::refused(
        r#"[{"type":"function_call","call_id":"call_789012345678901234567890123456789|fc_3456789012345678901234567890","name":"f","arguments":"{}"}]"#,
        "Invalid 'input[0].call_id': string too long. Expected a string with maximum length 64, but got a string with length 70 instead.",
    ),
    Case::refused(
        r#"[{"type":"reasoning","id":"rs_1","summary":[]}]"#,
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
    ),
    Case::refused(
        r#"[{"type":"reasoning","id":"rs_1","summary":[]},{"role":"user","content":"hi"}]"#,
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
    ),
    Case::refused(
        r#"[{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"reasoning","id":"rs_1","summary":[]},
        {"type":"function_call_output","call_id":"a","output":"1"}]"#,
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
    ),
    Case::refused(
        r#"[{"type":"reasoning","id":"rs_1"},{"role":"assistant","content":"x"}]"#,
        "Missing required parameter: 'input[0].summary'",
    ),
    Case::refused(
        r#"[{"type":"reasoning","id":"msg_1","summary":[]},{"role":"assistant","content":"x"}]"#,
        "Invalid 'input[0].id': 'msg_1'. Expected an ID that begins with 'rs'.",
    ),
    Case::refused(
        r#"[{"type":"message","role":"assistant","id":"rs_1","content":"x"}]"#,
        "Expected an ID that begins with 'msg'.",
    ),
    Case::refused(
        r#"[{"type":"function_call","id":"call_1","call_id":"a","name":"f","arguments":"{}"}]"#,
        "Expected an ID that begins with 'fc'.",
    ),
    Case::refused(
        r#"[{"type":"message","role":"assistant","id":"msg_1","content":"x"},{"type":"message","role":"assistant","id":"msg_1","content":"x"}]"#,
        "Duplicate item found with id msg_1.",
    ),
    Case::refused(
        r#"[{"type":"web_search_call","id":"ws|1"}]"#,
        "Expected an ID that contains letters, numbers, underscores, or dashes",
    ),
    Case::refused(r#"[{"type":"item_reference"}]"#, "Missing required parameter: 'input[0].id'"),
    Case::refused(
        r#"[{"type":"message","role":"tool","content":"x"}]"#,
        "Invalid value: 'tool'. Supported values are",
    ),
    Case::refused(
        r#"[{"type":"message","role":"assistant","content":[{"type":"input_text","text":"x"}]}]"#,
        "Invalid value: 'input_text'. Supported values are: 'output_text', 'refusal'",
    ),
    Case::refused(
        r#"[{"type":"message","role":"user","content":[{"type":"output_text","text":"x"}]}]"#,
        "Invalid value: 'output_text'",
    ),
    Case::refused(
        r#"[{"type":"message","role":"user","content":null}]"#,
        "Invalid type for 'input[0].content'",
    ),
    Case::refused(r#"[{"type":"ghost_snapshot"}]"#, "Invalid value: 'ghost_snapshot'"),
];
