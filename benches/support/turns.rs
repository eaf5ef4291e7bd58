//! Turns such as coding agents make: a message with a call, and its result.

use bytes::Bytes;
use serde_json::json;
use turnkeep::rpc::pb;

/// What the calls read: this project's own files, so that the text has the
/// entropy and the tokens of what agents read.
const FILES: [(&str, &str); 6] = [
    ("src/engine/persist.rs", include_str!("../../src/engine/persist.rs")),
    ("src/engine/seal.rs", include_str!("../../src/engine/seal.rs")),
    ("src/store/meta.rs", include_str!("../../src/store/meta.rs")),
    ("src/store/sql/rows.rs", include_str!("../../src/store/sql/rows.rs")),
    ("src/settings.rs", include_str!("../../src/settings.rs")),
    ("proto/session.proto", include_str!("../../proto/turnkeep/v1/session.proto")),
];

/// Bytes of a file that one call reads.
const RESULT_BYTES: usize = 7 * 1024;

/// The entries of the `number`th turn of a session: about 8 KiB of JSON.
pub(crate) fn typical(format: pb::WireFormat, number: u64) -> Vec<pb::NewEntry> {
    let (path, text) = FILES[usize::try_from(number).unwrap_or(0) % FILES.len()];
    // Steps that have no common factor with the lengths, so that turns differ.
    let start = usize::try_from(number.wrapping_mul(1543)).unwrap_or(0) % (text.len() - RESULT_BYTES);
    let (start, end) = (text.floor_char_boundary(start), text.floor_char_boundary(start + RESULT_BYTES));
    let said = format!("Step {number}: I look at {path} from byte {start} on, to see how it is done there.");
    let id = format!("call_{number:012}");
    let input = json!({"path": path, "offset": start, "limit": RESULT_BYTES});
    let result = format!("{path}, bytes {start} to {end}\n{}", &text[start..end]);
    let payloads = match format {
        pb::WireFormat::AnthropicMessages => [
            json!({"role": "assistant", "content": [
                {"type": "text", "text": said},
                {"type": "tool_use", "id": id, "name": "read_file", "input": input},
            ]}),
            json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": id, "content": result},
            ]}),
        ],
        _ => [
            json!({"role": "assistant", "content": said, "tool_calls": [
                {"id": id, "type": "function", "function": {"name": "read_file", "arguments": input.to_string()}},
            ]}),
            json!({"role": "tool", "tool_call_id": id, "content": result}),
        ],
    };
    payloads.map(|payload| entry(&payload)).to_vec()
}

/// The user's message that a session begins with.
pub(crate) fn opening() -> Vec<pb::NewEntry> {
    vec![entry(
        &json!({"role": "user", "content": "Find out how a turn is made durable, and write it down."}),
    )]
}

fn entry(payload: &serde_json::Value) -> pb::NewEntry {
    pb::NewEntry { payload: Bytes::from(payload.to_string()), ..Default::default() }
}
