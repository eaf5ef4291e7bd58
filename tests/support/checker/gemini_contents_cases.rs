//! What Gemini takes and refuses.

use super::Case;

pub(super) const CASES: &[Case] = &[
    Case::taken(
        r#"[{"role":"user","parts":[{"text":"hi"},{"inlineData":{"mimeType":"image/png","data":"AAAA"}}]}]"#,
    ),
    // Parallel calls of one name without ids, responses by position; a user turn
    // right after them; a signature on empty text.
    Case::taken(
        r#"[{"role":"user","parts":[{"text":"hi"}]},
        {"role":"model","parts":[{"text":"t","thought":true},{"functionCall":{"name":"f","args":{}},"thoughtSignature":"c2ln"},{"functionCall":{"name":"f"}}]},
        {"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}},{"functionResponse":{"name":"f","response":{}}},{"inlineData":{"mimeType":"image/png","data":"AAAA"}}]},
        {"role":"user","parts":[{"text":"and"}]},{"role":"model","parts":[{"text":"","thoughtSignature":"c2ln"}]},{"role":"user","parts":[{"text":"hi"}]}]"#,
    ),
    Case::taken(
        r#"[{"role":"user","parts":[{"text":"hi"}]},
        {"role":"model","parts":[{"function_call":{"name":"f","id":"1","args":{}}},{"functionCall":{"name":"g","id":"2"}}]},
        {"role":"function","parts":[{"function_response":{"name":"g","id":"2","response":{}}},{"functionResponse":{"name":"f","response":{}}}]}]"#,
    ),
    // Signatures of finished turns are not asked for.
    Case::taken(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"}}]},
        {"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}}]},{"role":"model","parts":[{"text":"a"}]},
        {"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"},"thoughtSignature":"skip_thought_signature_validator"}]},
        {"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}}]}]"#,
    ),
    Case::open("[]", "at least one message"),
    Case::open(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"text":"a"}]}]"#,
        "Please ensure that multiturn requests ends with a user role or a function response.",
    ),
    Case::open(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"}}]}]"#,
        "number of function response parts is equal to the number of function call parts",
    ),
    Case::open(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"}},{"functionCall":{"name":"g"}}]},
        {"role":"user","parts":[{"functionResponse":{"name":"g","response":{}}}]}]"#,
        "number of function response parts is equal to the number of function call parts",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"}},{"functionCall":{"name":"g"}}]},
        {"role":"user","parts":[{"functionResponse":{"name":"g","response":{}}},{"text":"t"}]}]"#,
        "number of function response parts is equal to the number of function call parts",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"}},{"functionCall":{"name":"f"}}]},
        {"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}}]},{"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}}]}]"#,
        "number of function response parts is equal to the number of function call parts",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"}}]},
        {"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}},{"functionResponse":{"name":"f","response":{}}}]}]"#,
        "number of function response parts is equal to the number of function call parts",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"}}]},{"role":"user","parts":[{"text":"stop"}]}]"#,
        "number of function response parts is equal to the number of function call parts",
    ),
    Case::refused(
        r#"[{"role":"model","parts":[{"functionCall":{"name":"f"}}]},{"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}}]}]"#,
        "function call turn comes immediately after a user turn or after a function response turn",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"text":"a"}]},{"role":"model","parts":[{"functionCall":{"name":"f"}}]},
        {"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}}]}]"#,
        "function call turn comes immediately after a user turn or after a function response turn",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}}]}]"#,
        "function response turn comes immediately after a function call turn",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"text":"a"}]},{"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}}]}]"#,
        "function response turn comes immediately after a function call turn",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"}}]},{"role":"user","parts":[{"functionResponse":{"name":"g","response":{}}}]}]"#,
        "function response 'g' has a function call",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f","id":"1"}}]},{"role":"user","parts":[{"functionResponse":{"name":"f","id":"2","response":{}}}]}]"#,
        "function response 'f' has a function call",
    ),
    Case::refused(
        r#"[{"role":"model","parts":[{"text":"a"}]},{"role":"user","parts":[{"text":"hi"}]}]"#,
        "multiturn requests begin with a user role",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"user","parts":[{"text":"hi"}]}]"#,
        "multiturn requests alternate between user and model",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"text":"a"}]},{"role":"model","parts":[{"text":"a"}]},{"role":"user","parts":[{"text":"hi"}]}]"#,
        "multiturn requests alternate between user and model",
    ),
    Case::refused(r#"[{"role":"system","parts":[{"text":"hi"}]}]"#, "Please use a valid role: user, model."),
    Case::refused(r#"[{"parts":[{"text":"hi"}]}]"#, "Please use a valid role: user, model."),
    Case::refused(r#"[{"role":"user","parts":[]}]"#, "contents.parts must not be empty."),
    Case::refused(
        r#"[{"role":"user","parts":[{}]}]"#,
        "required oneof field 'data' must have one initialized field",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi","inlineData":{"mimeType":"image/png","data":"AAAA"}}]}]"#,
        "oneof field 'data' is already set",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"inlineData":{"data":"AAAA"}}]}]"#,
        "Invalid value at 'contents[0].parts[0].inlineData'",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f","args":"{}"}}]}]"#,
        "Invalid value at 'contents[1].parts[0].functionCall'",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"}}]},{"role":"user","parts":[{"functionResponse":{"name":"f","response":"1"}}]}]"#,
        "Invalid value at 'contents[2].parts[0].functionResponse'",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"args":{}}}]}]"#,
        "Name cannot be empty.",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"functionCall":{"name":"f"}}]}]"#,
        "functionCall is not allowed in a turn of role 'user'",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"}}]},{"role":"function","parts":[{"text":"1"}]}]"#,
        "text is not allowed in a turn of role 'function'",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"},"thoughtSignature":"c2ln"}]},
        {"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}}]},{"role":"model","parts":[{"functionCall":{"name":"g"}}]},
        {"role":"user","parts":[{"functionResponse":{"name":"g","response":{}}}]}]"#,
        "Function call `g` in the 4. content block is missing a `thought_signature`",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"functionCall":{"name":"f"}},{"functionCall":{"name":"g"},"thoughtSignature":"c2ln"}]},
        {"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}},{"functionResponse":{"name":"g","response":{}}}]}]"#,
        "Function call `f` in the 2. content block is missing a `thought_signature`",
    ),
    Case::refused(
        r#"[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"text":"a","thoughtSignature":"not a signature"}]},{"role":"user","parts":[{"text":"hi"}]}]"#,
        "Corrupted thought signature.",
    ),
];
