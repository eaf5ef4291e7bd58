//! What Chat Completions takes and refuses.

use super::Case;

pub(super) const CASES: &[Case] = &[
    Case::taken(r#"[{"role":"user","content":"hi"}]"#),
    Case::taken(
        r#"[{"role":"system","content":"s"},{"role":"developer","content":"d"},{"role":"assistant","content":"a"}]"#,
    ),
    Case::taken(
        r#"[{"role":"user","content":""},{"role":"user","content":[{"type":"text","text":""},{"type":"image_url","image_url":{"url":"u"}}]}]"#,
    ),
    Case::taken(r#"[{"role":"assistant","content":null,"refusal":"no"}]"#),
    Case::taken(
        r#"[{"role":"assistant","content":null,"tool_calls":null,"function_call":{"name":"f","arguments":"{"}},{"role":"function","name":"f","content":""}]"#,
    ),
    // Parallel results in another order, in parts, with keys that are not known.
    Case::taken(
        r#"[{"role":"user","content":"hi"},
        {"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[
            {"id":"a","type":"function","function":{"name":"f","arguments":"not json"}},
            {"id":"b","type":"custom","custom":{"name":"g","input":"x"}}]},
        {"role":"tool","tool_call_id":"b","content":[{"type":"text","text":"2"}]},
        {"role":"tool","tool_call_id":"a","content":""}]"#,
    ),
    // An id that comes back in a later step, where it cannot be mistaken.
    Case::taken(
        r#"[{"role":"assistant","content":[],"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"a","content":"1"},
        {"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"a","content":"2"}]"#,
    ),
    Case::open(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[
            {"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},
            {"id":"b","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"b","content":"2"}]"#,
        "did not have response messages: a",
    ),
    Case::open(
        r#"[{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}]"#,
        "must be followed by a function message",
    ),
    Case::open("[]", "at least one message"),
    Case::refused(
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"user","content":"stop"},{"role":"tool","tool_call_id":"a","content":"1"}]"#,
        "must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: a",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"assistant","content":"x"}]"#,
        "did not have response messages: a",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"tool","tool_call_id":"a","content":"1"}]"#,
        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":"x"},{"role":"tool","tool_call_id":"a","content":"1"}]"#,
        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"b","content":"1"}]"#,
        "'tool_call_id' of 'b' not found in 'tool_calls' of previous message",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"a","content":"1"},{"role":"tool","tool_call_id":"a","content":"2"}]"#,
        "'tool_call_id' of 'a' has more than one response message",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"tool_calls":[
            {"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},
            {"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"a","content":"1"}]"#,
        "the id 'a' is not unique",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","content":"1"}]"#,
        "Missing required parameter: 'messages[1].tool_call_id'",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"a2345678901234567890123456789012345678901","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"a2345678901234567890123456789012345678901","content":"1"}]"#,
        "Invalid 'messages[0].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got a string with length 41",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}]}]"#,
        "Invalid 'messages[0].tool_calls[0].id': empty string",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f x","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"a","content":"1"}]"#,
        "'messages[0].tool_calls[0].function.name': string does not match pattern",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":{}}}]},
        {"role":"tool","tool_call_id":"a","content":"1"}]"#,
        "Invalid type for 'messages[0].tool_calls[0].function.arguments'",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"retrieval"}]}]"#,
        "Invalid value: 'retrieval'",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":"x","tool_calls":[]}]"#,
        "Invalid 'messages[0].tool_calls': empty array",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null}]"#,
        "Invalid value for 'content': expected a string, got null",
    ),
    Case::refused(
        r#"[{"role":"user","content":null}]"#,
        "Invalid value for 'content': expected a string, got null",
    ),
    Case::refused(r#"[{"role":"user"}]"#, "Invalid value for 'content': expected a string, got null"),
    Case::refused(r#"[{"role":"assistant","content":[]}]"#, "Invalid 'messages[0].content': empty array"),
    Case::refused(
        r#"[{"role":"system","content":[{"type":"image_url","image_url":{"url":"u"}}]}]"#,
        "Invalid value: 'image_url'. Supported values are: 'text'",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"a","content":[{"type":"image_url","image_url":{"url":"u"}}]}]"#,
        "Invalid value: 'image_url'. Supported values are: 'text'",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"type":"text"}]}]"#,
        "Invalid type for 'messages[0].content[0].text'",
    ),
    Case::refused(r#"[{"role":"model","content":"x"}]"#, "Invalid value: 'model'. Supported values are"),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"function","name":"f","content":"1"}]"#,
        "messages with role 'function' must be a response to a preceeding message with 'function_call'",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}},{"role":"function","name":"g","content":"1"}]"#,
        "messages with role 'function' must be a response to a preceeding message with 'function_call'",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}},{"role":"function","content":"1"}]"#,
        "Missing required parameter: 'messages[1].name'",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}},{"role":"user","content":"1"}]"#,
        "must be followed by a function message of 'f'",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}},{"role":"function","name":"f","content":null}]"#,
        "Invalid value for 'content': expected a string, got null",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"},"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]}]"#,
        "Only one of 'function_call' and 'tool_calls'",
    ),
];
