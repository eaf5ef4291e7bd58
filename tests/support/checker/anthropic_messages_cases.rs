//! What Messages takes and refuses.

use super::Case;

pub(super) const CASES: &[Case] = &[
    Case::taken(r#"[{"role":"user","content":"hi"}]"#),
    // Messages of one role in a row are one turn.
    Case::taken(
        r#"[{"role":"user","content":"hi"},{"role":"user","content":[{"type":"text","text":"there"}]},
        {"role":"assistant","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]"#,
    ),
    // Parallel results in another order, then text; thinking without text.
    Case::taken(
        r#"[{"role":"user","content":"hi"},
        {"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"s"},{"type":"redacted_thinking","data":"d"},{"type":"text","text":"t"},
            {"type":"tool_use","id":"a","name":"f","input":{}},{"type":"tool_use","id":"b","name":"f","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"b","content":[{"type":"text","text":"1"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]},
            {"type":"tool_result","tool_use_id":"a","content":"","is_error":true},{"type":"text","text":"t"}]}]"#,
    ),
    // Tools that the provider ran, and one that it still runs.
    Case::taken(
        r#"[{"role":"user","content":"hi"},
        {"role":"assistant","content":[{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}},
            {"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]},{"type":"thinking","thinking":"t","signature":"s"},
            {"type":"server_tool_use","id":"srvtoolu_2","name":"web_search","input":{}}]}]"#,
    ),
    Case::taken(
        r#"[{"role":"user","content":"hi"},
        {"role":"assistant","content":[{"type":"server_tool_use","id":"srvtoolu_2","name":"web_search","input":{}}]},
        {"role":"assistant","content":[{"type":"web_search_tool_result","tool_use_id":"srvtoolu_2","content":[]},{"type":"compaction","content":"c"}]},
        {"role":"user","content":"more"}]"#,
    ),
    Case::taken(
        r#"[{"role":"user","content":"hi"},
        {"role":"assistant","content":[{"type":"fallback","from":{"model":"a"},"to":{"model":"b"}},{"type":"text","text":"t"}]},
        {"role":"user","content":"more"}]"#,
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"fallback","from":{"model":"a"}}]},
        {"role":"user","content":"more"}]"#,
        "messages.1.content.0.fallback.to.model: Field required",
    ),
    Case::open("[]", "at least one message"),
    Case::open(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":"a"}]"#,
        "This model does not support assistant message prefill. The conversation must end with a user message.",
    ),
    Case::open(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"text","text":"a \n"}]}]"#,
        "messages: final assistant content cannot end with trailing whitespace",
    ),
    Case::open(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":""}]"#,
        "The conversation must end with a user message.",
    ),
    Case::open(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}]"#,
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a.",
    ),
    Case::open(
        r#"[{"role":"user","content":"hi"},
        {"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}},{"type":"tool_use","id":"b","name":"f","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"b","content":"1"}]}]"#,
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a.",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},
        {"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}},{"type":"tool_use","id":"b","name":"f","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"b","content":"1"},{"type":"text","text":"t"}]}]"#,
        "without `tool_result` blocks immediately after: a.",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},
        {"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}},{"type":"tool_use","id":"b","name":"f","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"1"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"b","content":"1"}]}]"#,
        "without `tool_result` blocks immediately after: b.",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},
        {"role":"user","content":[{"type":"text","text":"first"},{"type":"tool_result","tool_use_id":"a","content":"1"}]}]"#,
        "without `tool_result` blocks immediately after: a.",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},
        {"role":"assistant","content":"x"},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"1"}]}]"#,
        "without `tool_result` blocks immediately after: a.",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"1"}]}]"#,
        "messages.0: unexpected `tool_use_id` found in `tool_result` blocks: a.",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":"x"},
        {"role":"user","content":[{"type":"text","text":"t"},{"type":"tool_result","tool_use_id":"a","content":"1"}]}]"#,
        "messages.2: unexpected `tool_use_id` found in `tool_result` blocks: a.",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"1"},{"type":"tool_result","tool_use_id":"a","content":"2"}]}]"#,
        "each tool_use must have a single result. Found multiple `tool_result` blocks with id: a",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"1"}]},
        {"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"2"}]}]"#,
        "messages.3.content.0: `tool_use` ids must be unique",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a|b","name":"f","input":{}}]}]"#,
        "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a1234567890123456789012345678901234567890123456789012345678901234","name":"f","input":{}}]}]"#,
        "tool_use.id: String should have at most 64 characters",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"","input":{}}]}]"#,
        "tool_use.name: String should match pattern",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":"{}"}]}]"#,
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":"a"},{"role":"user","content":"hi"}]"#,
        "messages: first message must use the \"user\" role",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"system","content":"s"},{"role":"user","content":"hi"}]"#,
        "Unexpected role \"system\"",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"type":"text","text":""}]}]"#,
        "messages: text content blocks must be non-empty",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"type":"text","text":"\n "}]}]"#,
        "messages: text content blocks must contain non-whitespace text",
    ),
    Case::refused(
        r#"[{"role":"user","content":" "}]"#,
        "messages: text content blocks must contain non-whitespace text",
    ),
    Case::refused(
        r#"[{"role":"user","content":""}]"#,
        "messages.0: all messages must have non-empty content",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[]},{"role":"user","content":"hi"}]"#,
        "messages.1: all messages must have non-empty content",
    ),
    Case::refused(r#"[{"role":"user"}]"#, "messages.0.content: Input should be a valid list"),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":""}]}]}]"#,
        "messages.2.content.0.tool_result: text content blocks must be non-empty",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"\n"}]}]}]"#,
        "messages.2.content.0.tool_result: text content blocks must contain non-whitespace text",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"tool_use"}]}]}]"#,
        "Input tag 'tool_use' found using 'type'",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}},{"type":"thinking","thinking":"t","signature":"s"},{"type":"text","text":"t"}]}]"#,
        "messages.1.content.1: Expected `thinking` or `redacted_thinking`",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"}]},{"role":"user","content":"hi"}]"#,
        "messages.1: The final block in an assistant message cannot be `thinking`.",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"text","text":"t"}]}]"#,
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"thinking","signature":"s"},{"type":"text","text":"t"}]}]"#,
        "thinking.thinking: Field required",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"redacted_thinking"},{"type":"text","text":"t"}]}]"#,
        "Invalid `data` in `redacted_thinking` block",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"type":"thinking","thinking":"t","signature":"s"}]}]"#,
        "`thinking` blocks can only be in `assistant` messages",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}]"#,
        "`tool_use` blocks can only be in `assistant` messages",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_result","tool_use_id":"a"}]}]"#,
        "`tool_result` blocks can only be in `user` messages",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"type":"output_text","text":"t"}]}]"#,
        "messages.0.content.0: Input tag 'output_text' found using 'type'",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}]},{"role":"user","content":"hi"}]"#,
        "tool use with id `srvtoolu_1` was found without a corresponding tool result block",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]}]},{"role":"user","content":"hi"}]"#,
        "unexpected `tool_use_id` found in `web_search_tool_result` blocks: srvtoolu_1",
    ),
    Case::refused(
        r#"[{"role":"user","content":[
        {"type":"text","text":"1","cache_control":{"type":"ephemeral"}},{"type":"text","text":"2","cache_control":{"type":"ephemeral"}},
        {"type":"text","text":"3","cache_control":{"type":"ephemeral"}},{"type":"text","text":"4","cache_control":{"type":"ephemeral"}},
        {"type":"text","text":"5","cache_control":{"type":"ephemeral"}}]}]"#,
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":""}}]}]"#,
        "Could not process image",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"type":"image","source":{"type":"inline"}}]}]"#,
        "image.source: Input tag 'inline'",
    ),
];
