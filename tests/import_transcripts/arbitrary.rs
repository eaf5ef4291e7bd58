//! Rules that hold for any bytes.

use super::check_rules;
use bytes::Bytes;
use proptest::prelude::*;
use turnkeep::import::Source;

/// Pieces of files: of each format, and what breaks them.
const FRAGMENTS: [&[u8]; 32] = [
    b"\n",
    b"\r\n",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\0",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"\\ud99c",
    b"null",
    b"{}",
    b"[1]",
    br#""type":"user","#,
    br#""message":{"role":"user","content":"#,
    br#"{"type":"user","uuid":"a","message":{"role":"user","content":"hi"}}"#,
    br#"{"type":"user","isSidechain":true,"parentUuid":"a","message":{"content":[{"type":"tool_result","tool_use_id":"t"}]}}"#,
    br#"{"type":"assistant","isSidechain":true,"agentId":"x","message":{"id":"m","content":[{"type":"tool_use","id":"t","name":"Task","input":{"prompt":"hi"}}]}}"#,
    br#"{"type":"assistant","message":{"id":"m","content":[{"type":"tool_use","id":"t"}],"usage":{"output_tokens":1e3}}}"#,
    br#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t"}]}}"#,
    br#"{"type":"progress","parentToolUseID":"t","data":{"type":"agent_progress","agentId":"x","message":{"type":"user","message":{"content":"hi"}}}}"#,
    br#"{"type":"response_item","payload":{"type":"function_call","call_id":"c"}}"#,
    br#"{"type":"response_item","payload":{"type":"function_call_output","call_id":"c"}}"#,
    br#"{"type":"event_msg","payload":{"type":"token_count","info":{"last_token_usage":{"input_tokens":-1}}}}"#,
    br#"{"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{}}]}"#,
    br#"{"role":"model","parts":[{"functionCall":{}}]}"#,
    br#"{"samples":[{"messages":[{"role":"tool","tool_call_ids":["c"]}]}]}"#,
    br#"{"request":{"body":{"messages":[{"role":"user","content":"hi"}]}},"response":{"body":{"output":[]}}}"#,
    br#"{"model":"x","input":"hi","output":[{"type":"reasoning"}]}"#,
];

fn check(bytes: Vec<u8>) {
    let bytes = Bytes::from(bytes);
    for source in [None].into_iter().chain(Source::ALL.map(Some)) {
        check_rules(&bytes, source);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_imported_and_come_back(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        check(bytes);
    }

    #[test]
    fn any_sequence_of_fragments_is_imported_and_comes_back(
        fragments in prop::collection::vec(prop::sample::select(FRAGMENTS.to_vec()), 0..24),
        ends in any::<bool>(),
    ) {
        check(fragments.join(if ends { &b"\n"[..] } else { &b""[..] }));
    }

    /// Where a file is cut decides nothing but what follows: a writer that was
    /// stopped in the middle of a line leaves one torn line.
    #[test]
    fn a_sample_that_is_cut_anywhere_is_imported_and_comes_back(
        sample in prop::sample::select(super::files(&super::samples())),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = std::fs::read(sample).unwrap();
        bytes.truncate(cut.index(bytes.len() + 1));
        check(bytes);
    }
}
