//! What Converse takes and refuses.

use super::Case;

pub(super) const CASES: &[Case] = &[
    Case::taken(r#"[{"role":"user","content":[{"text":"hi"},{"cachePoint":{"type":"default"}}]}]"#),
    Case::taken(
        r#"[{"role":"user","content":[{"text":"hi"}]},
        {"role":"assistant","content":[{"reasoningContent":{"reasoningText":{"text":"","signature":"s"}}},{"reasoningContent":{"redactedContent":"d"}},{"text":"t"},
            {"toolUse":{"toolUseId":"a","name":"f","input":{}}},{"toolUse":{"toolUseId":"b","name":"f","input":{}}}]},
        {"role":"user","content":[{"toolResult":{"toolUseId":"b","content":[{"json":{}},{"text":"1"}],"status":"error"}},{"toolResult":{"toolUseId":"a","content":[]}},{"text":"t"}]}]"#,
    ),
    Case::open("[]", "at least one message"),
    Case::open(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"text":"a"}]}]"#,
        "The conversation must end with a user message.",
    ),
    Case::open(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]}]"#,
        "Expected toolResult blocks at messages.2.content for the following Ids: a",
    ),
    Case::open(
        r#"[{"role":"user","content":[{"text":"hi"}]},
        {"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}},{"toolUse":{"toolUseId":"b","name":"f","input":{}}}]},
        {"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[]}}]}]"#,
        "Expected toolResult blocks at messages.2.content for the following Ids: b",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]},
        {"role":"user","content":[{"text":"t"}]}]"#,
        "Expected toolResult blocks at messages.2.content for the following Ids: a",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]},
        {"role":"user","content":[{"text":"t"},{"toolResult":{"toolUseId":"a","content":[]}}]}]"#,
        "Expected toolResult blocks at messages.2.content for the following Ids: a",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]},
        {"role":"user","content":[{"toolResult":{"toolUseId":"b","content":[]}}]}]"#,
        "Expected toolResult blocks at messages.2.content for the following Ids: a",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[]}}]}]"#,
        "The number of toolResult blocks at messages.0.content exceeds the number of toolUse blocks of previous turn.",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]},
        {"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[]}},{"toolResult":{"toolUseId":"a","content":[]}}]}]"#,
        "The toolResult blocks at messages.2.content contain duplicate Ids: a",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]},
        {"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[]}}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]}]"#,
        "messages.3.content.0: `tool_use` ids must be unique",
    ),
    Case::refused(
        r#"[{"role":"assistant","content":[{"text":"a"}]},{"role":"user","content":[{"text":"hi"}]}]"#,
        "A conversation must start with a user message.",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"user","content":[{"text":"hi"}]}]"#,
        "A conversation must alternate between user and assistant roles.",
    ),
    Case::refused(
        r#"[{"role":"system","content":[{"text":"hi"}]}]"#,
        "Member must satisfy enum value set: [user, assistant]",
    ),
    Case::refused(
        r#"[{"role":"user","content":[]}]"#,
        "The content field in the Message object at messages.0 is empty.",
    ),
    Case::refused(
        r#"[{"role":"user","content":"hi"}]"#,
        "The content field in the Message object at messages.0 is empty.",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"},{"text":" \n"}]}]"#,
        "The text field in the ContentBlock object at messages.0.content.1 is blank.",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]},
        {"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[{"text":" "}]}}]}]"#,
        "ContentBlock object at messages.2.content.0.toolResult.content.0 is blank.",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"type":"text","text":"hi"}]}]"#,
        "must set one of the following keys",
    ),
    Case::refused(r#"[{"role":"user","content":[{"thinking":"hi"}]}]"#, "Unknown member 'thinking'"),
    Case::refused(
        r#"[{"role":"user","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]}]"#,
        "The toolUse block at messages.0.content.0 is not supported in a message of the user.",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolResult":{"toolUseId":"a","content":[]}}]}]"#,
        "The toolResult block at messages.1.content.0 is not supported in a message of the assistant.",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a b","name":"f","input":{}}}]}]"#,
        "Member must satisfy regular expression pattern: [a-zA-Z0-9_-]+",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","input":{}}}]}]"#,
        "toolUse.name' failed to satisfy constraint",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":"{}"}}]}]"#,
        "The format of the value at messages.1.content.0.toolUse.input is invalid.",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]},
        {"role":"user","content":[{"toolResult":{"toolUseId":"a","content":"1"}}]}]"#,
        "toolResult.content' failed to satisfy constraint: Member must not be null",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]},
        {"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[{"json":[]}]}}]}]"#,
        "Provide a json object for the field",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}}]},
        {"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[],"status":"ok"}}]}]"#,
        "failed to satisfy constraint: [success, error]",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"toolUse":{"toolUseId":"a","name":"f","input":{}}},{"reasoningContent":{"redactedContent":"d"}}]}]"#,
        "Expected `thinking` or `redacted_thinking` before `tool_use`",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"reasoningContent":{"redactedContent":"d"}}]}]"#,
        "The final block in an assistant message cannot be `thinking`.",
    ),
    Case::refused(
        r#"[{"role":"user","content":[{"text":"hi"}]},{"role":"assistant","content":[{"reasoningContent":{}},{"text":"t"}]}]"#,
        "The reasoningContent at messages.1.content.0 must set one of the following keys",
    ),
];
